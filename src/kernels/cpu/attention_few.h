// SPDX-License-Identifier: Apache-2.0
// Attention of a few queries of a sequence to its keys and values, which lie in pages. The query
// heads of a kv head share every page that is read. Lanes are keys in the scores, queries in the
// softmax, features in the sums of values. Every query has the bits that attend_block gives it:
// its sums have the same terms in the same order, whatever queries share the lanes.
#pragma once

#include <algorithm>

#include "kernels/cpu/attention_forward.h"
#include "kernels/cpu/gemm_pack.h"

namespace hocket::kernels::HOCKET_CPU {

/// Pairs of a query and a query head of one kv head: pair i is of row `first_pair + i` / group.
/// `row`: the first row's place in its block of queries; `at`, `key`: positions of the block's
/// begin, and of the first key of the first block of keys.
struct FewQueries {
  int64_t pairs, first_pair, group, row, at, key, window, d;
  int64_t row_of(int64_t pair) const { return row + (first_pair + pair) / group; }
};

template <typename T>
struct FewScratch {
  T *q, *made, *scores, *weights, *values, *page, *top, *sum, *fix;
  FewScratch(Scratch& from, int64_t d) {
    using ops::kAttnKeysFwd, ops::kFewPairs;
    q = from.take<T>(d * kFewPairs);
    made = from.take<T>(d * kFewPairs);
    scores = from.take<T>(ops::kFewScores * kFewPairs);
    weights = from.take<T>(kAttnKeysFwd * kFewPairs);
    values = from.take<T>(kAttnKeysFwd * round_up(d, kTileCols<T>));
    page = from.take<T>(d * ops::kPageTokens);
    top = from.take<T>(kFewPairs);
    sum = from.take<T>(kFewPairs);
    fix = from.take<T>(kFewPairs);
  }
};

/// A block of keys for a vector of pairs: the first key is `first` rows before row 0, and the pairs
/// see some of the keys [begin, end).
struct FewKeys {
  int64_t first, begin, end, window;
};

/// Sums of the weights w[key][pair] of a vector of pairs in the order of softmax_block: keys that
/// the first query of a vector of queries sees are added in pairs.
template <typename T>
Vec<T> add_weights(int64_t n, const int32_t* rows, const FewKeys& b, const T* w, int64_t ld,
                   Vec<T> before) {
  constexpr int64_t L = kLanes<T>, N = ops::kAttnKeysFwd;
  using Int = typename VecTraits<T>::Int;
  struct Bounds {
    int64_t inside, paired;
  };
  const auto bounds = [&](int64_t row) -> Bounds {
    const int64_t c = row / L * L;
    const int64_t any = std::clamp<int64_t>(c + L - b.first, 0, N);
    const int64_t all = std::clamp<int64_t>(c + 1 - b.first, 0, N);
    const int64_t inside = std::clamp<int64_t>(c + L - b.window - b.first, 0, any);
    return {inside, inside + std::max<int64_t>(all - inside, 0) / 2 * 2};
  };
  Vec<T> s0{}, s1{};
  const Bounds x = bounds(rows[0]), y = bounds(rows[n - 1]);
  int64_t j = b.begin;
  if (x.inside == y.inside && x.paired == y.paired) {
    for (; j < std::min(x.inside, b.end); ++j) {
      s0 += load(w + j * ld);
    }
    for (; j < x.paired; j += 2) {
      s0 += load(w + j * ld);
      s1 += load(w + (j + 1) * ld);
    }
    for (; j < b.end; ++j) {
      s0 += load(w + j * ld);
    }
  } else {
    Int inside{}, pairs{};
    for (int64_t i = 0; i < n; ++i) {
      const Bounds of = bounds(rows[i]);
      inside[i] = static_cast<std::remove_reference_t<decltype(inside[0])>>(of.inside);
      pairs[i] = static_cast<std::remove_reference_t<decltype(inside[0])>>(of.paired - of.inside);
    }
    for (; j < b.end; ++j) {
      const Int at = static_cast<std::remove_reference_t<decltype(inside[0])>>(j) - inside;
      const Int second = (at >= 0) & (at < pairs) & ((at & 1) != 0);
      const Vec<T> weight = load(w + j * ld), none{};
      s0 += second ? none : weight;
      s1 += second ? weight : none;
    }
  }
  return before + s0 + s1;
}

/// Softmax of the scores s[pair][key], rows `stride` apart, of n pairs, at most a vector, at these
/// rows of their block. Their exponentials become w[key][pair], zeros for what a pair does not see.
/// `top`, `sum`, `fix`: as in softmax_block.
template <typename T>
[[gnu::noinline]] void soften_few(int64_t n, const int32_t* rows, const FewKeys& b, T cap, T* s,
                                  int64_t stride, T* w, int64_t ld, T* top, T* sum, T* fix) {
  constexpr int64_t L = kLanes<T>, N = ops::kAttnKeysFwd;
  static_assert(N % L == 0);
  const int64_t from = b.begin / L * L, to = round_up(b.end, L);
  Vec<T> lane;
  T begin[L], end[L];
  bool whole = true;
  for (int64_t i = 0; i < L; ++i) {
    lane[i] = static_cast<T>(i);
    const int64_t row = rows[std::min(i, n - 1)];
    const int64_t last = std::clamp<int64_t>(row + 1 - b.first, 0, N);
    const int64_t first = std::clamp<int64_t>(row + 1 - b.window - b.first, 0, last);
    begin[i] = static_cast<T>(first);
    end[i] = static_cast<T>(last);
    whole = whole && first <= from && last >= to;
  }
  const auto seen = [&](int64_t i, int64_t key, Vec<T> x, Vec<T> otherwise) {
    const Vec<T> at = lane + static_cast<T>(key);
    const Vec<T> from_begin = at >= begin[i] ? x : otherwise;
    return at < end[i] ? from_begin : otherwise;
  };
  Vec<T> v[L];
  for (int64_t i = 0; i < L; ++i) {
    v[i] = splat(kLowest<T>);
  }
  for (int64_t i = 0; i < n; ++i) {
    T* const scores = s + i * stride;
    for (int64_t c = from; cap > 0 && c < to; c += L) {
      store(scores + c, uncontracted(cap * vtanh(load(scores + c))));
    }
    for (int64_t c = from; c < to; c += L) {
      const Vec<T> all = load(scores + c), x = whole ? all : seen(i, c, all, splat(kLowest<T>));
      v[i] = x > v[i] ? x : v[i];
    }
  }
  transpose<T>(v);
  const Vec<T> old = load(top);
  Vec<T> largest = old;
  for (int64_t i = 0; i < L; ++i) {
    largest = v[i] > largest ? v[i] : largest;
  }
  T tops[L];
  store(tops, largest);
  for (int64_t c = from; c < to; c += L) {
    for (int64_t i = 0; i < n; ++i) {
      const Vec<T> x = vexp2_nonpositive(load(s + i * stride + c) - splat(tops[i]));
      v[i] = whole ? x : seen(i, c, x, Vec<T>{});
    }
    for (int64_t i = n; i < L; ++i) {
      v[i] = Vec<T>{};
    }
    transpose<T>(v);
    for (int64_t i = 0; i < L; ++i) {
      store(w + (c + i) * ld, v[i]);
    }
  }
  const Vec<T> f = vexp2_nonpositive(old - largest);
  store(top, largest);
  store(fix, f);
  store(sum, add_weights(n, rows, b, w, ld, uncontracted(load(sum) * f)));
}

/// Prefetches pages to the second-level cache, some lines with every step of a product: the
/// hardware does not follow a sequence from page to page.
class PagesAhead {
 public:
  static constexpr int64_t kMaxRuns = 2 * (ops::kFewScores / ops::kPageTokens);
  /// Has `steps` steps for the runs that are added from here on.
  void begin(int64_t steps) {
    steps_ = steps;
    runs_ = run_ = 0;
    lines_ = 0;
  }
  void add(const void* run, int64_t bytes) {
    begins_[runs_++] = static_cast<const std::byte*>(run);
    bytes_ = round_up(bytes, kLineBytes);
    at_ = begins_[0];
    end_ = at_ + bytes_;
    lines_ = ceil_div(runs_ * bytes_ / kLineBytes, std::max<int64_t>(steps_, 1));
  }
  [[gnu::always_inline]] void step() {
    for (int64_t i = 0; i < lines_; ++i) {
      __builtin_prefetch(at_, 0, 2);
      at_ += kLineBytes;
      if (at_ == end_) {
        next_run();
      }
    }
  }

