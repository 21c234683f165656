// SPDX-License-Identifier: Apache-2.0
#include "models/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {

using nlohmann::json;

namespace {

// Bounds that keep every size product below 2^62 bytes; no published model comes near them.
constexpr int64_t kMaxVocab = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxHeads = int64_t{1} << 16;
constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

const std::vector<Family>& family_list() {
  static const std::vector<Family> list = {
#define X(name) family_##name(),
#include "models/models.inc"
#undef X
  };
  return list;
}

// Keys that transformers writes and that do not affect a text model of these families, or that are
// read below.
constexpr const char* kCommonKeys[] = {"_name_or_path",
                                       "architectures",
                                       "attention_bias",
                                       "attention_dropout",
                                       "bos_token_id",
                                       "dtype",
                                       "eos_token_id",
                                       "head_dim",
                                       "hidden_act",
                                       "hidden_size",
                                       "initializer_range",
                                       "intermediate_size",
                                       "max_position_embeddings",
                                       "mlp_bias",
                                       "model_type",
                                       "num_attention_heads",
                                       "num_hidden_layers",
                                       "num_key_value_heads",
                                       "original_max_position_embeddings",
                                       "output_attentions",
                                       "output_hidden_states",
                                       "pad_token_id",
                                       "partial_rotary_factor",
                                       "pretraining_tp",
                                       "quantization_config",
                                       "rms_norm_eps",
                                       "rope_parameters",
                                       "rope_scaling",
                                       "rope_theta",
                                       "sliding_window",
                                       "tie_word_embeddings",
                                       "torch_dtype",
                                       "transformers_version",
                                       "use_cache",
                                       "use_sliding_window",
                                       "vocab_size",
                                       "layer_types"};

// Keys with which other families change the computation: a config that sets one is of a model with
// code of its own. 0 and 1 are the values without effect, of limits and of factors.
constexpr const char* kForeignKeys[] = {"alibi",
                                        "attention_multiplier",
                                        "attn_logit_softcapping",
                                        "clip_qkv",
                                        "embedding_multiplier",
                                        "final_logit_softcapping",
                                        "first_k_dense_replace",
                                        "kv_lora_rank",
                                        "logit_scale",
                                        "logits_scaling",
                                        "moe_shared_expert_intermediate_size",
                                        "n_group",
                                        "n_shared_experts",
                                        "no_rope_layers",
                                        "num_shared_experts",
                                        "parallel_residual",
                                        "q_lora_rank",
                                        "qkv_bias",
                                        "query_pre_attn_scalar",
                                        "residual_multiplier",
                                        "routed_scaling_factor",
                                        "shared_expert_intermediate_size",
                                        "use_parallel_residual",
                                        "use_qk_norm",
                                        "use_qkv_bias"};

Rope parse_rope(const JsonView& top, const JsonView* in, int64_t max_position) {
  Rope rope;
  if (in != nullptr) {
    const char* key = in->has("rope_type") ? "rope_type" : "type";
    rope.scaling = in->get_string(key, "default");
    if (rope.scaling != "default" && rope.scaling != "linear" && rope.scaling != "llama3") {
      in->at(key).fail(
          fmt::format("is {}, which is not supported; expected default, linear or "
                      "llama3",
                      quote(rope.scaling)));
    }
    if (rope.scaling != "default") {
      rope.factor = read_number(*in, "factor", 1, 1e9);
    }
    if (rope.scaling == "llama3") {
      rope.low_freq_factor = read_number(*in, "low_freq_factor", 1e-9, 1e9);
      rope.high_freq_factor = read_number(*in, "high_freq_factor", 1e-9, 1e9);
      if (rope.high_freq_factor <= rope.low_freq_factor) {
        in->at("high_freq_factor")
            .fail(fmt::format("is {}; expected more than low_freq_factor, which is {}",
                              rope.high_freq_factor, rope.low_freq_factor));
      }
      // The order of transformers 5: a top-level key, then this object, then the longest context.
      constexpr const char* kOriginal = "original_max_position_embeddings";
      rope.original_max_position =
          read_number(top, kOriginal, 1, 1e12,
                      read_number(*in, kOriginal, 1, 1e12, static_cast<double>(max_position)));
    }
    if (read_number(*in, "partial_rotary_factor", 0, 1, 1.0) != 1) {
      in->at("partial_rotary_factor").fail("is not supported; expected 1: all of a head rotates");
    }
  }
  rope.theta = read_number(top, "rope_theta", 1, 1e18, 10000.0);
  if (in != nullptr && in->has("rope_theta")) {
    const double theta = read_number(*in, "rope_theta", 1, 1e18);
    if (top.has("rope_theta") && theta != rope.theta) {
      in->at("rope_theta")
          .fail(fmt::format("is {} but the one outside is {}; expected one value", theta,
                            rope.theta));
    }
    rope.theta = theta;
  }
  return rope;
}

Rope read_rope(const JsonView& in, int64_t max_position) {
  // transformers 4 writes rope_scaling, 5 rope_parameters; a folder may have both, saying the same.
  std::optional<JsonView> scaling;
  std::optional<JsonView> parameters;
  if (in.has("rope_scaling")) {
    scaling = in.at("rope_scaling");
  }
  if (in.has("rope_parameters")) {
    parameters = in.at("rope_parameters");
  }
  const JsonView* given = nullptr;
  if (scaling) {
    given = &*scaling;
  } else if (parameters) {
    given = &*parameters;
  }
  const Rope rope = parse_rope(in, given, max_position);
  if (!scaling || !parameters) return rope;
  if (parse_rope(in, &*parameters, max_position) == rope) return rope;
  fail(in.where(), "rope_scaling and rope_parameters differ; expected one of them");
}

void refuse_unsupported(const JsonView& in) {
  refuse(in, "attention_bias", "expected false: linear layers have no bias here");
  refuse(in, "mlp_bias", "expected false: linear layers have no bias here");
  refuse(in, "quantization_config", "expected weights of F32, F64, F16 or BF16");
  if (read_number(in, "attention_dropout", 0, 1, 0.0) != 0) {
    in.at("attention_dropout").fail("is not supported; expected 0");
  }
  if (read_number(in, "partial_rotary_factor", 0, 1, 1.0) != 1) {
    in.at("partial_rotary_factor").fail("is not supported; expected 1: all of a head rotates");
  }
  const std::string act = in.get_string("hidden_act", "silu");
  if (act != "silu" && act != "swish") {
    in.at("hidden_act")
        .fail(fmt::format("is {}, which is not supported; expected silu", quote(act)));
  }
  for (const char* key : kForeignKeys) {
    if (in.has(key) &&
        !(in.at(key).is_number() && (in.at(key).as_double() == 0 || in.at(key).as_double() == 1))) {
      refuse(in, key,
             "expected a plain " + in.get_string("model_type") +
                 ", without the additions of other families");
    }
  }
}

/// Requires the same attention in all layers.
void check_layer_types(const JsonView& in, int64_t window) {
  if (!in.has("layer_types")) return;
  const std::string expected = window > 0 ? "sliding_attention" : "full_attention";
  for (const std::string& type : in.at("layer_types").as_strings()) {
    if (type != expected) {
      in.at("layer_types")
          .fail(fmt::format("holds {}, which is not supported {} a sliding window; expected {} for "
                            "all",
                            quote(type), window > 0 ? "with" : "without", expected));
    }
  }
}

void check_keys(const JsonView& in, const Family& family) {
  std::vector<std::string> known(std::begin(kCommonKeys), std::end(kCommonKeys));
  known.insert(known.end(), family.keys.begin(), family.keys.end());
  for (const std::string& key : in.keys()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = nearest(key, known);
    fail(in.where(), "unknown key {}; {}", quote(key),
         near.empty()
             ? "expected a key of Hugging Face's config.json for " + std::string(family.name)
             : "did you mean '" + near + "'?");
  }
}

}  // namespace

