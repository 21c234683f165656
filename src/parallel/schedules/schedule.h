// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules as data: the actions of every pipeline rank, in order, and so its stages. Read
// and written as PyTorch's schedule CSV: a row per rank, cells like 0F0, 1B0, 1I0, 1W0 (stage,
// action, micro-batch), and overlapped pairs like (0F1;1B0)OVERLAP_F_B.
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
  /// Runs interleaved with the next action of the row; both are one cell.
  bool overlaps_next = false;
  int column = 0;  ///< of its cell in the file, from 1; 0: not from a file
  /// Compares the work, not the position in a file.
  bool operator==(const Action& other) const {
    return kind == other.kind && stage == other.stage && micro_batch == other.micro_batch &&
           overlaps_next == other.overlaps_next;
  }
};
std::string to_string(const Action& action);  ///< "3F0"

struct Schedule {
  std::vector<std::vector<Action>> ranks;  ///< one row per pipeline rank
  std::string source = "schedule";         ///< name in errors: the file it was read from
  std::vector<int> lines = {};  ///< of its rows in the file, from 1; empty: not from a file
  /// Returns the number of a row in errors: its line in the file, which may have blank lines.
  int line_of(size_t row) const { return lines.empty() ? static_cast<int>(row) + 1 : lines[row]; }
  bool operator==(const Schedule& other) const { return ranks == other.ranks; }
};

/// Routes of micro-batches through the ranks. With one route, every stage is on one rank. With
/// several, a stage has copies, one per route.
struct Routes {
  std::vector<std::vector<int>> ranks;  ///< by route: the rank of every stage
  std::vector<int> of;                  ///< by micro-batch: its route
};

/// 1F1B (PipeDream-Flush, Narayanan et al., arXiv 2006.09503).
Schedule one_f_one_b(int stages, int micro_batches);
/// All forwards, then all backwards (Huang et al., arXiv 1811.06965).
Schedule gpipe(int stages, int micro_batches);
/// Interleaved 1F1B (Narayanan et al., arXiv 2104.04473), in PyTorch's order. Rank r has the stages
/// r, r + ranks, r + 2 ranks, .. (`chunks` of them, its model chunks). They take turns in rounds of
/// about `ranks` micro-batches. Throws Error unless the rounds are equal.
Schedule interleaved_one_f_one_b(int ranks, int chunks, int micro_batches);
/// Interleaved 1F1B with overlapped pairs of a forward and a backward pass: Megatron-LM's
/// --overlap-moe-expert-parallel-comm. The warm-up has one more forward pass, so that the two are
/// of different micro-batches. Throws Error unless the rounds are equal.
Schedule interleaved_overlap(int ranks, int chunks, int micro_batches);
/// ZB-H1 (Qi et al., arXiv 2401.10241, section 2.3): 1F1B with a split backward, so that weight
/// gradients (W) fill the bubbles. Holds no more micro-batches than 1F1B. Several chunks have the
/// stages of interleaved 1F1B. In PyTorch's order (ScheduleInterleavedZeroBubble). Throws Error
/// unless the rounds of several chunks are equal.
Schedule zero_bubble_h1(int ranks, int chunks, int micro_batches);
/// ZB-V (Qi et al., arXiv 2405.15362; arXiv 2401.10241, section 6): rank r has the stages r and 2
/// ranks - 1 - r, a V. If F, I and W take equal time, there are bubbles only at the beginning and
/// the end. In PyTorch's order (ScheduleZBVZeroBubble).
Schedule zero_bubble_v(int ranks, int micro_batches);
/// DualPipeV (DeepSeek-AI, github.com/deepseek-ai/DualPipe): the V of ZB-V, with overlapped forward
/// and backward passes in the middle of the step. In PyTorch's order (ScheduleDualPipeV). Throws
/// Error with fewer micro-batches than stages.
Schedule dual_pipe_v(int ranks, int micro_batches);
/// DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1): half of the micro-batches go from rank
/// 0 to the last, the other half the opposite way. So stage s has copies on ranks s and ranks - 1 -
/// s. Throws Error unless ranks and micro-batches are even and there are at least two micro-batches
/// per rank.
Schedule dual_pipe(int ranks, int micro_batches);
/// Forward only (evaluation, generation). `owners`: rank of every stage.
Schedule forward_only(const std::vector<int>& owners, int ranks, int micro_batches);
/// Forward only, with a stage per rank.
Schedule forward_only(int stages, int micro_batches);

std::string to_csv(const Schedule& schedule);
/// Number of rows of a schedule, and of the stages that they run.
struct Extent {
  int ranks = 0, stages = 0;
};
Extent extent_of(const Schedule& schedule);
/// Parses a CSV. Throws Error naming the cell by row (line of the file; blank lines are skipped)
/// and column. Drops PyTorch's other cells (SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD,
/// REDUCE_GRAD) where they agree with lowering, and refuses them where they do not.
Schedule parse_csv(std::string_view text, std::string_view where);

/// Returns the rank of every stage and micro-batch: the row with most of their cells. Throws Error
/// if the number of rows is not `ranks`, or a cell names a stage or micro-batch beyond the last.
/// Also throws if a stage and micro-batch have no cell.
Routes routes_of(const Schedule& schedule, int ranks, int chunks, int micro_batches);
/// Returns the rank of each of the `ranks` x `chunks` stages, for the first micro-batch.
std::vector<int> owners_of(const Schedule& schedule, int ranks, int chunks);

/// Throws Error, naming a cell, unless the schedule is a step:
/// - one row runs each micro-batch of a stage, once forward and once backward (B, or I then W),
///   forward before backward;
/// - on one rank, forward passes go from its first stage to its last, and backward passes the other
///   way;
/// - no ranks wait for each other in a cycle.
void validate(const Schedule& schedule, int ranks, int micro_batches, bool with_backward,
              int chunks = 1);

/// A built-in schedule.
struct BuiltIn {
  const char* name;
  Schedule (*make)(int ranks, int chunks, int micro_batches);
  bool is_v = false;  ///< two stages per rank, in a V; else round-robin
  int chunks = 1;     ///< stages per rank; 0: any number
  /// Number of chunks in examples of a schedule that allows any number.
  int shown_chunks = 1;
  /// Returns the least number of micro-batches, `least` or more, that it runs; null: any number.
  int (*fitting)(int ranks, int chunks, int least) = nullptr;
};
const std::vector<BuiltIn>& built_in_schedules();
/// Returns "1f1b, gpipe, ..".
std::string built_in_names();

/// Returns whether the name of a schedule is a path: it ends in .csv.
bool is_schedule_file(const std::string& name);

/// Returns the built-in schedule of that name, or the one in the CSV file at that path. Requires:
/// `ranks` x `chunks` stages.
Schedule make_schedule(const std::string& name, int ranks, int micro_batches, int chunks = 1);
/// Returns the least number of micro-batches, `least` or more, for which the schedule exists; some
/// may be padding. Throws Error for a file with fewer.
int fitting_micro_batches(const std::string& name, int ranks, int chunks, int least);
/// Returns the rank of every stage under the schedule of this name, for any micro-batches.
std::vector<int> stage_owners(const std::string& name, int ranks, int chunks);

}  // namespace hocket::parallel
