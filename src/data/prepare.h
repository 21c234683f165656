// SPDX-License-Identifier: Apache-2.0
// Files of text → a folder of token shards with a training and a validation split, and the reader
// of such a folder. The formats are in docs/data.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/shards.h"
#include "data/text_part.h"
#include "data/tokenizer/tokenizer.h"

namespace hocket {
class JsonWriter;
}

namespace hocket::data {

/// The texts that a list of inputs stands for, before anything is tokenised.
struct Corpus {
  struct File {
    std::string path;
    int64_t bytes = 0;
    Hash128 hash;            ///< of the content
    bool valid = false;      ///< in the validation split
    int64_t begin = 0;       ///< start of the text in the file, of which it may be a part
    int64_t line_bytes = 0;  ///< of a line of JSON there, whose text it is; 0: it is none
    TextPart text() const {
      return {path, begin, line_bytes > 0 ? line_bytes : bytes, line_bytes > 0};
    }
  };
  /// Reason for skipping an entry below the inputs: `binary` has a NUL byte, `utf16` the byte order
  /// mark of UTF-16 or UTF-32; `hidden` to `no_file` are skipped by list_glob; `output` was written
  /// by `hocket data`, as an index or source beside it shows.
  enum class Why {
    duplicate,
    empty,
    binary,
    utf16,
    hidden,
    linked_folder,
    unreadable,
    no_file,
    output
  };
  struct Dropped {
    std::string path;
    Why why = Why::empty;
    std::string first;  ///< of a duplicate: the file that is kept
    int64_t bytes = 0;  ///< of a file that is no text
  };
  std::vector<File> files;  ///< in the order of the inputs, by path within one glob
  std::vector<Dropped> dropped;

  std::vector<std::string> paths(bool valid) const;  ///< of one split
  std::vector<TextPart> texts(bool valid) const;     ///< likewise
  int64_t bytes(bool valid) const;
  std::map<Why, int64_t> dropped_counts() const;
  /// Returns the largest files that are no text, at most `most`, the largest first.
  std::vector<Dropped> largest_dropped(size_t most) const;
};

/// "duplicate", "utf16", ...: as JSON names it.
const char* to_string(Corpus::Why why);
/// "3 duplicate, 1 hidden": for people; "nothing" if the counts are empty.
std::string left_out_text(const std::map<Corpus::Why, int64_t>& counts);

struct CorpusOptions {
  std::vector<std::string> inputs;  ///< files, folders (all below them) and globs (list_glob)
  double valid_fraction = 0.05;     ///< chance of each file, by the hash of its content
  uint64_t seed = 0;
  /// Files, folders and globs that are held out; if there are any, no others are.
  std::vector<std::string> valid_inputs = {};
};

/// Reads and hashes every file, or every line of a file of JSON Lines (is_json_lines). The split of
/// a file depends on its content and the seed only. But if a split would be empty, it gets the
/// nearest file. A single file is cut in two, with its end held out from the start of a line. Files
/// held out by name are so even among the inputs. Throws Error for an input without files, no text,
/// nothing to train on, or a single byte to cut.
Corpus scan_corpus(const CorpusOptions& options);

struct PrepareProgress {
  int64_t bytes_done = 0, bytes_total = 0;
  int64_t tokens = 0;
};

struct PrepareOptions {
  CorpusOptions corpus;
  std::string tokenizer;  ///< tokenizer.json or a folder with one; needs an end of text
  std::string output;     ///< a folder, made if absent
  int64_t shard_tokens = int64_t{1} << 26;
  bool split_special_tokens = false;  ///< those that stand in a file are text: EncodeOptions
  std::function<void(const PrepareProgress&)> progress;
};

struct SplitStats {
  int64_t files = 0, bytes = 0, tokens = 0;
  std::vector<std::string> shards;  ///< names in the folder
};

/// Adds files, bytes and tokens to the object that is open.
JsonWriter& put_sizes(JsonWriter& json, const SplitStats& stats);

struct PrepareResult {
  SplitStats train, valid;
  std::map<Corpus::Why, int64_t> dropped;
  std::vector<Corpus::Dropped> largest;  ///< of those that are no text, a few
  int64_t special_tokens_met = 0;        ///< in the files: Encoder::special_tokens_met
  int64_t json_lines = 0;                ///< documents that are lines of JSON, and count as files
  bool up_to_date = false;               ///< nothing had to be done
};

/// Tokenises each file, or line of JSON Lines, as one document and writes the shards, the tokenizer
/// and index.json, the latter last; until then the folder keeps its content. Deterministic: same
/// inputs, same bytes. Does nothing if the folder has the result. Throws Error if another process
/// prepares into the folder (FolderLock), or if its tokenizer or index was not written by this.
PrepareResult prepare(const PrepareOptions& options);

/// A prepared folder, opened.
class Dataset {
 public:
  /// Throws Error without an index.json (nothing was prepared, or not to the end). Throws it also
  /// for one that does not fit the shards or the tokenizer.
  explicit Dataset(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const SplitStats& train_stats() const { return train_stats_; }
  const SplitStats& valid_stats() const { return valid_stats_; }
  /// Returns the tokens for training; null: the split is empty.
  std::shared_ptr<const TokenStream> train() const { return train_; }
  std::shared_ptr<const TokenStream> valid() const { return valid_; }
  const std::vector<Corpus::File>& files() const { return files_; }
  /// Returns the identity of the data: texts, order, split, tokenizer and format, but not paths
  /// (except in version 1).
  const std::string& fingerprint() const { return fingerprint_; }
  /// Returns the version of index.json: 1 or 2.
  int64_t version() const { return version_; }
  /// Returns how many special tokens stood in the files, and whether they were taken for text; -1:
  /// an index that does not say.
  int64_t special_tokens_met() const { return special_tokens_met_; }
  bool split_special_tokens() const { return split_special_tokens_; }

 private:
  int64_t version_ = 0, special_tokens_met_ = -1;
  bool split_special_tokens_ = false;
  std::string folder_, fingerprint_;
  std::unique_ptr<Tokenizer> tokenizer_;
  SplitStats train_stats_, valid_stats_;
  std::shared_ptr<const TokenStream> train_, valid_;
  std::vector<Corpus::File> files_;
};

}  // namespace hocket::data