 private:
  static constexpr int64_t kLineBytes = 64;
  void next_run() {
    if (++run_ == runs_) {
      lines_ = 0;
      return;
    }
    at_ = begins_[run_];
    end_ = at_ + bytes_;
  }

  const std::byte *begins_[kMaxRuns], *at_ = nullptr, *end_ = nullptr;
  int64_t steps_ = 0, runs_ = 0, run_ = 0, bytes_ = 0, lines_ = 0;
};

template <typename T, int R>
[[gnu::always_inline]] inline void tile_ahead_body(int64_t k, const T* __restrict a, int64_t lda,
                                                   const T* __restrict b, int64_t ldb, bool add,
                                                   T* __restrict c, int64_t ldc, int64_t cols,
                                                   PagesAhead& pages) {
  constexpr int L = kLanes<T>;
  Vec<T> acc[R][kTileVecs] = {};
  PagesAhead ahead = pages;
  for (int64_t p = 0; p < k; ++p) {
    ahead.step();
    const Vec<T> b0 = load(b), b1 = load(b + L);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Vec<T> x = splat(a[i]);
      acc[i][0] += x * b0;
      acc[i][1] += x * b1;
    }
    a += lda;
    b += ldb;
  }
  pages = ahead;
  tile_store<T, R>(acc, add, c, ldc, cols);
}

