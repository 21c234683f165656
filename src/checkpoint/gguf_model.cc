// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/error.h"
#include "base/text.h"
#include "gguf/special_tokens.h"

namespace hocket::checkpoint {
namespace {

using nlohmann::json;

/// Keys of an architecture that are read below, or change nothing.
constexpr const char* kKnownKeys[] = {"attention.causal",
                                      "attention.head_count",
                                      "attention.head_count_kv",
                                      "attention.key_length",
                                      "attention.layer_norm_rms_epsilon",
                                      "attention.value_length",
                                      "block_count",
                                      "context_length",
                                      "embedding_length",
                                      "expert_count",
                                      "expert_feed_forward_length",
                                      "expert_gating_func",
                                      "expert_used_count",
                                      "expert_weights_norm",
                                      "expert_weights_scale",
                                      "feed_forward_length",
                                      "rope.dimension_count",
                                      "rope.freq_base",
                                      "rope.scale_linear",
                                      "rope.scaling.attn_factor",
                                      "rope.scaling.factor",
                                      "rope.scaling.finetuned",
                                      "rope.scaling.original_context_length",
                                      "rope.scaling.type",
                                      "rope.scaling.yarn_attn_factor",
                                      "rope.scaling.yarn_beta_fast",
                                      "rope.scaling.yarn_beta_slow",
                                      "rope.scaling.yarn_ext_factor",
                                      "vocab_size"};
/// Further keys of Gemma 3.
constexpr const char* kGemmaKeys[] = {"attention.sliding_window",
                                      "attention.sliding_window_pattern", "final_logit_softcapping",
                                      "rope.freq_base_swa"};

/// Scaling of the Llama 3 models. A file has only the resulting factors.
constexpr double kLowFrequency = 1, kHighFrequency = 4, kOriginalContext = 8192;

/// Returns the decimal number that an f32 was written for: 1e-05, not 9.999999747378752e-06.
double decimal(double number) {
  double shortest = 0;
  const std::string text = fmt::format("{}", static_cast<float>(number));
  return parse_double(text, &shortest) ? shortest : number;
}

const GgufArchitecture& architecture_of_file(const gguf::File& file) {
  const gguf::Metadata& in = file.metadata();
  const std::string& name = in.string("general.architecture");
  return architecture_named(name, in.integer(name + ".expert_count", 0) > 0, file.path());
}

template <size_t n>
bool is_in(const std::string& name, const char* const (&list)[n]) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

/// Metadata of one model, as keys of a config.json.
class ConfigWriter {
 public:
  explicit ConfigWriter(const gguf::File& file)
      : file_(file), in_(file.metadata()), architecture_(architecture_of_file(file)) {}

  std::string write() {
    refuse_parts();
    refuse_unknown_keys();
    out_["model_type"] = architecture_.family;
    sizes();
    biases();
    rope();
    if (architecture_.experts) {
      experts();
    }
    if (is_gemma()) {
      gemma();
    }
    special_tokens();
    return out_.dump(2);
  }

 private:
  std::string key(const std::string& name) const {
    return std::string(architecture_.name) + "." + name;
  }

  bool is_of(std::string_view family) const { return family == architecture_.family; }
  bool is_gemma() const { return is_of("gemma3_text"); }

  /// Throws Error unless a key is absent, or has the value that llama.cpp computes with in any
  /// case.
  void expect(const char* name, double value) const {
    const std::string full = key(name);
    if (const double got = in_.number(full, value); got != value) {
      in_.fail(full, fmt::format("is {}, which is not supported; expected {}", got, value));
    }
  }

  void refuse_parts() const {
    if (const std::string type = in_.string("general.type", "model"); type != "model") {
      in_.fail("general.type", fmt::format("is {}; expected a model", quote(type)));
    }
    if (const int64_t parts = in_.integer("split.count", 1); parts > 1) {
      in_.fail("split.count",
               fmt::format("says that the model has {} files, and this is number {}; expected one "
                           "file; try llama-gguf-split --merge",
                           parts, in_.integer("split.no", 0) + 1));
    }
  }

