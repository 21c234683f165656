// SPDX-License-Identifier: Apache-2.0
#include "gguf/metadata.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace hocket::gguf {
namespace {

constexpr struct {
  const char* name;
  int64_t bytes;
} kValueTypes[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
                   {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},
                   {"u64", 8}, {"i64", 8}, {"f64", 8}};

bool is_integer(ValueType type) {
  return size_of(type) > 0 && type != ValueType::f32 && type != ValueType::f64 &&
         type != ValueType::boolean;
}

std::string described(const Value& value) {
  return value.type == ValueType::array ? fmt::format("an array of {}", to_string(value.element))
                                        : fmt::format("of type {}", to_string(value.type));
}

}  // namespace

const char* to_string(ValueType type) { return kValueTypes[static_cast<uint32_t>(type)].name; }
int64_t size_of(ValueType type) { return kValueTypes[static_cast<uint32_t>(type)].bytes; }

Value Value::of_u32(int64_t number) { return {ValueType::u32, {}, number}; }
Value Value::of_f32(double number) { return {ValueType::f32, {}, number}; }
Value Value::of_bool(bool flag) { return {ValueType::boolean, {}, int64_t{flag}}; }
Value Value::of_string(std::string text) { return {ValueType::string, {}, std::move(text)}; }
Value Value::of_strings(std::vector<std::string> list) {
  return {ValueType::array, ValueType::string, std::move(list)};
}
Value Value::of_i32s(std::vector<int64_t> list) {
  return {ValueType::array, ValueType::i32, std::move(list)};
}

Value Value::of_f32s(std::vector<double> list) {
  return {ValueType::array, ValueType::f32, std::move(list)};
}

void Metadata::add(std::string key, Value value) {
  if (!by_key_.emplace(key, entries_.size()).second) fail(key, "is given twice");
  entries_.emplace_back(std::move(key), std::move(value));
}

const Value* Metadata::find(std::string_view key) const {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? nullptr : &entries_[it->second].second;
}

const Value& Metadata::at(std::string_view key) const {
  if (const Value* value = find(key)) return *value;
  fail(key, "is missing");
}

template <class T>
const T& Metadata::as(std::string_view key, const char* expected) const {
  const Value& value = at(key);
  if (const T* data = std::get_if<T>(&value.data)) return *data;
  fail(key, fmt::format("is {}; expected {}", described(value), expected));
}

int64_t Metadata::integer(std::string_view key) const {
  constexpr const char* kExpected = "an integer";
  const Value& value = at(key);
  int64_t number = 0;
  ValueType type = value.type;
  if (type == ValueType::array) {
    const auto& list = as<std::vector<int64_t>>(key, kExpected);
    if (list.empty()) fail(key, "is an empty array; expected an integer");
    const auto other =
        std::find_if(list.begin(), list.end(), [&](int64_t each) { return each != list[0]; });
    if (other != list.end()) {
      fail(key, fmt::format("differs between layers, {} and {}, which is not supported; expected "
                            "one value for all",
                            list[0], *other));
    }
    number = list[0];
    type = value.element;
  } else {
    number = as<int64_t>(key, kExpected);
  }
  if (!is_integer(type)) fail(key, fmt::format("is {}; expected an integer", described(value)));
  if (type == ValueType::u64 && number < 0) {
    fail(key, fmt::format("is {}; expected less than 2^63", static_cast<uint64_t>(number)));
  }
  return number;
}

int64_t Metadata::integer(std::string_view key, int64_t otherwise) const {
  return has(key) ? integer(key) : otherwise;
}

double Metadata::number(std::string_view key) const {
  if (const auto* number = std::get_if<double>(&at(key).data)) return *number;
  return static_cast<double>(integer(key));
}

double Metadata::number(std::string_view key, double otherwise) const {
  return has(key) ? number(key) : otherwise;
}

bool Metadata::boolean(std::string_view key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const Value& value = at(key);
  if (value.type != ValueType::boolean) {
    fail(key, fmt::format("is {}; expected a bool", described(value)));
  }
  return std::get<int64_t>(value.data) != 0;
}

const std::string& Metadata::string(std::string_view key) const {
  return as<std::string>(key, "a string");
}

std::string Metadata::string(std::string_view key, const std::string& otherwise) const {
  return has(key) ? string(key) : otherwise;
}

const std::vector<std::string>& Metadata::strings(std::string_view key) const {
  return as<std::vector<std::string>>(key, "an array of strings");
}

const std::vector<int64_t>& Metadata::integers(std::string_view key) const {
  return as<std::vector<int64_t>>(key, "an array of integers");
}

std::vector<double> Metadata::numbers(std::string_view key) const {
  if (const auto* whole = std::get_if<std::vector<int64_t>>(&at(key).data)) {
    return {whole->begin(), whole->end()};
  }
  return as<std::vector<double>>(key, "an array of numbers");
}

void Metadata::fail(std::string_view key, const std::string& what) const {
  hocket::fail(where_, "key {} {}", quote(key), what);
}

}  // namespace hocket::gguf
