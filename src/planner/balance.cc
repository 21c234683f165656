// SPDX-License-Identifier: Apache-2.0
#include "planner/balance.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

namespace hocket::planner {

std::vector<int64_t> even_layers(int64_t layers, int64_t stages) {
  std::vector<int64_t> found;
  for (int64_t stage = 0; stage < stages; ++stage) {
    found.push_back(layers / stages + (stage < layers % stages ? 1 : 0));
  }
  return found;
}

namespace {

/// Returns the work of every stage.
std::vector<double> stage_costs(const LayerCosts& costs, const std::vector<int64_t>& layers) {
  std::vector<double> found;
  auto next = costs.layer.begin();
  for (const int64_t here : layers) {
    found.push_back(std::accumulate(next, next + here, 0.0));
    next += here;
  }
  found.front() += costs.embedding;
  found.back() += costs.head;
  return found;
}

/// Returns the time of every rank for its stages.
std::vector<double> rank_times(const LayerCosts& costs, const Stages& stages,
                               const std::vector<double>& speed,
                               const std::vector<int64_t>& layers) {
  std::vector<double> found(speed.size(), 0);
  const std::vector<double> each = stage_costs(costs, layers);
  for (size_t stage = 0; stage < each.size(); ++stage) {
    const size_t rank = stages.rank_of(stage);
    found[rank] += each[stage] / speed[rank];
  }
  return found;
}

/// Moves layers from stages of the busiest rank to others, one by one. Goes on while that makes the
/// busiest rank faster, or its longest stage shorter at equal speed.
void even_out(const LayerCosts& costs, const Stages& stages, const std::vector<double>& speed,
              std::vector<int64_t>* layers) {
  const auto worth = [&](const std::vector<int64_t>& assigned) {
    const std::vector<double> each = stage_costs(costs, assigned);
    double longest = 0;
    for (size_t stage = 0; stage < each.size(); ++stage) {
      const int64_t rank = stages.rank_of(stage);
      longest = std::max(longest, each[stage] / speed[rank]);
    }
    return std::pair(busiest_rank(costs, stages, speed, assigned), longest);
  };
  for (auto best = worth(*layers);;) {
    const std::vector<double> times = rank_times(costs, stages, speed, *layers);
    const int64_t busiest = std::max_element(times.begin(), times.end()) - times.begin();
    std::vector<int64_t> found;
    for (size_t from = 0; from < layers->size(); ++from) {
      const bool inner = from > 0 && from + 1 < layers->size();
      if ((*layers)[from] == (inner ? 1 : 0)) continue;
      if (stages.rank_of(from) != busiest) continue;
      for (size_t to = 0; to < layers->size(); ++to) {
        std::vector<int64_t> moved = *layers;
        --moved[from];
        ++moved[to];
        if (const auto here = worth(moved); here < best) {
          best = here;
          found = std::move(moved);
        }
      }
    }
    if (found.empty()) return;
    *layers = std::move(found);
  }
}

}  // namespace

std::optional<std::vector<int64_t>> assign_equal_layers(int64_t layers,
                                                        const std::vector<SharedStages>& ranks,
                                                        double limit) {
  // Every layer goes to the rank that is done the soonest with one more, if that has room: since
  // they are alike, no other way has a faster slowest rank.
  size_t stages = 0;
  for (const SharedStages& rank : ranks) {
    stages += rank.stages.size();
  }
  std::vector<int64_t> found(stages, 1);
  if (stages > 0) {
    found.front() = found.back() = 0;
  }
  std::vector<int64_t> has;  // by rank
  for (const SharedStages& rank : ranks) {
    int64_t& count = has.emplace_back(0);
    for (const int64_t stage : rank.stages) {
      count += found[stage];
    }
    layers -= count;
    if (rank.bytes + count * rank.layer_bytes > limit) return std::nullopt;
  }
  if (layers < 0) return std::nullopt;
  for (; layers > 0; --layers) {
    size_t best = ranks.size();
    double soonest = std::numeric_limits<double>::infinity();
    for (size_t r = 0; r < ranks.size(); ++r) {
      const double then = has[r] + 1;
      const double seconds = ranks[r].seconds + then * ranks[r].layer_seconds;
      if (seconds < soonest && ranks[r].bytes + then * ranks[r].layer_bytes <= limit) {
        soonest = seconds;
        best = r;
      }
    }
    if (best == ranks.size()) return std::nullopt;
    ++has[best];
    // To its stage with the fewest.
    const std::vector<int64_t>& own = ranks[best].stages;
    const int64_t to = *std::min_element(own.begin(), own.end(), [&](int64_t left, int64_t right) {
      return found[left] < found[right];
    });
    ++found[to];
  }
  return found;
}

std::vector<int64_t> assign_equal_layers_by_bytes(int64_t layers, std::vector<SharedStages> ranks) {
  for (SharedStages& rank : ranks) {
    rank.seconds = rank.bytes;
    rank.layer_seconds = rank.layer_bytes;
  }
  return *assign_equal_layers(layers, ranks, std::numeric_limits<double>::infinity());
}

double busiest_rank(const LayerCosts& costs, const Stages& stages, const std::vector<double>& speed,
                    const std::vector<int64_t>& layers) {
  const std::vector<double> times = rank_times(costs, stages, speed, layers);
  return *std::max_element(times.begin(), times.end());
}

std::vector<int64_t> balanced_layers(const LayerCosts& costs, const Stages& stages,
                                     const std::vector<double>& speed) {
  StageLoads loads{.seconds = {costs.embedding, costs.head}};
  for (const double seconds : costs.layer) {
    loads.type_of.push_back(loads.seconds.size());
    loads.seconds.push_back(seconds);
  }
  for (int64_t stage = 0; stage < stages.count(); ++stage) {
    loads.speed.push_back(speed[stages.rank_of(stage)]);
  }
  std::vector<int64_t> layers = *assign_layers(loads, std::numeric_limits<double>::infinity());
  if (stages.chunks > 1) {
    even_out(costs, stages, speed, &layers);
  }
  return layers;
}

std::vector<int64_t> sequences_by_speed(int64_t sequences, const std::vector<double>& speed) {
  // Assigns each sequence to the replica that finishes it first, ties to the first: so equal
  // neighbours get equal numbers, up to one more in the first ones.
  struct Next {
    double done = 0;
    size_t replica = 0;
    bool operator<(const Next& other) const {
      return done != other.done ? done > other.done : replica > other.replica;
    }
  };
  std::vector<int64_t> found(speed.size(), 1);
  std::priority_queue<Next> next;
  for (size_t replica = 0; replica < speed.size(); ++replica) {
    next.push({2 / speed[replica], replica});
  }
  for (int64_t assigned = std::ssize(speed); assigned < sequences; ++assigned) {
    const size_t replica = next.top().replica;
    next.pop();
    ++found[replica];
    next.push({(found[replica] + 1) / speed[replica], replica});
  }
  return found;
}

double longest_replica(const std::vector<int64_t>& samples, const std::vector<double>& speed) {
  double longest = 0;
  for (size_t replica = 0; replica < speed.size(); ++replica) {
    longest = std::max(longest, samples[replica] / speed[replica]);
  }
  return longest;
}

}  // namespace hocket::planner
