// SPDX-License-Identifier: Apache-2.0
// Implements: read_hocket (importers.h). Hocket's own traces: a rank is a worker, each of its lanes
// a stream. Dependencies across streams come from the trace, or are inferred from tasks that
// had always ended.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "trace/chrome_events.h"
#include "trace/trace_reader.h"
#include "whatif/importers.h"
#include "whatif/match_collectives.h"
#include "whatif/transfers.h"

namespace hocket::whatif {
namespace {

/// Sequence number and stream of the op that represents how late a rank begins. No task has them.
constexpr int32_t kHostStart = INT32_MAX, kHostStream = kNone;

/// Arguments of an event, in the order of kArguments.
enum class Argument { task, phase, step, micro_batch, stage, bytes, group, flow, end, rank };
constexpr std::array<std::string_view, 10> kArguments = {
    "task", "phase", "step", "micro_batch", "stage", "bytes", "group", "flow", "end", "rank"};

/// Facts of a task beside its times; equal in every step.
struct TaskFacts {
  int32_t phase = kNone;  ///< index into phases_
  int32_t stage = kNone, group = kNone;
  int64_t flow = 0;
  int64_t bytes = 0;
  int32_t op = 0;  ///< index into op_names_
  bool sends = false;
};

/// Arguments of one event.
struct Said {
  TaskFacts task;
  int32_t number = kNone;  ///< of the task
  int32_t step = kNone, micro_batch = kNone, rank = kNone;
  std::string phase;
};

/// A stream of a worker.
using WorkerStream = std::pair<PatternWorkerId, int32_t>;

class HocketReader {
 public:
  explicit HocketReader(const std::string& path) : path_(path) {
    run_.source = "hocket";
    run_.names = {"task"};  // a task's number is its name
  }

  MeasuredRun read() {
    // Reads events, ranks, the table of times, op kinds, groups and dependencies, in this order.
    events();
    if (seen_.empty()) fail(path_, "got no task; expected the trace of a run or of a simulation");
    ranks();
    host_starts();
    std::vector<Observed> kept = std::move(seen_);
    assemble(std::move(kept), path_, &run_);
    note_cut_step(cut_, last_step_, &run_);
    blocks();
    streams();
    messages();
    if (collectives()) {
      host_starts_again();
    }
    missing_tasks();
    waits();
    settle_transfers(&run_);
    return std::move(run_);
  }

 private:
  void events() {
    trace::ChromeDamage damage;
    trace::for_each_event(
        path_, kArguments, [&] { said_ = {}; },
        [&](int argument, trace::JsonStream& json) {
          return read_argument(static_cast<Argument>(argument), json);
        },
        [&](const trace::ChromeEvent& event) {
          if (event.phase == 'X') {
            take_task(event);
          } else {
            take_other(event);
          }
        },
        [&](std::string_view key, trace::JsonStream& json) { return read_fact(key, json); },
        &damage);
    drop(without_task_, "without a task's number or a time");
    drop(of_unknown_phases_, "of unknown phases");
    if (without_duration_ > 0) {
      run_.dropped.notes.push_back(
          fmt::format("the duration of {}: it is negative or none; taken as 0",
                      counted(without_duration_, "task")));
    }
    if (damage.partial) {
      run_.dropped.notes.push_back(fmt::format("the rest of the file: {}", damage.cause));
      cut_ = true;
    }
  }

  /// Reads an argument of an event into `said_`. Returns false if its value is of another type.
  bool read_argument(Argument argument, trace::JsonStream& json) {
    switch (argument) {
      case Argument::task:
        said_.number = json.small();
        return true;
      case Argument::phase:
        if (json.next() != '"') return false;
        said_.phase = json.string();
        return true;
      case Argument::step:
        said_.step = json.small();
        return true;
      case Argument::micro_batch:
        said_.micro_batch = json.small();
        return true;
      case Argument::stage:
        said_.task.stage = json.small();
        return true;
      case Argument::bytes:
        said_.task.bytes = json.integer();
        return true;
      case Argument::group:
        said_.task.group = json.small();
        return true;
      case Argument::flow:
        said_.task.flow = json.integer();
        return true;
      case Argument::end:
        if (json.next() != '"') return false;
        said_.task.sends = json.string() == "out";
        return true;
      case Argument::rank:
        said_.rank = json.small();
        return true;
    }
    return false;
  }

