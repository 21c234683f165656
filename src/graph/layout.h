// SPDX-License-Identifier: Apache-2.0
// Mesh and layouts: how a logical tensor lies on the axes of a device mesh (the SBP algebra of
// OneFlow, arXiv 2110.15032): per axis `S(d)` split along dim d, `B` replicated, `P` partial; where
// several axes split a dim, in an order, and into blocks of any sizes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/tensor_type.h"

namespace hocket::graph {

/// Neighbouring indices, or cells of a cut.
struct Run {
  int64_t begin = 0, length = 0;
  bool operator==(const Run&) const = default;
};

/// Returns part `number` of `parts` of `size` indices, as even as possible: the first parts have
/// one more.
Run share(int64_t size, int64_t parts, int64_t number);

struct Axis {
  std::string name;
  int32_t size = 1;
  bool operator==(const Axis&) const = default;
};

/// Named axes over the ranks, outermost first: `pp`, `edp`, `ep`. Data parallelism is
/// `dp = edp x ep`: expert parallelism subdivides the data-parallel ranks.
struct Mesh {
  std::vector<Axis> axes;

  int32_t size() const;
  int32_t axis(std::string_view name) const;    ///< index, or -1
  int32_t extent(std::string_view name) const;  ///< size of the axis, 1 if absent
  std::vector<int32_t> coords(int32_t rank) const;
  int32_t rank(const std::vector<int32_t>& coords) const;
  /// `x` as a coordinate on the axis: modulo its size, in [0, size).
  int32_t wrap(int32_t axis, int64_t x) const;
  /// The rank that lies `offset` further along the axis, around its end. HOCKET_CHECK: the axis and
  /// the rank exist.
  int32_t moved(int32_t rank, int32_t axis, int32_t offset) const;
  bool operator==(const Mesh&) const = default;
};

/// Visits the coordinates on these axes, ascending, the last one counting fastest; others are 0.
template <class Visit>
void for_each_coords(const Mesh& mesh, const std::vector<int32_t>& axes, const Visit& visit) {
  std::vector<int32_t> coords(mesh.axes.size(), 0);
  for (bool more = true; more;) {
    visit(std::as_const(coords));
    more = false;
    for (size_t i = axes.size(); i-- > 0 && !more;) {
      const auto axis = static_cast<size_t>(axes[i]);
      more = ++coords[axis] < mesh.axes[axis].size;
      if (!more) {
        coords[axis] = 0;
      }
    }
  }
}

/// Combination of partial results, each from some indices of a contracted dim. A part of no indices
/// is the identity.
enum class Monoid : uint8_t {
  sum,      ///< added up; 0
  max,      ///< the greater one; -inf
  softmax,  ///< two tensors, a mean and the logarithm of its weight; 0 and -inf
  none,     ///< parts do not combine: only one that lacks nothing is a result
};

enum { kMaxAxes = 12 };

std::string to_string(const Mesh& mesh);  ///< "pp:2 edp:4"
Mesh parse_mesh(std::string_view text);   ///< throws Error: names, sizes, number of axes and ranks

/// Placement on one axis: `dim >= 0` is split(dim), below kReplicate are partial values, one code
/// per monoid.
struct Placement {
  enum : int8_t { kReplicate = -1, kPartial = -2 };
  int8_t code = kReplicate;
  static Placement replicate() { return {kReplicate}; }
  static Placement partial(Monoid monoid = Monoid::sum) {
    return {static_cast<int8_t>(kPartial - static_cast<int8_t>(monoid))};
  }
  static Placement split(int dim) { return {static_cast<int8_t>(dim)}; }
  bool is_split() const { return code >= 0; }
  bool is_partial() const { return code <= kPartial; }
  bool is_replicate() const { return code == kReplicate; }
  int dim() const { return code; }
  /// Returns the monoid of a partial value.
  Monoid monoid() const { return static_cast<Monoid>(kPartial - code); }
  bool operator==(const Placement&) const = default;
  auto operator<=>(const Placement&) const = default;
};

/// "S0", "P", "Pmax", "Psoftmax", "B".
std::string to_string(Placement placement);

/// Number of indices of each block of a dim, at least one each.
struct GivenSizes {
  GivenSizes(int8_t of_dim, std::vector<int64_t> of_blocks);

