// SPDX-License-Identifier: Apache-2.0
#include "planner/codecs/codecs.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/stop.h"
#include "base/text.h"
#include "cost/cost_model.h"
#include "planner/trial.h"
#include "run/compile.h"
#include "run/machine.h"
#include "run/run_text.h"
#include "sim/simulator.h"

namespace hocket::planner {

namespace {

using passes::GradSum;
using passes::kNoCodec;
using program::Program;
using program::Task;
using program::TaskId;

/// Begin of the last bubble, in ns, if links are never idle: before that of every transfer.
constexpr int64_t kNoBubble = std::numeric_limits<int64_t>::min();

/// Largest number of host assignments that are all tried.
constexpr double kMaxOffloads = 4096;

/// Nanoseconds of a step, from begin until before end.
struct Span {
  int64_t begin = 0, end = 0;
};

/// Use of one rank's links in a replayed step.
class LinkTimes {
 public:
  LinkTimes(const Program& program, const sim::Replay& replay, size_t index)
      : list_(program.classes[program.class_of(replay.ranks[index])]),
        parameters_(
            passes::parameters_of_gradients(program, program.class_of(replay.ranks[index]))) {
    for (size_t t = 0; t < list_.tasks.size(); ++t) {
      if (!program::is_communication(program.kind(list_.tasks[t]))) continue;
      const auto at = static_cast<size_t>(replay.base[index]) + t;
      carried_.push_back({replay.transfer_ns[at], replay.end_of_ns[at]});
      tasks_.push_back(t);
    }
  }

  /// Returns the span of each transfer's all-reduces, by place; none: this rank has no such task,
  /// or only codes.
  std::vector<std::optional<Span>> of(const std::vector<GradSum>& transfers) const {
    std::map<std::string, size_t> place;
    for (size_t t = 0; t < transfers.size(); ++t) {
      for (const std::string& parameter : transfers[t].parameters) {
        place[parameter] = t;
      }
    }
    std::vector<std::optional<Span>> spans(transfers.size());
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const Task& task = list_.tasks[tasks_[i]];
      if (task.phase != program::Phase::grad) continue;
      for (const program::BufferId output : task.out) {
        const auto parameter = parameters_.find(list_.root(output));
        if (parameter == parameters_.end() || !place.contains(parameter->second)) continue;
        std::optional<Span>& span = spans[place.at(parameter->second)];
        span = span ? Span{std::min(span->begin, carried_[i].begin),
                           std::max(span->end, carried_[i].end)}
                    : carried_[i];
      }
    }
    return spans;
  }

  /// Nanoseconds until `time` in which no link carries anything.
  int64_t idle_before(int64_t time) const {
    int64_t last = 0;
    for (const Span& span : carried_) {
      if (span.begin < time) {
        last = std::max(last, span.end);
      }
    }
    return std::max<int64_t>(0, time - last);
  }

