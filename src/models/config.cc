// SPDX-License-Identifier: Apache-2.0
#include "models/config.h"

#include <algorithm>
#include <map>
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
                                       "value_head",
                                       "vocab_size",
                                       "layer_types"};

// Keys with which other families change the computation: a config that sets one is of a model with
// code of its own. 0 is taken for a key that is off (but see has_no_effect).
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
                                        "rope_local_base_freq",
                                        "routed_scaling_factor",
                                        "scale_attn_by_inverse_layer_idx",
                                        "shared_expert_intermediate_size",
                                        "sliding_window_pattern",
                                        "use_bidirectional_attention",
                                        "use_parallel_residual",
                                        "use_qk_norm",
                                        "use_qkv_bias"};

// Foreign keys that have no effect with 1.
constexpr std::string_view kForeignFactors[] = {"attention_multiplier",
                                                "embedding_multiplier",
                                                "logit_scale",
                                                "logits_scaling",
                                                "n_group",
                                                "residual_multiplier",
                                                "routed_scaling_factor",
                                                "sliding_window_pattern"};

bool has_no_effect(const JsonView& value, std::string_view key) {
  // transformers clips queries, keys and values to 0 with it.
  if (!value.is_number() || key == "clip_qkv") return false;
  const double number = value.as_double();
  const auto* const end = std::end(kForeignFactors);
  return number == 0 || (number == 1 && std::find(std::begin(kForeignFactors), end, key) != end);
}

void refuse_unsupported(const JsonView& in, const Family& family) {
  for (const auto& [common, name] : family.key_names) {
    if (in.has(common) && !family.reads(common)) {
      in.at(common).fail(fmt::format("is not a key of {}; try {}", family.name, name));
    }
  }
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (!family.reads(key)) {
      refuse(in, key,
             fmt::format("expected false: the linear layers of {} have no bias here", family.name));
    }
  }
  if (!family.reads("sliding_window") && in.get_bool("use_sliding_window", true)) {
    refuse(in, "sliding_window",
           fmt::format("expected null: {} has no window, mistral has", family.name));
  }
  // transformers takes null for false.
  const std::vector<std::string> keys = in.keys();
  if (std::find(keys.begin(), keys.end(), "is_causal") != keys.end() &&
      !in.get_bool("is_causal", false)) {
    fail(in.where(), "is_causal is not true, which is not supported; a token sees those before it");
  }
  refuse(in, "quantization_config", "expected weights of F32, F64, F16 or BF16");
  if (!family.reads("attention_dropout") && read_number(in, "attention_dropout", 0, 1, 0.0) != 0) {
    in.at("attention_dropout").fail("is not supported; expected 0");
  }
  if (!family.reads("partial_rotary_factor") &&
      read_number(in, "partial_rotary_factor", 0, 1, 1.0) != 1) {
    in.at("partial_rotary_factor").fail("is not supported; expected 1: all of a head rotates");
  }
  for (const char* key : kForeignKeys) {
    if (!family.reads(key) && in.has(key) && !has_no_effect(in.at(key), key)) {
      refuse(in, key,
             "expected a plain " + in.get_string("model_type") +
                 ", without the additions of other families");
    }
  }
}

/// Reads the MLP's activation: of experts and of gated MLPs there are fewer than of plain ones.
std::string read_activation(const JsonView& in, const Family& family, const ModelConfig& config) {
  static const std::map<std::string, std::string> kNames = {
      {"silu", "silu"},          {"swish", "silu"},
      {"gelu", "gelu"},          {"gelu_pytorch_tanh", "gelu_tanh"},
      {"gelu_new", "gelu_tanh"}, {"gelu_fast", "gelu_tanh"},
      {"relu", "relu"},          {"relu2", "relu2"}};
  const char* key = family.key("hidden_act");
  const auto found = kNames.find(in.get_string(key, family.defaults.activation));
  const std::string name = found == kNames.end() ? "" : found->second;
  const bool plain = !config.form.gated;
  const bool expert = config.num_experts > 0;
  if (name == "silu" || (!expert && name.starts_with("gelu")) || (plain && !name.empty())) {
    return name;
  }
  in.at(key).fail(fmt::format(
      "is {}, which is not supported; expected silu{}{}", quote(in.get_string(key)),
      expert ? "" : ", gelu, gelu_new or gelu_pytorch_tanh", plain ? ", relu or relu2" : ""));
}

