// SPDX-License-Identifier: Apache-2.0
// Implements: validate, routes_of, owners_of (schedule.h). Validates the cells of every row, then
// the order of all rows together.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "parallel/schedules/schedule.h"

namespace hocket::parallel {

namespace {

/// Returns "row 2, column 3": the place in the file, or the number of the cell.
std::string place_of(const Schedule& schedule, size_t row, size_t index) {
  const std::vector<Action>& actions = schedule.ranks[row];
  int64_t column = actions[index].column;
  if (column == 0) {
    const auto end = actions.begin() + static_cast<std::ptrdiff_t>(index);
    column = 1 + (end - actions.begin()) -
             std::count_if(actions.begin(), end,
                           [](const Action& action) { return action.overlaps_next; });
  }
  return fmt::format("row {}, column {}", schedule.line_of(row), column);
}

/// Returns the actions of a micro-batch that must have run before one of this kind, as in
/// RowCheck::done_.
std::string_view needed_before(char kind) {
  switch (kind) {
    case 'F':
      return "";
    case 'B':
    case 'I':
      return "F";
    default:
      return "FI";
  }
}

void expect_rows(const Schedule& schedule, int ranks) {
  if (static_cast<int>(schedule.ranks.size()) != ranks) {
    fail(schedule.source, "has {}; expected {} (plan.pp)",
         counted(std::ssize(schedule.ranks), "row"), ranks);
  }
}

/// Throws Error for a stage without a cell of the micro-batch. Names the first cell of the
/// micro-batch, which goes through all stages; else the last cell of the stage, after which more is
/// expected.
[[noreturn]] void fail_missing(const Schedule& schedule, int micro_batch, int stage, int stages) {
  const std::string missing =
      fmt::format("no row runs micro-batch {} of stage {}; expected {}F{} in a row", micro_batch,
                  stage, stage, micro_batch);
  std::string last_place, last;
  for (size_t row = 0; row < schedule.ranks.size(); ++row) {
    for (size_t i = 0; i < schedule.ranks[row].size(); ++i) {
      const Action& action = schedule.ranks[row][i];
      if (action.micro_batch == micro_batch) {
        fail(schedule.source, "{}: {} is present, but {}", place_of(schedule, row, i),
             to_string(action), missing);
      }
      if (action.stage == stage) {
        last_place = place_of(schedule, row, i);
        last = to_string(action);
      }
    }
  }
  if (!last.empty()) {
    fail(schedule.source, "{}: after {}, {}", last_place, last, missing);
  }
  fail(schedule.source, "no row runs stage {}; expected {} (plan.pp x plan.pp_chunks)", stage,
       counted(stages, "stage"));
}

/// Returns the row with most of their cells, by micro-batch below `count` and stage.
std::vector<std::vector<int>> find_rows(const Schedule& schedule, int stages, int count) {
  std::map<std::pair<int, int>, std::map<int, int>> cells;  // by micro-batch and stage, then row
  for (size_t row = 0; row < schedule.ranks.size(); ++row) {
    for (size_t i = 0; i < schedule.ranks[row].size(); ++i) {
      const Action& action = schedule.ranks[row][i];
      if (action.stage >= stages) {
        fail(schedule.source, "{}: {} is beyond the {} (plan.pp x plan.pp_chunks)",
             place_of(schedule, row, i), to_string(action), counted(stages, "stage"));
      }
      if (action.micro_batch < count) {
        ++cells[{action.micro_batch, action.stage}][static_cast<int>(row)];
      }
    }
  }
  std::vector<std::vector<int>> rows;
  for (int micro_batch = 0; micro_batch < count; ++micro_batch) {
    rows.emplace_back();
    for (int stage = 0; stage < stages; ++stage) {
      const auto by_row = cells.find({micro_batch, stage});
      if (by_row == cells.end()) {
        fail_missing(schedule, micro_batch, stage, stages);
      }
      const auto most =
          std::max_element(by_row->second.begin(), by_row->second.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
      rows.back().push_back(most->first);
    }
  }
  return rows;
}

}  // namespace

std::vector<int> owners_of(const Schedule& schedule, int ranks, int chunks) {
  expect_rows(schedule, ranks);
  return find_rows(schedule, ranks * chunks, 1)[0];
}

Routes routes_of(const Schedule& schedule, int ranks, int chunks, int micro_batches) {
  expect_rows(schedule, ranks);
  for (size_t row = 0; row < schedule.ranks.size(); ++row) {
    for (size_t i = 0; i < schedule.ranks[row].size(); ++i) {
      const Action& action = schedule.ranks[row][i];
      if (action.micro_batch >= micro_batches) {
        fail(schedule.source, "{}: {} is beyond the {} micro-batches of a step",
             place_of(schedule, row, i), to_string(action), micro_batches);
      }
    }
  }
  Routes routes;
  for (const std::vector<int>& route : find_rows(schedule, ranks * chunks, micro_batches)) {
    const auto known = std::find(routes.ranks.begin(), routes.ranks.end(), route);
    routes.of.push_back(static_cast<int>(known - routes.ranks.begin()));
    if (known == routes.ranks.end()) {
      routes.ranks.push_back(route);
    }
  }
  return routes;
}

namespace {

/// Runs all rows at once, as their ranks would, to find deadlocks.
class DeadlockCheck {
 public:
  DeadlockCheck(const Schedule& schedule, int stages)
      : schedule_(schedule), stages_(stages), next_(schedule.ranks.size(), 0) {
    for (size_t row = 0; row < schedule.ranks.size(); ++row) {
      for (size_t i = 0; i < schedule.ranks[row].size(); ++i) {
        place_[key(schedule.ranks[row][i])] = {row, i};
      }
    }
  }

