// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/parts.h"

#include <algorithm>
#include <utility>

namespace hocket::checkpoint {

namespace {

// Maximum size of a part, 256 MiB. Parts are the unit in which processes divide the comparing of
// checksums.
constexpr int64_t kPartBytes = int64_t{256} << 20;

/// Appends a run of bytes, merged with the last range where it continues its pattern: a column
/// block of a matrix is one range.
void append(std::vector<Range>& ranges, int64_t begin, int64_t length) {
  if (!ranges.empty()) {
    Range& last = ranges.back();
    if (last.times == 1 && begin == last.begin + last.length) {
      last.length += length;
      return;
    }
    if (last.times == 1 && length == last.length && begin > last.begin + last.length) {
      last.stride = begin - last.begin;
      last.times = 2;
      return;
    }
    if (last.times > 1 && length == last.length && begin == last.begin + last.stride * last.times) {
      ++last.times;
      return;
    }
  }
  ranges.push_back({begin, length, 0, 1});
}

}  // namespace

PartsWriter::PartsWriter(const std::string& path, int32_t host)
    : out_(path, FileWriter::Mode::within), host_(host) {}

void PartsWriter::put(int32_t rank, int64_t at, std::string_view bytes) {
  while (!bytes.empty()) {
    std::unique_ptr<Open>& open = open_[rank];
    if (!open) {
      open = std::make_unique<Open>();
      open->part.host = host_;
      open->part.rank = rank;
    }
    const auto room = static_cast<size_t>(kPartBytes - open->bytes);
    const std::string_view now = bytes.substr(0, std::min(room, bytes.size()));
    const auto length = static_cast<int64_t>(now.size());
    append(open->part.ranges, at, length);
    open->hasher.add(now);
    open->bytes += length;
    out_.seek(at);
    out_.write(now);
    at += length;
    bytes.remove_prefix(now.size());
    if (open->bytes == kPartBytes) {
      close(rank);
    }
  }
}

void PartsWriter::close(int32_t rank) {
  Open& open = *open_.at(rank);
  open.part.hash = open.hasher.finish().hex();
  done_.push_back(std::move(open.part));
  open_.erase(rank);
}

std::vector<Part> PartsWriter::finish() {
  out_.sync();
  out_.close();
  while (!open_.empty()) {
    close(open_.begin()->first);
  }
  return std::move(done_);
}

bool is_intact(const RandomFile& file, const Part& part) {
  Hasher hasher;
  std::string piece;
  for (const Range& range : part.ranges) {
    for (int64_t i = 0; i < range.times; ++i) {
      const int64_t begin = range.begin + i * range.stride;
      for (int64_t done = 0; done < range.length; done += kPieceBytes) {
        piece.resize(static_cast<size_t>(std::min(kPieceBytes, range.length - done)));
        file.read(begin + done, piece.data(), piece.size());
        hasher.add(piece);
      }
    }
  }
  return hasher.finish().hex() == part.hash;
}

}  // namespace hocket::checkpoint
