// SPDX-License-Identifier: Apache-2.0
#include "base/config_print.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/text.h"

namespace hocket {
namespace {

using Json = nlohmann::json;

template <class T>
constexpr bool kIsList = false;
template <class T>
constexpr bool kIsList<std::vector<T>> = true;

// A scalar as YAML: plain where no reader could take it for something else.
std::string yaml_string(const std::string& text) {
  double number = 0;
  bool plain = !text.empty() && !parse_double(text, &number);
  for (const char* word : {"true", "false", "null", "yes", "no", "on", "off", "~"}) {
    plain = plain && text != word;
  }
  const auto is_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_./-+").find(c) != std::string_view::npos;
  };
  for (size_t i = 0; i < text.size() && plain; ++i) {
    plain = is_name(text[i]) && (i > 0 || text[i] != '-');
  }
  return plain ? text : Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// A value as it stands in a run.yaml: quantities with the unit that reads best, lists and maps on
/// one line.
template <class T>
std::string text_of(const Field& field, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return fmt::format("{}", value);
  } else if constexpr (std::is_same_v<T, double>) {
    return format_quantity(value, field.unit_of);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return yaml_string(value);
  } else if constexpr (kIsList<T>) {
    std::vector<std::string> parts;
    for (const auto& item : value) {
      parts.push_back(text_of(field, item));
    }
    return "[" + join(parts, ", ") + "]";
  } else if constexpr (std::is_same_v<T, Json>) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  } else {
    std::vector<std::string> parts;
    for (const auto& [key, text] : value) {
      parts.push_back(yaml_string(key) + ": " + yaml_string(text));
    }
    return "{" + join(parts, ", ") + "}";
  }
}

void document(const Fields& fields, const std::string& prefix, std::string* out) {
  for (const Field& field : fields.list()) {
    const std::string path = prefix + field.name;
    if (const auto* nested = std::get_if<std::shared_ptr<Fields>>(&field.target)) {
      *out += fmt::format("| **`{}`** | | | {} |\n", path, field.help);
      document(**nested, path + ".", out);
    } else if (const auto* list = std::get_if<FieldList>(&field.target)) {
      *out += fmt::format("| **`{}`** | {} | | {} |\n", path, type_text(field), field.help);
      const size_t size = list->size();
      if (size == 0) {
        list->resize(1);
      }
      document(list->at(0), path + "[].", out);
      list->resize(size);
    } else {
      std::string type = type_text(field);
      if (field.least || field.most) {
        type += ", " + range_text(field);
      }
      const std::string otherwise = field.must_be_set ? "required" : "`" + value_text(field) + "`";
      *out += fmt::format("| `{}` | {} | {} | {} |\n", path, type, otherwise, field.help);
    }
  }
}

}  // namespace

std::string type_text(const Field& field) {
  // One overload per field type; a new type without a name does not compile.
  struct Visitor {
    const Field& field;
    std::string number(const char* plain) const {
      return field.unit_of == Unit::none ? plain : unit_examples(field.unit_of);
    }
    std::string operator()(bool*) const { return "true or false"; }
    std::string operator()(int64_t*) const { return number("an integer"); }
    std::string operator()(double*) const { return number("a number"); }
    std::string operator()(std::string*) const {
      return field.allowed.empty() ? "a string" : "one of " + join(field.allowed, ", ");
    }
    std::string operator()(std::optional<bool>*) const { return "true, false or null"; }
    std::string operator()(std::optional<int64_t>*) const {
      return number("an integer") + " or null";
    }
    std::string operator()(std::optional<double>*) const { return number("a number") + " or null"; }
    std::string operator()(std::optional<std::string>*) const {
      return (*this)(static_cast<std::string*>(nullptr)) + " or null";
    }
    std::string operator()(std::vector<int64_t>*) const { return "a list of integers"; }
    std::string operator()(std::vector<double>*) const { return "a list of numbers"; }
    std::string operator()(std::vector<std::string>*) const {
      return field.allowed.empty() ? "a list of strings"
                                   : "one of " + join(field.allowed, ", ") + ", or a list of these";
    }
    std::string operator()(std::map<std::string, std::string>*) const {
      return "a section of strings";
    }
    std::string operator()(Json*) const { return "any YAML"; }
    std::string operator()(const std::shared_ptr<Fields>&) const { return "a section"; }
    std::string operator()(const FieldList&) const { return "a list of sections"; }
    std::string operator()(const NamedValue& value) const {
      return "one of " + join(field.allowed, ", ") + (value.optional ? " or null" : "");
    }
  };
  return std::visit(Visitor{field}, field.target);
}

std::string range_text(const Field& field) {
  if (field.least && field.most) {
    return fmt::format("from {} to {}", format_quantity(*field.least, field.unit_of),
                       format_quantity(*field.most, field.unit_of));
  }
  if (field.least) return "at least " + format_quantity(*field.least, field.unit_of);
  return "at most " + format_quantity(*field.most, field.unit_of);
}

std::string integer_text(std::string_view given) {
  constexpr double kExact = 0x1p53;
  double value = 0;
  const bool is_whole =
      parse_double(given, &value) && value == std::floor(value) && std::fabs(value) < kExact;
  return is_whole ? fmt::format("an integer; did you mean {:.0f}?", value) : "an integer";
}

std::string value_text(const Field& field) {
  return std::visit(
      [&field](const auto& target) -> std::string {
        using Target = std::decay_t<decltype(target)>;
        if constexpr (std::is_same_v<Target, NamedValue>) {
          const std::string name = target.get();
          return name.empty() ? "null" : yaml_string(name);
        } else if constexpr (!std::is_pointer_v<Target>) {
          return "[]";
        } else if constexpr (TypeOf<std::remove_pointer_t<Target>>::optional) {
          return target->has_value() ? text_of(field, **target) : "null";
        } else {
          return text_of(field, *target);
        }
      },
      field.target);
}

std::string ResolvedConfig::to_yaml(bool with_origins) const {
  size_t width = 0;
  for (const Line& line : lines_) {
    if (!line.origin.empty() && line.text.size() <= 60) {
      width = std::max(width, line.text.size());
    }
  }
  std::string out;
  for (const Line& line : lines_) {
    out += with_origins && !line.origin.empty()
               ? fmt::format("{:<{}}  # {}\n", line.text, width, line.origin)
               : line.text + "\n";
  }
  return out;
}

std::string document_config(const Fields& fields) {
  std::string out = "| key | type | default | meaning |\n|---|---|---|---|\n";
  document(fields, "", &out);
  return out;
}

}  // namespace hocket
