// SPDX-License-Identifier: Apache-2.0
#include "data/chat/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "data/chat/python_text.h"

namespace hocket::data::jinja {
namespace {

constexpr int kLargestWidth = 10'000;  // of a padded field

// One conversion of the operator %: `%-5.2f`.
struct Conversion {
  std::string flags;
  int width = 0, precision = -1;
  char letter = 0;
};

std::string padded(const Conversion& conversion, std::string text) {
  const int64_t missing = conversion.width - count_characters(text);
  if (missing <= 0) return text;
  const std::string blanks(static_cast<size_t>(missing), ' ');
  const bool left = conversion.flags.find('-') != std::string::npos;
  return left ? text + blanks : blanks + text;
}

std::string number_text(const Conversion& conversion, const Value& value) {
  require_defined(value);
  std::string pattern = "%" + conversion.flags;
  if (conversion.width > 0) {
    pattern += std::to_string(conversion.width);
  }
  if (conversion.precision >= 0) {
    pattern += "." + std::to_string(conversion.precision);
  }
  std::vector<char> buffer(2 * kLargestWidth + 400);
  if (std::string_view("eEfFgG").find(conversion.letter) != std::string_view::npos) {
    if (!value.is_number()) refuse("must be real number, not {}", type_name(value));
    pattern += conversion.letter;
    std::snprintf(buffer.data(), buffer.size(), pattern.c_str(), value.as_real());
    return buffer.data();
  }
  const bool decimal = std::string_view("diu").find(conversion.letter) != std::string_view::npos;
  if (!value.is_integral() && !(decimal && value.is(Value::Type::real))) {
    refuse("%{} format: {} is required, not {}", conversion.letter,
           decimal ? "a real number" : "an integer", type_name(value));
  }
  const double real = value.as_real();
  if (std::fabs(real) >= 0x1p62 || std::isnan(real)) refuse("formats an integer beyond 62 bits");
  const int64_t integer = value.is_integral() ? value.as_int() : static_cast<int64_t>(real);
  if (!decimal && integer < 0) refuse("formats a negative number as %{}", conversion.letter);
  if (conversion.letter == 'o' && conversion.flags.find('#') != std::string::npos) {
    refuse("uses the format %#o; that is not supported");
  }
  pattern += std::string("ll") + (decimal ? 'd' : conversion.letter);
  std::snprintf(buffer.data(), buffer.size(), pattern.c_str(), static_cast<long long>(integer));
  return buffer.data();
}

class PercentFormat {
 public:
  PercentFormat(Budget* budget, std::string_view format, const Value& value)
      : budget_(budget), format_(format), value_(value) {
    if (value.is_kind(List::Kind::tuple)) {
      arguments_ = value.items();
    } else {
      arguments_ = {value};
    }
  }

  std::string run() {
    while (at_ < format_.size()) {
      const size_t begin = at_;
      at_ = std::min(format_.find('%', at_), format_.size());
      out_ += format_.substr(begin, at_ - begin);
      if (at_ < format_.size()) {
        ++at_;
        convert();
      }
      budget_->bytes(static_cast<int64_t>(at_ - begin));
    }
    const bool mapping = value_.is_dict() || value_.is_list() || value_.is_undefined();
    if (next_ < arguments_.size() && !(mapping && !value_.is_kind(List::Kind::tuple))) {
      refuse("not all arguments converted during string formatting");
    }
    return std::move(out_);
  }