  void refuse_unknown_keys() const {
    const std::string prefix = key("");
    for (const auto& [name, value] : in_.entries()) {
      if (!name.starts_with(prefix)) continue;
      const std::string rest = name.substr(prefix.size());
      if (!is_in(rest, kKnownKeys) && !(is_gemma() && is_in(rest, kGemmaKeys))) {
        in_.fail(name, fmt::format("is not supported; expected a plain {}", architecture_.name));
      }
    }
    if (!in_.boolean(key("attention.causal"), true)) {
      in_.fail(key("attention.causal"), "is false; expected causal attention");
    }
  }

  void sizes() {
    const int64_t heads = in_.integer(key("attention.head_count"));
    const int64_t width = in_.integer(key("embedding_length"));
    if (heads < 1) {
      in_.fail(key("attention.head_count"), fmt::format("is {}; expected 1 or more", heads));
    }
    head_dim_ = in_.integer(key("attention.key_length"), width / heads);
    if (const int64_t values = in_.integer(key("attention.value_length"), head_dim_);
        values != head_dim_) {
      in_.fail(key("attention.value_length"),
               fmt::format("is {}, which is not supported; expected {}, the length of keys", values,
                           head_dim_));
    }
    out_["hidden_size"] = width;
    out_["num_hidden_layers"] = in_.integer(key("block_count"));
    out_["num_attention_heads"] = heads;
    out_["num_key_value_heads"] = in_.integer(key("attention.head_count_kv"), heads);
    out_["head_dim"] = head_dim_;
    out_["max_position_embeddings"] = in_.integer(key("context_length"));
    out_["rms_norm_eps"] = decimal(in_.number(key("attention.layer_norm_rms_epsilon")));
    const std::string ffn = key("feed_forward_length"),
                      per_expert = key("expert_feed_forward_length");
    out_["intermediate_size"] = architecture_.experts && in_.has(per_expert)
                                    ? in_.integer(ffn, in_.integer(per_expert))
                                    : in_.integer(ffn);
    if (!is_gemma()) {
      out_["hidden_act"] = "silu";
    }
    const gguf::StoredTensor* embedding = file_.find("token_embd.weight");
    if (embedding == nullptr) fail(file_.path(), "tensor 'token_embd.weight' is missing");
    const int64_t vocabulary = embedding->dims[0];
    if (const int64_t said = in_.integer(key("vocab_size"), vocabulary); said != vocabulary) {
      in_.fail(key("vocab_size"),
               fmt::format("is {}; expected {}, the rows of token_embd.weight", said, vocabulary));
    }
    out_["vocab_size"] = vocabulary;
    out_["tie_word_embeddings"] = file_.find("output.weight") == nullptr;
  }

  /// Sets which linear layers have a bias by the tensors of the file: metadata do not say it.
  void biases() {
    const auto has = [this](const char* name) {
      return file_.find(fmt::format("blk.0.{}.bias", name)) != nullptr;
    };
    if (!is_of("qwen2") && has("attn_q")) {
      out_["attention_bias"] = true;
    }
    if (has("ffn_up")) {
      out_["mlp_bias"] = true;
    }
  }

