// SPDX-License-Identifier: Apache-2.0
// Causal attention over packed documents, in blocks that never form tokens x tokens
// (FlashAttention-2, arXiv 2307.08691), forward and backward. One task is a block of queries of one
// head (forward) or a document and kv head (backward); blocks and register tiles above the diagonal
// or before the window are skipped. A branch, which shares the first tokens of its document with
// others, has the same blocks as if it were a document of its own, and so the same bits. A query's
// result depends on its document alone, not on threads or neighbours. Queries and keys may be
// pieces of theirs that begin anywhere; without a key, a query has o = 0 and lse = -inf, and adds
// nothing to any gradient.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <string>

#include "kernels/cpu/attention_forward.h"
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

using ops::kAttnKeysBwd;
using ops::kAttnKeysFwd;
using ops::kAttnRowsBwd;
using ops::kAttnRowsFwd;

/// Queries [at, end) of a document, or the last of several blocks of them. Keys before `key` are
/// hidden from them. In a branch the document's tokens up to `shared` come first, and the branch's
/// own tokens begin `gap` tokens behind them. `at` may lie before the branch's first token: blocks
/// begin at the same positions as in a document of its own.
struct Block {
  int32_t at, end, key, shared = 0, gap = 0;

  /// Rows before the first query.
  int64_t skip() const { return std::max(shared + gap - at, 0); }
};

template <typename T>
struct Heads {
  int64_t queries, keys;           ///< tokens
  int64_t h, g, d, group;          ///< group = query heads per kv head
  int64_t first_head, first_kv;    ///< where the heads of queries and of keys begin
  int64_t q_stride, k_stride;      ///< elements between tokens
  int64_t wide;                    ///< d rounded up to whole register tiles
  int64_t first_query, first_key;  ///< where the tokens begin
  int64_t ahead;                   ///< query i is key i + ahead
  int64_t window;                  ///< keys that a query sees at most; without one, all
  explicit Heads(const KernelArgs& args, const TensorRef& q, const TensorRef& k)
      : queries(q.dim(0)),
        keys(k.dim(0)),
        h(q.dim(1)),
        g(k.dim(1)),
        d(q.dim(2)),
        group(args.attrs->i("group")),
        first_head(piece_offset(args, 'h')),
        first_kv(piece_offset(args, 'g')),
        q_stride(h * d),
        k_stride(g * d),
        wide(round_up(d, kTileCols<T>)),
        first_query(piece_offset(args, 't')),
        first_key(piece_offset(args, 's')),
        ahead(first_query - first_key),
        // Beyond all keys, so far that no block of queries reaches it: the order of sums in a block
        // depends on where the window begins.
        window(args.attrs->i_or("window", first_query + queries + kAttnRowsFwd)) {}

  /// The kv head here that a query head reads; outside of [0, g) if it is not here.
  int64_t kv_of(int64_t head) const { return (first_head + head) / group - first_kv; }
  /// The first query head here that reads this kv head, or a later one.
  int64_t first_of(int64_t kv_head) const {
    return std::clamp<int64_t>((first_kv + kv_head) * group - first_head, 0, h);
  }
  /// Keys that the queries of a block may see: `key` to here.
  int64_t key_end(const Block& b) const { return std::min(b.end + ahead, keys); }
  /// Returns whether tokens are keys, too, so that branches find the keys of their documents.
  bool holds_branches() const { return ahead == 0 && keys >= queries; }
  /// Queries from here on see no key before `end`.
  int64_t query_end(int64_t end) const { return end - 1 + window - ahead; }
};

/// Returns the end of the tokens from `at` on whose positions count up, before `limit`.
inline int64_t end_of_run(const int32_t* pos, int64_t at, int64_t limit) {
  int64_t end = at + 1;
  while (end < limit && pos[end] != 0 && pos[end] == pos[end - 1] + 1) {
    ++end;
  }
  return end;
}

/// Refuses the position of a token where neither a document nor a branch of [begin, trunk_end), a
/// document's first run of tokens, begins.
template <typename T>
void check_branch(const int32_t* pos, int64_t t, int64_t begin, int64_t trunk_end,
                  const Heads<T>& hs) {
  const bool whole = hs.holds_branches() && pos[begin] == 0;
  if (pos[t] > 0 && whole && pos[t] <= trunk_end - begin) return;
  fail_run("attention",
           "position {} of token {} after position {}; expected {}, 0 where a document begins, or "
           "where a branch does the number of its document's first tokens that it shares, {}",
           pos[t], hs.first_query + t, pos[t - 1], pos[t - 1] + 1,
           whole ? fmt::format("at most {}", trunk_end - begin)
                 : std::string("which must be in the same piece"));
}

