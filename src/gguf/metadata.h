// SPDX-License-Identifier: Apache-2.0
// Metadata of a GGUF file: typed values by key, with errors that name the file and the key.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace hocket::gguf {

/// Types of values. The numbers are the format's.
enum class ValueType : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};
const char* to_string(ValueType type);
/// Returns the bytes of a number in a file; 0 for strings and arrays.
int64_t size_of(ValueType type);

/// A value. Integers and booleans are held as int64_t, a u64 of 2^63 or more by its bits.
struct Value {
  ValueType type = ValueType::u32;
  ValueType element = ValueType::u32;  ///< of an array
  std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
               std::vector<std::string>, std::vector<Value>>
      data;

  static Value of_u32(int64_t number);
  static Value of_f32(double number);
  static Value of_bool(bool flag);
  static Value of_string(std::string text);
  static Value of_strings(std::vector<std::string> list);
  static Value of_i32s(std::vector<int64_t> list);
  static Value of_f32s(std::vector<double> list);
  bool operator==(const Value&) const = default;
};

/// Keys and values, in order of the file. Getters throw Error for an absent key (without a
/// fallback) and for a value of another kind.
class Metadata {
 public:
  /// `where` names the file in errors.
  explicit Metadata(std::string where = "gguf") : where_(std::move(where)) {}

  /// Appends a key. Throws Error if it is there already.
  void add(std::string key, Value value);

  const std::vector<std::pair<std::string, Value>>& entries() const { return entries_; }
  const std::string& where() const { return where_; }
  const Value* find(std::string_view key) const;  ///< null when absent
  bool has(std::string_view key) const { return find(key) != nullptr; }

  /// Integers of every width. An array counts as one integer where all its elements are equal, as
  /// for sizes that a file gives per layer.
  int64_t integer(std::string_view key) const;
  int64_t integer(std::string_view key, int64_t otherwise) const;
  double number(std::string_view key) const;  ///< of any numeric type
  double number(std::string_view key, double otherwise) const;
  bool boolean(std::string_view key, bool otherwise) const;
  const std::string& string(std::string_view key) const;
  std::string string(std::string_view key, const std::string& otherwise) const;
  const std::vector<std::string>& strings(std::string_view key) const;
  const std::vector<int64_t>& integers(std::string_view key) const;
  /// An array of any numeric type.
  std::vector<double> numbers(std::string_view key) const;

  /// Throws `[file] key 'K' <what>`.
  [[noreturn]] void fail(std::string_view key, const std::string& what) const;

 private:
  const Value& at(std::string_view key) const;
  template <class T>
  const T& as(std::string_view key, const char* expected) const;

  std::string where_;
  std::vector<std::pair<std::string, Value>> entries_;
  std::map<std::string, size_t, std::less<>> by_key_;
};

}  // namespace hocket::gguf