  void rope() {
    const std::string turned = key("rope.dimension_count");
    if (const int64_t dims = in_.integer(turned, head_dim_); dims != head_dim_) {
      in_.fail(turned,
               fmt::format("is {}, which is not supported; expected {}: all of a head turns", dims,
                           head_dim_));
    }
    rope_.theta = decimal(in_.number(key("rope.freq_base"), 10000));
    out_["rope_theta"] = rope_.theta;
    // As in llama.cpp, a factor without a type is linear, and one of 0 is none.
    const bool is_typed = in_.has(key("rope.scaling.type"));
    const std::string type = in_.string(key("rope.scaling.type"), "linear");
    const char* factor_key =
        in_.has(key("rope.scaling.factor")) ? "rope.scaling.factor" : "rope.scale_linear";
    const double said = decimal(in_.number(key(factor_key), 0));
    const double factor = said == 0 ? 1 : said;
    for (const char* name : {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"}) {
      expect(name, 1);
    }
    if (type == "yarn") {
      expect("rope.scaling.yarn_ext_factor", 1);
      yarn(factor);
    } else if (type != "none" && type != "linear") {
      in_.fail(
          key("rope.scaling.type"),
          fmt::format("is {}, which is not supported; expected none, linear or yarn", quote(type)));
    } else if (type == "linear" && (is_typed || factor != 1)) {
      out_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
    }
    if (const gguf::StoredTensor* factors = file_.find(kRopeFactors)) {
      llama3_scaling(*factors);
    }
  }

  void yarn(double factor) {
    out_["rope_scaling"] = {
        {"rope_type", "yarn"},
        {"factor", factor},
        {"original_max_position_embeddings",
         in_.integer(key("rope.scaling.original_context_length"),
                     out_.at("max_position_embeddings").get<int64_t>())},
        {"beta_fast", decimal(in_.number(key("rope.scaling.yarn_beta_fast"), 32))},
        {"beta_slow", decimal(in_.number(key("rope.scaling.yarn_beta_slow"), 1))}};
  }

  /// Finds the scaling that has the file's factors: its parameters are not in the file.
  void llama3_scaling(const gguf::StoredTensor& tensor) {
    if (tensor.numel != head_dim_ / 2) {
      fail(file_.path(), "tensor '{}' has {} elements; expected {}, half of a head", kRopeFactors,
           tensor.numel, head_dim_ / 2);
    }
    std::vector<float> factors(static_cast<size_t>(tensor.numel));
    file_.read(tensor, 0, tensor.numel, graph::DType::f32, factors.data());
    rope_.scaling = "llama3";
    rope_.factor = decimal(factors.back());
    rope_.low_freq_factor = kLowFrequency;
    rope_.high_freq_factor = kHighFrequency;
    rope_.original_max_position = kOriginalContext;
    const std::vector<float> known = rope_factors(rope_, head_dim_);
    const auto alike = [](float a, float b) { return std::abs(a - b) <= 1e-4f * std::abs(b); };
    if (out_.contains("rope_scaling") ||
        !std::equal(factors.begin(), factors.end(), known.begin(), known.end(), alike)) {
      fail(file_.path(),
           "tensor '{}' has factors of another scaling of rotary frequencies than Llama 3's "
           "(low_freq_factor {}, high_freq_factor {}, original context {}), which is not supported",
           kRopeFactors, kLowFrequency, kHighFrequency, kOriginalContext);
    }
    out_["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", rope_.factor},
                            {"low_freq_factor", kLowFrequency},
                            {"high_freq_factor", kHighFrequency},
                            {"original_max_position_embeddings", kOriginalContext}};
  }

  /// Weights of a token's experts are treated as in llama.cpp, by architecture: an OLMoE's are
  /// taken as they are, others sum to one.
  void experts() {
    constexpr int kSoftmax = 1;  // or 0: not said
    const std::string gating = key("expert_gating_func");
    if (const int64_t kind = in_.integer(gating, kSoftmax); kind != 0 && kind != kSoftmax) {
      in_.fail(gating, fmt::format("is {}, which is not supported; expected 1, softmax", kind));
    }
    if (in_.number(key("expert_weights_scale"), 0) != 0) {
      expect("expert_weights_scale", 1);
    }
    const bool sum_to_one = !is_of("olmoe");
    if (in_.boolean(key("expert_weights_norm"), sum_to_one) != sum_to_one) {
      in_.fail(key("expert_weights_norm"),
               fmt::format("is {}, which is not supported; expected {}", !sum_to_one, sum_to_one));
    }
    const bool mixtral = is_of("mixtral");
    out_[mixtral ? "num_local_experts" : "num_experts"] = in_.integer(key("expert_count"));
    out_["num_experts_per_tok"] = in_.integer(key("expert_used_count"));
    const std::string width = key("expert_feed_forward_length");
    if (is_of("qwen3_moe")) {
      out_["moe_intermediate_size"] = in_.integer(width);
    } else if (in_.has(width)) {
      out_["intermediate_size"] = in_.integer(width);
    }
    if (mixtral) {
      out_["sliding_window"] = nullptr;
    } else {
      out_["norm_topk_prob"] = sum_to_one;
    }
  }

