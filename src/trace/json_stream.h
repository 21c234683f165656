// SPDX-License-Identifier: Apache-2.0
// Pull parser of JSON over a plain or gzip file of any length, for traces. The caller walks the
// document and skips unknown parts. Errors give the byte offset.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "trace/text_source.h"

namespace hocket::trace {

inline constexpr int kMaxJsonDepth = 200;
/// Maximum bytes of a string. The longest in traces are call stacks and lists of inputs.
inline constexpr size_t kMaxJsonString = size_t{16} << 20;

inline bool is_json_space(int c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

[[gnu::always_inline]] inline bool ends_token(char c) {
  if (c >= '0' && c <= '9') return false;
  return is_json_space(c) || c == ',' || c == '}' || c == ']' || c == ':' || c == '"' || c == '{' ||
         c == '[';
}

/// Returns whether `key` is `name`, a string literal; faster than ==.
template <size_t N>
bool is_key(std::string_view key, const char (&name)[N]) {
  return key.size() == N - 1 && std::memcmp(key.data(), name, N - 1) == 0;
}

// Members of similar objects, such as those of an array of events. Per member of the last such
// object, it keeps the bytes before its value (key and punctuation) and the caller's number of its
// key. Where the same bytes occur again, they need not be parsed.
class MemberCache {
 public:
  // Returns the number of bytes from `at` to the value of the given member; 0 if the bytes differ.
  [[gnu::always_inline]] size_t match(size_t member, const char* at) const {
    if (member >= members_.size()) return 0;
    const Member& last = members_[member];
    for (size_t i = 0; i < last.words; ++i) {
      uint64_t word = 0;
      std::memcpy(&word, at + 8 * i, 8);
      if ((word & last.masks[i]) != last.bytes[i]) return 0;
    }
    return last.size;
  }
  int key(size_t member) const { return members_[member].key; }
  void learn(size_t member, const char* at, size_t size, int key) {
    if (size > TextSource::kLookahead || member > kMaxMembers) return;
    if (member >= members_.size()) {
      members_.resize(member + 1);
    }
    Member& last = members_[member];
    last = {};
    last.key = key;
    last.size = size;
    last.words = (size + 7) / 8;
    std::array<char, TextSource::kLookahead> mask{};
    std::fill_n(mask.begin(), size, '\xff');
    std::memcpy(last.bytes.data(), at, size);
    std::memcpy(last.masks.data(), mask.data(), size);
  }

 private:
  static constexpr size_t kMaxMembers = 64;  // members that are remembered
  struct Member {
    std::array<uint64_t, TextSource::kLookahead / 8> bytes{}, masks{};
    size_t words = 0, size = 0;
    int key = 0;
  };
  std::vector<Member> members_;
};

// Pull parser. Strings and number tokens are valid until the next call.
class JsonStream {
 public:
  /// Opens the file. Skips a byte order mark, which some editors put before UTF-8.
  explicit JsonStream(const std::string& path) : in_(path) {
    constexpr std::string_view kMark = "\xef\xbb\xbf";
    if (in_.view().starts_with(kMark)) {
      in_.skip(kMark.size());
    }
  }

  // Returns the first character of the next value or punctuation; -1 at the end.
  [[gnu::always_inline]] int next() {
    const auto c = static_cast<unsigned char>(in_.ahead());
    return c > ' ' ? c : next_after_space();
  }
  void expect(char c, std::string_view what) {
    if (next() != c) {
      in_.broken(what);
    }
    in_.skip(1);
  }
  // Calls `member(key)`, which must consume the value, for every member of an object. The key is
  // valid until the value is read.
  template <typename F>
  void object(F&& member) {
    for (size_t i = 0; has_member(i); ++i) {
      member(key());
    }
  }
  // Reads an object as above, with keys as numbers. `number(key)` maps a key to its number; it is
  // called only for members that differ from the last object of this order.
  template <typename Number, typename F>
  void object(MemberCache* order, Number&& number, F&& member) {
    next();
    for (size_t i = 0;; ++i) {
      const size_t same = order->match(i, in_.at());
      if (same > 0 && in_.is_buffered(in_.at() + same)) {
        in_.skip(same);
        member(order->key(i));
        continue;
      }
      std::array<char, TextSource::kLookahead> from;
      std::memcpy(from.data(), in_.at(), from.size());
      const auto begin = in_.offset();
      const size_t buffered = in_.buffered();
      if (!has_member(i)) return;
      const int found = number(key());
      const auto size = static_cast<size_t>(in_.offset() - begin);
      if (size < buffered) {
        order->learn(i, from.data(), size, found);
      }
      member(found);
    }
  }
  template <typename F>
  void array(F&& element, bool may_lack_end = false) {
    expect('[', "an array");
    if (next() == ']') return void(in_.get());
    for (;;) {
      element();
      int c = next();
      if (c < 0 && may_lack_end) return;
      if (c != ',' && c != ']') {
        in_.broken("',' or ']'");
      }
      in_.get();
      // Chrome's own writers leave a trailing comma.
      if (c == ',' && may_lack_end && (next() == ']' || next() < 0)) {
        c = in_.get();
      }
      if (c == ']' || c < 0) return;
    }
  }
  // Returns the first character of a string; NUL for an empty one.
  char character() {
    const char* at = in_.at();
    if (at[0] == '"' && in_.is_buffered(at + 2) && at[2] == '"' && at[1] != '"' && at[1] != '\\') {
      in_.skip(3);
      return at[1];
    }
    return string().c_str()[0];
  }
  // Returns the text of a string, with escapes decoded.
  const std::string& string() {
    string(&text_);
    return text_;
  }
  void string(std::string* out) {
    expect('"', "a string");
    const char* end = string_end(in_.at());
    if (in_.is_buffered(end) && *end == '"') {
      out->assign(in_.at(), end);
      return in_.move_to(end + 1);
    }
    out->clear();
    for (;;) {
      const std::string_view view = in_.view();
      if (view.empty()) {
        in_.broken("the end of a string");
      }
      const size_t n =
          std::min(static_cast<size_t>(string_end(view.data()) - view.data()), view.size());
      if (out->size() + n > kMaxJsonString) {
        in_.broken("the end of a string of at most 16 MiB");
      }
      out->append(view.data(), n);
      in_.skip(n);
      if (n == view.size()) continue;
      if (in_.get() == '"') return;
      escape(out);
    }
  }
  // Returns a number as text, or another token in its place (true, null).
  const std::string& token() {
    text_.clear();
    next();
    for (;;) {
      const std::string_view view = in_.view();
      size_t n = 0;
      while (n < view.size() && !ends_token(view[n])) {
        ++n;
      }
      text_.append(view.substr(0, n));
      in_.skip(n);
      if (text_.size() > 512) {
        in_.broken("a number");
      }
      if (n < view.size() || view.empty()) break;
    }
    if (text_.empty()) {
      in_.broken("a value");
    }
    return text_;
  }
  void skip_value() {
    int depth = 0;
    do {
      const int c = next();
      if (c == '"') {
        skip_string();
      } else if (c == '{' || c == '[') {
        in_.get();
        if (++depth > kMaxJsonDepth) {
          in_.broken("at most 200 levels of nesting");
        }
      } else if (c == '}' || c == ']') {
        in_.get();
        --depth;
      } else if (depth > 0 && (c == ',' || c == ':')) {
        in_.get();
      } else {
        token();
      }
    } while (depth > 0);
  }
  // Consumes a value and returns it as a number; 0 for anything else (-1 if it is not an int32).
  double real() {
    if (!scalar()) return 0;
    double value = 0;
    std::from_chars(scalar_.data(), scalar_.data() + scalar_.size(), value);
    return std::isfinite(value) ? value : 0;
  }
  [[gnu::always_inline]] int64_t integer() {
    next();
    const char* at = in_.at();
    const bool negative = *at == '-';
    at += negative ? 1 : 0;
    uint64_t digits = 0;
    const char* end = digits_at(at, &digits);
    if (end > at && end - at <= 18 && is_whole(end)) {
      in_.move_to(end);
      return negative ? -static_cast<int64_t>(digits) : static_cast<int64_t>(digits);
    }
    if (!scalar()) return 0;
    int64_t value = 0;
    if (parse_int(scalar_, &value)) return value;
    double other = 0;
    std::from_chars(scalar_.data(), scalar_.data() + scalar_.size(), other);
    return std::fabs(other) < 9e18 ? static_cast<int64_t>(other) : 0;
  }
  // Consumes a value. Returns false, and leaves `*value` unchanged, if it is not a finite number.
  [[gnu::always_inline]] bool number(double* value) {
    next();
    if (plain_number(value)) return true;
    double read = 0;
    if (!scalar()) return false;
    const auto [end, error] =
        std::from_chars(scalar_.data(), scalar_.data() + scalar_.size(), read);
    if (error != std::errc() || end != scalar_.data() + scalar_.size() || !std::isfinite(read)) {
      return false;
    }
    *value = read;
    return true;
  }
  [[gnu::always_inline]] int32_t small() {
    const int64_t value = integer();
    return value == static_cast<int32_t>(value) ? static_cast<int32_t>(value) : -1;
  }
  // Converts decimal microseconds to nanoseconds: exact to the third decimal, rounded beyond.
  int64_t micro() {
    if (!scalar()) return 0;
    const std::string_view t = scalar_;
    size_t i = !t.empty() && t[0] == '-' ? 1 : 0;
    const size_t first = i;
    int64_t ns = 0;
    for (; i < t.size() && t[i] >= '0' && t[i] <= '9'; ++i) {
      ns = ns * 10 + (t[i] - '0');
    }
    bool plain = i > first && i - first <= 15;
    if (plain && i < t.size() && t[i] == '.') {
      ++i;
      for (int digit = 0; digit < 3; ++digit) {
        ns *= 10;
        if (i < t.size() && t[i] >= '0' && t[i] <= '9') {
          ns += t[i++] - '0';
        }
      }
      if (i < t.size() && t[i] >= '5' && t[i] <= '9') {
        ++ns;
      }
      while (i < t.size() && t[i] >= '0' && t[i] <= '9') {
        ++i;
      }
    } else {
      ns *= 1000;
    }
    if (plain && i == t.size()) return t[0] == '-' ? -ns : ns;
    double value = 0;
    std::from_chars(t.data(), t.data() + t.size(), value);
    return std::fabs(value) < 9e15 ? std::llround(value * 1000) : 0;
  }
  // Returns the approximate fraction of the file that has been read.
  double share_read() const { return in_.share_read(); }
  void check_end() {
    if (next() >= 0) {
      in_.broken("the end of the file");
    }
  }

 private:
  // Consumes the punctuation before the key of the given member, or the end of the object.
  bool has_member(size_t number) {
    if (number == 0) {
      expect('{', "an object");
      if (next() == '}') {
        in_.skip(1);
        return false;
      }
    } else {
      const int c = next();
      if (c != ',' && c != '}') {
        in_.broken("',' or '}'");
      }
      in_.skip(1);
      if (c == '}') return false;
    }
    if (next() != '"') {
      in_.broken("a key");
    }
    return true;
  }
  // Returns the key of a member and consumes the ':' after it. A key that is buffered with all of
  // that is not copied.
  std::string_view key() {
    const char* from = in_.at() + 1;
    const char* end = string_end(from);
    if (in_.is_buffered(end) && *end == '"' && end[1] == ':' && in_.is_buffered(end + 1)) {
      const char* value = end + 2 + (end[2] == ' ' && in_.is_buffered(end + 2) ? 1 : 0);
      if (*value > ' ' && in_.is_buffered(value)) {
        in_.move_to(value);
        return {from, static_cast<size_t>(end - from)};
      }
    }
    string(&key_);
    expect(':', "':'");
    next();
    return key_;
  }
  // Returns the first quotation mark or backslash from `at` on, possibly the one behind the buffer.
  static const char* string_end(const char* at) {
    if constexpr (std::endian::native == std::endian::little) {
      constexpr uint64_t kOnes = ~uint64_t{0} / 255, kHighs = kOnes * 128;
      const auto zeros = [](uint64_t bytes) { return (bytes - kOnes) & ~bytes & kHighs; };
      for (;; at += 8) {
        uint64_t bytes = 0;
        std::memcpy(&bytes, at, 8);
        // Only the lowest of the bytes found is exact.
        const uint64_t found = zeros(bytes ^ (kOnes * '"')) | zeros(bytes ^ (kOnes * '\\'));
        if (found != 0) return at + std::countr_zero(found) / 8;
      }
    }
    while (*at != '"' && *at != '\\') {
      ++at;
    }
    return at;
  }
  void skip_string() {
    const char* end = string_end(in_.at() + 1);
    if (in_.is_buffered(end) && *end == '"') return in_.move_to(end + 1);
    string();
  }
  // Returns whether a token ends here, and not only because the buffer ends.
  [[gnu::always_inline]] bool is_whole(const char* end) const {
    return in_.is_buffered(end) && ends_token(*end);
  }
  // Appends up to 19 digits from `at` on to `*value`. Returns the end of the digits.
  [[gnu::always_inline]] static const char* digits_at(const char* at, uint64_t* value) {
    uint64_t sum = *value;
    if constexpr (std::endian::native == std::endian::little) {
      // Eight bytes at a time. The upper half of a digit is 3, also after adding 6.
      constexpr uint64_t kOnes = ~uint64_t{0} / 255;
      constexpr uint64_t kUpper = kOnes * 0xF0, kThrees = kOnes * 0x30;
      for (;;) {
        uint64_t bytes = 0;
        std::memcpy(&bytes, at, 8);
        const uint64_t other =
            ((bytes & kUpper) ^ kThrees) | (((bytes + kOnes * 6) & kUpper) ^ kThrees);
        const auto digits = static_cast<size_t>(std::countr_zero(other) / 8);
        if (digits == 8) {
          sum = sum * kTens[8] + value_of(bytes);
          at += 8;
          continue;
        }
        // The remaining digits are shifted behind zeros.
        *value = sum * kTens[digits] + value_of((bytes << 8 * (7 - digits)) << 8);
        return at + digits;
      }
    }
    while (*at >= '0' && *at <= '9') {
      sum = sum * 10 + static_cast<uint64_t>(*at++ - '0');
    }
    *value = sum;
    return at;
  }
  // Returns the value of eight digits, the first one in the lowest byte; NUL counts as 0.
  static uint64_t value_of(uint64_t bytes) {
    bytes = (bytes & 0x0F0F0F0F0F0F0F0F) * (10 * 256 + 1) >> 8;
    bytes = (bytes & 0x00FF00FF00FF00FF) * (100 * 65536 + 1) >> 16;
    return (bytes & 0x0000FFFF0000FFFF) * ((uint64_t{10000} << 32) + 1) >> 32;
  }
  // Reads a number in the common form without an exponent.
  [[gnu::always_inline]] bool plain_number(double* value) {
    const bool negative = in_.ahead() == '-';
    const char* first = in_.at() + (negative ? 1 : 0);
    uint64_t digits = 0;
    const char* end = digits_at(first, &digits);
    if (end == first) return false;
    auto count = end - first;
    size_t decimals = 0;
    if (*end == '.') {
      const char* behind = end + 1;
      end = digits_at(behind, &digits);
      decimals = static_cast<size_t>(end - behind);
      if (decimals == 0) return false;
      count = end - first - 1;
    }
    if (count > 18 || !is_whole(end)) return false;
    const double read = quotient(digits, decimals);
    *value = negative ? -read : read;
    in_.move_to(end);
    return true;
  }
  // Returns the double nearest to digits / 10^decimals, for at most 18 digits and decimals.
  static double quotient(uint64_t digits, size_t decimals) {
    if (decimals == 0 || digits == 0) return static_cast<double>(digits);
    // The quotient has 63 or 64 bits, the lowest one set if there is a remainder. It is rounded
    // once; the scaling by a power of two is exact.
    const int up = std::countl_zero(digits), down = std::countl_zero(kTens[decimals]);
    const auto dividend = static_cast<unsigned __int128>(digits << up) << 63;
    const uint64_t divisor = kTens[decimals] << down;
    const auto whole = static_cast<uint64_t>(dividend / divisor);
    const bool is_more = whole * divisor != static_cast<uint64_t>(dividend);
    constexpr int kBias = 1023, kMantissa = 52;
    const auto power = static_cast<uint64_t>(kBias + down - up - 63) << kMantissa;
    return static_cast<double>(whole | (is_more ? 1 : 0)) * std::bit_cast<double>(power);
  }
  int next_after_space() {
    for (;;) {
      const std::string_view view = in_.view();
      if (view.empty()) return -1;
      size_t n = 0;
      while (n < view.size() && is_json_space(view[n])) {
        ++n;
      }
      in_.skip(n);
      if (n < view.size()) return static_cast<unsigned char>(view[n]);
    }
  }
  // Reads a token into scalar_, which is valid until the next call; false for objects and arrays.
  bool scalar() {
    const int c = next();
    if (c == '{' || c == '[') {
      skip_value();
      return false;
    }
    if (c == '"') {
      scalar_ = string();
      return true;
    }
    const std::string_view view = in_.view();
    size_t n = 0;
    while (n < view.size() && n <= 512 && !ends_token(view[n])) {
      ++n;
    }
    if (n == 0 || n == view.size() || n > 512) {
      scalar_ = token();
      return true;
    }
    scalar_ = view.substr(0, n);
    in_.skip(n);
    return true;
  }
  void escape(std::string* out) {
    const int c = in_.get();
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    const size_t i = c < 0 ? kFrom.npos : kFrom.find(static_cast<char>(c));
    if (i != kFrom.npos) {
      *out += kTo[i];
    } else if (c == 'u') {
      uint32_t code = hex4();
      if (code >= 0xD800 && code < 0xDC00 && in_.peek() == '\\') {
        in_.get();
        if (in_.get() != 'u') {
          in_.broken("the second half of a surrogate pair");
        }
        code = 0x10000 + ((code - 0xD800) << 10) + ((hex4() - 0xDC00) & 0x3FF);
      }
      append_utf8(code, out);
    } else {
      in_.broken("an escape");
    }
  }
  uint32_t hex4() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const int c = in_.get();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) {
        in_.broken("four hexadecimal digits");
      }
      code = code * 16 + static_cast<uint32_t>(digit);
    }
    return code;
  }

  static constexpr std::array<uint64_t, 19> kTens = [] {
    std::array<uint64_t, 19> tens{1};
    for (size_t i = 1; i < tens.size(); ++i) {
      tens[i] = tens[i - 1] * 10;
    }
    return tens;
  }();

  TextSource in_;
  std::string text_, key_;
  std::string_view scalar_;
};

}  // namespace hocket::trace
