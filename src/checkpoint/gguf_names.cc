// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf_names.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace hocket::checkpoint {
namespace {

// Files are read by the first row with their name and kind of layers. A Mistral without a window
// is a Llama.
constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama", .family = "llama", .experts = false, .pairs_rows = true},
    {.name = "llama", .family = "mixtral", .experts = true, .pairs_rows = true},
    {.name = "llama", .family = "mistral", .experts = false, .pairs_rows = true},
    {.name = "qwen2", .family = "qwen2", .experts = false},
    {.name = "qwen3", .family = "qwen3", .experts = false},
    {.name = "qwen3moe", .family = "qwen3_moe", .experts = true},
    {.name = "olmoe", .family = "olmoe", .experts = true},
    {.name = "gemma3", .family = "gemma3_text", .experts = false, .norm_offset = 1}};

/// Kind of a tensor in a layer, of all families or of one.
struct LayerName {
  enum Kind { plain, head_rows, norm };

  const char* gguf;  ///< between "blk.3." and ".weight" or ".bias"; {} is the number of an expert
  const char* hf;    ///< between "model.layers.3." and the same, likewise
  Kind kind = plain;
  const char* family = nullptr;
};

// A family's own rows come before those of all.
constexpr LayerName kLayerNames[] = {
    {"post_attention_norm", "post_attention_layernorm", LayerName::norm, "gemma3_text"},
    {"ffn_norm", "pre_feedforward_layernorm", LayerName::norm, "gemma3_text"},
    {"post_ffw_norm", "post_feedforward_layernorm", LayerName::norm, "gemma3_text"},
    {"ffn_gate_inp", "block_sparse_moe.gate", LayerName::plain, "mixtral"},
    {"ffn_gate_exps", "block_sparse_moe.experts.{}.w1", LayerName::plain, "mixtral"},
    {"ffn_down_exps", "block_sparse_moe.experts.{}.w2", LayerName::plain, "mixtral"},
    {"ffn_up_exps", "block_sparse_moe.experts.{}.w3", LayerName::plain, "mixtral"},
    // Older files have a tensor for each expert.
    {"ffn_gate.{}", "block_sparse_moe.experts.{}.w1", LayerName::plain, "mixtral"},
    {"ffn_down.{}", "block_sparse_moe.experts.{}.w2", LayerName::plain, "mixtral"},
    {"ffn_up.{}", "block_sparse_moe.experts.{}.w3", LayerName::plain, "mixtral"},
    {"attn_norm", "input_layernorm", LayerName::norm},
    {"attn_q", "self_attn.q_proj", LayerName::head_rows},
    {"attn_k", "self_attn.k_proj", LayerName::head_rows},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm", LayerName::norm},
    {"attn_k_norm", "self_attn.k_norm", LayerName::norm},
    {"ffn_norm", "post_attention_layernorm", LayerName::norm},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.{}.gate_proj"},
    {"ffn_up_exps", "mlp.experts.{}.up_proj"},
    {"ffn_down_exps", "mlp.experts.{}.down_proj"}};

/// Tensors outside of layers.
struct OtherName {
  const char* gguf;
  const char* hf;
  LayerName::Kind kind = LayerName::plain;
};
constexpr OtherName kOtherNames[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                     {"output_norm.weight", "model.norm.weight", LayerName::norm},
                                     {"output.weight", "lm_head.weight"}};

constexpr std::string_view kSuffixes[] = {".weight", ".bias"};

/// Place of a tensor in a layer: "blk.3.attn_q.weight" is 3, "attn_q" and ".weight".
struct InLayer {
  std::string layer, stem, suffix;
};

std::optional<InLayer> in_layer(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return {};
  name.remove_prefix(prefix.size());
  const size_t dot = name.find('.');
  int64_t layer = 0;
  if (dot == name.npos || !parse_int(name.substr(0, dot), &layer) || layer < 0) return {};
  const std::string_view rest = name.substr(dot + 1);
  for (const std::string_view suffix : kSuffixes) {
    if (!rest.ends_with(suffix)) continue;
    return InLayer{std::string(name.substr(0, dot)),
                   std::string(rest.substr(0, rest.size() - suffix.size())), std::string(suffix)};
  }
  return {};
}

