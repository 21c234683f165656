// SPDX-License-Identifier: Apache-2.0
#include "serve/scheduler.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "serve/sequence.h"

namespace hocket::serve {

namespace {

constexpr const char* kWhere = "request";
constexpr int64_t kMaskWork = 250'000;  // of the masks of a step, 10 to 20 ms

void expect_range(const char* what, double value, double least, double most) {
  if (!(value >= least && value <= most)) {
    fail(kWhere, "{} is {}; expected {} to {}", what, value, least, most);
  }
}

void check_sampling(const Sampling& sampling, int64_t vocab) {
  expect_range("temperature", sampling.temperature, 0, 100);
  expect_range("top_k", static_cast<double>(sampling.top_k), 0, 1e9);
  expect_range("top_p", sampling.top_p, 0, 1);
  expect_range("min_p", sampling.min_p, 0, 1);
  expect_range("repetition_penalty", sampling.repetition_penalty, 1e-3, 1e3);
  expect_range("presence_penalty", sampling.presence_penalty, -100, 100);
  expect_range("frequency_penalty", sampling.frequency_penalty, -100, 100);
  for (const auto& [token, bias] : sampling.logit_bias) {
    if (token < 0 || token >= vocab) {
      fail(kWhere, "logit_bias has token {}; expected 0 to {}", token, vocab - 1);
    }
    if (std::isnan(bias) || bias > 1e6) {
      fail(kWhere, "logit_bias of token {} is {}; expected a number", token, bias);
    }
  }
}

}  // namespace

Scheduler::Scheduler(Stepper& stepper, const data::Tokenizer* tokenizer, SchedulerOptions options)
    : stepper_(stepper),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      pages_(static_cast<size_t>(stepper.limits().parts), PagePool(stepper.limits().pages)),
      routes_(pages_.size()) {}

Scheduler::~Scheduler() = default;

void Scheduler::check(const Request& request, const StepLimits& limits) {
  if (request.prompt.empty()) fail(kWhere, "the prompt has no token; expected at least one");
  const int64_t prompt = std::ssize(request.prompt);
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= limits.vocab) {
      fail(kWhere, "the prompt has token {}; expected 0 to {}", token, limits.vocab - 1);
    }
  }
  if (request.max_tokens < 0) {
    fail(kWhere, "max_tokens is {}; expected 0 or more", request.max_tokens);
  }
  if (prompt + request.max_tokens > limits.longest) {
    fail(kWhere,
         "prompt and max_tokens are {} + {} = {} tokens; expected at most the {} of the longest "
         "text",
         prompt, request.max_tokens, prompt + request.max_tokens, limits.longest);
  }
  if (request.routes && !limits.routes) {
    fail(kWhere, "routes are wanted, and the engine does not record them");
  }
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens) {
    fail(kWhere, "min_tokens is {}; expected 0 to max_tokens, {}", request.min_tokens,
         request.max_tokens);
  }
  for (const int64_t n : {request.logprobs, request.prompt_logprobs}) {
    if (n < -1 || n > limits.alternatives) {
      fail(kWhere, "logprobs is {}; expected at most {}", n, limits.alternatives);
    }
  }
  for (const int32_t token : request.stop_tokens) {
    if (token < 0 || token >= limits.vocab) {
      fail(kWhere, "stop token {}; expected 0 to {}", token, limits.vocab - 1);
    }
  }
  for (const std::string& stop : request.stops) {
    if (stop.empty()) fail(kWhere, "a stop string is empty; expected some text");
  }
  check_sampling(request.sampling, limits.vocab);
  const int64_t changes =
      std::ssize(request.sampling.logit_bias) + std::ssize(request.stop_tokens) +
      (request.sampling.repetition_penalty != 1 || request.sampling.presence_penalty != 0 ||
               request.sampling.frequency_penalty != 0
           ? std::min(prompt + request.max_tokens, limits.vocab)
           : 0);
  if (changes > limits.changes) {
    fail(
        kWhere,
        "the request changes up to {} logits by penalties and logit_bias; expected at most {}; try "
        "a shorter text",
        changes, limits.changes);
  }
  if (ceil_div(prompt + request.max_tokens, PagePool::kTokens) > limits.pages) {
    fail(kWhere, "the request needs {} pages of the KV cache; it has {}",
         ceil_div(prompt + request.max_tokens, PagePool::kTokens), limits.pages);
  }
}

