// SPDX-License-Identifier: Apache-2.0
#include "base/glob.h"

#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace hocket {
namespace {

bool has_wildcard(std::string_view text) {
  return text.find_first_of("*?[") != std::string_view::npos;
}

bool is_link(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 && S_ISLNK(st.st_mode);
}

bool is_regular(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode);
}

// Of a folder; none if it cannot be read.
std::vector<std::string> names_in(const std::string& path) {
  try {
    return list_dir(path);
  } catch (const Error&) {
    return {};
  }
}

// `base` is "" for the current folder and otherwise ends with a slash.
void glob_from(const std::string& base, const std::vector<std::string>& parts, size_t at,
               std::vector<std::string>* out) {
  const std::string& part = parts[at];
  const bool last = at + 1 == parts.size();
  if (part != "**" && !has_wildcard(part)) {
    const std::string path = base + part;
    if (last) {
      if (is_regular(path)) out->push_back(path);
    } else {
      glob_from(path + "/", parts, at + 1, out);
    }
    return;
  }
  if (part == "**" && !last) glob_from(base, parts, at + 1, out);
  for (const std::string& name : names_in(base.empty() ? "." : base)) {
    const std::string path = base + name;
    if (part == "**") {
      if (name[0] == '.') continue;
      if (is_directory(path)) {
        if (!is_link(path)) glob_from(path + "/", parts, at, out);
      } else if (last && is_regular(path)) {
        out->push_back(path);
      }
    } else if (::fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) == 0) {
      if (last) {
        if (is_regular(path)) out->push_back(path);
      } else if (is_directory(path)) {
        glob_from(path + "/", parts, at + 1, out);
      }
    }
  }
}

}  // namespace

std::vector<std::string> list_glob(const std::string& pattern) {
  std::vector<std::string> parts, out;
  for (std::string& part : split(pattern, '/')) {
    if (!part.empty() && !(part == "**" && !parts.empty() && parts.back() == "**")) {
      parts.push_back(std::move(part));
    }
  }
  if (parts.empty()) return out;
  glob_from(pattern[0] == '/' ? "/" : "", parts, 0, &out);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace hocket
