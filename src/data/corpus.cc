// SPDX-License-Identifier: Apache-2.0
// Which files a list of inputs means, and which split each belongs to.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/glob.h"
#include "base/text.h"
#include "data/prepare.h"

namespace hocket::data {
namespace {

std::vector<std::string> expand(const std::vector<std::string>& inputs) {
  if (inputs.empty()) fail("data", "no inputs; expected files, folders or globs");
  std::vector<std::string> paths;
  std::set<std::string> seen;
  for (const std::string& input : inputs) {
    const bool folder = is_directory(input);
    const std::vector<std::string> found = list_glob(folder ? join_path(input, "**/*") : input);
    if (found.empty()) {
      fail("data", "input {} {}; expected files", quote(input),
           folder ? "is a folder without files" : "matches nothing");
    }
    for (const std::string& path : found) {
      if (seen.insert(path).second) paths.push_back(path);
    }
  }
  return paths;
}

bool in_valid(const Hash128& content, uint64_t seed, double fraction) {
  const uint64_t bits = hash_combine(hash_combine(seed, content.high), content.low);
  return static_cast<double>(bits >> 11) * 0x1p-53 < fraction;
}

}  // namespace

std::vector<std::string> Corpus::paths(bool valid) const {
  std::vector<std::string> out;
  for (const File& f : files) {
    if (f.valid == valid) out.push_back(f.path);
  }
  return out;
}

int64_t Corpus::bytes(bool valid) const {
  int64_t sum = 0;
  for (const File& f : files) sum += f.valid == valid ? f.bytes : 0;
  return sum;
}

Corpus scan_corpus(const CorpusOptions& options) {
  if (!(options.valid_fraction >= 0 && options.valid_fraction < 1)) {
    fail("data", "valid_fraction {}; expected 0 or more, and less than 1", options.valid_fraction);
  }
  Corpus corpus;
  std::map<Hash128, std::string> first;  // path of each content
  for (const std::string& path : expand(options.inputs)) {
    const MappedFile file(path);
    const std::string_view text = file.bytes();
    if (text.empty()) {
      corpus.dropped.push_back({path, "empty"});
    } else if (text.find('\0') != std::string_view::npos) {
      corpus.dropped.push_back({path, "binary"});
    } else {
      const Hash128 hash = hash128(text);
      const auto [known, is_new] = first.emplace(hash, path);
      if (is_new) {
        corpus.files.push_back({path, static_cast<int64_t>(text.size()), hash,
                                in_valid(hash, options.seed, options.valid_fraction)});
      } else {
        corpus.dropped.push_back({path, "duplicate of " + known->second});
      }
    }
  }
  if (corpus.files.empty()) {
    fail("data",
         "no text in {} files: all are empty, binary or duplicates; expected at least one "
         "file of text",
         corpus.dropped.size());
  }
  if (corpus.bytes(false) == 0) {
    fail("data",
         "all {} files fell into the validation split; expected training files; try more "
         "files, another seed or a smaller valid_fraction",
         corpus.files.size());
  }
  if (options.valid_fraction > 0 && corpus.bytes(true) == 0) {
    fail("data",
         "none of {} files fell into the validation split; try more files, another seed, a "
         "larger valid_fraction, or 0 for no validation",
         corpus.files.size());
  }
  return corpus;
}

}  // namespace hocket::data
