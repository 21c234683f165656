// SPDX-License-Identifier: Apache-2.0
// Implements: to_yaml (cluster.h), which writes the keys of fields() without those that have their
// default.
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/json_writer.h"
#include "cost/cluster.h"

namespace hocket::cost {
namespace {

std::string in_quotes(const std::string& text) {
  std::string out;
  append_json_string(&out, text);
  return out;
}

/// Formats a number; whole numbers, sizes among them, are exact.
std::string number_text(double number) {
  constexpr double kExact = 1e15;
  const bool whole = std::abs(number) < kExact && number == std::floor(number);
  return whole ? fmt::format("{:.0f}", number) : fmt::format("{:.9g}", number);
}

/// Returns a value in YAML; empty if it is 0, false or empty.
std::string scalar(const Field& field) {
  if (const auto* number = std::get_if<double*>(&field.target)) {
    return **number == 0 ? "" : format_quantity(**number, field.unit_of);
  }
  if (const auto* number = std::get_if<int64_t*>(&field.target)) {
    return **number == 0 ? "" : std::to_string(**number);
  }
  if (const auto* flag = std::get_if<bool*>(&field.target)) return **flag ? "true" : "";
  if (const auto* text = std::get_if<std::string*>(&field.target)) {
    return (*text)->empty() ? "" : in_quotes(**text);
  }
  if (const auto* list = std::get_if<std::vector<double>*>(&field.target)) {
    std::string numbers;
    for (const double number : **list) {
      numbers += (numbers.empty() ? "" : ", ") + number_text(number);
    }
    return numbers.empty() ? "" : "[" + numbers + "]";
  }
  if (const auto* list = std::get_if<std::vector<std::string>*>(&field.target)) {
    std::string words;
    for (const std::string& word : **list) {
      words += (words.empty() ? "" : ", ") + in_quotes(word);
    }
    return words.empty() ? "" : "[" + words + "]";
  }
  HOCKET_CHECK(false, "no YAML for the key {}", field.name);
}

bool is_constant(const Fields& fields) {
  return fields.list().size() == 2 && fields.list()[0].name == "value" &&
         fields.list()[1].name == "source";
}

/// Formats a block of keys. `plain`: the same keys with their defaults; null in a list, where
/// constants default to 0.
std::string block(const Fields& fields, const Fields* plain, const std::string& indent);

std::string constant(const Field& field, const Fields& fields, const Fields* plain,
                     const std::string& indent) {
  const std::string value = scalar(fields.list()[0]);
  const std::string source = scalar(fields.list()[1]);
  const bool is_default = plain && value == scalar(plain->list()[0]) && source.empty();
  if (value.empty() || is_default) return "";
  return fmt::format("{}{}: {{value: {}{}}}\n", indent, field.name, value,
                     source.empty() ? "" : ", source: " + source);
}

/// Formats `key: ...` with a line end; empty for a default.
std::string entry(const Field& field, const Field* plain, const std::string& indent) {
  if (const auto* nested = std::get_if<std::shared_ptr<Fields>>(&field.target)) {
    const Fields* const inside =
        plain ? std::get<std::shared_ptr<Fields>>(plain->target).get() : nullptr;
    if (is_constant(**nested)) return constant(field, **nested, inside, indent);
    const std::string inner = block(**nested, inside, indent + "  ");
    return inner.empty() ? "" : indent + field.name + ":\n" + inner;
  }
  if (const auto* list = std::get_if<FieldList>(&field.target)) {
    std::string text;
    for (size_t i = 0; i < list->size(); ++i) {
      std::string element = block(list->at(i), nullptr, indent + "    ");
      element[indent.size() + 2] = '-';
      text += element;
    }
    return text.empty() ? "" : indent + field.name + ":\n" + text;
  }
  const std::string value = scalar(field);
  return value.empty() ? "" : indent + field.name + ": " + value + "\n";
}

std::string block(const Fields& fields, const Fields* plain, const std::string& indent) {
  std::string text;
  for (size_t i = 0; i < fields.list().size(); ++i) {
    text += entry(fields.list()[i], plain ? &plain->list()[i] : nullptr, indent);
  }
  return text;
}

}  // namespace

std::string to_yaml(const Cluster& cluster) {
  Cluster copy = cluster, usual;
  // Shares have no default in a file: without them it gets typical ones.
  Efficiency& shares = usual.device.efficiency;
  shares.matmul.value = shares.attention.value = shares.memory.value = 0;
  Fields fields, plain;
  copy.fields(fields);
  usual.fields(plain);
  return block(fields, &plain, "");
}

}  // namespace hocket::cost
