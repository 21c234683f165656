// SPDX-License-Identifier: Apache-2.0
// Implements: read_straggler (importers.h). The straggler data: ops come from the file, their
// dependencies from megatron.h.
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
#include "base/intervals.h"
#include "base/text.h"
#include "trace/chrome_events.h"
#include "whatif/clocks.h"
#include "whatif/importers.h"
#include "whatif/megatron.h"
#include "whatif/straggler_workers.h"
#include "whatif/transfers.h"

namespace hocket::whatif {
namespace {

constexpr int64_t kMaxAxisRanks = 4096;  // of a pipeline, or a tensor; a greater number is no rank
constexpr double kMicro = 1e-6;
constexpr double kMaxUnknownShare =
    0.01;  // share of a thread's ops, or of their time, that may be unknown
constexpr double kMaxGrowth = 1000;  // of the table of ops, where more is expected

using megatron::kTypes;
using straggler::ThreadIndex;

/// Arguments of an event, in the order of kOpArguments.
enum class OpArgument { step, chunk, micro_batch, sequence };
constexpr std::array<std::string_view, 4> kOpArguments = {"step", "model_chunk", "mb_id", "seq_id"};

struct Coordinates {
  int64_t step = kNone;
  int32_t chunk = kNone, micro_batch = kNone, sequence = kNone;
};

/// Start and end of an op, in seconds.
struct Span {
  ThreadIndex thread;
  double start = 0, duration = 0;
};

/// Returns the number that follows `word` in `text`; kNone if there is none.
int32_t number_after(std::string_view text, std::string_view word) {
  const size_t at = text.find(word);
  if (at == text.npos) return kNone;
  text.remove_prefix(at + word.size());
  int64_t value = kNone;
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  return parse_int(text.substr(0, digits), &value) && value < kMaxAxisRanks ? value : kNone;
}

int64_t nanoseconds(double seconds) {
  constexpr double kMaxNanoseconds = 4e18;
  return static_cast<int64_t>(std::clamp(seconds * 1e9, -kMaxNanoseconds, kMaxNanoseconds));
}

class StragglerReader {
 public:
  explicit StragglerReader(const std::string& path) : path_(path) {
    run_.source = "straggler";
    run_.waits_from = "Megatron's";
    for (const megatron::TypeRow& type : kTypes) {
      type_of_.emplace(type.name, run_.names.size());
      run_.names.push_back(type.name);
    }
  }

  MeasuredRun read() {
    // Reads events, identifies threads, builds the table of times, then adds dependencies.
    events();
    if (seen_.empty()) {
      fail(path_,
           "got no op that is known; expected Megatron's ops by type, each one event of "
           "phase X{}{}",
           run_.dropped.notes.empty() ? "" : "; got ", join(run_.dropped.notes, ", "));
    }
    workers();
    assemble(std::move(seen_), path_, &run_, place_of(megatron::gc));
    note_cut_step(cut_, last_step_, &run_);
    for (Worker& worker : run_.workers) {
      worker.name = fmt::format("dp {} pp {}", worker.replica, worker.stage);
    }
    std::vector<Traffic> traffic;
    for (const megatron::TypeRow& type : kTypes) {
      traffic.push_back(type.traffic);
    }
    give_blocks(traffic, &run_);
    megatron::add_dependencies(cells_, &run_);
    set_clocks(&run_);
    settle_transfers(&run_, Early::kept);
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
              at.step = json.integer();
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
            if (event.has_start && event.has_duration && event.duration_us > 0 && at.step >= 0) {
              unknown_.push_back({thread(event.pid, event.tid), event.start_us * kMicro,
                                  event.duration_us * kMicro});
            }
          } else if (!event.has_start || !event.has_duration || at.step < 0) {
            ++broken;
            ++broken_of_[thread(event.pid, event.tid)];
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
      drop(broken, fmt::format("{} without a step, or without a number for a time",
                               counted(broken, "event")));
    }
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

  ThreadIndex thread(int64_t pid, int64_t tid) {
    const auto is = [&](ThreadIndex i) { return threads_[i].pid == pid && threads_[i].tid == tid; };
    // Events mostly follow one of the same thread, or of the thread that followed it last time.
    if (!threads_.empty() && is(last_)) return last_;
    if (!threads_.empty() && is(next_[last_])) {
      last_ = next_[last_];
      return last_;
    }
    const auto [at, added] = thread_of_.insert(hash_combine(pid, tid) >> 1, threads_.size(), is);
    if (added) {
      threads_.push_back({pid, tid, kNone, 0, "", false});
      next_.push_back(0);
    }
    next_[last_] = *at;
    last_ = *at;
    return *at;
  }

  void name_thread(const trace::ChromeEvent& event) {
    if (event.name == "process_name") {
      replica_named_[event.pid] = number_after(event.label, "DP rank [");
    }
    if (event.name != "thread_name") return;
    straggler::Thread& named = threads_[thread(event.pid, event.tid)];
    named.stage = number_after(event.label, "PP rank ");
    named.tensor = std::max(number_after(event.label, "TP rank "), 0);
    named.label = named.stage == kNone ? "" : event.label;
  }

