// SPDX-License-Identifier: Apache-2.0
#include "whatif/pauses.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/stats.h"
#include "base/text.h"

namespace hocket::whatif {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Share of passes or ops. Above it, long ones are a property of the workload, not pauses.
constexpr double kMaxPauseShare = 0.1;
/// Ratio to the usual time from which an op is far longer.
constexpr double kFarLongerRatio = 1.5;
/// Share of a step from which a pause without a long pass beside it counts.
constexpr double kMinPauseShare = 0.05;
/// Share of a block's excess that lies in one of its ops.
constexpr double kOneOpShare = 0.7;

class PauseSearch {
 public:
  PauseSearch(const MeasuredRun& run, const BlockTimes& times, double step, bool may_be_sequences)
      : run_(run),
        times_(times),
        step_(step),
        may_be_sequences_(may_be_sequences),
        samples_(run.samples()),
        paused_(run.duration),
        cured_(run.duration),
        usual_(run.blocks.size() * run.samples(), kAsMeasured) {}

  Pauses find() {
    // Compares ops with others of their worker, with themselves in other steps, with the same op of
    // other workers; then looks at gaps between ops.
    collections();
    passes();
    beside_passes();
    beside_other_workers();
    between_ops();
    return {std::move(paused_), std::move(cured_), gaps_ > 0, evidence()};
  }

 private:
  static constexpr double kAsMeasured = -1;
  using BlockReplica = std::pair<BlockId, ReplicaId>;

  double& usual_s(BlockId block, SampleId sample) {
    return usual_[size_t{block} * samples_ + sample];
  }
  /// Returns the duration of a block: the usual one where that replaced a pause.
  double repaired_s(BlockId block, SampleId sample) {
    const double usual = usual_s(block, sample);
    return usual == kAsMeasured ? times_.time(block, sample) : usual;
  }
  const OpKind& kind_of(BlockId block) const { return run_.kinds[run_.blocks[block].kind]; }
  bool is_collection(BlockId block) const { return kind_of(block).name == "gc"; }
  /// Returns whether a block is a block of device idle time ("device idle 12").
  bool is_idle(BlockId block) const { return kind_of(block).name.starts_with("device idle"); }
  bool is_computation(BlockId block) const {
    return !kind_of(block).communicates() && !is_collection(block) && !is_idle(block);
  }
  WorkerId worker_of(const BlockReplica& place) const {
    return run_.worker_id(run_.blocks[place.first].worker, place.second);
  }

  void replace_by_usual(BlockId block, SampleId sample, double seconds) {
    if (usual_s(block, sample) != kAsMeasured) return;
    const double longer = times_.time(block, sample) - seconds;
    usual_s(block, sample) = seconds;
    times_.set(block, sample, seconds, &cured_);
    seconds_ += longer;
    count_hit(block, sample);
  }
  void count_hit(BlockId block, SampleId sample) { ++hits_[{block, run_.replica_of(sample)}]; }

  void collections() {
    for (BlockId block = 0; block < run_.blocks.size(); ++block) {
      if (!is_collection(block) && !is_idle(block)) continue;
      for (SampleId sample = 0; sample < samples_; ++sample) {
        if (times_.time(block, sample) <= 0) continue;
        ++(is_idle(block) ? idle_ : collections_);
        if (is_idle(block)) {
          count_hit(block, sample);
        }
        seconds_ += times_.time(block, sample);
        times_.set(block, sample, 0, &cured_);
      }
    }
  }

  /// Usual time of equal work, and the limit above which a time is far longer.
  struct Usual {
    double seconds = 0, limit = 0;
    bool of_two_sorts = false;
  };
  /// Returns the median, with a limit of 1.5 times it, or 6 median deviations above it, whichever
  /// is more. If half of the times or more are long, as with a pause in every other step, the
  /// median itself is long. Of two well separated clusters the short one is usual then.
  static Usual usual_of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t count = values.size();
    size_t few = 0;  // short ones
    for (size_t i = std::max<size_t>(2, count / 4); i <= count / 2; ++i) {
      if (few == 0 || values[i] - values[i - 1] > values[few] - values[few - 1]) {
        few = i;
      }
    }
    if (few > 0) {
      const double apart = values[few] - values[few - 1];
      const double seconds = median({values.begin(), values.begin() + few});
      if (apart > (kFarLongerRatio - 1) * seconds && apart > 2 * (values[few - 1] - values[0])) {
        return {seconds, values[few - 1] + apart / 2, true};
      }
    }
    const double seconds = median(values);
    for (double& value : values) {
      value = std::fabs(value - seconds);
    }
    return {seconds, seconds + std::max((kFarLongerRatio - 1) * seconds, 6 * median(values)),
            false};
  }
  Usual usual_of(const Cells& cells) const {
    std::vector<double> values;
    values.reserve(cells.size());
    for (const auto& [block, sample] : cells) {
      values.push_back(times_.time(block, sample));
    }
    return usual_of(std::move(values));
  }

