// SPDX-License-Identifier: Apache-2.0
// What a model's single-device training graph says of a plan's costs: by kind of layer, the work of
// its nodes, its parameters, and what its backward pass reads of its forward pass.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace hocket::planner {

/// Layers that are alike are of one kind.
enum class LayerKind : uint8_t { embedding, dense, experts, head };
inline constexpr size_t kLayerKinds = 4;

/// What ranks of tp share of something.
enum class Share : uint8_t {
  tokens,    ///< the residual stream: split where sequence_parallel splits the tokens
  features,  ///< heads, widths, vocabulary
  experts,   ///< rows that go to experts
};
inline constexpr size_t kShares = 3;

/// Where in a micro-batch a node runs.
enum class PassPart : uint8_t {
  forward,
  inputs,   ///< of the backward pass: gradients of inputs, and what is computed again
  weights,  ///< gradients of parameters
};
inline constexpr size_t kParts = 3;

struct NodeWork {
  std::string_view op;  ///< of the registry
  graph::DType dtype = graph::DType::f32;
  PassPart part = PassPart::forward;
  Share share = Share::tokens;
  double flops = 0;
  double activations = 0;  ///< bytes moved that grow with the tokens
  double parameters = 0;   ///< bytes moved of parameters or their gradients
};

template <class T>
using ByShare = std::array<T, kShares>;
inline double& of(ByShare<double>& values, Share share) {
  return values[static_cast<size_t>(share)];
}
inline double of(const ByShare<double>& values, Share share) {
  return values[static_cast<size_t>(share)];
}

/// One layer of a kind, for one sequence.
struct LayerWork {
  std::vector<NodeWork> nodes;
  /// Elements of its parameters.
  ByShare<double> parameters{};
  /// Bytes that the forward pass leaves to the backward pass.
  ByShare<double> kept{};
};

/// Of one way to recompute.
struct ModelTable {
  std::array<LayerWork, kLayerKinds> layers;
  std::vector<LayerKind> kind_of;  ///< by layer
  double residual_bytes = 0;       ///< [tokens of a sequence, width]
  double key_bytes = 0;            ///< keys and values of a layer, of a sequence
  double head_bytes = 0;           ///< queries of a layer, of a sequence: what attention gives, too
  int64_t element_bytes = 4;
  /// Bytes of the gradients, and of what the optimizer keeps, per byte of parameters.
  double gradient_share = 1, state_share = 2;
};

/// `graph`: of training, before any pass, of one sequence (engine::reference). `recompute`: a value
/// of plan.recompute.
ModelTable table_of(const graph::Graph& graph, const char* recompute);

}  // namespace hocket::planner
