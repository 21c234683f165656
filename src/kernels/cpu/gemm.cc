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

constexpr int64_t kLineBytes = 64;
/// Up to this number of rows of A, B is transposed in small chunks, once, while the next columns
/// come from memory: more rows pay for a packed block.
constexpr int64_t kFewRows = 4 * kTileRows;
/// Up to this number of rows, blocks are transposed in registers and used at once: sums of all rows
/// have room beside a block. Per vector of B that is a multiply-add for each row and a few
/// shuffles, where lanes that are rows (in_lanes) take one for each lane.
template <typename T>
inline constexpr int kMaxRegisterRows = kVecBytes == kLineBytes ? kLanes<T> / 2 : 3;
/// Values of k per chunk: with two vectors of columns a quarter of the first-level cache at most.
constexpr int64_t kChunk = 64;

/// Vectors of columns of a panel whose values of B^T are read once: 16 rows of B in f32, which
/// prefetchers of the hardware follow all at once, as they do not follow 32. Narrower vectors come
/// in pairs: the latency of one chain of multiply-adds would bound the speed.
constexpr int kOnceVecs = kVecBytes == kLineBytes ? 1 : kTileVecs;
template <typename T>
inline constexpr int64_t kOnceCols = kOnceVecs* kLanes<T>;

/// Columns [0, cols) of B^T, at most two vectors of them, for k in [0, kc): rows of B.
template <typename T>
struct Panel {
  const T* rows;
  int64_t ld, cols, kc;
  const T* next;  ///< the panel that is read next, of the same shape
};

/// Returns whether prefetches go across the rows of a panel, as its blocks are read, or along each
/// row. On AMD (Zen 4) one thread streams 1.2 times as fast across: a page that misses in the TLB
/// delays one row of 16, not every line behind it. Intel (Sapphire Rapids) streams faster along
/// rows, which its prefetchers follow.
inline bool prefetch_across() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

/// Prefetches the next panel line by line to the second-level cache.
template <typename T>
class Ahead {
 public:
  explicit Ahead(const Panel<T>& b) : at_(b.next) {
    constexpr int64_t kLine = kLineBytes / sizeof(T);
    if (prefetch_across()) {
      run_ = b.cols, step_ = b.ld, next_run_ = kLine - b.cols * b.ld;
    } else {
      run_ = ceil_div(b.kc, kLine), step_ = kLine, next_run_ = b.ld - run_ * kLine;
    }
    left_ = run_;
  }
  [[gnu::always_inline]] void line() {
    __builtin_prefetch(at_, 0, 2);
    at_ += step_;
    if (--left_ == 0) {
      at_ += next_run_;
      left_ = run_;
    }
  }

 private:
  const T* at_;
  /// Lines of a run and to its end; elements from one to the next, and from its end to another run.
  int64_t run_, left_, step_, next_run_;
};

/// C (+)= A B of M rows and a panel: one chain of multiply-adds per element, as in a register
/// tile. The vectors of B are transposed in registers and used at once. `a`, `c`: row 0.
template <typename T, int M>
void in_registers(const Gemm<T>& g, const T* a, const Panel<T>& b, bool add, T* c) {
  constexpr int L = kLanes<T>, V = kOnceVecs;
  Vec<T> acc[V][M] = {};
  const T* rows[V][L];
  for (int v = 0; v < V; ++v) {
    for (int r = 0; r < L; ++r) {
      // Rows beyond the last one are read in its place; their results are not stored.
      rows[v][r] = b.rows + std::min<int64_t>(v * L + r, b.cols - 1) * b.ld;
    }
  }
  Ahead<T> ahead(b);
  int64_t k = 0;
  for (; k + L <= b.kc; k += L) {
    for (int v = 0; v < V; ++v) {
      Vec<T> block[L];
#pragma GCC unroll 16
      for (int r = 0; r < L; ++r) {
        block[r] = load(rows[v][r] + k);
        if (r % (kLineBytes / kVecBytes) == 0) {
          ahead.line();
        }
      }
      transpose<T>(block);
#pragma GCC unroll 16
      for (int r = 0; r < L; ++r) {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          acc[v][m] += splat(a[m * g.lda + k + r]) * block[r];
        }
      }
    }
  }
  for (; k < b.kc; ++k) {
    for (int v = 0; v < V; ++v) {
      Vec<T> values;
      for (int r = 0; r < L; ++r) {
        values[r] = rows[v][r][k];
      }
      for (int m = 0; m < M; ++m) {
        acc[v][m] += splat(a[m * g.lda + k]) * values;
      }
    }
  }
  for (int v = 0; v * L < b.cols; ++v) {
    const int64_t n = std::min<int64_t>(L, b.cols - v * L);
    for (int m = 0; m < M; ++m) {
      T* to = c + m * g.ldc + v * L;
      if (n == L) {
        store(to, add ? load(to) + acc[v][m] : acc[v][m]);
      } else {
        store_partial(to, add ? load_partial(to, n) + acc[v][m] : acc[v][m], n);
      }
    }
  }
}

