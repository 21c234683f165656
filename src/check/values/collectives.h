// SPDX-License-Identifier: Apache-2.0
// Interpretation of collectives. A collective keeps the term and moves its piece, as the op's
// movement says, among ranks that differ along the axes of the group. Between classes, a sum unites
// the sums that the classes hold.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "check/values/machine.h"

namespace hocket::check {

class Collectives {
 public:
  explicit Collectives(Machine& machine) : m_(machine) {}

  /// A collective inside one class. `lost`: by operand, the marks of all ranks that take part;
  /// empty: those of the operand.
  void step(ClassId cls, TaskId task, std::span<const MarkId> lost = {});
  /// A collective that crosses classes: the tasks that meet in each sort of instance.
  void step_across_classes(std::span<const std::vector<TaskRef>> instances);

 private:
  void step_across_classes(std::span<const TaskRef> tasks);
  // The functions below return false, and report, if the value does not lie as the op needs it.
  // They also do so if sizes are not those of the rows.
  bool move(TaskRef ref, const KindInfo& info, AxisMask over, size_t operand, Value* value);
  bool move(TaskRef ref, const KindInfo& info, AxisMask over, const comm::Movement& movement,
            size_t operand, Value* value);
  /// Moves each part of a value that is no pack; the moved parts must add up again. `counted`: see
  /// Pieces::move.
  bool move_parts(TaskRef ref, const KindInfo& info, AxisMask over, const comm::Movement& movement,
                  size_t operand, CutId counted, Value* value);
  bool move_pack(TaskRef ref, const KindInfo& info, AxisMask over, const comm::Movement& movement,
                 size_t operand, Value* value);
  bool sizes_fit(TaskRef ref, int32_t axis, const Value& rows, PieceId by_token,
                 const Value& sizes);
  bool alike(std::span<const TaskRef> tasks, bool sums);
  std::vector<MarkId> lost_by_all(std::span<const TaskRef> tasks);

  Machine& m_;
};

}  // namespace hocket::check