/// Cuts the queries into documents, and these into blocks of `step` queries (0: whole, with their
/// branches), most work first. A document begins at position 0, and at every multiple of the
/// attribute `seq`. So ranks with whole sequences compute the same as one rank, whatever the
/// positions are. The first document may begin before the first query; its position gives the
/// offset. Returns the number of blocks.
template <typename T>
int64_t find_blocks(const KernelArgs& args, const int32_t* pos, const Heads<T>& hs, int64_t step,
                    Block* to) {
  const int64_t sequence =
      args.attrs->i_or("seq", std::max<int64_t>(hs.first_query + hs.queries, 1));
  int64_t n = 0;
  const auto add = [&](int64_t at, int64_t end, int64_t document, int64_t shared, int64_t gap) {
    const int64_t first = std::max(document, at - gap + hs.ahead + 1 - hs.window);
    const auto narrow = [](int64_t token) { return static_cast<int32_t>(token); };
    to[n++] = {narrow(at), narrow(end), narrow(std::clamp<int64_t>(first, 0, hs.keys)),
               narrow(shared), narrow(gap)};
  };
  for (int64_t t = 0; t < hs.queries;) {
    const int64_t index = hs.first_query + t;
    const int64_t document = std::max(index - pos[t], index / sequence * sequence) - hs.first_key;
    if (pos[t] < 0) {
      fail_run("attention", "position {} of token {}; expected 0 or more", pos[t], index);
    }
    const int64_t limit = std::min(hs.queries, round_up(index + 1, sequence) - hs.first_query);
    const int64_t trunk_end = end_of_run(pos, t, limit);
    int64_t end = trunk_end;
    for (int64_t at = t; step > 0 && at < trunk_end; at += step) {
      add(at, trunk_end, document, 0, 0);
    }
    while (end < limit && pos[end] != 0) {
      const int64_t begin = end;
      check_branch(pos, begin, t, trunk_end, hs);
      end = end_of_run(pos, begin, limit);
      const int64_t shared = t + pos[begin];
      for (int64_t at = begin - (step > 0 ? pos[begin] % step : 0); step > 0 && at < end;
           at += step) {
        add(at, end, document, shared, begin - shared);
      }
    }
    if (step == 0) {
      add(t, end, document, 0, 0);
    }
    t = end;
  }
  auto work = [step](const Block& b) { return step ? b.at - b.gap - b.key : b.end - b.at; };
  std::sort(to, to + n, [&](const Block& a, const Block& b) {
    return work(a) != work(b) ? work(a) > work(b) : a.at < b.at;
  });
  return n;
}

