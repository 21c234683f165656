// SPDX-License-Identifier: Apache-2.0
// Implements: encoding of Tokenizer (tokenizer.h), text → ids: added tokens are cut out, the rest
// is normalised and cut into words, and a word goes through the model (word_model.cc).
#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/encoder_impl.h"
#include "data/tokenizer/unicode.h"

namespace hocket::data {
namespace {

// The character at `at`, or the one that ends there. 0 where there is none.
uint32_t char_at(std::string_view text, size_t at) {
  const int length = utf8_length(text, at);
  return length == 0 ? 0 : utf8_code_point(text, at, length);
}
uint32_t char_before(std::string_view text, size_t end) {
  const size_t begin = utf8_before(text, end);
  return begin == end ? 0 : utf8_code_point(text, begin, static_cast<int>(end - begin));
}

}  // namespace

bool Encoder::Impl::is_literal(const Piece& piece, size_t begin) const {
  return !literal.empty() &&
         std::binary_search(literal.begin(), literal.end(), piece.from[begin].begin);
}

void Encoder::Impl::put(int32_t id, const Piece& piece) {
  ids->push_back(id);
  if (ranges != nullptr) {
    ranges->push_back({piece.from[0].begin, piece.from[piece.text.size() - 1].end});
  }
}

// Cuts out the added tokens of one kind, leftmost and longest first. The rest of the raw text is
// normalised, and goes through the other kind.
void Encoder::Impl::split_added(const Piece& piece, bool normalized_text) {
  const auto rest = [&](size_t begin, size_t end) {
    if (begin >= end) return;
    const Piece part = piece.part(begin, end);
    if (normalized_text) {
      pretokenize(0, part);
    } else {
      split_added(t.normalizer.apply(part, &normalized), true);
    }
  };
  const std::string_view text = piece.text;
  const Trie& trie = normalized_text ? t.normalized_added : t.raw_added;
  size_t done = 0;
  for (size_t i = 0; (i = trie.next_begin(text, i)) < text.size();) {
    size_t length = 0;
    int32_t place = 0;
    trie.each_prefix(text.substr(i), [&](size_t n, int32_t value) {
      length = n;
      place = value;
    });
    if (length == 0) {
      ++i;
      continue;
    }
    // Looks on behind the token, even if it takes blanks behind it along: so does `tokenizers`.
    const AddedToken& found = t.spec.added[place];
    size_t begin = i, end = i + length;
    i = end;
    if (found.single_word && ((begin > 0 && is_word_char(char_before(text, begin))) ||
                              (end < text.size() && is_word_char(char_at(text, end))))) {
      continue;
    }
    special_met += found.special;
    if (found.special && (split_special || is_literal(piece, begin))) continue;
    while (found.lstrip && begin > done && is_white_space(char_before(text, begin))) {
      begin = utf8_before(text, begin);
    }
    if (found.lstrip) {
      begin = std::max(begin, done);  // what a token before took along
    }
    while (found.rstrip && end < text.size() && is_white_space(char_at(text, end))) {
      end += utf8_length(text, end);
    }
    if (begin >= end) continue;
    rest(done, begin);
    put(found.id, piece.part(begin, end));
    done = end;
  }
  rest(done, text.size());
}

void Encoder::Impl::pretokenize(size_t step, const Piece& piece) {
  if (piece.text.empty()) return;
  if (step == t.spec.pretokenizers.size()) {
    word(piece);
    return;
  }
  switch (t.spec.pretokenizers[step].kind) {
    case PretokenizerStep::Kind::split:
      split(step, piece);
      break;
    case PretokenizerStep::Kind::metaspace:
      metaspace(step, piece);
      break;
    case PretokenizerStep::Kind::prefix_space:
      if (piece.text[0] == ' ') {
        pretokenize(step + 1, piece);
      } else {
        Rewritten& out = rewritten[step];
        out.start(piece);
        out.put(" ", 0, 0);
        out.keep(0, piece.text.size());
        pretokenize(step + 1, out.piece());
      }
      break;
  }
}

void Encoder::Impl::split(size_t step, const Piece& piece) {
  using Behavior = PretokenizerStep::Behavior;
  const PretokenizerStep& pretokenizer = t.spec.pretokenizers[step];
  Regex::Cursor& cursor = cursors[step];
  cursor.start(piece.text);
  bool is_match;
  if (pretokenizer.behavior == Behavior::isolated || pretokenizer.behavior == Behavior::removed) {
    const bool removes = pretokenizer.behavior == Behavior::removed;
    const bool to_words =
        step + 1 == t.spec.pretokenizers.size() && ranges == nullptr && !t.cuts_words;
    for (std::string_view found; cursor.next(&found, &is_match);) {
      if (removes && is_match != pretokenizer.invert) continue;
      if (found.empty()) continue;
      if (to_words) {
        cached_word(found);
        continue;
      }
      const size_t begin = found.data() - piece.text.data();
      pretokenize(step + 1, piece.part(begin, begin + found.size()));
    }
    return;
  }
  std::vector<Cut>& list = cuts[step];
  list.clear();
  for (std::string_view found; cursor.next(&found, &is_match);) {
    const size_t begin = found.data() - piece.text.data();
    list.push_back({begin, begin + found.size(), is_match != pretokenizer.invert});
  }
  // Joins neighbours: a match with the text on one side, unless that is a match, or likes.
  size_t kept = 0;
  bool last = false;
  const bool backwards = pretokenizer.behavior == Behavior::merged_with_next;
  if (backwards) {
    std::reverse(list.begin(), list.end());
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const Cut cut = list[i];
    const bool joins = pretokenizer.behavior == Behavior::contiguous ? cut.is_match == last
                                                                     : cut.is_match && !last;
    if (joins && kept > 0) {
      list[kept - 1].begin = std::min(list[kept - 1].begin, cut.begin);
      list[kept - 1].end = std::max(list[kept - 1].end, cut.end);
    } else {
      list[kept++] = cut;
    }
    last = cut.is_match;
  }
  list.resize(kept);
  if (backwards) {
    std::reverse(list.begin(), list.end());
  }
  for (const Cut& cut : list) {
    pretokenize(step + 1, piece.part(cut.begin, cut.end));
  }
}

void Encoder::Impl::metaspace(size_t step, const Piece& piece) {
  const PretokenizerStep& pretokenizer = t.spec.pretokenizers[step];
  const std::string_view text = piece.text, mark = pretokenizer.replacement;
  Rewritten& out = rewritten[step];
  out.start(piece);
  out.reserve(text.size() + text.size() / 2 + mark.size());
  const bool prepends = pretokenizer.prepend == Prepend::always ||
                        (pretokenizer.prepend == Prepend::first && piece.at_start);
  if (prepends && text[0] != ' ' && !text.starts_with(mark)) {
    out.put(mark, 0, 0);
  }
  size_t done = 0;
  for (size_t at; (at = text.find(' ', done)) != std::string_view::npos; done = at + 1) {
    out.keep(done, at);
    out.put(mark, at, at + 1);
  }
  out.keep(done, text.size());
  const Piece marked = out.piece();
  if (!pretokenizer.cut) {
    pretokenize(step + 1, marked);
    return;
  }
  for (size_t begin = 0; begin < marked.text.size();) {
    const size_t end = std::min(marked.text.find(mark, begin + 1), marked.text.size());
    pretokenize(step + 1, marked.part(begin, end));
    begin = end;
  }
}

Encoder::Encoder(const Tokenizer& tokenizer) : impl_(std::make_unique<Impl>(*tokenizer.impl_)) {}
Encoder::~Encoder() = default;

void Encoder::encode(std::string_view text, std::vector<int32_t>* ids, const EncodeOptions& options,
                     std::vector<ByteRange>* ranges) {
  const TokenizerSpec& spec = impl_->t.spec;
  const auto add = [&](const std::vector<int32_t>& added, size_t at) {
    if (!options.add_special_tokens) return;
    ids->insert(ids->end(), added.begin(), added.end());
    if (ranges != nullptr) {
      ranges->insert(ranges->end(), added.size(), {at, at});
    }
  };
  impl_->ids = ids;
  impl_->ranges = ranges;
  impl_->split_special = options.split_special_tokens;
  impl_->literal = options.literal;
  HOCKET_CHECK(options.literal.empty() || ranges != nullptr, "places of a text without ranges");
  Piece piece{text, nullptr, true};
  if (ranges != nullptr) {
    impl_->places.resize(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
      impl_->places[i] = {i, i + 1};
    }
    piece.from = impl_->places.data();
  }
  add(spec.prefix, 0);
  impl_->split_added(piece, false);
  add(spec.suffix, text.size());
}

int64_t Encoder::special_tokens_met() const { return impl_->special_met; }

}  // namespace hocket::data
