// SPDX-License-Identifier: Apache-2.0
#include "whatif/causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/stats.h"
#include "base/text.h"
#include "whatif/blend.h"
#include "whatif/block_times.h"
#include "whatif/even_stages.h"
#include "whatif/pauses.h"

namespace hocket::whatif {
namespace {

constexpr double kHitShare = 0.05;       // of a step: a gain from which a pause costs it
constexpr double kConfirmedShare = 0.5;  // of a gain that the trace's own steps show
constexpr double kCorrelated = 0.9;  // forward and backward times of a micro-batch (the paper's)
constexpr double kRelated = 0.5;     // the same, from where on long passes may be sequences
constexpr size_t kLinksTried = 6;    // links that are replayed, those of most excess first

class Search {
 public:
  Search(const MeasuredRun& run, const std::vector<double>& ideal, Replayer* replayer,
         Analysis* analysis)
      : run_(run),
        ideal_(ideal),
        replayer_(*replayer),
        out_(*analysis),
        samples_(run.samples()),
        times_(run) {}

  void find() {
    uneven_sequences();
    pauses();
    slow_link();
    if (std::all_of(out_.slowest.begin(), out_.slowest.end(),
                    [&](WorkerId worker) { return is_stage(worker); })) {
      slow_stage();
      slow_worker();
    } else {
      slow_worker();
      slow_stage();
    }
    const auto named = std::find_if(out_.causes.begin(), out_.causes.end(),
                                    [&](const CauseFound& cause) { return names(cause); });
    if (named != out_.causes.end()) {
      named->named = true;
    }
    std::stable_sort(out_.causes.begin(), out_.causes.end(), [](const auto& a, const auto& b) {
      return a.named != b.named ? a.named : a.gain > b.gain;
    });
  }

 private:
  /// Returns whether a cause is the run's. The first that explains half of the loss is, from causes
  /// of one op to causes of a whole stage. Pauses are named even where S does not show them: a
  /// pause in every other step, or on all workers, is part of the mean or median that the ideal
  /// uses. So is a slow rank of few, in profiles, where single ops are known.
  bool names(const CauseFound& cause) const {
    if (!cause.doubt.empty()) return false;
    if (out_.S < kStragglingSlowdown) {
      const bool hidden =
          cause.cause == Cause::pauses || (cause.cause == Cause::slow_worker && run_.has_hosts);
      return hidden && cause.gain >= kStragglingSlowdown;
    }
    return cause.explains >= kMainCauseShare &&
           (cause.cause != Cause::uneven_sequences || out_.correlation >= kCorrelated);
  }

  /// Adds a cause: steps take `with` seconds with it, and without it their time with `cured`
  /// durations.
  void add(Cause cause, std::string where, const std::vector<double>& with,
           const std::vector<double>& cured, std::string evidence) {
    const std::vector<double> without = replayer_.replay(cured);
    const double all = run_.mean_of_steps(with), fixed = run_.mean_of_steps(without);
    const double loss = all - out_.T_ideal;
    out_.causes.push_back({cause, std::move(where), fixed, fixed > 0 ? all / fixed : 1,
                           loss != 0 ? (all - fixed) / loss : 0, false, std::move(evidence),
                           doubt(cause, with, without)});
  }
  void add(Cause cause, std::string where, const std::vector<double>& cured, std::string evidence) {
    add(cause, std::move(where), out_.step_T, cured, std::move(evidence));
  }

  /// Returns why the trace's own steps do not confirm a cause; empty if they do.
  std::string doubt(Cause cause, const std::vector<double>& with,
                    const std::vector<double>& without) const {
    std::vector<double> gains, measured;
    for (StepIndex step = 0; step < with.size(); ++step) {
      if (!run_.counts(step)) continue;
      gains.push_back(with[step] - without[step]);
      measured.push_back(run_.measured_step[step]);
    }
    if (cause == Cause::pauses) return doubt_of_pauses(gains, measured);
    return cause == Cause::slow_worker ? doubt_of_worker(std::move(gains)) : "";
  }

