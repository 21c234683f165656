// SPDX-License-Identifier: Apache-2.0
// Text of a stream of tokens: whole characters, up to a stop string.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace hocket::serve {

/// Text of a stream of bytes up to a stop string.
class StoppedText {
 public:
  /// `keep_stop`: the text ends with its stop string, not before it.
  explicit StoppedText(std::vector<std::string> stops, bool keep_stop = false)
      : stops_(std::move(stops)), keep_stop_(keep_stop) {}
  /// Appends; false once a stop string is complete, which is cut off with all that follows it. If
  /// several end at the same byte, the longest counts.
  /// `may_stop` false: a stop string that these bytes complete does not count.
  bool append(std::string_view bytes, bool may_stop = true);
  /// Text that no later byte can change, and that take() has not returned yet: whole characters,
  /// and nothing that a stop string may begin in.
  std::string take();
  /// The rest of it, at the end.
  std::string take_all();
  const std::string& text() const { return text_; }
  const std::string& stop() const { return stop_; }  ///< empty: none was met

 private:
  size_t settled() const;
  std::string take_to(size_t end);

  std::vector<std::string> stops_;
  bool keep_stop_;
  std::string text_, stop_;
  size_t taken_ = 0;
};

/// Text of each next token: of an answer without special tokens, and its first token without the
/// blank that begins a text.
class TokenText {
 public:
  TokenText(const data::Tokenizer& tokenizer, bool is_answer);
  std::string next(int32_t id);

 private:
  const data::Tokenizer& tokenizer_;
  std::set<int32_t> left_out_;
  bool begins_;
};

}  // namespace hocket::serve
