// SPDX-License-Identifier: Apache-2.0
// Compatibility of runs with a checkpoint to resume.
#include "train/resume.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/checkpoint_util.h"

namespace hocket::train {
namespace {

using checkpoint::error_of;
using models::ModelConfig;

engine::Run run_of(const std::string& family, const std::vector<std::string>& overrides = {}) {
  const nlohmann::json yaml = {
      {"model", {{"config", nlohmann::json::parse(checkpoint::small_config(family).json)}}},
      {"train", {{"global_batch", 4}, {"seq_len", 16}}}};
  return engine::parse_run(yaml.dump(), "test", overrides);
}

/// A checkpoint of a run, and the verdict of check_same_training on another run.
class Saved {
 public:
  explicit Saved(const engine::Run& run, const std::string& config = "",
                 const std::string& data = R"({"fingerprint": "abc"})") {
    std::vector<std::vector<char>> storage;
    checkpoint::CheckpointContent c;
    c.config = &run.model;
    c.params =
        checkpoint::shared(checkpoint::random_params(run.model, graph::DType::f32, 1, storage));
    c.state.seed = static_cast<uint64_t>(run.config.train.seed);
    c.state.config = config.empty() ? run.resolved.to_json().dump() : config;
    c.state.data = data;
    path_ = checkpoint::save_checkpoint(folder_.path(), c);
  }
  Position position() const { return Position::of(checkpoint::Checkpoint(path_)); }
  std::vector<std::string> changes(const engine::Run& run) const {
    return changed_settings(run, checkpoint::Checkpoint(path_));
  }
  std::string refusal(const engine::Run& run, const std::string& fingerprint = "abc") const {
    return error_of([&] { check_same_training(run, fingerprint, checkpoint::Checkpoint(path_)); });
  }

