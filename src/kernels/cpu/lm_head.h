// SPDX-License-Identifier: Apache-2.0
// The products of the LM head, h[T,D] and W[V,D], over chunks of tokens.
#pragma once

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

/// Inputs 0 to 2 of a kernel, h, W and targets, as the LM head. Only tokens with a target have
/// logits, and there are never more of them than of one chunk.
template <typename T>
class LmHead {
 public:
  explicit LmHead(const KernelArgs& args)
      : h_(in<T>(args, 0)),
        w_(in<T>(args, 1)),
        targets_(in<int32_t>(args, 2)),
        tokens_(args.in[0].dim(0)),
        width_(args.in[0].dim(1)),
        vocab_(args.in[1].dim(0)),
        chunk_(ops::cross_entropy_rows(tokens_, vocab_, sizeof(T))),
        scratch_(args),
        logits_(scratch_.take<T>(chunk_ * vocab_)),
        rows_(scratch_.take<T>(chunk_ * width_)),
        terms_(scratch_.take<double>(chunk_)),
        predicting_(scratch_.take<int32_t>(tokens_)) {
    for (int64_t t = 0; t < tokens_; ++t) {
      if (targets_[t] >= 0) {
        predicting_[count_++] = static_cast<int32_t>(t);
      }
    }
  }

  int64_t tokens() const { return tokens_; }
  int64_t vocab() const { return vocab_; }
  T* row(int64_t r) const { return logits_ + r * vocab_; }  ///< logits of row r of the chunk
  double* terms() const { return terms_; }                  ///< a number per row of the chunk
  int64_t token(int64_t r) const { return predicting_[first_ + r]; }  ///< of row r of the chunk
  int32_t target(int64_t r) const { return targets_[token(r)]; }      ///< likewise

  /// Calls fn(n) for every chunk of n tokens with targets, its logits formed.
  template <class F>
  void for_chunks(const F& fn) {
    for (first_ = 0; first_ < count_; first_ += chunk_) {
      const int64_t n = std::min(chunk_, count_ - first_);
      gemm<T>({.trans_b = true,
               .m = n,
               .n = vocab_,
               .k = width_,
               .a = hidden(n),
               .lda = width_,
               .b = w_,
               .ldb = width_,
               .c = logits_,
               .ldc = vocab_},
              scratch_);
      fn(n);
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
  /// Multiplies the gradients of a chunk's logits, which replaced them, into dW unless that is
  /// null, and into the rows of dh; `add`: onto dW's values.
  void back(int64_t n, T* dh, T* dw, bool add) {
    if (dw != nullptr) {
      gemm<T>({.trans_a = true,
               .m = vocab_,
               .n = width_,
               .k = n,
               .a = logits_,
               .lda = vocab_,
               .b = hidden(n),
               .ldb = width_,
               .add = add || first_ > 0,
               .c = dw,
               .ldc = width_},
              scratch_);
    }
    T* const to = is_run(n) ? dh + token(0) * width_ : rows_;
    gemm<T>({.m = n,
             .n = width_,
             .k = vocab_,
             .a = logits_,
             .lda = vocab_,
             .b = w_,
             .ldb = width_,
             .c = to,
             .ldc = width_},
            scratch_);
    for (int64_t r = 0; to == rows_ && r < n; ++r) {
      std::copy_n(rows_ + r * width_, width_, dh + token(r) * width_);
    }
  }
  /// Sets the gradients of tokens without targets, and dW if no token has one.
  void clear_others(T* dh, T* dw, bool add) const {
    for (int64_t t = 0; t < tokens_; ++t) {
      if (targets_[t] < 0) {
        std::fill_n(dh + t * width_, width_, T(0));
      }
    }
    if (dw != nullptr && count_ == 0 && !add) {
      std::fill_n(dw, vocab_ * width_, T(0));
    }
  }

 private:
  /// Returns whether the tokens of a chunk stand one behind the other.
  bool is_run(int64_t n) const { return token(n - 1) - token(0) == n - 1; }
  /// Returns the hidden states of a chunk, [n, width].
  const T* hidden(int64_t n) const {
    if (is_run(n)) return h_ + token(0) * width_;
    for (int64_t r = 0; r < n; ++r) {
      std::copy_n(h_ + token(r) * width_, width_, rows_ + r * width_);
    }
    return rows_;
  }

  const T *h_, *w_;
  const int32_t* targets_;
  int64_t tokens_, width_, vocab_, chunk_;
  Scratch scratch_;
  T *logits_, *rows_;
  double* terms_;
  int32_t* predicting_;  ///< tokens with a target
  int64_t count_ = 0;    ///< of them
  int64_t first_ = 0;    ///< of the chunk, among them
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
