// SPDX-License-Identifier: Apache-2.0
// attention_paged: new tokens against the pages of their sequences. All new keys and values are
// written first, then the begins of pages are copied. Runs of tokens of a sequence are cut at the
// blocks of queries that `attention` has in a document; long ones are computed as it does, shorter
// ones with the heads of a group together (attention_few.h). Both give the same bits. Pages of
// short elements become numbers block by block.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/small_float.h"
#include "kernels/cpu/attention_few.h"
#include "kernels/cpu/attention_forward.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vec.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

using ops::kAttnKeysFwd;
using ops::kAttnRowsFwd;
using ops::kPageTokens;

/// Type of the computation.
template <typename T>
using Wide = std::conditional_t<kIsSmallFloat<T>, float, T>;

template <typename T>
void to_numbers(const Stored<T>* from, int64_t n, Wide<T>* to) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = number<T>(from[i]);
  }
}
template <typename T>
void from_numbers(const Wide<T>* from, int64_t n, Stored<T>* to) {
  if constexpr (kIsSmallFloat<T>) {
    for (int64_t i = 0; i < n; ++i) {
      to[i] = T::encode(from[i]);
    }
  } else {
    std::copy_n(from, n, to);
  }
}

/// Tokens [token, token + rows) of a sequence, at `position` and behind, inside of one block of
/// queries.
struct Segment {
  int32_t token, rows, position, sequence;
  int64_t first_task;
  int32_t whole, parts;  ///< of few rows: kv heads of one task each, and tasks of every other one
};
static_assert(sizeof(Segment) <= 32);

/// From as many tokens on, a segment is computed as in training, where keys are packed once for
/// more queries than attention_few.h holds.
constexpr int64_t kManyRows = 160;
/// Pairs of a query and a head that are worth a task of their own, which reads all keys.
constexpr int64_t kFewestPairs = 6;

template <typename T>
class PagedAttention {
 public:
  explicit PagedAttention(const KernelArgs& args)
      : q_(in<Stored<T>>(args, 0)),
        k_(in<Stored<T>>(args, 1)),
        v_(in<Stored<T>>(args, 2)),
        positions_(in<int32_t>(args, 5)),
        sequences_(in<int32_t>(args, 6)),
        key_positions_(in<int32_t>(args, 7)),
        key_sequences_(in<int32_t>(args, 8)),
        table_(in<int32_t>(args, 9)),
        copies_(in<int32_t>(args, 10)),
        o_(out<Stored<T>>(args, 0)),
        key_pages_(out<Stored<T>>(args, 1)),
        value_pages_(out<Stored<T>>(args, 2)),
        tokens_(args.in[0].dim(0)),
        h_(args.in[0].dim(1)),
        d_(args.in[0].dim(2)),
        g_(args.in[1].dim(1)),
        group_(h_ / std::max<int64_t>(g_, 1)),
        keys_(args.in[1].dim(0)),
        first_page_(piece_offset(args, 'p')),
        pages_(args.in[3].dim(0)),
        num_sequences_(args.in[9].dim(0)),
        row_pages_(args.in[9].dim(1)),
        window_(args.attrs->i_or("window", row_pages_ * kPageTokens + kAttnRowsFwd)),
        scores_(*args.attrs, args.attrs->f("scale")) {}

  void run(const KernelArgs& args) {
    Scratch scratch(args);
    segments_ =
        reinterpret_cast<Segment*>(scratch.take<std::byte>(ops::paged_segments_bytes(tokens_)));
    find_segments();
    write_pages();
    copy_pages();
    const int64_t each = ops::paged_scratch(d_, sizeof(Wide<T>));
    const int64_t threads =
        std::max<int64_t>(1, std::min({int64_t{team_size()}, scratch.left() / each, tasks_}));
    std::byte* base = scratch.take<std::byte>(threads * each);
    auto task = [&](int64_t i, int64_t thread) {
      const Segment* s = std::upper_bound(segments_, segments_ + num_segments_, i,
                                          [](int64_t at, const Segment& segment) {
                                            return at < segment.first_task;
                                          }) -
                         1;
      Scratch own(base + thread * each, each);
      const int64_t number = i - s->first_task;
      if (s->rows >= kManyRows) {
        block(*s, number, own);
      } else {
        few(*s, number, own);
      }
    };
    parallel(tasks_, work_ * h_ * d_ < kGrain ? 1 : threads, task);
  }

