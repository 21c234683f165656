// SPDX-License-Identifier: Apache-2.0
#include "whatif/measured_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/flat_map.h"
#include "base/hash.h"
#include "base/text.h"

namespace hocket::whatif {
namespace {

/// Dropped steps that a note lists by number, at most.
constexpr size_t kMaxListedSteps = 8;

void number(std::vector<Observed>* seen) {
  std::vector<size_t> without;
  for (size_t i = 0; i < seen->size(); ++i) {
    if ((*seen)[i].sequence == kNone) {
      without.push_back(i);
    }
  }
  const auto of = [&](size_t i) {
    const Observed& op = (*seen)[i];
    return std::tuple(op.step, op.replica, op.worker, op.name, op.start);
  };
  std::stable_sort(without.begin(), without.end(),
                   [&](size_t a, size_t b) { return of(a) < of(b); });
  for (size_t i = 0; i < without.size(); ++i) {
    Observed& op = (*seen)[without[i]];
    const Observed* last = i > 0 ? &(*seen)[without[i - 1]] : nullptr;
    const bool same = last != nullptr && last->step == op.step && last->replica == op.replica &&
                      last->worker == op.worker && last->name == op.name;
    op.sequence = same ? last->sequence + 1 : 0;
  }
}

/// Ops of one worker, name and sequence, in all samples.
using EqualOpsId = Id<struct EqualOps>;

/// Observed ops in the order of steps and replicas, and the matching of equal ops across them.
class Table {
 public:
  Table(std::vector<Observed> seen, const std::string& where, NameId optional, MeasuredRun* run)
      : seen_(std::move(seen)), where_(where), optional_(optional), run_(*run) {}

  void fill() {
    if (seen_.empty()) {
      fail(where_, "got no op that is known; expected a trace of training steps");
    }
    number(&seen_);
    identify();
    sort_by_sample();
    choose_pattern();
    keep_steps();
    add_rows();
    add_times();
  }

 private:
  /// The ops of a step and replica: a range of order_.
  struct Sample {
    size_t first = 0, last = 0;
    size_t needed = 0;       ///< without those that may lack
    uint64_t signature = 0;  ///< order-independent sum over the sample's ops
    size_t size() const { return last - first; }
    bool is_like(const Sample& other) const {
      return signature == other.signature && needed == other.needed;
    }
  };
  std::span<const uint32_t> ops_of(const Sample& sample) const {
    return std::span(order_).subspan(sample.first, sample.size());
  }

  /// Gives an id to each worker, name and sequence.
  void identify() {
    FlatMap<EqualOpsId> ids;
    id_.reserve(seen_.size());
    for (uint32_t i = 0; i < seen_.size(); ++i) {
      const Observed& op = seen_[i];
      const uint64_t worker = op.worker, name = op.name;
      const uint64_t key = hash_combine(worker << 32 ^ name, op.sequence) >> 1;
      const auto same = [&](EqualOpsId id) {
        const Observed& other = seen_[example_[id]];
        return other.worker == op.worker && other.name == op.name && other.sequence == op.sequence;
      };
      const auto [id, is_new] = ids.insert(key, example_.size(), same);
      id_.push_back(*id);
      if (is_new) {
        example_.push_back(i);
      }
    }
  }

  static int64_t first_without(const std::map<int64_t, size_t>& place, size_t nowhere) {
    return std::find_if(place.begin(), place.end(),
                        [&](const auto& e) { return e.second == nowhere; })
        ->first;
  }

