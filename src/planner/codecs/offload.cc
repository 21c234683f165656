// SPDX-License-Identifier: Apache-2.0
#include "planner/codecs/offload.h"

namespace hocket::planner {

namespace {

class Offload {
 public:
  Offload(const std::vector<size_t>& sizes, double begin_s,
          const std::function<std::optional<double>(const OffloadCounts&)>& step_s,
          const std::function<bool()>& stop)
      : sizes_(sizes), step_s_(step_s), stop_(stop), best_s_(begin_s), best_(sizes.size(), 0) {}

  void try_all() {
    OffloadCounts counts(sizes_.size(), 0);
    while (next(&counts) && !stop_()) {
      take_if_better(counts);
    }
  }

  /// Tries one group after another, until a round over all of them changes nothing.
  void try_groups_one_after_another() {
    OffloadCounts before;
    while (before != best_ && !stop_()) {
      before = best_;
      for (size_t group = 0; group < sizes_.size(); ++group) {
        OffloadCounts counts = best_;
        for (size_t count = 0; count <= sizes_[group] && !stop_(); ++count) {
          counts[group] = count;
          if (counts != best_) {
            take_if_better(counts);
          }
        }
      }
    }
  }

  const OffloadCounts& best() const { return best_; }

 private:
  /// Counts up like an odometer; false: that was the last one.
  bool next(OffloadCounts* counts) const {
    for (size_t group = 0; group < sizes_.size(); ++group) {
      if (++(*counts)[group] <= sizes_[group]) return true;
      (*counts)[group] = 0;
    }
    return false;
  }
  void take_if_better(const OffloadCounts& counts) {
    const std::optional<double> step_s = step_s_(counts);
    if (step_s && *step_s < best_s_) {
      best_s_ = *step_s;
      best_ = counts;
    }
  }

  const std::vector<size_t>& sizes_;
  const std::function<std::optional<double>(const OffloadCounts&)>& step_s_;
  const std::function<bool()>& stop_;
  double best_s_;
  OffloadCounts best_;
};

}  // namespace

OffloadSearch choose_offload(
    const std::vector<size_t>& group_sizes, double begin_s, double most_choices,
    const std::function<std::optional<double>(const OffloadCounts&)>& step_s,
    const std::function<bool()>& stop) {
  OffloadSearch search;
  for (const size_t size : group_sizes) {
    search.choices *= static_cast<double>(size + 1);
  }
  search.all_tried = search.choices <= most_choices;
  Offload offload(group_sizes, begin_s, step_s, stop);
  if (search.all_tried) {
    offload.try_all();
  } else {
    offload.try_groups_one_after_another();
  }
  search.best = offload.best();
  return search;
}

}  // namespace hocket::planner
