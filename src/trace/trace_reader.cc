// SPDX-License-Identifier: Apache-2.0
// Reader of traces: a streaming JSON parser that keeps only the schema's keys.
#include "trace/trace_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "trace/json_stream.h"

namespace hocket::trace {
namespace {

struct Process {
  int32_t rank = program::kNone;
};
struct Thread {
  int64_t pid = 0;
  std::string name;
};

class Reader {
 public:
  Reader(const std::string& path, Trace* trace, ReadTraceReport* report)
      : path_(path), in_(path), trace_(*trace), report_(*report) {}

  void read() {
    if (in_.next() == '[') {
      in_.array([&] { event(); }, /*may_lack_end=*/true);
      found_ = true;
    } else {
      in_.object([&](std::string_view key) {
        if (key == "traceEvents") {
          found_ = true;
          in_.array([&] { event(); });
        } else if (key == "otherData" && in_.next() == '{') {
          facts();
        } else if (key == "waits" && in_.next() == '[') {
          trace_.waits = read_waits(in_);
        } else {
          in_.skip_value();
        }
      });
    }
    in_.check_end();
    if (!found_) {
      fail(path_, "not a trace: no key \"traceEvents\"; expected Chrome JSON as {} writes it",
           "hocket train or hocket simulate");
    }
  }

  // Maps processes and threads to ranks and lanes.
  void finish() {
    std::set<int32_t> taken;
    for (const auto& [pid, process] : processes_) {
      taken.insert(process.rank);
    }
    int32_t free = 0;
    for (auto& [pid, process] : processes_) {
      if (process.rank != program::kNone) continue;
      while (taken.count(free)) {
        ++free;
      }
      process.rank = free;
      taken.insert(free);
    }
    std::vector<int32_t> rank_of;
    std::vector<uint16_t> lane_of;
    for (const Thread& thread : threads_) {
      rank_of.push_back(processes_[thread.pid].rank);
      auto at = std::find(trace_.lanes.begin(), trace_.lanes.end(), thread.name);
      if (at == trace_.lanes.end()) {
        at = trace_.lanes.insert(at, thread.name);
      }
      if (trace_.lanes.size() > 65535) fail(path_, "more than 65535 threads of different names");
      lane_of.push_back(static_cast<uint16_t>(at - trace_.lanes.begin()));
    }
    for (size_t i = 0; i < trace_.events.size(); ++i) {
      TraceEvent& e = trace_.events[i];
      const auto thread = static_cast<size_t>(e.rank);
      e.rank = rank_of[thread];
      e.lane = lane_of[thread];
    }
    for (size_t i = 0; i < trace_.memory.size(); ++i) {
      trace_.memory[i].rank = processes_[memory_pid_[i]].rank;
    }
    for (const auto& [pid, process] : processes_) {
      trace_.num_ranks = std::max(trace_.num_ranks, process.rank + 1);
    }
    if (trace_.steps.empty()) {
      std::set<int32_t> steps;
      for (const TraceEvent& e : trace_.events) {
        if (e.step != program::kNone) {
          steps.insert(e.step);
        }
      }
      trace_.steps.assign(steps.begin(), steps.end());
    }
  }

 private:
  void facts() {
    in_.object([&](std::string_view key) {
      if (key == "title" && in_.next() == '"') {
        trace_.title = in_.string();
      } else if (key == "source" && in_.next() == '"') {
        trace_.source = in_.string();
      } else if (key == "ranks") {
        trace_.num_ranks = std::clamp(in_.small(), 0, 1 << 24);
      } else if (key == "steps" && in_.next() == '[') {
        in_.array([&] { trace_.steps.push_back(in_.small()); });
      } else if (key == "lanes" && in_.next() == '[') {
        in_.array([&] {
          if (in_.next() != '"') return in_.skip_value();
          const std::string& lane = in_.string();
          auto& lanes = trace_.lanes;
          if (std::find(lanes.begin(), lanes.end(), lane) == lanes.end()) {
            lanes.push_back(lane);
          }
        });
      } else if (key == "properties" && in_.next() == '{') {
        in_.object([&](std::string_view name) {
          const std::string property(name);
          trace_.set_property(property, in_.next() == '"' ? in_.string() : in_.token());
        });
      } else {
        in_.skip_value();
      }
    });
  }

  // Returns the id of a process or thread: a number, or a text by its index in the string table.
  int64_t id() {
    if (in_.next() != '"') return in_.integer();
    return -(int64_t{1} << 40) - trace_.intern(in_.string());
  }

  size_t thread(int64_t pid, int64_t tid) {
    if (last_thread_ < threads_.size() && last_ == std::pair(pid, tid)) return last_thread_;
    const auto [it, added] = thread_index_.try_emplace({pid, tid}, threads_.size());
    if (added) {
      processes_[pid];
      threads_.push_back({pid, fmt::format("tid {}", tid)});
    }
    last_ = {pid, tid};
    last_thread_ = it->second;
    return it->second;
  }

