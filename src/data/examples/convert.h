// SPDX-License-Identifier: Apache-2.0
// Objects of data files to examples: the layout of columns, recognised or given.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/examples/example.h"
#include "data/examples/messages.h"
#include "data/examples/source.h"

namespace hocket::data {

/// Makes examples of one source, all in the layout of the first one.
class Converter {
 public:
  using Json = nlohmann::ordered_json;
  enum class Layout : uint8_t { text, chat, completion, preference, unpaired, alpaca, sharegpt };

  /// Throws Error for an unknown format, column or tag.
  explicit Converter(const SourceOptions& options);

  /// Fills all but the place of `example`. Throws Error, whose text is the reason, for an object
  /// that is no example. The first one that is decides the layout of those after it.
  void convert(const Json& object, Example* example);

  /// Returns the name of the layout; empty: not known yet.
  std::string format() const;
  /// Returns the columns that were taken, for people.
  std::string layout() const;
  /// Columns that were not used, and the number of examples that have them.
  const std::map<std::string, int64_t>& ignored() const { return ignored_; }
  /// Throws Error, in the name of `where`, for a name in `columns` that no example had. Warns where
  /// it is of an input or a system prompt.
  void expect_columns(const std::map<std::string, std::string>& columns,
                      const std::string& where) const;

 private:
  /// Names of the columns in the file, by standard name, and of what is in messages.
  struct Columns {
    Layout layout = Layout::text;
    std::map<std::string, std::string> names;
    MessageTags tags;
  };
  /// Returns the layout of an object's columns. Throws Error if they fit none, or several.
  Layout recognise(const Json& object) const;
  /// Returns the layouts that the columns fit; `with_null`: those with null count, too.
  std::vector<Layout> fitting(const Json& object, bool with_null) const;
  Columns columns_of(Layout layout, const Json& object) const;
  /// Returns the name of a column; empty: it is not used.
  std::string name_of(const char* column) const;
  std::string messages_column(const Json& object, bool sharegpt) const;
  bool has(const Json& object, const char* column, bool with_null) const;
  void check_label(const Json& object, Layout layout) const;
  void check_given(const Columns& columns) const;
  void count_columns(const Json& object);

  std::map<std::string, std::string> given_, given_tags_;
  std::optional<Layout> forced_;
  std::optional<Columns> columns_;
  Example::Kind kind_ = Example::Kind::text;  ///< of all examples, once the columns are known
  std::map<std::string, bool> uses_;  ///< columns of the layout: true once an example has it
  std::map<std::string, int64_t> ignored_;
};

}  // namespace hocket::data
