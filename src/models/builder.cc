// SPDX-License-Identifier: Apache-2.0
#include "models/builder.h"

#include <cmath>

#include "base/error.h"
#include "base/math.h"
#include "base/small_float.h"
#include "graph/names.h"
#include "models/family.h"
#include "ops/build.h"
#include "ops/sample.h"
#include "ops/workspace.h"

namespace hocket::models {

using graph::Attrs;
using graph::Dims;
using graph::DType;
using graph::Init;
using graph::TensorId;
using graph::TensorKind;

namespace {

namespace names = graph::names;

constexpr int64_t kMaxTokens = int64_t{1} << 27;

void check_generation(const Generation& sizes) {
  const auto range = [](const char* what, int64_t value) {
    if (value < 1 || value > kMaxTokens) {
      fail("model", "generation has {} {}; expected 1 to {}", value, what, kMaxTokens);
    }
  };
  range("sequences", sizes.sequences);
  range("tokens of a sequence", sizes.longest);
  range("pages of the KV cache", sizes.pages);
  range("rows of logits", sizes.rows);
  range("changed logits", sizes.changes);
  range("alternatives", sizes.alternatives);
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
  if (options.mode == Mode::generate) {
    check_generation(options.generation);
  }
}

}  // namespace

Builder::Builder(const ModelConfig& config, const BuildOptions& options, bool collect_weights)
    : config_(config),
      family_(family_of(config)),
      options_(options),
      collect_weights_(collect_weights) {
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
  return param(name, std::move(dims), layer, init, {{{file_name(name), std::move(stored)}}});
}

std::string Builder::file_name(std::string name) const {
  if (!collect_weights_) return name;
  for (const auto& [ours, theirs] : family_.storage.names) {
    if (const size_t at = name.find(ours); at != name.npos) {
      name.replace(at, std::string_view(ours).size(), theirs);
    }
  }
  return name;
}

int64_t Builder::longest() const {
  if (options_.mode == BuildOptions::Mode::generate) return options_.generation.longest;
  return options_.sequence_length > 0 ? options_.sequence_length : options_.tokens;
}

TensorId Builder::input(const std::string& name, DType dtype, graph::Dim size, bool per_step) {
  return graph_.input(name, {dtype, {size}}, per_step);
}

TensorId Builder::whole_input(const std::string& name, DType dtype, graph::Dim size) {
  const TensorId id = input(name, dtype, size);
  graph_.tensors[static_cast<size_t>(id)].whole = true;
  return id;
}

Init Builder::matrix_init(bool residual) const {
  double std = config_.initializer_range;
  if (residual) {
    std /= std::sqrt(2.0 * static_cast<double>(config_.num_layers));
  }
  return {Init::Kind::normal, std};
}

void Builder::build() {
  num_tokens_ = options_.tokens;
  if (options_.mode == BuildOptions::Mode::generate) {
    // Most steps add one token to every sequence.
    const int64_t ranks = options_.token_ranks;
    const int64_t most = round_up(options_.tokens, ranks);
    const int64_t usual =
        std::min(most, round_up(options_.parts * options_.generation.sequences, ranks));
    num_tokens_ = graph_.symbol({names::kNewTokens, most, usual, ranks});
  }
  tokens_ = input(names::kTokens, DType::i32, num_tokens_);
  positions_ = input(names::kPositions, DType::i32, num_tokens_);
  if (options_.mode == BuildOptions::Mode::generate) {
    page_inputs();
  }
  if (options_.dropout > 0) {
    token_numbers_ = input(names::kTokenNumbers, DType::i64, num_tokens_);
  }
  TensorId hidden = embedding();
  for (int32_t layer = 0; layer < graph_.num_layers; ++layer) {
    hidden = block(layer, hidden);
  }
  head(hidden);
}

void Builder::page_inputs() {
  // Over the time that a sequence takes, half of its pages are full.
  const Generation& sizes = options_.generation;
  const int64_t pages = ceil_div(sizes.longest, ops::kPageTokens);
  sequences_ = input(names::kSequences, DType::i32, num_tokens_);
  const int64_t most = options_.parts * sizes.sequences;
  const graph::Dim sequences = graph_.symbol({names::kNumSequences, most, most, 1});
  const graph::Dim columns =
      graph_.symbol({names::kTablePages, pages, std::max<int64_t>(1, pages / 2), 1});
  const auto whole = [&](const char* name, Dims dims) {
    const TensorId id = graph_.input(name, {DType::i32, std::move(dims)});
    graph_.tensors[static_cast<size_t>(id)].whole = true;
    return id;
  };
  page_table_ = whole(names::kPageTable, {sequences, columns});
  page_copies_ = whole(names::kPageCopies, {sequences, 2});
}

void Builder::sampled(TensorId hidden, TensorId weight) {
  // Only the rows of tokens that are followed by a new one have logits.
  const Generation& sizes = options_.generation;
  const int32_t last = graph_.num_layers;
  const TensorId all = logits(hidden, weight);
  const graph::Dim rows = graph_.tensor(all).type.dims[0];
  const auto symbol = [&](const char* name, int64_t bound) {
    return graph_.symbol({name, bound, 1, 1});
  };
  const graph::Dim words = symbol(names::kMaskWords, ceil_div(config_.vocab_size, int64_t{32}));
  const graph::Dim changes = symbol(names::kNumChanges, sizes.changes);
  const auto whole = [&](const char* name, DType dtype, Dims dims) {
    const TensorId id = graph_.input(name, {dtype, std::move(dims)});
    graph_.tensors[static_cast<size_t>(id)].whole = true;
    return id;
  };
  const std::vector<TensorId> in{
      all,
      whole(names::kSampleSettings, DType::f64, {rows, ops::kNumSettings}),
      whole(names::kSampleDraws, DType::i64, {rows, ops::kNumDraws}),
      whole(names::kSampleMask, DType::i32, {rows, words}),
      whole(names::kSampleRanges, DType::i32, {rows, 2}),
      whole(names::kChangedTokens, DType::i32, {changes}),
      whole(names::kChangeCounts, DType::i32, {changes}),
      whole(names::kChangeBiases, DType::f64, {changes})};
  const int64_t vocab = sizes.vocab > 0 ? sizes.vocab : config_.vocab_size;
  Attrs attrs{{"top", std::min(sizes.alternatives, vocab)}, {"vocab", vocab}};
  if (sizes.head_parts > 1) {
    attrs.set("parts", sizes.head_parts);
  }
  const std::vector<TensorId> made = ops::apply(graph_, "sample", attrs, in, names::kSampled, last);
  graph_.outputs.push_back(all);
  graph_.outputs.insert(graph_.outputs.end(), made.begin(), made.end());
}

TensorId Builder::logits(TensorId hidden, TensorId weight) {
  const bool capped = config_.form.logits_softcap > 0;
  const int32_t last = graph_.num_layers;
  const TensorId product = ops::apply(graph_, "linear", {}, {hidden, weight},
                                      capped ? "lm_head" : names::kLogits, last)[0];
  if (!capped) return product;
  return ops::apply(graph_, "softcap", {{"cap", config_.form.logits_softcap}}, {product},
                    names::kLogits, last)[0];
}

TensorId Builder::embedding() {
  const Dims table{config_.vocab_size, config_.hidden_size};
  embedding_ = plain("model.embed_tokens.weight", table, -1, matrix_init(), table);
  if (config_.tie_word_embeddings && collect_weights_) {
    // transformers also reads files with the head's name alone.
    const WeightSlice head{file_name("lm_head.weight"), table};
    weights_.back().forms.push_back({head});
    weights_.back().aliases = {head};
  }
  TensorId hidden = ops::apply(graph_, "embedding", {{"vocab", config_.vocab_size}},
                               {tokens_, embedding_}, "model.embed_tokens", -1)[0];
  if (const double factor = config_.form.embedding_scale; factor != 1) {
    const bool rounds = options_.dtype == DType::bf16 && family_of(config_).rounds_embedding_scale;
    const double kept = rounds ? Bf16::decode(Bf16::encode(factor)) : factor;
    hidden = ops::apply(graph_, "scale", {{"factor", kept}}, {hidden}, "model.embed_tokens.scaled",
                        -1)[0];
  }
  if (const int64_t rows = config_.form.position_table; rows > 0) {
    if (longest() > rows) {
      fail("model", "a sequence has {} tokens; expected at most {}: the learned positions",
           longest(), rows);
    }
    const Dims places{rows, config_.hidden_size};
    const TensorId positions =
        plain("model.embed_positions.weight", places, -1, matrix_init(), places);
    const TensorId added =
        ops::apply(graph_, "embedding", {{"vocab", rows}, {"padded", int64_t{1}}},
                   {positions_, positions}, "model.embed_positions", -1)[0];
    hidden = ops::apply(graph_, "add", {}, {hidden, added}, "model.embed", -1)[0];
  }
  return hidden;
}

void Builder::head(TensorId hidden) {
  using Mode = BuildOptions::Mode;
  const int32_t last = graph_.num_layers;
  const Dims table{config_.vocab_size, config_.hidden_size};
  const Form& form = config_.form;
  if (options_.mode == Mode::generate) {
    const graph::Dim rows =
        graph_.symbol({names::kNumRows, options_.generation.rows, options_.generation.rows, 1});
    const TensorId chosen = whole_input(names::kRows, DType::i32, rows);
    hidden = ops::apply(graph_, "gather_rows", {}, {hidden, chosen}, "model.rows", last)[0];
  }
  TensorId normed = norm_of(last, hidden, "model.norm", "model.norm");
  if (form.logits_scale != 1) {
    normed = ops::apply(graph_, "scale", {{"factor", form.logits_scale}}, {normed},
                        "model.norm.scaled", last)[0];
  }
  if (config_.value_head) return values(normed);
  const TensorId weight = config_.tie_word_embeddings
                              ? embedding_
                              : plain("lm_head.weight", table, last, matrix_init(), table);
  if (options_.mode == Mode::generate) return sampled(normed, weight);
  if (options_.mode == Mode::logits) {
    graph_.outputs.push_back(logits(normed, weight));
    return;
  }
  const TensorId targets = input(names::kTargets, DType::i32, options_.tokens);
  if (options_.mode == Mode::logprobs) {
    logprobs(normed, weight, targets);
    return;
  }
  const TensorId scale = input(names::kLossScale, DType::f64, 1, true);
  if (options_.policy) {
    policy_loss(normed, weight, targets, scale);
    graph_.losses.insert(graph_.losses.end(), balance_losses_.begin(), balance_losses_.end());
    return;
  }
  if (options_.answers > 0) {
    graph_.losses.push_back(answer_loss(logprobs(normed, weight, targets), scale));
    graph_.losses.insert(graph_.losses.end(), balance_losses_.begin(), balance_losses_.end());
    return;
  }
  Attrs attrs{{"grad", int64_t{options_.grad ? 1 : 0}}};
  if (form.logits_softcap > 0) {
    attrs.set("softcap", form.logits_softcap);
  }
  if (options_.token_metrics) {
    attrs.set("metrics", int64_t{1});
  }
  const std::vector<TensorId> made = ops::apply(graph_, "linear_cross_entropy", attrs,
                                                {normed, weight, targets, scale}, "loss", last);
  graph_.losses.push_back(made[0]);
  graph_.losses.insert(graph_.losses.end(), balance_losses_.begin(), balance_losses_.end());
  if (!options_.token_metrics) return;
  const auto sum_of = [&](TensorId per_token, const char* name) {
    const TensorId sum = ops::apply(graph_, "token_sum", {}, {per_token, scale}, name, last)[0];
    graph_.outputs.push_back(sum);
  };
  sum_of(made[made.size() - 2], names::kEntropySum);
  sum_of(made[made.size() - 1], names::kMissesSum);
}

std::vector<TensorId> Builder::token_logprobs(TensorId hidden, TensorId weight, TensorId targets) {
  Attrs attrs;
  if (const double cap = config_.form.logits_softcap; cap > 0) {
    attrs.set("softcap", cap);
  }
  if (options_.temperature != 1) {
    attrs.set("temperature", options_.temperature);
  }
  if (options_.mode == BuildOptions::Mode::train && options_.answers > 0) {
    attrs.set("metrics", int64_t{1});
  }
  return ops::apply(graph_, "token_logprobs", attrs, {hidden, weight, targets}, names::kLogprobs,
                    graph_.num_layers);
}

void Builder::values(TensorId hidden) {
  using Mode = BuildOptions::Mode;
  const int32_t last = graph_.num_layers;
  if (options_.mode != Mode::train && options_.mode != Mode::logprobs && !collect_weights_) {
    fail("model", "it is a critic, with a value per token and no words; expected a language model");
  }
  const Dims vector{1, config_.hidden_size};
  // transformers' name of the head of one label.
  const TensorId weight = plain("score.weight", vector, last, matrix_init(), vector);
  const TensorId made = ops::apply(graph_, "linear", {}, {hidden, weight}, names::kValues, last)[0];
  graph_.outputs.push_back(made);
  if (options_.mode != Mode::train) return;
  const auto per_token = [&](const char* name) { return input(name, DType::f64, options_.tokens); };
  const std::vector<TensorId> in{made, per_token(names::kOldValues), per_token(names::kReturns),
                                 per_token(names::kTokenWeights),
                                 input(names::kLossScale, DType::f64, 1, true)};
  const Attrs attrs{{"clip", options_.value_clip}, {"grad", int64_t{options_.grad ? 1 : 0}}};
  graph_.losses.push_back(ops::apply(graph_, "value_loss", attrs, in, "loss", last)[0]);
  graph_.losses.insert(graph_.losses.end(), balance_losses_.begin(), balance_losses_.end());
}

void Builder::policy_loss(TensorId hidden, TensorId weight, TensorId targets, TensorId scale) {
  const int32_t last = graph_.num_layers;
  const std::vector<TensorId> of_tokens = token_logprobs(hidden, weight, targets);
  graph_.outputs.insert(graph_.outputs.end(), {of_tokens[0], of_tokens[1]});
  const PolicyLoss& policy = *options_.policy;
  const auto per_token = [&](const char* name) { return input(name, DType::f64, options_.tokens); };
  const auto with_grad = [&](Attrs attrs) {
    attrs.set("grad", int64_t{options_.grad ? 1 : 0});
    return attrs;
  };
  if (policy.samples > 0) {
    const TensorId samples = input(names::kAnswers, DType::i32, options_.tokens);
    const TensorId sums = ops::apply(graph_, "segment_sum", {{"segments", policy.samples}},
                                     {of_tokens[0], samples}, "sample_logprobs", last)[0];
    const auto per_sample = [&](const char* name) {
      return whole_input(name, DType::f64, policy.samples);
    };
    const std::vector<TensorId> of_samples{sums,
                                           per_sample(names::kSampleOldLogprobs),
                                           per_sample(names::kSampleAdvantages),
                                           per_sample(names::kSampleWeights),
                                           per_sample(names::kSampleLengths),
                                           scale};
    graph_.losses.push_back(ops::apply(graph_, "sequence_policy_loss", with_grad(policy.of_samples),
                                       of_samples, "loss", last)[0]);
  }
  if (policy.of_tokens.empty()) return;
  const std::vector<TensorId> in{of_tokens[0],
                                 of_tokens[1],
                                 per_token(names::kOldLogprobs),
                                 per_token(names::kReferenceOfTokens),
                                 per_token(names::kAdvantages),
                                 per_token(names::kTokenWeights),
                                 scale};
  graph_.losses.push_back(ops::apply(graph_, "policy_loss", with_grad(policy.of_tokens), in,
                                     policy.samples > 0 ? names::kLossOfTokens : "loss", last)[0]);
}

TensorId Builder::logprobs(TensorId hidden, TensorId weight, TensorId targets) {
  const int32_t last = graph_.num_layers;
  const std::vector<TensorId> of_tokens = token_logprobs(hidden, weight, targets);
  if (options_.mode == BuildOptions::Mode::logprobs) {
    graph_.outputs.insert(graph_.outputs.end(), {of_tokens[0], of_tokens[1]});
  }
  if (options_.answers == 0) return of_tokens[0];
  const TensorId answers = input(names::kAnswers, DType::i32, options_.tokens);
  const auto sums_of = [&](TensorId of_token, const char* name) {
    const TensorId sums = ops::apply(graph_, "segment_sum", {{"segments", options_.answers}},
                                     {of_token, answers}, name, last)[0];
    graph_.outputs.push_back(sums);
    return sums;
  };
  const TensorId sums = sums_of(of_tokens[0], names::kAnswerLogprobs);
  if (options_.mode == BuildOptions::Mode::train) {
    sums_of(of_tokens[1], names::kAnswerEntropies);
    sums_of(of_tokens[3], names::kAnswerLogits);
    sums_of(of_tokens[4], names::kAnswerMisses);
  }
  return sums;
}

TensorId Builder::answer_loss(TensorId logprobs, TensorId scale) {
  const graph::Dim answers = options_.answers;
  std::vector<TensorId> in{logprobs, whole_input(names::kReference, DType::f64, answers),
                           whole_input(names::kAnswerWeights, DType::f64, answers)};
  if (options_.answer_loss == "kto_loss") {
    in.push_back(whole_input(names::kAnswerSides, DType::i32, answers));
    in.push_back(whole_input(names::kDivergence, DType::f64, 1));
  } else {
    in.push_back(whole_input(names::kAnswerLengths, DType::f64, answers));
  }
  in.push_back(scale);
  Attrs attrs = options_.answer_loss_attrs;
  attrs.set("grad", int64_t{options_.grad ? 1 : 0});
  return ops::apply(graph_, options_.answer_loss, attrs, in, "loss", graph_.num_layers)[0];
}

TensorId Builder::norm_of(int32_t layer, TensorId hidden, const std::string& base,
                          const std::string& name) {
  const Dims width{graph_.tensor(hidden).type.dims.back()};
  const Form& form = config_.form;
  const Init init{Init::Kind::constant, 1 - form.norm_offset};
  const TensorId weight = plain(base + ".weight", width, layer, init, width);
  Attrs attrs{{"eps", config_.rms_norm_eps}};
  if (form.norm == "layer") {
    const TensorId bias = plain(base + ".bias", width, layer, kZeros, width);
    return ops::apply(graph_, "layer_norm", attrs, {hidden, weight, bias}, name, layer)[0];
  }
  if (form.norm_offset != 0) {
    attrs.set("offset", form.norm_offset);
  }
  return ops::apply(graph_, "rms_norm", attrs, {hidden, weight}, name, layer)[0];
}

}  // namespace hocket::models
