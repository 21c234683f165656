// SPDX-License-Identifier: Apache-2.0
// A model family on top of the common decoder: its keys of config.json and its block. Internal to
// src/models; models.inc lists the families.
#pragma once

#include <vector>

#include "base/json.h"
#include "graph/graph.h"
#include "models/config.h"

namespace hocket::models {

class Builder;

struct Family {
  const char* name;               ///< model_type
  const char* architecture;       ///< class of transformers that opens it, if it has one
  int64_t default_kv_heads;       ///< default without the key; 0: the number of heads
  std::vector<const char*> keys;  ///< keys of config.json beyond the common ones
  /// Reads the family's own keys; the common ones are in `config` already.
  void (*read)(const JsonView& in, ModelConfig& config);
  /// One decoder layer: x[T,D] → [T,D].
  graph::TensorId (*block)(Builder& builder, int32_t layer, graph::TensorId tensor);
};

#define X(name) Family family_##name();
#include "models/models.inc"
#undef X

/// The family of a checked config.
const Family& family_of(const ModelConfig& config);
/// Null when there is none of that name.
const Family* find_family(std::string_view name);

}  // namespace hocket::models
