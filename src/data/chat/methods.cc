// SPDX-License-Identifier: Apache-2.0
// Implements: call_method (operations.h), the methods of Python's str, list, tuple and dict.
#include <algorithm>
#include <limits>
#include <map>

#include "data/chat/format.h"
#include "data/chat/operations.h"
#include "data/chat/python_text.h"

namespace hocket::data::jinja {
namespace {

constexpr int64_t kMaxWidth = 1 << 20;  // of a padded text

// A call of a method of str. Results of a Markup are Markup, as in markupsafe.
class TextCall {
 public:
  TextCall(Budget* budget, const Method& method, const Arguments& arguments)
      : budget_(budget),
        self_(method.self),
        text_(method.self.as_text()),
        name_(method.name),
        arguments_(arguments) {
    budget->bytes(static_cast<int64_t>(text_.size()));
  }

  Value run() {
    using Member = Value (TextCall::*)();
    static const std::map<std::string_view, Member> kMembers = {
        {"strip", &TextCall::stripped},
        {"lstrip", &TextCall::stripped},
        {"rstrip", &TextCall::stripped},
        {"split", &TextCall::parts},
        {"rsplit", &TextCall::parts},
        {"splitlines", &TextCall::lines},
        {"startswith", &TextCall::affix},
        {"endswith", &TextCall::affix},
        {"upper", &TextCall::cased},
        {"lower", &TextCall::cased},
        {"title", &TextCall::cased},
        {"capitalize", &TextCall::cased},
        {"swapcase", &TextCall::cased},
        {"replace", &TextCall::replaced},
        {"join", &TextCall::joined},
        {"find", &TextCall::found},
        {"rfind", &TextCall::found},
        {"index", &TextCall::found},
        {"rindex", &TextCall::found},
        {"count", &TextCall::found},
        {"isdigit", &TextCall::classified},
        {"isnumeric", &TextCall::classified},
        {"isdecimal", &TextCall::classified},
        {"isalpha", &TextCall::classified},
        {"isalnum", &TextCall::classified},
        {"isspace", &TextCall::classified},
        {"isupper", &TextCall::classified},
        {"islower", &TextCall::classified},
        {"format", &TextCall::formatted},
        {"removeprefix", &TextCall::shortened},
        {"removesuffix", &TextCall::shortened},
        {"zfill", &TextCall::filled},
        {"center", &TextCall::padded},
        {"ljust", &TextCall::padded},
        {"rjust", &TextCall::padded},
        {"partition", &TextCall::partitioned},
        {"rpartition", &TextCall::partitioned}};
    const auto found = kMembers.find(name_);
    if (found == kMembers.end()) refuse("the method str.{} is not supported", name_);
    return (this->*found->second)();
  }

 private:
  Bound bind(std::initializer_list<std::string_view> parameters) const {
    return {name_ + "()", arguments_, parameters};
  }
  Value made(std::string text) const {
    budget_->bytes(static_cast<int64_t>(text.size()));
    return Value::text(std::move(text), self_.markup());
  }
  Value made(std::vector<std::string> parts, List::Kind kind = List::Kind::list) const {
    std::vector<Value> out;
    budget_->bytes(std::ssize(parts) * static_cast<int64_t>(sizeof(Value)));
    for (std::string& part : parts) {
      out.push_back(made(std::move(part)));
    }
    return Value::list(std::move(out), kind);
  }
  // Work of a scan in which every character may be compared with every one of `other`.
  void pay_product(size_t other) const {
    budget_->steps(static_cast<int64_t>(text_.size() / 64 * other / 16));
  }

  Value stripped() {
    const Bound bound = bind({"chars"});
    const std::string* characters = bound.optional_text(0);
    if (characters != nullptr) {
      pay_product(characters->size());
    }
    if (name_ == "lstrip") return made(std::string(strip_left(text_, characters)));
    if (name_ == "rstrip") return made(std::string(strip_right(text_, characters)));
    return made(std::string(strip(text_, characters)));
  }

  Value parts() {
    const Bound bound = bind({"sep", "maxsplit"});
    const std::string* separator = bound.optional_text(0);
    if (separator != nullptr && separator->empty()) refuse("empty separator");
    const bool from_right = name_ == "rsplit";
    if (from_right && separator != nullptr) {
      pay_product(separator->size());
    }
    return made(split_text(text_, separator, bound.integer(1, -1), from_right));
  }

  Value lines() { return made(split_lines(text_, bind({"keepends"}).flag(0, false))); }

  // Part of the text between the character indices of two arguments.
  std::string_view range(const Bound& bound, size_t start, size_t stop, int64_t* first) const {
    const int64_t size = count_characters(text_);
    const auto place = [&](size_t i, int64_t otherwise) {
      const Value* given = bound.find(i);
      if (given == nullptr || given->is_none()) return otherwise;
      const int64_t at = index_of(*given);
      return std::max<int64_t>(at < 0 ? at + size : at, 0);
    };
    *first = place(start, 0);
    const int64_t last = std::min(place(stop, size), size);
    if (*first > last) return {};
    const size_t begin = byte_of_character(text_, *first);
    const std::string_view rest = std::string_view(text_).substr(begin);
    return rest.substr(0, byte_of_character(rest, last - *first));
  }

