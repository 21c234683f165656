// SPDX-License-Identifier: Apache-2.0
#include "data/chat/operations.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "data/chat/format.h"
#include "data/chat/python_text.h"

namespace hocket::data::jinja {
namespace {

using Op = Expr::Op;
using Type = Value::Type;

constexpr double kIntegerRange = 0x1p63;

struct Attributes {
  std::vector<std::string_view> methods;   ///< that are implemented
  std::vector<std::string_view> mutators;  ///< refused by the sandbox
  std::vector<std::string_view> others;    ///< Python has them, templates have no use for them
};

const Attributes* attributes_of(const Value& value) {
  static const Attributes kText = {
      {"strip",     "lstrip",   "rstrip",  "split",   "rsplit",     "splitlines",   "startswith",
       "endswith",  "upper",    "lower",   "title",   "capitalize", "replace",      "join",
       "find",      "rfind",    "index",   "rindex",  "count",      "isdigit",      "isalpha",
       "isalnum",   "isspace",  "isupper", "islower", "format",     "removeprefix", "removesuffix",
       "zfill",     "center",   "ljust",   "rjust",   "partition",  "rpartition",   "swapcase",
       "isnumeric", "isdecimal"},
      {},
      {"casefold", "encode", "expandtabs", "format_map", "isascii", "isidentifier", "isprintable",
       "istitle", "maketrans", "translate", "unescape", "striptags"}};
  static const Attributes kList = {
      {"count", "index", "copy"},
      {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"},
      {}};
  static const Attributes kTuple = {{"count", "index"}, {}, {}};
  static const Attributes kView = {{}, {}, {"isdisjoint", "mapping", "start", "stop", "step"}};
  static const Attributes kDict = {{"get", "items", "keys", "values", "copy"},
                                   {"clear", "pop", "popitem", "setdefault", "update"},
                                   {"fromkeys"}};
  static const Attributes kNumber = {
      {},
      {},
      {"real", "imag", "numerator", "denominator", "conjugate", "bit_length", "bit_count",
       "to_bytes", "from_bytes", "as_integer_ratio", "is_integer", "hex", "fromhex"}};
  static const Attributes kGenerator = {{}, {}, {"send", "throw", "close"}};
  switch (value.type()) {
    case Type::text:
      return &kText;
    case Type::dict:
      return &kDict;
    case Type::boolean:
    case Type::integer:
    case Type::real:
      return &kNumber;
    case Type::iterator:
      return &kGenerator;
    case Type::list:
      if (value.as_list().kind == List::Kind::list) return &kList;
      return value.as_list().kind == List::Kind::tuple ? &kTuple : &kView;
    default:
      return nullptr;
  }
}

bool has(const std::vector<std::string_view>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value no_attribute(const Value& object, const std::string& name) {
  return Value::undefined(
      fmt::format("'{}' has no attribute {}", type_in_message(object), repr_of_text(name)));
}

[[noreturn]] void no_operation(std::string_view op, const Value& a, const Value& b) {
  fault("unsupported operand type(s) for {}: '{}' and '{}'", op, type_name(a), type_name(b));
}

[[noreturn]] void too_large() { fault("an integer beyond 64 bits"); }

// The element, or null: out of range, or no container with such a key.
std::optional<Value> element(Budget* budget, const Value& object, const Value& key) {
  if (object.is_dict()) {
    const Value* found = object.as_dict().find(budget, key);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  const bool sequence =
      object.is_text() || (object.is_list() && object.as_list().kind <= List::Kind::range);
  if (!sequence || !key.is_integral()) return std::nullopt;
  int64_t index = key.as_int();
  if (object.is_list()) {
    const auto size = std::ssize(object.items());
    index += index < 0 ? size : 0;
    if (index < 0 || index >= size) return std::nullopt;
    return object.items()[static_cast<size_t>(index)];
  }
  const std::string& text = object.as_text();
  budget->steps(static_cast<int64_t>(text.size() / 64));
  const int64_t size = count_characters(text);
  index += index < 0 ? size : 0;
  if (index < 0 || index >= size) return std::nullopt;
  const size_t begin = byte_of_character(text, index);
  size_t end = begin;
  next_code_point(text, &end);
  return Value::text(text.substr(begin, end - begin), object.markup());
}

Value with_markup(const Value& a, const Value& b) {
  const bool markup = a.markup() || b.markup();
  const auto part = [&](const Value& v) {
    return markup && !v.markup() ? escape_html(v.as_text()) : v.as_text();
  };
  return Value::text(part(a) + part(b), markup);
}

Value integers(Op op, int64_t a, int64_t b) {
  int64_t out = 0;
  switch (op) {
    case Op::add:
      if (__builtin_add_overflow(a, b, &out)) too_large();
      return Value::integer(out);
    case Op::sub:
      if (__builtin_sub_overflow(a, b, &out)) too_large();
      return Value::integer(out);
    case Op::mul:
      if (__builtin_mul_overflow(a, b, &out)) too_large();
      return Value::integer(out);
    case Op::div:
      if (b == 0) fault("division by zero");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case Op::floor_div:
    case Op::mod: {
      if (b == 0) fault("integer division or modulo by zero");
      if (b == -1) return op == Op::mod ? Value::integer(0) : integers(Op::sub, 0, a);
      const bool down = (a % b != 0) && ((a < 0) != (b < 0));
      return Value::integer(op == Op::mod ? a % b + (down ? b : 0) : a / b - (down ? 1 : 0));
    }
    default:
      break;
  }
  if (b < 0) {
    if (a == 0) fault("0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
  out = 1;
  for (int64_t base = a; b > 0; b >>= 1) {
    if ((b & 1) != 0 && __builtin_mul_overflow(out, base, &out)) too_large();
    if (b > 1 && __builtin_mul_overflow(base, base, &base)) too_large();
  }
  return Value::integer(out);
}

Value reals(Op op, double a, double b) {
  double out = 0;
  switch (op) {
    case Op::add:
      return Value::real(a + b);
    case Op::sub:
      return Value::real(a - b);
    case Op::mul:
      return Value::real(a * b);
    case Op::div:
      if (b == 0) fault("float division by zero");
      return Value::real(a / b);
    case Op::floor_div:
    case Op::mod: {
      if (b == 0) fault("float floor division by zero");
      double rest = std::fmod(a, b);
      if (rest != 0 && (rest < 0) != (b < 0)) {
        rest += b;
      }
      if (rest == 0) {
        rest = std::copysign(0.0, b);
      }
      if (op == Op::mod) return Value::real(rest);
      const double quotient = (a - rest) / b;
      const double floor = std::floor(quotient);
      return Value::real(quotient == 0 ? std::copysign(0.0, a / b)
                                       : floor + (quotient - floor > 0.5 ? 1 : 0));
    }
    default:
      break;
  }
  if (a == 0 && b < 0) fault("0.0 cannot be raised to a negative power");
  out = std::pow(a, b);
  if (std::isnan(out) && !std::isnan(a) && !std::isnan(b))
    fault("a power that is a complex number");
  if (std::isinf(out) && !std::isinf(a) && !std::isinf(b)) fault("a power out of range");
  return Value::real(out);
}

Value repeated(Budget* budget, const Value& sequence, int64_t count) {
  count = std::max<int64_t>(count, 0);
  const bool text = sequence.is_text();
  const auto size =
      static_cast<int64_t>(text ? sequence.as_text().size() : sequence.items().size());
  int64_t total = 0;
  if (__builtin_mul_overflow(size, count, &total))
    fault("makes more text than a chat template may");
  budget->bytes(text || total > (int64_t{1} << 40) ? total
                                                   : total * static_cast<int64_t>(sizeof(Value)));
  if (text) {
    std::string out;
    out.reserve(static_cast<size_t>(total));
    for (int64_t i = 0; i < count && size > 0; ++i) {
      out += sequence.as_text();
    }
    return Value::text(std::move(out), sequence.markup());
  }
  std::vector<Value> out;
  for (int64_t i = 0; i < count && size > 0; ++i) {
    out.insert(out.end(), sequence.items().begin(), sequence.items().end());
  }
  return Value::list(std::move(out), sequence.as_list().kind);
}

bool is_plain_list(const Value& value) {
  return value.is_list() && value.as_list().kind <= List::Kind::tuple;
}

const char* sign_of(Op op) {
  switch (op) {
    case Op::add:
      return "+";
    case Op::sub:
      return "-";
    case Op::mul:
      return "*";
    case Op::div:
      return "/";
    case Op::floor_div:
      return "//";
    case Op::mod:
      return "%";
    default:
      return "** or pow()";
  }
}

Value escaped_arguments(const Value& value) {
  const auto escaped = [](const Value& v) {
    return v.is_text() && !v.markup() ? Value::text(escape_html(v.as_text()), true) : v;
  };
  if (!value.is_kind(List::Kind::tuple)) return escaped(value);
  std::vector<Value> items;
  std::transform(value.items().begin(), value.items().end(), std::back_inserter(items), escaped);
  return Value::list(std::move(items), List::Kind::tuple);
}

}  // namespace

bool find_attribute(const Value& object, const std::string& name, Value* out) {
  if (object.is(Type::object)) return object.as_object()->attribute(name, out);
  const Attributes* attributes = attributes_of(object);
  if (attributes == nullptr) return false;
  if (has(attributes->methods, name)) {
    *out = Value::method(object, name);
    return true;
  }
  if (has(attributes->mutators, name)) {
    *out = Value::undefined(fmt::format("access to attribute {} of '{}' object is unsafe",
                                        repr_of_text(name), type_name(object)));
    return true;
  }
  if (has(attributes->others, name)) {
    *out = Value::undefined(
        fmt::format("the attribute '{}' of '{}' is not supported", name, type_name(object)));
    throw Fault{out->why_undefined()};
  }
  return false;
}

Value get_item(Budget* budget, const Value& object, const Value& key) {
  require_defined(object);
  if (auto found = element(budget, object, key)) return *std::move(found);
  Value attribute;
  if (key.is_text()) {
    if (find_attribute(object, key.as_text(), &attribute)) return attribute;
    return no_attribute(object, key.as_text());
  }
  std::string shown = "...";
  if (!key.is(Type::iterator) && !key.is(Type::method) && !key.is_kind(List::Kind::range)) {
    shown = to_repr(budget, key);
  }
  return Value::undefined(fmt::format("{} has no element {}", type_in_message(object), shown));
}

Value get_attribute(Budget* budget, const Value& object, const std::string& name) {
  require_defined(object);
  Value attribute;
  if (find_attribute(object, name, &attribute)) return attribute;
  if (object.is_dict()) {
    if (const Value* found = object.as_dict().find(name)) return *found;
  }
  budget->steps();
  return no_attribute(object, name);
}

Value get_slice(Budget* budget, const Value& object, const Value* start, const Value* stop,
                const Value* step) {
  require_defined(object);
  const bool sequence =
      object.is_text() || (object.is_list() && object.as_list().kind <= List::Kind::range);
  if (object.is_dict()) fault("unhashable type: 'slice'");
  if (!sequence) fault("'{}' object is not subscriptable", type_name(object));
  const auto bound = [](const Value* value) -> std::optional<int64_t> {
    if (value == nullptr || value->is_none()) return std::nullopt;
    if (!value->is_integral()) {
      fault("slice indices must be integers or None or have an __index__ method");
    }
    return value->as_int();
  };
  const int64_t size = *length_of(object);
  // A step beyond the length is like any other, and cannot overflow an index.
  const int64_t by = std::clamp(bound(step).value_or(1), -size - 1, size + 1);
  if (by == 0) fault("slice step cannot be zero");
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const auto place = [&](std::optional<int64_t> given, int64_t otherwise) {
    if (!given) return otherwise;
    const int64_t at = *given < 0 ? *given + size : *given;
    return std::clamp(at, low, high);
  };
  const int64_t first = place(bound(start), by > 0 ? low : high);
  const int64_t last = place(bound(stop), by > 0 ? high : low);
  if (object.is_text()) {
    const std::string& text = object.as_text();
    budget->bytes(static_cast<int64_t>(text.size()));
    if (by == 1) {
      const size_t begin = byte_of_character(text, first);
      const size_t end =
          last > first
              ? begin + byte_of_character(std::string_view(text).substr(begin), last - first)
              : begin;
      return Value::text(text.substr(begin, end - begin), object.markup());
    }
    std::vector<std::string_view> characters;
    budget->bytes(size * static_cast<int64_t>(sizeof(std::string_view)));
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      next_code_point(text, &at);
      characters.push_back(std::string_view(text).substr(begin, at - begin));
    }
    std::string out;
    for (int64_t i = first; by > 0 ? i < last : i > last; i += by) {
      out += characters[static_cast<size_t>(i)];
    }
    return Value::text(std::move(out), object.markup());
  }
  std::vector<Value> out;
  for (int64_t i = first; by > 0 ? i < last : i > last; i += by) {
    out.push_back(object.items()[static_cast<size_t>(i)]);
  }
  budget->bytes(std::ssize(out) * static_cast<int64_t>(sizeof(Value)));
  return Value::list(std::move(out), object.as_list().kind);
}

bool is_iterable(const Value& value) {
  switch (value.type()) {
    case Type::undefined:
    case Type::text:
    case Type::list:
    case Type::dict:
    case Type::iterator:
      return true;
    default:
      return false;
  }
}

Next iterate(Budget* budget, const Value& value) {
  if (value.is(Type::iterator)) {
    return [budget, value](Value* out) {
      budget->steps();
      return value.as_iterator().next(out);
    };
  }
  if (!is_iterable(value)) fault("'{}' object is not iterable", type_name(value));
  size_t at = 0;
  return [budget, value, at](Value* out) mutable {
    budget->steps();
    switch (value.type()) {
      case Type::text: {
        const std::string& text = value.as_text();
        if (at >= text.size()) return false;
        const size_t begin = at;
        next_code_point(text, &at);
        *out = Value::text(text.substr(begin, at - begin));
        return true;
      }
      case Type::list:
        if (at >= value.items().size()) return false;
        *out = value.items()[at++];
        return true;
      case Type::dict:
        if (at >= value.as_dict().items.size()) return false;
        *out = value.as_dict().items[at++].first;
        return true;
      default:
        return false;
    }
  };
}

std::vector<Value> elements_of(Budget* budget, const Value& value) {
  const Next next = iterate(budget, value);
  std::vector<Value> out;
  for (Value element; next(&element);) {
    budget->bytes(static_cast<int64_t>(sizeof(Value)));
    out.push_back(std::move(element));
  }
  return out;
}

std::optional<int64_t> length_of(const Value& value) {
  switch (value.type()) {
    case Type::undefined:
      return 0;
    case Type::text:
      return count_characters(value.as_text());
    case Type::list:
      return std::ssize(value.items());
    case Type::dict:
      return std::ssize(value.as_dict().items);
    default:
      return std::nullopt;
  }
}

Value arithmetic(Budget* budget, Op op, const Value& a, const Value& b) {
  budget->steps();
  if (op == Op::mod && a.is_text()) {
    std::string out = percent_format(budget, a.as_text(), a.markup() ? escaped_arguments(b) : b);
    return Value::text(std::move(out), a.markup());
  }
  require_defined(a);
  require_defined(b);
  if (a.is_integral() && b.is_integral()) return integers(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return reals(op, a.as_real(), b.as_real());
  if (op == Op::add) {
    if (a.is_text() && b.is_text()) {
      budget->bytes(static_cast<int64_t>(a.as_text().size() + b.as_text().size()));
      return with_markup(a, b);
    }
    if (is_plain_list(a) && is_plain_list(b) && a.as_list().kind == b.as_list().kind) {
      const auto count = std::ssize(a.items()) + std::ssize(b.items());
      budget->bytes(count * static_cast<int64_t>(sizeof(Value)));
      std::vector<Value> out = a.items();
      out.insert(out.end(), b.items().begin(), b.items().end());
      return Value::list(std::move(out), a.as_list().kind);
    }
    if (a.is_text() || is_plain_list(a)) {
      fault("can only concatenate {0} (not \"{1}\") to {0}", type_name(a), type_name(b));
    }
  }
  if (op == Op::mul) {
    const bool left = a.is_text() || is_plain_list(a), right = b.is_text() || is_plain_list(b);
    if (left && b.is_integral()) return repeated(budget, a, b.as_int());
    if (right && a.is_integral()) return repeated(budget, b, a.as_int());
    if (left || right) {
      fault("can't multiply sequence by non-int of type '{}'", type_name(left ? b : a));
    }
  }
  no_operation(sign_of(op), a, b);
}

Value negate(const Value& value) {
  require_defined(value);
  if (value.is_integral()) return integers(Op::sub, 0, value.as_int());
  if (value.is(Type::real)) return Value::real(-value.as_real());
  fault("bad operand type for unary -: '{}'", type_name(value));
}

bool contains(Budget* budget, const Value& container, const Value& item) {
  budget->steps();
  if (container.is_text()) {
    if (!item.is_text()) {
      require_defined(item);
      fault("'in <string>' requires string as left operand, not {}", type_name(item));
    }
    budget->steps(static_cast<int64_t>(container.as_text().size() / 64));
    return find_text(container.as_text(), item.as_text()) != std::string_view::npos;
  }
  if (container.is_dict() || container.is_kind(List::Kind::keys)) {
    std::string key;
    if (!hash_key(budget, item, &key)) fault("unhashable type: '{}'", type_name(item));
  }
  if (container.is_dict()) return container.as_dict().find(budget, item) != nullptr;
  if (!is_iterable(container)) fault("argument of type '{}' is not iterable", type_name(container));
  const Next next = iterate(budget, container);
  for (Value element; next(&element);) {
    if (equal(budget, element, item)) return true;
  }
  return false;
}

bool compares(Budget* budget, std::string_view op, const Value& a, const Value& b) {
  if (op == "==") return equal(budget, a, b);
  if (op == "!=") return !equal(budget, a, b);
  const int order = compare(budget, a, b, std::string(op).c_str());
  if (order == kUnordered) return false;
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  return op == ">" ? order > 0 : order >= 0;
}

Value call_value(Budget* budget, const Value& callee, const Arguments& arguments) {
  budget->steps();
  require_defined(callee);
  if (callee.is(Type::method)) return call_method(budget, callee.as_method(), arguments);
  if (callee.is(Type::object) && callee.as_object()->callable()) {
    return callee.as_object()->call(arguments);
  }
  fault("'{}' object is not callable", type_name(callee));
}

Bound::Bound(std::string_view function, const Arguments& arguments,
             std::initializer_list<std::string_view> parameters)
    : function_(function), parameters_(parameters), values_(parameters.size(), nullptr) {
  if (arguments.positional.size() > parameters_.size()) {
    fault("{} takes at most {} arguments ({} given)", function_, parameters_.size(),
          arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(parameters_.begin(), parameters_.end(), name);
    if (found == parameters_.end()) {
      fault("{} got an unexpected keyword argument '{}'", function_, name);
    }
    const auto place = static_cast<size_t>(found - parameters_.begin());
    if (values_[place] != nullptr) fault("{} got two values for '{}'", function_, name);
    values_[place] = &value;
  }
}

const Value& Bound::at(size_t i) const {
  if (values_[i] == nullptr) fault("{} misses the argument '{}'", function_, parameters_[i]);
  return *values_[i];
}

bool Bound::flag(size_t i, bool otherwise) const {
  return values_[i] == nullptr ? otherwise : truthy(*values_[i]);
}

int64_t Bound::integer(size_t i, int64_t otherwise) const {
  return values_[i] == nullptr ? otherwise : index_of(*values_[i]);
}

const std::string& Bound::text(size_t i) const {
  const Value& value = at(i);
  require_defined(value);
  if (!value.is_text()) {
    fault("{} expects a str for '{}', not {}", function_, parameters_[i], type_name(value));
  }
  return value.as_text();
}

const std::string* Bound::optional_text(size_t i) const {
  if (values_[i] == nullptr || values_[i]->is_none()) return nullptr;
  return &text(i);
}

int64_t index_of(const Value& value) {
  require_defined(value);
  if (!value.is_integral()) {
    fault("'{}' object cannot be interpreted as an integer", type_name(value));
  }
  return value.as_int();
}

}  // namespace hocket::data::jinja
