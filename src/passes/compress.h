// SPDX-License-Identifier: Apache-2.0
// What `compress` could encode: the sums of gradients of a program, by the parameters whose
// gradients they are. A search over codecs (planner/codecs/codecs.h) names them by these.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "program/program.h"

namespace hocket::passes {

/// The name of no codec: a sum stays what it is.
inline constexpr const char* kNoCodec = "none";
/// The word of plan.grad_codec_of by which the host's CPU encodes, decodes and adds up, not the
/// device: the last one of a rule.
inline constexpr const char* kOnHost = "host";
/// Values of plan.grad_codec: kNoCodec, and all codecs.
std::vector<std::string> codec_names();

/// One transfer in which gradients are summed over replicas: a tensor, or a bucket of them.
struct GradSum {
  std::vector<std::string> parameters;  ///< whose gradients of it some codec takes
  int64_t bytes = 0;                    ///< of these gradients on a rank, not encoded
  /// Of the parameters, by codec; and by codec and route ("int8 at_once"), where that is another
  /// way than the one that the codec takes without (plan.grad_codec_of).
  std::map<std::string, std::vector<std::string>> taken_by;
};
/// Those of a program before the pass of which one of the codecs takes a gradient, class by class
/// in the order of their lists. Sums that have a parameter in common stand as one: those of several
/// classes, and the parts of one gradient. Error: unknown codec.
std::vector<GradSum> grad_sums(const program::Program& program,
                               const std::vector<std::string>& codecs);

/// By the buffer that has the memory: the parameter whose gradient it holds, as who updates the
/// states of an optimizer reads it, or as the host does.
std::map<program::BufferId, std::string> parameters_of_gradients(const program::Program& program,
                                                                 program::ClassId cls);

}  // namespace hocket::passes
