// SPDX-License-Identifier: Apache-2.0
// `hocket data show` of a run with objective: rl: its prompts as the sampler reads them.
#pragma once

#include <cstdint>
#include <string>

#include "cli/apps/data_show.h"
#include "run/config.h"

namespace hocket::cli {

/// Returns the first prompts, in the order of training or of a held-out set, with their tokens and
/// ground truths, then sizes and notes. `split`: train, valid, or a name in data.evaluation. Throws
/// Error for no prompt, or another name.
std::string show_prompts(const engine::Run& run, const std::string& split, int64_t count, bool json,
                         const ShowStyle& style);

}  // namespace hocket::cli
