// SPDX-License-Identifier: Apache-2.0
// Token shards: files of token ids with the documents that they belong to. The format is in
// docs/data.md. A document is the ids of one text, closed by the end of text.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/hash.h"

namespace hocket::data {

struct ShardInfo {
  Hash128 tokenizer;       ///< Tokenizer::hash() of the one that made it
  int32_t vocab_size = 0;  ///< every id is below
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t bytes = 0;  ///< of the texts
};

/// Collects documents in memory and writes them as one file.
class ShardWriter {
 public:
  ShardWriter(int32_t vocab_size, const Hash128& tokenizer);

  /// `ids` with the end of text; `bytes` of the text that they stand for.
  void add(std::span<const int32_t> ids, int64_t bytes);
  const ShardInfo& info() const { return info_; }
  /// Writes the shard atomically (write_file_atomic). Throws Error for no documents, and for errors
  /// of the disk.
  void write(const std::string& path) const;

 private:
  ShardInfo info_;
  std::vector<uint16_t> narrow_;  // ids, where the vocabulary has at most 65,536
  std::vector<uint32_t> wide_;
  std::vector<uint64_t> begins_ = {0};
  std::vector<uint64_t> bytes_;
};

/// One file, held open. The header and the index are verified and kept when it is opened, the ids
/// are read and verified on demand. A file that is cut off meanwhile is an Error.
class Shard {
 public:
  /// Throws Error for a file that is absent, truncated, of another format, or damaged in its header
  /// or index.
  explicit Shard(const std::string& path);

  const ShardInfo& info() const { return info_; }
  const std::string& path() const { return file_.path(); }
  int64_t file_bytes() const { return file_.size(); }
  /// Reads ids [begin, begin + out.size()). Throws Error for an id out of the vocabulary (a damaged
  /// file), and for a file that is shorter than it was.
  void read(int64_t begin, std::span<int32_t> out) const;
  /// First token of document `d`; `d` may be the number of documents.
  int64_t document_begin(int64_t d) const;
  int64_t document_bytes(int64_t d) const;
  /// Reads all of it. Throws Error if the ids do not have the checksum that the header names.
  void verify() const;

 private:
  RandomFile file_;
  ShardInfo info_;
  size_t width_ = 2;                     // bytes an id
  std::vector<int64_t> begins_, bytes_;  // of the documents
  int64_t ids_at_ = 0;
  uint64_t checksum_ = 0;
};

/// Shards in a row, as one sequence of tokens and documents. Immutable; safe to share.
class TokenStream {
 public:
  /// Throws Error for no shards, and for shards of different tokenizers.
  explicit TokenStream(const std::vector<std::string>& paths);

  int64_t tokens() const { return token_begin_.back(); }
  int64_t documents() const { return document_begin_.back(); }
  int64_t bytes() const { return bytes_; }
  int32_t vocab_size() const { return shards_[0].info().vocab_size; }
  const Hash128& tokenizer() const { return shards_[0].info().tokenizer; }
  const std::vector<Shard>& shards() const { return shards_; }

  /// Ids [begin, begin + out.size()), across shards.
  void read(int64_t begin, std::span<int32_t> out) const;
  /// The document that holds token `at`, which is below tokens().
  int64_t document_of(int64_t at) const;
  /// First token of document `d`; tokens() for d = documents().
  int64_t document_begin(int64_t d) const;
  int64_t document_bytes(int64_t d) const;
  /// Verifies every shard; `progress(done, total)` in bytes.
  void verify(const std::function<void(int64_t, int64_t)>& progress = nullptr) const;

 private:
  size_t shard_of_token(int64_t at) const;
  size_t shard_of_document(int64_t d) const;

  std::vector<Shard> shards_;
  std::vector<int64_t> token_begin_;     // of each shard, and the total
  std::vector<int64_t> document_begin_;  // likewise
  int64_t bytes_ = 0;
};

}  // namespace hocket::data
