// SPDX-License-Identifier: Apache-2.0
// Inside of the tokenizer, shared by tokenizer.cc (construction), decode.cc, encoder.cc and the
// readers and writers of tokenizer.json.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/flat_map.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/trie.h"

namespace hocket::data {

/// A pair of ids, or of characters, as one key.
inline uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

/// Result and rank of a merge.
struct Merge {
  uint32_t rank = 0;
  int32_t result = 0;
};

struct Tokenizer::Impl {
  explicit Impl(TokenizerSpec tokenizer_spec);

  TokenizerSpec spec;
  Normalizer normalizer;
  std::vector<Regex> regexes;  // of each pre-tokenizer; of nothing where it has none

  // The model.
  std::unordered_map<std::string_view, int32_t> by_text;  // the vocabulary; views into spec.tokens
  std::array<int32_t, 256> byte_ids{};      // of tokens of one byte; -1: there is none
  std::array<int32_t, 256> single_bytes{};  // ids of words of one byte; -1: not known beforehand
  std::array<int32_t, 256> fallback_ids{};  // of "<0x00>" to "<0xFF>"
  bool fallback = false;                    // byte_fallback, and all of them are there
  FlatMap<int32_t> char_ids;                // of tokens of one character beyond ASCII
  FlatMap<Merge> merges;                    // by pair_key
  /// Neighbours that some merge's result holds, by pair_key of their characters: a word can be cut
  /// between any others. Unused unless `cuts_words`.
  FlatMap<char> neighbours;
  bool cuts_words = false;
  Trie pieces;  // of Unigram
  double unk_score = 0;

  // Added tokens, by place in spec.added: those of the text as it is, and of the normalised text.
  Trie raw_added, normalized_added;
  std::unordered_map<int32_t, std::string> normalized_texts;  // by id
  std::vector<bool> special;                                  // by id
  std::vector<std::string> decoded;  // bytes of each id, not at the beginning of a text

  Hash128 hash, content_hash;  // with and without the end of text
  std::string source;          // the JSON text that it was read from; empty for a trained one

  /// Text of an id for the decoders: of added tokens that are looked for in normalised text, that.
  std::string_view surface(int32_t id) const {
    const auto found = normalized_texts.find(id);
    return found == normalized_texts.end() ? spec.tokens[id] : found->second;
  }
  const Merge* merge_of(int32_t left, int32_t right) const {
    return merges.find(pair_key(left, right));
  }
  /// Id of a text; -1 if the vocabulary lacks it.
  int32_t id_of(std::string_view text) const {
    const auto found = by_text.find(text);
    return found == by_text.end() ? -1 : found->second;
  }
  /// Id of the unit, a byte or character of `length` bytes, at text[at]; -1 if there is none.
  int32_t unit_id(std::string_view text, size_t at, int length) const;

 private:
  void index_vocabulary();
  void index_merges();
  void index_neighbours();
  void index_pieces();
  void index_added();
  void decode_added_bytes();
  void check_ids() const;
};

/// Bytes of a token as the decoders give them, at the beginning of a text or further on.
std::string decode_token(const TokenizerSpec& spec, std::string_view token, bool first);
/// Text of all tokens together as the decoders behind `fuse` leave it.
std::string decode_whole(const TokenizerSpec& spec, std::string text);

/// Computes two hashes: of everything that determines a text's ids, and of that with the end of
/// text.
void hash_spec(const TokenizerSpec& spec, Hash128* content, Hash128* all);

/// Largest vocabulary that is accepted.
inline constexpr int32_t kMaxVocab = 1 << 22;

/// Reads a tokenizer.json. Throws Error as Tokenizer::parse() does.
TokenizerSpec spec_from_json(std::string_view json, const std::string& where,
                             const std::string& eos_text);
std::string spec_to_json(const TokenizerSpec& spec);

}  // namespace hocket::data
