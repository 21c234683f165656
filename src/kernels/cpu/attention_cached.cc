// SPDX-License-Identifier: Apache-2.0
// attention_cached: new tokens against a KV cache. All new rows are written first; query i then
// attends to slots 0..pos[i], or the last `window` of them. One task is one query and kv head.
#include <cmath>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vec.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// One query head against `keys` slots, `stride` elements apart; p holds the scores.
template <typename T>
void attend(const T* q, const T* k, const T* v, int64_t stride, int64_t keys, int64_t d, T scale,
            T* p, T* o) {
  T top = std::numeric_limits<T>::lowest();
  for (int64_t j = 0; j < keys; ++j) {
    p[j] = scale * vdot(q, k + j * stride, d);
    top = std::max(top, p[j]);
  }
  std::fill(o, o + d, T(0));
  T sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    const T e = std::exp(p[j] - top);
    sum += e;
    const T* __restrict row = v + j * stride;
    T* __restrict to = o;
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) {
      to[i] += e * row[i];
    }
  }
  const T f = 1 / sum;
#pragma omp simd
  for (int64_t i = 0; i < d; ++i) {
    o[i] *= f;
  }
}

}  // namespace

template <typename T>
void attention_cached(const KernelArgs& args) {
  // Writes the new tokens' keys and values into the cache at their positions; then every (token,
  // head) attends to the cache up to its own position. Tokens with a negative position are padding:
  // they write nothing and get zero. Scores need one row of the cache's length per thread.
  const T *q = in<T>(args, 0), *k = in<T>(args, 1), *v = in<T>(args, 2);
  const int32_t* pos = in<int32_t>(args, 5);
  T *o = out<T>(args, 0), *kc = out<T>(args, 1), *vc = out<T>(args, 2);
  const int64_t n = args.in[0].dim(0), h = args.in[0].dim(1), d = args.in[0].dim(2);
  const int64_t g = args.in[1].dim(1), slots = args.in[3].dim(0), row = g * d;
  const int64_t group = h / std::max<int64_t>(g, 1);
  const T scale = static_cast<T>(args.attrs->f("scale"));
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
    std::memcpy(kc + pos[i] * row, k + i * row, static_cast<size_t>(row) * sizeof(T));
    std::memcpy(vc + pos[i] * row, v + i * row, static_cast<size_t>(row) * sizeof(T));
  }
  Scratch scratch(args);
  const int64_t tasks = n * h;
  const int64_t each = round_up(slots * static_cast<int64_t>(sizeof(T)), 64);
  const int64_t threads =
      std::max<int64_t>(1, std::min({int64_t{team_size()}, scratch.left() / each, tasks}));
  std::byte* base = scratch.take<std::byte>(threads * each);
  auto run = [&](int64_t task, int64_t thread) {
    const int64_t i = task / h, head = task % h;
    T* to = o + (i * h + head) * d;
    if (pos[i] < 0) {
      std::fill(to, to + d, T(0));
      return;
    }
    const int64_t keys = std::min<int64_t>(pos[i] + 1, window);
    const int64_t at = (pos[i] + 1 - keys) * row + head / group * d;
    attend(q + (i * h + head) * d, kc + at, vc + at, row, keys, d, scale,
           reinterpret_cast<T*>(base + thread * each), to);
  };
  int64_t work = 0;
  for (int64_t i = 0; i < n; ++i) {
    work += std::min<int64_t>(pos[i] + 1, window);
  }
  parallel(tasks, work * h * d < kGrain ? 1 : threads, run);
}

HOCKET_KERNEL(attention_cached)

}  // namespace hocket::kernels::HOCKET_CPU
