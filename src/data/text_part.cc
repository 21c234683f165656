// SPDX-License-Identifier: Apache-2.0
#include "data/text_part.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace hocket::data {

namespace {

constexpr const char* kText = "text";
constexpr size_t kPiece = size_t{1} << 20;

/// Returns whether name and first bytes of a file are those of gzip or zstd. Others are read as
/// they are.
bool is_compressed(const std::string& path) {
  if (without_compression(path) == path) return false;
  constexpr std::string_view kGzip = "\x1F\x8B", kZstd = "\x28\xB5\x2F\xFD";
  const std::string_view wanted = path.ends_with(".gz") ? kGzip : kZstd;
  bool is = false;
  read_pieces(path, [&](std::string_view piece) {
    is = piece.starts_with(wanted);
    return false;
  });
  return is;
}

/// Fills a piece up to its size or the end of the source; returns its bytes.
size_t fill(ByteSource& source, char* to, size_t bytes) {
  size_t filled = 0;
  while (filled < bytes) {
    const size_t got = source.read(to + filled, bytes - filled);
    if (got == 0) break;
    filled += got;
  }
  return filled;
}

/// Returns the column `text` of a line; nothing if it is no object that has one.
std::optional<std::string> text_in(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains(kText) || !json[kText].is_string()) return std::nullopt;
  return json[kText].get<std::string>();
}

/// Calls the function with every line that is not blank, its first byte and its number from 1,
/// until it returns false.
void for_each_line(
    const std::string& path,
    const std::function<bool(int64_t begin, int64_t number, std::string_view)>& take) {
  std::string rest;  // of a line that the last piece began
  int64_t begin = 0, number = 0;
  bool goes_on = true;
  const auto end_line = [&](std::string_view line) {
    ++number;
    if (line.find_first_not_of(" \t\r") != line.npos) {
      goes_on = take(begin, number, line);
    }
    begin += std::ssize(line) + 1;
  };
  read_text_pieces(path, [&](std::string_view piece) {
    for (size_t at = 0; goes_on && at < piece.size();) {
      const size_t end = piece.find('\n', at);
      rest += piece.substr(at, end == piece.npos ? piece.npos : end - at);
      if (end == piece.npos) break;
      end_line(rest);
      rest.clear();
      at = end + 1;
    }
    return goes_on;
  });
  if (goes_on && !rest.empty()) {
    end_line(rest);
  }
}

}  // namespace

std::string TextPart::read() const { return TextReader().read(*this); }

/// Returns the bytes of a part of a compressed file, from where the last one ended if it can.
std::string TextReader::unpacked(const TextPart& part) {
  if (path_ != part.path || part.begin < at_ || !open_) {
    open_ = open_bytes(part.path);
    path_ = part.path;
    at_ = 0;
  }
  // Pieces, since an index that is damaged may ask for more than memory has.
  const auto read_until = [&](int64_t end, const auto& take) {
    std::string piece;
    while (at_ < end) {
      piece.resize(static_cast<size_t>(std::min<int64_t>(end - at_, kPiece)));
      piece.resize(fill(*open_, piece.data(), piece.size()));
      if (piece.empty()) return;
      at_ += std::ssize(piece);
      take(piece);
    }
  };
  std::string text;
  read_until(part.begin, [](const std::string&) {});
  const int64_t end =
      part.bytes < 0 || part.bytes > INT64_MAX - part.begin ? INT64_MAX : part.begin + part.bytes;
  if (at_ == part.begin) {
    read_until(end, [&](const std::string& piece) { text += piece; });
  }
  return text;
}

std::string TextReader::read(const TextPart& part) {
  const auto& [path, begin, bytes, is_json] = part;
  if ((open_ && path == path_) || is_compressed(path)) {
    std::string text = unpacked(part);
    return is_json ? text_in(text).value_or("") : text;
  }
  if (!is_json) {
    std::string text = read_file(path);
    if (begin == 0 && bytes < 0) return text;
    const size_t from = std::min<size_t>(text.size(), static_cast<size_t>(begin));
    return text.substr(from, bytes < 0 ? text.npos : static_cast<size_t>(bytes));
  }
  const RandomFile file(path);
  std::string line(static_cast<size_t>(std::clamp<int64_t>(file.size() - begin, 0, bytes)), '\0');
  file.read(begin, line.data(), line.size());
  return text_in(line).value_or("");  // a file that changed: the text has another hash
}

void read_text_pieces(const std::string& path, const std::function<bool(std::string_view)>& take) {
  if (!is_compressed(path)) return read_pieces(path, take);
  const std::unique_ptr<ByteSource> source = open_bytes(path);
  std::string piece(kPiece, '\0');
  for (;;) {
    const size_t bytes = fill(*source, piece.data(), piece.size());
    if (bytes == 0 || !take(std::string_view(piece).substr(0, bytes))) return;
  }
}

bool is_json_lines(const std::string& path) {
  const std::string name = without_compression(path);
  if (!name.ends_with(".jsonl") && !name.ends_with(".ndjson")) return false;
  bool is = false;
  for_each_line(path, [&](int64_t, int64_t, std::string_view line) {
    is = text_in(line).has_value();
    return false;
  });
  return is;
}

void for_each_json_line(const std::string& path, const std::function<void(JsonLine&&)>& take) {
  for_each_line(path, [&](int64_t begin, int64_t number, std::string_view line) {
    std::optional<std::string> text = text_in(line);
    if (!text) {
      fail("data",
           "{}:{} is no object with a string {}, as the lines before it are; expected one, or a "
           "name that does not end with .jsonl for plain text",
           path, number, kText);
    }
    take({begin, std::ssize(line), number, *std::move(text)});
    return true;
  });
}

}  // namespace hocket::data
