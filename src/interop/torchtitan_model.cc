// SPDX-License-Identifier: Apache-2.0
#include "interop/torchtitan_model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace hocket::interop {

namespace {

class TorchtitanModelOf {
 public:
  TorchtitanModelOf(Settings& job, std::string path, const std::string& name,
                    std::vector<std::string>* notes)
      : job_(job), path_(std::move(path)), name_(name), notes_(*notes) {}

  std::string config() {
    const ConfigNode* layers = job_.node(path_ + ".layers");
    if (layers == nullptr || layers->kind != ConfigNode::Kind::list || layers->items.empty()) {
      return "";
    }
    const int64_t count = std::ssize(layers->items);
    const std::string first = at(0);
    if (!job_.has(first + ".attention.n_heads") || !job_.has(first + ".attention.wo")) {
      fail(name_,
           "{}.attention is none of grouped queries; expected n_heads and wo in it; try --set "
           "model.path=MODEL, to which the file's plan then belongs",
           first);
    }
    read_layers(count);
    read_attention(first + ".attention");
    model_["num_hidden_layers"] = count;
    model_["hidden_size"] = need(path_ + ".dim");
    model_["vocab_size"] = need(path_ + ".vocab_size");
    model_["tie_word_embeddings"] = job_.truth(path_ + ".enable_weight_tying", false);
    model_["rms_norm_eps"] = job_.number(path_ + ".norm.eps", 1e-5);
    model_["hidden_act"] = "silu";
    return model_.dump(2) + "\n";
  }

 private:
  std::string at(int64_t layer) const { return fmt::format("{}.layers.{}", path_, layer); }
  int64_t need(const std::string& path) {
    if (!job_.has(path)) fail(name_, "has no {}; expected the model's sizes", path);
    return job_.at_least(1, path, 1);
  }

  void read_layers(int64_t count) {
    std::vector<int64_t> dense;
    for (int64_t layer = 0; layer < count; ++layer) {
      const std::string path = at(layer);
      if (job_.has(path + ".moe")) {
        read_experts(path + ".moe");
        continue;
      }
      dense.push_back(layer);
      same("intermediate_size", path + ".feed_forward.w1.out_features");
    }
    if (!has_experts_) return;
    model_["mlp_only_layers"] = dense;
    model_["decoder_sparse_step"] = 1;
    if (!model_.contains("intermediate_size")) {
      model_["intermediate_size"] = model_["moe_intermediate_size"];
    }
  }
  /// Sets a size that must be the same in all layers.
  void same(const std::string& key, const std::string& path) {
    const int64_t value = need(path);
    if (model_.contains(key) && model_[key] != value) {
      fail(name_, "{} is {}, and another layer's is {}; expected equal layers", path, value,
           model_[key].dump());
    }
    model_[key] = value;
  }

  void read_experts(const std::string& path) {
    has_experts_ = true;
    const std::string experts = job_.has(path + ".routed_experts")
                                    ? path + ".routed_experts.inner_experts"
                                    : path + ".experts";
    same("num_experts", path + ".num_experts");
    same("moe_intermediate_size", experts + ".hidden_dim");
    same("num_experts_per_tok", path + ".router.top_k");
    if (job_.has(path + ".shared_experts")) {
      job_.refuse(path + ".shared_experts",
                  "null: shared experts are not computed here; try --set model.path=MODEL");
    }
    if (job_.text(path + ".router.score_func", "sigmoid") != "softmax") {
      job_.refuse(path + ".router.score_func",
                  "softmax: routers here take the softmax of all experts; try --set "
                  "model.path=MODEL");
    }
    if (job_.has(path + ".router.num_expert_groups")) {
      job_.refuse(path + ".router.num_expert_groups", "null: experts have no groups here");
    }
    model_["norm_topk_prob"] = job_.truth(path + ".router.route_norm", false);
  }

  void read_attention(const std::string& path) {
    const int64_t heads = need(path + ".n_heads"), width = need(path + ".wo.in_features");
    model_["num_attention_heads"] = heads;
    model_["num_key_value_heads"] = job_.integer(path + ".n_kv_heads", heads);
    model_["head_dim"] = job_.integer(path + ".head_dim", width / heads);
    const bool has_norms = job_.has(path + ".qk_norm");
    model_["model_type"] = has_experts_ ? "qwen3_moe" : has_norms ? "qwen3" : "llama";
    if (has_experts_ && !has_norms) {
      notes_.push_back("queries and keys are normalised in models with experts here");
    }
    const std::string rope = path + ".rope";
    model_["rope_theta"] = job_.number(rope + ".theta", 10000);
    model_["max_position_embeddings"] = job_.integer(rope + ".max_seq_len", 4096);
    const std::string scaling = job_.text(rope + ".scaling", "none");
    if (scaling == "llama") {
      model_["rope_scaling"] = {{"rope_type", "llama3"},
                                {"factor", job_.number(rope + ".scaling_factor", 8)},
                                {"low_freq_factor", job_.number(rope + ".low_freq_factor", 1)},
                                {"high_freq_factor", job_.number(rope + ".high_freq_factor", 4)},
                                {"original_max_position_embeddings",
                                 job_.integer(rope + ".original_max_position_embeddings", 8192)}};
    } else if (scaling != "none") {
      job_.refuse(rope + ".scaling", "none or llama; try --set model.path=MODEL");
    }
  }

  Settings& job_;
  std::string path_;
  const std::string& name_;
  std::vector<std::string>& notes_;
  bool has_experts_ = false;
  nlohmann::json model_;
};

}  // namespace

std::string torchtitan_model(Settings& job, const std::string& path, const std::string& name,
                             std::vector<std::string>* notes) {
  return TorchtitanModelOf(job, path, name, notes).config();
}

}  // namespace hocket::interop
