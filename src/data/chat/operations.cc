// SPDX-License-Identifier: Apache-2.0
#include "data/chat/operations.h"

#include <algorithm>

#include "data/chat/python_text.h"

namespace hocket::data::jinja {
namespace {

using Type = Value::Type;

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

bool is_sliceable(const Value& value) {
  return value.is_text() || (value.is_list() && value.as_list().kind <= List::Kind::range);
}

bool has(const std::vector<std::string_view>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value no_attribute(const Value& object, const std::string& name) {
  return Value::undefined(
      fmt::format("'{}' has no attribute {}", type_in_message(object), repr_of_text(name)));
}

// Finds an element. Returns false for an index out of range, and for a container without the key.
bool find_element(Budget* budget, const Value& object, const Value& key, Value* out) {
  if (object.is_dict()) {
    const Value* found = object.as_dict().find(budget, key);
    if (found != nullptr) {
      *out = *found;
    }
    return found != nullptr;
  }
  if (!is_sliceable(object) || !key.is_integral()) return false;
  int64_t index = key.as_int();
  const int64_t size = *length_of(object);
  index += index < 0 ? size : 0;
  if (index < 0 || index >= size) return false;
  if (object.is_list()) {
    *out = object.items()[static_cast<size_t>(index)];
    return true;
  }
  const std::string& text = object.as_text();
  budget->steps(static_cast<int64_t>(text.size() / 64));
  const size_t begin = byte_of_character(text, index);
  size_t end = begin;
  next_code_point(text, &end);
  *out = Value::text(text.substr(begin, end - begin), object.markup());
  return true;
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
  Value attribute;
  if (find_element(budget, object, key, &attribute)) return attribute;
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
  if (object.is_dict()) refuse("unhashable type: 'slice'");
  if (!is_sliceable(object)) refuse("'{}' object is not subscriptable", type_name(object));
  const auto bound = [](const Value* value) -> std::optional<int64_t> {
    if (value == nullptr || value->is_none()) return std::nullopt;
    if (!value->is_integral()) {
      refuse("slice indices must be integers or None or have an __index__ method");
    }
    return value->as_int();
  };
  const int64_t size = *length_of(object);
  // A step beyond the length is like any other, and cannot overflow an index.
  const int64_t by = std::clamp(bound(step).value_or(1), -size - 1, size + 1);
  if (by == 0) refuse("slice step cannot be zero");
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
  if (!is_iterable(value)) refuse("'{}' object is not iterable", type_name(value));
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

bool contains(Budget* budget, const Value& container, const Value& item) {
  budget->steps();
  if (container.is_text()) {
    if (!item.is_text()) {
      require_defined(item);
      refuse("'in <string>' requires string as left operand, not {}", type_name(item));
    }
    budget->steps(static_cast<int64_t>(container.as_text().size() / 64));
    return find_text(container.as_text(), item.as_text()) != std::string_view::npos;
  }
  if (container.is_dict() || container.is_kind(List::Kind::keys)) {
    std::string key;
    if (!hash_key(budget, item, &key)) refuse("unhashable type: '{}'", type_name(item));
  }
  if (container.is_dict()) return container.as_dict().find(budget, item) != nullptr;
  if (!is_iterable(container))
    refuse("argument of type '{}' is not iterable", type_name(container));
  const Next next = iterate(budget, container);
  for (Value element; next(&element);) {
    if (equal(budget, element, item)) return true;
  }
  return false;
}

Value call_value(Budget* budget, const Value& callee, const Arguments& arguments) {
  budget->steps();
  require_defined(callee);
  if (callee.is(Type::method)) return call_method(budget, callee.as_method(), arguments);
  if (callee.is(Type::object) && callee.as_object()->callable()) {
    return callee.as_object()->call(arguments);
  }
  refuse("'{}' object is not callable", type_name(callee));
}

Bound::Bound(std::string_view function, const Arguments& arguments,
             std::initializer_list<std::string_view> parameters)
    : function_(function), parameters_(parameters), values_(parameters.size(), nullptr) {
  if (arguments.positional.size() > parameters_.size()) {
    refuse("{} takes at most {} arguments ({} given)", function_, parameters_.size(),
           arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(parameters_.begin(), parameters_.end(), name);
    if (found == parameters_.end()) {
      refuse("{} got an unexpected keyword argument '{}'", function_, name);
    }
    const auto place = static_cast<size_t>(found - parameters_.begin());
    if (values_[place] != nullptr) refuse("{} got two values for '{}'", function_, name);
    values_[place] = &value;
  }
}

const Value& Bound::at(size_t i) const {
  if (values_[i] == nullptr) refuse("{} misses the argument '{}'", function_, parameters_[i]);
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
    refuse("{} expects a str for '{}', not {}", function_, parameters_[i], type_name(value));
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
    refuse("'{}' object cannot be interpreted as an integer", type_name(value));
  }
  return value.as_int();
}

}  // namespace hocket::data::jinja