 private:
  const program::RankClass& list_;
  const std::map<program::BufferId, std::string>
      parameters_;  ///< parameter of the gradient in each buffer
  std::vector<Span> carried_;
  std::vector<size_t> tasks_;  ///< place of each of these in the list
};

/// Times of the transfers. One is before a bubble if it is so on every rank that takes part; its
/// gap is the shortest of theirs.
std::vector<std::optional<TransferTimes>> times_of(const Program& program,
                                                   const sim::Replay& replay,
                                                   const std::vector<GradSum>& transfers) {
  std::vector<std::optional<TransferTimes>> times(transfers.size());
  for (size_t index = 0; index < replay.ranks.size(); ++index) {
    const LinkTimes links(program, replay, index);
    const std::vector<std::optional<Span>> spans = links.of(transfers);
    int64_t last_bubble = kNoBubble;
    for (const std::optional<Span>& span : spans) {
      if (span && links.idle_before(span->begin) > 0) {
        last_bubble = std::max(last_bubble, span->begin);
      }
    }
    for (size_t t = 0; t < spans.size(); ++t) {
      if (!spans[t]) continue;
      const double gap_s = static_cast<double>(links.idle_before(spans[t]->begin)) * 1e-9;
      const bool before = spans[t]->end <= last_bubble;
      times[t] = times[t] ? TransferTimes{std::min(times[t]->gap_s, gap_s),
                                          times[t]->before_bubble && before}
                          : TransferTimes{gap_s, before};
    }
  }
  return times;
}

/// A choice, without the word by which hosts encode.
std::string on_device(const std::string& choice) {
  const std::string word = fmt::format(" {}", passes::kOnHost);
  return choice.ends_with(word) ? choice.substr(0, choice.size() - word.size()) : choice;
}
std::string on_host(const std::string& choice) {
  return fmt::format("{} {}", choice, passes::kOnHost);
}

/// The program of a run as `compress` gets it.
Program before_compress(const engine::Run& run) {
  const std::vector<std::string>& passes = run.config.plan.passes;
  if (std::find(passes.begin(), passes.end(), "compress") == passes.end()) {
    fail(run.name, "plan.passes lacks compress, which encodes gradients; got {}",
         join(passes, ", "));
  }
  Program before;
  bool is_reached = false;
  engine::ProgramSpec spec = engine::training(run);
  spec.lowering.observe = [&](const std::string& stage, const engine::Progress& progress) {
    is_reached = is_reached || stage == "compress";
    if (!is_reached && !progress.program.classes.empty()) {
      before = progress.program;
    }
  };
  engine::compile(spec);
  return before;
}

}  // namespace

CodecTrial::CodecTrial(const engine::Run& run, const std::string& cluster_file,
                       std::optional<cost::Profile> profile, std::vector<std::string> codecs)
    : base_name_(run.name), profile_(std::move(profile)), codecs_(std::move(codecs)) {
  for (std::string& assignment : engine::assignments_of(run)) {
    const std::string key = assignment.substr(0, assignment.find('='));
    const bool is_chosen = key == "plan.grad_codec" || key == "plan.grad_codec_of" ||
                           (key == "cluster.file" && !cluster_file.empty());
    if (!is_chosen) {
      kept_.push_back(std::move(assignment));
    }
  }
  if (!cluster_file.empty()) {
    kept_.push_back(fmt::format("cluster.file={}", nlohmann::json(cluster_file).dump()));
  }
  cluster_ = engine::cluster_of(run, cluster_file);
  const engine::Run plain = run_of({});
  if (engine::evaluates(plain)) {
    evaluation_ =
        std::make_shared<const Program>(engine::compile(engine::evaluation(plain)).program);
  }
  transfers_ = passes::grad_sums(before_compress(plain), codecs_);
  if (transfers_.empty()) {
    fail(base_name_,
         "no gradient of this plan can travel through {}: expected gradients of two dims or more "
         "that are summed over replicas (plan.dp above 1, not split by plan.shard), and moved as "
         "fewer bytes by the codec",
         join(codecs_, ", "));
  }
}

CodecChoice CodecTrial::all_by(const std::string& codec) const {
  CodecChoice choice;
  for (const GradSum& transfer : transfers_) {
    choice.emplace_back(transfer.taken_by.contains(on_device(codec)) ? codec : kNoCodec);
  }
  return choice;
}

engine::Run CodecTrial::run_of(const CodecChoice& choice) const {
  nlohmann::json list = nlohmann::json::array();
  for (size_t t = 0; t < choice.size(); ++t) {
    if (choice[t] == kNoCodec) continue;
    for (const std::string& parameter : transfers_[t].taken_by.at(on_device(choice[t]))) {
      list.push_back(parameter + " " + choice[t]);
    }
  }
  std::vector<std::string> all = kept_;
  if (!list.empty()) {
    all.push_back("plan.grad_codec_of=" + list.dump());
  }
  return engine::parse_run("{}", base_name_, all);
}

CodecOutcome CodecTrial::simulate(const CodecChoice& choice) const {
  return simulate(choice, nullptr);
}

