// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules as data: what every pipeline rank runs, in order, and so which stages it has.
// Read and written as PyTorch's schedule CSV (a row per rank, cells like 0F0, 1B0, 1I0, 1W0: stage,
// action, micro-batch).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hocket::parallel {

struct Action {
  /// `F` forward, `B` full backward, `I` backward of inputs (dX), `W` backward of weights (dW).
  char kind = 'F';
  int stage = 0;
  int micro_batch = 0;
  bool operator==(const Action&) const = default;
};

struct Schedule {
  std::vector<std::vector<Action>> ranks;  ///< one row per pipeline rank
  std::string source = "schedule";         ///< named in errors: the file that it was read from
  bool operator==(const Schedule& other) const { return ranks == other.ranks; }
};

/// 1F1B (PipeDream-Flush, Narayanan et al., arXiv 2006.09503).
Schedule one_f_one_b(int stages, int micro_batches);
/// All forwards, then all backwards (Huang et al., arXiv 1811.06965).
Schedule gpipe(int stages, int micro_batches);
/// Interleaved 1F1B (Narayanan et al., arXiv 2104.04473), in PyTorch's order: rank r has the stages
/// r, r + ranks, r + 2 ranks, .. (`chunks` of them, its model chunks), which take turns by rounds
/// of about as many micro-batches as there are ranks. Error unless the rounds are equal.
Schedule interleaved_one_f_one_b(int ranks, int chunks, int micro_batches);
/// Forward only (evaluation, generation). `owners`: the rank of every stage.
Schedule forward_only(const std::vector<int>& owners, int ranks, int micro_batches);
/// The same with a stage per rank.
Schedule forward_only(int stages, int micro_batches);

std::string to_csv(const Schedule& schedule);
/// Parses a CSV; throws Error naming the offending cell (row, column).
Schedule parse_csv(std::string_view text, std::string_view where);

/// The rank of each of the `ranks` x `chunks` stages: the row that has most of its cells. Error if
/// the rows are not as many as the ranks, if a cell names another stage, or if a stage has no cell.
std::vector<int> owners_of(const Schedule& schedule, int ranks, int chunks);

/// No stage is in two rows, and a stage runs every micro-batch forward once and backward once (B,
/// or I then W), forward before backward; on one rank, forward passes go from the first of its
/// stages to the last, and backward passes the other way. Throws Error naming the offending cell.
void validate(const Schedule& schedule, int ranks, int micro_batches, bool with_backward,
              int chunks = 1);

/// `1f1b`, `gpipe`, `interleaved`, or the path of a CSV file, of `ranks` x `chunks` stages.
Schedule make_schedule(const std::string& name, int ranks, int micro_batches, int chunks = 1);
/// The rank of every stage under the schedule of this name, whatever it runs.
std::vector<int> stage_owners(const std::string& name, int ranks, int chunks);

}  // namespace hocket::parallel
