// SPDX-License-Identifier: Apache-2.0
// Implements: make_exec_reward (reward_parts.h). The protocol: docs/rewards.md.
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/stop.h"
#include "base/text.h"
#include "rl/line_process.h"
#include "rl/reward_parts.h"

namespace hocket::rl {

namespace {

// Seconds in which a command that is none has ended; in which the shim has said that it starts.
constexpr double kFirstLife = 0.2, kShimLife = 20;
constexpr const char* kShim = "reward_shim.py";
constexpr std::chrono::milliseconds kStopSlice(50);
constexpr const char* kExec = "reward command";
constexpr const char* kRequestId = "request_id";

/// Returns the request's line: fixed fields, then the other columns of the data.
std::string request_line(const Scored& scored, int64_t id) {
  using Json = nlohmann::ordered_json;
  const auto& [prompt, sample] = scored;
  Json line = {{kRequestId, id},
               {"data_source", prompt.data_source},
               {"solution_str", sample.text},
               {"ground_truth", prompt.ground_truth},
               {"extra_info", prompt.extra_info},
               {"prompt", prompt.text},
               {"completion_ids", sample.tokens}};
  if (prompt.columns.is_object()) {
    if (const auto at = prompt.columns.find(prompt.column); at != prompt.columns.end()) {
      line["prompt"] = *at;  // as the data has it: maybe messages
    }
    for (const auto& [name, value] : prompt.columns.items()) {
      if (!line.contains(name)) {
        line[name] = value;
      }
    }
  }
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// An answer that is none; the process is in step all the same if `in_step`.
struct BadAnswer {
  std::string what;
  bool in_step = false;
};

double score_of(const nlohmann::json& value, std::string_view line) {
  const double score = value.is_number()    ? value.get<double>()
                       : value.is_boolean() ? (value.get<bool>() ? 1 : 0)
                                            : NAN;
  if (!std::isfinite(score)) {
    throw BadAnswer{
        fmt::format("answered {}; expected a finite number, or an object with one "
                    "as its score",
                    quote(line, 60))};
  }
  return score;
}

/// Throws BadAnswer.
RewardPart read_answer(std::string_view line, int64_t id) {
  nlohmann::json answer;
  try {
    answer = parse_json(line, kExec);
  } catch (const Error& error) {
    throw BadAnswer{fmt::format("answered {}, which is no JSON", quote(line, 60))};
  }
  RewardPart part;
  if (!answer.is_object()) {
    part.score = score_of(answer, line);
    return part;
  }
  const auto sent = answer.find(kRequestId);
  if (sent != answer.end() && *sent != id) {
    throw BadAnswer{fmt::format("answered {} to {}", sent->dump(), id)};
  }
  const auto error = answer.find("error");
  if (error != answer.end() && !error->is_null()) {
    const std::string text = error->is_string() ? error->get<std::string>() : error->dump();
    throw BadAnswer{"failed: " + printable(text.substr(0, 400)), true};
  }
  for (const auto& [name, value] : answer.items()) {
    if (name == "score") {
      part.score = score_of(value, line);
    } else if (name != kRequestId && value.is_number() && std::isfinite(value.get<double>())) {
      part.details[name] = value.get<double>();
    } else if (value.is_boolean()) {
      part.details[name] = value.get<bool>() ? 1 : 0;
    }
  }
  if (!answer.contains("score")) {
    score_of(nullptr, line);
  }
  return part;
}

class ExecReward : public Reward {
 public:
  ExecReward(const engine::RewardSection& section, const std::string& where)
      : command_(section.command),
        where_(where),
        limits_{.answer_s = section.timeout_s, .start_s = section.start_timeout_s} {
    if (trim(command_).empty()) fail(where, "exec needs command");
    for (int64_t i = 0; i < section.processes; ++i) {
      free_.push_back(started());
    }
    // The shim always speaks: it is only a machine under load that makes it wait.
    const double silent_s = command_.find(kShim) == std::string::npos ? kFirstLife : kShimLife;
    for (const Process& process : free_) {
      const std::string wrong = process->start_within(silent_s);
      if (wrong.empty()) continue;
      const char* what = process->is_starting() ? "did not start" : "ended at once";
      fail(where, "the command {} {}: it {}", quote(command_), what, wrong);
    }
  }
  ~ExecReward() override {
    for (const auto& process : free_) {
      if (process) {
        process->close_input();  // all of them, before one is waited for
      }
    }
  }

  RewardPart score(const Scored& scored) override {
    Slot slot(this);
    const int64_t id = next_id();
    renew(&slot.process);
    // A stop leaves a process that still starts as it is.
    const std::string wrong = slot.process->start_within(0);
    slot.in_step = false;
    if (!wrong.empty()) fail_run(where_, "the command {}", wrong);
    const std::string answer = slot.process->ask(request_line(scored, id));
    try {
      RewardPart part = read_answer(answer, id);
      slot.in_step = true;
      return part;
    } catch (const BadAnswer& bad) {
      slot.in_step = bad.in_step;
      fail_run(where_, "the command {}",
               bad.in_step ? bad.what : slot.process->with_last_error(bad.what));
    }
  }

 private:
  using Process = std::unique_ptr<LineProcess>;

  Process started() const { return std::make_unique<LineProcess>(command_, where_, limits_); }
  /// Starts a process in place of one that ended while it had nothing to do.
  void renew(Process* process) const {
    const std::string end = *process ? (*process)->end_within(0) : "";
    if (!end.empty()) {
      log_warning("[{}] the command {}, without a sample; it is started again", where_, end);
      process->reset();
    }
    if (!*process) {
      *process = started();
    }
  }
  int64_t next_id() {
    const std::lock_guard lock(mutex_);
    return id_++;
  }

  /// A process that is taken, and given back or started anew.
  struct Slot {
    explicit Slot(ExecReward* owner) : reward(*owner) {
      std::unique_lock lock(reward.mutex_);
      while (reward.free_.empty()) {
        reward.given_back_.wait_for(lock, kStopSlice);
        stop_if_asked();
      }
      process = std::move(reward.free_.front());
      reward.free_.pop_front();
    }
    ~Slot() {
      if (!in_step) {
        process.reset();
        try {
          process = reward.started();
        } catch (const Error&) {
          // The next sample tries again, and tells.
        }
      }
      const std::lock_guard lock(reward.mutex_);
      reward.free_.push_back(std::move(process));
      reward.given_back_.notify_one();
    }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

    ExecReward& reward;
    Process process;
    bool in_step = true;
  };

  const std::string command_, where_;
  const LineLimits limits_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable given_back_;
  std::deque<Process> free_;  // empty ones are to be started
  int64_t id_ = 0;
};

}  // namespace

std::unique_ptr<Reward> make_exec_reward(const engine::RewardSection& section,
                                         const std::string& where) {
  return std::make_unique<ExecReward>(section, where);
}

}  // namespace hocket::rl
