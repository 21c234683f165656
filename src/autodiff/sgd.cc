// SPDX-License-Identifier: Apache-2.0
// Stochastic gradient descent with momentum (Polyak, 1964; Sutskever et al., ICML 2013), as
// torch.optim.SGD has it: one state per parameter; beta1 is the momentum (ops/sgd.cc).
#include "autodiff/optimizer.h"

namespace hocket::autodiff {

Optimizer optimizer_sgd() {
  return {"sgd",
          [](const Update& update) {
            update.apply(
                "sgd",
                {{"momentum", update.config().beta1}, {"weight_decay", update.weight_decay()}},
                {update.state("momentum_buffer.")});
          },
          [](const OptimizerConfig&, double lr, int64_t) { return std::vector<double>{lr}; }};
}

}  // namespace hocket::autodiff
