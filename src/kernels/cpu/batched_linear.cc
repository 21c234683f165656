// SPDX-License-Identifier: Apache-2.0
// batched_linear, batched_linear_dx, batched_linear_dw: the products of linear, one per part, whose
// rows lie between those of the other parts.
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

template <typename T>
void batched_linear(const KernelArgs& args) {
  const TensorRef &x = args.in[0], &y = args.out[0];
  const int64_t parts = x.dim(1), k = x.dim(2), n = y.dim(2);
  if (count(y) == 0) return;
  for (int64_t g = 0; g < parts; ++g) {
    gemm<T>({.trans_b = true,
             .m = x.dim(0),
             .n = n,
             .k = k,
             .a = in<T>(args, 0) + g * k,
             .lda = parts * k,
             .b = in<T>(args, 1) + g * n * k,
             .ldb = k,
             .add = accumulates(args, 0),
             .c = out<T>(args, 0) + g * n,
             .ldc = parts * n},
            Scratch(args));
  }
}

template <typename T>
void batched_linear_dx(const KernelArgs& args) {
  const TensorRef &dy = args.in[0], &dx = args.out[0];
  const int64_t parts = dy.dim(1), k = dy.dim(2), n = dx.dim(2);
  if (count(dx) == 0) return;
  for (int64_t g = 0; g < parts; ++g) {
    gemm<T>({.m = dy.dim(0),
             .n = n,
             .k = k,
             .a = in<T>(args, 0) + g * k,
             .lda = parts * k,
             .b = in<T>(args, 1) + g * k * n,
             .ldb = n,
             .add = accumulates(args, 0),
             .c = out<T>(args, 0) + g * n,
             .ldc = parts * n},
            Scratch(args));
  }
}

template <typename T>
void batched_linear_dw(const KernelArgs& args) {
  const TensorRef &dy = args.in[0], &x = args.in[1];
  const int64_t parts = dy.dim(1), m = dy.dim(2), n = x.dim(2);
  for (int64_t g = 0; g < parts; ++g) {
    gemm<T>({.trans_a = true,
             .m = m,
             .n = n,
             .k = dy.dim(0),
             .a = in<T>(args, 0) + g * m,
             .lda = parts * m,
             .b = in<T>(args, 1) + g * n,
             .ldb = parts * n,
             .add = accumulates(args, 0),
             .c = out<T>(args, 0) + g * m * n,
             .ldc = n},
            Scratch(args));
  }
}

HOCKET_KERNEL(batched_linear)
HOCKET_KERNEL(batched_linear_dx)
HOCKET_KERNEL(batched_linear_dw)

}  // namespace hocket::kernels::HOCKET_CPU
