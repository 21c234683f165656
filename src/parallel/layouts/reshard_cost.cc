// SPDX-License-Identifier: Apache-2.0
// Implements: reshard_cost (layouts.h).
#include <limits>

#include "parallel/layouts/layouts.h"

namespace hocket::parallel {

using graph::Layout;
using graph::Placement;
using graph::TensorType;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

double reshard_cost(TensorType type, Placement from, Placement to, ReshardPaths* axis,
                    double* bytes) {
  if (from.is_split()) {
    // Round up sizes that do not divide: they are refused where the value is made, here only the
    // cost counts.
    const int64_t ranks = axis->mesh().size();
    graph::Dim& size = type.dims[from.dim()];
    if (!size.divides_into(ranks)) {
      size = (size + ranks - 1) / ranks * ranks;
    }
  }
  Layout has;
  Layout wants;
  has.set(0, from);
  wants.set(0, to);
  const ReshardPath* const path = axis->path(type, has, wants);
  if (!path) return kInfinity;
  if (bytes) {
    *bytes = path->bytes;
  }
  return path->cost;
}

}  // namespace hocket::parallel
