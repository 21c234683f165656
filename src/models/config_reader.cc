// SPDX-License-Identifier: Apache-2.0
#include "models/config_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"

namespace hocket::models {

std::string show(const JsonView& value) {
  using nlohmann::json;
  return quote(value.json().dump(-1, ' ', true, json::error_handler_t::replace), 60);
}

namespace {

int64_t bounded(const JsonView& value, int64_t low, int64_t high) {
  const int64_t got = value.as_int();
  if (got < low || got > high) {
    value.fail(fmt::format("is {}; expected an integer from {} to {}", got, low, high));
  }
  return got;
}

}  // namespace

int64_t read_int(const JsonView& in, std::string_view key, int64_t low, int64_t high,
                 std::optional<int64_t> fallback) {
  return fallback && !in.has(key) ? *fallback : bounded(in.at(key), low, high);
}

double read_number(const JsonView& in, std::string_view key, double low, double high,
                   std::optional<double> fallback) {
  if (fallback && !in.has(key)) return *fallback;
  const JsonView value = in.at(key);
  const double got = value.as_double();
  if (!(got >= low && got <= high)) {
    value.fail(fmt::format("is {}; expected a number from {} to {}", got, low, high));
  }
  return got;
}

std::vector<int64_t> read_ints(const JsonView& in, std::string_view key, int64_t low,
                               int64_t high) {
  std::vector<int64_t> list;
  if (!in.has(key)) return list;
  const JsonView value = in.at(key);
  if (!value.is_array()) return {bounded(value, low, high)};
  for (size_t i = 0; i < value.size(); ++i) {
    list.push_back(bounded(value.at(i), low, high));
  }
  return list;
}

int64_t read_window(const JsonView& in, int64_t absent) {
  constexpr const char* kKey = "sliding_window";
  const std::vector<std::string> keys = in.keys();
  const bool there = std::find(keys.begin(), keys.end(), kKey) != keys.end();
  return read_int(in, kKey, 1, std::numeric_limits<int32_t>::max(), there ? 0 : absent);
}

void set_window(ModelConfig& config, int64_t window) {
  config.windows.assign(static_cast<size_t>(config.num_layers), window);
}

void set_windows(const JsonView& in, ModelConfig& config, int64_t window,
                 const std::function<bool(int64_t layer)>& otherwise) {
  constexpr const char* kKey = "layer_types";
  set_window(config, 0);
  if (!in.has(kKey)) {
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      config.windows[layer] = otherwise(layer) ? window : 0;
    }
    return;
  }
  const JsonView key = in.at(kKey);
  const std::vector<std::string> types = key.as_strings();
  if (std::ssize(types) != config.num_layers) {
    key.fail(fmt::format("has {} entries; expected one for each of the {} layers", types.size(),
                         config.num_layers));
  }
  for (size_t layer = 0; layer < types.size(); ++layer) {
    const bool sliding = types[layer] == "sliding_attention";
    if (!sliding && types[layer] != "full_attention") {
      key.fail(
          fmt::format("holds {}, which is not supported; expected full_attention or "
                      "sliding_attention",
                      quote(types[layer])));
    }
    if (sliding && window == 0) {
      key.fail(
          "holds 'sliding_attention', which is not supported without a sliding window; expected "
          "full_attention for all");
    }
    config.windows[layer] = sliding ? window : 0;
  }
}

void read_window_layers(const JsonView& in, ModelConfig& config) {
  constexpr int64_t kDefaultFirst = 28;
  const int64_t window =
      in.get_bool("use_sliding_window", false) ? read_window(in, kDefaultWindow) : 0;
  const int64_t first = read_int(in, "max_window_layers", 0, kMaxWidth, kDefaultFirst);
  set_windows(in, config, window, [first](int64_t layer) { return layer >= first; });
}

void read_gemma(const JsonView& in, ModelConfig& config,
                const std::function<bool(int64_t layer)>& sliding) {
  constexpr double kScalar = 256;
  config.form.norm_offset = 1;
  config.form.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.form.attention_scale =
      1 / std::sqrt(read_number(in, "query_pre_attn_scalar", 1e-6, 1e9, kScalar));
  refuse(in, "use_bidirectional_attention", "expected false: a token sees those before it");
  const int64_t window = read_window(in, kDefaultWindow);
  if (window == 0) {
    fail(in.where(), "sliding_window is null; expected a number: some layers have a window");
  }
  set_windows(in, config, window, sliding);
  read_attention_bias(in, config);
}

void read_attention_bias(const JsonView& in, ModelConfig& config) {
  config.form.qkv_bias = config.form.o_bias = in.get_bool("attention_bias", false);
}

void read_mlp_bias(const JsonView& in, ModelConfig& config) {
  config.form.mlp_bias = in.get_bool("mlp_bias", false);
}

double read_softcap(const JsonView& in, std::string_view key, std::optional<double> absent) {
  const std::vector<std::string> keys = in.keys();
  const bool there = std::find(keys.begin(), keys.end(), key) != keys.end();
  return read_number(in, key, 1e-6, 1e9, there ? 0.0 : absent.value_or(0.0));
}

void read_experts(const JsonView& in, ModelConfig& config, std::optional<int64_t> per_token) {
  constexpr int64_t kMaxExperts = int64_t{1} << 16;
  constexpr int64_t kMaxTopK = 1024;
  const char* key = in.has("num_local_experts") ? "num_local_experts" : "num_experts";
  config.num_experts = read_int(in, key, 1, kMaxExperts);
  if (in.has("num_experts") && read_int(in, "num_experts", 1, kMaxExperts) != config.num_experts) {
    fail(in.where(), "num_experts is {} but num_local_experts is {}; expected one value",
         in.get_int("num_experts"), config.num_experts);
  }
  config.top_k = read_int(in, "num_experts_per_tok", 1, kMaxTopK, per_token);
  if (config.top_k > config.num_experts) {
    fail(in.where(), "num_experts_per_tok is {}; expected at most {}, which is {}", config.top_k,
         key, config.num_experts);
  }
  config.router_aux_loss_coef = read_number(in, "router_aux_loss_coef", 0, 1e6, 0.001);
  config.moe_layer.assign(static_cast<size_t>(config.num_layers), true);
}

void refuse(const JsonView& in, std::string_view key, std::string_view advice) {
  if (!in.has(key)) return;
  const JsonView value = in.at(key);
  if (value.is_bool() && !value.as_bool()) return;
  value.fail(fmt::format("is {}, which is not supported; {}", show(value), advice));
}

void refuse_above_zero(const JsonView& in, std::string_view key, std::string_view advice) {
  if (in.has(key) && in.at(key).as_double() != 0) {
    in.at(key).fail(fmt::format("is {}, which is not supported; {}", show(in.at(key)), advice));
  }
}

}  // namespace hocket::models
