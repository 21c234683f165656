// SPDX-License-Identifier: Apache-2.0
// What a ring of attention is made of: the task whose keys travel, what these are gathered from,
// and what the ranks have of the tokens of all: one block each, or in zigzag order (Llama 3, arXiv
// 2407.21783) two parts, one from the front and one from the back.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "graph/layout.h"
#include "ops/op.h"
#include "parallel/lowering/template.h"

namespace hocket::passes {

/// What the rank at each place in a ring has of the tokens of all of them: one rank's queries and
/// keys are of the same tokens.
using Blocks = std::vector<graph::Run>;

/// A value that is gathered over one axis: from what, and along which dim.
struct Gathered {
  parallel::ValueId from = program::kNone;
  int dim = 0;
  int32_t axis = program::kNone;
};

/// What becomes of a sum over one axis: every rank gets its block of it along a dim, or all of it.
struct Summed {
  parallel::ValueId to = program::kNone;
  int dim = program::kNone;  ///< kNone: all
  int32_t axis = program::kNone;
};

/// A task whose queries are split over the axis of the ring and whose keys are gathered over it.
struct Site {
  const ops::Op* op = nullptr;
  ops::Letters letters;
  char asks = 0;   ///< letter of the queries' tokens
  char asked = 0;  ///< letter of the keys' tokens
  Blocks blocks;
};

/// Which part of its tokens a rank takes: a number by its place in the ring.
struct Choice {
  /// The early or the late part on all ranks; or the late one on those before place `hop`, the
  /// early one on the others.
  enum class Which : uint8_t { early, late, late_before } which = Which::early;
  int32_t hop = 0;
  int64_t at(int64_t place) const {
    if (which == Which::late_before) return place < hop ? 1 : 0;
    return which == Which::late ? 1 : 0;
  }
  bool operator==(const Choice&) const = default;
};

/// A part of the queries that meets a part of the keys.
struct Meeting {
  Choice queries, keys;
};

/// The two parts of every rank in zigzag order, each as long as one half of its block is (the first
/// one longer by one if it is odd). Early ones lie from the first rank to the last, and behind all
/// of them the late ones, from the last rank to the first.
class Halves {
 public:
  Halves() = default;
  explicit Halves(const Blocks& ring);

  /// Where a part (0: the early one) of the rank at a place lies.
  const graph::Run& at(int64_t place, int64_t part) const {
    return of_[static_cast<size_t>(place)][static_cast<size_t>(part)];
  }
  /// Whether they are not all of one length.
  bool unlike() const { return unlike_; }
  /// All early ones, or all late ones.
  graph::Run side(int64_t part) const;
  /// Tokens of all ranks.
  int64_t size() const { return side(1).begin + side(1).length; }

 private:
  std::vector<std::array<graph::Run, 2>> of_;
  bool unlike_ = false;
};

}  // namespace hocket::passes
