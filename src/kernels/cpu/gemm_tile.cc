// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm_tile.h"

namespace hocket::kernels::HOCKET_CPU {

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

#define HOCKET_INSTANTIATE(T)                                                                      \
  template void tile<T>(int64_t, int64_t, int64_t, const T*, int64_t, const T*, int64_t, bool, T*, \
                        int64_t);                                                                  \
  template void tile_rows<T>(int64_t, int64_t, int64_t, const T*, int64_t, const T*, int64_t,      \
                             bool, T*, int64_t);
HOCKET_INSTANTIATE(float)
HOCKET_INSTANTIATE(double)
#undef HOCKET_INSTANTIATE

}  // namespace hocket::kernels::HOCKET_CPU
