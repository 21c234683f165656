// SPDX-License-Identifier: Apache-2.0
#include "tests/plans/plan_family_util.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"

namespace hocket::test {

namespace {

/// Keys of a config.json, in text of YAML.
class Keys {
 public:
  explicit Keys(const std::string& text) {
    for (const std::string& pair : split(text, ',')) {
      const size_t colon = pair.find(':');
      HOCKET_CHECK(colon != pair.npos, "no key in {}", quote(pair));
      values_[trim(pair.substr(0, colon))] = trim(pair.substr(colon + 1));
    }
  }
  int64_t number(const std::string& key) const { return std::stoll(values_.at(key)); }
  bool has(const std::string& key) const { return values_.count(key) > 0; }
  template <class T>
  void set(const std::string& key, const T& value) {
    values_[key] = fmt::format("{}", value);
  }
  void rename(const std::string& from, const std::string& to) {
    if (const auto found = values_.extract(from); !found.empty()) {
      values_[to] = found.mapped();
    }
  }
  void drop(std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      values_.erase(key);
    }
  }
  std::string text() const {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : values_) {
      pairs.push_back(key + ": " + value);
    }
    return join(pairs, ", ");
  }

 private:
  static std::string trim(const std::string& text) {
    const size_t begin = text.find_first_not_of(' ');
    return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
  }
  std::map<std::string, std::string> values_;
};

/// A width equal to the dims of all heads, for families without a key of those.
void widen(Keys* keys) {
  keys->set("hidden_size", keys->number("num_attention_heads") * keys->number("head_dim"));
  keys->drop(
      {"num_key_value_heads", "head_dim", "hidden_act", "use_sliding_window", "sliding_window"});
}

void give_dense(const std::string& family, Rng& rng, Keys* keys) {
  const int64_t window = keys->has("sliding_window") ? keys->number("sliding_window") : 0;
  const auto pick = [&](std::initializer_list<const char*> from) {
    return from.begin()[rng.below(from.size())];
  };
  if (family == "qwen2" || family == "qwen3") {
    keys->set("max_window_layers", pick({"0", "1", "2"}));
  }
  if (family == "qwen3" || family == "olmo2" || family == "smollm3") {
    keys->set("attention_bias", pick({"true", "false"}));
  }
  if (family == "olmo2" || family == "granite") {
    keys->drop({"use_sliding_window", "sliding_window"});
  }
  if (family == "smollm3") {
    keys->set("no_rope_layer_interval", pick({"1", "2", "3"}));
    keys->set("mlp_bias", pick({"true", "false"}));
  }
  if (family == "phi3" && keys->number("head_dim") > 2) {
    keys->set("partial_rotary_factor", keys->number("head_dim") == 4 ? 0.5 : 0.67);
  }
  if (family.starts_with("gemma")) {
    keys->drop({"hidden_act", "use_sliding_window"});
    keys->set("sliding_window", window > 0 ? window : 3);
    keys->set("query_pre_attn_scalar", pick({"3", "7"}));
    keys->set("final_logit_softcapping", pick({"2.0", "null"}));
    if (family == "gemma3_text") {
      keys->set("sliding_window_pattern", pick({"2", "3"}));
    } else {
      keys->set("attn_logit_softcapping", pick({"1.5", "null"}));
    }
  }
  if (family == "granite") {
    keys->set("embedding_multiplier", 3.0);
    keys->set("attention_multiplier", 0.4);
    keys->set("residual_multiplier", 0.5);
    keys->set("logits_scaling", 2.0);
    keys->set("mlp_bias", pick({"true", "false"}));
  }
  if (family == "gpt2") {
    widen(keys);
    keys->drop({"rope_theta"});
    keys->rename("hidden_size", "n_embd");
    keys->rename("num_hidden_layers", "n_layer");
    keys->rename("num_attention_heads", "n_head");
    keys->rename("max_position_embeddings", "n_positions");
    keys->rename("intermediate_size", "n_inner");
    keys->rename("rms_norm_eps", "layer_norm_epsilon");
  }
  if (family == "gpt_neox") {
    keys->set("rotary_pct", keys->number("head_dim") > 2 ? 0.5 : 1.0);
    if (keys->number("head_dim") == 6) {
      keys->set("rotary_pct", 0.67);
    }
    widen(keys);
    keys->rename("rope_theta", "rotary_emb_base");
    keys->rename("rms_norm_eps", "layer_norm_eps");
    keys->set("use_parallel_residual", pick({"true", "false"}));
  }
}

}  // namespace

void give_family(uint64_t seed, bool moe, std::string* text) {
  Rng rng(seed + 17000023);
  if (rng.below(2) == 0) return;
  static const std::vector<std::string> kDense = {"qwen2", "qwen3",   "olmo2",       "smollm3",
                                                  "phi3",  "gemma2",  "gemma3_text", "granite",
                                                  "gpt2",  "gpt_neox"};
  static const std::vector<std::string> kMoe = {"mixtral", "olmoe"};
  const std::vector<std::string>& list = moe ? kMoe : kDense;
  const std::string& family = list[rng.below(list.size())];
  constexpr std::string_view kBegin = "config: {";
  const size_t begin = text->find(kBegin) + kBegin.size();
  Keys keys(text->substr(begin));
  keys.set("model_type", family);
  if (moe) {
    keys.set("intermediate_size", keys.number("moe_intermediate_size"));
    keys.drop({"moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers"});
    if (family == "olmoe") {
      keys.drop({"use_sliding_window", "sliding_window"});
    } else {
      keys.drop({"norm_topk_prob"});
      keys.rename("num_experts", "num_local_experts");
    }
  } else {
    give_dense(family, rng, &keys);
  }
  text->replace(begin, text->npos, keys.text());
}

}  // namespace hocket::test
