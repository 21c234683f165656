// SPDX-License-Identifier: Apache-2.0
#include "data/chat/value.h"

#include <algorithm>
#include <cmath>

namespace hocket::data::jinja {
namespace {

constexpr size_t kSmallDict = 8;  // below it a scan is as fast as an index

void require_shallow(int depth) {
  if (depth > kMaxValueDepth) refuse("nests values deeper than {} levels", kMaxValueDepth);
}

bool same_text(const Value& key, std::string_view text) {
  return key.is_text() && key.as_text() == text;
}

}  // namespace

Value Value::list(std::vector<Value> items, List::Kind kind) {
  auto list = std::make_shared<List>();
  list->kind = kind;
  for (const Value& item : items) {
    list->depth = std::max(list->depth, item.depth() + 1);
  }
  require_shallow(list->depth);
  list->items = std::move(items);
  return Value(Data(std::shared_ptr<const List>(std::move(list))));
}

Value Value::dict(Dict dict) {
  for (const auto& [key, value] : dict.items) {
    dict.depth = std::max({dict.depth, key.depth() + 1, value.depth() + 1});
  }
  require_shallow(dict.depth);
  return Value(Data(std::shared_ptr<const Dict>(std::make_shared<Dict>(std::move(dict)))));
}

Value Value::iterator(std::function<bool(Value*)> next, int depth, const char* type) {
  require_shallow(depth + 1);
  return Value(Data(std::make_shared<Iterator>(Iterator{std::move(next), depth + 1, type})));
}

Value Value::method(Value self, std::string name) {
  const int depth = self.depth() + 1;
  require_shallow(depth);
  return Value(Data(std::shared_ptr<const Method>(
      std::make_shared<Method>(Method{std::move(self), std::move(name), depth}))));
}

std::string Value::why_undefined() const {
  const auto& why = std::get<Undefined>(data_).why;
  return why != nullptr ? *why : "a value is undefined";
}

int Value::depth() const {
  switch (type()) {
    case Type::list:
      return as_list().depth;
    case Type::dict:
      return as_dict().depth;
    case Type::iterator:
      return as_iterator().depth;
    case Type::method:
      return as_method().depth;
    default:
      return 0;
  }
}

bool Value::same(const Value& other) const {
  if (type() != other.type()) return false;
  switch (type()) {
    case Type::undefined:
    case Type::none:
      return true;
    case Type::boolean:
      return as_bool() == other.as_bool();
    case Type::integer:
      return as_int() == other.as_int();
    case Type::real:
      return as_real() == other.as_real();
    case Type::text:
      return as_text() == other.as_text() && markup() == other.markup();
    case Type::list:
      return &as_list() == &other.as_list();
    case Type::dict:
      return &as_dict() == &other.as_dict();
    case Type::iterator:
      return &as_iterator() == &other.as_iterator();
    case Type::method:
      return &as_method() == &other.as_method();
    case Type::object:
      return as_object() == other.as_object();
  }
  return false;
}

void Dict::set(Budget* budget, const Value& key, Value value) {
  std::string hash;
  if (!hash_key(budget, key, &hash)) refuse("unhashable type: '{}'", type_name(key));
  if (const Value* there = find(budget, key)) {
    const_cast<Value&>(*there) = std::move(value);
    return;
  }
  budget->bytes(2 * static_cast<int64_t>(sizeof(Value)));
  items.emplace_back(key, std::move(value));
  if (items.size() < kSmallDict) return;
  if (places.empty()) {
    for (size_t i = 0; i + 1 < items.size(); ++i) {
      std::string earlier;
      hash_key(budget, items[i].first, &earlier);
      places.emplace(std::move(earlier), i);
    }
  }
  places.emplace(std::move(hash), items.size() - 1);
}

const Value* Dict::find(Budget* budget, const Value& key) const {
  if (key.is_text()) return find(key.as_text());
  std::string hash;
  if (!hash_key(budget, key, &hash)) return nullptr;
  if (!places.empty()) {
    const auto found = places.find(hash);
    return found == places.end() ? nullptr : &items[found->second].second;
  }
  for (const auto& [own, value] : items) {
    if (equal(budget, own, key)) return &value;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  if (!places.empty()) {
    const auto found = places.find("s" + std::string(key));
    return found == places.end() ? nullptr : &items[found->second].second;
  }
  for (const auto& [own, value] : items) {
    if (same_text(own, key)) return &value;
  }
  return nullptr;
}

bool truthy(const Value& value) {
  switch (value.type()) {
    case Value::Type::undefined:
    case Value::Type::none:
      return false;
    case Value::Type::boolean:
      return value.as_bool();
    case Value::Type::integer:
      return value.as_int() != 0;
    case Value::Type::real:
      return value.as_real() != 0;
    case Value::Type::text:
      return !value.as_text().empty();
    case Value::Type::list:
      return !value.items().empty();
    case Value::Type::dict:
      return !value.as_dict().items.empty();
    default:
      return true;
  }
}

std::string type_name(const Value& value) {
  switch (value.type()) {
    case Value::Type::undefined:
      return "Undefined";
    case Value::Type::none:
      return "NoneType";
    case Value::Type::boolean:
      return "bool";
    case Value::Type::integer:
      return "int";
    case Value::Type::real:
      return "float";
    case Value::Type::text:
      return value.markup() ? "Markup" : "str";
    case Value::Type::dict:
      return "dict";
    case Value::Type::iterator:
      return value.as_iterator().type;
    case Value::Type::method:
      return "builtin_function_or_method";
    case Value::Type::object:
      return value.as_object()->type();
    case Value::Type::list:
      break;
  }
  switch (value.as_list().kind) {
    case List::Kind::list:
      return "list";
    case List::Kind::tuple:
      return "tuple";
    case List::Kind::range:
      return "range";
    case List::Kind::items:
      return "dict_items";
    case List::Kind::keys:
      return "dict_keys";
    case List::Kind::values:
      return "dict_values";
  }
  return "object";
}

std::string type_in_message(const Value& value) {
  return value.is_none() ? "None" : type_name(value) + " object";
}

void require_defined(const Value& value) {
  if (value.is_undefined()) throw Fault{value.why_undefined()};
}

bool hash_key(Budget* budget, const Value& value, std::string* key) {
  budget->steps();
  switch (value.type()) {
    case Value::Type::undefined:
      *key += 'u';
      return true;
    case Value::Type::none:
      *key += 'n';
      return true;
    case Value::Type::boolean:
    case Value::Type::integer:
      *key += fmt::format("i{}", value.as_int());
      return true;
    case Value::Type::real: {
      const double real = value.as_real();
      const bool whole = real == std::floor(real) && std::fabs(real) < 0x1p62;
      *key += whole ? fmt::format("i{}", static_cast<int64_t>(real)) : fmt::format("f{}", real);
      return true;
    }
    case Value::Type::text:
      *key += 's' + value.as_text();
      return true;
    case Value::Type::list:
      if (value.as_list().kind != List::Kind::tuple) return false;
      for (const Value& item : value.items()) {
        std::string part;
        if (!hash_key(budget, item, &part)) return false;
        budget->bytes(static_cast<int64_t>(part.size()));
        *key += fmt::format("t{}:{}", part.size(), part);
      }
      *key += ')';
      return true;
    case Value::Type::object:
      *key += fmt::format("o{}", static_cast<const void*>(value.as_object()));
      return true;
    default:
      return false;
  }
}

bool equal(Budget* budget, const Value& a, const Value& b) {
  budget->steps();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_real() == b.as_real();
  }
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Value::Type::text:
      budget->steps(static_cast<int64_t>(a.as_text().size() / 256));
      return a.as_text() == b.as_text();
    case Value::Type::list:
      if (a.as_list().kind != b.as_list().kind) return false;
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        [&](const Value& x, const Value& y) { return equal(budget, x, y); });
    case Value::Type::dict:
      if (a.as_dict().items.size() != b.as_dict().items.size()) return false;
      for (const auto& [key, value] : a.as_dict().items) {
        const Value* other = b.as_dict().find(budget, key);
        if (other == nullptr || !equal(budget, value, *other)) return false;
      }
      return true;
    case Value::Type::method:
      return a.as_method().name == b.as_method().name &&
             a.as_method().self.same(b.as_method().self);
    default:
      return a.same(b);
  }
}

