// SPDX-License-Identifier: Apache-2.0
// Implements: the placement of ranks (program.h): roles, boxes and classes of a program, members of
// groups, peers of messages.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "program/program.h"

namespace hocket::program {

Box Box::at(int32_t axis, int32_t coordinate) {
  Box box;
  box[static_cast<size_t>(axis)] = {coordinate, 1};
  return box;
}

std::string to_string(const Box& box, const Mesh& mesh) {
  std::string text;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const Interval& on = box[axis];
    if (on.is_all()) continue;
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", mesh.axes[axis].name, on.begin);
    if (on.count != 1) {
      text += fmt::format("-{}", on.end() - 1);
    }
  }
  return text;
}

Box parse_box(std::string_view text, const Mesh& mesh) {
  Box box;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view item = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t colon = item.rfind(':');
    const int32_t axis = colon == item.npos ? -1 : mesh.axis(item.substr(0, colon));
    const std::string_view where = colon == item.npos ? "" : item.substr(colon + 1);
    const size_t dash = where.find('-');
    int32_t first = 0;
    int32_t last = 0;
    const auto number = [](std::string_view digits, int32_t* to) {
      const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *to);
      return error == std::errc() && stop == digits.data() + digits.size() && *to >= 0 &&
             *to < 1 << 20;
    };
    const bool good = axis >= 0 && number(where.substr(0, dash), &first) &&
                      (dash == where.npos || number(where.substr(dash + 1), &last));
    if (dash == where.npos) {
      last = first;
    }
    if (!good || last < first) {
      fail("box", "got '{}'; expected axis:first or axis:first-last with an axis of the mesh",
           item);
    }
    box[static_cast<size_t>(axis)] = {first, last - first + 1};
  }
  return box;
}

int32_t Program::num_ranks() const {
  int32_t ranks = 0;
  for (const Role& role : roles) {
    ranks += role.mesh.size();
  }
  return ranks;
}

RoleId Program::role_of(int32_t rank) const {
  HOCKET_CHECK(rank >= 0, "rank {}", rank);
  for (size_t role = 0; role < roles.size(); ++role) {
    const int32_t size = roles[role].mesh.size();
    if (rank < size) return role;
    rank -= size;
  }
  HOCKET_CHECK(false, "the program has {} ranks", num_ranks());
}

int32_t Program::first_rank(RoleId role) const {
  int32_t first = 0;
  for (size_t before = 0; before < role; ++before) {
    first += roles[before].mesh.size();
  }
  return first;
}

std::vector<int32_t> Program::coords(int32_t rank) const {
  const RoleId role = role_of(rank);
  return roles[role].mesh.coords(rank - first_rank(role));
}

Interval Program::span(ClassId cls, int32_t axis) const {
  const Interval& on = classes[cls].box[static_cast<size_t>(axis)];
  return on.is_all() ? Interval{0, mesh_of(cls).axes[axis].size} : on;
}

int32_t Program::num_ranks(ClassId cls) const {
  int32_t ranks = 1;
  for (size_t axis = 0; axis < mesh_of(cls).axes.size(); ++axis) {
    ranks *= span(cls, static_cast<int32_t>(axis)).count;
  }
  return ranks;
}

ClassId Program::class_of(int32_t rank) const {
  const RoleId role = role_of(rank);
  const std::vector<int32_t> at = coords(rank);
  for (size_t cls = 0; cls < classes.size(); ++cls) {
    if (classes[cls].role != role) continue;
    bool inside = true;
    for (size_t axis = 0; axis < at.size() && inside; ++axis) {
      inside = classes[cls].box[axis].contains(at[axis]);
    }
    if (inside) return cls;
  }
  return kNone;
}

std::vector<ClassId> Program::class_table() const {
  std::vector<ClassId> table(static_cast<size_t>(num_ranks()), kNone);
  for (size_t cls = classes.size(); cls-- > 0;) {  // the first that holds a rank has it
    for (int32_t rank : ranks_of(cls)) {
      table[static_cast<size_t>(rank)] = cls;
    }
  }
  return table;
}