 private:
  checkpoint::TempFolder folder_;
  std::string path_;
};

TEST(SameTraining, MayResumeWithAnotherPlanScheduleAndFolder) {
  const Saved saved(run_of("qwen3_moe"));
  EXPECT_EQ(saved.refusal(run_of("qwen3_moe")), "");
  EXPECT_EQ(saved.refusal(run_of("qwen3_moe",
                                 {"plan.dp=2", "plan.pp=2", "train.steps=7", "train.minutes=3",
                                  "train.lr=0.5", "optimizer.weight_decay=0", "train.save_every=9",
                                  "train.eval_every=2", "output.dir=elsewhere", "data.dir=moved"})),
            "");
}

TEST(SameTraining, NamesTheChange) {
  const Saved saved(run_of("qwen3_moe"));
  EXPECT_TRUE(saved.changes(run_of("qwen3_moe")).empty());
  EXPECT_EQ(
      saved.changes(run_of("qwen3_moe", {"train.lr=0.5", "train.min_lr=0.25", "plan.dp=2",
                                         "plan.passes=[bucket]", "model.init=random"})),
      (std::vector<std::string>{
          "plan.dp 1 -> 2",
          R"(plan.passes ["recompute","ring_attention","chunk","overlap","tiles","bucket","compress","expand"] -> ["bucket"])",
          "train.lr 0.001 -> 0.5", "train.min_lr default -> 0.25"}));
}

/// The model is read again where it is an adapter's base, or the reference.
TEST(SameTraining, NamesAnotherModelOnlyWhereItIsReadAgain) {
  const auto changes = [](const std::vector<std::string>& overrides) {
    const engine::Run run = run_of("llama", overrides);
    nlohmann::json config = run.resolved.to_json();
    config["model"]["path"] = "elsewhere";
    return Saved(run, config.dump()).changes(run);
  };
  const std::vector<std::string> told = {R"(model.path "elsewhere" -> "")"};
  EXPECT_EQ(changes({"adapter.type=lora", "adapter.targets=[q_proj]"}), told);
  EXPECT_EQ(changes({"objective=dpo"}), told);
  EXPECT_TRUE(changes({"objective=dpo", "preference.reference=other"}).empty());
  EXPECT_TRUE(changes({"objective=sft"}).empty());
  const std::string rewards = "rl.rewards=[{type: exact}]";
  EXPECT_EQ(changes({"objective=rl", rewards, "rl.kl_coef=0.1"}), told);
  EXPECT_TRUE(changes({"objective=rl", rewards}).empty());
}

/// A key that differs need not be the reason: files may have changed as well.
TEST(SameTraining, OtherExamplesAreOfKeysOrFiles) {
  const Saved saved(run_of("llama", {"objective=sft"}));
  EXPECT_EQ(saved.refusal(run_of("llama", {"objective=sft", "data.packing=false"})), "");
  const auto refusal = [&](const std::vector<std::string>& overrides) {
    return saved.refusal(run_of("llama", overrides), "def");
  };
  EXPECT_NE(refusal({"objective=sft", "data.packing=false"})
                .find("was saved with data.packing = true; this run has data.packing = false, and "
                      "the data differ; set it back, or put changed files of data.sources back"),
            std::string::npos);
  EXPECT_NE(refusal({"objective=sft"}).find("other data under the same keys"), std::string::npos);
}

TEST(SameTraining, MissingKeysOfACheckpointCountAsDefaults) {
  engine::Run old = run_of("qwen3_moe");
  nlohmann::json config = old.resolved.to_json();
  config["plan"].erase("bucket_mib");
  config["train"].erase("balance_coef");
  config.erase("optimizer");
  config["train"]["of_a_later_version"] = 1;
  const Saved saved(old, config.dump());
  EXPECT_EQ(saved.refusal(run_of("qwen3_moe")), "");
  EXPECT_TRUE(saved.changes(run_of("qwen3_moe")).empty());
  EXPECT_EQ(saved.changes(run_of("qwen3_moe", {"plan.bucket_mib=3"})),
            std::vector<std::string>{"plan.bucket_mib 25.0 -> 3.0"});
}

TEST(SameTraining, MissingKeysOfARewardCountAsDefaults) {
  const auto reward = [](const std::string& keys) {
    return run_of("llama", {"objective=rl", "rl.rewards=[{type: json_schema" + keys + "}]"});
  };
  nlohmann::json config = reward("").resolved.to_json();
  config["rl"]["rewards"][0].erase("form");
  config["rl"].erase("failed_samples");
  const Saved saved(reward(""), config.dump());
  EXPECT_EQ(saved.refusal(reward("")), "");
  EXPECT_TRUE(saved.changes(reward("")).empty());
  const std::string got = saved.refusal(reward(", form: strict"));
  EXPECT_NE(got.find(R"(rl.rewards[0].form = "value"; this run has "strict")"), std::string::npos)
      << got;
}

TEST(SameTraining, NamesTheKeyAndBothValues) {
  const Saved saved(run_of("qwen3_moe"));
  for (const auto& [change, text] : std::vector<std::pair<std::string, std::string>>{
           {"model.dtype=f64", R"(model.dtype = "f32"; this run has "f64")"},
           {"train.seed=2", "train.seed = 1; this run has 2"},
           {"train.global_batch=8", "train.global_batch = 4; this run has 8"},
           {"train.seq_len=32", "train.seq_len = 16; this run has 32"}}) {
    const std::string got = saved.refusal(run_of("qwen3_moe", {change}));
    EXPECT_NE(got.find(text), std::string::npos) << got;
  }
  const std::string got = saved.refusal(run_of("qwen3_moe"), "def");
  EXPECT_NE(got.find(R"(data.dir's fingerprint = "abc"; this run has "def")"), std::string::npos)
      << got;
}

/// Examples follow from keys and from files.
TEST(SameTraining, NamesWhatChangedTheExamples) {
  const std::string sources = "data.sources=[{path: a}]";
  const Saved saved(run_of("llama", {"objective=sft", sources}));
  const auto refusal = [&](const std::vector<std::string>& changes) {
    std::vector<std::string> overrides = {"objective=sft", sources};
    overrides.insert(overrides.end(), changes.begin(), changes.end());
    return saved.refusal(run_of("llama", overrides), "def");
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"data.train_on=all", R"(data.train_on = "assistant"; this run has data.train_on = "all")"},
      {"data.packing=false", "with data.packing = true; this run has data.packing = false, and"},
      {"data.truncate=drop", R"(this run has data.truncate = "drop")"},
      {"data.chat_template=x", R"(chat_template = ""; this run has data.chat_template = "x")"},
      {"data.valid_fraction=0.5", "with data.valid_fraction = 0.05; this run has"},
      {"data.sources=[{path: b}]", R"(data.sources[0].path = "a"; this run has data.sources[0].)"}};
  for (const auto& [change, text] : cases) {
    const std::string got = refusal({change});
    EXPECT_NE(got.find(text), std::string::npos) << got;
  }
  const std::string both = refusal({"data.packing=false", "data.train_on=all"});
  EXPECT_NE(both.find(R"(data.train_on = "assistant", data.packing = true; this run has )"
                      R"(data.train_on = "all", data.packing = false)"),
            std::string::npos)
      << both;
  // Sets of data.evaluation are no training data.
  const std::string files = refusal({"data.evaluation=[{name: a, path: b.jsonl}]"});
  EXPECT_NE(files.find("under the same keys: files of data.sources"), std::string::npos) << files;
}

/// Without an adapter its other keys have their defaults.
TEST(SameTraining, NamesTheTypeOfTheAdapterFirst) {
  const std::string got = Saved(run_of("llama"))
                              .refusal(run_of("llama", {"adapter.type=lora", "adapter.r=4",
                                                        "adapter.targets=[q_proj]"}));
  EXPECT_NE(got.find(R"(adapter.type = "none"; this run has "lora")"), std::string::npos) << got;
}

/// Its states mean something else.
TEST(SameTraining, RefusesAnotherOptimizer) {
  const engine::Run run = run_of("qwen3_moe");
  nlohmann::json config = run.resolved.to_json();
  config["optimizer"]["name"] = "other";
  const std::string got = Saved(run, config.dump()).refusal(run);
  EXPECT_NE(got.find(R"(optimizer.name = "other"; this run has "adamw")"), std::string::npos)
      << got;
}

/// Keys of the optimizer were among those of train.
TEST(SameTraining, ReadsKeysAtTheirFormerPlace) {
  const engine::Run run = run_of("qwen3_moe");
  nlohmann::json config = run.resolved.to_json();
  config.erase("optimizer");
  config["train"]["optimizer"] = "adamw";
  config["train"]["beta2"] = 0.5;
  const Saved saved(run, config.dump());
  EXPECT_EQ(saved.refusal(run), "");
  EXPECT_EQ(saved.changes(run), std::vector<std::string>{"optimizer.beta2 0.5 -> 0.95"});
  config["train"]["optimizer"] = "other";
  EXPECT_NE(Saved(run, config.dump()).refusal(run).find(R"(optimizer.name = "other")"),
            std::string::npos);
}

TEST(Position, SaysWhereTheRunEndsAndHowFarItHadCome) {
  Position saved;
  saved.fingerprint = "abc";
  saved.course = {40, 8, 1.0 / 3};
  saved.skipped = 3;
  saved.time_s = 0.1;
  saved.tokens = 7;
  saved.generated = 5;
  const Position read = Saved(run_of("qwen3_moe"), "", saved.to_json()).position();
  EXPECT_EQ(read.course.steps, 40);
  EXPECT_EQ(read.course.since, 8);
  EXPECT_EQ(read.course.done, 1.0 / 3);
  EXPECT_EQ(read.skipped, 3);
  EXPECT_EQ(read.time_s, 0.1);
  EXPECT_EQ(read.tokens, 7);
  EXPECT_EQ(read.generated, 5);
  // Checkpoints of before say the steps alone.
  const Position older =
      Saved(run_of("qwen3_moe"), "", R"({"fingerprint": "abc", "steps": 40})").position();
  EXPECT_EQ(older.course.steps, 40);
  EXPECT_EQ(older.course.since, 0);
  EXPECT_EQ(older.skipped, 0);
}

TEST(SameTraining, EveryFieldOfTheModelCounts) {
  const engine::Run run = run_of("qwen3_moe");
  const Saved saved(run);
  const std::vector<std::pair<std::string, std::function<void(ModelConfig&)>>> changes = {
      {"model_type", [](ModelConfig& m) { m.family = "llama"; }},
      {"vocab_size", [](ModelConfig& m) { ++m.vocab_size; }},
      {"hidden_size", [](ModelConfig& m) { ++m.hidden_size; }},
      {"num_hidden_layers", [](ModelConfig& m) { ++m.num_layers; }},
      {"num_attention_heads", [](ModelConfig& m) { ++m.num_heads; }},
      {"num_key_value_heads", [](ModelConfig& m) { ++m.num_kv_heads; }},
      {"head_dim", [](ModelConfig& m) { ++m.head_dim; }},
      {"intermediate_size", [](ModelConfig& m) { ++m.intermediate_size; }},
      {"max_position_embeddings", [](ModelConfig& m) { ++m.max_position; }},
      {"sliding_window", [](ModelConfig& m) { ++m.windows.back(); }},
      {"rms_norm_eps", [](ModelConfig& m) { m.rms_norm_eps *= 2; }},
      {"initializer_range", [](ModelConfig& m) { m.initializer_range *= 2; }},
      {"tie_word_embeddings = false; this run has true",
       [](ModelConfig& m) { m.tie_word_embeddings = true; }},
      {"value_head", [](ModelConfig& m) { m.value_head = true; }},
      {"rope_theta", [](ModelConfig& m) { m.rope.theta *= 2; }},
      {"rope_type", [](ModelConfig& m) { m.rope.scaling = "linear"; }},
      {"rope factor", [](ModelConfig& m) { m.rope.factor = 2; }},
      {"rope low_freq_factor", [](ModelConfig& m) { m.rope.low_freq_factor = 2; }},
      {"rope high_freq_factor", [](ModelConfig& m) { m.rope.high_freq_factor = 2; }},
      {"original_max_position_embeddings",
       [](ModelConfig& m) { m.rope.original_max_position = 2; }},
      {"norm = ", [](ModelConfig& m) { m.form.norm = "layer"; }},
      {"norm offset", [](ModelConfig& m) { m.form.norm_offset = 1; }},
      {"head norm", [](ModelConfig& m) { m.form.head_norm = "all"; }},
      {"activation", [](ModelConfig& m) { m.form.activation = "gelu"; }},
      {"gated MLP", [](ModelConfig& m) { m.form.gated = false; }},
      {"biases of queries, keys and values", [](ModelConfig& m) { m.form.qkv_bias = true; }},
      {"bias of attention's output", [](ModelConfig& m) { m.form.o_bias = true; }},
      {"biases of the MLP", [](ModelConfig& m) { m.form.mlp_bias = true; }},
      {"parallel blocks", [](ModelConfig& m) { m.form.parallel = true; }},
      {"attention scale", [](ModelConfig& m) { m.form.attention_scale = 2; }},
      {"attention soft cap", [](ModelConfig& m) { m.form.attention_softcap = 2; }},
      {"logits soft cap", [](ModelConfig& m) { m.form.logits_softcap = 2; }},
      {"embedding scale", [](ModelConfig& m) { m.form.embedding_scale = 2; }},
      {"residual scale", [](ModelConfig& m) { m.form.residual_scale = 2; }},
      {"logits scale", [](ModelConfig& m) { m.form.logits_scale = 2; }},
      {"learned positions", [](ModelConfig& m) { m.form.position_table = 2; }},
      {"rope dims", [](ModelConfig& m) { m.rope.dims = 2; }},
      {"rope attention_factor", [](ModelConfig& m) { m.rope.attention_factor = 2; }},
      {"rope beta_fast", [](ModelConfig& m) { m.rope.beta_fast = 2; }},
      {"rope beta_slow", [](ModelConfig& m) { m.rope.beta_slow = 2; }},
      {"rope truncate", [](ModelConfig& m) { m.rope.truncate = false; }},
      {"rope short_factor", [](ModelConfig& m) { m.rope.short_factor = {2}; }},
      {"rope long_factor", [](ModelConfig& m) { m.rope.long_factor = {2}; }},
      {"window rope_theta", [](ModelConfig& m) { m.window_rope = models::Rope{.theta = 5}; }},
      {"layers with rope",
       [](ModelConfig& m) { m.rope_layer.assign(static_cast<size_t>(m.num_layers), false); }},
      {"num_experts", [](ModelConfig& m) { ++m.num_experts; }},
      {"num_experts_per_tok", [](ModelConfig& m) { ++m.top_k; }},
      {"moe_intermediate_size", [](ModelConfig& m) { ++m.moe_intermediate_size; }},
      {"norm_topk_prob", [](ModelConfig& m) { m.norm_topk_prob = !m.norm_topk_prob; }},
      {"router_aux_loss_coef", [](ModelConfig& m) { m.router_aux_loss_coef += 1; }},
      {"layers with experts", [](ModelConfig& m) { m.moe_layer.flip(); }},
      {"bos_token_id", [](ModelConfig& m) { m.bos_token_id = 5; }},
      {"pad_token_id", [](ModelConfig& m) { m.pad_token_id = 5; }},
      {"eos_token_id", [](ModelConfig& m) { m.eos_token_ids = {5}; }}};
  for (const auto& [key, change] : changes) {
    engine::Run other = run;
    change(other.model);
    const std::string got = saved.refusal(other);
    EXPECT_NE(got.find("was saved with the model's " + key), std::string::npos)
        << key << ": " << got;
  }
}

}  // namespace
}  // namespace hocket::train
