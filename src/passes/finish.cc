// SPDX-License-Identifier: Apache-2.0
#include "passes/finish.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "check/check.h"
#include "collectives/comm_op.h"
#include "collectives/implementation.h"
#include "ops/op.h"
#include "program/finalize.h"
#include "program/parts.h"
#include "program/traffic.h"

namespace hocket::passes {

namespace {

/// Ranks that meet in the collectives of a kind, and the number among them of one that has it.
struct Membership {
  int64_t members = 0, me = 0;
};
Membership members_of(const program::Program& program, program::KindId kind) {
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    for (const program::Task& task : program.classes[cls].tasks) {
      if (task.kind != kind || task.group == program::kNone) continue;
      const program::Group& group = program.groups[task.group];
      const program::RoleId role = program.classes[cls].role;
      if (group.role != role && group.with != role) {
        fail("group", "group {} is of role {}; a task of it is in a class of role {}", task.group,
             group.role, role);
      }
      const int32_t rank = program.ranks_of(cls)[0];
      const std::vector<int32_t> all = program.members(group, rank);
      return {std::ssize(all), std::lower_bound(all.begin(), all.end(), rank) - all.begin()};
    }
  }
  return {};
}

void complete_communication(const program::Program& program, program::KindId id,
                            program::Kind* kind) {
  const comm::Op& op = comm::op(kind->communication);
  if (op.role == comm::Role::collective) {
    const auto [members, me] = members_of(program, id);
    if (members == 0) fail(op.name, "a task of it has no group");
    std::vector<graph::TensorType> out = comm::infer(op, kind->attrs, kind->in, members, me);
    if (kind->out.empty()) {
      kind->out = std::move(out);
    }
  }
  const comm::Arity arity = comm::arity(op, kind->in.size());
  if (kind->in.size() != arity.in || kind->out.size() != arity.out) {
    fail(op.name, "got {} and {}; expected {} and {}{}", counted(std::ssize(kind->in), "input"),
         counted(std::ssize(kind->out), "output"), arity.in, arity.out,
         op.role == comm::Role::receive ? ": try out=\"TYPE\", the sent type" : "");
  }
  kind->bytes = op.payload(kind->attrs, graph::expected_types(kind->in, program.symbols),
                           graph::expected_types(kind->out, program.symbols));
  if (kind->workspace > 0) {
    // The transport is recognised by its workspace; a run states it again.
    const int64_t members = program::most_members(program)[id.value()];
    const auto takes = [&](comm::Collectives collectives) {
      return comm::transport_bytes(collectives, op, kind->attrs, kind->in, kind->out, members);
    };
    const int64_t of_own = takes(comm::Collectives::own);
    kind->workspace = kind->workspace == of_own ? of_own : takes(comm::Collectives::c10d);
  }
}

/// Returns, by kind, whether a task has it.
std::vector<bool> used_kinds(const program::Program& program) {
  std::vector<bool> used(program.kinds.size(), false);
  for (const program::RankClass& cls : program.classes) {
    for (const program::Task& task : cls.tasks) {
      used[task.kind] = true;
    }
  }
  return used;
}

/// Returns, per kind, the number of experts over which its rows are spread; 0: none. Rows keep the
/// number of their dispatch, which the sizes of an exchange record.
std::vector<int64_t> experts_of(const program::Program& program) {
  std::vector<int64_t> by_kind(program.kinds.size(), 0);
  for (const program::RankClass& cls : program.classes) {
    // By buffer; ids are not known to be good here, and routed rows have no views.
    std::map<program::BufferId, int64_t> of;
    for (const program::Task& task : cls.tasks) {
      const program::Kind& kind = program.kind(task);
      int64_t experts = 0;
      for (size_t i = 0; i < std::min(task.in.size(), kind.in.size()); ++i) {
        const graph::TensorType& type = kind.in[i];
        const bool sizes = type.dtype == graph::DType::i64 && type.dims.size() == 2;
        experts = std::max(experts, sizes ? int64_t{type.dims[1]} : of[task.in[i]]);
      }
      for (size_t i = 0; i < std::min(task.out.size(), kind.out.size()); ++i) {
        if (!kind.out[i].routed()) continue;
        experts = std::max(experts, int64_t{kind.out[i].dims[0]});
        of[task.out[i]] = experts;
      }
      by_kind[task.kind] = std::max(by_kind[task.kind], experts);
    }
  }
  return by_kind;
}

std::string types_text(const std::vector<graph::TensorType>& types) {
  std::string text;
  for (const graph::TensorType& type : types) {
    text += (text.empty() ? "" : " ") + graph::to_string(type);
  }
  return text.empty() ? "nothing" : text;
}

void complete_types(program::Kind* kind) {
  const ops::Op& op = ops::find(kind->op);
  std::vector<graph::TensorType> out = op.infer(kind->attrs, kind->in);
  if (kind->out.empty()) {
    kind->out = std::move(out);
  } else if (!ops::makes(op, kind->attrs, kind->in, kind->out)) {
    fail(op.name, "makes {}; the kind says {}", types_text(out), types_text(kind->out));
  }
}

void complete_costs(const program::Program& program, program::Kind* kind, int64_t experts) {
  const ops::Op& op = ops::find(kind->op);
  const ops::Cost cost =
      ops::cost_of(op, {kind->attrs, kind->in, kind->out, experts, program.symbols});
  kind->workspace = std::max(kind->workspace, cost.workspace);
  if (kind->flops == 0 && kind->bytes == 0) {
    kind->flops = cost.flops;
    kind->bytes = cost.bytes;
  }
}

/// "line 12: " of the text that has the kind; "" of none.
std::string line_of(std::string_view text, size_t kind) {
  const size_t at = text.find(fmt::format("\nkind k{} ", kind));
  if (at == text.npos) return "";
  return fmt::format("line {}: ", std::count(text.begin(), text.begin() + at, '\n') + 2);
}

void complete_lanes(program::Program& program) {
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    for (program::Task& task : program.classes[cls].tasks) {
      const program::Kind& kind = program.kind(task);
      if (!program::is_communication(kind)) continue;
      const bool leaves = task.group != program::kNone
                              ? program.leaves_node(program.groups[task.group], cls)
                              : program.leaves_node(task.peer_map(), cls);
      task.lane = program::link_lane(comm::op(kind.communication).role, leaves,
                                     program::order_of(task.lane));
    }
  }
}

}  // namespace

