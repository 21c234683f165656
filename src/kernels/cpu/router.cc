// SPDX-License-Identifier: Apache-2.0
// router, router_bwd, balance_loss, balance_loss_bwd: softmax over experts, top-k with ties to the
// lowest index or the choices that are given, and the load-balancing loss. psum is summed over
// fixed blocks of tokens.
#include <cmath>

#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

namespace {

/// The k largest of p[e], the largest first, ties to the lowest index.
template <typename T>
void choose(const T* p, int64_t e, int64_t k, int32_t* id) {
  // Insertion into a sorted list of k: a later index enters only with a larger probability.
  int64_t n = 0;
  for (int64_t i = 0; i < e; ++i) {
    int64_t at = n;
    while (at > 0 && p[i] > p[id[at - 1]]) {
      --at;
    }
    if (at == k) continue;
    n = std::min(n + 1, k);
    for (int64_t j = n - 1; j > at; --j) {
      id[j] = id[j - 1];
    }
    id[at] = static_cast<int32_t>(i);
  }
}

/// Marks a token that goes to no expert.
template <typename T>
void leave_out(int64_t k, int32_t* ids, T* weights) {
  std::fill_n(ids, k, -1);
  std::fill_n(weights, k, T(0));
}

/// Copies the choices that a router is given.
void take_given(const int32_t* given, int64_t n, int64_t e, int32_t* ids) {
  for (int64_t i = 0; i < n; ++i) {
    if (given[i] < 0 || given[i] >= e) {
      fail_run("router", "expert {} at {} is given; expected 0 <= expert < {}", given[i], i, e);
    }
    ids[i] = given[i];
  }
}

}  // namespace

template <typename T>
void router(const KernelArgs& args) {
  // Per token: probs = softmax(logits), the k best (or given ones), and their probs, optionally
  // normalised, as weights. psum, the sum of probs over tokens, is summed by blocks first, so it
  // does not depend on threads.
  const T* logits = in<T>(args, 0);
  T *w = out<T>(args, 0), *probs = out<T>(args, 2), *psum = out<T>(args, 3);
  int32_t* ids = out<int32_t>(args, 1);
  const int64_t tokens = args.in[0].dim(0), e = args.in[0].dim(1), k = args.attrs->i("top_k");
  const bool norm = args.attrs->i("norm") != 0, given = args.attrs->i_or("given", 0) != 0;
  const int32_t* is_token =
      args.attrs->i_or("padded", 0) != 0 ? in<int32_t>(args, args.in.size() - 1) : nullptr;
  if (given) {
    take_given(in<int32_t>(args, 1), tokens * k, e, ids);
  }
  const int64_t block = ops::norm_block_rows(tokens), blocks = ceil_div(tokens, block);
  T* partial = Scratch(args).take<T>(blocks * e);
  parallel_for(blocks, ceil_div(row_grain(8 * e), block), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      T* __restrict acc = partial + b * e;
      std::fill(acc, acc + e, T(0));
      for (int64_t t = b * block; t < std::min(tokens, (b + 1) * block); ++t) {
        const T* x = logits + t * e;
        T* p = probs + t * e;
        T top = x[0], sum = 0;
        for (int64_t i = 1; i < e; ++i) {
          top = std::max(top, x[i]);
        }
        for (int64_t i = 0; i < e; ++i) {
          p[i] = std::exp(x[i] - top);
          sum += p[i];
        }
        for (int64_t i = 0; i < e; ++i) {
          p[i] /= sum;
        }
        int32_t* id = ids + t * k;
        if (is_token != nullptr && is_token[t] == 0) {
          leave_out(k, id, w + t * k);
          continue;
        }
        for (int64_t i = 0; i < e; ++i) {
          acc[i] += p[i];
        }
        if (!given) {
          choose(p, e, k, id);
        }
        T total = 1;
        if (norm) {
          total = 0;
          for (int64_t j = 0; j < k; ++j) {
            total += p[id[j]];
          }
        }
        for (int64_t j = 0; j < k; ++j) {
          w[t * k + j] = p[id[j]] / total;
        }
      }
    }
  });
  std::fill(psum, psum + e, T(0));
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t i = 0; i < e; ++i) {
      psum[i] += partial[b * e + i];
    }
  }
}