/// The register tile of gemm_tile.h, while the next pages come from memory.
template <typename T>
[[gnu::noinline]] void tile_ahead(int64_t rows, int64_t cols, int64_t k, const T* a, int64_t lda,
                                  const T* b, int64_t ldb, bool add, T* c, int64_t ldc,
                                  PagesAhead& ahead) {
  switch (rows) {
#define HOCKET_TILE(r) \
  case r:              \
    return tile_ahead_body<T, r>(k, a, lda, b, ldb, add, c, ldc, cols, ahead);
    HOCKET_TILES(HOCKET_TILE)
#undef HOCKET_TILE
    default:
      return;
  }
}

/// Attention of at most kFewPairs pairs; q and the results in ws.made are [pairs][d].
/// `keys(page, pad)` returns page number `page` of the sequence, [d][kPageTokens];
/// `values(position, n, to)` copies the values of n tokens to rows as long as d in whole tiles;
/// `next(page, ahead)` adds a page.
template <typename T, class Keys, class Values, class Next>
void attend_few(const FewQueries& b, const T* q, const Keys& keys, const Values& values,
                const Next& next, const Scores<T>& scores, const FewScratch<T>& ws) {
  constexpr int64_t L = kLanes<T>, N = ops::kAttnKeysFwd, P = ops::kPageTokens;
  constexpr int64_t MR = kTileRows, NR = kTileCols<T>;
  constexpr int64_t stride = ops::kFewScores;
  static_assert(ops::kFewPairs % L == 0 && stride >= 2 * N + P);
  const int64_t d = b.d, ld = round_up(b.pairs, L), wide = round_up(d, NR);
  int32_t rows[ops::kFewPairs];
  for (int64_t i = 0; i < b.pairs; ++i) {
    rows[i] = static_cast<int32_t>(b.row_of(i));
    for (int64_t c = 0; c < d; ++c) {
      ws.q[c * b.pairs + i] = q[i * d + c] * scores.factor;
    }
  }
  std::fill_n(ws.top, ld, kLowest<T>);
  std::fill_n(ws.sum, ld, T(0));
  const int64_t last = b.at + rows[b.pairs - 1];
  const int64_t first_seen = std::max<int64_t>(b.key, b.at + rows[0] + 1 - b.window);
  PagesAhead ahead;
  for (int64_t k0 = b.key; k0 <= last; k0 += 2 * N) {
    // Scores of two blocks of keys, which are whole pages if the window begins before them.
    const int64_t page0 = k0 / P, pages = std::min(last, k0 + 2 * N - 1) / P + 1;
    ahead.begin(ceil_div(b.pairs, MR) * (2 * N / NR * d + ceil_div(d, NR) * 2 * N));
    for (int64_t page = pages; page <= std::min(last, k0 + 4 * N - 1) / P; ++page) {
      next(page, ahead);
    }
    for (int64_t page = std::max(page0, first_seen / P); page < pages; ++page) {
      const T* from = keys(page, ws.page);
      for (int64_t i = 0; i < b.pairs; i += MR) {
        for (int64_t c = 0; c < P; c += NR) {
          tile_ahead<T>(std::min(MR, b.pairs - i), NR, d, ws.q + i, b.pairs, from + c, P, false,
                        ws.scores + i * stride + (page - page0) * P + c, stride, ahead);
        }
      }
    }
    for (int64_t k = k0; k <= std::min(last, k0 + N); k += N) {
      const int64_t first = k - b.at;
      const auto begin_of = [&](int64_t pair, int64_t end) {
        return std::clamp<int64_t>(rows[pair] + 1 - b.window - first, 0, end);
      };
      const auto end_of = [&](int64_t pair) {
        return std::clamp<int64_t>(rows[pair] + 1 - first, 0, N);
      };
      const int64_t end = end_of(b.pairs - 1), begin = begin_of(0, end);
      const bool add = k > b.key;
      if (begin == end && add) continue;
      for (int64_t i = 0; i < b.pairs; i += L) {
        soften_few(std::min(L, b.pairs - i), rows + i, {first, begin, end, b.window}, scores.cap,
                   ws.scores + i * stride + k - page0 * P, stride, ws.weights + i, ld, ws.top + i,
                   ws.sum + i, ws.fix + i);
      }
      for (int64_t i = 0; add && i < b.pairs; ++i) {
        if (const T f = ws.fix[i]; f != 1) {
          T* __restrict to = ws.made + i * d;
#pragma omp simd
          for (int64_t c = 0; c < d; ++c) {
            to[c] *= f;
          }
        }
      }
      values(k + begin, end - begin, ws.values);
      for (int64_t i = 0; i < b.pairs; i += MR) {
        const int64_t n = std::min(MR, b.pairs - i), to = end_of(i + n - 1);
        const int64_t from = std::max(begin, begin_of(i, to));
        for (int64_t c = 0; c < d; c += NR) {
          tile_ahead<T>(n, std::min(NR, d - c), to - from, ws.weights + from * ld + i, ld,
                        ws.values + (from - begin) * wide + c, wide, add, ws.made + i * d + c, d,
                        ahead);
        }
      }
    }
  }
  for (int64_t i = 0; i < b.pairs; ++i) {
    T* __restrict to = ws.made + i * d;
    const T f = ws.sum[i] > 0 ? 1 / ws.sum[i] : 0;
#pragma omp simd
    for (int64_t c = 0; c < d; ++c) {
      to[c] *= f;
    }
  }
}

}  // namespace hocket::kernels::HOCKET_CPU
