// SPDX-License-Identifier: Apache-2.0
#include "data/shards.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/math.h"

namespace hocket::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the file format is little-endian");

constexpr char kMagic[8] = {'H', 'O', 'C', 'K', 'E', 'T', 'T', 'K'};
constexpr uint32_t kShardVersion = 1;
constexpr int64_t kAlign = 64;
constexpr int32_t kNarrowVocab = 1 << 16;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t id_bytes;  // 2 or 4
  uint64_t tokens;
  uint64_t documents;
  uint64_t bytes;
  uint64_t vocab_size;
  uint64_t tokenizer_high;
  uint64_t tokenizer_low;
  uint64_t ids_at;          // offset of the ids, a multiple of 64
  uint64_t ids_checksum;    // XXH3-64 of the ids
  uint64_t index_checksum;  // XXH3-64 of the index, seeded with that of the header with 0 here
  char reserved[40];        // zeros
};
static_assert(sizeof(Header) == 128 && offsetof(Header, index_checksum) == 80);

uint64_t checksum(Header header, std::string_view index) {
  header.index_checksum = 0;
  return hash64(index, hash64({reinterpret_cast<const char*>(&header), sizeof header}));
}

uint64_t ids_offset(uint64_t documents) {
  return round_up(sizeof(Header) + 8 * (2 * documents + 1), kAlign);
}

template <class T>
std::string_view bytes_of(const std::vector<T>& items) {
  return {reinterpret_cast<const char*>(items.data()), items.size() * sizeof(T)};
}

}  // namespace

ShardWriter::ShardWriter(int32_t vocab_size, const Hash128& tokenizer) {
  HOCKET_CHECK(vocab_size > 0, "vocabulary of {}", vocab_size);
  info_.vocab_size = vocab_size;
  info_.tokenizer = tokenizer;
}

void ShardWriter::add(std::span<const int32_t> ids, int64_t bytes) {
  HOCKET_CHECK(!ids.empty(), "a document without its end");
  for (const int32_t id : ids) {
    HOCKET_CHECK(id >= 0 && id < info_.vocab_size, "id {} of {}", id, info_.vocab_size);
  }
  if (info_.vocab_size <= kNarrowVocab) {
    for (const int32_t id : ids) {
      narrow_.push_back(static_cast<uint16_t>(id));
    }
  } else {
    wide_.insert(wide_.end(), ids.begin(), ids.end());
  }
  info_.tokens += std::ssize(ids);
  info_.bytes += bytes;
  ++info_.documents;
  begins_.push_back(info_.tokens);
  bytes_.push_back(bytes);
}

void ShardWriter::write(const std::string& path) const {
  // Header, index (where documents begin, their bytes), padding, ids in two or four bytes each. The
  // checksum of the index covers the header too, which is why it is filled in last.
  if (info_.documents == 0) fail("shards", "{}: no documents to write", path);
  const bool narrow = info_.vocab_size <= kNarrowVocab;
  const std::string_view ids = narrow ? bytes_of(narrow_) : bytes_of(wide_);
  std::string index(bytes_of(begins_));
  index += bytes_of(bytes_);

  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kShardVersion;
  header.id_bytes = narrow ? 2 : 4;
  header.tokens = info_.tokens;
  header.documents = info_.documents;
  header.bytes = info_.bytes;
  header.vocab_size = info_.vocab_size;
  header.tokenizer_high = info_.tokenizer.high;
  header.tokenizer_low = info_.tokenizer.low;
  header.ids_at = ids_offset(header.documents);
  header.ids_checksum = hash64(ids);
  header.index_checksum = checksum(header, index);
  const std::string padding(header.ids_at - sizeof header - index.size(), '\0');
  write_file_atomic(path, [&](FileWriter& out) {
    out.write(&header, sizeof header);
    out.write(index);
    out.write(padding);
    out.write(ids);
  });
}