std::vector<int32_t> Program::ranks_of(ClassId cls) const {
  // Axis by axis, outermost first: `ranks` has the positions on the axes so far; the next axis
  // multiplies them by its size and spreads them over its interval.
  const Mesh& mesh = mesh_of(cls);
  std::vector<int32_t> ranks{0};
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const Interval on = span(cls, static_cast<int32_t>(axis));
    std::vector<int32_t> next;
    next.reserve(ranks.size() * static_cast<size_t>(std::max(on.count, 0)));
    for (int32_t outer : ranks) {
      for (int32_t at = on.begin; at < on.end(); ++at) {
        next.push_back(outer * mesh.axes[axis].size + at);
      }
    }
    ranks = std::move(next);
  }
  const int32_t first = first_rank(classes[cls].role);
  for (int32_t& rank : ranks) {
    rank += first;
  }
  return ranks;
}

std::string Program::bad_placement() const {
  // Boxes first, each by itself, so that the ranks that they name exist; then no rank twice, and
  // none left.
  if (roles.empty()) return "the program has no role";
  for (size_t cls = 0; cls < classes.size(); ++cls) {
    if (classes[cls].role < 0 || classes[cls].role >= roles.size()) {
      return fmt::format("class {} is of role {}; the program has {}", cls, classes[cls].role,
                         counted(std::ssize(roles), "role"));
    }
    const Mesh& mesh = mesh_of(cls);
    for (size_t axis = 0; axis < graph::kMaxAxes; ++axis) {
      const Interval& on = classes[cls].box[axis];
      if (on.is_all()) continue;
      const int32_t size = axis < mesh.axes.size() ? mesh.axes[axis].size : 0;
      if (on.begin < 0 || on.count < 1 || on.begin >= size || on.count > size - on.begin) {
        return fmt::format("class {} has coordinates {} to {} of axis {}, which has {}", cls,
                           on.begin, int64_t{on.begin} + on.count - 1, axis, size);
      }
    }
  }
  std::vector<ClassId> table(static_cast<size_t>(num_ranks()), kNone);
  for (size_t cls = 0; cls < classes.size(); ++cls) {
    for (int32_t rank : ranks_of(cls)) {
      ClassId& holder = table[static_cast<size_t>(rank)];
      if (holder != kNone)
        return fmt::format("rank {} is in the classes {} and {}", rank, holder, cls);
      holder = cls;
    }
  }
  const auto lost = std::find(table.begin(), table.end(), ClassId(kNone));
  if (lost != table.end()) return fmt::format("rank {} is in no class", lost - table.begin());
  return "";
}

namespace {
/// Coordinates of an axis that take part in a group: all, or its members on the axis that they
/// restrict.
bool takes_part(const Group& group, int32_t axis, int32_t at) {
  return axis != group.along || group.members.empty() ||
         std::find(group.members.begin(), group.members.end(), at) != group.members.end();
}
bool has_axis(const Group& group, int32_t axis) {
  return std::find(group.axes.begin(), group.axes.end(), axis) != group.axes.end();
}
}  // namespace

