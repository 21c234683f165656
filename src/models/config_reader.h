// SPDX-License-Identifier: Apache-2.0
// Bounded reading of config.json keys; every error names the file, the key and the legal values. A
// null key counts as absent. Internal to src/models.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "models/config.h"
#include "models/family.h"

namespace hocket::models {

/// Bound of the width of any tensor: with it every product of sizes stays below 2^62 bytes.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;

/// Integer in [low, high]; without a fallback the key must be there.
int64_t read_int(const JsonView& in, std::string_view key, int64_t low, int64_t high,
                 std::optional<int64_t> fallback = {});
/// Number in [low, high].
double read_number(const JsonView& in, std::string_view key, double low, double high,
                   std::optional<double> fallback = {});
/// Integers in [low, high]; one integer counts as a list of one; empty when absent.
std::vector<int64_t> read_ints(const JsonView& in, std::string_view key, int64_t low, int64_t high);
/// The window of transformers' mistral and qwen3_moe where a config does not say it.
inline constexpr int64_t kDefaultWindow = 4096;
/// sliding_window: tokens that a query sees, its own included; 0 if it is null, `absent` if it is
/// not there.
int64_t read_window(const JsonView& in, int64_t absent);
/// Gives the window to the layers that layer_types calls sliding_attention; without the key to
/// those of `otherwise`. 0: none.
void set_windows(const JsonView& in, ModelConfig& config, int64_t window,
                 const std::function<bool(int64_t layer)>& otherwise);
/// Gives the window to all layers.
void set_window(ModelConfig& config, int64_t window);
/// The window of Qwen2 and Qwen3: with use_sliding_window, in the layers from max_window_layers on,
/// or those that layer_types names.
void read_window_layers(const JsonView& in, ModelConfig& config);
/// The common features of Gemma 2 and 3: norms of weights around 0, the scales of embedding and
/// scores, a window in some layers, without layer_types those of `sliding`.
void read_gemma(const JsonView& in, ModelConfig& config,
                const std::function<bool(int64_t layer)>& sliding);
/// attention_bias: of queries, keys and values, and of the output.
void read_attention_bias(const JsonView& in, ModelConfig& config);
/// mlp_bias: of all linear layers of dense MLPs.
void read_mlp_bias(const JsonView& in, ModelConfig& config);
/// A number above 0; 0 if it is absent: no cap.
double read_softcap(const JsonView& in, std::string_view key, std::optional<double> absent = {});
/// num_experts (of transformers 4) or num_local_experts (5), num_experts_per_tok and
/// router_aux_loss_coef, for experts in all layers.
void read_experts(const JsonView& in, ModelConfig& config, std::optional<int64_t> per_token = {});
/// rope_theta with rope_scaling (transformers 4) or rope_parameters (5), of both kinds of layers
/// where the family has them apart.
void read_ropes(const JsonView& in, const Family& family, ModelConfig& config);
/// Throws Error unless the key is absent, null or false.
void refuse(const JsonView& in, std::string_view key, std::string_view advice);
/// Throws Error unless the key is absent, null or 0.
void refuse_above_zero(const JsonView& in, std::string_view key, std::string_view advice);
/// Value as errors show it.
std::string show(const JsonView& value);

}  // namespace hocket::models
