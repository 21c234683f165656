// SPDX-License-Identifier: Apache-2.0
// Mesh and layouts: how a logical tensor lies on the axes of a device mesh (the SBP algebra of
// OneFlow, arXiv 2110.15032): per axis `S(d)` split along dim d, `B` replicated, `P` partial sum.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/tensor_type.h"

namespace hocket::graph {

/// Neighbouring indices, or cells of a cut.
struct Run {
  int64_t begin = 0, length = 0;
  bool operator==(const Run&) const = default;
};

/// What part `number` of `parts` has of `size` indices, cut as evenly as they divide: the first
/// parts have one more than the others.
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
  /// The rank that lies `offset` further along the axis, around its end. This is what a peer is,
  /// for everybody. HOCKET_CHECK: the axis and the rank exist.
  int32_t moved(int32_t rank, int32_t axis, int32_t offset) const;
  bool operator==(const Mesh&) const = default;
};

/// How parts of a result, each from some indices of a dim that is contracted, become one. A part of
/// no indices is the identity.
enum class Monoid : uint8_t {
  sum,      ///< added up; 0
  max,      ///< the greater one; -inf
  softmax,  ///< two tensors, a mean and the logarithm of its weight; 0 and -inf
};

enum { kMaxAxes = 6 };

std::string to_string(const Mesh& mesh);  ///< "pp:2 edp:4"
Mesh parse_mesh(std::string_view text);   ///< throws Error: names, sizes, number of axes and ranks

/// Placement on one axis: `dim >= 0` is split(dim).
struct Placement {
  enum : int8_t { kReplicate = -1, kPartial = -2 };
  int8_t code = kReplicate;
  static Placement replicate() { return {kReplicate}; }
  static Placement partial() { return {kPartial}; }
  static Placement split(int dim) { return {static_cast<int8_t>(dim)}; }
  bool is_split() const { return code >= 0; }
  bool is_partial() const { return code == kPartial; }
  bool is_replicate() const { return code == kReplicate; }
  int dim() const { return code; }
  bool operator==(const Placement&) const = default;
  auto operator<=>(const Placement&) const = default;
};

/// One placement per mesh axis (unused axes stay replicated). Where the ranks along the axes that
/// split a dim do not divide it, the first ones have an index more than the others.
struct Layout {
  std::array<Placement, kMaxAxes> on{};
  Placement& operator[](int axis) { return on[axis]; }
  const Placement& operator[](int axis) const { return on[axis]; }
  bool operator==(const Layout&) const = default;
  auto operator<=>(const Layout&) const = default;
};

std::string to_string(const Layout& layout, const Mesh& mesh);  ///< "edp:S0 ep:P", "B"
Layout parse_layout(std::string_view text, const Mesh& mesh);

/// Type of the local part of `type` under `layout` (same on every rank: split sizes must divide,
/// and no part may cut a block of the encoding or a byte; throws Error otherwise). Splitting a
/// routed tensor by expert (dim 0) keeps all its tokens.
TensorType local_type(const TensorType& type, const Layout& layout, const Mesh& mesh);

/// What the rank at these coordinates has of every dim: blocks by its number on the axes that split
/// the dim, the outermost counting slowest, each its `share`.
std::vector<Run> local_runs(const TensorType& type, const Layout& layout, const Mesh& mesh,
                            const std::vector<int32_t>& coords);
/// Type of that. Throws Error when there is no such dim, or nothing of it for some rank.
TensorType local_type(const TensorType& type, const Layout& layout, const Mesh& mesh,
                      const std::vector<int32_t>& coords);

}  // namespace hocket::graph