CodecOutcome CodecTrial::simulate(const CodecChoice& choice,
                                  std::vector<std::optional<TransferTimes>>* times) const {
  const engine::Run run = run_of(choice);
  const engine::Compiled compiled = engine::compile(run);
  const cost::CostModel costs(cluster_, profile_, sim::threads_per_rank(compiled.program, cluster_),
                              engine::collectives_of(run));
  sim::SimOptions options;
  options.record = times != nullptr;
  options.memory_budget = static_cast<int64_t>(run.config.cluster.memory_budget.value_or(0));
  options.memory =
      program::memory_with(compiled.program, evaluation_.get(), cost::kernels_of(cluster_));
  sim::Replay replay;
  const sim::SimReport report =
      sim::simulate(compiled.program, costs, options, times ? &replay : nullptr);
  if (times) {
    *times = times_of(compiled.program, replay, transfers_);
  }
  return {.step_s = static_cast<double>(report.step_ns) * 1e-9,
          .fits = report.fits(),
          .low_s = static_cast<double>(report.interval.low_ns) * 1e-9,
          .high_s = static_cast<double>(report.interval.high_ns) * 1e-9,
          .interval_why = report.interval.why};
}

CodecChoice CodecResult::choice() const {
  CodecChoice choice;
  for (const CodecDecision& decision : decisions) {
    choice.push_back(decision.codec);
  }
  return choice;
}

namespace {

class CodecSearch {
 public:
  CodecSearch(const CodecTrial& trial, const CodecSearchOptions& options)
      : trial_(trial), options_(options), choice_(trial.transfers().size(), kNoCodec) {
    result_.decisions.resize(choice_.size());
  }

  CodecResult run() {
    show_progress();
    // To its end: all else is compared with it.
    result_.none = result_.chosen = trial_.simulate(choice_, &times_);
    ++result_.simulated;
    for (size_t t = 0; t < times_.size(); ++t) {
      result_.decisions[t].gap_s = times_[t] ? times_[t]->gap_s : 0;
    }
    // Early, so that a search that is stopped has them, too.
    for (const std::string& codec : trial_.codecs()) {
      add_all_by(codec);
      if (options_.offload) {
        add_all_by(on_host(codec));
      }
    }
    decide_by_falling_size();
    start_from_the_best_of_all();
    if (options_.offload) {
      offload();
    }
    for (size_t t = 0; t < choice_.size(); ++t) {
      result_.decisions[t].codec = choice_[t];
    }
    return std::move(result_);
  }

 private:
  /// Algorithm 1 of the paper.
  void decide_by_falling_size() {
    for (const size_t t : by_falling_size()) {
      if (stopped()) return;
      if (times_[t] && times_[t]->before_bubble) {
        result_.decisions[t].dropped = true;
        continue;
      }
      if (decide(t)) {
        simulate(choice_, &times_);
      }
    }
  }

  void add_all_by(const std::string& codec) {
    if (const std::optional<CodecOutcome> outcome = simulate(trial_.all_by(codec), nullptr)) {
      result_.all.emplace_back(codec, *outcome);
    }
  }

  /// Algorithm 2 of the paper: chooses a number per group of equal size and codec.
  void offload() {
    const std::vector<std::vector<size_t>> groups = groups_to_offload();
    std::vector<size_t> sizes;
    CodecChoice devices = choice_;
    for (const std::vector<size_t>& group : groups) {
      sizes.push_back(group.size());
      for (const size_t t : group) {
        devices[t] = on_device(choice_[t]);
      }
    }
    const auto with = [&](const OffloadCounts& counts) {
      CodecChoice choice = devices;
      for (size_t group = 0; group < groups.size(); ++group) {
        for (size_t k = 0; k < counts[group]; ++k) {
          std::string& codec = choice[groups[group][k]];
          codec = on_host(codec);
        }
      }
      return choice;
    };
    const double before_s = result_.chosen.step_s;
    result_.offload = choose_offload(
        sizes, before_s, kMaxOffloads,
        [&](const OffloadCounts& counts) -> std::optional<double> {
          const std::optional<CodecOutcome> outcome = simulate(with(counts), nullptr);
          if (!outcome || !is_better(*outcome)) return std::nullopt;
          result_.chosen = *outcome;
          choice_ = with(counts);
          return outcome->step_s;
        },
        [&] { return stopped(); });
    result_.offload->gain_s = before_s - result_.chosen.step_s;
  }
  /// Returns the places of encoded transfers, by size and codec; in a group the furthest from the
  /// output, whose all-reduce starts last, comes first.
  std::vector<std::vector<size_t>> groups_to_offload() const {
    std::map<std::pair<int64_t, std::string>, std::vector<size_t>> by_way;
    for (size_t t = choice_.size(); t > 0; --t) {
      const std::string codec = on_device(choice_[t - 1]);
      if (codec != kNoCodec) {
        by_way[{trial_.transfers()[t - 1].bytes, codec}].push_back(t - 1);
      }
    }
    std::vector<std::vector<size_t>> groups;
    for (auto& [way, places] : by_way) {
      groups.push_back(std::move(places));
    }
    return groups;
  }

