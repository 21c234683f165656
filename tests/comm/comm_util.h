// SPDX-License-Identifier: Apache-2.0
// Cases for communication ops: the inputs and expected outputs of every member, derived from the
// logical value and the placements before and after, without the op.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "collectives/comm_op.h"

namespace hocket::comm::test {

/// Bytes of a tensor.
using Bytes = std::vector<std::byte>;

Bytes random_tensor(const TensorType& type, Rng& rng);
/// Reduces the parts in order, element by element.
Bytes sum(const std::vector<const Bytes*>& parts, graph::DType dtype,
          graph::Monoid monoid = graph::Monoid::sum);
/// Copies `piece` (number i of n along dim) from or to the whole.
void slice(const TensorType& piece_type, int64_t dim, int64_t n, int64_t i, Bytes& whole,
           Bytes& piece, bool take);

/// Collective among n members, with their operands; indexed by member, then by operand.
struct Case {
  const Op* op = nullptr;
  Attrs attrs;
  std::vector<TensorType> in_types, out_types;
  std::vector<std::vector<Bytes>> in;
  /// Expected beginnings of the outputs; bytes beyond (rows that do not exist) must be untouched.
  std::vector<std::vector<Bytes>> want;
  std::string name;
  size_t members() const { return in.size(); }
};

/// Makes a case of the op's sample, with random values. `extra` > 1: multiplies the elements per
/// row, if the sample has rows.
Case make_case(const Op& op, const Sample& sample, int64_t members, int64_t extra, Rng& rng);

/// Content of outputs before the op runs.
inline constexpr std::byte kUntouched{0xA7};

/// Returns the outputs of every member, run one after another in a random order within each phase.
std::vector<std::vector<Bytes>> run_in_turn(const Case& c, Rng& rng);

/// Compares outputs with the expected ones; returns "" or the first difference.
std::string difference(const Case& c, const std::vector<std::vector<Bytes>>& out);

/// Returns the table of docs/collectives.md: all ops, their effect on a placement, and their cost.
std::string ops_table();

}  // namespace hocket::comm::test
