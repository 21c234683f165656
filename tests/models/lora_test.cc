// SPDX-License-Identifier: Apache-2.0
// Adapters as a transform of a model's graph.
#include "models/lora.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "autodiff/autodiff.h"
#include "base/error.h"
#include "models/build.h"
#include "ops/op.h"

namespace hocket::models {
namespace {

ModelConfig config_of(const std::string& keys) {
  return parse_config("{" + keys +
                          ", \"vocab_size\": 24, \"hidden_size\": 12, \"num_hidden_layers\": 3, "
                          "\"num_attention_heads\": 3, \"intermediate_size\": 8, "
                          "\"max_position_embeddings\": 64}",
                      "test");
}
ModelConfig small_llama(bool tied = false) {
  return config_of(std::string("\"model_type\": \"llama\", \"num_key_value_heads\": 1, "
                               "\"tie_word_embeddings\": ") +
                   (tied ? "true" : "false"));
}
ModelConfig phi3() { return config_of("\"model_type\": \"phi3\", \"num_key_value_heads\": 1"); }
ModelConfig gpt2() {
  return parse_config(
      R"({"model_type": "gpt2", "vocab_size": 24, "n_embd": 12, "n_layer": 2, "n_head": 3,
          "n_positions": 64})",
      "test");
}
ModelConfig gpt_neox() { return config_of("\"model_type\": \"gpt_neox\", \"rotary_pct\": 0.5"); }
ModelConfig moe(const std::string& dense_layers = "[]") {
  return config_of(
      "\"model_type\": \"qwen3_moe\", \"num_key_value_heads\": 1, \"head_dim\": 4, "
      "\"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 6, "
      "\"norm_topk_prob\": true, \"decoder_sparse_step\": 1, \"mlp_only_layers\": " +
      dense_layers);
}

Lora targets(std::vector<std::string> modules) {
  Lora lora;
  lora.r = 2;
  lora.lora_alpha = 6;
  lora.target_modules = std::move(modules);
  return lora;
}

graph::Graph adapted(const ModelConfig& config, const Lora& lora) {
  BuildOptions options;
  options.tokens = 8;
  graph::Graph graph = build(config, options);
  apply_lora(graph, match_lora(config, lora, "test"), true);
  return graph;
}

std::string error_of(const ModelConfig& config, const Lora& lora, LoraKeys keys = LoraKeys::peft) {
  try {
    match_lora(config, lora, "test", ExpertLayout::usual, keys);
  } catch (const Error& error) {
    return std::string(error.text());
  }
  return "";
}
testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != text.npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << text << " lacks " << part;
}

std::map<std::string, graph::Dims> stored(const LoraPlan& plan) {
  std::map<std::string, graph::Dims> dims;
  for (const ParamWeights& param : plan.weights) {
    for (const WeightSlice& slice : param.forms[0]) {
      dims[slice.name] = slice.dims;
    }
  }
  return dims;
}

TEST(Lora, TensorsHavePeftsNamesAndShapes) {
  Lora lora = targets({"q_proj", "o_proj", "up_proj"});
  lora.layers_to_transform = {1};
  const auto dims = stored(match_lora(small_llama(), lora, "test"));
  const std::string base = "base_model.model.model.layers.1.";
  const std::map<std::string, graph::Dims> want = {
      {base + "self_attn.q_proj.lora_A.weight", {2, 12}},
      {base + "self_attn.q_proj.lora_B.weight", {12, 2}},
      {base + "self_attn.o_proj.lora_A.weight", {2, 12}},
      {base + "self_attn.o_proj.lora_B.weight", {12, 2}},
      {base + "mlp.up_proj.lora_A.weight", {2, 12}},
      {base + "mlp.up_proj.lora_B.weight", {8, 2}}};
  EXPECT_EQ(dims, want);
}

