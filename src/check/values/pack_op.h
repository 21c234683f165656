// SPDX-License-Identifier: Apache-2.0
// Interpretation of an op on flat buffers of several tensors. An op that acts on every element by
// itself treats each tensor as if it were alone; a contraction is a sum over tensors.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "check/values/machine.h"

namespace hocket::check {

/// One task with packs among its operands.
class PackOp {
 public:
  PackOp(Machine& machine, const Operands& operands, TaskRef ref, const Task& task,
         const KindInfo& info);

  /// Returns the outputs; nothing, and reported, if the op can't take these packs.
  std::optional<std::vector<Value>> run();

 private:
  const program::Kind& kind() const { return m_.ctx.program.kind(task_); }
  /// Reports, and returns false. `at`: coordinates of a rank at which it fails; null: everywhere.
  bool refuse(const std::string& why, const graph::Coords* at = nullptr);
  std::string where(const graph::Coords* at);
  bool find_elements();
  bool apply_at(const graph::Coords& coords, const Packs::AlignedRuns& meeting);
  bool apply(const std::vector<int32_t>& components);
  std::optional<Value> elements(size_t output);
  std::optional<Value> contracted(size_t output);

  Machine& m_;
  const TaskRef ref_;
  const Task& task_;
  const KindInfo& info_;
  std::vector<Value> operands_;
  ops::Letters letters_;        ///< of the task's own operands
  std::string dims_;            ///< letters of the elements
  std::vector<size_t> inputs_;  ///< inputs that hold elements
  std::vector<PackId> packs_;   ///< of `inputs_`
  /// Components that lie in the same places of all inputs, and the number of this *part*.
  std::map<std::vector<int32_t>, int32_t> parts_;
  std::vector<std::vector<Value>> made_;   ///< by part and output: the op's result
  std::vector<Value> first_;               ///< by part: its component of the first input
  std::map<graph::Coords, PackRow> rows_;  ///< runs of parts
};

}  // namespace hocket::check
