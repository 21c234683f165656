// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/kernels.h"
#include "kernels/team.h"
#include "ops/workspace.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

constexpr int64_t kBlockN = ops::kGemmBlockN;

/// Panels of kTileRows rows of op(A), each [kc][kTileRows].
template <typename T>
void pack_a(const Gemm<T>& g, int64_t i0, int64_t rows, int64_t p0, int64_t kc, T* to) {
  if (g.trans_a) return pack_rows<kTileRows>(g.a + p0 * g.lda + i0, g.lda, kc, rows, to);
  for (int64_t i = 0; i < rows; i += kTileRows, to += kTileRows * kc) {
    pack_transposed<kTileRows>(g.a + (i0 + i) * g.lda + p0, g.lda,
                               std::min<int64_t>(kTileRows, rows - i), kc, to);
  }
}

/// Panels of kTileCols columns of op(B), each [kc][kTileCols].
template <typename T>
void pack_b(const Gemm<T>& g, int64_t j0, int64_t cols, int64_t p0, int64_t kc, T* to) {
  constexpr int NR = kTileCols<T>;
  if (!g.trans_b) return pack_rows<NR>(g.b + p0 * g.ldb + j0, g.ldb, kc, cols, to);
  for (int64_t j = 0; j < cols; j += NR, to += NR * kc) {
    pack_transposed<NR>(g.b + (j0 + j) * g.ldb + p0, g.ldb, std::min<int64_t>(NR, cols - j), kc,
                        to);
  }
}

/// Up to so many rows of A a product is bound by reading B: its vectors are transposed in registers
/// and used at once, where more rows pay for a packed panel.
constexpr int64_t kFewRows = 8;

/// The columns [j, j + cols) of M rows of A B^T, cols <= two vectors, for k in [p, p + kc): one
/// chain of multiply-adds per element, as in a register tile. `ahead`: elements to what is read
/// next.
template <typename T, int M>
void few_rows_panel(const Gemm<T>& g, int64_t i, int64_t j, int64_t cols, int64_t p, int64_t kc,
                    bool add, int64_t ahead) {
  constexpr int L = kLanes<T>;
  const T* a = g.a + i * g.lda + p;
  Vec<T> acc[kTileVecs][M] = {};
  const T* rows[kTileVecs][L];
  for (int c = 0; c < kTileVecs; ++c) {
    for (int r = 0; r < L; ++r) {
      // Rows beyond the last one are read in its place; their results are not stored.
      rows[c][r] = g.b + (j + std::min<int64_t>(c * L + r, cols - 1)) * g.ldb + p;
    }
  }
  int64_t k = 0;
  for (; k + L <= kc; k += L) {
    for (int c = 0; c < kTileVecs; ++c) {
      Vec<T> v[L];
#pragma GCC unroll 16
      for (int r = 0; r < L; ++r) {
        v[r] = load(rows[c][r] + k);
        __builtin_prefetch(rows[c][r] + k + ahead);
      }
      transpose<T>(v);
#pragma GCC unroll 16
      for (int r = 0; r < L; ++r) {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          acc[c][m] += splat(a[m * g.lda + k + r]) * v[r];
        }
      }
    }
  }
  for (; k < kc; ++k) {
    for (int c = 0; c < kTileVecs; ++c) {
      Vec<T> v;
      for (int r = 0; r < L; ++r) {
        v[r] = rows[c][r][k];
      }
      for (int m = 0; m < M; ++m) {
        acc[c][m] += splat(a[m * g.lda + k]) * v;
      }
    }
  }
  for (int c = 0; c * L < cols; ++c) {
    const int64_t n = std::min<int64_t>(L, cols - c * L);
    for (int m = 0; m < M; ++m) {
      T* to = g.c + (i + m) * g.ldc + j + c * L;
      if (n == L) {
        store(to, add ? load(to) + acc[c][m] : acc[c][m]);
      } else {
        store_partial(to, add ? load_partial(to, n) + acc[c][m] : acc[c][m], n);
      }
    }
  }
}

/// Part of a product A B^T with few rows of A.
template <typename T>
void few_rows(const Gemm<T>& g, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  constexpr int64_t NR = kTileCols<T>;
  const int64_t step = ops::gemm_step_k(g.k);
  for (int64_t j = n0; j < n1; j += NR) {
    const int64_t cols = std::min(NR, n1 - j), ahead = j + 2 * NR <= n1 ? NR * g.ldb : 0;
    for (int64_t p = 0; p < g.k; p += step) {
      const int64_t kc = std::min(step, g.k - p);
      const bool add = g.add || p > 0;
      for (int64_t i = m0; i < m1;) {
        switch (m1 - i) {
#define HOCKET_ROWS(n)                                      \
  case n:                                                   \
    few_rows_panel<T, n>(g, i, j, cols, p, kc, add, ahead); \
    i += n;                                                 \
    break;
          HOCKET_ROWS(1)
          HOCKET_ROWS(2)
          HOCKET_ROWS(3)
#undef HOCKET_ROWS
          default:
            few_rows_panel<T, 4>(g, i, j, cols, p, kc, add, ahead);
            i += 4;
        }
      }
    }
  }
}

}  // namespace

