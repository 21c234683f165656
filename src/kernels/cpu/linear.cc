// SPDX-License-Identifier: Apache-2.0
// linear, linear_dx, linear_dw: three forms of one matrix product. Weights are [out.., in..].
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

template <typename T>
void linear(const KernelArgs& args) {
  const int64_t t = args.in[0].dim(0), y = count(args.out[0]);
  if (y == 0) return;
  const int64_t n = y / t, k = count(args.in[0]) / t;
  gemm<T>({.trans_b = true,
           .m = t,
           .n = n,
           .k = k,
           .a = in<T>(args, 0),
           .lda = k,
           .b = in<T>(args, 1),
           .ldb = k,
           .add = accumulates(args, 0),
           .c = out<T>(args, 0),
           .ldc = n},
          Scratch(args));
}

template <typename T>
void linear_dx(const KernelArgs& args) {
  const int64_t t = args.in[0].dim(0), x = count(args.out[0]);
  if (x == 0) return;
  const int64_t n = x / t, k = count(args.in[0]) / t;
  gemm<T>({.m = t,
           .n = n,
           .k = k,
           .a = in<T>(args, 0),
           .lda = k,
           .b = in<T>(args, 1),
           .ldb = n,
           .add = accumulates(args, 0),
           .c = out<T>(args, 0),
           .ldc = n},
          Scratch(args));
}

template <typename T>
void linear_dw(const KernelArgs& args) {
  const TensorRef &dy = args.in[0], &x = args.in[1];
  const int64_t t = dy.dim(0);
  int64_t m = 1, n = 1;
  for (size_t i = 1; i < dy.type->dims.size(); ++i) {
    m *= dy.type->dims[i];
  }
  for (size_t i = 1; i < x.type->dims.size(); ++i) {
    n *= x.type->dims[i];
  }
  gemm<T>({.trans_a = true,
           .m = m,
           .n = n,
           .k = t,
           .a = dy.as<const T>(),
           .lda = m,
           .b = x.as<const T>(),
           .ldb = n,
           .add = accumulates(args, 0),
           .c = out<T>(args, 0),
           .ldc = n},
          Scratch(args));
}

HOCKET_KERNEL(linear)
HOCKET_KERNEL(linear_dx)
HOCKET_KERNEL(linear_dw)

}  // namespace hocket::kernels::HOCKET_CPU
