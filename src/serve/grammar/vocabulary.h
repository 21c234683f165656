// SPDX-License-Identifier: Apache-2.0
// The tokens of a tokenizer as a tree over their bytes, for finding all that may come next.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hocket::data {
class Tokenizer;
}

namespace hocket::serve {

/// Immutable; safe to share between threads.
class GrammarVocabulary {
 public:
  /// `bytes` are the texts of the ids; empty: the id is never allowed. `special` are ids and texts
  /// of control tokens, which stand for a mark such as "[TOOL_CALLS]" only where a constraint has
  /// one; their `bytes` are empty.
  explicit GrammarVocabulary(const std::vector<std::string>& bytes,
                             const std::vector<std::pair<int32_t, std::string>>& special = {});
  /// The tokenizer's tokens; special ones, and those that stand for no text, are control tokens.
  static std::shared_ptr<const GrammarVocabulary> of(const data::Tokenizer& tokenizer);

  int32_t size() const { return size_; }  ///< one more than the largest id
  size_t mask_words() const { return (static_cast<size_t>(size_) + 31) / 32; }

  /// First byte of control tokens in the tree. No text has it, as UTF-8 does not.
  static constexpr uint8_t kSpecial = 0xFF;
  /// Bytes that a token stands for in the tree; empty: never allowed.
  std::string_view bytes(int32_t token) const;

  /// A node of the tree, in the order of a walk from the root that visits parents first.
  struct Node {
    uint32_t end = 0;          ///< the first node behind its subtree
    uint32_t first_token = 0;  ///< its tokens: from here to that of the next node, in tokens()
    uint16_t depth = 0;        ///< bytes up to here; the root's children have 1
    uint8_t byte = 0;
  };
  /// One more than the nodes: the last has only first_token. The root is not among them.
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int max_depth() const { return max_depth_; }

 private:
  int32_t size_ = 0;
  int max_depth_ = 0;
  std::string text_;                               // bytes of all tokens
  std::vector<std::pair<uint32_t, uint32_t>> at_;  // by id: where in text_, and how many
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
};

}  // namespace hocket::serve
