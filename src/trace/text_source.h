// SPDX-License-Identifier: Apache-2.0
// The characters of a plain or gzip file of any length, a block at a time.
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

// Characters of a plain or gzip file, read as needed. Of files of more than one block a thread
// reads and unpacks the next one while this one is parsed. Behind what is buffered lie kStops, so
// that who looks for a character that counts, or for the end of a string, may look ahead without
// counting.
//
// Neither the memory nor the time of a reader is to be a thousand times what a packed file's size
// says: one that unpacks to more than kMostUnpacked and to more than kMostPacking times its bytes
// is an Error. Traces pack 10 to 60 times.
class TextSource {
 public:
  static constexpr int64_t kMostUnpacked = int64_t{256} << 20;
  static constexpr int64_t kMostPacking = 200;

  // What a file begins with is one block of its own; those that follow it are larger and larger.
  static constexpr size_t kFirstBlock = size_t{1} << 16;
  // How many bytes from at() on can be read, whatever is_buffered() says.
  static constexpr size_t kReadable = 32;

  explicit TextSource(const std::string& path);
  ~TextSource();
  TextSource(const TextSource&) = delete;
  TextSource& operator=(const TextSource&) = delete;

  // -1 at the end.
  int peek() { return at_ < end_ || refill() ? static_cast<unsigned char>(*at_) : -1; }
  // The next character; NUL also where more must be read first.
  char ahead() const { return *at_; }
  // Where it lies, for looking at what follows. Behind the last character that is buffered there is
  // a NUL, then a quotation mark, then more NULs.
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
  // What is buffered from here on; skip() moves over a part of it.
  std::string_view view() {
    if (at_ == end_) {
      refill();
    }
    return {at_, buffered()};
  }
  void skip(size_t bytes) { at_ += bytes; }
  // Bytes before this place in the file, unpacked.
  int64_t offset() const { return base_ + (at_ - begin_); }
  // What part of the file has been read, about, from 0 to 1.
  double share_read() const { return block_->share; }

  [[noreturn]] void broken(std::string_view what);

 private:
  static constexpr size_t kLargestBlock = size_t{1} << 18;
  static constexpr std::string_view kStops{"\0\"", 2};
  static constexpr size_t kBehind = kStops.size() + kReadable;

  // A part of the file, and why there is no more behind it.
  struct Block {
    std::string text;  // with room for kBehind bytes more
    size_t bytes = 0;  // 0 at the end
    int state = Z_OK;  // of zlib, at the end
    std::string damage;
    bool too_long = false;  // more than a packed file may be
    double share = 0;       // of the file, up to the end of this block
  };
  // Only one thread at a time.
  void read(Block* block);
  void read_ahead();
  // The block that follows. False at the end, also for who asks again.
  bool refill();
  void next_block();

  std::string path_;
  int64_t file_bytes_ = 0;
  gzFile file_ = nullptr;
  size_t due_ = kFirstBlock;  // bytes of the next block
  int64_t unpacked_ = 0;      // bytes of all that were read
  std::array<Block, 2> blocks_;
  Block* block_ = &blocks_[0];  // that is parsed
  const char* begin_;           // of its text
  const char* at_;
  const char* end_;
  int64_t base_ = 0;
  bool first_ = true, ended_ = false;
  std::string cause_;

  std::thread reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Block* free_ = nullptr;  // to be filled by the reader, which sets it to null
  bool stops_ = false;
};

}  // namespace hocket::trace
