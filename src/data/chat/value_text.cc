// SPDX-License-Identifier: Apache-2.0
// Implements: to_text, to_repr, to_json and escape_html (value.h).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "data/chat/python_text.h"
#include "data/chat/value.h"

namespace hocket::data::jinja {
namespace {

class TextWriter {
 public:
  explicit TextWriter(Budget* budget) : budget_(budget) {}

  void put(std::string_view text) {
    budget_->bytes(static_cast<int64_t>(text.size()));
    out_ += text;
  }
  std::string take() { return std::move(out_); }

  void repr(const Value& value, int depth) {
    budget_->steps();
    if (depth > 2 * kMaxValueDepth) refuse("nests values too deep to print");
    switch (value.type()) {
      case Value::Type::undefined:
        return put("Undefined");
      case Value::Type::none:
        return put("None");
      case Value::Type::boolean:
        return put(value.as_bool() ? "True" : "False");
      case Value::Type::integer:
        return put(fmt::format("{}", value.as_int()));
      case Value::Type::real:
        return put(repr_of_real(value.as_real()));
      case Value::Type::text:
        budget_->bytes(static_cast<int64_t>(value.as_text().size()));
        return put(fmt::format(fmt::runtime(value.markup() ? "Markup({})" : "{}"),
                               repr_of_text(value.as_text())));
      case Value::Type::list:
        return repr_list(value, depth);
      case Value::Type::dict:
        return repr_dict(value.as_dict(), depth);
      case Value::Type::object:
        return put(value.as_object()->repr(budget_, depth + 1));
      case Value::Type::iterator:
      case Value::Type::method:
        refuse("prints a {}, whose text in Python is an address", type_name(value));
    }
  }

 private:
  void repr_list(const Value& value, int depth) {
    const List& list = value.as_list();
    if (list.kind == List::Kind::range) refuse("prints a range; that is not supported");
    const bool view = list.kind > List::Kind::range;
    if (view) {
      put(type_name(value) + "(");
    }
    const bool tuple = list.kind == List::Kind::tuple;
    put(tuple ? "(" : "[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      put(i > 0 ? ", " : "");
      repr(list.items[i], depth + 1);
    }
    put(tuple && list.items.size() == 1 ? "," : "");
    put(tuple ? ")" : "]");
    put(view ? ")" : "");
  }
  void repr_dict(const Dict& dict, int depth) {
    put("{");
    for (size_t i = 0; i < dict.items.size(); ++i) {
      put(i > 0 ? ", " : "");
      repr(dict.items[i].first, depth + 1);
      put(": ");
      repr(dict.items[i].second, depth + 1);
    }
    put("}");
  }

  Budget* budget_;
  std::string out_;
};

class JsonDumper {
 public:
  JsonDumper(Budget* budget, const JsonStyle& style) : budget_(budget), style_(style) {}

  std::string dump(const Value& value) {
    write(value, 0);
    return std::move(out_);
  }

