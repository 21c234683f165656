// SPDX-License-Identifier: Apache-2.0
// linear, linear_dx, linear_dw: three forms of one matrix product. Weights are [out.., in..].
// batched_linear, batched_linear_dx, batched_linear_dw: the same per part of the features, with
// rows between those of the other parts; linear is of one part.
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// Sizes of the products: rows of the tokens, and their widths per part.
struct Sizes {
  int64_t parts, tokens, in, out;
};

/// y[T,g,out] = x[T,g,in] W[g,out,in]^T.
template <typename T>
void products(const KernelArgs& args, const Sizes& of) {
  if (count(args.out[0]) == 0) return;
  for (int64_t g = 0; g < of.parts; ++g) {
    gemm<T>({.trans_b = true,
             .m = of.tokens,
             .n = of.out,
             .k = of.in,
             .a = in<T>(args, 0) + g * of.in,
             .lda = of.parts * of.in,
             .b = in<T>(args, 1) + g * of.out * of.in,
             .ldb = of.in,
             .add = accumulates(args, 0),
             .c = out<T>(args, 0) + g * of.out,
             .ldc = of.parts * of.out},
            Scratch(args));
  }
}

/// dx[T,g,in] = dy[T,g,out] W[g,out,in].
template <typename T>
void products_dx(const KernelArgs& args, const Sizes& of) {
  if (count(args.out[0]) == 0) return;
  for (int64_t g = 0; g < of.parts; ++g) {
    gemm<T>({.m = of.tokens,
             .n = of.in,
             .k = of.out,
             .a = in<T>(args, 0) + g * of.out,
             .lda = of.parts * of.out,
             .b = in<T>(args, 1) + g * of.out * of.in,
             .ldb = of.in,
             .add = accumulates(args, 0),
             .c = out<T>(args, 0) + g * of.in,
             .ldc = of.parts * of.in},
            Scratch(args));
  }
}

/// dW[g,out,in] = dy[T,g,out]^T x[T,g,in]; of no tokens zeros.
template <typename T>
void products_dw(const KernelArgs& args, const Sizes& of) {
  for (int64_t g = 0; g < of.parts; ++g) {
    gemm<T>({.trans_a = true,
             .m = of.out,
             .n = of.in,
             .k = of.tokens,
             .a = in<T>(args, 0) + g * of.out,
             .lda = of.parts * of.out,
             .b = in<T>(args, 1) + g * of.in,
             .ldb = of.parts * of.in,
             .add = accumulates(args, 0),
             .c = out<T>(args, 0) + g * of.out * of.in,
             .ldc = of.in},
            Scratch(args));
  }
}

/// Elements of a token's row.
int64_t width(const TensorRef& rows) {
  int64_t n = 1;
  for (size_t i = 1; i < rows.type->dims.size(); ++i) {
    n *= rows.type->dims[i];
  }
  return n;
}

}  // namespace

template <typename T>
void linear(const KernelArgs& args) {
  products<T>(args, {1, args.in[0].dim(0), width(args.in[0]), width(args.out[0])});
}
template <typename T>
void linear_dx(const KernelArgs& args) {
  products_dx<T>(args, {1, args.in[0].dim(0), width(args.out[0]), width(args.in[0])});
}
template <typename T>
void linear_dw(const KernelArgs& args) {
  products_dw<T>(args, {1, args.in[0].dim(0), width(args.in[1]), width(args.in[0])});
}

template <typename T>
void batched_linear(const KernelArgs& args) {
  const TensorRef& x = args.in[0];
  products<T>(args, {x.dim(1), x.dim(0), x.dim(2), args.out[0].dim(2)});
}
template <typename T>
void batched_linear_dx(const KernelArgs& args) {
  const TensorRef& dy = args.in[0];
  products_dx<T>(args, {dy.dim(1), dy.dim(0), args.out[0].dim(2), dy.dim(2)});
}
template <typename T>
void batched_linear_dw(const KernelArgs& args) {
  const TensorRef& dy = args.in[0];
  products_dw<T>(args, {dy.dim(1), dy.dim(0), args.in[1].dim(2), dy.dim(2)});
}

HOCKET_KERNEL(linear)
HOCKET_KERNEL(linear_dx)
HOCKET_KERNEL(linear_dw)
HOCKET_KERNEL(batched_linear)
HOCKET_KERNEL(batched_linear_dx)
HOCKET_KERNEL(batched_linear_dw)

}  // namespace hocket::kernels::HOCKET_CPU
