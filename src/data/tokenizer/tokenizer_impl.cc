// SPDX-License-Identifier: Apache-2.0
// Implements: the tables that a tokenizer is made of, from its spec, and its hash.
#include "data/tokenizer/tokenizer_impl.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/tokenizer/byte_alphabet.h"

namespace hocket::data {
namespace {

constexpr double kUnknownPenalty = 10;  // sentencepiece's, below the least score

// Calls `each(code point)` for the characters of a text; a malformed byte is -2.
template <class Each>
void each_char(std::string_view text, const Each& each) {
  for (size_t at = 0; at < text.size();) {
    const int length = utf8_length(text, at);
    each(length == 0 ? -2 : static_cast<int32_t>(utf8_code_point(text, at, length)));
    at += std::max(1, length);
  }
}

void hash_added(Hasher& hasher, const std::vector<AddedToken>& added) {
  for (const AddedToken& token : added) {
    hasher.add(token.id).add(uint64_t{token.text.size()}).add(token.text);
    hasher.add(uint64_t{token.single_word} | uint64_t{token.lstrip} << 1 |
               uint64_t{token.rstrip} << 2 | uint64_t{token.normalized} << 3);
  }
}

// A byte-level BPE with at most the options that the first version of this hash knew.
struct FirstForm {
  std::string pattern;
  bool prefix_space = false, nfc = false, fits = false;

