// SPDX-License-Identifier: Apache-2.0
// config.json as transformers 4 and 5 write it, and every value that is refused.
#include "models/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/models/small_models.h"

namespace hocket::models {
namespace {

using nlohmann::json;

json llama() {
  return {{"model_type", "llama"},
          {"vocab_size", 37},
          {"hidden_size", 24},
          {"intermediate_size", 20},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 64},
          {"rope_theta", 500000.0},
          {"rope_scaling", nullptr},
          {"tie_word_embeddings", false},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"head_dim", nullptr}};
}

json qwen() {
  json c = llama();
  c["model_type"] = "qwen3_moe";
  c["num_hidden_layers"] = 4;
  c["head_dim"] = 10;
  c["num_experts"] = 6;
  c["num_experts_per_tok"] = 2;
  c["moe_intermediate_size"] = 12;
  c["norm_topk_prob"] = true;
  c["sliding_window"] = nullptr;
  c["use_sliding_window"] = false;
  return c;
}

ModelConfig parse(const json& c, bool strict = false) {
  return parse_config(c.dump(), "c", strict);
}

std::string error(const json& c, bool strict = false) {
  try {
    parse(c, strict);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "";
}

void expect_error(const json& c, const std::vector<std::string>& parts, bool strict = false) {
  const std::string text = error(c, strict);
  EXPECT_FALSE(text.empty()) << c.dump();
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  }
}

TEST(ModelConfig, ReadsLlamaOfTransformers4) {
  const ModelConfig c = parse(llama(), true);
  EXPECT_EQ(c.family, "llama");
  EXPECT_EQ(c.vocab_size, 37);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_EQ(c.head_dim, 6);  // derived
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.rope.theta, 500000.0);
  EXPECT_EQ(c.rope.scaling, "default");
  EXPECT_EQ(c.moe_layer, std::vector<bool>(2, false));
}

