// SPDX-License-Identifier: Apache-2.0
// Cases for communication ops: what every member brings, and what it must get, worked out from the
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
/// Sum in the order of the parts, element by element.
Bytes sum(const std::vector<const Bytes*>& parts, graph::DType dtype,
          graph::Monoid monoid = graph::Monoid::sum);
/// Copies `piece` (number i of n along dim) from or to the whole.
void slice(const TensorType& piece_type, int64_t dim, int64_t n, int64_t i, Bytes& whole,
           Bytes& piece, bool take);

/// One collective among n members: operands by member, then by operand.
struct Case {
  const Op* op = nullptr;
  Attrs attrs;
  std::vector<TensorType> in_types, out_types;
  std::vector<std::vector<Bytes>> in;
  /// What outputs must begin with; beyond it (rows that do not exist) they must be left alone.
  std::vector<std::vector<Bytes>> want;
  std::string name;
  size_t members() const { return in.size(); }
};

/// A case of the op's sample, with random values. `extra` > 1: with so many elements more per row,
/// if the sample has rows.
Case make_case(const Op& op, const Sample& sample, int64_t members, int64_t extra, Rng& rng);

/// What outputs hold before the op runs.
inline constexpr std::byte kUntouched{0xA7};

/// Outputs of every member, run one after the other in a random order within each phase.
std::vector<std::vector<Bytes>> run_in_turn(const Case& c, Rng& rng);

/// Compares outputs with what is wanted; "" or where they differ.
std::string difference(const Case& c, const std::vector<std::vector<Bytes>>& out);

/// The table of docs/collectives.md: all ops, what they do to a placement, what they cost.
std::string table();

}  // namespace hocket::comm::test
