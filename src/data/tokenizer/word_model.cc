// SPDX-License-Identifier: Apache-2.0
// Implements: words of Encoder::Impl (encoder_impl.h), a word → ids by BPE or Unigram. Results are
// cached; a long word is merged with a heap in O(n log n).
#include <algorithm>
#include <queue>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/tokenizer/encoder_impl.h"

namespace hocket::data {
namespace {

constexpr size_t kLinearSymbols = 40;
constexpr uint32_t kNoMerge = ~uint32_t{0};

[[noreturn]] void no_token(std::string_view text) {
  fail("tokenizer", "no token for {}, and none for unknown ones; expected text of the vocabulary",
       quote(text));
}

}  // namespace

// Returns whether a word may become this id: special tokens may not come from text that is to be
// text.
bool Encoder::Impl::usable(int32_t id) {
  if (!t.special[id]) return true;
  met_special = true;
  return !split_special && literal.empty();
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
  const bool cached = text.size() <= WordCache::kMaxWord;
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

// Moves `at` over units that were left out, and returns the bytes of text, from there on, that
// `kept` bytes of tokens stand for.
size_t Encoder::Impl::kept_size(std::string_view text, size_t* at, size_t kept) const {
  size_t begin = *at, end = *at;
  for (size_t found = 0; found < kept;) {
    const int length = unit_length(text, end);
    const bool known = t.unit_id(text, end, length) >= 0;
    begin = known || found > 0 ? begin : end + length;
    found += known ? length : 0;
    end += length;
  }
  *at = begin;
  return end - begin;
}

// Finds the bytes of each symbol: those of its text, but one where it stands for a byte, and one
// unknown character, or all that were joined.
void Encoder::Impl::put_ranges(const Piece& piece) {
  size_t at = 0;
  for (size_t i = 0; i < symbols.size(); ++i) {
    size_t size = t.spec.tokens[symbols[i]].size();
    if (drops) {
      size = kept_size(piece.text, &at, size);
    } else if (t.spec.model == TokenizerSpec::Model::unigram) {
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
  HOCKET_CHECK(drops || at == piece.text.size(), "symbols of {} bytes for {}", at,
               piece.text.size());
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
  if (t.spec.unk < 0 && t.spec.model == TokenizerSpec::Model::unigram) {
    no_token(text);
  }
  if (t.spec.unk >= 0) {
    symbols.push_back(t.spec.unk);
    return;
  }
  if (!std::exchange(has_dropped, true)) {
    log_warning(
        "tokenizer: no token for {}, and none for unknown ones: left out, as `tokenizers` does",
        quote(text));
  }
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

}  // namespace hocket::data
