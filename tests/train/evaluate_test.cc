// SPDX-License-Identifier: Apache-2.0
// Lists of tokens: each gets the same logits as alone, whatever lists come with it, and they have
// the same gradients under every plan. The number of lists does not change a step's memory.
#include "train/evaluate.h"

#include <gtest/gtest.h>

#include <map>

#include "engine/params.h"
#include "graph/elements.h"

namespace hocket::train {
namespace {

constexpr int64_t kVocabulary = 64;

using Lists = std::vector<std::vector<int32_t>>;

engine::Run run_of(const std::vector<std::string>& plan, const std::string& more = "") {
  return engine::parse_run(
      "model: {dtype: f32, config: {model_type: llama, vocab_size: 64, hidden_size: 16, "
      "num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 4, "
      "intermediate_size: 24" +
          (more.empty() ? ", max_position_embeddings: 64" : more) +
          "}}\ntrain: {global_batch: 4}\n",
      "test", plan);
}

/// Ropes whose frequencies follow the longest sequence; some lists are beyond four tokens.
const std::vector<std::string> kLengthRopes = {
    ", max_position_embeddings: 4, rope_scaling: {rope_type: dynamic, factor: 4.0}",
    ", max_position_embeddings: 16, rope_scaling: {rope_type: longrope, short_factor: [1.0, 1.5], "
    "long_factor: [3.0, 7.0], original_max_position_embeddings: 4}"};

/// Lists of 1 to 7 tokens.
Lists lists_of(size_t count) {
  Lists lists(count);
  for (size_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < i % 7 + 1; ++k) {
      lists[i].push_back(static_cast<int32_t>((i * 13 + k * 5) % kVocabulary));
    }
  }
  return lists;
}

/// Logits of lists, and a rank's memory for inputs and outputs.
struct Evaluated {
  Lists ids;
  std::vector<std::vector<float>> logits;
  int64_t bytes = 0;
};

Evaluated evaluate(const engine::Run& run, Lists ids) {
  runtime::LocalRanks ranks = engine::local_ranks(run);
  engine::Programs programs(run, ranks);
  const engine::Compiled& compiled =
      programs.compiled(engine::logits(run, {.num_micro_batches = 1}));
  engine::initialise(compiled.reference, compiled.program, 3, programs.store());
  Evaluated result;
  result.ids = std::move(ids);
  result.logits.resize(result.ids.size());
  size_t taken = 0;
  for_each_logits(run, result.ids, programs, [&](size_t list, std::vector<float> logits) {
    EXPECT_EQ(logits.size(), result.ids[list].size() * kVocabulary);
    EXPECT_TRUE(result.logits[list].empty());
    result.logits[list] = std::move(logits);
    ++taken;
  });
  EXPECT_EQ(taken, result.ids.size());
  result.bytes = ranks.measured(0).inputs_outputs;
  return result;
}

TEST(Logits, OfABatchEqualThoseOfEachListAlone) {
  const Lists ids = lists_of(23);
  std::vector<std::vector<float>> alone;
  for (const std::vector<int32_t>& list : ids) {
    alone.push_back(evaluate(run_of({}), {list}).logits[0]);
  }
  for (const std::vector<std::string>& plan :
       {std::vector<std::string>{}, {"plan.pp=2"}, {"plan.dp=2"}, {"plan.cp=2"}}) {
    const Evaluated all = evaluate(run_of(plan), ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      for (size_t k = 0; k < alone[i].size(); ++k) {
        ASSERT_NEAR(all.logits[i][k], alone[i][k], 1e-5) << (plan.empty() ? "" : plan[0]) << i;
      }
    }
  }
}

TEST(Logits, LengthDependentRopesMatchEachListAlone) {
  const Lists ids = lists_of(23);
  for (const std::string& rope : kLengthRopes) {
    const Evaluated all = evaluate(run_of({}, rope), ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::vector<float> alone = evaluate(run_of({}, rope), {ids[i]}).logits[0];
      for (size_t k = 0; k < alone.size(); ++k) {
        ASSERT_NEAR(all.logits[i][k], alone[k], 1e-5) << rope << " " << i;
      }
    }
  }
}

TEST(Logprobs, ComeInTheOrderOfTheLists) {
  const Lists ids = {{1, 2, 3, 4, 5, 6}, {1, 2}, {3, 4, 5, 6, 7, 8, 9}, {5, 6, 7}};
  const engine::Run run = run_of({}, kLengthRopes[0]);
  runtime::LocalRanks ranks = engine::local_ranks(run);
  engine::Programs programs(run, ranks);
  const engine::Compiled& compiled =
      programs.compiled(engine::logits(run, {.num_micro_batches = 1}));
  engine::initialise(compiled.reference, compiled.program, 3, programs.store());
  std::vector<size_t> order;
  for_each_logprobs(run, ids, programs, [&](size_t list, std::span<const double> logprobs) {
    order.push_back(list);
    EXPECT_EQ(logprobs.size(), ids[list].size() - 1);
  });
  EXPECT_EQ(order, (std::vector<size_t>{0, 1, 2, 3}));
}

/// Gradients by parameter.
std::map<std::string, std::vector<float>> gradients(const engine::Run& run, const Lists& ids) {
  runtime::LocalRanks ranks = engine::local_ranks(run);
  engine::Programs programs(run, ranks);
  const engine::Compiled& compiled = programs.compiled(gradient_spec(run, ids));
  engine::initialise(compiled.reference, compiled.program, 3, programs.store());
  std::map<std::string, std::vector<float>> result;
  for (const auto& [param, bytes] : gradients_of(run, ids, programs).grads) {
    std::vector<float>& numbers = result[param.name];
    numbers.resize(bytes.size() / sizeof(float));
    graph::read_numbers(graph::DType::f32, bytes.data(), std::span(numbers));
  }
  return result;
}

/// In zigzag order a rank has two parts of every row, however long rows are.
TEST(Gradients, InZigzagOrderAreThoseOfOneRank) {
  const std::vector<std::string> ring = {"plan.cp_comm_type=p2p", "plan.cp_order=zigzag"};
  for (const Lists& ids : {Lists{{3, 1}}, Lists{{3, 1, 4}, {1}}, lists_of(5), lists_of(7)}) {
    const auto alone = gradients(run_of({}), ids);
    for (const char* cp : {"plan.cp=2", "plan.cp=3"}) {
      const auto apart = gradients(run_of({cp, ring[0], ring[1]}), ids);
      ASSERT_EQ(apart.size(), alone.size());
      for (const auto& [name, want] : alone) {
        const std::vector<float>& got = apart.at(name);
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR(got[i], want[i], 1e-5) << cp << " " << name << " " << ids.size();
        }
      }
    }
  }
}

