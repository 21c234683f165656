// SPDX-License-Identifier: Apache-2.0
// Every key of a run that is written as a run.yaml reads back to its value.
#include "run/run_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "base/config.h"
#include "run/config.h"

namespace hocket::engine {
namespace {

using Json = nlohmann::json;

Json values_of(const Fields& fields, int* number);

/// Returns a number within a field's limits that is no default, another one every time.
template <class T>
Json number_of(const Field& field, int* number) {
  const double least = field.least.value_or(-1e6), most = field.most.value_or(1e6);
  if (std::is_same_v<T, int64_t>) {
    return static_cast<int64_t>(std::clamp<double>(3 + (*number)++ % 61, least, most));
  }
  return std::clamp(0.125 + 1e-3 * (*number)++, least, most);
}

/// Returns a value for a field, as text that a careless writer would garble where it can be any.
Json value_of(const Field& field, int* number) {
  const std::string text =
      field.allowed.empty() ? "a: 'b' #" + std::to_string((*number)++) : field.allowed.back();
  return std::visit(
      [&](const auto& target) -> Json {
        using Target = std::decay_t<decltype(target)>;
        if constexpr (std::is_same_v<Target, NamedValue>) {
          return text;
        } else if constexpr (std::is_same_v<Target, std::shared_ptr<Fields>>) {
          return values_of(*target, number);
        } else if constexpr (std::is_same_v<Target, FieldList>) {
          target.resize(2);
          const Json both = {values_of(target.at(0), number), values_of(target.at(1), number)};
          target.resize(0);
          return both;
        } else {
          using T = std::remove_pointer_t<Target>;
          if constexpr (std::is_same_v<T, bool>) {
            return !*target;
          } else if constexpr (std::is_same_v<T, std::optional<bool>>) {
            return !target->value_or(false);
          } else if constexpr (std::is_same_v<T, int64_t> ||
                               std::is_same_v<T, std::optional<int64_t>>) {
            return number_of<int64_t>(field, number);
          } else if constexpr (std::is_same_v<T, double> ||
                               std::is_same_v<T, std::optional<double>>) {
            return number_of<double>(field, number);
          } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
            return {number_of<int64_t>(field, number), number_of<int64_t>(field, number)};
          } else if constexpr (std::is_same_v<T, std::vector<double>>) {
            return {number_of<double>(field, number), number_of<double>(field, number)};
          } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
            if (!field.allowed.empty()) return {text, field.allowed.front()};
            return {text, "true", "0x10", "", "- 1"};
          } else if constexpr (std::is_same_v<T, std::map<std::string, std::string>>) {
            return {{"one", text}, {"no", "1e3"}};
          } else if constexpr (std::is_same_v<T, Json>) {
            return {{"deep", {{"list", {1, 2.5, "3", {{"a", true}}}}, {"none", nullptr}}}};
          } else {
            return text;
          }
        }
      },
      field.target);
}

Json values_of(const Fields& fields, int* number) {
  Json section = Json::object();
  for (const Field& field : fields.list()) {
    section[field.name] = value_of(field, number);
  }
  return section;
}

/// Returns a run with these keys alone: their values need not go together.
Run run_with(const std::string& text, const std::vector<std::string>& keys = {}) {
  Run run;
  run.resolved = parse_config(run.config, text, "keys", keys);
  return run;
}

TEST(RunText, EveryKeyReadsBackToItsValue) {
  RunConfig config;
  Fields fields;
  config.fields(fields);
  int number = 0;
  const Json all = values_of(fields, &number);
  const auto run = run_with(all.dump());
  const std::string text = run_yaml(run, "a comment\nof two lines");
  EXPECT_EQ(text.find("# a comment\n# of two lines\n"), 0U);
  EXPECT_EQ(run_with(text).resolved.to_json_text(1), run.resolved.to_json_text(1)) << text;
  EXPECT_GT(run.resolved.entries().size(), 100U);
  EXPECT_EQ(run_with("{}", assignments_of(run)).resolved.to_json_text(1),
            run.resolved.to_json_text(1));
}

TEST(RunText, EveryKeyAloneReadsBackToItsValue) {
  RunConfig config;
  Fields fields;
  config.fields(fields);
  int number = 0;
  const Json all = values_of(fields, &number);
  for (const auto& [section, keys] : all.items()) {
    if (!keys.is_object()) continue;
    for (const auto& [key, value] : keys.items()) {
      const auto run = run_with(Json{{section, {{key, value}}}}.dump());
      const std::string text = run_yaml(run, "");
      EXPECT_EQ(run_with(text).resolved.to_json_text(1), run.resolved.to_json_text(1)) << text;
    }
  }
}

}  // namespace
}  // namespace hocket::engine
