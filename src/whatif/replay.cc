// SPDX-License-Identifier: Apache-2.0
#include "whatif/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace hocket::whatif {
namespace {

/// Samples (columns of the table: a step of a replica) processed together: the number that vector
/// registers hold.
constexpr size_t kVectorSamples = 8;
/// Samples of a tile, but at least those of a step.
constexpr size_t kTile = 128;

/// A group, by its number, or an op without one, behind them.
using UnitId = Id<struct GroupOrOp>;

}  // namespace

Replayer::Range Replayer::append(const std::vector<OpId>& some, std::vector<OpId>* all) {
  const Range range{all->size(), some.size()};
  all->insert(all->end(), some.begin(), some.end());
  return range;
}

Replayer::Replayer(const MeasuredRun& run) : run_(run) {
  // Units are groups, and ops without one; those that wait for nothing go first.
  std::vector<UnitId> unit_of(run.ops.size());
  std::vector<std::vector<OpId>> ops_of(run.groups.size());
  for (OpId op = 0; op < run.ops.size(); ++op) {
    const GroupId group = run.ops[op].group;
    if (group == kNone || run.groups[group].eager) {
      unit_of[op] = ops_of.size();
      ops_of.push_back({op});
    } else {
      unit_of[op] = group.value();
    }
  }
  // The start of an eager send also starts the transfer of its message.
  std::vector<std::vector<OpId>> waits_for = run.waits_for;
  for (GroupId group = 0; group < run.groups.size(); ++group) {
    const std::vector<OpId>& ops = run.groups[group].ops;
    if (!run.groups[group].eager) {
      ops_of[group] = ops;
      continue;
    }
    const std::vector<OpId>& starts = run.waits_for[ops[0]];
    waits_for[ops[1]].insert(waits_for[ops[1]].end(), starts.begin(), starts.end());
  }
  std::vector<int32_t> waits(ops_of.size(), 0);
  std::vector<std::vector<UnitId>> next(ops_of.size());
  for (OpId op = 0; op < run.ops.size(); ++op) {
    for (const OpId before : waits_for[op]) {
      next[unit_of[before]].push_back(unit_of[op]);
      ++waits[unit_of[op]];
    }
  }
  std::vector<UnitId> ready;
  for (UnitId unit = 0; unit < ops_of.size(); ++unit) {
    if (waits[unit] == 0) {
      ready.push_back(unit);
    }
  }
  for (size_t i = 0; i < ready.size(); ++i) {
    const UnitId unit = ready[i];
    std::vector<OpId> before, last;
    bool from_zero = false, from_begin = false;
    for (const OpId op : ops_of[unit]) {
      from_zero = from_zero || waits_for[op].empty();
      from_begin = from_begin || (waits_for[op].empty() &&
                                  (!run.steps_overlap() || run.waits_for_last[op].empty()));
      before.insert(before.end(), waits_for[op].begin(), waits_for[op].end());
      if (run.steps_overlap()) {
        const std::vector<OpId>& list = run.waits_for_last[op];
        last.insert(last.end(), list.begin(), list.end());
      }
    }
    for (std::vector<OpId>* list : {&before, &last}) {
      std::sort(list->begin(), list->end());
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    units_.push_back({unit < run.groups.size() && run.groups[unit].across_replicas, from_zero,
                      from_begin, append(ops_of[unit], &members_), append(before, &waits_),
                      append(last, &waits_)});
    for (const UnitId after : next[unit]) {
      if (--waits[after] == 0) {
        ready.push_back(after);
      }
    }
  }
  if (ready.size() != ops_of.size()) {
    const UnitId stuck =
        std::find_if(waits.begin(), waits.end(), [](int32_t n) { return n > 0; }) - waits.begin();
    const Op& op = run.ops[ops_of[stuck].front()];
    fail("hocket whatif",
         "{} of {} ops and groups wait for each other in a cycle, one is {} {} of worker "
         "{}; expected a trace with one order of messages on all ranks",
         ops_of.size() - ready.size(), ops_of.size(), run.names[op.name], op.sequence, op.worker);
  }
  const size_t samples = std::min<size_t>(std::max<size_t>(kTile, run.replicas), run.samples());
  stride_ = (samples + kVectorSamples - 1) / kVectorSamples * kVectorSamples;
  end_.assign(run.ops.size() * stride_, 0);
  begin_.assign(stride_, 0);
  last_.assign(stride_, 0);
  row_.assign(stride_, 0);
}

void Replayer::choose_replicas(const Blend& durations) {
  const size_t replicas = run_.replicas;
  std::vector<char> apart(replicas, durations.replicas_alike ? 0 : 1);
  for (size_t i = 0; i < durations.chosen.size(); ++i) {
    apart[i % replicas] |= durations.chosen[i];
  }
  replicas_.clear();
  bool has_others = false;
  for (ReplicaId replica = 0; replica < run_.replicas; ++replica) {
    if (apart[replica] != 0 || !has_others) {
      replicas_.push_back(replica);
    }
    has_others = has_others || apart[replica] == 0;
  }
}

void Replayer::begin(const Unit& unit, size_t samples) {
  const auto waits = std::span(waits_).subspan(unit.waits.first, unit.waits.count);
  const bool goes_on = !end_before_.empty() && unit.waits_for_last.count > 0;
  for (size_t sample = 0; sample < samples; sample += kVectorSamples) {
    std::array<double, kVectorSamples> most;
    most.fill(!goes_on ? first_begin(unit) : unit.from_begin ? step_begin_ : -1e300);
    const auto wait_for = [&](OpId op, const std::vector<double>& ends) {
      const double* before = ends.data() + size_t{op} * stride_ + sample;
      for (size_t i = 0; i < kVectorSamples; ++i) {
        most[i] = most[i] < before[i] ? before[i] : most[i];
      }
    };
    for (const OpId op : waits) {
      wait_for(op, end_);
    }
    for (size_t w = 0; goes_on && w < unit.waits_for_last.count; ++w) {
      wait_for(waits_[unit.waits_for_last.first + w], end_before_);
    }
    std::copy(most.begin(), most.end(), &begin_[sample]);
  }
}

double Replayer::first_begin(const Unit& unit) const {
  double earliest = -1e300;
  if (end_before_.empty() && !run_.ready.empty()) {
    for (size_t m = unit.members.first; m < unit.members.first + unit.members.count; ++m) {
      earliest = std::max(earliest, run_.ready[members_[m]]);
    }
  }
  return earliest == -1e300 && unit.from_zero ? step_begin_ : earliest;
}

size_t Replayer::steps_at_once() const {
  return run_.steps_overlap() ? 1 : std::max<size_t>(kTile / replicas_.size(), 1);
}

const double* Replayer::durations_of(OpId op, const Blend& durations, Tile tile) {
  const size_t replicas = run_.replicas;
  const size_t cell = run_.at(op, tile.first * replicas);
  const bool all = replicas_.size() == replicas;
  if (all && durations.chosen.empty()) return durations.others.data() + cell;
  const std::span<const char> chosen =
      std::span(durations.chosen).subspan(size_t{op} * replicas, replicas);
  const size_t count = std::count(chosen.begin(), chosen.end(), 1);
  if (all && count == 0) return durations.others.data() + cell;
  if (all && count == replicas) return durations.some.data() + cell;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const double* from =
        &(chosen[replicas_[i]] != 0 ? durations.some : durations.others)[cell + replicas_[i]];
    for (size_t step = 0; step < tile.count; ++step) {
      row_[step * replicas_.size() + i] = from[step * replicas];
    }
  }
  return row_.data();
}

