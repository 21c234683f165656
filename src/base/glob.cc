// SPDX-License-Identifier: Apache-2.0
#include "base/glob.h"

#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
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

enum class Type { file, folder, unreadable, other };

Type type_of(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return errno == EACCES ? Type::unreadable : Type::other;
  if (S_ISREG(st.st_mode)) return Type::file;
  return S_ISDIR(st.st_mode) ? Type::folder : Type::other;
}

// One pattern's way through the file system, part by part.
class Walk {
 public:
  Walk(std::vector<std::string> parts, std::vector<std::string>* out,
       std::vector<GlobSkipped>* skipped)
      : parts_(std::move(parts)), out_(out), skipped_(skipped) {}

  // Matches the parts from `at` on below `base`, which is "" for the current folder and otherwise
  // ends with a slash.
  void from(const std::string& base, size_t at) {
    const std::string& part = parts_[at];
    const bool last = at + 1 == parts_.size();
    if (part == "**") {
      if (!last) {
        from(base, at + 1);
      }
      any_depth(base, at, last);
    } else if (has_wildcard(part)) {
      for (const std::string& name : names_in(base)) {
        if (::fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) == 0) {
          take(base + name, at, last);
        }
      }
    } else {
      take(base + part, at, last);
    }
  }

 private:
  // A name that matched: a file at the end of the pattern, a folder before.
  void take(const std::string& path, size_t at, bool last) {
    if (!last) {
      if (type_of(path) == Type::folder) {
        from(path + "/", at + 1);
      }
    } else if (type_of(path) == Type::file) {
      out_->push_back(path);
    }
  }

  void any_depth(const std::string& base, size_t at, bool last) {
    using Why = GlobSkipped::Why;
    for (const std::string& name : names_in(base)) {
      const std::string path = base + name;
      const Type type = type_of(path);
      if (name[0] == '.') {
        skip(path, Why::hidden);
      } else if (type == Type::unreadable) {
        skip(path, Why::unreadable);
      } else if (type == Type::folder && is_link(path)) {
        skip(path, Why::linked_folder);
      } else if (type == Type::folder) {
        from(path + "/", at);
      } else if (type == Type::other) {
        skip(path, Why::no_file);
      } else if (last) {
        out_->push_back(path);
      }
    }
  }

  std::vector<std::string> names_in(const std::string& base) {
    try {
      return list_dir(base.empty() ? "." : base);
    } catch (const Error&) {
      skip(base.size() > 1 ? base.substr(0, base.size() - 1)
           : base.empty()  ? "."
                           : base,
           GlobSkipped::Why::unreadable);
      return {};
    }
  }

  void skip(const std::string& path, GlobSkipped::Why why) {
    if (skipped_ != nullptr) {
      skipped_->push_back({path, why});
    }
  }

  const std::vector<std::string> parts_;
  std::vector<std::string>* out_;
  std::vector<GlobSkipped>* skipped_;
};

template <class Item, class Key>
void sort_unique(std::vector<Item>* items, const Key& key) {
  std::sort(items->begin(), items->end(),
            [&](const Item& a, const Item& b) { return key(a) < key(b); });
  const auto same = [&](const Item& a, const Item& b) { return key(a) == key(b); };
  items->erase(std::unique(items->begin(), items->end(), same), items->end());
}

}  // namespace

const char* to_string(GlobSkipped::Why why) {
  switch (why) {
    case GlobSkipped::Why::hidden:
      return "hidden";
    case GlobSkipped::Why::linked_folder:
      return "a link to a folder";
    case GlobSkipped::Why::unreadable:
      return "cannot be read";
    case GlobSkipped::Why::no_file:
      return "no regular file";
  }
  return "?";
}

std::vector<std::string> list_glob(const std::string& pattern, std::vector<GlobSkipped>* skipped) {
  std::vector<std::string> parts, out;
  for (std::string& part : split(pattern, '/')) {
    if (!part.empty() && !(part == "**" && !parts.empty() && parts.back() == "**")) {
      parts.push_back(std::move(part));
    }
  }
  if (parts.empty()) return out;
  std::vector<GlobSkipped> passed;
  Walk(std::move(parts), &out, &passed).from(pattern[0] == '/' ? "/" : "", 0);
  sort_unique(&out, [](const std::string& path) -> const std::string& { return path; });
  if (skipped != nullptr) {
    sort_unique(&passed, [](const GlobSkipped& glob_skipped) -> const std::string& {
      return glob_skipped.path;
    });
    skipped->insert(skipped->end(), passed.begin(), passed.end());
  }
  return out;
}

}  // namespace hocket
