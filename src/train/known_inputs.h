// SPDX-License-Identifier: Apache-2.0
// What a rank that plays alone would get from others of the inputs of the step: the host has given
// them, so they are known. Positions, which are taken for what they say, are so right whatever way
// they came, in a collective or in messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "engine/feed.h"
#include "graph/cut.h"

namespace hocket::train {

class KnownInputs {
 public:
  /// `ranks`: those that play alone. What their communication brings is worked out once, as the
  /// check does it.
  KnownInputs(const engine::Compiled& compiled, const std::vector<int32_t>& ranks);
  /// The inputs of the step that runs next.
  void feed(const engine::FeedMap& feeds, const engine::Compiled& compiled);
  /// Writes into the outputs of a call what they hold of inputs; leaves all else as it is.
  void fill(int32_t rank, const comm::Call& call) const;

 private:
  /// An input, or that of a micro-batch.
  using Input = std::pair<std::string, int32_t>;
  /// What an output of a task holds, in the order in which it lies there.
  struct Brought {
    size_t output = 0;
    Input input;
    std::vector<graph::Run> indices;
  };
  std::map<std::pair<int32_t, program::TaskId>, std::vector<Brought>> brought_;  ///< by rank
  std::map<Input, std::vector<std::byte>> inputs_;  ///< of these, in full
};

}  // namespace hocket::train
