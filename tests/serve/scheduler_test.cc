// SPDX-License-Identifier: Apache-2.0
// The scheduler with a stepper that knows every page's content: texts are the same alone and in any
// batch, budgets are kept, and requests that cannot run are refused.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "data/tokenizer/tokenizer.h"
#include "serve/scheduler.h"
#include "tests/serve/paged_stepper.h"

namespace hocket::serve {
namespace {

TEST(Scheduler, TextsAreTheSameInAnyBatch) {
  Rng rng(11);
  int64_t copies = 0, preemptions = 0;
  for (int round = 0; round < 200; ++round) {
    StepLimits limits{.parts = 1 + static_cast<int64_t>(rng.below(3)),
                      .tokens = 4 + static_cast<int64_t>(rng.below(120)),
                      .sequences = 1 + static_cast<int64_t>(rng.below(6)),
                      .longest = 400,
                      .pages = 13 + static_cast<int64_t>(rng.below(20)),
                      .rows = 4 + static_cast<int64_t>(rng.below(8)),
                      .changes = 1000,
                      .routes = rng.below(2) == 0};
    PagedStepper stepper(limits);
    SchedulerOptions options;
    options.prefix_caching = rng.below(3) > 0;
    options.token_budget = rng.below(2) == 0 ? 0 : 1 + static_cast<int64_t>(rng.below(60));
    options.decode_steps = static_cast<int64_t>(rng.below(4));
    options.prompt_tokens = static_cast<int64_t>(rng.below(3) * rng.below(20));
    Scheduler scheduler(stepper, nullptr, options);
    const size_t count = 12;
    std::vector<Request> requests;
    std::vector<Result> results(count);
    std::set<size_t> cancelled;
    for (size_t i = 0; i < count; ++i) {
      // Prompts share prefixes, or are the same.
      std::vector<int32_t> tokens = prompt(1 + static_cast<int64_t>(rng.below(200)));
      if (rng.below(2) == 0) {
        const std::vector<int32_t> more = prompt(1 + static_cast<int64_t>(rng.below(90)), 500);
        tokens.insert(tokens.end(), more.begin(), more.end());
      }
      if (i > 0 && rng.below(3) > 0) {
        tokens = requests.back().prompt;
      }
      requests.push_back(request(tokens, static_cast<int64_t>(rng.below(60))));
      Request& one = requests.back();
      one.priority = static_cast<int64_t>(rng.below(3));
      one.cache_salt = rng.below(4) == 0 ? "salt" : "";
      one.prompt_logprobs = rng.below(4) == 0 ? 1 : -1;
      one.logprobs = rng.below(2) == 0 ? 2 : -1;
      one.routes = limits.routes;
      if (rng.below(3) == 0) {
        one.sampling.frequency_penalty = 0.5;
      }
      scheduler.submit(static_cast<int64_t>(i), requests.back(), into(results[i]));
      for (uint64_t steps = rng.below(2) * rng.below(6); steps > 0; --steps) {
        scheduler.step();
      }
      if (rng.below(10) == 0) {
        cancelled.insert(i - rng.below(i + 1));
        scheduler.cancel(static_cast<int64_t>(*cancelled.rbegin()));
      }
    }
    run(scheduler);
    copies += options.prefix_caching ? stepper.copies : 0;
    preemptions += scheduler.stats().preemptions;
    EXPECT_TRUE(options.prefix_caching || stepper.copies == 0);
    for (size_t i = 0; i < count; ++i) {
      SCOPED_TRACE(fmt::format("round {}, request {}", round, i));
      const Request& one = requests[i];
      const std::vector<int32_t> text = PagedStepper::text(one.prompt, one.max_tokens);
      if (cancelled.contains(i) && results[i].finish == Finish::cancelled) {
        EXPECT_TRUE(
            std::ranges::equal(results[i].tokens, std::span(text).first(results[i].tokens.size())));
        continue;
      }
      EXPECT_EQ(results[i].finish, Finish::length);
      EXPECT_EQ(results[i].tokens, text);
      if (one.routes) {
        std::vector<int32_t> computed = one.prompt;
        computed.insert(computed.end(), text.begin(), text.end() - (text.empty() ? 0 : 1));
        EXPECT_EQ(results[i].routes, computed);
      }
      EXPECT_EQ(results[i].logprobs.size(), one.logprobs >= 0 ? one.max_tokens : 0);
      const size_t given = one.prompt_logprobs >= 0 ? one.prompt.size() - 1 : 0;
      ASSERT_EQ(results[i].prompt_logprobs.size(), given);
      for (size_t t = 0; t < given; ++t) {
        const TokenLogprobs& row = results[i].prompt_logprobs[t];
        EXPECT_EQ(row.token, one.prompt[t + 1]);
        EXPECT_EQ(row.rank, row.token + 1);
        EXPECT_EQ(row.sampled_logprob, row.logprob);
      }
    }
    const Stats stats = scheduler.stats();
    EXPECT_EQ(stats.pages_in_use, 0);
    EXPECT_EQ(stats.running + stats.waiting, 0);
  }
  EXPECT_GT(copies, 50);
  EXPECT_GT(preemptions, 20);
}

TEST(Scheduler, SpreadsRequestsOverItsParts) {
  PagedStepper stepper(
      {.parts = 4, .tokens = 64, .sequences = 2, .longest = 400, .pages = 8, .rows = 8});
  Scheduler scheduler(stepper, nullptr, {});
  std::vector<Result> results(8);
  for (size_t i = 0; i < results.size(); ++i) {
    scheduler.submit(static_cast<int64_t>(i), request(prompt(40, static_cast<int32_t>(i)), 20),
                     into(results[i]));
  }
  run(scheduler);
  EXPECT_EQ(stepper.parts_used, 4 * stepper.steps);  // all parts work in all steps
  // Each text has its prompt's 40 tokens and all of its own but the last one computed once.
  const Stats stats = scheduler.stats();
  EXPECT_EQ(stats.step_tokens, 8 * (40 + 19));
  EXPECT_EQ(std::accumulate(stats.steps_by_tokens.begin(), stats.steps_by_tokens.end(), int64_t{0}),
            stepper.steps);
  EXPECT_EQ(stats.steps_by_tokens[1], stepper.steps - 2);  // eight tokens, one of each text
  EXPECT_TRUE(stats.prefix_caching);
  // Its prefix lies in one part only.
  for (size_t i = 0; i < results.size(); ++i) {
    Result again;
    scheduler.submit(100, request(prompt(40, static_cast<int32_t>(i)), 20), into(again));
    run(scheduler);
    EXPECT_EQ(again.cached, kPage);
    EXPECT_EQ(again.tokens, results[i].tokens);
  }
}

TEST(Scheduler, RunningTextsComeBeforeLongPrompts) {
  PagedStepper stepper({.tokens = 16, .sequences = 4, .longest = 1000, .pages = 100, .rows = 8});
  Scheduler scheduler(stepper, nullptr, {});
  Result text, big;
  scheduler.submit(1, request(prompt(3), 50), into(text));
  scheduler.step();
  scheduler.submit(2, request(prompt(700), 1), into(big));
  for (int i = 0; i < 30; ++i) {
    scheduler.step();
    EXPECT_EQ(std::ssize(text.tokens), i + 2) << "a step without a token of the running text";
  }
  EXPECT_TRUE(big.tokens.empty());
  run(scheduler);
  EXPECT_EQ(big.tokens, PagedStepper::text(prompt(700), 1));
  EXPECT_EQ(stepper.most_tokens, 16);
}

TEST(Scheduler, StepsOfRunningTextsLieBetweenChunksOfAPrompt) {
  PagedStepper stepper({.tokens = 16, .sequences = 4, .longest = 1000, .pages = 100, .rows = 8});
  SchedulerOptions options;
  options.decode_steps = 2;
  Scheduler scheduler(stepper, nullptr, options);
  Result text, big;
  scheduler.submit(1, request(prompt(3), 50), into(text));
  for (int i = 0; i < 3; ++i) {
    scheduler.step();
  }
  scheduler.submit(2, request(prompt(60), 1), into(big));
  // Chunks of 15 tokens in the first step and in every third one behind it.
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(big.tokens.empty());
    stepper.most_tokens = 0;
    scheduler.step();
    EXPECT_EQ(stepper.most_tokens, i % 3 == 0 ? 16 : 1) << "step " << i;
    EXPECT_EQ(std::ssize(text.tokens), i + 4);
  }
  EXPECT_EQ(big.tokens, PagedStepper::text(prompt(60), 1));
  // Without a running text no step is left out.
  run(scheduler);
  Result alone;
  scheduler.submit(3, request(prompt(60, 7), 1), into(alone));
  const int64_t before = stepper.steps;
  run(scheduler);
  EXPECT_EQ(stepper.steps - before, 4);
}

TEST(Scheduler, AShortPromptNeedNotWaitForALongOne) {
  PagedStepper stepper({.tokens = 16, .sequences = 4, .longest = 1000, .pages = 100, .rows = 8});
  SchedulerOptions options;
  options.prompt_tokens = 10;
  Scheduler scheduler(stepper, nullptr, options);
  Result big, small;
  scheduler.submit(1, request(prompt(500), 1), into(big));
  scheduler.step();
  scheduler.submit(2, request(prompt(11, 9), 1), into(small));
  scheduler.step();
  EXPECT_TRUE(small.tokens.empty());
  scheduler.step();
  EXPECT_EQ(small.tokens, PagedStepper::text(prompt(11, 9), 1));
  EXPECT_TRUE(big.tokens.empty());
  run(scheduler);
  EXPECT_EQ(big.tokens, PagedStepper::text(prompt(500), 1));
}

TEST(Scheduler, PreemptsTheLastAndGoesOn) {
  PagedStepper stepper({.tokens = 64, .sequences = 4, .longest = 160, .pages = 8, .rows = 8});
  SchedulerOptions options;
  options.prefix_caching = false;
  Scheduler scheduler(stepper, nullptr, options);
  std::vector<Result> results(3);
  for (size_t i = 0; i < results.size(); ++i) {
    scheduler.submit(static_cast<int64_t>(i),
                     request(prompt(60, static_cast<int32_t>(100 * i)), 90), into(results[i]));
  }
  run(scheduler);
  EXPECT_GT(scheduler.stats().preemptions, 0);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].tokens, PagedStepper::text(prompt(60, static_cast<int32_t>(100 * i)), 90));
  }
}

