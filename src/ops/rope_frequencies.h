// SPDX-License-Identifier: Apache-2.0
// Frequencies of rotary embeddings, by the attributes of op rope.
#pragma once

#include <span>

#include "graph/tensor_type.h"

namespace hocket::ops {

/// Sets the angle per position of every pair of the `2 * frequencies.size()` dims that turn, and
/// returns the factor of cos and sin. Attributes: `theta`, and those of `scaling`, as the
/// `rope_type`s of transformers' modeling_rope_utils define it:
///   default   none
///   linear    factor
///   llama3    factor, low_freq_factor, high_freq_factor, original_max_position
///   dynamic   factor, original_max_position, seq (i64): the longest sequence of the graph
///   yarn      factor, original_max_position; absent or: beta_fast 32, beta_slow 1, truncate 1
///             (i64), attention_factor, else mscale and mscale_all_dim
///   longrope  original_max_position, factors: a number per pair, separated by blanks (the short or
///             the long list of the model); attention_factor, else factor
/// Throws Error for another scaling, or values without a meaning.
double rope_frequencies(const graph::Attrs& attrs, std::span<double> frequencies);

}  // namespace hocket::ops
