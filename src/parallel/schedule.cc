// SPDX-License-Identifier: Apache-2.0
#include "parallel/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace hocket::parallel {

Schedule one_f_one_b(int stages, int micro_batches) {
  Schedule schedule;
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<Action> row;
    int warmup = std::min(stages - 1 - stage, micro_batches);
    int forward = 0;
    int backward = 0;
    while (forward < warmup) {
      row.push_back({'F', stage, forward++});
    }
    while (forward < micro_batches) {
      row.push_back({'F', stage, forward++});
      row.push_back({'B', stage, backward++});
    }
    while (backward < micro_batches) {
      row.push_back({'B', stage, backward++});
    }
    schedule.ranks.push_back(std::move(row));
  }
  return schedule;
}

Schedule gpipe(int stages, int micro_batches) {
  Schedule schedule = forward_only(stages, micro_batches);
  for (int stage = 0; stage < stages; ++stage) {
    for (int m = 0; m < micro_batches; ++m) {
      schedule.ranks[stage].push_back({'B', stage, m});
    }
  }
  return schedule;
}

Schedule forward_only(int stages, int micro_batches) {
  Schedule schedule;
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<Action> row;
    for (int m = 0; m < micro_batches; ++m) {
      row.push_back({'F', stage, m});
    }
    schedule.ranks.push_back(std::move(row));
  }
  return schedule;
}

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const auto& row : schedule.ranks) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += fmt::format("{}{}{}{}", i ? "," : "", row[i].stage, row[i].kind, row[i].micro_batch);
    }
    text += '\n';
  }
  return text;
}

namespace {
Action parse_cell(std::string_view cell, std::string_view where, size_t row, size_t column) {
  const auto bad = [&](const char* why) {
    fail(where, "row {}, column {}: cell '{}' {}; expected <stage><F|B|I|W><micro-batch>, e.g. 0F0",
         row + 1, column + 1, cell, why);
  };
  // What else torch.distributed.pipelining writes.
  for (const char* other : {"OVERLAP_F_B", "SEND_F", "SEND_B", "RECV_F", "RECV_B", "UNSHARD",
                            "RESHARD", "REDUCE_GRAD"}) {
    if (cell.find(other) != cell.npos) {
      fail(where,
           "row {}, column {}: cell '{}': {} is not supported; expected the actions F, B, I and W, "
           "one per cell; transfers and reductions follow from them",
           row + 1, column + 1, cell, other);
    }
  }
  size_t at = cell.find_first_of("FBIW");
  if (at == cell.npos) {
    bad("has no action");
  }
  Action action;
  action.kind = cell[at];
  const auto number = [&](std::string_view text, int& out) {
    auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (ec != std::errc() || end != text.data() + text.size() || out < 0) {
      bad("has a bad number");
    }
  };
  number(cell.substr(0, at), action.stage);
  number(cell.substr(at + 1), action.micro_batch);
  return action;
}
}  // namespace

Schedule parse_csv(std::string_view text, std::string_view where) {
  Schedule schedule;
  schedule.source = where;
  while (!text.empty()) {
    size_t eol = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, eol);
    text.remove_prefix(std::min(eol + 1, text.size()));
    if (!line.empty() && line.back() == '\r') {
      line.remove_suffix(1);
    }
    if (line.empty()) continue;
    std::vector<Action> row;
    size_t column = 0;
    for (size_t begin = 0; begin <= line.size(); ++column) {
      size_t comma = std::min(line.find(',', begin), line.size());
      std::string_view cell = line.substr(begin, comma - begin);
      while (!cell.empty() && cell.front() == ' ') {
        cell.remove_prefix(1);
      }
      while (!cell.empty() && cell.back() == ' ') {
        cell.remove_suffix(1);
      }
      // An empty cell is an idle slot.
      if (!cell.empty()) {
        row.push_back(parse_cell(cell, where, schedule.ranks.size(), column));
      }
      begin = comma + 1;
    }
    schedule.ranks.push_back(std::move(row));
  }
  if (schedule.ranks.empty())
    fail(where, "the schedule is empty; expected a row per pipeline rank");
  return schedule;
}

/// What of a micro-batch must have run before an action of this kind, as in `done` of validate.
static std::string_view needed_before(char kind) {
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

void validate(const Schedule& schedule, int stages, int micro_batches, bool with_backward) {
  const std::string& where = schedule.source;
  if (static_cast<int>(schedule.ranks.size()) != stages) {
    fail(where, "has {}; expected {} (plan.pp)", counted(std::ssize(schedule.ranks), "row"),
         stages);
  }
  for (int stage = 0; stage < stages; ++stage) {
    // Per micro-batch, what has run: F, then B or I and W.
    std::map<int, std::string> done;
    const auto& row = schedule.ranks[stage];
    for (size_t column = 0; column < row.size(); ++column) {
      const Action& action = row[column];
      const auto bad = [&](const std::string& why) {
        fail(where, "row {}, column {}: {}{}{} {}", stage + 1, column + 1, action.stage,
             action.kind, action.micro_batch, why);
      };
      if (action.stage != stage) {
        bad(fmt::format("belongs to stage {}; expected {}", action.stage, stage));
      }
      if (action.micro_batch >= micro_batches) {
        bad(fmt::format("is beyond the {} micro-batches of a step", micro_batches));
      }
      std::string& before = done[action.micro_batch];
      if (before != needed_before(action.kind)) {
        bad(before.empty() ? "comes before its forward" : "comes after " + before);
      }
      if (!with_backward && action.kind != 'F') {
        bad("is a backward action of a forward-only program");
      }
      before += action.kind;
    }
    for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      const std::string& all = done[micro_batch];
      const bool ok = with_backward ? all == "FB" || all == "FIW" : all == "F";
      if (!ok) {
        fail(where, "row {}: micro-batch {} runs '{}'; expected F and then B, or F, I, W",
             stage + 1, micro_batch, all);
      }
    }
  }
}

Schedule make_schedule(const std::string& name, int stages, int micro_batches) {
  // A schedule of one's own is a function above and a row here.
  static constexpr std::pair<const char*, Schedule (*)(int, int)> kBuiltIn[] = {
      {"1f1b", one_f_one_b}, {"gpipe", gpipe}};
  std::string known;
  for (auto& [built_in, make] : kBuiltIn) {
    if (name == built_in) return make(stages, micro_batches);
    known += std::string(built_in) + ", ";
  }
  if (name.size() > 4 && name.substr(name.size() - 4) == ".csv") {
    return parse_csv(read_file(name), name);
  }
  fail("plan.pp_schedule", "got '{}'; expected {}or a .csv file", name, known);
}

}  // namespace hocket::parallel