  /// Layers with and without a window alternate, and scores have a scale of the model's size: as
  /// llama.cpp knows them.
  void gemma() {
    constexpr int64_t kPattern = 6, kLayers27b = 62;
    constexpr double kLocalTheta = 10000;
    const int64_t layers = out_.at("num_hidden_layers");
    const int64_t heads = out_.at("num_attention_heads"), width = out_.at("hidden_size");
    out_["hidden_activation"] = "gelu_pytorch_tanh";
    out_["query_pre_attn_scalar"] = layers == kLayers27b ? width / heads : head_dim_;
    out_["sliding_window"] = in_.integer(key("attention.sliding_window"));
    out_["rope_local_base_freq"] = decimal(in_.number(key("rope.freq_base_swa"), kLocalTheta));
    if (in_.has(key("final_logit_softcapping"))) {
      out_["final_logit_softcapping"] = decimal(in_.number(key("final_logit_softcapping")));
    }
    std::vector<int64_t> pattern;
    const std::string pattern_key = key("attention.sliding_window_pattern");
    const gguf::Value* said = in_.find(pattern_key);
    if (said != nullptr && said->type == gguf::ValueType::array) {
      pattern = in_.integers(pattern_key);
      if (std::ssize(pattern) != layers) {
        in_.fail(pattern_key, fmt::format("has {} entries; expected one for each of the {} layers",
                                          pattern.size(), layers));
      }
    } else {
      const int64_t every = in_.integer(pattern_key, kPattern);
      for (int64_t layer = 0; layer < layers; ++layer) {
        pattern.push_back(every == 0 || (layer + 1) % every != 0 ? 1 : 0);
      }
    }
    for (const int64_t slides : pattern) {
      out_["layer_types"].push_back(slides != 0 ? "sliding_attention" : "full_attention");
    }
  }

  void special_tokens() {
    const auto id = [&](const char* name, const char* ours) {
      if (const auto found = gguf::special_token(in_, name)) {
        out_[ours] = *found;
      }
    };
    id("bos_token_id", "bos_token_id");
    id("padding_token_id", "pad_token_id");
    // The end of a turn or of a message also ends a text.
    const std::vector<int64_t> stops = gguf::stop_tokens(in_);
    if (stops.size() == 1) {
      out_["eos_token_id"] = stops[0];
    } else if (!stops.empty()) {
      out_["eos_token_id"] = stops;
    }
  }

  const gguf::File& file_;
  const gguf::Metadata& in_;
  const GgufArchitecture& architecture_;
  int64_t head_dim_ = 0;
  models::Rope rope_;
  json out_ = json::object();
};

/// Type of the numbers that an element type stands for: of quantised ones those of their scales'
/// products.
StoredType type_of(gguf::ElementType type) {
  switch (type) {
    case gguf::ElementType::f16:
      return StoredType::f16;
    case gguf::ElementType::bf16:
      return StoredType::bf16;
    default:
      return StoredType::f32;
  }
}

/// Tensors of a GGUF file under Hugging Face's names.
class GgufTensors final : public TensorFile {
 public:
  explicit GgufTensors(const std::string& path) : file_(path) {
    const models::ModelConfig config = models::parse_config(gguf_config(file_), path);
    const GgufArchitecture& architecture = architecture_of_file(file_);
    head_dim_ = config.head_dim;
    std::vector<StoredTensor> list;
    for (const gguf::StoredTensor& tensor : file_.tensors()) {
      if (tensor.name == kRopeFactors) continue;  // the configuration has the scaling
      const auto hf = hf_name_of(tensor.name, architecture);
      if (!hf) {
        fail(path, "tensor {} is not supported in a model of architecture {}", quote(tensor.name),
             architecture.name);
      }
      add(tensor, *hf, config, list);
    }
    set_tensors(std::move(list));
  }

