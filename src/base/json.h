// SPDX-License-Identifier: Apache-2.0
// JSON from files that others wrote: parsing with limits and with errors that give line and column,
// and typed access with errors that give the key's path. Include <nlohmann/json.hpp> in the .cc.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace hocket {

struct JsonLimits {
  int max_depth = 128;
  int64_t max_bytes = int64_t{256} << 20;
};

/// Parses a text, which `where` (a path) names in errors. Throws Error if it is malformed, invalid
/// UTF-8, too deep or too long. Throws it also for a key twice in one object, and for anything
/// after the value.
nlohmann::json parse_json(std::string_view text, const std::string& where,
                          const JsonLimits& limits = {});

/// parse_json of a file's text.
nlohmann::json read_json(const std::string& path, const JsonLimits& limits = {});

/// A place in a JSON document, for reading it strictly. Copies are cheap; the document must outlive
/// it. Every getter throws an Error with `where` and the key's path, e.g.
/// `[config.json] rope_scaling.factor is "x"; expected a number`.
class JsonView {
 public:
  JsonView(const nlohmann::json& value, std::string where);

  /// Returns whether an object has a key that is not null (Hugging Face writes null for "not set").
  bool has(std::string_view key) const;
  /// Returns a member. Throws Error, with the nearest key that is there, if it is absent or null.
  JsonView at(std::string_view key) const;
  /// Element of an array.
  JsonView at(size_t index) const;
  size_t size() const;                    ///< of an array or object; Error otherwise
  std::vector<std::string> keys() const;  ///< of an object, sorted

  bool is_object() const;
  bool is_array() const;
  bool is_string() const;
  bool is_number() const;
  bool is_bool() const;
  bool is_null() const;

  bool as_bool() const;
  int64_t as_int() const;  ///< integers only, within int64 (a double with an integral value counts)
  double as_double() const;
  const std::string& as_string() const;
  std::vector<int64_t> as_ints() const;
  std::vector<std::string> as_strings() const;

  bool get_bool(std::string_view key) const { return at(key).as_bool(); }
  int64_t get_int(std::string_view key) const { return at(key).as_int(); }
  double get_double(std::string_view key) const { return at(key).as_double(); }
  std::string get_string(std::string_view key) const { return at(key).as_string(); }
  bool get_bool(std::string_view key, bool otherwise) const;
  int64_t get_int(std::string_view key, int64_t otherwise) const;
  double get_double(std::string_view key, double otherwise) const;
  std::string get_string(std::string_view key, const std::string& otherwise) const;

  const nlohmann::json& json() const { return *value_; }
  const std::string& where() const { return where_; }
  const std::string& path() const { return path_; }
  /// Throws `[where] <path> <what>`.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  JsonView(const nlohmann::json& value, std::string where, std::string path);
  [[noreturn]] void wrong_type(const char* expected) const;

  const nlohmann::json* value_;
  std::string where_;
  std::string path_;
};

}  // namespace hocket