TEST(Lora, OneModuleOfSeveralParametersHasOneA) {
  for (const auto& [config, name, rows] : {std::tuple{phi3(), "self_attn.qkv_proj", 20},
                                           {gpt_neox(), "attention.query_key_value", 36}}) {
    const std::string module = name;
    const LoraPlan plan =
        match_lora(config, targets({module.substr(module.find('.') + 1)}), "test");
    ASSERT_EQ(plan.modules.size(), 3u);
    ASSERT_EQ(plan.targets.size(), 9u);
    EXPECT_EQ(plan.targets[0].a, plan.targets[1].a);
    EXPECT_NE(plan.targets[0].b, plan.targets[1].b);
    std::set<int64_t> elements;  // of B: every one is that of one parameter
    for (const ParamWeights& param : plan.weights) {
      for (const WeightSlice& slice : param.forms[0]) {
        if (slice.name != kAdapterPrefix + plan.modules[0].name + ".lora_B.weight") continue;
        EXPECT_EQ(slice.dims, (graph::Dims{rows, 2}));
        for_each_run(slice, slice.offset, slice.numel(), [&](const WeightRun& run) {
          for (int64_t i = 0; i < run.count; ++i) {
            EXPECT_TRUE(elements.insert(run.stored + i).second);
          }
        });
      }
    }
    EXPECT_EQ(std::ssize(elements), rows * 2);
  }
}

TEST(Lora, ExpertsHaveBothLayouts) {
  Lora lora = targets({});
  lora.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
  const std::string base = "base_model.model.model.layers.0.mlp.experts.";
  const auto usual = stored(match_lora(moe(), lora, "test"));
  EXPECT_EQ(usual.at(base + "base_layer.lora_A.weight"), (graph::Dims{8, 12}));
  EXPECT_EQ(usual.at(base + "base_layer.lora_B.weight"), (graph::Dims{12, 8}));
  EXPECT_EQ(usual.at(base + "lora_A.weight"), (graph::Dims{8, 6}));
  EXPECT_EQ(usual.at(base + "lora_B.weight"), (graph::Dims{12, 8}));
  lora.target_parameters = {"mlp.experts.down_proj"};
  const auto swapped = stored(match_lora(moe(), lora, "test", ExpertLayout::swapped));
  EXPECT_EQ(swapped.at(base + "lora_A.weight"), (graph::Dims{8, 12}));
  EXPECT_EQ(swapped.at(base + "lora_B.weight"), (graph::Dims{6, 8}));
}

TEST(Lora, ExpertsOfTransformers4AreModules) {
  Lora lora = targets({"gate_proj", "up_proj"});
  const LoraPlan plan = match_lora(moe(), lora, "test", ExpertLayout::modules);
  auto dims = stored(plan);
  const std::string last = "base_model.model.model.layers.2.mlp.experts.3.";
  EXPECT_EQ(std::ssize(dims), 3 * 4 * 2 * 2);  // layers, experts, projections, A and B
  EXPECT_EQ(dims.at(last + "up_proj.lora_A.weight"), (graph::Dims{2, 12}));
  EXPECT_EQ(dims.at(last + "up_proj.lora_B.weight"), (graph::Dims{6, 2}));
  ASSERT_EQ(plan.targets.size(), 3u);
  EXPECT_EQ(plan.targets[0].a_dims, (graph::Dims{4, 2, 2, 12}));
  EXPECT_EQ(plan.targets[0].b_dims, (graph::Dims{4, 2, 6, 2}));
  lora.rank_pattern = {{"up_proj", 3}};
  dims = stored(match_lora(moe(), lora, "test", ExpertLayout::modules));
  EXPECT_EQ(dims.at(last + "up_proj.lora_B.weight"), (graph::Dims{6, 3}));
  EXPECT_EQ(dims.at(last + "gate_proj.lora_B.weight"), (graph::Dims{6, 2}));
  lora.rank_pattern = {{"experts.1.up_proj", 3}};
  EXPECT_THROW(match_lora(moe(), lora, "test", ExpertLayout::modules), Error);
  // In transformers 5 they are no modules.
  EXPECT_TRUE(says(error_of(moe(), targets({"up_proj"})), "name ends in 'up_proj'"));
}

TEST(Lora, NothingIsDifferentiatedBelowTheFirstAdapter) {
  Lora lora = targets({"q_proj"});
  lora.layers_to_transform = {1};
  graph::Graph graph = adapted(small_llama(), lora);
  autodiff::differentiate(graph);
  std::set<std::string> trained;
  for (const graph::ParamGrad& grad : graph.grads) {
    trained.insert(graph.tensor(grad.param).name);
  }
  EXPECT_EQ(trained, (std::set<std::string>{"model.layers.1.self_attn.q_proj.lora_A.weight",
                                            "model.layers.1.self_attn.q_proj.lora_B.weight"}));
  int64_t products = 0;
  for (const graph::Node& node : graph.nodes) {
    if (node.phase == graph::Phase::backward) {
      EXPECT_GE(node.layer, 1) << node.op;
      products += node.op == "linear_dw" ? 1 : 0;
    }
    if (node.op == "linear_cross_entropy") {
      EXPECT_EQ(node.out.size(), 2u);  // no gradient of the head
    }
  }
  EXPECT_EQ(products, 2);
}

