// SPDX-License-Identifier: Apache-2.0
// Byte strings with values, for finding all that a text begins with. Children of a node lie side by
// side.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace hocket::data {

class Trie {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  Trie() { roots_.fill(kNone); }
  /// Holds texts, none empty; of equal ones the first counts.
  explicit Trie(std::vector<std::pair<std::string_view, int32_t>> texts);

  /// Next place from `at` on with a byte that some text begins with; the end if there is none.
  size_t next_begin(std::string_view text, size_t at) const {
    if (nodes_.empty()) return text.size();
    while (at < text.size() && !begins_[static_cast<uint8_t>(text[at])]) {
      ++at;
    }
    return at;
  }

  /// Calls `found(length, value)` for each text that `text` begins with, the shortest first.
  template <class Found>
  void each_prefix(std::string_view text, const Found& found) const {
    if (text.empty()) return;
    uint32_t at = roots_[static_cast<uint8_t>(text[0])];
    for (size_t length = 1; at != kNone; ++length) {
      const Node& node = nodes_[at];
      if (node.value >= 0) {
        found(length, node.value);
      }
      if (length == text.size()) break;
      at = child(node, static_cast<uint8_t>(text[length]));
    }
  }

 private:
  struct Node {
    uint32_t first = 0;  // of its children
    uint16_t children = 0;
    int32_t value = -1;
  };

  uint32_t child(const Node& node, uint8_t byte) const {
    if (node.children == 0) return kNone;
    const uint8_t* labels = labels_.data() + node.first;
    const void* found = std::memchr(labels, byte, node.children);
    return found == nullptr
               ? kNone
               : node.first + static_cast<uint32_t>(static_cast<const uint8_t*>(found) - labels);
  }

  std::array<uint32_t, 256> roots_{};
  std::array<bool, 256> begins_{};
  std::vector<Node> nodes_;
  std::vector<uint8_t> labels_;  // last byte of each node
};

}  // namespace hocket::data
