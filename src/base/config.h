// SPDX-License-Identifier: Apache-2.0
// Strict configuration: one YAML file (run.yaml, cluster files) read into structs. A struct names
// its keys once, and reading, printing, overriding and documenting follow from that:
//
//   struct TrainConfig {
//     int64_t steps = 1000;
//     double peak_lr = 3e-4;
//     void fields(Fields& v) {
//       v("steps", steps, "optimizer steps").min(1);
//       v("peak_lr", peak_lr, "learning rate after warm-up").min(0);
//     }
//   };
//   RunConfig run;
//   ResolvedConfig resolved = read_config(run, "run.yaml", {"train.steps=20"});
//
// Unknown, doubled, missing and ill-typed keys are errors that give file and line, the key, and the
// nearest known key.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/units.h"

namespace hocket {

class Fields;

template <class T>
concept HasFields = requires(T& t, Fields& v) {
  t.fields(v);
};

/// A list of structs: `sources: [{path: a, weight: 2}, {path: b}]`.
struct FieldList {
  std::function<void(size_t)> resize;
  std::function<size_t()> size;
  std::function<Fields(size_t)> at;
};

/// A value of an enum, or an optional one, by its name; empty: the optional is null. The names come
/// from `std::span<const char* const> names_of(Enum)` in the enum's namespace, in its order from 0.
struct NamedValue {
  std::function<std::string()> get;
  std::function<void(const std::string&)> set;
  bool optional = false;
};

/// Address of a key's value. An optional is null if the key is absent or `null`.
using FieldTarget =
    std::variant<bool*, int64_t*, double*, std::string*, std::optional<bool>*,
                 std::optional<int64_t>*, std::optional<double>*, std::optional<std::string>*,
                 std::vector<int64_t>*, std::vector<double>*, std::vector<std::string>*,
                 std::map<std::string, std::string>*, nlohmann::json*, std::shared_ptr<Fields>,
                 FieldList, NamedValue>;

/// One key of a struct. The setters narrow the accepted values, and can be chained.
struct Field {
  std::string name;
  std::string help;
  FieldTarget target;
  Unit unit_of = Unit::none;
  std::vector<std::string> allowed;
  std::optional<double> least, most;
  bool must_be_set = false;
  std::string former;                          ///< earlier name, still read; empty: none
  std::map<std::string, std::string> refused;  ///< values that are refused with a reason, and it

  /// Gives numbers this unit: `400Gbit/s`. An int64 holds them rounded to whole base units.
  Field& unit(Unit u) { return unit_of = u, *this; }
  /// Accepts only these strings.
  Field& one_of(std::vector<std::string> values) { return allowed = std::move(values), *this; }
  Field& min(double v) { return least = v, *this; }
  Field& max(double v) { return most = v, *this; }
  Field& required() { return must_be_set = true, *this; }
  /// Lets files and overrides use this earlier name of the key for a release; a note is printed.
  Field& formerly(std::string name) { return former = std::move(name), *this; }
  /// Refuses a text as the value, also of a section, with a reason of its own.
  Field& refuse(const std::string& value, std::string why) {
    return refused[value] = std::move(why), *this;
  }
};

/// The keys of a struct, in the order in which it names them.
class Fields {
 public:
  /// Adds a key. `member` is a bool, int64_t, double, std::string or enum with names_of(), maybe
  /// optional; a vector of int64_t, double or std::string; a map of strings; a nlohmann::json (any
  /// YAML below it, as it is); a struct with fields(), or a vector of such.
  template <class T>
  Field& operator()(std::string_view name, T& member, std::string_view help) {
    return add(name, help, target_of(member));
  }
  template <class T>
  requires std::is_enum_v<T> Field& operator()(std::string_view name, T& member,
                                               std::string_view help) {
    return add_named(name, help, member, names_of(T{}), false);
  }
  template <class T>
  requires std::is_enum_v<T> Field& operator()(std::string_view name, std::optional<T>& member,
                                               std::string_view help) {
    return add_named(name, help, member, names_of(T{}), true);
  }
  /// Refuses an unknown key with a reason in place of the nearest one, unless it is false or null.
  void refuse(const std::string& name, std::string why) { refused_[name] = std::move(why); }
  const std::vector<Field>& list() const { return list_; }
  const std::map<std::string, std::string>& refused() const { return refused_; }

