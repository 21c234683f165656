// SPDX-License-Identifier: Apache-2.0
// preference_loss, kto_loss: a few numbers per answer, on one thread.
#include <cmath>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "ops/preference_terms.h"

namespace hocket::kernels::HOCKET_CPU {

namespace {

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
double log_sigmoid(double x) {
  return x >= 0 ? -std::log1p(std::exp(-x)) : x - std::log1p(std::exp(x));
}

/// A loss and its derivative.
struct Value {
  double loss = 0, slope = 0;
};

Value compare(const std::string& loss, double beta, double smoothing, double delta) {
  if (loss == "ipo") {
    const double beyond = delta - 1 / (2 * beta);
    return {beyond * beyond, 2 * beyond};
  }
  if (loss == "hinge") {
    const double below = 1 - beta * delta;
    return below > 0 ? Value{below, -beta} : Value{};
  }
  const double x = beta * delta;
  return {-(1 - smoothing) * log_sigmoid(x) - smoothing * log_sigmoid(-x),
          -beta * ((1 - smoothing) * sigmoid(-x) - smoothing * sigmoid(x))};
}

/// Writes the loss, or adds it to the output if the task accumulates.
void put_loss(const KernelArgs& args, double loss) {
  double* to = out<double>(args, 0);
  *to = accumulates(args, 0) ? *to + loss : loss;
}

}  // namespace

void preference_loss(const KernelArgs& args) {
  const double *policy = in<double>(args, 0), *reference = in<double>(args, 1);
  const double *weights = in<double>(args, 2), *lengths = in<double>(args, 3);
  const double scale = *in<double>(args, 4);
  const std::vector<ops::PreferenceTerm> terms = ops::preference_terms(args.attrs->s("loss"));
  const double beta = args.attrs->f("beta"), smoothing = args.attrs->f("label_smoothing");
  double* const of_policy = args.out.size() > 1 ? out<double>(args, 1) : nullptr;
  double sum = 0;
  for (int64_t a = 0; a + 1 < count(args.in[0]); a += 2) {
    const double weight = scale * weights[a];
    double slopes[2] = {0, 0};
    for (const ops::PreferenceTerm& term : terms) {
      if (weight == 0) break;
      double by[2], ratio[2];
      for (int64_t side : {0, 1}) {
        by[side] = term.per_token() ? 1 / lengths[a + side] : 1.0;
        ratio[side] = (policy[a + side] - reference[a + side]) * by[side];
      }
      const Value value = compare(term.name, beta, smoothing, ratio[0] - ratio[1]);
      sum += weight * term.weight * value.loss;
      slopes[0] += weight * term.weight * value.slope * by[0];
      slopes[1] -= weight * term.weight * value.slope * by[1];
    }
    if (of_policy) {
      of_policy[a] = slopes[0];
      of_policy[a + 1] = slopes[1];
    }
  }
  put_loss(args, sum);
}

void kto_loss(const KernelArgs& args) {
  const double *policy = in<double>(args, 0), *reference = in<double>(args, 1),
               *weights = in<double>(args, 2);
  const int32_t* sides = in<int32_t>(args, 3);
  const double point = *in<double>(args, 4), scale = *in<double>(args, 5);
  const double beta = args.attrs->f("beta");
  double* const of_policy = args.out.size() > 1 ? out<double>(args, 1) : nullptr;
  double sum = 0;
  for (int64_t a = 0; a < count(args.in[0]); ++a) {
    const bool counts = sides[a] == 1 || sides[a] == -1;
    const double side = counts ? sides[a] : 0;
    const double weight = counts ? scale * weights[a] : 0;
    const double x = counts ? beta * side * (policy[a] - reference[a] - point) : 0;
    sum += weight * sigmoid(-x);
    if (of_policy) {
      of_policy[a] = -weight * beta * side * sigmoid(x) * sigmoid(-x);
    }
  }
  put_loss(args, sum);
}

}  // namespace hocket::kernels::HOCKET_CPU