  bool differ_by(double least, const Cells& cells) const {
    const auto [shortest, longest] =
        std::minmax_element(cells.begin(), cells.end(), [&](const auto& a, const auto& b) {
          return times_.time(a.first, a.second) < times_.time(b.first, b.second);
        });
    return times_.time(longest->first, longest->second) -
               times_.time(shortest->first, shortest->second) >=
           least;
  }

  /// Replaces the times of passes that take far longer than others of their worker in the same
  /// direction. A long sequence would lengthen both directions. Many long passes that may be long
  /// sequences are no pauses.
  void passes() {
    struct LongPass {
      BlockId block;
      SampleId sample;
      double usual;
    };
    std::vector<LongPass> found;
    for (const auto& [of, cells] : times_.alike()) {
      passes_ += cells.size();
      const Usual usual = usual_of(cells);
      for (const auto& [block, sample] : cells) {
        if (times_.time(block, sample) > usual.limit) {
          found.push_back({block, sample, usual.seconds});
        }
      }
    }
    long_passes_ = found.size();
    too_many_ = may_be_sequences_ && long_passes_ > kMaxPauseShare * passes_;
    if (too_many_) return;
    for (const LongPass& pass : found) {
      excess_.push_back(times_.time(pass.block, pass.sample) - pass.usual);
      replace_by_usual(pass.block, pass.sample, pass.usual);
    }
  }

  /// Finds pauses beside passes. A paused worker holds up every group it belongs to, including
  /// transfers: they exceed other steps by the same time as long passes. Where no pass is long,
  /// looks for ops with two clusters of times, long in one step and short in another; in traces
  /// without passes also for ops that are long in a few steps.
  void beside_passes() {
    const double least = excess_.empty() ? kMinPauseShare * step_ : median(excess_) / 2;
    std::vector<char> is_pass(run_.blocks.size(), 0);
    for (const Pass& pass : times_.passes()) {
      is_pass[pass.block] = 1;
    }
    for (BlockId block = 0; block < run_.blocks.size(); ++block) {
      if (is_pass[block] != 0 || is_collection(block) || is_idle(block)) continue;
      for (ReplicaId replica = 0; replica < run_.replicas; ++replica) {
        const Cells cells = times_.steps_of(block, replica);
        if (!differ_by(least, cells)) continue;
        const Usual usual = usual_of(cells);
        if (excess_.empty() && !usual.of_two_sorts && !times_.passes().empty()) continue;
        for (const auto& [of, sample] : cells) {
          const double now = times_.time(block, sample);
          if (now <= usual.limit || now - usual.seconds < least) continue;
          ++others_;
          replace_by_usual(block, sample, usual.seconds);
        }
      }
    }
  }

  /// Finds pauses that hit the same op in every step, where no other step shows its usual time.
  /// Compares with workers that do the same work. A slow worker is slow in most ops, a paused one
  /// in a single op.
  void beside_other_workers() {
    std::map<WorkerId, std::vector<Long>> found;
    const std::vector<std::vector<BlockReplica>> work = same_work();
    for (const std::vector<BlockReplica>& places : work) {
      longer_than_others(places, &found);
    }
    for (const auto& [worker, list] : found) {
      if (!are_few(worker, list) || is_slow(worker, list, work)) continue;
      for (const Long& at : list) {
        for (const auto& [block, sample] : times_.steps_of(at.place.first, at.place.second)) {
          if (repaired_s(block, sample) <= kFarLongerRatio * at.usual) continue;
          ++beside_workers_;
          replace_by_usual(block, sample, at.usual);
        }
      }
    }
  }

  struct Long {
    BlockReplica place;
    double takes = 0, usual = 0;  ///< in most steps: its time, and that of others
  };

  /// Returns, for every computation of a stage, the workers that run it.
  std::vector<std::vector<BlockReplica>> same_work() const {
    // By kind, stage, chunk and micro-batch.
    std::map<std::tuple<OpKindId, StageId, int32_t, int32_t>, std::vector<BlockReplica>> found;
    for (BlockId block = 0; block < run_.blocks.size(); ++block) {
      if (!is_computation(block)) continue;
      const Block& at = run_.blocks[block];
      for (ReplicaId replica = 0; replica < run_.replicas; ++replica) {
        const WorkerId worker = worker_of({block, replica});
        found[{at.kind, run_.workers[worker].stage, at.chunk, at.micro_batch}].push_back(
            {block, replica});
      }
    }
    std::vector<std::vector<BlockReplica>> lists;
    for (auto& [work, list] : found) {
      lists.push_back(std::move(list));
    }
    return lists;
  }

