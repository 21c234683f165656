// SPDX-License-Identifier: Apache-2.0
// Implements: scan_corpus (prepare.h): the files of a list of inputs, and the split of each.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/glob.h"
#include "base/id.h"
#include "base/text.h"
#include "data/index.h"
#include "data/prepare.h"
#include "data/split.h"

namespace hocket::data {
namespace {

// Returns advice for an input without matches: patterns that only a shell expands.
std::string advice(const std::string& input) {
  if (input.starts_with('~')) return "; ~ is not expanded here; try the folder's full path";
  if (input.find('{') != std::string::npos) {
    return "; {a,b} is not expanded here; try one pattern for each";
  }
  return "";
}

Corpus::Why why_of(GlobSkipped::Why why) {
  switch (why) {
    case GlobSkipped::Why::hidden:
      return Corpus::Why::hidden;
    case GlobSkipped::Why::linked_folder:
      return Corpus::Why::linked_folder;
    case GlobSkipped::Why::unreadable:
      return Corpus::Why::unreadable;
    case GlobSkipped::Why::no_file:
      break;
  }
  return Corpus::Why::no_file;
}

// Returns every path once, in the order of the inputs, and the skipped entries.
std::vector<std::string> expand(const std::vector<std::string>& inputs,
                                std::vector<Corpus::Dropped>* dropped) {
  if (inputs.empty()) fail("data", "no inputs; expected files, folders or globs");
  std::vector<std::string> paths;
  std::set<std::string> seen, passed_by;
  for (const std::string& input : inputs) {
    const bool folder = is_directory(input);
    std::vector<GlobSkipped> skipped;
    const std::vector<std::string> found =
        list_glob(folder ? join_path(input, "**/*") : input, &skipped);
    for (const GlobSkipped& glob_skipped : skipped) {
      if (passed_by.insert(glob_skipped.path).second) {
        dropped->push_back({glob_skipped.path, why_of(glob_skipped.why), ""});
      }
    }
    if (found.empty()) {
      std::string other;
      if (!skipped.empty()) {
        other = fmt::format(" ({}: {})", skipped[0].path, to_string(skipped[0].why));
      }
      fail("data", "input {} {}{}; expected files{}", quote(input),
           folder ? "is a folder without files" : "matches nothing", other, advice(input));
    }
    for (const std::string& path : found) {
      if (seen.insert(path).second) {
        paths.push_back(path);
      }
    }
  }
  return paths;
}

// Result of one reading of a file. The hash covers the whole text only if it is one.
struct Content {
  int64_t begin = 0;  // behind a byte order mark of UTF-8
  int64_t bytes = 0;
  Hash128 hash;
  bool binary = false;
  bool utf16 = false;
};

Content content_of(const std::string& path) {
  Content content;
  Hasher hasher;
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  bool first = true;
  read_text_pieces(path, [&](std::string_view piece) {
    if (std::exchange(first, false)) {
      content.utf16 = piece.starts_with("\xFF\xFE") || piece.starts_with("\xFE\xFF");
      content.begin = piece.starts_with(kMark) ? std::ssize(kMark) : 0;
      piece.remove_prefix(static_cast<size_t>(content.begin));
    }
    content.bytes += std::ssize(piece);
    content.binary = piece.find('\0') != std::string_view::npos;
    hasher.add(piece);
    return !content.binary && !content.utf16;
  });
  content.hash = hasher.finish();
  return content;
}

/// Returns the same of a text that is read already.
Content content_of_text(const std::string& text) {
  return {0, std::ssize(text), hash128(text), text.find('\0') != text.npos, false};
}

/// Recognises outputs of `hocket data`, folder by folder: the tokenizer beside its
/// tokenizer_source.json, and the files of a prepared folder, whose index.json starts with its
/// format. Its shards are binary.
class Outputs {
 public:
  bool contains(const std::string& path) {
    const std::string name = file_name(path), folder = parent_path(path);
    const bool tokenizer = name == "tokenizer.json" || name == "tokenizer_config.json" ||
                           name == "tokenizer_source.json";
    if (tokenizer && file_exists(join_path(folder, "tokenizer_source.json"))) return true;
    return (tokenizer || name == kIndex || name == "baselines.json") && is_prepared(folder);
  }

