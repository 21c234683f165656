// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/trie.h"

#include <algorithm>

namespace hocket::data {

Trie::Trie(std::vector<std::pair<std::string_view, int32_t>> texts) {
  // Level by level over the sorted texts: a node is the range of texts that begin alike.
  roots_.fill(kNone);
  std::stable_sort(texts.begin(), texts.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> ranges;  // of each node
  const auto add_children = [&](const Range& range, const auto& added) {
    for (size_t i = range.begin; i < range.end;) {
      const char byte = texts[i].first[range.depth];
      size_t end = i;
      while (end < range.end && texts[end].first[range.depth] == byte) {
        ++end;
      }
      added(static_cast<uint8_t>(byte), static_cast<uint32_t>(nodes_.size()));
      nodes_.emplace_back();
      labels_.push_back(static_cast<uint8_t>(byte));
      ranges.push_back({i, end, range.depth + 1});
      i = end;
    }
  };
  add_children({0, texts.size(), 0}, [&](uint8_t byte, uint32_t node) {
    roots_[byte] = node;
    begins_[byte] = true;
  });
  for (uint32_t at = 0; at < nodes_.size(); ++at) {
    Range range = ranges[at];
    if (texts[range.begin].first.size() == range.depth) {
      nodes_[at].value = texts[range.begin].second;
    }
    while (range.begin < range.end && texts[range.begin].first.size() == range.depth) {
      ++range.begin;
    }
    const auto first = static_cast<uint32_t>(nodes_.size());
    uint16_t children = 0;
    add_children(range, [&](uint8_t, uint32_t) { ++children; });
    nodes_[at].first = first;
    nodes_[at].children = children;
  }
}

}  // namespace hocket::data
