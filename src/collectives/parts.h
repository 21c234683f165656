// SPDX-License-Identifier: Apache-2.0
// Pieces of tensors that the communication ops move: blocks along a dim, sums, and rows of routed
// tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collectives/comm_op.h"
#include "graph/tensor_type.h"

namespace hocket::comm {

/// Attribute of a list of which the members divide no operand: what they have of each together, in
/// the order of the list, where that is not one `size`.
inline constexpr const char* kSizes = "sizes";
/// What members have together, by operand, of a dim of which the first ones have one more; empty
/// where they divide it. Throws Error for what is no such list.
std::vector<int64_t> sizes_of(const Attrs& attrs, size_t operands);
void set_sizes(const std::vector<int64_t>& sizes, Attrs* attrs);
/// Whether the members divide no operand.
bool has_sizes(const Attrs& attrs);

/// A tensor as [outer, inner] blocks for the cuts along `dim`: elements before it, and from it on.
struct Blocks {
  int64_t outer = 1, inner = 1;
};
Blocks blocks(const TensorType& type, int64_t dim);

/// What a member has along `dim` of a tensor that all have together: elements of a block, where a
/// block begins (the first of them in the tensor), and how far apart the tensor's are.
struct MemberBlocks {
  int64_t outer = 1, inner = 1, begin = 0, stride = 1;
};
MemberBlocks member_blocks(const TensorType& together, int64_t dim, size_t members, size_t member,
                           const std::vector<int64_t>& lengths = {});
/// The run of `size` that a member has: as evenly as it divides, or of such lengths.
graph::Run run_of_member(int64_t size, size_t members, size_t member,
                         const std::vector<int64_t>& lengths);

/// to[i] = the sum, or the greatest, over `from` of from[k][begin + i], in this order, for `count`
/// elements of `dtype`. `to` may be where one of the sources lies. Throws Error for a type or a
/// monoid that is not reduced here.
void reduce(graph::Monoid monoid, graph::DType dtype, std::span<const void* const> from,
            int64_t begin, int64_t count, void* to);

/// Where the part of a collective that is done begins in `size` of something, and ends.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t length() const { return end - begin; }
};
Range part_of(const Together& all, int64_t size);

/// The operand of every member: inputs `i`, as bytes.
std::vector<const std::byte*> inputs(const Together& all, size_t i);

/// Where a part of a tensor lies in it: a run of every dim.
using Region = std::vector<graph::Run>;
/// What a rank that wants a region copies from those that hold these: every element from the first
/// of them that has it, counted from `first` on and around the end. Nothing if they lack some.
std::optional<std::vector<Copy>> plan_copies(std::span<const Region> held, const Region& wanted,
                                             size_t first);

/// Bytes of the tensors together.
int64_t total_bytes(std::span<const TensorType> types);

/// Rows per source rank and expert, i64[members, experts], as a `makes_sizes` op leaves them. Rows
/// of a routed tensor lie in the order (expert, token), and so (expert, source).
class Rows {
 public:
  /// `outer`: the experts are that many runs, of each of which every member has a block.
  Rows(const void* sizes, int64_t members, int64_t experts, int64_t outer)
      : sizes_(static_cast<const int64_t*>(sizes)),
        members_(members),
        experts_(experts),
        outer_(outer) {}
  int64_t members() const { return members_; }
  int64_t experts() const { return experts_; }
  /// The member that has an expert's rows when the tensor is split by expert.
  int64_t owner(int64_t expert) const;
  int64_t of(int64_t source, int64_t expert) const { return sizes_[source * experts_ + expert]; }
  /// Rows of an expert, of all sources.
  int64_t of_all(int64_t expert) const;
  /// Rows that a member holds when the tensor is split by expert (dim 0) or by token (dim 1).
  int64_t held(int64_t member, int dim) const;
  /// Row at which those of (source, expert) begin in the member that holds them.
  int64_t begin(int64_t source, int64_t expert, int dim) const;

 private:
  const int64_t* sizes_;
  int64_t members_, experts_, outer_;
};

/// Copies rows of members to the rows of an output, one after the other, and refuses more than fit.
class RowWriter {
 public:
  RowWriter(const Together& all, size_t me);
  /// Appends `count` rows of a member's first input, from row `begin` on.
  void take(int64_t member, int64_t begin, int64_t count);

 private:
  std::vector<const std::byte*> from_;
  std::byte* to_;
  int64_t row_bytes_, limit_, written_ = 0;
};

}  // namespace hocket::comm
