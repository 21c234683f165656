// SPDX-License-Identifier: Apache-2.0
// Implements: the decoder layers of Builder (builder.h).
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "graph/names.h"
#include "models/builder.h"
#include "ops/build.h"
#include "ops/workspace.h"

namespace hocket::models {

using graph::Attrs;
using graph::Dims;
using graph::Init;
using graph::TensorId;
using graph::TensorKind;

namespace {

namespace names = graph::names;

/// A form of equal tensors one after the other.
WeightForm stacked(const std::vector<std::string>& names, const Dims& dims) {
  WeightForm form;
  for (const std::string& name : names) {
    const int64_t offset = form.empty() ? 0 : form.back().offset + form.back().numel();
    form.push_back({name, dims, offset});
  }
  return form;
}

}  // namespace

TensorId Builder::block(int32_t layer, TensorId hidden) {
  const BlockNorms& norms = family_.norms;
  const TensorId attention_in = norm(layer, hidden, norms.attention_in);
  const TensorId attended = norm(layer, attention(layer, attention_in), norms.attention_out);
  const auto inner = [&](TensorId tensor) {
    return config_.moe_layer[layer] ? experts(layer, tensor) : mlp(layer, tensor);
  };
  if (config_.form.parallel) {
    // The branches are added to each other first: as parts of sums over tp, they are summed once.
    // Each drops some of its own, as those of GPT-J do.
    const TensorId mlp_in =
        norms.mlp_in == nullptr ? attention_in : norm(layer, hidden, norms.mlp_in);
    const TensorId computed = norm(layer, inner(mlp_in), norms.mlp_out);
    const TensorId first = branch(layer, attended, "attention");
    const TensorId branches = sum(layer, first, branch(layer, computed, "mlp"), "branches");
    return sum(layer, hidden, branches, "residual");
  }
  hidden = sum(layer, hidden, branch(layer, attended, "attn.residual"), "attn.residual");
  const TensorId computed = norm(layer, inner(norm(layer, hidden, norms.mlp_in)), norms.mlp_out);
  return sum(layer, hidden, branch(layer, computed, "residual"), "residual");
}

TensorId Builder::norm(int32_t layer, TensorId hidden, const char* name) {
  if (name == nullptr) return hidden;
  const std::string base = prefix(layer) + name;
  return norm_of(layer, hidden, base, base);
}

TensorId Builder::head_norm(int32_t layer, TensorId heads, const char* name) {
  const Form& form = config_.form;
  if (form.head_norm == "none") return heads;
  const Dims& shape = graph_.tensor(heads).type.dims;
  const std::string base = fmt::format("{}self_attn.{}_norm.weight", prefix(layer), name);
  const Init init{Init::Kind::constant, 1 - form.norm_offset};
  Attrs attrs{{"eps", config_.rms_norm_eps}};
  if (form.norm_offset != 0) {
    attrs.set("offset", form.norm_offset);
  }
  const int64_t count = shape[1];
  const int64_t width = shape[2];
  TensorId weight;
  if (form.head_norm == "all") {
    attrs.set("dims", int64_t{2});
    weight = plain(base, {count, width}, layer, init, {count * width});
  } else {
    weight = plain(base, {width}, layer, init, {width});
  }
  return node(layer, "rms_norm", attrs, {heads, weight}, fmt::format("attn.{}_norm", name));
}

TensorId Builder::branch(int32_t layer, TensorId branch, const std::string& name) {
  branch = scaled(layer, branch, config_.form.residual_scale, name + ".scaled");
  if (token_numbers_ == graph::kNone) return branch;
  const Attrs attrs{{"p", options_.dropout},
                    {"seed", options_.dropout_seed},
                    {"stream", num_dropouts_++},
                    {"width", config_.hidden_size}};
  return node(layer, "dropout", attrs, {branch, token_numbers_}, name + ".dropout");
}

TensorId Builder::sum(int32_t layer, TensorId one, TensorId other, const std::string& name) {
  return node(layer, "add", {}, {one, other}, name);
}

TensorId Builder::scaled(int32_t layer, TensorId tensor, double factor, const std::string& name) {
  return factor == 1 ? tensor : node(layer, "scale", {{"factor", factor}}, {tensor}, name);
}

TensorId Builder::biased(int32_t layer, TensorId tensor, const std::string& base, Dims dims,
                         std::vector<WeightForm> forms, const std::string& name) {
  const TensorId bias = param(base + ".bias", std::move(dims), layer, kZeros, std::move(forms));
  return node(layer, "bias_add", {}, {tensor, bias}, name);
}

std::pair<FileRows, std::string> Builder::rows_of(int32_t layer, const char* which) const {
  const Storage& storage = family_.storage;
  const int64_t d = config_.head_dim;
  const int64_t queries = config_.num_heads * d;
  const int64_t keys = config_.num_kv_heads * d;
  const bool query = which[0] == 'q';
  const int64_t count = query ? queries : keys;
  const std::string base = prefix(layer) + "self_attn.";
  if (storage.qkv == nullptr) return {FileRows::all(count), base + which + "_proj"};
  const int64_t before = query ? 0 : which[0] == 'k' ? 1 : 2;
  FileRows rows{queries + 2 * keys, 0, count, count, count};
  if (storage.qkv_by_head) {
    rows.first = before * d;
    rows.run = d;
    rows.stride = 3 * d;
  } else {
    rows.first = before == 0 ? 0 : queries + (before - 1) * keys;
  }
  return {rows, base + storage.qkv};
}

TensorId Builder::projection(int32_t layer, TensorId hidden, const char* which, int64_t heads) {
  const int64_t D = config_.hidden_size;
  const int64_t d = config_.head_dim;
  const std::string base = fmt::format("{}self_attn.{}_proj", prefix(layer), which);
  const auto [rows, file] = rows_of(layer, which);
  const auto stored = [&](const char* suffix, int64_t columns) {
    return std::vector<WeightForm>{
        {slice_of_rows(file_name(file + suffix), rows, columns, family_.storage.transposed)}};
  };
  const TensorId weight =
      param(base + ".weight", {heads, d, D}, layer, matrix_init(), stored(".weight", D));
  const std::string name = fmt::format("attn.{}", which);
  const bool bias = config_.form.qkv_bias;
  const TensorId product = linear(layer, hidden, weight, bias ? name + ".product" : name);
  return bias ? biased(layer, product, base, {heads, d}, stored(".bias", 0), name) : product;
}

const Rope& Builder::rope_of(int32_t layer) const {
  return config_.window_rope && config_.windows[layer] > 0 ? *config_.window_rope : config_.rope;
}

TensorId Builder::rope(int32_t layer, TensorId heads, const std::string& name) {
  const Rope& rope = rope_of(layer);
  Attrs attrs{{"theta", rope.theta}, {"inverse", int64_t{0}}, {"scaling", rope.scaling}};
  if (rope.dims > 0) {
    attrs.set("dims", rope.dims);
  }
  if (rope.scaling == "longrope") {
    // The factors follow the longest sequence of the graph, for all of its sequences.
    const bool is_long = static_cast<double>(longest()) > rope.original_max_position;
    const std::vector<double>& factors = is_long ? rope.long_factor : rope.short_factor;
    attrs.set("factors", fmt::format("{}", fmt::join(factors, " ")));
  } else if (rope.scaling != "default") {
    attrs.set("factor", rope.factor);
  }
  if (rope.scaling == "llama3") {
    attrs.set("low_freq_factor", rope.low_freq_factor);
    attrs.set("high_freq_factor", rope.high_freq_factor);
  }
  if (rope.scaling == "yarn") {
    attrs.set("beta_fast", rope.beta_fast);
    attrs.set("beta_slow", rope.beta_slow);
    attrs.set("truncate", int64_t{rope.truncate ? 1 : 0});
  }
  if (rope.scaling == "yarn" || rope.scaling == "longrope") {
    attrs.set("attention_factor", rope.attention_factor);
  }
  if (rope.scaling == "dynamic") {
    attrs.set("seq", longest());
  }
  if (rope.original_max_position > 0) {
    attrs.set("original_max_position", rope.original_max_position);
  }
  return node(layer, "rope", attrs, {heads, positions_}, name);
}

TensorId Builder::attention(int32_t layer, TensorId hidden) {
  // x [T, D] -> q [T, H, d], k and v [T, G, d]; each of G groups of heads shares a key. q and k are
  // normed per head (optionally) and turned by position. Attention follows, and the projection back
  // to [T, D].
  const int64_t D = config_.hidden_size;
  const int64_t H = config_.num_heads;
  const int64_t d = config_.head_dim;
  TensorId q = projection(layer, hidden, "q", H);
  TensorId k = projection(layer, hidden, "k", config_.num_kv_heads);
  const TensorId v = projection(layer, hidden, "v", config_.num_kv_heads);
  q = head_norm(layer, q, "q");
  k = head_norm(layer, k, "k");
  if (config_.rope_layer[layer]) {
    q = rope(layer, q, "attn.q_rope");
    k = rope(layer, k, "attn.k_rope");
  }
  const TensorId o = attend(layer, q, k, v);
  const std::string base = prefix(layer) + "self_attn.o_proj";
  const auto stored = [&](const char* suffix, int64_t columns) {
    return std::vector<WeightForm>{{slice_of_rows(file_name(base + suffix), FileRows::all(D),
                                                  columns, family_.storage.transposed)}};
  };
  const TensorId weight =
      param(base + ".weight", {D, H, d}, layer, matrix_init(true), stored(".weight", H * d));
  const bool bias = config_.form.o_bias;
  const TensorId out = linear(layer, o, weight, bias ? "attn.out.product" : "attn.out");
  return bias ? biased(layer, out, base, {D}, stored(".bias", 0), "attn.out") : out;
}

TensorId Builder::attend(int32_t layer, TensorId q, TensorId k, TensorId v) {
  // In generation the keys and values of earlier tokens are state, and attention_paged adds to
  // them; otherwise attention runs over the documents that positions delimit, none
  // longer than `seq`. A window that holds the longest of them is none.
  const int64_t G = config_.num_kv_heads;
  const int64_t d = config_.head_dim;
  const Form& form = config_.form;
  const double scale =
      form.attention_scale > 0 ? form.attention_scale : 1 / std::sqrt(static_cast<double>(d));
  Attrs attrs{{"scale", scale}};
  if (form.attention_softcap > 0) {
    attrs.set("softcap", form.attention_softcap);
  }
  if (const int64_t window = config_.windows[layer]; window > 0 && window < longest()) {
    attrs.set("window", window);
  }
  if (options_.mode == BuildOptions::Mode::generate) {
    const int64_t P = options_.parts * options_.generation.pages, S = ops::kPageTokens;
    if (options_.parts > 1) {
      attrs.set("parts", options_.parts);
    }
    const auto pages = [&](const char* name, Dims dims) {
      graph::Tensor tensor;
      tensor.name = fmt::format("{}attn.{}_pages", prefix(layer), name);
      tensor.type = {options_.dtype, std::move(dims)};
      tensor.kind = TensorKind::state;
      tensor.state = graph::StateKind::cache;
      tensor.layer = layer;
      tensor.init = kZeros;
      return graph_.add_tensor(std::move(tensor));
    };
    const TensorId keys = pages("k", {P, G, d, S});
    const TensorId values = pages("v", {P, G, S, d});
    return node(layer, "attention_paged", attrs,
                {q, k, v, keys, values, positions_, sequences_, positions_, sequences_, page_table_,
                 page_copies_},
                "attn.o");
  }
  attrs.set("group", config_.num_heads / G);
  if (options_.sequence_length > 0) {
    attrs.set("seq", options_.sequence_length);
  }
  return node(layer, "attention", attrs, {q, k, v, positions_}, "attn.o");
}

std::vector<WeightForm> Builder::gate_up_forms(const std::string& base, const char* suffix,
                                               int64_t columns) const {
  const int64_t F = config_.intermediate_size;
  const bool transposed = family_.storage.transposed;
  const FileRows rows = FileRows::all(F);
  const int64_t each = F * (columns == 0 ? 1 : columns);
  const WeightForm separate = {
      slice_of_rows(file_name(base + "gate_proj" + suffix), rows, columns, transposed),
      slice_of_rows(file_name(base + "up_proj" + suffix), rows, columns, transposed, each)};
  const WeightForm fused = {slice_of_rows(file_name(base + "gate_up_proj" + suffix),
                                          FileRows::all(2 * F), columns, transposed)};
  if (family_.storage.gate_up) return {fused, separate};
  return {separate, fused};
}

TensorId Builder::activated(int32_t layer, TensorId hidden) {
  const std::string& kind = config_.form.activation;
  if (!config_.form.gated) return node(layer, "activation", {{"kind", kind}}, {hidden}, "mlp.h");
  if (kind == "silu") return node(layer, "swiglu", {}, {hidden}, "mlp.h");
  const std::string approximate = kind == "gelu_tanh" ? "tanh" : "none";
  return node(layer, "geglu", {{"approximate", approximate}}, {hidden}, "mlp.h");
}

TensorId Builder::mlp(int32_t layer, TensorId hidden) {
  const int64_t D = config_.hidden_size;
  const int64_t F = config_.intermediate_size;
  const bool bias = config_.form.mlp_bias;
  const std::string base = prefix(layer) + "mlp.";
  const auto stored = [&](const std::string& name, int64_t rows, int64_t columns) {
    return std::vector<WeightForm>{
        {slice_of_rows(file_name(name), FileRows::all(rows), columns, family_.storage.transposed)}};
  };
  TensorId wide;
  if (config_.form.gated) {
    const std::string name = base + "gate_up_proj";
    const TensorId weight =
        param(name + ".weight", {2, F, D}, layer, matrix_init(), gate_up_forms(base, ".weight", D));
    wide = linear(layer, hidden, weight, bias ? "mlp.gate_up.product" : "mlp.gate_up");
    if (bias) {
      wide = biased(layer, wide, name, {2, F}, gate_up_forms(base, ".bias", 0), "mlp.gate_up");
    }
  } else {
    const std::string name = base + "up_proj";
    const TensorId weight =
        param(name + ".weight", {F, D}, layer, matrix_init(), stored(name + ".weight", F, D));
    wide = linear(layer, hidden, weight, bias ? "mlp.up.product" : "mlp.up");
    if (bias) {
      wide = biased(layer, wide, name, {F}, stored(name + ".bias", F, 0), "mlp.up");
    }
  }
  const std::string name = base + "down_proj";
  const TensorId inner = activated(layer, wide);
  const TensorId down =
      param(name + ".weight", {D, F}, layer, matrix_init(true), stored(name + ".weight", D, F));
  const TensorId out = linear(layer, inner, down, bias ? "mlp.out.product" : "mlp.out");
  return bias ? biased(layer, out, name, {D}, stored(name + ".bias", D, 0), "mlp.out") : out;
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
  Attrs attrs{{"top_k", K}, {"norm", int64_t{config_.norm_topk_prob ? 1 : 0}}};
  std::vector<TensorId> in{logits};
  // Inputs are whole on ranks of tp; each rank of a copy may have tokens of its own.
  const auto given = [&](const char* attribute, TensorId tensor, const std::string& name) {
    attrs.set(attribute, int64_t{1});
    in.push_back(node(layer, "copy", {}, {tensor}, name));
  };
  if (options_.routes_given) {
    const TensorId routes = graph_.input(fmt::format("{}{}", names::kRoutesOf, layer),
                                         {graph::DType::i32, {num_tokens_, K}});
    given("given", routes, "mlp.given_route");
  }
  if (options_.padded) {
    if (is_token_ == graph::kNone) {
      is_token_ = input(names::kIsToken, graph::DType::i32, num_tokens_);
    }
    given("padded", is_token_, "mlp.is_token");
  }
  const std::vector<TensorId> route =
      ops::apply(graph_, "router", attrs, in, prefix(layer) + "mlp.route", layer);
  const TensorId weights = route[0];
  const TensorId ids = route[1];
  const TensorId psum = route[3];
  if (options_.mode == BuildOptions::Mode::generate && options_.generation.routes) {
    graph_.tensors[static_cast<size_t>(ids)].name = fmt::format("{}{}", names::kRoutesOf, layer);
    graph_.outputs.push_back(ids);
  }
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
    gates_ups.push_back(file_name(fmt::format("{}experts.{}.gate_proj.weight", base, e)));
    gates_ups.push_back(file_name(fmt::format("{}experts.{}.up_proj.weight", base, e)));
    downs.push_back(file_name(fmt::format("{}experts.{}.down_proj.weight", base, e)));
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
