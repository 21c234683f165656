// SPDX-License-Identifier: Apache-2.0
// Distribution of work over ranks of different speed: layers over pipeline stages, sequences over
// replicas.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace hocket::planner {

/// Placement of stages on pipeline ranks.
struct Stages {
  int32_t pp = 1, chunks = 1;
  bool is_v = false;  ///< two of a rank in a V; else they go around the ranks
  auto operator<=>(const Stages&) const = default;

  int64_t count() const { return int64_t{pp} * chunks; }
  int64_t rank_of(int64_t stage) const {
    return is_v && stage >= pp ? count() - 1 - stage : stage % pp;
  }
};

/// Work to assign to stages: that of every layer, and the extra work of the first and last stage.
struct LayerCosts {
  std::vector<double> layer = {};
  double embedding = 0, head = 0;
};

/// Costs of layers on pipeline stages with a rank each. Types are those of a ModelTable: the first
/// two are the first and last stage's work besides layers.
struct StageLoads {
  std::vector<size_t> type_of = {};             ///< by layer
  std::vector<double> seconds = {};             ///< by type, of a micro-batch on the fastest device
  std::vector<double> speed = {};               ///< by stage
  std::vector<std::vector<double>> bytes = {};  ///< by stage and type, for the whole step
  /// Working memory of a layer by type: a stage needs the largest.
  std::vector<double> working = {};
};

/// Assigns layers to stages, at least one each, except that the first and the last may have none.
/// No stage exceeds `limit` bytes; the slowest stage is as fast as possible; among equals the
/// stages are most even; then longer ones come later, where fewer micro-batches are kept. Returns
/// nothing if there is no assignment.
std::optional<std::vector<int64_t>> assign_layers(const StageLoads& loads, double limit);
/// Returns the bytes of the fullest stage under the assignment that minimises them.
double lower_bound_bytes(const StageLoads& loads);
/// The bytes, and the seconds, of the stage that takes most of them.
double fullest_stage(const StageLoads& loads, const std::vector<int64_t>& layers);
double slowest_stage(const StageLoads& loads, const std::vector<int64_t>& layers);

/// Stages of one rank, or of several ranks with the same stages: their memory besides layers, and
/// the memory per layer.
struct SharedStages {
  std::vector<int64_t> stages = {};  ///< their numbers
  double seconds = 0, layer_seconds = 0;
  double bytes = 0, layer_bytes = 0;
};
/// Assigns equal layers to stages when ranks have several, at least one each except for the first
/// and the last. No rank exceeds `limit` bytes; the slowest rank is as fast as possible, then the
/// next one, and so on; the stages of a rank are most even. Returns nothing if there is no
/// assignment.
std::optional<std::vector<int64_t>> assign_equal_layers(int64_t layers,
                                                        const std::vector<SharedStages>& ranks,
                                                        double limit);
/// The same by bytes alone: minimises the fullest rank.
std::vector<int64_t> assign_equal_layers_by_bytes(int64_t layers, std::vector<SharedStages> ranks);

/// Returns layers as even as possible, the first stages with one more
/// (parallel::Plan::stage_of_layers).
std::vector<int64_t> even_layers(int64_t layers, int64_t stages);
/// Returns layers per stage such that the busiest rank has little to do, and then the longest stage
/// is short; optimal with one chunk. `speed`: of every pipeline rank.
std::vector<int64_t> balanced_layers(const LayerCosts& costs, const Stages& stages,
                                     const std::vector<double>& speed);
/// Returns the time of the busiest rank for its stages.
double busiest_rank(const LayerCosts& costs, const Stages& stages, const std::vector<double>& speed,
                    const std::vector<int64_t>& layers);
/// Returns the sequences per replica, at least one each, with which the slowest replica is as fast
/// as possible. `speed`: of every replica.
std::vector<int64_t> sequences_by_speed(int64_t sequences, const std::vector<double>& speed);
/// Returns the time of the slowest replica.
double longest_replica(const std::vector<int64_t>& samples, const std::vector<double>& speed);

}  // namespace hocket::planner
