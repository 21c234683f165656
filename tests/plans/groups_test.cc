// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// plan.shard with groups: each of parameters, gradients and optimizer states not split, split among
// the ranks of a group, or among all (PaRO, Wu et al., arXiv 2310.06003). Tests results, a rank's
// memory, and the bytes on links inside nodes and between them in a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "check/check.h"
#include "cost/cost_model.h"
#include "plan_util.h"
#include "program/memory.h"
#include "sim/simulator.h"
#include "tests/cluster_util.h"
#include "tests/programs/program_builder_util.h"

namespace hocket::test::groups_test {
namespace {

const std::array<const char*, 3> kAmong = {"none", "group", "all"};

/// Bytes are measured on two nodes of two ranks, with a group on each node.
constexpr int kRanks = 4, kGroup = 2, kMicroBatches = 4;

/// Indices into kAmong for parameters, gradients and states.
struct Split {
  int params = 0, grads = 0, states = 0;
  std::string keys() const {
    return fmt::format("params: {}, grads: {}, optimizer: {}", kAmong[static_cast<size_t>(params)],
                       kAmong[static_cast<size_t>(grads)], kAmong[static_cast<size_t>(states)]);
  }
  std::string grouped() const { return fmt::format("{}, group: {}", keys(), kGroup); }
  /// Returns the name in PaRO, such as "IIG": Not split, in the group (Intra), or Globally.
  std::string letters() const { return {"NIG"[params], "NIG"[grads], "NIG"[states]}; }
  /// Returns whether states are split at least as far as parameters and gradients.
  bool legal() const { return states >= std::max(params, grads); }
};

std::vector<Split> all_splits() {
  std::vector<Split> all;
  for (int code = 0; code < 27; ++code) {
    all.push_back({code / 9, code / 3 % 3, code % 3});
  }
  return all;
}

/// Returns all splits; fewer under sanitizers.
std::vector<Split> some_splits() {
  std::vector<Split> some;
  const std::vector<Split> all = all_splits();
  for (size_t i = 0; i < all.size(); i += is_sanitized() ? 4 : 1) {
    some.push_back(all[i]);
  }
  return some;
}

Case model(const std::string& plan, bool moe) {
  Case c;
  c.seed = 7;
  c.name = plan;
  c.text = fmt::format(
      "model:\n  dtype: f64\n  config: {{model_type: {}, vocab_size: 24, hidden_size: 8, "
      "num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, "
      "intermediate_size: 9, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, tie_word_embeddings: true, "
      "max_position_embeddings: 64, hidden_act: silu{}}}\n"
      "train: {{seq_len: 6, global_batch: 16, warmup_steps: 0, lr: 0.01}}\n"
      "plan: {{{}, threads_per_rank: 1, timeout_s: 60}}\n",
      moe ? "qwen3_moe" : "llama",
      moe ? ", num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 6, norm_topk_prob: "
            "true, router_aux_loss_coef: 0.05, decoder_sparse_step: 1, mlp_only_layers: []"
          : "",
      plan);
  return c;
}

std::string refusal(const Case& c) {
  try {
    engine::compile(engine::parse_run(c.text, c.name, {}));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_equal(const Case& c) {
  SCOPED_TRACE(c.name);
  const engine::Compiled made = engine::compile(engine::parse_run(c.text, c.name, {}));
  const check::Verdict verdict = check::check(made.program, made.reference);
  ASSERT_TRUE(verdict.ok()) << to_text(verdict);
  EXPECT_EQ(difference(train(c, {.steps = 2, .poison = true}),
                       train(c, {.on_one_rank = true, .steps = 2})),
            "");
}

/// Each of the 27: 14 equal one rank, 13 are refused, with the reason.
TEST(Groups, EveryCombinationIsRightOrRefused) {
  int legal = 0;
  for (const Split& split : some_splits()) {
    const Case c =
        model(fmt::format("dp: 4, micro_batch: 1, shard: {{{}, group: 2}}", split.keys()), false);
    if (split.legal()) {
      ++legal;
      expect_equal(c);
    } else {
      EXPECT_NE(refusal(c).find("try to leave plan.shard.optimizer out"), std::string::npos)
          << c.name << ": " << refusal(c);
    }
  }
  EXPECT_EQ(legal, is_sanitized() ? 4 : 14);
}

/// Groups along edp, ep, ep_inner and cp, with a pipeline, halves of ranks that share experts, and
/// sizes that do not divide.
TEST(Groups, CombineWithAllAxes) {
  for (const char* plan :
       {"dp: 8, micro_batch: 1, shard: {params: group, grads: group, group: 4}",
        "dp: 4, cp: 2, micro_batch: 1, shard: {params: group, grads: all, group: 4}",
        "dp: 2, cp: 2, micro_batch: 2, shard: {params: group, grads: group, optimizer: all, "
        "group: 2}",
        "pp: 2, dp: 4, micro_batch: 1, shard: {params: group, optimizer: all, group: 2}",
        "dp: 4, tp: 2, micro_batch: 2, shard: {grads: group, group: 2}"}) {
    expect_equal(model(plan, false));
  }
  for (const char* plan :
       {"dp: 8, ep: 2, micro_batch: 2, shard: {params: group, grads: group, group: 4}",
        "dp: 4, ep: 2, micro_batch: 2, shard: {params: group, grads: all, group: 2}",
        "dp: 4, ep: 4, ep_inner: 2, micro_batch: 2, shard: {params: group, optimizer: all, group: "
        "2}",
        "pp: 2, dp: 4, ep: 2, micro_batch: 1, recompute: full, shard: {params: group, group: 2}"}) {
    expect_equal(model(plan, true));
  }
}

TEST(Groups, RefusesImpossibleGroups) {
  const std::map<std::string, std::string> cases = {
      {"dp: 4, shard: {params: group}", "plan.shard.group is 0; expected the ranks of a group"},
      {"dp: 4, shard: {params: group, group: 3}", "plan.shard.group is 3; expected one of 1, 2, 4"},
      {"dp: 4, cp: 2, shard: {params: group, group: 1}", "expected one of 2, 4, 8"},
      {"dp: 4, shard: {params: near, group: 2}", "none, group, all"},
  };
  for (const auto& [plan, what] : cases) {
    EXPECT_NE(refusal(model(plan + ", micro_batch: 1", false)).find(what), std::string::npos)
        << plan << ": " << refusal(model(plan + ", micro_batch: 1", false));
  }
}

/// Compiles a model nearly all of whose parameters are matrices that four ranks divide. `shard` has
/// the keys of plan.shard.
engine::Compiled measured(const std::string& shard, int micro_batches = kMicroBatches,
                          int ranks = kRanks, int width = 128) {
  return engine::compile(engine::parse_run(
      fmt::format(
          "model:\n  config: {{model_type: llama, vocab_size: 64, hidden_size: {}, "
          "num_hidden_layers: 16, num_attention_heads: 4, num_key_value_heads: 4, head_dim: 32, "
          "intermediate_size: 512, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, "
          "tie_word_embeddings: false, max_position_embeddings: 64, hidden_act: silu}}\n"
          "train: {{seq_len: 64, global_batch: {}}}\n"
          "plan: {{dp: {}, micro_batch: 1, ranks_per_node: {}, bucket_mib: 1, threads_per_rank: 1, "
          "shard: {{{}}}}}\n",
          width, ranks * micro_batches, ranks, kGroup, shard),
      "measured", {}));
}

double parameter_bytes(const engine::Compiled& made) {
  double bytes = 0;
  for (const graph::Tensor& tensor : made.reference.tensors) {
    if (tensor.kind == graph::TensorKind::param) {
      bytes += static_cast<double>(tensor.type.bytes());
    }
  }
  return bytes;
}

/// Bytes that a rank sends in a step, inside its node and between nodes.
struct Bytes {
  double intra = 0, inter = 0;
};

Bytes counted(const program::Program& program) {
  Bytes bytes;
  const program::ClassId cls = 0;
  for (const program::Task& task : program.classes[cls].tasks) {
    const program::Kind& kind = program.kind(task);
    if (!program::is_collective(kind)) continue;
    const std::vector<int32_t>& axes = program.groups[task.group].axes;
    double members = 1;
    for (int32_t axis : axes) {
      members *= program.mesh_of(cls).axes[static_cast<size_t>(axis)].size;
    }
    const double passes = kind.op == "all_reduce" ? 2 : 1;
    (task.lane == program::Lane::inter ? bytes.inter : bytes.intra) +=
        passes * (members - 1) / members * static_cast<double>(kind.bytes);
  }
  return bytes;
}

/// Returns the traffic by the formulas of docs/parallelism.md, in numbers of parameters: m ranks in
/// a group, g groups, s micro-batches.
Bytes expected(const Split& split, int ranks) {
  const double m = kGroup, g = ranks / kGroup, s = kMicroBatches;
  const double inside = (m - 1) / m, across = (g - 1) / g / m;
  // Numbers of gathers and scatters inside a group, and between groups.
  double intra = 0, inter = 0;
  intra += split.params >= 1 ? 2 * s : 0;
  inter += split.params == 2 ? 2 * s : 0;
  intra += split.grads >= 1 ? s : 0;
  inter += split.grads == 2 ? s : 0;
  if (split.states == 0) return {intra * inside, 2 * (m * g - 1) / (m * g)};  // one sum over all
  const bool all_update = split.states == 2;
  intra += split.grads == 0 ? 1 : 0;
  inter += split.grads < 2 ? (all_update ? 1 : 2) : 0;
  intra += split.params == 0 ? 1 : 0;
  inter += split.params < 2 && all_update ? 1 : 0;
  return {intra * inside, inter * across};
}

/// On four ranks, which divide the matrices, and on six, which do not.
TEST(Groups, BytesOnLinksMatchTheFormulas) {
  for (const int ranks : {kRanks, 6}) {
    for (const Split& split : some_splits()) {
      if (!split.legal()) continue;
      SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, split.keys()));
      const engine::Compiled made = measured(split.grouped(), kMicroBatches, ranks);
      const double params = parameter_bytes(made);
      const Bytes found = counted(made.program), wanted = expected(split, ranks);
      EXPECT_NEAR(found.intra / params, wanted.intra, 0.02 * std::max(wanted.intra, 0.5));
      EXPECT_NEAR(found.inter / params, wanted.inter, 0.02 * std::max(wanted.inter, 0.5));
    }
  }
}

/// The formula counts parameters and two moments, each divided among its ranks.
TEST(Groups, PersistentMemoryMatchesTheFormula) {
  for (const int ranks : {kRanks, 6}) {
    const std::array<double, 3> parts = {1, kGroup, static_cast<double>(ranks)};
    for (const Split& split : some_splits()) {
      if (!split.legal()) continue;
      SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, split.keys()));
      // Wide enough that parts of six fill their pages.
      const engine::Compiled made =
          measured(split.grouped(), kMicroBatches, ranks, ranks == kRanks ? 128 : 1024);
      const double wanted = 1 / parts[static_cast<size_t>(split.params)] +
                            2 / parts[static_cast<size_t>(split.states)];
      for (const program::Memory& memory : program::memory_of(made.program)) {
        EXPECT_NEAR(static_cast<double>(memory.persistent) / parameter_bytes(made), wanted,
                    0.05 * wanted);  // in whole pages
      }
    }
  }
}