  /// Throws Error naming the cells that wait for each other, if not all rows can run to their end.
  void expect_end() {
    bool more = true;
    while (more) {
      more = false;
      for (size_t row = 0; row < next_.size(); ++row) {
        while (!ended(row) && !missing(row)) {
          next_[row] += pair_at(row);
          more = true;
        }
      }
    }
    for (size_t row = 0; row < next_.size(); ++row) {
      if (!ended(row)) {
        fail_stuck(row);
      }
    }
  }

 private:
  struct Cell {
    size_t row = 0, index = 0;
  };
  /// Kind (F; I for the backward pass that other stages wait for; W), stage, micro-batch.
  using Key = std::tuple<char, int, int>;
  static Key key(const Action& action) {
    return {action.kind == 'B' ? 'I' : action.kind, action.stage, action.micro_batch};
  }

  bool ended(size_t row) const { return next_[row] == schedule_.ranks[row].size(); }
  const Action& at(const Cell& place) const { return schedule_.ranks[place.row][place.index]; }
  size_t pair_at(size_t row) const {
    return schedule_.ranks[row][next_[row]].overlaps_next ? 2 : 1;
  }
  std::string named(const Cell& place) const {
    return fmt::format("{} ({})", to_string(at(place)),
                       place_of(schedule_, place.row, place.index));
  }

  /// Returns the action of the neighbouring stage that this one needs, if it has not run yet.
  std::optional<Cell> missing_for(const Action& action) const {
    const bool forward = action.kind == 'F';
    const int stage = forward ? action.stage - 1 : action.stage + 1;
    if (action.kind == 'W' || stage < 0 || stage >= stages_) return std::nullopt;
    const Cell place = place_.at({forward ? 'F' : 'I', stage, action.micro_batch});
    if (place.index < next_[place.row]) return std::nullopt;
    return place;
  }
  /// Returns, for the row's current cell, the action that waits and the one that it waits for.
  std::optional<std::pair<Cell, Cell>> missing(size_t row) const {
    for (size_t i = next_[row]; i < next_[row] + pair_at(row); ++i) {
      if (const auto place = missing_for(schedule_.ranks[row][i])) {
        return std::pair{Cell{row, i}, *place};
      }
    }
    return std::nullopt;
  }

  [[noreturn]] void fail_stuck(size_t row) const {
    // Follow the wait-for edges from the row's current cell, row by row, until a row repeats: from
    // there on it is a cycle.
    std::vector<size_t> rows;
    while (std::find(rows.begin(), rows.end(), row) == rows.end()) {
      rows.push_back(row);
      row = missing(row)->second.row;
    }
    rows.erase(rows.begin(), std::find(rows.begin(), rows.end(), row));
    std::string text;
    for (size_t stuck : rows) {
      const auto [waiting, needed] = *missing(stuck);
      const Cell next = missing(needed.row)->first;
      text += text.empty() ? to_string(at(waiting)) : "";
      text += fmt::format(" waits for {}", named(needed));
      if (key(at(needed)) != key(at(next))) {
        text += fmt::format(", which comes after {}", named(next));
      }
      text += stuck == rows.back() ? "" : ", which";
    }
    fail(schedule_.source, "{}: {}; expected an order without a deadlock",
         place_of(schedule_, rows[0], missing(rows[0])->first.index), text);
  }