 private:
  Field& add(std::string_view name, std::string_view help, FieldTarget target);

  template <class T>
  static FieldTarget target_of(T& member) {
    if constexpr (HasFields<T>) {
      auto nested = std::make_shared<Fields>();
      member.fields(*nested);
      return nested;
    } else {
      return &member;
    }
  }
  template <HasFields T>
  static FieldTarget target_of(std::vector<T>& member) {
    return FieldList{[&member](size_t n) { member.resize(n); }, [&member] { return member.size(); },
                     [&member](size_t i) {
                       Fields fields;
                       member[i].fields(fields);
                       return fields;
                     }};
  }

  template <class Member, class Names>
  Field& add_named(std::string_view name, std::string_view help, Member& member, Names names,
                   bool optional) {
    NamedValue value;
    value.optional = optional;
    value.get = [&member, names]() -> std::string {
      for (size_t i = 0; i < names.size(); ++i) {
        if (member == static_cast<Plain<Member>>(i)) return names[i];
      }
      return "";
    };
    value.set = [&member, names](const std::string& text) {
      member = Member{};
      for (size_t i = 0; i < names.size(); ++i) {
        if (text == names[i]) {
          member = static_cast<Plain<Member>>(i);
        }
      }
    };
    return add(name, help, std::move(value)).one_of({names.begin(), names.end()});
  }
  template <class T>
  struct PlainOf {
    using type = T;
  };
  template <class T>
  struct PlainOf<std::optional<T>> {
    using type = T;
  };
  template <class T>
  using Plain = typename PlainOf<T>::type;

  std::vector<Field> list_;
  std::map<std::string, std::string> refused_;
};

/// Result of reading: every key with its value and origin.
class ResolvedConfig {
 public:
  struct Entry {
    std::string path;    ///< "plan.pp", "data.sources.0.weight"
    std::string value;   ///< as YAML
    std::string origin;  ///< "default", "run.yaml:12", "--set", or another source
    std::string help;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  /// Returns the origin of the value of a key or section, for the `where` of later errors.
  std::string origin(const std::string& path) const;
  bool is_default(const std::string& path) const { return origin(path) == "default"; }
  /// YAML that reads back to the same values; with `# origin` behind each line if asked.
  std::string to_yaml(bool with_origins = false) const;
  /// The same as a JSON object; quantities as plain numbers in base units.
  nlohmann::json to_json() const;
  /// Returns the text of the JSON object, keys sorted; `indent` above 0: a key a line.
  std::string to_json_text(int indent = 0) const;

 private:
  friend class ConfigReader;
  struct Line {
    std::string text;
    std::string origin;  // empty for sections
  };
  std::vector<Entry> entries_;
  std::vector<Line> lines_;
  std::map<std::string, std::string> origins_;
  std::shared_ptr<const nlohmann::json> tree_;
};

/// Values from the environment for keys that neither the file nor an override has.
struct Filled {
  std::string by;                        ///< origin of the values: "launcher"
  std::vector<std::string> assignments;  ///< "a.b=value"
};

/// Reads `text` (named `name` in errors) into `fields`, after applying the overrides "a.b=value".
ResolvedConfig read_config(const Fields& fields, std::string_view text, const std::string& name,
                           const std::vector<std::string>& overrides, const Filled& filled = {});

/// Returns the text of a configuration file. Throws Error if it cannot be read or is longer than 4
/// MiB.
std::string read_config_text(const std::string& path);

/// Reads a file into a struct with fields(). Throws Error for anything that is not exactly right.
template <HasFields T>
ResolvedConfig read_config(T& config, const std::string& path,
                           const std::vector<std::string>& overrides = {}) {
  Fields fields;
  config.fields(fields);
  return read_config(fields, read_config_text(path), path, overrides);
}

/// The same for text that is already here.
template <HasFields T>
ResolvedConfig parse_config(T& config, std::string_view text, const std::string& name,
                            const std::vector<std::string>& overrides = {},
                            const Filled& filled = {}) {
  Fields fields;
  config.fields(fields);
  return read_config(fields, text, name, overrides, filled);
}

/// Every key as a Markdown table: key, type, default, meaning. The defaults are those in `fields`.
std::string document_config(const Fields& fields);

}  // namespace hocket
