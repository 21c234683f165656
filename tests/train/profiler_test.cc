// SPDX-License-Identifier: Apache-2.0
// A profile's times: what is timed, and that the first passes, which are slow, do not count.
#include "train/profiler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/runtime/fake_util.h"

namespace hocket::train {
namespace {

using program::Lane;

engine::Run one_rank() {
  return engine::parse_run(
      "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 8, num_hidden_layers: 1, "
      "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 8}}\n"
      "plan: {threads_per_rank: 1}\n",
      "test", {});
}

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST(Profiler, WarmUpDoesNotCount) {
  // The first two passes take fifty times as long as the others.
  std::atomic<int> calls = 0;
  fake::Builder b;
  const auto x = b.buffer(0, fake::f64s(4)), y = b.buffer(0, fake::f64s(4));
  b.task(0, Lane::compute, {}, {x}, [&](const kernels::KernelArgs&) { sleep_ms(++calls > 2 ? 2 : 100); });
  b.task(0, Lane::compute, {x}, {y}, [](const kernels::KernelArgs&) { sleep_ms(4); });
  engine::Compiled compiled;
  compiled.program = b.finish();
  compiled.reference.input("tokens", {graph::DType::i32, {512}}, false);  // what a batch is cut by
  const engine::Run run = one_rank();
  compiled.tokens_per_step = run.config.train.seq_len;
  compiled.reference.input("tokens", {graph::DType::i32, {run.config.train.seq_len}});
  ProfileOptions options;
  options.seconds = 0;
  const cost::Profile p =
      profile(run, compiled, std::make_shared<fake::Backend>(), options);
  EXPECT_EQ(calls, 2 + 5);
  ASSERT_EQ(p.tasks.size(), 2u);
  for (const cost::TimedTask& task : p.tasks) {
    EXPECT_GE(task.ns, 2000000);
    EXPECT_LT(task.ns, 50000000);
    // Two slow passes of seven would lie beyond the upper quartile.
    EXPECT_LT(task.spread, 20) << task.key;
  }
}

}  // namespace
}  // namespace hocket::train
