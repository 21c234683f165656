// SPDX-License-Identifier: Apache-2.0
// Parts of a ring of attention: the task with keys that travel, their source, and the ranks' shares
// of the tokens: one block each, or in zigzag order (Llama 3, arXiv 2407.21783) two parts, one from
// the front and one from the back.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "graph/layout.h"
#include "ops/op.h"
#include "parallel/lowering/template.h"

namespace hocket::passes {

/// Tokens of the rank at each ring position. A rank's queries and keys are of the same tokens.
using Blocks = std::vector<graph::Run>;

/// A value gathered over one axis: its source and dim.
struct Gathered {
  parallel::ValueId from = program::kNone;
  int dim = 0;
  int32_t axis = program::kNone;
};

/// Use of a sum over one axis: every rank gets its block along a dim, or all of it.
struct Summed {
  parallel::ValueId to = program::kNone;
  int dim = program::kNone;  ///< kNone: all
  int32_t axis = program::kNone;
};

/// A task with queries split over the axis of the ring, and keys gathered over it.
struct Site {
  const ops::Op* op = nullptr;
  ops::Letters letters;
  char query_letter = 0;  ///< of the queries' tokens
  char key_letter = 0;    ///< of the keys' tokens
  Blocks blocks;
};

/// A rank's choice among its parts, by its ring position.
struct PartChoice {
  /// The early or the late part on all ranks; or the late one on those before place `hop`, the
  /// early one on the others.
  enum class Which : uint8_t { early, late, late_before } which = Which::early;
  int32_t hop = 0;
  int64_t at(int64_t place) const {
    if (which == Which::late_before) return place < hop ? 1 : 0;
    return which == Which::late ? 1 : 0;
  }
  bool operator==(const PartChoice&) const = default;
};

/// Part of the queries and part of the keys that one attention task combines.
struct BlockPair {
  PartChoice queries, keys;
};

/// The two parts of every rank in zigzag order, each half of its block (the first one longer by one
/// if it is odd). Early parts lie from the first rank to the last, followed by the late parts from
/// the last rank to the first.
class Halves {
 public:
  Halves() = default;
  explicit Halves(const Blocks& ring);

  /// Returns part 0 (early) or 1 (late) of the rank at a position.
  const graph::Run& at(int64_t place, int64_t part) const {
    return of_[static_cast<size_t>(place)][static_cast<size_t>(part)];
  }
  /// Returns whether their lengths differ.
  bool uneven() const { return uneven_; }
  /// Returns all early parts, or all late ones.
  graph::Run side(int64_t part) const;
  /// Tokens of all ranks.
  int64_t size() const { return side(1).begin + side(1).length; }

 private:
  std::vector<std::array<graph::Run, 2>> of_;
  bool uneven_ = false;
};

}  // namespace hocket::passes
