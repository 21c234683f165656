// SPDX-License-Identifier: Apache-2.0
// Templates: the tasks of any micro-batch; programs are stamped from them alone.
#include "parallel/lowering/template.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "check/check.h"
#include "parallel/lowering/lower.h"
#include "parallel/lowering/stamp.h"
#include "passes/pass.h"
#include "run/compile.h"
#include "tests/check/check_util.h"

namespace hocket::parallel {
namespace {

Templates templates_of(int64_t num_micro_batches) {
  Plan plan;
  plan.pp = 2;
  plan.dp = 2;
  plan.ep = 2;
  plan.num_micro_batches = num_micro_batches;
  const check::test::Case made = check::test::make_case(check::test::moe(2), plan);
  return make_templates(made.graph, plan);
}

/// Returns the text without the number of micro-batches and the schedule.
std::string tasks_of(const Templates& templates) {
  Templates alike = templates;
  alike.frame.num_micro_batches = 1;
  for (auto& actions : alike.actions) {
    actions.clear();
  }
  return print(alike);
}

TEST(Templates, AreStampedIntoTheProgram) {
  Plan plan;
  plan.dp = 2;
  plan.num_micro_batches = 3;
  const check::test::Case made = check::test::make_case(check::test::dense(2, true), plan);
  const Templates templates = make_templates(made.graph, plan);
  EXPECT_EQ(stamp(templates), lower(made.graph, plan));
  // Every task of a stage is stamped once per micro-batch, the others once.
  const RankTemplate& rank = templates.ranks.at(0);
  size_t tasks = rank.step.size();
  for (const GradReduction& reduction : rank.grads) {
    tasks += reduction.tasks.size();
  }
  for (const StageTemplate& stage : rank.stages) {
    tasks += 3 * (stage.forward.size() + stage.backward.size());
  }
  EXPECT_EQ(stamp(templates).classes.at(0).tasks.size(), tasks);
}

/// Values that a pass adds have names.
TEST(Templates, PassesNameTheirValues) {
  Plan plan;
  plan.cp = 2;
  const check::test::Case made = check::test::make_case(check::test::dense(1, false), plan);
  Templates templates = make_templates(made.graph, plan);
  const size_t before = templates.ranks.at(0).values.size();
  passes::PassRunner({"ring_attention"}, {}, passes::PassOptions({"cp_comm_type=p2p"}))
      .run(templates);
  const std::vector<Value>& values = templates.ranks.at(0).values;
  ASSERT_GT(values.size(), before);
  for (size_t id = before; id < values.size(); ++id) {
    EXPECT_NE(values[id].name, "") << id;
  }
}

/// Returns how often the compute tasks of rank 0's first overlapped pair change from one action to
/// the other.
int64_t changes_of_turn(const models::ModelConfig& model, int64_t ep) {
  Plan plan;
  plan.pp = 2;
  plan.dp = plan.ep = ep;
  plan.pp_chunks = 2;
  plan.pp_schedule = "dualpipev";
  plan.num_micro_batches = 4;
  const check::test::Case made = check::test::make_case(model, plan);
  EXPECT_TRUE(check::check(made.program, made.graph).ok());
  const Templates templates = make_templates(made.graph, plan);
  const std::vector<Action>& row = templates.actions.at(0);
  const auto pair = std::find_if(row.begin(), row.end(),
                                 [](const Action& action) { return action.overlaps_next; });
  // By compute task of both, in order: its action.
  std::vector<int> turns;
  for (const program::Task& task : made.program.classes.at(0).tasks) {
    if (task.lane != program::Lane::compute) continue;
    for (int side : {0, 1}) {
      const Action& action = pair[side];
      const auto phase = action.kind == 'F' ? program::Phase::forward : program::Phase::backward;
      if (task.stage == action.stage && task.micro_batch == action.micro_batch &&
          task.phase == phase) {
        turns.push_back(side);
      }
    }
  }
  int64_t changes = 0;
  for (size_t i = 1; i < turns.size(); ++i) {
    changes += turns[i] != turns[i - 1];
  }
  return changes;
}

TEST(Templates, OverlappedActionsTakeTurns) {
  // Rows go to experts and come back, in each direction; without experts there is no communication
  // to overlap.
  EXPECT_GE(changes_of_turn(check::test::moe(4), 2), 4);
  EXPECT_EQ(changes_of_turn(check::test::dense(4, true), 1), 1);
}

TEST(Templates, ADualPipeHasTwoStagesOfTwoRoutes) {
  Plan plan;
  plan.pp = 2;
  plan.pp_schedule = "dualpipe";
  plan.num_micro_batches = 4;
  const check::test::Case made = check::test::make_case(check::test::dense(2, false), plan);
  const Templates templates = make_templates(made.graph, plan);
  EXPECT_EQ(templates.route_of, (std::vector<int>{0, 0, 1, 1}));
  for (const RankTemplate& rank : templates.ranks) {
    ASSERT_EQ(rank.stages.size(), 2u);
    EXPECT_EQ(rank.stages[0].route, 0);
    EXPECT_EQ(rank.stages[1].route, 1);
    EXPECT_NE(rank.stages[0].stage, rank.stages[1].stage);
  }
  EXPECT_TRUE(check::check(made.program, made.graph).ok());
}

TEST(Templates, DoNotGrowWithMicroBatches) {
  // The coefficient of the balance loss differs: it is divided by their number.
  const Templates few = templates_of(2), many = templates_of(16);
  EXPECT_GT(stamp(many).classes[0].tasks.size(), 4 * stamp(few).classes[0].tasks.size());
  const std::string few_text = tasks_of(few), many_text = tasks_of(many);
  EXPECT_EQ(std::count(few_text.begin(), few_text.end(), '\n'),
            std::count(many_text.begin(), many_text.end(), '\n'));
}

/// Weights are cast to 8 bits once per step where they are stored as they are read, and once per
/// pass where they are gathered for it.
TEST(Templates, CastWeightsOncePerStep) {
  const auto casts = [](const std::string& plan) {
    const engine::Run run = engine::parse_run(
        "model: {float8: true, dtype: bf16, config: {model_type: llama, vocab_size: 64, "
        "hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 2, "
        "head_dim: 32, intermediate_size: 128}}\n"
        "train: {global_batch: 8, seq_len: 32}\nplan: {micro_batch: 1, threads_per_rank: 1, " +
            plan + "}\n",
        "casts", {});
    const engine::Compiled made = engine::compile(run);
    EXPECT_TRUE(check::check(made.program, made.reference).ok()) << plan;
    const program::RankClass& cls = made.program.classes[program::ClassId(0)];
    const auto of_weights = [&](const program::Task& task) {
      return made.program.kind(task).op == "cast" &&
             made.program.kind(task).in[0].dims[0] != graph::Dim(32);
    };
    return std::count_if(cls.tasks.begin(), cls.tasks.end(), of_weights);
  };
  constexpr int kWeights = 6;  // of a layer: q, k, v, o, gate with up, down
  EXPECT_EQ(casts("dp: 2"), 2 * kWeights);
  EXPECT_EQ(casts("dp: 2, shard: {optimizer: all}"), 2 * kWeights);
  EXPECT_EQ(casts("pp: 2"), kWeights);
  EXPECT_EQ(casts("dp: 2, shard: {params: all, grads: all, optimizer: all}"), 4 * 2 * kWeights);
}

TEST(Templates, TextNamesValuesAndTasks) {
  Plan plan;
  plan.dp = 2;
  const check::test::Case made = check::test::make_case(check::test::dense(1, false), plan);
  const Templates templates = make_templates(made.graph, plan);
  const std::string text = print(templates);
  for (const char* line : {
           "hocket-templates\nmicro_batches 1\nrole all mesh=\"pp:1 edp:2 ep:1\"\n",
           "class stage0 box=\"\" order=0F0,0B0\n",
           "value 0 input i32[8] tensor=0 layout=\"edp:S0\" name=\"tokens\"\n",
           "stage 0 forward\ntask 0 embedding compute layer=-1 attrs=\"{vocab=32}\" in=0,1 out=2",
           "stage 0 backward\n",
           " accumulator name=",
           " when_complete\n",
           " all_reduce intra ",
           " over=\"edp\"",
           "step\n",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  EXPECT_EQ(print(templates, 0), text);
}

TEST(Templates, PassesOfTemplatesRunAndCanBeSkipped) {
  const Templates plain = templates_of(2);
  for (const passes::Pass& pass : passes::all()) {
    int levels = 0;
    levels += pass.on_graph != nullptr;
    levels += pass.on_templates != nullptr;
    levels += pass.on_program != nullptr;
    EXPECT_EQ(levels, 1) << pass.name;
  }
  // Passes that are named and not skipped run and are timed, and the callback is called after each.
  const auto passed = [&](const std::vector<std::string>& skipped, Templates* templates) {
    passes::PassRunner runner({"recompute", "chunk", "bucket", "expand"}, skipped,
                              passes::PassOptions({"moe_chunks=2"}));
    std::vector<std::string> after;
    runner.after = [&](const passes::Pass& pass) { after.push_back(pass.name); };
    runner.run(*templates);
    EXPECT_EQ(runner.times().size(), after.size());
    return after;
  };
  Templates chunked = plain, skipped = plain;
  EXPECT_EQ(passed({}, &chunked), std::vector<std::string>{"chunk"});
  EXPECT_EQ(passed({"chunk"}, &skipped), std::vector<std::string>{});
  EXPECT_NE(print(chunked), print(plain));
  EXPECT_EQ(print(skipped), print(plain));
}

}  // namespace
}  // namespace hocket::parallel
