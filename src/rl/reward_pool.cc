// SPDX-License-Identifier: Apache-2.0
// Implements: reward.h.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/stop.h"
#include "base/text.h"
#include "rl/reward_parts.h"

namespace hocket::rl {

namespace {

constexpr double kFirstPause = 0.1, kLongestPause = 2;  // seconds before a judge is asked again

/// Refuses keys of other types, which would have no effect.
void refuse_unused(const engine::RewardSection& section, const std::string& where) {
  const auto refuse = [&](bool is_set, const char* key, const std::vector<std::string>& types) {
    if (is_set && std::find(types.begin(), types.end(), section.type) == types.end()) {
      fail(where, "{} is a key of {}; the type is {}", key, join(types, " and "), section.type);
    }
  };
  const engine::RewardSection defaults;
  refuse(!section.pattern.empty(), "pattern", {"regex"});
  refuse(!section.schema.empty(), "schema", {"json_schema"});
  refuse(section.form != defaults.form, "form", {"json_schema"});
  refuse(section.target_length != 0, "target_length", {"length"});
  refuse(section.format_score != defaults.format_score, "format_score", {"gsm8k", "countdown"});
  refuse(!section.command.empty(), "command", {"exec"});
  refuse(section.processes != defaults.processes, "processes", {"exec"});
  refuse(section.timeout_s != defaults.timeout_s, "timeout_s", {"exec", "http"});
  refuse(section.start_timeout_s != defaults.start_timeout_s, "start_timeout_s", {"exec"});
  refuse(section.busy_timeout_s != defaults.busy_timeout_s, "busy_timeout_s", {"http"});
  refuse(section.retries != defaults.retries, "retries", {"exec", "http"});
  refuse(!section.url.empty(), "url", {"http"});
  refuse(!section.judge_model.empty(), "judge_model", {"http"});
  refuse(!section.judge_prompt.empty(), "judge_prompt", {"http"});
  refuse(!section.judge_pattern.empty(), "judge_pattern", {"http"});
  refuse(!section.api_key_env.empty(), "api_key_env", {"http"});
  const bool whole = section.type == "length" || section.type == "exec" || section.type == "http";
  if (whole && section.extract != "auto") {
    fail(where, "extract is for rules that compare answers; the type is {}", section.type);
  }
}

}  // namespace

std::unique_ptr<Reward> make_reward(const engine::RewardSection& section,
                                    const std::string& where) {
  refuse_unused(section, where);
  if (!std::isfinite(section.weight) || !std::isfinite(section.failed_score) ||
      !std::isfinite(section.format_score)) {
    fail(where, "weight, failed_score and format_score must be finite; got {}, {} and {}",
         section.weight, section.failed_score, section.format_score);
  }
  if (section.type == "exec") return make_exec_reward(section, where);
  if (section.type == "http") return make_http_reward(section, where);
  return make_rule_reward(section, where);
}

struct RewardPool::Impl {
  /// A sample on its way, with one part for each reward.
  struct Task {
    const Prompt* prompt;
    Sample* sample;
    std::vector<RewardPart> parts;
    size_t left;  // parts that are not scored yet
    bool dropped = false;
  };
  struct Job {
    std::shared_ptr<Task> task;
    size_t reward;
  };

