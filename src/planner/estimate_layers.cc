// SPDX-License-Identifier: Apache-2.0
// Implements: the layers per stage of Estimator (estimate.h), by their time and memory there.
#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "planner/estimate.h"
#include "planner/estimate_parts.h"

namespace hocket::planner {

namespace {

/// Ratio of the ranks' average estimated memory to the limit beyond which no assignment of layers
/// fits.
constexpr double kMaxMemoryRatio = 1.3;
/// Shares of the memory limit for which layers are assigned: programs may take more than estimated.
constexpr double kLessMemory[] = {1, 0.95, 0.9, 0.85};

}  // namespace

/// Bytes that a layer adds to those of a rank, which runs it for such a share of the micro-batches.
double Estimator::layer_bytes(const PlanCandidate& plan, const Layer& layer,
                              const PipelineShape::Rank& rank, double share, double most) {
  const double put_off = rank.pending * ((1 + kOutputGradients) * layer.whole - layer.kept);
  const int64_t count = num_micro_batches(space_, plan);
  const double live = shapes_.of(plan, count).live(rank, count);
  return held_bytes(plan, count, layer.dense, layer.experts, false) +
         (live * layer.kept + put_off) * share * most;
}

/// Returns the loads of a plan with one stage per rank.
StageLoads Estimator::loads(const PlanCandidate& plan, bool with_bytes) {
  const Prices& price = prices(plan);
  const int64_t count = num_micro_batches(space_, plan);
  const PipelineShape& shape = shapes_.of(plan, count);
  const Pace& pace = this->pace(plan);
  StageLoads loads{.type_of = tables_[0].type_of};
  for (size_t type = 0; type < price.layers.size(); ++type) {
    const std::array<double, kParts>& parts = price.layers[type].seconds;
    loads.seconds.push_back(parts[0] + parts[1] + parts[2]);
    loads.working.push_back(working_bytes(plan, type) * pace.most);
  }
  for (size_t place = 0; place < shape.ranks.size(); ++place) {
    loads.speed.push_back(1 / pace.times[place]);
    if (!with_bytes) continue;
    std::vector<double>& bytes = loads.bytes.emplace_back();
    for (const Layer& layer : price.layers) {
      bytes.push_back(layer_bytes(plan, layer, shape.ranks[place], 1, pace.most));
    }
    bytes[kHead] += held_bytes(plan, count, price.layers[kHead].tied, 0, false);
  }
  return loads;
}

/// Returns the loads of every rank, or of ranks with the same stages, for a plan of equal layers.
std::vector<SharedStages> Estimator::shared_stages(const PlanCandidate& plan) {
  const Prices& price = prices(plan);
  const int64_t count = num_micro_batches(space_, plan);
  const PipelineShape& shape = shapes_.of(plan, count);
  const Pace& pace = this->pace(plan);
  const int64_t last = int64_t{plan.pp} * plan.chunks - 1;
  const size_t type_of_layers = tables_[0].type_of.front();
  std::vector<SharedStages> found;
  for (size_t place = 0; place < shape.ranks.size(); ++place) {
    const PipelineShape::Rank& rank = shape.ranks[place];
    SharedStages own;
    for (const auto& [stage, share] : rank.stages) {
      own.stages.push_back(stage);
    }
    const auto has = [&](int64_t stage) {
      return std::find(own.stages.begin(), own.stages.end(), stage) != own.stages.end();
    };
    const double share = rank.stages.front().second;
    const auto seconds = [&](size_t type) {
      const std::array<double, kParts>& parts = price.layers[type].seconds;
      return share * pace.times[place] * (parts[0] + parts[1] + parts[2]);
    };
    const auto bytes = [&](size_t type) {
      return layer_bytes(plan, price.layers[type], rank, share, pace.most);
    };
    const auto working = [&](size_t type) { return working_bytes(plan, type) * pace.most; };
    own.layer_seconds = seconds(type_of_layers);
    own.layer_bytes = bytes(type_of_layers);
    double most = working(type_of_layers);
    for (const size_t end : {kEmbedding, kHead}) {
      if (!has(end == kHead ? last : 0)) continue;
      own.seconds += seconds(end);
      own.bytes += bytes(end);
      most = std::max(most, working(end));
    }
    if (has(last) && !has(0)) {
      own.bytes += held_bytes(plan, count, price.layers[kHead].tied, 0, false);
    }
    own.bytes += most;
    const auto known = std::find_if(found.begin(), found.end(), [&](const SharedStages& other) {
      return std::is_permutation(own.stages.begin(), own.stages.end(), other.stages.begin(),
                                 other.stages.end());
    });
    if (known == found.end()) {
      found.push_back(std::move(own));
      continue;
    }
    known->seconds = std::max(known->seconds, own.seconds);
    known->layer_seconds = std::max(known->layer_seconds, own.layer_seconds);
    known->bytes = std::max(known->bytes, own.bytes);
    known->layer_bytes = std::max(known->layer_bytes, own.layer_bytes);
  }
  return found;
}

/// Heuristic for ranks with several stages of unequal layers: moves layers one by one from the rank
/// with most memory to the one with least, while the former exceeds the limit.
std::vector<int64_t> Estimator::fitted_by_moves(const PlanCandidate& plan, double limit) {
  const Prices& price = prices(plan);
  const int64_t count = num_micro_batches(space_, plan);
  const PipelineShape& shape = shapes_.of(plan, count);
  const double most = pace(plan).most;
  const std::vector<size_t>& type_of = tables_[0].type_of;
  const auto bytes_of_ranks = [&](const std::vector<int64_t>& layers) {
    std::vector<size_t> first(layers.size() + 1, 0);  // layer of a stage
    std::partial_sum(layers.begin(), layers.end(), first.begin() + 1);
    std::vector<double> found;
    for (const PipelineShape::Rank& rank : shape.ranks) {
      double& bytes = found.emplace_back(0);
      double working = 0, tied = 0;
      bool has_embedding = false;
      const auto add = [&](size_t type, double share) {
        bytes += layer_bytes(plan, price.layers[type], rank, share, most);
        working = std::max(working, working_bytes(plan, type) * most);
        tied += type == kHead ? held_bytes(plan, count, price.layers[type].tied, 0, false) : 0;
        has_embedding = has_embedding || type == kEmbedding;
      };
      for (const auto& [stage, share] : rank.stages) {
        const auto at = static_cast<size_t>(stage);
        if (at == 0) {
          add(kEmbedding, share);
        }
        if (at + 1 == layers.size()) {
          add(kHead, share);
        }
        for (size_t layer = first[at]; layer < first[at + 1]; ++layer) {
          add(type_of[layer], share);
        }
      }
      bytes += working + (has_embedding ? 0 : tied);
    }
    return found;
  };
  std::vector<int64_t> layers = stage_layers(space_, plan);
  for (std::vector<double> bytes = bytes_of_ranks(layers);;) {
    const auto fullest = std::max_element(bytes.begin(), bytes.end());
    const auto emptiest = std::min_element(bytes.begin(), bytes.end());
    if (*fullest <= limit) return layers;
    // From the longest of its stages to the shortest of the other's.
    const auto stage_of = [&](const PipelineShape::Rank& rank, auto is_better) {
      size_t best = static_cast<size_t>(rank.stages.front().first);
      for (const auto& [stage, share] : rank.stages) {
        const auto at = static_cast<size_t>(stage);
        best = is_better(layers[at], layers[best]) ? at : best;
      }
      return best;
    };
    std::vector<int64_t> moved = layers;
    const size_t from =
        stage_of(shape.ranks[static_cast<size_t>(fullest - bytes.begin())], std::greater<>());
    const bool is_inner = from > 0 && from + 1 < layers.size();
    if (moved[from] == (is_inner ? 1 : 0)) return layers;
    --moved[from];
    ++moved[stage_of(shape.ranks[static_cast<size_t>(emptiest - bytes.begin())], std::less<>())];
    std::vector<double> then = bytes_of_ranks(moved);
    if (*std::max_element(then.begin(), then.end()) >= *fullest) return layers;
    layers = std::move(moved);
    bytes = std::move(then);
  }
}

/// Returns whether every rank of the pipeline has one stage, of all micro-batches.
bool Estimator::has_stage_each(const PlanCandidate& plan) {
  const PipelineShape& shape = shapes_.of(plan, num_micro_batches(space_, plan));
  return std::all_of(shape.ranks.begin(), shape.ranks.end(),
                     [](const PipelineShape::Rank& rank) { return rank.stages.size() == 1; });
}

StageLayers Estimator::layers_by_time(const PlanCandidate& even) {
  if (even.pp == 1 || is_given(space_, "plan.pp_layers")) return {};
  PlanCandidate plan = even;
  plan.layers = StageLayers(stage_layers(space_, even));
  if (!balances_replicas(space_, plan)) return {};
  if (!has_stage_each(plan)) {
    const auto by_speed = space_.balanced.find(stages_of(plan));
    return by_speed == space_.balanced.end() ? StageLayers() : StageLayers(by_speed->second);
  }
  const auto [at, fresh] = by_time_.try_emplace({&prices(plan), &pace(plan), plan.pp});
  if (fresh) {
    const StageLoads loads = this->loads(plan, false);
    std::vector<int64_t> assigned = *assign_layers(loads, std::numeric_limits<double>::infinity());
    if (slowest_stage(loads, assigned) <
        slowest_stage(loads, plan.layers.each()) * kWorthBalancing) {
      at->second = StageLayers(std::move(assigned));
    }
  }
  return at->second;
}

std::vector<StageLayers> Estimator::layers_by_memory(const PlanCandidate& even, double limit) {
  std::vector<StageLayers> found;
  PlanCandidate plan = even;
  plan.layers = StageLayers(stage_layers(space_, even));
  if (!balances_replicas(space_, plan)) return found;
  const StageLayers by_time = layers_by_time(even);
  const auto add = [&](std::vector<int64_t> layers) {
    StageLayers assigned(std::move(layers));
    if (assigned != plan.layers && assigned != by_time &&
        std::find(found.begin(), found.end(), assigned) == found.end()) {
      found.push_back(std::move(assigned));
    }
  };
  if (!has_stage_each(plan)) {
    const std::vector<size_t>& type_of = tables_[0].type_of;
    const bool alike = std::equal(type_of.begin() + 1, type_of.end(), type_of.begin());
    if (!alike) {
      add(fitted_by_moves(plan, limit));
      return found;
    }
    const std::vector<SharedStages> ranks = shared_stages(plan);
    for (const double part : kLessMemory) {
      if (std::optional<std::vector<int64_t>> by_both =
              assign_equal_layers(std::ssize(type_of), ranks, part * limit)) {
        add(std::move(*by_both));
      }
    }
    add(assign_equal_layers_by_bytes(std::ssize(type_of), ranks));
    return found;
  }
  const StageLoads loads = this->loads(plan, true);
  double all = 0;
  const std::vector<Counts>& counts = stages(plan);
  for (size_t stage = 0; stage < counts.size(); ++stage) {
    all += std::inner_product(counts[stage].begin(), counts[stage].end(),
                              loads.bytes[stage].begin(), 0.0);
  }
  if (all > limit * kMaxMemoryRatio * static_cast<double>(counts.size())) return found;
  for (const double part : kLessMemory) {
    if (std::optional<std::vector<int64_t>> by_both = assign_layers(loads, part * limit)) {
      add(std::move(*by_both));
    }
  }
  add(*assign_layers(loads, lower_bound_bytes(loads)));
  return found;
}

}  // namespace hocket::planner
