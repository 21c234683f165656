// SPDX-License-Identifier: Apache-2.0
// Inside of the tokenizer, shared by tokenizer.cc (construction, decoding), encoder.cc and
// tokenizer_json.cc.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace hocket::data {

/// Map from a pair of ids to what it merges to; built once.
class MergeTable {
 public:
  struct Merge {
    uint64_t key = kNone;
    uint32_t rank = 0;
    int32_t result = 0;
  };
  static constexpr uint64_t kNone = ~uint64_t{0};

  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  void reserve(size_t merges) {
    size_t slots = 16;
    while (slots < 2 * merges) slots *= 2;
    slots_.assign(slots, {});
  }
  /// A pair that is there already gets the new rank and result.
  void set(int32_t left, int32_t right, uint32_t rank, int32_t result) {
    const uint64_t k = key(left, right);
    size_t i = mix64(k) & (slots_.size() - 1);
    while (slots_[i].key != kNone && slots_[i].key != k) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = {k, rank, result};
  }
  const Merge* find(int32_t left, int32_t right) const {
    const uint64_t k = key(left, right);
    for (size_t i = mix64(k) & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == k) return &slots_[i];
      if (slots_[i].key == kNone) return nullptr;
    }
  }

 private:
  std::vector<Merge> slots_;
};

struct Tokenizer::Impl {
  explicit Impl(TokenizerSpec s) : spec(std::move(s)), pretokenizer(spec.pattern) {}

  TokenizerSpec spec;
  Pretokenizer pretokenizer;
  MergeTable merges;
  std::array<int32_t, 256> byte_ids{};                       // -1: no token for that byte
  std::unordered_map<std::string_view, int32_t> by_bytes;    // views into spec.tokens
  std::array<std::vector<const AddedToken*>, 256> added_by;  // by first byte, longest first
  std::vector<bool> special;
  Hash128 hash, content_hash;  // with and without the end of text
  std::string source;  // the JSON text that it was read from; empty for a trained one
};

/// Largest vocabulary that is accepted.
inline constexpr int32_t kMaxVocab = 1 << 22;

/// Error: see Tokenizer::parse.
TokenizerSpec spec_from_json(std::string_view json, const std::string& where,
                             const std::string& eos_text);
std::string spec_to_json(const TokenizerSpec& spec);
/// Unicode's White_Space.
bool is_white_space(uint32_t code_point);

}  // namespace hocket::data
