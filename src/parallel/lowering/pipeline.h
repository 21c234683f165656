// SPDX-License-Identifier: Apache-2.0
// The pipeline of a plan: the layers of every stage, and the rank of every stage.
#pragma once

#include <cstdint>
#include <vector>

namespace hocket::parallel {

struct Pipeline {
  int32_t num_ranks = 1;
  std::vector<int32_t> stage_of_layer;
  /// The rank of every stage on each route. A micro-batch takes route `Routes::of`.
  std::vector<std::vector<int>> routes;

  int32_t num_stages() const { return static_cast<int32_t>(routes[0].size()); }
  int32_t num_routes() const { return static_cast<int32_t>(routes.size()); }
  int32_t rank_of(int32_t stage, int32_t route) const { return routes[route][stage]; }
  /// Returns the stage of a layer; see graph::Node::layer for values outside of the model's layers.
  int32_t stage_of(int32_t layer) const {
    if (layer < 0) return 0;
    return layer < std::ssize(stage_of_layer) ? stage_of_layer[layer] : num_stages() - 1;
  }
  /// Returns the rank of a layer on the first route.
  int32_t rank_of_layer(int32_t layer) const { return rank_of(stage_of(layer), 0); }
};

}  // namespace hocket::parallel
