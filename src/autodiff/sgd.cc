// SPDX-License-Identifier: Apache-2.0
// Stochastic gradient descent with momentum (Polyak, 1964; Sutskever et al., ICML 2013), as
// torch.optim.SGD has it: one state per parameter (ops/sgd.cc).
#include "autodiff/optimizer.h"
#include "graph/names.h"

namespace hocket::autodiff {

Optimizer optimizer_sgd() {
  return {"sgd",
          [](const Update& update) {
            graph::Attrs attrs{{"momentum", update.config().momentum},
                               {"weight_decay", update.weight_decay()}};
            if (update.config().nesterov) {
              attrs.set("nesterov", int64_t{1});
            }
            update.apply("sgd", std::move(attrs), {update.state(graph::names::kMomentumOf)});
          },
          [](const OptimizerConfig&, double lr, int64_t) { return std::vector<double>{lr}; }};
}

}  // namespace hocket::autodiff
