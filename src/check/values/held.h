// SPDX-License-Identifier: Apache-2.0
// What one rank holds of a term: what refusals say, and what tests compare with the data of a run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "check/terms.h"
#include "graph/cut.h"

namespace hocket::check {

/// Addends of an unfinished reduction, in cells of a letter of an op's notation.
struct HeldAddends {
  char letter = 0;
  int64_t cells = 1;
  std::vector<graph::Run> here, missing;  ///< of those that the indices at hand need
};

struct Held {
  ExprId term = kZero;  ///< kZero: zeros
  struct Dim {
    int64_t size = 1;                 ///< of the whole; of a symbol, in cells
    std::vector<graph::Run> indices;  ///< in the order in which they lie
  };
  std::vector<Dim> dims;
  std::vector<HeldAddends> addends;
  /// Among others in one buffer: which of these elements, in memory order; length -1: all.
  graph::Run elements{0, -1};
  bool complete() const;
};

/// The first rank at which something is wrong, by its coordinates, what it is, and at how many.
struct AtRank {
  std::string text;
  graph::Coords at{};
  int64_t ranks = 0;
  /// One more rank, at which this is wrong; "": nothing is.
  void add(std::string what, const graph::Coords& coords);
};

/// "[0:2)+[6:8)"; the first few.
std::string runs_text(const std::vector<graph::Run>& runs);

struct TaskRef;
class Reference;
/// What a task leaves in one of its outputs, as the check follows it (CheckOptions::on_write).
struct Wrote {
  const TaskRef& task;
  size_t output;
  /// Its terms. They stay as long as the Checker does.
  const Reference& reference;
  /// True if nothing was lost to codecs on the way.
  bool exact;
  /// What a rank of the class holds: one after the other if they have `elements`, else the parts of
  /// a sum. Empty: nothing that can be told.
  std::function<std::vector<Held>(int32_t rank)> at;
};

}  // namespace hocket::check
