// SPDX-License-Identifier: Apache-2.0
// A stepper that knows every page's content, for tests of the scheduler and the engine.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "serve/scheduler.h"

namespace hocket::serve {

inline constexpr int64_t kPage = PagePool::kTokens;
inline constexpr int64_t kVocab = 1000;

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

inline OnUpdate into(Result& result) {
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

inline std::vector<int32_t> prompt(int64_t length, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  for (int64_t i = 0; i < length; ++i) {
    tokens[static_cast<size_t>(i)] = static_cast<int32_t>((first + i) % kVocab);
  }
  return tokens;
}

inline Request request(std::vector<int32_t> tokens, int64_t max_tokens) {
  Request made;
  made.prompt = std::move(tokens);
  made.max_tokens = max_tokens;
  return made;
}

inline void run(Scheduler& scheduler) {
  for (int64_t i = 0; scheduler.step(); ++i) {
    ASSERT_LT(i, 100000) << "it does not end";
  }
}

}  // namespace hocket::serve
