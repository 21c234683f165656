// SPDX-License-Identifier: Apache-2.0
// The sums of gradients in a program: which of them codecs can take, and along which way their
// codes then travel.
//
// Along one axis of n ranks there are two ways, of which the one that moves fewer bytes is taken,
// or the one that plan.grad_codec_of says:
//   at once     every rank gets all codes of all others: (n - 1) x codes
//   by blocks   every rank gets a block of rows of all others, adds it up, encodes the sum, and all
//               gather the codes of sums: 2 (n - 1) / n x codes
// Of several axes the innermost comes first, whose ranks are nearest; by blocks, the others then
// sum up a block each.
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

/// How codes of a sum travel along one axis.
struct AxisSum {
  int32_t axis = 0;
  int32_t ranks = 1;
  bool by_blocks = false;
};
struct Ways {
  std::vector<AxisSum> axes;
  double bytes = 0;  ///< through a rank's link
};

/// The way of least bytes to sum up `type` along the axes, the last one first, or that of `route`
/// along all axes whose ranks rows divide into.
Ways best_ways(const CodecOps& codec, graph::TensorType type, std::vector<AxisSum> axes,
               Route route = Route::least_bytes);

/// Those of one class's list, as it is when this is made.
class GradSums {
 public:
  GradSums(const program::Program& program, program::ClassId cls);

  /// A sum of gradients of ranks that run one list. Between classes the order of what meets is that
  /// of all of them: such a sum stays what it is.
  bool is_sum(const program::Task& task) const;
  /// Whose gradient an operand of a sum is; empty: nobody's that has a name.
  const std::string& parameter(const program::Task& task, size_t operand) const;
  std::vector<AxisSum> axes_of(const program::Task& task) const;
  /// Whether an operand can be encoded, and no more bytes are moved than by the sum itself.
  bool takes(const CodecOps& codec, const program::Task& task, size_t operand) const;
  /// The sums of which one of the codecs `names` takes a gradient that has a name, in the order of
  /// the list.
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