/// One block of queries of one head against all its keys. Stores lse for the backward pass; a sum
/// of 0 is a query without keys.
template <typename T>
void forward_block(const Heads<T>& hs, const Block& b, int64_t head, const T* q, const T* k,
                   const T* v, const Scores<T>& scores, T* o, T* lse, const ForwardScratch<T>& ws) {
  const int64_t rows = std::min<int64_t>(kAttnRowsFwd, b.end - b.at);
  const int64_t kv_head = hs.kv_of(head);
  const bool here = kv_head >= 0 && kv_head < hs.g;
  const int64_t first = b.at - b.gap + hs.ahead, skip = b.skip();
  const int64_t all = here ? std::min(first + rows, hs.keys) - b.key : 0;
  const int64_t kv = kv_head * hs.d;
  T* out = o + b.at * hs.q_stride + head * hs.d;
  if (all <= 0) {
    for (int64_t r = skip; r < rows; ++r) {
      std::fill_n(out + r * hs.q_stride, hs.d, T(0));
      lse[(b.at + r) * hs.h + head] = -std::numeric_limits<T>::infinity();
    }
    return;
  }
  const QueryBlock block{.rows = rows,
                         .skip = skip,
                         .keys = all,
                         .first = first - b.key,
                         .window = hs.window,
                         .d = hs.d};
  // Counts the keys of [j, j + n) that come before the branch's own.
  const auto before_gap = [&](int64_t j, int64_t n) {
    return b.gap == 0 ? n : std::clamp<int64_t>(b.shared - b.key - j, 0, n);
  };
  attend_block(
      block, q + b.at * hs.q_stride + head * hs.d, hs.q_stride,
      [&](int64_t j, int64_t n, T* to) {
        const T* from = k + (b.key + j) * hs.k_stride + kv;
        const int64_t near = before_gap(j, n);
        const T* own = from + b.gap * hs.k_stride;
        const bool one = near == 0 || near == n;
        pack_transposed<kAttnKeysFwd>(near == 0 ? own : from, hs.k_stride, one ? n : near, hs.d,
                                      to);
        for (int64_t c = 0; !one && c < hs.d; ++c) {
          for (int64_t r = near; r < n; ++r) {
            to[c * kAttnKeysFwd + r] = own[r * hs.k_stride + c];
          }
        }
      },
      [&](int64_t j, int64_t n, T* pad, int64_t& ld) {
        const T* from = v + (b.key + j) * hs.k_stride + kv;
        const int64_t near = before_gap(j, n);
        if (near == n) return whole_rows(hs.d, from, hs.k_stride, n, pad, ld);
        const T* own = from + b.gap * hs.k_stride;
        if (near == 0) return whole_rows(hs.d, own, hs.k_stride, n, pad, ld);
        ld = hs.wide;
        for (int64_t r = 0; r < n; ++r) {
          const T* row = (r < near ? from : own) + r * hs.k_stride;
          std::copy_n(row, hs.d, pad + r * ld);
          std::fill(pad + r * ld + hs.d, pad + (r + 1) * ld, T(0));
        }
        return static_cast<const T*>(pad);
      },
      scores, out, hs.q_stride, [&](int64_t r, T value) { lse[(b.at + r) * hs.h + head] = value; },
      ws);
}

template <typename T>
struct BackwardScratch {
  T *q, *k, *dy, *v, *s, *ds, *turned, *pad_q, *pad_k, *pad_dy;
  explicit BackwardScratch(Scratch& from, const Heads<T>& hs) {
    q = from.take<T>(hs.d * kAttnRowsBwd);
    dy = from.take<T>(hs.d * kAttnRowsBwd);
    k = from.take<T>(hs.d * kAttnKeysBwd);
    v = from.take<T>(hs.d * kAttnKeysBwd);
    s = from.take<T>(kAttnRowsBwd * kAttnKeysBwd);
    ds = from.take<T>(kAttnRowsBwd * kAttnKeysBwd);
    turned = from.take<T>(kAttnRowsBwd * kAttnKeysBwd);
    pad_q = from.take<T>(kAttnRowsBwd * hs.wide);
    pad_dy = from.take<T>(kAttnRowsBwd * hs.wide);
    pad_k = from.take<T>(kAttnKeysBwd * hs.wide);
  }
};

template <typename T>
struct BackwardArgs {
  const T *dy, *q, *k, *v, *lse, *delta;
  T scale;
  Scores<T> scores;
  T *dq, *dk, *dv;
};

/// Computes P and dS = scale P (dP - delta) of one row in place, for keys in [begin, seen); with a
/// cap dS has its slope, 1 - tanh^2. Those up to `end` become zero, and the few before that a
/// register tile may reach.
template <typename T>
void backward_row(int64_t end, int64_t begin, int64_t seen, T lse2, T delta, T scale, T cap, T* s,
                  T* ds) {
  constexpr int64_t L = kLanes<T>;
  const Vec<T> shift = splat(lse2);
  auto step = [&](int64_t at) {
    const Vec<T> p = vexp2_nonpositive(load(s + at) - shift);
    store(s + at, p);
    store(ds + at, p * (load(ds + at) - delta) * scale);
  };
  auto capped_step = [&](int64_t at) {
    const Vec<T> t = vtanh(load(s + at));
    const Vec<T> p = vexp2_nonpositive(cap * t - shift);
    store(s + at, p);
    store(ds + at, p * (load(ds + at) - delta) * scale * (T(1) - t * t));
  };
  for (int64_t j = begin / L * L; j < seen; j += L) {
    cap > 0 ? capped_step(j) : step(j);  // rows are padded to whole vectors
  }
  const auto clear = [&](int64_t from, int64_t to) {
    for (int64_t j = from; j < to; ++j) {
      s[j] = 0;
      ds[j] = 0;
    }
  };
  clear(std::max<int64_t>(begin - kTileRows, 0), begin);
  clear(seen, end);
}