void Scheduler::submit(RequestId id, Request request, OnUpdate on_update) {
  check(request, stepper_.limits());
  if (options_.max_waiting > 0 && std::ssize(waiting_) >= options_.max_waiting) throw Busy();
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->order = {request.priority, arrivals_++};
  sequence->cache_namespace = options_.cache_namespace + '\0' + request.cache_salt;
  if (tokenizer_ != nullptr) {
    sequence->text.emplace(request.stops, request.include_stop);
    sequence->token_text.emplace(*tokenizer_, request.answer);
  }
  sequence->request = std::move(request);
  sequence->on_update = std::move(on_update);
  orders_.emplace(id, sequence->order);
  waiting_.emplace(sequence->order, std::move(sequence));
}

void Scheduler::cancel(RequestId id) {
  const auto order = orders_.find(id);
  if (order == orders_.end()) return;
  if (const auto it = waiting_.find(order->second); it != waiting_.end()) {
    const SequencePtr sequence = std::move(it->second);
    waiting_.erase(it);
    finish(*sequence, Finish::cancelled);
    send(*sequence);
    return;
  }
  for (const SequencePtr& sequence : running_) {
    if (sequence->id == id && !sequence->finished) {
      finish(*sequence, Finish::cancelled);
      send(*sequence);
    }
  }
  remove_finished();
}

void Scheduler::fail_all(const std::string& error) {
  std::vector<SequencePtr> all = std::move(running_);
  running_.clear();
  for (auto& [order, sequence] : waiting_) {
    all.push_back(std::move(sequence));
  }
  waiting_.clear();
  for (const SequencePtr& sequence : all) {
    sequence->update.error = error;
    finish(*sequence, Finish::failed);
    send(*sequence);
  }
}

Stats Scheduler::stats() const {
  Stats stats = stats_;
  stats.running = std::ssize(running_);
  stats.waiting = std::ssize(waiting_);
  stats.prefix_caching = options_.prefix_caching;
  for (const PagePool& pages : pages_) {
    stats.pages += pages.size();
    stats.pages_in_use += pages.in_use();
  }
  return stats;
}

bool Scheduler::step() {
  std::vector<Planned> planned = plan();
  if (planned.empty()) {
    if (masks_missing_) return true;
    HOCKET_CHECK(idle(), "{} requests wait and {} run, and none can go on", waiting_.size(),
                 running_.size());
    return false;
  }
  std::stable_sort(planned.begin(), planned.end(), [](const Planned& a, const Planned& b) {
    return a.sequence->part < b.sequence->part;
  });
  StepInput input;
  input.part_tokens.assign(pages_.size(), 0);
  StepBuilder builder(input, stepper_.limits().vocab);
  for (Planned& each : planned) {
    builder.add(each);
    input.part_tokens[static_cast<size_t>(each.sequence->part)] += each.count;
  }
  const StepOutput output = stepper_.step(input);
  count_step(std::ssize(input.tokens));
  take_results(planned, output);
  for (const SequencePtr& sequence : running_) {
    send(*sequence);
  }
  remove_finished();
  return true;
}

void Scheduler::count_step(int64_t tokens) {
  ++stats_.steps;
  stats_.step_tokens += tokens;
  ++stats_.steps_by_tokens[static_cast<size_t>(std::ranges::lower_bound(kStepBounds, tokens) -
                                               kStepBounds.begin())];
}

std::vector<Scheduler::Planned> Scheduler::plan() {
  const StepLimits& limits = stepper_.limits();
  tokens_left_.assign(pages_.size(), options_.token_budget > 0
                                         ? std::min(options_.token_budget, limits.tokens)
                                         : limits.tokens);
  rows_left_ = limits.rows;
  changes_left_ = limits.changes;
  for (const SequencePtr& sequence : running_) {
    sequence->planned = false;
  }
  prepare_masks();
  std::vector<Planned> planned;
  plan_running(true, &planned);
  if (!planned.empty() && decode_steps_left_ > 0) {
    --decode_steps_left_;
    return planned;
  }
  const size_t decoding = planned.size();
  plan_running(false, &planned);
  plan_waiting(&planned);
  decode_steps_left_ = planned.size() > decoding ? options_.decode_steps : 0;
  return planned;
}