TEST(Scheduler, StopsAtTokensAndNotBeforeTheLeast) {
  PagedStepper stepper(
      {.tokens = 64, .sequences = 4, .longest = 160, .pages = 8, .rows = 8, .changes = 10});
  Scheduler scheduler(stepper, nullptr, {});
  const std::vector<int32_t> text = PagedStepper::text(prompt(5), 20);
  Request one = request(prompt(5), 20);
  one.stop_tokens = {text[7]};
  one.logprobs = 0;
  Result result;
  scheduler.submit(1, one, into(result));
  run(scheduler);
  EXPECT_EQ(result.finish, Finish::stop);
  EXPECT_EQ(result.stop_token, text[7]);
  const auto first = std::ranges::find(text, text[7]) - text.begin();
  EXPECT_EQ(result.tokens, std::vector<int32_t>(text.begin(), text.begin() + first));
  ASSERT_EQ(result.logprobs.size(), result.tokens.size() + 1);
  EXPECT_EQ(result.logprobs.back().token, text[7]);
}

/// Only even tokens; the text may end after four.
class Even : public TokenConstraint {
 public:
  void allow(std::span<uint32_t> mask) override {
    if (count_ == 4) return;
    std::ranges::fill(mask, 0x55555555u);
  }
  void accept(int32_t) override { ++count_; }
  bool may_end() const override { return count_ == 4; }

