// SPDX-License-Identifier: Apache-2.0
#include "tests/check/rules_util.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "collectives/comm_op.h"
#include "ops/op.h"
#include "program/finalize.h"

namespace hocket::check::test {
namespace {

Case start(const models::ModelConfig& model, int64_t pp, int64_t dp, int64_t ep,
           int64_t micro_batches, Purpose purpose = Purpose::train) {
  parallel::Plan plan;
  plan.pp = pp;
  plan.dp = dp;
  plan.ep = ep;
  plan.num_micro_batches = micro_batches;
  return make_case(model, plan, 8, 0, purpose);
}

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Case one_rank() { return start(dense(1, false), 1, 1, 1, 2); }
Case two_ranks() { return start(dense(1, false), 1, 2, 1, 2); }
Case two_stages() { return start(dense(2, false), 2, 1, 1, 2); }
Case three_stages() { return start(dense(3, false), 3, 1, 1, 1); }
Case tied_stages() { return start(dense(2, true), 2, 1, 1, 2); }
Case four_experts() { return start(moe(1), 1, 4, 2, 2); }
Case four_ranks() { return start(dense(1, false), 1, 4, 1, 1); }
Case two_stages_two_ranks() { return start(dense(2, false), 2, 2, 1, 1); }
Case forward_only() { return start(dense(1, false), 1, 1, 1, 1, Purpose::loss); }

Edit::Edit(Case start)
    : graph(std::move(start.graph)),
      program(std::move(start.program)),
      reference_micro_batches(program.num_micro_batches) {}

TaskId Edit::find(const std::string& op, int n, int32_t c) const {
  const auto& tasks = program.classes[c].tasks;
  std::vector<TaskId> found;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (program.kind(tasks[i]).op == op) {
      found.push_back(i);
    }
  }
  const int count = static_cast<int>(found.size()), index = n < 0 ? count + n : n;
  if (index < 0 || index >= count) throw std::runtime_error("no such task: " + op);
  return found[index];
}

BufferId Edit::named(const std::string& name, int32_t micro_batch, int32_t c) const {
  const auto& buffers = program.classes[c].buffers;
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].name == name && buffers[b].micro_batch == micro_batch) {
      return b;
    }
  }
  throw std::runtime_error("no such buffer: " + name);
}

void Edit::set_cost(Kind& kind) {
  if (kind.communication != comm::Id::none) {
    kind = program::communication_kind(kind.communication, kind.attrs, kind.in, kind.out);
    return;
  }
  const ops::Cost cost = ops::cost_of(ops::find(kind.op), {kind.attrs, kind.in, kind.out});
  kind.flops = cost.flops;
  kind.bytes = cost.bytes;
  kind.workspace = cost.workspace;
}

void Edit::rekind(Task& t, const std::function<void(Kind&)>& change) {
  Kind kind = program.kind(t);
  change(kind);
  t.kind = program.intern(std::move(kind));
}

BufferId Edit::add_buffer(const graph::TensorType& type, int32_t c, Space space) {
  RankClass& rc = cls(c);
  int64_t& arena = space == Space::device ? rc.arena_bytes : rc.host_arena_bytes;
  program::Buffer b;
  b.type = type;
  b.space = space;
  b.offset = arena;
  arena += aligned(type.bytes());
  rc.buffers.push_back(b);
  return rc.buffers.size() - 1;
}

BufferId Edit::add_rows(BufferId base, int64_t begin, int64_t length, int32_t c) {
  program::Buffer view;
  view.kind = BufferKind::view;
  view.type = buffer(base, c).type;
  view.type.dims[0] = length;
  view.base = base;
  view.dim = 0;
  view.begin = begin;
  view.space = buffer(base, c).space;
  cls(c).buffers.push_back(view);
  return cls(c).buffers.size() - 1;
}