void Scheduler::prepare_masks() {
  masks_missing_ = false;
  std::vector<Sequence*> constrained;
  for (const SequencePtr& sequence : running_) {
    sequence->mask_missing = false;
    if (sequence->request.constraint != nullptr && sequence->is_decoding()) {
      constrained.push_back(sequence.get());
    }
  }
  if (constrained.empty()) return;
  // Another text is the first one in each step: it is sure to get on.
  const auto first = static_cast<std::ptrdiff_t>(mask_turns_++ % constrained.size());
  std::rotate(constrained.begin(), constrained.begin() + first, constrained.end());
  int64_t left = kMaskWork, texts = std::ssize(constrained);
  for (Sequence* sequence : constrained) {
    const int64_t share = left / texts--;
    int64_t work = share;
    sequence->mask_missing = !sequence->request.constraint->prepare(&work);
    masks_missing_ |= sequence->mask_missing;
    left -= share - work;
  }
}

void Scheduler::plan_running(bool decoding, std::vector<Planned>* planned) {
  // Preempting removes sequences behind the current one alone.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.is_decoding() == decoding && !sequence.mask_missing) {
      plan_tokens(sequence, planned);
    }
  }
}

void Scheduler::plan_waiting(std::vector<Planned>* planned) {
  bool admitted = true;
  while (admitted && !waiting_.empty()) {
    admitted = false;
    Sequence& first = *waiting_.begin()->second;
    first.open();
    for (const int64_t part : parts_for(first)) {
      admitted = admit(part, planned);
      if (admitted) break;
    }
  }
}

std::vector<int64_t> Scheduler::parts_for(const Sequence& sequence) const {
  std::vector<int64_t> running(pages_.size(), 0);
  for (const SequencePtr& each : running_) {
    ++running[static_cast<size_t>(each->part)];
  }
  std::vector<std::tuple<bool, int64_t, int64_t, int64_t>> order;
  for (size_t part = 0; part < pages_.size(); ++part) {
    if (running[part] >= stepper_.limits().sequences || tokens_left_[part] <= 0) continue;
    const PagePool& pool = pages_[part];
    std::vector<PageId> known;
    if (pages_.size() > 1) {
      known = pool.known(cacheable(sequence), sequence.cache_namespace);
    }
    const int64_t unused = std::ranges::count_if(known, [&](PageId id) { return !pool.used(id); });
    const int64_t missing =
        ceil_div(std::ssize(sequence.tokens), PagePool::kTokens) - std::ssize(known);
    order.emplace_back(pool.available() - unused < missing, -std::ssize(known), pool.in_use(),
                       part);
  }
  std::sort(order.begin(), order.end());
  std::vector<int64_t> parts;
  for (const auto& [preempts, known, in_use, part] : order) {
    parts.push_back(part);
  }
  return parts;
}

bool Scheduler::admit(int64_t part, std::vector<Planned>* planned) {
  SequencePtr first = std::move(waiting_.begin()->second);
  waiting_.erase(waiting_.begin());
  Sequence& sequence = *first;
  sequence.part = part;
  const auto at = std::find_if(running_.begin(), running_.end(), [&](const SequencePtr& each) {
    return each->order > sequence.order;
  });
  running_.insert(at, std::move(first));
  start(sequence);
  if (plan_tokens(sequence, planned)) return true;
  preempt(sequence);
  return false;
}

void Scheduler::preempt(Sequence& sequence) {
  // Keeps what the pages hold known by its tokens.
  release_pages(sequence);
  sequence.computed = 0;
  const auto at = std::find_if(running_.begin(), running_.end(),
                               [&](const SequencePtr& each) { return each.get() == &sequence; });
  SequencePtr owned = std::move(*at);
  running_.erase(at);
  waiting_.emplace(owned->order, std::move(owned));
}

std::span<const int32_t> Scheduler::cacheable(const Sequence& sequence) const {
  if (!options_.prefix_caching || sequence.wants_prompt_logprobs()) return {};
  // The last token is computed in any case: the next one follows from it.
  const std::span<const int32_t> all(sequence.tokens);
  return all.first(all.size() - 1);
}

