// SPDX-License-Identifier: Apache-2.0
// Losses to codecs in named buffers after the step, and whether replicas of a tensor lost the same.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "check/values/machine.h"

namespace hocket::check {

class Replicas {
 public:
  explicit Replicas(Machine& machine) : m_(machine) {}

  /// Notes the final value of a named buffer. Its losses are part of the verdict.
  void add(TaskRef at, BufferId buffer, const Value& value);
  /// Refuses tensors if losses of codecs differ by replica. Requires: all buffers are added.
  void judge();
  /// The first kMaxListedLosses losses.
  const std::vector<CodecLoss>& losses() const { return losses_; }
  std::vector<CodecUse> codec_uses() const;

 private:
  /// A persistent buffer that keeps some of a tensor, and its final value.
  struct Copy {
    TaskRef at;
    BufferId buffer;
    Value value;
  };
  /// Elements of a tensor that a rank keeps after the same losses.
  struct State {
    MarkId marks;
    graph::Coords at;  ///< on the axes along which ranks hold different parts exactly
    std::vector<graph::Run> held = {};
  };
  void add_states(const graph::Tensor& tensor, const Copy& copy, int32_t rank,
                  std::vector<State>* states);
  std::pair<TaskRef, int32_t> holder_of(int32_t tensor, const State& state, int64_t element);
  void refuse(int32_t tensor, const State& one, const State& other, const graph::Run& both);

  Machine& m_;
  std::vector<CodecLoss> losses_;
  /// By codec: terms that it encoded, and the named buffers that these reach.
  struct Lost {
    std::set<ExprId> values;
    std::set<std::string> buffers;
  };
  std::map<std::string, Lost> lost_;
  std::map<int32_t, std::vector<Copy>> copies_;  ///< by tensor, if codecs lost anything
};

}  // namespace hocket::check
