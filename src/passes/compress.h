// SPDX-License-Identifier: Apache-2.0
// Compressible gradient all-reduces of a program, by parameters. A search over codecs
// (planner/codecs/codecs.h) uses them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "program/program.h"

namespace hocket::passes {

/// The name for no codec.
inline constexpr const char* kNoCodec = "none";
/// The word of plan.grad_codec_of by which the host's CPU encodes, decodes and adds up, not the
/// device: the last one of a rule.
inline constexpr const char* kOnHost = "host";
/// Values of plan.grad_codec: kNoCodec, and all codecs.
std::vector<std::string> codec_names();

/// One transfer in which gradients are summed over replicas: a tensor, or a bucket of them.
struct GradSum {
  std::vector<std::string> parameters;  ///< parameters with a codec that applies
  int64_t bytes = 0;                    ///< bytes of their gradients on a rank, uncompressed
  /// Parameters by codec; and by codec and route ("int8 at_once"), where that differs from the
  /// codec's default route (plan.grad_codec_of).
  std::map<std::string, std::vector<std::string>> taken_by;
};
/// Returns the all-reduces of a program before the pass to which one of the codecs applies, class
/// by class in list order. Those with a common parameter are one: those of several classes, and the
/// parts of one gradient. Throws Error for an unknown codec.
std::vector<GradSum> grad_sums(const program::Program& program,
                               const std::vector<std::string>& codecs);

/// Returns, by the buffer with the memory, the parameter of the gradient that it holds: from the
/// optimizer's or the host's read.
std::map<program::BufferId, std::string> parameters_of_gradients(const program::Program& program,
                                                                 program::ClassId cls);

}  // namespace hocket::passes
