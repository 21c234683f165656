// SPDX-License-Identifier: Apache-2.0
// Names and defaults are those of Megatron-LM's megatron/training/arguments.py.
#include "interop/megatron_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/product.h"
#include "base/text.h"

namespace hocket::interop {

namespace {

/// Layers without experts.
std::vector<int64_t> dense_layers(MegatronArguments& arguments, const std::string& name,
                                  int64_t layers) {
  std::vector<int64_t> dense;
  if (!arguments.has("--moe-layer-freq")) return dense;
  const std::string text = arguments.text("--moe-layer-freq");
  int64_t every = 0;
  if (parse_int(text, &every) && every >= 1) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      if (layer % every != 0) {
        dense.push_back(layer);
      }
    }
    return dense;
  }
  std::vector<int64_t> pattern;
  if (!read_pattern(text, &pattern) || std::ssize(pattern) != layers) {
    fail(name, "--moe-layer-freq is {}; expected an integer, or a list like ([0]*3+[1]*{}) of {}",
         quote(text), layers - 3, counted(layers, "layer"));
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (pattern[static_cast<size_t>(layer)] == 0) {
      dense.push_back(layer);
    }
  }
  return dense;
}

/// Keys that a query sees, its own included; 0: all. The argument counts those before its own and
/// those behind it.
int64_t window_of(MegatronArguments& arguments, const std::string& name) {
  std::string text = arguments.text("--window-size");
  if (text.empty()) return 0;
  std::erase_if(text, [](char c) { return c == '(' || c == ')' || c == ' '; });
  const size_t comma = std::min(text.find(','), text.size() - 1);
  int64_t before = 0, behind = 0;
  if (!parse_int(text.substr(0, comma), &before) || !parse_int(text.substr(comma + 1), &behind) ||
      before < -1 || behind > 0) {
    fail(name, "--window-size is {}; expected tokens before a query and none behind, like 4095,0",
         quote(arguments.text("--window-size")));
  }
  return before + 1;
}

/// Builds a config.json from the file's model, with notes on differences.
class MegatronModelOf {
 public:
  MegatronModelOf(MegatronArguments& arguments, const std::string& name,
                  std::vector<std::string>* notes)
      : arguments_(arguments), name_(name), notes_(*notes) {}

  MegatronModel model() {
    read_form();
    read_sizes();
    read_feed_forward();
    read_rest();
    if (experts_ > 0) {
      read_experts();
    }
    if (is_classic_) {
      rename_for_classic();
    } else {
      read_rotary();
      note_differences();
    }
    return {model_.dump(2) + "\n"};
  }

 private:
  void note(std::string text) { notes_.push_back(std::move(text)); }
  int64_t need_size(const char* flag) {
    if (!arguments_.has(flag)) {
      fail(name_, "has no {}; expected it, or --set model.path=MODEL in its place", flag);
    }
    return arguments_.at_least(1, flag, 0);
  }

  /// Decides between the families of GPT, with LayerNorm, biases and MLPs of two products, and
  /// those of Llama.
  void read_form() {
    const std::string norm = arguments_.text("--normalization");
    const std::string positions = arguments_.text("--position-embedding-type");
    is_rotary_ = positions == "rope" || arguments_.has("--use-rotary-position-embeddings");
    const bool is_learned = !is_rotary_ && (positions.empty() || positions == "learned_absolute");
    if (!is_rotary_ && !is_learned) {
      fail(name_, "--position-embedding-type is {}; expected learned_absolute or rope",
           quote(positions));
    }
    // These make a block that only Llama's families are near to.
    const bool is_llama = std::any_of(std::begin(kOfLlama), std::end(kOfLlama),
                                      [&](const char* flag) { return arguments_.has(flag); });
    is_classic_ = !is_llama && (norm.empty() || norm == "LayerNorm") &&
                  arguments_.integer("--num-experts", 0) == 0 &&
                  arguments_.text("--window-size").empty();
    if (arguments_.has("--rotary-percent") && !(is_classic_ && is_rotary_) &&
        arguments_.number("--rotary-percent", 1) != 1) {
      fail(name_, "--rotary-percent is {}; expected 1: all of a head turns in this model",
           arguments_.text("--rotary-percent"));
    }
  }

