// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention_forward.h"

namespace hocket::kernels::HOCKET_CPU {

template <typename T>
void cap_block(int64_t keys, int64_t skip, int64_t rows, int64_t first, int64_t window, T cap,
               T* s) {
  for (int64_t c = skip / kLanes<T> * kLanes<T>; c < rows; c += kLanes<T>) {
    const int64_t end = std::clamp<int64_t>(c + kLanes<T> - first, 0, keys);
    const int64_t begin = std::clamp<int64_t>(c + 1 - window - first, 0, end);
    for (int64_t j = begin; j < end; ++j) {
      T* const at = s + j * ops::kAttnRowsFwd + c;
      store(at, uncontracted(cap * vtanh(load(at))));
    }
  }
}

template <typename T>
void softmax_block(int64_t keys, int64_t skip, int64_t rows, int64_t first, int64_t window, T* s,
                   T* top, T* sum, T* fix) {
  constexpr int64_t L = kLanes<T>, M = ops::kAttnRowsFwd;
  Vec<T> lane;
  for (int64_t i = 0; i < L; ++i) {
    lane[i] = static_cast<T>(i);
  }
  const T low = kLowest<T>;
  for (int64_t c = skip / L * L; c < rows; c += L) {
    // Keys from `inside` to `all` are seen by every query of this vector (if there are any). Keys
    // before `begin` and from `any` on are seen by none. Rows of the register tiles that reach into
    // these queries need zeros from `zero_begin` to `zero`.
    const int64_t all = std::clamp<int64_t>(c + 1 - first, 0, keys);
    const int64_t any = std::clamp<int64_t>(c + L - first, 0, keys);
    const int64_t zero = std::clamp<int64_t>(c + L + kTileRows - first, 0, keys);
    const int64_t begin = std::clamp<int64_t>(c + 1 - window - first, 0, any);
    const int64_t inside = std::clamp<int64_t>(c + L - window - first, 0, any);
    const int64_t zero_begin = std::max<int64_t>(begin - kTileRows, 0);
    const Vec<T> query = lane + static_cast<T>(c - first);
    const Vec<T> before = query - static_cast<T>(window);
    const auto seen = [&](int64_t key, Vec<T> score, Vec<T> otherwise) {
      const Vec<T> from_begin = before < static_cast<T>(key) ? score : otherwise;
      return query >= static_cast<T>(key) ? from_begin : otherwise;
    };
    T* col = s + c;
    const Vec<T> old = load(top + c);
    Vec<T> m0 = old, m1 = old;
    const auto larger = [&](int64_t key) {
      const Vec<T> a = seen(key, load(col + key * M), splat(low));
      m0 = a > m0 ? a : m0;
    };
    int64_t j = begin;
    for (; j < inside; ++j) {
      larger(j);
    }
    for (; j + 2 <= all; j += 2) {
      const Vec<T> a = load(col + j * M), b = load(col + (j + 1) * M);
      m0 = a > m0 ? a : m0;
      m1 = b > m1 ? b : m1;
    }
    for (; j < any; ++j) {
      larger(j);
    }
    m0 = m1 > m0 ? m1 : m0;
    store(top + c, m0);
    Vec<T> s0{}, s1{};
    const auto weight = [&](int64_t key) {
      const Vec<T> a = seen(key, vexp2_nonpositive(load(col + key * M) - m0), Vec<T>{});
      store(col + key * M, a);
      s0 += a;
    };
    for (j = zero_begin; j < begin; ++j) {
      store(col + j * M, Vec<T>{});
    }
    for (; j < inside; ++j) {
      weight(j);
    }
    for (; j + 2 <= all; j += 2) {
      const Vec<T> a = vexp2_nonpositive(load(col + j * M) - m0);
      const Vec<T> b = vexp2_nonpositive(load(col + (j + 1) * M) - m0);
      store(col + j * M, a);
      store(col + (j + 1) * M, b);
      s0 += a;
      s1 += b;
    }
    for (; j < any; ++j) {
      weight(j);
    }
    for (; j < zero; ++j) {
      store(col + j * M, Vec<T>{});
    }
    const Vec<T> f = vexp2_nonpositive(old - m0);
    store(fix + c, f);
    store(sum + c, uncontracted(load(sum + c) * f) + s0 + s1);
  }
}

template void cap_block<float>(int64_t, int64_t, int64_t, int64_t, int64_t, float, float*);
template void cap_block<double>(int64_t, int64_t, int64_t, int64_t, int64_t, double, double*);
template void softmax_block<float>(int64_t, int64_t, int64_t, int64_t, int64_t, float*, float*,
                                   float*, float*);
template void softmax_block<double>(int64_t, int64_t, int64_t, int64_t, int64_t, double*, double*,
                                    double*, double*);

}  // namespace hocket::kernels::HOCKET_CPU
