// SPDX-License-Identifier: Apache-2.0
// Text of configuration keys and values, for errors, the resolved config and the docs.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/config.h"

namespace hocket {

/// The type inside an optional, or the type itself.
template <class T>
struct TypeOf {
  using type = T;
  static constexpr bool optional = false;
};
template <class T>
struct TypeOf<std::optional<T>> {
  using type = T;
  static constexpr bool optional = true;
};

/// Returns the accepted values of the key, for errors and docs: "an integer", "one of a, b", "a
/// list of strings".
std::string type_text(const Field& field);

/// "an integer", and which one is meant where it was given as 1e3 or 1000.0.
std::string integer_text(std::string_view given);

/// The range of a key with least or most: "at least 1".
std::string range_text(const Field& field);

/// The value that the key holds now as YAML in one line; an empty list of sections is "[]".
std::string value_text(const Field& field);

}  // namespace hocket