PagePool& Scheduler::pool_of(const Sequence& sequence) {
  return pages_[static_cast<size_t>(sequence.part)];
}

void Scheduler::start(Sequence& sequence) {
  PagePool& pool = pool_of(sequence);
  const std::span<const int32_t> known = cacheable(sequence);
  sequence.pages = pool.find(known, sequence.cache_namespace);
  sequence.computed = std::ssize(sequence.pages) * PagePool::kTokens;
  const int64_t missing = sequence.prompt_size() - 1 - sequence.computed;
  if (!known.empty() && missing > 0 && missing < PagePool::kTokens) {
    const auto end = known.subspan(static_cast<size_t>(sequence.computed), missing);
    if (const auto page = pool.find_begin(sequence.pages, end, sequence.cache_namespace)) {
      sequence.copied = *page;
      sequence.computed += missing;
    }
  }
  if (!sequence.started) {
    sequence.reported_cached = sequence.computed;
  }
}

void Scheduler::name_pages(Sequence& sequence, int64_t begin) {
  PagePool& pool = pool_of(sequence);
  for (int64_t page = begin / PagePool::kTokens; page < sequence.computed / PagePool::kTokens;
       ++page) {
    pool.name(sequence.pages, static_cast<size_t>(page), sequence.tokens, sequence.cache_namespace);
  }
  const int64_t end = sequence.prompt_size() - 1, count = end % PagePool::kTokens;
  if (count == 0 || begin > end || sequence.computed < end) return;
  const auto number = static_cast<size_t>(end / PagePool::kTokens);
  const std::span<const int32_t> tokens(sequence.tokens);
  pool.name_begin(sequence.pages[number], std::span(sequence.pages).first(number),
                  tokens.subspan(number * PagePool::kTokens, static_cast<size_t>(count)),
                  sequence.cache_namespace);
}

void Scheduler::release_pages(Sequence& sequence) {
  PagePool& pool = pool_of(sequence);
  pool.release(sequence.pages);
  sequence.pages.clear();
  if (sequence.copied >= 0) {
    pool.release(std::exchange(sequence.copied, -1));
  }
}

bool Scheduler::plan_tokens(Sequence& sequence, std::vector<Planned>* planned) {
  const bool with_rows = sequence.wants_prompt_logprobs();
  int64_t& tokens_left = tokens_left_[static_cast<size_t>(sequence.part)];
  int64_t count = std::min(sequence.missing(), tokens_left);
  if (options_.prompt_tokens > 0) {
    count = std::min(count, options_.prompt_tokens);
  }
  if (with_rows) {
    count = std::min(count, rows_left_);
  }
  const bool last = count == sequence.missing();
  const bool draws = last && sequence.request.max_tokens > 0;
  if (count <= 0 || (draws && (rows_left_ < 1 || sequence.num_changes() > changes_left_))) {
    return false;
  }
  if (!reserve(sequence, sequence.computed + count)) return false;
  if (!sequence.started) {
    sequence.started = true;
    stats_.prompt_tokens += sequence.prompt_size();
    if (options_.prefix_caching) {
      stats_.prefix_queries += sequence.prompt_size();
      stats_.prefix_hits += sequence.reported_cached;
    }
    sequence.update.cached_tokens = sequence.reported_cached;
    sequence.update.started_ns = options_.clock();
  }
  sequence.planned = true;
  planned->push_back(
      {.sequence = &sequence, .begin = sequence.computed, .count = count, .draws = draws});
  tokens_left -= count;
  const int64_t prompt_rows =
      with_rows ? std::clamp<int64_t>(sequence.prompt_size() - 1 - sequence.computed, 0, count) : 0;
  rows_left_ -= prompt_rows + (draws ? 1 : 0);
  changes_left_ -= draws ? sequence.num_changes() : 0;
  sequence.computed += count;
  // Others find these pages in the same step: keys and values are written before any are read.
  if (options_.prefix_caching) {
    name_pages(sequence, sequence.computed - count);
  }
  return true;
}

bool Scheduler::reserve(Sequence& sequence, int64_t tokens) {
  const int64_t needed = ceil_div(tokens, PagePool::kTokens);
  while (std::ssize(sequence.pages) < needed) {
    if (const std::optional<PageId> page = pool_of(sequence).take()) {
      sequence.pages.push_back(*page);
      continue;
    }
    Sequence* const victim = next_to_preempt(sequence);
    if (victim == nullptr) return false;
    ++stats_.preemptions;
    victim->update.prompt_logprobs.clear();  // not sent yet: they will come again
    preempt(*victim);
  }
  return true;
}

