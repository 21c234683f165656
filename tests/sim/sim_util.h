// SPDX-License-Identifier: Apache-2.0
// Hand-made programs for the simulator's tests: every kind carries its duration as attribute `ns`.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "program/program.h"
#include "sim/engine.h"

namespace hocket::sim {

using program::Lane;

/// Durations written into the kinds. Transfers across nodes of `per_node` ranks take
/// `across_factor` times the duration; devices of kind k, k + 1 times.
class FixedDurations : public Durations {
 public:
  explicit FixedDurations(const Program& p) : p_(p) {}
  int64_t work_ns(program::ClassId cls, TaskId t) override {
    return p_.kind(p_.classes[size_t(cls)].tasks[size_t(t)]).attrs.i("ns");
  }
  size_t device_of(int32_t rank) const override { return size_t(rank % kinds); }
  int64_t work_ns_on(size_t device, program::ClassId cls, TaskId t) override {
    return work_ns(cls, t) * int64_t(device + 1);
  }
  ShapeId shape_of(std::span<const int32_t> ranks) override {
    // On nodes of `per_node` ranks: 0 within a node, 1 across nodes.
    for (int32_t r : ranks) {
      if (r / per_node != ranks[0] / per_node) return 1;
    }
    return 0;
  }
  int64_t transfer_ns(program::ClassId cls, TaskId t, ShapeId shape) override {
    return work_ns(cls, t) * (shape == 1 ? across_factor : 1);
  }
  int32_t per_node = 1 << 30;
  int32_t kinds = 1;  ///< of devices: kind rank % kinds, from fast to slow
  int64_t across_factor = 1;

 private:
  const Program& p_;
};

/// Builder of programs, task by task.
struct Maker {
  Program p;

  explicit Maker(std::vector<graph::Axis> axes) {
    p.roles[0].mesh.axes = std::move(axes);
    const int32_t stages = p.roles[0].mesh.extent("pp");
    for (int32_t s = 0; s < stages; ++s) {
      program::RankClass c;
      c.name = "stage" + std::to_string(s);
      if (const int32_t pp = p.roles[0].mesh.axis("pp"); pp >= 0) {
        c.box = program::Box::at(pp, s);
      }
      p.classes.push_back(c);
    }
  }

  TaskId work(program::ClassId cls, const std::string& op, int64_t ns,
              std::vector<TaskId> deps = {}, Lane lane = Lane::compute) {
    program::Task t;
    t.kind = kind(op, ns);
    t.lane = lane;
    t.deps = std::move(deps);
    return add(cls, t);
  }
  TaskId collective(program::ClassId cls, std::vector<std::string> axes, int64_t ns,
                    std::vector<TaskId> deps = {}, const std::string& op = "all_reduce",
                    std::vector<int32_t> members = {}, Lane lane = Lane::intra) {
    program::Task t;
    t.kind = kind(op, ns);
    t.lane = lane;
    t.deps = std::move(deps);
    program::Group g;
    for (const std::string& a : axes) {
      g.axes.push_back(p.roles[0].mesh.axis(a));
    }
    g.members = std::move(members);
    if (!g.members.empty()) {
      g.along = p.roles[0].mesh.axis("pp");
    }
    t.group = p.intern(g);
    return add(cls, t);
  }
  TaskId send(program::ClassId cls, int32_t peer, int32_t tag, int64_t ns,
              std::vector<TaskId> deps = {}, const std::string& axis = "pp") {
    return p2p(cls, "send", Lane::intra_tx, peer, tag, ns, std::move(deps), axis);
  }
  TaskId recv(program::ClassId cls, int32_t peer, int32_t tag, std::vector<TaskId> deps = {},
              const std::string& axis = "pp") {
    return p2p(cls, "recv", Lane::intra_rx, peer, tag, 0, std::move(deps), axis);
  }
  /// Adds a message along dp by a permutation of its coordinates, and the matching receive; returns
  /// the receive.
  TaskId exchange(program::ClassId cls, const std::vector<int32_t>& to, int32_t tag, int64_t ns,
                  std::vector<TaskId> deps = {}) {
    const int32_t axis = p.roles[0].mesh.axis("dp");
    program::Table there{0, {axis}, {}};
    program::Table back{0, {axis}, std::vector<int64_t>(to.size(), 0)};
    for (size_t from = 0; from < to.size(); ++from) {
      const int64_t further = to[from] - static_cast<int64_t>(from);
      there.values.push_back(further);
      back.values[static_cast<size_t>(to[from])] = -further;
    }
    const TaskId sent = send(cls, 0, tag, ns, deps, "dp");
    const TaskId came = recv(cls, 0, tag, std::move(deps), "dp");
    auto& tasks = p.classes[size_t(cls)].tasks;
    tasks[sent].peer_by = p.intern(there);
    tasks[came].peer_by = p.intern(back);
    return came;
  }

 private:
  TaskId p2p(program::ClassId cls, const std::string& op, Lane lane, int32_t peer, int32_t tag,
             int64_t ns, std::vector<TaskId> deps, const std::string& axis) {
    program::Task t;
    t.kind = kind(op, ns);
    t.lane = lane;
    t.deps = std::move(deps);
    t.peer_axis = p.roles[0].mesh.axis(axis);
    t.peer = peer;
    t.tag = tag;
    return add(cls, t);
  }
  program::KindId kind(const std::string& op, int64_t ns) {
    program::Kind k;
    k.op = op;
    k.attrs.set("ns", ns);
    return p.intern(k);
  }
  TaskId add(program::ClassId cls, program::Task t) {
    auto& tasks = p.classes[size_t(cls)].tasks;
    t.stage = cls.value();
    tasks.push_back(std::move(t));
    return TaskId(tasks.size() - 1);
  }
};

/// Returns "0 compute fwd 0..10" per task of every replayed rank, in issue order.
inline std::string timeline(const Program& p, const Replay& r) {
  std::string out;
  for (size_t i = 0; i < r.ranks.size(); ++i) {
    const auto& tasks = p.classes[size_t(p.class_of(r.ranks[i]))].tasks;
    for (size_t k = 0; k < tasks.size(); ++k) {
      const size_t n = size_t(r.base[i]) + k;
      out += std::to_string(r.ranks[i]) + " " + program::to_string(tasks[k].lane) + " " +
             p.kind(tasks[k]).op + " " + std::to_string(r.start_ns[n]) + ".." +
             std::to_string(r.end_of_ns[n]) + "\n";
    }
  }
  return out;
}

inline Replay run(const Program& p, ReplayOptions options = {}) {
  FixedDurations d(p);
  return replay(p, d, options);
}

}  // namespace hocket::sim
