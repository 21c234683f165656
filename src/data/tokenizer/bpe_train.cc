// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/bpe_train.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <queue>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "base/flat_map.h"
#include "base/text.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/tokenizer_impl.h"

namespace hocket::data {
namespace {

// Words and how often each was seen, in the order in which they were first seen.
class WordCounts {
 public:
  struct Word {
    size_t text;
    uint32_t length;
    int64_t count;
  };

  void add(std::string_view word) {
    const uint32_t next = words_.size();
    const auto [index, is_new] = index_.insert(
        hash64(word) >> 1, next, [&](uint32_t known) { return text(words_[known]) == word; });
    if (is_new) {
      words_.push_back({text_.size(), static_cast<uint32_t>(word.size()), 0});
      text_ += word;
    }
    ++words_[*index].count;
  }

  const std::vector<Word>& words() const { return words_; }
  std::string_view text(const Word& w) const {
    return std::string_view(text_).substr(w.text, w.length);
  }

 private:
  FlatMap<uint32_t, OwnBits> index_{1 << 12};  // by hash
  std::vector<Word> words_;
  std::string text_;
};

struct PairCount {
  int64_t count = 0;
  std::vector<uint32_t> words;  // that hold or held the pair; a word may be listed twice
};

struct Candidate {
  int64_t count;
  uint64_t key;  // left id above right id
  bool operator<(const Candidate& o) const {
    return count != o.count ? count < o.count : key > o.key;
  }
};

// A word's symbols lie in one array shared by all words; merging shortens it in place.
struct Span {
  size_t begin;
  uint32_t length;
  int64_t count;
};

class Merger {
 public:
  Merger(const WordCounts& counts, const std::array<int32_t, 256>& byte_ids) {
    spans_.reserve(counts.words().size());
    for (const WordCounts::Word& word : counts.words()) {
      if (word.length < 2) continue;
      spans_.push_back({symbols_.size(), word.length, word.count});
      for (const char c : counts.text(word)) {
        symbols_.push_back(byte_ids[static_cast<uint8_t>(c)]);
      }
    }
    for (uint32_t w = 0; w < spans_.size(); ++w) {
      const Span& s = spans_[w];
      for (uint32_t i = 0; i + 1 < s.length; ++i) {
        change(symbols_[s.begin + i], symbols_[s.begin + i + 1], s.count, w);
      }
    }
    requeue();
  }

  // The most frequent pair, with a count that is up to date; false if none is left.
  bool pop(Candidate* best) {
    while (!queue_.empty()) {
      *best = queue_.top();
      queue_.pop();
      const int64_t now = pair_of(best->key).count;
      if (now == best->count && now > 0) return true;
      if (now > 0 && now < best->count) {
        queue_.push({now, best->key});
      }
    }
    return false;
  }

  void merge(uint64_t key, int32_t result) {
    const auto left = static_cast<int32_t>(key >> 32), right = static_cast<int32_t>(key);
    PairCount& pair = pair_of(key);
    std::vector<uint32_t> words;
    words.swap(pair.words);
    pair.count = 0;
    for (const uint32_t w : words) {
      merge_word(w, left, right, result);
    }
    pair_of(key).count = 0;
    requeue();
  }

 private:
  PairCount& pair_of(uint64_t key) {
    const auto [index, is_new] = index_.insert(key, pairs_.size());
    if (is_new) {
      pairs_.emplace_back();
    }
    return pairs_[*index];
  }

  void change(int32_t left, int32_t right, int64_t by, uint32_t word) {
    const uint64_t key = pair_key(left, right);
    PairCount& pair = pair_of(key);
    pair.count += by;
    if (by <= 0) return;
    if (pair.words.empty() || pair.words.back() != word) {
      pair.words.push_back(word);
    }
    raised_.push_back(key);
  }

  void merge_word(uint32_t w, int32_t left, int32_t right, int32_t result) {
    Span& s = spans_[w];
    int32_t* sym = symbols_.data() + s.begin;
    uint32_t to = 0;
    for (uint32_t from = 0; from < s.length; ++to) {
      if (from + 1 < s.length && sym[from] == left && sym[from + 1] == right) {
        if (to > 0) {
          change(sym[to - 1], left, -s.count, w);
          change(sym[to - 1], result, s.count, w);
        }
        from += 2;
        if (from < s.length) {
          change(right, sym[from], -s.count, w);
          change(result, sym[from], s.count, w);
        }
        sym[to] = result;
      } else {
        sym[to] = sym[from++];
      }
    }
    s.length = to;
  }

  // Queues pairs whose count rose since the last call, with their present count.
  void requeue() {
    std::sort(raised_.begin(), raised_.end());
    raised_.erase(std::unique(raised_.begin(), raised_.end()), raised_.end());
    for (const uint64_t key : raised_) {
      const int64_t count = pair_of(key).count;
      if (count > 0) {
        queue_.push({count, key});
      }
    }
    raised_.clear();
  }

