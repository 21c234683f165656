// SPDX-License-Identifier: Apache-2.0
// hocket plan codecs, hocket plan espresso: which gradients travel through which codec.
#pragma once

#include "cli/args.h"

namespace hocket::cli {

void declare_plan_codecs(Args& args);
void declare_plan_espresso(Args& args);

}  // namespace hocket::cli
