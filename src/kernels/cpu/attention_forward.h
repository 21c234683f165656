// SPDX-License-Identifier: Apache-2.0
// Forward attention of one block of queries of a head to its keys, wherever those lie
// (FlashAttention-2, arXiv 2307.08691). Training and generation give a query the same bits: they
// run these functions on the same blocks, which depend on the query's place in its document alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

inline constexpr double kLog2e = 1.4426950408889634, kLn2 = 0.6931471805599453;
/// A score that every other one exceeds.
template <typename T>
inline constexpr T kLowest = std::numeric_limits<T>::lowest() / 4;

/// Returns a product as it is rounded: the compiler adds nothing to it in one operation, which it
/// might do in one loop and not in another.
template <typename V>
[[gnu::always_inline]] inline V uncontracted(V product) {
  asm("" : "+m"(product));
  return product;
}

/// A [rows, d] operand readable in whole tiles: in place if d is a multiple of the tile, else
/// copied to `pad`.
template <typename T>
const T* whole_rows(int64_t d, const T* src, int64_t stride, int64_t rows, T* pad, int64_t& ld) {
  const int64_t wide = round_up(d, kTileCols<T>);
  ld = stride;
  if (wide == d) return src;
  ld = wide;
  for (int64_t r = 0; r < rows; ++r) {
    std::copy(src + r * stride, src + r * stride + d, pad + r * wide);
    std::fill(pad + r * wide + d, pad + (r + 1) * wide, T(0));
  }
  return pad;
}

/// C[m, n] (+)= A B with A given as [k][m]; only whole 2-vector columns of B are read.
template <typename T, typename Skip>
[[gnu::always_inline]] inline void product(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
                                           const T* b, int64_t ldb, bool add, T* c, int64_t ldc,
                                           Skip skip) {
  constexpr int64_t MR = kTileRows, NR = kTileCols<T>;
  for (int64_t i = 0; i < m; i += MR) {
    for (int64_t j = 0; j < n; j += NR) {
      if (!skip(i, j)) {
        tile<T>(std::min(MR, m - i), std::min(NR, n - j), k, a + i, lda, b + j, ldb, add,
                c + i * ldc + j, ldc);
      }
    }
  }
}

template <typename T>
struct ForwardScratch {
  T *q, *k, *v, *s, *top, *sum, *fix;
  ForwardScratch(Scratch& from, int64_t d) {
    using ops::kAttnKeysFwd, ops::kAttnRowsFwd;
    q = from.take<T>(d * kAttnRowsFwd);
    k = from.take<T>(d * kAttnKeysFwd);
    v = from.take<T>(round_up(d, kTileCols<T>) * kAttnKeysFwd);
    s = from.take<T>(kAttnKeysFwd * kAttnRowsFwd);
    top = from.take<T>(kAttnRowsFwd);
    sum = from.take<T>(kAttnRowsFwd);
    fix = from.take<T>(kAttnRowsFwd);
  }
};

/// Replaces a block of scores s[key][query] by cap * tanh(score), for the keys that some query of a
/// vector may see (softmax_block).
template <typename T>
[[gnu::noinline]] void cap_block(int64_t keys, int64_t skip, int64_t rows, int64_t first,
                                 int64_t window, T cap, T* s);

/// Softmax of one block of scores in place, s[key][query], queries in lanes, from the vector with
/// query `skip` on. Key j may be seen by
/// query c if c - window < first + j <= c. `top`, `sum`: per query the largest score so far and the
/// sum of exponentials; `fix` gets the factor of what was summed before.
template <typename T>
[[gnu::noinline]] void softmax_block(int64_t keys, int64_t skip, int64_t rows, int64_t first,
                                     int64_t window, T* s, T* top, T* sum, T* fix);

/// Scores, in powers of two: the product of a query and a key times `factor`, and with a cap
/// (otherwise 0) cap * tanh of that.
template <typename T>
struct Scores {
  T factor, cap = 0;
  Scores(const graph::Attrs& attrs, double scale) : factor(static_cast<T>(scale * kLog2e)) {
    if (!attrs.has("softcap")) return;
    factor = static_cast<T>(scale / attrs.f("softcap"));
    cap = static_cast<T>(attrs.f("softcap") * kLog2e);
  }
};

