// SPDX-License-Identifier: Apache-2.0
// hocket simulate schedule: a pipeline schedule without a model.
#pragma once

#include "cli/args.h"

namespace hocket::cli {

void declare_simulate_schedule(Args& args);

}  // namespace hocket::cli