/// dK, dV of keys [b.key, key_end) of a kv head and dQ of the query heads that share it, for the
/// queries of a block. `adds`: dK, dV and dQ are added to the gradients that are there.
template <typename T>
void backward_block(const Heads<T>& hs, const Block& b, int64_t key_end, bool adds, int64_t kv_head,
                    const BackwardArgs<T>& x, const BackwardScratch<T>& ws) {
  // One document and one head of keys (with all query heads that share it), N keys against M
  // queries at a time. Per tile: scores and dP = dy v^T; from them, row by row, the weights P =
  // e^(score - lse) and dS = P (dP - delta); then dv += P^T dy, dk += dS^T q and dq += dS k. No
  // other thread writes these rows, so neither locks nor an order are needed. The first tile of a
  // gradient row writes it, later ones add. Queries before the first key have none, and those whose
  // window starts after the first block of keys may have none: their rows start as zeros. Without a
  // local query head the gradients of keys are 0.
  constexpr int64_t M = kAttnRowsBwd, N = kAttnKeysBwd, MR = kTileRows, NR = kTileCols<T>;
  const int64_t first_head = hs.first_of(kv_head), end_head = hs.first_of(kv_head + 1);
  if (first_head == end_head) {
    for (int64_t j = b.key; !adds && j < key_end; ++j) {
      std::fill_n(x.dk + j * hs.k_stride + kv_head * hs.d, hs.d, T(0));
      std::fill_n(x.dv + j * hs.k_stride + kv_head * hs.d, hs.d, T(0));
    }
    return;
  }
  const int64_t seeing = key_end <= b.key ? b.end : std::max<int64_t>(b.at, b.key - hs.ahead);
  const int64_t reached = std::min<int64_t>(b.end, hs.query_end(std::min(b.key + N, key_end)));
  for (int64_t i = b.at; !adds && i < b.end; ++i) {
    if (i >= seeing && i < reached) continue;
    std::fill_n(x.dq + i * hs.q_stride + first_head * hs.d, (end_head - first_head) * hs.d, T(0));
  }
  for (int64_t j0 = b.key; j0 < key_end; j0 += N) {
    const int64_t keys = std::min(N, key_end - j0);
    const int64_t at_k = j0 * hs.k_stride + kv_head * hs.d;
    pack_transposed<N>(x.k + at_k, hs.k_stride, keys, hs.d, ws.k);
    pack_transposed<N>(x.v + at_k, hs.k_stride, keys, hs.d, ws.v);
    int64_t ldk, ldq, lddy;
    const T* kb = whole_rows(hs.d, x.k + at_k, hs.k_stride, keys, ws.pad_k, ldk);
    const int64_t query_end = std::min<int64_t>(b.end, hs.query_end(j0 + keys));
    bool add = adds;
    for (int64_t head = first_head; head < end_head; ++head) {
      for (int64_t i0 = std::max<int64_t>(b.at, j0 - hs.ahead); i0 < query_end;
           i0 += M, add = true) {
        const int64_t rows = std::min(M, query_end - i0), first = j0 - i0 - hs.ahead;
        const int64_t seen_all = rows - first;
        const int64_t at_q = i0 * hs.q_stride + head * hs.d;
        // Keys that the last row sees; columns beyond are left out of every product. A row sees
        // none before its own window, and the last product none before that of the first row.
        const int64_t n = std::min(keys, seen_all);
        const int64_t padded = round_up(n, NR), zeroed = std::min(N, std::max(padded, n + MR));
        const auto window_begin = [&](int64_t r) {
          return std::clamp<int64_t>(r + 1 - hs.window - first, 0, n);
        };
        pack_transposed<M>(x.q + at_q, hs.q_stride, rows, hs.d, ws.q);
        pack_transposed<M>(x.dy + at_q, hs.q_stride, rows, hs.d, ws.dy);
        const T factor = x.scores.factor;
#pragma omp simd
        for (int64_t i = 0; i < hs.d * M; ++i) {
          ws.q[i] *= factor;
        }
        auto skip = [&](int64_t i, int64_t j) {
          return first + j > i + MR - 1 || first + j + NR - 1 <= i - hs.window;
        };
        product<T>(rows, padded, hs.d, ws.q, M, ws.k, N, false, ws.s, N, skip);
        product<T>(rows, padded, hs.d, ws.dy, M, ws.v, N, false, ws.ds, N, skip);
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t t = (i0 + r) * hs.h + head;
          backward_row<T>(zeroed, window_begin(r), std::clamp<int64_t>(r + 1 - first, 0, n),
                          static_cast<T>(static_cast<double>(x.lse[t]) * kLog2e), x.delta[t],
                          x.scale, x.scores.cap, ws.s + r * N, ws.ds + r * N);
        }
        const T* dyb = whole_rows(hs.d, x.dy + at_q, hs.q_stride, rows, ws.pad_dy, lddy);
        const T* qb = whole_rows(hs.d, x.q + at_q, hs.q_stride, rows, ws.pad_q, ldq);
        for (int64_t j = 0; j < keys; j += MR) {
          const int64_t m = std::min(MR, keys - j);
          // From the first row that sees key j to the last one that sees one of the tile.
          const int64_t r0 = std::clamp<int64_t>(first + j, 0, rows);
          const int64_t r1 = std::clamp<int64_t>(first + j + m - 1 + hs.window, r0, rows);
          const int64_t k = j < n ? r1 - r0 : 0;
          if (k == 0 && add) continue;
          for (int64_t c = 0; c < hs.d; c += NR) {
            const int64_t w = std::min(NR, hs.d - c);
            const int64_t to = at_k + j * hs.k_stride + c;
            tile<T>(m, w, k, ws.s + r0 * N + j, N, dyb + r0 * lddy + c, lddy, add, x.dv + to,
                    hs.k_stride);
            tile<T>(m, w, k, ws.ds + r0 * N + j, N, qb + r0 * ldq + c, ldq, add, x.dk + to,
                    hs.k_stride);
          }
        }
        pack_transposed<M>(ws.ds, N, rows, n, ws.turned);
        for (int64_t r = 0; r < rows; r += MR) {
          const int64_t m = std::min(MR, rows - r), k0 = window_begin(r);
          const int64_t k = std::clamp<int64_t>(r + m - first, k0, n) - k0;
          for (int64_t c = 0; c < hs.d; c += NR) {
            tile<T>(m, std::min(NR, hs.d - c), k, ws.turned + k0 * M + r, M, kb + k0 * ldk + c, ldk,
                    adds || j0 > b.key, x.dq + at_q + r * hs.q_stride + c, hs.q_stride);
          }
        }
      }
    }
  }
}

