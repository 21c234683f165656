// SPDX-License-Identifier: Apache-2.0
// The products of the LM head, h[T,D] and W[V,D], over chunks of tokens.
#pragma once

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

/// Inputs 0 and 1 of a kernel as the LM head. There are never more logits than of one chunk.
template <typename T>
class LmHead {
 public:
  explicit LmHead(const KernelArgs& args)
      : h_(in<T>(args, 0)),
        w_(in<T>(args, 1)),
        tokens_(args.in[0].dim(0)),
        width_(args.in[0].dim(1)),
        vocab_(args.in[1].dim(0)),
        chunk_(ops::cross_entropy_rows(tokens_, vocab_, sizeof(T))),
        scratch_(args),
        logits_(scratch_.take<T>(chunk_ * vocab_)),
        terms_(scratch_.take<double>(chunk_)) {}

  int64_t tokens() const { return tokens_; }
  int64_t vocab() const { return vocab_; }
  T* row(int64_t r) const { return logits_ + r * vocab_; }  ///< logits of token r of the chunk
  double* terms() const { return terms_; }                  ///< a number per token of the chunk

  /// Calls fn(t, n) for every chunk of n tokens from t on, its logits formed.
  template <class F>
  void for_chunks(const F& fn) {
    for (int64_t t = 0; t < tokens_; t += chunk_) {
      const int64_t n = std::min(chunk_, tokens_ - t);
      gemm<T>({.trans_b = true,
               .m = n,
               .n = vocab_,
               .k = width_,
               .a = h_ + t * width_,
               .lda = width_,
               .b = w_,
               .ldb = width_,
               .c = logits_,
               .ldc = vocab_},
              scratch_);
      fn(t, n);
    }
  }
  /// Calls fn(r) for every row of a chunk, in parallel.
  template <class F>
  void for_rows(int64_t n, const F& fn) const {
    parallel_for(n, row_grain(4 * vocab_), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        fn(r);
      }
    });
  }
  /// Multiplies the gradients of a chunk's logits, which replaced them, into its rows of dh, and
  /// into dW unless that is null; `add`: onto what dW has.
  void back(int64_t t, int64_t n, T* dh, T* dw, bool add) {
    gemm<T>({.m = n,
             .n = width_,
             .k = vocab_,
             .a = logits_,
             .lda = vocab_,
             .b = w_,
             .ldb = width_,
             .c = dh + t * width_,
             .ldc = width_},
            scratch_);
    if (dw == nullptr) return;
    gemm<T>({.trans_a = true,
             .m = vocab_,
             .n = width_,
             .k = n,
             .a = logits_,
             .lda = vocab_,
             .b = h_ + t * width_,
             .ldb = width_,
             .add = add || t > 0,
             .c = dw,
             .ldc = width_},
            scratch_);
  }
  /// Sets dW of no tokens, which back() is not called for.
  void clear_without_tokens(T* dw, bool add) const {
    if (tokens_ == 0 && !add) {
      std::fill_n(dw, vocab_ * width_, T(0));
    }
  }

 private:
  const T *h_, *w_;
  int64_t tokens_, width_, vocab_, chunk_;
  Scratch scratch_;
  T* logits_;
  double* terms_;
};

/// Attribute `softcap` of a head, 0: none.
template <typename T>
T softcap_of(const KernelArgs& args) {
  return static_cast<T>(args.attrs->has("softcap") ? args.attrs->f("softcap") : 0.0);
}
/// Factor of the logits by attribute `temperature` of a head, 1: none.
template <typename T>
T temper_of(const KernelArgs& args) {
  return static_cast<T>(args.attrs->has("temperature") ? 1 / args.attrs->f("temperature") : 1.0);
}

}  // namespace hocket::kernels::HOCKET_CPU