/// Gradients of all lists are the sum of those of each, weighted by its number of targets.
TEST(Gradients, LengthDependentRopesAddUp) {
  const Lists ids = {{1, 2, 3, 4, 5, 6}, {1, 2}, {3, 4, 5, 6, 7, 8, 9}, {5, 6, 7}};
  for (const std::string& rope : kLengthRopes) {
    const engine::Run run = run_of({}, rope);
    const auto all = gradients(run, ids);
    std::map<std::string, std::vector<double>> sums;
    double targets = 0;
    for (const std::vector<int32_t>& list : ids) {
      const double weight = static_cast<double>(list.size()) - 1;
      targets += weight;
      for (const auto& [name, numbers] : gradients(run, {list})) {
        std::vector<double>& sum = sums[name];
        sum.resize(numbers.size());
        for (size_t i = 0; i < numbers.size(); ++i) {
          sum[i] += weight * numbers[i];
        }
      }
    }
    ASSERT_EQ(sums.size(), all.size());
    for (const auto& [name, got] : all) {
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], sums.at(name)[i] / targets, 1e-5) << rope << " " << name;
      }
    }
  }
}

TEST(Logits, MoreListsTakeMoreStepsAndNoMoreMemory) {
  const engine::Run run = run_of({});
  EXPECT_EQ(evaluate(run, lists_of(28)).bytes, evaluate(run, lists_of(28 * 8)).bytes);
}

}  // namespace
}  // namespace hocket::train
