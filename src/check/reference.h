// SPDX-License-Identifier: Apache-2.0
// What one step of the single-device graph computes, as terms: every micro-batch forward and
// backward, gradients summed over micro-batches and uses, then the optimizer nodes once.
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
  /// The graph must outlive this object. Throws Error when the graph itself makes no sense (an
  /// unknown op, a tensor read before it is written).
  Reference(const graph::Graph& graph, int32_t num_micro_batches);

  const graph::Graph& graph() const { return *graph_; }
  /// See certificate.h; worked out when it is first asked for.
  const Hash128& hash();
  int32_t num_micro_batches() const { return num_micro_batches_; }
  const std::vector<graph::Symbol>& symbols() const { return symbols_; }
  /// Graph tensor of this name, or -1.
  int32_t find(std::string_view name) const;
  /// Term of the tensor after the step; micro_batch >= 0: its value in that micro-batch (losses and
  /// outputs only); -1: per-step tensors as they are, losses and gradients summed over
  /// micro-batches. kUnwritten if there is no such value.
  ExprId value(int32_t tensor, int32_t micro_batch) const;
  /// The application of this op to these terms in the step, or in the definition of an op that the
  /// step applies, or defined by such; -1 if there is none.
  AppId find(int32_t key, std::span<const ExprId> in);
  bool updated(int32_t tensor) const { return updated_[tensor]; }
  /// True for tensors made once per micro-batch.
  bool per_micro_batch(int32_t tensor) const { return per_mb_[tensor]; }

  Terms terms;
  TypeTable types;
  OpKeys keys;
  std::vector<TypeId> type_of;  ///< by graph tensor

 private:
  /// A node with everything that does not depend on the micro-batch worked out.
  struct Step {
    int32_t node = -1;
    bool optimizer = false;
    int32_t key = -1;
    Meaning meaning = Meaning::application;
    std::vector<int32_t> in;            ///< accumulators taken off
    std::vector<int32_t> accumulators;  ///< by output, -1
    std::vector<int32_t> out;
    std::vector<int32_t> updates;  ///< by output: persistent tensor updated in place, -1
    std::vector<TypeId> out_types;
    bool routed = false;
  };
  void prepare();
  Step step_of(int32_t node_id);
  /// Fills `per_mb_`, `updated_` and `wanted_` with what the step says of its tensors.
  void note_tensors(const Step& step);
  /// Which values are asked for after the step: sums over micro-batches, or one by one.
  void choose_results();
  AppId route_of_inputs() const;
  // Definitions (definitions.cc).
  class Unfolding;
  /// The application, made if new, and with it those of the op's definition.
  AppId apply(int32_t key, std::span<const ExprId> in, std::span<const TypeId> out,
              const Application& where);
  void run_node(const Step& step, int32_t micro_batch);
  ExprId read(int32_t tensor, const Step& step, int32_t micro_batch);

  const graph::Graph* graph_;
  std::optional<Hash128> hash_;
  int32_t num_micro_batches_;
  std::vector<graph::Symbol> symbols_;
  std::vector<Step> steps_;
  std::vector<ExprId> value_;  ///< of the current micro-batch, or of the step
  std::vector<ExprId> total_;  ///< summed over the micro-batches so far
  // By tensor: made once per micro-batch; needs `total_`; updated in place by the step; needs
  // `each_`; a loss or part of a gradient, whose total may be asked for.
  std::vector<bool> per_mb_, wanted_, updated_, wants_each_, summed_;
  std::vector<int32_t> each_index_;        ///< tensor -> row of each_, -1
  std::vector<std::vector<ExprId>> each_;  ///< losses and outputs, by micro-batch
  std::vector<ExprId> scratch_;            ///< inputs of the node that is run
  std::unordered_map<std::string_view, int32_t> by_name_;
};

}  // namespace hocket::check
