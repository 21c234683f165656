// SPDX-License-Identifier: Apache-2.0
#include "data/chat/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "data/chat/filter_call.h"
#include "data/chat/python_text.h"

namespace hocket::data::jinja {
namespace {

using Type = Value::Type;

using Filter = Value (*)(const FilterCall&);

// --- text

Value filter_case(const FilterCall& call) {
  return call.method(std::string(call.name), call.arguments);
}

Value filter_title(const FilterCall& call) {
  const Value subject = call.soft_text();
  std::string out, word;
  const auto end_word = [&] {
    size_t at = 0;
    if (!word.empty()) {
      next_code_point(word, &at);
      out += to_upper(std::string_view(word).substr(0, at)) +
             to_lower(std::string_view(word).substr(at));
    }
    word.clear();
  };
  const std::string& text = subject.as_text();
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t c = next_code_point(text, &at);
    const std::string_view part = std::string_view(text).substr(begin, at - begin);
    if (is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<') {
      end_word();
      out += part;
    } else {
      word += part;
    }
  }
  end_word();
  return Value::text(std::move(out), false);
}

Value filter_trim(const FilterCall& call) {
  const Bound bound = call.bind({"chars"});
  Arguments given;
  if (bound.find(0) != nullptr) {
    given.positional.push_back(*bound.find(0));
  }
  return call.method("strip", std::move(given));
}

Value filter_replace(const FilterCall& call) {
  const Bound bound = call.bind({"old", "new", "count"});
  Arguments given;
  given.positional = {Value::text(to_text(call.budget, bound.at(0))),
                      Value::text(to_text(call.budget, bound.at(1)))};
  if (bound.find(2) != nullptr && !bound.find(2)->is_none()) {
    given.positional.push_back(*bound.find(2));
  }
  const Value text = Value::text(to_text(call.budget, call.subject));
  return call_method(call.budget, Method{text, "replace"}, given);
}

Value filter_string(const FilterCall& call) {
  call.bind({});
  return call.soft_text();
}

Value filter_safe(const FilterCall& call) {
  call.bind({});
  return Value::text(to_text(call.budget, call.subject), true);
}

Value filter_escape(const FilterCall& call) {
  call.bind({});
  if (call.subject.markup() && call.name != "forceescape") return call.subject;
  return Value::text(escape_html(to_text(call.budget, call.subject)), true);
}

Value filter_center(const FilterCall& call) {
  return call.method("center", {{Value::integer(call.bind({"width"}).integer(0, 80))}, {}});
}

Value filter_indent(const FilterCall& call) {
  const Bound bound = call.bind({"width", "first", "blank"});
  const Value& subject = call.subject;
  if (!subject.is_text()) {
    require_defined(subject);
    refuse("unsupported operand type(s) for +=: '{}' and 'str'", type_name(subject));
  }
  std::string indent;
  if (bound.find(0) != nullptr && bound.find(0)->is_text()) {
    indent = bound.text(0);
  } else {
    const int64_t width = bound.integer(0, 4);
    call.budget->bytes(std::max<int64_t>(width, 0));
    indent.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const bool blank = bound.flag(2, false);
  std::string out = bound.flag(1, false) ? indent : "";
  const std::vector<std::string> lines = split_lines(subject.as_text() + "\n", false);
  for (size_t i = 0; i < lines.size(); ++i) {
    call.budget->bytes(static_cast<int64_t>(lines[i].size() + indent.size() + 1));
    if (i > 0) {
      out += '\n';
      out += blank || !lines[i].empty() ? indent : "";
    }
    out += lines[i];
  }
  return Value::text(std::move(out), subject.markup());
}

Value filter_truncate(const FilterCall& call) {
  const Bound bound = call.bind({"length", "killwords", "end", "leeway"});
  const Value& text = call.subject;
  require_defined(text);
  if (!text.is_text()) refuse("truncate expects a str, not {}", type_name(text));
  const std::string end = bound.find(2) != nullptr ? bound.text(2) : "...";
  const int64_t length = bound.integer(0, 255), leeway = bound.integer(3, 5);
  const int64_t kept = length - count_characters(end);
  if (kept < 0) refuse("expected length >= {}, got {}", count_characters(end), length);
  if (leeway < 0) refuse("expected leeway >= 0, got {}", leeway);
  const int64_t size = count_characters(text.as_text());
  if (size <= leeway || size - leeway <= length) return text;
  std::string head = text.as_text().substr(0, byte_of_character(text.as_text(), kept));
  if (!bound.flag(1, false)) {
    head.resize(std::min(head.rfind(' '), head.size()));
  }
  return Value::text(head + end, text.markup());
}

Value filter_wordcount(const FilterCall& call) {
  call.bind({});
  const Value subject = call.soft_text();
  const std::string& text = subject.as_text();
  if (!is_ascii(text)) refuse("wordcount of text beyond ASCII is not supported");
  int64_t count = 0;
  bool in_word = false;
  for (const char c : text) {
    const bool part = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    count += part && !in_word ? 1 : 0;
    in_word = part;
  }
  return Value::integer(count);
}

Value filter_format(const FilterCall& call) {
  if (!call.arguments.positional.empty() && !call.arguments.named.empty()) {
    refuse("can't handle positional and keyword arguments at the same time");
  }
  if (call.arguments.named.empty()) {
    return arithmetic(call.budget, Expr::Op::mod, call.soft_text(),
                      Value::list(call.arguments.positional, List::Kind::tuple));
  }
  Dict dict;
  for (const auto& [name, value] : call.arguments.named) {
    dict.set(call.budget, Value::text(name), value);
  }
  return arithmetic(call.budget, Expr::Op::mod, call.soft_text(), Value::dict(std::move(dict)));
}

Value filter_urlencode(const FilterCall& call) {
  call.bind({});
  if (!call.subject.is_text() && is_iterable(call.subject)) {
    refuse("urlencode of a {} is not supported; expected a string", type_name(call.subject));
  }
  std::string out;
  for (const char c : to_text(call.budget, call.subject)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' ||
                       c == '-' || c == '~' || c == '/';
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  call.budget->bytes(static_cast<int64_t>(out.size()));
  return Value::text(std::move(out));
}

Value filter_tojson(const FilterCall& call) {
  const Bound bound = call.bind({"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (const Value* indent = bound.find(1); indent != nullptr && !indent->is_none()) {
    style.lines = true;
    style.item_separator = ",";
    if (indent->is_text()) {
      style.indent = indent->as_text();
    } else {
      const int64_t width = std::max<int64_t>(index_of(*indent), 0);
      call.budget->bytes(width);
      style.indent.assign(static_cast<size_t>(width), ' ');
    }
  }
  if (const Value* separators = bound.find(2); separators != nullptr && !separators->is_none()) {
    const std::vector<Value> both = elements_of(call.budget, *separators);
    if (both.size() != 2 || !both[0].is_text() || !both[1].is_text()) {
      refuse("tojson expects two strings as separators");
    }
    style.item_separator = both[0].as_text();
    style.key_separator = both[1].as_text();
  }
  return Value::text(to_json(call.budget, call.subject, style));
}

// --- numbers

// Python's int(text, base), or none for no number.
std::optional<int64_t> parsed_integer(std::string_view text, int64_t base) {
  text = strip(text);
  if (!is_ascii(text)) refuse("int of text beyond ASCII is not supported");
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) {
    text.remove_prefix(1);
  }
  if (base != 10 && base != 2 && base != 8 && base != 16) refuse("int with base {}", base);
  const auto prefix = [&](char letter) {
    return text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == letter;
  };
  if ((base == 16 && prefix('x')) || (base == 8 && prefix('o')) || (base == 2 && prefix('b'))) {
    text.remove_prefix(text[2] == '_' ? 3 : 2);
  }
  if (text.empty() || text.front() == '_' || text.back() == '_' ||
      text.find("__") != std::string_view::npos) {
    return std::nullopt;
  }
  std::string digits = negative ? "-" : "";
  std::copy_if(text.begin(), text.end(), std::back_inserter(digits),
               [](char c) { return c != '_'; });
  if (digits.find('-', 1) != std::string::npos || text.front() == '-') return std::nullopt;
  int64_t out = 0;
  const auto read =
      std::from_chars(digits.data(), digits.data() + digits.size(), out, static_cast<int>(base));
  if (read.ec == std::errc::result_out_of_range) refuse("an integer beyond 64 bits");
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) return std::nullopt;
  return out;
}

std::optional<double> parsed_real(std::string_view text) {
  text = strip(text);
  if (!is_ascii(text)) refuse("float of text beyond ASCII is not supported");
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '9';
    };
    if (text[i] != '_') {
      digits += text[i];
    } else if (i == 0 || !digit(i - 1) || !digit(i + 1)) {
      return std::nullopt;
    }
  }
  std::string lower = to_lower(digits);
  const bool negative = lower.starts_with('-');
  if (negative || lower.starts_with('+')) {
    lower.erase(0, 1);
  }
  const double sign = negative ? -1 : 1;
  if (lower == "inf" || lower == "infinity") return sign * std::numeric_limits<double>::infinity();
  if (lower == "nan") return std::numeric_limits<double>::quiet_NaN();
  double out = 0;
  if (lower.empty() || !((lower[0] >= '0' && lower[0] <= '9') || lower[0] == '.'))
    return std::nullopt;
  const auto read = std::from_chars(lower.data(), lower.data() + lower.size(), out);
  if (read.ptr != lower.data() + lower.size()) return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) refuse("a float out of range");
  if (read.ec != std::errc()) return std::nullopt;
  return sign * out;
}