 private:
  /// Cuts the tokens into segments, longest work first, and fills results of padding with zeros.
  void find_segments() {
    for (int64_t t = 0; t < tokens_;) {
      const int32_t position = positions_[t], sequence = sequences_[t];
      if (position < 0) {
        std::fill_n(o_ + t * h_ * d_, h_ * d_, Stored<T>(0));
        ++t;
        continue;
      }
      const int64_t room = kAttnRowsFwd - position % kAttnRowsFwd;
      int64_t rows = 1;
      for (; rows < room && t + rows < tokens_ && sequences_[t + rows] == sequence &&
             positions_[t + rows] == position + rows;
           ++rows) {
      }
      check_pages(t, rows);
      segments_[num_segments_++] = {
          static_cast<int32_t>(t), static_cast<int32_t>(rows), position, sequence, 0, 0, 1};
      work_ += work_of(segments_[num_segments_ - 1]);
      t += rows;
    }
    std::stable_sort(segments_, segments_ + num_segments_,
                     [&](const Segment& a, const Segment& b) { return work_of(a) > work_of(b); });
    for (int64_t i = 0; i < num_segments_; ++i) {
      Segment& s = segments_[i];
      s.first_task = tasks_;
      if (s.rows < kManyRows) {
        divide(&s);
        tasks_ += s.whole + s.parts * (g_ - s.whole);
      } else {
        tasks_ += h_;
      }
    }
  }
  /// Pairs of queries and keys.
  int64_t work_of(const Segment& s) const {
    return s.rows * std::min<int64_t>(s.position + s.rows, window_);
  }
  /// Cuts few rows into tasks. A task reads all keys, so a kv head has one, if its pairs fit; but
  /// of a segment that threads would wait for, the heads left when every thread has its share are
  /// divided. The bits of a query do not depend on it.
  void divide(Segment* s) const {
    const int64_t pairs = s->rows * group_, least = ceil_div(pairs, ops::kFewPairs);
    const int64_t team = team_size(), left = g_ % team;
    s->whole = 0;
    s->parts = static_cast<int32_t>(least);
    if (least == 1 && left > 0 && work_of(*s) * team * 2 > work_ * g_) {
      s->whole = static_cast<int32_t>(g_ - left);
      s->parts =
          static_cast<int32_t>(std::clamp<int64_t>(pairs / kFewestPairs, 1, ceil_div(team, left)));
    }
  }

  /// Refuses a token without a place in the table.
  void check(int64_t t, int64_t position, int64_t sequence) const {
    if (sequence < 0 || sequence >= num_sequences_) {
      fail_run("attention_paged", "sequence {} of token {}; expected 0 to {}", sequence, t,
               num_sequences_ - 1);
    }
    if (position >= row_pages_ * kPageTokens) {
      fail_run("attention_paged",
               "position {} of token {}; expected less than the {} that its {} pages hold",
               position, t, row_pages_ * kPageTokens, row_pages_);
    }
  }
  /// Refuses queries whose sequence has no page here that they read.
  void check_pages(int64_t t, int64_t rows) const {
    const int64_t position = positions_[t], last = position + rows - 1;
    check(t + rows - 1, last, sequences_[t]);
    const int64_t block = position / kAttnRowsFwd * kAttnRowsFwd;
    const int64_t first = std::max<int64_t>(0, block + 1 - window_) / kPageTokens;
    for (int64_t i = first; i <= last / kPageTokens; ++i) {
      const int32_t page = table_[sequences_[t] * row_pages_ + i];
      if (page < first_page_ || page >= first_page_ + pages_) {
        fail_run("attention_paged",
                 "page {} of positions from {} on of sequence {}; expected {} to {}", page,
                 i * kPageTokens, sequences_[t], first_page_, first_page_ + pages_ - 1);
      }
    }
  }

  /// Counts from the first page here.
  int64_t page_of(int64_t sequence, int64_t position) const {
    return table_[sequence * row_pages_ + position / kPageTokens] - first_page_;
  }
  int64_t page_of(const Segment& s, int64_t position) const {
    return page_of(s.sequence, position);
  }
  /// Keys of a page: [d][kPageTokens]; values: [kPageTokens][d].
  Stored<T>* keys_of(int64_t page, int64_t kv_head) const {
    return key_pages_ + (page * g_ + kv_head) * d_ * kPageTokens;
  }
  Stored<T>* values_of(int64_t page, int64_t kv_head) const {
    return value_pages_ + (page * g_ + kv_head) * d_ * kPageTokens;
  }

