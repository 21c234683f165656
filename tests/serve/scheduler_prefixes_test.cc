// SPDX-License-Identifier: Apache-2.0
// Prefixes that the scheduler finds in its cache: whole pages are shared, ends of prompts copied.
#include <gtest/gtest.h>

#include "serve/scheduler.h"
#include "tests/serve/paged_stepper.h"

namespace hocket::serve {
namespace {

/// Texts of one prompt that start together compute it once, whatever its length is.
TEST(SchedulerPrefixes, ComputesThePromptOfSeveralTextsOnce) {
  for (const int64_t length : {1, 2, 11, 32, 33, 63, 64, 65, 200}) {
    SCOPED_TRACE(length);
    PagedStepper stepper({.tokens = 500, .sequences = 6, .longest = 400, .pages = 60, .rows = 8});
    Scheduler scheduler(stepper, nullptr, {});
    std::vector<Result> results(6);
    const auto submit = [&](size_t i, const char* salt = "") {
      Request one = request(prompt(length), 3);
      one.cache_salt = salt;
      scheduler.submit(static_cast<int64_t>(i), one, into(results[i]));
    };
    for (size_t i = 0; i < 4; ++i) {
      submit(i);
    }
    submit(4, "salt");
    scheduler.step();
    EXPECT_EQ(stepper.tokens, 2 * length + 3);
    // One that comes later finds it, too, while one of the others runs.
    submit(5);
    scheduler.step();
    EXPECT_EQ(stepper.tokens, 2 * length + 3 + 5 + 1);
    run(scheduler);
    for (const Result& result : results) {
      EXPECT_EQ(result.tokens, PagedStepper::text(prompt(length), 3));
    }
    EXPECT_EQ(results[3].cached, length - 1);
    EXPECT_EQ(results[4].cached, 0);
    EXPECT_EQ(results[5].cached, length - 1);
    EXPECT_EQ(scheduler.stats().prefix_hits, 4 * (length - 1));
    EXPECT_EQ(scheduler.stats().pages_in_use, 0);
  }
}

TEST(SchedulerPrefixes, APartWithRoomComesBeforeOneThatHasThePrefixAndNoRoom) {
  PagedStepper stepper(
      {.parts = 2, .tokens = kPage, .sequences = 4, .longest = 128, .pages = 4, .rows = 2});
  Scheduler scheduler(stepper, nullptr, {});
  const auto behind_prefix = [](int64_t length, int32_t first) {
    std::vector<int32_t> tokens = prompt(kPage);
    const std::vector<int32_t> own = prompt(length, first);
    tokens.insert(tokens.end(), own.begin(), own.end());
    return tokens;
  };
  std::vector<Result> results(5);
  const auto submit = [&](size_t i, std::vector<int32_t> tokens, int64_t most, int64_t priority) {
    Request one = request(std::move(tokens), most);
    one.priority = priority;
    scheduler.submit(static_cast<int64_t>(i), one, into(results[i]));
  };
  submit(0, behind_prefix(1, 100), 1, 1);
  run(scheduler);
  // Its part becomes full: two texts take all rows, and a prompt waits for one at its end.
  submit(1, behind_prefix(1, 200), 30, 1);
  submit(2, behind_prefix(1, 300), 30, 1);
  scheduler.step();
  submit(3, behind_prefix(kPage, 400), 1, 1);
  scheduler.step();
  scheduler.step();
  EXPECT_EQ(scheduler.stats().pages_in_use, 4);
  submit(4, behind_prefix(2 * kPage, 500), 1, 0);
  run(scheduler);
  EXPECT_EQ(scheduler.stats().preemptions, 0);
  EXPECT_EQ(results[3].tokens, PagedStepper::text(behind_prefix(kPage, 400), 1));
  EXPECT_EQ(results[4].tokens, PagedStepper::text(behind_prefix(2 * kPage, 500), 1));
  EXPECT_EQ(results[4].cached, 0);
}

TEST(SchedulerPrefixes, ReusesThePagesOfACommonPrefix) {
  PagedStepper stepper({.tokens = 64, .sequences = 4, .longest = 400, .pages = 40, .rows = 8});
  Scheduler scheduler(stepper, nullptr, {});
  Result first, second, salted, together;
  scheduler.submit(1, request(prompt(200), 3), into(first));
  run(scheduler);
  EXPECT_EQ(first.cached, 0);
  const int64_t before = stepper.steps;
  scheduler.submit(2, request(prompt(200), 3), into(second));
  // The third text reads pages that the second one writes in the same step.
  scheduler.submit(3, request(prompt(200), 2), into(together));
  run(scheduler);
  EXPECT_EQ(second.cached, 192);
  EXPECT_EQ(together.cached, 199);  // and the begin of its last page, which is copied
  EXPECT_EQ(stepper.steps - before, 3);
  Request other = request(prompt(200), 1);
  other.cache_salt = "mine";
  scheduler.submit(4, other, into(salted));
  run(scheduler);
  EXPECT_EQ(salted.cached, 0);
  EXPECT_EQ(scheduler.stats().prefix_hits, 192 + 199);
}

/// A text loses its pages in the step that copies one of them: that one stays until then.
TEST(SchedulerPrefixes, APageStaysUntilItIsCopied) {
  PagedStepper stepper({.tokens = 64, .sequences = 4, .longest = 128, .pages = 4, .rows = 8});
  Scheduler scheduler(stepper, nullptr, {});
  std::vector<Request> requests;
  std::vector<Result> results(4);
  const auto submit = [&](std::vector<int32_t> tokens, int64_t most, int64_t priority) {
    requests.push_back(request(std::move(tokens), most));
    requests.back().priority = priority;
    const size_t i = requests.size() - 1;
    scheduler.submit(static_cast<int64_t>(i), requests[i], into(results[i]));
  };
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      scheduler.step();
    }
  };
  submit(prompt(11), 100, 9);
  steps(44);
  submit(prompt(40, 300), 20, 1);
  steps(10);
  // The first text needs a third page, and all are in use. The third request takes its second one.
  submit(prompt(11), 20, 3);
  submit(prompt(11, 500), 20, 4);
  EXPECT_EQ(stepper.copies, 0);
  steps(1);
  EXPECT_EQ(stepper.copies, 1);
  EXPECT_EQ(scheduler.stats().preemptions, 1);
  run(scheduler);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].tokens, PagedStepper::text(requests[i].prompt, requests[i].max_tokens));
  }
}

