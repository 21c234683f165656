// SPDX-License-Identifier: Apache-2.0
#include "trace/trace_builder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "program/moves.h"

namespace hocket::trace {

TraceBuilder::TraceBuilder(const program::Program& program, std::string title, std::string source)
    : program_(program) {
  trace_.title = std::move(title);
  trace_.source = std::move(source);
  trace_.num_ranks = program.num_ranks();
  class_of_rank_ = program.class_table();
  for (const program::Kind& kind : program.kinds) {
    kind_.push_back(trace_.intern(kind.op));
    recomputed_.push_back(trace_.intern(kind.op + " (recompute)"));
  }
  for (const program::Phase phase : {program::Phase::forward, program::Phase::backward,
                                     program::Phase::grad, program::Phase::optimizer}) {
    phase_.push_back(trace_.intern(to_string(phase)));
  }
  add_waits();
}

void TraceBuilder::add_waits() {
  std::vector<TraceWaits> of_class(program_.classes.size());
  for (size_t rank = 0; rank < class_of_rank_.size(); ++rank) {
    of_class[class_of_rank_[rank]].ranks.push_back(static_cast<int32_t>(rank));
  }
  for (size_t c = 0; c < of_class.size(); ++c) {
    const std::vector<program::Task>& tasks = program_.classes[c].tasks;
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (tasks[i].deps.empty()) continue;
      std::vector<int32_t> list = {static_cast<int32_t>(i)};
      for (const program::TaskId before : tasks[i].deps) {
        list.push_back(before.value());
      }
      of_class[c].tasks.push_back(std::move(list));
    }
    trace_.waits.push_back(std::move(of_class[c]));
  }
}

StringId TraceBuilder::layer_name(int32_t layer) {
  const auto [at, added] = layer_.try_emplace(layer, 0);
  if (added) {
    at->second = trace_.intern(graph::layer_name(layer, program_.num_layers));
  }
  return at->second;
}

StringId TraceBuilder::moves(program::ClassId cls, program::TaskId task) {
  const auto [at, added] = moves_.try_emplace(cls);
  if (added) {
    for (const std::string& names : program::parameters_moved(program_, cls)) {
      at->second.push_back(trace_.intern(names));
    }
  }
  return at->second[task];
}

void TraceBuilder::add(int32_t rank, program::TaskId task, int32_t step, int64_t start_ns,
                       int64_t end_ns) {
  // An event takes its kind, coordinates and cost from its task. A collective names the instance of
  // its group; an end of a message names the arrow that it shares with the other end.
  const program::RankClass& cls = program_.classes[class_of_rank_[rank]];
  HOCKET_CHECK(task >= 0 && static_cast<size_t>(task) < cls.tasks.size(), "task {} of {}", task,
               cls.tasks.size());
  const program::Task& done = cls.tasks[task];
  const program::Kind& kind = program_.kind(done);
  TraceEvent event;
  event.start_ns = start_ns;
  event.end_ns = end_ns;
  event.bytes = kind.bytes;
  event.flops = kind.flops;
  event.kind = kind_[done.kind];
  event.name = done.recompute ? recomputed_[done.kind] : 0;
  event.phase = phase_[place_of(done.phase)];
  event.task = static_cast<uint32_t>(task);
  event.rank = rank;
  event.step = step;
  event.micro_batch = done.micro_batch;
  event.stage = done.stage;
  event.layer = layer_name(done.layer);
  event.lane = static_cast<uint16_t>(done.lane);
  if (program::is_communication(kind)) {
    event.moves = moves(class_of_rank_[rank], task);
  }
  if (done.group != program::kNone) {
    event.group = group_instance(done.group, rank);
    event.group_ranks = static_cast<int32_t>(program_.size_of(program_.groups[done.group]));
  } else if (done.peer_axis != program::kNone && program::is_communication(kind)) {
    const int32_t peer = program_.peer_of(done.peer_map(), rank);
    const bool sends = comm::op(kind.communication).role == comm::Role::send;
    event.flow_end = sends ? FlowEnd::out : FlowEnd::in;
    event.flow = message(step, sends ? rank : peer, sends ? peer : rank, done.tag, sends);
  }
  trace_.events.push_back(event);
}