/// Parameters below least_kib, such as norms, are not sharded.
TEST(Groups, SmallParametersStayWhole) {
  const auto gathered = [](const char* shard) {
    const engine::Compiled made = measured(shard);
    size_t tensors = 0;
    for (const program::Task& task : made.program.classes[0].tasks) {
      tensors += made.program.kind(task).op == "all_gather" ? task.in.size() : 0;
    }
    return tensors;
  };
  EXPECT_LT(gathered("params: all, grads: all, least_kib: 4"),
            gathered("params: all, grads: all") * 3 / 4);
  for (const char* shard : {"params: all, grads: all", "optimizer: all",
                            "params: group, grads: group, optimizer: all, group: 2"}) {
    expect_equal(
        model(fmt::format("dp: 4, micro_batch: 1, shard: {{{}, least_kib: 0.1}}", shard), false));
  }
}

/// Two nodes of two ranks, with links that are ten times slower between them and take most of the
/// time.
cost::Cluster two_nodes() {
  cost::Cluster cluster = one_node(kGroup);
  cluster.nodes = kRanks / kGroup;
  cluster.links.intra = link_of(1e-6, 1e9);
  cluster.links.inter = link_of(1e-6, 1e8);
  return cluster;
}

double simulated_ms(const engine::Compiled& made) {
  const cost::CostModel costs(two_nodes(), std::nullopt, 1);
  return static_cast<double>(sim::simulate(made.program, costs, {}).step_ns) / 1e6;
}