TEST(Lora, BothMatricesAreDecayedAndBeginAsPefts) {
  const graph::Graph graph = adapted(small_llama(), targets({"down_proj"}));
  const auto& a = graph.tensor(graph.find("model.layers.0.mlp.down_proj.lora_A.weight"));
  const auto& b = graph.tensor(graph.find("model.layers.0.mlp.down_proj.lora_B.weight"));
  EXPECT_DOUBLE_EQ(a.init.value, 1 / std::sqrt(8.0));
  EXPECT_EQ(b.init.value, 0);
  EXPECT_NE(b.init.kind, graph::Init::Kind::constant);  // constants are not decayed
}

TEST(Lora, RefusesTargetsAndSettingsWithoutEffect) {
  EXPECT_TRUE(says(error_of(small_llama(), targets({"q_pro"})), "did you mean q_proj"));
  EXPECT_TRUE(says(error_of(small_llama(), targets({"embed_tokens"})), "no linear layer"));
  EXPECT_TRUE(says(error_of(small_llama(), targets({"lm_head"})), "part of the loss"));
  EXPECT_TRUE(says(error_of(small_llama(true), targets({"lm_head"})), "tied"));
  EXPECT_TRUE(says(error_of(moe(), targets({"gate"})), "router"));
  EXPECT_TRUE(says(error_of(moe(), targets({"experts.gate_up_proj"})), "in target_parameters"));
  EXPECT_TRUE(says(error_of(small_llama(), targets({})), "no targets"));
  Lora lora = targets({"q_proj"});
  lora.r = 0;
  EXPECT_TRUE(says(error_of(small_llama(), lora), "r is 0"));
  lora = targets({"q_proj"});
  lora.lora_alpha = 0;
  EXPECT_TRUE(says(error_of(small_llama(), lora), "lora_alpha is 0"));
  lora = targets({"q_proj"});
  lora.rank_pattern = {{"k_proj", 3}};
  EXPECT_TRUE(says(error_of(small_llama(), lora), "matches no module"));
  lora = targets({"q_proj"});
  lora.modules_to_save = {"embed_tokens"};
  EXPECT_TRUE(says(error_of(small_llama(true), lora), "tied"));
  lora.modules_to_save = {"gate_proj"};
  const LoraPlan half = match_lora(small_llama(), lora, "test");
  EXPECT_EQ(half.saved, std::vector<std::string>());
  EXPECT_EQ(std::ssize(half.partly_saved), 3);
  try {
    expect_whole_modules(half, "test", LoraKeys::run);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_TRUE(says(std::string(error.text()),
                     "model.layers.0.mlp.gate_proj, which is one parameter here"));
  }
  lora = targets({"q_proj", "up_proj"});
  lora.layers_to_transform = {1};
  EXPECT_EQ(error_of(moe("[1]"), lora), "");
  lora.layers_to_transform = {0, 2};
  EXPECT_TRUE(says(error_of(moe("[1]"), lora), "name of layers [0, 2] ends in 'up_proj'"));
  lora = targets({});
  lora.target_pattern = "(";
  EXPECT_TRUE(says(error_of(small_llama(), lora), "no regular expression"));
}

/// Returns the modules with an adapter, and the tensors that are saved in full.
std::pair<std::set<std::string>, std::set<std::string>> parts_of(const LoraPlan& plan) {
  std::pair<std::set<std::string>, std::set<std::string>> parts;
  for (const LoraModule& module : plan.modules) {
    parts.first.insert(module.name);
  }
  for (const auto& [name, dims] : stored(plan)) {
    if (name.find(".lora_") == name.npos) {
      parts.second.insert(name.substr(std::string(kAdapterPrefix).size()));
    }
  }
  return parts;
}

