// SPDX-License-Identifier: Apache-2.0
#include "sim/schedule_sim.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "collectives/comm_op.h"
#include "program/program.h"
#include "sim/engine.h"
#include "sim/schedule_step.h"

namespace hocket::sim {

namespace {

using parallel::Action;
using parallel::Schedule;
using program::Program;
using program::Task;

/// Nanoseconds of the engine per unit of cost.
constexpr double kTicksPerUnit = 1e6;
constexpr double kMaxCost = 1e6;

int64_t ticks(double cost) { return std::llround(cost * kTicksPerUnit); }

double cost_of(const Action& action, const ScheduleCosts& costs) {
  switch (action.kind) {
    case 'F':
      return costs.forward;
    case 'I':
      return costs.inputs;
    case 'W':
      return costs.weights;
    default:
      return costs.backward < 0 ? costs.inputs + costs.weights : costs.backward;
  }
}

CellTimes times_of(const ScheduleCosts& costs) {
  return {.cell =
              [costs](int, std::span<const Action> cell) {
                if (cell.size() > 1 && costs.overlapped >= 0) return costs.overlapped;
                double sum = 0;
                for (const Action& action : cell) {
                  sum += cost_of(action, costs);
                }
                return sum;
              },
          .message = [costs](int, int) { return costs.communication; }};
}

/// Durations of the engine's tasks: cells take their cost, messages theirs.
class CellDurations : public Durations {
 public:
  /// Times by class and task, in ticks.
  std::vector<std::vector<int64_t>> ticks_of;

  int64_t work_ns(ClassId cls, TaskId task) override { return ticks_of[cls][task]; }
  ShapeId shape_of(std::span<const int32_t>) override { return 0; }
  int64_t transfer_ns(ClassId cls, TaskId task, ShapeId) override { return ticks_of[cls][task]; }
};

/// Builder of a schedule's program: a compute task per cell on every rank, between the messages to
/// and from the neighbouring stages.
class ScheduleProgram {
 public:
  ScheduleProgram(const Schedule& schedule, int stages, int micro_batches, const CellTimes& times)
      : cells(schedule.ranks.size()),
        schedule_(schedule),
        stages_(stages),
        micro_batches_(micro_batches),
        times_(times) {
    const int ranks = std::ssize(schedule.ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      for (const Action& action : schedule.ranks[rank]) {
        rank_of_[key(action.kind, action.stage, action.micro_batch)] = rank;
      }
      program.classes.emplace_back().box = program::Box::at(0, rank);
    }
    program.roles = {{"all", graph::Mesh{{{"pp", ranks}}}}};
    program.num_micro_batches = micro_batches;
    durations.ticks_of.resize(schedule.ranks.size());
    const graph::TensorType type{graph::DType::f32, {1}};
    program::Kind compute;
    compute.op = "cell";
    compute_ = program.intern(std::move(compute));
    send_ = program.intern(
        program::communication_kind(comm::message(comm::Role::send).id, {}, {type}, {}));
    receive_ = program.intern(
        program::communication_kind(comm::message(comm::Role::receive).id, {}, {}, {type}));
    for (int rank = 0; rank < ranks; ++rank) {
      write(rank);
    }
  }

  Program program;
  CellDurations durations;
  /// By rank: the cells in order, with the task of each.
  std::vector<std::vector<std::pair<TaskId, std::vector<Action>>>> cells;

 private:
  using Key = std::tuple<char, int, int>;
  static Key key(char kind, int stage, int micro_batch) {
    return {kind == 'B' ? 'I' : kind, stage, micro_batch};
  }

  void write(int rank) {
    const std::vector<Action>& row = schedule_.ranks[rank];
    for (size_t i = 0; i < row.size(); ++i) {
      std::vector<Action> cell{row[i]};
      if (row[i].overlaps_next) {
        cell.push_back(row[++i]);
      }
      add(rank, std::move(cell));
    }
  }

  void add(int rank, std::vector<Action> cell) {
    std::vector<Task>& tasks = program.classes[rank].tasks;
    Task compute;
    compute.kind = compute_;
    for (const Action& action : cell) {
      if (add_message(rank, action, comm::Role::receive)) {
        compute.deps.push_back(tasks.size() - 1);
      }
    }
    const TaskId id = tasks.size();
    tasks.push_back(std::move(compute));
    durations.ticks_of[rank].push_back(ticks(times_.cell(rank, cell)));
    for (const Action& action : cell) {
      if (add_message(rank, action, comm::Role::send)) {
        tasks.back().deps.push_back(id);
      }
    }
    cells[rank].push_back({id, std::move(cell)});
  }