/// A block of queries of one head, at row `skip` of a block that the document's begin aligns. Its
/// last row may see the keys [0, keys). The first key is `first` rows before row 0.
struct QueryBlock {
  int64_t rows, skip, keys, first, window, d;
};

/// Attention of the rows [skip, rows) of a block to its keys, kAttnKeysFwd at a time, with an
/// online softmax (FlashAttention, arXiv 2205.14135). `q` and `out` are row 0's, rows `stride`
/// elements apart; of `q` rows before `skip` are read, so they must be there. `load_keys(j, n, to)`
/// packs keys [j, j + n) to to[feature][kAttnKeysFwd]. `load_values(j, n, pad, ld)` returns their
/// values, rows ld apart and readable in whole tiles. Scores of the tile; their running maximum
/// `top` and sum of exponentials `sum` per query; `fix` rescales the output to the new maximum;
/// then the tile's exponentials times its values are added. Products skip keys beyond the diagonal
/// and before the window. `lse(row, value)` gets ln(sum e^score) of every row.
template <typename T, class Keys, class Values, class Lse>
void attend_block(const QueryBlock& b, const T* q, int64_t q_stride, const Keys& load_keys,
                  const Values& load_values, const Scores<T>& scores, T* out, int64_t o_stride,
                  const Lse& lse, const ForwardScratch<T>& ws) {
  constexpr int64_t M = ops::kAttnRowsFwd, N = ops::kAttnKeysFwd;
  constexpr int64_t MR = kTileRows, NR = kTileCols<T>;
  const int64_t rows = b.rows, d = b.d;
  pack_transposed<M>(q, q_stride, rows, d, ws.q);
  const T factor = scores.factor;
#pragma omp simd
  for (int64_t i = 0; i < d * M; ++i) {
    ws.q[i] *= factor;
  }
  for (int64_t i = 0; i < M; ++i) {
    ws.top[i] = kLowest<T>;
    ws.sum[i] = 0;
  }
  for (int64_t j0 = 0; j0 < b.keys; j0 += N) {
    const int64_t keys = std::min(N, b.keys - j0), first = j0 - b.first;
    load_keys(j0, keys, ws.k);
    product<T>(
        keys, round_up(rows, NR), d, ws.k, N, ws.q, M, false, ws.s, M, [&](int64_t i, int64_t j) {
          return j + NR <= b.skip || first + i > j + NR - 1 || first + i + MR - 1 <= j - b.window;
        });
    if (scores.cap > 0) {
      cap_block(keys, b.skip, rows, first, b.window, scores.cap, ws.s);
    }
    softmax_block(keys, b.skip, rows, first, b.window, ws.s, ws.top, ws.sum, ws.fix);
    if (j0 > 0) {
      for (int64_t r = b.skip; r < rows; ++r) {
        if (const T f = ws.fix[r]; f != 1) {
          T* __restrict row = out + r * o_stride;
#pragma omp simd
          for (int64_t i = 0; i < d; ++i) {
            row[i] *= f;
          }
        }
      }
    }
    int64_t ldv;
    const T* vb = load_values(j0, keys, ws.v, ldv);
    for (int64_t r = b.skip; r < rows; r += MR) {
      const int64_t n = std::min(MR, rows - r), end = std::clamp<int64_t>(r + n - first, 0, keys);
      const int64_t begin = std::clamp<int64_t>(r + 1 - b.window - first, 0, end);
      for (int64_t c = 0; c < d && (end > begin || j0 == 0); c += NR) {
        tile<T>(n, std::min(NR, d - c), end - begin, ws.s + begin * M + r, M, vb + begin * ldv + c,
                ldv, j0 > 0, out + r * o_stride + c, o_stride);
      }
    }
  }
  for (int64_t r = b.skip; r < rows; ++r) {
    T* __restrict row = out + r * o_stride;
    const T f = ws.sum[r] > 0 ? 1 / ws.sum[r] : 0;
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) {
      row[i] *= f;
    }
    lse(r, static_cast<T>(kLn2 * static_cast<double>(ws.top[r]) +
                          std::log(static_cast<double>(ws.sum[r]))));
  }
}

}  // namespace hocket::kernels::HOCKET_CPU
