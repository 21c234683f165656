// SPDX-License-Identifier: Apache-2.0
// A model family on top of the common decoder, as data: its keys of config.json, the norms of its
// blocks and the tensors of its files. Internal to src/models; models.inc lists the families.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "models/config.h"

namespace hocket::models {

/// Values of keys that a config.json leaves out, as transformers has them.
struct Defaults {
  int64_t vocab = 0, heads = 0;  ///< 0: must be given
  int64_t kv_heads = 0;          ///< 0: the number of heads
  int64_t head_dim = 0;          ///< 0: width / heads
  int64_t widening = 0;  ///< of the MLP, as a multiple of the width; 0: its width must be given
  int64_t max_position = 2048;
  int64_t original_max_position = 0;  ///< of a scaled rope; 0: the longest context
  double norm_eps = 1e-6;
  double theta = 10000;
  double rotary = 1;  ///< share of a head that turns
  bool tied = false;
  const char* activation = "silu";
};

/// Names of a block's norms; null: none.
struct BlockNorms {
  const char* attention_in = "input_layernorm";
  const char* attention_out = nullptr;
  const char* mlp_in = "post_attention_layernorm";  ///< parallel blocks: null for attention's
  const char* mlp_out = nullptr;
};

/// Tensors of files, where they differ from Llama's.
struct Storage {
  /// Parts of names, and what files have in their place: the first that fits of each.
  std::vector<std::pair<const char*, const char*>> names = {};
  const char* qkv = nullptr;  ///< one tensor of queries, keys and values
  bool qkv_by_head = false;   ///< and its rows are those of head after head
  bool gate_up = false;       ///< one tensor of gate and up
  bool transposed = false;    ///< linear layers are [in, out]
  /// Begins of the names of all tensors but the head's.
  std::vector<const char*> prefixes = {"model."};
  /// Tensors that files hold beside those of the model.
  std::vector<const char*> ignored_begins = {}, ignored_ends = {};
};

/// A family: what it reads from config.json, and how it differs from Llama. Whatever is not
/// declared here is refused on reading.
struct Family {
  const char* name;          ///< model_type
  const char* architecture;  ///< class of transformers that opens it, if it has one
  /// Reads the family's own keys; the common ones are in `config` already.
  void (*read)(const JsonView& in, ModelConfig& config);
  std::vector<const char*> keys = {};  ///< that `read` reads: common ones refused elsewhere, others
  Defaults defaults = {};
  BlockNorms norms = {};
  Storage storage = {};
  /// Common keys that have other names here.
  std::vector<std::pair<const char*, const char*>> key_names = {};
  /// transformers rounds the embedding's factor to the type of the weights.
  bool rounds_embedding_scale = false;

  bool reads(std::string_view key) const;
  /// Name of a common key.
  const char* key(const char* common) const;
};

#define X(name) Family family_##name();
#include "models/models.inc"
#undef X

/// The family of a checked config.
const Family& family_of(const ModelConfig& config);
/// Returns a family by its name; null: there is none.
const Family* find_family(std::string_view name);

}  // namespace hocket::models
