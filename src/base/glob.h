// SPDX-License-Identifier: Apache-2.0
// Patterns of file names to the files that match.
#pragma once

#include <string>
#include <vector>

namespace hocket {

/// What a walk through folders passed by.
struct GlobSkipped {
  enum class Why { hidden, linked_folder, unreadable, no_file };
  std::string path;
  Why why = Why::no_file;
};
/// "hidden", "a link to a folder", "cannot be read", "no regular file".
const char* to_string(GlobSkipped::Why why);

/// Regular files that match, sorted by bytes, each once. `*`, `?` and `[...]` match within one name
/// and never a leading dot; `**` alone between slashes matches any number of folders (links to
/// folders are not followed there). A pattern without wildcards yields the file itself if it
/// exists. `skipped`, if given, receives what lies in the folders that `**` stands for and is not
/// taken: hidden names, links to folders, what is neither file nor folder, and (of every wildcard)
/// folders that cannot be read.
std::vector<std::string> list_glob(const std::string& pattern,
                                   std::vector<GlobSkipped>* skipped = nullptr);

}  // namespace hocket