  /// Writes the new keys and values that belong to pages here.
  void write_pages() {
    for (int64_t n = 0; n < keys_; ++n) {
      if (key_positions_[n] >= 0) {
        check(n, key_positions_[n], key_sequences_[n]);
      }
    }
    auto write = [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const int64_t position = key_positions_[n];
        if (position < 0) continue;
        const int64_t page = page_of(key_sequences_[n], position), slot = position % kPageTokens;
        if (page < 0 || page >= pages_) continue;
        for (int64_t head = 0; head < g_; ++head) {
          const int64_t from = (n * g_ + head) * d_;
          Stored<T>* keys = keys_of(page, head) + slot;
          for (int64_t c = 0; c < d_; ++c) {
            keys[c * kPageTokens] = k_[from + c];
          }
          std::memcpy(values_of(page, head) + slot * d_, v_ + from,
                      static_cast<size_t>(d_) * sizeof(Stored<T>));
        }
      }
    };
    parallel_for(keys_, row_grain(2 * g_ * d_), write);
  }

  /// Copies the begins of pages to the sequences that have the same tokens there, if their pages
  /// are here.
  void copy_pages() {
    for (int64_t r = 0; r < num_sequences_; ++r) {
      if (copies_[2 * r] < 0 || copies_[2 * r + 1] == 0) continue;
      const int64_t from = copies_[2 * r] - first_page_, end = copies_[2 * r + 1];
      if (end < 0 || end > row_pages_ * kPageTokens) {
        fail_run("attention_paged",
                 "sequence {} has {} copied tokens; expected 0 to the {} of its {} pages", r, end,
                 row_pages_ * kPageTokens, row_pages_);
      }
      const int64_t to = page_of(r, end - 1), count = (end - 1) % kPageTokens + 1;
      if (to < 0 || to >= pages_ || to == from) continue;
      if (from < 0 || from >= pages_) {
        fail_run("attention_paged",
                 "page {}, copied to page {} of sequence {}; expected {} to {}, where that is",
                 copies_[2 * r], to + first_page_, r, first_page_, first_page_ + pages_ - 1);
      }
      for (int64_t head = 0; head < g_; ++head) {
        for (int64_t c = 0; c < d_; ++c) {
          std::copy_n(keys_of(from, head) + c * kPageTokens, count,
                      keys_of(to, head) + c * kPageTokens);
        }
        std::copy_n(values_of(from, head), count * d_, values_of(to, head));
      }
    }
  }

  /// Calls fn(page, slot, at, n) for the parts of `count` tokens from `position` on that lie in a
  /// page: n tokens from `slot` on, the first of which is number `at` of them.
  template <class F>
  void for_pages(const Segment& s, int64_t position, int64_t count, const F& fn) const {
    for (int64_t at = 0; at < count;) {
      const int64_t slot = (position + at) % kPageTokens;
      const int64_t n = std::min(kPageTokens - slot, count - at);
      fn(page_of(s, position + at), slot, at, n);
      at += n;
    }
  }
  /// Copies keys to to[feature][kAttnKeysFwd].
  void gather_keys(const Segment& s, int64_t kv_head, int64_t position, int64_t count,
                   Wide<T>* to) const {
    for_pages(s, position, count, [&](int64_t page, int64_t slot, int64_t at, int64_t n) {
      const Stored<T>* from = keys_of(page, kv_head) + slot;
      for (int64_t c = 0; c < d_; ++c) {
        to_numbers<T>(from + c * kPageTokens, n, to + c * kAttnKeysFwd + at);
      }
    });
  }
  /// Copies values to to[token][wide], with zeros behind their d features.
  void gather_values(const Segment& s, int64_t kv_head, int64_t position, int64_t count,
                     int64_t wide, Wide<T>* to) const {
    for_pages(s, position, count, [&](int64_t page, int64_t slot, int64_t at, int64_t n) {
      const Stored<T>* from = values_of(page, kv_head) + slot * d_;
      for (int64_t i = 0; i < n; ++i) {
        Wide<T>* row = to + (at + i) * wide;
        to_numbers<T>(from + i * d_, d_, row);
        std::fill(row + d_, row + wide, Wide<T>(0));
      }
    });
  }

  /// A segment and a query head, as in training.
  void block(const Segment& s, int64_t head, Scratch own) const {
    using W = Wide<T>;
    W* rows = own.take<W>(kAttnRowsFwd * d_);
    W* made = own.take<W>(kAttnRowsFwd * d_);
    const ForwardScratch<W> scratch(own, d_);
    const int64_t skip = s.position % kAttnRowsFwd, at = s.position - skip;
    const int64_t key = std::max<int64_t>(0, at + 1 - window_);
    const QueryBlock b{.rows = skip + s.rows,
                       .skip = skip,
                       .keys = at + skip + s.rows - key,
                       .first = at - key,
                       .window = window_,
                       .d = d_};
    const int64_t kv_head = head / group_, wide = round_up(d_, kTileCols<W>);
    std::fill_n(rows, skip * d_, W(0));
    for (int64_t r = 0; r < s.rows; ++r) {
      to_numbers<T>(q_ + ((s.token + r) * h_ + head) * d_, d_, rows + (skip + r) * d_);
    }
    attend_block(
        b, rows, d_, [&](int64_t j, int64_t n, W* to) { gather_keys(s, kv_head, key + j, n, to); },
        [&](int64_t j, int64_t n, W* pad, int64_t& ld) {
          gather_values(s, kv_head, key + j, n, wide, pad);
          ld = wide;
          return static_cast<const W*>(pad);
        },
        scores_, made, d_, [](int64_t, W) {}, scratch);
    for (int64_t r = 0; r < s.rows; ++r) {
      from_numbers<T>(made + (skip + r) * d_, d_, o_ + ((s.token + r) * h_ + head) * d_);
    }
  }

  /// Task `number` of a segment of few rows: rows and query heads of a kv head.
  void few(const Segment& s, int64_t number, Scratch own) const {
    using W = Wide<T>;
    const int64_t after = number - s.whole, parts = after < 0 ? 1 : s.parts;
    const int64_t kv_head = after < 0 ? number : s.whole + after / parts;
    const int64_t part = after < 0 ? 0 : after % parts;
    const int64_t pairs = s.rows * group_, begin = pairs * part / parts;
    const int64_t end = pairs * (part + 1) / parts;
    const int64_t row = s.position % kAttnRowsFwd, at = s.position - row;
    W* q = own.take<W>(d_ * ops::kFewPairs);
    const FewScratch<W> scratch(own, d_);
    const auto place = [&](int64_t pair) {
      return ((s.token + pair / group_) * h_ + kv_head * group_ + pair % group_) * d_;
    };
    for (int64_t i = begin; i < end; ++i) {
      to_numbers<T>(q_ + place(i), d_, q + (i - begin) * d_);
    }
    const FewQueries b{.pairs = end - begin,
                       .first_pair = begin,
                       .group = group_,
                       .row = row,
                       .at = at,
                       .key = std::max<int64_t>(0, at + 1 - window_),
                       .window = window_,
                       .d = d_};
    attend_few<W>(
        b, q,
        [&](int64_t page, W* pad) -> const W* {
          const Stored<T>* stored = keys_of(page_of(s, page * kPageTokens), kv_head);
          if constexpr (kIsSmallFloat<T>) {
            to_numbers<T>(stored, d_ * kPageTokens, pad);
            return pad;
          } else {
            return stored;
          }
        },
        [&](int64_t position, int64_t n, W* to) {
          gather_values(s, kv_head, position, n, round_up(d_, kTileCols<W>), to);
        },
        [&](int64_t page, PagesAhead& ahead) {
          const int64_t at = page_of(s, page * kPageTokens);
          const auto bytes = d_ * kPageTokens * static_cast<int64_t>(sizeof(Stored<T>));
          ahead.add(keys_of(at, kv_head), bytes);
          ahead.add(values_of(at, kv_head), bytes);
        },
        scores_, scratch);
    for (int64_t i = begin; i < end; ++i) {
      from_numbers<T>(scratch.made + (i - begin) * d_, d_, o_ + place(i));
    }
  }

  const Stored<T>*q_, *k_, *v_;
  const int32_t *positions_, *sequences_, *key_positions_, *key_sequences_, *table_, *copies_;
  Stored<T>*o_, *key_pages_, *value_pages_;
  const int64_t tokens_, h_, d_, g_, group_, keys_, first_page_, pages_;
  const int64_t num_sequences_, row_pages_, window_;
  const Scores<Wide<T>> scores_;
  Segment* segments_ = nullptr;
  int64_t num_segments_ = 0, tasks_ = 0, work_ = 0;
};

}  // namespace

template <typename T>
void attention_paged(const KernelArgs& args) {
  PagedAttention<T>(args).run(args);
}

HOCKET_KERNEL(attention_paged)
template void attention_paged<Bf16>(const KernelArgs&);
template void attention_paged<F16>(const KernelArgs&);

}  // namespace hocket::kernels::HOCKET_CPU
