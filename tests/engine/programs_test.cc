// SPDX-License-Identifier: Apache-2.0
// Programs of one run are compiled once and share the ranks: twenty of them take the memory of the
// largest and one set of threads.
#include "engine/programs.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "base/error.h"
#include "engine/params.h"
#include "graph/names.h"
#include "kernels/backend.h"
#include "program/memory.h"

namespace hocket::engine {
namespace {

Run small_run(const std::vector<std::string>& overrides = {}) {
  return parse_run(R"(
model:
  config: {model_type: llama, vocab_size: 2048, hidden_size: 192, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, head_dim: 48, intermediate_size: 512,
           rms_norm_eps: 1.0e-6, max_position_embeddings: 1024, tie_word_embeddings: true}
train: {global_batch: 2, seq_len: 64}
plan: {threads_per_rank: 1}
)",
                   "test", overrides);
}

int64_t threads_here() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}
/// Waits until this process has that many threads: /proc lists a joined thread a moment longer.
bool comes_down_to(int64_t threads) {
  for (int i = 0; i < 500 && threads_here() != threads; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return threads_here() == threads;
}

/// Returns the resident memory of this process that is not mapped from files.
int64_t anonymous_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == "RssAnon:" && file >> kib) return kib * 1024;
  }
  return 0;
}

TEST(Programs, EqualKeysAreCompiledOnce) {
  const engine::Run run = small_run();
  runtime::LocalRanks ranks = local_ranks(run);
  Programs programs(run, ranks);
  int compiled = 0;
  ProgramSpec trains = training(run);
  trains.lowering.observe = [&](const std::string& what, const Progress&) {
    compiled += what == "program";
  };
  const Compiled* const first = &programs.compiled(trains);
  EXPECT_EQ(&programs.compiled(trains), first);
  EXPECT_EQ(&programs.session(trains).compiled(), first);
  EXPECT_EQ(&programs.session(trains), &programs.session());
  EXPECT_EQ(compiled, 1);
  // Any difference in computation or sizes makes another program.
  const ProgramSpec others[] = {losses(run),
                                training(run, {.micro_batch = 2}),
                                training(run, {.seq_len = 32}),
                                training(run, {.num_micro_batches = 4}),
                                generation(run, 1, {.longest = 1024, .pages = 32}),
                                generation(run, 2, {.longest = 1024, .pages = 32}),
                                generation(run, 2, {.longest = 1025, .pages = 33})};
  for (const ProgramSpec& other : others) {
    EXPECT_NE(&programs.compiled(other), first);
  }
  EXPECT_EQ(programs.num_compiled(), 8u);
  Compiled given = compile(run);
  given.tokens_per_step = 77;
  programs.replace(training(run), std::move(given));
  EXPECT_EQ(programs.compiled().tokens_per_step, 77);
  EXPECT_EQ(programs.num_compiled(), 8u);
}

TEST(Programs, AreInspectedOnceBeforeTheyRun) {
  const engine::Run run = small_run();
  runtime::LocalRanks ranks = local_ranks(run);
  int inspected = 0;
  bool good = false;
  Programs programs(run, ranks, [&](const Compiled& compiled) {
    ++inspected;
    EXPECT_FALSE(compiled.program.classes.empty());
    if (!good) fail("test", "refused");
  });
  EXPECT_THROW(programs.session(logits(run)), Error);
  EXPECT_THROW(programs.compiled(logits(run)), Error);  // a refusal is kept
  good = true;
  programs.session(logits(run));
  programs.session(logits(run));
  EXPECT_EQ(inspected, 3);
}