int64_t truncated(double real) {
  if (std::isnan(real)) refuse("cannot convert float NaN to integer");
  if (std::fabs(real) >= 0x1p63) refuse("an integer beyond 64 bits");
  return static_cast<int64_t>(real);
}

Value filter_int(const FilterCall& call) {
  const Bound bound = call.bind({"default", "base"});
  const Value otherwise = bound.find(0) != nullptr ? *bound.find(0) : Value::integer(0);
  const Value& subject = call.subject;
  require_defined(subject);
  if (subject.is_integral()) return Value::integer(subject.as_int());
  if (subject.is(Type::real)) {
    return std::isnan(subject.as_real()) ? otherwise : Value::integer(truncated(subject.as_real()));
  }
  if (!subject.is_text()) return otherwise;
  if (const auto integer = parsed_integer(subject.as_text(), bound.integer(1, 10))) {
    return Value::integer(*integer);
  }
  const auto real = parsed_real(subject.as_text());
  return real && std::isfinite(*real) ? Value::integer(truncated(*real)) : otherwise;
}

Value filter_float(const FilterCall& call) {
  const Bound bound = call.bind({"default"});
  const Value& subject = call.subject;
  require_defined(subject);
  if (subject.is_number()) return Value::real(subject.as_real());
  const auto real = subject.is_text() ? parsed_real(subject.as_text()) : std::nullopt;
  if (real) return Value::real(*real);
  return bound.find(0) != nullptr ? *bound.find(0) : Value::real(0);
}