  /// Adds one task of a step. Until ranks() the worker of an op is its process.
  void take_task(const trace::ChromeEvent& event) {
    if (!event.has_start || said_.number < 0) {
      ++without_task_;
      return;
    }
    TaskFacts& task = said_.task;
    task.op = interned(event.category.empty() ? event.name : event.category, &op_names_);
    task.phase = said_.phase.empty() ? kNone : interned(said_.phase, &phases_);
    Observed op;
    op.worker = event.pid;
    op.step = last_step_ = std::max(said_.step, 0);
    op.start = event.start_us * 1e-6;
    const bool has_duration = event.has_duration && event.duration_us >= 0;
    op.duration = has_duration ? event.duration_us * 1e-6 : 0;
    if (!has_duration) {
      ++without_duration_;
      without_durations_.insert(event.pid);
    }
    op.sequence = said_.number;
    op.stream = event.tid;
    op.micro_batch = said_.micro_batch;
    op.chunk = task.stage;
    seen_.push_back(op);
    const auto [at, added] = tasks_.try_emplace({op.worker, said_.number}, task);
    if (!added && task.flow != 0) {
      // Ids of messages differ from step to step, so the first step's ids match senders and
      // receivers.
      at->second.flow = std::min(at->second.flow, task.flow);
    }
  }

  /// Reads the rank from the name of its process. Counters and arrows add nothing.
  void take_other(const trace::ChromeEvent& event) {
    if (event.phase == 'M' && event.name == "process_name") {
      int64_t named = kNone;
      if (said_.rank < 0 && event.label.starts_with("rank ")) {
        parse_int(std::string_view(event.label).substr(5), &named);
      }
      rank_of_[event.pid] = said_.rank >= 0 ? said_.rank : named;
    }
    constexpr std::string_view kKnown = "MCsft";
    of_unknown_phases_ += kKnown.find(event.phase) == kKnown.npos ? 1 : 0;
  }

  /// Reads a key of the document beside its events.
  bool read_fact(std::string_view key, trace::JsonStream& json) {
    if (trace::is_key(key, "waits") && json.next() == '[') {
      waits_ = trace::read_waits(json);
      return true;
    }
    if (key != "otherData" || json.next() != '{') return false;
    json.object([&](std::string_view fact) {
      if (trace::is_key(fact, "ranks")) {
        num_ranks_ = json.small();
      } else if (trace::is_key(fact, "source") && json.next() == '"') {
        of_run_ = json.string() == "run";
      } else if (trace::is_key(fact, "properties") && json.next() == '{') {
        json.object([&](std::string_view property) {
          deduplicated_ = deduplicated_ || trace::is_key(property, "replayed_ranks");
          json.skip_value();
        });
      } else {
        json.skip_value();
      }
    });
    return true;
  }

  void drop(int64_t events, const std::string& what) {
    if (events == 0) return;
    run_.dropped.events += events;
    run_.dropped.notes.push_back(fmt::format("{} {}", counted(events, "event"), what));
  }

  static int32_t interned(const std::string& text, std::map<std::string, int32_t>* table) {
    return table->try_emplace(text, table->size()).first->second;
  }
  static const std::string& name_in(const std::map<std::string, int32_t>& table, int32_t id) {
    return std::find_if(table.begin(), table.end(), [&](const auto& e) { return e.second == id; })
        ->first;
  }

