// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE, compatible with Hugging Face's tokenizer.json: a word's bytes are merged pair by
// pair, the pair that comes first in the list of merges first, the leftmost of equals first
// (Sennrich et al., "Neural machine translation of rare words with subword units", ACL 2016).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "data/tokenizer/pretokenizer.h"

namespace hocket::data {

/// A token that is found in the text before anything else is done to it.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = false;      ///< left out by decode on demand
  bool single_word = false;  ///< only where no letter, digit or _ touches it
  bool lstrip = false;       ///< takes the white space before it along
  bool rstrip = false;
  bool normalized = false;  ///< looked for after all others
};

/// Content of a tokenizer.
struct TokenizerSpec {
  /// Bytes of each id; empty for ids that stand for nothing.
  std::vector<std::string> tokens;
  /// Pairs of ids, first to merge first; the bytes of both together must be a token.
  std::vector<std::array<int32_t, 2>> merges;
  std::vector<AddedToken> added;
  std::string pattern;            ///< of the pre-tokenizer; empty: the whole text is one word
  bool add_prefix_space = false;  ///< a blank before text that does not begin with one
  bool ignore_merges = false;     ///< a word that is a token is that token, whatever the merges say
  bool nfc = false;               ///< text is normalised to form C first
  int32_t eos = -1;
};

/// Immutable; safe to share between threads.
class Tokenizer {
 public:
  /// Throws Error for an id out of range, a merge whose result is no token, or a duplicate token.
  explicit Tokenizer(TokenizerSpec spec);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Loads a tokenizer.json, a folder with one, or the tokenizer in a GGUF file. The end of text is
  /// that of the tokenizer_config.json beside it or of the metadata, else the first present of the
  /// usual names. Throws Error for
  /// an absent or broken file, or another kind of tokenizer than byte-level BPE.
  static Tokenizer load(const std::string& path);
  /// The same from text; `where` names it in errors, `eos_text` (may be empty) is the end of text.
  static Tokenizer parse(std::string_view json, const std::string& where,
                         const std::string& eos_text = "");

  /// Writes a tokenizer.json that `tokenizers` opens: of a loaded one the very text.
  void save(const std::string& path) const;
  std::string to_json() const;
  /// Writes tokenizer.json and tokenizer_config.json, which `transformers` opens.
  void save_folder(const std::string& folder) const;

  /// Ids of a text without the tokens of a post-processor; a short way to Encoder.
  std::vector<int32_t> encode(std::string_view text) const;
  /// Bytes of the ids (not UTF-8 if ids cut a character). Error: an id that is no token.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  int32_t vocab_size() const;  ///< one more than the largest id
  int32_t eos_id() const;      ///< -1: the file does not say
  std::string_view token_bytes(int32_t id) const;
  /// Bytes of text that each id stands for; 0 for the end of text.
  std::vector<int32_t> token_lengths() const;
  /// -1 if there is none.
  int32_t find_token(std::string_view bytes) const;
  const TokenizerSpec& spec() const;
  /// Returns a hash of everything that determines ids: equal hashes mean equal ids for every text,
  /// and the same end of text.
  Hash128 hash() const;
  /// The same but for the end of text: equal hashes, equal ids for every text.
  Hash128 content_hash() const;

 private:
  friend class Encoder;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Throws Error, naming both, if the tokenizer.json of a model's folder, or the tokenizer of its GGUF
/// file, gives ids another meaning than `tokenizer`; `where` is the latter's owner and `advice` the
/// suggestion. A difference in the end of text alone is a warning. A folder without tokenizer.json
/// passes.
void require_tokenizer_of(const std::string& model_folder, const Tokenizer& tokenizer,
                          const std::string& where, const std::string& advice);

/// Encodes with a cache of words. One per thread; the tokenizer must outlive it.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  /// Appends the ids of `text`. Added tokens that stand in the text become their ids if
  /// `added_tokens` (as in `tokenizers`), else they are text like any other (for data that must not
  /// be able to end a document). Any bytes are legal. Error: a byte without a token.
  void encode(std::string_view text, std::vector<int32_t>* ids, bool added_tokens = true);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hocket::data
