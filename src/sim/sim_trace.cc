// SPDX-License-Identifier: Apache-2.0
// Replay → trace.
#include "sim/sim_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "sim/tables.h"

namespace hocket::sim {
namespace {

using program::FlowEnd;
using program::kNone;
using program::Task;
using program::Trace;
using program::TraceEvent;

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// Ids of messages: both ends count what they exchange per (sender, receiver, tag).
class Flows {
 public:
  int64_t id(int32_t from, int32_t to, int32_t tag, bool send) {
    const std::tuple key{from, to, tag};
    const int32_t k = next_[{key, send}]++;
    return ids_.emplace(std::pair(key, k), std::ssize(ids_) + 1).first->second;
  }

 private:
  using Key = std::tuple<int32_t, int32_t, int32_t>;
  std::map<std::pair<Key, bool>, int32_t> next_;
  std::map<std::pair<Key, int32_t>, int64_t> ids_;
};

/// Ids of group instances, the same for all members.
class Groups {
 public:
  explicit Groups(const Program& p) : p_(p) {}
  int32_t id(int32_t group, int32_t rank) {
    const auto [it, fresh] = ids_.emplace(std::pair(group, rank), 0);
    if (!fresh) return it->second;
    const int32_t next = count_++;
    for (int32_t m : p_.members(p_.groups[at(group)], rank)) ids_[{group, m}] = next;
    return ids_[{group, rank}] = next;
  }

 private:
  const Program& p_;
  std::map<std::pair<int32_t, int32_t>, int32_t> ids_;
  int32_t count_ = 0;
};

/// Live bytes of step buffers: from the start of the first task that writes one to the end of the
/// last that uses it.
void add_memory(const Program& p, const Replay& r, size_t i, Trace& trace) {
  const program::RankClass& cls = p.classes[at(p.class_of(r.ranks[i]))];
  std::vector<int64_t> from(cls.buffers.size(), -1), to(cls.buffers.size(), -1);
  for (size_t k = 0; k < cls.tasks.size(); ++k) {
    const size_t n = at(r.base[i]) + k;
    for (const auto* list : {&cls.tasks[k].in, &cls.tasks[k].out})
      for (program::BufferId b : *list) {
        if (b < 0 || at(b) >= cls.buffers.size()) continue;
        if (from[at(b)] < 0 || r.start_ns[n] < from[at(b)]) from[at(b)] = r.start_ns[n];
        to[at(b)] = std::max(to[at(b)], r.end_of_ns[n]);
      }
  }
  std::map<int64_t, int64_t> change;
  for (size_t b = 0; b < cls.buffers.size(); ++b) {
    if (cls.buffers[b].kind != program::BufferKind::step || from[b] < 0) continue;
    const program::Buffer& buffer = cls.buffers[b];
    const int64_t bytes =
        buffer.expected_bytes != kNone ? buffer.expected_bytes : buffer.type.bytes();
    change[from[b]] += bytes;
    change[to[b]] -= bytes;
  }
  const program::StringId name = trace.intern("step buffers");
  int64_t live = 0;
  for (const auto& [ns, delta] : change) {
    live += delta;
    if (delta != 0) trace.memory.push_back({ns, live, r.ranks[i], name});
  }
}

}  // namespace

program::Trace to_trace(const Program& p, const Replay& r) {
  HOCKET_CHECK(std::ssize(r.start_ns) == r.num_tasks, "the replay kept no timeline");
  Trace trace;
  trace.title = "predicted step";
  trace.source = "simulation";
  trace.num_ranks = p.mesh.size();
  trace.steps = {0};
  if (r.one_per_class && std::ssize(r.ranks) < p.mesh.size()) {
    std::string text;
    for (size_t i = 0; i < r.ranks.size(); ++i)
      text += fmt::format("{}rank {} stands for {}", i > 0 ? ", " : "", r.ranks[i], r.stands[i]);
    trace.set_property("replayed_ranks", text);
  }
  std::vector<program::StringId> kinds, phases;
  for (const program::Kind& k : p.kinds) kinds.push_back(trace.intern(k.op));
  for (int f = 0; f <= static_cast<int>(program::Phase::optimizer); ++f)
    phases.push_back(trace.intern(program::to_string(static_cast<program::Phase>(f))));
  Flows flows;
  Groups groups(p);
  trace.events.reserve(at(r.num_tasks));
  for (size_t i = 0; i < r.ranks.size(); ++i) {
    const int32_t rank = r.ranks[i];
    const program::RankClass& cls = p.classes[at(p.class_of(rank))];
    for (size_t k = 0; k < cls.tasks.size(); ++k) {
      const Task& t = cls.tasks[k];
      const program::Kind& kind = p.kind(t);
      const size_t n = at(r.base[i]) + k;
      TraceEvent e;
      e.start_ns = r.start_ns[n];
      e.end_ns = r.end_of_ns[n];
      e.bytes = kind.bytes;
      e.flops = kind.flops;
      e.kind = kinds[at(t.kind)];
      e.phase = phases[static_cast<size_t>(t.phase)];
      e.task = static_cast<uint32_t>(k);
      e.rank = rank;
      e.step = 0;
      e.micro_batch = t.micro_batch;
      e.stage = cls.stage;
      e.layer = t.layer;
      e.lane = static_cast<uint8_t>(t.lane);
      if (kind.op == "send" || kind.op == "recv") {
        const bool send = kind.op == "send";
        const int32_t peer = peer_rank(p, t.peer_axis, t.peer, rank);
        e.flow = flows.id(send ? rank : peer, send ? peer : rank, t.tag, send);
        e.flow_end = send ? FlowEnd::out : FlowEnd::in;
      } else if (t.group != kNone) {
        e.group = groups.id(t.group, rank);
      }
      trace.events.push_back(e);
    }
    add_memory(p, r, i, trace);
  }
  return trace;
}

}  // namespace hocket::sim
