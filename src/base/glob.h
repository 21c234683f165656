// SPDX-License-Identifier: Apache-2.0
// Patterns of file names to the files that match.
#pragma once

#include <string>
#include <vector>

namespace hocket {

/// Entries skipped by a walk through folders.
struct GlobSkipped {
  enum class Why { hidden, linked_folder, unreadable, no_file };
  std::string path;
  Why why = Why::no_file;
};
/// "hidden", "a link to a folder", "cannot be read", "no regular file".
const char* to_string(GlobSkipped::Why why);

/// Returns the matching regular files, sorted by bytes, without duplicates. `*`, `?` and `[...]`
/// match within one name and never a leading dot; `**` alone between slashes matches any number of
/// folders (links to folders are not followed there). A pattern without wildcards yields the file
/// itself if it exists. `skipped`, if given, receives skipped entries below `**`: hidden names,
/// links to folders, other kinds of entries, and (of every wildcard) unreadable folders.
std::vector<std::string> list_glob(const std::string& pattern,
                                   std::vector<GlobSkipped>* skipped = nullptr);

}  // namespace hocket