  void sort_by_sample() {
    const size_t replicas = run_.replicas;
    // Steps that cannot have an op of every replica have no samples.
    constexpr size_t kNowhere = SIZE_MAX;
    std::map<int64_t, size_t> place;  // of a step: first how many ops it has
    size_t* count_of = nullptr;
    for (size_t i = 0; i < seen_.size(); ++i) {
      if (i == 0 || seen_[i].step != seen_[i - 1].step) {
        count_of = &place[seen_[i].step];
      }
      ++*count_of;
    }
    int64_t few = 0;
    for (auto& [step, count] : place) {
      if (count < replicas) {
        ++few;
        run_.dropped.events += std::exchange(count, kNowhere);
      } else {
        count = steps_.size();
        steps_.push_back(step);
      }
    }
    if (few > 0) {
      run_.dropped.steps += few;
      run_.dropped.notes.push_back(
          fmt::format("{} of fewer ops than there are replicas ({}), one is step {}",
                      counted(few, "step"), replicas, first_without(place, kNowhere)));
    }
    samples_.resize(steps_.size() * replicas);
    const auto each = [&](auto&& f) {
      size_t at = place.begin()->second;
      int64_t step = place.begin()->first;
      for (uint32_t i = 0; i < seen_.size(); ++i) {
        if (seen_[i].step != step) {
          step = seen_[i].step;
          at = place.at(step);
        }
        if (at != kNowhere) {
          f(i, &samples_[at * replicas + seen_[i].replica]);
        }
      }
    };
    each([](uint32_t, Sample* sample) { ++sample->last; });
    size_t from = 0;
    for (Sample& sample : samples_) {
      sample.first = from;
      from += std::exchange(sample.last, from);
    }
    order_.resize(from);
    each([&](uint32_t i, Sample* sample) {
      order_[sample->last++] = i;
      if (seen_[i].name != optional_) {
        ++sample->needed;
        sample->signature += mix64(id_[i] + 1);
      }
    });
  }

  /// Chooses the pattern that most samples have. Among equals takes the one with most ops, since a
  /// cut step has fewer, then the first.
  void choose_pattern() {
    std::map<uint64_t, int64_t> times;
    for (const Sample& sample : samples_) {
      times[sample.signature] += sample.last > sample.first ? 1 : 0;
    }
    for (const Sample& sample : samples_) {
      if (sample.last > sample.first &&
          (!has_pattern_ || std::pair(times[sample.signature], sample.needed) >
                                std::pair(times[pattern_.signature], pattern_.needed))) {
        pattern_ = sample;
        has_pattern_ = true;
      }
    }
    is_alone_ = has_pattern_ && times[pattern_.signature] == 1;
  }

  /// Returns the samples of a step.
  std::span<const Sample> samples_of(size_t step) const {
    const size_t replicas = run_.replicas;
    return std::span(samples_).subspan(step * replicas, replicas);
  }
  bool is_whole(size_t step) const {
    const std::span<const Sample> samples = samples_of(step);
    return std::all_of(samples.begin(), samples.end(),
                       [&](const Sample& sample) { return sample.is_like(pattern_); });
  }

  /// Leaves out replicas that never match the others, because a worker of theirs was not recorded.
  /// Applies only where no step is whole and other replicas remain.
  void leave_out_replicas() {
    const size_t replicas = run_.replicas;
    for (size_t step = 0; step < steps_.size(); ++step) {
      if (is_whole(step)) return;
    }
    std::vector<char> used(replicas, 0);
    for (size_t sample = 0; sample < samples_.size(); ++sample) {
      used[sample % replicas] |= samples_[sample].is_like(pattern_);
    }
    const auto kept = std::count(used.begin(), used.end(), 1);
    if (kept == 0 || kept == std::ssize(used)) return;
    for (size_t replica = 0; replica < replicas; ++replica) {
      if (used[replica] != 0) continue;
      run_.dropped.notes.push_back(
          fmt::format("data-parallel rank {} is not used: it differs from others in every step, in "
                      "step {} {}; the others are numbered 0 to {}",
                      replica, steps_[0], difference(samples_[replica], replica), kept - 1));
    }
    std::vector<Sample> samples;
    for (size_t sample = 0; sample < samples_.size(); ++sample) {
      if (used[sample % replicas] != 0) {
        samples.push_back(samples_[sample]);
      } else {
        run_.dropped.events += samples_[sample].size();
      }
    }
    samples_ = std::move(samples);
    std::vector<Worker> workers;
    for (size_t worker = 0; worker < run_.workers.size(); ++worker) {
      if (used[worker % replicas] == 0) continue;
      workers.push_back(run_.workers[worker]);
      workers.back().replica = (workers.size() - 1) % kept;
    }
    run_.workers = std::move(workers);
    run_.replicas = kept;
  }