  const std::string& path() const override { return file_.path(); }

  void read(const StoredTensor& tensor, int64_t first, int64_t count, graph::DType dtype,
            void* dst) const override {
    const TensorSource& source = sources_[static_cast<size_t>(&tensor - tensors().data())];
    const float add = -source.placement.offset;
    if (!source.placement.pairs_rows) {
      file_.read(*source.from, source.first + first, count, dtype, dst, add);
      return;
    }
    // Row by row of ours, each from its place among the pairs. A bias has an element per row.
    const int64_t columns = tensor.numel / tensor.dims[0];
    auto* out = static_cast<char*>(dst);
    for (int64_t at = first; at < first + count;) {
      const int64_t row = at / columns, column = at % columns;
      const int64_t now = std::min(columns - column, first + count - at);
      file_.read(*source.from, paired_row(row, head_dim_) * columns + column, now, dtype, out, add);
      out += now * graph::size_of(dtype);
      at += now;
    }
  }

 private:
  /// Elements of a GGUF file's tensor.
  struct TensorSource {
    const gguf::StoredTensor* from = nullptr;
    int64_t first = 0;
    GgufPlacement placement;
  };

  void add(const gguf::StoredTensor& from, const HfTensorName& hf,
           const models::ModelConfig& config, std::vector<StoredTensor>& list) {
    const auto refuse = [&](const std::string& expected) {
      fail(path(), "tensor {} has shape [{}]; expected {}", quote(from.name),
           fmt::join(graph::sizes(from.dims), ","), expected);
    };
    const int64_t rows = from.dims.empty() ? 0 : int64_t{from.dims[0]};
    if (hf.placement.pairs_rows && (rows == 0 || rows % config.head_dim != 0)) {
      refuse(fmt::format("whole heads of {} rows", config.head_dim));
    }
    if (hf.per_expert && (rows == 0 || rows != config.num_experts)) {
      refuse(fmt::format("the matrices of {} experts", config.num_experts));
    }
    const int64_t pieces = hf.per_expert ? rows : 1;
    StoredTensor tensor;
    tensor.dims = hf.per_expert ? graph::Dims(from.dims.begin() + 1, from.dims.end()) : from.dims;
    tensor.numel = from.numel / pieces;
    tensor.type = type_of(from.type);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      tensor.name = hf.per_expert ? fmt::format(fmt::runtime(hf.name), piece) : hf.name;
      list.push_back(tensor);
      sources_.push_back({&from, piece * tensor.numel, hf.placement});
    }
  }

  gguf::File file_;
  int64_t head_dim_ = 0;
  std::vector<TensorSource> sources_;
};

}  // namespace

std::string gguf_config(const gguf::File& file) { return ConfigWriter(file).write(); }

models::ModelConfig read_model_config(const std::string& path) {
  if (!gguf::is_gguf(path)) return models::read_config(path);
  return models::parse_config(gguf_config(gguf::File(path)), path);
}

TensorFiles open_tensors(const std::string& path) {
  if (!gguf::is_gguf(path)) return TensorFiles(path);
  return TensorFiles(std::make_unique<GgufTensors>(path));
}

std::vector<float> rope_factors(const models::Rope& rope, int64_t head_dim) {
  std::vector<float> factors;
  const double longest = rope.original_max_position / rope.low_freq_factor;
  const double shortest = rope.original_max_position / rope.high_freq_factor;
  for (int64_t i = 0; i < head_dim; i += 2) {
    const double frequency =
        std::pow(rope.theta, -static_cast<double>(i) / static_cast<double>(head_dim));
    const double length = 2 * std::numbers::pi / frequency;
    double factor = 1;
    if (length > longest) {
      factor = rope.factor;
    } else if (length >= shortest) {
      const double smooth = (rope.original_max_position / length - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
      factor = 1 / ((1 - smooth) / rope.factor + smooth);
    }
    factors.push_back(static_cast<float>(factor));
  }
  return factors;
}

}  // namespace hocket::checkpoint
