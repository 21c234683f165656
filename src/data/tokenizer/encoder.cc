// SPDX-License-Identifier: Apache-2.0
// Implements: encoding of Tokenizer (tokenizer.h), text → ids: added tokens are cut out, the rest
// is normalised and cut into words, and a word goes through the model. Results of words are cached;
// a long word is merged with a heap in O(n log n).
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <queue>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "data/tokenizer/unicode.h"

namespace hocket::data {
namespace {

constexpr size_t kMaxCachedWord = 128;
constexpr size_t kFirstWords = 1 << 9;
constexpr size_t kMaxWords = 1 << 17;
constexpr size_t kLinearSymbols = 40;
constexpr uint32_t kNoMerge = ~uint32_t{0};

// Words that were encoded before. Emptied when it holds kMaxWords.
class WordCache {
 public:
  // Null if unknown.
  const int32_t* find(std::string_view word, uint64_t hash, size_t* count) const {
    const Entry* found = entries_.find(hash, [&](const Entry& e) {
      return e.length == word.size() &&
             std::memcmp(text_.data() + e.text, word.data(), word.size()) == 0;
    });
    if (found == nullptr) return nullptr;
    *count = found->count;
    return ids_.data() + found->ids;
  }

  // Inserts a word. Requires: find() does not know it.
  void insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
    if (entries_.size() >= kMaxWords) {
      entries_.clear();
      text_.clear();
      ids_.clear();
    }
    const Entry entry{static_cast<uint32_t>(text_.size()), static_cast<uint32_t>(ids_.size()),
                      static_cast<uint16_t>(word.size()), static_cast<uint16_t>(ids.size())};
    entries_.insert(hash, entry, [](const Entry&) { return false; });
    text_ += word;
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

  // Any bits but the one that the table keeps for itself.
  static uint64_t hash(std::string_view word) { return hash64(word) >> 1; }

 private:
  struct Entry {
    uint32_t text = 0, ids = 0;
    uint16_t length = 0, count = 0;
  };
  FlatMap<Entry, OwnBits> entries_{kFirstWords};
  std::string text_;
  std::vector<int32_t> ids_;
};

// The character at `at`, or the one that ends there. 0 where there is none.
uint32_t char_at(std::string_view text, size_t at) {
  const int length = utf8_length(text, at);
  return length == 0 ? 0 : utf8_code_point(text, at, length);
}
uint32_t char_before(std::string_view text, size_t end) {
  const size_t begin = utf8_before(text, end);
  return begin == end ? 0 : utf8_code_point(text, begin, static_cast<int>(end - begin));
}

[[noreturn]] void no_token(std::string_view text) {
  fail("tokenizer", "no token for {}, and none for unknown ones; expected text of the vocabulary",
       quote(text));
}

}  // namespace

struct Encoder::Impl {
  explicit Impl(const Tokenizer::Impl& tokenizer) : t(tokenizer) {
    cursors.reserve(t.regexes.size());
    for (const Regex& regex : t.regexes) {
      cursors.emplace_back(regex);
    }
    rewritten.resize(t.regexes.size());
    cuts.resize(t.regexes.size());
  }

  void split_added(const Piece& piece, bool normalized);
  void pretokenize(size_t step, const Piece& piece);
  void split(size_t step, const Piece& piece);
  void metaspace(size_t step, const Piece& piece);

  void put(int32_t id, const Piece& piece);
  void word(const Piece& piece);
  void cut_word(const Piece& piece);
  void model_word(const Piece& piece);
  void cached_word(std::string_view text);
  void run_model(std::string_view text);
  void put_ranges(const Piece& piece);
  bool usable(int32_t id);
  int unit_length(std::string_view text, size_t at) const;
  void bpe(std::string_view text);
  void start_symbols(std::string_view text);
  void unigram(std::string_view text);
  void unknown(std::string_view text);
  void merge_linear();
  void merge_heap();

  const Tokenizer::Impl& t;
  std::vector<Regex::Cursor> cursors;  // of each pre-tokenizer, like the two that follow
  std::vector<Rewritten> rewritten;
  struct Cut {
    size_t begin, end;
    bool is_match;
  };
  std::vector<std::vector<Cut>> cuts;
  std::array<Rewritten, 2> normalized;
  std::vector<ByteRange> places;
  WordCache cache;