  /// Numbers workers in the order of ranks. Ranks that run the same stages are replicas of a
  /// pipeline rank.
  void ranks() {
    std::map<int32_t, std::set<int32_t>> stages;  // by pid
    for (const Observed& op : seen_) {
      std::set<int32_t>& list = stages[op.worker.value()];
      if (op.chunk != kNone) {
        list.insert(op.chunk);
      }
    }
    std::vector<std::pair<int64_t, int32_t>> order;  // rank, pid
    for (const auto& [pid, list] : stages) {
      const auto named = rank_of_.find(pid);
      order.push_back({named != rank_of_.end() && named->second >= 0 ? named->second : pid, pid});
    }
    std::sort(order.begin(), order.end());
    std::map<std::set<int32_t>, StageId> pipeline_rank;
    for (const auto& [pid, list] : stages) {
      pipeline_rank.emplace(list, 0);
    }
    for (auto& [list, index] : pipeline_rank) {  // sets are in the order of their first stage
      index = run_.stages++ - 1;
    }
    --run_.stages;
    std::map<int32_t, PatternWorkerId> worker_of;  // by pid
    std::map<StageId, DataRank> replicas;
    for (const auto& [rank, pid] : order) {
      worker_of[pid] = run_.pattern_workers++;
      const StageId stage = pipeline_rank.at(stages.at(pid));
      run_.workers.push_back({rank, stage, replicas[stage]++, fmt::format("rank {}", rank),
                              without_durations_.count(pid) > 0});
    }
    if (num_ranks_ > run_.pattern_workers && deduplicated_) {
      run_.stand_for = fmt::format(
          "{} of {} were simulated, each stands for all that do the same with the same kinds of "
          "others",
          run_.pattern_workers, num_ranks_);
    } else if (num_ranks_ > run_.pattern_workers) {
      run_.dropped.notes.push_back(fmt::format(
          "{} of {} ranks are not in the trace; ranks that communicate with them do not "
          "wait for them",
          num_ranks_ - run_.pattern_workers, num_ranks_));
    }
    for (Observed& op : seen_) {
      op.worker = worker_of.at(op.worker.value());
    }
    std::map<std::pair<PatternWorkerId, int32_t>, TaskFacts> tasks;
    for (const auto& [key, task] : tasks_) {
      tasks.emplace(std::pair(worker_of.at(key.first.value()), key.second), task);
    }
    tasks_ = std::move(tasks);
  }

  /// Adds the delay of each rank's step behind the first rank's. In a run, hosts exchange the
  /// result of the last step before it. A simulated rank begins with its first task.
  void host_starts() {
    if (!of_run_) return;
    std::map<int64_t, std::map<PatternWorkerId, double>> first;  // by step
    for (const Observed& op : seen_) {
      const auto [at, added] = first[op.step].try_emplace(op.worker, op.start);
      at->second = std::min(at->second, op.start);
    }
    TaskFacts facts;
    facts.op = interned("host start", &op_names_);
    for (const auto& [step, workers] : first) {
      double begin = workers.begin()->second;
      for (const auto& [worker, start] : workers) {
        begin = std::min(begin, start);
      }
      for (const auto& [worker, start] : workers) {
        Observed op;
        op.worker = worker;
        op.step = step;
        op.start = begin;
        op.duration = start - begin;
        op.sequence = kHostStart;
        op.stream = kHostStream;
        seen_.push_back(op);
        tasks_.try_emplace({worker, kHostStart}, facts);
      }
    }
  }

  /// Measures these delays again, once clocks are set.
  void host_starts_again() {
    if (!of_run_) return;
    for (SampleId sample = 0; sample < run_.samples(); ++sample) {
      std::vector<double> first(run_.pattern_workers, 1e300);
      for (OpId op = 0; op < run_.ops.size(); ++op) {
        double& of_worker = first[run_.ops[op].worker];
        of_worker = run_.ops[op].sequence == kHostStart ? of_worker
                                                        : std::min(of_worker, start(op, sample));
      }
      const double begin = *std::min_element(first.begin(), first.end());
      for (OpId op = 0; op < run_.ops.size(); ++op) {
        if (run_.ops[op].sequence != kHostStart) continue;
        run_.start[run_.at(op, sample)] = begin;
        run_.duration[run_.at(op, sample)] = first[run_.ops[op].worker] - begin;
      }
    }
    measure_steps(&run_);
  }

  const TaskFacts& task_of(OpId op) const {
    return tasks_.at({run_.ops[op].worker, run_.ops[op].sequence});
  }
  bool communicates(OpId op) const { return task_of(op).flow != 0 || task_of(op).group != kNone; }
  std::string phase_of(OpId op) const {
    return task_of(op).phase == kNone ? "" : name_in(phases_, task_of(op).phase);
  }