  /// Renames keys for gpt2, with learned positions, and gpt_neox, with rotary ones.
  void rename_for_classic() {
    const int64_t heads = model_["num_attention_heads"];
    if (model_["head_dim"] != hidden_ / heads) {
      fail(name_, "--kv-channels is {}; expected {}, hidden size by heads, in this model",
           model_["head_dim"].dump(), hidden_ / heads);
    }
    nlohmann::json model = {{"vocab_size", model_["vocab_size"]},
                            {"initializer_range", model_["initializer_range"]},
                            {"tie_word_embeddings", model_["tie_word_embeddings"]}};
    if (is_rotary_) {
      model["model_type"] = "gpt_neox";
      model["hidden_size"] = hidden_;
      model["num_hidden_layers"] = layers_;
      model["num_attention_heads"] = heads;
      model["intermediate_size"] = wide_;
      model["max_position_embeddings"] = model_["max_position_embeddings"];
      model["layer_norm_eps"] = model_["rms_norm_eps"];
      model["rotary_emb_base"] = arguments_.number("--rotary-base", 10000);
      model["rotary_pct"] = arguments_.number("--rotary-percent", 1);
      model["use_parallel_residual"] = false;
      model["hidden_act"] = "gelu";
    } else {
      model["model_type"] = "gpt2";
      model["n_embd"] = hidden_;
      model["n_layer"] = layers_;
      model["n_head"] = heads;
      model["n_inner"] = wide_;
      model["n_positions"] = model_["max_position_embeddings"];
      model["layer_norm_epsilon"] = model_["rms_norm_eps"];
      model["activation_function"] = "gelu";
    }
    model_ = std::move(model);
  }

  /// Reads scaled angles: Llama 3's, or all by one factor.
  void read_rotary() {
    model_["rope_theta"] = arguments_.number("--rotary-base", 10000);
    const double factor = arguments_.number("--rotary-seq-len-interpolation-factor", 1);
    if (arguments_.has("--use-rope-scaling")) {
      model_["rope_scaling"] = {{"rope_type", "llama3"},
                                {"factor", arguments_.number("--rope-scaling-factor", 8)},
                                {"low_freq_factor", 1.0},
                                {"high_freq_factor", 4.0},
                                {"original_max_position_embeddings", 8192}};
    } else if (factor != 1) {
      model_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
    }
  }

  void read_sizes() {
    layers_ = need_size("--num-layers");
    hidden_ = need_size("--hidden-size");
    const int64_t heads = need_size("--num-attention-heads");
    experts_ = arguments_.integer("--num-experts", 0);
    const int64_t window = window_of(arguments_, name_);
    const bool has_norms = arguments_.has("--qk-layernorm"), has_bias = has_attention_bias();
    if (has_bias && (experts_ > 0 || has_norms || window > 0)) {
      fail(name_,
           "--add-qkv-bias is given beside {}; expected it in a model without; try --set "
           "model.path=MODEL of another model, to which the script's plan then belongs",
           experts_ > 0 ? "--num-experts"
           : has_norms  ? "--qk-layernorm"
                        : "--window-size");
    }
    std::string type = experts_ > 0 ? "qwen3_moe" : has_norms ? "qwen3" : "llama";
    if (type == "llama") {
      type = has_bias ? "qwen2" : window > 0 ? "mistral" : type;
    }
    model_["model_type"] = type;
    if (window > 0) {
      model_["sliding_window"] = window;
      model_["use_sliding_window"] = true;
      if (type == "qwen3") {
        model_["max_window_layers"] = 0;
      }
    }
    model_["num_hidden_layers"] = layers_;
    model_["hidden_size"] = hidden_;
    model_["num_attention_heads"] = heads;
    model_["head_dim"] = arguments_.integer("--kv-channels", hidden_ / heads);
    const bool grouped = arguments_.has("--group-query-attention");
    model_["num_key_value_heads"] = grouped ? arguments_.integer("--num-query-groups", 1) : heads;
  }

  /// Reads the width of the MLP. By default a gated one has about the parameters of an ungated one
  /// of 4 x hidden. That is two thirds of 4 x hidden, rounded down to a multiple of 64, which gives
  /// 64 for every 24 of hidden.
  void read_feed_forward() {
    const bool narrow = arguments_.has("--swiglu");
    wide_ = arguments_.integer("--ffn-hidden-size", narrow ? product_at_most({hidden_ / 24, 64})
                                                           : product_at_most({hidden_, 4}));
    is_gated_ = narrow || arguments_.has("--quick-geglu");
    if (is_gated_ || is_classic_) {
      model_["intermediate_size"] = wide_;
      return;
    }
    // Two products of this width have the parameters of three that are two thirds as wide.
    const int64_t narrower = wide_ / 3 * 2 + wide_ % 3 * 2 / 3;
    model_["intermediate_size"] = std::max<int64_t>(1, narrower);
    note(
        fmt::format("MLPs without --swiglu are gated ones of two thirds of their width here: {} "
                    "for {}",
                    narrower, wide_));
  }

