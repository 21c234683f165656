// SPDX-License-Identifier: Apache-2.0
// The straggler data: which ops there are is in the file, what they wait for is megatron.h's.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/flat_map.h"
#include "base/hash.h"
#include "base/text.h"
#include "sim/whatif/clocks.h"
#include "sim/whatif/importers.h"
#include "sim/whatif/megatron.h"
#include "sim/whatif/transfers.h"
#include "trace/chrome_events.h"

namespace hocket::sim::whatif {
namespace {

constexpr int64_t kMostRanks = 4096;  // of a pipeline, or a tensor; a greater number is no rank
constexpr double kMostGrowth = 1000;  // of the table of ops, where more is expected
constexpr int kThreadsPerWorker = 5;  // compute, pp, tp and dp communication, others

using megatron::kTypes;

/// Of an event, as kOpArguments names them.
enum class OpArgument { step, chunk, micro_batch, sequence };
constexpr std::array<std::string_view, 4> kOpArguments = {"step", "model_chunk", "mb_id", "seq_id"};

/// A thread of the file, resolved once all names are known.
struct NamedThread {
  int64_t pid = 0, tid = 0;
  int32_t stage = kNone, tensor = 0;  ///< "PP rank 1, TP rank 0, compute"
  bool used = false;
  size_t next = 0;  ///< whose event came behind one of this thread the last time
};

struct Coordinates {
  int32_t step = kNone, chunk = kNone, micro_batch = kNone, sequence = kNone;
};

/// The number that follows `word` in `text`; kNone if there is none.
int32_t number_after(std::string_view text, std::string_view word) {
  const size_t at = text.find(word);
  if (at == text.npos) return kNone;
  text.remove_prefix(at + word.size());
  int64_t value = kNone;
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  return parse_int(text.substr(0, digits), &value) && value < kMostRanks
             ? static_cast<int32_t>(value)
             : kNone;
}

class StragglerReader {
 public:
  explicit StragglerReader(const std::string& path) : path_(path) {
    run_.source = "straggler";
    run_.waits_from = "Megatron's";
    for (const megatron::TypeRow& type : kTypes) {
      type_of_.emplace(type.name, static_cast<int32_t>(run_.names.size()));
      run_.names.push_back(type.name);
    }
  }

  MeasuredRun read() {
    // Events, then who the threads are, then the table of times, and what waits for what.
    events();
    workers();
    if (seen_.empty()) {
      fail(path_,
           "got no op that is known; expected Megatron's ops by type, each one event of "
           "phase X{}{}",
           run_.dropped.notes.empty() ? "" : "; got ", join(run_.dropped.notes, ", "));
    }
    assemble(std::move(seen_), path_, &run_, megatron::gc);
    note_cut_step(cut_, last_step_, &run_);
    for (Worker& worker : run_.workers) {
      worker.name = fmt::format("dp {} pp {}", worker.replica, worker.stage);
    }
    std::vector<Traffic> traffic;
    for (const megatron::TypeRow& type : kTypes) {
      traffic.push_back(type.traffic);
    }
    give_blocks(traffic, &run_);
    megatron::add_dependencies(places_, &run_);
    set_clocks(&run_);
    settle_transfers(&run_);
    return std::move(run_);
  }

 private:
  void events() {
    Coordinates at;
    trace::ChromeDamage damage;
    std::map<std::string, int64_t> unknown, unknown_phases;
    int64_t broken = 0;
    auto type = type_of_.end();
    trace::for_each_event(
        path_, kOpArguments, [&] { at = {}; },
        [&](int argument, trace::JsonStream& json) {
          switch (static_cast<OpArgument>(argument)) {
            case OpArgument::step:
              at.step = json.small();
              break;
            case OpArgument::chunk:
              at.chunk = small_or_none(json);
              break;
            case OpArgument::micro_batch:
              at.micro_batch = small_or_none(json);
              break;
            case OpArgument::sequence:
              at.sequence = small_or_none(json);
              break;
          }
          return true;
        },
        [&](const trace::ChromeEvent& event) {
          if (event.phase == 'M') {
            name_thread(event);
            return;
          }
          if (event.phase != 'X') {
            ++unknown_phases[event.phase == 0 ? "none" : std::string(1, event.phase)];
            return;
          }
          // Ops of a type mostly follow each other.
          if (type == type_of_.end() || event.name != type->first) {
            type = type_of_.find(event.name);
          }
          if (type == type_of_.end()) {
            ++unknown[event.name];
          } else if (!event.has_start || !event.has_duration || at.step < 0) {
            ++broken;
          } else {
            add(event, type->second, at);
          }
        },
        [](std::string_view, trace::JsonStream&) { return false; }, &damage);
    for (const auto& [name, count] : unknown) {
      drop(count, fmt::format("{} of unknown type {}", counted(count, "event"), quote(name)));
    }
    for (const auto& [phase, count] : unknown_phases) {
      drop(count, fmt::format("{} of unknown phase {}", counted(count, "event"), quote(phase)));
    }
    if (broken > 0) {
      drop(broken,
           fmt::format("{} without a step, or whose time is no number", counted(broken, "event")));
    }
    run_.records_lost = negative_ > 0;
    if (negative_ > 0) {
      drop(0, fmt::format("the duration of {}: it is negative; taken as 0",
                          counted(negative_, "event")));
    }
    if (damage.partial) {
      drop(0, fmt::format("the rest of the file: {}", damage.cause));
      cut_ = true;
    }
  }