TEST(ModelConfig, RopeFormsAgree) {
  const json llama3 = {{"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 16}};
  json four = llama();
  four["rope_scaling"] = llama3;
  four["rope_scaling"]["rope_type"] = "llama3";
  json five = llama();
  five.erase("rope_theta");
  five.erase("rope_scaling");
  five["rope_parameters"] = llama3;
  five["rope_parameters"]["rope_type"] = "llama3";
  five["rope_parameters"]["rope_theta"] = 500000.0;
  EXPECT_EQ(parse(four).rope, parse(five).rope);
  EXPECT_EQ(parse(five).rope.scaling, "llama3");
  EXPECT_EQ(parse(five).rope.factor, 8);
  EXPECT_EQ(parse(five).rope.original_max_position, 16);
  // Without its own key, the longest context of the model.
  five["rope_parameters"].erase("original_max_position_embeddings");
  EXPECT_EQ(parse(five).rope.original_max_position, 64);

  json linear = llama();
  linear["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  EXPECT_EQ(parse(linear).rope.scaling, "linear");
  EXPECT_EQ(parse(linear).rope.factor, 2);
  // Both forms at once are accepted while they agree.
  four["rope_parameters"] = four["rope_scaling"];
  EXPECT_EQ(parse(four).rope.scaling, "llama3");
  four["rope_parameters"]["factor"] = 4.0;
  expect_error(four, {"rope_scaling and rope_parameters differ"});
  // Old configs have neither.
  json old = llama();
  old.erase("rope_theta");
  old.erase("rope_scaling");
  EXPECT_EQ(parse(old).rope, Rope{});
}

TEST(ModelConfig, ReadsExpertsOfTransformers4And5) {
  const ModelConfig four = parse(qwen(), true);
  EXPECT_EQ(four.num_experts, 6);
  EXPECT_EQ(four.head_dim, 10);
  EXPECT_TRUE(four.norm_topk_prob);
  EXPECT_EQ(four.moe_layer, std::vector<bool>(4, true));
  json five = qwen();
  five.erase("num_experts");
  five["num_local_experts"] = 6;
  five["decoder_sparse_step"] = 2;
  five["mlp_only_layers"] = {3};
  const ModelConfig c = parse(five, true);
  EXPECT_EQ(c.num_experts, 6);
  EXPECT_EQ(c.moe_layer, (std::vector<bool>{false, true, false, false}));
  five["num_experts"] = 7;
  expect_error(five, {"num_experts is 7 but num_local_experts is 6"});
}

TEST(ModelConfig, NamesUnsupportedKeys) {
  const std::vector<std::pair<json, std::vector<std::string>>> cases = {
      {{{"model_type", "mamba"}}, {"model_type", "'mamba'", "llama or mistral or mixtral or "}},
      {{{"model_type", "qwen3_next"}}, {"the nearest of them is qwen3"}},
      {{{"model_type", "mixtrall"}}, {"the nearest of them is mixtral"}},
      {{{"mlp_bias", true}}, {"mlp_bias", "not supported", "linear layers of qwen3_moe"}},
      {{{"hidden_act", "gelu"}}, {"hidden_act", "gelu", "expected silu"}},
      {{{"rope_scaling", {{"rope_type", "ntk"}, {"factor", 4.0}}}},
       {"rope_scaling.rope_type", "ntk", "default or linear or llama3"}},
      {{{"rope_scaling", {{"type", "mrope"}, {"factor", 4.0}}}}, {"rope_scaling.type", "mrope"}},
      {{{"rope_parameters", {{"rope_type", "longrope"}}}},
       {"rope_parameters.short_factor", "missing"}},
      {{{"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}},
        {"rope_theta", nullptr}},
       {"rope_parameters.partial_rotary_factor"}},
      {{{"partial_rotary_factor", 0.25}}, {"partial_rotary_factor"}},
      {{{"attention_dropout", 0.1}}, {"attention_dropout"}},
      {{{"quantization_config", {{"bits", 4}}}}, {"quantization_config"}},
      {{{"layer_types", {"full_attention", "sliding_attention"}}},
       {"layer_types", "sliding_attention", "without a sliding window"}},
      {{{"layer_types", {"full_attention", "sliding_attention"}},
        {"sliding_window", 8},
        {"use_sliding_window", true}},
       {"layer_types", "full_attention", "expected sliding_attention for all"}},
      {{{"max_window_layers", 2}, {"sliding_window", 8}, {"use_sliding_window", true}},
       {"max_window_layers is 2", "expected 0"}},
      {{{"clip_qkv", 8.0}}, {"clip_qkv is '8.0'", "expected a plain qwen3_moe"}},
      {{{"attn_logit_softcapping", 50.0}}, {"attn_logit_softcapping", "not supported"}},
      {{{"attn_logit_softcapping", 1.0}}, {"attn_logit_softcapping is '1.0'"}},
      {{{"n_shared_experts", 1}}, {"n_shared_experts is '1'"}},
      {{{"first_k_dense_replace", 1}}, {"first_k_dense_replace"}},
      {{{"residual_multiplier", 0.5}}, {"residual_multiplier"}},
      {{{"qkv_bias", true}}, {"qkv_bias", "not supported"}},
      {{{"shared_expert_intermediate_size", 512}}, {"shared_expert_intermediate_size"}},
  };
  for (const auto& [patch, parts] : cases) {
    json c = qwen();
    c.update(patch);
    expect_error(c, parts);
  }
}

TEST(ModelConfig, WindowsAsTransformersReadsThem) {
  const auto window = [](json c, const json& patch) {
    c.update(patch);
    return parse(c, true).common_window().value_or(-1);
  };
  // qwen3_moe drops its window unless use_sliding_window is set.
  EXPECT_EQ(window(qwen(), {{"sliding_window", 8}}), 0);
  EXPECT_EQ(window(qwen(), {{"sliding_window", 8}, {"use_sliding_window", nullptr}}), 0);
  EXPECT_EQ(window(qwen(), {{"sliding_window", 8}, {"use_sliding_window", true}}), 8);
  EXPECT_EQ(window(qwen(), {{"use_sliding_window", true}}), 0);  // null
  EXPECT_EQ(window(qwen(), {{"max_window_layers", 28}}), 0);
  json absent = qwen();
  absent.erase("sliding_window");
  EXPECT_EQ(window(absent, {{"use_sliding_window", true}, {"max_window_layers", 0}}), 4096);
  // mistral has a window of 4096 unless it is null; a parallel_llama has the configured one.
  json mistral = llama(), parallel = llama();
  mistral["model_type"] = "mistral";
  parallel["model_type"] = "parallel_llama";
  EXPECT_EQ(window(mistral, json::object()), 4096);
  EXPECT_EQ(window(mistral, {{"sliding_window", nullptr}}), 0);
  EXPECT_EQ(window(mistral, {{"sliding_window", 1}}), 1);
  EXPECT_EQ(window(mistral, {{"sliding_window", 5},
                             {"layer_types", {"sliding_attention", "sliding_attention"}}}),
            5);
  EXPECT_EQ(window(parallel, json::object()), 0);
  EXPECT_EQ(window(parallel, {{"sliding_window", 512}}), 512);
  EXPECT_EQ(window(parallel, {{"sliding_window", 512}, {"use_sliding_window", false}}), 0);
  // A llama has none.
  EXPECT_EQ(window(llama(), {{"sliding_window", nullptr}}), 0);
  EXPECT_EQ(window(llama(), {{"sliding_window", 8}, {"use_sliding_window", false}}), 0);
  const auto refused = [](json c, const json& patch, const std::vector<std::string>& parts) {
    c.update(patch);
    expect_error(c, parts);
  };
  refused(llama(), {{"sliding_window", 8}}, {"sliding_window is '8'", "mistral"});
  refused(mistral, {{"sliding_window", 0}}, {"sliding_window is 0", "from 1"});
  refused(mistral, {{"sliding_window", "8"}}, {"sliding_window", "expected an integer"});
  refused(mistral, {{"use_sliding_window", false}},
          {"use_sliding_window is false", "expected sliding_window: null"});
}

TEST(ModelConfig, ReadsTheFeaturesOfEveryFamily) {
  const auto read = [](const std::string& family, const json& patch = json::object()) {
    json c = small_model(family, 4);
    c.update(patch);
    return parse(c);
  };
  using Windows = std::vector<int64_t>;
  using Flags = std::vector<bool>;
  EXPECT_EQ(read("qwen2").windows, (Windows{0, 5, 5, 5}));
  EXPECT_EQ(read("qwen2", {{"use_sliding_window", false}}).windows, (Windows{0, 0, 0, 0}));
  const json types = {"sliding_attention", "full_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(read("qwen3", {{"layer_types", types}}).windows, (Windows{5, 0, 0, 5}));
  EXPECT_EQ(read("gemma2").windows, (Windows{5, 0, 5, 0}));
  EXPECT_EQ(read("gemma3_text", {{"sliding_window_pattern", 3}}).windows, (Windows{5, 5, 0, 5}));
  EXPECT_EQ(read("smollm3").rope_layer, (Flags{true, false, true, false}));
  EXPECT_EQ(read("smollm3", {{"no_rope_layers", {0, 1, 1, 0}}}).rope_layer,
            (Flags{false, true, true, false}));
  EXPECT_EQ(read("smollm3", {{"use_sliding_window", true}, {"sliding_window", 9}}).windows,
            (Windows{0, 9, 0, 9}));
  EXPECT_EQ(read("phi3").rope.dims, 6);
  EXPECT_EQ(read("gpt_neox").rope.dims, 2);  // 0.34 of 6
  EXPECT_EQ(read("gemma2").form.attention_softcap, 50);
  EXPECT_EQ(read("gemma2", {{"attn_logit_softcapping", nullptr}}).form.attention_softcap, 0);
  EXPECT_EQ(read("gemma3_text").form.logits_softcap, 0);
  EXPECT_EQ(read("gpt2").intermediate_size, 96);
  EXPECT_EQ(read("gpt2").form.position_table, 64);
  EXPECT_EQ(read("mixtral").rope.theta, 1e6);
  EXPECT_EQ(read("granite").form.logits_scale, 0.5);
  for (const char* family : {"granite", "gpt_neox"}) {
    EXPECT_EQ(read(family, {{"attention_dropout", 0.1}}).family, family);
  }
  // Gemma 3 has a rope for each kind of layer, in the words of transformers 4 and 5.
  const json four = {{"rope_theta", 2e6},
                     {"rope_local_base_freq", 5e3},
                     {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}};
  const json five = {
      {"rope_parameters",
       {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 2e6}}},
        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5e3}}}}}};
  EXPECT_EQ(read("gemma3_text", four).rope.factor, 8);
  EXPECT_EQ(read("gemma3_text", four).window_rope->theta, 5e3);
  EXPECT_EQ(read("gemma3_text", four).window_rope->scaling, "default");
  EXPECT_EQ(values_of(read("gemma3_text", four)), values_of(read("gemma3_text", five)));
  EXPECT_EQ(read("gemma3_text").rope.theta, 1e6);
  EXPECT_EQ(read("llama", {{"is_causal", true}}).family, "llama");
  EXPECT_EQ(read("gemma3_text").window_rope->theta, 1e4);
}

