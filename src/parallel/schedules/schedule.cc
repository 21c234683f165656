// SPDX-License-Identifier: Apache-2.0
#include "parallel/schedules/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

namespace hocket::parallel {

namespace {

/// A cell: an action, or another word of PyTorch's runtime.
struct Cell {
  std::string_view name;
  int stage = 0;
  int micro_batch = -1;  ///< -1: none
  size_t column = 0;     ///< from 0
};

constexpr std::string_view kOverlap = "OVERLAP_F_B";
/// Bound of stage and micro-batch numbers in a file.
constexpr int kMaxNumber = 1 << 20;
/// Names of cells. Of two with the same beginning, the longer comes first.
constexpr std::array<std::string_view, 11> kCellNames = {
    "UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "F", "B", "I", "W",
};

bool is_action(const Cell& cell) { return cell.name.size() == 1; }

/// Removes the blanks around a cell or at the end of a line.
std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

/// Reads one row of a CSV: its actions, and the implied cells between them.
class RowReader {
 public:
  /// `row`: the line of the file, from 1.
  RowReader(std::string_view where, int row) : where_(where), row_(row) {}

  void read(std::string_view line) {
    size_t column = 0;
    for (size_t begin = 0; begin <= line.size(); ++column) {
      const size_t comma = std::min(line.find(',', begin), line.size());
      text_ = trimmed(line.substr(begin, comma - begin));
      column_ = column;
      // An empty cell is an idle slot.
      if (!text_.empty()) {
        text_.front() == '(' ? read_overlap() : read_plain();
      }
      begin = comma + 1;
    }
    // Implied cells can be checked only when all actions of the row are known.
    for (const auto& [cell, place] : implied_) {
      expect_implied(cell, place);
    }
    expect_unsharded();
  }

  std::vector<Action> actions;
  size_t num_implied() const { return implied_.size(); }

 private:
  [[noreturn]] void bad(std::string_view cell, size_t column, const std::string& why) const {
    fail(where_, "row {}, column {}: cell '{}' {}", row_, column + 1, cell, why);
  }
  [[noreturn]] void bad(const std::string& why) const {
    bad(text_, column_,
        why +
            "; expected <stage><F|B|I|W><micro-batch>, e.g. 0F0, or two of them: "
            "(0F1;1B0)OVERLAP_F_B");
  }

  int number(std::string_view text) const {
    int value = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = ec == std::errc() && end == text.data() + text.size();
    if (!whole || value < 0 || value >= kMaxNumber) {
      bad("has a bad number");
    }
    return value;
  }

  Cell parse(std::string_view text) const {
    const size_t at = text.find_first_not_of("0123456789");
    const auto name =
        std::find_if(kCellNames.begin(), kCellNames.end(), [&](std::string_view known) {
          return at < text.size() && text.substr(at).starts_with(known);
        });
    if (name == kCellNames.end()) {
      bad("has no action");
    }
    Cell cell{.name = *name, .column = column_};
    cell.stage = number(text.substr(0, at));
    const std::string_view rest = text.substr(at + name->size());
    if (!rest.empty() || is_action(cell)) {
      cell.micro_batch = number(rest);
    }
    return cell;
  }

  void add(const Cell& cell, bool overlaps_next) {
    actions.push_back({.kind = cell.name[0],
                       .stage = cell.stage,
                       .micro_batch = cell.micro_batch,
                       .overlaps_next = overlaps_next,
                       .column = static_cast<int>(column_) + 1});
  }

  void read_plain() {
    const Cell cell = parse(text_);
    if (is_action(cell)) {
      add(cell, false);
    } else {
      implied_.push_back({cell, actions.size()});
    }
  }

