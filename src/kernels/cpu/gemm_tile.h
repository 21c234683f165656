// SPDX-License-Identifier: Apache-2.0
// The register tile of our matrix products (gemm_pack.h packs its operands). Every element of C is
// one chain of fused multiply-adds in the order of k, whatever the tile and the thread: results do
// not depend on the thread count, on alignment, or on how many other rows there are.
#pragma once

#include "kernels/cpu/vec.h"

namespace hocket::kernels::HOCKET_CPU {

/// HOCKET_TILES(X): X(rows) of every register tile, from 1 to kTileRows.
#if defined(__AVX512F__)
inline constexpr int kTileRows = 14;
#define HOCKET_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif defined(__aarch64__)
inline constexpr int kTileRows = 8;
#define HOCKET_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#else
inline constexpr int kTileRows = 6;
#define HOCKET_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif
inline constexpr int kTileVecs = 2;
template <typename T>
inline constexpr int kTileCols = kTileVecs* kLanes<T>;

template <typename T, int R>
[[gnu::always_inline]] inline void tile_store(const Vec<T> (&acc)[R][kTileVecs], bool add,
                                              T* __restrict c, int64_t ldc, int64_t cols) {
  constexpr int L = kLanes<T>;
  if (cols == kTileCols<T>) {
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      T* row = c + i * ldc;
      store(row, add ? load(row) + acc[i][0] : acc[i][0]);
      store(row + L, add ? load(row + L) + acc[i][1] : acc[i][1]);
    }
  } else {
    T tmp[kTileRows][kTileCols<T>];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      store(tmp[i], acc[i][0]), store(tmp[i] + L, acc[i][1]);
    }
    for (int i = 0; i < R; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        T* to = c + i * ldc + j;
        *to = add ? *to + tmp[i][j] : tmp[i][j];
      }
    }
  }
}

/// C[R, 2 vectors] (+)= A B. `a` is [k][>= R] with rows lda apart (A transposed), `b` is
/// [k][two vectors] with rows ldb apart; all of them are read, `cols` columns of C are written.
template <typename T, int R>
[[gnu::always_inline]] inline void tile_body(int64_t k, const T* __restrict a, int64_t lda,
                                             const T* __restrict b, int64_t ldb, bool add,
                                             T* __restrict c, int64_t ldc, int64_t cols) {
  using V = Vec<T>;
  constexpr int L = kLanes<T>;
  V acc[R][kTileVecs] = {};
  for (int64_t p = 0; p < k; ++p) {
    V b0 = load(b), b1 = load(b + L);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      V x = splat(a[i]);
      acc[i][0] += x * b0;
      acc[i][1] += x * b1;
    }
    a += lda;
    b += ldb;
  }
  tile_store<T, R>(acc, add, c, ldc, cols);
}

/// acc[R, 2 vectors] += A B with A row-major, `lda` apart; each() runs once per k. Fourteen row
/// pointers do not fit into the registers; three and addressing modes do, if the compiler does not
/// materialise the others.
template <typename T, int R, class Each>
[[gnu::always_inline]] inline void add_rows(Vec<T> (&acc)[R][kTileVecs], int64_t k,
                                            const T* __restrict a, int64_t lda,
                                            const T* __restrict b, int64_t ldb, const Each& each) {
  using V = Vec<T>;
  constexpr int L = kLanes<T>;
  const T* base[3] = {a, a + 5 * lda, a + 10 * lda};
  int64_t one = lda, three = 3 * lda;
  for (int64_t p = 0; p < k; ++p) {
    asm("" : "+r"(one), "+r"(three));
    each();
    V b0 = load(b), b1 = load(b + L);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const T* row = base[i / 5];
      V x = splat(i % 5 == 0   ? *row
                  : i % 5 == 1 ? row[one]
                  : i % 5 == 2 ? row[2 * one]
                  : i % 5 == 3 ? row[three]
                               : row[4 * one]);
      acc[i][0] += x * b0;
      acc[i][1] += x * b1;
    }
    for (const T*& row : base) {
      ++row;
    }
    b += ldb;
  }
}

/// Computes a tile as tile_body() does, with A row-major.
template <typename T, int R>
[[gnu::always_inline]] inline void tile_rows_body(int64_t k, const T* __restrict a, int64_t lda,
                                                  const T* __restrict b, int64_t ldb, bool add,
                                                  T* __restrict c, int64_t ldc, int64_t cols) {
  Vec<T> acc[R][kTileVecs] = {};
  add_rows<T, R>(acc, k, a, lda, b, ldb, [] {});
  tile_store<T, R>(acc, add, c, ldc, cols);
}

/// C[rows, cols] (+)= A B for rows <= kTileRows, cols <= kTileCols.
template <typename T>
void tile(int64_t rows, int64_t cols, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
          bool add, T* c, int64_t ldc);
/// The same with A row-major: a[row * lda + k].
template <typename T>
void tile_rows(int64_t rows, int64_t cols, int64_t k, const T* a, int64_t lda, const T* b,
               int64_t ldb, bool add, T* c, int64_t ldc);

}  // namespace hocket::kernels::HOCKET_CPU