TEST(ModelConfig, FeaturesOfOtherFamiliesAreRefused) {
  const std::vector<std::tuple<std::string, json, std::vector<std::string>>> cases = {
      {"mistral", {{"attention_bias", true}}, {"attention_bias", "linear layers of mistral"}},
      {"mixtral", {{"router_jitter_noise", 0.1}}, {"router_jitter_noise"}},
      {"olmoe", {{"clip_qkv", 8.0}}, {"clip_qkv"}},
      {"olmoe", {{"clip_qkv", 1.0}}, {"clip_qkv is '1.0'"}},
      {"olmoe", {{"clip_qkv", 0}}, {"clip_qkv is '0'"}},
      {"qwen2", {{"layer_types", {"full_attention"}}}, {"layer_types has 1 entries"}},
      {"qwen3",
       {{"layer_types",
         {"chunked_attention", "full_attention", "full_attention", "full_attention"}}},
       {"chunked_attention", "full_attention or sliding_attention"}},
      {"qwen3",
       {{"use_sliding_window", false},
        {"layer_types",
         {"sliding_attention", "full_attention", "full_attention", "full_attention"}}},
       {"layer_types", "without a sliding window"}},
      {"smollm3", {{"no_rope_layers", {1, 0}}}, {"no_rope_layers has 2 entries"}},
      {"phi3", {{"resid_pdrop", 0.1}}, {"resid_pdrop", "train.dropout"}},
      {"phi3", {{"partial_rotary_factor", 0.5}}, {"partial_rotary_factor", "5 of the head's 10"}},
      {"gemma2", {{"use_bidirectional_attention", true}}, {"use_bidirectional_attention"}},
      {"gemma2", {{"hidden_activation", "relu"}}, {"hidden_activation", "gelu_pytorch_tanh"}},
      {"gemma3_text", {{"attn_logit_softcapping", 50.0}}, {"attn_logit_softcapping"}},
      {"gpt2", {{"add_cross_attention", true}}, {"add_cross_attention"}},
      {"gpt2", {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}, {"positions are learned"}},
      {"gpt2", {{"hidden_size", 24}}, {"hidden_size is not a key of gpt2", "n_embd"}},
      {"olmo2", {{"sliding_window", 8}}, {"sliding_window", "olmo2 has no window"}},
      {"gemma3_text", {{"sliding_window", nullptr}}, {"sliding_window is null"}},
      {"gpt2", {{"activation_function", "mish"}}, {"activation_function", "relu2"}},
      {"gpt2", {{"n_embd", 26}}, {"n_embd is 26", "n_head"}},
      {"gpt_neox", {{"num_key_value_heads", 2}}, {"num_key_value_heads"}},
      {"llama", {{"is_causal", false}}, {"is_causal is not true"}},
      {"qwen2", {{"is_causal", nullptr}}, {"is_causal is not true"}},
      {"gemma3_text",
       {{"rope_parameters", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 2e6}}}},
       {"rope_parameters is one rope", "full_attention and sliding_attention"}},
      {"gemma3_text",
       {{"rope_scaling", {{"type", "linear"}, {"factor", 8.0}}}},
       {"rope_scaling.type is 'linear'", "transformers 5 ignores", "rope_type"}},
  };
  for (const auto& [family, patch, parts] : cases) {
    json c = small_model(family, 4);
    c.update(patch);
    expect_error(c, parts);
  }
}

