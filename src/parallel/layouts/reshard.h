// SPDX-License-Identifier: Apache-2.0
// The way of a tensor from one layout to another on a mesh: the cheapest path whose steps are
// collectives, as their records say what they move and how much of it, and slices.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/comm_op.h"
#include "graph/layout.h"

namespace hocket::parallel {

/// One step of a path, which all ranks of the mesh do alike.
struct ReshardStep {
  graph::Layout to;              ///< of the tensor after it
  const comm::Op* op = nullptr;  ///< null: a slice, every rank goes on with a block of what it has
  graph::Attrs attrs;
  /// Over which ranks meet, ascending; a slice: which say the block, the outermost first.
  std::vector<int32_t> axes;
  int dim = -1;      ///< of a slice
  double cost = 0;   ///< in bytes through a rank's link, with what rounds and tasks cost besides
  double bytes = 0;  ///< of this, what passes through the link
};

struct ReshardPath {
  std::vector<ReshardStep> steps;
  double cost = 0, bytes = 0;
};

/// Paths on one mesh, each searched once. Without slices, for who can only communicate, no path
/// leads from whole to split.
class ReshardPaths {
 public:
  explicit ReshardPaths(graph::Mesh mesh, bool slices = true)
      : mesh_(std::move(mesh)), slices_(slices) {}
  const graph::Mesh& mesh() const { return mesh_; }

  /// The cheapest path of a tensor of this (whole) type; the same on all ranks, and of several
  /// equally cheap ones always the same, one with the fewest steps. Null if there is none: see
  /// why_no_path. Only axes that must take part do: the values may differ along all others.
  const ReshardPath* path(const graph::TensorType& type, const graph::Layout& from,
                          const graph::Layout& to);
  /// The steps that a path from one layout to the other can begin with.
  std::vector<ReshardStep> steps(const graph::TensorType& type, const graph::Layout& from,
                                 const graph::Layout& to) const;

 private:
  graph::Mesh mesh_;
  bool slices_ = true;
  std::map<std::tuple<graph::TensorType, graph::Layout, graph::Layout>, std::optional<ReshardPath>>
      paths_;
};

/// What the ranks along an axis, otherwise at these coordinates, have of a dim that is no symbol.
std::vector<int64_t> lengths_along(const graph::Layout& layout, int dim,
                                   const graph::TensorType& type, const graph::Mesh& mesh,
                                   int32_t axis, std::vector<int32_t> coords);
/// Nothing if these are parts that are as even as their sum divides (graph::share).
std::vector<int64_t> unless_shares(std::vector<int64_t> lengths);
/// The same of the dim that the axis splits, where they have other shares of it than as even as it
/// divides (comm::kSlots); empty elsewhere, and of experts. Of tokens of rows wherever some have
/// more.
std::vector<int64_t> unlike_lengths(const graph::Layout& layout, const graph::TensorType& type,
                                    const graph::Mesh& mesh, int32_t axis,
                                    const std::vector<int32_t>& coords);

/// What no path can do, for the text of an error: "partial over dp, which it was not before"; or
/// that no collectives lead there.
std::string why_no_path(const graph::Layout& from, const graph::Layout& to,
                        const graph::Mesh& mesh);

}  // namespace hocket::parallel
