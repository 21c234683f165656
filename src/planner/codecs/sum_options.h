// SPDX-License-Identifier: Apache-2.0
// The tree of options of Espresso (Wang et al., EuroSys 2023, first called ByteComp): the ways in
// which one gradient can be summed over the ranks of several nodes, through a codec or not, and how
// long each takes alone.
//
// A sum is flat or goes inside of nodes, between them, and inside again. Over all ranks and between
// nodes it is one collective, or two that belong together (one scatters and one gathers, or one
// brings all to a root and one back); inside of nodes it is always two. What travels is the
// gradient or its codes, for which there are other routines, since codes are not added up:
//   one collective   all-reduce                      | all-gather
//   scatter, gather  reduce-scatter, all-gather      | all-to-all, all-gather
//   root             reduce, broadcast               | gather, broadcast
// A path through the tree is valid if
//   1. every routine is one of what travels at that point, and the second of two that of the first;
//   2. before a collective the gradient may be encoded, and codes kept as they are, or decoded (all
//      that have come, and added up), and then encoded anew or not, each by the device or the host;
//   3. it ends with the gradient, decoded.
// These are 4,341 paths, the paper's number: of 1, 2, 3 and 4 collectives after each other 5, 29,
// 169 and 985, so 5 + 2 x 29 flat ones and 2 x (169 + 2 x 985) over two levels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost/cost_model.h"
#include "passes/codecs.h"

namespace hocket::planner {

/// Effect of a collective on a sum: all of it, or the first or second half of a pair.
enum class SumPart : uint8_t { whole, scatter, gather, to_root, from_root };
enum class Over : uint8_t { all, inside, between };  ///< ranks, those of a node, nodes

/// One thing that is done: a collective, or the work of a codec.
struct SumAct {
  enum class Kind : uint8_t { communicate, encode, decode } kind = Kind::communicate;
  bool on_host = false;  ///< of the work
  // Part of a collective.
  SumPart part = SumPart::whole;
  Over over = Over::all;
  bool codes = false;  ///< travel, not the gradient
  bool operator==(const SumAct&) const = default;
};
using SumOption = std::vector<SumAct>;

/// Returns all paths; flat ones first, of these the plain all-reduce first.
std::vector<SumOption> sum_options();
bool is_flat(const SumOption& option);
bool works_on_host(const SumOption& option);
bool is_encoded(const SumOption& option);
/// "encode, all_to_all inside, decode, .., decode (host)".
std::string to_string(const SumOption& option);

/// Costs of options among the first `per_node` ranks of each of the first nodes of a cluster.
class SumCosts {
 public:
  /// `costs` and `codec` must stay.
  SumCosts(const cost::CostModel& costs, int64_t nodes, int64_t per_node,
           const passes::CodecOps& codec);
  /// Seconds to sum up `bytes` of f32, one act after the other, nothing beside it.
  double seconds(const SumOption& option, double bytes) const;

 private:
  struct State;
  double communicate(const SumAct& act, State* state) const;
  double collective_s(const SumAct& act, const State& state) const;
  double work(const SumAct& act, State* state) const;
  double bring(bool to_host, State* state) const;
  double kernel_s(const std::string& op, const graph::Attrs& attrs,
                  std::vector<graph::TensorType> in, std::vector<graph::TensorType> out,
                  program::Lane lane) const;
  double bytes(const State& state) const;
  double members(Over over) const;
  const cost::GroupShape& shape(Over over) const;

  const cost::CostModel& costs_;
  const passes::CodecOps& codec_;
  double nodes_, per_node_;
  cost::GroupShape all_, inside_, between_;
};

}  // namespace hocket::planner
