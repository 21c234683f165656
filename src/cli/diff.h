// SPDX-License-Identifier: Apache-2.0
// Differences between two programs or two graphs: kinds of tasks first, then tasks.
#pragma once

#include <string>

namespace hocket::cli {

/// Returns the differences of two programs' texts, or of two graphs'. `a_name` and `b_name` name
/// them. Prints at most `limit` task lines. Throws Error for texts of different kinds, or of
/// neither.
std::string diff_texts(const std::string& a_name, const std::string& text,
                       const std::string& b_name, const std::string& b, size_t limit);

}  // namespace hocket::cli
