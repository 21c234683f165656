// SPDX-License-Identifier: Apache-2.0
// hocket whatif --bottleneck: its options.
#pragma once

#include <string>

#include "cli/args.h"
#include "whatif/bottleneck.h"

namespace hocket::cli {

struct BottleneckWords {
  bool asked = false;
  std::string ranks, bandwidths, ratios, used, fusion, timeout, adds;
};

void add_bottleneck(Args& args, BottleneckWords* words);

/// Throws Error for words that cannot be parsed, or an option of --bottleneck without it.
whatif::BottleneckOptions bottleneck_options(const BottleneckWords& words);

}  // namespace hocket::cli
