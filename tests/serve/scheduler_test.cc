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
    if (during_step) {
      during_step();
    }
    const auto tokens = std::ssize(input.tokens), rows = std::ssize(input.rows);
    most_tokens = std::max(most_tokens, tokens);
    this->tokens += tokens;
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
    copy_pages(input);
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
    for (int64_t r = 0; r < rows; ++r) {
      const auto t = static_cast<size_t>(input.rows[static_cast<size_t>(r)]);
      if (input.tokens[t] != overflows_behind) continue;
      output.tokens[static_cast<size_t>(r)] = -1;
      output.logprobs[static_cast<size_t>(2 * r)] = INFINITY;
      output.logprobs[static_cast<size_t>(2 * r + 1)] = 17;
    }
    if (limits_.routes) {
      output.routes = input.tokens;
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

  int64_t steps = 0, fails_at = -1, most_tokens = 0, parts_used = 0, tokens = 0, copies = 0;
  std::function<void()> during_step;
  int32_t overflows_behind = -1;  ///< rows of this token have no finite logits

 private:
  /// All are read before any is written: no page is copied that is itself a copy of this step.
  void copy_pages(const StepInput& input) {
    EXPECT_EQ(input.copies.size(), 2 * input.pages.size());
    std::map<int32_t*, int32_t> copied;
    for (int64_t t = 0, last = -1; t < std::ssize(input.tokens); ++t) {
      const auto sequence = input.sequences[static_cast<size_t>(t)];
      const int32_t page = input.copies[2 * static_cast<size_t>(sequence)];
      const int64_t end = input.copies[2 * static_cast<size_t>(sequence) + 1];
      if (std::exchange(last, sequence) == sequence || page < 0) continue;
      ++copies;
      EXPECT_EQ(end, input.positions[static_cast<size_t>(t)]);
      for (int64_t p = (end - 1) / kPage * kPage; p < end; ++p) {
        copied[&slot(input, t, static_cast<int32_t>(p))] = slot_of_page(input, t, page, p);
      }
    }
    for (const auto& [to, token] : copied) {
      *to = token;
    }
  }
  int32_t& slot(const StepInput& input, int64_t token, int32_t position) {
    const auto sequence = static_cast<size_t>(input.sequences[static_cast<size_t>(token)]);
    return slot_of_page(input, token,
                        input.pages[sequence].at(static_cast<size_t>(position / kPage)), position);
  }
  int32_t& slot_of_page(const StepInput& input, int64_t token, int32_t page, int64_t position) {
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

/// Texts of one prompt that start together compute it once, whatever its length is.
TEST(Scheduler, ComputesThePromptOfSeveralTextsOnce) {
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

TEST(Scheduler, APartWithRoomComesBeforeOneThatHasThePrefixAndNoRoom) {
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

/// A text loses its pages in the step that copies one of them: that one stays until then.
TEST(Scheduler, APageStaysUntilItIsCopied) {
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

TEST(Scheduler, PrefixesOfAnotherSaltOrOtherWeightsAreNotFound) {
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