 private:
  int count_ = 0;
};

TEST(Scheduler, EndsWhereAConstraintAllowsNoMore) {
  PagedStepper stepper({.tokens = 64, .sequences = 4, .longest = 160, .pages = 8, .rows = 8});
  Scheduler scheduler(stepper, nullptr, {});
  Request one = request(prompt(5), 20);
  one.constraint = std::make_shared<Even>();
  Result result;
  scheduler.submit(1, one, into(result));
  run(scheduler);
  EXPECT_EQ(result.finish, Finish::stop);
  EXPECT_EQ(result.tokens.size(), 4u);
}

/// Even, and not ready for each token until the third time it is asked.
class SlowEven final : public Even {
 public:
  bool prepare(int64_t* work) override {
    EXPECT_GT(*work, 0);
    return ++asked_ % 3 == 0;
  }

 private:
  int asked_ = 0;
};

TEST(Scheduler, ATextWhoseMaskIsNotReadySitsOutTheStep) {
  const StepLimits limits{.tokens = 64, .sequences = 4, .longest = 160, .pages = 8, .rows = 8};
  const auto constrained = [] {
    Request one = request(prompt(5), 20);
    one.constraint = std::make_shared<SlowEven>();
    return one;
  };
  PagedStepper stepper(limits);
  Scheduler scheduler(stepper, nullptr, {});
  Result slow, beside;
  scheduler.submit(1, constrained(), into(slow));
  scheduler.submit(2, request(prompt(5, 3), 6), into(beside));
  run(scheduler);
  EXPECT_EQ(slow.tokens, PagedStepper::text(prompt(5), 4));
  EXPECT_EQ(slow.finish, Finish::stop);
  EXPECT_EQ(beside.tokens, PagedStepper::text(prompt(5, 3), 6));
  // The other text has a token in each of six steps. The slow one has them in steps 1 and 4, and
  // then waits for each mask without steps of the model.
  EXPECT_EQ(stepper.steps, 6 + 3);
  PagedStepper other(limits);
  Scheduler alone(other, nullptr, {});
  Result again;
  alone.submit(1, constrained(), into(again));
  run(alone);
  EXPECT_EQ(again.tokens, slow.tokens);
  EXPECT_EQ(other.steps, 5);
}