void complete(program::Program& program, const std::string& where, std::string_view text) {
  // Costs come after the types of all kinds, which give the number of experts.
  const std::vector<bool> used = used_kinds(program);
  const auto for_each_kind = [&](const auto& visit) {
    for (size_t id = 0; id < program.kinds.size(); ++id) {
      if (!used[id]) continue;
      program::Kind& kind = program.kinds[id];
      try {
        visit(id, kind);
      } catch (const Error& error) {
        fail(where, "{}kind k{} ({}): {}", line_of(text, id), id, kind.op, error.text());
      }
    }
  };
  for_each_kind([&](size_t id, program::Kind& kind) {
    if (program::is_communication(kind)) {
      complete_communication(program, id, &kind);
    } else {
      complete_types(&kind);
    }
  });
  const std::vector<int64_t> experts = experts_of(program);
  for_each_kind([&](size_t id, program::Kind& kind) {
    if (!program::is_communication(kind)) {
      complete_costs(program, &kind, experts[id]);
    }
  });
  complete_lanes(program);
}

program::Program with_dependencies(const program::Program& program, const std::string& where) {
  // Dependencies need topological order, and the memory plan needs a write before every read: the
  // structural check verifies both, with the same messages as `check`.
  program::Program draft = program;
  for (program::RankClass& cls : draft.classes) {
    cls.arena_bytes = 0;
    cls.host_arena_bytes = 0;
    for (program::Buffer& buffer : cls.buffers) {
      buffer.offset = program::kNone;
    }
    for (size_t i = 0; i < cls.tasks.size(); ++i) {
      cls.tasks[i].workspace = program::kNone;
      for (program::TaskId dep : cls.tasks[i].deps) {
        if (dep < 0 || dep >= i) {
          fail(where, "task {} depends on task {}; expected an earlier one", i, dep);
        }
      }
    }
  }
  for (program::RankClass& cls : draft.classes) {
    program::add_dependencies(draft, cls);
  }
  check::CheckOptions options;
  options.allow_unplanned = true;
  const check::Verdict verdict = check::check_structure(draft, options);
  if (!verdict.ok()) fail(where, "can't be finished:\n{}", check::to_text(verdict));
  return draft;
}

void finish(program::Program& program, const std::string& where, std::string_view text) {
  // Tasks in parts are written out, so that each waits for no more than it needs.
  complete(program, where, text);
  if (program::has_parts(program)) {
    program = program::expand_parts(program).program;
    complete(program, where);
  }
  program::Program draft = with_dependencies(program, where);
  for (program::RankClass& cls : draft.classes) {
    program::plan_memory(draft, cls);
  }
  program = std::move(draft);
}

}  // namespace hocket::passes
