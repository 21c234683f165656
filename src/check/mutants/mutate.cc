// SPDX-License-Identifier: Apache-2.0
#include "check/mutants/mutate.h"

#include <algorithm>

#include "check/mutants/mutator.h"

namespace hocket::check {
namespace {

struct Row {
  const char* name;
  bool (*apply)(Mutator&);
};
constexpr Row kRows[] = {
    {"drop-task", [](Mutator& m) { return m.drop_task(); }},
    {"double-task", [](Mutator& m) { return m.double_task(); }},
    {"swap-tasks", [](Mutator& m) { return m.swap_tasks(); }},
    {"move-task", [](Mutator& m) { return m.move_task(); }},
    {"lane", [](Mutator& m) { return m.change_lane(); }},
    {"input", [](Mutator& m) { return m.change_operand(false); }},
    {"output", [](Mutator& m) { return m.change_operand(true); }},
    {"swap-inputs", [](Mutator& m) { return m.swap_operands(); }},
    {"drop-edge", [](Mutator& m) { return m.drop_edge(); }},
    {"change-edge", [](Mutator& m) { return m.change_edge(); }},
    {"add-edge", [](Mutator& m) { return m.add_edge(); }},
    {"group", [](Mutator& m) { return m.change_group(); }},
    {"twin-group", [](Mutator& m) { return m.twin_group(); }},
    {"message", [](Mutator& m) { return m.change_peer(); }},
    {"far-peer", [](Mutator& m) { return m.move_peer_around(); }},
    {"offset", [](Mutator& m) { return m.change_offset(); }},
    {"buffer-size", [](Mutator& m) { return m.change_type(); }},
    {"named-buffer", [](Mutator& m) { return m.change_named(); }},
    {"attribute", [](Mutator& m) { return m.change_attribute(); }},
    {"payload", [](Mutator& m) { return m.change_payload(); }},
    {"accumulate", [](Mutator& m) { return m.change_accumulate(); }},
    {"op", [](Mutator& m) { return m.change_kind(); }},
    {"workspace", [](Mutator& m) { return m.change_workspace(); }},
    {"cost", [](Mutator& m) { return m.change_cost(); }},
    {"cut-sequences", [](Mutator& m) { return m.cut_sequences(); }},
    {"expected", [](Mutator& m) { return m.change_expected(); }},
    {"plan", [](Mutator& m) { return m.drop_plan(); }},
};

}  // namespace

std::vector<std::string> mutation_kinds() {
  std::vector<std::string> list;
  for (const Row& row : kRows) {
    list.push_back(row.name);
  }
  return list;
}

bool mutate(Program& program, uint64_t seed, Mutation* mutation, const std::string& kind) {
  std::vector<const Row*> rows;
  for (const Row& row : kRows) {
    if (kind.empty() || kind == row.name) {
      rows.push_back(&row);
    }
  }
  if (rows.empty()) return false;
  for (uint64_t attempt = 0; attempt < 200; ++attempt) {
    Random random{hash_combine(seed, attempt)};
    const Row& row = *rows[random.below(rows.size())];
    Mutation m;
    Mutator mutator(program, random.next(), &m);
    if (!row.apply(mutator)) {
      continue;  // changed nothing
    }
    m.kind = row.name;
    for (const TaskRef& r : m.tasks) {
      if (r.task >= 0) {
        collect_neighbours(program, r, &m.near);
      }
    }
    *mutation = std::move(m);
    return true;
  }
  return false;
}

Localisation localise(const Mutation& mutation, const Verdict& verdict) {
  if (verdict.ok()) return Localisation::accepted;
  const auto& changed = mutation.tasks;
  const Problem& first = verdict.problems.front();
  if (std::find(changed.begin(), changed.end(), first.task) != changed.end()) {
    return Localisation::exact;
  }
  if (mutation.near.contains(first.task)) return Localisation::near;
  for (const TaskRef& r : first.related) {
    if (mutation.near.contains(r)) return Localisation::near;
  }
  return Localisation::missed;
}

}  // namespace hocket::check