  /// Doubt of a loss by pauses. A pause that costs some steps makes them longer than the others, by
  /// half of the replayed time or more. A profile's only step has no other to compare with.
  std::string doubt_of_pauses(const std::vector<double>& gains,
                              const std::vector<double>& measured) const {
    if (!run_.has_starts) return "";
    if (gains.size() == 1) {
      return run_.source == "kineto" ? "no other step shows the time without them" : "";
    }
    double longer = 0, others = 0, gain = 0, gain_of_others = 0;
    int64_t hit = 0;
    for (size_t i = 0; i < gains.size(); ++i) {
      const bool is_hit = gains[i] >= kHitShare * out_.T;
      hit += is_hit;
      (is_hit ? longer : others) += measured[i];
      (is_hit ? gain : gain_of_others) += gains[i];
    }
    const int64_t rest = std::ssize(gains) - hit;
    if (hit == 0 || rest == 0) return "";
    const double replayed = gain / hit - gain_of_others / rest;
    const double seen = longer / hit - others / rest;
    if (seen >= kConfirmedShare * replayed) return "";
    return fmt::format("the {} with them took {} longer than the others, not the {} of the replay",
                       counted(hit, "step"), human_time(std::max(seen, 0.0)), human_time(replayed));
  }

  /// Doubt of a loss by a slow worker, which costs most steps: a loss in few has another cause.
  std::string doubt_of_worker(std::vector<double> gains) const {
    double sum = 0;
    for (const double gain : gains) {
      sum += gain;
    }
    const int64_t count = std::ssize(gains);
    if (count < 3 || median(std::move(gains)) >= kConfirmedShare * sum / count) return "";
    return "it costs few of the steps";
  }

  /// Tests for uneven sequence lengths: micro-batches with a forward and a backward pass that are
  /// long together. Compares each pass to its worker's mean, so that a slow worker does not count.
  /// Cured by passes that take their worker's mean.
  void uneven_sequences() {
    if (times_.passes().empty()) return;
    std::vector<double> even = run_.duration;
    // Forward and backward passes of a micro-batch through a chunk, by sample.
    struct Pair {
      std::array<double, 2> beyond_mean{};
      std::array<int, 2> passes{};
    };
    std::map<std::tuple<PatternWorkerId, int32_t, int32_t>, size_t> places;  // chunk, micro-batch
    std::vector<size_t> place_of(run_.blocks.size(), 0);
    for (const Pass& pass : times_.passes()) {
      const Block& at = run_.blocks[pass.block];
      place_of[pass.block] =
          places.try_emplace({at.worker, at.chunk, at.micro_batch}, places.size()).first->second;
    }
    std::vector<Pair> pairs(places.size() * samples_);
    for (const auto& [of, cells] : times_.alike()) {
      const size_t way = std::get<3>(of) ? 1 : 0;
      double mean = 0;
      for (const auto& [block, sample] : cells) {
        mean += times_.time(block, sample) / cells.size();
      }
      for (const auto& [block, sample] : cells) {
        times_.set(block, sample, mean, &even);
        Pair& pair = pairs[place_of[block] * samples_ + sample];
        pair.beyond_mean[way] += times_.time(block, sample) - mean;
        ++pair.passes[way];
      }
    }
    double xx = 0, yy = 0, xy = 0;
    for (const Pair& pair : pairs) {
      if (pair.passes[0] == 0 || pair.passes[1] == 0) continue;
      xx += pair.beyond_mean[0] * pair.beyond_mean[0];
      yy += pair.beyond_mean[1] * pair.beyond_mean[1];
      xy += pair.beyond_mean[0] * pair.beyond_mean[1];
    }
    compared_ = xx > 0 && yy > 0;
    out_.correlation = xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
    add(Cause::uneven_sequences, "", even,
        fmt::format("forward and backward times of a micro-batch correlate by {:.2f}; cured by "
                    "passes of equal work",
                    out_.correlation));
  }

  void pauses() {
    const bool may_be_sequences = !compared_ || out_.correlation >= kRelated;
    Pauses found = find_pauses(run_, times_, out_.T, may_be_sequences);
    const std::vector<double> with =
        found.between_ops ? replayer_.replay(found.paused) : out_.step_T;
    out_.off += run_.has_starts ? (run_.mean_of_steps(with) - out_.T) / out_.measured : 0;
    add(Cause::pauses, "", with, found.cured, std::move(found.evidence));
  }

