// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules as data: what every pipeline rank runs, in order, and so which stages it has.
// Read and written as PyTorch's schedule CSV (a row per rank, cells like 0F0, 1B0, 1I0, 1W0: stage,
// action, micro-batch; two of them overlapped: (0F1;1B0)OVERLAP_F_B).
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
  /// The action after it in the row runs overlapped with it, in turns: one cell of both.
  bool overlaps_next = false;
  int column = 0;  ///< of its cell in the file, from 1; 0: it comes from no file
  /// The same work, wherever it was written.
  bool operator==(const Action& other) const {
    return kind == other.kind && stage == other.stage && micro_batch == other.micro_batch &&
           overlaps_next == other.overlaps_next;
  }
};
std::string to_string(const Action& action);  ///< "3F0"

struct Schedule {
  std::vector<std::vector<Action>> ranks;  ///< one row per pipeline rank
  std::string source = "schedule";         ///< named in errors: the file that it was read from
  std::vector<int> lines = {};  ///< of its rows in the file, from 1; empty: it comes from no file
  /// What errors call a row: its line in the file, in which others may be blank.
  int line_of(size_t row) const { return lines.empty() ? static_cast<int>(row) + 1 : lines[row]; }
  bool operator==(const Schedule& other) const { return ranks == other.ranks; }
};

/// The ways of micro-batches through the ranks. With one, every stage is on one rank; else a stage
/// has copies, which take the micro-batches of one way each.
struct Routes {
  std::vector<std::vector<int>> ranks;  ///< by route: the rank of every stage
  std::vector<int> of;                  ///< by micro-batch: its route
};

/// 1F1B (PipeDream-Flush, Narayanan et al., arXiv 2006.09503).
Schedule one_f_one_b(int stages, int micro_batches);
/// All forwards, then all backwards (Huang et al., arXiv 1811.06965).
Schedule gpipe(int stages, int micro_batches);
/// Interleaved 1F1B (Narayanan et al., arXiv 2104.04473), in PyTorch's order: rank r has the stages
/// r, r + ranks, r + 2 ranks, .. (`chunks` of them, its model chunks), which take turns by rounds
/// of about as many micro-batches as there are ranks. Error unless the rounds are equal.
Schedule interleaved_one_f_one_b(int ranks, int chunks, int micro_batches);
/// Interleaved 1F1B whose forward and backward pass in turn are one overlapped cell, with a forward
/// pass more ahead, so that they are of different micro-batches: Megatron-LM's
/// --overlap-moe-expert-parallel-comm. Error unless the rounds are equal.
Schedule interleaved_overlap(int ranks, int chunks, int micro_batches);
/// ZB-H1 (Qi et al., arXiv 2401.10241, section 2.3): 1F1B whose backward is split, so that weight
/// gradients (W) fill the bubbles; at most as many micro-batches are alive as with 1F1B. With
/// several chunks the stages lie as in interleaved 1F1B. In PyTorch's order
/// (ScheduleInterleavedZeroBubble). Error unless the rounds of several chunks are equal.
Schedule zero_bubble_h1(int ranks, int chunks, int micro_batches);
/// ZB-V (Qi et al., arXiv 2405.15362; arXiv 2401.10241, section 6): rank r has the stages r and
/// 2 ranks - 1 - r, a V; no bubble but the first and last where F, I and W take the same time. In
/// PyTorch's order (ScheduleZBVZeroBubble).
Schedule zero_bubble_v(int ranks, int micro_batches);
/// DualPipeV (DeepSeek-AI, github.com/deepseek-ai/DualPipe): the V of ZB-V, with a forward and a
/// backward pass overlapped in the middle of the step. In PyTorch's order (ScheduleDualPipeV).
/// Error with fewer micro-batches than stages.
Schedule dual_pipe_v(int ranks, int micro_batches);
/// DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1): the first half of the micro-batches
/// goes from rank 0 to the last, the other half the other way, so that stage s has copies on the
/// ranks s and ranks - 1 - s. Error unless ranks and micro-batches are even, and the latter twice
/// as many at least.
Schedule dual_pipe(int ranks, int micro_batches);
/// Forward only (evaluation, generation). `owners`: the rank of every stage.
Schedule forward_only(const std::vector<int>& owners, int ranks, int micro_batches);
/// The same with a stage per rank.
Schedule forward_only(int stages, int micro_batches);

std::string to_csv(const Schedule& schedule);
/// The rows of a schedule, and the stages that they run.
struct Extent {
  int ranks = 0, stages = 0;
};
Extent extent_of(const Schedule& schedule);
/// Parses a CSV; throws Error naming the offending cell (row, column: a row is a line of the file,
/// and blank ones are skipped). What PyTorch writes besides
/// actions (SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD) is left out where it
/// says what lowering does anyway, and refused where it says something else.
Schedule parse_csv(std::string_view text, std::string_view where);

/// The rank of every stage and micro-batch: the row that has most of their cells. Error if the
/// rows are not as many as the ranks, if a cell names another stage or micro-batch, or if one has
/// no cell.
Routes routes_of(const Schedule& schedule, int ranks, int chunks, int micro_batches);
/// The rank of each of the `ranks` x `chunks` stages, of the first micro-batch.
std::vector<int> owners_of(const Schedule& schedule, int ranks, int chunks);

/// A micro-batch of a stage is in one row, which runs it forward once and backward once (B, or I
/// then W), forward before backward; on one rank, forward passes go from the first of its stages to
/// the last, and backward passes the other way; and no rank waits for ever for what another one
/// would run later. Throws Error naming the offending cell.
void validate(const Schedule& schedule, int ranks, int micro_batches, bool with_backward,
              int chunks = 1);

/// A built-in schedule.
struct BuiltIn {
  const char* name;
  Schedule (*make)(int ranks, int chunks, int micro_batches);
  bool is_v = false;  ///< two stages per rank, in a V; else the stages go around the ranks
  int chunks = 1;     ///< stages per rank; 0: any number
  /// Of any number, the one that shows what the schedule is, where nobody says one.
  int shown_chunks = 1;
  /// The fewest micro-batches that it runs, so many at least; null: any number.
  int (*fitting)(int ranks, int chunks, int least) = nullptr;
};
const std::vector<BuiltIn>& built_in_schedules();
/// "1f1b, gpipe, ..".
std::string built_in_names();

/// A name of a schedule that is a path: it ends in .csv.
bool is_schedule_file(const std::string& name);

/// The built-in schedule of that name, or the CSV file at that path, of `ranks` x `chunks` stages.
Schedule make_schedule(const std::string& name, int ranks, int micro_batches, int chunks = 1);
/// The fewest micro-batches for which there is such a schedule, `least` or more, where some may be
/// padding. Error: a file of fewer.
int fitting_micro_batches(const std::string& name, int ranks, int chunks, int least);
/// The rank of every stage under the schedule of this name, whatever it runs.
std::vector<int> stage_owners(const std::string& name, int ranks, int chunks);

}  // namespace hocket::parallel
