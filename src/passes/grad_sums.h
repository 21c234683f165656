// SPDX-License-Identifier: Apache-2.0
// Gradient reductions in a program: those that codecs can take, and the route of their codes.
//
// Along one axis of n ranks there are two routes. The one that moves fewer bytes is taken, or the
// one of plan.grad_codec_of:
//   at once     every rank gets all codes of all others: (n - 1) x codes
//   by blocks   every rank gets a block of rows of all others, adds it up, encodes the sum, and all
//               gather the codes of sums: 2 (n - 1) / n x codes
// With several axes the innermost comes first, since its ranks are nearest. By blocks, the other
// axes then each reduce one block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/tensor_type.h"
#include "passes/codecs.h"
#include "passes/compress.h"
#include "program/program.h"

namespace hocket::passes {

/// Route of a reduction's codes along one axis.
struct AxisSum {
  int32_t axis = 0;
  int32_t ranks = 1;
  bool by_blocks = false;
};
/// Routes along all axes of a reduction, and their cost.
struct AxisRoutes {
  std::vector<AxisSum> axes;
  double bytes = 0;  ///< through a rank's link
};

/// Returns the route of least bytes to reduce `type` along the axes, last one first. Another
/// `route` is taken along all axes with a size that divides the rows.
AxisRoutes best_routes(const CodecOps& codec, graph::TensorType type, std::vector<AxisSum> axes,
                       Route route = Route::least_bytes);

/// Gradient reductions of one class's list, as the list was at construction.
class GradSums {
 public:
  GradSums(const program::Program& program, program::ClassId cls);

  /// Returns whether a task reduces gradients among ranks that run one list. Reductions between
  /// classes stay unchanged, because the order of such collectives is common to all of them.
  bool is_sum(const program::Task& task) const;
  /// Returns the parameter of an operand's gradient; empty if it has no name.
  const std::string& parameter(const program::Task& task, size_t operand) const;
  std::vector<AxisSum> axes_of(const program::Task& task) const;
  /// Returns whether an operand can be encoded without moving more bytes than the reduction itself.
  bool takes(const CodecOps& codec, const program::Task& task, size_t operand) const;
  /// Returns the reductions with a named gradient that one of the codecs `names` takes, in list
  /// order.
  std::vector<GradSum> all(const Codecs& codecs, const std::vector<std::string>& names) const;

 private:
  void find_sums_of_several();
  GradSum sum_of(const program::Task& task, const Codecs& codecs,
                 const std::vector<std::string>& names) const;
  bool differs(const CodecOps& codec, Route route, const program::Task& task, size_t operand) const;
  bool is_within_class(const program::Task& task) const;
  bool has_parts_of_rows(program::BufferId buffer) const;
  const program::RankClass& list() const { return program_.classes[cls_]; }

  const program::Program& program_;
  const program::ClassId cls_;
  const std::map<program::BufferId, std::string> parameters_;  ///< by the root of their gradient
  std::set<program::BufferId> of_several_;
};

}  // namespace hocket::passes