Value filter_abs(const FilterCall& call) {
  call.bind({});
  require_defined(call.subject);
  if (!call.subject.is_number())
    refuse("bad operand type for abs(): '{}'", type_name(call.subject));
  if (call.subject.is(Type::real)) return Value::real(std::fabs(call.subject.as_real()));
  return call.subject.as_int() < 0 ? negate(call.subject) : Value::integer(call.subject.as_int());
}

Value filter_round(const FilterCall& call) {
  const Bound bound = call.bind({"precision", "method"});
  const std::string method = bound.find(1) != nullptr ? bound.text(1) : "common";
  const int64_t precision = bound.integer(0, 0);
  constexpr int64_t kDigits = 15;
  require_defined(call.subject);
  if (!call.subject.is_number()) {
    refuse("type {} doesn't define __round__ method", type_name(call.subject));
  }
  if (precision < 0 || precision > kDigits)
    refuse("round to {} digits; expected 0 to {}", precision, kDigits);
  const double value = call.subject.as_real();
  if (method == "common") {
    if (call.subject.is_integral()) return Value::integer(call.subject.as_int());
    if (!std::isfinite(value)) return call.subject;
    // The decimal text is rounded correctly, half to even, as Python's round is.
    return Value::real(std::stod(fmt::format("{:.{}f}", value, precision)));
  }
  if (method != "ceil" && method != "floor") refuse("method must be common, ceil or floor");
  const double power = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value * power;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / power);
}

const std::map<std::string_view, Filter>& filters() {
  static const std::map<std::string_view, Filter> kFilters = {{"abs", filter_abs},
                                                              {"attr", filter_attr},
                                                              {"batch", filter_batch},
                                                              {"capitalize", filter_case},
                                                              {"center", filter_center},
                                                              {"count", filter_length},
                                                              {"d", filter_default},
                                                              {"default", filter_default},
                                                              {"dictsort", filter_dictsort},
                                                              {"e", filter_escape},
                                                              {"escape", filter_escape},
                                                              {"first", filter_first},
                                                              {"float", filter_float},
                                                              {"forceescape", filter_escape},
                                                              {"format", filter_format},
                                                              {"groupby", filter_groupby},
                                                              {"indent", filter_indent},
                                                              {"int", filter_int},
                                                              {"items", filter_items},
                                                              {"join", filter_join},
                                                              {"last", filter_last},
                                                              {"length", filter_length},
                                                              {"list", filter_list},
                                                              {"lower", filter_case},
                                                              {"map", filter_map},
                                                              {"max", filter_extreme},
                                                              {"min", filter_extreme},
                                                              {"reject", filter_select},
                                                              {"rejectattr", filter_select},
                                                              {"replace", filter_replace},
                                                              {"reverse", filter_reverse},
                                                              {"round", filter_round},
                                                              {"safe", filter_safe},
                                                              {"select", filter_select},
                                                              {"selectattr", filter_select},
                                                              {"slice", filter_slice},
                                                              {"sort", filter_sort},
                                                              {"string", filter_string},
                                                              {"sum", filter_sum},
                                                              {"title", filter_title},
                                                              {"tojson", filter_tojson},
                                                              {"trim", filter_trim},
                                                              {"truncate", filter_truncate},
                                                              {"unique", filter_unique},
                                                              {"upper", filter_case},
                                                              {"urlencode", filter_urlencode},
                                                              {"wordcount", filter_wordcount}};
  return kFilters;
}

}  // namespace

bool is_filter(std::string_view name) { return filters().contains(name); }

std::vector<std::string> filter_names() {
  std::vector<std::string> out;
  for (const auto& [name, filter] : filters()) {
    out.emplace_back(name);
  }
  return out;
}

Value apply_filter(Budget* budget, std::string_view name, const Value& subject,
                   const Arguments& arguments) {
  budget->steps();
  const auto found = filters().find(name);
  if (found == filters().end()) refuse("No filter named {}.", repr_of_text(name));
  return found->second({budget, name, subject, arguments});
}

}  // namespace hocket::data::jinja
