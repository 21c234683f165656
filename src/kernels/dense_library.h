// SPDX-License-Identifier: Apache-2.0
// Products of f32 matrices by oneDNN, where the machine has it: the fastest of those measured whose
// results pass our tests of bit identity (bench/gemm_compare.cc). It is loaded when kernels are
// first looked for, not linked: its symbols must not stand in the way of the copy that LibTorch
// brings along.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hocket::kernels {

class DenseLibrary {
 public:
  /// The library, kept to the instructions of x86-64-v3 or -v4, or null: on other processors and
  /// where it is not installed. HOCKET_GEMM=own in the environment asks for null,
  /// HOCKET_GEMM=onednn makes its absence an Error. The first call decides for the whole process.
  static const DenseLibrary* find(std::string_view level);

  /// "oneDNN 2.6.3"
  const std::string& name() const { return name_; }

  /// C = op(A) op(B), or C += of that if `add`: C is [m,n], op(A) [m,k], op(B) [k,n]; row-major,
  /// ld* in elements; m, n, k > 0. On the calling thread alone. Packs into memory of its own, of at
  /// most some 4 KiB times n: cut n into blocks of kBlockN.
  void sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const float* a,
             int64_t lda, const float* b, int64_t ldb, bool add, float* c, int64_t ldc) const;
  static constexpr int64_t kBlockN = 1024;

 private:
  using Sgemm = int (*)(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t,
                        const float*, int64_t, float, float*, int64_t);
  using SetThreads = void (*)(int);

  static DenseLibrary load(std::string_view level);

  std::string name_;
  Sgemm sgemm_ = nullptr;
  SetThreads set_threads_ = nullptr;  ///< of the OpenMP that it was built with
};

/// What the calling thread's products use: null until set_dense_library.
const DenseLibrary* dense_library();
void set_dense_library(const DenseLibrary* library);

}  // namespace hocket::kernels
