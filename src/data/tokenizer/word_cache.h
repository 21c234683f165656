// SPDX-License-Identifier: Apache-2.0
// Ids of words that an encoder has met.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/flat_map.h"
#include "base/hash.h"

namespace hocket::data {

/// Words that were encoded before. Emptied when it holds kMaxWords.
class WordCache {
 public:
  static constexpr size_t kMaxWord = 128;  ///< bytes of the longest that is kept

  /// Returns the ids of a word; null: it is unknown.
  const int32_t* find(std::string_view word, uint64_t hash, size_t* count) const {
    const Entry* found = entries_.find(hash, [&](const Entry& e) {
      return e.length == word.size() &&
             std::memcmp(text_.data() + e.text, word.data(), word.size()) == 0;
    });
    if (found == nullptr) return nullptr;
    *count = found->count;
    return ids_.data() + found->ids;
  }

  /// Inserts a word. Requires: find() does not know it.
  void insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
    if (entries_.size() >= kMaxWords) {
      entries_.clear();
      text_.clear();
      ids_.clear();
    }
    const Entry entry{static_cast<uint32_t>(text_.size()), static_cast<uint32_t>(ids_.size()),
                      static_cast<uint16_t>(word.size()), static_cast<uint16_t>(ids.size())};
    entries_.insert(hash, entry, [](const Entry&) { return false; });
    text_ += word;
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

  /// Any bits but the one that the table keeps for itself.
  static uint64_t hash(std::string_view word) { return hash64(word) >> 1; }

 private:
  static constexpr size_t kFirstWords = 1 << 9;
  static constexpr size_t kMaxWords = 1 << 17;
  struct Entry {
    uint32_t text = 0, ids = 0;
    uint16_t length = 0, count = 0;
  };
  FlatMap<Entry, OwnBits> entries_{kFirstWords};
  std::string text_;
  std::vector<int32_t> ids_;
};

}  // namespace hocket::data
