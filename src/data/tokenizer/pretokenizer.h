// SPDX-License-Identifier: Apache-2.0
// Cuts text into the words that BPE merges never cross, by the regular expression that a
// tokenizer.json names (PCRE2 with its JIT; Oniguruma's white space). Bytes that are not UTF-8
// match nothing: each maximal stretch of them is a word of its own.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace hocket::data {

/// GPT-2's pattern, also that of the tokenizers that we train.
extern const char* const kGpt2Pattern;
/// Patterns of Llama 3 and Qwen 2/3, as in their tokenizer.json.
extern const char* const kLlama3Pattern;
extern const char* const kQwen2Pattern;

class Pretokenizer {
 public:
  /// An empty pattern cuts nothing. Error: the pattern does not compile.
  explicit Pretokenizer(const std::string& pattern);
  ~Pretokenizer();
  Pretokenizer(const Pretokenizer&) = delete;
  Pretokenizer& operator=(const Pretokenizer&) = delete;

  const std::string& pattern() const { return pattern_; }

  /// Walks over the words of `text` in order; they are disjoint and cover it. One per thread; the
  /// Pretokenizer must outlive it.
  class Cursor {
   public:
    explicit Cursor(const Pretokenizer& owner);
    ~Cursor();
    Cursor(const Cursor&) = delete;
    Cursor& operator=(const Cursor&) = delete;

    void start(std::string_view text);
    /// False at the end. The word is a view into the text. Error: the regular expression gave up.
    bool next(std::string_view* word);

   private:
    bool match();

    const Pretokenizer& owner_;
    void* match_data_ = nullptr;
    std::string_view text_;
    size_t at_ = 0;           // everything before it has been returned
    size_t valid_begin_ = 0;  // the UTF-8 stretch that holds at_
    size_t valid_end_ = 0;
    size_t found_begin_ = 0;  // the match not yet returned, if found_end_ > at_
    size_t found_end_ = 0;
  };

 private:
  std::string pattern_;
  void* code_ = nullptr;
  bool jit_ = false;
};

}  // namespace hocket::data
