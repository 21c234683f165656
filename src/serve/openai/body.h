// SPDX-License-Identifier: Apache-2.0
// Typed reading of a request's fields. A null is an absent field. Functions throw Refusal.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hocket::serve {

class Body {
 public:
  /// `path`: of this object within the request, for messages; "" is the whole of it.
  explicit Body(const nlohmann::ordered_json& json, std::string path = "");

  /// Returns a field, or null if it is absent or null.
  const nlohmann::ordered_json* find(std::string_view name) const;
  std::optional<bool> boolean(std::string_view name) const;
  std::optional<double> number(std::string_view name, double least, double most) const;
  std::optional<int64_t> integer(std::string_view name, int64_t least, int64_t most) const;
  std::optional<std::string> text(std::string_view name) const;
  /// A string, or a list of strings.
  std::vector<std::string> texts(std::string_view name) const;
  std::vector<int32_t> tokens(std::string_view name, int64_t vocab_size) const;
  const nlohmann::ordered_json* list(std::string_view name) const;
  const nlohmann::ordered_json* object(std::string_view name) const;
  std::string path_of(std::string_view name) const;

 private:
  const nlohmann::ordered_json& json_;
  const std::string path_;
};

/// Throws Refusal (400): `<param> <problem>`.
[[noreturn]] void refuse(const std::string& param, const std::string& problem);

/// Refuses a field that is none of `known`, with the nearest of these.
[[noreturn]] void refuse_unknown(const std::string& param, const std::vector<std::string>& known);

/// Reads token ids.
std::vector<int32_t> read_tokens(const nlohmann::ordered_json& json, const std::string& param,
                                 int64_t vocab_size);

}  // namespace hocket::serve
