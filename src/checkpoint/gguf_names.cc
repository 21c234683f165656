// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf_names.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace hocket::checkpoint {
namespace {

constexpr GgufArchitecture kArchitectures[] = {{"llama", "llama", true, false},
                                               {"qwen3moe", "qwen3_moe", false, true}};

constexpr GgufTensorName kLayerNames[] = {{"attn_norm", "input_layernorm", false},
                                          {"attn_q", "self_attn.q_proj", true},
                                          {"attn_k", "self_attn.k_proj", true},
                                          {"attn_v", "self_attn.v_proj", false},
                                          {"attn_output", "self_attn.o_proj", false},
                                          {"attn_q_norm", "self_attn.q_norm", false},
                                          {"attn_k_norm", "self_attn.k_norm", false},
                                          {"ffn_norm", "post_attention_layernorm", false},
                                          {"ffn_gate", "mlp.gate_proj", false},
                                          {"ffn_up", "mlp.up_proj", false},
                                          {"ffn_down", "mlp.down_proj", false},
                                          {"ffn_gate_inp", "mlp.gate", false},
                                          {"ffn_gate_exps", "mlp.experts.{}.gate_proj", false},
                                          {"ffn_up_exps", "mlp.experts.{}.up_proj", false},
                                          {"ffn_down_exps", "mlp.experts.{}.down_proj", false}};

constexpr std::pair<const char*, const char*> kOtherNames[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"}};

constexpr std::string_view kWeight = ".weight";

/// Strips `prefix`, a number, "." and ".weight": "blk.3.attn_q.weight" is 3 and "attn_q".
std::optional<std::pair<std::string, std::string>> in_layer(std::string_view name,
                                                            std::string_view prefix) {
  if (!name.starts_with(prefix) || !name.ends_with(kWeight)) return {};
  name.remove_prefix(prefix.size());
  const size_t dot = name.find('.');
  int64_t layer = 0;
  if (dot == name.npos || dot + 1 + kWeight.size() > name.size() ||
      !parse_int(name.substr(0, dot), &layer) || layer < 0) {
    return {};
  }
  const std::string_view stem = name.substr(dot + 1, name.size() - dot - 1 - kWeight.size());
  return {{std::string(name.substr(0, dot)), std::string(stem)}};
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

}  // namespace

std::vector<std::string> architecture_names() {
  std::vector<std::string> names;
  for (const GgufArchitecture& each : kArchitectures) {
    names.push_back(each.name);
  }
  return names;
}

const GgufArchitecture& architecture_named(std::string_view name, const std::string& where) {
  for (const GgufArchitecture& each : kArchitectures) {
    if (name == each.name) return each;
  }
  const std::vector<std::string> names = architecture_names();
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

std::optional<HfTensorName> hf_name_of(std::string_view gguf,
                                       const GgufArchitecture& architecture) {
  for (const auto& [theirs, ours] : kOtherNames) {
    if (gguf == theirs) return HfTensorName{ours};
  }
  const auto place = in_layer(gguf, "blk.");
  if (!place) return {};
  for (const GgufTensorName& each : kLayerNames) {
    if (place->second != each.gguf) continue;
    const std::string_view hf = each.hf;
    return HfTensorName{fmt::format("model.layers.{}.{}{}", place->first, hf, kWeight),
                        hf.find("{}") != hf.npos, each.pairs_rows && architecture.pairs_rows};
  }
  return {};
}

std::optional<GgufName> gguf_name_of(std::string_view hf, const GgufArchitecture& architecture) {
  for (const auto& [theirs, ours] : kOtherNames) {
    if (hf == ours) return GgufName{theirs};
  }
  const auto place = in_layer(hf, "model.layers.");
  if (!place) return {};
  for (const GgufTensorName& each : kLayerNames) {
    if (const auto expert = match(place->second, each.hf)) {
      return GgufName{fmt::format("blk.{}.{}{}", place->first, each.gguf, kWeight), *expert,
                      each.pairs_rows && architecture.pairs_rows};
    }
  }
  return {};
}

}  // namespace hocket::checkpoint