  /// Transfers among one set of workers.
  struct Link {
    double took = 0,
           usual = 0;  ///< seconds; the second over the transfers in which all members wait
    double once = 0;   ///< seconds they took, members at the same time counted once
    std::set<std::pair<OpId, ReplicaId>> ops;  ///< kNone: of all replicas
    double excess() const { return took - usual; }
    /// Returns the usual time over the time taken; 1 for a link that is no slower than usual.
    double faster() const { return took > std::max(usual, 0.0) ? std::max(usual, 0.0) / took : 1; }
  };
  using Links = std::map<std::vector<WorkerId>, Link>;

  /// Returns the pairs of workers that exchange messages or share collectives.
  Links links() const {
    Links links;
    for (const Group& group : run_.groups) {
      for (ReplicaId replica = 0; replica < run_.replicas; ++replica) {
        const bool all = group.across_replicas;
        const ReplicaId first = all ? 0 : replica, last = all ? run_.replicas - 1 : replica;
        std::vector<WorkerId> workers;
        for (const OpId op : group.ops) {
          for (ReplicaId other = first; other <= last; ++other) {
            workers.push_back(run_.worker_id(run_.ops[op].worker, other));
          }
        }
        std::sort(workers.begin(), workers.end());
        workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
        if (workers.size() < 2) continue;
        Link& link = links[workers];
        const double members = std::ssize(group.ops) - (group.eager ? 1 : 0);
        for (const OpId op : group.ops) {
          link.ops.insert({op, all ? kNone : replica});
          if (group.eager && op == group.ops.front()) continue;
          for (StepIndex step = 0; step < run_.steps.size(); ++step) {
            const size_t cell = run_.at(op, run_.sample(step, replica));
            link.took += run_.duration[cell];
            link.usual += ideal_[cell];
            link.once += run_.duration[cell] / members;
          }
        }
      }
    }
    return links;
  }

  /// Returns durations with the link as fast as others. Its transfers take the usual time.
  /// Transfers of more workers that cross it shrink by the same factor. Its workers begin steps
  /// with the others, since hosts exchange the result of the last step over it.
  std::vector<double> as_usual(const Links& links, const std::vector<WorkerId>& workers) const {
    std::vector<double> durations = run_.duration;
    const auto each = [&](OpId op, ReplicaId replica, const auto& f) {
      const bool all = replica == kNone;
      const ReplicaId first = all ? 0 : replica, last = all ? run_.replicas - 1 : replica;
      for (StepIndex step = 0; step < run_.steps.size(); ++step) {
        for (ReplicaId one = first; one <= last; ++one) {
          f(run_.at(op, run_.sample(step, one)));
        }
      }
    };
    const Link& own = links.at(workers);
    const double faster = own.faster();
    for (const auto& [others, link] : links) {
      if (!std::includes(others.begin(), others.end(), workers.begin(), workers.end())) continue;
      for (const auto& [op, replica] : link.ops) {
        each(op, replica, [&](size_t cell) {
          durations[cell] = &link == &own ? ideal_[cell] : durations[cell] * faster;
        });
      }
    }
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      if (!run_.kind(op).communicates() || run_.kind(op).name != "host start") continue;
      for (const WorkerId worker : workers) {
        if (run_.pattern_worker(worker) != run_.ops[op].worker) continue;
        each(op, run_.replica_of(worker), [&](size_t cell) { durations[cell] = ideal_[cell]; });
      }
    }
    return durations;
  }

  /// Returns whether the measured transfers show `gain` seconds of a step: those over the link took
  /// longer than usual, by half of the gain or more. Otherwise the gain comes from equal times, of
  /// transfers that are as often shorter as longer, or of the workers' starts.
  bool confirms(const Links& links, const std::vector<WorkerId>& workers, double gain) const {
    const double faster = links.at(workers).faster();
    double longer = 0;
    for (const auto& [others, link] : links) {
      if (std::includes(others.begin(), others.end(), workers.begin(), workers.end())) {
        longer += (1 - faster) * link.once;
      }
    }
    return longer > 0 && longer >= kConfirmedShare * gain * std::ssize(run_.steps);
  }