/// sums[R][2 vectors] += A B for a chunk B [k][2 vectors]; goes on with every chain.
template <typename T, int R, class Each>
void add_chunk(int64_t k, const T* a, int64_t lda, const T* b, T* sums, const Each& each) {
  constexpr int L = kLanes<T>, NR = kTileCols<T>;
  Vec<T> acc[R][kTileVecs];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    acc[i][0] = load(sums + i * NR), acc[i][1] = load(sums + i * NR + L);
  }
  add_rows<T, R>(acc, k, a, lda, b, NR, each);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    store(sums + i * NR, acc[i][0]), store(sums + i * NR + L, acc[i][1]);
  }
}

/// The same for more rows: chunks of the panel are transposed once, and used by all rows.
template <typename T>
void in_chunks(const Gemm<T>& g, int64_t rows, const T* a, const Panel<T>& b, bool add, T* c) {
  constexpr int64_t NR = kTileCols<T>;
  constexpr int64_t kLines = std::max<int64_t>(1, NR * sizeof(T) / kLineBytes);
  alignas(64) T chunk[kChunk * NR];
  alignas(64) T sums[kFewRows * NR];
  std::fill_n(sums, rows * NR, T(0));
  const int64_t tiles = ceil_div(rows, kTileRows);
  Ahead<T> ahead(b);
  const auto prefetch = [&] {
    for (int64_t i = 0; i < kLines; ++i) {
      ahead.line();
    }
  };
  for (int64_t k = 0; k < b.kc; k += kChunk) {
    const int64_t kc = std::min(kChunk, b.kc - k);
    pack_transposed<NR>(b.rows + k, b.ld, b.cols, kc, chunk);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t i = rows * t / tiles;
      const T* from = a + i * g.lda + k;
      T* to = sums + i * NR;
      switch (rows * (t + 1) / tiles - i) {
#define HOCKET_TILE(r)                                       \
  case r:                                                    \
    if (t == 0) {                                            \
      add_chunk<T, r>(kc, from, g.lda, chunk, to, prefetch); \
    } else {                                                 \
      add_chunk<T, r>(kc, from, g.lda, chunk, to, [] {});    \
    }                                                        \
    break;
        HOCKET_TILES(HOCKET_TILE)
#undef HOCKET_TILE
        default:
          break;
      }
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < b.cols; ++j) {
      T* to = c + i * g.ldc + j;
      *to = add ? *to + sums[i * NR + j] : sums[i * NR + j];
    }
  }
}

/// Rows of A that fill vectors: vector lanes are rows, and values of B^T need no transposing.
template <typename T, int V>
inline constexpr int64_t kVectorLaneRows = V* kLanes<T>;
/// Lanes of a vector from which this is faster than transposing.
constexpr int64_t kMinVectorLanes = 8;

/// Sums of R rows of B^T, `ld` apart, and V vectors of rows of A, packed [k][V vectors].
template <typename T, int R, int V>
void add_lanes(int64_t kc, const T* b, int64_t ld, const T* a, T* sums, Ahead<T>& ahead) {
  constexpr int L = kLanes<T>;
  constexpr int64_t kStepsPerLine = std::max<int64_t>(1, kLineBytes / (R * sizeof(T)));
  Vec<T> acc[R][V] = {};
  const T* base[(R + 4) / 5];
  for (int i = 0; i < R; i += 5) {
    base[i / 5] = b + i * ld;
  }
  int64_t one = ld, three = 3 * ld;
  Ahead<T> next = ahead;
  for (int64_t k = 0; k < kc; ++k) {
    asm("" : "+r"(one), "+r"(three));  // as in add_rows
    if (k % kStepsPerLine == 0) {
      next.line();
    }
    Vec<T> x[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      x[v] = load(a + v * L);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const T* row = base[i / 5];
      const Vec<T> value = splat(i % 5 == 0   ? *row
                                 : i % 5 == 1 ? row[one]
                                 : i % 5 == 2 ? row[2 * one]
                                 : i % 5 == 3 ? row[three]
                                              : row[4 * one]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        acc[i][v] += value * x[v];
      }
    }
    for (const T*& row : base) {
      ++row;
    }
    a += V * L;
  }
  ahead = next;
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      store(sums + (i * V + v) * L, acc[i][v]);
    }
  }
}

