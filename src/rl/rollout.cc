// SPDX-License-Identifier: Apache-2.0
#include "rl/rollout.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/math.h"
#include "base/rng.h"
#include "serve/open.h"
#include "serve/scheduler.h"

namespace hocket::rl {

namespace {

constexpr int64_t kMaxCandidates = 1024;  // of a token, that are recorded without top_k
constexpr double kAskEvery_s = 0.25;      // the other processes are asked for their signals

/// Returns the signal that came to some process, by the text of each.
int largest_of(const std::vector<std::string>& signals) {
  int largest = 0;
  for (const std::string& signal : signals) {
    largest = std::max(largest, std::stoi(signal));
  }
  return largest;
}

/// Returns whether trajectories have the tokens that each one was drawn from: not if all are.
bool records_nuclei(const engine::RlSection& rl, int64_t vocabulary) {
  const bool limits_k = rl.top_k > 0 && rl.top_k < vocabulary;
  return rl.trajectories && (limits_k || rl.top_p < 1 || rl.min_p > 0);
}
int64_t most_candidates(const engine::RlSection& rl, int64_t vocabulary) {
  return std::min(rl.top_k > 0 ? rl.top_k : kMaxCandidates, vocabulary);
}

serve::StepLimits limits_of(const engine::Run& run, const PromptData& data, int64_t head_parts) {
  const engine::RlSection& rl = run.config.rl;
  serve::StepLimits limits;
  limits.parts = engine::generation_parts(run);
  limits.longest = longest_text(run, data);
  limits.sequences = rl.max_num_seqs;
  limits.tokens = std::max(rl.max_num_batched_tokens, rl.max_num_seqs);
  const int64_t pages_of_text = ceil_div(limits.longest, serve::PagePool::kTokens) + 1;
  limits.pages = limits.sequences * pages_of_text;
  if (rl.kv_cache_memory) {
    const auto affordable = static_cast<int64_t>(*rl.kv_cache_memory) / serve::page_bytes(run);
    if (affordable < pages_of_text) {
      fail(run.name, "rl.kv_cache_memory holds {} pages of {} tokens; a text of {} tokens needs {}",
           affordable, serve::PagePool::kTokens, limits.longest, pages_of_text);
    }
    limits.pages = std::min(limits.pages, affordable);
  }
  limits.vocab = std::min<int64_t>(data.tokenizer().vocab_size(), run.model.vocab_size);
  limits.rows = limits.parts * limits.sequences;
  limits.changes = 1024;
  limits.alternatives = records_nuclei(rl, limits.vocab) ? most_candidates(rl, limits.vocab) : 1;
  limits.routes = (rl.trajectories && run.model.num_experts > 0) || run.replays_routes();
  limits.head_parts = head_parts;
  return limits;
}

}  // namespace

int64_t most_prompt_tokens(const engine::Run& run) {
  const engine::RlSection& rl = run.config.rl;
  const int64_t positions = std::max<int64_t>(run.model.max_position, 1);
  // The last token of a sample is no input.
  const int64_t room = std::min(positions, run.config.train.seq_len + 1) - rl.max_new_tokens;
  if (room < 1) {
    fail(run.name,
         "rl.max_new_tokens is {}; a prompt and its answer have {} tokens at most (train.seq_len "
         "{}, the model's {} positions)",
         rl.max_new_tokens, std::min(positions, run.config.train.seq_len + 1),
         run.config.train.seq_len, positions);
  }
  return rl.max_prompt_tokens > 0 ? std::min(rl.max_prompt_tokens, room) : room;
}

int64_t longest_text(const engine::Run& run, const PromptData& data) {
  return data.longest() + run.config.rl.max_new_tokens;
}

Rollout::Rollout(const engine::Run& run, train::TrainedReaders& readers, const PromptData& data,
                 int64_t head_parts)
    : run_(run), readers_(readers), data_(data), limits_(limits_of(run, data, head_parts)) {}

serve::Request Rollout::request_of(const RolloutRequest& request,
                                   const RolloutRequest::Group& group, int64_t index) const {
  const engine::RlSection& rl = run_.config.rl;
  serve::Request made;
  made.prompt = group.prompt->ids;
  made.sampling.temperature = request.temperature;
  if (request.limited) {
    made.sampling.top_k = rl.top_k;
    made.sampling.top_p = rl.top_p;
    made.sampling.min_p = rl.min_p;
  }
  made.sampling.seed =
      random_bits(request.seed, hash_name("rl samples"), static_cast<uint64_t>(group.number));
  made.sampling.sample = index;
  made.stops = rl.stop;
  made.include_stop = true;  // as the text of all tokens has it
  made.stop_tokens = data_.stop_tokens();
  made.max_tokens = rl.max_new_tokens;
  made.candidates = records_nuclei(rl, limits_.vocab);
  made.logprobs = made.candidates ? limits_.alternatives : 0;
  made.routes = limits_.routes;
  // Asks for the log-probabilities that training computes: of all logits, at the temperature.
  made.sampling.tempered_logprobs = true;
  made.answer = true;
  return made;
}

/// Appends an update of a sample.
void Rollout::take(const serve::Update& update, Sample* sample) const {
  sample->text += update.text;
  for (const serve::TokenLogprobs& token : update.logprobs) {
    sample->tokens.push_back(token.token);
    sample->logprobs.push_back(token.logprob);
    sample->sampled_logprobs.push_back(token.sampled_logprob);
    if (records_nuclei(run_.config.rl, limits_.vocab)) {
      std::vector<int32_t>& nucleus = sample->nuclei.emplace_back();
      for (const auto& [id, logprob] : token.top) {
        nucleus.push_back(id);
      }
    }
  }
  sample->routes.insert(sample->routes.end(), update.routes.begin(), update.routes.end());
  switch (update.finish) {
    case serve::Finish::running:
      return;
    case serve::Finish::stop:
      sample->status = SampleStatus::completed;
      return;
    case serve::Finish::length:
      sample->status = SampleStatus::truncated;
      return;
    case serve::Finish::cancelled:
      sample->status = SampleStatus::aborted;
      return;
    case serve::Finish::failed:
      sample->status = SampleStatus::failed;
  }
}

int Rollout::run(const RolloutRequest& request,
                 const std::function<void(const Prompt&, Sample&)>& finished, const Signal& signal,
                 std::vector<Sample>* samples) {
  stats_ = {};
  const int64_t begin = now_ns();
  engine::Session& session = readers_.now(spec());
  serve::SessionStepper stepper(session, limits_);
  samples->clear();
  if (session.ranks().processes().index() != 0) {
    stepper.follow([&] { return std::to_string(signal()); });
    return 0;
  }
  // A new scheduler has no prefixes of earlier parameters; these are named by their version.
  serve::SchedulerOptions scheduler_options;
  scheduler_options.prefix_caching = run_.config.rl.prefix_caching;
  scheduler_options.max_waiting = 0;
  scheduler_options.cache_namespace = fmt::format("version {}", request.version);
  serve::Scheduler scheduler(stepper, &data_.tokenizer(), scheduler_options);
  samples->resize(request.groups.size() * static_cast<size_t>(request.samples));
  std::string error;
  for (size_t i = 0; i < samples->size(); ++i) {
    Sample* const sample = &(*samples)[i];
    const RolloutRequest::Group& group = request.groups[i / static_cast<size_t>(request.samples)];
    sample->group = group.number;
    sample->index = static_cast<int64_t>(i) % request.samples;
    sample->prompt = group.prompt->index;
    sample->version = request.version;
    scheduler.submit(static_cast<int64_t>(i) + 1, request_of(request, group, sample->index),
                     [&, sample, prompt = group.prompt](const serve::Update& update) {
                       take(update, sample);
                       if (update.finish == serve::Finish::failed) {
                         error = update.error;
                       } else if (update.finish == serve::Finish::stop ||
                                  update.finish == serve::Finish::length) {
                         finished(*prompt, *sample);
                       }
                     });
  }
  int came = 0;
  int64_t asked_ns = begin;
  while (scheduler.step()) {
    if (!error.empty()) fail_run("rl", "a sample failed: {}", error);
    if (came != 0) continue;
    came = signal();
    if (seconds_since(asked_ns) > kAskEvery_s) {
      came = largest_of(stepper.ask(std::to_string(came)));
      asked_ns = now_ns();
    }
    if (came != 0) {
      for (size_t i = 0; i < samples->size(); ++i) {
        scheduler.cancel(static_cast<int64_t>(i) + 1);
      }
    }
  }
  const serve::Stats counts = scheduler.stats();
  stats_.seconds = seconds_since(begin);
  stats_.tokens = counts.generated_tokens;
  stats_.prompt_tokens = counts.prompt_tokens - counts.prefix_hits;
  stats_.cached_tokens = counts.prefix_hits;
  stats_.preemptions = counts.preemptions;
  return came;
}

}  // namespace hocket::rl
