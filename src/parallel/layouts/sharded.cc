// SPDX-License-Identifier: Apache-2.0
// Implements: sharded, may_split, summed (layouts.h).
#include <algorithm>

#include "parallel/layouts/layouts.h"

namespace hocket::parallel {

using graph::Layout;
using graph::Mesh;
using graph::Placement;
using graph::TensorType;

namespace {

/// Returns the data-parallel axes along which the tensor is replicated, innermost first.
std::vector<size_t> axes_alike(const Layout& layout, const Mesh& mesh) {
  std::vector<size_t> axes;
  for (size_t axis = mesh.axes.size(); axis-- > 0;) {
    if (mesh.axes[axis].size > 1 && layout[axis].is_replicate() &&
        splits_tokens(mesh.axes[axis].name)) {
      axes.push_back(axis);
    }
  }
  return axes;
}

/// Returns the first unsplit dim that this number of ranks divides, or -1.
int dim_divided_by(int64_t ranks, const TensorType& type, const Layout& layout) {
  for (int dim = 0; dim < std::ssize(type.dims); ++dim) {
    const bool divides = type.dims[dim].divides_into(ranks);
    if (divides && layout.axes_of(dim).empty()) return dim;
  }
  return -1;
}

/// Returns the first unsplit dim with a largest share of at most (1 + kMaxExcess) even parts. Else
/// returns the dim with the smallest excess; -1 if none has an index for every rank.
int dim_shared_by(int64_t ranks, const TensorType& type, const Layout& layout) {
  // Excess of the largest share, as a part of the even one. With more, the step waits longer for
  // the rank with that share, though a later dim may divide better. With less, splits move to later
  // dims, whose shares are not contiguous in memory.
  constexpr double kMaxExcess = 1.0 / 32;
  int best = -1;
  double least = 0;
  for (int dim = 0; dim < std::ssize(type.dims); ++dim) {
    const graph::Dim& size = type.dims[dim];
    if (size.symbolic() || size < ranks || !layout.axes_of(dim).empty()) continue;
    const auto most = static_cast<double>(graph::share(size, ranks, 0).length * ranks);
    const double over = most / static_cast<double>(int64_t{size}) - 1;
    if (over <= kMaxExcess) return dim;
    if (best < 0 || over < least) {
      best = dim;
      least = over;
    }
  }
  return best;
}

/// Splits the layout along the axes: the longest run of leading axes for which there is a dim
/// splits it, then the longest run of the rest, and so on. The mesh decides which axis is the inner
/// one.
Layout split_along(const std::vector<size_t>& axes, const TensorType& type, Layout layout,
                   const Mesh& mesh, int (*dim_for)(int64_t, const TensorType&, const Layout&)) {
  for (size_t begin = 0; begin < axes.size();) {
    size_t end = axes.size();
    int dim = -1;
    for (; end > begin; --end) {
      int64_t ranks = 1;
      for (size_t i = begin; i < end; ++i) {
        ranks *= mesh.axes[axes[i]].size;
      }
      dim = dim_for(ranks, type, layout);
      if (dim >= 0) break;
    }
    for (size_t i = begin; i < end; ++i) {
      layout.set(axes[i], Placement::split(dim));
    }
    begin = std::max(end, begin + 1);
  }
  return layout;
}

/// Returns the number of ranks that have different parts.
int64_t ranks_apart(const std::vector<size_t>& axes, const Layout& layout, const Mesh& mesh) {
  int64_t ranks = 1;
  for (size_t axis : axes) {
    ranks *= layout[axis].is_split() ? mesh.axes[axis].size : 1;
  }
  return ranks;
}

}  // namespace

Layout sharded(const TensorType& type, Layout layout, const Mesh& mesh, const Sharding& sharding,
               Shard among) {
  // Parts are equal if all ranks get one that way; else they differ by an index, if more ranks get
  // one (Shares computes their sizes). A dim that is already split is left alone. A split in groups
  // is then whole along the axes between groups. These cut last, so that the blocks of a split over
  // all ranks lie in those of their group.
  if (type.bytes() < sharding.least_bytes()) return layout;
  const std::vector<size_t> axes = axes_alike(layout, mesh);
  const Layout even = split_along(axes, type, layout, mesh, dim_divided_by);
  std::vector<size_t> uneven = axes;
  std::erase_if(uneven, [&](size_t axis) {
    return sharding.even_over_sequences && splits_sequences(mesh.axes[axis].name);
  });
  const Layout shared =
      type.granule() == 1 ? split_along(uneven, type, layout, mesh, dim_shared_by) : even;
  layout = ranks_apart(axes, shared, mesh) > ranks_apart(axes, even, mesh) ? shared : even;
  for (size_t axis : axes) {
    if (!may_split(axis, mesh, sharding, among)) {
      layout.set(axis, Placement::replicate());
    }
  }
  return layout;
}

bool may_split(size_t axis, const Mesh& mesh, const Sharding& sharding, Shard among) {
  if (among == Shard::none || !splits_tokens(mesh.axes[axis].name)) return false;
  if (among == Shard::all) return true;
  int64_t inside = 1;  // ranks that differ on this axis or an inner one
  for (size_t inner = axis; inner < mesh.axes.size(); ++inner) {
    inside *= splits_tokens(mesh.axes[inner].name) ? mesh.axes[inner].size : 1;
  }
  return inside <= sharding.group;
}

graph::Layout summed(graph::Layout layout, const graph::Mesh& mesh) {
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (layout[axis].is_partial() && mesh.axes[axis].size > 1) {
      layout.set(axis, graph::Placement::replicate());
    }
  }
  return layout;
}

}  // namespace hocket::parallel