TEST(ModelConfig, ReadsTheTextModelOfAMultimodalOne) {
  json text = small_model("gemma3_text");
  text.erase("model_type");
  const json whole = {{"model_type", "gemma3"},
                      {"text_config", text},
                      {"vision_config", {{"hidden_size", 8}}},
                      {"eos_token_id", {1, 106}}};
  const ModelConfig c = parse(whole);
  EXPECT_EQ(c.family, "gemma3_text");
  EXPECT_EQ(c.eos_token_ids, (std::vector<int64_t>{1, 106}));
  EXPECT_EQ(json::parse(config_json(c, "float32"))["model_type"], "gemma3_text");
  json quantised = whole;
  quantised["quantization_config"] = {{"quant_method", "bitsandbytes"}};
  EXPECT_NE(error(quantised).find("quantization_config"), std::string::npos);
}

// The published Gemma 3 of 4B and more name no context.
TEST(ModelConfig, HasADefaultContextLength) {
  const std::vector<std::pair<std::string, int64_t>> contexts = {
      {"llama", 2048},  {"mistral", 131072},     {"mixtral", 131072}, {"qwen2", 32768},
      {"qwen3", 32768}, {"qwen3_moe", 32768},    {"olmo2", 2048},     {"olmoe", 4096},
      {"gemma2", 8192}, {"gemma3_text", 131072}, {"phi3", 4096},      {"smollm3", 32768}};
  for (const auto& [family, context] : contexts) {
    EXPECT_EQ(parse(small_model(family)).max_position, context) << family;
  }
}

