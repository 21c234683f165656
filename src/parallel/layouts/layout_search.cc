// SPDX-License-Identifier: Apache-2.0
#include "parallel/layouts/layout_search.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/stop.h"

namespace hocket::parallel {

namespace {

/// Rounds in a row without improvement that end the search.
constexpr int kRoundsInVain = 4;

/// Returns the strides of a table's index, by choice.
std::vector<int64_t> strides(const std::vector<ChoiceId>& of, const std::vector<int32_t>& values) {
  std::vector<int64_t> steps(of.size(), 1);
  for (size_t i = of.size(); i-- > 1;) {
    steps[i - 1] = steps[i] * values[of[i]];
  }
  return steps;
}

/// One round: eliminates the choices, always the one with the fewest combinations of neighbours.
/// Where all have too many, fixes one of the most connected choices at its start value.
class Round {
 public:
  Round(const ChoiceProblem& problem, const std::vector<int32_t>& start, int64_t most_entries)
      : values_(problem.values),
        start_(start),
        most_entries_(most_entries),
        tables_(problem.tables),
        tables_of_(values_.size()),
        entries_(values_.size(), 0) {
    for (size_t table = 0; table < tables_.size(); ++table) {
      for (ChoiceId choice : tables_[table].of) {
        tables_of_[choice].insert(table);
      }
    }
    for (ChoiceId choice = 0; choice < values_.size(); ++choice) {
      queue(choice);
    }
  }

  /// Runs the round. It fixes choices that were fixed least often before, and counts in
  /// `times_held`.
  Chosen run(std::vector<int32_t>* times_held) {
    Chosen result;
    while (!open_.empty()) {
      stop_if_asked();
      const auto [entries, choice] = *open_.begin();
      if (entries <= most_entries_) {
        result.largest = std::max(result.largest, entries);
        eliminate(choice);
        continue;
      }
      const ChoiceId held = most_entangled(*times_held);
      ++(*times_held)[held];
      ++result.not_reduced;
      hold(held);
    }
    result.exact = result.not_reduced == 0;
    result.value = start_;
    for (size_t i = eliminated_.size(); i-- > 0;) {
      const Eliminated& one = eliminated_[i];
      int64_t index = 0;
      for (ChoiceId neighbour : one.neighbours) {
        index = index * values_[neighbour] + result.value[neighbour];
      }
      result.value[one.choice] = one.best[index];
    }
    return result;
  }

 private:
  struct Eliminated {
    ChoiceId choice = 0;
    std::vector<ChoiceId> neighbours;
    std::vector<int32_t> best;  ///< by the neighbours' values
  };

  std::vector<ChoiceId> neighbours(ChoiceId choice) const {
    std::set<ChoiceId> all;
    for (size_t table : tables_of_[choice]) {
      all.insert(tables_[table].of.begin(), tables_[table].of.end());
    }
    all.erase(choice);
    return {all.begin(), all.end()};
  }

  /// Inserts the choice into the queue of open choices, by the combinations of its neighbours.
  void queue(ChoiceId choice) {
    int64_t& entries = entries_[choice];
    open_.erase({entries, choice});
    entries = 1;
    for (ChoiceId neighbour : neighbours(choice)) {
      entries *= values_[neighbour];
      if (entries > most_entries_) break;
    }
    open_.insert({entries, choice});
  }

  ChoiceId most_entangled(const std::vector<int32_t>& times_held) const {
    const auto rank = [&](ChoiceId choice) {
      return std::pair(-times_held[choice], tables_of_[choice].size());
    };
    ChoiceId most = open_.begin()->second;
    for (const auto& [entries, choice] : open_) {
      if (rank(choice) > rank(most)) {
        most = choice;
      }
    }
    return most;
  }

  void remove(size_t table) {
    for (ChoiceId choice : tables_[table].of) {
      tables_of_[choice].erase(table);
    }
    tables_[table] = {};
  }
  void add(CostTable table) {
    for (ChoiceId choice : table.of) {
      tables_of_[choice].insert(tables_.size());
    }
    tables_.push_back(std::move(table));
  }