  /// Adds the message that brings the action's input or sends its output. Returns false if that
  /// stays on the rank.
  bool add_message(int rank, const Action& action, comm::Role role) {
    if (action.kind == 'W') return false;
    const bool sends = role == comm::Role::send;
    const bool forward = action.kind == 'F';
    const int stage = forward == sends ? action.stage + 1 : action.stage - 1;
    if (stage < 0 || stage >= stages_) return false;
    const int peer = rank_of_.at(key(forward ? 'F' : 'I', stage, action.micro_batch));
    if (peer == rank) return false;
    Task message;
    message.kind = sends ? send_ : receive_;
    message.lane = program::link_lane(role, false);
    message.peer_axis = 0;
    message.peer = peer - rank;
    // The tag identifies the direction, the stage that reads the message and the micro-batch.
    const int reader = sends ? stage : action.stage;
    message.tag = ((forward ? 0 : stages_) + reader) * micro_batches_ + action.micro_batch;
    program.classes[rank].tasks.push_back(std::move(message));
    durations.ticks_of[rank].push_back(sends ? ticks(times_.message(rank, peer)) : 0);
    return true;
  }

  const Schedule& schedule_;
  const int stages_;
  const int micro_batches_;
  const CellTimes& times_;
  std::map<Key, int> rank_of_;
  program::KindId compute_, send_, receive_;
};

}  // namespace

double peak_live(const std::vector<Action>& row, int ranks, int stages) {
  int live = 0;
  int most = 0;
  for (const Action& action : row) {
    live += action.kind == 'F' ? 1 : 0;
    most = std::max(most, live);
    live -= action.kind == 'B' || action.kind == 'W' ? 1 : 0;
  }
  return 1.0 * most * ranks / stages;
}

ScheduleCosts parse_costs(const std::string& text) {
  ScheduleCosts costs;
  const std::map<std::string_view, double*> known{
      {"F", &costs.forward},  {"I", &costs.inputs},      {"W", &costs.weights},
      {"B", &costs.backward}, {"FB", &costs.overlapped}, {"comm", &costs.communication}};
  std::string_view left = text;
  std::set<std::string_view> given;
  while (!left.empty()) {
    const size_t comma = std::min(left.find(','), left.size());
    const std::string_view item = left.substr(0, comma);
    left.remove_prefix(std::min(comma + 1, left.size()));
    const size_t equals = std::min(item.find('='), item.size());
    const auto cost = known.find(item.substr(0, equals));
    if (equals == item.size() || cost == known.end()) {
      fail("--cost", "got '{}'; expected F, I, W, B, FB or comm with a number, as F=1,comm=0.1",
           item);
    }
    if (!given.insert(cost->first).second) {
      fail("--cost", "got {} twice, then as '{}'; expected each cost once", cost->first, item);
    }
    const std::string_view number = item.substr(equals + 1);
    double value = 0;
    const auto [end, ec] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (ec != std::errc() || end != number.data() + number.size() || !(value >= 0) ||
        value > kMaxCost) {
      fail("--cost", "got '{}'; expected a number from 0 to {:.0f}", item, kMaxCost);
    }
    *cost->second = value;
  }
  return costs;
}

ScheduleReport simulate_schedule(const Schedule& schedule, int stages, int micro_batches,
                                 const ScheduleCosts& costs) {
  // The program is replayed rank by rank; then its times become those of the cells.
  const CellTimes times = times_of(costs);
  ScheduleProgram made(schedule, stages, micro_batches, times);
  ReplayOptions options;
  options.all_ranks = true;
  const Replay replayed = replay(made.program, made.durations, options);
  ScheduleReport report;
  report.name = schedule.source;
  report.stages = stages;
  report.micro_batches = micro_batches;
  report.costs = costs;
  report.step = replayed.end_ns / kTicksPerUnit;
  double busy = 0;
  const int ranks = std::ssize(schedule.ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    ScheduleRank& row = report.ranks.emplace_back();
    for (auto& [task, actions] : made.cells[rank]) {
      const size_t at = replayed.base[rank] + task;
      row.cells.push_back({std::move(actions), replayed.start_ns[at] / kTicksPerUnit,
                           replayed.end_of_ns[at] / kTicksPerUnit});
      row.busy += row.cells.back().end - row.cells.back().begin;
    }
    row.peak_live = peak_live(schedule.ranks[rank], ranks, stages);
    busy += row.busy;
  }
  report.bubble = report.step > 0 ? 1 - busy / (ranks * report.step) : 0;
  return report;
}

}  // namespace hocket::sim