/// Groups send between nodes once a step instead of three times a micro-batch.
TEST(Groups, AreTwiceAsFastAsOneOfAllOverSlowLinks) {
  const double global = simulated_ms(measured("params: all, grads: all", 8));
  std::cout << "ZeRO-3 over all " << global << " ms";
  double best = std::numeric_limits<double>::infinity();
  std::map<std::string, double> ms;
  for (const Split& split : all_splits()) {
    if (!split.legal()) continue;
    ms[split.letters()] = simulated_ms(measured(split.grouped(), 8));
    std::cout << ", " << split.letters() << " " << ms[split.letters()];
    // Only splits whose ranks hold at most the group's part of the parameters.
    if (split.params >= 1) {
      best = std::min(best, ms[split.letters()]);
    }
  }
  std::cout << "\n";
  EXPECT_GE(global / best, 2);
  EXPECT_LT(ms["IIG"], ms["NGG"]);
  EXPECT_LT(ms["NIG"], ms["NGG"]);
  EXPECT_LT(ms["NGG"], ms["GGG"]);
}

/// Reductions over ranks that remain after the last micro-batch begin while its backward pass is
/// running.
TEST(Groups, SumsBeginBeforeTheBackwardPassEnds) {
  for (const char* shard :
       {"group: 0", "optimizer: all", "params: all", "params: group, grads: group, group: 2",
        "params: group, grads: group, optimizer: all, group: 2", "optimizer: group, group: 2"}) {
    SCOPED_TRACE(shard);
    const engine::Compiled made = measured(shard);
    const cost::CostModel costs(two_nodes(), std::nullopt, 1);
    sim::Replay replay;
    sim::simulate(made.program, costs, {}, &replay);
    int64_t first_sum = std::numeric_limits<int64_t>::max(), last_backward = 0;
    const auto& tasks = made.program.classes[0].tasks;
    for (size_t id = 0; id < tasks.size(); ++id) {
      const program::Task& task = tasks[id];
      const bool sums = task.phase == program::Phase::grad && task.micro_batch == program::kNone &&
                        program::is_collective(made.program.kind(task));
      if (sums) {
        first_sum = std::min(first_sum, replay.start_ns[id]);
      }
      if (task.phase == program::Phase::backward && task.lane == program::Lane::compute) {
        last_backward = std::max(last_backward, replay.end_of_ns[id]);
      }
    }
    EXPECT_LT(first_sum, last_backward);
  }
}

}  // namespace
}  // namespace hocket::test::groups_test
