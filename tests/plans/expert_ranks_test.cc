// SPDX-License-Identifier: Apache-2.0
// plan.expert_ranks: experts on ranks of their own. Whatever the sizes of the two roles, an
// evaluation is proven, gives the loss of one rank, and its mutants are refused or give it, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "check/check.h"
#include "check/mutants/mutate.h"
#include "cost/cost_model.h"
#include "engine/params.h"
#include "plan_util.h"
#include "sim/simulator.h"
#include "tests/programs/program_builder_util.h"

namespace hocket::test::expert_ranks_test {
namespace {

constexpr double kTolerance = 1e-10;

Case experts(const std::string& plan) {
  Case c;
  c.seed = 3;
  c.name = plan;
  c.text = fmt::format(
      "model:\n  dtype: f64\n  config: {{model_type: qwen3_moe, vocab_size: 23, hidden_size: 8, "
      "num_hidden_layers: 3, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, "
      "intermediate_size: 9, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, tie_word_embeddings: "
      "false, max_position_embeddings: 64, hidden_act: silu, num_experts: 7, "
      "num_experts_per_tok: 2, moe_intermediate_size: 3, norm_topk_prob: true, "
      "router_aux_loss_coef: 0.05, decoder_sparse_step: 1, mlp_only_layers: [1]}}\n"
      "train: {{seq_len: 6, global_batch: 24, warmup_steps: 0, lr: 0.01}}\n"
      "plan: {{{}, threads_per_rank: 1, timeout_s: 60}}\n",
      plan);
  return c;
}

/// Fewer ranks of experts than others, more, and equal; experts and tokens that they do not divide;
/// in pieces.
const std::vector<std::string>& plans() {
  static const std::vector<std::string> all = {
      "dp: 4, expert_ranks: 2", "dp: 2, micro_batch: 2, expert_ranks: 4", "dp: 1, expert_ranks: 1",
      "dp: 3, expert_ranks: 3", "dp: 2, micro_batch: 2, expert_ranks: 2, moe_chunks: 2",
      "dp: 1, micro_batch: 2, expert_ranks: 2", "dp: 2, expert_ranks: 2, ranks_per_node: 3",
      // Ranks with other numbers of tokens, of one role and of both.
      "dp: 3, expert_ranks: 2", "dp: 3, dp_samples: [2, 1, 1], expert_ranks: 2",
      "dp: 2, dp_samples: [1, 3], expert_ranks: 3", "dp: 1, cp: 4, expert_ranks: 1",
      "dp: 1, cp: 2, cp_shares: [2, 1], cp_comm_type: p2p, micro_batch: 3, expert_ranks: 2"};
  return all;
}

engine::Run run_of(const Case& c, bool single) {
  engine::Run run = engine::parse_run(c.text, c.name, {});
  if (single) {
    run.plan.micro_batch = run.plan.sequences();
    run.plan.dp_samples.clear();
    run.plan.cp_shares.clear();
    run.plan.ring = false;
    run.plan.dp = run.plan.cp = 1;
    run.plan.expert_ranks = 0;
    run.config.plan.passes.clear();
  }
  return run;
}
engine::Compiled evaluation_of(const engine::Run& run) {
  return engine::compile(engine::losses(run, {.num_micro_batches = 2}));
}

double loss_of(const engine::Run& run, engine::Compiled compiled, uint64_t seed) {
  runtime::RankOptions options;
  options.threads = 1;
  options.poison = true;
  options.timeout = std::chrono::seconds(20);
  runtime::LocalRanks ranks(compiled.program.num_ranks(), kernels::cpu_backend(), options);
  engine::Session session(std::move(compiled), runtime::Store(ranks));
  engine::initialise(session.graph(), session.program(), seed, session.store());
  session.feed(random_batch(session.compiled(), run, 0, seed));
  session.step();
  return session.loss();
}
double loss_of_one_rank(const Case& c) {
  const engine::Run run = run_of(c, true);
  return loss_of(run, evaluation_of(run), c.seed);
}

TEST(ExpertRanks, ProvenEqualAndSimulated) {
  for (const std::string& plan : plans()) {
    const Case c = experts(plan);
    SCOPED_TRACE(c.name);
    const engine::Run run = run_of(c, false);
    const engine::Compiled made = evaluation_of(run);
    ASSERT_EQ(made.program.roles.size(), 2u);
    EXPECT_EQ(made.program.num_ranks(), run.plan.world());
    const check::Verdict verdict = check::check(made.program, made.reference);
    ASSERT_TRUE(verdict.ok()) << to_text(verdict);
    // No rank holds weights that it does not use.
    for (const program::RankClass& cls : made.program.classes) {
      for (const program::Buffer& buffer : cls.buffers) {
        if (buffer.kind != program::BufferKind::persistent) continue;
        EXPECT_EQ(buffer.name.find("experts") != std::string::npos, cls.role == 1) << buffer.name;
      }
    }
    const cost::CostModel costs(one_node(made.program.num_ranks()), std::nullopt, 1);
    EXPECT_GT(sim::simulate(made.program, costs, {}).step_ns, 0);
    const double one = loss_of_one_rank(c);
    EXPECT_NEAR(loss_of(run, made, c.seed), one, kTolerance * one);
  }
}

/// HOCKET_MUTANTS=200 HOCKET_SEED=S: how many mutants of each plan, and which.
TEST(ExpertRanks, MutantsAreRefusedOrEqual) {
  const uint64_t mutants = from_environment("HOCKET_MUTANTS", fewer(30));
  const uint64_t seed = from_environment("HOCKET_SEED", 1);
  std::cout << "HOCKET_SEED=" << seed << " HOCKET_MUTANTS=" << mutants << "\n";
  for (size_t number = 0; number < plans().size(); ++number) {
    const Case c = experts(plans()[number]);
    const engine::Run run = run_of(c, false);
    const engine::Compiled good = evaluation_of(run);
    const double one = loss_of_one_rank(c);
    size_t refused = 0, equal = 0;
    for (uint64_t i = 0; i < mutants; ++i) {
      engine::Compiled mutant = good;
      check::Mutation mutation;
      const char* const kind = i % 4 == 0 ? "begin" : "";
      if (!check::mutate(mutant.program, (seed * 100 + number) * 100003 + i, &mutation, kind)) {
        continue;
      }
      SCOPED_TRACE(c.name + ": " + mutation.kind + ": " + mutation.text);
      if (!check::check(mutant.program, mutant.reference).ok()) {
        ++refused;
        continue;
      }
      ++equal;
      double loss = 0;
      ASSERT_NO_THROW(loss = loss_of(run, std::move(mutant), c.seed));
      EXPECT_NEAR(loss, one, kTolerance * one);
    }
    std::cout << c.name << ": " << refused << " refused, " << equal
              << " accepted and equal to one rank\n";
    EXPECT_GE(2 * refused, mutants);
    EXPECT_GE(refused + equal, mutants * 3 / 4);
  }
}

TEST(ExpertRanks, RefusesPlansThatItDoesNotSupport) {
  const auto refused = [](const Case& c, const char* name) {
    try {
      const engine::Run run = engine::parse_run(c.text, c.name, {});
      engine::compile(engine::spec_named(run, name, c.name));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto expect = [&](const std::string& plan, const char* says) {
    const std::string text = refused(experts(plan), "evaluate");
    EXPECT_NE(text.find(says), std::string::npos) << plan << ": " << text;
  };
  expect("dp: 2, expert_ranks: 1", "");
  expect("dp: 2, expert_ranks: 4", "at most the 2 sequences of a micro-batch");
  expect("dp: 2, expert_ranks: 2, shard: {params: all}", "plan.shard.params: none");
  expect("dp: 2, cp: 2, expert_ranks: 2, cp_comm_type: p2p, cp_order: zigzag",
         "plan.cp_order: contiguous");
  expect("dp: 8, expert_ranks: 8", "at least this number of experts");
  expect("dp: 2, ep: 2, expert_ranks: 2", "plan.ep: 1");
  expect("dp: 2, pp: 2, expert_ranks: 2", "plan.pp: 1");
  const std::string train = refused(experts("dp: 2, expert_ranks: 2"), "train");
  EXPECT_NE(train.find("forward only"), std::string::npos) << train;
}

}  // namespace
}  // namespace hocket::test::expert_ranks_test