int compare(Budget* budget, const Value& a, const Value& b, const char* operation) {
  budget->steps();
  require_defined(a);
  require_defined(b);
  if (a.is_integral() && b.is_integral()) {
    return a.as_int() < b.as_int() ? -1 : static_cast<int>(a.as_int() > b.as_int());
  }
  if (a.is_number() && b.is_number()) {
    const double x = a.as_real(), y = b.as_real();
    if (std::isnan(x) || std::isnan(y)) return kUnordered;
    return x < y ? -1 : static_cast<int>(x > y);
  }
  if (a.is_text() && b.is_text()) {
    budget->steps(static_cast<int64_t>(a.as_text().size() / 256));
    const int order = a.as_text().compare(b.as_text());
    return order < 0 ? -1 : static_cast<int>(order > 0);
  }
  const bool sequences = a.is_kind(List::Kind::list) || a.is_kind(List::Kind::tuple);
  if (!sequences || !b.is_list() || a.as_list().kind != b.as_list().kind) {
    refuse("'{}' not supported between instances of '{}' and '{}'", operation, type_name(a),
           type_name(b));
  }
  for (size_t i = 0; i < std::min(a.items().size(), b.items().size()); ++i) {
    if (!equal(budget, a.items()[i], b.items()[i])) {
      return compare(budget, a.items()[i], b.items()[i], operation);
    }
  }
  return static_cast<int>(a.items().size() > b.items().size()) -
         static_cast<int>(a.items().size() < b.items().size());
}

}  // namespace hocket::data::jinja