/// Requires the same attention in all layers, of families that do not read layer_types.
void check_layer_types(const JsonView& in, const Family& family, const ModelConfig& config) {
  if (family.reads("layer_types") || !in.has("layer_types")) return;
  const bool window = config.common_window().value_or(0) > 0;
  const std::string expected = window ? "sliding_attention" : "full_attention";
  for (const std::string& type : in.at("layer_types").as_strings()) {
    if (type != expected) {
      in.at("layer_types")
          .fail(fmt::format("holds {}, which is not supported {} a sliding window; expected {} for "
                            "all",
                            quote(type), window ? "with" : "without", expected));
    }
  }
}

/// Requires pairs of dims to turn.
void check_ropes(const JsonView& in, const ModelConfig& config) {
  const std::vector<bool>& layers = config.rope_layer;
  if (std::find(layers.begin(), layers.end(), true) == layers.end()) return;
  if (config.head_dim % 2 != 0 && config.rope.dims == 0) {
    fail(in.where(), "head_dim is {}; expected an even number: rotary embedding turns pairs",
         config.head_dim);
  }
}

void check_keys(const JsonView& in, const Family& family) {
  std::vector<std::string> known(std::begin(kCommonKeys), std::end(kCommonKeys));
  known.insert(known.end(), family.keys.begin(), family.keys.end());
  for (const auto& [common, name] : family.key_names) {
    known.emplace_back(name);
  }
  for (const std::string& key : in.keys()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = nearest(key, known);
    fail(in.where(), "unknown key {}; {}", quote(key),
         near.empty()
             ? "expected a key of Hugging Face's config.json for " + std::string(family.name)
             : "did you mean '" + near + "'?");
  }
}

/// The family whose name is most like this one, or begins it.
std::string nearest_family(const std::string& type) {
  std::string best;
  for (const std::string& family : families()) {
    if (type.starts_with(family) && family.size() > best.size()) {
      best = family;
    }
  }
  return best.empty() ? nearest(type, families()) : best;
}

/// The text with Python's NaN and Infinity, which JSON lacks, as strings: keys that nobody reads
/// may hold them, and of others they are no number.
std::string without_nan(std::string_view text) {
  std::string out;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      quoted = !quoted;
    } else if (quoted && c == '\\' && i + 1 < text.size()) {
      out += c;
      out += text[++i];
      continue;
    }
    std::string_view word;
    for (const std::string_view special : {"NaN", "Infinity", "-Infinity"}) {
      if (!quoted && text.substr(i).starts_with(special)) {
        word = special;
      }
    }
    if (word.empty()) {
      out += c;
    } else {
      out += fmt::format("\"{}\"", word);
      i += word.size() - 1;
    }
  }
  return out;
}

/// The text model's part of a config.json of several models, with the keys of the whole that it
/// lacks; any other config.json as it is.
json text_model(json object) {
  constexpr const char* kText = "text_config";
  if (!object.is_object() || !object.contains(kText) || !object[kText].is_object()) return object;
  json text = object[kText];
  for (const char* key :
       {"bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "dtype",
        "torch_dtype", "initializer_range", "transformers_version", "quantization_config"}) {
    if (!text.contains(key) && object.contains(key)) {
      text[key] = object[key];
    }
  }
  if (!text.contains("model_type") && object.contains("model_type") &&
      object["model_type"].is_string()) {
    text["model_type"] = object["model_type"].get<std::string>() + "_text";
  }
  return text;
}

const Family& known_family(const JsonView& in) {
  const std::string type = in.get_string("model_type");
  if (const Family* family = find_family(type)) return *family;
  const std::string near = nearest_family(type);
  fail(in.where(), "model_type is {}, which is not supported; expected {}{}", quote(type),
       join(families(), " or "),
       near.empty() ? "" : fmt::format("; the nearest of them is {}", near));
}

