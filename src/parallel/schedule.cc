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

/// Stages given to the ranks one by one, `chunks` times around.
static std::vector<int> in_turn(int ranks, int chunks) {
  std::vector<int> owners;
  for (int stage = 0; stage < ranks * chunks; ++stage) {
    owners.push_back(stage % ranks);
  }
  return owners;
}

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

Schedule interleaved_one_f_one_b(int ranks, int chunks, int micro_batches) {
  // Forward passes go round by round: of a round's micro-batches the first chunk, then the second,
  // and so on; backward passes likewise, from the last chunk to the first. A rank first runs as
  // many forward passes as bring the first micro-batch of a round through all later chunks and
  // ranks and back (two for every rank behind it), then one forward and one backward pass in turn,
  // then what is left of the backward passes.
  const int rounds = std::max(1, micro_batches / ranks);
  if (micro_batches % rounds != 0) {
    fail("plan.pp_schedule",
         "interleaved runs {} micro-batches on {} in {} rounds; expected equal rounds; try a "
         "train.global_batch that makes a multiple of plan.pp micro-batches",
         micro_batches, counted(ranks, "rank"), rounds);
  }
  const int in_round = micro_batches / rounds;
  const int all = chunks * micro_batches;
  Schedule schedule;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto action = [&](char kind, int step) {
      const int turn = step / in_round % chunks;
      const int chunk = kind == 'F' ? turn : chunks - 1 - turn;
      const int micro_batch = step / (in_round * chunks) * in_round + step % in_round;
      return Action{kind, chunk * ranks + rank, micro_batch};
    };
    const int warmup = std::min((chunks - 1) * in_round + 2 * (ranks - 1 - rank), all);
    std::vector<Action> row;
    for (int step = 0; step < all + warmup; ++step) {
      if (step < all) {
        row.push_back(action('F', step));
      }
      if (step >= warmup) {
        row.push_back(action('B', step - warmup));
      }
    }
    schedule.ranks.push_back(std::move(row));
  }
  return schedule;
}

Schedule forward_only(const std::vector<int>& owners, int ranks, int micro_batches) {
  // As many micro-batches as there are ranks go through the stages together: while the first rank
  // runs its next stage on the first of them, the others still work on those behind it.
  Schedule schedule;
  schedule.ranks.resize(static_cast<size_t>(ranks));
  for (int first = 0; first < micro_batches; first += ranks) {
    for (size_t stage = 0; stage < owners.size(); ++stage) {
      for (int m = first; m < std::min(first + ranks, micro_batches); ++m) {
        schedule.ranks[owners[stage]].push_back({'F', static_cast<int>(stage), m});
      }
    }
  }
  return schedule;
}