TEST(SchedulerPrefixes, PrefixesOfAnotherSaltOrOtherWeightsAreNotFound) {
  PagedStepper stepper({.tokens = 64, .sequences = 2, .longest = 160, .pages = 8, .rows = 8});
  SchedulerOptions options;
  options.cache_namespace = "weights a";
  Scheduler scheduler(stepper, nullptr, options);
  const auto cached = [&](Scheduler& by, const std::string& salt) {
    Request one = request(prompt(70), 1);
    one.cache_salt = salt;
    Result result;
    by.submit(1, one, into(result));
    run(by);
    EXPECT_EQ(result.tokens, PagedStepper::text(prompt(70), 1));
    return result.cached;
  };
  EXPECT_EQ(cached(scheduler, ""), 0);
  EXPECT_EQ(cached(scheduler, "mine"), 0);
  EXPECT_EQ(cached(scheduler, ""), 2 * kPage);
  EXPECT_EQ(cached(scheduler, "mine"), 2 * kPage);
  // The same model with other weights, as after an update: a salt does not lead to the old ones.
  options.cache_namespace = "weights b";
  Scheduler updated(stepper, nullptr, options);
  EXPECT_EQ(cached(updated, "mine"), 0);
  EXPECT_EQ(cached(updated, "mine"), 2 * kPage);
}

}  // namespace
}  // namespace hocket::serve