/// Reads what all families have, under the family's names of the keys.
void read_common(const JsonView& in, const Family& family, ModelConfig& config) {
  const Defaults& defaults = family.defaults;
  const auto or_required = [](int64_t value) {
    return value > 0 ? std::optional(value) : std::nullopt;
  };
  config.vocab_size = read_int(in, "vocab_size", 1, kMaxVocab, or_required(defaults.vocab));
  config.hidden_size = read_int(in, family.key("hidden_size"), 1, kMaxWidth);
  config.num_layers = read_int(in, family.key("num_hidden_layers"), 1, kMaxLayers);
  const char* heads = family.key("num_attention_heads");
  config.num_heads = read_int(in, heads, 1, kMaxHeads, or_required(defaults.heads));
  config.num_kv_heads = read_int(in, "num_key_value_heads", 1, kMaxHeads,
                                 defaults.kv_heads > 0 ? defaults.kv_heads : config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    fail(in.where(), "{} is {}; expected a multiple of num_key_value_heads, {}", heads,
         config.num_heads, config.num_kv_heads);
  }
  if (!in.has("head_dim") && defaults.head_dim == 0 && config.hidden_size % config.num_heads != 0) {
    fail(in.where(), "{} is {}; expected a multiple of {}, {}; or set head_dim",
         family.key("hidden_size"), config.hidden_size, heads, config.num_heads);
  }
  config.head_dim =
      read_int(in, "head_dim", 1, kMaxHeads,
               defaults.head_dim > 0 ? defaults.head_dim : config.hidden_size / config.num_heads);
  config.intermediate_size = read_int(in, family.key("intermediate_size"), 1, kMaxWidth,
                                      or_required(defaults.widening * config.hidden_size));
  config.max_position =
      read_int(in, family.key("max_position_embeddings"), 1, kMaxVocab, defaults.max_position);
  config.rms_norm_eps = read_number(in, family.key("rms_norm_eps"), 0, 1, defaults.norm_eps);
  config.initializer_range = read_number(in, "initializer_range", 0, 1, 0.02);
  config.tie_word_embeddings = in.get_bool("tie_word_embeddings", defaults.tied);
  config.value_head = in.get_bool("value_head", false);
  const auto layers = static_cast<size_t>(config.num_layers);
  config.windows.assign(layers, 0);
  config.rope_layer.assign(layers, true);
  config.moe_layer.assign(layers, false);
  if (in.has("bos_token_id")) {
    config.bos_token_id = read_int(in, "bos_token_id", -1, kMaxVocab);
  }
  if (in.has("pad_token_id")) {
    config.pad_token_id = read_int(in, "pad_token_id", -1, kMaxVocab);
  }
  config.eos_token_ids = read_ints(in, "eos_token_id", -1, kMaxVocab);
}

}  // namespace

