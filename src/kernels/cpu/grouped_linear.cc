// SPDX-License-Identifier: Apache-2.0
// grouped_linear, grouped_linear_dx, grouped_linear_dw: one matrix product per expert on its slice
// of the rows. The products are cut into parts that threads take one by one, so uneven counts
// balance; an expert without rows costs nothing (dW: zeros, unless it accumulates).
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// Calls gemm_part on every part of the products product(e), e < experts.
template <typename T, typename F>
void run_grouped(int64_t experts, int64_t max_k, F&& product, Scratch scratch) {
  constexpr int64_t M = ops::kGroupRows, N = ops::kGroupCols;
  if (experts == 0) return;
  const int64_t n_all = product(0).n;
  const int64_t each = ops::gemm_scratch(n_all, max_k, sizeof(T));
  auto parts = [&](const Gemm<T>& g) { return ceil_div(g.m, M) * ceil_div(g.n, N); };
  int64_t total = 0;
  double work = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const Gemm<T> g = product(e);
    total += parts(g);
    work += static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  }
  if (total == 0) return;
  int64_t threads = std::min({int64_t{team_size()}, scratch.left() / each, total});
  threads = work < 64.0 * 64 * 64 ? 1 : std::max<int64_t>(threads, 1);
  std::byte* base = scratch.take<std::byte>(threads * each);
  auto run = [&](int64_t part, int64_t thread) {
    int64_t e = 0;
    Gemm<T> g = product(0);
    for (; part >= parts(g); g = product(++e)) {
      part -= parts(g);
    }
    const int64_t rows = ceil_div(g.m, M), cols = ceil_div(g.n, N), r = part / cols,
                  c = part % cols;
    const int64_t mt = ceil_div(g.m, kTileRows), nt = ceil_div(g.n, kTileCols<T>);
    gemm_part(g, mt * r / rows * kTileRows, std::min<int64_t>(g.m, mt * (r + 1) / rows * kTileRows),
              nt * c / cols * kTileCols<T>,
              std::min<int64_t>(g.n, nt * (c + 1) / cols * kTileCols<T>),
              reinterpret_cast<T*>(base + thread * each));
  };
  parallel(total, threads, run);
}

/// First row of every expert: the sums of the counts before it.
const int64_t* first_rows(const TensorRef& counts, Scratch& scratch) {
  const int64_t e = count(counts);
  int64_t* first = scratch.take<int64_t>(e + 1);
  first[0] = 0;
  for (int64_t i = 0; i < e; ++i) {
    first[i + 1] = first[i] + counts.as<const int64_t>()[i];
  }
  return first;
}

int64_t largest(const TensorRef& counts) {
  int64_t n = 0;
  for (int64_t e = 0; e < count(counts); ++e) {
    n = std::max(n, counts.as<const int64_t>()[e]);
  }
  return n;
}

}  // namespace

template <typename T>
void grouped_linear(const KernelArgs& args) {
  const T *x = in<T>(args, 0), *w = in<T>(args, 1);
  T* y = out<T>(args, 0);
  const int64_t e = count(args.in[2]), n = args.out[0].type->row_size(),
                k = args.in[0].type->row_size();
  const bool add = accumulates(args, 0);
  Scratch scratch(args);
  const int64_t* first = first_rows(args.in[2], scratch);
  run_grouped<T>(
      e, k,
      [=](int64_t i) {
        return Gemm<T>{.trans_b = true,
                       .m = first[i + 1] - first[i],
                       .n = n,
                       .k = k,
                       .a = x + first[i] * k,
                       .lda = k,
                       .b = w + i * n * k,
                       .ldb = k,
                       .add = add,
                       .c = y + first[i] * n,
                       .ldc = n};
      },
      scratch);
}

template <typename T>
void grouped_linear_dx(const KernelArgs& args) {
  const T *dy = in<T>(args, 0), *w = in<T>(args, 1);
  T* dx = out<T>(args, 0);
  const int64_t e = count(args.in[2]), n = args.out[0].type->row_size(),
                k = args.in[0].type->row_size();
  const bool add = accumulates(args, 0);
  Scratch scratch(args);
  const int64_t* first = first_rows(args.in[2], scratch);
  run_grouped<T>(
      e, k,
      [=](int64_t i) {
        return Gemm<T>{.m = first[i + 1] - first[i],
                       .n = n,
                       .k = k,
                       .a = dy + first[i] * k,
                       .lda = k,
                       .b = w + i * n * k,
                       .ldb = n,
                       .add = add,
                       .c = dx + first[i] * n,
                       .ldc = n};
      },
      scratch);
}

/// dW of an expert sums over its rows: the inner dimension, which has no fixed length here.
template <typename T>
void grouped_linear_dw(const KernelArgs& args) {
  const T *dy = in<T>(args, 0), *x = in<T>(args, 1);
  T* dw = out<T>(args, 0);
  const int64_t e = count(args.in[2]), m = args.in[0].type->row_size(),
                n = args.in[1].type->row_size();
  const bool add = accumulates(args, 0);
  Scratch scratch(args);
  const int64_t* first = first_rows(args.in[2], scratch);
  run_grouped<T>(
      e, largest(args.in[2]),
      [=](int64_t i) {
        return Gemm<T>{.trans_a = true,
                       .m = m,
                       .n = n,
                       .k = first[i + 1] - first[i],
                       .a = dy + first[i] * m,
                       .lda = m,
                       .b = x + first[i] * n,
                       .ldb = n,
                       .add = add,
                       .c = dw + i * m * n,
                       .ldc = n};
      },
      scratch);
}

HOCKET_KERNEL(grouped_linear)
HOCKET_KERNEL(grouped_linear_dx)
HOCKET_KERNEL(grouped_linear_dw)

}  // namespace hocket::kernels::HOCKET_CPU