Shard::Shard(const std::string& path) : file_(path) {
  const auto refuse = [&](const std::string& what) {
    fail("shards", "{}: {}; try `hocket data prepare` again", path, what);
  };
  Header h;
  const uint64_t size = file_.size();
  if (size < sizeof h) {
    refuse(fmt::format("truncated; got {} bytes; expected a header of {}", size, sizeof h));
  }
  file_.read(0, &h, sizeof h);
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) {
    refuse("no token shard");
  }
  if (h.version != kShardVersion) {
    refuse(fmt::format("format version {}; expected {}", h.version, kShardVersion));
  }
  // Each count is held against the file's size before anything is computed from it.
  if ((h.id_bytes != 2 && h.id_bytes != 4) || h.documents > size / 16 || h.tokens > size / 2 ||
      h.vocab_size == 0 || h.vocab_size > (h.id_bytes == 2 ? kNarrowVocab : INT32_MAX) ||
      h.ids_at != ids_offset(h.documents)) {
    refuse("damaged or truncated: the header does not fit the file");
  }
  const uint64_t expected = h.ids_at + h.tokens * h.id_bytes;
  if (size != expected) {
    refuse(fmt::format("truncated or damaged; got {} bytes; expected {}", size, expected));
  }
  std::vector<int64_t> index(2 * h.documents + 1);
  file_.read(sizeof h, index.data(), index.size() * sizeof(int64_t));
  if (checksum(h, bytes_of(index)) != h.index_checksum) {
    refuse("damaged: header or index do not have their checksum");
  }
  const auto first_bytes = index.begin() + h.documents + 1;
  begins_.assign(index.begin(), first_bytes);
  bytes_.assign(first_bytes, index.end());
  width_ = h.id_bytes;
  ids_at_ = h.ids_at;
  checksum_ = h.ids_checksum;
  info_.tokenizer = {h.tokenizer_high, h.tokenizer_low};
  info_.vocab_size = h.vocab_size;
  info_.tokens = h.tokens;
  info_.documents = h.documents;
  info_.bytes = h.bytes;
  // A checksum is no proof of good will.
  bool sound = info_.documents > 0 && begins_.front() == 0 && begins_.back() == info_.tokens &&
               info_.bytes >= 0;
  int64_t left = info_.bytes;
  for (size_t d = 0; sound && d < bytes_.size(); ++d) {
    sound = begins_[d + 1] > begins_[d] && bytes_[d] >= 0 && bytes_[d] <= left;
    left -= bytes_[d];
  }
  if (!sound || left != 0) {
    refuse("damaged: the index is not in order");
  }
}

void Shard::read(int64_t begin, std::span<int32_t> out) const {
  const auto count = std::ssize(out);
  HOCKET_CHECK(begin >= 0 && begin <= info_.tokens - count, "tokens {} to {} of {}", begin,
               begin + count, info_.tokens);
  // Reads narrow ids into the end of `out` and widens them from its beginning: writes never reach
  // unread ids.
  const size_t bytes = out.size() * width_;
  char* raw = reinterpret_cast<char*>(out.data()) + out.size_bytes() - bytes;
  file_.read(ids_at_ + begin * width_, raw, bytes);
  uint32_t largest = 0;
  const auto widen = [&]<class Id>(Id) {
    for (size_t i = 0; i < out.size(); ++i) {
      Id id;
      std::memcpy(&id, raw + i * sizeof(Id), sizeof(Id));
      largest = std::max<uint32_t>(largest, id);
      out[i] = id;
    }
  };
  if (width_ == 2) {
    widen(uint16_t{});
  } else {
    widen(uint32_t{});
  }
  if (std::cmp_greater_equal(largest, info_.vocab_size)) {
    fail("shards", "{}: damaged; got id {} in tokens {} to {}; expected less than {}", path(),
         largest, begin, begin + count - 1, info_.vocab_size);
  }
}

int64_t Shard::document_begin(int64_t d) const {
  HOCKET_CHECK(d >= 0 && d <= info_.documents, "document {} of {}", d, info_.documents);
  return begins_[d];
}

