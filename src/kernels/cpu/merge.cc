// SPDX-License-Identifier: Apache-2.0
// softmax_merge and maximum.
#include <cmath>
#include <limits>

#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

template <typename T>
void softmax_merge(const KernelArgs& args) {
  // Per row (token and head) the weights of both parts and the new lse, then the row. The part with
  // the greater lse has the weight 1 / (1 + e^-|difference|), the other one the rest; without any
  // key in either part both are 0. A part without keys leaves the other one as it is, to the bit.
  const T *o1 = in<T>(args, 0), *lse1 = in<T>(args, 1);
  const T *o2 = in<T>(args, 2), *lse2 = in<T>(args, 3);
  T *o = out<T>(args, 0), *lse = out<T>(args, 1);
  const int64_t d = last_dim(args.in[0]);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  parallel_for(count(args.in[1]), row_grain(d), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const double one = static_cast<double>(lse1[r]), two = static_cast<double>(lse2[r]);
      const double top = std::max(one, two), low = std::min(one, two);
      const double ratio = low == kNone ? 0 : std::exp(low - top);
      const double major = top == kNone ? 0 : 1 / (1 + ratio), minor = major * ratio;
      const T first = static_cast<T>(one >= two ? major : minor);
      const T second = static_cast<T>(one >= two ? minor : major);
#pragma omp simd
      for (int64_t i = r * d; i < (r + 1) * d; ++i) {
        o[i] = o1[i] * first + o2[i] * second;
      }
      lse[r] = static_cast<T>(top + std::log1p(ratio));
    }
  });
}

template <typename T>
void maximum(const KernelArgs& args) {
  const T *a = in<T>(args, 0), *b = in<T>(args, 1);
  T* c = out<T>(args, 0);
  parallel_for(count(args.out[0]), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) c[i] = a[i] > b[i] ? a[i] : b[i];
  });
}

HOCKET_KERNEL(softmax_merge)
HOCKET_KERNEL(maximum)

}  // namespace hocket::kernels::HOCKET_CPU
