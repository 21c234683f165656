// SPDX-License-Identifier: Apache-2.0
// A model's configuration, from a Hugging Face `config.json` of transformers 4 or 5. An unsupported
// feature is an Error, never ignored.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hocket::models {

constexpr int64_t kMaxLayers = 10000;

/// Rotary position embedding: angle of pair i at position p is p * f(theta^(-2i/d)), f by
/// `scaling`, d the dims that turn.
struct Rope {
  double theta = 10000;
  std::string scaling = "default";  ///< default, linear, llama3, yarn, longrope or dynamic
  int64_t dims = 0;                 ///< of a head that turn, the first ones; 0: all
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3 only
  double original_max_position = 0;                  ///< llama3, yarn, longrope and dynamic
  double attention_factor = 1;                       ///< yarn and longrope: of queries and of keys
  double beta_fast = 32, beta_slow = 1;              ///< yarn only
  bool truncate = true;  ///< yarn only: bounds of its ramp are whole dims
  std::vector<double> short_factor = {}, long_factor = {};  ///< longrope only, by pair
  bool operator==(const Rope&) const = default;
};

/// Parts of a model that differ between families. The defaults are Llama's.
struct Form {
  std::string norm = "rms";         ///< rms, or layer: LayerNorm with a bias
  double norm_offset = 0;           ///< added to the weights of RMS norms
  std::string head_norm = "none";   ///< of queries and keys: none, head, or all heads together
  std::string activation = "silu";  ///< silu, gelu, gelu_tanh, relu or relu2
  bool gated = true;                ///< the MLP is down(activation(gate(x)) * up(x))
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool parallel = false;                             ///< y = x + attention(norm(x)) + mlp(norm(x))
  double attention_scale = 0;                        ///< of scores; 0: 1 / sqrt(head_dim)
  double attention_softcap = 0, logits_softcap = 0;  ///< c * tanh(x / c); 0: none
  double embedding_scale = 1, residual_scale = 1, logits_scale = 1;
  int64_t position_table = 0;  ///< rows of learned positions; 0: none
  bool operator==(const Form&) const = default;
};

struct ModelConfig {
  std::string family;  ///< model_type: a row of models.inc
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;        ///< D
  int64_t num_layers = 0;         ///< L
  int64_t num_heads = 0;          ///< H
  int64_t num_kv_heads = 0;       ///< G, divides H
  int64_t head_dim = 0;           ///< d
  int64_t intermediate_size = 0;  ///< F of dense layers
  int64_t max_position = 0;
  double rms_norm_eps = 1e-6;  ///< of LayerNorm, too
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool value_head = false;  ///< a critic: the head is a vector, and gives a value per token
  Form form;
  Rope rope;
  std::optional<Rope> window_rope;  ///< of layers with a window, where it is another

  int64_t num_experts = 0;  ///< E; 0: no mixture of experts
  int64_t top_k = 0;        ///< experts per token
  int64_t moe_intermediate_size = 0;
  bool norm_topk_prob = false;
  double router_aux_loss_coef = 0;

  /// Per layer: tokens that a query sees, its own included; 0: all of its document.
  std::vector<int64_t> windows;
  std::vector<bool> rope_layer;  ///< per layer: queries and keys turn by position
  std::vector<bool> moe_layer;   ///< per layer: experts or a dense MLP

  std::optional<int64_t> bos_token_id, pad_token_id;
  std::vector<int64_t> eos_token_ids;

  /// The JSON object that was read, without change: keys that do not concern the network are kept
  /// for the config.json of checkpoints.
  std::string json;

  /// The window of all layers; none if they differ.
  std::optional<int64_t> common_window() const;
};

/// Names of the families, in the order of models.inc.
std::vector<std::string> families();

/// Parses a config.json. `where` is its name in errors. With `strict`, keys that transformers does
/// not write for these families are errors that name the nearest known key (for configs written by
/// hand). Throws Error for bad JSON; missing, ill-typed or impossible values, by key; unsupported
/// features, with the supported ones.
ModelConfig parse_config(std::string_view json, const std::string& where, bool strict = false);

/// Reads `path`, a config.json or a folder that holds one.
ModelConfig read_config(const std::string& path);

/// Returns `config` with `id` as eos_token_id and bos_token_id where the config.json lacks them.
/// `id` is the end-of-text token that separates documents. A null is absent, too: transformers
/// writes it for "not set". A negative id changes nothing.
ModelConfig with_end_of_text(ModelConfig config, int64_t id);

/// Every field but `json`, by its name in a config.json: an object, in the order of the fields, by
/// which two models are compared.
nlohmann::ordered_json values_of(const ModelConfig& config);

/// Values of `form`, `rope` and the layers that differ from a Llama's without windows, by the names
/// of values_of: the features that another system must have as well.
nlohmann::ordered_json features_of(const ModelConfig& config);

/// Text of a config.json for a checkpoint: the keys that were read, with `architectures`,
/// `model_type` and the element type ("float32") set, so that transformers opens it.
std::string config_json(const ModelConfig& config, std::string_view torch_dtype);

/// Text of a generation_config.json: the special token ids of the config.
std::string generation_config_json(const ModelConfig& config);

}  // namespace hocket::models