  Value affix() {
    const Bound bound = bind({"prefix", "start", "end"});
    int64_t first = 0;
    const std::string_view part = range(bound, 1, 2, &first);
    if (first > count_characters(text_)) return Value::boolean(false);
    const auto fits = [&](const Value& affix) {
      require_defined(affix);
      if (!affix.is_text()) {
        refuse("{} first arg must be str or a tuple of str, not {}", name_, type_name(affix));
      }
      return name_ == "startswith" ? part.starts_with(affix.as_text())
                                   : part.ends_with(affix.as_text());
    };
    const Value& affix = bound.at(0);
    if (!affix.is_kind(List::Kind::tuple)) return Value::boolean(fits(affix));
    return Value::boolean(std::any_of(affix.items().begin(), affix.items().end(), fits));
  }

  Value cased() {
    bind({});
    if (name_ == "upper") return made(to_upper(text_));
    if (name_ == "lower") return made(to_lower(text_));
    if (name_ == "title") return made(to_title(text_));
    return made(name_ == "capitalize" ? capitalize(text_) : swap_case(text_));
  }

  Value replaced() {
    const Bound bound = bind({"old", "new", "count"});
    const std::string& old = bound.text(0);
    std::string now = bound.text(1);
    if (self_.markup() && !bound.at(1).markup()) {
      now = escape_html(now);
    }
    int64_t limit = bound.integer(2, -1);
    const int64_t count = count_text(text_, old);
    limit = limit < 0 ? count : std::min(limit, count);
    budget_->bytes(static_cast<int64_t>(text_.size()));
    budget_->bytes(saturated(limit, static_cast<int64_t>(now.size())));
    return made(replace_text(text_, old, now, limit));
  }
  static int64_t saturated(int64_t a, int64_t b) {
    int64_t out = 0;
    return __builtin_mul_overflow(a, b, &out) ? std::numeric_limits<int64_t>::max() / 2 : out;
  }

  Value joined() {
    const Bound bound = bind({"iterable"});
    std::string out;
    const Next next = iterate(budget_, bound.at(0));
    int64_t index = 0;
    for (Value item; next(&item); ++index) {
      if (!item.is_text() && !self_.markup()) {
        refuse("sequence item {}: expected str instance, {} found", index, type_name(item));
      }
      const std::string text = to_text(budget_, item);
      out += index > 0 ? text_ : "";
      budget_->bytes(static_cast<int64_t>(text_.size()));
      out += self_.markup() && !item.markup() ? escape_html(text) : text;
    }
    return made(std::move(out));
  }

  Value found() {
    const Bound bound = bind({"sub", "start", "end"});
    const std::string& part = bound.text(0);
    int64_t first = 0;
    const std::string_view where = range(bound, 1, 2, &first);
    const bool beyond = first > count_characters(text_);
    if (name_ == "count") return Value::integer(beyond ? 0 : count_text(where, part));
    const bool last = name_[0] == 'r';
    if (last) {
      pay_product(part.size());
    }
    const size_t at = beyond ? kNotFound : last ? where.rfind(part) : find_text(where, part);
    if (at != kNotFound) return Value::integer(first + count_characters(where.substr(0, at)));
    if (name_.ends_with("index")) refuse("substring not found");
    return Value::integer(-1);
  }

  Value classified() {
    bind({});
    if (name_ == "isspace") {
      bool all = !text_.empty();
      for (size_t at = 0; at < text_.size();) {
        all &= is_space(next_code_point(text_, &at));
      }
      return Value::boolean(all);
    }
    if (name_ == "isupper" || name_ == "islower") {
      bool some = false, all = true;
      for (size_t at = 0; at < text_.size();) {
        const uint32_t c = next_code_point(text_, &at);
        some |= is_cased(c);
        all &= !is_cased(c) || (name_ == "isupper" ? is_upper(c) : is_lower(c));
      }
      return Value::boolean(some && all);
    }
    if (!is_ascii(text_)) refuse("{} of text beyond ASCII is not supported", name_);
    const bool digits = name_ != "isalpha", letters = name_ == "isalpha" || name_ == "isalnum";
    return Value::boolean(!text_.empty() && std::all_of(text_.begin(), text_.end(), [&](char c) {
      const char lower = static_cast<char>(c | 0x20);
      return (digits && c >= '0' && c <= '9') || (letters && lower >= 'a' && lower <= 'z');
    }));
  }

  Value formatted() {
    Arguments arguments = arguments_;
    const auto escape = [&](Value* value) {
      if (self_.markup() && !value->markup()) {
        *value = Value::text(escape_html(to_text(budget_, *value)), true);
      }
    };
    for (Value& value : arguments.positional) {
      escape(&value);
    }
    for (auto& [name, value] : arguments.named) {
      escape(&value);
    }
    return made(brace_format(budget_, text_, arguments));
  }

