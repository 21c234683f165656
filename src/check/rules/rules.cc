// SPDX-License-Identifier: Apache-2.0
#include "check/rules/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/math.h"
#include "check/values/pieces.h"

namespace hocket::check {

using program::Buffer;
using program::Kind;
using program::kNone;

namespace {

// Each predicate returns "" if its rule holds, else the fault. The tables at the end of this file
// give the name, the statement and the fix of each rule.

/// Returns the fault of a type, or "". A valid type has positive dims, at most kMaxDims of them,
/// and a size far from overflow. Its blocks and bytes are whole, and its symbols are those of the
/// program's table.
std::string type_fault(const Context& ctx, const graph::TensorType& type) {
  if (type.dims.size() > kMaxDims) return "the type " + to_string(type);
  double bytes = 8.0 * std::max(type.top_k, 1);
  for (int64_t dim : type.dims) {
    if (dim <= 0) return "the type " + to_string(type);
    bytes *= static_cast<double>(dim);
  }
  if (!(bytes < 1e17) || type.top_k < 0 || (type.routed() && type.dims.size() < 2)) {
    return "the type " + to_string(type);
  }
  if (const std::string why = graph::why_invalid(type); !why.empty()) {
    return fmt::format("the type {}: {}", to_string(type), why);
  }
  return graph::symbols_differ(type, ctx.program.symbols);
}

// --- kinds: shared by tasks of the same shape ----------------------------------------------------

/// Checks only the number of operands of communication: its types depend on the number of ranks in
/// the task's group (collective_types_follow).
std::string kind_types_differ(const Kind& kind, const KindInfo& info) {
  if (info.comm) {
    const comm::Arity got{kind.in.size(), kind.out.size()};
    const comm::Arity want = comm::arity(*info.comm, kind.in.size());
    if (got == want) return "";
    return fmt::format("{} has {} inputs and {} outputs; expected {} and {}", kind.op, got.in,
                       got.out, want.in, want.out);
  }
  if (ops::makes(*info.rules, kind.attrs, kind.in, kind.out)) return "";
  const std::vector<graph::TensorType> out_types = info.rules->infer(kind.attrs, kind.in);
  return fmt::format("{}{} on {} gives {}; the kind says {}", kind.op, graph::to_string(kind.attrs),
                     types_text(kind.in), types_text(out_types), types_text(kind.out));
}

/// Refuses kinds of two ops: Kind::communication runs, while all else reads Kind::op.
std::string known_op(const Context&, const Kind& kind, const KindInfo& info) {
  if (info.op_class == OpClass::unknown) return fmt::format("unknown op '{}'", kind.op);
  const comm::Id id = info.comm ? info.comm->id : comm::Id::none;
  return kind.communication == id ? "" : fmt::format("{} is run as another op", kind.op);
}

std::string types_sane(const Context& ctx, const Kind& kind, const KindInfo&) {
  for (const auto* list : {&kind.in, &kind.out}) {
    for (const auto& type : *list) {
      if (const std::string why = type_fault(ctx, type); !why.empty()) {
        return fmt::format("{} has an operand of {}", kind.op, why);
      }
    }
  }
  return "";
}

std::string kind_types_follow(const Context&, const Kind& kind, const KindInfo& info) {
  if (info.op_class == OpClass::unknown) return "";
  try {
    return kind_types_differ(kind, info);
  } catch (const std::exception& exception) {
    return exception.what();
  }
}

std::string workspace_declared(const Context&, const Kind& kind, const KindInfo& info) {
  if (kind.workspace < 0) return fmt::format("workspace is {} bytes", kind.workspace);
  if (!info.rules) return "";
  try {
    const int64_t want = ops::workspace_of(*info.rules, {kind.attrs, kind.in, kind.out});
    if (kind.workspace >= want) return "";
    return fmt::format("workspace is {} bytes; {} needs {}", kind.workspace, kind.op, want);
  } catch (const std::exception&) {
    return "";  // refused by types-follow
  }
}

// --- groups, buffers, classes --------------------------------------------------------------------

std::string group_axes(const Context& ctx, const program::Group& group, size_t) {
  if (!in_range(group.role, ctx.program.roles.size())) {
    return fmt::format("role {} does not exist", group.role);
  }
  // A group has all ranks of two roles, or ranks of one role that differ on some axes. One axis may
  // be restricted to members.
  if (group.with != kNone) {
    if (!in_range(group.with, ctx.program.roles.size())) {
      return fmt::format("role {} does not exist", group.with);
    }
    if (group.with <= group.role) return "is of two roles, but not the earlier one with the later";
    if (group.axes.empty() && group.along == kNone && group.members.empty()) return "";
    return "is of all ranks of two roles, but has axes or members";
  }
  const auto& axes = ctx.program.roles[group.role].mesh.axes;
  for (size_t i = 0; i < group.axes.size(); ++i) {
    if (!in_range(group.axes[i], axes.size())) {
      return fmt::format("axis {} does not exist", group.axes[i]);
    }
    if (i && group.axes[i] <= group.axes[i - 1]) return "axes are not in mesh order";
  }
  if (group.members.empty()) return group.along == kNone ? "" : "has an axis of members, but none";
  if (std::find(group.axes.begin(), group.axes.end(), group.along) == group.axes.end()) {
    return "has members, but not along one of its axes";
  }
  for (size_t i = 0; i < group.members.size(); ++i) {
    if (!in_range(group.members[i], static_cast<size_t>(axes[group.along].size))) {
      return fmt::format("member {} of axis {} does not exist", group.members[i],
                         axes[group.along].name);
    }
    if (i && group.members[i] <= group.members[i - 1]) return "members are not in ascending order";
  }
  return "";
}

/// Transports and the order of collectives are kept per group, so a set of ranks must have one
/// group only.
std::string group_once(const Context& ctx, const program::Group& group, size_t index) {
  const program::Group mine = ctx.program.canonical(group);
  for (size_t i = 0; i < index; ++i) {
    if (ctx.program.canonical(ctx.program.groups[i]) == mine) {
      return fmt::format("has the same ranks as group {}", i);
    }
  }
  return "";
}

/// Refuses nodes with more ranks than the cluster's have devices: the lanes of a rank depend on its
/// node.
std::string ranks_per_node(const Context& ctx, const RankClass&, size_t index) {
  const int64_t devices = ctx.options.devices_per_node;
  if (devices <= 0 || index != 0) return "";
  const int64_t ranks = ctx.program.num_ranks();
  const int64_t said = ctx.program.ranks_per_node;
  const int64_t together = said > 0 ? std::min(said, ranks) : ranks;
  if (together <= devices) return "";
  return fmt::format("the program has {} ranks on a node; the cluster's nodes have {} devices",
                     together, devices);
}

std::string has_plan(const Context& ctx, const RankClass& cls, size_t) {
  if (ctx.planned || ctx.options.allow_unplanned) return "";
  const auto unplaced =
      std::count_if(cls.buffers.begin(), cls.buffers.end(),
                    [](const Buffer& buffer) { return buffer.kind == BufferKind::step; });
  const auto homeless = std::count_if(cls.tasks.begin(), cls.tasks.end(), [&](const Task& task) {
    if (!in_range(task.kind, ctx.program.kinds.size())) return false;
    const Kind& kind = ctx.program.kind(task);
    return kind.workspace > 0 && !program::is_communication(kind) && task.workspace == kNone;
  });
  if (unplaced == 0 && homeless == 0) return "";
  return fmt::format("has {} step buffers, {} tasks with workspaces, and no memory plan", unplaced,
                     homeless);
}

std::string addresses(const Context&, const RankClass& cls, size_t) {
  if (program::addresses_of(cls) <= program::kMaxAddresses) return "";
  return fmt::format("has an arena of {} bytes, {} in host memory, and named buffers",
                     cls.arena_bytes, cls.host_arena_bytes);
}

std::string buffer_type(const Context& ctx, const RankClass&, const Buffer& buffer) {
  if (const std::string why = type_fault(ctx, buffer.type); !why.empty()) return "has " + why;
  if (buffer.expected_bytes != kNone &&
      (buffer.expected_bytes < 0 || buffer.expected_bytes > buffer.type.bytes())) {
    return fmt::format("expects {} bytes of {}", buffer.expected_bytes, buffer.type.bytes());
  }
  return "";
}

/// Refuses expected bytes of other buffers than routed ones of a step. Only the number of routed
/// rows varies from step to step.
std::string expected_routed(const Context&, const RankClass&, const Buffer& buffer) {
  if (buffer.expected_bytes == kNone || (buffer.kind == BufferKind::step && buffer.type.routed())) {
    return "";
  }
  return fmt::format("expects {} bytes, but {}", buffer.expected_bytes,
                     buffer.type.routed() ? "the host reads or writes all of it"
                                          : fmt::format("always holds {}", buffer.type.bytes()));
}

/// Allows a symbol in a persistent tensor only at dim 0, and only whole on its rank. So rows keep
/// their places when their number changes.
std::string symbols_stay(const Context&, const RankClass&, const Buffer& buffer) {
  if (buffer.kind != BufferKind::persistent) return "";
  for (size_t d = 0; d < buffer.type.dims.size(); ++d) {
    const graph::Dim& dim = buffer.type.dims[d];
    if (!dim.symbolic() || (d == 0 && dim.parts() == 1 && !buffer.type.routed())) continue;
    return fmt::format("is {}, and dim {} changes from step to step", to_string(buffer.type), d);
  }
  return "";
}

std::string view_base(const Context& ctx, const RankClass& cls, const Buffer& buffer) {
  if (buffer.kind != BufferKind::view) {
    if (buffer.base != kNone || buffer.by != kNone) return "is no view, but has a base";
    return buffer.dim == kNone && buffer.begin == 0 ? "" : "is no view, but has a dim or a begin";
  }
  // Faults: a base that is itself a view or has routed rows, another element type or memory, and
  // fields that only a base has. All views of a base must run along one dim.
  if (buffer.base == kNone) return "has no base";
  const Buffer& base = cls.buffers[buffer.base];
  if (base.kind == BufferKind::view) return "is a view of a view";
  if (base.type.routed()) return "is a part of routed rows, whose order is not its own";
  if (base.type.dtype != buffer.type.dtype || base.type.encoding != buffer.type.encoding ||
      buffer.type.routed()) {
    return fmt::format("is {} in a base of {}", to_string(buffer.type), to_string(base.type));
  }
  if (base.space != buffer.space) {
    return fmt::format("lies in {} memory, its base in {} memory", to_string(buffer.space),
                       to_string(base.space));
  }
  if (!buffer.name.empty() || buffer.offset != kNone || buffer.expected_bytes != kNone) {
    return "has a name, an offset or an expected size, which are its base's";
  }
  const ClassId id = &cls - ctx.program.classes.data();
  const Buffer& first = cls.buffers[ctx.first_view(id, buffer.base)];
  if (first.dim != buffer.dim) {
    return fmt::format("is cut along dim {}, another view of its base along dim {}", buffer.dim,
                       first.dim);
  }
  return "";
}

/// Returns whether the view is one of several equal parts of a symbol, along dim 0 of the base.
bool is_part_of_symbol(const graph::TensorType& base, const Buffer& view) {
  if (view.dim != 0 || base.dims.empty() || view.type.dims.empty()) return false;
  graph::Dim dim = base.dims[0];
  const graph::Dim& part = view.type.dims[0];
  if (!dim.symbolic() || !part.symbolic() || part.parts() % dim.parts() != 0) return false;
  const int64_t parts = part.parts() / dim.parts();
  if (!dim.divides_into(parts)) return false;
  dim /= parts;
  return dim == part;
}

std::string view_region(const Context& ctx, const RankClass& cls, const Buffer& buffer) {
  // A view along a dim has its type's number of indices there, and equals its base in all other
  // dims. A flat view has the elements of its type. All of it must lie in the base, on every rank
  // of the class.
  if (buffer.kind != BufferKind::view) return "";
  // The begin of a view, in elements, must be known before a step, and must be the begin of a byte
  // and of a block. So there is no symbol along its dim or behind it. The exception is equal parts
  // of a symbol at dim 0, which begin behind a fixed number of parts.
  const graph::TensorType& base = cls.buffers[buffer.base].type;
  int64_t size = base.numel();
  int64_t length = buffer.type.numel();
  const bool part_of_symbol = is_part_of_symbol(base, buffer);
  for (const graph::TensorType* type : {&base, &buffer.type}) {
    for (size_t dim = 0; dim < type->dims.size(); ++dim) {
      if (!type->dims[dim].symbolic() || std::cmp_less(dim, buffer.dim)) continue;
      if (dim == 0 && part_of_symbol) continue;
      return fmt::format("has another begin in every step: dim {} of {} is a symbol", dim,
                         to_string(*type));
    }
  }
  if (buffer.dim != kNone) {
    if (!in_range(buffer.dim, base.dims.size()) || buffer.type.dims.size() != base.dims.size()) {
      return fmt::format("is no part of {} along dim {}", to_string(base), buffer.dim);
    }
    for (size_t dim = 0; dim < base.dims.size(); ++dim) {
      if (static_cast<int32_t>(dim) != buffer.dim && buffer.type.dims[dim] != base.dims[dim]) {
        return fmt::format("differs from {} in more than dim {}", to_string(base), buffer.dim);
      }
    }
    size = base.dims[buffer.dim];
    length = buffer.type.dims[buffer.dim];
  }
  if (program::is_offset_too_large(buffer.begin)) return fmt::format("begins at {}", buffer.begin);
  const ClassId id = &cls - ctx.program.classes.data();
  const bool along_elements =
      buffer.dim == kNone || std::cmp_equal(buffer.dim + 1, base.dims.size());
  const auto inside_granule = [&](int64_t begin) {
    return along_elements && begin % base.granule() != 0;
  };
  const auto inside_part = [&](int64_t begin) { return part_of_symbol && begin % length != 0; };
  const auto outside = [&](int64_t begin) {
    return begin < 0 || length < 0 || length > size || begin > size - length;
  };
  // The least wrong begin, and the first rank with it.
  std::optional<std::pair<int64_t, int32_t>> wrong;
  const auto look_at = [&](int64_t begin, int32_t rank) {
    if (!inside_granule(begin) && !inside_part(begin) && !outside(begin)) return;
    if (!wrong || begin < wrong->first) {
      wrong = {begin, rank};
    }
  };
  if (buffer.by == kNone) {
    look_at(buffer.begin, kNone);
  } else {
    const int32_t first = ctx.program.first_rank(cls.role);
    program::for_each_coords(ctx.program, id, ctx.program.tables[buffer.by].axes,
                             [&](const std::vector<int32_t>& at) {
                               look_at(ctx.program.begin_at(buffer.begin, buffer.by, at),
                                       first + ctx.program.mesh_of(id).rank(at));
                             });
  }
  if (!wrong) return "";
  const auto& [begin, rank] = *wrong;
  const std::string on = rank == kNone ? "" : fmt::format(" on rank {}", rank);
  if (inside_granule(begin)) {
    return fmt::format("begins at {} of {}{}, inside a {}", begin, to_string(base), on,
                       base.encoding ? "block" : "byte");
  }
  if (inside_part(begin)) {
    return fmt::format("begins at {}{}, inside one of the parts of {} that {} is", begin, on,
                       to_string(base.dims[0]), to_string(buffer.type.dims[0]));
  }
  return fmt::format("has {} from {} on, of {}{}", length, begin, size, on);
}

/// Refuses buffers outside of the arena. A ragged buffer must have room for its bound, although the
/// plan counts fewer bytes.
std::string arena_bounds(const Context& ctx, const RankClass& cls, const Buffer& buffer) {
  if (buffer.kind != BufferKind::step) {
    return buffer.offset == kNone ? "" : "is named but has an arena offset";
  }
  if (!ctx.planned) return "";
  if (buffer.offset == kNone) {
    return "";  // if used, refused by task rule buffer-planned
  }
  const int64_t arena = cls.arena(buffer.space);
  if (buffer.offset < 0 || buffer.offset % 64 != 0 || buffer.offset > arena) {
    return fmt::format("has the offset {}, not a multiple of 64 in the arena", buffer.offset);
  }
  if (buffer.type.bytes() > arena - buffer.offset) {
    return fmt::format("ends at {}, beyond the arena of {} bytes",
                       static_cast<uint64_t>(buffer.offset) + buffer.type.bytes(), arena);
  }
  return "";
}

/// Returns why slots can't be read in order; "" if they can. Rule named-tensor compares their
/// tensors.
std::string bad_slots(const RankClass& cls, const program::Program& program, const Buffer& buffer) {
  if (buffer.slots.empty()) return "";
  if (buffer.kind == BufferKind::input) return "has slots, but the host feeds inputs one by one";
  if (buffer.type.dims.size() != 1 || buffer.type.routed()) {
    return fmt::format("has slots in {}, which is not flat", to_string(buffer.type));
  }
  int64_t before = 0;
  for (const program::Slot& slot : buffer.slots) {
    if (program::is_offset_too_large(slot.begin))
      return fmt::format("has a slot at {}", slot.begin);
    if (slot.begin < before) return fmt::format("has a slot at {}, behind {}", slot.begin, before);
    before = slot.begin;
    const size_t axes = program.roles[cls.role].mesh.axes.size();
    for (size_t axis = 0; axis < graph::kMaxAxes; ++axis) {
      if (axis >= axes && !slot.layout[axis].is_replicate()) {
        return fmt::format("has a slot of '{}' on an axis that the mesh lacks", slot.tensor);
      }
      if (slot.layout[axis].is_partial()) {
        return fmt::format("has a slot of '{}' that is partial", slot.tensor);
      }
    }
  }
  return "";
}

/// Refuses what the host cannot fill or read: it does so with whole values, by layout, with no
/// split beyond the type's dims. Rule result-missing checks that all parts are there.
std::string host_contract(const Context& ctx, const RankClass& cls, const Buffer& buffer) {
  if (buffer.kind == BufferKind::step || buffer.kind == BufferKind::view) {
    return buffer.slots.empty() ? "" : "has slots, but no name for the host";
  }
  if (buffer.name.empty()) return "has no name";
  if (const std::string wrong = bad_slots(cls, ctx.program, buffer); !wrong.empty()) return wrong;
  const size_t rank = buffer.type.dims.size();
  for (size_t axis = 0; axis < graph::kMaxAxes; ++axis) {
    const graph::Placement placement = buffer.layout[axis];
    const auto& axes = ctx.program.roles[cls.role].mesh.axes;
    if (placement.is_replicate()) continue;
    if (axis >= axes.size()) {
      return fmt::format("'{}' lies on an axis that the mesh lacks", buffer.name);
    }
    if (axes[axis].size == 1) continue;
    if (placement.is_partial()) {
      return fmt::format("'{}' is partial over {}", buffer.name, axes[axis].name);
    }
    if (!in_range(placement.dim(), rank)) {
      return fmt::format("'{}' is split in a way that its type does not allow", buffer.name);
    }
  }
  return "";
}

}  // namespace

std::string types_text(const std::vector<graph::TensorType>& list) {
  std::string text;
  for (const auto& type : list) {
    text += (text.empty() ? "" : ", ") + graph::to_string(type);
  }
  return "(" + text + ")";
}

// --- the tables ----------------------------------------------------------------------------------

const std::vector<Rule<const Kind&, const KindInfo&>>& kind_rules() {
  static const std::vector<Rule<const Kind&, const KindInfo&>> rules = {
      {"known-op", "every op is one of src/ops or a communication op",
       "use an op of src/ops/ops.inc or a communication op", known_op},
      {"types-sane", "there are at most six dimensions, all positive, and sizes do not overflow",
       "correct the types of the kind", types_sane},
      {"types-follow",
       "output types are those that the op's rule infers from the local input types",
       "correct the types of the kind or the op and attributes it names", kind_types_follow},
      {"workspace-declared", "a kernel's workspace is at least what its op declares",
       "leave the workspace out: `hocket graph --finish FILE` finds it", workspace_declared},
  };
  return rules;
}

const std::vector<Rule<const program::Group&, size_t>>& group_rules() {
  static const std::vector<Rule<const program::Group&, size_t>> rules = {
      {"group-axes", "a group names axes of its role once each, and members along one of them",
       "list the axes of the group in mesh order, and existing coordinates as members", group_axes},
      {"group-once", "no two groups have the same ranks",
       "use one group for one set of ranks: Program::intern leaves out axes of one rank",
       group_once},
  };
  return rules;
}

const std::vector<Rule<const RankClass&, size_t>>& class_rules() {
  static const std::vector<Rule<const RankClass&, size_t>> rules = {
      {"ranks-per-node", "no node has more ranks than the cluster's nodes have devices",
       "lower it with plan.ranks_per_node", ranks_per_node},
      {"has-plan", "step buffers have places in the arena (a program between passes need not)",
       "plan its memory: `hocket graph --finish FILE`", has_plan},
      {"addresses", "the memory of a rank has no more addresses than a process (2^47 bytes)",
       "plan its memory: `hocket graph --finish FILE`", addresses},
  };
  return rules;
}

const std::vector<Rule<const RankClass&, const Buffer&>>& view_rules() {
  static const std::vector<Rule<const RankClass&, const Buffer&>> rules = {
      {"view-base",
       "a view is a part of one buffer that is no view, of its element type and in its space; "
       "only views have a base",
       "name the buffer that has the memory; its views are cut along one dim, or all flat",
       view_base},
      {"view-region", "a view lies inside its base on every rank of the class",
       "correct begin, the table, or the type of the view", view_region},
  };
  return rules;
}

const std::vector<Rule<const RankClass&, const Buffer&>>& buffer_rules() {
  static const std::vector<Rule<const RankClass&, const Buffer&>> rules = {
      {"buffer-type", "dimensions are positive and a ragged buffer expects at most its bound",
       "correct the type or expected_bytes", buffer_type},
      {"expected-routed", "only a step buffer of routed rows may expect less than its type's size",
       "drop the expected size: the buffer holds exactly its type's rows", expected_routed},
      {"symbols-stay",
       "a persistent tensor changes its size along dim 0 alone, and whole on its rank",
       "give it the size of the bound, and its users a buffer of the symbol", symbols_stay},
      {"arena-bounds",
       "a step buffer lies in the arena at a multiple of 64 bytes; named ones do not",
       "run the memory plan after the last change of buffers", arena_bounds},
      {"host-contract",
       "named buffers have a name and a layout, and none is partial; slots are in order",
       "name the tensor and give the layout that the host writes or reads; finish sums "
       "that the host reads before the step ends",
       host_contract},
  };
  return rules;
}

}  // namespace hocket::check
