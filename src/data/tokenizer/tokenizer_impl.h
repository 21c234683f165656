// SPDX-License-Identifier: Apache-2.0
// Inside of the tokenizer, shared by tokenizer.cc (construction, decoding), encoder.cc and
// tokenizer_json.cc.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/flat_map.h"
#include "data/tokenizer/tokenizer.h"

namespace hocket::data {

/// A pair of ids as one key.
inline uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

/// Result and rank of a merge.
struct Merge {
  uint32_t rank = 0;
  int32_t result = 0;
};

struct Tokenizer::Impl {
  explicit Impl(TokenizerSpec tokenizer_spec)
      : spec(std::move(tokenizer_spec)), pretokenizer(spec.pattern) {}

  TokenizerSpec spec;
  Pretokenizer pretokenizer;
  FlatMap<Merge> merges;  // by pair_key
  const Merge* merge_of(int32_t left, int32_t right) const {
    return merges.find(pair_key(left, right));
  }
  std::array<int32_t, 256> byte_ids{};                       // -1: no token for that byte
  std::unordered_map<std::string_view, int32_t> by_bytes;    // views into spec.tokens
  std::array<std::vector<const AddedToken*>, 256> added_by;  // by first byte, longest first
  std::vector<bool> special;
  Hash128 hash, content_hash;  // with and without the end of text
  std::string source;          // the JSON text that it was read from; empty for a trained one
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