  Value shortened() {
    const Bound bound = bind({"affix"});
    const std::string& affix = bound.text(0);
    const std::string_view text = text_;
    if (name_ == "removeprefix") {
      return made(std::string(text.starts_with(affix) ? text.substr(affix.size()) : text));
    }
    return made(
        std::string(text.ends_with(affix) ? text.substr(0, text.size() - affix.size()) : text));
  }

  int64_t missing(int64_t width) const {
    if (width > kMaxWidth) refuse("{}: a width beyond {}", name_, kMaxWidth);
    return std::max<int64_t>(width - count_characters(text_), 0);
  }
  Value filled() {
    const int64_t zeros = missing(index_of(bind({"width"}).at(0)));
    const bool sign = text_.starts_with('-') || text_.starts_with('+');
    return made(text_.substr(0, sign ? 1 : 0) + std::string(static_cast<size_t>(zeros), '0') +
                text_.substr(sign ? 1 : 0));
  }
  Value padded() {
    const Bound bound = bind({"width", "fillchar"});
    const int64_t width = index_of(bound.at(0)), room = missing(width);
    const std::string fill = bound.find(1) != nullptr ? bound.text(1) : " ";
    if (count_characters(fill) != 1)
      refuse("The fill character must be exactly one character long");
    // Python puts the odd blank of a centred text left if the width is odd, too.
    const int64_t left = name_ == "ljust"   ? 0
                         : name_ == "rjust" ? room
                                            : room / 2 + (room & width & 1);
    std::string out;
    for (int64_t i = 0; i < left; ++i) {
      out += fill;
    }
    out += text_;
    for (int64_t i = left; i < room; ++i) {
      out += fill;
    }
    return made(std::move(out));
  }

  Value partitioned() {
    const Bound bound = bind({"sep"});
    const std::string& separator = bound.text(0);
    if (separator.empty()) refuse("empty separator");
    const bool from_right = name_ == "rpartition";
    if (from_right) {
      pay_product(separator.size());
    }
    const size_t at = from_right ? text_.rfind(separator) : find_text(text_, separator);
    if (at != kNotFound) {
      return made({text_.substr(0, at), separator, text_.substr(at + separator.size())},
                  List::Kind::tuple);
    }
    return made(from_right ? std::vector<std::string>{"", "", text_}
                           : std::vector<std::string>{text_, "", ""},
                List::Kind::tuple);
  }

  Budget* budget_;
  const Value& self_;
  const std::string& text_;
  const std::string name_;
  const Arguments& arguments_;
};

Value call_list(Budget* budget, const Method& method, const Arguments& arguments) {
  const std::vector<Value>& items = method.self.items();
  if (method.name == "copy") {
    Bound("copy()", arguments, {});
    return method.self;
  }
  const Bound bound(method.name + "()", arguments, {"value"});
  const auto same = [&](const Value& item) { return equal(budget, item, bound.at(0)); };
  if (method.name == "count") {
    return Value::integer(std::count_if(items.begin(), items.end(), same));
  }
  const auto found = std::find_if(items.begin(), items.end(), same);
  if (found == items.end()) {
    refuse("{} is not in {}", to_repr(budget, bound.at(0)), type_name(method.self));
  }
  return Value::integer(found - items.begin());
}

Value call_dict(Budget* budget, const Method& method, const Arguments& arguments) {
  const Dict& dict = method.self.as_dict();
  if (method.name == "get") {
    if (!arguments.named.empty()) refuse("dict.get() takes no keyword arguments");
    const Bound bound("get()", arguments, {"key", "default"});
    std::string key;
    if (!hash_key(budget, bound.at(0), &key)) {
      refuse("unhashable type: '{}'", type_name(bound.at(0)));
    }
    if (const Value* found = dict.find(budget, bound.at(0))) return *found;
    return bound.find(1) != nullptr ? *bound.find(1) : Value::none();
  }
  Bound(method.name + "()", arguments, {});
  if (method.name == "copy") return method.self;
  budget->bytes(std::ssize(dict.items) * static_cast<int64_t>(2 * sizeof(Value)));
  std::vector<Value> out;
  const bool keys = method.name == "keys", values = method.name == "values";
  for (const auto& [key, value] : dict.items) {
    out.push_back(keys ? key : values ? value : Value::list({key, value}, List::Kind::tuple));
  }
  return Value::list(std::move(out), keys     ? List::Kind::keys
                                     : values ? List::Kind::values
                                              : List::Kind::items);
}

}  // namespace

Value call_method(Budget* budget, const Method& method, const Arguments& arguments) {
  switch (method.self.type()) {
    case Value::Type::text:
      return TextCall(budget, method, arguments).run();
    case Value::Type::dict:
      return call_dict(budget, method, arguments);
    case Value::Type::list:
      return call_list(budget, method, arguments);
    default:
      refuse("the method {}.{} is not supported", type_name(method.self), method.name);
  }
}

}  // namespace hocket::data::jinja