  void start_from_the_best_of_all() {
    const auto best = std::min_element(
        result_.all.begin(), result_.all.end(),
        [](const auto& a, const auto& b) { return a.second.step_s < b.second.step_s; });
    if (best == result_.all.end() || !is_better(best->second)) return;
    choice_ = trial_.all_by(best->first);
    for (CodecDecision& decision : result_.decisions) {
      decision.dropped = false;
      decision.gain_s = 0;
    }
    result_.chosen = best->second;
    std::vector<size_t> order = by_falling_size();
    std::reverse(order.begin(), order.end());
    for (const size_t t : order) {
      if (stopped()) return;
      decide(t);
    }
  }

  /// Places by falling size; of one size the sum that begins first is nearest to the output.
  std::vector<size_t> by_falling_size() const {
    const std::vector<GradSum>& transfers = trial_.transfers();
    std::vector<size_t> order(transfers.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return transfers[a].bytes > transfers[b].bytes; });
    return order;
  }

  /// Tries every other codec of a transfer, and keeps the best; true: it was another one.
  bool decide(size_t t) {
    const double before_s = result_.chosen.step_s;
    const std::string was = choice_[t];
    std::string best = was;
    for (const std::string& codec : options_of(t)) {
      if (codec == was) continue;
      choice_[t] = codec;
      const std::optional<CodecOutcome> outcome = simulate(choice_, nullptr);
      if (!outcome) break;
      if (!is_better(*outcome)) continue;
      result_.chosen = *outcome;
      best = codec;
    }
    choice_[t] = best;
    if (best == was) return false;
    result_.decisions[t].gain_s = before_s - result_.chosen.step_s;
    return true;
  }
  std::vector<std::string> options_of(size_t t) const {
    std::vector<std::string> options{kNoCodec};
    for (const auto& [codec, parameters] : trial_.transfers()[t].taken_by) {
      options.push_back(codec);
    }
    return options;
  }

  bool is_better(const CodecOutcome& outcome) const {
    return (outcome.fits || !result_.none.fits) && outcome.step_s < result_.chosen.step_s;
  }
  void show_progress() {
    if (options_.progress) {
      options_.progress(result_.simulated, result_.chosen.step_s);
    }
  }
  /// Returns the predicted step; nothing, and leaves `times` as they are, if the search is stopped
  /// before it is known.
  std::optional<CodecOutcome> simulate(const CodecChoice& choice,
                                       std::vector<std::optional<TransferTimes>>* times) {
    if (stopped()) return std::nullopt;
    show_progress();
    const StopWhen given_up([this] { return stopped(); });
    try {
      const CodecOutcome outcome = trial_.simulate(choice, times);
      ++result_.simulated;
      return outcome;
    } catch (const Stopped&) {
      return std::nullopt;
    }
  }
  bool stopped() {
    if (options_.stop && options_.stop()) {
      result_.complete = false;
    }
    return !result_.complete;
  }

  const CodecTrial& trial_;
  const CodecSearchOptions& options_;
  CodecChoice choice_;
  std::vector<std::optional<TransferTimes>> times_;
  CodecResult result_;
};

}  // namespace

CodecResult choose_codecs(const CodecTrial& trial, const CodecSearchOptions& options) {
  if (options.offload && !trial.cluster().knows_hosts()) {
    fail(trial.cluster().name,
         "the cluster does not say how fast the hosts of its devices are; expected "
         "device.host.kernels and device.host.copies (docs/cluster-files.md)");
  }
  return CodecSearch(trial, options).run();
}

}  // namespace hocket::planner
