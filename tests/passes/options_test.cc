// SPDX-License-Identifier: Apache-2.0
// Options of passes: declared by each pass, keys of `plan`, separated by pass.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "passes/pass.h"
#include "run/compile.h"
#include "run/config.h"

namespace hocket::passes {
namespace {

TEST(PassOptions, SettingsReplaceDefaults) {
  const PassOptions plain;
  EXPECT_EQ(plain.text("recompute"), "none");
  EXPECT_EQ(plain.text("bucket_mib"), "25");
  PassOptions set({"recompute=full", "bucket_mib=0.5"});
  EXPECT_EQ(set.text("recompute"), "full");
  EXPECT_EQ(set.text("bucket_mib"), "0.5");
  // A copy is its own.
  const PassOptions copy = set;
  set = PassOptions({"recompute=selective"});
  EXPECT_EQ(copy.text("recompute"), "full");
  EXPECT_EQ(set.text("recompute"), "selective");
  EXPECT_EQ(set.text("bucket_mib"), "25");
}

TEST(PassOptions, RefusesWhatNoPassTakes) {
  for (const char* bad : {"recompute=some", "bucket_mib=-1", "bucket_mib=x", "recompte=full"}) {
    EXPECT_THROW(PassOptions({bad}), Error) << bad;
  }
  EXPECT_THROW(PassOptions().text("recompte"), Error);
}

TEST(PassOptions, AreKeysOfThePlan) {
  const std::string text =
      "model: {config: {model_type: llama, vocab_size: 8, hidden_size: 4, intermediate_size: 4, "
      "num_hidden_layers: 1, num_attention_heads: 1, num_key_value_heads: 1, head_dim: 4, "
      "rms_norm_eps: 1.0e-6, rope_theta: 10000.0, max_position_embeddings: 8, hidden_act: silu, "
      "tie_word_embeddings: false}}\n"
      "plan: {recompute: full}\n";
  const engine::Run run = engine::parse_run(text, "test", {"plan.bucket_mib=3"});
  EXPECT_EQ(run.config.plan.pass_options.text("recompute"), "full");
  EXPECT_EQ(run.config.plan.pass_options.text("bucket_mib"), "3");
  EXPECT_THROW(engine::parse_run(text, "test", {"plan.recompute=some"}), Error);
  EXPECT_THROW(engine::parse_run(text, "test", {"plan.buckets=3"}), Error);
}

/// Returns the nodes that selective recomputation repeats.
std::vector<graph::Node> repeated_nodes(const std::string& text,
                                        const std::vector<std::string>& settings) {
  graph::Graph graph = engine::reference(engine::parse_run(text, "test", {}));
  PassRunner({"recompute"}, {}, PassOptions(settings)).run(graph);
  std::vector<graph::Node> nodes;
  for (const graph::Node& node : graph.nodes) {
    if (node.recompute) {
      nodes.push_back(node);
    }
  }
  return nodes;
}

/// Returns the ops that selective recomputation repeats, in a model with experts.
std::set<std::string> repeated(const std::vector<std::string>& settings) {
  const std::string text =
      "model: {config: {model_type: qwen3_moe, vocab_size: 8, hidden_size: 4, "
      "intermediate_size: 4, moe_intermediate_size: 4, num_experts: 4, num_experts_per_tok: 2, "
      "norm_topk_prob: true, decoder_sparse_step: 1, mlp_only_layers: [], "
      "router_aux_loss_coef: 0.001, num_hidden_layers: 1, num_attention_heads: 1, "
      "num_key_value_heads: 1, head_dim: 4, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, "
      "max_position_embeddings: 8, hidden_act: silu, tie_word_embeddings: false}}\n"
      "train: {global_batch: 1, seq_len: 8}\n";
  std::set<std::string> ops;
  for (const graph::Node& node : repeated_nodes(text, settings)) {
    ops.insert(node.op);
  }
  return ops;
}

TEST(Recompute, SelectiveRepeatsTheOpsThatAreNamed) {
  using Ops = std::set<std::string>;
  const std::string selective = "recompute=selective";
  EXPECT_EQ(repeated({}), Ops{});
  EXPECT_EQ(repeated({selective}), (Ops{"rms_norm", "rope", "swiglu", "dispatch"}));
  EXPECT_EQ(repeated({selective, "recompute_ops=[rms_norm, swiglu]"}), (Ops{"rms_norm", "swiglu"}));
  EXPECT_EQ(repeated({selective, "recompute_ops=[dispatch]"}), Ops{"dispatch"});
  // Repeats the whole block, whatever ops are named.
  EXPECT_TRUE(repeated({"recompute=full", "recompute_ops=[dispatch]"}).contains("attention"));
  for (const char* wrong : {"recompute_ops=[attention]", "recompute_ops=[rmsnorm]"}) {
    try {
      repeated({selective, wrong});
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("plan.recompute_ops"), std::string::npos) << what;
      EXPECT_NE(what.find("activation, cast, dispatch, layer_norm, rms_norm, rope, swiglu, "
                          "geglu"),
                std::string::npos)
          << what;
    }
  }
}

/// A block has the products of queries (1), keys (2), values (3), attention's output (4), gate and
/// up (5, 6), and down (7). The second block's are 8 to 14.
TEST(Recompute, SelectiveRepeatsEverySoManyProducts) {
  const std::string text =
      "model: {config: {model_type: llama, vocab_size: 8, hidden_size: 4, intermediate_size: 12, "
      "num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 2, "
      "rms_norm_eps: 1.0e-6, rope_theta: 10000.0, max_position_embeddings: 8, hidden_act: silu, "
      "tie_word_embeddings: false}}\ntrain: {global_batch: 1, seq_len: 8}\n";
  const auto products = [&](const std::string& setting) {
    std::map<int32_t, int64_t> by_layer;
    for (const graph::Node& node : repeated_nodes(text, {"recompute=selective", setting})) {
      by_layer[node.layer] += node.op == "linear" ? 1 : 0;
    }
    return std::vector<int64_t>{by_layer[0], by_layer[1]};
  };
  EXPECT_EQ(products("recompute_products=0"), (std::vector<int64_t>{0, 0}));
  // Keys; queries, values, gate and up. Sums with the residual stream are kept, so no backward pass
  // reads the products of attention's output and of down.
  EXPECT_EQ(products("recompute_products=2"), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(products("recompute_products=1"), (std::vector<int64_t>{4, 4}));
  EXPECT_THROW(PassOptions({"recompute_products=-1"}), Error);
}

}  // namespace
}  // namespace hocket::passes
