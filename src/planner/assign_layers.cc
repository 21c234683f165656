// SPDX-License-Identifier: Apache-2.0
// Implements: assign_layers, lower_bound_bytes (balance.h), by dynamic programs over "the first s
// stages have the first n layers".
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "planner/balance.h"
#include "planner/model_table.h"

namespace hocket::planner {

namespace {

/// No assignment, or one that does not fit: worse than any value.
constexpr double kDoesNotFit = std::numeric_limits<double>::infinity();

/// Work in integer units, of which all layers have about this many on the slowest device: sums and
/// squares are then exact in any order.
constexpr double kUnits = 1 << 29;
constexpr double kRounding = 1e-6;

/// One stage's layers, [begin, end).
struct Run {
  size_t begin = 0;
  int64_t units = 0;  ///< of time
  double bytes = 0;
};

class LayerAssignment {
 public:
  explicit LayerAssignment(const StageLoads& loads)
      : loads_(loads), stages_(loads.speed.size()), layers_(loads.type_of.size()) {
    double all = loads.seconds[kEmbedding] + loads.seconds[kHead];
    for (const size_t type : loads.type_of) {
      all += loads.seconds[type];
    }
    const double slowest = *std::min_element(loads.speed.begin(), loads.speed.end());
    const double unit = all / slowest / kUnits;
    for (const double seconds : loads.seconds) {
      units_.push_back(all > 0 ? std::llround(seconds / unit) : 0);
    }
  }

  std::optional<std::vector<int64_t>> assign(double limit) const;
  double lower_bound_bytes() const;

 private:
  template <class T>
  using Table = std::vector<std::vector<T>>;  // by stages and layers

  template <class Visit>
  void visit_runs(size_t stage, size_t end, Visit visit) const;
  template <class Value>
  double least_largest(Value value) const;
  std::vector<int64_t> most_alike(int64_t slowest, double limit) const;

  const StageLoads& loads_;
  size_t stages_, layers_;
  std::vector<int64_t> units_;  // by type
};

/// Calls `visit` with growing sets of layers before `end` for a stage, until it returns false.
template <class Visit>
void LayerAssignment::visit_runs(size_t stage, size_t end, Visit visit) const {
  const bool is_first = stage == 0, is_last = stage + 1 == stages_;
  double bytes = 0, working = 0;
  int64_t units = 0;
  const auto add = [&](size_t type) {
    units += units_[type];
    if (loads_.bytes.empty()) return;
    bytes += loads_.bytes[stage][type];
    working = std::max(working, loads_.working[type]);
  };
  if (is_first) {
    add(kEmbedding);
  }
  if (is_last) {
    add(kHead);
  }
  for (size_t begin = end;; --begin) {
    const int64_t time = std::llround(static_cast<double>(units) / loads_.speed[stage]);
    const bool is_stage = begin < end || is_first || is_last;
    if (is_stage && !visit(Run{begin, time, bytes + working})) return;
    if (begin == 0) return;
    add(loads_.type_of[begin - 1]);
  }
}

/// The least that the largest stage can be by `value`, which grows with the layers of a stage.
template <class Value>
double LayerAssignment::least_largest(Value value) const {
  std::vector<double> least(layers_ + 1, kDoesNotFit);
  least[0] = 0;
  for (size_t stage = 0; stage < stages_; ++stage) {
    std::vector<double> next(layers_ + 1, kDoesNotFit);
    for (size_t end = 0; end <= layers_; ++end) {
      visit_runs(stage, end, [&](const Run& run) {
        const double here = value(run);
        next[end] = std::min(next[end], std::max(least[run.begin], here));
        return here < next[end];
      });
    }
    least = std::move(next);
  }
  return least[layers_];
}

/// Returns the most even of the equally fast assignments: the least sum of squares.
std::vector<int64_t> LayerAssignment::most_alike(int64_t slowest, double limit) const {
  // Squares of the stages' times, and where the stages begin, in all.
  using Worth = std::pair<int64_t, size_t>;
  constexpr Worth kNone{std::numeric_limits<int64_t>::max(), 0};
  Table<Worth> best(stages_ + 1, std::vector<Worth>(layers_ + 1, kNone));
  Table<size_t> from(stages_ + 1, std::vector<size_t>(layers_ + 1, 0));
  best[0][0] = {0, 0};
  for (size_t stage = 0; stage < stages_; ++stage) {
    for (size_t end = 0; end <= layers_; ++end) {
      visit_runs(stage, end, [&](const Run& run) {
        if (run.units > slowest || run.bytes > limit) return false;
        const Worth& before = best[stage][run.begin];
        if (before == kNone) return true;
        const Worth here{before.first + run.units * run.units, before.second + run.begin};
        if (here < best[stage + 1][end]) {
          best[stage + 1][end] = here;
          from[stage + 1][end] = run.begin;
        }
        return true;
      });
    }
  }
  HOCKET_CHECK(best[stages_][layers_] != kNone, "layers fit on stages, and then they do not");
  std::vector<int64_t> found(stages_);
  for (size_t stage = stages_, end = layers_; stage > 0; --stage) {
    const size_t begin = from[stage][end];
    found[stage - 1] = static_cast<int64_t>(end - begin);
    end = begin;
  }
  return found;
}

std::optional<std::vector<int64_t>> LayerAssignment::assign(double limit) const {
  const double slowest = least_largest([&](const Run& run) {
    return run.bytes > limit ? kDoesNotFit : static_cast<double>(run.units);
  });
  if (slowest == kDoesNotFit) return std::nullopt;
  // Stages that take the same may differ by the units to which their layers were rounded.
  return most_alike(static_cast<int64_t>(slowest * (1 + kRounding)), limit);
}

double LayerAssignment::lower_bound_bytes() const {
  return least_largest([](const Run& run) { return run.bytes; });
}

/// Returns the maximum over stages; `add` is called with every stage and its types.
template <class Add>
double most_of_stages(const StageLoads& loads, const std::vector<int64_t>& layers, Add add) {
  double most = 0;
  size_t next = 0;
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    std::vector<size_t> types;
    if (stage == 0) {
      types.push_back(kEmbedding);
    }
    if (stage + 1 == layers.size()) {
      types.push_back(kHead);
    }
    for (int64_t i = 0; i < layers[stage]; ++i) {
      types.push_back(loads.type_of[next++]);
    }
    most = std::max(most, add(stage, types));
  }
  return most;
}

}  // namespace

std::optional<std::vector<int64_t>> assign_layers(const StageLoads& loads, double limit) {
  return LayerAssignment(loads).assign(limit);
}

double lower_bound_bytes(const StageLoads& loads) {
  return LayerAssignment(loads).lower_bound_bytes();
}

double fullest_stage(const StageLoads& loads, const std::vector<int64_t>& layers) {
  return most_of_stages(loads, layers, [&](size_t stage, const std::vector<size_t>& types) {
    double bytes = 0, working = 0;
    for (const size_t type : types) {
      bytes += loads.bytes[stage][type];
      working = std::max(working, loads.working[type]);
    }
    return bytes + working;
  });
}

double slowest_stage(const StageLoads& loads, const std::vector<int64_t>& layers) {
  return most_of_stages(loads, layers, [&](size_t stage, const std::vector<size_t>& types) {
    double seconds = 0;
    for (const size_t type : types) {
      seconds += loads.seconds[type];
    }
    return seconds / loads.speed[stage];
  });
}

}  // namespace hocket::planner
