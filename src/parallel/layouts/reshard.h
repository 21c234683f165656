// SPDX-License-Identifier: Apache-2.0
// Resharding: the cheapest path of a tensor from one layout to another on a mesh. Steps are slices
// and collectives. Their records define movement and cost.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/comm_op.h"
#include "graph/layout.h"

namespace hocket::parallel {

/// A step of a path, the same on all ranks of the mesh.
struct ReshardStep {
  graph::Layout to;              ///< layout after the step
  const comm::Op* op = nullptr;  ///< null: a slice, every rank keeps a block of its piece
  graph::Attrs attrs;
  /// Axes of the collective, ascending; of a slice, the axes that number its blocks, the outermost
  /// first.
  std::vector<int32_t> axes;
  int dim = -1;      ///< of a slice
  double cost = 0;   ///< in bytes over a rank's link, with overheads of rounds and tasks
  double bytes = 0;  ///< over a rank's link
};

struct ReshardPath {
  std::vector<ReshardStep> steps;
  double cost = 0, bytes = 0;
};

/// Cache of the paths on one mesh. Without `slices`, for callers that can only communicate, no path
/// leads from whole to split.
class ReshardPaths {
 public:
  explicit ReshardPaths(graph::Mesh mesh, bool slices = true)
      : mesh_(std::move(mesh)), slices_(slices) {}
  const graph::Mesh& mesh() const { return mesh_; }

  /// Returns the cheapest path of a tensor of this (whole) type, or null if there is none (see
  /// why_no_path). The result is the same on all ranks; among equally cheap paths it is always the
  /// same one, with the fewest steps. Only the axes that must take part do: the values may differ
  /// along all others.
  const ReshardPath* path(const graph::TensorType& type, const graph::Layout& from,
                          const graph::Layout& to);
  /// Returns the steps with which a path from one layout to the other can begin.
  std::vector<ReshardStep> steps(const graph::TensorType& type, const graph::Layout& from,
                                 const graph::Layout& to) const;

 private:
  std::optional<ReshardPath> cheapest(const graph::TensorType& type, const graph::Layout& from,
                                      const graph::Layout& to) const;

  graph::Mesh mesh_;
  bool slices_ = true;
  std::map<std::tuple<graph::TensorType, graph::Layout, graph::Layout>, std::optional<ReshardPath>>
      paths_;
};

/// Returns the lengths of the blocks of a dim on the ranks along an axis that have these
/// coordinates on all other axes. Requires: the dim is no symbol.
std::vector<int64_t> lengths_along(const graph::Layout& layout, int dim,
                                   const graph::TensorType& type, const graph::Mesh& mesh,
                                   int32_t axis, const std::vector<int32_t>& coords);
/// Returns the lengths, or nothing if they are the even shares of their sum (graph::share).
std::vector<int64_t> unless_shares(std::vector<int64_t> lengths);
/// Returns lengths_along of the dim that the axis splits, for comm::kSlots, or nothing where the
/// ranks have even shares of it. Nothing for a dim of experts or an axis that splits none. For
/// tokens of routed rows, returns the lengths wherever they differ.
std::vector<int64_t> uneven_lengths(const graph::Layout& layout, const graph::TensorType& type,
                                    const graph::Mesh& mesh, int32_t axis,
                                    const std::vector<int32_t>& coords);

/// Returns the reason that there is no path, as the end of an error message.
std::string why_no_path(const graph::Layout& from, const graph::Layout& to,
                        const graph::Mesh& mesh);

}  // namespace hocket::parallel