template <typename T>
void gemm_part(const Gemm<T>& g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, T* scratch) {
  constexpr int64_t NR = kTileCols<T>, MR = kTileRows, kGroup = ops::kGemmGroupA * MR;
  if (g.k == 0 && !g.add) {
    for (int64_t i = m0; i < m1; ++i) {
      std::fill(g.c + i * g.ldc + n0, g.c + i * g.ldc + n1, T(0));
    }
  }
  if (g.trans_b && !g.trans_a && m1 - m0 <= kFewRows) return few_rows(g, m0, m1, n0, n1);
  // k in equal blocks, a function of k alone: the order of every sum is fixed.
  const int64_t step = ops::gemm_step_k(g.k);
  const bool direct = !g.trans_a;
  T* pa = scratch;
  T* pb = scratch + kGroup * step;
  for (int64_t j = n0; j < n1; j += kBlockN) {
    for (int64_t p = 0; p < g.k; p += step) {
      // A block of B stays in the second-level cache while groups of rows of A pass by.
      const int64_t kc = std::min(step, g.k - p), nc = std::min(kBlockN, n1 - j);
      const bool add = g.add || p > 0;
      pack_b(g, j, nc, p, kc, pb);
      for (int64_t i = m0; i < m1; i += kGroup) {
        const int64_t mc = std::min(kGroup, m1 - i);
        if (!direct) {
          pack_a(g, i, mc, p, kc, pa);
        }
        for (int64_t ir = 0; ir < mc; ir += MR) {
          for (int64_t jr = 0; jr < nc; jr += NR) {
            const int64_t rows = std::min(MR, mc - ir), cols = std::min(NR, nc - jr);
            T* c = g.c + (i + ir) * g.ldc + j + jr;
            if (direct) {
              tile_rows<T>(rows, cols, kc, g.a + (i + ir) * g.lda + p, g.lda, pb + jr * kc, NR, add,
                           c, g.ldc);
            } else {
              tile<T>(rows, cols, kc, pa + ir * kc, MR, pb + jr * kc, NR, add, c, g.ldc);
            }
          }
        }
      }
    }
  }
}

template <typename T>
void gemm(const Gemm<T>& g, Scratch scratch) {
  constexpr int NR = kTileCols<T>;
  if (g.m == 0 || g.n == 0) return;
  const int64_t mt = ceil_div(g.m, kTileRows), nt = ceil_div(g.n, NR);
  const int64_t each = ops::gemm_scratch(g.n, g.k, sizeof(T));
  int64_t threads = std::min<int64_t>(team_size(), scratch.left() / each);
  if (static_cast<double>(g.m) * g.n * g.k < 64.0 * 64 * 64) {
    threads = 1;
  }
  // The grid with the least work of the busiest thread. The unit is the product of one register
  // tile: to pack a panel of A, once per block of B, costs about 0.4 of it, to pack a panel of B,
  // once, about 2.5, since it is wider and comes from memory.
  int64_t pm = 1, pn = 1;
  double best = 1e300;
  for (int64_t a = 1; a <= std::min(threads, mt); ++a) {
    int64_t b = std::min(threads / a, nt);
    double tm = static_cast<double>(ceil_div(mt, a)), tn = static_cast<double>(ceil_div(nt, b));
    double cost = tm * tn + 0.4 * tm * std::ceil(tn * NR / kBlockN) + 2.5 * tn;
    if (cost < best) {
      best = cost;
      pm = a;
      pn = b;
    }
  }
  std::byte* base = scratch.take<std::byte>(pm * pn * each);
  auto part = [&](int64_t t, int64_t) {
    int64_t i = t / pn, j = t % pn;
    gemm_part(g, mt * i / pm * kTileRows, std::min(g.m, mt * (i + 1) / pm * kTileRows),
              nt * j / pn * NR, std::min(g.n, nt * (j + 1) / pn * NR),
              reinterpret_cast<T*>(base + t * each));
  };
  parallel(pm * pn, pm * pn, part);
}

template void gemm<float>(const Gemm<float>&, Scratch);
template void gemm<double>(const Gemm<double>&, Scratch);
template void gemm_part<float>(const Gemm<float>&, int64_t, int64_t, int64_t, int64_t, float*);
template void gemm_part<double>(const Gemm<double>&, int64_t, int64_t, int64_t, int64_t, double*);

}  // namespace hocket::kernels::HOCKET_CPU