std::vector<int32_t> Program::members(const Group& group, int32_t rank) const {
  // With two roles, all ranks of both. Otherwise those at any participating coordinate on the
  // group's axes.
  if (group.with != kNone) {
    std::vector<int32_t> both;
    for (const RoleId role : {group.role, group.with}) {
      const int32_t first = first_rank(role);
      for (int32_t of_role = 0; of_role < roles[role].mesh.size(); ++of_role) {
        both.push_back(first + of_role);
      }
    }
    return both;
  }
  const Mesh& mesh = roles[group.role].mesh;
  const int32_t first = first_rank(group.role);
  HOCKET_CHECK(role_of(rank) == group.role, "rank {} is not of role {}", rank, group.role);
  std::vector<std::vector<int32_t>> all{mesh.coords(rank - first)};
  for (int32_t axis : group.axes) {
    std::vector<std::vector<int32_t>> next;
    for (const auto& at : all) {
      for (int32_t i = 0; i < mesh.axes[axis].size; ++i) {
        if (!takes_part(group, axis, i)) continue;
        next.push_back(at);
        next.back()[axis] = i;
      }
    }
    all = std::move(next);
  }
  std::vector<int32_t> ranks;
  for (const auto& at : all) {
    ranks.push_back(first + mesh.rank(at));
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<std::vector<ClassId>> Program::meetings(const Group& group) const {
  // The bounds of all boxes cut every axis into intervals, and so the mesh into cells; the ranks of
  // a cell are of one class. Each choice of intervals on the axes that the group lacks is a sort of
  // instance: its classes are those of the cells that it meets along the group's axes.
  if (group.with != kNone) {
    std::vector<ClassId> both;
    for (size_t cls = 0; cls < classes.size(); ++cls) {
      if (classes[cls].role == group.role || classes[cls].role == group.with) {
        both.push_back(cls);
      }
    }
    return {both};
  }
  const Mesh& mesh = roles[group.role].mesh;
  const size_t num_axes = mesh.axes.size();
  std::vector<ClassId> of_role;
  for (size_t cls = 0; cls < classes.size(); ++cls) {
    if (classes[cls].role == group.role) {
      of_role.push_back(cls);
    }
  }
  std::vector<std::vector<int32_t>> begins(num_axes);  // by axis: a coordinate of each interval
  for (size_t a = 0; a < num_axes; ++a) {
    const int32_t axis = static_cast<int32_t>(a);
    std::vector<int32_t>& cuts = begins[a];
    cuts.push_back(0);
    for (ClassId cls : of_role) {
      cuts.push_back(span(cls, axis).begin);
      cuts.push_back(span(cls, axis).end());
    }
    if (axis == group.along) {
      for (int32_t member : group.members) {
        cuts.push_back(member);
        cuts.push_back(member + 1);
      }
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::erase_if(cuts, [&](int32_t at) {
      return at < 0 || at >= mesh.axes[a].size ||
             (has_axis(group, axis) && !takes_part(group, axis, at));
    });
    if (cuts.empty()) return {};
  }
  // All cells in mesh order; those that agree outside of the group are one kind of instance.
  std::map<std::vector<int32_t>, std::set<ClassId>> sorts;
  std::vector<size_t> at(num_axes, 0);
  const auto here = [&](size_t axis) { return begins[axis][at[axis]]; };
  for (bool more = true; more;) {
    std::vector<int32_t> outside;
    for (size_t axis = 0; axis < num_axes; ++axis) {
      if (!has_axis(group, static_cast<int32_t>(axis))) {
        outside.push_back(here(axis));
      }
    }
    for (ClassId cls : of_role) {
      bool inside = true;
      for (size_t axis = 0; axis < num_axes && inside; ++axis) {
        inside = classes[cls].box[axis].contains(here(axis));
      }
      if (inside) {
        sorts[outside].insert(cls);
        break;
      }
    }
    more = false;
    for (size_t axis = num_axes; axis-- > 0 && !more;) {
      more = ++at[axis] < begins[axis].size();
      if (!more) {
        at[axis] = 0;
      }
    }
  }
  std::set<std::vector<ClassId>> distinct;
  for (const auto& [outside, met] : sorts) {
    distinct.insert({met.begin(), met.end()});
  }
  return {distinct.begin(), distinct.end()};
}

bool Program::crosses_classes(const Group& group) const {
  const std::vector<std::vector<ClassId>> sorts = meetings(group);
  return std::any_of(sorts.begin(), sorts.end(), [](const auto& sort) { return sort.size() > 1; });
}

int32_t Program::peer_of(const PeerMap& peer_map, int32_t rank) const {
  // Both numbers may be any: each is reduced into the axis before they are added.
  const RoleId role = role_of(rank);
  const int32_t first = first_rank(role);
  const Mesh& mesh = roles[role].mesh;
  int32_t offset = peer_map.offset;
  if (peer_map.by != kNone) {
    offset =
        mesh.wrap(peer_map.axis, offset) + mesh.wrap(peer_map.axis, begin_at(0, peer_map.by, rank));
  }
  return first + mesh.moved(rank - first, peer_map.axis, offset);
}

std::vector<ClassId> Program::peer_classes(ClassId cls, const PeerMap& peer_map) const {
  const std::vector<ClassId> table = class_table();
  std::set<ClassId> peers;
  for (int32_t rank : ranks_of(cls)) {
    peers.insert(table[static_cast<size_t>(peer_of(peer_map, rank))]);
  }
  return {peers.begin(), peers.end()};
}

namespace {

/// Returns whether the predicate is true of some rank of the class. Ranks are asked one by one
/// until it is.
template <class Predicate>
bool is_of_some_rank(const Program& program, ClassId cls, const Predicate& predicate) {
  const Mesh& mesh = program.mesh_of(cls);
  const int32_t first = program.first_rank(program.classes[cls].role);
  const auto is_of_some = [&](const auto& self, size_t axis, int32_t outer) -> bool {
    if (axis == mesh.axes.size()) return predicate(first + outer);
    const Interval on = program.span(cls, static_cast<int32_t>(axis));
    for (int32_t at = on.begin; at < on.end(); ++at) {
      if (self(self, axis + 1, outer * mesh.axes[axis].size + at)) return true;
    }
    return false;
  };
  return is_of_some(is_of_some, 0, 0);
}

/// Ranks that lie together and differ on these axes, or on axes inside of them, alone.
int32_t ranks_inside(const Mesh& mesh, int32_t outermost) {
  int32_t ranks = 1;
  for (size_t axis = static_cast<size_t>(outermost); axis < mesh.axes.size(); ++axis) {
    ranks *= mesh.axes[axis].size;
  }
  return ranks;
}

/// Returns whether every run of this many consecutive ranks of a role, from its first rank on, is
/// on one node.
bool lie_on_a_node(int32_t ranks, int32_t first, int32_t ranks_per_node) {
  return ranks_per_node % ranks == 0 && first % ranks == 0;
}

}  // namespace

bool Program::leaves_node(const Group& group, ClassId cls) const {
  // Ranks of a node are neighbours, so that the members of an instance lie in one node exactly if
  // its first and last do: the rank itself with its coordinates on the group's axes moved to both
  // ends. Where all that differs inside of the outermost axis lies on a node no rank need be asked.
  if (ranks_per_node <= 0) return false;
  if (group.with != kNone) {
    const int32_t last = first_rank(group.with) + roles[group.with].mesh.size() - 1;
    return first_rank(group.role) / ranks_per_node != last / ranks_per_node;
  }
  struct Span {
    int32_t stride, size;  // of the axis
    int32_t first, last;   // coordinates on it
  };
  const Mesh& mesh = roles[group.role].mesh;
  const int32_t offset = first_rank(group.role);
  if (group.axes.empty()) return false;
  const int32_t outermost = *std::min_element(group.axes.begin(), group.axes.end());
  if (lie_on_a_node(ranks_inside(mesh, outermost), offset, ranks_per_node)) return false;
  std::vector<Span> spans;
  int32_t stride = 1;
  for (size_t a = mesh.axes.size(); a-- > 0; stride *= mesh.axes[a].size) {
    const int32_t axis = static_cast<int32_t>(a);
    if (!has_axis(group, axis)) continue;
    const bool some = axis == group.along && !group.members.empty();
    spans.push_back({stride, mesh.axes[a].size, some ? group.members.front() : 0,
                     some ? group.members.back() : mesh.axes[a].size - 1});
  }
  return is_of_some_rank(*this, cls, [&](int32_t rank) {
    int32_t first = rank;
    int32_t last = rank;
    for (const Span& span : spans) {
      const int32_t here = (rank - offset) / span.stride % span.size;
      first += (span.first - here) * span.stride;
      last += (span.last - here) * span.stride;
    }
    return first / ranks_per_node != last / ranks_per_node;
  });
}

bool Program::leaves_node(const PeerMap& peer_map, ClassId cls) const {
  // A peer differs on one axis alone.
  if (ranks_per_node <= 0) return false;
  const RoleId role = classes[cls].role;
  const int32_t near = ranks_inside(roles[role].mesh, peer_map.axis);
  if (lie_on_a_node(near, first_rank(role), ranks_per_node)) return false;
  return is_of_some_rank(*this, cls, [&](int32_t rank) {
    return peer_of(peer_map, rank) / ranks_per_node != rank / ranks_per_node;
  });
}

int64_t Program::size_of(const Group& group) const {
  if (group.with != kNone) {
    return int64_t{roles[group.role].mesh.size()} + roles[group.with].mesh.size();
  }
  int64_t ranks = 1;
  for (int32_t axis : group.axes) {
    const bool some = axis == group.along && !group.members.empty();
    ranks *= some ? std::ssize(group.members) : roles[group.role].mesh.axes[axis].size;
  }
  return ranks;
}

namespace {

/// Returns whether one box is all that lies in either: they differ on one axis only, where one ends
/// where the other begins. `box` (in numbers) then becomes it.
bool unite(Box* box, const Box& with, size_t num_axes) {
  size_t apart = num_axes;
  for (size_t axis = 0; axis < num_axes; ++axis) {
    if ((*box)[axis] == with[axis]) continue;
    if (apart != num_axes) return false;
    apart = axis;
  }
  if (apart == num_axes) return false;
  Interval& here = (*box)[apart];
  const Interval& there = with[apart];
  if (here.end() != there.begin && there.end() != here.begin) return false;
  here = {std::min(here.begin, there.begin), here.count + there.count};
  return true;
}

}  // namespace

void unite_equal_classes(Program& program) {
  // A class is merged into the first one with an equal list, if both boxes form a box. The result
  // may merge with others, so this repeats to a fixed point.
  const auto same = [](const RankClass& a, const RankClass& b) {
    return a.role == b.role && a.arena_bytes == b.arena_bytes &&
           a.host_arena_bytes == b.host_arena_bytes && a.buffers == b.buffers && a.tasks == b.tasks;
  };
  std::vector<size_t> list_of;  // by class: the first class of its list
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    size_t first = 0;
    while (first < cls &&
           !(list_of[first] == first && same(program.classes[first], program.classes[cls]))) {
      ++first;
    }
    list_of.push_back(first);
  }
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    for (size_t axis = 0; axis < program.mesh_of(cls).axes.size(); ++axis) {
      program.classes[cls].box[axis] = program.span(cls, static_cast<int32_t>(axis));
    }
  }
  std::vector<bool> gone(program.classes.size(), false);
  for (bool more = true; more;) {
    more = false;
    for (size_t cls = 0; cls < program.classes.size(); ++cls) {
      const size_t num_axes = program.mesh_of(cls).axes.size();
      for (size_t other = cls + 1; other < program.classes.size() && !gone[cls]; ++other) {
        if (gone[other] || list_of[other] != list_of[cls]) continue;
        if (unite(&program.classes[cls].box, program.classes[other].box, num_axes)) {
          gone[other] = true;
          more = true;
        }
      }
    }
  }
  std::vector<RankClass> left;
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    if (gone[cls]) continue;
    const std::vector<graph::Axis>& axes = program.mesh_of(cls).axes;
    RankClass& kept = program.classes[cls];
    for (size_t axis = 0; axis < axes.size(); ++axis) {
      if (kept.box[axis] == Interval{0, axes[axis].size}) {
        kept.box[axis] = {};
      }
    }
    left.push_back(std::move(kept));
  }
  program.classes = std::move(left);
}

}  // namespace hocket::program