void Replayer::replay(const Blend& durations, Tile tile) {
  const size_t replicas = replicas_.size(), samples = tile.count * replicas;
  if (run_.steps_overlap() && tile.first > 0) {
    std::swap(end_before_, end_);
    end_.resize(end_before_.size());
    step_begin_ = *std::max_element(last_.begin(), last_.end());
  } else {
    end_before_.clear();
    step_begin_ = 0;
    std::fill(last_.begin(), last_.end(), 0.0);
  }
  for (const Unit& unit : units_) {
    begin(unit, samples);
    for (size_t sample = 0; unit.across_replicas && sample < samples; sample += replicas) {
      double* of_step = begin_.data() + sample;
      std::fill_n(of_step, replicas, *std::max_element(of_step, of_step + replicas));
    }
    for (size_t m = unit.members.first; m < unit.members.first + unit.members.count; ++m) {
      const OpId op = members_[m];
      const double* takes = durations_of(op, durations, tile);
      double* end = end_.data() + size_t{op} * stride_;
      for (size_t sample = 0; sample < samples; ++sample) {
        end[sample] = begin_[sample] + takes[sample];
        last_[sample] = std::max(last_[sample], end[sample]);
      }
    }
  }
}

std::vector<double> Replayer::replay(const Blend& durations) {
  for (const auto& list : {durations.others, durations.some}) {
    HOCKET_CHECK(list.size() == run_.duration.size() || (list.empty() && durations.chosen.empty()),
                 "{} durations of {}", list.size(), run_.duration.size());
  }
  choose_replicas(durations);
  const size_t replicas = replicas_.size();
  const size_t tile_steps = steps_at_once();
  std::vector<double> steps;
  for (size_t first = 0; first < run_.steps.size(); first += tile_steps) {
    const Tile tile{first, std::min(tile_steps, run_.steps.size() - first)};
    replay(durations, tile);
    for (size_t sample = 0; sample < tile.count * replicas; sample += replicas) {
      const double* of_step = last_.data() + sample;
      steps.push_back(*std::max_element(of_step, of_step + replicas) - step_begin_);
    }
  }
  return steps;
}

std::vector<double> Replayer::replay(std::span<const double> duration) {
  return replay(Blend{{}, duration, {}, false});
}

std::vector<double> Replayer::ends(std::span<const double> duration) {
  const Blend durations{{}, duration, {}, false};
  choose_replicas(durations);
  const size_t replicas = run_.replicas;
  const size_t tile_steps = steps_at_once();
  std::vector<double> all(run_.duration.size());
  for (size_t first = 0; first < run_.steps.size(); first += tile_steps) {
    const Tile tile{first, std::min(tile_steps, run_.steps.size() - first)};
    replay(durations, tile);
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      const double* of_op = end_.data() + size_t{op} * stride_;
      std::transform(of_op, of_op + tile.count * replicas,
                     all.data() + run_.at(op, 0) + first * replicas,
                     [&](double end) { return end - step_begin_; });
    }
  }
  return all;
}

double Replayer::mean(std::span<const double> duration) {
  return mean(Blend{{}, duration, {}, false});
}

double Replayer::mean(const Blend& durations) { return run_.mean_of_steps(replay(durations)); }

}  // namespace hocket::whatif
