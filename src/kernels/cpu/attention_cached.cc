// SPDX-License-Identifier: Apache-2.0
// attention_cached: new tokens against a KV cache. All new rows are written first; query i then
// attends to slots 0..pos[i], or the last `window` of them. One task is one query and kv head. Of a
// cache of short elements only the rows that are read become f32, one at a time.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/small_float.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vec.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// Type of the computation.
template <typename T>
using Wide = std::conditional_t<kIsSmallFloat<T>, float, T>;

/// A row as numbers: where it is, or in `workspace` if its elements are short.
template <typename T>
const Wide<T>* numbers(const Stored<T>* row, int64_t n, [[maybe_unused]] Wide<T>* workspace) {
  if constexpr (kIsSmallFloat<T>) {
    for (int64_t i = 0; i < n; ++i) {
      workspace[i] = number<T>(row[i]);
    }
    return workspace;
  } else {
    return row;
  }
}

/// Workspace of one query: a score per slot, and rows of short elements as numbers.
template <typename T>
struct QueryWorkspace {
  Wide<T>* scores = nullptr;
  Wide<T>*query = nullptr, *row = nullptr, *made = nullptr;  ///< null if they are not short
};
template <typename T>
int64_t workspace_bytes(int64_t slots, int64_t d) {
  const auto size = static_cast<int64_t>(sizeof(Wide<T>));
  return round_up(slots * size, 64) + (kIsSmallFloat<T> ? 3 * round_up(d * size, 64) : 0);
}
template <typename T>
QueryWorkspace<T> workspace_at(std::byte* at, int64_t bytes, int64_t slots, int64_t d) {
  Scratch scratch(at, bytes);
  QueryWorkspace<T> workspace;
  workspace.scores = scratch.take<Wide<T>>(slots);
  if constexpr (kIsSmallFloat<T>) {
    for (Wide<T>** row : {&workspace.query, &workspace.row, &workspace.made}) {
      *row = scratch.take<Wide<T>>(d);
    }
  }
  return workspace;
}

/// One query head against `keys` slots, `stride` elements apart. `cap`: limit of the scores; 0:
/// none.
template <typename T>
void attend(const Stored<T>* query, const Stored<T>* k, const Stored<T>* v, int64_t stride,
            int64_t keys, int64_t d, Wide<T> scale, Wide<T> cap, const QueryWorkspace<T>& workspace,
            Stored<T>* made) {
  Wide<T>* const p = workspace.scores;
  const Wide<T>* const q = numbers<T>(query, d, workspace.query);
  Wide<T> top = std::numeric_limits<Wide<T>>::lowest();
  for (int64_t j = 0; j < keys; ++j) {
    p[j] = scale * vdot(q, numbers<T>(k + j * stride, d, workspace.row), d);
    if (cap > 0) {
      p[j] = cap * std::tanh(p[j] / cap);
    }
    top = std::max(top, p[j]);
  }
  Wide<T>* o = workspace.made;
  if constexpr (!kIsSmallFloat<T>) {
    o = made;
  }
  std::fill(o, o + d, Wide<T>(0));
  Wide<T> sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    const Wide<T> e = std::exp(p[j] - top);
    sum += e;
    const Wide<T>* __restrict row = numbers<T>(v + j * stride, d, workspace.row);
    Wide<T>* __restrict to = o;
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) {
      to[i] += e * row[i];
    }
  }
  const Wide<T> f = 1 / sum;
#pragma omp simd
  for (int64_t i = 0; i < d; ++i) {
    o[i] *= f;
  }
  if constexpr (kIsSmallFloat<T>) {
    for (int64_t i = 0; i < d; ++i) {
      made[i] = T::encode(o[i]);
    }
  }
}

}  // namespace

template <typename T>
void attention_cached(const KernelArgs& args) {
  // Writes the new tokens' keys and values into the cache at their positions; then every (token,
  // head) attends to the cache up to its own position. Tokens with a negative position are padding:
  // they write nothing and get zero. Scores need one row of the cache's length per thread.
  using S = Stored<T>;
  const S *q = in<S>(args, 0), *k = in<S>(args, 1), *v = in<S>(args, 2);
  const int32_t* pos = in<int32_t>(args, 5);
  S *o = out<S>(args, 0), *kc = out<S>(args, 1), *vc = out<S>(args, 2);
  const int64_t n = args.in[0].dim(0), h = args.in[0].dim(1), d = args.in[0].dim(2);
  const int64_t g = args.in[1].dim(1), slots = args.in[3].dim(0), row = g * d;
  const int64_t group = h / std::max<int64_t>(g, 1);
  const auto scale = static_cast<Wide<T>>(args.attrs->f("scale"));
  const auto cap =
      static_cast<Wide<T>>(args.attrs->has("softcap") ? args.attrs->f("softcap") : 0.0);
  const int64_t window = args.attrs->i_or("window", slots);
  for (int64_t i = 0; i < n; ++i) {
    if (pos[i] >= slots) {
      fail_run("attention_cached",
               "position {} of new token {}; expected less than the {} slots "
               "of the cache; try a longer cache",
               pos[i], i, slots);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    if (pos[i] < 0) continue;
    std::memcpy(kc + pos[i] * row, k + i * row, static_cast<size_t>(row) * sizeof(S));
    std::memcpy(vc + pos[i] * row, v + i * row, static_cast<size_t>(row) * sizeof(S));
  }
  Scratch scratch(args);
  const int64_t tasks = n * h;
  const int64_t each = workspace_bytes<T>(slots, d);
  const int64_t threads =
      std::max<int64_t>(1, std::min({int64_t{team_size()}, scratch.left() / each, tasks}));
  std::byte* base = scratch.take<std::byte>(threads * each);
  auto run = [&](int64_t task, int64_t thread) {
    const int64_t i = task / h, head = task % h;
    S* to = o + (i * h + head) * d;
    if (pos[i] < 0) {
      std::fill(to, to + d, S(0));
      return;
    }
    const int64_t keys = std::min<int64_t>(pos[i] + 1, window);
    const int64_t at = (pos[i] + 1 - keys) * row + head / group * d;
    attend<T>(q + (i * h + head) * d, kc + at, vc + at, row, keys, d, scale, cap,
              workspace_at<T>(base + thread * each, each, slots, d), to);
  };
  int64_t work = 0;
  for (int64_t i = 0; i < n; ++i) {
    work += std::min<int64_t>(pos[i] + 1, window);
  }
  parallel(tasks, work * h * d < kGrain ? 1 : threads, run);
}

HOCKET_KERNEL(attention_cached)
template void attention_cached<Bf16>(const KernelArgs&);
template void attention_cached<F16>(const KernelArgs&);

}  // namespace hocket::kernels::HOCKET_CPU