Scheduler::Sequence* Scheduler::next_to_preempt(const Sequence& sequence) const {
  // One that is planned has named pages that others may have found.
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    Sequence& last = **it;
    if (last.order <= sequence.order) return nullptr;
    if (last.part == sequence.part && !last.planned && !last.pages.empty()) return &last;
  }
  return nullptr;
}

void Scheduler::keep_routes(const std::vector<Planned>& planned, const StepOutput& output) {
  size_t tokens = 0;
  for (const Planned& each : planned) {
    tokens += static_cast<size_t>(each.count);
  }
  route_width_ = output.routes.size() / tokens;
  const auto width = static_cast<int64_t>(route_width_);
  auto from = output.routes.begin();
  for (const Planned& each : planned) {
    std::vector<int32_t>& kept = routes_[static_cast<size_t>(each.sequence->part)];
    kept.resize(static_cast<size_t>(stepper_.limits().pages * PagePool::kTokens) * route_width_);
    for (int64_t i = each.begin; i < each.begin + each.count; ++i) {
      const int64_t page = each.sequence->pages[static_cast<size_t>(i / PagePool::kTokens)];
      const int64_t place = page * PagePool::kTokens + i % PagePool::kTokens;
      std::copy_n(from, width, kept.begin() + place * width);
      from += width;
    }
  }
}

void Scheduler::copy_routes(const Planned& planned, PageId copied) {
  const Sequence& sequence = *planned.sequence;
  std::vector<int32_t>& kept = routes_[static_cast<size_t>(sequence.part)];
  const int64_t number = (planned.begin - 1) / PagePool::kTokens;
  const auto at = [&](int64_t page) {
    return kept.begin() + page * PagePool::kTokens * static_cast<int64_t>(route_width_);
  };
  const int64_t count = planned.begin - number * PagePool::kTokens;
  std::copy_n(at(copied), count * static_cast<int64_t>(route_width_),
              at(sequence.pages[static_cast<size_t>(number)]));
}

std::vector<int32_t> Scheduler::routes_of(const Sequence& sequence) const {
  std::vector<int32_t> all;
  const auto width = static_cast<int64_t>(route_width_);
  const std::vector<int32_t>& kept = routes_[static_cast<size_t>(sequence.part)];
  for (int64_t i = 0; i < sequence.computed; ++i) {
    const int64_t page = sequence.pages[static_cast<size_t>(i / PagePool::kTokens)];
    const int64_t place = page * PagePool::kTokens + i % PagePool::kTokens;
    const auto begin = kept.begin() + place * width;
    all.insert(all.end(), begin, begin + width);
  }
  return all;
}

void Scheduler::take_results(const std::vector<Planned>& planned, const StepOutput& output) {
  if (!output.routes.empty()) {
    keep_routes(planned, output);
  }
  for (const Planned& each : planned) {
    const PageId copied = std::exchange(each.sequence->copied, -1);
    if (copied < 0) continue;
    if (!output.routes.empty()) {
      copy_routes(each, copied);
    }
    pool_of(*each.sequence).release(copied);
  }
  for (const Planned& each : planned) {
    Sequence& sequence = *each.sequence;
    if (end_without_logits(each, output)) continue;
    const int64_t given = each.rows - (each.draws ? 1 : 0);
    const auto logprobs_of = [&](size_t row, int64_t alternatives) {
      TokenLogprobs made{.token = output.tokens[row],
                         .logprob = output.logprobs[2 * row],
                         .sampled_logprob = output.logprobs[2 * row + 1],
                         .top = {}};
      for (int64_t i = 0; i < std::min(alternatives, output.num_alternatives); ++i) {
        const size_t at = row * static_cast<size_t>(output.num_alternatives) + i;
        if (output.alternatives[at] < 0) break;
        made.top.emplace_back(output.alternatives[at], output.alternative_logprobs[at]);
      }
      return made;
    };
    for (int64_t i = 0; i < given; ++i) {
      TokenLogprobs of_prompt =
          logprobs_of(static_cast<size_t>(each.row + i), sequence.request.prompt_logprobs);
      of_prompt.rank =
          static_cast<int64_t>(std::exchange(of_prompt.sampled_logprob, of_prompt.logprob));
      sequence.update.prompt_logprobs.push_back(std::move(of_prompt));
    }
    if (each.draws) {
      const auto row = static_cast<size_t>(each.row + given);
      if (sequence.request.logprobs >= 0) {
        sequence.update.logprobs.push_back(logprobs_of(row, sequence.request.logprobs));
      }
      take_token(sequence, output, row);
    } else if (each.cannot_draw) {
      end_without_token(sequence);
    } else if (sequence.missing() == 0) {
      finish(sequence, Finish::length);  // only the prompt was asked for
    }
  }
}

