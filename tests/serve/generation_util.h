// SPDX-License-Identifier: Apache-2.0
// Steps of a generating program by hand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/math.h"
#include "graph/names.h"
#include "serve/open.h"
#include "serve/pages.h"
#include "serve/session_stepper.h"

namespace hocket::serve {

/// Limits of one text of the run's model.
inline StepLimits limits_of(const engine::Run& run, int64_t longest, int64_t tokens) {
  return {.parts = engine::generation_parts(run),
          .tokens = tokens,
          .sequences = 2,
          .longest = longest,
          .pages = 2 * ceil_div(longest, PagePool::kTokens),
          .rows = 4,
          .changes = 4,
          .alternatives = 2,
          .vocab = run.model.vocab_size};
}

/// A greedy step of ids[begin, begin + count) behind the `begin` tokens before them, in the last of
/// `parts`, on pages from `page` on.
inline StepInput step_of(const std::vector<int32_t>& ids, int64_t begin, int64_t count,
                         int32_t page = 0, int64_t parts = 1) {
  StepInput input;
  input.part_tokens.assign(static_cast<size_t>(parts), 0);
  input.part_tokens.back() = count;
  input.pages.emplace_back();
  for (int64_t i = 0; i < begin + count; i += PagePool::kTokens) {
    input.pages[0].push_back(page + static_cast<int32_t>(i / PagePool::kTokens));
  }
  for (int64_t i = begin; i < begin + count; ++i) {
    input.tokens.push_back(ids[static_cast<size_t>(i)]);
    input.positions.push_back(static_cast<int32_t>(i));
    input.sequences.push_back(0);
  }
  input.rows = {static_cast<int32_t>(count) - 1};
  input.settings.assign(ops::kNumSettings, 0);
  input.draws = {0, 0, begin + count, -1};
  input.ranges = {0, 0};
  input.masks.resize(1);
  return input;
}

/// Logits of the last token of such a step.
template <class T>
std::vector<T> logits_of_step(engine::Session& session, SessionStepper& stepper,
                              const std::vector<int32_t>& ids, int64_t begin, int64_t count,
                              int32_t page = 0) {
  stepper.step(step_of(ids, begin, count, page, stepper.limits().parts));
  return session.collect_as<T>(graph::names::kLogits, 0);
}

}  // namespace hocket::serve
