// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar/reasoning.h"

#include <algorithm>
#include <utility>

namespace hocket::serve::grammar {
namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>";

/// Returns a token's text, of control tokens too.
std::string_view text_of(const GrammarVocabulary& vocabulary, int32_t token) {
  std::string_view bytes = vocabulary.bytes(token);
  if (!bytes.empty() && static_cast<uint8_t>(bytes[0]) == GrammarVocabulary::kSpecial) {
    bytes.remove_prefix(1);
  }
  return bytes;
}

}  // namespace

Reasoning::Reasoning(const GrammarVocabulary& vocabulary, bool is_open, std::vector<int32_t> ends)
    : vocabulary_(vocabulary),
      state_(is_open ? State::running : State::may_begin),
      ends_(std::move(ends)) {
  for (int32_t token = 0; token < vocabulary.size() && !is_open; ++token) {
    if (text_of(vocabulary, token) == kOpen) {
      opening_.push_back(token);
    }
  }
}

void Reasoning::allow(std::span<uint32_t> mask) const {
  const auto in_mask = [&](int32_t token) {
    return token >= 0 && static_cast<size_t>(token) / 32 < mask.size();
  };
  if (state_ == State::may_begin) {
    for (const int32_t token : opening_) {
      if (in_mask(token)) {
        mask[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
      }
    }
    return;
  }
  std::ranges::fill(mask, ~uint32_t{0});
  for (const int32_t token : ends_) {
    if (in_mask(token)) {
      mask[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (token % 32));
    }
  }
}

std::optional<std::string> Reasoning::take(int32_t token) {
  const std::string_view bytes = text_of(vocabulary_, token);
  if (state_ == State::may_begin) {
    state_ = bytes == kOpen ? State::running : State::over;
    return state_ == State::running ? std::nullopt : std::optional(std::string(bytes));
  }
  held_ += bytes;
  if (const size_t at = held_.find(kClose); at != held_.npos) {
    state_ = State::over;
    std::string rest = held_.substr(at + kClose.size());
    return rest.substr(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
  }
  while (!kClose.starts_with(held_)) {
    held_.erase(0, std::max<size_t>(1, std::min(held_.find('<', 1), held_.size())));
  }
  return std::nullopt;
}

}  // namespace hocket::serve::grammar
