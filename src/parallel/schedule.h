// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules as data: what every stage runs, in order. Read and written as PyTorch's
// schedule CSV (a row per rank, cells like 0F0, 1B0, 1I0, 1W0: stage, action, micro-batch).
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
  std::vector<std::vector<Action>> ranks;  ///< one row per pipeline rank = stage
  std::string source = "schedule";         ///< named in errors: the file that it was read from
  bool operator==(const Schedule& other) const { return ranks == other.ranks; }
};

/// 1F1B (PipeDream-Flush, Narayanan et al., arXiv 2006.09503).
Schedule one_f_one_b(int stages, int micro_batches);
/// All forwards, then all backwards (Huang et al., arXiv 1811.06965).
Schedule gpipe(int stages, int micro_batches);
/// Forward only (evaluation, generation).
Schedule forward_only(int stages, int micro_batches);

std::string to_csv(const Schedule& schedule);
/// Parses a CSV; throws Error naming the offending cell (row, column).
Schedule parse_csv(std::string_view text, std::string_view where);

/// Every stage runs every micro-batch forward once and backward once (B, or I then W), forward
/// before backward; throws Error naming the offending cell.
void validate(const Schedule& schedule, int stages, int micro_batches, bool with_backward);

/// `1f1b`, `gpipe`, or the path of a CSV file.
Schedule make_schedule(const std::string& name, int stages, int micro_batches);

}  // namespace hocket::parallel
