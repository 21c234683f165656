// SPDX-License-Identifier: Apache-2.0
// A request for generated text, and its updates. Applications (generate, chat, serve, rl) make
// requests; the engine (engine.h) answers them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "serve/shared_tokens.h"

namespace hocket::serve {

/// The distribution that a token is drawn from. Logits are changed in this order: logit_bias,
/// penalties, the constraint's mask, temperature, top_k, top_p, min_p.
struct Sampling {
  double temperature = 1;  ///< 0: the most likely token
  int64_t top_k = 0;       ///< only the k most likely; 0: all
  /// Only the most likely ones up to the one that reaches this share (Holtzman et al., arXiv
  /// 1904.09751).
  double top_p = 1;
  double min_p = 0;  ///< none below this share of the most likely one's probability
  /// Divides positive logits of tokens of prompt and text, multiplies negative ones (Keskar et
  /// al., arXiv 1909.05858); 1: none.
  double repetition_penalty = 1;
  double presence_penalty = 0;   ///< subtracted from the logit of a token that the text has
  double frequency_penalty = 0;  ///< the same, times the number of its occurrences
  std::vector<std::pair<int32_t, double>> logit_bias = {};  ///< added to the logit of a token
  /// Draws depend on seed, sample and position alone: the same under every plan and in any batch.
  uint64_t seed = 0;
  int64_t sample = 0;  ///< number of the text: others of the same seed are drawn apart
  /// Log-probabilities of tokens, of the prompt's too, are of softmax(logits / temperature), as
  /// training computes them; those of alternatives stay the model's.
  bool tempered_logprobs = false;
};

/// Restricts the tokens of one text, such as to JSON. Used by one thread at a time.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  /// Does a part of the work of allow(), and takes it off `work` (units of
  /// serve/grammar/matcher.h); none unless that is above 0. Returns whether allow() is now quick,
  /// or is to report an error.
  virtual bool prepare(int64_t* /*work*/) { return true; }
  /// Lets reasoning come before the text, up to </think>: `is_open`, or from the token <think> on.
  /// `ends` are tokens that end a text, and which reasoning has not. Requires: no token came yet.
  virtual void begin_with_reasoning(bool /*is_open*/, const std::vector<int32_t>& /*ends*/) {}
  /// Sets the bits of the tokens that may come next (bit i % 32 of word i / 32); `mask` is zero.
  /// The end of a text is not among them: see may_end.
  virtual void allow(std::span<uint32_t> mask) = 0;
  /// Takes the next token of the text. Requires: it was allowed.
  virtual void accept(int32_t token) = 0;
  /// Returns whether the text may end here: then stop tokens are allowed, too.
  virtual bool may_end() const = 0;
};

struct Request {
  SharedTokens prompt;  ///< at least one token
  Sampling sampling;
  std::vector<std::string> stops;    ///< each ends the text wherever tokens meet
  std::vector<int32_t> stop_tokens;  ///< each ends the text, and is no part of it
  bool include_stop = false;         ///< the text keeps its stop string, or its stop token's text
  int64_t max_tokens = 16;           ///< at least 0; 0: only the prompt is read
  int64_t min_tokens = 0;            ///< stop tokens are not drawn before so many tokens
  /// Number of alternatives that are reported with every token, with log-probabilities; -1: none,
  /// and not the token's own either.
  int64_t logprobs = -1;
  /// The alternatives are instead the tokens that one was drawn from, by id, with their
  /// log-probabilities there. None: nothing was left out, or there were more than `logprobs`.
  bool candidates = false;
  bool routes = false;  ///< Update::routes are wanted; the engine must record them (StepLimits)
  int64_t prompt_logprobs = -1;  ///< the same for the tokens of the prompt but the first
  /// The text is an answer of its own, without special tokens; else it continues the prompt's.
  bool answer = false;
  std::string cache_salt;  ///< only requests of the same salt share cached prefixes
  int64_t priority = 0;    ///< lower ones are admitted first, then earlier ones
  std::shared_ptr<TokenConstraint> constraint;  ///< null: none
};