  void read_overlap() {
    const size_t close = text_.find(')');
    const size_t between = text_.find(';');
    if (close == text_.npos || text_.substr(close + 1) != kOverlap) {
      bad("is no pair (a;b)OVERLAP_F_B");
    }
    if (between == text_.npos || between > close || text_.find(';', between + 1) != text_.npos) {
      bad("overlaps other than two actions");
    }
    const Cell one = parse(trimmed(text_.substr(1, between - 1)));
    const Cell other = parse(trimmed(text_.substr(between + 1, close - between - 1)));
    if (!is_action(one) || !is_action(other)) {
      bad("overlaps a cell that is no action");
    }
    if (one.micro_batch == other.micro_batch) {
      bad("overlaps two actions of one micro-batch, which follow each other");
    }
    add(one, true);
    add(other, false);
  }

  /// Returns whether an action of one of the kinds on the cell's stage (and micro-batch, if any) is
  /// among the actions [begin, end).
  bool has_action(const Cell& cell, std::string_view kinds, size_t begin, size_t end) const {
    return std::any_of(actions.begin() + static_cast<std::ptrdiff_t>(begin),
                       actions.begin() + static_cast<std::ptrdiff_t>(end),
                       [&](const Action& action) {
                         return action.stage == cell.stage &&
                                (cell.micro_batch < 0 || cell.micro_batch == action.micro_batch) &&
                                kinds.find(action.kind) != kinds.npos;
                       });
  }

  /// Throws Error unless lowering agrees with the cell, before action `place` of the row: it sends
  /// outputs once they are made, receives inputs before they are read, and reduces gradients once
  /// they are complete.
  void expect_implied(const Cell& cell, size_t place) const {
    const std::string text =
        fmt::format("{}{}{}", cell.stage, cell.name,
                    cell.micro_batch < 0 ? "" : std::to_string(cell.micro_batch));
    const std::string_view passes = cell.name.ends_with("_F") ? "F" : "BI";
    if (cell.name.starts_with("SEND") && !has_action(cell, passes, 0, place)) {
      bad(text, cell.column, "precedes the action whose output it sends");
    }
    if (cell.name.starts_with("RECV") && !has_action(cell, passes, place, actions.size())) {
      bad(text, cell.column, "follows the action that reads it");
    }
    if (cell.name == "REDUCE_GRAD" && has_action(cell, "BW", place, actions.size())) {
      bad(text, cell.column,
          "reduces gradients to which a later cell adds; expected it after the last backward of "
          "the stage");
    }
  }

  /// Throws Error if an action runs on a stage that is sharded at that time, by the row's own
  /// cells.
  void expect_unsharded() const {
    std::set<int> managed;
    for (const auto& [cell, place] : implied_) {
      if (cell.name == "UNSHARD") {
        managed.insert(cell.stage);
      }
    }
    std::set<int> whole;
    size_t next = 0;
    for (size_t i = 0; i < actions.size(); ++i) {
      for (; next < implied_.size() && implied_[next].second <= i; ++next) {
        const Cell& cell = implied_[next].first;
        if (cell.name == "UNSHARD") {
          whole.insert(cell.stage);
        } else if (cell.name == "RESHARD") {
          whole.erase(cell.stage);
        }
      }
      if (managed.contains(actions[i].stage) && !whole.contains(actions[i].stage)) {
        bad(to_string(actions[i]), static_cast<size_t>(actions[i].column) - 1,
            "runs while its stage is sharded");
      }
    }
  }

  const std::string_view where_;
  const int row_;
  std::string_view text_;  ///< the current cell
  size_t column_ = 0;
  std::vector<std::pair<Cell, size_t>> implied_;  ///< with the number of actions before them
};

}  // namespace

std::string to_string(const Action& action) {
  return fmt::format("{}{}{}", action.stage, action.kind, action.micro_batch);
}

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const auto& row : schedule.ranks) {
    bool open = false;  // inside of a pair
    for (size_t i = 0; i < row.size(); ++i) {
      if (!open && i > 0) {
        text += ',';
      }
      text += row[i].overlaps_next ? "(" : "";
      text += to_string(row[i]);
      text += open ? fmt::format("){}", kOverlap) : "";
      open = row[i].overlaps_next;
      text += open ? ";" : "";
    }
    text += '\n';
  }
  return text;
}