  void read_rest() {
    int64_t vocabulary = arguments_.integer("--padded-vocab-size", 0);
    if (vocabulary == 0) {
      const int64_t words = words_of_tokenizer();
      const int64_t multiple =
          product_at_most({arguments_.integer("--make-vocab-size-divisible-by", 128),
                           arguments_.integer("--tensor-model-parallel-size", 1)});
      const bool is_one = multiple < 1 || words % multiple == 0;
      vocabulary = is_one ? words : product_at_most({words / multiple + 1, multiple});
      note_of_words(words, vocabulary);
    }
    model_["vocab_size"] = vocabulary;
    model_["max_position_embeddings"] =
        arguments_.integer("--max-position-embeddings", arguments_.integer("--seq-length", 4096));
    model_["rms_norm_eps"] =
        arguments_.number("--norm-epsilon", arguments_.number("--layernorm-epsilon", 1e-5));
    model_["initializer_range"] = arguments_.number("--init-method-std", 0.02);
    model_["tie_word_embeddings"] = !arguments_.has("--untie-embeddings-and-output-weights");
    model_["hidden_act"] = "silu";
  }

  /// Returns whether the tokenizer is GPT-2's, which pretrain_gpt.py takes for its files if no
  /// other is named.
  bool is_gpt2() {
    if (arguments_.has("--tokenizer-type")) {
      return arguments_.text("--tokenizer-type") == "GPT2BPETokenizer";
    }
    const bool has_words = arguments_.has("--vocab-file");
    return arguments_.has("--merge-file") || has_words;
  }

  /// Number of the tokenizer's tokens, if the script does not give it itself.
  int64_t words_of_tokenizer() {
    constexpr int64_t kGpt2 = 50257;
    return !arguments_.has("--vocab-size") && is_gpt2() ? kGpt2 : need_size("--vocab-size");
  }
  void note_of_words(int64_t words, int64_t padded) {
    if (arguments_.has("--vocab-size")) return;
    note(
        fmt::format("the vocabulary is that of GPT-2's tokenizer, {} tokens, padded to {}: the "
                    "script has no --vocab-size",
                    words, padded));
  }

  void read_experts() {
    model_["num_experts"] = experts_;
    model_["num_experts_per_tok"] = arguments_.integer("--moe-router-topk", 2);
    model_["moe_intermediate_size"] = arguments_.integer("--moe-ffn-hidden-size", wide_);
    model_["mlp_only_layers"] = dense_layers(arguments_, name_, layers_);
    model_["decoder_sparse_step"] = 1;
    // Softmax over the chosen experts is softmax over all, normalised.
    model_["norm_topk_prob"] = !arguments_.has("--moe-router-pre-softmax");
    model_["router_aux_loss_coef"] = arguments_.number("--moe-aux-loss-coeff", 0);
    if (!arguments_.has("--qk-layernorm")) {
      note("queries and keys are normalised in models with experts here, as with --qk-layernorm");
    }
    if (!is_gated_) {
      fail(name_,
           "--num-experts is {} without --swiglu: MLPs of two products, where experts here have "
           "three, one of them a gate; expected --swiglu; try --set model.path=MODEL of another "
           "model, to which the script's plan then belongs",
           experts_);
    }
  }

  void note_differences() {
    if (arguments_.has("--quick-geglu")) {
      note("gates of MLPs are SiLU here, for --quick-geglu");
    }
    const std::string norm = arguments_.text("--normalization");
    if (norm != "RMSNorm") {
      note(fmt::format("norms are RMSNorm here, for {}", norm.empty() ? "LayerNorm" : norm));
    }
    if (!is_rotary_) {
      note("positions are rotary here, for learned_absolute");
    }
    if (!arguments_.has("--disable-bias-linear")) {
      note("products have no bias here");
    }
  }

  /// Flags of a block that no GPT has.
  static constexpr const char* kOfLlama[] = {"--swiglu",
                                             "--quick-geglu",
                                             "--disable-bias-linear",
                                             "--group-query-attention",
                                             "--qk-layernorm",
                                             "--squared-relu",
                                             "--add-qkv-bias",
                                             "--apply-layernorm-1p",
                                             "--use-rope-scaling",
                                             "--rotary-seq-len-interpolation-factor"};
  bool has_attention_bias() { return arguments_.has("--add-qkv-bias"); }

  MegatronArguments& arguments_;
  const std::string& name_;
  std::vector<std::string>& notes_;
  int64_t layers_ = 1, hidden_ = 1, experts_ = 0, wide_ = 1;
  bool is_gated_ = false;    ///< MLPs have three products, one of them a gate
  bool is_classic_ = false;  ///< LayerNorm, biases, MLPs of two products: a GPT
  bool is_rotary_ = false;
  nlohmann::json model_;
};

}  // namespace

MegatronModel megatron_model(MegatronArguments& arguments, const std::string& name,
                             std::vector<std::string>* notes) {
  return MegatronModelOf(arguments, name, notes).model();
}

}  // namespace hocket::interop
