// SPDX-License-Identifier: Apache-2.0
// Patterns of file names to the files that match.
#pragma once

#include <string>
#include <vector>

namespace hocket {

/// Regular files that match, sorted by bytes, each once. `*`, `?` and `[...]` match within one name
/// and never a leading dot; `**` alone between slashes matches any number of folders (links to
/// folders are not followed there). A pattern without wildcards yields the file itself if it
/// exists.
std::vector<std::string> list_glob(const std::string& pattern);

}  // namespace hocket
