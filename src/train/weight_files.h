// SPDX-License-Identifier: Apache-2.0
// Files of weights that a training does not keep in its checkpoints, and reads again whenever it is
// resumed: an adapter's base, and the reference of a preference tuning or reinforcement learning.
#pragma once

#include <string>
#include <vector>

namespace hocket::train {

/// Returns "SIZE TIME NAME" of each file with weights, or their configuration, of a model, then of
/// an adapter. `weights`: a folder or a GGUF file, or an adapter's folder, which stands for its
/// base; empty: random. `adapter`: a folder; empty: none.
std::vector<std::string> weight_files(const std::string& weights, const std::string& adapter = "");

/// Returns a clause about the first file that differs from a training's beginning, between results
/// of weight_files(); empty: none.
std::string change_of_files(const std::vector<std::string>& before,
                            const std::vector<std::string>& now);

/// Results of weight_files() when a training began; empty: not read again, or not known.
struct FrozenFiles {
  std::vector<std::string> base;  ///< of an adapter
  std::vector<std::string> reference;
};

}  // namespace hocket::train
