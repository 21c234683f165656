// SPDX-License-Identifier: Apache-2.0
// Work dealt out to ranks of unlike speed: layers to the stages of a pipeline, sequences to
// replicas.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace hocket::planner {

/// How stages lie on the ranks of a pipeline.
struct Stages {
  int32_t pp = 1, chunks = 1;
  bool is_v = false;  ///< two of a rank in a V; else they go around the ranks
  auto operator<=>(const Stages&) const = default;

  int64_t count() const { return int64_t{pp} * chunks; }
  int64_t rank_of(int64_t stage) const {
    return is_v && stage >= pp ? count() - 1 - stage : stage % pp;
  }
};

/// Work to be laid on stages: of every layer, and beside those of the first and of the last one.
struct LayerCosts {
  std::vector<double> layer = {};
  double embedding = 0, head = 0;
};

/// What layers take on the stages of a pipeline, of which each has a rank of its own. Kinds are
/// those of a ModelTable: the first two are what the first and the last stage have beside layers.
struct StageLoads {
  std::vector<size_t> kind_of = {};             ///< by layer
  std::vector<double> seconds = {};             ///< by kind, of a micro-batch on the fastest device
  std::vector<double> speed = {};               ///< by stage
  std::vector<std::vector<double>> bytes = {};  ///< by stage and kind, for the whole step
  /// By kind, of a layer while it runs: a stage needs what its largest one does.
  std::vector<double> working = {};
};

/// Lays layers on the stages, one at least on each, but none may be on the first and the last one.
/// No stage takes more than `limit` bytes; of such ways the slowest stage is as fast as can be, of
/// these the stages are the most alike, and of these the longer ones are the later ones, which keep
/// fewer micro-batches. Nothing: there is no way.
std::optional<std::vector<int64_t>> lay_layers(const StageLoads& loads, double limit);
/// The bytes of the stage that takes most, of the way with which they are the least.
double least_bytes(const StageLoads& loads);
/// The bytes, and the seconds, of the stage that takes most of them.
double fullest_stage(const StageLoads& loads, const std::vector<int64_t>& layers);
double slowest_stage(const StageLoads& loads, const std::vector<int64_t>& layers);

/// Stages of which one rank, or each of several, has all: what these take beside layers, and what
/// every layer adds.
struct SharedStages {
  std::vector<int64_t> stages = {};  ///< their numbers
  double seconds = 0, layer_seconds = 0;
  double bytes = 0, layer_bytes = 0;
};
/// Lays layers that are all alike on stages of which ranks have several, one at least on each but
/// for the first and the last. No rank takes more than `limit` bytes; of such ways the slowest rank
/// is as fast as can be, then the next one, and so on; the stages of a rank are the most alike.
/// Nothing: there is no way.
std::optional<std::vector<int64_t>> lay_alike_layers(int64_t layers,
                                                     const std::vector<SharedStages>& ranks,
                                                     double limit);
/// The same by bytes alone: the fullest rank takes as little as can be.
std::vector<int64_t> lay_alike_layers_by_bytes(int64_t layers, std::vector<SharedStages> ranks);

/// As even as may be, the first stages with one more (parallel::Plan::stage_of_layers).
std::vector<int64_t> even_layers(int64_t layers, int64_t stages);
/// Layers of every stage such that the busiest rank has little to do, and of as little the longest
/// stage is short; with one chunk as little as can be. `speed`: of every rank of the pipeline.
std::vector<int64_t> balanced_layers(const LayerCosts& costs, const Stages& stages,
                                     const std::vector<double>& speed);
/// How long the busiest rank takes for its stages.
double busiest_rank(const LayerCosts& costs, const Stages& stages, const std::vector<double>& speed,
                    const std::vector<int64_t>& layers);
/// Sequences dealt out to replicas such that the slowest is as fast as it can be, at least one
/// each. `speed`: of every replica.
std::vector<int64_t> dealt_by_speed(int64_t sequences, const std::vector<double>& speed);
/// How long the slowest replica takes.
double longest_replica(const std::vector<int64_t>& samples, const std::vector<double>& speed);

}  // namespace hocket::planner
