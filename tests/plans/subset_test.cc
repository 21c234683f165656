// SPDX-License-Identifier: Apache-2.0
// A process may hold any of the ranks. Two runs, each with some of them and joined by the transport
// alone, train like one run with all ranks, to the bit.
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <iostream>

#include "base/error.h"
#include "engine/params.h"
#include "kernels/backend.h"
#include "plan_util.h"

namespace hocket::test::subset_test {
namespace {

constexpr int kSteps = 2;

/// Some ranks of a world in a run of their own.
struct Part {
  Part(const engine::Run& run, const std::shared_ptr<const engine::Compiled>& compiled,
       const std::shared_ptr<comm::LocalWorld>& world, std::vector<int32_t> ids)
      : run(run),
        ranks(world, std::move(ids), kernels::cpu_backend(), engine::rank_options(run)),
        session(compiled, runtime::Store(ranks)) {}
  void train(uint64_t seed) {
    engine::initialise(session.graph(), session.program(), seed, session.store());
    for (int step = 0; step < kSteps; ++step) {
      session.feed(random_batch(session.compiled(), run, step, seed));
      session.step();
    }
  }
  const engine::Run& run;
  runtime::LocalRanks ranks;
  engine::Session session;
};

/// The stores of a rank in two runs hold the same tensors of the same bits.
void expect_same(const runtime::Store& got, const runtime::Store& want, int32_t rank) {
  const auto& entries = want.at(rank).entries();
  ASSERT_EQ(got.at(rank).entries().size(), entries.size());
  for (const auto& [name, entry] : entries) {
    const auto& other = got.at(rank).entries().at(name);
    EXPECT_EQ(std::memcmp(other.data, entry.data, static_cast<size_t>(entry.type.bytes())), 0)
        << name << " on rank " << rank;
  }
}

/// Trains both parts at once: each waits for messages and reductions of the other.
void train_together(Part& one, Part& other, uint64_t seed) {
  auto there = std::async(std::launch::async, [&] { other.train(seed); });
  one.train(seed);
  there.get();
}

TEST(Subset, TwoHalvesOfTheRanksTrainLikeAllInOneProcess) {
  std::string seeds;
  int tried = 0;
  for (uint64_t seed = 1; tried < 8; ++seed) {
    const Case c = random_case(seed, 6, "f32");
    const engine::Run run = engine::parse_run(c.text, c.name, {});
    const auto world_size = static_cast<int32_t>(run.plan.world());
    if (world_size < 2) continue;
    ++tried;
    seeds += " " + std::to_string(seed);
    SCOPED_TRACE(c.name);
    const auto compiled = std::make_shared<const engine::Compiled>(engine::compile(run));
    std::vector<int32_t> all, even, odd;
    for (int32_t rank = 0; rank < world_size; ++rank) {
      all.push_back(rank);
      // By turns in neighbours and in distant ranks.
      const bool first = seed % 2 ? rank % 2 == 0 : rank < world_size / 2;
      (first ? even : odd).push_back(rank);
    }
    const auto world = [&] {
      return std::make_shared<comm::LocalWorld>(world_size, std::chrono::seconds(20));
    };
    Part whole(run, compiled, world(), all);
    whole.train(seed);
    const auto joint = world();
    Part one(run, compiled, joint, even), other(run, compiled, joint, odd);
    train_together(one, other, seed);
    for (Part* part : {&one, &other}) {
      for (int32_t rank : part->ranks.ids()) {
        EXPECT_TRUE(part->ranks.has(rank));
        expect_same(part->session.store(), whole.session.store(), rank);
      }
    }
    EXPECT_FALSE(one.ranks.has(odd[0]));
    EXPECT_THROW(one.ranks.at(odd[0]), Error);
    EXPECT_THROW(one.session.run().executor(odd[0]), Error);
  }
  std::cout << "seeds" << seeds << "\n";
}

TEST(Subset, ReadingAbsentRanksFails) {
  const engine::Run run = engine::parse_run(
      "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 8, num_hidden_layers: 2, "
      "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 8}}\n"
      "train: {global_batch: 2, seq_len: 4}\n"
      "plan: {pp: 2, threads_per_rank: 1}\n",
      "two stages", {});
  const auto compiled = std::make_shared<const engine::Compiled>(engine::compile(run));
  const auto world = std::make_shared<comm::LocalWorld>(2, std::chrono::seconds(20));
  Part first(run, compiled, world, {0}), last(run, compiled, world, {1});
  train_together(first, last, 1);
  EXPECT_GT(last.session.loss(), 0);
  const graph::Graph& graph = compiled->reference;
  const graph::Tensor& head = graph.tensor(graph.find("lm_head.weight"));
  EXPECT_EQ(engine::gather(head, compiled->program, last.session.store()).size(),
            static_cast<size_t>(head.type.bytes()));
  try {
    engine::gather(head, compiled->program, first.session.store());
    ADD_FAILURE() << "rank 0 has no head";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("are on no rank that is here"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(first.session.loss(), Error);
}

TEST(Subset, AFailureStopsTheOthers) {
  const Case c = random_case(3, 4, "f32");
  const engine::Run run = engine::parse_run(
      c.text, c.name,
      {"plan.pp=1", "plan.pp_layers=[]", "plan.dp=2", "plan.ep=1", "plan.etp=1", "plan.ep_inner=1",
       "plan.cp=1", "plan.tp=1", "plan.micro_batch=1", "train.global_batch=2"});
  const auto compiled = std::make_shared<const engine::Compiled>(engine::compile(run));
  const auto world = std::make_shared<comm::LocalWorld>(2, std::chrono::seconds(20));
  Part one(run, compiled, world, {0});
  auto other = std::make_unique<Part>(run, compiled, world, std::vector<int32_t>{1});
  auto waiting = std::async(std::launch::async, [&] {
    try {
      one.train(3);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  other.reset();  // the rank that it would meet is gone
  const std::string what = waiting.get();
  EXPECT_NE(what.find("the ranks have ended"), std::string::npos) << what;
}

}  // namespace
}  // namespace hocket::test::subset_test