void TraceBuilder::add_step(int32_t rank, int32_t step, std::span<const int64_t> start_ns,
                            std::span<const int64_t> end_ns, int64_t offset_ns,
                            std::span<const int64_t> transfer_ns) {
  HOCKET_CHECK(start_ns.size() == end_ns.size(), "{} starts, {} ends", start_ns.size(),
               end_ns.size());
  for (size_t i = 0; i < start_ns.size(); ++i) {
    if (end_ns[i] < start_ns[i]) continue;
    add(rank, i, step, start_ns[i] + offset_ns, end_ns[i] + offset_ns);
    if (!transfer_ns.empty()) {
      trace_.events.back().waited_ns = std::max<int64_t>(0, transfer_ns[i] - start_ns[i]);
    }
  }
  add_live_bytes(rank, start_ns, end_ns, offset_ns);
}

// Returns the number of a message. Both ends count their messages, so that the k-th send matches
// the k-th receive.
int64_t TraceBuilder::message(int32_t step, int32_t sender, int32_t receiver, int32_t tag,
                              bool sends) {
  const Message message{step, sender, receiver, tag};
  const int32_t k = passed_[{message, sends}]++;
  return flows_.try_emplace({message, k}, static_cast<int64_t>(flows_.size()) + 1).first->second;
}

void TraceBuilder::add_live_bytes(int32_t rank, std::span<const int64_t> start_ns,
                                  std::span<const int64_t> end_ns, int64_t offset_ns) {
  // A step buffer is live from the start of the first task that uses it to the end of the last.
  // Starts add its bytes and ends subtract them; in order of time, the sum is the memory curve.
  const program::RankClass& cls = program_.classes[class_of_rank_[rank]];
  struct Life {
    int64_t from = INT64_MAX, to = INT64_MIN;
  };
  std::vector<Life> lives(cls.buffers.size());
  for (size_t i = 0; i < cls.tasks.size() && i < start_ns.size(); ++i) {
    if (end_ns[i] < start_ns[i]) continue;
    for (const auto* list : {&cls.tasks[i].in, &cls.tasks[i].out}) {
      for (program::BufferId buffer : *list) {
        Life& life = lives[cls.root(buffer)];
        life.from = std::min(life.from, start_ns[i]);
        life.to = std::max(life.to, end_ns[i]);
      }
    }
  }
  std::map<int64_t, int64_t> change;
  for (size_t b = 0; b < lives.size(); ++b) {
    const program::Buffer& buffer = cls.buffers[b];
    if (buffer.kind != program::BufferKind::step || lives[b].to < lives[b].from) continue;
    const int64_t bytes =
        buffer.expected_bytes != program::kNone ? buffer.expected_bytes : buffer.type.bytes();
    change[lives[b].from] += bytes;
    change[lives[b].to] -= bytes;
  }
  const StringId name = trace_.intern("step buffers");
  int64_t live = 0;
  for (const auto& [ns, delta] : change) {
    live += delta;
    if (delta != 0) {
      trace_.memory.push_back({ns + offset_ns, live, rank, name});
    }
  }
}

Trace TraceBuilder::take() {
  std::set<int32_t> steps;
  for (const TraceEvent& event : trace_.events) {
    steps.insert(event.step);
  }
  steps.erase(program::kNone);
  trace_.steps.assign(steps.begin(), steps.end());
  return std::exchange(trace_, Trace());
}

// Returns the id of a set of ranks: distinct ones are numbered in order of appearance.
int32_t TraceBuilder::group_instance(program::GroupId group, int32_t rank) {
  const auto [at, added] = group_of_rank_.try_emplace({group, rank}, 0);
  if (added) {
    std::vector<int32_t> ranks = program_.members(program_.groups[group], rank);
    at->second =
        groups_.try_emplace(std::move(ranks), static_cast<int32_t>(groups_.size())).first->second;
  }
  return at->second;
}

}  // namespace hocket::trace
