// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov & Hutter, arXiv 1711.05101): two moments per parameter, and from step to step
// the learning rate and both bias corrections (ops/adamw.cc).
#include <cmath>

#include "autodiff/optimizer.h"
#include "graph/names.h"

namespace hocket::autodiff {

Optimizer optimizer_adamw() {
  return {"adamw",
          [](const Update& update) {
            const OptimizerConfig& config = update.config();
            const graph::TensorId mean = update.state(graph::names::kExpAvgOf);
            const graph::TensorId mean_square = update.state(graph::names::kExpAvgSqOf);
            update.apply("adamw",
                         {{"beta1", config.beta1},
                          {"beta2", config.beta2},
                          {"eps", config.eps},
                          {"weight_decay", update.weight_decay()}},
                         {mean, mean_square});
          },
          [](const OptimizerConfig& config, double lr, int64_t step) {
            const auto t = static_cast<double>(step);
            return std::vector<double>{lr, 1 - std::pow(config.beta1, t),
                                       1 - std::pow(config.beta2, t)};
          }};
}

}  // namespace hocket::autodiff