/// A token with natural logarithms of its probability.
struct TokenLogprobs {
  int32_t token = 0;
  double logprob = 0;  ///< under the model: of its logits, as they are
  /// Under the distribution that it was drawn from (Sampling); of a prompt's token as `logprob`.
  double sampled_logprob = 0;
  /// The most likely ones under the model, falling, or Request::candidates.
  std::vector<std::pair<int32_t, double>> top;
  int64_t rank = 0;  ///< of a prompt's token under the model, from 1; 0 of others
};

enum class Finish : uint8_t {
  running,
  stop,       ///< a stop token or string
  length,     ///< max_tokens, or the model's longest text
  cancelled,  ///< by cancel()
  failed,     ///< `error` says why
};

/// Update of a request: everything since the last update.
struct Update {
  std::string text;  ///< whole characters, if the model makes such; a possible stop is held back
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;         ///< of `tokens`, then of `stop_token`, if asked for
  std::vector<TokenLogprobs> prompt_logprobs;  ///< once, in the first update, if asked for
  int64_t cached_tokens = 0;                   ///< of the prompt, found in the prefix cache
  /// When its first step began, by the scheduler's clock, ns; in the first update, else 0.
  int64_t started_ns = 0;
  Finish finish = Finish::running;  ///< else this is the last update
  /// Experts of all tokens of prompt and text but the last drawn one, [tokens, width]: those of
  /// every layer with experts, in order; in the last update, if asked for.
  std::vector<int32_t> routes;
  std::optional<int32_t> stop_token;  ///< that ended the text
  std::string stop;                   ///< the string that ended the text
  std::string error;
  bool model_failed = false;  ///< `error` is of the model's logits, and not of the request
};
/// Code of the error of a text that ended with Update::model_failed. Other texts go on.
inline constexpr const char* kNotFiniteCode = "logits_not_finite";

/// Called on the engine's thread, which it must not hold up; never two at a time for one request.
using OnUpdate = std::function<void(const Update&)>;

using RequestId = int64_t;

/// Bounds of the sizes of steps, in tokens, that Stats counts: those of vLLM's histogram.
inline constexpr std::array<int64_t, 13> kStepBounds = {1,   8,    16,   32,   64,   128,  256,
                                                        512, 1024, 2048, 4096, 8192, 16384};

/// Counts since the start, and states now, for metrics.
struct Stats {
  int64_t running = 0, waiting = 0;             ///< requests
  int64_t pages = 0, pages_in_use = 0;          ///< of the KV cache; cached prefixes are not in use
  int64_t prefix_queries = 0, prefix_hits = 0;  ///< tokens looked up, and found, in the cache
  /// Tokens of prompts that have begun, those found in the cache included.
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0, preemptions = 0, steps = 0;
  /// Steps by the first bound that their tokens do not exceed; the last: above all.
  std::array<int64_t, kStepBounds.size() + 1> steps_by_tokens = {};
  int64_t step_tokens = 0;  ///< of all steps
  /// Memory of this process's ranks: at most, by the program's plan, and allocated so far.
  int64_t planned_bytes = 0, resident_bytes = 0;
  bool prefix_caching = false;
};

/// Thrown by submit() where the queue is full; clients may come again.
class Busy : public std::exception {
 public:
  const char* what() const noexcept override { return "the queue of requests is full"; }
};

/// Answers requests. Its functions may be called from any thread.
class Service {
 public:
  virtual ~Service() = default;
  /// Throws Error for a request that can never run (prompt and max_tokens over the longest text,
  /// unknown tokens, values out of range), and Busy.
  virtual RequestId submit(Request request, OnUpdate on_update) = 0;
  /// Ends a request soon, with a last update; nothing happens if it is over.
  virtual void cancel(RequestId id) = 0;
  virtual Stats stats() const = 0;
  /// Reason why no request is answered any more; "" while they are.
  virtual std::string failure() const { return ""; }
  /// Returns whether no request is answered any more without a failure: the service was shut down.
  virtual bool is_shut_down() const { return false; }
  virtual int64_t max_model_len() const = 0;  ///< tokens of prompt and text together, at most
  virtual int64_t vocab_size() const = 0;
};

}  // namespace hocket::serve
