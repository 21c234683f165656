// SPDX-License-Identifier: Apache-2.0
// Interpretation of transfers between roles. Ranks of one role hold parts of a term, each where its
// task says; ranks of the other role get the parts that their tasks name, which must be there.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "check/values/machine.h"

namespace hocket::check {

class RoleTransfers {
 public:
  explicit RoleTransfers(Machine& machine) : m_(machine) {}

  /// Requires: the tasks of all classes that take part.
  void transfer(std::span<const TaskRef> tasks);

 private:
  bool matches_begins(TaskRef ref, const Value& value);
  PieceId taken_piece(std::span<const TaskRef> takers, const graph::TensorType& logical);
  std::string missing_text(TaskRef taker, int32_t rank, std::span<const TaskRef> givers);

  Machine& m_;
};

}  // namespace hocket::check