Schedule parse_csv(std::string_view text, std::string_view where) {
  Schedule schedule;
  schedule.source = where;
  size_t implied = 0;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  for (int number = 1; !text.empty(); ++number) {
    const size_t eol = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, eol));
    text.remove_prefix(std::min(eol + 1, text.size()));
    if (line.empty()) continue;
    RowReader row(where, number);
    row.read(line);
    implied += row.num_implied();
    schedule.ranks.push_back(std::move(row.actions));
    schedule.lines.push_back(number);
  }
  if (schedule.ranks.empty()) {
    fail(where, "the schedule is empty; expected a row per pipeline rank");
  }
  if (implied > 0) {
    log_debug("{}: {} of transfers and reductions left out: they follow from the actions", where,
              counted(static_cast<int64_t>(implied), "cell"));
  }
  return schedule;
}

Extent extent_of(const Schedule& schedule) {
  Extent extent{static_cast<int>(schedule.ranks.size()), 0};
  for (const std::vector<Action>& row : schedule.ranks) {
    for (const Action& action : row) {
      extent.stages = std::max(extent.stages, action.stage + 1);
    }
  }
  return extent;
}

bool is_schedule_file(const std::string& name) {
  return name.size() > 4 && name.substr(name.size() - 4) == ".csv";
}

namespace {
/// Returns the schedule of that name. Throws Error if it does not exist or cannot run this many
/// stages per rank.
const BuiltIn& find_built_in(const std::string& name, int chunks) {
  for (const BuiltIn& built_in : built_in_schedules()) {
    if (name != built_in.name) continue;
    if (built_in.chunks == 1 && chunks > 1) {
      fail("plan.pp_chunks",
           "got {}; {} runs one stage per rank; try plan.pp_schedule: interleaved", chunks, name);
    }
    if (built_in.chunks > 1 && chunks != built_in.chunks) {
      fail("plan.pp_chunks", "got {}; {} runs {} stages per rank; try plan.pp_chunks: {}", chunks,
           name, built_in.chunks, built_in.chunks);
    }
    return built_in;
  }
  std::vector<std::string> names;
  for (const BuiltIn& built_in : built_in_schedules()) {
    names.push_back(built_in.name);
  }
  const std::string close = nearest(name, names);
  fail("plan.pp_schedule", "got '{}'; expected {}, or a .csv file{}", name, built_in_names(),
       close.empty() ? "" : fmt::format("; did you mean {}?", close));
}
}  // namespace

Schedule make_schedule(const std::string& name, int ranks, int micro_batches, int chunks) {
  if (is_schedule_file(name)) return parse_csv(read_file(name), name);
  return find_built_in(name, chunks).make(ranks, chunks, micro_batches);
}

int fitting_micro_batches(const std::string& name, int ranks, int chunks, int least) {
  if (!is_schedule_file(name)) {
    const BuiltIn& built_in = find_built_in(name, chunks);
    return built_in.fitting ? built_in.fitting(ranks, chunks, least) : least;
  }
  int most = 0;
  for (const std::vector<Action>& row : parse_csv(read_file(name), name).ranks) {
    for (const Action& action : row) {
      most = std::max(most, action.micro_batch + 1);
    }
  }
  if (most < least) {
    fail("plan.pp_schedule", "{} runs {} micro-batch{}; expected at least the {} of this step",
         name, most, most == 1 ? "" : "es", least);
  }
  return most;
}

std::vector<int> stage_owners(const std::string& name, int ranks, int chunks) {
  if (is_schedule_file(name)) return owners_of(parse_csv(read_file(name), name), ranks, chunks);
  const bool is_v = find_built_in(name, chunks).is_v;
  std::vector<int> owners;
  for (int stage = 0; stage < ranks * chunks; ++stage) {
    owners.push_back(is_v && stage >= ranks ? 2 * ranks - 1 - stage : stage % ranks);
  }
  return owners;
}

}  // namespace hocket::parallel
