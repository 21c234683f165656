// SPDX-License-Identifier: Apache-2.0
// sgd, sgd_master.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/optimizer.h"

namespace hocket::kernels::HOCKET_CPU {

namespace {

/// Updates p and m in place by the gradient g, with coef and lr from input `settings` on; leaves
/// them, bit for bit, where the step is skipped.
template <typename T>
void descend(const KernelArgs& args, size_t settings, T* p, const T* g, T* m) {
  if (std::isnan(*in<double>(args, settings))) return;
  const T coef = static_cast<T>(*in<double>(args, settings));
  const T lr = static_cast<T>(learning_rate(args, settings + 1));
  const T momentum = static_cast<T>(args.attrs->f("momentum"));
  const T decay = static_cast<T>(args.attrs->f("weight_decay"));
  const bool nesterov = args.attrs->i_or("nesterov", 0) != 0;
  parallel_for(count(args.out[0]), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const T d = g[i] * coef + decay * p[i];
      m[i] = momentum * m[i] + d;
      p[i] -= lr * (nesterov ? d + momentum * m[i] : m[i]);
    }
  });
}

}  // namespace

template <typename T>
void sgd(const KernelArgs& args) {
  descend(args, 3, out<T>(args, 0), in<T>(args, 1), out<T>(args, 1));
}

template <typename T>
void sgd_master(const KernelArgs& args) {
  T* const p = out<T>(args, 0);
  const T* const master = out<T>(args, 2);
  descend(args, 4, out<T>(args, 2), in<T>(args, 1), out<T>(args, 1));
  parallel_for(count(args.out[0]), kGrain, [&](int64_t begin, int64_t end) {
    std::copy(master + begin, master + end, p + begin);
  });
}

HOCKET_KERNEL(sgd)
HOCKET_KERNEL(sgd_master)

}  // namespace hocket::kernels::HOCKET_CPU