bool Family::reads(std::string_view key) const {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

const char* Family::key(const char* common) const {
  for (const auto& [from, name] : key_names) {
    if (std::string_view(from) == common) return name;
  }
  return common;
}

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

std::optional<int64_t> ModelConfig::common_window() const {
  const int64_t first = windows.empty() ? 0 : windows[0];
  const bool same = std::all_of(windows.begin(), windows.end(),
                                [first](int64_t window) { return window == first; });
  return same ? std::optional(first) : std::nullopt;
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
  const json object = text_model(
      parse_json(without_nan(text), where, {.max_depth = 32, .max_bytes = kMaxConfigBytes}));
  const JsonView in(object, where);
  const Family& family = known_family(in);
  if (strict) {
    check_keys(in, family);
  }
  refuse_unsupported(in, family);

  ModelConfig config;
  config.family = family.name;
  read_common(in, family, config);
  read_ropes(in, family, config);
  family.read(in, config);
  config.form.activation = read_activation(in, family, config);
  check_layer_types(in, family, config);
  check_ropes(in, config);
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

namespace {

nlohmann::ordered_json values_of(const Form& form) {
  const auto& [norm, norm_offset, head_norm, activation, gated, qkv_bias, o_bias, mlp_bias,
               parallel, attention_scale, attention_softcap, logits_softcap, embedding_scale,
               residual_scale, logits_scale, position_table] = form;
  return {{"norm", norm},
          {"norm offset", norm_offset},
          {"head norm", head_norm},
          {"activation", activation},
          {"gated MLP", gated},
          {"biases of queries, keys and values", qkv_bias},
          {"bias of attention's output", o_bias},
          {"biases of the MLP", mlp_bias},
          {"parallel blocks", parallel},
          {"attention scale", attention_scale},
          {"attention soft cap", attention_softcap},
          {"logits soft cap", logits_softcap},
          {"embedding scale", embedding_scale},
          {"residual scale", residual_scale},
          {"logits scale", logits_scale},
          {"learned positions", position_table}};
}

nlohmann::ordered_json values_of(const Rope& rope, const std::string& prefix) {
  const auto& [theta, scaling, dims, factor, low_freq_factor, high_freq_factor,
               original_max_position, attention_factor, beta_fast, beta_slow, truncate,
               short_factor, long_factor] = rope;
  return {{prefix + "rope_theta", theta},
          {prefix + "rope_type", scaling},
          {prefix + "rope dims", dims},
          {prefix + "rope factor", factor},
          {prefix + "rope low_freq_factor", low_freq_factor},
          {prefix + "rope high_freq_factor", high_freq_factor},
          {prefix + "original_max_position_embeddings", original_max_position},
          {prefix + "rope attention_factor", attention_factor},
          {prefix + "rope beta_fast", beta_fast},
          {prefix + "rope beta_slow", beta_slow},
          {prefix + "rope truncate", truncate},
          {prefix + "rope short_factor", short_factor},
          {prefix + "rope long_factor", long_factor}};
}

}  // namespace

nlohmann::ordered_json values_of(const ModelConfig& config) {
  // A field more does not compile until it has a name here, and then a row below.
  const auto& [family, vocab_size, hidden_size, num_layers, num_heads, num_kv_heads, head_dim,
               intermediate_size, max_position, rms_norm_eps, initializer_range,
               tie_word_embeddings, value_head, form, rope, window_rope, num_experts, top_k,
               moe_intermediate_size, norm_topk_prob, router_aux_loss_coef, windows, rope_layer,
               moe_layer, bos_token_id, pad_token_id, eos_token_ids, text] = config;
  const auto or_null = [](const std::optional<int64_t>& id) { return id ? json(*id) : json(); };
  nlohmann::ordered_json values = {{"model_type", family},
                                   {"vocab_size", vocab_size},
                                   {"hidden_size", hidden_size},
                                   {"num_hidden_layers", num_layers},
                                   {"num_attention_heads", num_heads},
                                   {"num_key_value_heads", num_kv_heads},
                                   {"head_dim", head_dim},
                                   {"intermediate_size", intermediate_size},
                                   {"max_position_embeddings", max_position},
                                   {"sliding_window", windows},
                                   {"rms_norm_eps", rms_norm_eps},
                                   {"initializer_range", initializer_range},
                                   {"tie_word_embeddings", tie_word_embeddings},
                                   {"value_head", value_head}};
  values.update(values_of(form));
  values.update(values_of(rope, ""));
  values.update(values_of(window_rope.value_or(rope), "window "));
  values.update(nlohmann::ordered_json{{"num_experts", num_experts},
                                       {"num_experts_per_tok", top_k},
                                       {"moe_intermediate_size", moe_intermediate_size},
                                       {"norm_topk_prob", norm_topk_prob},
                                       {"router_aux_loss_coef", router_aux_loss_coef},
                                       {"layers with rope", rope_layer},
                                       {"layers with experts", moe_layer},
                                       {"bos_token_id", or_null(bos_token_id)},
                                       {"pad_token_id", or_null(pad_token_id)},
                                       {"eos_token_id", eos_token_ids}});
  return values;
}

nlohmann::ordered_json features_of(const ModelConfig& config) {
  nlohmann::ordered_json values = values_of(config.form), plain = values_of(Form{});
  values.update(values_of(config.rope, ""));
  plain.update(values_of(Rope{.theta = config.rope.theta}, ""));
  nlohmann::ordered_json features = nlohmann::ordered_json::object();
  for (const auto& [name, value] : values.items()) {
    if (value != plain[name]) {
      features[name] = value;
    }
  }
  const Family& family = family_of(config);
  if (family.norms.attention_out != nullptr || family.norms.mlp_out != nullptr) {
    features["norms of outputs"] = true;
  }
  if (config.value_head) {
    features["value_head"] = true;
  }
  if (config.window_rope && !(*config.window_rope == config.rope)) {
    features["window rope_theta"] = config.window_rope->theta;
  }
  if (!config.common_window()) {
    features["layers with a window"] = std::count_if(config.windows.begin(), config.windows.end(),
                                                     [](int64_t window) { return window > 0; });
  }
  if (const auto without = std::count(config.rope_layer.begin(), config.rope_layer.end(), false);
      without > 0 && config.form.position_table == 0) {
    features["layers without rope"] = without;
  }
  return features;
}

std::string config_json(const ModelConfig& config, std::string_view torch_dtype) {
  json object = json::parse(config.json);
  object["architectures"] = {family_of(config).architecture};
  object["model_type"] = config.family;
  if (config.value_head) {
    object["value_head"] = true;
  }
  if (!object.contains("pad_token_id")) {
    // Some classes of transformers have a default beyond a small vocabulary, and then do not open.
    object["pad_token_id"] = nullptr;
  }
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
