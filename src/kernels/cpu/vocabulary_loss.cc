// SPDX-License-Identifier: Apache-2.0
// The steps of the loss of logits, on all of the vocabulary or a run of it. A row is a token; sums
// of exponentials are kept in double, in spans, so that they do not depend on threads.
#include "kernels/cpu/vocabulary.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

/// Calls fn(row) for every row of this size.
template <class F>
void for_rows(int64_t rows, int64_t elements, const F& fn) {
  parallel_for(rows, row_grain(4 * elements), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      fn(r);
    }
  });
}

/// Position of a target in a row of the local logits; -1 if it is ignored or elsewhere.
class Targets {
 public:
  Targets(const char* op, const KernelArgs& args, const int32_t* targets, int64_t tokens)
      : targets_(targets), first_(piece_offset(args, 'v')), logits_(args.in[0].dim(1)) {
    check_targets(op, targets, tokens, args.attrs->i("vocab"));
  }
  int64_t at(int64_t t) const {
    const int64_t place = targets_[t] - first_;
    return targets_[t] >= 0 && place >= 0 && place < logits_ ? place : -1;
  }
  /// Returns the number of local logits before the target.
  int64_t before(int64_t t) const { return std::clamp<int64_t>(targets_[t] - first_, 0, logits_); }

 private:
  const int32_t* targets_;
  int64_t first_, logits_;
};

}  // namespace

template <typename T>
void rowmax(const KernelArgs& args) {
  const int64_t v = args.in[0].dim(1);
  const T* z = in<T>(args, 0);
  T* top = out<T>(args, 0);
  for_rows(args.in[0].dim(0), v, [&](int64_t t) { top[t] = greatest(z + t * v, v); });
}

template <typename T>
void sumexp(const KernelArgs& args) {
  const int64_t v = args.in[0].dim(1);
  const T *z = in<T>(args, 0), *top = in<T>(args, 1);
  double* sum = out<double>(args, 0);
  for_rows(args.in[0].dim(0), v,
           [&](int64_t t) { sum[t] = sum_of_exponentials(z + t * v, v, top[t]); });
}

template <typename T>
void lse_of(const KernelArgs& args) {
  const T* top = in<T>(args, 0);
  const double* sum = in<double>(args, 1);
  double* lse = out<double>(args, 0);
  for_rows(args.in[0].dim(0), 1,
           [&](int64_t t) { lse[t] = static_cast<double>(top[t]) + std::log(sum[t]); });
}

template <typename T>
void lse(const KernelArgs& args) {
  const int64_t v = args.in[0].dim(1);
  const T* z = in<T>(args, 0);
  double* to = out<double>(args, 0);
  for_rows(args.in[0].dim(0), v, [&](int64_t t) { to[t] = log_sum_exp(z + t * v, v); });
}

template <typename T>
void pick(const KernelArgs& args) {
  const int64_t tokens = args.in[0].dim(0), v = args.in[0].dim(1);
  const T* z = in<T>(args, 0);
  T* x = out<T>(args, 0);
  const Targets targets("pick", args, in<int32_t>(args, 1), tokens);
  for_rows(tokens, 1, [&](int64_t t) {
    const int64_t at = targets.at(t);
    x[t] = at < 0 ? T(0) : z[t * v + at];
  });
}

template <typename T>
void nll(const KernelArgs& args) {
  const T* x = in<T>(args, 0);
  const double* lse = in<double>(args, 1);
  const int32_t* targets = in<int32_t>(args, 2);
  const double scale = *in<double>(args, 3);
  double sum = 0;
  for (int64_t t = 0; t < args.in[0].dim(0); ++t) {
    sum += targets[t] < 0 ? 0 : lse[t] - static_cast<double>(x[t]);
  }
  double* loss = out<double>(args, 0);
  *loss = (accumulates(args, 0) ? *loss : 0) + scale * sum;
}

template <typename T>
void dlogits(const KernelArgs& args) {
  constexpr int64_t L = kLanes<T>;
  const int64_t tokens = args.in[0].dim(0), v = args.in[0].dim(1);
  const T* z = in<T>(args, 0);
  const int32_t* wanted = in<int32_t>(args, 1);
  const double* lse = in<double>(args, 2);
  const double scale = *in<double>(args, 3);
  T* dz = out<T>(args, 0);
  const Targets targets("dlogits", args, wanted, tokens);
  for_rows(tokens, v, [&](int64_t t) {
    const T* x = z + t * v;
    T* to = dz + t * v;
    if (wanted[t] < 0) {
      std::memset(to, 0, static_cast<size_t>(v) * sizeof(T));
      return;
    }
    // The factor absorbs the part of lse beyond T's precision.
    const T near = static_cast<T>(lse[t]);
    const T factor = static_cast<T>(scale * std::exp(static_cast<double>(near) - lse[t]));
    const Vec<T> shift = splat(near);
    int64_t i = 0;
    for (; i + L <= v; i += L) {
      store(to + i, vexp(load(x + i) - shift) * factor);
    }
    if (i < v) {
      store_partial(to + i, vexp(load_partial(x + i, v - i) - shift) * factor, v - i);
    }
    if (const int64_t at = targets.at(t); at >= 0) {
      to[at] -= static_cast<T>(scale);
    }
  });
}

