// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar/vocabulary.h"

#include <algorithm>

#include "base/error.h"
#include "data/tokenizer/tokenizer.h"

namespace hocket::serve {
namespace {

/// No token is longer; longer ones, such as runs of blanks, are never allowed.
constexpr size_t kMaxTokenBytes = 4096;

/// Returns whether a text has a byte that no UTF-8 has.
bool has_foreign_byte(std::string_view bytes) {
  return std::any_of(bytes.begin(), bytes.end(),
                     [](char c) { return static_cast<uint8_t>(c) >= 0xF8; });
}

}  // namespace

GrammarVocabulary::GrammarVocabulary(const std::vector<std::string>& bytes,
                                     const std::vector<std::pair<int32_t, std::string>>& special)
    : size_(static_cast<int32_t>(bytes.size())), at_(bytes.size(), {0, 0}) {
  std::vector<std::pair<std::string, int32_t>> sorted;
  for (size_t id = 0; id < bytes.size(); ++id) {
    if (bytes[id].empty() || has_foreign_byte(bytes[id])) continue;
    sorted.emplace_back(bytes[id], static_cast<int32_t>(id));
  }
  for (const auto& [id, text] : special) {
    HOCKET_CHECK(id >= 0 && id < size_ && bytes[static_cast<size_t>(id)].empty(),
                 "control token {} of {} tokens", id, size_);
    sorted.emplace_back(static_cast<char>(kSpecial) + text, id);
  }
  std::erase_if(sorted, [](const auto& token) { return token.first.size() > kMaxTokenBytes; });
  std::sort(sorted.begin(), sorted.end());
  std::vector<uint32_t> open;  // nodes from the root's child to the last one
  std::string_view before;
  for (const auto& [text, id] : sorted) {
    at_[static_cast<size_t>(id)] = {static_cast<uint32_t>(text_.size()),
                                    static_cast<uint32_t>(text.size())};
    text_ += text;
    size_t shared = 0;
    while (shared < before.size() && shared < text.size() && before[shared] == text[shared]) {
      ++shared;
    }
    for (; open.size() > shared; open.pop_back()) {
      nodes_[open.back()].end = static_cast<uint32_t>(nodes_.size());
    }
    for (size_t depth = shared; depth < text.size(); ++depth) {
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<uint32_t>(tokens_.size()), static_cast<uint16_t>(depth + 1),
                        static_cast<uint8_t>(text[depth])});
    }
    tokens_.push_back(id);
    max_depth_ = std::max(max_depth_, static_cast<int>(text.size()));
    before = text;
  }
  for (uint32_t node : open) {
    nodes_[node].end = static_cast<uint32_t>(nodes_.size());
  }
  nodes_.push_back({0, static_cast<uint32_t>(tokens_.size()), 0, 0});
}

std::string_view GrammarVocabulary::bytes(int32_t token) const {
  if (token < 0 || token >= size_) return {};
  const auto [at, count] = at_[static_cast<size_t>(token)];
  return std::string_view(text_).substr(at, count);
}

std::shared_ptr<const GrammarVocabulary> GrammarVocabulary::of(const data::Tokenizer& tokenizer) {
  const auto count = static_cast<size_t>(tokenizer.vocab_size());
  const std::vector<int32_t> lengths = tokenizer.token_lengths();
  std::vector<std::string> bytes(count);
  std::vector<uint8_t> is_special(count, 0);
  for (const data::AddedToken& token : tokenizer.spec().added) {
    if (token.special && token.id >= 0 && static_cast<size_t>(token.id) < count) {
      is_special[static_cast<size_t>(token.id)] = 1;
    }
  }
  std::vector<std::pair<int32_t, std::string>> special;
  for (size_t id = 0; id < count; ++id) {
    const auto token = static_cast<int32_t>(id);
    const std::string text(tokenizer.token_bytes(token));
    if (is_special[id] != 0) {
      special.emplace_back(token, text);
    } else if (lengths[id] > 0) {
      bytes[id] = text;
    }
  }
  return std::make_shared<const GrammarVocabulary>(bytes, special);
}

}  // namespace hocket::serve