  static int32_t small_or_none(trace::JsonStream& json) {
    double value = 0;
    return json.number(&value) && value >= 0 && value < 1 << 30 ? static_cast<int32_t>(value)
                                                                : kNone;
  }

  void drop(int64_t events, std::string note) {
    run_.dropped.events += events;
    run_.dropped.notes.push_back(std::move(note));
  }

  int32_t thread(int64_t pid, int64_t tid) {
    const auto is = [&](size_t i) { return threads_[i].pid == pid && threads_[i].tid == tid; };
    // Mostly the same thread's event follows, or one of whom it was the last time.
    if (!threads_.empty() && is(last_)) return static_cast<int32_t>(last_);
    if (!threads_.empty() && is(threads_[last_].next)) {
      last_ = threads_[last_].next;
      return static_cast<int32_t>(last_);
    }
    const auto number = static_cast<int32_t>(threads_.size());
    const auto [at, added] =
        thread_of_.insert(hash_combine(static_cast<uint64_t>(pid), static_cast<uint64_t>(tid)) >> 1,
                          number, [&](int32_t other) { return is(static_cast<size_t>(other)); });
    if (added) {
      threads_.push_back({pid, tid});
    }
    threads_[last_].next = static_cast<size_t>(*at);
    last_ = static_cast<size_t>(*at);
    return *at;
  }

  void name_thread(const trace::ChromeEvent& event) {
    if (event.name == "process_name") {
      replica_named_[event.pid] = number_after(event.label, "DP rank [");
    }
    if (event.name != "thread_name") return;
    NamedThread& named = threads_[static_cast<size_t>(thread(event.pid, event.tid))];
    named.stage = number_after(event.label, "PP rank ");
    named.tensor = std::max(number_after(event.label, "TP rank "), 0);
  }

  /// Until workers() the worker of an op is its thread.
  void add(const trace::ChromeEvent& event, int32_t type, const Coordinates& at) {
    Observed op;
    op.worker = thread(event.pid, event.tid);
    threads_[static_cast<size_t>(op.worker)].used = true;
    op.start = event.start_us * 1e-6;
    op.duration = event.duration_us * 1e-6;
    op.step = last_step_ = at.step;
    op.name = type;
    op.sequence = at.sequence;
    op.stream = kTypes[static_cast<size_t>(type)].stream;
    op.micro_batch = at.micro_batch;
    op.chunk = at.chunk;
    if (op.duration < 0) {
      op.duration = 0;
      ++negative_;
    }
    if (seen_.size() == seen_.capacity()) {
      seen_.reserve(room_for(seen_.size(), event.share_read));
    }
    seen_.push_back(op);
  }

  /// For as many ops as the file will have had if the rest is like what was read.
  static size_t room_for(size_t seen, double share_read) {
    constexpr double kMore = 1.05;
    const auto size = static_cast<double>(seen);
    const double all = share_read > 0 ? kMore * size / share_read : 0;
    return static_cast<size_t>(std::clamp(all, 2 * size, kMostGrowth * size)) + 64;
  }