/// Returns the number at the place of {} in `pattern`, -1 for a pattern without one that is equal,
/// or nothing.
std::optional<int64_t> match(std::string_view text, std::string_view pattern) {
  const size_t at = pattern.find("{}");
  if (at == pattern.npos) return text == pattern ? std::optional<int64_t>(-1) : std::nullopt;
  const std::string_view before = pattern.substr(0, at), after = pattern.substr(at + 2);
  int64_t number = 0;
  if (text.size() < before.size() + after.size() || !text.starts_with(before) ||
      !text.ends_with(after) ||
      !parse_int(text.substr(at, text.size() - before.size() - after.size()), &number) ||
      number < 0) {
    return {};
  }
  return number;
}

bool has_number(std::string_view pattern) { return pattern.find("{}") != pattern.npos; }

GgufPlacement placement(LayerName::Kind kind, const GgufArchitecture& architecture) {
  return {kind == LayerName::head_rows && architecture.pairs_rows,
          kind == LayerName::norm ? architecture.norm_offset : 0};
}

bool is_of(const LayerName& name, const GgufArchitecture& architecture) {
  return name.family == nullptr || std::string_view(name.family) == architecture.family;
}

}  // namespace

const GgufArchitecture& architecture_named(std::string_view name, bool experts,
                                           const std::string& where) {
  std::vector<std::string> names;
  for (const GgufArchitecture& each : kArchitectures) {
    if (name == each.name && experts == each.experts) return each;
    if (std::find(names.begin(), names.end(), each.name) == names.end()) {
      names.emplace_back(each.name);
    }
  }
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    fail(where, "the {} of this file has {} experts, which is not supported; expected {}", name,
         experts ? "some" : "no", experts ? "a dense model" : "experts in all layers");
  }
  const std::string near = nearest(name, names);
  fail(where, "general.architecture is {}, which is not supported; expected {}{}", quote(name),
       join(names, " or "), near.empty() ? "" : fmt::format(" (the nearest is {})", near));
}

const GgufArchitecture* architecture_of(std::string_view family) {
  for (const GgufArchitecture& each : kArchitectures) {
    if (family == each.family) return &each;
  }
  return nullptr;
}

std::vector<std::string> gguf_families() {
  std::vector<std::string> families;
  for (const GgufArchitecture& each : kArchitectures) {
    families.emplace_back(each.family);
  }
  return families;
}

std::optional<HfTensorName> hf_name_of(std::string_view gguf,
                                       const GgufArchitecture& architecture) {
  for (const OtherName& each : kOtherNames) {
    if (gguf == each.gguf) {
      return HfTensorName{each.hf, false, placement(each.kind, architecture)};
    }
  }
  const auto place = in_layer(gguf, "blk.");
  if (!place) return {};
  for (const LayerName& each : kLayerNames) {
    const auto expert = match(place->stem, each.gguf);
    if (!expert || !is_of(each, architecture)) continue;
    std::string stem = each.hf;
    const bool all_experts = has_number(stem) && *expert < 0;
    if (*expert >= 0) {
      stem = fmt::format(fmt::runtime(stem), *expert);
    }
    return HfTensorName{fmt::format("model.layers.{}.{}{}", place->layer, stem, place->suffix),
                        all_experts, placement(each.kind, architecture)};
  }
  return {};
}

std::optional<GgufName> gguf_name_of(std::string_view hf, const GgufArchitecture& architecture) {
  for (const OtherName& each : kOtherNames) {
    if (hf == each.hf) return GgufName{each.gguf, -1, placement(each.kind, architecture)};
  }
  const auto place = in_layer(hf, "model.layers.");
  if (!place) return {};
  for (const LayerName& each : kLayerNames) {
    const auto expert = match(place->stem, each.hf);
    if (!expert || !is_of(each, architecture) || has_number(each.gguf)) continue;
    return GgufName{fmt::format("blk.{}.{}{}", place->layer, each.gguf, place->suffix), *expert,
                    placement(each.kind, architecture)};
  }
  return {};
}

}  // namespace hocket::checkpoint