Schedule forward_only(int stages, int micro_batches) {
  return forward_only(in_turn(stages, 1), stages, micro_batches);
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

std::vector<int> owners_of(const Schedule& schedule, int ranks, int chunks) {
  const std::string& where = schedule.source;
  const int stages = ranks * chunks;
  if (static_cast<int>(schedule.ranks.size()) != ranks) {
    fail(where, "has {}; expected {} (plan.pp)", counted(std::ssize(schedule.ranks), "row"), ranks);
  }
  std::vector<std::map<int, int>> cells(static_cast<size_t>(stages));  // by stage and row
  for (size_t row = 0; row < schedule.ranks.size(); ++row) {
    for (size_t column = 0; column < schedule.ranks[row].size(); ++column) {
      const Action& action = schedule.ranks[row][column];
      if (action.stage >= stages) {
        fail(where, "row {}, column {}: {}{}{} is beyond the {} (plan.pp x plan.pp_chunks)",
             row + 1, column + 1, action.stage, action.kind, action.micro_batch,
             counted(stages, "stage"));
      }
      ++cells[action.stage][static_cast<int>(row)];
    }
  }
  std::vector<int> owners;
  for (size_t stage = 0; stage < cells.size(); ++stage) {
    if (cells[stage].empty()) {
      fail(where, "no row runs stage {}; expected {} (plan.pp x plan.pp_chunks)", stage,
           counted(stages, "stage"));
    }
    const auto most =
        std::max_element(cells[stage].begin(), cells[stage].end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    owners.push_back(most->first);
  }
  return owners;
}

void validate(const Schedule& schedule, int ranks, int micro_batches, bool with_backward,
              int chunks) {
  // Cell by cell, in the order in which a rank runs them: is the stage one of this rank's, is the
  // micro-batch one of the step's, and has run what the action needs of this rank. What it needs of
  // others is the check's to see. Then, stage by stage, whether anything is left out.
  const std::string& where = schedule.source;
  const int stages = ranks * chunks;
  const std::vector<int> owners = owners_of(schedule, ranks, chunks);
  for (int rank = 0; rank < ranks; ++rank) {
    // Per stage and micro-batch, what has run: F, then B or I and W.
    std::map<std::pair<int, int>, std::string> done;
    const auto& row = schedule.ranks[rank];
    for (size_t column = 0; column < row.size(); ++column) {
      const Action& action = row[column];
      const auto bad = [&](const std::string& why) {
        fail(where, "row {}, column {}: {}{}{} {}", rank + 1, column + 1, action.stage, action.kind,
             action.micro_batch, why);
      };
      if (owners[action.stage] != rank) {
        bad(fmt::format("is in row {}; expected row {}, which runs most of stage {}", rank + 1,
                        owners[action.stage] + 1, action.stage));
      }
      if (action.micro_batch >= micro_batches) {
        bad(fmt::format("is beyond the {} micro-batches of a step", micro_batches));
      }
      std::string& before = done[{action.stage, action.micro_batch}];
      if (before != needed_before(action.kind)) {
        bad(before.empty() ? "comes before its forward" : "comes after " + before);
      }
      if (!with_backward && action.kind != 'F') {
        bad("is a backward action of a forward-only program");
      }
      for (int other = 0; other < stages; ++other) {
        if (owners[other] != rank || other == action.stage) continue;
        const std::string& there = done[{other, action.micro_batch}];
        if (action.kind == 'F' && other < action.stage && there.empty()) {
          bad(fmt::format("comes before {}F{} of the same rank", other, action.micro_batch));
        }
        if ((action.kind == 'B' || action.kind == 'I') && other > action.stage &&
            there.size() < 2) {
          bad(fmt::format("comes before the backward of stage {} of the same rank", other));
        }
      }
      before += action.kind;
    }
    for (int stage = 0; stage < stages; ++stage) {
      if (owners[stage] != rank) continue;
      for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
        const std::string& all = done[{stage, micro_batch}];
        const bool ok = with_backward ? all == "FB" || all == "FIW" : all == "F";
        if (!ok) {
          fail(where, "row {}: micro-batch {}{} runs '{}'; expected F and then B, or F, I, W",
               rank + 1, micro_batch, chunks > 1 ? fmt::format(" of stage {}", stage) : "", all);
        }
      }
    }
  }
}

namespace {
/// A stage per rank, in order.
Schedule with_one_stage(const std::string& name, int chunks, Schedule (*make)(int, int), int ranks,
                        int micro_batches) {
  if (chunks > 1) {
    fail("plan.pp_chunks", "got {}; {} runs one stage per rank; try plan.pp_schedule: interleaved",
         chunks, name);
  }
  return make(ranks, micro_batches);
}
bool is_file(const std::string& name) {
  return name.size() > 4 && name.substr(name.size() - 4) == ".csv";
}
}  // namespace

Schedule make_schedule(const std::string& name, int ranks, int micro_batches, int chunks) {
  // A schedule of one's own is a function above and a line here.
  if (name == "1f1b") return with_one_stage(name, chunks, one_f_one_b, ranks, micro_batches);
  if (name == "gpipe") return with_one_stage(name, chunks, gpipe, ranks, micro_batches);
  if (name == "interleaved") return interleaved_one_f_one_b(ranks, chunks, micro_batches);
  if (is_file(name)) return parse_csv(read_file(name), name);
  fail("plan.pp_schedule", "got '{}'; expected 1f1b, gpipe, interleaved, or a .csv file", name);
}

std::vector<int> stage_owners(const std::string& name, int ranks, int chunks) {
  if (!is_file(name)) return in_turn(ranks, chunks);
  return owners_of(parse_csv(read_file(name), name), ranks, chunks);
}

}  // namespace hocket::parallel