Task Edit::make(const std::string& op, const graph::Attrs& attrs, std::vector<BufferId> in,
                std::vector<BufferId> out, int32_t c) {
  Kind kind;
  kind.op = op;
  kind.communication = comm::find(op);
  kind.attrs = attrs;
  for (BufferId b : in) {
    kind.in.push_back(buffer(b, c).type);
  }
  for (BufferId b : out) {
    kind.out.push_back(buffer(b, c).type);
  }
  set_cost(kind);
  Task t;
  t.kind = program.intern(std::move(kind));
  t.in = std::move(in);
  t.out = std::move(out);
  return t;
}

Task Edit::make_collective(const std::string& op, const graph::Attrs& attrs,
                           std::vector<int32_t> axes, std::vector<BufferId> in,
                           std::vector<BufferId> out, int32_t c) {
  Task t = make(op, attrs, std::move(in), std::move(out), c);
  t.lane = Lane::intra;
  t.group = program.intern(program::group_over(std::move(axes)));
  return t;
}

Task Edit::make_message(const std::string& op, BufferId b, int32_t axis, int32_t peer, int32_t tag,
                        int32_t c) {
  const bool receive = op == "recv";
  Task t = receive ? make(op, {}, {}, {b}, c) : make(op, {}, {b}, {}, c);
  t.lane = receive ? Lane::intra_rx : Lane::intra_tx;
  t.peer_axis = axis;
  t.peer = peer;
  t.tag = tag;
  return t;
}

Task& Edit::insert(TaskId at, Task t, int32_t c, bool ordered) {
  RankClass& rc = cls(c);
  for (Task& other : rc.tasks) {
    for (TaskId& d : other.deps) {
      d = d >= at ? d + 1 : d;
    }
  }
  rc.tasks.insert(rc.tasks.begin() + at.value(), std::move(t));
  Task& added = rc.tasks[at];
  if (kind(added).workspace > 0) {
    // All tasks share one workspace in these programs.
    for (const Task& other : rc.tasks) {
      if (&other != &added && other.workspace != kNone) {
        added.workspace = other.workspace;
      }
    }
  }
  if (ordered) {
    std::array<TaskId, program::kNumLanes> last, next;
    last.fill(kNone);
    next.fill(kNone);
    for (TaskId i = 0; i < rc.tasks.size(); ++i) {
      const size_t lane = static_cast<size_t>(rc.tasks[i].lane);
      if (i < at) {
        last[lane] = i;
      }
      if (i > at && next[lane] == kNone) {
        next[lane] = i;
      }
    }
    for (size_t lane = 0; lane < last.size(); ++lane) {
      if (lane == static_cast<size_t>(added.lane)) continue;
      if (last[lane] != kNone) {
        added.deps.push_back(last[lane]);
      }
      if (next[lane] != kNone) {
        rc.tasks[next[lane]].deps.push_back(at);
      }
    }
  }
  return added;
}

void Edit::erase(TaskId at, int32_t c) {
  RankClass& rc = cls(c);
  rc.tasks.erase(rc.tasks.begin() + at.value());
  for (Task& t : rc.tasks) {
    std::erase(t.deps, at);
    for (TaskId& d : t.deps) {
      d = d > at ? d - 1 : d;
    }
  }
}

void Edit::move(TaskId from, TaskId to, int32_t c) {
  RankClass& rc = cls(c);
  const auto a = rc.tasks.begin() + from.value();
  const auto b = rc.tasks.begin() + to.value();
  if (from < to) {
    std::rotate(a, a + 1, b + 1);
  } else {
    std::rotate(b, a, a + 1);
  }
  auto moved = [from, to](TaskId t) {
    if (t == from) return to;
    if (from < t && t <= to) return t - 1;
    if (to <= t && t < from) return t + 1;
    return t;
  };
  for (Task& t : rc.tasks) {
    for (TaskId& d : t.deps) {
      d = moved(d);
    }
  }
}

void Edit::replan() { program::finalize(program); }

Verdict Edit::check() const {
  return Checker(graph, reference_micro_batches).check(program, options);
}

Verdict Edit::check_without(const std::string& rule) const {
  CheckOptions without = options;
  without.skip_rules = {rule};
  return Checker(graph, reference_micro_batches).check(program, without);
}

}  // namespace hocket::check::test
