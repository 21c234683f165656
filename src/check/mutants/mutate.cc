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
    {"drop-task", [](Mutator& mutator) { return mutator.drop_task(); }},
    {"double-task", [](Mutator& mutator) { return mutator.double_task(); }},
    {"swap-tasks", [](Mutator& mutator) { return mutator.swap_tasks(); }},
    {"move-task", [](Mutator& mutator) { return mutator.move_task(); }},
    {"lane", [](Mutator& mutator) { return mutator.change_lane(); }},
    {"input", [](Mutator& mutator) { return mutator.change_operand(false); }},
    {"output", [](Mutator& mutator) { return mutator.change_operand(true); }},
    {"swap-inputs", [](Mutator& mutator) { return mutator.swap_operands(); }},
    {"drop-edge", [](Mutator& mutator) { return mutator.drop_edge(); }},
    {"change-edge", [](Mutator& mutator) { return mutator.change_edge(); }},
    {"add-edge", [](Mutator& mutator) { return mutator.add_edge(); }},
    {"group", [](Mutator& mutator) { return mutator.change_group(); }},
    {"twin-group", [](Mutator& mutator) { return mutator.twin_group(); }},
    {"message", [](Mutator& mutator) { return mutator.change_peer(); }},
    {"far-peer", [](Mutator& mutator) { return mutator.move_peer_around(); }},
    {"offset", [](Mutator& mutator) { return mutator.change_offset(); }},
    {"space", [](Mutator& mutator) { return mutator.change_space(); }},
    {"buffer-size", [](Mutator& mutator) { return mutator.change_type(); }},
    {"named-buffer", [](Mutator& mutator) { return mutator.change_named(); }},
    {"attribute", [](Mutator& mutator) { return mutator.change_attribute(); }},
    {"payload", [](Mutator& mutator) { return mutator.change_payload(); }},
    {"accumulate", [](Mutator& mutator) { return mutator.change_accumulate(); }},
    {"op", [](Mutator& mutator) { return mutator.change_kind(); }},
    {"workspace", [](Mutator& mutator) { return mutator.change_workspace(); }},
    {"cost", [](Mutator& mutator) { return mutator.change_cost(); }},
    {"cut-sequences", [](Mutator& mutator) { return mutator.cut_sequences(); }},
    {"expected", [](Mutator& mutator) { return mutator.change_expected(); }},
    {"begin", [](Mutator& mutator) { return mutator.change_begin(); }},
    {"view", [](Mutator& mutator) { return mutator.change_view(); }},
    {"slot", [](Mutator& mutator) { return mutator.change_slot(); }},
    {"plan", [](Mutator& mutator) { return mutator.drop_plan(); }},
    {"parts", [](Mutator& mutator) { return mutator.change_parts(); }},
    {"part-dep", [](Mutator& mutator) { return mutator.change_part_dep(); }},
    {"letter", [](Mutator& mutator) { return mutator.change_letter(); }},
    {"add-begin", [](Mutator& mutator) { return mutator.add_begin(); }},
    {"codec", [](Mutator& mutator) { return mutator.change_codec(); }},
    {"monoid", [](Mutator& mutator) { return mutator.change_monoid(); }},
    {"merge", [](Mutator& mutator) { return mutator.change_merge(); }},
    {"both-ends", [](Mutator& mutator) { return mutator.move_both_ends(); }},
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
    Mutation drawn;
    Mutator mutator(program, random.next(), &drawn);
    if (!row.apply(mutator)) {
      continue;  // changed nothing
    }
    drawn.kind = row.name;
    for (const TaskRef& ref : drawn.tasks) {
      if (ref.task >= 0) {
        collect_neighbours(program, ref, &drawn.near);
      }
    }
    *mutation = std::move(drawn);
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
  for (const TaskRef& ref : first.related) {
    if (mutation.near.contains(ref)) return Localisation::near;
  }
  return Localisation::missed;
}

}  // namespace hocket::check
