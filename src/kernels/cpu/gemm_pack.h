// SPDX-License-Identifier: Apache-2.0
// The packing of the operands of our matrix products into panels of a constant width. The width is
// an argument of the templates, so that every copy is of whole vectors wherever the call is
// compiled.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm_tile.h"

namespace hocket::kernels::HOCKET_CPU {

/// One butterfly stage of an LxL transpose: exchanges the blocks of width W off the diagonal.
template <typename T, int W>
[[gnu::always_inline]] inline void transpose_stage(Vec<T>* v) {
  constexpr int L = kLanes<T>;
  typename VecTraits<T>::Int lo, hi;
  for (int i = 0; i < L; ++i) {
    lo[i] = (i & W) ? (i ^ W) + L : i;
    hi[i] = (i & W) ? i + L : i ^ W;
  }
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) {
    if (i & W) continue;
    Vec<T> a = v[i], b = v[i + W];
#if defined(__clang__)
    Vec<T> x, y;
    for (int j = 0; j < L; ++j) {
      x[j] = (j & W) ? b[j ^ W] : a[j];
      y[j] = (j & W) ? b[j] : a[j ^ W];
    }
    v[i] = x, v[i + W] = y;
#else
    v[i] = __builtin_shuffle(a, b, lo);
    v[i + W] = __builtin_shuffle(a, b, hi);
#endif
  }
}

/// Transposes the LxL values of L vectors.
template <typename T>
[[gnu::always_inline]] inline void transpose(Vec<T>* v) {
  constexpr int L = kLanes<T>;
  if constexpr (L > 8) {
    transpose_stage<T, 8>(v);
  }
  if constexpr (L > 4) {
    transpose_stage<T, 4>(v);
  }
  if constexpr (L > 2) {
    transpose_stage<T, 2>(v);
  }
  transpose_stage<T, 1>(v);
}

template <int Width, typename T>
[[gnu::always_inline]] inline void transpose_block(const T* src, int64_t ld, T* dst) {
  constexpr int L = kLanes<T>;
  Vec<T> v[L];
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) {
    v[i] = load(src + i * ld);
  }
  transpose<T>(v);
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) {
    store(dst + i * Width, v[i]);
  }
}

/// Packs a row-major operand into panels with its rows as columns: dst[c * Width + r] = src[r * ld
/// + c] for r < rows, c < cols; zeros for rows <= r < Width. Requires: Width >= rows.
template <int Width, typename T>
void pack_transposed(const T* src, int64_t ld, int64_t rows, int64_t cols, T* dst) {
  constexpr int L = kLanes<T>;
  // A panel narrower than a vector (kTileRows): transpose into a small block, then copy its rows.
  int64_t c = 0;
  if (Width < L && rows == Width) {
    alignas(64) T block[L * L];
    Vec<T> v[L];
    for (; c + L <= cols; c += L) {
      for (int i = 0; i < L; ++i) {
        v[i] = load(src + std::min<int64_t>(i, rows - 1) * ld + c);
      }
      transpose<T>(v);
      // Full-width stores overlap: each is cut to size by the next one; the last goes through a
      // block so that nothing is written past the panel.
#pragma GCC unroll 16
      for (int i = 0; i < L - 1; ++i) {
        store(dst + (c + i) * Width, v[i]);
      }
      store(block, v[L - 1]);
      std::memcpy(dst + (c + L - 1) * Width, block, static_cast<size_t>(Width) * sizeof(T));
    }
    for (; c < cols; ++c) {
      for (int64_t r = 0; r < rows; ++r) {
        dst[c * Width + r] = src[r * ld + c];
      }
    }
    return;
  }
  const int64_t whole_c = cols / L * L, whole_r = rows / L * L;
  for (; c < whole_c; c += L) {
    for (int64_t r = 0; r < whole_r; r += L) {
      transpose_block<Width>(src + r * ld + c, ld, dst + c * Width + r);
    }
  }
  for (c = 0; c < cols; ++c) {
    T* to = dst + c * Width;
    for (int64_t r = c < whole_c ? whole_r : 0; r < rows; ++r) {
      to[r] = src[r * ld + c];
    }
    for (int64_t r = rows; r < Width; ++r) {
      to[r] = 0;
    }
  }
}

/// Cuts src[rows, cols] into panels of `Width` columns, each stored [rows][Width] after the other;
/// the last one is filled up with zeros. Always inlined: a caller's bound of `cols` lets the loops
/// over panels unroll, a quarter of the time of packing.
template <int Width, typename T>
[[gnu::always_inline]] inline void pack_rows(const T* src, int64_t ld, int64_t rows, int64_t cols,
                                             T* dst) {
  constexpr int L = kLanes<T>;
  const int64_t panel = rows * Width, whole = cols / Width;
  // Row by row over all panels, so that a long row stride costs one page and a run of lines per
  // row.
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = src + r * ld;
    T* to = dst + r * Width;
    int64_t j = 0;
    if constexpr (Width == kTileCols<T>) {
      for (; j < whole; ++j) {
        for (int i = 0; i < kTileVecs; ++i) {
          store(to + j * panel + i * L, load(from + j * Width + i * L));
        }
      }
    } else if (Width < L && Width > L / 2 && r + 1 < rows) {
      // Whole vectors: the excess read lies in the matrix (its next row at the latest), the excess
      // written is overwritten by the next row of this panel.
      for (; j < whole; ++j) {
        store(to + j * panel, load(from + j * Width));
      }
    }
    for (; j < whole; ++j) {
      for (int64_t c = 0; c < Width; ++c) {
        to[j * panel + c] = from[j * Width + c];
      }
    }
    if (const int64_t rest = cols - whole * Width; rest > 0) {
      to += whole * panel;
      from += whole * Width;
      for (int64_t c = 0; c < rest; ++c) {
        to[c] = from[c];
      }
      for (int64_t c = rest; c < Width; ++c) {
        to[c] = 0;
      }
    }
  }
}

}  // namespace hocket::kernels::HOCKET_CPU