  /// Threads to workers: a replica per process, in it a worker per pipeline rank, tensor rank, and
  /// number among those that are alike in both.
  void workers() {
    using Place = std::tuple<int32_t, int32_t, int64_t>;  // stage, tensor rank, rank
    std::map<int64_t, std::map<Place, int32_t>> of_process;
    std::map<int64_t, std::map<int64_t, int32_t>> stage_by_order;
    for (const NamedThread& thread : threads_) {
      if (thread.used && thread.stage == kNone) {
        stage_by_order[thread.pid].emplace(thread.tid / kThreadsPerWorker, 0);
      }
    }
    for (auto& [pid, ranks] : stage_by_order) {
      int32_t stage = 0;
      for (auto& [rank, place] : ranks) {
        place = stage++;
      }
    }
    std::set<int64_t> processes;
    for (NamedThread& thread : threads_) {
      if (!thread.used) continue;
      const int64_t rank = thread.tid / kThreadsPerWorker;
      if (thread.stage == kNone) {
        thread.stage = stage_by_order[thread.pid][rank];
      }
      processes.insert(thread.pid);
      of_process[thread.pid].emplace(Place{thread.stage, thread.tensor, rank}, 0);
    }
    const std::map<int64_t, int32_t> replica_of = replicas(processes);
    // A worker of the pattern is (stage, the how many-th of that stage in its process).
    std::map<std::pair<int32_t, int32_t>, int32_t> pattern;
    for (const auto& [pid, places] : of_process) {
      std::map<int32_t, int32_t> in_stage;
      for (const auto& [place, unused] : places) {
        const int32_t stage = std::get<0>(place);
        pattern.emplace(std::pair(stage, in_stage[stage]++), 0);
        run_.stages = std::max(run_.stages, stage + 1);
      }
    }
    for (auto& [place, index] : pattern) {
      index = run_.pattern_workers++;
      places_.push_back({place.first, place.second});
    }
    run_.workers.resize(static_cast<size_t>(run_.pattern_workers) * processes.size());
    for (auto& [pid, places] : of_process) {
      std::map<int32_t, int32_t> in_stage;
      for (auto& [place, worker] : places) {
        const auto& [stage, tensor, rank] = place;
        worker = pattern.at({stage, in_stage[stage]++});
        const int32_t replica = replica_of.at(pid);
        run_.workers[static_cast<size_t>(worker * run_.replicas + replica)] = {rank, stage, replica,
                                                                               ""};
      }
    }
    std::vector<std::pair<int32_t, int32_t>> of_thread(threads_.size());  // worker, replica
    for (size_t i = 0; i < threads_.size(); ++i) {
      const NamedThread& thread = threads_[i];
      if (!thread.used) continue;
      of_thread[i] = {
          of_process[thread.pid].at({thread.stage, thread.tensor, thread.tid / kThreadsPerWorker}),
          replica_of.at(thread.pid)};
    }
    for (Observed& op : seen_) {
      std::tie(op.worker, op.replica) = of_thread[static_cast<size_t>(op.worker)];
    }
    missing_stages();
  }

  /// Data-parallel ranks in the order of their names ("DP rank [3]"), or of processes if not all
  /// have one of their own.
  std::map<int64_t, int32_t> replicas(const std::set<int64_t>& processes) {
    std::map<int64_t, int64_t> by_name, by_process;  // number in the trace, to process
    for (const int64_t pid : processes) {
      const auto name = replica_named_.find(pid);
      by_process[pid] = pid;
      if (name != replica_named_.end() && name->second >= 0) {
        by_name[name->second] = pid;
      }
    }
    std::map<int64_t, int32_t> replica_of;
    const auto& order = by_name.size() == processes.size() ? by_name : by_process;
    for (const auto& [number, pid] : order) {
      replica_of.emplace(pid, static_cast<int32_t>(replica_of.size()));
    }
    run_.replicas = std::max<int32_t>(1, static_cast<int32_t>(processes.size()));
    const int64_t last = order.empty() ? 0 : order.rbegin()->first;
    if (last + 1 > run_.replicas) {
      drop(0, fmt::format("{} of data-parallel ranks 0 to {} have no events; those that have are "
                          "numbered 0 to {}",
                          last + 1 - run_.replicas, last, run_.replicas - 1));
    }
    return replica_of;
  }

  void missing_stages() {
    std::set<int32_t> there;
    for (const auto& [stage, peer] : places_) {
      there.insert(stage);
    }
    std::vector<std::string> missing;
    for (int32_t stage = 0; stage < run_.stages; ++stage) {
      if (!there.count(stage)) {
        missing.push_back(fmt::format("{}", stage));
      }
    }
    if (missing.size() == 1) {
      drop(0, fmt::format("pipeline rank {} has no events; its neighbours wait for nobody",
                          missing[0]));
    } else if (!missing.empty()) {
      drop(0, fmt::format("{} of {} pipeline ranks have no events ({}); their neighbours wait for "
                          "nobody",
                          missing.size(), run_.stages, quote(join(missing, ", "))));
    }
  }

  std::string path_;
  MeasuredRun run_;
  std::map<std::string, int32_t, std::less<>> type_of_;
  std::vector<Observed> seen_;
  int64_t negative_ = 0;                      ///< durations
  int32_t last_step_ = 0;                     ///< of the last op of the file
  bool cut_ = false;                          ///< the file is cut off or damaged
  std::map<int64_t, int32_t> replica_named_;  ///< by process
  std::vector<NamedThread> threads_;
  FlatMap<int32_t> thread_of_;           ///< by process and thread: index into threads_
  std::vector<megatron::Place> places_;  ///< by worker
  size_t last_ = 0;
};

}  // namespace

MeasuredRun read_straggler(const std::vector<std::string>& paths,
                           const cost::Cluster* /*cluster*/) {
  return StragglerReader(paths.at(0)).read();
}

bool is_straggler(const std::string& beginning) {
  return beginning.find("\"model_chunk\"") != beginning.npos;
}

}  // namespace hocket::sim::whatif
