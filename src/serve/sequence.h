// SPDX-License-Identifier: Apache-2.0
// A request under way. Internal to the scheduler.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serve/scheduler.h"

namespace hocket::serve {

struct Scheduler::Sequence {
  RequestId id = 0;
  Request request;
  OnUpdate on_update;
  std::pair<int64_t, int64_t> order;  ///< priority, arrival
  std::string cache_namespace;        ///< of its prefixes

  /// Tokens of the prompt, then of the text; none before open(): requests that wait share their
  /// prompts.
  std::vector<int32_t> tokens;
  int64_t computed = 0;  ///< tokens whose keys and values are in the pages
  int64_t part = 0;      ///< StepLimits::parts: where its pages are
  std::vector<PageId> pages;
  /// Page that the next step copies to the last of the prompt's pages, as far as `computed` is
  /// there; referenced until then. -1: none.
  PageId copied = -1;
  int64_t reported_cached = 0;  ///< tokens found in the prefix cache when it was first started
  bool started = false;
  bool planned = false;          ///< for the next step
  bool mask_missing = false;     ///< its constraint is not ready: it sits out the step
  bool prompt_reported = false;  ///< the prompt's log-probabilities were sent

  std::optional<StoppedText> text;  ///< none without a tokenizer
  std::optional<TokenText> token_text;
  /// Occurrences in the text by token, 0 for tokens of the prompt alone; kept with penalties only.
  std::map<int32_t, int32_t> counts;
  Update update;  ///< not sent yet
  bool has_update = false;
  bool finished = false;

  int64_t prompt_size() const { return std::ssize(request.prompt); }
  int64_t generated() const { return std::ssize(tokens) - prompt_size(); }
  int64_t missing() const { return std::ssize(tokens) - computed; }
  bool is_decoding() const { return missing() == 1 && generated() > 0; }
  bool has_penalties() const {
    const Sampling& sampling = request.sampling;
    return sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
           sampling.frequency_penalty != 0;
  }
  bool bans_stops() const {
    return generated() < request.min_tokens && !request.stop_tokens.empty();
  }
  bool wants_prompt_logprobs() const { return request.prompt_logprobs >= 0 && !prompt_reported; }
  /// Entries of changed logits that its row has in a step.
  int64_t num_changes() const;
  void add_token(int32_t token);
  /// Takes the tokens of the prompt, unless it has them.
  void open();
};

/// Tokens [begin, begin + count) of a sequence in a step, and its rows [row, row + rows).
struct Scheduler::Planned {
  Sequence* sequence = nullptr;
  int64_t begin = 0, count = 0;
  int64_t row = 0, rows = 0;
  bool draws = false;  ///< the last row draws a token
  bool cannot_draw =
      false;  ///< it should, and its constraint allows none, or failed: see update.error
};

/// Builds the input of a step from what is planned.
class Scheduler::StepBuilder {
 public:
  StepBuilder(StepInput& input, int64_t vocab) : input_(input), vocab_(vocab) {}
  void add(Planned& planned);

 private:
  void add_draw(Sequence& sequence, Planned* planned);
  void add_row(const Sequence& sequence, int64_t position, int64_t given);
  void add_changes(const Sequence& sequence);
  std::vector<uint32_t> mask_of(Sequence& sequence) const;

  StepInput& input_;
  const int64_t vocab_;
};

}  // namespace hocket::serve
