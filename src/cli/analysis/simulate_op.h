// SPDX-License-Identifier: Apache-2.0
// hocket simulate op: one collective alone, at several sizes, by the cost model of all simulations.
#pragma once

#include "cli/args.h"

namespace hocket::cli {

void declare_simulate_op(Args& args);

}  // namespace hocket::cli