template <typename T>
void token_logprob(const KernelArgs& args) {
  const T* x = in<T>(args, 0);
  const double* lse = in<double>(args, 1);
  const int32_t* targets = in<int32_t>(args, 2);
  double *logprob = out<double>(args, 0), *kept = out<double>(args, 1);
  for_rows(args.in[0].dim(0), 1, [&](int64_t t) {
    const bool counts = targets[t] >= 0;
    logprob[t] = counts ? static_cast<double>(x[t]) - lse[t] : 0;
    kept[t] = counts ? lse[t] : 0;
  });
}

template <typename T>
void token_entropy(const KernelArgs& args) {
  const int64_t v = args.in[0].dim(1);
  const T* z = in<T>(args, 0);
  const int32_t* targets = in<int32_t>(args, 1);
  const double* lse = in<double>(args, 2);
  double* entropy = out<double>(args, 0);
  for_rows(args.in[0].dim(0), v,
           [&](int64_t t) { entropy[t] = targets[t] < 0 ? 0 : entropy_of(z + t * v, v, lse[t]); });
}

template <typename T>
void logit_mean(const KernelArgs& args) {
  const int64_t v = args.in[0].dim(1);
  const auto vocab = static_cast<double>(args.attrs->i("vocab"));
  const T* z = in<T>(args, 0);
  const int32_t* targets = in<int32_t>(args, 1);
  double* mean = out<double>(args, 0);
  for_rows(args.in[0].dim(0), v,
           [&](int64_t t) { mean[t] = targets[t] < 0 ? 0 : sum_of_logits(z + t * v, v) / vocab; });
}

template <typename T>
void token_misses(const KernelArgs& args) {
  const int64_t tokens = args.in[0].dim(0), v = args.in[0].dim(1);
  const T *z = in<T>(args, 0), *of_target = in<T>(args, 1);
  const int32_t* wanted = in<int32_t>(args, 2);
  double* missed = out<double>(args, 0);
  const Targets targets("token_misses", args, wanted, tokens);
  for_rows(tokens, v, [&](int64_t t) {
    const T* const row = z + t * v;
    const int64_t before = targets.before(t);
    const bool other =
        greatest(row, before) >= of_target[t] || greatest(row + before, v - before) > of_target[t];
    missed[t] = wanted[t] >= 0 && other ? 1 : 0;
  });
}

template <typename T>
void token_dlogits(const KernelArgs& args) {
  const int64_t tokens = args.in[0].dim(0), v = args.in[0].dim(1);
  const T* z = in<T>(args, 0);
  const int32_t* wanted = in<int32_t>(args, 1);
  const double *lse = in<double>(args, 2), *of_logprobs = in<double>(args, 3);
  const bool with_entropies = args.in.size() > 4;
  T* dz = out<T>(args, 0);
  const Targets targets("token_dlogits", args, wanted, tokens);
  for_rows(tokens, v, [&](int64_t t) {
    T* const to = dz + t * v;
    if (wanted[t] < 0) {
      std::fill_n(to, v, T(0));
      return;
    }
    std::copy_n(z + t * v, v, to);
    TokenGradients g{.of_logprob = of_logprobs[t]};
    if (with_entropies) {
      g.entropy = in<double>(args, 4)[t];
      g.of_entropy = in<double>(args, 5)[t];
    }
    token_gradient_row(to, v, targets.at(t), lse[t], g, T(0));
  });
}

HOCKET_KERNEL(rowmax)
HOCKET_KERNEL(sumexp)
HOCKET_KERNEL(lse_of)
HOCKET_KERNEL(lse)
HOCKET_KERNEL(pick)
HOCKET_KERNEL(nll)
HOCKET_KERNEL(dlogits)
HOCKET_KERNEL(token_logprob)
HOCKET_KERNEL(token_entropy)
HOCKET_KERNEL(logit_mean)
HOCKET_KERNEL(token_misses)
HOCKET_KERNEL(token_dlogits)

}  // namespace hocket::kernels::HOCKET_CPU
