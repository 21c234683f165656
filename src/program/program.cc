// SPDX-License-Identifier: Apache-2.0
#include "program/program.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace hocket::program {

namespace {
template <typename E, size_t N>
E parse_enum(std::string_view text, const char* const (&names)[N], const char* what) {
  for (size_t i = 0; i < N; ++i) {
    if (text == names[i]) return static_cast<E>(i);
  }
  fail("program", "unknown {} '{}'; expected one of {}", what, text, fmt::join(names, ", "));
}
/// Also of a value that no enumerator has: an edited program is printed before it is refused.
template <typename E, size_t N>
const char* name_of(E value, const char* const (&names)[N]) {
  const size_t index = place_of(value);
  return index < N ? names[index] : "unknown";
}
constexpr const char* kLanes[] = {"compute",  "intra", "inter", "intra_rx",
                                  "inter_rx", "h2d",   "d2h",   "host"};
constexpr const char* kPhases[] = {"forward", "backward", "grad", "optimizer"};
constexpr const char* kBufferKinds[] = {"step", "persistent", "input", "output", "view"};
constexpr const char* kSpaces[] = {"device", "host"};
}  // namespace

const char* to_string(Lane lane) { return name_of(lane, kLanes); }
Lane parse_lane(std::string_view text) { return parse_enum<Lane>(text, kLanes, "lane"); }
const char* to_string(Phase phase) { return name_of(phase, kPhases); }
Phase parse_phase(std::string_view text) { return parse_enum<Phase>(text, kPhases, "phase"); }
const char* to_string(BufferKind kind) { return name_of(kind, kBufferKinds); }
BufferKind parse_buffer_kind(std::string_view text) {
  return parse_enum<BufferKind>(text, kBufferKinds, "buffer kind");
}

const char* to_string(Space space) { return name_of(space, kSpaces); }
Space parse_space(std::string_view text) { return parse_enum<Space>(text, kSpaces, "space"); }

graph::DType compute_dtype(const Kind& kind) {
  for (const auto* types : {&kind.in, &kind.out}) {
    for (const TensorType& type : *types) {
      if (graph::is_floating(type.dtype)) return type.dtype;
    }
  }
  return graph::DType::f32;
}

std::string types_text(const Kind& kind) {
  const auto list = [](const std::vector<TensorType>& types) {
    std::string text;
    for (const TensorType& type : types) {
      text += (text.empty() ? "" : ", ") + to_string(type);
    }
    return text;
  };
  return fmt::format("{} ({}) -> ({})", kind.op, list(kind.in), list(kind.out));
}

bool is_collective(const Kind& kind) {
  return is_communication(kind) && comm::op(kind.communication).role == comm::Role::collective;
}

Kind communication_kind(comm::Id op, Attrs attrs, std::vector<TensorType> in,
                        std::vector<TensorType> out, std::span<const Symbol> symbols) {
  Kind kind;
  kind.op = comm::op(op).name;
  kind.attrs = std::move(attrs);
  kind.in = std::move(in);
  kind.out = std::move(out);
  kind.bytes = comm::op(op).payload(kind.attrs, graph::expected_types(kind.in, symbols),
                                    graph::expected_types(kind.out, symbols));
  kind.communication = op;
  return kind;
}

Lane link_lane(comm::Role role, bool leaves_node) {
  if (role == comm::Role::receive) return leaves_node ? Lane::inter_rx : Lane::intra_rx;
  return leaves_node ? Lane::inter : Lane::intra;
}

ClassId Program::class_of(int32_t rank) const {
  const int32_t pp = mesh.axis("pp");
  if (pp < 0) return 0;
  int32_t stride = 1;
  for (size_t a = static_cast<size_t>(pp) + 1; a < mesh.axes.size(); ++a) {
    stride *= mesh.axes[a].size;
  }
  return rank / stride % mesh.axes[pp].size;
}