/// Gradients of a document and a kv head. The keys that branches share get theirs from the
/// document's first tokens, then from the branches in their order.
template <typename T>
void backward_document(const Heads<T>& hs, const Block& b, const int32_t* pos, int64_t kv_head,
                       const BackwardArgs<T>& x, const BackwardScratch<T>& ws) {
  const int64_t trunk_end = end_of_run(pos, b.at, b.end);
  const Block trunk{b.at, static_cast<int32_t>(trunk_end), b.key};
  backward_block(hs, trunk, hs.key_end(trunk), false, kv_head, x, ws);
  // Branches that share as many tokens, and see all of these, are one block of queries to them.
  const bool sees_all = hs.window >= b.end - b.at;
  for (int64_t begin = trunk_end, end = begin; begin < b.end; begin = end) {
    const int32_t first = static_cast<int32_t>(begin);
    do {
      const int32_t at = static_cast<int32_t>(end);
      end = end_of_run(pos, end, b.end);
      const Block own{at, static_cast<int32_t>(end), at};
      backward_block(hs, own, end, false, kv_head, x, ws);
    } while (sees_all && end < b.end && pos[end] == pos[begin]);
    Heads<T> to_shared = hs;
    const int64_t shared_end = b.at + pos[begin];
    to_shared.ahead = shared_end - begin;
    backward_block(to_shared, {first, static_cast<int32_t>(end), b.key}, shared_end, true, kv_head,
                   x, ws);
  }
}

}  // namespace

