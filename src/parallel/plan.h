// SPDX-License-Identifier: Apache-2.0
// The plan: every choice that is not the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/layout.h"
#include "parallel/schedule.h"

namespace hocket::parallel {

/// The mesh axis along which the pipeline's stages lie. Nobody but this folder asks for it.
inline constexpr const char* kStageAxis = "pp";

struct Plan {
  int64_t pp = 1;            ///< pipeline ranks
  int64_t pp_chunks = 1;     ///< stages per pipeline rank (model chunks)
  int64_t dp = 1;            ///< data-parallel ranks: samples of a micro-batch are split over them
  int64_t ep = 1;            ///< experts are split over `ep` of the `dp` ranks; divides dp
  int64_t expert_ranks = 0;  ///< more ranks, which have the experts of the others; 0: none
  int64_t micro_batch = 1;   ///< sequences per dp rank and micro-batch
  int64_t num_micro_batches = 1;     ///< follows from train.global_batch
  std::vector<int64_t> pp_layers;    ///< layers per stage; empty: as even as possible
  std::string pp_schedule = "1f1b";  ///< 1f1b, gpipe, interleaved or a CSV file
  int64_t threads_per_rank = 0;      ///< 0: cores / ranks on this machine, at least 1
  int64_t ranks_per_node = 0;        ///< 0: all ranks on one node

  int64_t world() const { return pp * dp + expert_ranks; }
  /// The plan of the ranks that have the experts, as if they did everything.
  Plan of_experts() const;
  int64_t num_stages() const { return pp * pp_chunks; }
  graph::Mesh mesh() const;
  /// Throws Error naming the key: sizes positive, ep divides dp, pp_layers sums to num_layers, a
  /// program of bounded size, ….
  void validate(int64_t num_layers, int64_t num_experts) const;
  /// Stage of every layer: index 0..L-1.
  std::vector<int32_t> stage_of_layers(int64_t num_layers) const;
};

}  // namespace hocket::parallel