  /// Adds those of the places that take far longer than the ones of other workers.
  void longer_than_others(const std::vector<BlockReplica>& places,
                          std::map<WorkerId, std::vector<Long>>* found) {
    double least = kInfinity, most = 0;
    for (const BlockReplica& place : places) {
      for (StepIndex step = 0; step < run_.steps.size(); ++step) {
        const double seconds = repaired_s(place.first, run_.sample(step, place.second));
        least = std::min(least, seconds);
        most = std::max(most, seconds);
      }
    }
    if (most - least <= kMinPauseShare * step_) return;
    std::vector<double> takes;
    takes.reserve(places.size());
    for (const BlockReplica& place : places) {
      takes.push_back(median_repaired_s(place));
    }
    const double shortest = *std::min_element(takes.begin(), takes.end());
    for (size_t i = 0; i < places.size(); ++i) {
      if (takes[i] <= kFarLongerRatio * shortest || takes[i] - shortest <= kMinPauseShare * step_)
        continue;
      std::vector<double> of_others;
      std::vector<BlockReplica> others;
      for (size_t j = 0; j < places.size(); ++j) {
        if (worker_of(places[j]) == worker_of(places[i])) continue;
        of_others.push_back(takes[j]);
        others.push_back(places[j]);
      }
      if (others.empty()) continue;
      const double usual = median(of_others);
      if (takes[i] > kFarLongerRatio * usual && takes[i] - usual > kMinPauseShare * step_ &&
          in_one_op(places[i], others)) {
        (*found)[worker_of(places[i])].push_back({places[i], takes[i], usual});
      }
    }
  }

  /// Returns whether long ops are rare on a worker: at most a tenth of its computations, or a
  /// single one on which others spend less than half of their time.
  bool are_few(WorkerId worker, const std::vector<Long>& list) {
    int64_t places = 0;
    double usual = 0, rest = 0;
    for (BlockId block = 0; block < run_.blocks.size(); ++block) {
      const BlockReplica place{block, run_.replica_of(worker)};
      if (!is_computation(block) || worker_of(place) != worker) continue;
      ++places;
      rest += median_repaired_s(place);
    }
    for (const Long& at : list) {
      usual += at.usual;
      rest -= at.takes;
    }
    return list.size() <= std::max(1.0, kMaxPauseShare * places) && usual < rest;
  }

  bool is_of_host(BlockId block) const { return kind_of(block).name.starts_with("host "); }

  /// Returns whether a worker is far slower than others in half of the ops of the same sort (its
  /// host's, or its device's). Long ones are then no pauses.
  bool is_slow(WorkerId worker, const std::vector<Long>& list,
               const std::vector<std::vector<BlockReplica>>& work) {
    const bool host = is_of_host(list.front().place.first);
    int64_t all = 0, slow = 0;
    for (const std::vector<BlockReplica>& places : work) {
      if (is_of_host(places.front().first) != host) continue;
      double own = 0;
      std::vector<double> others;
      for (const BlockReplica& place : places) {
        if (worker_of(place) == worker) {
          own = std::max(own, median_repaired_s(place));
        } else {
          others.push_back(median_repaired_s(place));
        }
      }
      if (others.empty() || own <= 0) continue;
      ++all;
      slow += own > kFarLongerRatio * median(others);
    }
    return all > 1 && slow * 2 >= all;
  }

  double median_repaired_s(const BlockReplica& place) {
    std::vector<double> values;
    for (const auto& [block, sample] : times_.steps_of(place.first, place.second)) {
      values.push_back(repaired_s(block, sample));
    }
    return median(values);
  }

  /// Returns whether one op of the block holds most of its excess over other workers, in most
  /// steps. A worker with more work is longer in all ops, or has more of them.
  bool in_one_op(const BlockReplica& place, const std::vector<BlockReplica>& others) const {
    const std::vector<OpId>& ops = times_.ops(place.first);
    if (ops.size() == 1) return true;
    std::vector<double> usual(ops.size());
    for (size_t i = 0; i < ops.size(); ++i) {
      std::vector<double> of_others;
      for (const auto& [block, replica] : others) {
        const std::vector<OpId>& theirs = times_.ops(block);
        if (theirs.size() != ops.size() || run_.ops[theirs[i]].name != run_.ops[ops[i]].name) {
          return false;
        }
        for (StepIndex step = 0; step < run_.steps.size(); ++step) {
          of_others.push_back(run_.duration[run_.at(theirs[i], run_.sample(step, replica))]);
        }
      }
      usual[i] = median(of_others);
    }
    size_t in_one = 0;
    for (StepIndex step = 0; step < run_.steps.size(); ++step) {
      const SampleId sample = run_.sample(step, place.second);
      double all = 0, most = 0;
      for (size_t i = 0; i < ops.size(); ++i) {
        const double longer = run_.duration[run_.at(ops[i], sample)] - usual[i];
        all += longer;
        most = std::max(most, longer);
      }
      in_one += most >= kOneOpShare * all ? 1 : 0;
    }
    return in_one * 2 >= run_.steps.size();
  }

