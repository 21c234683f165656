// SPDX-License-Identifier: Apache-2.0
// A sleeping lane is woken by the task that it waits for, not by one that ends later.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "runtime/local_ranks.h"
#include "tests/runtime/fake_util.h"

namespace hocket::runtime {
namespace {

using kernels::KernelArgs;
using program::BufferId;
using program::Lane;

TEST(ExecutorWake, ALaneThatWaitsAloneIsWoken) {
  fake::Builder builder;
  const BufferId x = builder.buffer(0, fake::f64s(1));
  const BufferId y = builder.buffer(0, fake::f64s(1));
  const BufferId z = builder.buffer(0, fake::f64s(1));
  std::promise<void> woken;
  bool in_time = false;
  // Long enough for the other lanes to end, and for the one that reads x to fall asleep.
  builder.task(0, Lane::compute, {}, {x}, [](const KernelArgs&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  builder.task(0, Lane::intra, {x}, {y}, [&](const KernelArgs&) { woken.set_value(); });
  // No lane ends, and none waits, until the sleeper has been woken.
  builder.task(0, Lane::compute, {}, {z}, [&](const KernelArgs&) {
    in_time = woken.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  });
  LocalRanks rank(1, std::make_shared<fake::Backend>(), {});
  LocalRun run(std::make_shared<const program::Program>(builder.finish()), Store(rank));
  run.step();
  EXPECT_TRUE(in_time);
}

}  // namespace
}  // namespace hocket::runtime
