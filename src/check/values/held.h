// SPDX-License-Identifier: Apache-2.0
// The part of a term that one rank holds, for texts of refusals, and for tests that compare it with
// the data of a run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "check/terms.h"
#include "graph/cut.h"

namespace hocket::check {

/// Addends of an unfinished reduction that a rank holds, in cells of a letter of an op's notation.
struct HeldAddends {
  char letter = 0;
  int64_t cells = 1;
  std::vector<graph::Run> here, missing;  ///< among the addends that the local indices need
};

struct Held {
  ExprId term = kZero;  ///< kZero: zeros
  struct Dim {
    int64_t size = 1;                 ///< of the whole tensor; in cells if the dim is a symbol
    std::vector<graph::Run> indices;  ///< in memory order
  };
  std::vector<Dim> dims;
  std::vector<HeldAddends> addends;
  /// In a pack: the elements of this tensor, in memory order. Length -1: all elements.
  graph::Run elements{0, -1};
  /// Returns whether no addends are missing.
  bool complete() const;
};

/// The first rank at which something is wrong, the fault in words, and the number of such ranks.
struct RankFault {
  std::string text;
  graph::Coords at{};
  int64_t ranks = 0;
  /// Adds a rank with its fault; "": there is none, and the rank is not counted.
  void add(std::string what, const graph::Coords& coords);
};

/// "[0:2)+[6:8)": the first few runs.
std::string runs_text(const std::vector<graph::Run>& runs);

struct TaskRef;
class Reference;
/// The value that a task writes to one of its outputs (CheckOptions::on_write).
struct OutputValue {
  const TaskRef& task;
  size_t output;
  /// Owner of the terms, which live until the Checker is destroyed.
  const Reference& reference;
  /// Whether no codec lost anything of the value.
  bool exact;
  /// Returns the data on a rank of the class: tensors one after the other if they have `elements`,
  /// else the parts of a sum. Empty: not known.
  std::function<std::vector<Held>(int32_t rank)> at;
};

}  // namespace hocket::check
