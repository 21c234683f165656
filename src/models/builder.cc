// SPDX-License-Identifier: Apache-2.0
#include "models/builder.h"

#include <cmath>

#include "base/error.h"
#include "base/math.h"
#include "graph/names.h"
#include "models/family.h"
#include "ops/build.h"

namespace hocket::models {

using graph::Attrs;
using graph::Dims;
using graph::DType;
using graph::Init;
using graph::TensorId;
using graph::TensorKind;

namespace {

namespace names = graph::names;

constexpr Init kOnes{Init::Kind::constant, 1};
constexpr int64_t kMaxTokens = int64_t{1} << 27;

int64_t product(const Dims& dims) {
  int64_t elements = 1;
  for (int64_t dim : dims) {
    elements *= dim;
  }
  return elements;
}

/// A form of equal tensors one after the other.
WeightForm stacked(const std::vector<std::string>& names, const Dims& dims) {
  WeightForm form;
  for (const std::string& name : names) {
    form.push_back({name, dims, static_cast<int64_t>(form.size()) * product(dims)});
  }
  return form;
}

/// Checks the caller's options; the model's configuration was checked on reading.
void check_options(const BuildOptions& options) {
  using Mode = BuildOptions::Mode;
  if (options.tokens < 1 || options.tokens > kMaxTokens) {
    fail("model", "a micro-batch has {} tokens; expected 1 to {}", options.tokens, kMaxTokens);
  }
  if (options.sequence_length < 0 ||
      (options.sequence_length > 0 && options.mode != Mode::generate &&
       options.tokens % options.sequence_length != 0)) {
    fail("model", "a micro-batch has {} tokens; expected a multiple of the sequence length, {}",
         options.tokens, options.sequence_length);
  }
  if (!graph::is_floating(options.dtype)) {
    fail("model", "dtype is {}; expected a floating-point type", to_string(options.dtype));
  }
  if (options.num_micro_batches < 1 || !(options.balance_coef >= 0)) {
    fail("model", "got {} micro-batches and balance coefficient {}; expected ≥ 1 and ≥ 0",
         options.num_micro_batches, options.balance_coef);
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    fail("model", "dropout is {}; expected 0 <= dropout < 1", options.dropout);
  }
  if (options.mode == Mode::generate &&
      (options.cache_slots < 1 || options.cache_slots > kMaxTokens)) {
    fail("model", "the KV cache has {} slots; expected 1 to {}", options.cache_slots, kMaxTokens);
  }
}

}  // namespace

Builder::Builder(const ModelConfig& config, const BuildOptions& options, bool collect_weights)
    : config_(config), options_(options), collect_weights_(collect_weights) {
  check_options(options);
  graph_.name = config.family;
  graph_.num_layers = static_cast<int32_t>(config.num_layers);
}

std::string Builder::prefix(int32_t layer) { return fmt::format("model.layers.{}.", layer); }

TensorId Builder::node(int32_t layer, const char* op, Attrs attrs, std::vector<TensorId> in,
                       const std::string& name) {
  return ops::apply(graph_, op, std::move(attrs), std::move(in), prefix(layer) + name, layer)[0];
}

TensorId Builder::linear(int32_t layer, TensorId hidden, TensorId weight, const std::string& name) {
  if (!options_.float8) return node(layer, "linear", {}, {hidden, weight}, name);
  const auto cast = [&](TensorId id) {
    const auto [known, fresh] = float8_of_.try_emplace(id, graph::kNone);
    if (fresh) {
      const std::string made = graph_.tensor(id).name + ".f8";
      known->second =
          ops::apply(graph_, "cast", {{"dtype", std::string("f8_e4m3")}}, {id}, made, layer)[0];
    }
    return known->second;
  };
  const Attrs attrs{{"dtype", std::string(to_string(options_.dtype))}};
  const TensorId operand = cast(hidden);
  return node(layer, "linear", attrs, {operand, cast(weight)}, name);
}

TensorId Builder::param(const std::string& name, Dims dims, int32_t layer, Init init,
                        std::vector<WeightForm> forms, bool expert) {
  if (collect_weights_) {
    weights_.push_back({name, dims, std::move(forms), {}});
  }
  return graph_.param(name, {options_.dtype, std::move(dims)}, layer, init, expert);
}

TensorId Builder::plain(const std::string& name, Dims dims, int32_t layer, Init init, Dims stored) {
  return param(name, std::move(dims), layer, init, {stacked({name}, stored)});
}

TensorId Builder::input(const std::string& name, DType dtype, graph::Dim size, bool per_step) {
  return graph_.input(name, {dtype, {size}}, per_step);
}

Init Builder::matrix_init(bool residual) const {
  double std = config_.initializer_range;
  if (residual) {
    std /= std::sqrt(2.0 * static_cast<double>(config_.num_layers));
  }
  return {Init::Kind::normal, std};
}

void Builder::build() {
  const Family& family = family_of(config_);
  num_tokens_ = options_.tokens;
  if (options_.mode == BuildOptions::Mode::generate) {
    // Most steps add one token; over the steps the cache is half full.
    const int64_t ranks = options_.token_ranks;
    num_tokens_ =
        graph_.symbol({names::kNewTokens, round_up(options_.tokens, ranks), ranks, ranks});
    const int64_t half = std::max<int64_t>(1, options_.cache_slots / 2);
    cache_slots_ = graph_.symbol({names::kCacheLength, options_.cache_slots, half, 1});
  }
  tokens_ = input(names::kTokens, DType::i32, num_tokens_);
  positions_ = input(names::kPositions, DType::i32, num_tokens_);
  const Dims table{config_.vocab_size, config_.hidden_size};
  if (options_.dropout > 0) {
    token_numbers_ = input(names::kTokenNumbers, DType::i64, num_tokens_);
  }
  embedding_ = plain("model.embed_tokens.weight", table, -1, matrix_init(), table);
  if (config_.tie_word_embeddings && collect_weights_) {
    weights_.back().aliases = {{"lm_head.weight", table, 0}};
  }
  TensorId hidden = ops::apply(graph_, "embedding", {{"vocab", config_.vocab_size}},
                               {tokens_, embedding_}, "model.embed_tokens", -1)[0];
  for (int32_t layer = 0; layer < graph_.num_layers; ++layer) {
    hidden = family.block(*this, layer, hidden);
  }
  head(hidden);
}

void Builder::head(TensorId hidden) {
  using Mode = BuildOptions::Mode;
  const int32_t last = graph_.num_layers;
  const Dims width{config_.hidden_size};
  const Dims table{config_.vocab_size, config_.hidden_size};
  const TensorId norm_weight = plain("model.norm.weight", width, last, kOnes, width);
  const TensorId normed = ops::apply(graph_, "rms_norm", {{"eps", config_.rms_norm_eps}},
                                     {hidden, norm_weight}, "model.norm", last)[0];
  const TensorId weight = config_.tie_word_embeddings
                              ? embedding_
                              : plain("lm_head.weight", table, last, matrix_init(), table);
  if (options_.mode != Mode::train) {
    graph_.outputs.push_back(
        ops::apply(graph_, "linear", {}, {normed, weight}, names::kLogits, last)[0]);
    return;
  }
  const TensorId targets = input(names::kTargets, DType::i32, options_.tokens);
  const TensorId scale = input(names::kLossScale, DType::f64, 1, true);
  const Attrs attrs{{"grad", int64_t{options_.grad ? 1 : 0}}};
  graph_.losses.push_back(ops::apply(graph_, "linear_cross_entropy", attrs,
                                     {normed, weight, targets, scale}, "loss", last)[0]);
  graph_.losses.insert(graph_.losses.end(), balance_losses_.begin(), balance_losses_.end());
}

TensorId Builder::norm(int32_t layer, TensorId hidden, const std::string& name) {
  const Dims width{graph_.tensor(hidden).type.dims.back()};
  const TensorId weight = plain(prefix(layer) + name + ".weight", width, layer, kOnes, width);
  return node(layer, "rms_norm", {{"eps", config_.rms_norm_eps}}, {hidden, weight}, name);
}

TensorId Builder::dropped(int32_t layer, TensorId branch, const std::string& name) {
  if (token_numbers_ == graph::kNone) return branch;
  const Attrs attrs{{"p", options_.dropout},
                    {"seed", options_.dropout_seed},
                    {"stream", num_dropouts_++},
                    {"width", config_.hidden_size}};
  return node(layer, "dropout", attrs, {branch, token_numbers_}, name + ".dropout");
}

TensorId Builder::residual(int32_t layer, TensorId hidden, TensorId branch,
                           const std::string& name) {
  return sum(layer, hidden, dropped(layer, branch, name), name);
}

TensorId Builder::sum(int32_t layer, TensorId one, TensorId other, const std::string& name) {
  return node(layer, "add", {}, {one, other}, name);
}

TensorId Builder::rope(int32_t layer, TensorId heads, const std::string& name) {
  const Rope& rope = config_.rope;
  Attrs attrs{{"theta", rope.theta}, {"inverse", int64_t{0}}, {"scaling", rope.scaling}};
  if (rope.scaling != "default") {
    attrs.set("factor", rope.factor);
  }
  if (rope.scaling == "llama3") {
    attrs.set("low_freq_factor", rope.low_freq_factor);
    attrs.set("high_freq_factor", rope.high_freq_factor);
    attrs.set("original_max_position", rope.original_max_position);
  }
  return node(layer, "rope", attrs, {heads, positions_}, name);
}

TensorId Builder::attention(int32_t layer, TensorId hidden, const AttentionForm& form) {
  // x [T, D] -> q [T, H, d], k and v [T, G, d] (G groups of heads share a key), optionally normed
  // per head, turned by position, attended, and projected back [T, D]. With a cache (generate) the
  // keys and values of earlier tokens are state, and attention_cached appends to them; otherwise
  // attention runs over the documents that positions delimit, none longer than `seq`. A window that
  // holds the longest of them is none.
  const int64_t D = config_.hidden_size;
  const int64_t H = config_.num_heads;
  const int64_t G = config_.num_kv_heads;
  const int64_t d = config_.head_dim;
  const std::string base = prefix(layer) + "self_attn.";
  const auto project = [&](const char* name, int64_t heads) {
    const TensorId weight = plain(fmt::format("{}{}_proj.weight", base, name), {heads, d, D}, layer,
                                  matrix_init(), {heads * d, D});
    return linear(layer, hidden, weight, fmt::format("attn.{}", name));
  };
  TensorId q = project("q", H);
  TensorId k = project("k", G);
  const TensorId v = project("v", G);
  if (form.head_norm) {
    const auto normed = [&](TensorId heads, const char* name) {
      const TensorId weight =
          plain(fmt::format("{}{}_norm.weight", base, name), {d}, layer, kOnes, {d});
      return node(layer, "rms_norm", {{"eps", config_.rms_norm_eps}}, {heads, weight},
                  fmt::format("attn.{}_norm", name));
    };
    q = normed(q, "q");
    k = normed(k, "k");
  }
  q = rope(layer, q, "attn.q_rope");
  k = rope(layer, k, "attn.k_rope");
  Attrs attrs{{"scale", 1 / std::sqrt(static_cast<double>(d))}};
  const bool cached = options_.mode == BuildOptions::Mode::generate;
  const int64_t sequence =
      options_.sequence_length > 0 ? options_.sequence_length : options_.tokens;
  if (const int64_t longest = cached ? options_.cache_slots : sequence;
      config_.window > 0 && config_.window < longest) {
    attrs.set("window", config_.window);
  }
  TensorId o;
  if (cached) {
    const auto cache = [&](const char* name) {
      graph::Tensor tensor;
      tensor.name = fmt::format("{}attn.{}_cache", prefix(layer), name);
      tensor.type = {options_.dtype, {cache_slots_, G, d}};
      tensor.kind = TensorKind::state;
      tensor.state = graph::StateKind::cache;
      tensor.layer = layer;
      tensor.init = {Init::Kind::constant, 0};
      return graph_.add_tensor(std::move(tensor));
    };
    const TensorId k_cache = cache("k");
    const TensorId v_cache = cache("v");
    o = node(layer, "attention_cached", attrs, {q, k, v, k_cache, v_cache, positions_}, "attn.o");
  } else {
    attrs.set("group", H / G);
    if (options_.sequence_length > 0) {
      attrs.set("seq", options_.sequence_length);
    }
    o = node(layer, "attention", attrs, {q, k, v, positions_}, "attn.o");
  }
  const TensorId weight =
      plain(base + "o_proj.weight", {D, H, d}, layer, matrix_init(true), {D, H * d});
  return linear(layer, o, weight, "attn.out");
}

TensorId Builder::mlp(int32_t layer, TensorId hidden) {
  const int64_t D = config_.hidden_size;
  const int64_t F = config_.intermediate_size;
  const std::string base = prefix(layer) + "mlp.";
  const TensorId gate_up =
      param(base + "gate_up_proj.weight", {2, F, D}, layer, matrix_init(),
            {stacked({base + "gate_proj.weight", base + "up_proj.weight"}, {F, D}),
             stacked({base + "gate_up_proj.weight"}, {2 * F, D})});
  const TensorId gu = linear(layer, hidden, gate_up, "mlp.gate_up");
  const TensorId activated = node(layer, "swiglu", {}, {gu}, "mlp.h");
  const TensorId down = plain(base + "down_proj.weight", {D, F}, layer, matrix_init(true), {D, F});
  return linear(layer, activated, down, "mlp.out");
}

TensorId Builder::experts(int32_t layer, TensorId hidden) {
  // x [T, D] -> router probabilities [T, E]. The top K choose rows (route_plan), to which dispatch
  // copies the tokens: xs [E, T, D], of which only routed rows exist. An MLP per expert works on
  // its rows, and combine adds them per token, weighted. In training the counts of rows are
  // outputs; with the summed probabilities they give the balance loss.
  const int64_t D = config_.hidden_size;
  const int64_t F = config_.moe_intermediate_size;
  const int64_t E = config_.num_experts;
  const int64_t K = config_.top_k;
  const std::string base = prefix(layer) + "mlp.";
  const TensorId gate = plain(base + "gate.weight", {E, D}, layer, matrix_init(), {E, D});
  const TensorId logits = node(layer, "linear", {}, {hidden, gate}, "mlp.router_logits");
  const std::vector<TensorId> route = ops::apply(
      graph_, "router", {{"top_k", K}, {"norm", int64_t{config_.norm_topk_prob ? 1 : 0}}}, {logits},
      prefix(layer) + "mlp.route", layer);
  const TensorId weights = route[0];
  const TensorId ids = route[1];
  const TensorId psum = route[3];
  const std::vector<TensorId> plan =
      ops::apply(graph_, "route_plan", {{"num_experts", E}}, {ids},
                 fmt::format("{}{}", names::kCountsOf, layer), layer);
  const TensorId counts = plan[0];
  const TensorId row_of = plan[1];
  graph_.tensors[row_of].name = prefix(layer) + "mlp.row_of";
  if (options_.mode == BuildOptions::Mode::train) {
    graph_.outputs.push_back(counts);
    if (options_.balance_coef > 0) {
      const double coef = options_.balance_coef / static_cast<double>(options_.num_micro_batches);
      const Attrs attrs{{"coef", coef}, {"top_k", K}};
      balance_losses_.push_back(ops::apply(graph_, "balance_loss", attrs, {psum, counts},
                                           fmt::format("moe.balance.{}", layer), layer)[0]);
    }
  }
  const TensorId xs = node(layer, "dispatch", {{"num_experts", E}}, {hidden, row_of}, "mlp.xs");

  std::vector<std::string> gates_ups;
  std::vector<std::string> downs;
  for (int64_t e = 0; collect_weights_ && e < E; ++e) {
    gates_ups.push_back(fmt::format("{}experts.{}.gate_proj.weight", base, e));
    gates_ups.push_back(fmt::format("{}experts.{}.up_proj.weight", base, e));
    downs.push_back(fmt::format("{}experts.{}.down_proj.weight", base, e));
  }
  // The second form is that of transformers 5 in memory, and in files saved without conversion.
  const TensorId gate_up = param(
      base + "experts.gate_up_proj", {E, 2, F, D}, layer, matrix_init(),
      {stacked(gates_ups, {F, D}), stacked({base + "experts.gate_up_proj"}, {E, 2 * F, D})}, true);
  const TensorId gu = node(layer, "grouped_linear", {}, {xs, gate_up, counts}, "mlp.gate_up");
  const TensorId activated = node(layer, "swiglu", {}, {gu, counts}, "mlp.h");
  const TensorId down =
      param(base + "experts.down_proj", {E, D, F}, layer, matrix_init(true),
            {stacked(downs, {D, F}), stacked({base + "experts.down_proj"}, {E, D, F})}, true);
  const TensorId ys = node(layer, "grouped_linear", {}, {activated, down, counts}, "mlp.ys");
  return node(layer, "combine", {}, {ys, weights, row_of}, "mlp.out");
}

}  // namespace hocket::models
