// SPDX-License-Identifier: Apache-2.0
// Characters of a plain or gzip file of any length, one block at a time.
#pragma once

#include <zlib.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace hocket::trace {

// Characters of a plain or gzip file, read on demand. For files of more than one block, a thread
// reads and inflates the next block while this one is parsed. The buffered text is followed by
// kSentinels. So a search for a non-blank character or the end of a string can run ahead without a
// bound.
//
// Neither memory nor time of a reader may be a thousand times the size of a compressed file: one
// that unpacks too far (base/limits.h) is an Error.
class TextSource {
 public:
  // The first block is small; the blocks after it grow.
  static constexpr size_t kFirstBlock = size_t{1} << 16;
  // Number of bytes from at() on that can be read, whether or not they are buffered.
  static constexpr size_t kLookahead = 32;

  explicit TextSource(const std::string& path);
  ~TextSource();
  TextSource(const TextSource&) = delete;
  TextSource& operator=(const TextSource&) = delete;

  // Returns the next character without consuming it; -1 at the end.
  int peek() { return at_ < end_ || refill() ? static_cast<unsigned char>(*at_) : -1; }
  // Returns the next character; NUL also if more must be read first.
  char ahead() const { return *at_; }
  // Returns its address, for looking ahead. The last buffered character is followed by a NUL, a
  // quotation mark and more NULs.
  const char* at() const { return at_; }
  bool is_buffered(const char* place) const { return place < end_; }
  size_t buffered() const { return static_cast<size_t>(end_ - at_); }
  void move_to(const char* place) { at_ = place; }
  int get() {
    const int c = peek();
    if (c >= 0) {
      ++at_;
    }
    return c;
  }
  // Returns the buffered text from here on; skip() moves over a part of it.
  std::string_view view() {
    if (at_ == end_) {
      refill();
    }
    return {at_, buffered()};
  }
  void skip(size_t bytes) { at_ += bytes; }
  // Returns the number of inflated bytes before this place.
  int64_t offset() const { return base_ + (at_ - begin_); }
  // Returns the approximate fraction of the file that has been read.
  double share_read() const { return block_->share; }

  [[noreturn]] void broken(std::string_view what);

 private:
  static constexpr size_t kLargestBlock = size_t{1} << 18;
  static constexpr std::string_view kSentinels{"\0\"", 2};
  static constexpr size_t kPadding = kSentinels.size() + kLookahead;

  // A part of the file and, at its end, the reason.
  struct Block {
    std::string text;  // with room for kPadding bytes more
    size_t bytes = 0;  // 0 at the end
    int state = Z_OK;  // of zlib, at the end
    std::string damage;
    bool too_long = false;  // the compressed file inflates beyond the limit
    double share = 0;       // fraction of the file up to the end of this block
  };
  // Reads the next block. Called by one thread at a time.
  void read(Block* block);
  void read_ahead();
  // Moves to the next block. Returns false at the end, also when called again.
  bool refill();
  void next_block();

  std::string path_;
  int64_t file_bytes_ = 0;
  gzFile file_ = nullptr;
  size_t due_ = kFirstBlock;  // bytes of the next block
  int64_t unpacked_ = 0;      // bytes read so far, inflated
  std::array<Block, 2> blocks_;
  Block* block_ = &blocks_[0];  // the block being parsed
  const char* begin_;           // into its text
  const char* at_;
  const char* end_;
  int64_t base_ = 0;
  bool first_ = true, ended_ = false;
  std::string cause_;

  std::thread reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Block* free_ = nullptr;  // block to be filled by the reader, which sets it to null
  bool stops_ = false;
};

}  // namespace hocket::trace
