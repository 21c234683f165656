// SPDX-License-Identifier: Apache-2.0
// Block sizes that kernels and the workspace functions of their ops (Op::workspace) agree on.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/math.h"

namespace hocket::ops {

inline constexpr int64_t kScratchThreads = 4;  ///< that a kernel's scratch is counted for
/// Blocks of a matrix product per thread: packed B of at most K x N, packed A of that many tiles.
inline constexpr int64_t kGemmBlockN = 384, kGemmBlockK = 576, kGemmGroupA = 4;
/// Parts of a grouped product that threads take one by one.
inline constexpr int64_t kGroupRows = 1024, kGroupCols = 512;
/// Queries and keys of one block of attention, forward and backward.
inline constexpr int64_t kAttnRowsFwd = 224, kAttnKeysFwd = 112, kAttnRowsBwd = 112,
                         kAttnKeysBwd = 224;
/// The widest register tile: rows, and columns in elements; padding never exceeds it.
inline constexpr int64_t kMaxTileRows = 14, kMaxTileCols = 32;
inline constexpr int64_t kRopeStep = 32;     ///< positions per row of the coarse table of angles
inline constexpr int64_t kSumBlock = 16384;  ///< elements summed at once by sumsq

/// Rows per block of the reductions over rows (at most 64 blocks, at least 64 rows each).
inline int64_t norm_block_rows(int64_t rows) { return std::max<int64_t>(64, ceil_div(rows, 64)); }

/// Tokens per block of logits in linear_cross_entropy and token_logprobs: about 64 MiB, 32 to 512
/// rows.
inline int64_t cross_entropy_rows(int64_t tokens, int64_t vocab, int64_t element) {
  int64_t fit = (int64_t{64} << 20) / std::max<int64_t>(vocab * element, 1);
  return std::min(tokens, std::clamp<int64_t>(fit / 32 * 32, 32, 512));
}

/// Length of the blocks into which a product cuts its inner dimension k.
inline int64_t gemm_step_k(int64_t k) {
  const int64_t blocks = ceil_div(k, kGemmBlockK);
  return blocks <= 1 ? k : round_up(ceil_div(k, blocks), 16);
}

/// Packed blocks of A and B of one thread, bytes.
inline int64_t gemm_scratch(int64_t n, int64_t k, int64_t element) {
  const int64_t step = std::min(k, kGemmBlockK);  // gemm_step_k never exceeds this
  const int64_t b = std::min(round_up(n, kMaxTileCols), kGemmBlockN);
  return round_up((b + kGemmGroupA * kMaxTileRows) * std::max<int64_t>(step, 1) * element, 64);
}

/// Blocks of one thread of attention: Q, K, V, scores and three rows of sums, each 64-aligned.
inline int64_t attention_scratch(int64_t d, int64_t element) {
  const int64_t wide = round_up(d, kMaxTileCols);
  return (d * kAttnRowsFwd + d * kAttnKeysFwd + wide * kAttnKeysFwd + kAttnKeysFwd * kAttnRowsFwd +
          3 * kAttnRowsFwd) *
             element +
         7 * 64;
}
/// Tokens of a page of keys and values: whole vectors of every type, and whole register tiles.
inline constexpr int64_t kPageTokens = 32;
/// Few queries of a sequence, times the query heads of a kv head, that are computed together;
/// scores of one of them: two blocks of keys in whole pages, and an odd number of lines.
inline constexpr int64_t kFewPairs = 112, kFewScores = 2 * kAttnKeysFwd + kPageTokens + 16;
/// Returns the scratch of a thread of paged attention, in bytes: the larger of two. One is the
/// blocks of attention_scratch with rows of queries and results. The other, for few queries, is
/// these rows, scores, weights, a block of values, a page of keys as numbers and three rows of
/// sums.
inline int64_t paged_scratch(int64_t d, int64_t element) {
  const int64_t wide = round_up(d, kMaxTileCols);
  const int64_t block = attention_scratch(d, element) + 2 * d * kAttnRowsFwd * element + 2 * 64;
  const int64_t few = ((3 * d + kFewScores + kAttnKeysFwd + 3) * kFewPairs + kAttnKeysFwd * wide +
                       d * kPageTokens) *
                          element +
                      10 * 64;
  return std::max(block, few);
}
/// Runs of tokens of one sequence that paged attention finds among `tokens`.
inline int64_t paged_segments_bytes(int64_t tokens) { return round_up(tokens * 32, 64); }

inline int64_t attention_bwd_scratch(int64_t d, int64_t element) {
  const int64_t wide = round_up(d, kMaxTileCols);
  return (2 * d * kAttnRowsBwd + 2 * d * kAttnKeysBwd + 3 * kAttnRowsBwd * kAttnKeysBwd +
          2 * kAttnRowsBwd * wide + kAttnKeysBwd * wide) *
             element +
         10 * 64;
}

}  // namespace hocket::ops
