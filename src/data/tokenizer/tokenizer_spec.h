// SPDX-License-Identifier: Apache-2.0
// Content of a tokenizer, in the terms of Hugging Face's tokenizer.json: text → normalizers →
// pre-tokenizers → model → ids, ids → decoders → text. Defaults are "does nothing".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hocket::data {

/// GPT-2's pattern, also that of the tokenizers that we train.
extern const char* const kGpt2Pattern;
/// Patterns of Llama 3 and Qwen 2/3, as in their tokenizer.json.
extern const char* const kLlama3Pattern;
extern const char* const kQwen2Pattern;

/// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

/// A token that is found in the text before anything else is done to it.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = false;        ///< left out by decode on demand, text like any other on demand
  bool single_word = false;    ///< only where no letter, digit or _ touches it
  bool lstrip = false;         ///< takes the white space before it along
  bool rstrip = false;         ///< likewise behind it
  bool normalized = false;     ///< looked for in the normalised text, after all others
  bool in_vocabulary = false;  ///< the model's vocabulary has it, too, with the same id
};

/// Change of a text before it is cut.
struct NormalizerStep {
  enum class Kind {
    nfc,
    nfd,
    nfkc,
    nfkd,
    lowercase,
    strip_accents,  ///< removes combining characters
    strip,          ///< removes white space at the ends that left and right name
    prepend,        ///< puts `content` before a text that is not empty
    replace,        ///< every match of `pattern` becomes `content`
    precompiled,    ///< sentencepiece's table of replacements, the bytes of `content`
  };
  Kind kind = Kind::nfc;
  std::string pattern;
  bool regex = false;  ///< `pattern` is a regular expression
  std::string content;
  bool left = false, right = false;
};

/// Texts without a blank at their beginning that Metaspace marks there.
enum class Prepend { never, first, always };

/// Cut of a text into pieces, which are cut further by the next step; the model gets the last ones.
struct PretokenizerStep {
  enum class Kind {
    split,         ///< at the matches of `pattern`, a regular expression
    metaspace,     ///< ' ' becomes `replacement`, see `prepend`; cut before each one if `cut`
    prefix_space,  ///< a blank before a piece that does not begin with one
  };
  /// Fate of the matches: pieces of their own (each, or neighbours together), or part of the piece
  /// before or behind, or removed.
  enum class Behavior { isolated, contiguous, merged_with_previous, merged_with_next, removed };
  Kind kind = Kind::split;
  std::string pattern;
  Behavior behavior = Behavior::isolated;
  bool invert = false;  ///< swaps matches and the text between them
  std::string replacement;
  Prepend prepend = Prepend::always;
  bool cut = true;
};

/// Change of tokens on their way to text.
struct DecoderStep {
  enum class Kind {
    metaspace,      ///< `pattern` becomes a blank; in the first token nothing, if `prepend` says so
    byte_fallback,  ///< "<0x0A>" becomes its byte
    replace,        ///< every `pattern` becomes `content`
    strip,          ///< removes up to `start` and `stop` copies of `content` at the ends
    fuse,           ///< all tokens become one: steps behind it are of the whole text
    join,           ///< a blank between tokens, as `tokenizers` does without a decoder
  };
  Kind kind = Kind::fuse;
  std::string pattern, content;
  Prepend prepend = Prepend::never;
  int64_t start = 0, stop = 0;
};

struct TokenizerSpec {
  enum class Model { bpe, unigram };

  Model model = Model::bpe;
  /// The model's symbols are bytes (`ByteLevel`), and decoding joins them; otherwise characters.
  bool byte_level = true;
  /// Text of each id as the model sees it: bytes if byte_level, else as in tokenizer.json, e.g.
  /// "▁the" or "<0x0A>"; of added tokens their text. Empty for ids that stand for nothing.
  std::vector<std::string> tokens;
  /// BPE: pairs of ids, first to merge first; the texts of both together must be a token.
  std::vector<std::array<int32_t, 2>> merges;
  bool ignore_merges = false;  ///< a word that is a token is that token, whatever the merges say
  /// Unigram: logarithm of the probability of each id; those of added tokens count only if they are
  /// in the vocabulary.
  std::vector<double> scores;
  int32_t unk = -1;            ///< stands for characters without a token
  bool fuse_unk = false;       ///< neighbouring ones together; always so in Unigram
  bool byte_fallback = false;  ///< the tokens "<0x00>" to "<0xFF>" stand for them instead

  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizers;
  std::vector<PretokenizerStep> pretokenizers;
  std::vector<DecoderStep> decoders;  ///< none if byte_level
  /// Ids before and behind each text that is encoded with add_special_tokens.
  std::vector<int32_t> prefix, suffix;
  int32_t eos = -1;
};

/// Step that makes every match of a regular expression, and all text between, a piece.
inline PretokenizerStep split_step(
    std::string pattern, PretokenizerStep::Behavior behavior = PretokenizerStep::Behavior::isolated,
    bool invert = false) {
  PretokenizerStep step;
  step.pattern = std::move(pattern);
  step.behavior = behavior;
  step.invert = invert;
  return step;
}

}  // namespace hocket::data
