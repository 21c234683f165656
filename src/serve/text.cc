// SPDX-License-Identifier: Apache-2.0
#include "serve/text.h"

#include <algorithm>
#include <utility>

namespace hocket::serve {

bool StoppedText::append(std::string_view bytes, bool may_stop) {
  // A stop string that ends in the new bytes began at most its length before them.
  const size_t before = text_.size();
  text_ += bytes;
  if (!may_stop) return true;
  size_t first_end = text_.npos, begin = text_.npos;
  for (const std::string& stop : stops_) {
    const size_t from = before >= stop.size() ? before - stop.size() + 1 : 0;
    const size_t at = text_.find(stop, from);
    if (at == text_.npos) continue;
    const size_t end = at + stop.size();
    if (end < first_end || (end == first_end && at < begin)) {
      first_end = end;
      begin = at;
      stop_ = stop;
    }
  }
  if (begin != text_.npos) {
    text_.resize(keep_stop_ ? first_end : begin);
    return false;
  }
  return true;
}

size_t StoppedText::settled() const {
  size_t end = text_.size();
  for (const std::string& stop : stops_) {
    for (size_t held = std::min(stop.size() - 1, text_.size()); held > 0; --held) {
      if (text_.ends_with(std::string_view(stop).substr(0, held))) {
        end = std::min(end, text_.size() - held);
        break;
      }
    }
  }
  // A character of up to 4 bytes whose last ones are yet to come.
  constexpr size_t kLongestCharacter = 4;
  for (size_t at = end - std::min(end, kLongestCharacter - 1); at < end; ++at) {
    const auto lead = static_cast<unsigned char>(text_[at]);
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (at + length > end) return at;
  }
  return end;
}

std::string StoppedText::take() { return take_to(settled()); }

std::string StoppedText::take_all() { return take_to(text_.size()); }

std::string StoppedText::take_to(size_t end) {
  if (end <= taken_) return "";
  const size_t begin = std::exchange(taken_, end);
  return text_.substr(begin, end - begin);
}

TokenText::TokenText(const data::Tokenizer& tokenizer, bool is_answer)
    : tokenizer_(tokenizer), begins_(is_answer) {
  for (const data::AddedToken& added : tokenizer.spec().added) {
    if (is_answer && added.special) {
      left_out_.insert(added.id);
    }
  }
}

std::string TokenText::next(int32_t id) {
  if (left_out_.contains(id)) return "";
  const bool first = std::exchange(begins_, false);
  return first ? tokenizer_.decode(std::span(&id, 1)) : std::string(tokenizer_.token_bytes(id));
}

}  // namespace hocket::serve
