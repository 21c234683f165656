// SPDX-License-Identifier: Apache-2.0
// The engine on its thread: cancellations, failures, and its end.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "base/error.h"
#include "serve/engine.h"
#include "tests/serve/paged_stepper.h"

namespace hocket::serve {
namespace {

TEST(Engine, CancellationsTakeNoPlacesInTheQueue) {
  PagedStepper stepper({.tokens = 64, .sequences = 1, .longest = 160, .pages = 8, .rows = 8});
  SchedulerOptions options;
  options.max_waiting = 4;
  std::atomic<Engine*> engine{nullptr};
  std::atomic<int> steps{0};
  // Twenty clients go in the first step, and one comes in that and the next one.
  std::atomic<int64_t> refused{0};
  stepper.during_step = [&] {
    while (engine == nullptr) {
      std::this_thread::yield();
    }
    if (++steps > 2) return;
    for (int i = 0; i < 20; ++i) {
      engine.load()->cancel(1000);
    }
    try {
      engine.load()->submit(request(prompt(5), 1), nullptr);
    } catch (const Busy&) {
      ++refused;
    }
  };
  Engine running(stepper, nullptr, options);
  engine = &running;
  Result first;
  running.submit(request(prompt(5), 5), into(first));
  running.wait_idle();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(running.stats().waiting, 0);
  running.stop();
}

TEST(Engine, ATextWithoutFiniteLogitsFailsAlone) {
  PagedStepper stepper({.tokens = 64, .sequences = 3, .longest = 160, .pages = 8, .rows = 64});
  stepper.overflows_behind = 900;
  Engine engine(stepper, nullptr, SchedulerOptions());
  std::vector<int32_t> overflows = prompt(5);
  overflows.push_back(900);
  Request in_prompt = request(overflows, 4);
  in_prompt.prompt = {900, 1, 2};
  in_prompt.prompt_logprobs = 0;
  Result good, bad, early, later;
  engine.submit(request(prompt(5), 10), into(good));
  engine.submit(request(overflows, 10), into(bad));
  engine.submit(in_prompt, into(early));
  engine.wait_idle();
  engine.submit(request(prompt(7), 10), into(later));
  engine.wait_idle();
  engine.stop();
  EXPECT_EQ(good.tokens, PagedStepper::text(prompt(5), 10));
  EXPECT_EQ(later.tokens, PagedStepper::text(prompt(7), 10));
  for (const Result& result : {bad, early}) {
    EXPECT_EQ(result.finish, Finish::failed);
    EXPECT_NE(result.error.find("the model's logit of token 17 is inf"), std::string::npos)
        << result.error;
    EXPECT_TRUE(result.tokens.empty());
  }
  EXPECT_EQ(engine.failure(), "");
}

TEST(Engine, AnOrderlyEndIsNoFailure) {
  PagedStepper stepper({.tokens = 64, .sequences = 2, .longest = 160, .pages = 8, .rows = 8});
  Engine engine(stepper, nullptr, SchedulerOptions());
  Result result, late;
  engine.submit(request(prompt(5), 100), into(result));
  EXPECT_FALSE(engine.is_shut_down());
  engine.stop();
  EXPECT_NE(result.finish, Finish::running);
  EXPECT_TRUE(engine.is_shut_down());
  EXPECT_EQ(engine.failure(), "");
  EXPECT_THROW(engine.submit(request(prompt(5), 1), into(late)), Error);
}

TEST(Engine, AStepThatFailsIsNoOrderlyEnd) {
  PagedStepper stepper({.tokens = 64, .sequences = 2, .longest = 160, .pages = 8, .rows = 8});
  stepper.fails_at = 1;
  Engine engine(stepper, nullptr, SchedulerOptions());
  Result result;
  engine.submit(request(prompt(5), 20), into(result));
  EXPECT_THROW(engine.wait_idle(), Error);
  engine.stop();
  EXPECT_FALSE(engine.is_shut_down());
  EXPECT_NE(engine.failure(), "");
}

}  // namespace
}  // namespace hocket::serve