  /// Adds kinds and blocks. Kernels of a pass through a stage are one block; so are those of a rank
  /// once per step. Every communication is a block, of a kind, phase and size.
  void blocks() {
    std::map<std::pair<std::string, Traffic>, OpKindId> kinds;
    using Element = std::tuple<OpKindId, PatternWorkerId, int32_t, int32_t>;  // micro-batch, stage
    std::map<Element, BlockId> elements;
    std::map<std::string, NameId> names;
    run_.names.clear();
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      Op& row = run_.ops[op];
      const TaskFacts& task = task_of(op);
      const std::string phase = phase_of(op);
      const std::string& name = name_in(op_names_, task.op);
      const auto [at_name, new_name] = names.try_emplace(name, names.size());
      if (new_name) {
        run_.names.push_back(name);
      }
      row.name = at_name->second;
      std::string kind = phase.empty() ? name : phase + "-compute";
      Traffic traffic = row.sequence == kHostStart ? Traffic::collective : Traffic::none;
      if (communicates(op)) {
        row.bytes = task.bytes;
        kind = fmt::format("{} {} {}", name, phase, human_bytes(task.bytes));
        traffic = task.flow != 0    ? Traffic::message
                  : phase == "grad" ? Traffic::gradients
                                    : Traffic::collective;
      }
      const auto [at_kind, new_kind] = kinds.try_emplace({kind, traffic}, run_.kinds.size());
      if (new_kind) {
        run_.kinds.push_back({kind, traffic});
      }
      row.block = run_.blocks.size();
      if (traffic == Traffic::none) {
        row.block =
            elements
                .try_emplace({at_kind->second, row.worker, row.micro_batch, row.chunk}, row.block)
                .first->second;
      }
      if (row.block == run_.blocks.size()) {
        run_.blocks.push_back({at_kind->second, row.worker, row.micro_batch, row.chunk});
      }
    }
  }

  /// Adds the order of each stream's ops as dependencies.
  void streams() {
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      streams_[{run_.ops[op].worker, run_.ops[op].stream}].push_back(op);
    }
    for (auto& [stream, ops] : streams_) {
      std::stable_sort(ops.begin(), ops.end(), [&](OpId a, OpId b) {
        return std::pair(start(a, 0), run_.ops[a].sequence) <
               std::pair(start(b, 0), run_.ops[b].sequence);
      });
      for (size_t i = 1; i < ops.size(); ++i) {
        add_wait(&run_, ops[i], ops[i - 1]);
      }
    }
    for (const auto& [stream, ops] : streams_) {
      const auto host = streams_.find({stream.first, kHostStream});
      if (host != streams_.end()) {
        add_wait(&run_, ops[0], host->second[0]);
      }
    }
  }

  double start(OpId op, SampleId sample) const { return run_.start[run_.at(op, sample)]; }
  double end(OpId op, SampleId sample) const {
    return start(op, sample) + run_.duration[run_.at(op, sample)];
  }

  void add_group(std::vector<OpId> ops, bool eager) {
    for (const OpId op : ops) {
      run_.ops[op].group = run_.groups.size();
    }
    run_.groups.push_back({std::move(ops), false, eager});
  }