  void keep_steps() {
    // A step is kept if all of its samples have the pattern's ops; others are named, the first few.
    if (!has_pattern_) {
      fail(where_, "got {}; try a trace of whole steps", run_.dropped.notes.back());
    }
    leave_out_replicas();
    const size_t notes_before = run_.dropped.notes.size();
    size_t named = 0;
    for (size_t step = 0; step < steps_.size(); ++step) {
      const std::span<const Sample> samples = samples_of(step);
      const auto other = std::find_if(samples.begin(), samples.end(), [&](const Sample& sample) {
        return !sample.is_like(pattern_);
      });
      if (other == samples.end()) {
        run_.steps.push_back(steps_[step]);
        kept_.insert(kept_.end(), samples.begin(), samples.end());
        continue;
      }
      ++run_.dropped.steps;
      run_.dropped.events += samples.back().last - samples.front().first;
      if (++named <= kMaxListedSteps) {
        run_.dropped.notes.push_back(fmt::format("step {} is not used: {}", steps_[step],
                                                 difference(*other, other - samples.begin())));
      }
    }
    if (named > kMaxListedSteps) {
      run_.dropped.notes.push_back(fmt::format("{} more are not used either",
                                               counted(int64_t(named - kMaxListedSteps), "step")));
    }
    if (kept_.empty()) {
      fail(where_, "got no step with the same ops on all ranks: {}; try a trace of whole steps",
           run_.dropped.notes[notes_before]);
    }
    if (named > 0 && is_alone_) {
      run_.dropped.notes.push_back(fmt::format(
          "no event of step {}, the only one that is used: it has most ops, but no other "
          "step is like it, and so none shows that it is whole",
          run_.steps[0]));
    }
  }

  /// Returns "replica 3 lacks 12 of 1,060 ops, one is forward-send 4 of worker 1".
  std::string difference(const Sample& sample, ReplicaId replica) const {
    std::map<EqualOpsId, int> have;
    for (const auto& [ops, sign] :
         {std::pair(ops_of(pattern_), -1), std::pair(ops_of(sample), 1)}) {
      for (const uint32_t i : ops) {
        have[id_[i]] += seen_[i].name != optional_ ? sign : 0;
      }
    }
    int64_t lacks = 0, extra = 0;
    const Observed* example = &seen_[order_[pattern_.first]];
    for (const auto& [id, count] : have) {
      if (count != 0 && lacks + extra == 0) {
        example = &seen_[example_[id]];
      }
      (count < 0 ? lacks : extra) += count < 0 ? -count : count;
    }
    return fmt::format(
        "replica {} {}{}{} of {} ops, one is {} {} of worker {}", replica,
        lacks > 0 ? fmt::format("lacks {}", lacks) : "", lacks > 0 && extra > 0 ? " and " : "",
        extra > 0 ? fmt::format("has {} more than others", extra) : "", pattern_.needed,
        run_.names[example->name], example->sequence, example->worker);
  }

  /// Adds rows in the order of worker and start in the first sample; optional ops come last.
  void add_rows() {
    std::vector<uint32_t> rows;
    for (const uint32_t i : ops_of(kept_.front())) {
      if (seen_[i].name != optional_) {
        rows.push_back(i);
      }
    }
    std::stable_sort(rows.begin(), rows.end(), [&](uint32_t a, uint32_t b) {
      const Observed &x = seen_[a], &y = seen_[b];
      return std::tuple(x.worker, x.start, x.sequence) < std::tuple(y.worker, y.start, y.sequence);
    });
    row_of_.assign(example_.size(), kNone);
    for (const uint32_t i : rows) {
      if (!add_row(i)) {
        const Observed& op = seen_[i];
        fail(where_, "got {} {} twice in step {} of worker {}; expected distinct numbers",
             run_.names[op.name], op.sequence, op.step, op.worker);
      }
    }
    for (const Sample& sample : kept_) {
      for (const uint32_t i : ops_of(sample)) {
        if (seen_[i].name == optional_) {
          add_row(i);
        }
      }
    }
  }