const Family* find_family(std::string_view name) {
  for (const Family& family : family_list()) {
    if (name == family.name) return &family;
  }
  return nullptr;
}

const Family& family_of(const ModelConfig& config) {
  const Family* family = find_family(config.family);
  HOCKET_CHECK(family != nullptr, "config of unknown family '{}'", config.family);
  return *family;
}

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const Family& family : family_list()) {
    names.push_back(family.name);
  }
  return names;
}

ModelConfig parse_config(std::string_view text, const std::string& where, bool strict) {
  // Reads the family first, since it determines the keys; then refuses unsupported features
  // (refuse_unsupported), so that nothing is silently ignored; then the numbers, with bounds and
  // relations; last the family's own keys.
  const json object = parse_json(text, where, {.max_depth = 32, .max_bytes = kMaxConfigBytes});
  const JsonView in(object, where);
  const std::string type = in.get_string("model_type");
  const Family* family = find_family(type);
  if (family == nullptr) {
    fail(where, "model_type is {}, which is not supported; expected {}", quote(type),
         join(families(), " or "));
  }
  if (strict) {
    check_keys(in, *family);
  }
  refuse_unsupported(in);

  ModelConfig config;
  config.family = type;
  config.vocab_size = read_int(in, "vocab_size", 1, kMaxVocab);
  config.hidden_size = read_int(in, "hidden_size", 1, kMaxWidth);
  config.num_layers = read_int(in, "num_hidden_layers", 1, kMaxLayers);
  config.num_heads = read_int(in, "num_attention_heads", 1, kMaxHeads);
  config.num_kv_heads =
      read_int(in, "num_key_value_heads", 1, kMaxHeads,
               family->default_kv_heads > 0 ? family->default_kv_heads : config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    fail(where, "num_attention_heads is {}; expected a multiple of num_key_value_heads, {}",
         config.num_heads, config.num_kv_heads);
  }
  if (!in.has("head_dim") && config.hidden_size % config.num_heads != 0) {
    fail(where,
         "hidden_size is {}; expected a multiple of num_attention_heads, {}; or set head_dim",
         config.hidden_size, config.num_heads);
  }
  config.head_dim = read_int(in, "head_dim", 1, kMaxHeads, config.hidden_size / config.num_heads);
  if (config.head_dim % 2 != 0) {
    fail(where, "head_dim is {}; expected an even number: rotary embedding turns pairs",
         config.head_dim);
  }
  config.intermediate_size = read_int(in, "intermediate_size", 1, kMaxWidth);
  config.max_position = read_int(in, "max_position_embeddings", 1, kMaxVocab, 2048);
  config.rms_norm_eps = read_number(in, "rms_norm_eps", 0, 1, 1e-6);
  config.initializer_range = read_number(in, "initializer_range", 0, 1, 0.02);
  config.tie_word_embeddings = in.get_bool("tie_word_embeddings", false);
  config.rope = read_rope(in, config.max_position);
  config.moe_layer.assign(static_cast<size_t>(config.num_layers), false);
  if (in.has("bos_token_id")) {
    config.bos_token_id = read_int(in, "bos_token_id", -1, kMaxVocab);
  }
  if (in.has("pad_token_id")) {
    config.pad_token_id = read_int(in, "pad_token_id", -1, kMaxVocab);
  }
  config.eos_token_ids = read_ints(in, "eos_token_id", -1, kMaxVocab);
  family->read(in, config);
  check_layer_types(in, config.window);
  config.json = object.dump(2);
  return config;
}