  /// Finds time in which a worker could have begun an op and did not, for workers with all ops
  /// known.
  void between_ops() {
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      const std::vector<OpId>& waits = run_.waits_for[op];
      if (run_.kind(op).communicates() || waits.empty()) continue;
      for (SampleId sample = 0; sample < samples_; ++sample) {
        if (run_.worker(op, run_.replica_of(sample)).records_lost) continue;
        double ready = left_by_last_step(op, sample);
        for (const OpId before : waits) {
          ready = std::max(ready, end(before, sample));
        }
        const double gap = run_.start[run_.at(op, sample)] - ready;
        if (gap < kMinPauseShare * step_) continue;
        ++gaps_;
        gap_seconds_ += gap;
        paused_[run_.at(op, sample)] += gap;
        count_hit(run_.ops[op].block, sample);
      }
    }
  }

  double end(OpId op, SampleId sample) const {
    return run_.start[run_.at(op, sample)] + run_.duration[run_.at(op, sample)];
  }
  /// Returns the end of an op's last dependency in the step before; -infinity: it has none. Returns
  /// infinity, so that no gap counts, if that step is absent.
  double left_by_last_step(OpId op, SampleId sample) const {
    double ready = -kInfinity;
    if (!run_.steps_overlap()) return ready;
    const std::vector<OpId>& waits = run_.waits_for_last[op];
    const bool follows = run_.follows(run_.step_of(sample));
    if (!waits.empty() && !follows) return kInfinity;
    for (const OpId before : waits) {
      ready = std::max(ready, end(before, sample - run_.replicas));
    }
    return ready;
  }

  std::string evidence() const {
    std::string out = fmt::format(
        "{} of garbage, and {} of {} passes far longer than others of their worker{}; {} "
        "longer by the same time",
        counted(collections_, "collection"), long_passes_, passes_,
        too_many_ ? ", too many that may be long sequences" : "", counted(others_, "other op"));
    if (beside_workers_ > 0) {
      out += fmt::format(
          "; {} far longer than the same op of other workers, unlike the rest of their ops",
          counted(beside_workers_, "op"));
    }
    if (idle_ > 0) {
      out += fmt::format("; {} of a device between ops in which nothing is waited for",
                         counted(idle_, "gap"));
    }
    if (gaps_ > 0) {
      out += fmt::format("; {} between ops in which nothing is waited for, which T leaves out",
                         counted(gaps_, "gap"));
    }
    return out + fmt::format("; {} in all", human_time(seconds_ + gap_seconds_)) + in_step();
  }

  /// Returns the place that is hit most often, if that is in every other step or more.
  std::string in_step() const {
    const auto most =
        std::max_element(hits_.begin(), hits_.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto steps = std::ssize(run_.steps);
    if (most == hits_.end() || steps < 3 || most->second * 2 < steps) return "";
    const auto [block, replica] = most->first;
    const int32_t micro_batch = run_.blocks[block].micro_batch;
    return fmt::format("; in step with the steps: {}{} of {} in {} of {}", kind_of(block).name,
                       micro_batch == kNone ? "" : fmt::format(" of micro-batch {}", micro_batch),
                       run_.workers[worker_of(most->first)].name, most->second, steps);
  }

  const MeasuredRun& run_;
  const BlockTimes& times_;
  const double step_;
  const bool may_be_sequences_;
  const int32_t samples_;
  std::vector<double> paused_, cured_;
  std::vector<double> usual_;   ///< usual time of blocks with a pause, [block * samples + sample]
  std::vector<double> excess_;  ///< of long passes
  std::map<BlockReplica, int64_t> hits_;
  int64_t collections_ = 0, passes_ = 0, long_passes_ = 0, others_ = 0, beside_workers_ = 0,
          gaps_ = 0, idle_ = 0;
  double seconds_ = 0, gap_seconds_ = 0;
  bool too_many_ = false;
};

}  // namespace

Pauses find_pauses(const MeasuredRun& run, const BlockTimes& times, double step,
                   bool may_be_sequences) {
  return PauseSearch(run, times, step, may_be_sequences).find();
}

}  // namespace hocket::whatif