  int8_t dim = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> ends;  ///< sums of the sizes so far
  bool operator==(const GivenSizes& other) const {
    return dim == other.dim && sizes == other.sizes;
  }
  auto operator<=>(const GivenSizes& other) const {
    return std::tie(dim, sizes) <=> std::tie(other.dim, other.sizes);
  }
};

/// Layout of a tensor on a mesh: a placement per axis (axes that a mesh lacks are replicated), for
/// every dim the order of its splitting axes, and optionally block sizes. Blocks of a dim are
/// numbered by the coordinates on its axes, the outermost slowest. Without sizes, blocks are as
/// even as possible (share). `set` and `give` keep one form per meaning, so layouts compare by
/// bytes.
struct Layout {
  std::array<Placement, kMaxAxes> on{};
  std::array<int8_t, kMaxAxes> outside{};  ///< of an axis that splits: how many axes of its dim are
  std::vector<GivenSizes> given;           ///< by dim, ascending

  const Placement& operator[](size_t axis) const { return on[axis]; }
  /// Sets a placement. A new splitting axis becomes the dim's innermost. Clears the given sizes of
  /// the dims that the axis leaves and joins.
  void set(size_t axis, Placement placement);
  /// Sets block sizes of a dim. Requires: its axes are set. Empty: as even as possible.
  void give(int dim, std::vector<int64_t> sizes);

  /// The axes that split the dim, outermost first.
  std::vector<int32_t> axes_of(int dim) const;
  /// Sizes of its blocks; empty if they are as even as they divide.
  const std::vector<int64_t>& sizes_of(int dim) const;
  /// Returns block `number` of `blocks` of a dim of `size` indices. Given sizes with another sum
  /// are clamped to the dim: see why_invalid.
  Run block(int dim, int64_t size, int64_t blocks, int64_t number) const;

  bool operator==(const Layout&) const = default;
  auto operator<=>(const Layout&) const = default;
};

/// "edp:S0 ep:P", "B". Words stand in the order of the mesh, but those of a dim from its outermost
/// axis to its innermost: "ep:S0 edp:S0". Given sizes stand behind the last one: "ep:S0[4,3]".
std::string to_string(const Layout& layout, const Mesh& mesh);
/// Parses a layout. Throws Error for an unknown word, an axis that comes twice, and without a size
/// for every block.
Layout parse_layout(std::string_view text, const Mesh& mesh);
/// "" or why no tensor of this type has the layout: a dim that it lacks, sizes that do not add up.
/// That all ranks have something of it is local_type's.
std::string why_invalid(const Layout& layout, const TensorType& type, const Mesh& mesh);

/// Type of the local part of `type` under `layout` (same on every rank: split sizes must divide,
/// and no part may cut a block of the encoding or a byte; throws Error otherwise). Splitting a
/// routed tensor by expert (dim 0) keeps all its tokens.
TensorType local_type(const TensorType& type, const Layout& layout, const Mesh& mesh);

/// Number of a rank's block of a dim, and the number of blocks.
struct BlockNumber {
  int64_t number = 0;
  int64_t blocks = 1;
};
BlockNumber block_number(const Layout& layout, int dim, const Mesh& mesh,
                         const std::vector<int32_t>& coords);

/// Returns the local run of every dim at these coordinates.
std::vector<Run> local_runs(const TensorType& type, const Layout& layout, const Mesh& mesh,
                            const std::vector<int32_t>& coords);
/// Type of that. Throws Error when the layout is none of the type, or there is nothing of a dim for
/// some rank.
TensorType local_type(const TensorType& type, const Layout& layout, const Mesh& mesh,
                      const std::vector<int32_t>& coords);

}  // namespace hocket::graph
