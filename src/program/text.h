// SPDX-License-Identifier: Apache-2.0
// Shared parts of the text form: text.cc prints, parse.cc reads.
#pragma once

#include <string_view>

#include "program/program.h"

namespace hocket::program {

inline constexpr std::string_view kHeader = "hocket-program 2";    ///< the first line
inline constexpr std::string_view kAnyHeader = "hocket-program ";  ///< of any version
inline constexpr std::string_view kEnd = "end";                    ///< the last line

BufferKind parse_buffer_kind(std::string_view text);

}  // namespace hocket::program
