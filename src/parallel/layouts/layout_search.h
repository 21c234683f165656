// SPDX-License-Identifier: Apache-2.0
// Minimises a sum of cost tables over discrete choices. Exact while tables stay small: each choice
// is eliminated in turn, as in the reductions of PBQP and of OneFlow (arXiv 2110.15032), and in
// general in bucket elimination (Dechter 1999). Beyond that, a local search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/id.h"

namespace hocket::parallel {

/// A choice, by its number: 0 to N - 1.
using ChoiceId = Id<struct DiscreteChoice>;

/// Cost of some choices, by the combination of their values.
struct CostTable {
  std::vector<ChoiceId> of;  ///< the choices, each once
  std::vector<double> cost;  ///< row-major by their values; may be infinite
};

/// N choices: the number of values of each, and the cost tables.
struct ChoiceProblem {
  std::vector<int32_t> values;
  std::vector<CostTable> tables;
};

struct Chosen {
  std::vector<int32_t> value;  ///< by choice
  double cost = 0;
  bool exact = true;        ///< proven minimal
  int64_t largest = 0;      ///< entries of the largest intermediate table
  int32_t not_reduced = 0;  ///< choices that the first round fixed
};

/// Calls visit with every combination of values of the choices `of`, the last one fastest.
template <class Visit>
void for_each_combination(const std::vector<ChoiceId>& of, const std::vector<int32_t>& values,
                          const Visit& visit) {
  std::vector<int32_t> at(of.size(), 0);
  for (bool more = true; more;) {
    visit(std::as_const(at));
    more = false;
    for (size_t i = of.size(); i-- > 0 && !more;) {
      more = ++at[i] < values[of[i]];
      if (!more) {
        at[i] = 0;
      }
    }
  }
}

/// Returns the sum of all tables.
double cost_of(const ChoiceProblem& problem, const std::vector<int32_t>& value);

/// Minimises the sum, starting from `start`. The result never costs more than `start`, and is the
/// minimum (Chosen::exact) if no table needs more than `most_entries`. Deterministic: of values
/// with equal cost the lowest is taken. Requires: `start` has finite cost.
Chosen choose(const ChoiceProblem& problem, const std::vector<int32_t>& start,
              int64_t most_entries = 1 << 15);

}  // namespace hocket::parallel