TEST(ModelConfig, ReadsEveryScalingOfRope) {
  const auto rope = [](const std::string& family, const json& scaling,
                       const json& patch = json::object()) {
    json c = small_model(family);
    c.update({{"rope_scaling", scaling}, {"max_position_embeddings", 64}});
    c.update(patch);
    return parse(c).rope;
  };
  const Rope yarn = rope(
      "llama", {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}});
  EXPECT_EQ(yarn.attention_factor, 0.1 * std::log(4.0) + 1);
  EXPECT_EQ(yarn.original_max_position, 16);
  EXPECT_EQ(rope("llama", {{"rope_type", "yarn"}, {"original_max_position_embeddings", 16}}), yarn);
  EXPECT_EQ(rope("llama", {{"rope_type", "dynamic"}, {"factor", 2.0}}).original_max_position, 64);
  const json factors = {{"type", "su"}, {"short_factor", {1, 2, 3}}, {"long_factor", {4, 5, 6}}};
  const Rope longrope = rope("phi3", factors, {{"original_max_position_embeddings", 16}});
  EXPECT_EQ(longrope.scaling, "longrope");
  EXPECT_EQ(longrope.attention_factor, std::sqrt(1 + std::log(4.0) / std::log(16.0)));
  EXPECT_EQ(longrope.long_factor, (std::vector<double>{4, 5, 6}));
  EXPECT_THROW(rope("phi3", {{"type", "longrope"}, {"short_factor", {1, 2}}}), Error);
  // Without its key a phi3 has transformers' 4096, whatever the object says.
  const json longer = {{"max_position_embeddings", 8192}};
  EXPECT_EQ(rope("phi3", factors, longer).original_max_position, 4096);
  EXPECT_EQ(rope("phi3", factors, longer).factor, 2);
  json inside = factors;
  inside["original_max_position_embeddings"] = 16;
  EXPECT_THROW(rope("phi3", inside, longer), Error);
  const json outside = {{"original_max_position_embeddings", 16}};
  EXPECT_EQ(rope("phi3", inside, outside), longrope);
}

