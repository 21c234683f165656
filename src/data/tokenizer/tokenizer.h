// SPDX-License-Identifier: Apache-2.0
// Tokenizers of Hugging Face's tokenizer.json (docs/tokenizers.md). BPE merges a word's bytes or
// characters pair by pair, the pair that comes first in the list of merges first, the leftmost of
// equals first (Sennrich et al., ACL 2016); Unigram takes the most probable cut of a word into
// tokens (Kudo, "Subword regularization", ACL 2018).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "data/tokenizer/tokenizer_spec.h"

namespace hocket::data {

struct EncodeOptions {
  /// Puts the tokens that the post-processor adds before and behind the text (`transformers`'
  /// name).
  bool add_special_tokens = false;
  /// Takes special tokens that stand in the text for text like any other (`transformers`' name). So
  /// the text can neither end a document nor begin another role. Other added tokens are found.
  bool split_special_tokens = false;
  /// Bytes of the text, sorted, at which a special token is text like any other; needs ranges.
  std::span<const size_t> literal = {};
};

/// Immutable; safe to share between threads.
class Tokenizer {
 public:
  /// Throws Error for an id out of range, a duplicate token, or a merge with a result that is no
  /// token. Also throws for a regular expression that does not compile.
  explicit Tokenizer(TokenizerSpec spec);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Loads a tokenizer.json, a folder with one, or the tokenizer in a GGUF file. The end
  /// of text is that of the tokenizer_config.json beside it or of the metadata, else the first
  /// present of the usual names. Throws Error for an absent or broken file, or for whatever would
  /// change ids and is not built in, by name.
  static Tokenizer load(const std::string& path);
  /// The same from text; `where` names it in errors, `eos_text` (may be empty) is the end of text.
  static Tokenizer parse(std::string_view json, const std::string& where,
                         const std::string& eos_text = "");

  /// Writes a tokenizer.json that `tokenizers` opens: of a loaded one the very text.
  void save(const std::string& path) const;
  std::string to_json() const;
  /// Writes tokenizer.json and tokenizer_config.json, which `transformers` opens.
  void save_folder(const std::string& folder) const;

  /// Ids of a text; a short way to Encoder.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Bytes of the ids (not UTF-8 if ids cut a character). A blank that encoding puts before a text
  /// is taken away, where the decoder says so: pieces of a text that are decoded one after the
  /// other are joined with token_bytes() instead. Throws Error for an id that is no token.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  int32_t vocab_size() const;  ///< one more than the largest id
  int32_t eos_id() const;      ///< -1: the file does not say
  /// Text of an id, except at the beginning of a text (see decode).
  std::string_view token_bytes(int32_t id) const;
  /// Bytes of text that each id stands for; 0 for the end of text and the unknown token.
  std::vector<int32_t> token_lengths() const;
  /// Id of a token by its text in the spec, e.g. "<|im_end|>"; -1 if there is none.
  int32_t find_token(std::string_view text) const;
  const TokenizerSpec& spec() const;
  /// Returns a hash of everything that determines ids: equal hashes mean equal ids for every text,
  /// the same tokens added at its ends, and the same end of text.
  Hash128 hash() const;
  /// The same but for both ends: equal hashes, equal ids for every text.
  Hash128 content_hash() const;

 private:
  friend class Encoder;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Throws Error, naming both, if the tokenizer.json of a model's folder, or the tokenizer of its
/// GGUF file, gives ids another meaning than `tokenizer`; `where` is the latter's owner and
/// `advice` the suggestion. A difference in the end of text alone is a warning. A folder without
/// tokenizer.json passes.
void require_tokenizer_of(const std::string& model_folder, const Tokenizer& tokenizer,
                          const std::string& where, const std::string& advice);

/// Encodes with a cache of words. One per thread; the tokenizer must outlive it.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  /// Appends the ids of `text`, any bytes, and to `ranges`, unless null, the bytes of the text that
  /// each stands for: exactly those, or where a normaliser changed them, the characters that it
  /// changed together; for added ids an empty range. With ranges, words are not cached. A BPE
  /// without an unknown token leaves out bytes and characters without a token, with a warning.
  /// Unigram throws Error for them.
  void encode(std::string_view text, std::vector<int32_t>* ids, const EncodeOptions& options = {},
              std::vector<ByteRange>* ranges = nullptr);

  /// Special tokens that stood in the texts so far, taken as such or, with split_special_tokens, as
  /// text.
  int64_t special_tokens_met() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hocket::data