/// Names and tensors are those that PEFT 0.21 makes of the same lists.
TEST(Lora, ModulesToSaveAreThoseOfPeft) {
  const auto saved = [](std::vector<std::string> modules) {
    Lora lora = targets({"layers.0.self_attn.q_proj", "layers.0.mlp.up_proj"});
    lora.modules_to_save = std::move(modules);
    return parts_of(match_lora(small_llama(), lora, "test"));
  };
  const std::string query = "model.layers.0.self_attn.q_proj", up = "model.layers.0.mlp.up_proj";
  std::set<std::string> norms = {"model.norm.weight"}, projections;
  EXPECT_EQ(saved({"model.norm"}), (std::pair{std::set{query, up}, norms}));
  for (const std::string layer : {"0", "1", "2"}) {
    norms.insert("model.layers." + layer + ".input_layernorm.weight");
    norms.insert("model.layers." + layer + ".post_attention_layernorm.weight");
    for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
      projections.insert("model.layers." + layer + ".mlp." + projection + ".weight");
    }
  }
  EXPECT_EQ(saved({"norm"}), (std::pair{std::set{query, up}, norms}));
  // A module in one that is saved has no adapter.
  EXPECT_EQ(saved({"mlp"}), (std::pair{std::set{query}, projections}));
  EXPECT_EQ(saved({"up_proj", "gate_proj", "down_proj"}),
            (std::pair{std::set{query}, projections}));
}

TEST(Lora, RefusesModulesToSaveOfTwoMeanings) {
  const auto refusal = [](std::vector<std::string> modules, const ModelConfig& config,
                          const char* target = "q_proj") {
    Lora lora = targets({target});
    lora.modules_to_save = std::move(modules);
    return error_of(config, lora);
  };
  EXPECT_TRUE(
      says(refusal({"_proj"}, small_llama()), "q_proj has an adapter, and modules_to_save"));
  EXPECT_TRUE(says(refusal({"self_attn"}, small_llama()), "every target is in modules_to_save"));
  EXPECT_TRUE(says(refusal({"mlp", "down_proj"}, small_llama()),
                   "has model.layers.0.mlp and model.layers.0.mlp.down_proj, which is in it"));
  EXPECT_TRUE(says(refusal({"attn"}, gpt2(), "c_fc"),
                   "has transformer.h.0.attn and transformer.h.0.attn.c_attn, which is in it: PEFT "
                   "would save the inner one untrained; expected names that fit one of the two, "
                   "such as transformer.h.0.attn"));
  EXPECT_EQ(refusal({"transformer.h.0.attn"}, gpt2(), "c_fc"), "");
  EXPECT_TRUE(says(refusal({"head"}, small_llama(true)), "has lm_head: it is tied"));
  EXPECT_TRUE(says(refusal({"mlps"}, small_llama()), "did you mean mlp?"));
  EXPECT_EQ(refusal({"mlp.experts"}, moe()), "");
  Lora lora = targets({"q_proj"});
  lora.target_parameters = {"mlp.experts.down_proj"};
  lora.modules_to_save = {"experts"};
  EXPECT_TRUE(says(error_of(moe(), lora), "experts.down_proj has an adapter"));
}

TEST(Lora, WholeNamesAreTargetsInAnyLayer) {
  Lora lora = targets({"q_proj", "model.layers.2.self_attn.v_proj"});
  lora.layers_to_transform = {0};
  EXPECT_EQ(parts_of(match_lora(small_llama(), lora, "test")).first,
            (std::set<std::string>{"model.layers.0.self_attn.q_proj",
                                   "model.layers.2.self_attn.v_proj"}));
}

TEST(Lora, ErrorsSayHowATargetIsNamed) {
  Lora lora = targets({});
  lora.target_pattern = "q_proj";
  EXPECT_TRUE(says(error_of(small_llama(), lora),
                   "target_modules 'q_proj' matches no module: a regular expression is for whole "
                   "names, such as model.layers.0.self_attn.q_proj; try .*q_proj"));
  lora.target_pattern = "q_proj|v_proj";
  EXPECT_TRUE(says(error_of(small_llama(), lora, LoraKeys::run), "try regex:.*(?:q_proj|v_proj)"));
  lora.target_pattern = "q_pro";
  EXPECT_TRUE(says(error_of(small_llama(), lora), "did you mean q_proj?"));
  lora.target_pattern = ".*q_proj";
  lora.layers_to_transform = {0};
  EXPECT_TRUE(says(error_of(small_llama(), lora), "of a regular expression"));
  lora = targets({"all-linear", "q_proj"});
  EXPECT_TRUE(says(error_of(small_llama(), lora, LoraKeys::run), "expected [all-linear] alone"));
  lora = targets({"q_proj"});
  lora.target_parameters = {"q_proj"};
  EXPECT_TRUE(says(error_of(moe(), lora), "no parameter of experts has a name that ends in"));
}