TEST(Scheduler, ATextKeepsItsStopTokenWhereStopsAreKept) {
  data::TokenizerSpec spec;
  for (int64_t i = 0; i < kVocab; ++i) {
    spec.tokens.push_back("<" + std::to_string(i) + ">");
  }
  const data::Tokenizer tokenizer(std::move(spec));
  const std::vector<int32_t> text = PagedStepper::text(prompt(5), 20);
  const auto ended = [&](bool keeps) {
    PagedStepper stepper({.tokens = 64, .sequences = 4, .longest = 160, .pages = 8, .rows = 8});
    Scheduler scheduler(stepper, &tokenizer, {});
    Request one = request(prompt(5), 20);
    one.stop_tokens = {text[2]};
    one.include_stop = keeps;
    std::string out;
    scheduler.submit(1, one, [&](const Update& update) { out += update.text; });
    run(scheduler);
    return out;
  };
  const std::string before = "<" + std::to_string(text[0]) + "><" + std::to_string(text[1]) + ">";
  EXPECT_EQ(ended(false), before);
  EXPECT_EQ(ended(true), before + "<" + std::to_string(text[2]) + ">");
}

/// Token 0 alone, without an end.
class Zeros : public TokenConstraint {
 public:
  void allow(std::span<uint32_t> mask) override { mask[0] = 1; }
  void accept(int32_t) override {}
  bool may_end() const override { return false; }
};

TEST(Scheduler, BannedStopsAreNotAllowedByAConstraint) {
  PagedStepper stepper(
      {.tokens = 64, .sequences = 4, .longest = 160, .pages = 8, .rows = 8, .changes = 10});
  Scheduler scheduler(stepper, nullptr, {});
  // Only the stop token may follow the fourth token, and min_tokens bans it: the text ends there.
  Request one = request(prompt(5), 20);
  one.constraint = std::make_shared<Even>();
  one.stop_tokens = {kVocab - 1};
  one.min_tokens = 10;
  Result ended;
  scheduler.submit(1, one, into(ended));
  run(scheduler);
  EXPECT_EQ(ended.finish, Finish::stop);
  EXPECT_EQ(ended.tokens.size(), 4u);
  EXPECT_EQ(ended.error, "");
  // The only token that may come next is banned: this request alone fails.
  Request stuck = one;
  stuck.constraint = std::make_shared<Zeros>();
  stuck.stop_tokens = {0};
  Result failed, beside;
  scheduler.submit(2, stuck, into(failed));
  scheduler.submit(3, request(prompt(5), 3), into(beside));
  run(scheduler);
  EXPECT_EQ(failed.finish, Finish::failed);
  EXPECT_NE(failed.error, "");
  EXPECT_EQ(beside.finish, Finish::length);
}

