// SPDX-License-Identifier: Apache-2.0
// Operations on values as Python and jinja2's sandbox do them: access, iteration, arithmetic,
// calls.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "data/chat/ast.h"
#include "data/chat/value.h"

namespace hocket::data::jinja {

/// `object[key]`: an element, else an attribute of that name, else undefined.
Value get_item(Budget* budget, const Value& object, const Value& key);
/// `object.name`: an attribute (of a dict: a method), else an element, else undefined.
Value get_attribute(Budget* budget, const Value& object, const std::string& name);
/// `object[start:stop:step]`; a null bound is None.
Value get_slice(Budget* budget, const Value& object, const Value* start, const Value* stop,
                const Value* step);
/// Finds an attribute. Returns false if the type has none of this name.
bool find_attribute(const Value& object, const std::string& name, Value* out);

using Next = std::function<bool(Value*)>;
/// Elements one by one. Throws Fault if the value cannot be iterated.
Next iterate(Budget* budget, const Value& value);
bool is_iterable(const Value& value);
std::vector<Value> elements_of(Budget* budget, const Value& value);
/// Python's len(), or none for a value without.
std::optional<int64_t> length_of(const Value& value);

/// `op` is add, sub, mul, div, floor_div, mod or pow.
Value arithmetic(Budget* budget, Expr::Op op, const Value& a, const Value& b);
Value negate(const Value& value);
/// `item in container`.
bool contains(Budget* budget, const Value& container, const Value& item);
/// ==, !=, <, <=, >, >=.
bool compares(Budget* budget, std::string_view op, const Value& a, const Value& b);

Value call_value(Budget* budget, const Value& callee, const Arguments& arguments);
/// Calls a method of str, list or dict.
Value call_method(Budget* budget, const Method& method, const Arguments& arguments);

/// Arguments by the names of a function's parameters.
class Bound {
 public:
  /// Throws Fault for too many arguments, unknown names, or one given twice.
  Bound(std::string_view function, const Arguments& arguments,
        std::initializer_list<std::string_view> parameters);
  /// Returns an argument; null: it was not given.
  const Value* find(size_t i) const { return values_[i]; }
  /// Throws Fault if not given.
  const Value& at(size_t i) const;
  bool flag(size_t i, bool otherwise) const;
  int64_t integer(size_t i, int64_t otherwise) const;
  /// Throws Fault unless it is a string.
  const std::string& text(size_t i) const;
  /// Returns a text; null: it was not given, or is None.
  const std::string* optional_text(size_t i) const;

 private:
  std::string function_;
  std::vector<std::string_view> parameters_;
  std::vector<const Value*> values_;
};

/// Integer of a value that Python takes as an index; Fault otherwise.
int64_t index_of(const Value& value);

}  // namespace hocket::data::jinja
