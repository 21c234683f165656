// SPDX-License-Identifier: Apache-2.0
// What differs between two programs or two graphs: kinds of tasks first, then the tasks.
#pragma once

#include <string>

namespace hocket::cli {

/// Both texts of programs, or both of graphs; `a` and `b` name them. At most `limit` task lines.
/// Error: texts of different kinds, or of neither.
std::string diff_texts(const std::string& a_name, const std::string& text,
                       const std::string& b_name, const std::string& b, size_t limit);

}  // namespace hocket::cli