TEST(Programs, TwentyTakeTheMemoryOfTheLargestAndOneSetOfThreads) {
  const engine::Run run = small_run();
  runtime::LocalRanks ranks = local_ranks(run);
  Programs programs(run, ranks);
  std::vector<ProgramSpec> sizes;
  std::vector<int64_t> lengths;
  for (int64_t n = 32; n <= 640; n += 32) {
    lengths.push_back(n);
    sizes.push_back(logits(run, {.micro_batch = 1, .seq_len = n, .num_micro_batches = 1}));
  }
  ASSERT_EQ(sizes.size(), 20u);
  initialise(programs.compiled(sizes[0]).reference, programs.compiled(sizes[0]).program, 1,
             programs.store());
  std::vector<program::Range> pages;
  int64_t most_io = 0, sum = 0, largest = 0;
  for (const ProgramSpec& size : sizes) {
    const program::Program& program = programs.compiled(size).program;
    const program::Memory alone = program::memory_of(program).at(0);
    const std::vector<program::Range> own = program::planned_pages(program, 0);
    pages.insert(pages.end(), own.begin(), own.end());
    most_io = std::max(most_io, alone.inputs_outputs);
    sum += alone.step_buffers + alone.inputs_outputs;
    largest = std::max(largest, alone.step_buffers + alone.inputs_outputs);
  }
  const int64_t union_of_pages = program::total_bytes(program::joined(pages));

  // The largest comes last, so that every program moves the arena.
  const int64_t threads = threads_here();
  programs.session(sizes[0]);
  const int64_t one_set = threads_here() - threads;
  for (const ProgramSpec& size : sizes) {
    programs.session(size);
  }
  const int64_t before = anonymous_bytes();
  std::vector<float> last;
  for (int round = 0; round < 2; ++round) {
    for (size_t which = 0; which < sizes.size(); ++which) {
      Session& session = programs.session(sizes[which]);
      const int64_t tokens = lengths[which];
      Batch batch(1, tokens);
      for (int64_t i = 0; i < tokens; ++i) {
        batch.tokens[static_cast<size_t>(i)] = static_cast<int32_t>(i * 7 % 2048);
        batch.positions[static_cast<size_t>(i)] = static_cast<int32_t>(i);
      }
      session.feed(batch);
      session.step();
      // All programs read the same text. Its first row must not depend on the number of later rows.
      const auto* logits =
          static_cast<const float*>(session.run().executor(0).output(graph::names::kLogits, 0));
      std::vector<float> row(logits, logits + 2048);
      if (!last.empty()) {
        for (size_t i = 0; i < row.size(); ++i) {
          ASSERT_NEAR(row[i], last[i], 1e-5);
        }
      }
      last = std::move(row);
    }
  }
  const int64_t taken = anonymous_bytes() - before;
  const program::Memory measured = ranks.measured(0);
  std::cout << "20 programs: " << sum / 1024 << " KiB of step buffers, inputs and outputs in sum, "
            << largest / 1024 << " KiB the largest; together "
            << (measured.step_buffers + measured.inputs_outputs) / 1024
            << " KiB of pages, RSS rose by " << taken / 1024 << " KiB; " << one_set << " threads\n";
  EXPECT_LE(measured.step_buffers, union_of_pages);
  EXPECT_EQ(measured.inputs_outputs, most_io);
  EXPECT_LE(measured.step_buffers + measured.inputs_outputs, largest * 11 / 10);
  EXPECT_EQ(threads_here() - threads, one_set);
  // 12 MiB: memory of the kernels per thread, and the heap.
  EXPECT_LT(taken, largest + (12 << 20));
  EXPECT_GT(sum, 10 * largest);
  programs.end_sessions();
  EXPECT_TRUE(comes_down_to(threads));
  EXPECT_EQ(ranks.measured(0).step_buffers, 0);
  EXPECT_EQ(ranks.measured(0).inputs_outputs, 0);
}

TEST(Programs, TrainingAndEvaluationTakeTurns) {
  // The evaluation between two steps changes nothing: not to the bit.
  const engine::Run run = small_run({"plan.dp=2"});
  const auto losses = [&](bool evaluate) {
    runtime::LocalRanks ranks = local_ranks(run);
    Programs programs(run, ranks);
    Session& training = programs.session();
    initialise(training.graph(), training.program(), 3, programs.store());
    std::vector<double> list;
    for (int step = 0; step < 3; ++step) {
      for (Session* session : {&training, &programs.session(evaluation(run))}) {
        if (session != &training && !evaluate) continue;
        Batch batch = empty_batch(session->compiled(), run.config.train.seq_len);
        for (size_t i = 0; i < batch.tokens.size(); ++i) {
          batch.tokens[i] = static_cast<int32_t>(i * 31 % 512);
          batch.targets[i] = static_cast<int32_t>(i * 17 % 512);
          batch.positions[i] = static_cast<int32_t>(i) % static_cast<int32_t>(batch.seq_len);
        }
        batch.loss_scale = 1.0 / static_cast<double>(batch.num_targets());
        batch.hyper = hyper_of(run.config.optimizer, 0.001, step + 1);
        session->feed(batch);
        session->step();
        if (session == &training) {
          list.push_back(session->loss());
        }
      }
    }
    return list;
  };
  const std::vector<double> alone = losses(false);
  EXPECT_EQ(losses(true), alone);
  EXPECT_LT(alone[2], alone[0]);
}

}  // namespace
}  // namespace hocket::engine