 private:
  bool is_prepared(const std::string& folder) {
    const auto [known, is_new] = prepared_.emplace(folder, false);
    const std::string index = join_path(folder, kIndex);
    if (is_new && file_exists(index)) {
      read_pieces(index, [&](std::string_view piece) {
        known->second = piece.substr(0, 100).find("\"hocket-data\"") != piece.npos;
        return false;
      });
    }
    return known->second;
  }
  std::map<std::string, bool> prepared_;
};

bool is_inside_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

/// Returns the start of the held-out end of a text: a line near its share, or a character if there
/// is none. 0: the text is too short.
size_t end_begins(std::string_view text, double share) {
  const auto wanted = static_cast<size_t>(text.size() * (1 - share));
  const auto distance = [&](size_t at) { return at < wanted ? wanted - at : at - wanted; };
  // A newline that is not found counts as one before the text: a line that begins at 0.
  const size_t before = text.substr(0, wanted).rfind('\n') + 1, next = text.find('\n', wanted) + 1;
  const bool takes_next = next < text.size() && distance(next) < distance(before);
  const size_t line = takes_next ? next : before;
  if (line > 0 && distance(line) <= (text.size() - wanted) / 2) return line;
  size_t at = std::min(std::max<size_t>(wanted, 1), text.size() - 1);
  while (at > 0 && is_inside_character(text[at])) {
    --at;
  }
  return at;
}

/// A corpus of one file becomes one of two texts.
void cut_in_two(Corpus& corpus, double share) {
  Corpus::File& head = corpus.files.at(0);
  if (head.line_bytes > 0) {
    fail("data",
         "{} has one document, and nothing can be held out; try more text, or valid_fraction 0 for "
         "no validation",
         head.path);
  }
  const std::string text = head.text().read();
  const size_t at = end_begins(text, share);
  if (at == 0) {
    fail("data",
         "{} is all the text that there is, and too short to hold out its end; try more "
         "text, or valid_fraction 0 for no validation",
         head.path);
  }
  const std::string_view begin = std::string_view(text).substr(0, at),
                         end = std::string_view(text).substr(at);
  Corpus::File tail = head;
  head.bytes = std::ssize(begin);
  head.hash = hash128(begin);
  head.valid = false;
  tail.begin = head.begin + std::ssize(begin);
  tail.bytes = std::ssize(end);
  tail.hash = hash128(end);
  tail.valid = true;
  corpus.files.push_back(std::move(tail));
}

/// Draws the split of each file at random; one split without a file gets the one nearest to it.
void draw_split(Corpus& corpus, const CorpusOptions& options) {
  if (options.valid_fraction == 0) return;
  if (corpus.files.size() == 1) return cut_in_two(corpus, options.valid_fraction);
  const auto draw = [&](const Corpus::File& file) { return split_draw(file.hash, options.seed); };
  for (Corpus::File& file : corpus.files) {
    file.valid = draw(file) < options.valid_fraction;
  }
  const auto [least, most] = std::minmax_element(
      corpus.files.begin(), corpus.files.end(),
      [&](const Corpus::File& a, const Corpus::File& b) { return draw(a) < draw(b); });
  least->valid = true;
  most->valid = false;
}

}  // namespace

std::vector<std::string> Corpus::paths(bool valid) const {
  std::vector<std::string> out;
  for (const File& file : files) {
    if (file.valid == valid) {
      out.push_back(file.path);
    }
  }
  return out;
}

std::vector<TextPart> Corpus::texts(bool valid) const {
  std::vector<TextPart> out;
  for (const File& file : files) {
    if (file.valid == valid) {
      out.push_back(file.text());
    }
  }
  return out;
}

int64_t Corpus::bytes(bool valid) const {
  int64_t sum = 0;
  for (const File& file : files) {
    sum += file.valid == valid ? file.bytes : 0;
  }
  return sum;
}

std::map<Corpus::Why, int64_t> Corpus::dropped_counts() const {
  std::map<Why, int64_t> counts;
  for (const Dropped& d : dropped) {
    ++counts[d.why];
  }
  return counts;
}

std::vector<Corpus::Dropped> Corpus::largest_dropped(size_t most) const {
  std::vector<Dropped> list;
  for (const Dropped& file : dropped) {
    if (file.why == Why::binary || file.why == Why::utf16) {
      list.push_back(file);
    }
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const Dropped& a, const Dropped& b) { return a.bytes > b.bytes; });
  list.resize(std::min(list.size(), most));
  return list;
}