  /// Replaces the choice's tables by one over its neighbours: the cost with the choice's best
  /// value.
  void eliminate(ChoiceId choice) {
    Eliminated one{choice, neighbours(choice), {}};
    const std::set<size_t> own = tables_of_[choice];
    struct Part {
      const CostTable* table;
      std::vector<int64_t> step;  ///< by neighbour; 0: not in the table
      int64_t own = 0;
    };
    std::vector<Part> parts;
    for (size_t table : own) {
      Part part{&tables_[table], std::vector<int64_t>(one.neighbours.size(), 0)};
      const std::vector<int64_t> steps = strides(part.table->of, values_);
      for (size_t i = 0; i < steps.size(); ++i) {
        const ChoiceId of = part.table->of[i];
        if (of == choice) {
          part.own = steps[i];
        } else {
          const auto place = std::lower_bound(one.neighbours.begin(), one.neighbours.end(), of);
          part.step[place - one.neighbours.begin()] = steps[i];
        }
      }
      parts.push_back(std::move(part));
    }
    CostTable joint{one.neighbours, {}};
    for_each_combination(one.neighbours, values_, [&](const std::vector<int32_t>& at) {
      double least = std::numeric_limits<double>::infinity();
      int32_t best = 0;
      for (int32_t value = 0; value < values_[choice]; ++value) {
        double cost = 0;
        for (const Part& part : parts) {
          int64_t index = value * part.own;
          for (size_t i = 0; i < at.size(); ++i) {
            index += at[i] * part.step[i];
          }
          cost += part.table->cost[index];
        }
        if (cost < least) {
          least = cost;
          best = value;
        }
      }
      joint.cost.push_back(least);
      one.best.push_back(best);
    });
    close(choice, own);
    if (!one.neighbours.empty()) {
      add(std::move(joint));
    }
    for (ChoiceId neighbour : one.neighbours) {
      queue(neighbour);
    }
    eliminated_.push_back(std::move(one));
  }

  /// Fixes the choice at its start value.
  void hold(ChoiceId choice) {
    const std::vector<ChoiceId> beside = neighbours(choice);
    const std::set<size_t> own = tables_of_[choice];
    const int32_t value = start_[choice];
    for (size_t number : own) {
      const CostTable table = tables_[number];
      const std::vector<int64_t> steps = strides(table.of, values_);
      CostTable rest;
      std::vector<int64_t> step;
      int64_t begin = 0;
      for (size_t i = 0; i < steps.size(); ++i) {
        if (table.of[i] == choice) {
          begin = value * steps[i];
        } else {
          rest.of.push_back(table.of[i]);
          step.push_back(steps[i]);
        }
      }
      for_each_combination(rest.of, values_, [&](const std::vector<int32_t>& at) {
        int64_t index = begin;
        for (size_t i = 0; i < at.size(); ++i) {
          index += at[i] * step[i];
        }
        rest.cost.push_back(table.cost[index]);
      });
      if (!rest.of.empty()) {
        add(std::move(rest));
      }
    }
    close(choice, own);
    for (ChoiceId neighbour : beside) {
      queue(neighbour);
    }
  }

  void close(ChoiceId choice, const std::set<size_t>& own) {
    for (size_t table : own) {
      remove(table);
    }
    open_.erase({entries_[choice], choice});
  }

  const std::vector<int32_t>& values_;
  const std::vector<int32_t>& start_;
  const int64_t most_entries_;
  std::vector<CostTable> tables_;
  std::vector<std::set<size_t>> tables_of_;      // by choice
  std::vector<int64_t> entries_;                 // by choice: combinations of its neighbours
  std::set<std::pair<int64_t, ChoiceId>> open_;  // choices, by entries
  std::vector<Eliminated> eliminated_;
};

}  // namespace

double cost_of(const ChoiceProblem& problem, const std::vector<int32_t>& value) {
  double cost = 0;
  for (const CostTable& table : problem.tables) {
    int64_t index = 0;
    for (ChoiceId choice : table.of) {
      index = index * problem.values[choice] + value[choice];
    }
    cost += table.cost[index];
  }
  return cost;
}

Chosen choose(const ChoiceProblem& problem, const std::vector<int32_t>& start,
              int64_t most_entries) {
  // A round that fixes nothing is exact. Otherwise search in rounds: each fixes, as far as
  // possible, other choices at the best known values and chooses all the rest anew.
  Chosen best;
  best.value = start;
  best.cost = cost_of(problem, start);
  HOCKET_CHECK(best.cost < std::numeric_limits<double>::infinity(),
               "the first choice of {} is not legal", start.size());
  std::vector<int32_t> times_held(problem.values.size(), 0);
  bool first = true;
  for (int in_vain = 0; in_vain < kRoundsInVain;) {
    Chosen round = Round(problem, best.value, most_entries).run(&times_held);
    round.cost = cost_of(problem, round.value);
    const bool better = round.cost < best.cost;
    if (better) {
      best.value = round.value;
      best.cost = round.cost;
    }
    best.exact = round.exact;
    best.largest = std::max(best.largest, round.largest);
    if (std::exchange(first, false)) {
      best.not_reduced = round.not_reduced;
    }
    if (round.exact) break;
    in_vain = better ? 0 : in_vain + 1;
  }
  return best;
}

}  // namespace hocket::parallel
