// SPDX-License-Identifier: Apache-2.0
// The least sum of tables over choices: exact as long as tables stay small (every choice is
// eliminated in turn, as in the reductions of PBQP and of OneFlow, arXiv 2110.15032, and in general
// in bucket elimination, Dechter 1999), then a search around what is too entangled for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace hocket::parallel {

/// What some choices cost together.
struct CostTable {
  std::vector<int32_t> of;   ///< choices, each once
  std::vector<double> cost;  ///< by their values, the last one counting fastest; may be infinite
};

/// Choices 0..N-1, of which each has a number of values, and what they cost.
struct ChoiceProblem {
  std::vector<int32_t> values;
  std::vector<CostTable> tables;
};

struct Chosen {
  std::vector<int32_t> value;  ///< by choice
  double cost = 0;
  bool exact = true;        ///< nothing costs less
  int64_t largest = 0;      ///< entries of the largest table that was made
  int32_t not_reduced = 0;  ///< choices that the first round held where they were
};

/// Calls visit with the values of all combinations of these choices, the last one fastest.
template <class Visit>
void for_each_combination(const std::vector<int32_t>& of, const std::vector<int32_t>& values,
                          const Visit& visit) {
  std::vector<int32_t> at(of.size(), 0);
  for (bool more = true; more;) {
    visit(std::as_const(at));
    more = false;
    for (size_t i = of.size(); i-- > 0 && !more;) {
      more = ++at[i] < values[static_cast<size_t>(of[i])];
      if (!more) {
        at[i] = 0;
      }
    }
  }
}

/// The sum of all tables.
double cost_of(const ChoiceProblem& problem, const std::vector<int32_t>& value);

/// The least sum that is found from `start` on, which must be finite; never more than there, and
/// the least of all (Chosen::exact) where no table of more than `most_entries` is needed. The same
/// for the same input. Of values that cost the same the lowest is taken.
Chosen choose(const ChoiceProblem& problem, const std::vector<int32_t>& start,
              int64_t most_entries = 1 << 15);

}  // namespace hocket::parallel
