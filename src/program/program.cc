// SPDX-License-Identifier: Apache-2.0
#include "program/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

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
/// Name of a value, also of one that no enumerator has: an edited program is printed before it is
/// refused.
template <typename E, size_t N>
const char* name_of(E value, const char* const (&names)[N]) {
  const size_t index = place_of(value);
  return index < N ? names[index] : "unknown";
}
constexpr const char* kLanes[] = {"compute",  "intra",    "inter", "intra_tx", "inter_tx",
                                  "intra_rx", "inter_rx", "h2d",   "d2h",      "host"};
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
  if (!is_communication(kind)) return false;
  const comm::Role role = comm::op(kind.communication).role;
  return role == comm::Role::collective || role == comm::Role::between;
}

bool may_meet(const Kind& one, const Kind& other) {
  if (one.op != other.op || one.attrs != other.attrs || !is_communication(one)) return false;
  return comm::types_match(comm::op(one.communication), one.attrs, {one.in, one.out},
                           {other.in, other.out});
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

Order order_of(Lane lane) {
  return lane == Lane::intra || lane == Lane::inter ? Order::collectives : Order::messages;
}

Lane link_lane(comm::Role role, bool leaves_node, Order order) {
  if (role == comm::Role::receive) return leaves_node ? Lane::inter_rx : Lane::intra_rx;
  if (role == comm::Role::send && order == Order::messages) {
    return leaves_node ? Lane::inter_tx : Lane::intra_tx;
  }
  return leaves_node ? Lane::inter : Lane::intra;
}

bool is_between_nodes(Lane lane) {
  return lane == Lane::inter || lane == Lane::inter_tx || lane == Lane::inter_rx;
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
  // The group may be unchecked: invalid ids are left alone.
  if (group.role < 0 || group.role >= roles.size()) return group;
  if (group.with != kNone && group.with < group.role) {
    std::swap(group.role, group.with);
  }
  const std::vector<graph::Axis>& axes = roles[group.role].mesh.axes;
  const bool along = group.along >= 0 && static_cast<size_t>(group.along) < axes.size();
  if (along && group.members.size() == 1) {
    std::erase(group.axes, group.along);
  }
  if (along &&
      (group.members.size() == 1 || std::cmp_equal(group.members.size(), axes[group.along].size))) {
    group.members.clear();
  }
  if (group.members.empty()) {
    group.along = kNone;
  }
  std::erase_if(group.axes, [&](int32_t axis) {
    return axis >= 0 && static_cast<size_t>(axis) < axes.size() && axes[axis].size == 1;
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

std::map<std::string, std::string> Program::parameters_of_tensors() const {
  std::map<std::string, std::string> parameters;
  for (const Belongs& one : belongs) {
    parameters[one.tensor] = one.parameter;
  }
  return parameters;
}

TableId Program::intern(Table table) {
  auto it = std::find(tables.begin(), tables.end(), table);
  if (it == tables.end()) {
    it = tables.insert(tables.end(), std::move(table));
  }
  return it - tables.begin();
}

const PieceOffset* Task::piece_offset(char letter) const {
  const auto found = std::find_if(piece_offsets.begin(), piece_offsets.end(),
                                  [&](const PieceOffset& begin) { return begin.letter == letter; });
  return found == piece_offsets.end() ? nullptr : &*found;
}

int64_t Program::begin_at(const Task& task, char letter, int32_t rank) const {
  const PieceOffset* const begin = task.piece_offset(letter);
  return begin ? begin_at(begin->begin, begin->by, rank) : 0;
}

int64_t Program::begin_at(int64_t begin, TableId by, int32_t rank) const {
  if (by == kNone) return begin;
  const Table& table = tables[by];
  const Mesh& mesh = roles[table.role].mesh;
  HOCKET_CHECK(role_of(rank) == table.role, "rank {} is not of role {}", rank, table.role);
  // Axis by axis from the last, which counts fastest both among ranks and in the table.
  int32_t rest = rank - first_rank(table.role);
  size_t place = 0;
  size_t stride = 1;
  size_t left = table.axes.size();
  for (size_t axis = mesh.axes.size(); axis-- > 0 && left > 0;) {
    const int32_t size = mesh.axes[axis].size;
    if (std::cmp_equal(table.axes[left - 1], axis)) {
      place += stride * static_cast<size_t>(rest % size);
      stride *= static_cast<size_t>(size);
      --left;
    }
    rest /= size;
  }
  return begin + table.values[place];
}

int64_t Program::begin_at(int64_t begin, TableId by, std::span<const int32_t> coords) const {
  if (by == kNone) return begin;
  const Table& table = tables[by];
  const Mesh& mesh = roles[table.role].mesh;
  size_t place = 0;
  for (int32_t axis : table.axes) {
    place = place * static_cast<size_t>(mesh.axes[axis].size) + static_cast<size_t>(coords[axis]);
  }
  return begin + table.values[place];
}

std::vector<int32_t> stages_of(const RankClass& cls) {
  std::set<int32_t> stages;
  for (const Task& task : cls.tasks) {
    if (task.stage != kNone) {
      stages.insert(task.stage);
    }
  }
  return {stages.begin(), stages.end()};
}

int32_t num_stages(const Program& program) {
  std::set<int32_t> stages;
  for (const RankClass& cls : program.classes) {
    const std::vector<int32_t> of_class = stages_of(cls);
    stages.insert(of_class.begin(), of_class.end());
  }
  return static_cast<int32_t>(stages.empty() ? program.classes.size() : stages.size());
}

std::string stage_name(const RankClass& cls) {
  const std::vector<int32_t> stages = stages_of(cls);
  if (stages.empty()) return cls.name;
  return fmt::format("stage{} {}", stages.size() == 1 ? "" : "s", fmt::join(stages, ", "));
}

std::string task_name(const Program& program, ClassId cls, TaskId task) {
  const RankClass& rank_class = program.classes[cls];
  const Task& named = rank_class.tasks[task];
  std::string name = program.kind(named).op;
  const std::string place = graph::layer_name(named.layer, program.num_layers);
  if (named.phase < Phase::grad && !place.empty() && !name.starts_with(place)) {
    name += " " + place;
  }
  // A class of one stage says it by its name.
  if (named.stage != kNone && rank_class.name != fmt::format("stage{}", named.stage)) {
    name += fmt::format(" stage{}", named.stage);
  }
  if (named.micro_batch >= 0) {
    name += fmt::format(" mb{}", named.micro_batch);
  }
  return name + fmt::format(" {} ({} task {})", to_string(named.phase), rank_class.name, task);
}

}  // namespace hocket::program