  /// Adds the row of an op. Returns false if there is one already.
  bool add_row(uint32_t i) {
    OpId& row = row_of_[id_[i]];
    if (row != kNone) return false;
    row = run_.ops.size();
    const Observed& op = seen_[i];
    run_.ops.push_back(
        {op.name, kNone, op.worker, op.stream, op.micro_batch, op.chunk, op.sequence, kNone});
    return true;
  }

  void add_times() {
    run_.waits_for.resize(run_.ops.size());
    const size_t cells = run_.ops.size() * run_.samples();
    run_.start.assign(cells, 0);
    run_.duration.assign(cells, 0);
    double first = 1e300, last = -1e300;
    for (size_t sample = 0; sample < kept_.size(); ++sample) {
      for (const uint32_t i : ops_of(kept_[sample])) {
        const Observed& op = seen_[i];
        const size_t cell = run_.at(row_of_[id_[i]], sample);
        run_.start[cell] = op.start;
        run_.duration[cell] = op.duration;
        first = std::min(first, op.start);
        last = std::max(last, op.start + op.duration);
      }
      if ((sample + 1) % run_.replicas == 0) {
        run_.measured_step.push_back(last - first);
        first = 1e300;
        last = -1e300;
      }
    }
  }

  std::vector<Observed> seen_;
  const std::string& where_;
  const NameId optional_;
  MeasuredRun& run_;
  std::vector<EqualOpsId> id_;     ///< by observation
  std::vector<uint32_t> example_;  ///< by id: an op of it
  std::vector<uint32_t> order_;    ///< observations sorted by sample
  std::vector<int64_t> steps_;     ///< numbers, ascending
  std::vector<Sample> samples_;    ///< [step * replicas + replica]
  Sample pattern_;
  bool has_pattern_ = false;
  bool is_alone_ = false;     ///< no other sample is like the pattern
  std::vector<Sample> kept_;  ///< of samples_: those of steps that are used
  std::vector<OpId> row_of_;  ///< by id
};

}  // namespace

void assemble(std::vector<Observed> seen, const std::string& where, MeasuredRun* run,
              NameId optional) {
  HOCKET_CHECK(seen.size() < UINT32_MAX, "{} ops", seen.size());
  Table(std::move(seen), where, optional, run).fill();
}

double MeasuredRun::mean_of_steps(const std::vector<double>& by_step) const {
  double sum = 0;
  int64_t count = 0;
  for (StepIndex step = 0; step < by_step.size(); ++step) {
    if (!counts(step)) continue;
    sum += by_step[step];
    ++count;
  }
  return sum / count;
}

void note_cut_step(bool cut, int64_t last_step, MeasuredRun* run) {
  if (!cut || run->steps.size() != 1 || run->steps[0] != last_step) return;
  run->dropped.notes.push_back(
      fmt::format("the rest of step {}, the only one: the file ends within it, and all that "
                  "follows is of the part that is there",
                  last_step));
}

void give_blocks(const std::vector<Traffic>& traffic, MeasuredRun* run) {
  std::vector<OpKindId> kind_of_name(run->names.size(), kNone);
  for (Op& op : run->ops) {
    if (op.block != kNone) continue;
    OpKindId& kind = kind_of_name[op.name];
    if (kind == kNone) {
      kind = run->kinds.size();
      run->kinds.push_back({run->names[op.name], traffic[op.name]});
    }
    op.block = run->blocks.size();
    run->blocks.push_back({kind, op.worker, op.micro_batch, op.chunk});
  }
}

void add_wait(MeasuredRun* run, OpId op, OpId before) {
  std::vector<OpId>& list = run->waits_for[op];
  if (op != before && std::find(list.begin(), list.end(), before) == list.end()) {
    list.push_back(before);
  }
}

}  // namespace hocket::whatif