TEST(Scheduler, CancelsWaitingAndRunningRequests) {
  PagedStepper stepper({.tokens = 64, .sequences = 1, .longest = 160, .pages = 8, .rows = 8});
  Scheduler scheduler(stepper, nullptr, {});
  Result running, waiting;
  scheduler.submit(1, request(prompt(5), 100), into(running));
  scheduler.step();
  scheduler.submit(2, request(prompt(5), 100), into(waiting));
  scheduler.cancel(2);
  scheduler.cancel(1);
  scheduler.cancel(3);
  EXPECT_EQ(running.finish, Finish::cancelled);
  EXPECT_EQ(waiting.finish, Finish::cancelled);
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(scheduler.stats().pages_in_use, 0);
}

TEST(Scheduler, AStepThatFailsEndsAllRequests) {
  PagedStepper stepper({.tokens = 64, .sequences = 2, .longest = 160, .pages = 8, .rows = 8});
  stepper.fails_at = 3;
  Scheduler scheduler(stepper, nullptr, {});
  std::vector<Result> results(3);
  for (size_t i = 0; i < results.size(); ++i) {
    scheduler.submit(static_cast<int64_t>(i), request(prompt(5), 20), into(results[i]));
  }
  scheduler.step();
  scheduler.step();
  EXPECT_THROW(scheduler.step(), Error);
  scheduler.fail_all("the cable was pulled");
  for (const Result& result : results) {
    EXPECT_EQ(result.finish, Finish::failed);
    EXPECT_EQ(result.error, "the cable was pulled");
  }
}

TEST(Scheduler, AStepThatFailsGivesNoRoutes) {
  PagedStepper stepper({.parts = 2,
                        .tokens = 64,
                        .sequences = 2,
                        .longest = 160,
                        .pages = 8,
                        .rows = 8,
                        .routes = true});
  stepper.fails_at = 3;
  Scheduler scheduler(stepper, nullptr, {});
  Request one = request(prompt(5), 20);
  one.routes = true;
  Result ended, first, second;
  Request read = one;
  read.max_tokens = 0;
  scheduler.submit(1, read, into(ended));
  scheduler.step();
  EXPECT_EQ(ended.routes, prompt(5));
  scheduler.submit(2, one, into(first));
  scheduler.step();
  // The first step of the other part fails: nothing is kept of it.
  scheduler.submit(3, one, into(second));
  EXPECT_THROW(scheduler.step(), Error);
  scheduler.fail_all("the cable was pulled");
  EXPECT_EQ(second.finish, Finish::failed);
  EXPECT_TRUE(first.routes.empty() && second.routes.empty());
}

TEST(Scheduler, RefusesRequestsThatCanNeverRun) {
  PagedStepper stepper(
      {.tokens = 16, .sequences = 2, .longest = 100, .pages = 3, .rows = 8, .changes = 20});
  SchedulerOptions options;
  options.max_waiting = 1;
  Scheduler scheduler(stepper, nullptr, options);
  const auto refuses = [&](const std::function<void(Request&)>& change) {
    Request one = request(prompt(5), 10);
    change(one);
    EXPECT_THROW(scheduler.submit(1, one, nullptr), Error);
  };
  refuses([](Request& r) { r.prompt = {}; });
  refuses([](Request& r) { r.prompt = {kVocab}; });
  refuses([](Request& r) { r.prompt = {-1}; });
  refuses([](Request& r) { r.max_tokens = 96; });
  refuses([](Request& r) { r.max_tokens = -1; });
  refuses([](Request& r) { r.min_tokens = 11; });
  refuses([](Request& r) { r.logprobs = 21; });
  refuses([](Request& r) { r.stops = {""}; });
  refuses([](Request& r) { r.stop_tokens = {-1}; });
  refuses([](Request& r) { r.sampling.temperature = -1; });
  refuses([](Request& r) { r.sampling.top_p = std::nan(""); });
  refuses([](Request& r) { r.sampling.logit_bias = {{kVocab, 1}}; });
  refuses([](Request& r) {
    r.max_tokens = 90;
    r.sampling.presence_penalty = 1;  // more tokens than a step can change
  });
  Request fits = request(prompt(86), 10);
  scheduler.submit(2, fits, nullptr);
  EXPECT_THROW(scheduler.submit(3, fits, nullptr), Busy);
  run(scheduler);
}

}  // namespace
}  // namespace hocket::serve