/// C (+)= A B of at most V vectors of rows and a whole panel. `a` is packed, c is row 0.
template <typename T, int V>
void in_lanes(const Gemm<T>& g, int64_t rows, const T* a, const Panel<T>& b, bool add, T* c) {
  constexpr int64_t L = kLanes<T>, NR = kOnceCols<T>, R = std::max<int64_t>(1, L / V);
  alignas(64) T sums[NR * kVectorLaneRows<T, V>];
  Ahead<T> ahead(b);
  for (int64_t j = 0; j < NR; j += R) {
    add_lanes<T, R, V>(b.kc, b.rows + j * b.ld, b.ld, a, sums + j * kVectorLaneRows<T, V>, ahead);
  }
  for (int64_t j = 0; j < NR; j += L) {
    for (int64_t v = 0; v < V; ++v) {
      Vec<T> block[L];
      for (int64_t i = 0; i < L; ++i) {
        block[i] = load(sums + (j + i) * kVectorLaneRows<T, V> + v * L);
      }
      transpose<T>(block);
      for (int64_t i = 0; i < std::min(L, rows - v * L); ++i) {
        T* to = c + (v * L + i) * g.ldc + j;
        store(to, add ? load(to) + block[i] : block[i]);
      }
    }
  }
}

/// in_registers() of `rows` rows, at most M.
template <typename T, int M = kMaxRegisterRows<T>>
void in_registers_of(const Gemm<T>& g, int64_t rows, const T* a, const Panel<T>& b, bool add,
                     T* c) {
  if constexpr (M > 1) {
    if (rows < M) return in_registers_of<T, M - 1>(g, rows, a, b, add, c);
  }
  in_registers<T, M>(g, a, b, add, c);
}

/// A panel with few rows of A, the first of which is `a`; `packed` is [k][vectors of rows].
template <typename T>
void few_rows_panel(const Gemm<T>& g, int64_t rows, const T* a, const T* packed, const Panel<T>& b,
                    bool add, T* c) {
  if (rows <= kMaxRegisterRows<T>) return in_registers_of(g, rows, a, b, add, c);
  if (packed == nullptr || b.cols < kOnceCols<T>) return in_chunks(g, rows, a, b, add, c);
  return rows <= kVectorLaneRows<T, 1> ? in_lanes<T, 1>(g, rows, packed, b, add, c)
                                       : in_lanes<T, 2>(g, rows, packed, b, add, c);
}

/// Packs rows of A to [k][vectors of rows] where lanes are to be rows; null: they are not.
template <typename T>
const T* pack_lanes(const Gemm<T>& g, int64_t rows, const T* a, T* scratch) {
  constexpr int64_t kOne = kVectorLaneRows<T, 1>, kTwo = kVectorLaneRows<T, 2>;
  const int64_t width = rows <= kOne ? kOne : kTwo;
  const int64_t room = ops::gemm_scratch(g.n, g.k, sizeof(T)) / static_cast<int64_t>(sizeof(T));
  if (kLanes<T> < kMinVectorLanes || rows <= kMaxRegisterRows<T> || rows > kTwo ||
      g.k * width > room) {
    return nullptr;
  }
  if (rows <= kOne) {
    pack_transposed<kOne>(a, g.lda, rows, g.k, scratch);
  } else {
    pack_transposed<kTwo>(a, g.lda, rows, g.k, scratch);
  }
  return scratch;
}

/// Part of a product A B^T with few rows of A.
template <typename T>
void few_rows(const Gemm<T>& g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, T* scratch) {
  const int64_t step = ops::gemm_step_k(g.k), rows = m1 - m0;
  const T* packed = pack_lanes(g, rows, g.a + m0 * g.lda, scratch);
  const bool once = packed != nullptr || rows <= kMaxRegisterRows<T>;
  const int64_t cols = once ? kOnceCols<T> : kTileCols<T>;
  const int64_t width =
      rows <= kVectorLaneRows<T, 1> ? kVectorLaneRows<T, 1> : kVectorLaneRows<T, 2>;
  for (int64_t j = n0; j < n1; j += cols) {
    for (int64_t p = 0; p < g.k; p += step) {
      const T* from = g.b + j * g.ldb + p;
      const T* next = p + step < g.k       ? from + step
                      : j + 2 * cols <= n1 ? from - p + cols * g.ldb
                                           : from;
      const Panel<T> b{.rows = from,
                       .ld = g.ldb,
                       .cols = std::min(cols, n1 - j),
                       .kc = std::min(step, g.k - p),
                       .next = next};
      few_rows_panel(g, rows, g.a + m0 * g.lda + p,
                     packed == nullptr ? nullptr : packed + p * width, b, g.add || p > 0,
                     g.c + m0 * g.ldc + j);
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
  if (g.trans_b && !g.trans_a && m1 - m0 <= kFewRows) return few_rows(g, m0, m1, n0, n1, scratch);
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
  // tile: packing a panel of A, once per block of B, costs about 0.4 of it. Packing a panel of B,
  // once, costs about 2.5: it is wider and comes from memory.
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