  void messages() {
    std::map<int64_t, std::array<OpId, 2>> ends;  // by flow: sender and receiver
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      const TaskFacts& task = task_of(op);
      if (task.flow != 0) {
        ends.try_emplace(task.flow, std::array<OpId, 2>{kNone, kNone})
            .first->second[task.sends ? 0 : 1] = op;
      }
    }
    int64_t alone = 0;
    for (const auto& [flow, pair] : ends) {
      if (pair[0] == kNone || pair[1] == kNone) {
        ++alone;
        continue;
      }
      add_group({pair[0], pair[1]}, true);
    }
    if (alone > 0) {
      run_.dropped.notes.push_back(
          fmt::format("the other ends of {}, which are not in the trace; these wait for no rank",
                      counted(alone, "message")));
    }
  }

  /// Matches collectives by group, op, phase and micro-batch, and by stage where all ranks of the
  /// group are of one pipeline rank. Returns whether clocks were set.
  bool collectives() {
    std::map<int64_t, size_t> class_of;  // by rank; ranks of a class run the same tasks
    for (size_t number = 0; number < waits_.size(); ++number) {
      for (const int32_t rank : waits_[number].ranks) {
        class_of.emplace(rank, number);
      }
    }
    std::map<int32_t, std::set<StageId>> pipeline_ranks;  // by group, as the trace numbers it
    std::map<int32_t, std::set<PatternWorkerId>> members;
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      pipeline_ranks[task_of(op).group].insert(run_.workers[run_.ops[op].worker].stage);
      members[task_of(op).group].insert(run_.ops[op].worker);
    }
    using Key = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t>;
    std::map<Key, Collectives> by_key;
    for (const auto& [stream, ops] : streams_) {
      for (const OpId op : ops) {
        const TaskFacts& task = task_of(op);
        if (task.group == kNone) continue;
        const int32_t stage = pipeline_ranks.at(task.group).size() == 1 ? task.stage : kNone;
        const Key key{task.group, task.op, task.phase, run_.ops[op].micro_batch, stage};
        by_key[key].of_worker[stream.first].push_back(op);
      }
    }
    std::vector<Collectives> list;
    for (auto& [key, alike] : by_key) {
      alike.num_members = members.at(std::get<0>(key)).size();
      std::set<size_t> classes;
      for (const auto& [worker, ops] : alike.of_worker) {
        const auto own = class_of.find(run_.workers[worker].rank);
        classes.insert(own == class_of.end() ? waits_.size() : own->second);
      }
      alike.numbered = classes.size() == 1 && *classes.begin() < waits_.size();
      list.push_back(std::move(alike));
    }
    return match_collectives(list, /*timed=*/true, &run_);
  }

  /// Reports missing tasks. Tasks of a class are numbered from 0 on, and all its ranks run all of
  /// them.
  void missing_tasks() {
    std::map<int64_t, std::set<int32_t>> numbers;  // by rank
    for (const Op& op : run_.ops) {
      if (op.sequence != kHostStart) {
        numbers[run_.workers[op.worker].rank].insert(op.sequence);
      }
    }
    std::map<int64_t, int64_t> count;  // of tasks, by rank
    for (const auto& [rank, list] : numbers) {
      count[rank] = int64_t{*list.rbegin()} + 1;
    }
    for (const trace::TraceWaits& program : waits_) {
      int64_t most = 0;
      for (const std::vector<int32_t>& list : program.tasks) {
        for (const int32_t task : list) {
          most = std::max(most, int64_t{task} + 1);
        }
      }
      for (const int32_t rank : program.ranks) {
        most = std::max(most, count.count(rank) ? count.at(rank) : 0);
      }
      for (const int32_t rank : program.ranks) {
        if (count.count(rank)) {
          count[rank] = most;
        }
      }
    }
    int64_t all = 0, missing = 0, ranks = 0;
    std::string example;
    for (const auto& [rank, list] : numbers) {
      const int64_t lacks = count.at(rank) - std::ssize(list);
      all += count.at(rank);
      missing += lacks;
      ranks += lacks > 0;
      if (lacks > 0 && example.empty()) {
        int32_t task = 0;
        while (list.count(task)) {
          ++task;
        }
        example = fmt::format("task {} of rank {}", task, rank);
      }
    }
    for (Worker& worker : run_.workers) {
      const auto list = numbers.find(worker.rank);
      const bool lacks = list != numbers.end() && count.at(worker.rank) > std::ssize(list->second);
      worker.records_lost = worker.records_lost || lacks;
    }
    if (missing > 0) {
      run_.dropped.notes.push_back(
          fmt::format("{} of the program's {} tasks, which are not in the trace, of {}; one is {}",
                      missing, all, counted(ranks, "rank"), example));
    }
  }

  /// Adds dependencies across streams as the trace gives them. Infers them from times for ranks
  /// without, and for tasks with a dependency that is not in the trace.
  void waits() {
    std::map<int64_t, PatternWorkerId> worker_of;  // by rank
    for (PatternWorkerId worker = 0; worker < run_.pattern_workers; ++worker) {
      worker_of[run_.workers[worker].rank] = worker;
    }
    std::map<std::pair<PatternWorkerId, int32_t>, OpId> op_of;
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      op_of[{run_.ops[op].worker, run_.ops[op].sequence}] = op;
    }
    std::set<PatternWorkerId> said;
    std::set<OpId> lacking;
    int64_t absent = 0;
    for (const trace::TraceWaits& program : waits_) {
      for (const int32_t rank : program.ranks) {
        const auto worker = worker_of.find(rank);
        if (worker == worker_of.end() || !said.insert(worker->second).second) continue;
        for (const std::vector<int32_t>& list : program.tasks) {
          for (size_t i = 1; i < list.size(); ++i) {
            const auto op = op_of.find({worker->second, list[0]});
            const auto before = op_of.find({worker->second, list[i]});
            if (op == op_of.end() || before == op_of.end()) {
              ++absent;
            } else {
              add_wait(&run_, op->second, before->second);
            }
            if (op != op_of.end() && before == op_of.end()) {
              lacking.insert(op->second);
            }
          }
        }
      }
    }
    if (absent > 0) {
      run_.dropped.notes.push_back(fmt::format(
          "{} of tasks that are not in the trace; in their place are waits inferred from "
          "times",
          counted(absent, "wait")));
    }
    const size_t all = run_.pattern_workers;
    run_.waits_from = said.size() == all ? "the program's"
                      : said.empty()
                          ? "inferred from times"
                          : fmt::format("the program's; of {} of {} ranks inferred from times",
                                        all - said.size(), all);
    for (const auto& [stream, ops] : streams_) {
      const bool all_of_it = !said.count(stream.first);
      if (all_of_it ||
          std::any_of(ops.begin(), ops.end(), [&](OpId op) { return lacking.count(op) > 0; })) {
        infer_waits(stream, ops, [&](OpId op) { return all_of_it || lacking.count(op) > 0; });
      }
    }
  }

  /// Makes a task depend on the last task of every other stream that had ended when it started, in
  /// all steps. That task must belong to the same pass, or to none.
  template <typename Infers>
  void infer_waits(const WorkerStream& stream, const std::vector<OpId>& ops, Infers&& infers) {
    for (const auto& [other, before] : streams_) {
      if (other.first != stream.first || other == stream) continue;
      size_t ended = before.size();
      std::vector<size_t> always(ops.size(), before.size());
      for (SampleId sample = 0; sample < run_.samples(); ++sample) {
        ended = 0;
        for (size_t i = 0; i < ops.size(); ++i) {
          while (ended < before.size() &&
                 end(before[ended], sample) <= start(ops[i], sample) + 1e-9) {
            ++ended;
          }
          always[i] = std::min(always[i], ended);
        }
      }
      for (size_t i = 0; i < ops.size(); ++i) {
        for (size_t j = infers(ops[i]) ? always[i] : 0; j > 0; --j) {
          if (goes_with(ops[i], before[j - 1])) {
            add_wait(&run_, ops[i], before[j - 1]);
            break;
          }
        }
      }
    }
  }

  bool goes_with(OpId op, OpId before) const {
    const int32_t a = run_.ops[op].micro_batch, b = run_.ops[before].micro_batch;
    return a == kNone || b == kNone || (a == b && task_of(op).phase == task_of(before).phase);
  }

  std::string path_;
  MeasuredRun run_;
  Said said_;  ///< of the event that is read
  int64_t without_task_ = 0, without_duration_ = 0, of_unknown_phases_ = 0;
  std::set<int32_t> without_durations_;  ///< pids that have tasks without one
  bool cut_ = false;                     ///< the file is cut off or damaged
  int64_t last_step_ = 0;                ///< of the last task of the file
  std::vector<Observed> seen_;
  int32_t num_ranks_ = 0;
  bool of_run_ = false;
  bool deduplicated_ = false;  ///< of a simulation: one rank stands for all that do the same
  std::vector<trace::TraceWaits> waits_;
  std::map<int64_t, int32_t> rank_of_;                              ///< by pid
  std::map<std::pair<PatternWorkerId, int32_t>, TaskFacts> tasks_;  ///< by number
  std::map<std::string, int32_t> op_names_, phases_;
  std::map<WorkerStream, std::vector<OpId>> streams_;
};

}  // namespace

MeasuredRun read_hocket(const std::vector<std::string>& paths, const cost::Cluster* /*cluster*/) {
  return HocketReader(paths.at(0)).read();
}

bool is_hocket(const std::string& beginning) {
  return beginning.find("\"hocket-trace-") != beginning.npos;
}

}  // namespace hocket::whatif