  // State of the call at hand.
  std::vector<int32_t>* ids = nullptr;
  std::vector<ByteRange>* ranges = nullptr;
  bool split_special = false;
  int64_t special_met = 0;

  // State of the word at hand.
  std::vector<int32_t> symbols;
  std::vector<uint32_t> sizes;  // bytes of each symbol; only Unigram fills it
  std::vector<uint32_t> ranks;  // of each symbol with the next
  bool met_special = false;     // a special token was, or would have been, part of the result
  struct Node {
    double score = 0;
    size_t begin = std::string::npos;
    int32_t id = -1;
  };
  std::vector<Node> nodes;  // of Unigram: the best way to each place
};

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
    if (found.special && split_special) continue;
    while (found.lstrip && begin > done && is_white_space(char_before(text, begin))) {
      begin = std::max(utf8_before(text, begin), done);
    }
    while (found.rstrip && end < text.size() && is_white_space(char_at(text, end))) {
      end += utf8_length(text, end);
    }
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
  const PretokenizerStep& how = t.spec.pretokenizers[step];
  Regex::Cursor& cursor = cursors[step];
  cursor.start(piece.text);
  bool is_match;
  if (how.behavior == Behavior::isolated || how.behavior == Behavior::removed) {
    const bool removes = how.behavior == Behavior::removed;
    const bool to_words =
        step + 1 == t.spec.pretokenizers.size() && ranges == nullptr && !t.cuts_words;
    for (std::string_view found; cursor.next(&found, &is_match);) {
      if (removes && is_match != how.invert) continue;
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
    list.push_back({begin, begin + found.size(), is_match != how.invert});
  }
  // Joins neighbours: a match with the text on one side, unless that is a match, or likes.
  size_t kept = 0;
  bool last = false;
  const bool backwards = how.behavior == Behavior::merged_with_next;
  if (backwards) {
    std::reverse(list.begin(), list.end());
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const Cut cut = list[i];
    const bool joins =
        how.behavior == Behavior::contiguous ? cut.is_match == last : cut.is_match && !last;
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
  const PretokenizerStep& how = t.spec.pretokenizers[step];
  const std::string_view text = piece.text, mark = how.replacement;
  Rewritten& out = rewritten[step];
  out.start(piece);
  out.reserve(text.size() + text.size() / 2 + mark.size());
  const bool prepends =
      how.prepend == Prepend::always || (how.prepend == Prepend::first && piece.at_start);
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
  if (!how.cut) {
    pretokenize(step + 1, marked);
    return;
  }
  for (size_t begin = 0; begin < marked.text.size();) {
    const size_t end = std::min(marked.text.find(mark, begin + 1), marked.text.size());
    pretokenize(step + 1, marked.part(begin, end));
    begin = end;
  }
}

// True for an id that the word may become: special tokens may not come from text that is to be
// text.
bool Encoder::Impl::usable(int32_t id) {
  if (!t.special[id]) return true;
  met_special = true;
  return !split_special;
}

int Encoder::Impl::unit_length(std::string_view text, size_t at) const {
  return t.spec.byte_level ? 1 : std::max(1, utf8_length(text, at));
}

void Encoder::Impl::word(const Piece& piece) {
  if (!t.cuts_words) {
    model_word(piece);
    return;
  }
  cut_word(piece);
}

// Cuts a word where no merge can reach across: between characters that no token has side by side.
void Encoder::Impl::cut_word(const Piece& piece) {
  const std::string_view text = piece.text;
  const bool joins_unknown = t.spec.fuse_unk && t.spec.unk >= 0 && !t.fallback;
  size_t begin = 0;
  int32_t last = -1;
  bool last_known = true;
  for (size_t at = 0; at < text.size();) {
    const int well_formed = utf8_length(text, at), length = std::max(1, well_formed);
    const int32_t c =
        well_formed == 0 ? -2 : static_cast<int32_t>(utf8_code_point(text, at, length));
    const bool known = !joins_unknown || t.unit_id(text, at, length) >= 0;
    if (at > begin && (known || last_known) && t.neighbours.find(pair_key(last, c)) == nullptr) {
      model_word(piece.part(begin, at));
      begin = at;
    }
    last = c;
    last_known = known;
    at += length;
  }
  model_word(piece.part(begin, text.size()));
}

void Encoder::Impl::model_word(const Piece& piece) {
  if (ranges == nullptr) {
    cached_word(piece.text);
    return;
  }
  run_model(piece.text);
  ids->insert(ids->end(), symbols.begin(), symbols.end());
  put_ranges(piece);
}

void Encoder::Impl::cached_word(std::string_view text) {
  // From the cheapest way to the dearest: a single byte, a word seen before, the model.
  if (text.size() == 1) {
    const int32_t id = t.single_bytes[static_cast<uint8_t>(text[0])];
    if (id >= 0) {
      ids->push_back(id);
      return;
    }
  }
  const bool cached = text.size() <= kMaxCachedWord;
  const uint64_t hash = cached ? WordCache::hash(text) : 0;
  if (cached) {
    size_t count;
    if (const int32_t* known = cache.find(text, hash, &count)) {
      ids->insert(ids->end(), known, known + count);
      return;
    }
  }
  run_model(text);
  // Otherwise the result depends on the options.
  if (cached && !met_special) {
    cache.insert(text, hash, symbols);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

// Fills in the symbols of a word.
void Encoder::Impl::run_model(std::string_view text) {
  symbols.clear();
  met_special = false;
  if (t.spec.model == TokenizerSpec::Model::bpe) {
    bpe(text);
  } else {
    unigram(text);
  }
}

// Finds the bytes of each symbol: those of its text, but one where it stands for a byte, and one
// unknown character, or all that were joined.
void Encoder::Impl::put_ranges(const Piece& piece) {
  size_t at = 0;
  for (size_t i = 0; i < symbols.size(); ++i) {
    size_t size = t.spec.tokens[symbols[i]].size();
    if (t.spec.model == TokenizerSpec::Model::unigram) {
      size = sizes[i];
    } else if (const int length = unit_length(piece.text, at);
               t.unit_id(piece.text, at, length) < 0) {
      size = t.fallback ? 1 : length;
      while (!t.fallback && t.spec.fuse_unk && at + size < piece.text.size()) {
        const int next = unit_length(piece.text, at + size);
        if (t.unit_id(piece.text, at + size, next) >= 0) break;
        size += next;
      }
    }
    ranges->push_back({piece.from[at].begin, piece.from[at + size - 1].end});
    at += size;
  }
  HOCKET_CHECK(at == piece.text.size(), "symbols of {} bytes for {}", at, piece.text.size());
}

void Encoder::Impl::bpe(std::string_view text) {
  if (t.spec.ignore_merges) {
    const int32_t whole = t.id_of(text);
    if (whole >= 0 && usable(whole)) {
      symbols.push_back(whole);
      return;
    }
  }
  start_symbols(text);
  if (symbols.size() <= kLinearSymbols) {
    merge_linear();
  } else {
    merge_heap();
  }
}

// Fills in the ids of the word's bytes or characters.
void Encoder::Impl::start_symbols(std::string_view text) {
  bool joins = false;  // the symbol before is an unknown one that takes more
  for (size_t at = 0; at < text.size();) {
    const int length = unit_length(text, at);
    const int32_t id = t.unit_id(text, at, length);
    if (id >= 0) {
      symbols.push_back(id);
      joins = false;
    } else if (t.fallback || !joins) {
      unknown(text.substr(at, length));
      joins = t.spec.fuse_unk;
    }
    at += length;
  }
}

// Appends the ids of a text without a token.
void Encoder::Impl::unknown(std::string_view text) {
  if (t.fallback) {
    for (const char c : text) {
      symbols.push_back(t.fallback_ids[static_cast<uint8_t>(c)]);
    }
    return;
  }
  if (t.spec.unk < 0) {
    no_token(text);
  }
  symbols.push_back(t.spec.unk);
}

// Takes the most probable tokens, by dynamic programming over the places of the text; of equals the
// way that was found first, with the longest last token.
void Encoder::Impl::unigram(std::string_view text) {
  nodes.assign(text.size() + 1, Node());
  nodes[0].begin = 0;
  const auto reach = [&](size_t begin, size_t end, int32_t id, double score) {
    Node& node = nodes[end];
    if (node.begin == std::string::npos || score > node.score) {
      node = {score, begin, id};
    }
  };
  for (size_t at = 0; at < text.size();) {
    const double here = nodes[at].score;
    const size_t length = unit_length(text, at);
    bool has_unit = false;
    t.pieces.each_prefix(text.substr(at), [&](size_t n, int32_t id) {
      if (!usable(id)) return;
      reach(at, at + n, id, t.spec.scores[id] + here);
      has_unit |= n == length;
    });
    if (!has_unit) {
      if (t.spec.unk < 0) {
        no_token(text.substr(at, length));
      }
      reach(at, at + length, t.spec.unk, t.unk_score + here);
    }
    at += length;
  }
  // Backwards from the end; unknown neighbours are one text.
  std::vector<Node> way;
  for (size_t end = text.size(); end > 0; end = nodes[end].begin) {
    const Node& node = nodes[end];
    if (node.id == t.spec.unk && !way.empty() && way.back().id == t.spec.unk) {
      way.back().begin = node.begin;
    } else {
      way.push_back(node);
    }
  }
  sizes.clear();
  for (size_t i = way.size(); i-- > 0;) {
    const size_t begin = way[i].begin, end = i > 0 ? way[i - 1].begin : text.size();
    const std::string_view piece = text.substr(begin, end - begin);
    int32_t id = way[i].id;
    if (id == t.spec.unk) {
      id = t.id_of(piece);
      id = id >= 0 && usable(id) ? id : -1;
    }
    const size_t before = symbols.size();
    if (id >= 0) {
      symbols.push_back(id);
    } else {
      unknown(piece);
    }
    const size_t count = symbols.size() - before;
    sizes.insert(sizes.end(), count, static_cast<uint32_t>(piece.size() / count));
  }
}

void Encoder::Impl::merge_linear() {
  // ranks[i] is that of the pair (i, i + 1). The best pair becomes one symbol until none can be
  // merged; only its two neighbours' ranks change. Of equal ranks the leftmost goes first.
  size_t n = symbols.size();
  const auto rank_of = [&](size_t i) {
    const Merge* merge = t.merge_of(symbols[i], symbols[i + 1]);
    return merge == nullptr ? kNoMerge : merge->rank;
  };
  ranks.resize(n);
  for (size_t i = 0; i + 1 < n; ++i) {
    ranks[i] = rank_of(i);
  }
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (ranks[i] < ranks[best]) {
        best = i;
      }
    }
    if (ranks[best] == kNoMerge) break;
    symbols[best] = t.merge_of(symbols[best], symbols[best + 1])->result;
    symbols.erase(symbols.begin() + best + 1);
    ranks.erase(ranks.begin() + best + 1);
    --n;
    if (best + 1 < n) {
      ranks[best] = rank_of(best);
    }
    if (best > 0) {
      ranks[best - 1] = rank_of(best - 1);
    }
  }
}

void Encoder::Impl::merge_heap() {
  struct Candidate {
    uint32_t rank;
    uint32_t at;  // of the left symbol
    int32_t left, right;
    bool operator>(const Candidate& candidate) const {
      return rank != candidate.rank ? rank > candidate.rank : at > candidate.at;
    }
  };
  const size_t n = symbols.size();
  if (n >= kNoMerge) fail("tokenizer", "a word of {} bytes; expected less than 4 GiB", n);
  const uint32_t none = n;
  std::vector<uint32_t> next(n), previous(n);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto consider = [&](uint32_t at) {
    const Merge* merge = t.merge_of(symbols[at], symbols[next[at]]);
    if (merge != nullptr) {
      heap.push({merge->rank, at, symbols[at], symbols[next[at]]});
    }
  };
  for (uint32_t i = 0; i < none; ++i) {
    next[i] = i + 1;
    previous[i] = i == 0 ? none : i - 1;
  }
  for (uint32_t i = 0; i + 1 < none; ++i) {
    consider(i);
  }
  while (!heap.empty()) {
    const Candidate candidate = heap.top();
    heap.pop();
    // A symbol that was merged into its neighbour is -1; one that has changed is not c.left.
    if (symbols[candidate.at] != candidate.left || next[candidate.at] == none ||
        symbols[next[candidate.at]] != candidate.right)
      continue;
    const uint32_t gone = next[candidate.at];
    symbols[candidate.at] = t.merge_of(candidate.left, candidate.right)->result;
    symbols[gone] = -1;
    next[candidate.at] = next[gone];
    if (next[gone] != none) {
      previous[next[gone]] = candidate.at;
      consider(candidate.at);
    }
    if (previous[candidate.at] != none) {
      consider(previous[candidate.at]);
    }
  }
  std::erase(symbols, -1);
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
