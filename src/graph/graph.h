// SPDX-License-Identifier: Apache-2.0
// The single-device graph: ops over logical tensors of one global micro-batch, as if one device
// held everything. Models build it, autodiff extends it, lowering turns it into a program.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/id.h"
#include "graph/output_set.h"
#include "graph/tensor_type.h"

namespace hocket::graph {

using TensorId = int32_t;
using NodeId = int32_t;
using hocket::kNone;
/// Node::layer of a node without a layer (the clipping factor): it runs with its reader.
inline constexpr int32_t kNoLayer = -2;

/// `optimizer` nodes run once per step, all others once per micro-batch. An optimizer node reads a
/// micro-batch's tensor as its sum over the step's micro-batches.
enum class Phase : uint8_t { forward, backward, optimizer };
const char* to_string(Phase phase);

enum class TensorKind : uint8_t {
  activation,  ///< made by a node, lives inside a step
  param,       ///< persistent, a weight of the model; the optimizer updates those that are trained
  state,       ///< persistent, no weight: see StateKind
  input,       ///< fed by the host for every micro-batch (tokens, targets, positions) or step
};
const char* to_string(TensorKind kind);

/// Purpose of a state.
enum class StateKind : uint8_t {
  none,       ///< no state
  optimizer,  ///< kept for the parameter Tensor::of: moments, master weights
  cache,      ///< keys and values of tokens that came before
};
const char* to_string(StateKind kind);

/// Initialisation of a parameter or state. Values are normal(0, std) or uniform(-bound, bound) by
/// global element index, or a constant. Or they copy the initial values of the tensor Tensor::of,
/// in this tensor's own type. A copy is also updated when weights are loaded.
struct Init {
  enum class Kind : uint8_t { none, normal, constant, copy, uniform } kind = Kind::none;
  double value = 0;  ///< std for normal, bound for uniform
};

struct Tensor {
  std::string name;
  TensorType type;
  TensorKind kind = TensorKind::activation;
  NodeId producer = kNone;
  int32_t layer = kNone;  ///< see Node::layer
  bool per_step = false;  ///< input only: fed once per step, not per micro-batch
  bool whole = false;     ///< input only: its dim 0 does not count the tokens of a micro-batch
  bool expert = false;    ///< param/state: dim 0 counts experts, so expert parallelism splits it
  bool trained = true;    ///< param only: false: frozen, so it has no gradient and no state
  /// Returns whether it is an input with an element, or a row of them, for every token.
  bool by_token() const { return kind == TensorKind::input && !per_step && !whole; }
  StateKind state = StateKind::none;
  TensorId of = kNone;  ///< the parameter that an optimizer state or a gradient belongs to
  Init init;
};

struct Graph;
/// Returns, per tensor, whether optimizer nodes read it as a sum over the step's micro-batches.
std::vector<bool> read_in_step(const Graph& graph);

/// One op application.
struct Node {
  std::string op;
  Attrs attrs;
  std::vector<TensorId> in;
  std::vector<TensorId> out;
  Phase phase = Phase::forward;
  /// 0..L-1 for the blocks, -1 before them (embedding), L after them (final norm, head, loss). A
  /// backward node has the layer of its forward node; the layer determines the stage.
  int32_t layer = kNone;
  /// Outputs that are accumulator + op(...). The accumulators are the last inputs, in the order of
  /// the outputs.
  OutputSet accumulate;
  bool recompute = false;  ///< a repeated forward node, run in the backward phase
};

/// Gradient of a parameter: one tensor per use of the parameter, to be summed over uses and
/// micro-batches. Each use has its own accumulator, so that the order of sums does not depend on
/// the pipeline.
struct ParamGrad {
  TensorId param = kNone;
  std::vector<TensorId> contributions;
  /// The sum of the contributions: the only one, or made of them by optimizer nodes; kNone while
  /// nothing sums them.
  TensorId total = kNone;
};

struct Graph {
  std::string name;
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;  ///< in execution order; every tensor is written by at most one node
  std::vector<TensorId> losses;   ///< [1] scalars; their sum is differentiated
  std::vector<TensorId> outputs;  ///< tensors the host wants to read (logits, expert counts)
  std::vector<ParamGrad> grads;   ///< filled by autodiff
  int32_t num_layers = 0;
  std::vector<Symbol> symbols;  ///< symbols of the tensors' dims

  /// A new symbol, as a dim. Throws Error if it is invalid or there is one of this name.
  Dim symbol(Symbol symbol);
  TensorId add_tensor(Tensor tensor);
  TensorId input(std::string name, TensorType type, bool per_step = false);
  TensorId param(std::string name, TensorType type, int32_t layer, Init init, bool expert = false);
  const Tensor& tensor(TensorId id) const { return tensors[id]; }
  TensorId find(std::string_view name) const;  ///< kNone when absent
};

/// Returns the place of a Node::layer in a model of `num_layers`: "embedding", "L3", "head". Empty
/// for nodes of the whole model; with `num_layers` 0 for all but "L3".
std::string layer_name(int32_t layer, int32_t num_layers);

/// Text form of a graph, one line per tensor and node; `parse_graph(print(g))` equals g.
std::string print(const Graph& graph);
Graph parse_graph(std::string_view text);
std::string to_dot(const Graph& graph);

}  // namespace hocket::graph