template <typename T>
void attention(const KernelArgs& args) {
  const Heads<T> hs(args, args.in[0], args.in[1]);
  const T *q = in<T>(args, 0), *k = in<T>(args, 1), *v = in<T>(args, 2);
  T *o = out<T>(args, 0), *lse = out<T>(args, 1);
  const Scores<T> scores(*args.attrs, args.attrs->f("scale"));
  Scratch scratch(args);
  Block* blocks = scratch.take<Block>(hs.queries);
  const int64_t n = find_blocks(args, in<int32_t>(args, 3), hs, kAttnRowsFwd, blocks) * hs.h;
  const int64_t each = ops::attention_scratch(hs.d, sizeof(T));
  const int64_t threads = std::min({int64_t{team_size()}, scratch.left() / each, n});
  std::byte* base = scratch.take<std::byte>(std::max<int64_t>(threads, 1) * each);
  auto run = [&](int64_t i, int64_t thread) {
    Scratch own(base + thread * each, each);
    forward_block(hs, blocks[i / hs.h], i % hs.h, q, k, v, scores, o, lse,
                  ForwardScratch<T>(own, hs.d));
  };
  parallel(n, threads, run);
}

template <typename T>
void attention_bwd(const KernelArgs& args) {
  // delta = sum dy * o per token and head, once; then a document and head of keys at a time, each
  // with blocks of its own, on as many threads as there is scratch for. Documents are contiguous,
  // so keys without a local query are before the first query's and after the last one's; query
  // heads without a local kv head are likewise before and after the others.
  const Heads<T> hs(args, args.in[1], args.in[2]);
  const T *dy = in<T>(args, 0), *o = in<T>(args, 4);
  Scratch scratch(args);
  Block* blocks = scratch.take<Block>(hs.queries);
  T* delta = scratch.take<T>(hs.queries * hs.h);
  parallel_for(hs.queries * hs.h, row_grain(hs.d), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      delta[r] = vdot(dy + r * hs.d, o + r * hs.d, hs.d);
    }
  });
  const T scale = static_cast<T>(args.attrs->f("scale"));
  const BackwardArgs<T> x{dy,
                          in<T>(args, 1),
                          in<T>(args, 2),
                          in<T>(args, 3),
                          in<T>(args, 5),
                          delta,
                          scale,
                          Scores<T>(*args.attrs, static_cast<double>(scale)),
                          out<T>(args, 0),
                          out<T>(args, 1),
                          out<T>(args, 2)};
  const int32_t* pos = in<int32_t>(args, 6);
  const int64_t documents = find_blocks(args, pos, hs, 0, blocks);
  int64_t seen = hs.keys, seen_end = 0;
  for (const Block& b : std::span(blocks, static_cast<size_t>(documents))) {
    if (hs.key_end(b) > b.key) {
      seen = std::min<int64_t>(seen, b.key);
      seen_end = std::max(seen_end, hs.key_end(b));
    }
  }
  for (T* gradient : {x.dk, x.dv}) {
    std::fill_n(gradient, seen * hs.k_stride, T(0));
    std::fill(gradient + std::max(seen, seen_end) * hs.k_stride, gradient + hs.keys * hs.k_stride,
              T(0));
  }
  const int64_t without_before = hs.first_of(0) * hs.d, without_after = hs.first_of(hs.g) * hs.d;
  for (int64_t i = 0; without_before + hs.q_stride > without_after && i < hs.queries; ++i) {
    std::fill_n(x.dq + i * hs.q_stride, without_before, T(0));
    std::fill_n(x.dq + i * hs.q_stride + without_after, hs.q_stride - without_after, T(0));
  }
  const int64_t n = documents * hs.g;
  const int64_t each = ops::attention_bwd_scratch(hs.d, sizeof(T));
  const int64_t threads = std::min({int64_t{team_size()}, scratch.left() / each, n});
  std::byte* base = scratch.take<std::byte>(std::max<int64_t>(threads, 1) * each);
  auto run = [&](int64_t i, int64_t thread) {
    Scratch own(base + thread * each, each);
    backward_document(hs, blocks[i / hs.g], pos, i % hs.g, x, BackwardScratch<T>(own, hs));
  };
  parallel(n, threads, run);
}

HOCKET_KERNEL(attention)
HOCKET_KERNEL(attention_bwd)

}  // namespace hocket::kernels::HOCKET_CPU
