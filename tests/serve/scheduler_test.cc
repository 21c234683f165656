// SPDX-License-Identifier: Apache-2.0
// The scheduler with a stepper that knows every page's content: texts are the same alone and in any
// batch, budgets are kept, and requests that cannot run are refused.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "data/tokenizer/tokenizer.h"
#include "serve/engine.h"
#include "serve/scheduler.h"

namespace hocket::serve {
namespace {

constexpr int64_t kPage = PagePool::kTokens;
constexpr int64_t kVocab = 1000;

/// A "model" with the hash of all tokens before, read back from pages, as the next token: a wrong
/// page or a token that was not computed changes the text.
class PagedStepper : public Stepper {
 public:
  explicit PagedStepper(StepLimits limits) : limits_(std::move(limits)) {
    limits_.vocab = kVocab;
    memory_.assign(static_cast<size_t>(limits_.parts * limits_.pages * kPage), -1);
  }
  const StepLimits& limits() const override { return limits_; }

  StepOutput step(const StepInput& input) override {
    ++steps;
    const auto tokens = std::ssize(input.tokens), rows = std::ssize(input.rows);
    most_tokens = std::max(most_tokens, tokens);
    EXPECT_EQ(std::ssize(input.part_tokens), limits_.parts);
    EXPECT_EQ(std::accumulate(input.part_tokens.begin(), input.part_tokens.end(), int64_t{0}),
              tokens);
    for (size_t part = 0; part < input.part_tokens.size(); ++part) {
      EXPECT_LE(input.part_tokens[part], limits_.tokens);
      parts_used += input.part_tokens[part] > 0 ? 1 : 0;
    }
    EXPECT_LE(rows, limits_.rows);
    EXPECT_LE(std::ssize(input.pages), limits_.parts * limits_.sequences);
    EXPECT_EQ(std::ssize(input.settings), rows * ops::kNumSettings);
    EXPECT_EQ(std::ssize(input.draws), rows * ops::kNumDraws);
    EXPECT_EQ(std::ssize(input.ranges), rows * 2);
    EXPECT_EQ(std::ssize(input.masks), rows);
    EXPECT_LE(std::ssize(input.changed_tokens), limits_.changes);
    for (int64_t t = 0; t < tokens; ++t) {
      slot(input, t, input.positions[static_cast<size_t>(t)]) =
          input.tokens[static_cast<size_t>(t)];
    }
    StepOutput output;
    output.num_alternatives = input.alternatives ? 2 : 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t t = input.rows[static_cast<size_t>(r)];
      const int64_t given = input.draws[static_cast<size_t>(r * ops::kNumDraws + 3)];
      std::vector<int32_t> all;
      for (int32_t p = 0; p <= input.positions[static_cast<size_t>(t)]; ++p) {
        all.push_back(slot(input, t, p));
        EXPECT_GE(all.back(), 0) << "position " << p << " was never computed";
      }
      output.tokens.push_back(given >= 0 ? static_cast<int32_t>(given) : next(all));
      output.logprobs.push_back(-static_cast<double>(output.tokens.back()));
      output.logprobs.push_back(given >= 0 ? static_cast<double>(given + 1) : 0);
      for (int64_t k = 0; k < output.num_alternatives; ++k) {
        output.alternatives.push_back(static_cast<int32_t>(k));
        output.alternative_logprobs.push_back(-static_cast<double>(k));
      }
    }
    if (limits_.routes) {
      output.routes.assign(static_cast<size_t>(tokens), 7);
    }
    if (fails_at == steps) fail_run("step", "the cable was pulled");
    return output;
  }

  static int32_t next(const std::vector<int32_t>& all) {
    return static_cast<int32_t>(
        hash64({reinterpret_cast<const char*>(all.data()), all.size() * 4}, 0) % kVocab);
  }
  static std::vector<int32_t> text(std::vector<int32_t> prompt, int64_t length) {
    const auto begin = std::ssize(prompt);
    for (int64_t i = 0; i < length; ++i) {
      prompt.push_back(next(prompt));
    }
    return {prompt.begin() + begin, prompt.end()};
  }

  int64_t steps = 0, fails_at = -1, most_tokens = 0, parts_used = 0;

 private:
  int32_t& slot(const StepInput& input, int64_t token, int32_t position) {
    const auto sequence = static_cast<size_t>(input.sequences[static_cast<size_t>(token)]);
    const int32_t page = input.pages[sequence].at(static_cast<size_t>(position / kPage));
    int64_t part = 0;
    for (int64_t end = input.part_tokens[0]; token >= end;
         end += input.part_tokens.at(static_cast<size_t>(part))) {
      ++part;
    }
    EXPECT_LT(page, limits_.pages);
    return memory_.at(
        static_cast<size_t>((part * limits_.pages + page) * kPage + position % kPage));
  }

