// SPDX-License-Identifier: Apache-2.0
// The reference: terms of one step of the single-device graph. All micro-batches run forward and
// backward, gradients are summed over micro-batches and uses, then the optimizer nodes run once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "check/terms.h"
#include "graph/graph.h"

namespace hocket::check {

using ops::Meaning;

class Reference {
 public:
  /// Requires: the graph outlives this object. Throws Error if the graph itself is wrong (an
  /// unknown op, a tensor read before it is written).
  Reference(const graph::Graph& graph, int32_t num_micro_batches);

  const graph::Graph& graph() const { return *graph_; }
  /// Returns reference_hash (certificate.h), computed on the first call.
  const Hash128& hash();
  int32_t num_micro_batches() const { return num_micro_batches_; }
  const std::vector<graph::Symbol>& symbols() const { return symbols_; }
  /// Returns the graph tensor of this name, or -1.
  int32_t find(std::string_view name) const;
  /// Returns the term of a tensor after the step; kUnwritten if there is none. `micro_batch` >= 0:
  /// the value in that micro-batch (losses and outputs only); -1: the final value, summed over
  /// micro-batches for losses and gradients.
  ExprId value(int32_t tensor, int32_t micro_batch) const;
  /// Returns the application of this op to these terms; -1 if there is none in the step, in the
  /// definition of an op that the step applies, or as a definition over such applications.
  AppId find(int32_t key, std::span<const ExprId> in);
  bool updated(int32_t tensor) const { return updated_[tensor]; }
  /// Returns whether a tensor is made once per micro-batch.
  bool per_micro_batch(int32_t tensor) const { return per_mb_[tensor]; }

  Terms terms;
  TypeTable types;
  OpKeys keys;
  std::vector<TypeId> type_of;  ///< by graph tensor

 private:
  /// A node, with all that does not depend on the micro-batch.
  struct Step {
    int32_t node = -1;
    bool optimizer = false;
    int32_t key = -1;
    Meaning meaning = Meaning::uninterpreted;
    std::vector<int32_t> in;            ///< without accumulators
    std::vector<int32_t> accumulators;  ///< by output, -1
    std::vector<int32_t> out;
    std::vector<int32_t> updates;  ///< by output: persistent tensor updated in place, -1
    std::vector<TypeId> out_types;
    bool routed = false;
  };
  void prepare();
  Step step_of(int32_t node_id);
  /// Fills `per_mb_`, `updated_` and `wanted_` for the tensors of a step.
  void note_tensors(const Step& step);
  /// Chooses the values that value() must know: sums over micro-batches, or single ones.
  void choose_results();
  AppId route_of_inputs() const;
  // Definitions (definitions.cc).
  class TermBuilder;
  /// Returns the application, made if new, together with those of the op's definition.
  AppId apply(int32_t key, std::span<const ExprId> in, std::span<const TypeId> out,
              const Application& where);
  void run_node(const Step& step, int32_t micro_batch);
  ExprId read(int32_t tensor, const Step& step, int32_t micro_batch);

  const graph::Graph* graph_;
  std::optional<Hash128> hash_;
  int32_t num_micro_batches_;
  std::vector<graph::Symbol> symbols_;
  std::vector<Step> steps_;
  std::vector<ExprId> value_;  ///< by tensor: in the current micro-batch, or of the step
  std::vector<ExprId> total_;  ///< by tensor: summed over the micro-batches so far
  // By tensor: made once per micro-batch; needs `total_`; updated in place by the step; needs
  // `each_`; a loss or part of a gradient (value() may return its total).
  std::vector<bool> per_mb_, wanted_, updated_, wants_each_, summed_;
  std::vector<int32_t> each_index_;        ///< tensor -> row of each_, -1
  std::vector<std::vector<ExprId>> each_;  ///< losses and outputs, by micro-batch
  std::vector<ExprId> scratch_;            ///< inputs of the current node
  std::unordered_map<std::string_view, int32_t> by_name_;
};

}  // namespace hocket::check
