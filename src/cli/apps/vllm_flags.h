// SPDX-License-Identifier: Apache-2.0
// Flags of vLLM's server that `hocket serve` has under other names, or needs not.
#pragma once

#include <string>

#include "cli/args.h"

namespace hocket::cli {

/// Adds the flags that have no effect here, and an error for each of the others that names what
/// takes its place.
void add_vllm_flags(Args& args);
/// Returns the flags as a part of a page of Markdown (docs/serving-fields.md).
std::string vllm_flags_page();

}  // namespace hocket::cli