bool Scheduler::end_without_logits(const Planned& planned, const StepOutput& output) {
  for (int64_t i = planned.row; i < planned.row + planned.rows; ++i) {
    const auto row = static_cast<size_t>(i);
    if (output.tokens[row] >= 0) continue;
    Update& update = planned.sequence->update;
    update.error = fmt::format(
        "the model's logit of token {} is {}; expected a number: the text's activations overflow "
        "or the weights are damaged; try a type of larger range, such as --dtype f32",
        output.logprobs[2 * row + 1], output.logprobs[2 * row]);
    update.model_failed = true;
    finish(*planned.sequence, Finish::failed);
    return true;
  }
  return false;
}

void Scheduler::end_without_token(Sequence& sequence) {
  const bool failed = !sequence.update.error.empty();
  if (!failed && sequence.request.constraint->may_end()) {
    finish(sequence, Finish::stop);
    return;
  }
  if (!failed) {
    sequence.update.error = "no token may follow under the constraint on the text";
  }
  finish(sequence, Finish::failed);
}

void Scheduler::take_token(Sequence& sequence, const StepOutput& output, size_t row) {
  const int32_t token = output.tokens[row];
  const Request& request = sequence.request;
  sequence.has_update = true;
  const bool may_stop = sequence.generated() >= request.min_tokens;
  if (may_stop && std::ranges::find(request.stop_tokens, token) != request.stop_tokens.end()) {
    sequence.update.stop_token = token;
    if (request.include_stop && sequence.text) {
      sequence.text->append(sequence.token_text->next(token), /*may_stop=*/false);
    }
    finish(sequence, Finish::stop);
    return;
  }
  sequence.add_token(token);
  ++stats_.generated_tokens;
  sequence.update.tokens.push_back(token);
  if (request.constraint != nullptr) {
    try {
      request.constraint->accept(token);
    } catch (const Error& error) {
      sequence.update.error = error.what();
      finish(sequence, Finish::failed);
      return;
    }
  }
  if (sequence.text) {
    const std::string bytes = sequence.token_text->next(token);
    if (!sequence.text->append(bytes, sequence.generated() > request.min_tokens)) {
      sequence.update.stop = sequence.text->stop();
      finish(sequence, Finish::stop);
      return;
    }
  }
  if (sequence.generated() >= request.max_tokens ||
      std::ssize(sequence.tokens) >= stepper_.limits().longest) {
    finish(sequence, Finish::length);
  }
}

void Scheduler::finish(Sequence& sequence, Finish reason) {
  orders_.erase(sequence.id);
  sequence.finished = true;
  sequence.has_update = true;
  sequence.update.finish = reason;
  // Experts of a step that failed are not known.
  if (sequence.request.routes && route_width_ > 0 && reason != Finish::failed) {
    sequence.update.routes = routes_of(sequence);
  }
  release_pages(sequence);
}

void Scheduler::send(Sequence& sequence) {
  if (!sequence.has_update) return;
  Update update = std::exchange(sequence.update, {});
  sequence.has_update = false;
  sequence.prompt_reported |= !update.prompt_logprobs.empty();
  if (sequence.text) {
    update.text = sequence.finished ? sequence.text->take_all() : sequence.text->take();
  }
  if (sequence.on_update) {
    sequence.on_update(update);
  }
}

void Scheduler::remove_finished() {
  std::erase_if(running_, [](const SequencePtr& sequence) { return sequence->finished; });
}

}  // namespace hocket::serve