std::vector<int32_t> Program::ranks_of(ClassId cls) const {
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < mesh.size(); ++rank) {
    if (class_of(rank) == cls) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<int32_t> Program::members(const Group& group, int32_t rank) const {
  std::vector<std::vector<int32_t>> all{mesh.coords(rank)};
  for (int32_t axis : group.axes) {
    std::vector<std::vector<int32_t>> next;
    const bool some = mesh.axes[axis].name == "pp" && !group.members.empty();
    for (const auto& coords : all) {
      for (int32_t i = 0; i < mesh.axes[axis].size; ++i) {
        if (some &&
            std::find(group.members.begin(), group.members.end(), i) == group.members.end()) {
          continue;
        }
        next.push_back(coords);
        next.back()[axis] = i;
      }
    }
    all = std::move(next);
  }
  std::vector<int32_t> ranks;
  for (const auto& coords : all) {
    ranks.push_back(mesh.rank(coords));
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

ClassId Program::peer_class(const Task& task, ClassId cls) const {
  return task.peer_axis == mesh.axis("pp") ? mesh.wrap(task.peer_axis, int64_t{cls} + task.peer)
                                           : cls;
}

bool Program::leaves_node(const Group& group, ClassId cls) const {
  // Ranks of a node are neighbours, so that the members of an instance lie in one node exactly if
  // its first and last do: the rank itself with its coordinates on the group's axes moved to both
  // ends.
  if (ranks_per_node <= 0) return false;
  struct Span {
    int32_t stride, size;  // of the axis
    int32_t first, last;   // coordinates on it
  };
  std::vector<Span> spans;
  int32_t stride = 1;
  for (size_t a = mesh.axes.size(); a-- > 0; stride *= mesh.axes[a].size) {
    if (std::find(group.axes.begin(), group.axes.end(), static_cast<int32_t>(a)) ==
        group.axes.end()) {
      continue;
    }
    const bool some = mesh.axes[a].name == "pp" && !group.members.empty();
    spans.push_back({stride, mesh.axes[a].size, some ? group.members.front() : 0,
                     some ? group.members.back() : mesh.axes[a].size - 1});
  }
  for (int32_t rank : ranks_of(cls)) {
    int32_t first = rank;
    int32_t last = rank;
    for (const Span& span : spans) {
      const int32_t here = rank / span.stride % span.size;
      first += (span.first - here) * span.stride;
      last += (span.last - here) * span.stride;
    }
    if (first / ranks_per_node != last / ranks_per_node) return true;
  }
  return false;
}

bool Program::leaves_node(int32_t peer_axis, int32_t peer, ClassId cls) const {
  if (ranks_per_node <= 0) return false;
  for (int32_t rank : ranks_of(cls)) {
    if (mesh.moved(rank, peer_axis, peer) / ranks_per_node != rank / ranks_per_node) return true;
  }
  return false;
}

int64_t Program::size_of(const Group& group) const {
  int64_t ranks = 1;
  for (int32_t id : group.axes) {
    const graph::Axis& axis = mesh.axes[id];
    const bool some = axis.name == "pp" && !group.members.empty();
    ranks *= some ? static_cast<int64_t>(group.members.size()) : axis.size;
  }
  return ranks;
}

KindId Program::intern(Kind kind) {
  kind.communication = comm::find(kind.op);
  // Kinds that were added past this function (by the parser, by tests) show in the number.
  std::map<std::string, KindId>& places = kind_index.places_;
  if (places.size() != kinds.size()) {
    places.clear();
    for (size_t i = 0; i < kinds.size(); ++i) {
      places.emplace(identity(*this, kinds[i]), i);
    }
  }
  auto [it, added] = places.emplace(identity(*this, kind), kinds.size());
  if (added) {
    kinds.push_back(std::move(kind));
  }
  return it->second;
}

Group Program::canonical(Group group) const {
  const int32_t pp = mesh.axis("pp");
  const size_t stages = static_cast<size_t>(mesh.extent("pp"));
  if (group.members.size() == 1) {
    std::erase(group.axes, pp);
  }
  if (group.members.size() == 1 || group.members.size() == stages) {
    group.members.clear();
  }
  std::erase_if(group.axes, [&](int32_t axis) {
    return axis >= 0 && static_cast<size_t>(axis) < mesh.axes.size() && mesh.axes[axis].size == 1;
  });
  return group;
}

GroupId Program::intern(const Group& group) {
  Group one = canonical(group);
  auto it = std::find(groups.begin(), groups.end(), one);
  if (it == groups.end()) {
    it = groups.insert(groups.end(), std::move(one));
  }
  return it - groups.begin();
}

TableId Program::intern(Table table) {
  auto it = std::find(tables.begin(), tables.end(), table);
  if (it == tables.end()) {
    it = tables.insert(tables.end(), std::move(table));
  }
  return it - tables.begin();
}

int64_t Program::begin_at(int64_t begin, TableId by, int32_t rank) const {
  if (by == kNone) return begin;
  const Table& table = tables[by];
  const std::vector<int32_t> coords = mesh.coords(rank);
  size_t place = 0;
  for (int32_t axis : table.axes) {
    place = place * static_cast<size_t>(mesh.axes[axis].size) + static_cast<size_t>(coords[axis]);
  }
  return begin + table.values[place];
}

std::string task_name(const Program& program, ClassId cls, TaskId task) {
  const RankClass& rank_class = program.classes[cls];
  const Task& named = rank_class.tasks[task];
  std::string name = program.kind(named).op;
  const std::string place = graph::layer_name(named.layer, program.num_layers);
  if (named.phase < Phase::grad && !place.empty() && !name.starts_with(place)) {
    name += " " + place;
  }
  if (named.micro_batch >= 0) {
    name += fmt::format(" mb{}", named.micro_batch);
  }
  return name + fmt::format(" {} ({} task {})", to_string(named.phase), rank_class.name, task);
}

}  // namespace hocket::program