  /// Adds an op. Until workers() its worker is its thread.
  void add(const trace::ChromeEvent& event, NameId type, const Coordinates& at) {
    Observed op;
    const ThreadIndex thread = this->thread(event.pid, event.tid);
    threads_[thread].used = true;
    op.worker = thread.value();
    op.start = event.start_us * kMicro;
    op.duration = event.duration_us * kMicro;
    op.step = last_step_ = at.step;
    op.name = type;
    op.sequence = at.sequence;
    op.stream = kTypes[type].stream;
    op.micro_batch = at.micro_batch;
    op.chunk = at.chunk;
    // A transfer may seem to end a little before it began (settle_transfers()).
    const bool communicates = kTypes[type].traffic != Traffic::none;
    if (op.duration < 0 && (!communicates || op.duration <= -kReportedEarlySeconds)) {
      op.duration = 0;
      ++negative_;
      with_negative_.insert(thread);
    }
    if (seen_.size() == seen_.capacity()) {
      seen_.reserve(room_for(seen_.size(), event.share_read));
    }
    seen_.push_back(op);
  }

  /// Returns the ops to reserve memory for, if the rest of the file is like the part read.
  static size_t room_for(size_t seen, double share_read) {
    // Margin for ops that are denser in the rest. With none, the array is copied once more, close
    // to the end; with more, memory is reserved in vain.
    constexpr double kReserveMargin = 1.05;
    const double size = seen;
    const double all = share_read > 0 ? kReserveMargin * size / share_read : 0;
    return static_cast<size_t>(std::clamp(all, 2 * size, kMaxGrowth * size)) + 64;
  }

  /// Identifies the workers, and reports missing ones.
  void workers() {
    straggler::Workers found = straggler::find_workers(threads_, replica_named_);
    run_.replicas = found.replicas;
    run_.stages = found.stages;
    run_.pattern_workers = found.cells.size();
    run_.workers = std::move(found.list);
    cells_ = std::move(found.cells);
    for (std::string& note : found.notes) {
      drop(0, std::move(note));
    }
    const std::vector<char> lost = lost_records();
    for (ThreadIndex thread = 0; thread < threads_.size(); ++thread) {
      const auto& [worker, replica] = found.of_thread[thread];
      if (lost[thread] != 0) {
        run_.workers[run_.worker_id(worker, replica)].records_lost = true;
      }
    }
    for (Observed& op : seen_) {
      std::tie(op.worker, op.replica) = found.of_thread[op.worker];
    }
  }

  /// Returns, by thread, whether it lost ops or their durations.
  std::vector<char> lost_records() const {
    std::vector<char> lost(threads_.size(), 0);
    for (const ThreadIndex thread : with_negative_) {
      lost[thread] = 1;
    }
    // Drops steps that lack an op. An op that most steps lack counts as lost.
    std::set<int64_t> steps;
    for (const Observed& op : seen_) {
      if (steps.empty() || op.step != *steps.rbegin()) {
        steps.insert(op.step);
      }
    }
    for (const auto& [thread, broken] : broken_of_) {
      if (2 * broken > std::ssize(steps)) {
        lost[thread] = 1;
      }
    }
    if (!unknown_.empty()) {
      unknown_ops(&lost);
    }
    for (ThreadIndex i = 0; i < threads_.size(); ++i) {
      lost[i] = threads_[i].used ? lost[i] : 0;
    }
    return lost;
  }

  /// Distinguishes ops of unknown type from a user's marks and ranges: an op runs in a thread while
  /// no known op does, and takes more than almost no time.
  void unknown_ops(std::vector<char>* lost) const {
    struct Busy {
      Intervals ops, others;
      int64_t known = 0, unknown = 0;  ///< nanoseconds
    };
    std::map<ThreadIndex, Busy> threads;
    for (const Span& span : unknown_) {
      threads.try_emplace(span.thread);
    }
    for (const Observed& op : seen_) {
      const auto at = threads.find(op.worker.value());
      if (at == threads.end()) continue;
      at->second.ops.add(nanoseconds(op.start), nanoseconds(op.duration),
                         [&](int64_t, int64_t free) { at->second.known += free; });
    }
    for (const Span& span : unknown_) {
      Busy& busy = threads.at(span.thread);
      const int64_t begin = nanoseconds(span.start), takes = nanoseconds(span.duration);
      int64_t alone = 0;
      busy.ops.missing(begin, takes, [&](int64_t, int64_t free) { alone += free; });
      if (alone < (1 - kMaxUnknownShare) * takes) continue;
      busy.others.add(begin, takes, [&](int64_t, int64_t free) { busy.unknown += free; });
    }
    for (const auto& [thread, busy] : threads) {
      if (busy.unknown > kMaxUnknownShare * busy.known) {
        (*lost)[thread] = 1;
      }
    }
  }

  std::string path_;
  MeasuredRun run_;
  std::map<std::string, NameId, std::less<>> type_of_;
  std::vector<Observed> seen_;
  int64_t negative_ = 0;                      ///< durations
  int64_t last_step_ = 0;                     ///< of the last op of the file
  bool cut_ = false;                          ///< the file is cut off or damaged
  std::map<int64_t, int32_t> replica_named_;  ///< by process
  std::vector<straggler::Thread> threads_;
  FlatMap<ThreadIndex> thread_of_;            ///< by process and thread
  std::vector<ThreadIndex> next_;             ///< by thread: that of the event behind its last one
  std::vector<Span> unknown_;                 ///< events of unknown types that have a step
  std::map<ThreadIndex, int64_t> broken_of_;  ///< ops without a step or a time
  std::set<ThreadIndex> with_negative_;
  std::vector<megatron::PipelineCell> cells_;  ///< by worker
  ThreadIndex last_;                           ///< of the event before
};

}  // namespace

MeasuredRun read_straggler(const std::vector<std::string>& paths,
                           const cost::Cluster* /*cluster*/) {
  return StragglerReader(paths.at(0)).read();
}

bool is_straggler(const std::string& beginning) {
  return beginning.find("\"model_chunk\"") != beginning.npos;
}

}  // namespace hocket::whatif