  std::vector<int32_t> symbols_;
  std::vector<Span> spans_;
  FlatMap<uint32_t> index_{1 << 13};  // of each pair, by pair_key
  std::vector<PairCount> pairs_;
  std::vector<uint64_t> raised_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

struct BpeTrainer::Impl {
  explicit Impl(BpeTrainOptions bpe_train_options)
      : options(std::move(bpe_train_options)), regex(options.pattern), cursor(regex) {}

  void report(BpeTrainProgress::Phase phase, int64_t done, int64_t total) const {
    if (options.progress) {
      options.progress({phase, done, total});
    }
  }

  BpeTrainOptions options;
  Regex regex;
  Regex::Cursor cursor;
  WordCounts counts;
  int64_t bytes = 0;
};

BpeTrainer::BpeTrainer(BpeTrainOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {
  const BpeTrainOptions& bpe_train_options = impl_->options;
  const int64_t least = 256 + std::ssize(bpe_train_options.special_tokens);
  if (bpe_train_options.vocab_size < least || bpe_train_options.vocab_size > kMaxVocab) {
    fail("train-tokenizer", "vocabulary of {} tokens; expected {} to {}",
         bpe_train_options.vocab_size, least, kMaxVocab);
  }
}

BpeTrainer::~BpeTrainer() = default;

void BpeTrainer::add(std::string_view text) {
  impl_->cursor.start(text);
  bool is_match;
  for (std::string_view word; impl_->cursor.next(&word, &is_match);) {
    // Splits longer words: merges learned from them are useless elsewhere, and the pieces keep
    // symbols and counts within 32 bits.
    for (; word.size() > (1 << 20); word.remove_prefix(1 << 20)) {
      impl_->counts.add(word.substr(0, 1 << 20));
    }
    impl_->counts.add(word);
  }
  impl_->bytes += std::ssize(text);
}

Tokenizer BpeTrainer::train() {
  const BpeTrainOptions& bpe_train_options = impl_->options;
  if (impl_->bytes == 0) fail("train-tokenizer", "no text to train on; got 0 bytes");
  TokenizerSpec spec;
  if (!bpe_train_options.pattern.empty()) {
    spec.pretokenizers.push_back(split_step(bpe_train_options.pattern));
  }
  std::unordered_map<std::string, int32_t> ids;
  const auto append = [&](const std::string& bytes) {
    const int32_t id = spec.tokens.size();
    ids.emplace(bytes, id);
    spec.tokens.push_back(bytes);
    return id;
  };
  for (const std::string& text : bpe_train_options.special_tokens) {
    if (text.size() < 2 || ids.contains(text)) {
      fail("train-tokenizer", "special token {}; expected different texts of 2 bytes or more",
           quote(text));
    }
    AddedToken token;
    token.text = text;
    token.special = true;
    token.in_vocabulary = true;
    token.id = append(text);
    spec.added.push_back(std::move(token));
  }
  const int32_t specials = spec.added.size();
  spec.eos = bpe_train_options.special_tokens.empty() ? -1 : 0;
  // The bytes in the order of the code points that stand for them.
  std::vector<int> order(256);
  for (int b = 0; b < 256; ++b) {
    order[b] = b;
  }
  std::sort(order.begin(), order.end(),
            [](int a, int b) { return byte_alphabet()[a] < byte_alphabet()[b]; });
  std::array<int32_t, 256> byte_ids{};
  for (const int b : order) {
    byte_ids[b] = append(std::string(1, static_cast<char>(b)));
  }

  Merger merger(impl_->counts, byte_ids);
  Candidate best;
  while (std::ssize(spec.tokens) < bpe_train_options.vocab_size && merger.pop(&best)) {
    if (best.count < bpe_train_options.min_count) break;
    const auto left = static_cast<int32_t>(best.key >> 32), right = static_cast<int32_t>(best.key);
    const std::string bytes = spec.tokens[left] + spec.tokens[right];
    // Two ways to the same bytes make one token.
    const auto known = ids.find(bytes);
    // Never learns the spelling of a special token, since text must not become one.
    if (known != ids.end() && known->second < specials) continue;
    const int32_t id = known == ids.end() ? append(bytes) : known->second;
    spec.merges.push_back({left, right});
    merger.merge(best.key, id);
    if (spec.tokens.size() % 64 == 0) {
      impl_->report(BpeTrainProgress::Phase::merge, std::ssize(spec.tokens),
                    bpe_train_options.vocab_size);
    }
  }
  const int64_t made = std::ssize(spec.tokens);
  impl_->report(BpeTrainProgress::Phase::merge, made, made);
  return Tokenizer(std::move(spec));
}

Tokenizer train_bpe(const std::vector<TextPart>& texts, const BpeTrainOptions& options) {
  int64_t total = 0, done = 0;
  for (const TextPart& part : texts) {
    total += part.bytes < 0 ? file_size(part.path) : part.bytes;
  }
  BpeTrainer trainer(options);
  TextReader reader;
  for (const TextPart& part : texts) {
    const std::string text = reader.read(part);
    trainer.add(text);
    done += std::ssize(text);
    if (options.progress) {
      options.progress({BpeTrainProgress::Phase::count_words, done, total});
    }
  }
  return trainer.train();
}

}  // namespace hocket::data