  StepLimits limits_;
  std::vector<int32_t> memory_;
};

struct Result {
  std::vector<int32_t> tokens, routes;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
  Finish finish = Finish::running;
  std::string error;
  int64_t cached = 0, updates = 0;
  std::optional<int32_t> stop_token;
};

OnUpdate into(Result& result) {
  return [&result](const Update& update) {
    EXPECT_EQ(result.finish, Finish::running) << "an update behind the last one";
    ++result.updates;
    result.tokens.insert(result.tokens.end(), update.tokens.begin(), update.tokens.end());
    result.logprobs.insert(result.logprobs.end(), update.logprobs.begin(), update.logprobs.end());
    result.prompt_logprobs.insert(result.prompt_logprobs.end(), update.prompt_logprobs.begin(),
                                  update.prompt_logprobs.end());
    result.cached += update.cached_tokens;
    result.routes = update.routes;
    result.finish = update.finish;
    result.error = update.error;
    result.stop_token = update.stop_token;
  };
}

std::vector<int32_t> prompt(int64_t length, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  for (int64_t i = 0; i < length; ++i) {
    tokens[static_cast<size_t>(i)] = static_cast<int32_t>((first + i) % kVocab);
  }
  return tokens;
}

Request request(std::vector<int32_t> tokens, int64_t max_tokens) {
  Request made;
  made.prompt = std::move(tokens);
  made.max_tokens = max_tokens;
  return made;
}

void run(Scheduler& scheduler) {
  for (int64_t i = 0; scheduler.step(); ++i) {
    ASSERT_LT(i, 100000) << "it does not end";
  }
}

TEST(Scheduler, TextsAreTheSameInAnyBatch) {
  Rng rng(11);
  for (int round = 0; round < 60; ++round) {
    StepLimits limits{.parts = 1 + static_cast<int64_t>(rng.below(3)),
                      .tokens = 4 + static_cast<int64_t>(rng.below(120)),
                      .sequences = 1 + static_cast<int64_t>(rng.below(6)),
                      .longest = 400,
                      .pages = 13 + static_cast<int64_t>(rng.below(20)),
                      .rows = 4 + static_cast<int64_t>(rng.below(8)),
                      .changes = 1000};
    PagedStepper stepper(limits);
    SchedulerOptions options;
    options.prefix_caching = rng.below(3) > 0;
    options.token_budget = rng.below(2) == 0 ? 0 : 1 + static_cast<int64_t>(rng.below(60));
    options.decode_steps = static_cast<int64_t>(rng.below(4));
    Scheduler scheduler(stepper, nullptr, options);
    const size_t count = 12;
    std::vector<Request> requests;
    std::vector<Result> results(count);
    for (size_t i = 0; i < count; ++i) {
      // Prompts share prefixes.
      std::vector<int32_t> tokens = prompt(1 + static_cast<int64_t>(rng.below(200)));
      if (rng.below(2) == 0) {
        const std::vector<int32_t> more = prompt(1 + static_cast<int64_t>(rng.below(90)), 500);
        tokens.insert(tokens.end(), more.begin(), more.end());
      }
      requests.push_back(request(tokens, static_cast<int64_t>(rng.below(60))));
      Request& one = requests.back();
      one.priority = static_cast<int64_t>(rng.below(3));
      one.cache_salt = rng.below(4) == 0 ? "salt" : "";
      one.prompt_logprobs = rng.below(4) == 0 ? 1 : -1;
      one.logprobs = rng.below(2) == 0 ? 2 : -1;
      if (rng.below(3) == 0) {
        one.sampling.frequency_penalty = 0.5;
      }
      scheduler.submit(static_cast<int64_t>(i), requests.back(), into(results[i]));
      for (uint64_t steps = rng.below(6); steps > 0; --steps) {
        scheduler.step();
      }
    }
    run(scheduler);
    for (size_t i = 0; i < count; ++i) {
      SCOPED_TRACE(fmt::format("round {}, request {}", round, i));
      const Request& one = requests[i];
      EXPECT_EQ(results[i].finish, Finish::length);
      EXPECT_EQ(results[i].tokens, PagedStepper::text(one.prompt, one.max_tokens));
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
  // Its prefix lies in one part only.
  for (size_t i = 0; i < results.size(); ++i) {
    Result again;
    scheduler.submit(100, request(prompt(40, static_cast<int32_t>(i)), 20), into(again));
    run(scheduler);
    EXPECT_EQ(again.cached, kPage);
    EXPECT_EQ(again.tokens, results[i].tokens);
  }
}

TEST(Scheduler, ReusesThePagesOfACommonPrefix) {
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
  EXPECT_EQ(together.cached, 192);
  EXPECT_EQ(stepper.steps - before, 3);
  Request other = request(prompt(200), 1);
  other.cache_salt = "mine";
  scheduler.submit(4, other, into(salted));
  run(scheduler);
  EXPECT_EQ(salted.cached, 0);
  EXPECT_EQ(scheduler.stats().prefix_hits, 384);
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
  EXPECT_EQ(ended.routes, std::vector<int32_t>(5, 7));
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
  refuses([](Request& r) { r.prompt.clear(); });
  refuses([](Request& r) { r.prompt[0] = kVocab; });
  refuses([](Request& r) { r.prompt[0] = -1; });
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
