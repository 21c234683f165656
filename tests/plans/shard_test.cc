// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// plan.shard: state sharded over data-parallel ranks. Under any plan, the program is proven and
// equals one rank; gathered tensors are freed; mutants are refused or equal.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "check/check.h"
#include "check/mutants/mutate.h"
#include "plan_util.h"
#include "program/memory.h"

namespace hocket::test::shard_test {
namespace {

/// Four layers, with 7 experts in every second one; `plan` with the braces of its keys left out.
Case model(const std::string& plan, const std::string& dtype = "f64", int64_t global_batch = 16) {
  Case c;
  c.seed = 11;
  c.name = plan;
  c.text = fmt::format(
      "model:\n  dtype: {}\n  config: {{model_type: qwen3_moe, vocab_size: 24, hidden_size: 12, "
      "num_hidden_layers: 4, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, "
      "intermediate_size: 9, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, tie_word_embeddings: true, "
      "max_position_embeddings: 64, hidden_act: silu, num_experts: 7, num_experts_per_tok: 2, "
      "moe_intermediate_size: 5, norm_topk_prob: true, router_aux_loss_coef: 0.05, "
      "decoder_sparse_step: 2, mlp_only_layers: []}}\n"
      "train: {{seq_len: 6, global_batch: {}, warmup_steps: 0, lr: 0.01}}\n"
      "plan: {{{}, threads_per_rank: 1, timeout_s: 60}}\n",
      dtype, global_batch, plan);
  return c;
}

engine::Compiled compiled(const Case& c) {
  return engine::compile(engine::parse_run(c.text, c.name, {}));
}

std::string split_backward() {
  const std::string path = ::testing::TempDir() + "shard_zero_bubble.csv";
  std::ofstream(path) << "0F0,0F1,0I0,0F2,0I1,0F3,0W0,0I2,0W1,0I3,0W2,0W3\n"
                         "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1F3,1I3,1W2,1W3\n";
  return path;
}

/// Parameters that are gathered once a step.
std::string kept(const std::string& shard) {
  return fmt::format("shard: {{{}, reshard_after_forward: false, reshard_after_backward: false}}",
                     shard);
}

/// Experts that do not divide, tied embeddings over a pipeline, halves of backward passes, several
/// stages per rank, everything repeated, tokens in pieces; and sizes that no axis divides.
std::vector<Case> shapes() {
  std::vector<Case> list;
  for (const std::string& plan :
       {std::string("dp: 4, ep: 2, micro_batch: 2, shard: {params: all}"),
        std::string("dp: 4, ep: 2, micro_batch: 1, shard: {params: all, grads: all}"),
        std::string("dp: 8, ep: 1, micro_batch: 1, shard: {optimizer: all}"),
        std::string("pp: 2, dp: 2, ep: 2, micro_batch: 2, recompute: full, shard: {params: all}"),
        "pp: 2, dp: 2, ep: 2, micro_batch: 2, shard: {params: all, grads: all}, pp_schedule: " +
            split_backward(),
        std::string("pp: 2, dp: 2, micro_batch: 2, pp_chunks: 2, pp_schedule: interleaved, "
                    "shard: {params: all}"),
        std::string("dp: 4, ep: 4, micro_batch: 2, recompute: selective, moe_chunks: 3, "
                    "shard: {params: all, grads: all}"),
        std::string("pp: 2, dp: 4, ep: 2, micro_batch: 2, shard: {grads: all}"),
        "dp: 4, ep: 2, micro_batch: 2, " + kept("params: all"),
        "pp: 2, dp: 2, ep: 2, micro_batch: 2, " + kept("params: all, grads: all") +
            ", pp_schedule: " + split_backward(),
        "pp: 2, dp: 2, micro_batch: 2, pp_chunks: 2, pp_schedule: interleaved, "
        "recompute: full, overlap_param_gather: false, " +
            kept("params: all"),
        "pp: 2, dp: 2, micro_batch: 1, pp_schedule: dualpipe, " + kept("params: all"),
        "dp: 4, micro_batch: 2, " + kept("params: group, optimizer: all, group: 2")}) {
    list.push_back(model(plan));
  }
  return list;
}

/// Ranks that divide hardly any dim: 12, 24, 9, 8, 7 and 5 indices over 5, 7 and 10 ranks. The
/// split is along one axis and two, in groups, beside experts and parts of products that do not
/// divide either.
std::vector<Case> uneven_shapes() {
  std::vector<Case> list;
  for (const char* plan : {
           "dp: 5, micro_batch: 1, shard: {optimizer: all}",
           "dp: 5, micro_batch: 1, shard: {grads: all}",
           "dp: 5, micro_batch: 2, shard: {params: all}",
           "dp: 5, micro_batch: 1, shard: {params: all, grads: all}",
           "dp: 7, micro_batch: 1, shard: {params: all, grads: all}, all_reduce: ring, "
           "reduce_scatter: ring, all_gather: ring",
           "dp: 10, ep: 2, micro_batch: 1, shard: {params: all, grads: all}",
           "dp: 10, ep: 5, micro_batch: 1, shard: {grads: all}",
           "dp: 5, tp: 2, micro_batch: 1, shard: {params: all, grads: all}",
           "dp: 5, tp: 3, sequence_parallel: true, micro_batch: 1, shard: {params: all}",
           "cp: 5, dp: 1, micro_batch: 1, cp_comm_type: p2p, shard: {params: all, grads: all}",
           "pp: 2, dp: 5, micro_batch: 1, recompute: full, shard: {params: all, grads: all}",
           "dp: 10, micro_batch: 1, shard: {params: group, grads: group, group: 5}, bucket_mib: "
           "0.0005",
           "dp: 10, micro_batch: 1, shard: {params: group, grads: group, optimizer: all, group: 2}",
           "dp: 10, micro_batch: 1, shard: {params: group, grads: all, group: 5}",
           "dp: 5, micro_batch: 1, shard: {optimizer: all}, grad_codec: identity",
           "dp: 5, micro_batch: 1, shard: {params: all, reshard_after_forward: false, "
           "reshard_after_backward: false}",
       }) {
    const std::string text = plan;
    const int64_t global_batch = text.find("dp: 7") == 0 ? 14 : text.find("dp: 1,") == 7 ? 4 : 20;
    list.push_back(model(plan, "f64", global_batch));
  }
  return list;
}

void expect_equal(const Case& c, engine::Compiled* made) {
  *made = compiled(c);
  const check::Verdict verdict = check::check(made->program, made->reference);
  ASSERT_TRUE(verdict.ok()) << to_text(verdict);
  EXPECT_EQ(difference(train(c, {.steps = 2, .poison = true}),
                       train(c, {.on_one_rank = true, .steps = 2})),
            "");
}

TEST(Shard, EqualsOneRank) {
  for (const Case& c : shapes()) {
    SCOPED_TRACE(c.name);
    engine::Compiled made;
    expect_equal(c, &made);
  }
}

TEST(Shard, RanksNeedNotDivideTheSizes) {
  for (const Case& c : uneven_shapes()) {
    SCOPED_TRACE(c.name);
    engine::Compiled made;
    expect_equal(c, &made);
    EXPECT_GT(made.program.classes.size(), 1);
  }
}

/// A reduction over one axis adds in the same order, scattered or all-reduced; without a norm to
/// clip to, so do all sums of the update.
TEST(Shard, GivesTheSameBits) {
  for (const char* plan : {"dp: 4, micro_batch: 2", "pp: 2, dp: 2, micro_batch: 2"}) {
    const auto run = [&](const std::string& shard) {
      return train(model(fmt::format("{}, shard: {{{}}}", plan, shard), "f32"),
                   {.steps = 3, .poison = true, .overrides = {"train.max_grad_norm=0"}});
    };
    SCOPED_TRACE(plan);
    const Outcome alike = run("");
    for (const char* shard : {"optimizer: all", "params: all",
                              "params: all, reshard_after_forward: false, "
                              "reshard_after_backward: false"}) {
      const Outcome split = run(shard);
      EXPECT_EQ(split.losses, alike.losses) << shard;
      EXPECT_TRUE(split.grads == alike.grads) << shard;
      EXPECT_TRUE(split.params == alike.params) << shard;
    }
  }
}

program::Program dense(const std::string& plan) {
  return engine::compile(
             engine::parse_run(
                 fmt::format("model:\n  config: {{model_type: llama, vocab_size: 256, hidden_size: "
                             "64, num_hidden_layers: 4, num_attention_heads: 4, "
                             "num_key_value_heads: 4, head_dim: 16, intermediate_size: 128}}\n"
                             "train: {{seq_len: 16, global_batch: 16}}\nplan: {{{}}}\n",
                             plan),
                 plan, {}))
      .program;
}

/// Independent of the number of micro-batches, and before all of them.
TEST(Shard, GathersOnceAStep) {
  for (const char* more : {"micro_batch: 4", "micro_batch: 1"}) {
    const program::Program program =
        dense(fmt::format("pp: 2, dp: 2, bucket_mib: 0, {}, {}", more, kept("params: all")));
    for (const program::RankClass& cls : program.classes) {
      std::set<program::BufferId> gathered;
      bool computed = false;
      for (const program::Task& task : cls.tasks) {
        computed = computed || task.lane == program::Lane::compute;
        if (program.kind(task).op != "all_gather") continue;
        EXPECT_FALSE(computed);
        EXPECT_TRUE(gathered.insert(task.in[0]).second);
      }
      // Two layers of seven matrices and two norms, and the table, or the norm and the head.
      EXPECT_GE(gathered.size(), 2 * 8 + 1);
    }
  }
}

/// Tasks that read a reduced gradient, like the block that a rank updates, come behind the backward
/// pass, which would wait for the reduction otherwise.
TEST(Shard, BackwardPassesDoNotWaitForSums) {
  size_t copies = 0;
  for (const char* shard : {"optimizer: all", "params: all"}) {
    const program::Program program =
        dense(fmt::format("pp: 2, dp: 2, tp: 2, sequence_parallel: true, micro_batch: 1, "
                          "shard: {{{}}}",
                          shard));
    for (const program::RankClass& cls : program.classes) {
      size_t last = cls.tasks.size();
      while (cls.tasks[last - 1].phase != program::Phase::backward) {
        --last;
      }
      for (size_t i = 0; i < cls.tasks.size(); ++i) {
        const program::Task& task = cls.tasks[i];
        if (task.phase != program::Phase::grad || task.lane != program::Lane::compute) continue;
        EXPECT_GE(i, last) << program.kind(task).op;
        copies += program.kind(task).op == "copy" ? 1 : 0;
      }
    }
  }
  EXPECT_GT(copies, 0);
}

/// A rank's memory holds its part of parameters and states, and gathers for few layers.
TEST(Shard, FreesGatheredParameters) {
  const std::string text =
      "model:\n  config: {model_type: llama, vocab_size: 256, hidden_size: 256, "
      "num_hidden_layers: 12, num_attention_heads: 4, num_key_value_heads: 4, head_dim: 64, "
      "intermediate_size: 1024, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, tie_word_embeddings: "
      "false, max_position_embeddings: 64, hidden_act: silu}\n"
      "train: {seq_len: 16, global_batch: 8}\n"
      "plan: {dp: 4, micro_batch: 1, threads_per_rank: 1}\n";
  const auto memory = [&](const std::vector<std::string>& settings) {
    return program::memory_of(
        engine::compile(engine::parse_run(text, "memory", settings)).program)[0];
  };
  const program::Memory alike = memory({});
  const program::Memory gathered = memory({"plan.shard.params=all"});
  const program::Memory states = memory({"plan.shard.optimizer=all"});
  const program::Memory grads = memory({"plan.shard.grads=all"});
  const program::Memory all = memory({"plan.shard.params=all", "plan.shard.grads=all"});
  const int64_t params = alike.persistent / 3;  // and two moments
  EXPECT_LE(gathered.persistent, alike.persistent * 3 / 10);
  EXPECT_LE(all.persistent, alike.persistent * 3 / 10);
  EXPECT_LE(states.persistent, params + alike.persistent * 2 / 10);
  // Two of twelve layers at a time, beside buffers that exist in any case.
  EXPECT_LT(gathered.step_buffers, alike.step_buffers + params / 3);
  EXPECT_LT(gathered.persistent + gathered.step_buffers, alike.persistent + alike.step_buffers);
  // No whole sums of gradients.
  EXPECT_LT(grads.step_buffers, states.step_buffers - params / 2);
  EXPECT_LT(all.total(), alike.total() * 4 / 10);
}

/// Ranks that divide no dim have their part, too: parameters and both moments.
TEST(Shard, TheFullestRankHoldsLittleMoreThanItsShare) {
  for (const int ranks : {3, 5, 6, 7}) {
    SCOPED_TRACE(ranks);
    const auto held = [&](const char* shard) {
      const engine::Compiled made = engine::compile(engine::parse_run(
          fmt::format("model:\n  config: {{model_type: llama, vocab_size: 500, hidden_size: 256, "
                      "num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 4, "
                      "head_dim: 64, intermediate_size: 1024, rms_norm_eps: 1.0e-6, rope_theta: "
                      "10000.0, tie_word_embeddings: false, max_position_embeddings: 64, "
                      "hidden_act: silu}}\n"
                      "train: {{seq_len: 16, global_batch: {}}}\n"
                      "plan: {{dp: {}, micro_batch: 1, threads_per_rank: 1, shard: {{{}}}}}\n",
                      ranks, ranks, shard),
          "held", {}));
      int64_t most = 0;
      for (const program::Memory& memory : program::memory_of(made.program)) {
        most = std::max(most, memory.persistent);
      }
      return static_cast<double>(most);
    };
    const double alike = held("");
    EXPECT_LT(held("params: all, grads: all"), alike / ranks * 1.05);
    EXPECT_LT(held("optimizer: all"), alike / 3 + alike * 2 / 3 / ranks * 1.05);
  }
}

/// HOCKET_MUTANTS=200 HOCKET_SEED=S: how many mutants of each shape, and which.
TEST(Shard, MutantsAreRefusedOrEqual) {
  const uint64_t mutants = from_environment("HOCKET_MUTANTS", fewer(30));
  const uint64_t seed = from_environment("HOCKET_SEED", 1);
  std::cout << "HOCKET_SEED=" << seed << " HOCKET_MUTANTS=" << mutants << "\n";
  std::vector<Case> all = shapes();
  const std::vector<Case> uneven = uneven_shapes();
  all.insert(all.end(), uneven.begin(), uneven.end());
  uint64_t far = 0;
  std::string far_first;
  for (size_t shape = 0; shape < all.size(); ++shape) {
    const MutantCounts counts = try_mutants(all[shape], mutants, seed * 100 + shape);
    std::cout << all[shape].name << ": " << counts.refused << " refused, " << counts.equal
              << " accepted and equal to one rank\n";
    far += static_cast<uint64_t>(counts.far);
    far_first += counts.far_first;
    EXPECT_GE(2 * counts.refused, mutants);
    EXPECT_EQ(counts.refused + counts.equal, mutants);
  }
  // A wrong addend of a partial gradient is a value like any other until it is summed over the
  // stages: of a gradient that is added up there, a few are named where the other stage uses it.
  EXPECT_LE(far * 500, mutants * all.size()) << far_first;
}

}  // namespace
}  // namespace hocket::test::shard_test
