// SPDX-License-Identifier: Apache-2.0
// Implements: list_data_files (files.h).
#include "data/examples/files.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/glob.h"
#include "base/text.h"
#include "data/examples/bytes.h"

namespace hocket::data {
namespace {

constexpr const char* kEndings =
    ".jsonl, .ndjson, .json, .txt (each also .gz or .zst), .parquet, or .idx beside .bin";

struct Ending {
  std::string_view text;
  DataFile::Kind kind;
  bool packs;  // may be compressed
};
constexpr std::array<Ending, 6> kKinds = {{{".jsonl", DataFile::Kind::json, true},
                                           {".ndjson", DataFile::Kind::json, true},
                                           {".json", DataFile::Kind::json, true},
                                           {".txt", DataFile::Kind::text, true},
                                           {".parquet", DataFile::Kind::table, false},
                                           {".idx", DataFile::Kind::tokens, false}}};

std::optional<DataFile::Kind> kind_of(const std::string& path) {
  const std::string name = without_compression(path);
  for (const Ending& ending : kKinds) {
    if (name.ends_with(ending.text) && (ending.packs || name == path)) return ending.kind;
  }
  return std::nullopt;
}

std::string ending_of(const std::string& path) {
  const std::string name = file_name(path);
  const size_t dot = name.rfind('.');
  return dot == std::string::npos || dot == 0 ? "no ending" : name.substr(dot);
}

DataFile file_of(const std::string& path, DataFile::Kind kind) {
  const bool tokens = kind == DataFile::Kind::tokens;
  return {tokens ? path.substr(0, path.size() - std::string_view(".idx").size()) : path, kind};
}

[[noreturn]] void nothing_found(const SourceOptions& source, bool folder,
                                const std::map<std::string, int64_t>& left_out) {
  const std::string& path = source.path;
  std::vector<std::string> others;
  for (const auto& [why, count] : left_out) {
    others.push_back(fmt::format("{} {}", count, why));
  }
  const char* advice = path.starts_with('~')                 ? "; ~ is not expanded here"
                       : path.find('{') != std::string::npos ? "; {a,b} is not expanded here"
                                                             : "";
  fail(source.key, "{} {}{}; expected files with {}{}", quote(path),
       folder ? "is a folder without data files" : "matches no data file",
       others.empty() ? "" : fmt::format(" (left out: {})", join(others, ", ")), kEndings, advice);
}

/// Words in names that say a split, as Hugging Face's loader takes them.
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kSplitWords = {
    {{"train", "train"},
     {"training", "train"},
     {"validation", "validation"},
     {"valid", "validation"},
     {"val", "validation"},
     {"dev", "validation"},
     {"test", "test"},
     {"testing", "test"},
     {"eval", "test"},
     {"evaluation", "test"}}};

/// Returns the split that a name says; empty: none.
std::string_view split_in_name(std::string_view name) {
  constexpr std::string_view kBetween = "-._/ 0123456789";
  size_t begin = 0;
  for (size_t at = 0; at <= name.size(); ++at) {
    if (at < name.size() && kBetween.find(name[at]) == kBetween.npos) continue;
    for (const auto& [word, split] : kSplitWords) {
      if (name.substr(begin, at - begin) == word) return split;
    }
    begin = at + 1;
  }
  return "";
}

/// Throws Error for a folder with a training split beside another one: to train on both is hardly
/// meant.
void expect_one_split(const SourceOptions& source, const std::vector<DataFile>& files) {
  std::map<std::string_view, std::string> first;
  for (const DataFile& file : files) {
    const std::string_view path = file.path;
    const size_t above = path.starts_with(source.path) ? source.path.size() : 0;
    if (const std::string_view split = split_in_name(path.substr(above)); !split.empty()) {
      first.emplace(split, file.path);
    }
  }
  if (!first.contains("train") || first.size() == 1) return;
  const auto& [other, path] = *std::find_if(first.begin(), first.end(),
                                            [](const auto& each) { return each.first != "train"; });
  const std::string& train = first.at("train");
  const std::string_view name = std::string_view(train).substr(train.rfind('/') + 1);
  const bool in_name = split_in_name(name) == "train";
  fail(source.key,
       "the folder {} has a training split, {}, and one for {}, {}; expected one of them; try a "
       "glob: {}",
       source.path, train, other, path,
       join_path(source.path, in_name ? "**/*train*" : "**/*train*/*"));
}

}  // namespace

std::vector<DataFile> list_data_files(const SourceOptions& source,
                                      std::map<std::string, int64_t>* left_out) {
  const std::string& path = source.path;
  if (path.empty()) fail(source.key, "path is empty; expected a file, folder or glob");
  const bool folder = is_directory(path);
  if (!folder && file_exists(path)) {
    if (path.ends_with(".bin") && file_exists(path.substr(0, path.size() - 4) + ".idx")) {
      return {{path.substr(0, path.size() - 4), DataFile::Kind::tokens}};
    }
    const auto kind = kind_of(path);
    if (!kind) {
      fail(source.key, "{} has {} at its end; expected {}", path, ending_of(path), kEndings);
    }
    return {file_of(path, *kind)};
  }
  // Megatron names both files by what stands before the dot.
  if (!folder && file_exists(path + ".idx")) return {{path, DataFile::Kind::tokens}};
  std::vector<GlobSkipped> skipped;
  const std::vector<std::string> found =
      list_glob(folder ? join_path(path, "**/*") : path, &skipped);
  for (const GlobSkipped& entry : skipped) {
    ++(*left_out)[to_string(entry.why)];
  }
  std::vector<DataFile> files;
  std::set<DataFile::Kind> kinds;
  for (const std::string& name : found) {
    const auto kind = kind_of(name);
    if (kind) {
      files.push_back(file_of(name, *kind));
      kinds.insert(*kind);
    } else if (!(name.ends_with(".bin") && file_exists(name.substr(0, name.size() - 4) + ".idx"))) {
      ++(*left_out)[fmt::format("no data file ({})", ending_of(name))];
    }
  }
  if (files.empty()) {
    nothing_found(source, folder, *left_out);
  }
  if (kinds.contains(DataFile::Kind::tokens) && kinds.size() > 1) {
    fail(source.key,
         "{} has token files (.idx) beside files of text; expected one kind; try a "
         "glob for each, as two sources",
         path);
  }
  if (folder) {
    expect_one_split(source, files);
  }
  return files;
}

}  // namespace hocket::data