  /// Adds the link that costs most, among those of most excess; one that transfers confirm goes
  /// first.
  void slow_link() {
    const Links links = this->links();
    std::vector<std::pair<double, const std::vector<WorkerId>*>> order;
    for (const auto& [workers, link] : links) {
      order.push_back({link.excess(), &workers});
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    order.resize(std::min(order.size(), kLinksTried));
    const std::vector<WorkerId>* worst = nullptr;
    std::pair<bool, double> least;  // not confirmed, seconds of a step
    for (const auto& [excess, workers] : order) {
      const double fixed = replayer_.mean(as_usual(links, *workers));
      const std::pair found(!confirms(links, *workers, out_.T - fixed), fixed);
      if (worst == nullptr || found < least) {
        worst = workers;
        least = found;
      }
    }
    if (worst == nullptr) return;
    const double excess = links.at(*worst).excess();
    const std::string among = fmt::format("transfers among {}, all steps together, take ",
                                          counted(std::ssize(*worst), "worker"));
    add(Cause::slow_link, names(*worst), as_usual(links, *worst),
        among + (excess > 0 ? human_time(excess) + " longer than the usual ones"
                            : "no longer than the usual ones"));
    if (least.first && least.second < out_.T) {
      out_.causes.back().doubt =
          "measured transfers over it take no longer than usual, or too little to cost that";
    }
  }

  /// Returns "dp 0 pp 1, dp 0 pp 2", of many workers only the first.
  std::string names(const std::vector<WorkerId>& workers) const {
    constexpr size_t kShown = 4;
    std::vector<std::string> list;
    for (size_t i = 0; i < std::min(workers.size(), kShown); ++i) {
      list.push_back(run_.workers[workers[i]].name);
    }
    if (workers.size() > kShown) {
      list.push_back(fmt::format("{} more", workers.size() - kShown));
    }
    return join(list, ", ");
  }

  void slow_worker() {
    std::vector<char> slow(run_.workers.size(), 0);
    for (const WorkerId worker : out_.slowest) {
      slow[worker] = 1;
    }
    const std::vector<double> cured = as_others(slow);
    add(Cause::slow_worker, names(out_.slowest), cured,
        fmt::format("the slowest 3 % of {}, at least one, as fast as others",
                    counted(std::ssize(run_.workers), "worker")));
    std::string& doubt = out_.causes.back().doubt;
    doubt = doubt.empty() ? doubt_of_one_op(cured) : doubt;
  }

  /// Doubt if one op takes most of the time: in a profile of few steps, it may have paused.
  std::string doubt_of_one_op(const std::vector<double>& cured) const {
    constexpr int64_t kFewSteps = 3;
    constexpr double kMaxShareOfOneOp = 0.7;  // of the time, in one op
    if (!run_.has_hosts || std::ssize(run_.steps) >= kFewSteps) return "";
    double all = 0, most = 0;
    OpId longest = 0;
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      if (run_.kind(op).communicates()) continue;
      double longer = 0;
      for (SampleId sample = 0; sample < run_.samples(); ++sample) {
        longer += std::max(run_.duration[run_.at(op, sample)] - cured[run_.at(op, sample)], 0.0);
      }
      all += longer;
      longest = longer > most ? op : longest;
      most = std::max(most, longer);
    }
    if (most <= kMaxShareOfOneOp * all) return "";
    return fmt::format(
        "one op takes most of the time, {}, and few steps cannot tell it from a pause",
        run_.kind(longest).name);
  }

  /// Returns whether the worker is alone in a stage of several stages. No other worker has the same
  /// work then, so the stage is named instead.
  bool is_stage(WorkerId worker) const {
    const StageId stage = run_.workers[worker].stage;
    return run_.stages > 1 &&
           std::count_if(run_.workers.begin(), run_.workers.end(),
                         [&](const Worker& other) { return other.stage == stage; }) == 1;
  }