  Impl(const engine::RlSection& section, const std::string& where)
      : sections(section.rewards), leaves_out(section.failed_samples == "leave_out") {
    if (sections.empty()) fail(where, "rewards is empty; expected at least one reward");
    for (size_t i = 0; i < sections.size(); ++i) {
      const std::string here = fmt::format("{}.rewards[{}]", where, i);
      const std::string& name = sections[i].name.empty() ? sections[i].type : sections[i].name;
      if (std::find(names.begin(), names.end(), name) != names.end()) {
        fail(here, "two rewards are named {}; try name", quote(name));
      }
      names.push_back(name);
      rewards.push_back(make_reward(sections[i], here));
    }
    try {
      for (int64_t i = 0; i < std::max<int64_t>(section.reward_workers, 1); ++i) {
        threads.emplace_back([this] { work(); });
      }
    } catch (const std::system_error& error) {
      stop();
      fail_run(where, "{} threads for rewards could not be started: {}", section.reward_workers,
               error.what());
    }
  }
  ~Impl() { stop(); }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  void work() {
    int64_t round = 0;
    const StopWhen stop([&] { return stopping || round != dropped_rounds; });
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stopping || !jobs.empty(); });
      if (stopping) return;
      const Job job = std::move(jobs.front());
      jobs.pop_front();
      round = dropped_rounds;
      lock.unlock();
      const int64_t start = now_ns();
      RewardPart part;
      bool dropped = false;
      try {
        part = score(job);
      } catch (const Stopped&) {
        dropped = true;
      }
      busy_ns += now_ns() - start;
      lock.lock();
      job.task->parts[job.reward] = std::move(part);
      close_part(job.task.get(), dropped);
    }
  }

  /// Counts a part as scored or dropped. The mutex is held.
  void close_part(Task* task, bool dropped) {
    task->dropped |= dropped;
    if (--task->left > 0) return;
    if (!task->dropped) {
      finish(task);
    }
    --open;
    done.notify_all();
  }

  /// Scores, again after a failure if the reward has further tries. Throws nothing but Stopped.
  RewardPart score(const Job& job) {
    const engine::RewardSection& section = sections[job.reward];
    const bool again = section.type == "exec" || section.type == "http";
    const int64_t tries = again ? section.retries + 1 : 1;
    RewardPart failure;
    for (int64_t i = 1; i <= tries; ++i) {
      try {
        RewardPart part = rewards[job.reward]->score({*job.task->prompt, *job.task->sample});
        if (!std::isfinite(part.score) || !std::isfinite(part.score * section.weight)) {
          fail_run(names[job.reward], "the score is {}", part.score);
        }
        part.tries = i;
        return part;
      } catch (const Stopped&) {
        throw;
      } catch (const LastingFailure& error) {
        failure.error = printable(error.what());
        failure.tries = i;
        break;
      } catch (const std::exception& error) {
        failure.error = printable(error.what());  // it may have a server's or command's words
      } catch (...) {
        failure.error = "an unknown exception";
      }
      failure.tries = i;
      if (section.type == "http" && i < tries) {
        pause(std::min(kFirstPause * std::pow(2, i - 1), kLongestPause));
      }
    }
    failure.failed = true;
    failure.score = section.failed_score;
    return failure;
  }

  void pause(double seconds) {
    std::unique_lock lock(mutex);
    const int64_t round = dropped_rounds;
    changed.wait_for(lock, std::chrono::duration<double>(seconds),
                     [&] { return stopping || round != dropped_rounds; });
    lock.unlock();
    stop_if_asked();
  }

  /// Writes the results into the sample. The order of the sum is that of the sections.
  void finish(Task* task) const {
    Sample& sample = *task->sample;
    sample.rewards.clear();
    sample.reward = 0;
    sample.reward_failed = false;
    bool has_score = false;  // not only None
    for (size_t i = 0; i < sections.size(); ++i) {
      RewardPart& part = task->parts[i];
      sample.reward += sections[i].weight * part.score;
      sample.reward_failed |= part.failed;
      has_score |= !part.is_not_applicable();
      sample.rewards.emplace(names[i], std::move(part));
    }
    sample.left_out = !has_score || (sample.reward_failed && leaves_out);
    sample.shaped_reward = sample.reward;
  }

  const std::vector<engine::RewardSection> sections;
  const bool leaves_out;  // samples whose reward failed
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Reward>> rewards;

  std::mutex mutex;  // guards the members below
  std::condition_variable changed, done;
  std::deque<Job> jobs;
  int64_t open = 0;  // samples that are not scored yet
  std::atomic<bool> stopping{false};
  std::atomic<int64_t> dropped_rounds{0};  // times that all jobs were dropped
  std::atomic<int64_t> busy_ns{0};
  std::vector<std::thread> threads;  // last: they use all of the above
};

RewardPool::RewardPool(const engine::RlSection& section, const std::string& where)
    : impl_(std::make_unique<Impl>(section, where)) {}
RewardPool::~RewardPool() = default;

const std::vector<std::string>& RewardPool::names() const { return impl_->names; }

void RewardPool::add(const Prompt& prompt, Sample& sample) {
  const size_t count = impl_->sections.size();
  auto task = std::make_shared<Impl::Task>(
      Impl::Task{&prompt, &sample, std::vector<RewardPart>(count), count});
  {
    const std::lock_guard lock(impl_->mutex);
    ++impl_->open;
    for (size_t i = 0; i < count; ++i) {
      impl_->jobs.push_back({task, i});
    }
  }
  impl_->changed.notify_all();
}

void RewardPool::wait() {
  std::unique_lock lock(impl_->mutex);
  impl_->done.wait(lock, [&] { return impl_->open == 0; });
}

bool RewardPool::wait_for(double seconds) {
  std::unique_lock lock(impl_->mutex);
  return impl_->done.wait_for(lock, std::chrono::duration<double>(seconds),
                              [&] { return impl_->open == 0; });
}

void RewardPool::give_up() {
  {
    const std::lock_guard lock(impl_->mutex);
    ++impl_->dropped_rounds;
    for (const Impl::Job& job : impl_->jobs) {
      impl_->close_part(job.task.get(), true);
    }
    impl_->jobs.clear();
  }
  impl_->changed.notify_all();
  wait();
}

double RewardPool::busy_s() const { return static_cast<double>(impl_->busy_ns.load()) * 1e-9; }

}  // namespace hocket::rl