  void event() {
    TraceEvent e;
    char phase = 0;
    bool has_time = false;
    int64_t pid = 0, tid = 0, duration = 0, value = 0;
    int32_t rank = program::kNone;
    StringId shown = 0;  // args.name
    in_.object([&](std::string_view key) {
      if (key == "ph") {
        phase = in_.next() == '"' ? in_.string().c_str()[0] : '\0';
      } else if (key == "name") {
        e.name = trace_.intern(in_.next() == '"' ? in_.string() : in_.token());
      } else if (key == "cat") {
        e.kind = trace_.intern(in_.next() == '"' ? in_.string() : in_.token());
      } else if (key == "pid") {
        pid = id();
      } else if (key == "tid") {
        tid = id();
      } else if (key == "ts") {
        e.start_ns = in_.micro();
        has_time = true;
      } else if (key == "dur") {
        duration = in_.micro();
      } else if (key == "args" && in_.next() == '{') {
        args(&e, &value, &rank, &shown);
      } else {
        in_.skip_value();
      }
    });
    if (phase == 'M') {
      const std::string& name = trace_.text(e.name);
      if (name == "process_name") {
        processes_[pid].rank = rank >= 0 ? rank : rank_in(trace_.text(shown));
      } else if (name == "thread_name" && shown) {
        threads_[thread(pid, tid)].name = trace_.text(shown);
      }
    } else if (phase == 'X' && has_time) {
      if (e.kind == 0 || e.kind == e.name) {
        e.kind = e.name;
        e.name = 0;
      }
      e.end_ns = e.start_ns + std::max<int64_t>(duration, 0);
      e.rank = static_cast<int32_t>(thread(pid, tid));
      trace_.events.push_back(e);
    } else if (phase == 'C' && has_time) {
      processes_[pid];
      memory_pid_.push_back(pid);
      trace_.memory.push_back({e.start_ns, value, 0, trace_.text(e.name) == "memory" ? 0 : e.name});
    } else if (phase != 's' && phase != 't' && phase != 'f') {
      ++report_.skipped_events;
    }
  }

  void args(TraceEvent* e, int64_t* value, int32_t* rank, StringId* shown) {
    in_.object([&](std::string_view key) {
      if (key == "task") {
        e->task = static_cast<uint32_t>(in_.integer());
      } else if (key == "phase" && in_.next() == '"') {
        e->phase = trace_.intern(in_.string());
      } else if (key == "step") {
        e->step = in_.small();
      } else if (key == "micro_batch") {
        e->micro_batch = in_.small();
      } else if (key == "stage") {
        e->stage = in_.small();
      } else if (key == "layer" && in_.next() == '"') {
        e->layer = trace_.intern(in_.string());
      } else if (key == "bytes") {
        *value = e->bytes = in_.integer();
      } else if (key == "flops") {
        e->flops = in_.real();
      } else if (key == "waited") {
        e->waited_ns = in_.micro();
      } else if (key == "moves" && in_.next() == '"') {
        e->moves = trace_.intern(in_.string());
      } else if (key == "group") {
        e->group = in_.small();
      } else if (key == "ranks") {
        e->group_ranks = in_.small();
      } else if (key == "flow") {
        e->flow = in_.integer();
      } else if (key == "end" && in_.next() == '"') {
        e->flow_end = in_.string() == "out" ? FlowEnd::out : FlowEnd::in;
      } else if (key == "name" && in_.next() == '"') {
        *shown = trace_.intern(in_.string());
      } else if (key == "rank") {
        *rank = in_.small();
      } else {
        in_.skip_value();
      }
    });
  }

  // Parses "rank 12" to 12.
  static int32_t rank_in(std::string_view name) {
    int64_t rank = program::kNone;
    if (name.rfind("rank ", 0) != 0 || !parse_int(name.substr(5), &rank)) return program::kNone;
    return rank >= 0 && rank < (1 << 24) ? static_cast<int32_t>(rank) : program::kNone;
  }

  std::string path_;
  JsonStream in_;
  Trace& trace_;
  ReadTraceReport& report_;
  bool found_ = false;
  std::map<int64_t, Process> processes_;
  std::map<std::pair<int64_t, int64_t>, size_t> thread_index_;
  std::vector<Thread> threads_;
  std::vector<int64_t> memory_pid_;
  std::pair<int64_t, int64_t> last_{};
  size_t last_thread_ = 0;
};

}  // namespace

std::vector<TraceWaits> read_waits(JsonStream& json) {
  std::vector<TraceWaits> waits;
  json.array([&] {
    if (json.next() != '{') return json.skip_value();
    TraceWaits of;
    json.object([&](std::string_view key) {
      if (key == "ranks" && json.next() == '[') {
        json.array([&] { of.ranks.push_back(json.small()); });
      } else if (key == "tasks" && json.next() == '[') {
        json.array([&] {
          if (json.next() != '[') return json.skip_value();
          std::vector<int32_t>& list = of.tasks.emplace_back();
          json.array([&] { list.push_back(json.small()); });
        });
      } else {
        json.skip_value();
      }
    });
    waits.push_back(std::move(of));
  });
  return waits;
}

Trace read_trace(const std::string& path, const ReadTraceOptions& options,
                 ReadTraceReport* report) {
  Trace trace;
  ReadTraceReport unused;
  if (report == nullptr) {
    report = &unused;
  }
  *report = {};
  Reader reader(path, &trace, report);
  try {
    reader.read();
  } catch (const Error& error) {
    if (!options.keep_partial) throw;
    report->partial = true;
    report->cause = error.what();
  }
  reader.finish();
  return trace;
}

}  // namespace hocket::trace
