// SPDX-License-Identifier: Apache-2.0
// Families of random plans.
#pragma once

#include <cstdint>
#include <string>

namespace hocket::test {

/// Gives the model of a run's text another family of the same shape, in half of the seeds. The text
/// ends in the keys of `config: {`, those of a Llama or, with experts, a Qwen3-MoE.
void give_family(uint64_t seed, bool moe, std::string* text);

}  // namespace hocket::test
