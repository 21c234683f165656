// SPDX-License-Identifier: Apache-2.0
// Regular expressions as tokenizer.json writes them (Oniguruma's Ruby syntax), by PCRE2 with its
// JIT. Constructs that the two read differently are translated or refused. Bytes that are not UTF-8
// match nothing: each maximal stretch of them is a piece of its own.
#pragma once

#include <string>
#include <string_view>

namespace hocket::data {

/// Matches every character that a literal text holds.
std::string regex_escape(std::string_view literal);

/// Characters of Rust's \w, in the form of a class's inside.
extern const char* const kWordChars;

class Regex {
 public:
  /// Compiles a pattern; an empty one matches nothing. Throws Error if it does not compile, or
  /// means something else in PCRE2.
  explicit Regex(const std::string& pattern);
  ~Regex();
  Regex(Regex&& other) noexcept;
  Regex& operator=(Regex&&) = delete;

  const std::string& pattern() const { return pattern_; }

  /// Walks over the pieces of `text` in order, matches and what lies between; they are disjoint and
  /// cover it. One per thread; the Regex must outlive it.
  class Cursor {
   public:
    explicit Cursor(const Regex& owner);
    ~Cursor();
    Cursor(Cursor&& other) noexcept;
    Cursor& operator=(Cursor&&) = delete;

    void start(std::string_view text);
    /// Returns true, with the next piece, or false at the end. The piece is a view into the text;
    /// it is empty only for a match of nothing. Throws Error if the regular expression gives up.
    bool next(std::string_view* piece, bool* is_match);

   private:
    bool match();

    const Regex* owner_;
    void* match_data_ = nullptr;
    std::string_view text_;
    size_t at_ = 0;           // everything before it has been returned
    size_t valid_begin_ = 0;  // the UTF-8 stretch that holds at_
    size_t valid_end_ = 0;
    bool found_ = false;  // a match that was not returned yet, of
    size_t found_begin_ = 0;
    size_t found_end_ = 0;
    bool exhausted_ = false;               // no further match in the stretch
    size_t last_end_ = std::string::npos;  // of the match before
  };

 private:
  std::string pattern_;
  void* code_ = nullptr;
  bool jit_ = false;
  bool may_be_empty_ = false;
};

}  // namespace hocket::data
