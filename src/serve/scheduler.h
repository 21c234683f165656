// SPDX-License-Identifier: Apache-2.0
// Continuous batching (Yu et al., Orca, OSDI'22) over the pages of a KV cache (Kwon et al.,
// PagedAttention, arXiv 2309.06180) with prompts in chunks beside running texts (Agrawal et al.,
// Sarathi-Serve, arXiv 2403.02310): which tokens of which requests the next step has. It knows a
// clock and a stepper, nothing else, so that tests and simulations drive the same code.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "data/tokenizer/tokenizer.h"
#include "serve/pages.h"
#include "serve/request.h"
#include "serve/stepper.h"
#include "serve/text.h"

namespace hocket::serve {

struct SchedulerOptions {
  bool prefix_caching = true;
  /// New tokens of a step and partition, prompts and texts together; 0: StepLimits::tokens.
  int64_t token_budget = 0;
  /// Number of steps for running texts alone after each step with prompt tokens, while texts run.
  /// The keys of a long prompt are read once per chunk: few large chunks cost less than many small
  /// ones.
  int64_t decode_steps = 0;
  /// Most tokens of one prompt in a step, which leaves room for later prompts; 0: no limit.
  int64_t prompt_tokens = 0;
  int64_t max_waiting = 4096;  ///< requests beyond it are refused (Busy); 0: no limit
  /// Distinguishes cached prefixes beside a request's salt: adapter and version of the weights.
  std::string cache_namespace = {};
  std::function<int64_t()> clock = now_ns;  ///< ns
};

/// Used by one thread. A `part` is a data-parallel partition: a sequence and its pages stay in one.
class Scheduler {
 public:
  /// `tokenizer` makes text of tokens; null: requests get tokens only, and have no stop strings.
  Scheduler(Stepper& stepper, const data::Tokenizer* tokenizer, SchedulerOptions options);
  ~Scheduler();

  /// Adds a request, whose first update comes in a later step. Throws Error or Busy as
  /// Service::submit() does.
  void submit(RequestId id, Request request, OnUpdate on_update);
  void cancel(RequestId id);
  /// Runs one step. Returns whether any request is left. Throws Error if the stepper fails.
  bool step();
  /// Ends all requests with an error.
  void fail_all(const std::string& error);
  bool idle() const { return running_.empty() && waiting_.empty(); }
  Stats stats() const;
  /// Throws Error for a request that can never run.
  static void check(const Request& request, const StepLimits& limits);

 private:
  struct Sequence;
  using SequencePtr = std::unique_ptr<Sequence>;
  struct Planned;
  class StepBuilder;

  /// Chooses the tokens of the next step: running texts first, then prompts under way, then
  /// waiting requests, unless it is a step of running texts alone.
  std::vector<Planned> plan();
  /// Computes a part of the masks of running texts with constraints. A text whose mask is not ready
  /// sits out the step, so that no constraint holds up the others.
  void prepare_masks();
  void plan_running(bool decoding, std::vector<Planned>* planned);
  void plan_waiting(std::vector<Planned>* planned);
  /// Returns the partitions with a place for a sequence: those with pages for it first, so that no
  /// other is preempted, then those with its longest cached prefix, then those with the most free
  /// pages.
  std::vector<int64_t> parts_for(const Sequence& sequence) const;
  /// Starts the first waiting request in a partition; false: it still waits.
  bool admit(int64_t part, std::vector<Planned>* planned);
  /// The tokens that may come from the prefix cache; none: it is not to be used.
  std::span<const int32_t> cacheable(const Sequence& sequence) const;
  /// Plans up to the step's remaining room of a sequence; false: there is none left for it.
  bool plan_tokens(Sequence& sequence, std::vector<Planned>* planned);
  /// Gives a sequence pages for its first `tokens`; false: there are not enough. Running sequences
  /// behind it are preempted first, the last one before the others.
  bool reserve(Sequence& sequence, int64_t tokens);
  /// Returns the last running sequence behind `sequence` whose pages may be taken, or null.
  Sequence* next_to_preempt(const Sequence& sequence) const;
  PagePool& pool_of(const Sequence& sequence);
  /// Puts a running sequence back among the waiting ones, and frees its pages.
  void preempt(Sequence& sequence);
  /// Finds the longest known prefix. Its whole pages are shared; the end of the prompt behind them,
  /// but for its last token, is copied by the step.
  void start(Sequence& sequence);
  void count_step(int64_t tokens);
  /// Names the pages that the tokens from `begin` on complete, and the end of the prompt.
  void name_pages(Sequence& sequence, int64_t begin);
  void release_pages(Sequence& sequence);
  void take_results(const std::vector<Planned>& planned, const StepOutput& output);
  /// Keeps the experts of a step's tokens beside the pages that hold these.
  void keep_routes(const std::vector<Planned>& planned, const StepOutput& output);
  /// Copies the experts of the tokens that the step copied for a sequence.
  void copy_routes(const Planned& planned, PageId copied);
  std::vector<int32_t> routes_of(const Sequence& sequence) const;
  void take_token(Sequence& sequence, const StepOutput& output, size_t row);
  /// Ends a text with a row of logits that are not finite. Returns false if all are finite.
  bool end_without_logits(const Planned& planned, const StepOutput& output);
  /// Ends a text whose constraint allows no token.
  void end_without_token(Sequence& sequence);
  void finish(Sequence& sequence, Finish reason);
  void send(Sequence& sequence);
  void remove_finished();

  Stepper& stepper_;
  const data::Tokenizer* const tokenizer_;
  const SchedulerOptions options_;
  std::vector<PagePool> pages_;  ///< of every part
  /// Experts of the tokens in every part's pages, [pages, PagePool::kTokens, route_width_].
  std::vector<std::vector<int32_t>> routes_;
  size_t route_width_ = 0;
  using Order = std::pair<int64_t, int64_t>;     ///< priority and arrival
  std::unordered_map<RequestId, Order> orders_;  ///< of all that have not finished
  /// Waiting ones by order; running ones in the same order.
  std::map<Order, SequencePtr> waiting_;
  std::vector<SequencePtr> running_;
  int64_t arrivals_ = 0;
  // Limits left in the step being planned; tokens of every part.
  std::vector<int64_t> tokens_left_;
  int64_t rows_left_ = 0, changes_left_ = 0;
  int64_t decode_steps_left_ = 0;  ///< before prompts have tokens again
  bool masks_missing_ = false;     ///< of some running text
  size_t mask_turns_ = 0;          ///< steps that computed masks
  Stats stats_;
};

}  // namespace hocket::serve