int64_t Shard::document_bytes(int64_t d) const {
  HOCKET_CHECK(d >= 0 && d < info_.documents, "document {} of {}", d, info_.documents);
  return bytes_[d];
}

void Shard::verify() const {
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::string piece(kPiece, '\0');
  Hasher hasher;
  for (int64_t at = ids_at_; at < file_.size(); at += kPiece) {
    const size_t bytes = std::min(kPiece, file_.size() - at);
    file_.read(at, piece.data(), bytes);
    hasher.add(std::string_view(piece).substr(0, bytes));
  }
  if (const uint64_t got = hasher.finish64(); got != checksum_) {
    fail("shards",
         "{}: the ids are damaged; got checksum {:016x}; expected {:016x}; try "
         "`hocket data prepare` again",
         path(), got, checksum_);
  }
}

TokenStream::TokenStream(const std::vector<std::string>& paths) {
  if (paths.empty()) fail("shards", "no shards; expected at least one");
  allow_open_files(std::ssize(paths));
  shards_.reserve(paths.size());
  token_begin_ = document_begin_ = {0};
  for (const std::string& path : paths) {
    const ShardInfo& info = shards_.emplace_back(path).info();
    const ShardInfo& first = shards_[0].info();
    if (info.tokenizer != first.tokenizer || info.vocab_size != first.vocab_size) {
      fail("shards", "{} and {} were made by different tokenizers", paths[0], path);
    }
    token_begin_.push_back(tokens() + info.tokens);
    document_begin_.push_back(documents() + info.documents);
    bytes_ += info.bytes;
  }
}

size_t TokenStream::shard_of_token(int64_t at) const {
  const auto after = std::upper_bound(token_begin_.begin(), token_begin_.end(), at);
  return after - token_begin_.begin() - 1;
}

size_t TokenStream::shard_of_document(int64_t d) const {
  const auto after = std::upper_bound(document_begin_.begin(), document_begin_.end(), d);
  return after - document_begin_.begin() - 1;
}

void TokenStream::read(int64_t begin, std::span<int32_t> out) const {
  const auto count = std::ssize(out);
  HOCKET_CHECK(begin >= 0 && begin <= tokens() - count, "tokens {} to {} of {}", begin,
               begin + count, tokens());
  while (!out.empty()) {
    const size_t s = shard_of_token(begin);
    const int64_t n = std::min(token_begin_[s + 1] - begin, std::ssize(out));
    shards_[s].read(begin - token_begin_[s], out.first(n));
    out = out.subspan(n);
    begin += n;
  }
}

int64_t TokenStream::document_of(int64_t at) const {
  HOCKET_CHECK(at >= 0 && at < tokens(), "token {} of {}", at, tokens());
  const size_t s = shard_of_token(at);
  const int64_t local = at - token_begin_[s];
  int64_t low = 0, high = shards_[s].info().documents;  // begin(low) <= local < begin(high)
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (shards_[s].document_begin(middle) <= local ? low : high) = middle;
  }
  return document_begin_[s] + low;
}

int64_t TokenStream::document_begin(int64_t d) const {
  if (d == documents()) return tokens();
  const size_t s = shard_of_document(d);
  return token_begin_[s] + shards_[s].document_begin(d - document_begin_[s]);
}

int64_t TokenStream::document_bytes(int64_t d) const {
  const size_t s = shard_of_document(d);
  return shards_[s].document_bytes(d - document_begin_[s]);
}

void TokenStream::verify(const std::function<void(int64_t, int64_t)>& progress) const {
  int64_t total = 0, done = 0;
  for (const Shard& shard : shards_) {
    total += shard.file_bytes();
  }
  for (const Shard& shard : shards_) {
    if (progress) {
      progress(done, total);
    }
    shard.verify();
    done += shard.file_bytes();
  }
}

}  // namespace hocket::data