  const Schedule& schedule_;
  const int stages_;
  std::vector<size_t> next_;  // by row: actions before it have run
  std::map<Key, Cell> place_;
};

/// Checks a row in its order: every cell belongs to this rank, and the actions that it needs of
/// this rank have run.
class RowCheck {
 public:
  RowCheck(const Schedule& schedule, const Routes& routes, int rank, bool with_backward)
      : schedule_(schedule), routes_(routes), rank_(rank), with_backward_(with_backward) {}

  void run() {
    const std::vector<Action>& row = schedule_.ranks[rank_];
    for (index_ = 0; index_ < row.size(); ++index_) {
      expect_owned(row[index_]);
      expect_order(row[index_]);
      done_[{row[index_].stage, row[index_].micro_batch}] += row[index_].kind;
    }
    expect_all();
  }

 private:
  [[noreturn]] void bad(const std::string& why) const {
    fail(schedule_.source, "{}: {} {}", place_of(schedule_, static_cast<size_t>(rank_), index_),
         to_string(schedule_.ranks[rank_][index_]), why);
  }
  const std::vector<int>& owners(int micro_batch) const {
    return routes_.ranks[routes_.of[micro_batch]];
  }

  void expect_owned(const Action& action) const {
    const int owner = owners(action.micro_batch)[action.stage];
    if (owner != rank_) {
      bad(fmt::format(
          "is in row {}; expected row {}, which runs most of micro-batch {} of stage {}",
          schedule_.line_of(static_cast<size_t>(rank_)),
          schedule_.line_of(static_cast<size_t>(owner)), action.micro_batch, action.stage));
    }
    if (!with_backward_ && action.kind != 'F') {
      bad("is a backward action of a forward-only program");
    }
  }

  void expect_order(const Action& action) {
    const std::string& before = done_[{action.stage, action.micro_batch}];
    if (before != needed_before(action.kind)) {
      bad(before.empty() ? "comes before its forward" : "comes after " + before);
    }
    const std::vector<int>& route = owners(action.micro_batch);
    for (int other = 0; other < static_cast<int>(route.size()); ++other) {
      if (route[other] != rank_ || other == action.stage) continue;
      const std::string& there = done_[{other, action.micro_batch}];
      if (action.kind == 'F' && other < action.stage && there.empty()) {
        bad(fmt::format("comes before {}F{} of the same rank", other, action.micro_batch));
      }
      const bool for_others = action.kind == 'B' || action.kind == 'I';
      if (for_others && other > action.stage && there.size() < 2) {
        bad(fmt::format("comes before the backward of stage {} of the same rank", other));
      }
    }
  }

  /// Throws Error for an incomplete micro-batch of a stage.
  void expect_all() {
    for (int m = 0; m < static_cast<int>(routes_.of.size()); ++m) {
      for (int stage = 0; stage < static_cast<int>(owners(m).size()); ++stage) {
        if (owners(m)[stage] != rank_) continue;
        const std::string& all = done_[{stage, m}];
        const bool ok = with_backward_ ? all == "FB" || all == "FIW" : all == "F";
        if (!ok) {
          index_ = last_of(stage, m);
          bad(fmt::format(
              "is the last cell of micro-batch {} of stage {}, which runs '{}'; expected {}", m,
              stage, all, with_backward_ ? "F and then B, or F, I, W" : "F"));
        }
      }
    }
  }

  /// Returns the last cell of the row with this micro-batch and stage. Requires: the row owns them,
  /// so there is one.
  size_t last_of(int stage, int micro_batch) const {
    const std::vector<Action>& row = schedule_.ranks[rank_];
    const auto last = std::find_if(row.rbegin(), row.rend(), [&](const Action& action) {
      return action.stage == stage && action.micro_batch == micro_batch;
    });
    return static_cast<size_t>(row.rend() - last) - 1;
  }

  const Schedule& schedule_;
  const Routes& routes_;
  const int rank_;
  const bool with_backward_;
  size_t index_ = 0;
  std::map<std::pair<int, int>, std::string> done_;  // by stage and micro-batch: F, then B or I, W
};

}  // namespace

void validate(const Schedule& schedule, int ranks, int micro_batches, bool with_backward,
              int chunks) {
  // Row by row first. After that every action exists once, so only the order of the rows can keep
  // them from running.
  const Routes routes = routes_of(schedule, ranks, chunks, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    RowCheck(schedule, routes, rank, with_backward).run();
  }
  DeadlockCheck(schedule, ranks * chunks).expect_end();
}

}  // namespace hocket::parallel
