// SPDX-License-Identifier: Apache-2.0
#include "trace/text_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"

namespace hocket::trace {

TextSource::TextSource(const std::string& path) : path_(path) {
  if (is_directory(path)) fail(path, "is a folder; expected a trace (.json or .json.gz)");
  if (!file_exists(path)) fail(path, "no such file; expected a trace (.json or .json.gz)");
  struct stat facts {};
  if (stat(path.c_str(), &facts) == 0) {
    file_bytes_ = facts.st_size;  // 0 for a pipe
  }
  file_ = gzopen(path.c_str(), "rb");
  if (file_ == nullptr) fail(path, "cannot be opened for reading");
  // zlib inflates directly into the destination only if that has at least twice its buffer.
  gzbuffer(file_, static_cast<unsigned>(kFirstBlock / 2));
  block_->text.resize(kFirstBlock + kPadding);
  begin_ = at_ = end_ = block_->text.data();
}

TextSource::~TextSource() {
  if (reader_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
    reader_.join();
  }
  gzclose_r(file_);
}

void TextSource::broken(std::string_view what) {
  if (peek() < 0 && !cause_.empty()) {
    fail(path_, "trace is cut off after {} bytes ({}); expected a whole file", offset(), cause_);
  }
  if (peek() < 0) {
    fail(path_, "trace is cut off after {} bytes, where {} was due; expected a whole file",
         offset(), what);
  }
  fail(path_, "not a trace: got '{}' at byte {}; expected {}", quote(view().substr(0, 16)),
       offset(), what);
}

void TextSource::read(Block* block) {
  const size_t bytes = due_;
  due_ = std::min(2 * due_, kLargestBlock);
  block->text.resize(std::max(block->text.size(), bytes + kPadding));
  const int n = gzread(file_, block->text.data(), static_cast<unsigned>(bytes));
  block->bytes = n > 0 ? static_cast<size_t>(n) : 0;
  unpacked_ += std::max(n, 0);
  // The size of a pipe is not known, but for what has been read.
  if (unpacks_too_far(std::max<int64_t>(file_bytes_, gzoffset(file_)), unpacked_)) {
    block->bytes = 0;
    block->too_long = true;
  }
  std::fill_n(block->text.data() + block->bytes, kPadding, '\0');
  kSentinels.copy(block->text.data() + block->bytes, kSentinels.size());
  if (file_bytes_ > 0) {
    block->share = static_cast<double>(gzoffset(file_)) / static_cast<double>(file_bytes_);
  }
  if (block->bytes > 0 || block->too_long) return;
  const char* text = gzerror(file_, &block->state);
  if (n < 0 && block->state != Z_BUF_ERROR) {
    block->damage = text;
  }
}

void TextSource::read_ahead() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return free_ != nullptr || stops_; });
    if (stops_) return;
    Block* block = free_;
    lock.unlock();
    read(block);
    lock.lock();
    free_ = nullptr;
    changed_.notify_all();
  }
}

void TextSource::next_block() {
  if (first_) return read(block_);
  if (!reader_.joinable()) {
    free_ = &blocks_[1];
    try {
      reader_ = std::thread([this] { read_ahead(); });
    } catch (const std::system_error&) {
      return read(block_);  // there may be no more threads
    }
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return free_ == nullptr; });
  free_ = std::exchange(block_, block_ == &blocks_[0] ? &blocks_[1] : &blocks_[0]);
  changed_.notify_all();
}

bool TextSource::refill() {
  base_ += end_ - begin_;
  if (!ended_) {
    next_block();
    first_ = false;
  }
  begin_ = at_ = block_->text.data();
  end_ = begin_ + (ended_ ? 0 : block_->bytes);
  if (end_ > begin_) return true;
  ended_ = true;
  if (block_->too_long) {
    fail(path_,
         "inflates to more than {} MiB, and to more than {} times its size; expected a trace; try "
         "the "
         "decompressed file",
         kMaxUnpacked >> 20, kMaxCompression);
  }
  if (block_->state == Z_BUF_ERROR) {
    cause_ = "the gzip stream ends early";
  }
  if (!block_->damage.empty()) {
    fail(path_, "damaged gzip stream after {} bytes: {}", base_, block_->damage);
  }
  return false;
}

}  // namespace hocket::trace
