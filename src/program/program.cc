// SPDX-License-Identifier: Apache-2.0
#include "program/program.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace hocket::program {

namespace {
template <typename E, size_t N>
E parse_enum(std::string_view text, const char* const (&names)[N], const char* what) {
  for (size_t i = 0; i < N; ++i)
    if (text == names[i]) return static_cast<E>(i);
  fail("program", "unknown {} '{}'; expected one of {}", what, text, fmt::join(names, ", "));
}
constexpr const char* kLanes[] = {"compute",  "intra", "inter", "intra_rx",
                                  "inter_rx", "h2d",   "d2h",   "host"};
constexpr const char* kPhases[] = {"forward", "backward", "grad", "optimizer"};
constexpr const char* kBufferKinds[] = {"step", "persistent", "input", "output"};
}  // namespace

const char* to_string(Lane lane) { return kLanes[static_cast<int>(lane)]; }
Lane parse_lane(std::string_view text) { return parse_enum<Lane>(text, kLanes, "lane"); }
const char* to_string(Phase phase) { return kPhases[static_cast<int>(phase)]; }
Phase parse_phase(std::string_view text) { return parse_enum<Phase>(text, kPhases, "phase"); }
const char* to_string(BufferKind kind) { return kBufferKinds[static_cast<int>(kind)]; }
BufferKind parse_buffer_kind(std::string_view text) {
  return parse_enum<BufferKind>(text, kBufferKinds, "buffer kind");
}

bool is_collective(std::string_view op) {
  return op == "all_reduce" || op == "all_gather" || op == "reduce_scatter" ||
         op == "size_exchange" || op == "all_to_all";
}
graph::DType compute_dtype(const Kind& kind) {
  return graph::compute_dtype(kind.in, kind.out).value_or(graph::DType::f32);
}

bool is_communication(std::string_view op) {
  return op == "send" || op == "recv" || is_collective(op);
}

int32_t Program::class_of(int32_t rank) const {
  const int32_t pp = mesh.axis("pp");
  return pp < 0 ? 0 : mesh.coords(rank)[static_cast<size_t>(pp)];
}

std::vector<int32_t> Program::ranks_of(int32_t cls) const {
  std::vector<int32_t> ranks;
  for (int32_t r = 0; r < mesh.size(); ++r)
    if (class_of(r) == cls) ranks.push_back(r);
  return ranks;
}

std::vector<int32_t> Program::members(const Group& group, int32_t rank) const {
  std::vector<std::vector<int32_t>> all{mesh.coords(rank)};
  for (int32_t axis : group.axes) {
    std::vector<std::vector<int32_t>> next;
    const bool some = mesh.axes[static_cast<size_t>(axis)].name == "pp" && !group.members.empty();
    for (const auto& c : all)
      for (int32_t i = 0; i < mesh.axes[static_cast<size_t>(axis)].size; ++i) {
        if (some && std::find(group.members.begin(), group.members.end(), i) == group.members.end())
          continue;
        next.push_back(c);
        next.back()[static_cast<size_t>(axis)] = i;
      }
    all = std::move(next);
  }
  std::vector<int32_t> ranks;
  for (const auto& c : all) ranks.push_back(mesh.rank(c));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

int32_t Program::peer_class(const Task& t, int32_t cls) const {
  return t.peer_axis == mesh.axis("pp") ? mesh.wrap(t.peer_axis, int64_t{cls} + t.peer) : cls;
}

KindId Program::intern(Kind kind) {
  std::map<std::string, KindId>& places = kind_index.places_;
  if (places.size() != kinds.size()) {
    places.clear();
    for (size_t i = 0; i < kinds.size(); ++i) {
      places.emplace(identity(*this, kinds[i]), static_cast<KindId>(i));
    }
  }
  auto [it, added] = places.emplace(identity(*this, kind), static_cast<KindId>(kinds.size()));
  if (added) kinds.push_back(std::move(kind));
  return it->second;
}

Group Program::canonical(Group group) const {
  const int32_t pp = mesh.axis("pp");
  const size_t stages = static_cast<size_t>(mesh.extent("pp"));
  if (group.members.size() == 1) std::erase(group.axes, pp);
  if (group.members.size() == 1 || group.members.size() == stages) group.members.clear();
  const auto num_axes = static_cast<int32_t>(mesh.axes.size());
  std::erase_if(group.axes, [&](int32_t a) {  // one that does not exist stays: the check names it
    return a >= 0 && a < num_axes && mesh.axes[static_cast<size_t>(a)].size == 1;
  });
  return group;
}

GroupId Program::intern(const Group& group) {
  Group one = canonical(group);
  auto it = std::find(groups.begin(), groups.end(), one);
  if (it == groups.end()) it = groups.insert(groups.end(), std::move(one));
  return static_cast<GroupId>(it - groups.begin());
}

std::string task_name(const Program& program, int32_t cls, TaskId task) {
  const RankClass& c = program.classes[static_cast<size_t>(cls)];
  const Task& t = c.tasks[static_cast<size_t>(task)];
  std::string name = program.kind(t).op;
  if (t.layer >= 0 && t.phase < Phase::grad) name += fmt::format(" L{}", t.layer);
  if (t.micro_batch >= 0) name += fmt::format(" mb{}", t.micro_batch);
  return name + fmt::format(" {} ({} task {})", to_string(t.phase), c.name, task);
}

}  // namespace hocket::program