  explicit FirstForm(const TokenizerSpec& spec) {
    if (spec.model != TokenizerSpec::Model::bpe || !spec.byte_level || spec.unk >= 0 ||
        spec.byte_fallback) {
      return;
    }
    for (const NormalizerStep& step : spec.normalizers) {
      if (step.kind != NormalizerStep::Kind::nfc) return;
      nfc = true;
    }
    for (const PretokenizerStep& step : spec.pretokenizers) {
      const bool splits = step.kind == PretokenizerStep::Kind::split && pattern.empty() &&
                          step.behavior == PretokenizerStep::Behavior::isolated && !step.invert;
      const bool prefixes =
          step.kind == PretokenizerStep::Kind::prefix_space && &step == spec.pretokenizers.data();
      if (!splits && !prefixes) return;
      prefix_space |= prefixes;
      pattern = step.pattern;
    }
    fits = true;
  }
};

void hash_steps(Hasher& hasher, const TokenizerSpec& spec) {
  const auto text = [&](std::string_view s) { hasher.add(uint64_t{s.size()}).add(s); };
  hasher.add(static_cast<int64_t>(spec.model));
  hasher.add(uint64_t{spec.byte_level} | uint64_t{spec.ignore_merges} << 1 |
             uint64_t{spec.fuse_unk} << 2 | uint64_t{spec.byte_fallback} << 3);
  hasher.add(spec.unk);
  hasher.add(uint64_t{spec.scores.size()});
  for (const double score : spec.scores) {
    hasher.add(std::bit_cast<uint64_t>(score));
  }
  hasher.add(uint64_t{spec.normalizers.size()});
  for (const NormalizerStep& step : spec.normalizers) {
    hasher.add(static_cast<int64_t>(step.kind));
    text(step.pattern);
    text(step.content);
    hasher.add(uint64_t{step.regex} | uint64_t{step.left} << 1 | uint64_t{step.right} << 2);
  }
  hasher.add(uint64_t{spec.pretokenizers.size()});
  for (const PretokenizerStep& step : spec.pretokenizers) {
    hasher.add(static_cast<int64_t>(step.kind)).add(static_cast<int64_t>(step.behavior));
    text(step.pattern);
    text(step.replacement);
    hasher.add(static_cast<int64_t>(step.prepend));
    hasher.add(uint64_t{step.invert} | uint64_t{step.cut} << 1);
  }
  hasher.add(uint64_t{spec.decoders.size()});
  for (const DecoderStep& step : spec.decoders) {
    hasher.add(static_cast<int64_t>(step.kind)).add(static_cast<int64_t>(step.prepend));
    text(step.pattern);
    text(step.content);
    hasher.add(step.start).add(step.stop);
  }
}

}  // namespace

void hash_spec(const TokenizerSpec& spec, Hash128* content, Hash128* all) {
  // Tokenizers of the first form keep the hash that prepared data records.
  Hasher hasher;
  const auto text = [&](std::string_view s) { hasher.add(uint64_t{s.size()}).add(s); };
  const FirstForm first(spec);
  if (first.fits) {
    text("byte-level BPE 1");
    text(first.pattern);
    hasher.add(uint64_t{first.prefix_space} | uint64_t{spec.ignore_merges} << 1 |
               uint64_t{first.nfc} << 2);
  } else {
    text("tokenizer 2");
    hash_steps(hasher, spec);
  }
  hasher.add(uint64_t{spec.tokens.size()});
  for (const std::string& token : spec.tokens) {
    text(token);
  }
  hasher.add(uint64_t{spec.merges.size()});
  for (const auto& [left, right] : spec.merges) {
    hasher.add(pair_key(left, right));
  }
  hash_added(hasher, spec.added);
  *content = hasher.finish();
  if (!spec.prefix.empty() || !spec.suffix.empty()) {
    for (const auto* ends : {&spec.prefix, &spec.suffix}) {
      hasher.add(uint64_t{ends->size()});
      for (const int32_t id : *ends) {
        hasher.add(id);
      }
    }
  }
  hasher.add(spec.eos);
  *all = hasher.finish();
}

Tokenizer::Impl::Impl(TokenizerSpec tokenizer_spec)
    : spec(std::move(tokenizer_spec)), normalizer(spec.normalizers) {
  for (const PretokenizerStep& step : spec.pretokenizers) {
    regexes.emplace_back(step.pattern);
  }
  check_ids();
  index_vocabulary();
  if (spec.model == TokenizerSpec::Model::bpe) {
    index_merges();
    index_neighbours();
  } else {
    index_pieces();
  }
  index_added();
  for (int32_t id = 0; id < std::ssize(spec.tokens); ++id) {
    decoded.push_back(decode_token(spec, surface(id), false));
  }
  decode_added_bytes();
  hash_spec(spec, &content_hash, &hash);
}

// Decodes added tokens as bytes. The ByteLevel decoder reads every token in its alphabet, added
// ones too, whatever they stand for.
void Tokenizer::Impl::decode_added_bytes() {
  if (!spec.byte_level) return;
  for (const AddedToken& added : spec.added) {
    const auto normalized = normalized_texts.find(added.id);
    const std::string& text =
        normalized == normalized_texts.end() ? added.text : normalized->second;
    std::string bytes;
    if (from_alphabet(text, &bytes)) {
      decoded[added.id] = std::move(bytes);
    }
  }
}

void Tokenizer::Impl::check_ids() const {
  const int64_t count = std::ssize(spec.tokens);
  if (count == 0) fail("tokenizer", "empty vocabulary");
  if (count > kMaxVocab) fail("tokenizer", "{} tokens; expected at most {}", count, kMaxVocab);
  const auto require = [&](int32_t id, int32_t least, const char* what) {
    if (id < least || id >= count) {
      fail("tokenizer", "{} is id {}; expected 0 to {}", what, id, count - 1);
    }
  };
  require(spec.eos, -1, "the end of text");
  require(spec.unk, -1, "the unknown token");
  for (const auto* ends : {&spec.prefix, &spec.suffix}) {
    for (const int32_t id : *ends) {
      require(id, 0, "a token that the post-processor adds");
    }
  }
  for (const AddedToken& added : spec.added) {
    if (added.id < 0 || added.id >= count || added.text.empty()) {
      fail("tokenizer", "added token {} has id {}; expected 0 to {} and a text", quote(added.text),
           added.id, count - 1);
    }
  }
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    for (const int32_t id : spec.merges[rank]) {
      if (id < 0 || id >= count) {
        fail("tokenizer", "merge {} names id {}; expected 0 to {}", rank, id, count - 1);
      }
    }
  }
  if (spec.model == TokenizerSpec::Model::unigram && std::ssize(spec.scores) != count) {
    fail("tokenizer", "{} scores for {} tokens; expected one each", spec.scores.size(), count);
  }
}

