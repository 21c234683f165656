// SPDX-License-Identifier: Apache-2.0
// Implements: encoding of Tokenizer (tokenizer.h), text → ids: added tokens are cut out, the rest
// is cut into words, and a word's bytes are merged. The merges of a word are cached; a long word is
// merged with a heap in O(n log n).
#include <algorithm>
#include <cstring>
#include <optional>
#include <queue>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/tokenizer/nfc.h"
#include "data/tokenizer/tokenizer_impl.h"

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

// Letters, digits and _; outside of ASCII whatever is neither white space nor in the blocks of
// general and CJK punctuation.
bool is_word_char(uint32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  }
  return !is_white_space(c) && !(c >= 0x2000 && c < 0x2070) && !(c >= 0x3000 && c < 0x3040);
}

// The character at `at`, or the one that ends there. 0 where there is none.
uint32_t char_at(std::string_view text, size_t at) {
  const int length = utf8_length(text, at);
  return length == 0 ? 0 : utf8_code_point(text, at, length);
}
uint32_t char_before(std::string_view text, size_t end, size_t* begin) {
  for (int n = 1; n <= 4 && std::cmp_less_equal(n, end); ++n) {
    if (utf8_length(text.substr(0, end), end - n) == n) {
      *begin = end - n;
      return utf8_code_point(text, end - n, n);
    }
  }
  *begin = end;
  return 0;
}

}  // namespace

bool is_white_space(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

struct Encoder::Impl {
  explicit Impl(const Tokenizer::Impl& tokenizer) : t(tokenizer), cursor(tokenizer.pretokenizer) {}

  void split_added(std::string_view text, bool normalized, std::vector<int32_t>* ids);
  void normalize(std::string_view text, std::vector<int32_t>* ids, bool added_tokens);
  void plain(std::string_view text, std::vector<int32_t>* ids);
  void word(std::string_view bytes, std::vector<int32_t>* ids);
  void merge_linear();
  void merge_heap();

  const Tokenizer::Impl& t;
  Pretokenizer::Cursor cursor;
  WordCache cache;
  std::string prefixed;
  std::vector<int32_t> symbols;  // of the word at hand
  std::vector<uint32_t> ranks;   // of each symbol with the next
};

// Cuts out the added tokens of one kind, leftmost and longest first; the rest goes to the other
// kind and then to plain().
void Encoder::Impl::split_added(std::string_view text, bool normalized, std::vector<int32_t>* ids) {
  const auto rest = [&](std::string_view piece) {
    if (piece.empty()) return;
    if (normalized) {
      plain(piece, ids);
    } else {
      normalize(piece, ids, true);
    }
  };
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    const AddedToken* found = nullptr;
    for (const AddedToken* token : t.added_by[static_cast<uint8_t>(text[i])]) {
      if (token->normalized == normalized &&
          text.compare(i, token->text.size(), token->text) == 0) {
        found = token;
        break;
      }
    }
    if (found == nullptr) {
      ++i;
      continue;
    }
    size_t begin = i, end = i + found->text.size(), unused;
    i = end;
    if (found->single_word && ((begin > 0 && is_word_char(char_before(text, begin, &unused))) ||
                               (end < text.size() && is_word_char(char_at(text, end))))) {
      continue;
    }
    if (found->lstrip) {
      for (size_t at; begin > done && is_white_space(char_before(text, begin, &at));) {
        begin = at;
      }
      begin = std::max(begin, done);
    }
    if (found->rstrip) {
      while (end < text.size() && is_white_space(char_at(text, end))) {
        end += utf8_length(text, end);
      }
    }
    rest(text.substr(done, begin - done));
    ids->push_back(found->id);
    done = end;
    i = std::max(i, end);
  }
  rest(text.substr(done));
}

void Encoder::Impl::normalize(std::string_view text, std::vector<int32_t>* ids, bool added_tokens) {
  std::string composed;
  if (t.spec.nfc && may_need_nfc(text)) {
    composed = normalize_nfc(text);
    text = composed;
  }
  if (added_tokens) {
    split_added(text, true, ids);
  } else {
    plain(text, ids);
  }
}

void Encoder::Impl::plain(std::string_view text, std::vector<int32_t>* ids) {
  if (t.spec.add_prefix_space && !text.empty() && text[0] != ' ') {
    prefixed.assign(1, ' ');
    prefixed += text;
    text = prefixed;
  }
  cursor.start(text);
  for (std::string_view piece; cursor.next(&piece);) {
    word(piece, ids);
  }
}

void Encoder::Impl::word(std::string_view bytes, std::vector<int32_t>* ids) {
  // From the cheapest way to the dearest: a single byte, a word seen before, a word that is a token
  // as a whole (only where the tokenizer says so: merges need not lead to it), merging its bytes.
  if (bytes.size() == 1) {
    const int32_t id = t.byte_ids[static_cast<uint8_t>(bytes[0])];
    if (id >= 0) {
      ids->push_back(id);
      return;
    }
  }
  const bool cached = bytes.size() <= kMaxCachedWord;
  const uint64_t hash = cached ? WordCache::hash(bytes) : 0;
  if (cached) {
    size_t count;
    if (const int32_t* known = cache.find(bytes, hash, &count)) {
      ids->insert(ids->end(), known, known + count);
      return;
    }
  }
  symbols.clear();
  if (t.spec.ignore_merges) {
    const auto whole = t.by_bytes.find(bytes);
    if (whole != t.by_bytes.end()) {
      symbols.push_back(whole->second);
    }
  }
  if (symbols.empty()) {
    for (const char c : bytes) {
      const int32_t id = t.byte_ids[static_cast<uint8_t>(c)];
      if (id < 0) {
        fail("tokenizer", "no token for byte {:#04x} in {}", static_cast<uint8_t>(c), quote(bytes));
      }
      symbols.push_back(id);
    }
    if (symbols.size() <= kLinearSymbols) {
      merge_linear();
    } else {
      merge_heap();
    }
  }
  if (cached) {
    cache.insert(bytes, hash, symbols);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
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

void Encoder::encode(std::string_view text, std::vector<int32_t>* ids, bool added_tokens) {
  if (text.empty()) return;
  if (added_tokens && !impl_->t.spec.added.empty()) {
    impl_->split_added(text, false, ids);
  } else {
    impl_->normalize(text, ids, false);
  }
}

}  // namespace hocket::data