  /// Returns durations with the passes of `slow` workers set to those of the others: of the same
  /// stage and chunk if it has others, else of all. The ideal would not do, because its means
  /// include the slow ones. Communication takes its ideal time.
  std::vector<double> as_others(const std::vector<char>& slow) {
    using Alike = std::tuple<OpKindId, StageId, int32_t>;  // chunk; kNone: of any
    struct Mean {
      double sum = 0;
      int64_t count = 0;
    };
    std::map<Alike, Mean> means;
    const auto each = [&](bool of_slow, auto&& f) {
      for (BlockId block = 0; block < run_.blocks.size(); ++block) {
        const Block& at = run_.blocks[block];
        for (ReplicaId replica = 0; replica < run_.replicas; ++replica) {
          const WorkerId worker = run_.worker_id(at.worker, replica);
          if ((slow[worker] != 0) != of_slow) continue;
          f(block, replica, Alike{at.kind, run_.workers[worker].stage, at.chunk},
            Alike{at.kind, kNone, kNone});
        }
      }
    };
    each(false, [&](BlockId block, ReplicaId replica, const Alike& alike, const Alike& any) {
      Mean here;
      for (StepIndex step = 0; step < run_.steps.size(); ++step) {
        here.sum += times_.time(block, run_.sample(step, replica));
        ++here.count;
      }
      for (const Alike& key : {alike, any}) {
        means[key].sum += here.sum;
        means[key].count += here.count;
      }
    });
    std::vector<double> durations = run_.duration;
    each(true, [&](BlockId block, ReplicaId replica, const Alike& alike, const Alike& any) {
      const auto same = means.find(alike), of_kind = means.find(any);
      const auto mean = same != means.end() ? same : of_kind;
      const bool ideal =
          mean == means.end() || run_.kinds[std::get<OpKindId>(alike)].communicates();
      for (StepIndex step = 0; step < run_.steps.size(); ++step) {
        const SampleId sample = run_.sample(step, replica);
        if (!ideal) {
          times_.set(block, sample, mean->second.sum / mean->second.count, &durations);
          continue;
        }
        for (const OpId op : times_.ops(block)) {
          durations[run_.at(op, sample)] = ideal_[run_.at(op, sample)];
        }
      }
    });
    return durations;
  }

  /// Tests for a slow stage: the last one, which has the head and loss that others lack, or another
  /// that computes longer. Cured by moving its layers to the others.
  void slow_stage() {
    if (run_.stages < 2) return;
    const EvenStages even = even_stages(run_, times_);
    const std::vector<double>& all = even.passes;
    const StageId worst = std::max_element(all.begin(), all.end()) - all.begin();
    const bool last = worst == run_.stages - 1;
    std::vector<std::string> alone;
    for (WorkerId worker = 0; worker < run_.workers.size(); ++worker) {
      if (run_.workers[worker].stage == worst && is_stage(worker)) {
        alone.push_back(run_.workers[worker].name);
      }
    }
    add(last ? Cause::last_stage : Cause::slow_stage, fmt::format("stage {}", worst), even.duration,
        fmt::format("{:.2f} times the mean of all stages{}; cured by equal passes through all "
                    "stages, as if layers were moved",
                    all[worst] * all.size() / std::accumulate(all.begin(), all.end(), 0.0),
                    last ? ", with the head and the loss" : "") +
            (alone.empty()
                 ? ""
                 : fmt::format("; all of it is {}, which may be slow rather than have more to do",
                               join(alone, ", "))));
  }

  const MeasuredRun& run_;
  const std::vector<double>& ideal_;
  Replayer& replayer_;
  Analysis& out_;
  const int32_t samples_;
  const BlockTimes times_;
  bool compared_ = false;  ///< forward with backward passes
};

}  // namespace

void find_causes(const MeasuredRun& run, const std::vector<double>& ideal, Replayer* replayer,
                 Analysis* analysis) {
  Search(run, ideal, replayer, analysis).find();
}

const char* to_string(Cause cause) {
  switch (cause) {
    case Cause::slow_worker:
      return "slow worker";
    case Cause::last_stage:
      return "last stage";
    case Cause::slow_stage:
      return "slow stage";
    case Cause::uneven_sequences:
      return "uneven sequences";
    case Cause::pauses:
      return "pauses";
    case Cause::slow_link:
      return "slow link";
  }
  return "";
}

}  // namespace hocket::whatif
