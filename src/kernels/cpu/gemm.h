// SPDX-License-Identifier: Apache-2.0
// C = op(A) op(B) (+ C) on row-major matrices, blocked as by Goto and van de Geijn (ACM TOMS 34(3),
// 2008), on register tiles in vector extensions. Libraries of equal speed allocate packing memory
// of their own, and their bits change with threads or with the other rows of a call
// (bench/gemm_compare.cc).
#pragma once

#include <cstdint>

#include "kernels/cpu/scratch.h"

namespace hocket::kernels::HOCKET_CPU {

/// One product. A is [m,k] (or [k,m] if trans_a), B is [k,n] (or [n,k] if trans_b), C is [m,n].
/// `ld*` are row strides in elements. `add`: C += product, else C = product. k may be 0.
template <typename T>
struct Gemm {
  bool trans_a = false, trans_b = false;
  int64_t m = 0, n = 0, k = 0;
  const T* a = nullptr;
  int64_t lda = 0;
  const T* b = nullptr;
  int64_t ldb = 0;
  bool add = false;
  T* c = nullptr;
  int64_t ldc = 0;
};

/// Runs one product on the calling thread's team. `scratch` has room for one or more threads
/// (ops::gemm_scratch each), which limits the threads.
template <typename T>
void gemm(const Gemm<T>& g, Scratch scratch);

/// The part [m0,m1) x [n0,n1) of a product on the calling thread alone, scratch of one thread.
template <typename T>
void gemm_part(const Gemm<T>& g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, T* scratch);

}  // namespace hocket::kernels::HOCKET_CPU
