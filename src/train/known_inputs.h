// SPDX-License-Identifier: Apache-2.0
// Communicated values that follow from the host's inputs, for a rank that is timed alone. Values
// with a meaning, such as positions, are then valid whether they come from a collective or from
// messages.
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
  /// `ranks`: those timed alone. The values of their communication are derived once, by the check.
  KnownInputs(const engine::Compiled& compiled, const std::vector<int32_t>& ranks);
  /// The inputs of the step that runs next.
  void feed(const engine::FeedMap& feeds, const engine::Compiled& compiled);
  /// Writes the known inputs into the outputs of a call; leaves the rest unchanged.
  void fill(int32_t rank, const comm::Call& call) const;

 private:
  /// An input, or that of a micro-batch.
  using Input = std::pair<std::string, int32_t>;
  /// Content of a task's output, in local order.
  struct Brought {
    size_t output = 0;
    Input input;
    std::vector<graph::Run> indices;
  };
  std::map<std::pair<int32_t, program::TaskId>, std::vector<Brought>> brought_;  ///< by rank
  std::map<Input, std::vector<std::byte>> inputs_;  ///< full values of the inputs
};

}  // namespace hocket::train