TEST(ModelConfig, KeysOfOtherFamiliesMayBeThereWithoutEffect) {
  json c = qwen();
  c.update({{"clip_qkv", nullptr},
            {"logit_scale", 1.0},
            {"n_group", 1},
            {"n_shared_experts", 0},
            {"residual_multiplier", 1},
            {"qkv_bias", false},
            {"unsloth_version", "2026.1"}});
  EXPECT_NO_THROW(parse(c));
}

TEST(ModelConfig, BadValuesNameTheKey) {
  const std::vector<std::pair<json, std::vector<std::string>>> cases = {
      {{{"hidden_size", "64"}}, {"hidden_size", "expected an integer"}},
      {{{"hidden_size", 0}}, {"hidden_size is 0", "from 1 to"}},
      {{{"hidden_size", -8}}, {"hidden_size is -8"}},
      {{{"vocab_size", 1e30}}, {"vocab_size"}},
      {{{"vocab_size", 18446744073709551615u}}, {"vocab_size"}},
      {{{"num_hidden_layers", 1000000000}}, {"num_hidden_layers"}},
      {{{"num_attention_heads", 5}}, {"num_attention_heads is 5", "num_key_value_heads"}},
      {{{"head_dim", 7}}, {"head_dim is 7", "even"}},
      {{{"head_dim", nullptr}, {"hidden_size", 26}}, {"hidden_size is 26", "head_dim"}},
      {{{"num_experts_per_tok", 7}}, {"num_experts_per_tok is 7", "at most num_experts"}},
      {{{"num_experts", 0}}, {"num_experts is 0"}},
      {{{"mlp_only_layers", {4}}}, {"mlp_only_layers[0] is 4", "from 0 to 3"}},
      {{{"decoder_sparse_step", 0}}, {"decoder_sparse_step"}},
      {{{"moe_intermediate_size", nullptr}}, {"moe_intermediate_size"}},
      {{{"norm_topk_prob", "yes"}}, {"norm_topk_prob", "true or false"}},
      {{{"rms_norm_eps", -1}}, {"rms_norm_eps"}},
      {{{"rope_theta", 0}}, {"rope_theta is 0"}},
      {{{"rope_scaling", {{"rope_type", "linear"}}}}, {"rope_scaling.factor", "missing"}},
      {{{"rope_scaling", 3}}, {"rope_scaling"}},
      {{{"rope_scaling",
         {{"rope_type", "llama3"},
          {"factor", 8},
          {"low_freq_factor", 4},
          {"high_freq_factor", 4}}}},
       {"rope_scaling.high_freq_factor"}},
      {{{"tie_word_embeddings", 1}}, {"tie_word_embeddings"}},
  };
  for (const auto& [patch, parts] : cases) {
    json c = qwen();
    c.update(patch);
    expect_error(c, parts);
  }
  json without = llama();
  without.erase("vocab_size");
  without["vocab_sizes"] = 3;
  expect_error(without, {"vocab_size is missing", "vocab_sizes"});
}

TEST(ModelConfig, HostileTextIsRefused) {
  for (const std::string text : {"", "[", "[]", "3", "\"x\"", "{\"model_type\": \"\xff\"}",
                                 "{\"model_type\":\"llama\",\"model_type\":\"llama\"}"}) {
    EXPECT_THROW(parse_config(text, "c"), Error) << text;
  }
  const std::string deep = "{\"a\":" + std::string(1000000, '[');
  EXPECT_THROW(parse_config(deep, "c"), Error);
  EXPECT_THROW(parse_config(deep + std::string(1000000, ']') + "}", "c"), Error);
}

