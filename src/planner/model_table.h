// SPDX-License-Identifier: Apache-2.0
// Costs of a plan from a model's single-device training graph: by type of layer, the work of its
// nodes, its parameters, and the activations of its backward pass.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace hocket::planner {

/// Types of layers, by number. Layers of one type have equal nodes, parameters and kept bytes,
/// under any recomputation. The first two are the parts before and after all layers.
inline constexpr size_t kEmbedding = 0, kHead = 1, kFirstLayerType = 2;

/// Sharing among the ranks of tp.
enum class Share : uint8_t {
  tokens,    ///< the residual stream: split where sequence_parallel splits the tokens
  features,  ///< heads, widths, vocabulary
  experts,   ///< rows that go to experts
};
inline constexpr size_t kShares = 3;

/// Part of a micro-batch in which a node runs.
enum class PassPart : uint8_t {
  forward,
  inputs,   ///< backward pass: gradients of inputs, and recomputed nodes
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
  bool operator==(const NodeWork&) const = default;
};

template <class T>
using ByShare = std::array<T, kShares>;
inline double& of(ByShare<double>& values, Share share) {
  return values[static_cast<size_t>(share)];
}
inline double of(const ByShare<double>& values, Share share) {
  return values[static_cast<size_t>(share)];
}

/// One layer, for one sequence.
struct LayerWork {
  std::vector<NodeWork> nodes;
  /// Elements of its parameters.
  ByShare<double> parameters{};
  /// Elements of the embedding's parameters that it reads, too (tied weights): a rank without the
  /// embedding has a copy of them.
  ByShare<double> tied{};
  /// Bytes that the forward pass leaves to the backward pass.
  ByShare<double> kept{};
  double key_bytes = 0;      ///< keys and values of its attention
  double head_bytes = 0;     ///< queries of its attention, equal to its output
  bool has_experts = false;  ///< rows go to experts and back
  bool operator==(const LayerWork&) const = default;
};

/// The table of one recomputation mode.
struct ModelTable {
  std::vector<LayerWork> layer_types;
  std::vector<size_t> type_of;  ///< by layer
  double residual_bytes = 0;    ///< [tokens of a sequence, width]
  int64_t element_bytes = 4;
  /// Bytes of gradients and of optimizer state, per byte of parameters.
  double gradient_share = 1, state_share = 2;
};

/// `graph`: of training, before any pass, of one sequence (engine::reference). `recompute`: values
/// of plan.recompute, a table each; types are the same in all.
std::vector<ModelTable> tables_of(const graph::Graph& graph,
                                  std::span<const char* const> recompute);

}  // namespace hocket::planner
