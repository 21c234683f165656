// SPDX-License-Identifier: Apache-2.0
#include "interop/shell/sum.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/text.h"

namespace hocket::interop {

namespace {

constexpr int64_t kMaxParentheses = 1000;  // that may be open at a time: a call each

bool sum(const std::string& text, size_t* at, int64_t* value);

void skip(const std::string& text, size_t* at) {
  while (*at < text.size() && (text[*at] == ' ' || text[*at] == '\t')) {
    ++*at;
  }
}
bool number(const std::string& text, size_t* at, int64_t* value) {
  skip(text, at);
  if (*at < text.size() && text[*at] == '(') {
    ++*at;
    if (!sum(text, at, value)) return false;
    skip(text, at);
    const bool ends = *at < text.size() && text[*at] == ')';
    ++*at;
    return ends;
  }
  const size_t begin = *at;
  while (*at < text.size() && std::isdigit(static_cast<unsigned char>(text[*at])) != 0) {
    ++*at;
  }
  return parse_int(std::string_view(text).substr(begin, *at - begin), value);
}
bool product(const std::string& text, size_t* at, int64_t* value) {
  if (!number(text, at, value)) return false;
  for (skip(text, at); *at < text.size() && (text[*at] == '*' || text[*at] == '/');
       skip(text, at)) {
    const char sign = text[(*at)++];
    int64_t more = 0;
    if (!number(text, at, &more) || (sign == '/' && more == 0)) return false;
    if (sign == '/' && more != -1) {
      *value /= more;
    } else if (__builtin_mul_overflow(*value, more, value)) {
      return false;
    }
  }
  return true;
}
bool sum(const std::string& text, size_t* at, int64_t* value) {
  if (!product(text, at, value)) return false;
  for (skip(text, at); *at < text.size() && (text[*at] == '+' || text[*at] == '-');
       skip(text, at)) {
    const char sign = text[(*at)++];
    int64_t more = 0;
    if (!product(text, at, &more)) return false;
    const bool overflows = sign == '+' ? __builtin_add_overflow(*value, more, value)
                                       : __builtin_sub_overflow(*value, more, value);
    if (overflows) return false;
  }
  return true;
}

}  // namespace

std::optional<int64_t> shell_sum(const std::string& text) {
  size_t at = 0;
  int64_t value = 0;
  if (std::count(text.begin(), text.end(), '(') > kMaxParentheses) return std::nullopt;
  if (!sum(text, &at, &value) || text.find_first_not_of(" \t", at) != text.npos) {
    return std::nullopt;
  }
  return value;
}

}  // namespace hocket::interop