namespace {

// In the order of Corpus::Why.
constexpr struct {
  const char* key;
  const char* text;
} kWhys[] = {{"duplicate", "duplicate"},
             {"empty", "empty"},
             {"binary", "binary"},
             {"utf16", "UTF-16 (try iconv -t UTF-8)"},
             {"hidden", "hidden"},
             {"linked_folder", "linked folder"},
             {"unreadable", "that cannot be read"},
             {"no_file", "no regular file"},
             {"output", "written by hocket data"}};

}  // namespace

const char* to_string(Corpus::Why why) { return kWhys[place_of(why)].key; }

std::string left_out_text(const std::map<Corpus::Why, int64_t>& counts) {
  std::vector<std::string> parts;
  for (const auto& [why, count] : counts) {
    parts.push_back(fmt::format("{} {}", count, kWhys[place_of(why)].text));
  }
  return parts.empty() ? "nothing" : join(parts, ", ");
}

Corpus scan_corpus(const CorpusOptions& options) {
  if (!(options.valid_fraction >= 0 && options.valid_fraction < 1)) {
    fail("data", "valid_fraction {}; expected 0 or more, and less than 1", options.valid_fraction);
  }
  Corpus corpus;
  std::map<Hash128, std::string> first;  // path of each content
  Outputs outputs;
  const auto add = [&](const std::string& place, const Content& content, Corpus::File file) {
    if (content.bytes == 0) {
      corpus.dropped.push_back({place, Corpus::Why::empty, ""});
    } else if (content.utf16) {
      corpus.dropped.push_back({place, Corpus::Why::utf16, "", file_size(file.path)});
    } else if (content.binary) {
      corpus.dropped.push_back({place, Corpus::Why::binary, "", file_size(file.path)});
    } else if (const auto [known, is_new] = first.emplace(content.hash, place); is_new) {
      file.hash = content.hash;
      corpus.files.push_back(std::move(file));
    } else {
      corpus.dropped.push_back({place, Corpus::Why::duplicate, known->second});
    }
  };
  const auto take = [&](const std::string& path, bool valid) {
    if (outputs.contains(path)) {
      corpus.dropped.push_back({path, Corpus::Why::output, ""});
      return;
    }
    if (is_json_lines(path)) {
      for_each_json_line(path, [&](JsonLine&& line) {
        add(fmt::format("{}:{}", path, line.number), content_of_text(line.text),
            {path, std::ssize(line.text), {}, valid, line.begin, line.bytes});
      });
      return;
    }
    const Content content = content_of(path);
    add(path, content, {path, content.bytes, {}, valid, content.begin});
  };
  // Explicitly held-out files come first, so that no copy of one is trained on.
  std::set<std::string> held_out;
  if (!options.valid_inputs.empty()) {
    for (const std::string& path : expand(options.valid_inputs, &corpus.dropped)) {
      held_out.insert(path);
      take(path, true);
    }
  }
  const int64_t num_held_out = std::ssize(corpus.files);
  for (const std::string& path : expand(options.inputs, &corpus.dropped)) {
    if (!held_out.contains(path)) {
      take(path, false);
    }
  }
  std::rotate(corpus.files.begin(), corpus.files.begin() + num_held_out, corpus.files.end());
  if (corpus.files.empty()) {
    fail("data", "no text in the inputs; left out: {}; expected at least one file of text",
         left_out_text(corpus.dropped_counts()));
  }
  if (options.valid_inputs.empty()) {
    draw_split(corpus, options);
  } else if (num_held_out == 0) {
    fail("data", "no text in the held-out files ({}); left out: {}",
         join(options.valid_inputs, ", "), left_out_text(corpus.dropped_counts()));
  }
  if (corpus.bytes(false) == 0) {
    fail("data", "all of {} {} held out: nothing is left to train on; try more files",
         counted(std::ssize(corpus.files), "file"), corpus.files.size() == 1 ? "is" : "are");
  }
  return corpus;
}

}  // namespace hocket::data