void Tokenizer::Impl::index_vocabulary() {
  const int32_t count = static_cast<int32_t>(spec.tokens.size());
  std::vector<bool> only_added(count, false);
  for (const AddedToken& added : spec.added) {
    only_added[added.id] = !added.in_vocabulary;
  }
  byte_ids.fill(-1);
  fallback_ids.fill(-1);
  by_text.reserve(spec.tokens.size());
  for (int32_t id = 0; id < count; ++id) {
    const std::string& text = spec.tokens[id];
    if (text.empty() || only_added[id]) continue;
    const auto [at, is_new] = by_text.emplace(text, id);
    if (!is_new) {
      // A Unigram vocabulary is a list: the last one counts.
      if (spec.model == TokenizerSpec::Model::bpe) {
        fail("tokenizer", "token {} has two ids, {} and {}", quote(text), at->second, id);
      }
      at->second = id;
    }
    if (text.size() == 1) {
      byte_ids[static_cast<uint8_t>(text[0])] = id;
    } else if (const int length = utf8_length(text, 0); std::cmp_equal(length, text.size())) {
      *char_ids.insert(utf8_code_point(text, 0, length), id).first = id;
    }
  }
  // A piece of one byte is that token, but Unigram may have to leave a special one out.
  single_bytes = byte_ids;
  if (spec.model == TokenizerSpec::Model::unigram) {
    single_bytes.fill(-1);
  }
  int present = 0;
  for (int byte = 0; byte < 256; ++byte) {
    fallback_ids[byte] = spec.byte_fallback ? id_of(fmt::format("<0x{:02X}>", byte)) : -1;
    present += fallback_ids[byte] >= 0;
  }
  if (present > 0 && present < 256) {
    fail("tokenizer", "byte_fallback with {} of the tokens <0x00> to <0xFF>; expected all or none",
         present);
  }
  fallback = present == 256;
}

int32_t Tokenizer::Impl::unit_id(std::string_view text, size_t at, int length) const {
  if (length == 1) return byte_ids[static_cast<uint8_t>(text[at])];
  const int32_t* id = char_ids.find(utf8_code_point(text, at, length));
  return id == nullptr ? -1 : *id;
}

void Tokenizer::Impl::index_merges() {
  merges = FlatMap<Merge>(spec.merges.size());
  const auto stands_for_byte = [&](int32_t id) {
    return fallback &&
           std::find(fallback_ids.begin(), fallback_ids.end(), id) != fallback_ids.end();
  };
  std::string both;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto [left, right] = spec.merges[rank];
    both = spec.tokens[left];
    both += spec.tokens[right];
    const int32_t result = id_of(both);
    if (result < 0) {
      fail("tokenizer", "merge {} makes {}, which is not in the vocabulary", rank, quote(both));
    }
    if (both[0] == '<' && (stands_for_byte(left) || stands_for_byte(right))) {
      fail("tokenizer", "merge {} makes {} of a token that stands for a byte; expected characters",
           rank, quote(both));
    }
    // A pair that is there already gets the later rank.
    const Merge merge{static_cast<uint32_t>(rank), result};
    *merges.insert(pair_key(left, right), merge).first = merge;
  }
}

void Tokenizer::Impl::index_neighbours() {
  // Bytes are cut into words by regular expressions already. A token that stands for its word as a
  // whole, whatever the merges say, must meet it whole. Without an unknown token characters are
  // left out, and what is around them is merged.
  cuts_words = !spec.byte_level && !spec.ignore_merges && (spec.unk >= 0 || fallback);
  if (!cuts_words) return;
  for (const auto& [left, right] : spec.merges) {
    int32_t last = -1;
    each_char(spec.tokens[left] + spec.tokens[right], [&](int32_t c) {
      if (last != -1) {
        neighbours.insert(pair_key(last, c), 1);
      }
      last = c;
    });
  }
}

void Tokenizer::Impl::index_pieces() {
  double least = std::numeric_limits<double>::infinity();
  std::vector<std::pair<std::string_view, int32_t>> texts;
  texts.reserve(by_text.size());
  for (const auto& [text, id] : by_text) {
    texts.emplace_back(text, id);
    least = std::min(least, spec.scores[id]);
  }
  pieces = Trie(std::move(texts));
  unk_score = least - kUnknownPenalty;
}

void Tokenizer::Impl::index_added() {
  special.assign(spec.tokens.size(), false);
  std::vector<std::pair<std::string_view, int32_t>> raw, normalized;
  // Special tokens come first: of equal texts the first counts, as in `tokenizers`.
  for (const bool wanted : {true, false}) {
    for (size_t i = 0; i < spec.added.size(); ++i) {
      const AddedToken& added = spec.added[i];
      if (added.special != wanted) continue;
      special[added.id] = special[added.id] || added.special;
      if (!added.normalized) {
        raw.emplace_back(added.text, i);
        continue;
      }
      const std::string& text = normalized_texts[added.id] = normalizer.apply(added.text);
      if (!text.empty()) {
        normalized.emplace_back(text, i);
      }
    }
  }
  raw_added = Trie(std::move(raw));
  normalized_added = Trie(std::move(normalized));
}

}  // namespace hocket::data