ModelConfig read_config(const std::string& path) {
  const std::string file = is_directory(path) ? join_path(path, "config.json") : path;
  return parse_config(read_file(file, kMaxConfigBytes), file);
}

ModelConfig with_end_of_text(ModelConfig config, int64_t id) {
  if (id < 0) return config;
  json object = json::parse(config.json);
  if (config.eos_token_ids.empty()) {
    config.eos_token_ids = {id};
    object["eos_token_id"] = id;
  }
  if (!config.bos_token_id) {
    config.bos_token_id = id;
    object["bos_token_id"] = id;
  }
  config.json = object.dump(2);
  return config;
}

nlohmann::ordered_json values_of(const ModelConfig& config) {
  // A field more does not compile until it has a name here, and then a row below.
  const auto& [family, vocab_size, hidden_size, num_layers, num_heads, num_kv_heads, head_dim,
               intermediate_size, max_position, window, rms_norm_eps, initializer_range,
               tie_word_embeddings, rope, num_experts, top_k, moe_intermediate_size, norm_topk_prob,
               router_aux_loss_coef, moe_layer, bos_token_id, pad_token_id, eos_token_ids, text] =
      config;
  const auto& [theta, scaling, factor, low_freq_factor, high_freq_factor, original_max_position] =
      rope;
  const auto or_null = [](const std::optional<int64_t>& id) { return id ? json(*id) : json(); };
  return {{"model_type", family},
          {"vocab_size", vocab_size},
          {"hidden_size", hidden_size},
          {"num_hidden_layers", num_layers},
          {"num_attention_heads", num_heads},
          {"num_key_value_heads", num_kv_heads},
          {"head_dim", head_dim},
          {"intermediate_size", intermediate_size},
          {"max_position_embeddings", max_position},
          {"sliding_window", window},
          {"rms_norm_eps", rms_norm_eps},
          {"initializer_range", initializer_range},
          {"tie_word_embeddings", tie_word_embeddings},
          {"rope_theta", theta},
          {"rope_type", scaling},
          {"rope factor", factor},
          {"rope low_freq_factor", low_freq_factor},
          {"rope high_freq_factor", high_freq_factor},
          {"original_max_position_embeddings", original_max_position},
          {"num_experts", num_experts},
          {"num_experts_per_tok", top_k},
          {"moe_intermediate_size", moe_intermediate_size},
          {"norm_topk_prob", norm_topk_prob},
          {"router_aux_loss_coef", router_aux_loss_coef},
          {"layers with experts", moe_layer},
          {"bos_token_id", or_null(bos_token_id)},
          {"pad_token_id", or_null(pad_token_id)},
          {"eos_token_id", eos_token_ids}};
}

std::string config_json(const ModelConfig& config, std::string_view torch_dtype) {
  json object = json::parse(config.json);
  object["architectures"] = {family_of(config).architecture};
  object["model_type"] = config.family;
  // transformers 5 writes dtype, 4 torch_dtype; both read the old name.
  const bool modern = object.contains("dtype");
  object[modern ? "dtype" : "torch_dtype"] = std::string(torch_dtype);
  if (modern) {
    object.erase("torch_dtype");
  }
  return object.dump(2) + "\n";
}

std::string generation_config_json(const ModelConfig& config) {
  json object = {{"_from_model_config", true}};
  if (config.bos_token_id) {
    object["bos_token_id"] = *config.bos_token_id;
  }
  if (config.pad_token_id) {
    object["pad_token_id"] = *config.pad_token_id;
  }
  if (config.eos_token_ids.size() == 1) {
    object["eos_token_id"] = config.eos_token_ids[0];
  }
  if (config.eos_token_ids.size() > 1) {
    object["eos_token_id"] = config.eos_token_ids;
  }
  return object.dump(2) + "\n";
}

}  // namespace hocket::models
