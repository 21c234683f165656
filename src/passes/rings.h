// SPDX-License-Identifier: Apache-2.0
// Collectives of a class as messages, copies and sums: rings, level by level.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/layout.h"
#include "passes/writer.h"
#include "program/program.h"

namespace hocket::passes {

/// A part of a buffer of the class, of which a rank has, at every level, the block of its number:
/// indices of dim 0, or elements. It begins at the sum of its digits.
struct Part {
  /// `stride` times the coordinate on the axis, moved by `shift` around its end.
  struct Digit {
    int32_t axis = 0;
    int64_t shift = 0, stride = 0;
  };
  program::BufferId base = program::kNone;
  bool flat = false;
  int64_t length = 0;
  std::vector<Digit> digits;
};

/// The tasks of one collective in the class, in an order that respects the data. A level is an
/// axis: a value is summed or gathered over one axis after the other, each time around a ring of
/// the ranks that differ on that axis alone. Of a ring of n ranks, with blocks of 1/n:
///   summing: n - 1 times a message with what is summed of a block, to which the receiver adds its
///     own part; at last every rank has the sum of the block of its number.
///   gathering: n - 1 times a message with a finished block.
class Rings {
 public:
  /// `whole`: the collective, whose labels the tasks have. Messages are told apart from others by
  /// tags from `first_tag` on.
  Rings(program::Program& program, program::ClassId cls, const program::Task& whole,
        int32_t first_tag);

  /// Whether the sum over these axes needs no flat buffer of its own: one operand of which all
  /// ranks have as many rows.
  bool sums_rows(const std::vector<int32_t>& axes) const;
  /// Sums operands, or takes their maximum, over these axes, in `in` and `out` as the collective
  /// has them.
  void all_reduce(const std::vector<int32_t>& axes);
  /// The block of the rank among all on these axes, outermost first, of the sum along dim 0.
  void reduce_scatter(const std::vector<int32_t>& axes);
  /// The blocks of all ranks on these axes, outermost first, along dim 0.
  void all_gather(const std::vector<int32_t>& axes);

  std::vector<program::Task> take() { return std::move(tasks_); }
  int32_t next_tag() const { return tag_; }

 private:
  void all_reduce_flat(const std::vector<int32_t>& axes, graph::DType dtype, int64_t all);
  Part scatter(Part from, Part* to, program::BufferId last, const std::vector<int32_t>& axes);
  void gather(Part to, const std::vector<int32_t>& axes);
  void pass_on(int32_t axis, program::BufferId from, program::BufferId to);
  void local(const std::string& op, const graph::Attrs& attrs,
             const std::vector<program::BufferId>& in, program::BufferId out);
  void copy(program::BufferId from, program::BufferId to);
  program::BufferId view(const Part& part);
  program::BufferId slot(program::BufferId base, const graph::TensorType& type, int64_t begin);
  graph::TensorType type_of(const Part& part) const;
  Part block(const Part& part, int32_t axis, int64_t shift) const;
  bool is_cut(program::BufferId buffer) const;
  int64_t all_ranks(const std::vector<int32_t>& axes) const;
  int64_t ranks(int32_t axis) const { return mesh().axes[axis].size; }
  const graph::Mesh& mesh() const { return writer_.program().mesh_of(writer_.cls()); }

  Writer writer_;
  program::Task whole_;
  program::Kind kind_;
  int32_t tag_;
  size_t first_view_;  ///< buffers from here on are made here
  std::vector<program::Task> tasks_;
};

}  // namespace hocket::passes
