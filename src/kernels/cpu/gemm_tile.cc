// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm_tile.h"

#include <algorithm>

namespace hocket::kernels::HOCKET_CPU {

#if defined(__AVX512F__)
#define HOCKET_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif defined(__aarch64__)
#define HOCKET_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#else
#define HOCKET_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif

template <typename T>
void tile(int64_t rows, int64_t cols, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
          bool add, T* c, int64_t ldc) {
  switch (rows) {
#define HOCKET_TILE(r) \
  case r:              \
    return tile_body<T, r>(k, a, lda, b, ldb, add, c, ldc, cols);
    HOCKET_TILES(HOCKET_TILE)
#undef HOCKET_TILE
    default:
      return;
  }
}

template <typename T>
void tile_rows(int64_t rows, int64_t cols, int64_t k, const T* a, int64_t lda, const T* b,
               int64_t ldb, bool add, T* c, int64_t ldc) {
  switch (rows) {
#define HOCKET_TILE(r) \
  case r:              \
    return tile_rows_body<T, r>(k, a, lda, b, ldb, add, c, ldc, cols);
    HOCKET_TILES(HOCKET_TILE)
#undef HOCKET_TILE
    default:
      return;
  }
}

namespace {

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

template <typename T>
[[gnu::always_inline]] inline void transpose_block(const T* src, int64_t ld, T* dst,
                                                   int64_t width) {
  constexpr int L = kLanes<T>;
  Vec<T> v[L];
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) {
    v[i] = load(src + i * ld);
  }
  transpose<T>(v);
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) {
    store(dst + i * width, v[i]);
  }
}

}  // namespace

template <typename T>
void pack_transposed(const T* src, int64_t ld, int64_t rows, int64_t cols, int64_t width, T* dst) {
  constexpr int L = kLanes<T>;
  // A panel narrower than a vector (kTileRows): transpose into a small block, then copy its rows.
  int64_t c = 0;
  if (rows == width && width < L) {
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
        store(dst + (c + i) * width, v[i]);
      }
      store(block, v[L - 1]);
      std::memcpy(dst + (c + L - 1) * width, block, static_cast<size_t>(width) * sizeof(T));
    }
    for (; c < cols; ++c) {
      for (int64_t r = 0; r < rows; ++r) {
        dst[c * width + r] = src[r * ld + c];
      }
    }
    return;
  }
  const int64_t whole_c = cols / L * L, whole_r = rows / L * L;
  for (; c < whole_c; c += L) {
    for (int64_t r = 0; r < whole_r; r += L) {
      transpose_block(src + r * ld + c, ld, dst + c * width + r, width);
    }
  }
  for (c = 0; c < cols; ++c) {
    T* to = dst + c * width;
    for (int64_t r = c < whole_c ? whole_r : 0; r < rows; ++r) {
      to[r] = src[r * ld + c];
    }
    for (int64_t r = rows; r < width; ++r) {
      to[r] = 0;
    }
  }
}

template <typename T>
void pack_rows(const T* src, int64_t ld, int64_t rows, int64_t cols, int64_t width, T* dst) {
  constexpr int L = kLanes<T>;
  const int64_t panel = rows * width, whole = cols / width;
  // Row by row over all panels, so that a long row stride costs one page and a run of lines per
  // row.
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = src + r * ld;
    T* to = dst + r * width;
    int64_t j = 0;
    if (width == kTileCols<T>) {
      for (; j < whole; ++j) {
        for (int i = 0; i < kTileVecs; ++i) {
          store(to + j * panel + i * L, load(from + j * width + i * L));
        }
      }
    } else if (width < L && width > L / 2 && r + 1 < rows) {
      // Whole vectors: the excess read lies in the matrix (its next row at the latest), the excess
      // written is overwritten by the next row of this panel.
      for (; j < whole; ++j) {
        store(to + j * panel, load(from + j * width));
      }
    }
    for (; j < whole; ++j) {
      for (int64_t c = 0; c < width; ++c) {
        to[j * panel + c] = from[j * width + c];
      }
    }
    if (const int64_t rest = cols - whole * width; rest > 0) {
      to += whole * panel;
      from += whole * width;
      for (int64_t c = 0; c < rest; ++c) {
        to[c] = from[c];
      }
      for (int64_t c = rest; c < width; ++c) {
        to[c] = 0;
      }
    }
  }
}

#define HOCKET_INSTANTIATE(T)                                                                      \
  template void tile<T>(int64_t, int64_t, int64_t, const T*, int64_t, const T*, int64_t, bool, T*, \
                        int64_t);                                                                  \
  template void tile_rows<T>(int64_t, int64_t, int64_t, const T*, int64_t, const T*, int64_t,      \
                             bool, T*, int64_t);                                                   \
  template void pack_transposed<T>(const T*, int64_t, int64_t, int64_t, int64_t, T*);              \
  template void pack_rows<T>(const T*, int64_t, int64_t, int64_t, int64_t, T*);
HOCKET_INSTANTIATE(float)
HOCKET_INSTANTIATE(double)
#undef HOCKET_INSTANTIATE

}  // namespace hocket::kernels::HOCKET_CPU