TEST(Lora, ErrorsNameTheKeysOfTheFile) {
  Lora lora = targets({"q_proj"});
  lora.layers_to_transform = {5};
  EXPECT_TRUE(says(error_of(small_llama(), lora), "layers_to_transform has 5"));
  EXPECT_TRUE(says(error_of(small_llama(), lora, LoraKeys::run), "adapter.layers has 5"));
  lora = targets({"q_proj"});
  lora.lora_alpha = 0;
  EXPECT_TRUE(says(error_of(small_llama(), lora, LoraKeys::run), "adapter.alpha is 0"));
  lora = targets({"q_proj"});
  lora.rank_pattern = {{"k_proj", 3}};
  EXPECT_TRUE(says(error_of(small_llama(), lora, LoraKeys::run), "adapter.rank_pattern: 'k_proj'"));
}

TEST(Lora, PatternsSetRankAndScale) {
  Lora lora = targets({"q_proj", "v_proj"});
  lora.use_rslora = true;
  lora.rank_pattern = {{"layers.1.self_attn.v_proj", 4}};
  lora.alpha_pattern = {{"q_proj", 3}};
  for (const LoraModule& module : match_lora(small_llama(), lora, "test").modules) {
    const bool other = module.name == "model.layers.1.self_attn.v_proj";
    const bool query = module.name.ends_with("q_proj");
    EXPECT_EQ(module.r, other ? 4 : 2);
    EXPECT_DOUBLE_EQ(module.scale, (query ? 3.0 : 6.0) / std::sqrt(other ? 4.0 : 2.0));
  }
}

/// Metrics stand behind the gradient that a frozen head does not have.
TEST(Freeze, AFrozenHeadKeepsItsMetrics) {
  BuildOptions options;
  options.tokens = 8;
  options.token_metrics = true;
  const graph::Graph whole = build(small_llama(), options);
  graph::Graph graph = whole;
  freeze(graph, {"lm_head.weight"}, "test");
  EXPECT_EQ(graph.tensors.size() + 1, whole.tensors.size());
  ASSERT_EQ(graph.outputs.size(), 2u);
  EXPECT_EQ(graph.tensor(graph.outputs[0]).name, "entropy_sum");
  EXPECT_EQ(graph.tensor(graph.outputs[1]).name, "misses_sum");
  EXPECT_EQ(graph.tensor(graph.losses[0]).name, "loss");
  std::vector<std::string> summed;
  for (const graph::Node& node : graph.nodes) {
    std::vector<graph::TensorType> in, out;
    for (const graph::TensorId id : node.in) {
      in.push_back(graph.tensor(id).type);
    }
    for (const graph::TensorId id : node.out) {
      out.push_back(graph.tensor(id).type);
    }
    EXPECT_EQ(ops::find(node.op).infer(node.attrs, in), out) << node.op;
    if (node.op == "token_sum") {
      summed.push_back(graph.tensor(node.in[0]).name);
    }
  }
  EXPECT_EQ(summed, (std::vector<std::string>{"loss.3", "loss.4"}));
  autodiff::differentiate(graph);
  EXPECT_FALSE(graph.grads.empty());
}

TEST(Freeze, FreezesMatchingParametersAndRefusesUnknownPatterns) {
  BuildOptions options;
  options.tokens = 8;
  graph::Graph graph = build(small_llama(), options);
  freeze(graph, {"*.mlp.*", "lm_head.weight"}, "test");
  autodiff::differentiate(graph);
  for (const graph::ParamGrad& grad : graph.grads) {
    const std::string& name = graph.tensor(grad.param).name;
    EXPECT_EQ(name.find(".mlp."), name.npos);
    EXPECT_NE(name, "lm_head.weight");
  }
  freeze(graph, {"model.layers.[02].self_attn.?_proj.weight"}, "test");
  for (const auto& [layer, trained] : {std::pair{"0", false}, {"1", true}, {"2", false}}) {
    const std::string name = std::string("model.layers.") + layer + ".self_attn.q_proj.weight";
    EXPECT_EQ(graph.tensor(graph.find(name)).trained, trained) << name;
  }
  EXPECT_THROW(freeze(graph, {"*.mpl.*"}, "test"), Error);
  EXPECT_THROW(freeze(graph, {"*"}, "test"), Error);
}

}  // namespace
}  // namespace hocket::models
