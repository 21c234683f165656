// SPDX-License-Identifier: Apache-2.0
// Building blocks of communication ops: blocks along a dim, reductions, and rows of routed tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collectives/comm_op.h"
#include "graph/tensor_type.h"

namespace hocket::comm {

/// Attribute of a list op for operands that the members do not divide: their total lengths in list
/// order, where they are not one `size`.
inline constexpr const char* kSizes = "sizes";
/// Returns, by operand, the total length of a dim where the first members have one more; empty
/// where the members divide it. Throws Error for a malformed list.
std::vector<int64_t> sizes_of(const Attrs& attrs, size_t operands);
void set_sizes(const std::vector<int64_t>& sizes, Attrs* attrs);
/// Returns whether the members divide no operand.
bool has_sizes(const Attrs& attrs);

/// Tensor seen as [outer, inner] for splits along `dim`: numbers of elements before the dim, and
/// from it on.
struct Blocks {
  int64_t outer = 1, inner = 1;
};
Blocks blocks(const TensorType& type, int64_t dim);

/// Blocks of one member along `dim` of the whole tensor: their number and length, the offset of the
/// first block, and the stride between blocks, all in elements.
struct MemberBlocks {
  int64_t outer = 1, inner = 1, begin = 0, stride = 1;
};
MemberBlocks member_blocks(const TensorType& whole, int64_t dim, size_t members, size_t member,
                           const std::vector<int64_t>& lengths = {});
/// Returns the range of `size` that a member holds: an even share, or one of the given lengths.
graph::Run run_of_member(int64_t size, size_t members, size_t member,
                         const std::vector<int64_t>& lengths);

/// Computes to[i] = sum, or maximum, over k of from[k][begin + i], in the order of `from`, for
/// `count` elements of `dtype`. `to` may alias one of the sources. Throws Error for a type or
/// monoid that has no local reduction.
void reduce(graph::Monoid monoid, graph::DType dtype, std::span<const void* const> from,
            int64_t begin, int64_t count, void* to);

/// Interval of `size` items that belongs to the current part of a divided collective.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t length() const { return end - begin; }
};
Range part_of(const CollectiveArgs& all, int64_t size);

/// Returns input `i` of every member, as bytes.
std::vector<const std::byte*> inputs(const CollectiveArgs& all, size_t i);

/// Box-shaped part of a tensor: a range of every dim.
using Region = std::vector<graph::Run>;
/// Plans the copies for a rank that wants a region from the ranks that hold others. Every element
/// comes from the first holder that has it, in cyclic order from `first`. Returns nothing if some
/// element has no holder.
std::optional<std::vector<Copy>> plan_copies(std::span<const Region> held, const Region& wanted,
                                             size_t first);

/// Returns the total bytes of the tensors.
int64_t total_bytes(std::span<const TensorType> types);

/// Row counts per source rank and expert, i64[members, experts], as a `makes_sizes` op returns
/// them. Rows of a routed tensor are sorted by (expert, token), hence by (expert, source).
class Rows {
 public:
  /// `outer`: number of expert runs; every member owns a block of each.
  Rows(const void* sizes, int64_t members, int64_t experts, int64_t outer)
      : sizes_(static_cast<const int64_t*>(sizes)),
        members_(members),
        experts_(experts),
        outer_(outer) {}
  int64_t members() const { return members_; }
  int64_t experts() const { return experts_; }
  /// Returns the member that holds an expert's rows when the tensor is split by expert.
  int64_t owner(int64_t expert) const;
  int64_t of(int64_t source, int64_t expert) const { return sizes_[source * experts_ + expert]; }
  /// Returns an expert's rows from all sources.
  int64_t of_all(int64_t expert) const;
  /// Returns the rows that a member holds when the tensor is split by expert (dim 0) or by token
  /// (dim 1).
  int64_t held(int64_t member, int dim) const;
  /// Returns the first row of (source, expert) within the member that holds it.
  int64_t begin(int64_t source, int64_t expert, int dim) const;

 private:
  const int64_t* sizes_;
  int64_t members_, experts_, outer_;
};

/// Appends rows of members to an output. Throws Error when they exceed the output's capacity.
class RowWriter {
 public:
  RowWriter(const CollectiveArgs& all, size_t me);
  /// Appends `count` rows of a member's first input, from row `begin` on.
  void take(int64_t member, int64_t begin, int64_t count);

 private:
  std::vector<const std::byte*> from_;
  std::byte* to_;
  int64_t row_bytes_, limit_, written_ = 0;
};

}  // namespace hocket::comm