template <typename T>
void router_bwd(const KernelArgs& args) {
  const T *dw = in<T>(args, 0), *probs = in<T>(args, 2);
  const int32_t* ids = in<int32_t>(args, 1);
  const T* dpsum = args.attrs->i("has_dpsum") ? in<T>(args, 3) : nullptr;
  T* dx = out<T>(args, 0);
  const int64_t tokens = args.in[2].dim(0), e = args.in[2].dim(1), k = args.attrs->i("top_k");
  const bool norm = args.attrs->i("norm") != 0;
  parallel_for(tokens, row_grain(4 * e), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* p = probs + t * e;
      T* d = dx + t * e;     // holds dprobs first
      if (ids[t * k] < 0) {  // padding
        std::fill_n(d, e, T(0));
        continue;
      }
      for (int64_t i = 0; i < e; ++i) {
        d[i] = dpsum ? dpsum[i] : T(0);
      }
      T total = 1, mean = 0;
      if (norm) {
        total = 0;
        for (int64_t j = 0; j < k; ++j) {
          total += p[ids[t * k + j]];
        }
        for (int64_t j = 0; j < k; ++j) {
          mean += dw[t * k + j] * p[ids[t * k + j]] / total;
        }
      }
      for (int64_t j = 0; j < k; ++j) {
        d[ids[t * k + j]] += (dw[t * k + j] - mean) / total;
      }
      T dot = 0;
      for (int64_t i = 0; i < e; ++i) {
        dot += d[i] * p[i];
      }
      for (int64_t i = 0; i < e; ++i) {
        d[i] = p[i] * (d[i] - dot);
      }
    }
  });
}

namespace {

/// Tokens that were routed to `slots` experts each.
double routed_tokens(const int64_t* counts, int64_t experts, double slots) {
  int64_t rows = 0;
  for (int64_t i = 0; i < experts; ++i) {
    rows += counts[i];
  }
  return static_cast<double>(rows) / slots;
}

}  // namespace

template <typename T>
void balance_loss(const KernelArgs& args) {
  const T* psum = in<T>(args, 0);
  const int64_t* counts = in<int64_t>(args, 1);
  const int64_t e = count(args.in[0]);
  const double k = static_cast<double>(args.attrs->i("top_k"));
  const double tokens = routed_tokens(counts, e, k);
  double sum = 0;
  for (int64_t i = 0; i < e && tokens > 0; ++i) {
    sum += static_cast<double>(counts[i]) / (tokens * k) * (static_cast<double>(psum[i]) / tokens);
  }
  double* loss = out<double>(args, 0);
  *loss = (accumulates(args, 0) ? *loss : 0) + args.attrs->f("coef") * static_cast<double>(e) * sum;
}

template <typename T>
void balance_loss_bwd(const KernelArgs& args) {
  const int64_t* counts = in<int64_t>(args, 0);
  T* dpsum = out<T>(args, 0);
  const int64_t e = count(args.in[0]);
  const double k = static_cast<double>(args.attrs->i("top_k"));
  const double tokens = routed_tokens(counts, e, k);
  const double c =
      tokens > 0 ? args.attrs->f("coef") * static_cast<double>(e) / (tokens * k * tokens) : 0;
  for (int64_t i = 0; i < e; ++i) {
    dpsum[i] = static_cast<T>(c * static_cast<double>(counts[i]));
  }
}

HOCKET_KERNEL(router)
HOCKET_KERNEL(router_bwd)
HOCKET_KERNEL(balance_loss)
HOCKET_KERNEL(balance_loss_bwd)

}  // namespace hocket::kernels::HOCKET_CPU
