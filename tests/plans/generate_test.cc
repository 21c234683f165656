// SPDX-License-Identifier: Apache-2.0
// ctest: timeout=600
// Plans that train also generate, but for some with experts on several ranks: the program is
// proven, and its logits are those of one rank.
#include <gtest/gtest.h>

#include <iostream>

#include "base/error.h"
#include "base/math.h"
#include "engine/params.h"
#include "graph/names.h"
#include "kernels/backend.h"
#include "plan_util.h"
#include "train/sample.h"

namespace hocket::test {
namespace {

/// Logits of the last tokens of a few steps.
std::vector<double> logits_of(const engine::Run& run, uint64_t seed) {
  engine::Compiled compiled = train::compile_generation(run, 16);
  runtime::RankOptions options = engine::rank_options(run);
  options.threads = 1;
  runtime::LocalRanks ranks(compiled.program.num_ranks(), kernels::cpu_backend(), options);
  engine::Session session(std::move(compiled), ranks);
  engine::initialise(session.graph(), session.program(), seed, ranks);
  std::vector<double> logits;
  int32_t begin = 0;
  for (const int64_t count : {5, 1, 1, 3}) {
    const int64_t rows = round_up(count, session.program().symbols[0].divisor);
    engine::Batch batch(1, rows);
    for (int64_t i = 0; i < count; ++i) {
      batch.tokens[static_cast<size_t>(i)] = static_cast<int32_t>((begin + i) * 7 % 17);
      batch.positions[static_cast<size_t>(i)] = begin + static_cast<int32_t>(i);
    }
    for (int64_t i = count; i < rows; ++i) {
      batch.positions[static_cast<size_t>(i)] = -1;
    }
    begin += static_cast<int32_t>(count);
    session.set_symbol(graph::names::kNewTokens, rows);
    session.set_symbol(graph::names::kCacheLength, begin);
    session.feed(batch);
    session.step();
    const std::vector<double> all = session.collect_as<double>(graph::names::kLogits, 0);
    const int64_t vocab = run.model.vocab_size;
    logits.insert(logits.end(), all.begin() + (count - 1) * vocab, all.begin() + count * vocab);
  }
  return logits;
}

TEST(Generate, UnderRandomPlansAsOnOneRank) {
  const uint64_t first = from_environment("HOCKET_SEED", 1);
  const uint64_t plans = from_environment("HOCKET_PLANS", 40);
  int64_t generated = 0;
  for (uint64_t seed = first; seed < first + plans; ++seed) {
    const Case c = random_case(seed, 8, "f64");
    SCOPED_TRACE(c.name);
    const engine::Run run = engine::parse_run(c.text, c.name, {});
    // Some with experts on several ranks cannot, and say so.
    if (run.plan.ep > 1 && !train::why_no_generation(run).empty()) {
      EXPECT_THROW(train::compile_generation(run, 16), Error);
      continue;
    }
    engine::Run one = run;
    one.plan = parallel::Plan{};
    one.plan.threads_per_rank = 1;
    EXPECT_LE(relative_l2(logits_of(run, seed), logits_of(one, seed)), 1e-10);
    ++generated;
  }
  std::cout << generated << " of " << plans << " plans generate\n";
  EXPECT_GT(generated, static_cast<int64_t>(plans) / 2);
}

}  // namespace
}  // namespace hocket::test
