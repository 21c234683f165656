// SPDX-License-Identifier: Apache-2.0
// Layouts that follow from others: of what plan.shard splits, and of sums.
#include <algorithm>

#include "parallel/layouts.h"

namespace hocket::parallel {

using graph::Layout;
using graph::Mesh;
using graph::Placement;
using graph::TensorType;

Layout sharded(const TensorType& type, Layout layout, const Mesh& mesh, const Sharding& sharding,
               Shard among) {
  // The axes that the ranks have it alike on, innermost first. The most of them that divide a dim
  // together take it, then the most of those that are left, and so on; a dim that is split already
  // is left alone: what is inside of what is decided by the mesh. What is split in groups then is
  // whole along the axes from group to group, which cut last: blocks of all ranks lie in those of
  // their group.
  if (type.bytes() < sharding.least_bytes) return layout;
  std::vector<size_t> axes;
  for (size_t axis = mesh.axes.size(); axis-- > 0;) {
    if (mesh.axes[axis].size > 1 && layout[axis].is_replicate() &&
        splits_tokens(mesh.axes[axis].name)) {
      axes.push_back(axis);
    }
  }
  const auto dim_for = [&](int64_t ranks) {
    for (int dim = 0; dim < static_cast<int>(type.dims.size()); ++dim) {
      const bool divides = type.dims[static_cast<size_t>(dim)].divides_into(ranks);
      if (divides && layout.axes_of(dim).empty()) return dim;
    }
    return -1;
  };
  for (size_t begin = 0; begin < axes.size();) {
    size_t end = axes.size();
    int dim = -1;
    for (; end > begin; --end) {
      int64_t ranks = 1;
      for (size_t i = begin; i < end; ++i) {
        ranks *= mesh.axes[axes[i]].size;
      }
      dim = dim_for(ranks);
      if (dim >= 0) break;
    }
    for (size_t i = begin; i < end; ++i) {
      layout.set(axes[i], Placement::split(dim));
    }
    begin = std::max(end, begin + 1);
  }
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
  int64_t inside = 1;  // ranks that differ on this axis, or further inside
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
