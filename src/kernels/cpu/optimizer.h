// SPDX-License-Identifier: Apache-2.0
// The step's settings, as the kernels of all optimizers read them.
#pragma once

#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

/// Returns the parameters' learning rate: the first of `hyper`, times attribute lr_scale.
inline double learning_rate(const KernelArgs& args, size_t hyper) {
  const double lr = *in<double>(args, hyper);
  return args.attrs->has("lr_scale") ? lr * args.attrs->f("lr_scale") : lr;
}

}  // namespace hocket::kernels::HOCKET_CPU