 private:
  char peek() const {
    if (at_ >= format_.size()) refuse("incomplete format");
    return format_[at_];
  }
  const Value& next() {
    if (named_ != nullptr) return *named_;
    if (next_ >= arguments_.size()) refuse("not enough arguments for format string");
    return arguments_[next_++];
  }
  int number() {
    if (peek() == '*') {
      ++at_;
      const Value& width = next();
      if (!width.is_integral()) refuse("* wants int");
      if (width.as_int() < 0 || width.as_int() > kLargestWidth) refuse("width too big");
      return static_cast<int>(width.as_int());
    }
    int out = 0;
    while (peek() >= '0' && peek() <= '9') {
      out = out * 10 + (format_[at_++] - '0');
      if (out > kLargestWidth) refuse("width too big");
    }
    return out;
  }
  void convert() {
    Conversion conversion;
    named_ = nullptr;
    if (peek() == '(') {
      const size_t end = format_.find(')', at_);
      if (end == std::string_view::npos) refuse("incomplete format key");
      if (!value_.is_dict()) refuse("format requires a mapping");
      const std::string key(format_.substr(at_ + 1, end - at_ - 1));
      named_ = value_.as_dict().find(key);
      if (named_ == nullptr) refuse("no key {} to format", repr_of_text(key));
      at_ = end + 1;
    }
    while (std::string_view("#0- +").find(peek()) != std::string_view::npos) {
      conversion.flags += format_[at_++];
      if (conversion.flags.size() > 8) refuse("repeats the flags of a format");
    }
    conversion.width = number();
    if (peek() == '.') {
      ++at_;
      conversion.precision = number();
    }
    while (std::string_view("hlL").find(peek()) != std::string_view::npos) {
      ++at_;
    }
    conversion.letter = peek();
    ++at_;
    budget_->bytes(conversion.width + std::max(conversion.precision, 0));
    put(conversion);
  }
  void put(const Conversion& conversion) {
    switch (conversion.letter) {
      case '%':
        out_ += '%';
        return;
      case 's':
      case 'r': {
        const Value& value = next();
        std::string text =
            conversion.letter == 's' ? to_text(budget_, value) : to_repr(budget_, value);
        if (conversion.precision >= 0) {
          text.resize(byte_of_character(text, conversion.precision));
        }
        out_ += padded(conversion, std::move(text));
        return;
      }
      case 'c': {
        const Value& value = next();
        if (!value.is_text() || count_characters(value.as_text()) != 1) {
          refuse("%c requires a character here, not {}", type_name(value));
        }
        out_ += padded(conversion, value.as_text());
        return;
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        out_ += number_text(conversion, next());
        return;
      default:
        refuse("unsupported format character '{}'", conversion.letter);
    }
  }

  Budget* budget_;
  std::string_view format_;
  const Value& value_;
  std::vector<Value> arguments_;
  const Value* named_ = nullptr;
  size_t next_ = 0, at_ = 0;
  std::string out_;
};

}  // namespace

std::string percent_format(Budget* budget, std::string_view format, const Value& value) {
  return PercentFormat(budget, format, value).run();
}

std::string brace_format(Budget* budget, std::string_view format, const Arguments& arguments) {
  std::string out;
  size_t automatic = 0;
  for (size_t at = 0; at < format.size(); ++at) {
    budget->steps();
    const char c = format[at];
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    if (at + 1 < format.size() && format[at + 1] == c) {
      out += c;
      ++at;
      continue;
    }
    const size_t end = format.find('}', at);
    if (c == '}' || end == std::string_view::npos)
      refuse("Single '{}' encountered in format string", c);
    const std::string_view field = format.substr(at + 1, end - at - 1);
    int64_t index = 0;
    const Value* value = nullptr;
    if (field.empty() || parse_int(field, &index)) {
      const size_t place = field.empty() ? automatic++ : static_cast<size_t>(index);
      if (place >= arguments.positional.size()) {
        refuse("Replacement index {} out of range for positional args tuple", place);
      }
      value = &arguments.positional[place];
    } else if (field.find_first_of(".[!:{") != std::string_view::npos) {
      refuse("formats the field {}; only names and indices are supported", repr_of_text(field));
    } else {
      for (const auto& [name, named] : arguments.named) {
        if (name == field) {
          value = &named;
        }
      }
      if (value == nullptr) refuse("no argument {} to format", repr_of_text(field));
    }
    const std::string text = to_text(budget, *value);
    budget->bytes(static_cast<int64_t>(text.size()));
    out += text;
    at = end;
  }
  return out;
}

}  // namespace hocket::data::jinja
