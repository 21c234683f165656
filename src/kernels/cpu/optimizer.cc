// SPDX-License-Identifier: Apache-2.0
// sumsq, clip_coef, adamw, adamw_master. Sums of squares are taken in double over fixed blocks of
// elements, so they do not depend on the thread count.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/vec.h"

namespace hocket::kernels::HOCKET_CPU {

template <typename T>
void sumsq(const KernelArgs& args) {
  const T* g = in<T>(args, 0);
  const int64_t n = count(args.in[0]), block = ops::kSumBlock, blocks = ceil_div(n, block);
  double* partial = Scratch(args).take<double>(blocks);
  parallel_for(blocks, 4, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * block;
      partial[b] = vsumsq(g + first, std::min(block, n - first));
    }
  });
  double sum = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    sum += partial[b];
  }
  *out<double>(args, 0) = sum;
}

void clip_coef(const KernelArgs& args) {
  double sum = 0;
  for (size_t i = 0; i < args.in.size(); ++i) {
    sum += *in<double>(args, i);
  }
  const double norm = std::sqrt(sum), max_norm = args.attrs->f("max_norm");
  const bool skips =
      !std::isfinite(norm) || (args.attrs->has("skip_above") && norm > args.attrs->f("skip_above"));
  const double coef = max_norm <= 0 ? 1 : std::min(1.0, max_norm / (norm + 1e-6));
  *out<double>(args, 0) = skips ? std::numeric_limits<double>::quiet_NaN() : coef;
  *out<double>(args, 1) = norm;
}

namespace {

/// Updates p, m and v in place by the gradient g, with coef and hyper from input `settings` on;
/// leaves them, bit for bit, where the step is skipped.
template <typename T>
void update(const KernelArgs& args, size_t settings, T* p, const T* g, T* m, T* v) {
  if (std::isnan(*in<double>(args, settings))) return;
  const double* hyper = in<double>(args, settings + 1);
  const double lr = learning_rate(args, settings + 1);
  const double beta1 = args.attrs->f("beta1"), beta2 = args.attrs->f("beta2");
  const T coef = static_cast<T>(*in<double>(args, settings));
  const T decay = static_cast<T>(1 - lr * args.attrs->f("weight_decay"));
  const T b1 = static_cast<T>(beta1), c1 = static_cast<T>(1 - beta1);
  const T b2 = static_cast<T>(beta2), c2 = static_cast<T>(1 - beta2);
  const T step = static_cast<T>(lr / hyper[1]);
  const T scale = static_cast<T>(1 / std::sqrt(hyper[2])),
          eps = static_cast<T>(args.attrs->f("eps"));
  parallel_for(count(args.out[0]), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const T d = g[i] * coef;
      const T mi = b1 * m[i] + c1 * d;
      const T vi = b2 * v[i] + c2 * d * d;
      m[i] = mi;
      v[i] = vi;
      p[i] = p[i] * decay - step * mi / (std::sqrt(vi) * scale + eps);
    }
  });
}

}  // namespace

template <typename T>
void adamw(const KernelArgs& args) {
  update(args, 4, out<T>(args, 0), in<T>(args, 1), out<T>(args, 1), out<T>(args, 2));
}

template <typename T>
void adamw_master(const KernelArgs& args) {
  const T* const master = out<T>(args, 3);
  T* const p = out<T>(args, 0);
  update(args, 5, out<T>(args, 3), in<T>(args, 1), out<T>(args, 1), out<T>(args, 2));
  parallel_for(count(args.out[0]), kGrain, [&](int64_t begin, int64_t end) {
    std::copy(master + begin, master + end, p + begin);
  });
}

HOCKET_KERNEL(sumsq)
HOCKET_KERNEL(adamw)
HOCKET_KERNEL(adamw_master)

}  // namespace hocket::kernels::HOCKET_CPU
