// SPDX-License-Identifier: Apache-2.0
// Implements: the built-in pipeline schedules (schedule.h), each by the rules of its paper.
#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "parallel/schedules/schedule.h"

namespace hocket::parallel {

namespace {

/// Writes the row of one rank. Micro-batches are numbered automatically: the next forward or
/// backward pass of a stage is of its next micro-batch. A full backward pass (B) leaves nothing to
/// do; one for the inputs (I) leaves the weights (W) of its micro-batch for later.
class RowWriter {
 public:
  /// Sets the stage's first micro-batch, by default 0.
  void begin_at(int stage, int micro_batch) { begin_[stage] = micro_batch; }

  void forward(int stage) { add('F', stage, next(forwards_, stage)); }
  void backward(int stage) { add('B', stage, next(backwards_, stage)); }
  void backward_inputs(int stage) {
    const int micro_batch = next(backwards_, stage);
    add('I', stage, micro_batch);
    left_.push_back({stage, micro_batch});
  }
  /// Adds the oldest pending W, if there is one.
  void weights() {
    if (!left_.empty()) {
      take(left_.begin());
    }
  }
  /// Adds the oldest pending W of this stage, if there is one.
  void weights(int stage) {
    const auto oldest = std::find_if(left_.begin(), left_.end(),
                                     [&](const auto& left) { return left.first == stage; });
    if (oldest != left_.end()) {
      take(oldest);
    }
  }
  /// Adds a cell of a forward pass of one stage and a backward pass of another.
  void overlapped(int forward_stage, int backward_stage) {
    forward(forward_stage);
    row_.back().overlaps_next = true;
    backward(backward_stage);
  }

  bool weights_left() const { return !left_.empty(); }
  int forwards(int stage) const { return counted(forwards_, stage); }
  std::vector<Action> take_row() { return std::move(row_); }

 private:
  using Counts = std::map<int, int>;  // by stage

  void add(char kind, int stage, int micro_batch) { row_.push_back({kind, stage, micro_batch}); }
  static int counted(const Counts& counts, int stage) {
    const auto known = counts.find(stage);
    return known == counts.end() ? 0 : known->second;
  }
  int next(Counts& counts, int stage) { return counted(begin_, stage) + counts[stage]++; }
  void take(std::vector<std::pair<int, int>>::iterator left) {
    add('W', left->first, left->second);
    left_.erase(left);
  }

