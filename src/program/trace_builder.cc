// SPDX-License-Identifier: Apache-2.0
#include "program/trace_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/hash.h"

namespace hocket::program {
namespace {

// Same for both ends of one message: 1 .. 2^53, so that JSON keeps it exactly.
int64_t flow_id(int32_t step, int32_t sender, int32_t receiver, int32_t tag) {
  uint64_t x = 0;
  for (const int32_t part : {step, sender, receiver, tag}) {
    x = hash_combine(x, static_cast<uint32_t>(part));
  }
  return static_cast<int64_t>(x >> 11) + 1;
}

}  // namespace

TraceBuilder::TraceBuilder(const Program& program, std::string title, std::string source)
    : program_(program) {
  trace_.title = std::move(title);
  trace_.source = std::move(source);
  trace_.num_ranks = program.mesh.size();
  for (int32_t r = 0; r < trace_.num_ranks; ++r) class_of_rank_.push_back(program.class_of(r));
  for (const Kind& kind : program.kinds) {
    kind_.push_back(trace_.intern(kind.op));
    recomputed_.push_back(trace_.intern(kind.op + " (recompute)"));
  }
  for (const Phase p : {Phase::forward, Phase::backward, Phase::grad, Phase::optimizer}) {
    phase_.push_back(trace_.intern(to_string(p)));
  }
}

void TraceBuilder::add(int32_t rank, TaskId task, int32_t step, int64_t start_ns, int64_t end_ns) {
  const RankClass& cls =
      program_.classes[static_cast<size_t>(class_of_rank_[static_cast<size_t>(rank)])];
  HOCKET_CHECK(task >= 0 && static_cast<size_t>(task) < cls.tasks.size(), "task {} of {}", task,
               cls.tasks.size());
  const Task& t = cls.tasks[static_cast<size_t>(task)];
  const Kind& kind = program_.kind(t);
  TraceEvent e;
  e.start_ns = start_ns;
  e.end_ns = end_ns;
  e.bytes = kind.bytes;
  e.flops = kind.flops;
  e.kind = kind_[static_cast<size_t>(t.kind)];
  e.name = t.recompute ? recomputed_[static_cast<size_t>(t.kind)] : 0;
  e.phase = phase_[static_cast<size_t>(t.phase)];
  e.task = static_cast<uint32_t>(task);
  e.rank = rank;
  e.step = step;
  e.micro_batch = t.micro_batch;
  e.stage = cls.stage;
  e.layer = t.layer;
  e.lane = static_cast<uint16_t>(t.lane);
  if (t.group != kNone) {
    e.group = group_instance(t.group, rank);
  } else if (t.peer_axis != kNone) {
    const int32_t peer = program_.peer_of(t, rank);
    const bool sends = kind.op == "send";
    e.flow_end = sends ? FlowEnd::out : FlowEnd::in;
    e.flow = sends ? flow_id(step, rank, peer, t.tag) : flow_id(step, peer, rank, t.tag);
  }
  trace_.events.push_back(e);
}

void TraceBuilder::add_step(int32_t rank, int32_t step, std::span<const int64_t> start_ns,
                            std::span<const int64_t> end_ns, int64_t offset_ns) {
  HOCKET_CHECK(start_ns.size() == end_ns.size(), "{} starts, {} ends", start_ns.size(),
               end_ns.size());
  for (size_t i = 0; i < start_ns.size(); ++i) {
    if (end_ns[i] < start_ns[i]) continue;
    add(rank, static_cast<TaskId>(i), step, start_ns[i] + offset_ns, end_ns[i] + offset_ns);
  }
}

void TraceBuilder::add_memory(int32_t rank, std::string_view name, int64_t t_ns, int64_t bytes) {
  trace_.memory.push_back({t_ns, bytes, rank, trace_.intern(name)});
}

Trace TraceBuilder::take() {
  std::set<int32_t> steps;
  for (const TraceEvent& e : trace_.events) steps.insert(e.step);
  steps.erase(kNone);
  trace_.steps.assign(steps.begin(), steps.end());
  return std::exchange(trace_, Trace());
}

// Ids count the distinct sets of ranks in order of appearance.
int32_t TraceBuilder::group_instance(GroupId group, int32_t rank) {
  const auto [at, added] = group_of_rank_.try_emplace({group, rank}, 0);
  if (added) {
    std::vector<int32_t> ranks =
        program_.members(program_.groups[static_cast<size_t>(group)], rank);
    ranks.push_back(group);  // two groups of the same ranks stay apart
    at->second =
        groups_.try_emplace(std::move(ranks), static_cast<int32_t>(groups_.size())).first->second;
  }
  return at->second;
}

}  // namespace hocket::program