// transformers reads all that Python's json reads.
TEST(ModelConfig, NanIsAllowedInUnusedKeys) {
  std::string text = llama().dump();
  text.pop_back();
  const auto with = [&text](const std::string& more) {
    return parse_config(text + more + "}", "c");
  };
  const ModelConfig c =
      with(R"(,"note":[NaN,-Infinity,"NaN \" Infinity",Infinity],"x\"NaN":{"a":NaN})");
  EXPECT_EQ(json::parse(c.json)["note"][2], "NaN \" Infinity");
  EXPECT_THROW(with(R"(,"initializer_range":NaN)"), Error);
  EXPECT_THROW(with(R"(,"note":NaNo)"), Error);
}

TEST(ModelConfig, StrictNamesTheNearestKey) {
  json c = qwen();
  c["num_expert"] = 8;
  EXPECT_NO_THROW(parse(c));
  expect_error(c, {"unknown key 'num_expert'", "did you mean 'num_experts'?"}, true);
  json dense = llama();
  dense["norm_topk_prob"] = true;
  expect_error(dense, {"unknown key 'norm_topk_prob'"}, true);
}

TEST(ModelConfig, CheckpointConfigKeepsForeignKeys) {
  json c = qwen();
  c["my_note"] = {{"a", 1}};
  c["eos_token_id"] = {3, 5};
  const ModelConfig config = parse(c);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{3, 5}));
  const json written = json::parse(config_json(config, "float64"));
  EXPECT_EQ(written["architectures"], json({"Qwen3MoeForCausalLM"}));
  EXPECT_EQ(written["torch_dtype"], "float64");
  EXPECT_EQ(written["my_note"], c["my_note"]);
  const ModelConfig again = parse(written);
  EXPECT_EQ(again.num_experts, config.num_experts);
  EXPECT_EQ(again.rope, config.rope);
  EXPECT_EQ(json::parse(generation_config_json(config))["eos_token_id"], json({3, 5}));
}

TEST(ModelConfig, ShippedConfigsRead) {
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  const std::string folder = std::string(root == nullptr ? "." : root) + "/configs/models/";
  for (const char* name : {"qwen3-30b-a3b", "moe-671b", "quickstart", "dense-26m", "moe-36m"}) {
    const ModelConfig c = read_config(folder + name);
    EXPECT_NO_THROW(parse_config(c.json, name, true)) << name;
  }
}

// A checkpoint can define where generation stops; the config's own value takes precedence.
TEST(ModelConfig, TakesTheCheckpointsEndOfTextIfItNamesNone) {
  const auto exported = [](const json& tokens) {
    json c = llama();
    c.update(tokens);
    const ModelConfig made = with_end_of_text(parse(c), 7);
    // The same in the fields, and in the config.json once that is read.
    const ModelConfig back = parse_config(config_json(made, "float32"), "c");
    EXPECT_EQ(back.eos_token_ids, made.eos_token_ids);
    EXPECT_EQ(back.bos_token_id, made.bos_token_id);
    const json generation = json::parse(generation_config_json(made));
    return json{generation["eos_token_id"], generation["bos_token_id"]}.dump();
  };
  EXPECT_EQ(exported(json::object()), "[7,7]");
  EXPECT_EQ(exported({{"eos_token_id", nullptr}, {"bos_token_id", nullptr}}), "[7,7]");
  EXPECT_EQ(exported({{"eos_token_id", 3}}), "[3,7]");
  EXPECT_EQ(exported({{"eos_token_id", {3, 4}}, {"bos_token_id", 2}}), "[[3,4],2]");
  EXPECT_EQ(exported({{"bos_token_id", -1}}), "[7,-1]");
  EXPECT_EQ(with_end_of_text(parse(llama()), -1).json, parse(llama()).json);
}

}  // namespace
}  // namespace hocket::models
