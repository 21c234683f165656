// SPDX-License-Identifier: Apache-2.0
// Implements: open_bytes (bytes.h): plain, gzip and zstd files.
#include "data/examples/bytes.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"

namespace hocket::data {
namespace {

constexpr size_t kPacked = size_t{1} << 17;  // bytes of a compressed file read at a time

class PlainBytes : public ByteSource {
 public:
  explicit PlainBytes(const std::string& path) : file_(path) {}
  size_t read(char* to, size_t bytes) override {
    const auto n = static_cast<size_t>(std::min<int64_t>(bytes, file_.size() - at_));
    file_.read(at_, to, n);
    at_ += static_cast<int64_t>(n);
    return n;
  }
  int64_t size() const { return file_.size(); }

 private:
  RandomFile file_;
  int64_t at_ = 0;
};

/// Reads a compressed file in pieces.
class Packed {
 public:
  explicit Packed(const std::string& path) : path_(path), file_(path), piece_(kPacked) {}

  /// Returns the next piece, empty at the end.
  std::string_view next() { return {piece_.data(), file_.read(piece_.data(), piece_.size())}; }
  /// Counts bytes that pieces unpacked to, and returns them.
  size_t unpacked(size_t bytes) {
    unpacked_ += static_cast<int64_t>(bytes);
    if (unpacks_too_far(file_.size(), unpacked_)) {
      fail("data",
           "{} unpacks to more than {} MiB, and to more than {} times its size; expected less; try "
           "to unpack it first",
           path_, kMaxUnpacked >> 20, kMaxCompression);
    }
    return bytes;
  }
  const std::string& path() const { return path_; }
  [[noreturn]] void cut_off() const {
    fail("data", "{} is cut off: its compressed data ends too early; expected a whole file", path_);
  }
  [[noreturn]] void damaged(std::string_view format, std::string_view why) const {
    fail("data", "{} cannot be unpacked: {}; expected a {} file", path_, why, format);
  }

 private:
  std::string path_;
  PlainBytes file_;
  std::vector<char> piece_;
  int64_t unpacked_ = 0;
};

class GzipBytes : public ByteSource {
 public:
  explicit GzipBytes(const std::string& path) : packed_(path) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    HOCKET_CHECK(inflateInit2(&state_, kGzipOnly) == Z_OK, "zlib");
  }
  ~GzipBytes() override { inflateEnd(&state_); }
  GzipBytes(const GzipBytes&) = delete;
  GzipBytes& operator=(const GzipBytes&) = delete;

  size_t read(char* to, size_t bytes) override {
    state_.next_out = reinterpret_cast<Bytef*>(to);
    state_.avail_out = static_cast<uInt>(std::min<size_t>(bytes, size_t{1} << 30));
    const uInt wanted = state_.avail_out;
    while (state_.avail_out == wanted) {
      if (state_.avail_in == 0) {
        piece_ = packed_.next();
        if (piece_.empty()) {
          if (inside_) {
            packed_.cut_off();
          }
          return 0;
        }
        state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece_.data()));
        state_.avail_in = static_cast<uInt>(piece_.size());
      }
      if (!inside_) {
        skip_padding();
        if (state_.avail_in == 0) continue;
      }
      inside_ = true;
      const int result = inflate(&state_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {
        inside_ = false;  // another member may follow
        inflateReset(&state_);
      } else if (result != Z_OK) {
        packed_.damaged("gzip", state_.msg != nullptr ? state_.msg : "unknown format");
      }
    }
    return packed_.unpacked(wanted - state_.avail_out);
  }

 private:
  /// Skips zeros behind a member, with which tapes and block devices pad a file.
  void skip_padding() {
    while (state_.avail_in > 0 && *state_.next_in == 0) {
      ++state_.next_in;
      --state_.avail_in;
    }
  }

  Packed packed_;
  std::string_view piece_;
  z_stream state_ = {};
  bool inside_ = true;  // a member has begun and not ended; an empty file has none
};

class ZstdBytes : public ByteSource {
 public:
  explicit ZstdBytes(const std::string& path) : packed_(path), state_(ZSTD_createDStream()) {
    HOCKET_CHECK(state_ != nullptr, "zstd");
  }
  ~ZstdBytes() override { ZSTD_freeDStream(state_); }
  ZstdBytes(const ZstdBytes&) = delete;
  ZstdBytes& operator=(const ZstdBytes&) = delete;

  size_t read(char* to, size_t bytes) override {
    ZSTD_outBuffer out{to, bytes, 0};
    while (out.pos == 0) {
      // Takes what is unpacked already first: the end of the file may have been read.
      if (in_.pos == in_.size && !full_) {
        const std::string_view piece = packed_.next();
        if (piece.empty()) {
          if (inside_) {
            packed_.cut_off();
          }
          return 0;
        }
        in_ = {piece.data(), piece.size(), 0};
      }
      const size_t left = ZSTD_decompressStream(state_, &out, &in_);
      if (ZSTD_isError(left) != 0) {
        packed_.damaged("zstd", ZSTD_getErrorName(left));
      }
      inside_ = left != 0;  // another frame may follow
      full_ = out.pos == out.size && inside_;
    }
    return packed_.unpacked(out.pos);
  }

 private:
  Packed packed_;
  ZSTD_DStream* state_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool inside_ = true, full_ = false;
};

}  // namespace

std::string without_compression(const std::string& path) {
  for (const std::string_view ending : {".gz", ".zst", ".zstd"}) {
    if (path.ends_with(ending)) return path.substr(0, path.size() - ending.size());
  }
  return path;
}

std::unique_ptr<ByteSource> open_bytes(const std::string& path) {
  if (without_compression(path) == path) return std::make_unique<PlainBytes>(path);
  if (path.ends_with(".gz")) return std::make_unique<GzipBytes>(path);
  return std::make_unique<ZstdBytes>(path);
}

}  // namespace hocket::data