  std::vector<Action> row_;
  Counts begin_, forwards_, backwards_;
  std::vector<std::pair<int, int>> left_;  // stage and micro-batch of every pending W
};

/// Returns the number of rounds of a schedule with stages that go around the ranks several times.
/// Rounds must be equal.
int rounds_of(int ranks, int micro_batches) { return std::max(1, micro_batches / ranks); }

/// Returns the micro-batches of a round. Throws Error if rounds are not equal.
int in_round(const char* name, int ranks, int micro_batches) {
  const int rounds = rounds_of(ranks, micro_batches);
  if (micro_batches % rounds != 0) {
    fail("plan.pp_schedule",
         "{} runs {} micro-batches on {} in {} rounds; expected equal rounds; try a "
         "train.global_batch that makes a multiple of plan.pp micro-batches",
         name, micro_batches, counted(ranks, "rank"), rounds);
  }
  return micro_batches / rounds;
}

}  // namespace

Schedule one_f_one_b(int stages, int micro_batches) {
  Schedule schedule;
  for (int stage = 0; stage < stages; ++stage) {
    RowWriter row;
    const int warmup = std::min(stages - 1 - stage, micro_batches);
    for (int step = 0; step < micro_batches + warmup; ++step) {
      if (step < micro_batches) {
        row.forward(stage);
      }
      if (step >= warmup) {
        row.backward(stage);
      }
    }
    schedule.ranks.push_back(row.take_row());
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

namespace {

/// Interleaved 1F1B. Forward passes go round by round: the first chunk for all micro-batches of a
/// round, then the second, and so on; backward passes likewise, from the last chunk to the first.
/// The warm-up of a rank brings the first micro-batch of a round through all later chunks and ranks
/// and back. That takes two forward passes per rank after it; the warm-up has `ahead` more. Then
/// forward and backward passes alternate, overlapped or not, and the rest of the backward passes
/// follow.
Schedule interleaved(int ranks, int chunks, int micro_batches, int round, int ahead,
                     bool overlapped) {
  const int all = chunks * micro_batches;
  Schedule schedule;
  for (int rank = 0; rank < ranks; ++rank) {
    RowWriter row;
    const auto forward_stage = [&](int step) { return step / round % chunks * ranks + rank; };
    const auto backward_stage = [&](int step) {
      return (chunks - 1 - step / round % chunks) * ranks + rank;
    };
    const int warmup = std::min((chunks - 1) * round + 2 * (ranks - 1 - rank) + ahead, all);
    for (int step = 0; step < all + warmup; ++step) {
      if (overlapped && step < all && step >= warmup) {
        row.overlapped(forward_stage(step), backward_stage(step - warmup));
        continue;
      }
      if (step < all) {
        row.forward(forward_stage(step));
      }
      if (step >= warmup) {
        row.backward(backward_stage(step - warmup));
      }
    }
    schedule.ranks.push_back(row.take_row());
  }
  return schedule;
}

}  // namespace

Schedule interleaved_one_f_one_b(int ranks, int chunks, int micro_batches) {
  const int round = in_round("interleaved", ranks, micro_batches);
  return interleaved(ranks, chunks, micro_batches, round, 0, false);
}

Schedule interleaved_overlap(int ranks, int chunks, int micro_batches) {
  // The last rank's backward pass is of the micro-batch of the previous forward pass. With one more
  // forward pass in the warm-up, an overlapped pair is never of one micro-batch.
  const int round = in_round("interleaved-overlap", ranks, micro_batches);
  return interleaved(ranks, chunks, micro_batches, round, 1, true);
}

Schedule zero_bubble_h1(int ranks, int chunks, int micro_batches) {
  // As interleaved 1F1B, with one forward pass less in the warm-up per rank after it. The reason:
  // an input gradient (I) returns in half the time of a full backward pass. The memory saved pays
  // for pending weights: rank r runs the W of a micro-batch r backward passes later, and the rest
  // at the end, where 1F1B would wait for other ranks.
  const int round = chunks == 1 ? micro_batches : in_round("zb-h1", ranks, micro_batches);
  const int all = chunks * micro_batches;
  Schedule schedule;
  for (int rank = 0; rank < ranks; ++rank) {
    RowWriter row;
    const auto chunk_of = [&](int step) { return step / round % chunks; };
    const int warmup = std::min((chunks - 1) * round + ranks - 1 - rank, all);
    for (int step = 0; step < all + warmup; ++step) {
      if (step < all) {
        row.forward(chunk_of(step) * ranks + rank);
      }
      if (step >= warmup) {
        row.backward_inputs((chunks - 1 - chunk_of(step - warmup)) * ranks + rank);
      }
      if (step >= warmup + rank) {
        row.weights();
      }
    }
    while (row.weights_left()) {
      row.weights();
    }
    schedule.ranks.push_back(row.take_row());
  }
  return schedule;
}

Schedule zero_bubble_v(int ranks, int micro_batches) {
  // Rank r is r hops from the V's beginning and end, and ranks - 1 - r from its turn. It runs
  // forward passes until the first micro-batch is through the whole V; then F, I and W of its two
  // stages in turn, each W right after its I. At the end it runs input gradients first, for which
  // others wait, and weights while it waits itself. With too few micro-batches to fill the V, the
  // row is that of a filling number of micro-batches, without the actions of missing ones.
  const int filling = std::max(2 * ranks - 1, micro_batches);
  Schedule schedule;
  for (int rank = 0; rank < ranks; ++rank) {
    RowWriter row;
    const int down = rank;
    const int up = 2 * ranks - 1 - rank;
    const auto backward = [&](int stage) {
      row.backward_inputs(stage);
      row.weights(stage);
    };
    for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) {
      row.forward(down);
    }
    for (int i = 0; i < rank; ++i) {
      row.forward(up);
      row.forward(down);
    }
    for (int i = 0; i < ranks - rank; ++i) {
      row.forward(up);
      backward(up);
    }
    while (row.forwards(up) < filling) {
      if (row.forwards(down) < filling) {
        row.forward(down);
      }
      backward(down);
      row.forward(up);
      backward(up);
    }
    for (int i = 0; i < rank; ++i) {
      row.backward_inputs(down);
      row.backward_inputs(up);
    }
    for (int i = 0; i < ranks - rank; ++i) {
      row.backward_inputs(down);
      row.weights(down);
    }
    for (int i = 0; i < rank; ++i) {
      row.weights(up);
    }
    while (row.weights_left()) {
      row.weights(down);
    }
    std::vector<Action> actions = row.take_row();
    std::erase_if(actions,
                  [&](const Action& action) { return action.micro_batch >= micro_batches; });
    schedule.ranks.push_back(std::move(actions));
  }
  return schedule;
}

namespace {

/// Returns the row of a rank that is `hops` away from where micro-batches enter and leave, of
/// `ranks` up to the turn. `micro_batches` pass both of its stages, `down` and `up`.
std::vector<Action> dual_row(int ranks, int hops, int micro_batches, int down, int up,
                             RowWriter row) {
  // The eight steps of DeepSeek's dualpipe.py and dualpipev.py. Forward passes fill the pipeline
  // (1, 2). Input gradients go first where others wait for them (3). Then both directions are full,
  // and every forward pass overlaps a backward pass of the other direction (4). Backward passes
  // empty the pipeline (5, 6), with the weights of the second half at the very end (7, 8).
  const int behind = ranks - hops - 1;
  for (int i = 0; i < 2 * behind; ++i) {
    row.forward(down);
  }
  for (int i = 0; i < hops + 1; ++i) {
    row.forward(down);
    row.forward(up);
  }
  for (int i = 0; i < behind; ++i) {
    row.backward_inputs(up);
    row.weights();
    row.forward(up);
  }
  for (int i = 0; i < micro_batches - 2 * ranks + hops + 1; ++i) {
    if (i == 0 && behind == 0) {
      // Not overlapped, so that the next rank need not wait for both.
      row.forward(down);
      row.backward(up);
    } else {
      row.overlapped(down, up);
    }
    row.overlapped(up, down);
  }
  for (int i = 0; i < behind; ++i) {
    row.backward(up);
    row.overlapped(up, down);
  }
  int passes = 0;
  const auto backward = [&](int stage) {
    const bool later = passes++ >= hops + 1;
    later ? row.backward_inputs(stage) : row.backward(stage);
  };
  for (int i = 0; i < hops + 1; ++i) {
    backward(up);
    backward(down);
  }
  for (int i = 0; i < behind; ++i) {
    row.weights();
    backward(down);
  }
  while (row.weights_left()) {
    row.weights();
  }
  return row.take_row();
}

}  // namespace

Schedule dual_pipe_v(int ranks, int micro_batches) {
  if (micro_batches < 2 * ranks) {
    fail("plan.pp_schedule",
         "dualpipev got {} micro-batches for {} stages; expected at least one per stage; "
         "try a larger train.global_batch or zb-v",
         micro_batches, 2 * ranks);
  }
  Schedule schedule;
  for (int rank = 0; rank < ranks; ++rank) {
    schedule.ranks.push_back(
        dual_row(ranks, rank, micro_batches, rank, 2 * ranks - 1 - rank, RowWriter()));
  }
  return schedule;
}

Schedule dual_pipe(int ranks, int micro_batches) {
  // Seen from either end, half of the ranks are a DualPipeV: micro-batches of the other direction
  // come from the middle as if they had turned there.
  if (ranks % 2 != 0) {
    fail("plan.pp_schedule", "dualpipe got plan.pp {}; expected an even number; try dualpipev",
         ranks);
  }
  if (micro_batches % 2 != 0 || micro_batches < 2 * ranks) {
    fail("plan.pp_schedule",
         "dualpipe got {} micro-batches; expected an even number, at least 2 x plan.pp {}; try a "
         "larger train.global_batch",
         micro_batches, ranks);
  }
  Schedule schedule;
  for (int rank = 0; rank < ranks; ++rank) {
    const int mirror = ranks - 1 - rank;
    RowWriter row;
    row.begin_at(mirror, micro_batches / 2);
    schedule.ranks.push_back(dual_row(ranks / 2, std::min(rank, mirror), micro_batches / 2,
                                      std::min(rank, mirror), std::max(rank, mirror),
                                      std::move(row)));
  }
  return schedule;
}

Schedule forward_only(const std::vector<int>& owners, int ranks, int micro_batches) {
  // Groups of `ranks` micro-batches go through the stages together: while the first rank runs its
  // next stage on the first of them, the others still work on those after it.
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
  std::vector<int> owners;
  for (int stage = 0; stage < stages; ++stage) {
    owners.push_back(stage);
  }
  return forward_only(owners, stages, micro_batches);
}

namespace {
int of_equal_rounds(int ranks, int chunks, int least) {
  int micro_batches = least;
  while (chunks > 1 && micro_batches % rounds_of(ranks, micro_batches) != 0) {
    ++micro_batches;
  }
  return micro_batches;
}
}  // namespace

const std::vector<BuiltIn>& built_in_schedules() {
  static const std::vector<BuiltIn> all{
      {.name = "1f1b", .make = [](int ranks, int, int n) { return one_f_one_b(ranks, n); }},
      {.name = "gpipe", .make = [](int ranks, int, int n) { return gpipe(ranks, n); }},
      {.name = "interleaved",
       .make = interleaved_one_f_one_b,
       .chunks = 0,
       .shown_chunks = 2,
       .fitting = of_equal_rounds},
      {.name = "interleaved-overlap",
       .make = interleaved_overlap,
       .chunks = 0,
       .shown_chunks = 2,
       .fitting = of_equal_rounds},
      {.name = "zb-h1", .make = zero_bubble_h1, .chunks = 0, .fitting = of_equal_rounds},
      {.name = "zb-v",
       .make = [](int ranks, int, int n) { return zero_bubble_v(ranks, n); },
       .is_v = true,
       .chunks = 2},
      {.name = "dualpipev",
       .make = [](int ranks, int, int n) { return dual_pipe_v(ranks, n); },
       .is_v = true,
       .chunks = 2,
       .fitting = [](int ranks, int, int least) { return std::max(least, 2 * ranks); }},
      {.name = "dualpipe",
       .make = [](int ranks, int, int n) { return dual_pipe(ranks, n); },
       .fitting = [](int ranks, int, int least) { return std::max(least + least % 2, 2 * ranks); }},
  };
  return all;
}

std::string built_in_names() {
  std::string names;
  for (const BuiltIn& built_in : built_in_schedules()) {
    names += (names.empty() ? "" : ", ") + std::string(built_in.name);
  }
  return names;
}

}  // namespace hocket::parallel
