// SPDX-License-Identifier: Apache-2.0
// policy_loss, sequence_policy_loss, value_loss: a few numbers per token or sample, in fp64 and on
// one thread. Limits on exponents are those of verl's core_algos.py (docs/rl-losses.md).
#include <cmath>

#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

namespace {

constexpr double kLongestStep = 20;  // limit on the logarithm of a token's ratio, and on -d in k3
constexpr double kLargestK3 = 10;    // limit on k3
constexpr double kLongestOfSample = 10;  // upper limit on the logarithm of a sample's ratio

/// A term of the loss and its derivative by the log-probability or value.
struct LossTerm {
  double loss = 0, slope = 0;
};

/// The ratio of two policies.
struct Ratio {
  double value = 1, clipped = 1;
  double slope = 0;          ///< of the value
  double clipped_slope = 0;  ///< of the clipped value
};

Ratio ratio_of(double step, double lowest, double highest, double low, double high) {
  Ratio r;
  r.value = std::exp(std::min(std::max(step, lowest), highest));
  r.slope = step < lowest || step > highest ? 0 : r.value;
  r.clipped = std::min(std::max(r.value, low), high);
  r.clipped_slope = r.value < low || r.value > high ? 0 : r.slope;
  return r;
}

/// max(-r A, -clip(r) A). Where both are equal, so are their slopes, or the advantage is 0.
LossTerm clipped_loss(const Ratio& r, double advantage) {
  const LossTerm plain{-advantage * r.value, -advantage * r.slope};
  const LossTerm clipped{-advantage * r.clipped, -advantage * r.clipped_slope};
  return clipped.loss > plain.loss ? clipped : plain;
}

/// The attributes of policy_loss.
class TokenLoss {
 public:
  explicit TokenLoss(const graph::Attrs& attrs)
      : kind_(attrs.s("kind")),
        kl_(attrs.s("kl")),
        low_(1 - attrs.f("clip_low")),
        high_(1 + attrs.f("clip_high")),
        dual_clip_(attrs.f("dual_clip")) {}

  LossTerm policy(double logprob, double old, double advantage) const {
    if (kind_ == "reinforce") return {-advantage * logprob, -advantage};
    if (kind_ == "none") return {};
    const Ratio r = ratio_of(logprob - old, -kLongestStep, kLongestStep, low_, high_);
    if (kind_ == "cispo") {
      return {-r.clipped * advantage * logprob, -r.clipped * advantage};
    }
    const LossTerm term = clipped_loss(r, advantage);
    const double most = -dual_clip_ * advantage;
    return dual_clip_ > 0 && advantage < 0 && term.loss > most ? LossTerm{most, 0} : term;
  }

  LossTerm divergence(double logprob, double reference) const {
    const double d = logprob - reference;
    if (kl_ == "k1") return {d, 1};
    if (kl_ == "k2") return {d * d / 2, d};
    const double kl = std::min(std::max(-d, -kLongestStep), kLongestStep), ratio = std::exp(kl);
    const double value = ratio - kl - 1;
    if (value > kLargestK3) return {kLargestK3, 0};
    return {value, 1 - ratio};  // -d is within its limit: beyond it, k3 is above its own
  }
  bool has_divergence() const { return kl_ != "none"; }

 private:
  const std::string &kind_, &kl_;
  double low_, high_, dual_clip_;
};

/// Writes the sum, or adds it to the output if the task accumulates.
void put_sum(const KernelArgs& args, double sum) {
  double* to = out<double>(args, 0);
  *to = accumulates(args, 0) ? *to + sum : sum;
}

}  // namespace

void policy_loss(const KernelArgs& args) {
  const double *logprobs = in<double>(args, 0), *entropies = in<double>(args, 1);
  const double *old = in<double>(args, 2), *reference = in<double>(args, 3);
  const double *advantages = in<double>(args, 4), *weights = in<double>(args, 5);
  const double scale = *in<double>(args, 6);
  const TokenLoss loss(*args.attrs);
  const double kl_coef = args.attrs->f("kl_coef"), entropy_coef = args.attrs->f("entropy_coef");
  const bool grad = args.out.size() > 1;
  double* const of_logprobs = grad ? out<double>(args, 1) : nullptr;
  double* const of_entropies = grad ? out<double>(args, 2) : nullptr;
  double sum = 0;
  for (int64_t t = 0; t < count(args.in[0]); ++t) {
    LossTerm term;
    double of_entropy = 0;
    if (const double weight = scale * weights[t]; weight != 0) {
      term = loss.policy(logprobs[t], old[t], advantages[t]);
      if (loss.has_divergence()) {
        const LossTerm kl = loss.divergence(logprobs[t], reference[t]);
        term.loss += kl_coef * kl.loss;
        term.slope += kl_coef * kl.slope;
      }
      if (entropy_coef != 0) {
        term.loss -= entropy_coef * entropies[t];
      }
      sum += weight * term.loss;
      term.slope *= weight;
      of_entropy = -weight * entropy_coef;
    }
    if (grad) {
      of_logprobs[t] = term.slope;
      of_entropies[t] = of_entropy;
    }
  }
  put_sum(args, sum);
}

void sequence_policy_loss(const KernelArgs& args) {
  const double *logprobs = in<double>(args, 0), *old = in<double>(args, 1);
  const double *advantages = in<double>(args, 2), *weights = in<double>(args, 3);
  const double *lengths = in<double>(args, 4), scale = *in<double>(args, 5);
  const double low = 1 - args.attrs->f("clip_low"), high = 1 + args.attrs->f("clip_high");
  double* const of_logprobs = args.out.size() > 1 ? out<double>(args, 1) : nullptr;
  double sum = 0;
  for (int64_t a = 0; a < count(args.in[0]); ++a) {
    LossTerm term;
    if (const double weight = scale * weights[a]; weight != 0) {
      const double step = (logprobs[a] - old[a]) / lengths[a];
      term = clipped_loss(ratio_of(step, -HUGE_VAL, kLongestOfSample, low, high), advantages[a]);
      sum += weight * term.loss;
      term.slope *= weight / lengths[a];
    }
    if (of_logprobs) {
      of_logprobs[a] = term.slope;
    }
  }
  put_sum(args, sum);
}

template <typename T>
void value_loss(const KernelArgs& args) {
  const T* values = in<T>(args, 0);
  const double *old = in<double>(args, 1), *returns = in<double>(args, 2);
  const double *weights = in<double>(args, 3), scale = *in<double>(args, 4);
  const double clip = args.attrs->f("clip");
  T* const of_values = args.out.size() > 1 ? out<T>(args, 1) : nullptr;
  double sum = 0;
  for (int64_t t = 0; t < args.in[0].dim(0); ++t) {
    double slope = 0;
    if (const double weight = scale * weights[t]; weight != 0) {
      const double value = static_cast<double>(values[t]), error = value - returns[t];
      double loss = error * error / 2;
      slope = weight * error;
      if (clip > 0) {
        const double clipped = std::min(std::max(value, old[t] - clip), old[t] + clip);
        const double beyond = clipped - returns[t];
        if (clipped != value && beyond * beyond > error * error) {
          loss = beyond * beyond / 2;
          slope = 0;
        }
      }
      sum += weight * loss;
    }
    if (of_values) {
      of_values[t] = static_cast<T>(slope);
    }
  }
  put_sum(args, sum);
}

HOCKET_KERNEL(value_loss)

}  // namespace hocket::kernels::HOCKET_CPU