 private:
  void put(std::string_view text) {
    budget_->bytes(static_cast<int64_t>(text.size()));
    out_ += text;
  }
  void line(int depth) {
    if (!style_.lines) return;
    put("\n");
    for (int i = 0; i < depth; ++i) {
      put(style_.indent);
    }
  }
  std::string number(double real) {
    if (std::isfinite(real)) return repr_of_real(real);
    return std::isnan(real) ? "NaN" : real > 0 ? "Infinity" : "-Infinity";
  }
  void write(const Value& value, int depth) {
    budget_->steps();
    switch (value.type()) {
      case Value::Type::none:
        return put("null");
      case Value::Type::boolean:
        return put(value.as_bool() ? "true" : "false");
      case Value::Type::integer:
        return put(fmt::format("{}", value.as_int()));
      case Value::Type::real:
        return put(number(value.as_real()));
      case Value::Type::text:
        return text(value.as_text());
      case Value::Type::dict:
        return object(value.as_dict(), depth);
      case Value::Type::list:
        if (value.as_list().kind <= List::Kind::tuple) return array(value.items(), depth);
        break;
      default:
        break;
    }
    refuse("Object of type {} is not JSON serializable", type_name(value));
  }
  void text(std::string_view text) {
    std::string quoted = "\"";
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const uint32_t c = next_code_point(text, &at);
      switch (c) {
        case '"':
          quoted += "\\\"";
          break;
        case '\\':
          quoted += "\\\\";
          break;
        case '\n':
          quoted += "\\n";
          break;
        case '\r':
          quoted += "\\r";
          break;
        case '\t':
          quoted += "\\t";
          break;
        case '\b':
          quoted += "\\b";
          break;
        case '\f':
          quoted += "\\f";
          break;
        default:
          if (c < 0x20 || (style_.ascii && c >= 0x7F)) {
            escape(c, &quoted);
          } else {
            quoted += text.substr(begin, at - begin);
          }
      }
    }
    put(quoted += '"');
  }
  static void escape(uint32_t c, std::string* out) {
    constexpr uint32_t kFirstAstral = 0x10000;
    if (c < kFirstAstral) {
      *out += fmt::format("\\u{:04x}", c);
    } else {
      c -= kFirstAstral;
      *out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (c >> 10), 0xDC00 + (c & 0x3FF));
    }
  }
  void array(const std::vector<Value>& items, int depth) {
    if (items.empty()) return put("[]");
    put("[");
    for (size_t i = 0; i < items.size(); ++i) {
      put(i > 0 ? style_.item_separator : "");
      line(depth + 1);
      write(items[i], depth + 1);
    }
    line(depth);
    put("]");
  }
  std::string key(const Value& value) {
    switch (value.type()) {
      case Value::Type::text:
        return value.as_text();
      case Value::Type::none:
        return "null";
      case Value::Type::boolean:
        return value.as_bool() ? "true" : "false";
      case Value::Type::integer:
        return fmt::format("{}", value.as_int());
      case Value::Type::real:
        return number(value.as_real());
      default:
        refuse("keys must be str, int, float, bool or None, not {}", type_name(value));
    }
  }
  void object(const Dict& dict, int depth) {
    if (dict.items.empty()) return put("{}");
    std::vector<const std::pair<Value, Value>*> members;
    for (const auto& member : dict.items) {
      members.push_back(&member);
    }
    if (style_.sort_keys) {
      std::stable_sort(members.begin(), members.end(), [&](const auto* a, const auto* b) {
        return compare(budget_, a->first, b->first, "<") == -1;
      });
    }
    put("{");
    for (size_t i = 0; i < members.size(); ++i) {
      put(i > 0 ? style_.item_separator : "");
      line(depth + 1);
      text(key(members[i]->first));
      put(style_.key_separator);
      write(members[i]->second, depth + 1);
    }
    line(depth);
    put("}");
  }

  Budget* budget_;
  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

std::string repr_of_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // Shortest digits that read back to the same number, as "d.ddde-05".
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string shortest(buffer, end.ptr);
  const size_t at = shortest.find('e');
  const int exponent = std::stoi(shortest.substr(at + 1));
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", shortest.substr(0, at), exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  }
  const auto plain = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  const std::string fixed(buffer, plain.ptr);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

std::string repr_of_text(std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos;
  const char quote = single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t c = next_code_point(text, &at);
    if (c == static_cast<uint32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out += text.substr(begin, at - begin);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += c < 0x10000 ? fmt::format("\\u{:04x}", c) : fmt::format("\\U{:08x}", c);
    }
  }
  return out + quote;
}

std::string to_repr(Budget* budget, const Value& value, int depth) {
  TextWriter writer(budget);
  writer.repr(value, depth);
  return writer.take();
}

std::string to_text(Budget* budget, const Value& value) {
  if (value.is_undefined()) return "";
  if (!value.is_text()) return to_repr(budget, value);
  budget->bytes(static_cast<int64_t>(value.as_text().size()));
  return value.as_text();
}

std::string to_json(Budget* budget, const Value& value, const JsonStyle& style) {
  return JsonDumper(budget, style).dump(value);
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace hocket::data::jinja
