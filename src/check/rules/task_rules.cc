// SPDX-License-Identifier: Apache-2.0
// Implements: task_rules (rules.h).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "base/error.h"
#include "check/rules/rules.h"
#include "collectives/implementation.h"
#include "collectives/parts.h"

namespace hocket::check {

using program::Buffer;
using program::Kind;
using program::kNone;

namespace {

/// Returns whether output o may lie in the buffer of input i.
bool may_share(const KindInfo& info, size_t i, size_t o) {
  const int32_t input = static_cast<int32_t>(i);
  return info.shares[o] == input || info.overwrites[o] == input;
}
/// Returns whether output o must lie in the buffer of input i. A collective may also write
/// elsewhere, so that its partial input can still be read.
bool must_share(const KindInfo& info, size_t i, size_t o) {
  return info.shares[o] == static_cast<int32_t>(i) && !info.comm;
}

std::string operand_types(const Context& ctx, ClassId cls, const RankClass&, const Task& task) {
  const KindInfo& info = ctx.kind(task);
  if (task.in.size() != info.in.size() || task.out.size() != info.out.size()) {
    return fmt::format("has {} inputs and {} outputs; its kind has {} and {}", task.in.size(),
                       task.out.size(), info.in.size(), info.out.size());
  }
  const auto& types = ctx.buffer_type[cls];
  for (int side = 0; side < 2; ++side) {
    const auto& list = side ? task.out : task.in;
    const auto& want = side ? info.out : info.in;
    for (size_t i = 0; i < list.size(); ++i) {
      if (types[list[i]] != want[i]) {
        return fmt::format("{} {} is {}; expected {}", side ? "output" : "input", i,
                           ctx.buffer_name(cls, list[i]), graph::to_string(ctx.types[want[i]]));
      }
    }
  }
  return "";
}

std::string deps_earlier(const Context& ctx, ClassId cls, const RankClass& rank_class,
                         const Task& task) {
  const TaskId self = &task - rank_class.tasks.data();
  for (TaskId dep : task.deps) {
    if (dep >= self) {
      return fmt::format("depends on {}, which comes later", ctx.name({cls, dep}));
    }
  }
  return "";
}

/// Refuses other lanes than those of the kind. Communication has two here; lane_recomputed checks
/// which one its link needs.
std::string lane_fits(const Context& ctx, ClassId, const RankClass&, const Task& task) {
  if (ctx.kind(task).lanes >> static_cast<int>(task.lane) & 1) return "";
  return fmt::format("is in the lane {}", program::to_string(task.lane));
}

/// Refuses operands in the wrong memory. Kernels and links use device memory; a copy lane reads one
/// memory and writes the other.
std::string space_fits(const Context& ctx, ClassId cls, const RankClass& rank_class,
                       const Task& task) {
  using program::Lane;
  using program::Space;
  const bool reads_host = task.lane == Lane::h2d || task.lane == Lane::host;
  const bool writes_host = task.lane == Lane::d2h || task.lane == Lane::host;
  for (int side = 0; side < 2; ++side) {
    const Space want = (side ? writes_host : reads_host) ? Space::host : Space::device;
    for (BufferId buffer : side ? task.out : task.in) {
      if (rank_class.buffers[buffer].space == want) continue;
      return fmt::format("{} {} in {} memory; in the lane {} that is {}", side ? "writes" : "reads",
                         ctx.buffer_name(cls, buffer), to_string(rank_class.buffers[buffer].space),
                         to_string(task.lane), to_string(want));
    }
  }
  return "";
}

std::string group_fits(const Context& ctx, ClassId cls, const RankClass&, const Task& task) {
  const bool wants = is_collective(ctx.kind(task));
  if (wants != (task.group != kNone)) return wants ? "has no group" : "has a group";
  if (!wants) return "";
  const program::Group& group = ctx.program.groups[task.group];
  const program::RoleId role = ctx.program.classes[cls].role;
  if (role != group.role && role != group.with) {
    return fmt::format("is in class {}, whose role is not that of its group", cls);
  }
  if (is_transfer(ctx.kind(task)) != (group.with != kNone)) {
    return group.with == kNone ? "goes between roles, but its group is of one"
                               : "runs inside a role, but its group is of two";
  }
  if (group.members.empty()) return "";
  // Every rank of the class must be a member.
  const program::Interval on = ctx.program.span(cls, group.along);
  for (int32_t at = on.begin; at < on.end(); ++at) {
    if (!std::binary_search(group.members.begin(), group.members.end(), at)) {
      return fmt::format("is in class {}, which is not a member of its group", cls);
    }
  }
  return "";
}

/// Returns two ranks that a mapping leads to the same peer, in words; "" if it has an inverse.
std::string shared_peer(const Context& ctx, program::RoleId role,
                        const program::PeerMap& peer_map) {
  const int32_t number = ctx.peer_maps.number(role, peer_map);
  if (ctx.peer_maps.inverse(number) != kNone) return "";
  const int32_t first = ctx.program.first_rank(role);
  const std::span<const int32_t> peers = ctx.peer_maps.peers(number);
  std::map<int32_t, size_t> from;  // by peer
  for (size_t rank = 0;; ++rank) {
    const auto [other, fresh] = from.try_emplace(peers[rank], rank);
    if (fresh) continue;
    return fmt::format("ranks {} and {} have one peer, rank {}", first + other->second,
                       first + rank, first + peers[rank]);
  }
}

/// Refuses peers that do not exist. An offset by the size of the axis would wrap to the rank
/// itself. Sums with numbers of a table, which may come from any text, are avoided, since they
/// could overflow.
std::string peer_exists(const Context& ctx, ClassId cls, const RankClass&, const Task& task) {
  const bool wants = is_message(ctx.kind(task));
  const bool has = task.peer_axis != kNone || (!wants && task.peer_by != kNone);
  if (wants != has) return wants ? "has no peer" : "has a peer";
  if (!wants) {
    return task.peer == 0 && task.tag == kNone ? "" : "is no message, but has an offset or a tag";
  }
  const int64_t size = ctx.program.mesh_of(cls).axes[task.peer_axis].size;
  const int64_t peer = task.peer;
  if (task.peer_by == kNone) {
    if (peer != 0 && peer > -size && peer < size) return "";
    return fmt::format("has its peer at offset {} on an axis of {}", peer, size);
  }
  for (const int64_t more : ctx.program.tables[task.peer_by].values) {
    if (more != -peer && more > -size - peer && more < size - peer) continue;
    return fmt::format("has a peer at offset {} and {} of its table, on an axis of {}", peer, more,
                       size);
  }
  const std::string met = shared_peer(ctx, ctx.program.classes[cls].role, task.peer_map());
  return met.empty() ? "" : "has a table by which " + met;
}

/// Refuses begins of letters that the op does not take by position, and repeated ones: no one would
/// read them, but a reader of the text would believe them.
std::string begins_named(const Context& ctx, ClassId, const RankClass&, const Task& task) {
  const KindInfo& info = ctx.kind(task);
  std::string letters = info.rules ? info.rules->layout.positional : "";
  if (is_transfer(info)) {
    const Kind& kind = ctx.program.kind(task);
    const size_t dims = (kind.in.empty() ? kind.out[0] : kind.in[0]).dims.size();
    letters = std::string("abcdef").substr(0, dims);
  }
  for (const program::PieceOffset& begin : task.piece_offsets) {
    if (letters.find(begin.letter) == std::string::npos) {
      return fmt::format("has a begin of '{}'; its op takes {} by position", begin.letter,
                         letters.empty() ? "no letter" : "only '" + letters + "'");
    }
    if (task.piece_offset(begin.letter) != &begin) {
      return fmt::format("has two begins of '{}'", begin.letter);
    }
    if (program::is_offset_too_large(begin.begin)) {
      return fmt::format("has a begin of '{}' too far from 0: {}", begin.letter, begin.begin);
    }
  }
  return "";
}

/// Returns whether the types of a collective depend on the number of the member, since the members
/// do not divide the gathered or scattered dim.
bool members_differ(const KindInfo& info, const Kind& kind, int64_t members) {
  if (comm::has_lengths(kind.attrs)) return true;
  if (info.comm->makes_sizes || info.comm->needs_sizes) {
    const graph::Dims& counted = kind.in.back().dims;
    return !counted.empty() && counted.back() % members != 0;
  }
  if (comm::has_sizes(kind.attrs)) return true;
  if (info.comm->move.part != comm::Move::Part::block) return false;
  const auto dim = static_cast<size_t>(comm::movement(*info.comm, kind.attrs).part_dim);
  return std::any_of(kind.in.begin(), kind.in.end(), [&](const graph::TensorType& type) {
    return dim < type.dims.size() && type.dims[dim] % members != 0;
  });
}

/// Returns the numbers of the class's ranks among the members of the task's group, or only 0 if
/// types do not depend on the number.
std::vector<int64_t> numbers_in_group(const Context& ctx, ClassId cls, const Task& task) {
  const Kind& kind = ctx.program.kind(task);
  const KindInfo& info = ctx.kind(task);
  std::vector<int64_t> numbers{0};
  if (!members_differ(info, kind, ctx.groups[task.group].ranks)) return numbers;
  for (const int32_t axis : ctx.groups[task.group].axes) {
    const program::Interval on = ctx.program.span(cls, axis);
    std::vector<int64_t> next;
    for (const int64_t number : numbers) {
      for (int32_t at = on.begin; at < on.end(); ++at) {
        next.push_back(number * ctx.program.mesh_of(cls).axes[axis].size + at);
      }
    }
    numbers = std::move(next);
  }
  return numbers;
}

std::string collective_types_follow(const Context& ctx, ClassId cls, const RankClass&,
                                    const Task& task) {
  const KindInfo& info = ctx.kind(task);
  if (!is_collective(info)) return "";
  const Kind& kind = ctx.program.kind(task);
  if (is_transfer(info)) {
    // Types of the taken parts are checked by collective-differs and local-size.
    const graph::TensorType& moved = kind.in.empty() ? kind.out[0] : kind.in[0];
    if (!moved.routed() && !moved.symbolic() && moved.granule() == 1) return "";
    return fmt::format(
        "does not move {}: only elements of whole bytes, none of them routed, in "
        "numbers that every step has",
        to_string(moved));
  }
  const int64_t ranks = ctx.groups[task.group].ranks;
  try {
    for (const int64_t me : numbers_in_group(ctx, cls, task)) {
      const auto out = comm::infer(*info.comm, kind.attrs, kind.in, ranks, me);
      if (out == kind.out) continue;
      return fmt::format("among {} ranks makes {} of {}; its kind says {}", ranks, types_text(out),
                         types_text(kind.in), types_text(kind.out));
    }
    return "";
  } catch (const Error& error) {
    return fmt::format("does not fit its operands: {}", error.what());
  }
}

/// Returns whether the workspace is 0, or the memory of the collective in a transport (c10d's or
/// our own). The group is the task's, or a larger one with the same kind.
bool workspace_of_transport(const Context& ctx, const Task& task) {
  const Kind& kind = ctx.program.kind(task);
  if (kind.workspace == 0) return true;
  if (task.group == program::kNone) return false;
  const comm::Op& op = *ctx.kind(task).comm;
  const int64_t mine = ctx.groups[task.group].ranks;
  std::set<int64_t> sizes = {mine};
  for (const GroupInfo& group : ctx.groups) {
    sizes.insert(std::max(group.ranks, mine));
  }
  try {
    for (const int64_t members : sizes) {
      for (const auto collectives : {comm::Collectives::own, comm::Collectives::c10d}) {
        if (kind.workspace ==
            comm::transport_bytes(collectives, op, kind.attrs, kind.in, kind.out, members)) {
          return true;
        }
      }
    }
  } catch (const Error&) {
    // refused by types-follow
  }
  return false;
}

/// Compares bytes with the payload, the bytes of one rank, whatever the number of ranks.
std::string cost_recomputed(const Context& ctx, ClassId, const RankClass&, const Task& task) {
  const KindInfo& info = ctx.kind(task);
  if (!info.comm) return "";
  const Kind& kind = ctx.program.kind(task);
  const auto& symbols = ctx.program.symbols;
  const int64_t bytes = info.comm->payload(kind.attrs, graph::expected_types(kind.in, symbols),
                                           graph::expected_types(kind.out, symbols));
  if (!workspace_of_transport(ctx, task)) {
    return fmt::format(
        "has {} bytes of workspace; expected 0, or the memory that the collective takes in c10d or "
        "in our own transport",
        kind.workspace);
  }
  if (kind.bytes == bytes && kind.flops == 0) return "";
  return fmt::format("has {} bytes and {} FLOPs; expected {} and 0", kind.bytes, kind.flops, bytes);
}

std::string lane_recomputed(const Context& ctx, ClassId cls, const RankClass&, const Task& task) {
  const KindInfo& info = ctx.kind(task);
  if (!info.comm) return "";
  const bool leaves = ctx.leaves_node(cls, task);
  const program::Lane want =
      program::link_lane(info.comm->role, leaves, program::order_of(task.lane));
  if (task.lane == want) return "";
  const std::string nodes = ctx.program.ranks_per_node > 0
                                ? fmt::format("{} ranks per node", ctx.program.ranks_per_node)
                                : "all ranks in one node";
  return fmt::format("is in lane {}; with {} its ranks are {}, which is lane {}",
                     program::to_string(task.lane), nodes,
                     leaves ? "in several nodes" : "in one node", program::to_string(want));
}

std::string accumulate_allowed(const Context& ctx, ClassId, const RankClass&, const Task& task) {
  if (task.accumulate.empty()) return "";
  const KindInfo& info = ctx.kind(task);
  if (info.rules && task.accumulate.within(info.rules->accumulates)) return "";
  return fmt::format("accumulates into outputs 0x{:x}, which its op can't", task.accumulate.bits());
}

/// Returns whether two different buffers share memory.
bool overlap(const Context& ctx, ClassId cls, BufferId one, BufferId other) {
  const auto meets = ctx.views[cls].meets(one);
  return std::find(meets.begin(), meets.end(), other) != meets.end();
}

/// Refuses sharing that the op does not declare, and two outputs in one buffer. Refuses a declared
/// update into another buffer, since the parameter would stay as it was.
std::string in_place_declared(const Context& ctx, ClassId cls, const RankClass&, const Task& task) {
  const KindInfo& info = ctx.kind(task);
  for (size_t o = 0; o < task.out.size(); ++o) {
    for (size_t i = 0; i < task.in.size(); ++i) {
      if (task.in[i] == task.out[o] && !may_share(info, i, o)) {
        return fmt::format("writes output {} over its input {}", o, i);
      }
      if (must_share(info, i, o) && task.in[i] != task.out[o]) {
        return fmt::format("must update input {} in place but writes another buffer", i);
      }
      if (overlap(ctx, cls, task.in[i], task.out[o])) {
        return fmt::format("writes output {} over a part of its input {}", o, i);
      }
    }
    for (size_t p = 0; p < o; ++p) {
      if (task.out[p] == task.out[o] || overlap(ctx, cls, task.out[p], task.out[o])) {
        return fmt::format("writes outputs {} and {} to one buffer", p, o);
      }
    }
  }
  return "";
}

std::string inputs_read_only(const Context&, ClassId, const RankClass& cls, const Task& task) {
  for (BufferId output : task.out) {
    const Buffer& written = cls.buffers[cls.root(output)];
    if (written.kind == BufferKind::input) {
      return fmt::format("writes the input '{}'", written.name);
    }
  }
  return "";
}

std::string buffer_planned(const Context& ctx, ClassId cls, const RankClass& rank_class,
                           const Task& task) {
  if (!ctx.planned) return "";
  for (const auto* list : {&task.in, &task.out}) {
    for (BufferId buffer_id : *list) {
      const Buffer& buffer = rank_class.buffers[rank_class.root(buffer_id)];
      if (buffer.kind == BufferKind::step && buffer.offset == kNone) {
        return fmt::format("uses {}, which has no offset", ctx.buffer_name(cls, buffer_id));
      }
    }
  }
  return "";
}

/// Kernels and transports take only operands without gaps between their elements.
std::string view_gaps(const Context& ctx, ClassId, const RankClass& cls, const Task& task) {
  const KindInfo& info = ctx.kind(task);
  if (info.rules && info.rules->follows_strides) return "";
  for (const auto* list : {&task.in, &task.out}) {
    for (BufferId id : *list) {
      const Buffer& buffer = cls.buffers[id];
      if (buffer.kind != BufferKind::view || program::strides_of(cls, buffer).empty()) continue;
      return fmt::format("takes a part of {} along dim {}, which has gaps",
                         to_string(cls.buffers[buffer.base].type), buffer.dim);
    }
  }
  return "";
}

}  // namespace

const std::vector<Rule<ClassId, const RankClass&, const Task&>>& task_rules() {
  // Each rule may rely on those before it: operand-types ensures the number of operands, group-fits
  // and peer-exists the group and the peer that later rules look up.
  static const std::vector<Rule<ClassId, const RankClass&, const Task&>> rules = {
      {"operand-types", "a task has the operands of its kind, with the same types",
       "give the task buffers of these types, or the kind the types of these buffers",
       operand_types},
      {"deps-earlier", "dependencies name earlier tasks of the same class",
       "list the tasks in an order that respects their dependencies", deps_earlier},
      {"lane-fits",
       "kernels run in compute (sums, copies and zeros also in an _rx lane), collectives in intra "
       "or inter, sends there or in the _tx lane, receives in the _rx lane",
       "put the task in the lane of its resource", lane_fits},
      {"space-fits",
       "kernels and links use the device's memory, the host lane the host's, and copies between "
       "them "
       "read one and write the other",
       "put the buffer in the other memory, or the task in another lane", space_fits},
      {"group-fits",
       "a collective has a group of its role, a transfer a group of two roles, other tasks none",
       "give collectives the group of the axes they reduce or exchange over", group_fits},
      {"peer-exists",
       "a message goes along an axis to another rank of the mesh; other tasks have no peer",
       "set axis, and peer to an offset of at least one and less than the size of the axis; with a "
       "table, let every rank be the peer of one other; leave them out of tasks that are no "
       "messages",
       peer_exists},
      {"begins-named",
       "a task has at most one begin per letter, and only of letters that its op takes by position",
       "give one begin for each of these letters (of a transfer: a for dim 0, b for dim 1, ..)",
       begins_named},
      {"types-follow",
       "outputs of a collective follow from its inputs and from the ranks of its group",
       "correct the types of the kind, or the group", collective_types_follow},
      {"cost-recomputed",
       "the bytes of a communication are the payload of its op on its types, without FLOPs; "
       "workspace is the memory that a collective takes in a transport, c10d's or our own",
       "leave the bytes out: `hocket graph --finish FILE` finds them", cost_recomputed},
      {"lane-recomputed",
       "communication is in the lane of the link that it uses: between nodes, or inside one",
       "put it in the lane of the link, or correct ranks_per_node", lane_recomputed},
      {"accumulate-allowed", "only outputs that the op can add to are accumulated",
       "accumulate in a separate add, or add the output to Op::accumulates", accumulate_allowed},
      {"in-place-declared",
       "an output lies in the buffer of an input exactly where the op declares "
       "an update in place",
       "use a buffer of its own for the output", in_place_declared},
      {"inputs-read-only", "inputs from the host are not written", "write to a step buffer",
       inputs_read_only},
      {"view-gaps", "views with gaps are copied only: kernels and transports take none",
       "cut along the outermost dim, or copy the view first", view_gaps},
      {"buffer-planned", "every step buffer that is used has a place in the arena",
       "run the memory plan after the last change of tasks", buffer_planned},
  };
  return rules;
}

}  // namespace hocket::check
