// SPDX-License-Identifier: Apache-2.0
// token_logprobs, token_logprobs_bwd: the LM head and the inputs of losses per token, over chunks
// of tokens.
#include "kernels/cpu/lm_head.h"
#include "kernels/cpu/vocabulary.h"

namespace hocket::kernels::HOCKET_CPU {

template <typename T>
void token_logprobs(const KernelArgs& args) {
  LmHead<T> head(args);
  const int32_t* targets = in<int32_t>(args, 2);
  const int64_t v = head.vocab();
  const T cap = softcap_of<T>(args), temper = temper_of<T>(args);
  check_targets("token_logprobs", targets, head.tokens(), v);
  double *logprobs = out<double>(args, 0), *entropies = out<double>(args, 1);
  double* lses = out<double>(args, 2);
  const bool with_metrics = args.out.size() > 3;
  double* const means = with_metrics ? out<double>(args, 3) : nullptr;
  double* const missed = with_metrics ? out<double>(args, 4) : nullptr;
  for (size_t i = 0; i < args.out.size(); ++i) {
    std::fill_n(out<double>(args, i), head.tokens(), 0.0);
  }
  head.for_chunks([&](int64_t n) {
    head.for_rows(n, [&](int64_t r) {
      T* const z = head.row(r);
      if (cap > 0) {
        tanh_row(z, v, cap);
        for_vectors<T>(0, v, [&](int64_t i, int64_t lanes) {
          store_some(z + i, cap * load_some(z + i, lanes, T(0)), lanes);
        });
      }
      temper_row(z, v, temper);
      const int64_t t = head.token(r);
      const T top = greatest(z, v);
      const double lse = log_sum_exp(z, v, top);
      lses[t] = lse;
      logprobs[t] = static_cast<double>(z[targets[t]]) - lse;
      entropies[t] = entropy_of(z, v, lse);
      if (with_metrics) {
        means[t] = sum_of_logits(z, v) / static_cast<double>(v);
        missed[t] = misses(z, targets[t], top) ? 1 : 0;
      }
    });
  });
}

template <typename T>
void token_logprobs_bwd(const KernelArgs& args) {
  LmHead<T> head(args);
  const int32_t* targets = in<int32_t>(args, 2);
  const double *lses = in<double>(args, 3), *of_logprobs = in<double>(args, 4);
  const bool with_entropies = args.in.size() > 5;
  const int64_t v = head.vocab();
  const T cap = softcap_of<T>(args), temper = temper_of<T>(args);
  check_targets("token_logprobs_bwd", targets, head.tokens(), v);
  T* const dh = out<T>(args, 0);
  T* const dw = args.out.size() > 1 ? out<T>(args, 1) : nullptr;  // null: W is frozen
  const bool add = dw != nullptr && accumulates(args, 1);
  head.for_chunks([&](int64_t n) {
    head.for_rows(n, [&](int64_t r) {
      T* const z = head.row(r);
      const int64_t t = head.token(r);
      if (cap > 0) {
        tanh_row(z, v, cap);
      }
      TokenGradients g{.of_logprob = of_logprobs[t]};
      if (with_entropies) {
        g.entropy = in<double>(args, 5)[t];
        g.of_entropy = in<double>(args, 6)[t];
      }
      token_gradient_row(z, v, targets[t], lses[t], g, cap, temper);
    });
    head.back(n, dh, dw, add);
  });
  head.clear_others(dh, dw, add);
}

HOCKET_KERNEL(token_logprobs)
HOCKET_KERNEL(token_logprobs_bwd)

}  // namespace hocket::kernels::HOCKET_CPU
