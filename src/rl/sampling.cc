// SPDX-License-Identifier: Apache-2.0
#include "rl/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/rng.h"
#include "base/text.h"
#include "comm/communicator.h"

namespace hocket::rl {

constexpr double kRewardSlice_s = 0.25;  // between two looks for a signal in all processes

Sampling::Sampling(const engine::Run& run, train::TrainedReaders& readers, const PromptData& data,
                   int64_t head_parts, comm::Processes& processes)
    : run_(run),
      rl_(run.config.rl),
      data_(data),
      processes_(processes),
      rollout_(run, readers, data, head_parts),
      uneven_(rl_) {
  if (is_first()) {
    rewards_.emplace(rl_, "rl");
  }
}

int Sampling::gather(int64_t first, int64_t version, const Signal& signal, Experience* experience) {
  sampling_s_ = waiting_s_ = 0;
  scored_ = failed_ = 0;
  stats_ = {};
  while (const int64_t count = uneven_.next_round()) {
    if (uneven_.is_exhausted()) return kExhausted;
    RolloutRequest request;
    request.samples = rl_.samples_per_prompt;
    request.temperature = rl_.temperature;
    request.seed = static_cast<uint64_t>(run_.config.train.seed);
    request.version = version;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t number = first + uneven_.prompts() + i;
      request.groups.push_back({number, &data_.at(number)});
    }
    if (const int stopped = sample_round(request, signal); stopped != 0) return stopped;
  }
  uneven_.fill(experience);
  return 0;
}

/// Samples and scores a request, and adds its groups to those of the step.
int Sampling::sample_round(const RolloutRequest& request, const Signal& signal) {
  std::vector<Sample> samples;
  const int stopped = score(request, signal, &samples);
  sampling_s_ += rollout_.stats().seconds;
  stats_.tokens += rollout_.stats().tokens;
  stats_.prompt_tokens += rollout_.stats().prompt_tokens;
  stats_.cached_tokens += rollout_.stats().cached_tokens;
  stats_.preemptions += rollout_.stats().preemptions;
  waiting_s_ += waited_s_;
  if (stopped != 0) return stopped;
  failure_ = processes_.broadcast(is_first() ? count_failures(samples) : "");
  if (!failure_.empty()) return kFailedRewards;
  for (Sample& sample : samples) {
    shape_reward(rl_, &sample);
  }
  share(&samples);
  uneven_.add(std::move(samples));
  return 0;
}

/// Samples a request, and waits for the rewards. Returns the signal that came to some process, the
/// same in all, or 0.
int Sampling::score(const RolloutRequest& request, const Signal& signal,
                    std::vector<Sample>* samples) {
  try {
    const int came = rollout_.run(
        request, [&](const Prompt& prompt, Sample& sample) { rewards_->add(prompt, sample); },
        signal, samples);
    const int64_t begin = now_ns();
    const int stopped = await_rewards(came, signal);
    waited_s_ = seconds_since(begin);
    return stopped;
  } catch (...) {
    rewards_.reset();  // its threads still write to the samples
    throw;
  }
}

/// Waits for the rewards of the first process, or drops them once a signal came to some process.
/// All hear from one another meanwhile, since judges may take longer than plan.timeout_s. `came`:
/// the signal that ended the sampling.
int Sampling::await_rewards(int came, const Signal& signal) {
  const double slice_s = std::min(kRewardSlice_s, run_.config.plan.timeout_s / 4);
  for (;;) {
    const bool waits = is_first() && came == 0;
    const bool is_done = waits && rewards_->wait_for(slice_s);
    came = std::max(came, signal());
    const std::vector<std::string> all =
        processes_.all_gather(fmt::format("{}{}", is_done ? "+" : "", came));
    for (const std::string& one : all) {
      came = std::max(came, std::stoi(one));
    }
    if (came != 0 && is_first()) {
      rewards_->give_up();
    }
    if (came != 0 || all.front().starts_with('+')) return came;
  }
}

/// Counts the samples of the step whose rewards failed; text: there are too many.
std::string Sampling::count_failures(const std::vector<Sample>& samples) {
  std::string first;
  for (const Sample& sample : samples) {
    failed_ += sample.reward_failed ? 1 : 0;
    for (const auto& [name, part] : sample.rewards) {
      if (first.empty() && part.failed) {
        first = name + ": " + part.error;
      }
    }
  }
  scored_ += std::ssize(samples);
  const double most = rl_.max_failed_rewards * static_cast<double>(scored_);
  if (static_cast<double>(failed_) <= most) return "";
  return fmt::format(
      "the reward of {} of {} failed; expected at most the share {} (rl.max_failed_rewards); the "
      "first: {}",
      failed_, counted(scored_, "sample"), rl_.max_failed_rewards, first);
}

/// Gives the samples of the first process to all.
void Sampling::share(std::vector<Sample>* samples) {
  if (processes_.size() == 1) return;
  const std::string bytes = processes_.broadcast(is_first() ? to_bytes(*samples) : "");
  if (!is_first()) {
    *samples = samples_of(bytes);
  }
}

Evaluated Sampling::evaluate(const PromptSet& set, int64_t version, const Signal& signal) {
  RolloutRequest request;
  request.samples = rl_.eval_samples;
  request.temperature =
      rl_.eval_samples > 1 && rl_.eval_temperature == 0 ? rl_.temperature : rl_.eval_temperature;
  request.limited = request.temperature > 0;
  // Evaluations of a training draw alike, and differently from its own samples.
  request.seed =
      random_bits(static_cast<uint64_t>(run_.config.train.seed), hash_name("rl evaluation"), 0);
  request.version = version;
  const int64_t all = std::ssize(set.prompts);
  const int64_t count = rl_.eval_prompts > 0 ? std::min(rl_.eval_prompts, all) : all;
  Evaluated evaluated;
  for (int64_t i = 0; i < count; ++i) {
    const Prompt& prompt = set.prompts[static_cast<size_t>(i * all / count)];
    request.groups.push_back({prompt.index, &prompt});
  }
  evaluated.stopped = score(request, signal, &evaluated.samples);
  if (!is_first() || evaluated.stopped != 0) return evaluated;
  for (const RolloutRequest::Group& group : request.groups) {
    evaluated.prompts.insert(evaluated.prompts.end(), static_cast<size_t>(request.samples),
                             group.prompt);
  }
  return evaluated;
}

}  // namespace hocket::rl
