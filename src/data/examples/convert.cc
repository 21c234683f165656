// SPDX-License-Identifier: Apache-2.0
#include "data/examples/convert.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/examples/layouts.h"

namespace hocket::data {
namespace {

using Json = nlohmann::ordered_json;
using Layout = Converter::Layout;

constexpr size_t kMaxIgnored = 100;  // names of columns that are counted

// Standard names of columns.
constexpr std::array<const char*, 14> kColumns = {
    "text",  "messages", "prompt",      "completion", "chosen", "rejected", "label",
    "tools", "system",   "instruction", "input",      "output", "history",  "chat_template_kwargs"};

const char* name_of_layout(Layout layout) { return kSourceLayouts[static_cast<size_t>(layout)]; }

/// Columns that a layout reads.
std::vector<const char*> columns_read(Layout layout) {
  switch (layout) {
    case Layout::text:
      return {"text"};
    case Layout::chat:
    case Layout::sharegpt:
      return {"messages", "chosen", "rejected", "label", "system", "tools", "chat_template_kwargs"};
    case Layout::completion:
      return {"prompt", "completion", "tools", "chat_template_kwargs"};
    case Layout::preference:
      return {"prompt", "chosen", "rejected", "tools", "chat_template_kwargs"};
    case Layout::unpaired:
      return {"prompt", "completion",          "messages", "label", "system",
              "tools",  "chat_template_kwargs"};
    case Layout::alpaca:
      return {"instruction", "input",  "output",  "chosen", "rejected",
              "label",       "system", "history", "tools",  "chat_template_kwargs"};
  }
  return {};
}

std::string column_list(const Json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) {
    if (names.size() == 12) {
      names.push_back("...");
      break;
    }
    names.push_back(quote(name, 40));
  }
  return join(names, ", ");
}

[[noreturn]] void fits_nothing(const Json& object) {
  const auto has = [&](const char* name) { return object.contains(name); };
  if (object.empty()) fail("example", "the object is empty");
  if (has("completions") && has("labels")) {
    fail("example", "columns completions and labels are stepwise supervision, which is not read");
  }
  if (has("reward_model") || (has("prompt") && !has("response") && !has("answer"))) {
    fail("example",
         "columns {} are a prompt without an answer, as for reinforcement learning; expected a "
         "completion too",
         column_list(object));
  }
  fail("example",
       "columns {} fit no format; expected text, messages, conversations, prompt with completion, "
       "chosen with rejected, or instruction with output; try columns: {{completion: NAME}}",
       column_list(object));
}

/// Returns whether the value is a list whose first element is an object with this field.
bool begins_with_field(const Json& list, const std::string& field) {
  return list.is_array() && !list.empty() && list.front().is_object() &&
         list.front().contains(field);
}

/// Returns whether the object has a key; `with_null`: also one with null.
bool has_value(const Json& object, const std::string& key, bool with_null) {
  const auto found = key.empty() ? object.end() : object.find(key);
  return found != object.end() && (with_null || !found->is_null());
}

}  // namespace

Converter::Converter(const SourceOptions& options)
    : given_(options.columns), given_tags_(options.tags) {
  if (options.format != "auto") {
    for (size_t i = 0; i < kSourceLayouts.size(); ++i) {
      if (options.format == kSourceLayouts[i]) {
        forced_ = static_cast<Layout>(i);
      }
    }
    if (!forced_) {
      fail(options.key, "unknown format {}; expected one of {}", quote(options.format),
           join(source_formats(), ", "));
    }
  }
  const std::vector<std::string> names(kColumns.begin(), kColumns.end());
  for (const auto& [column, name] : given_) {
    if (std::find(names.begin(), names.end(), column) == names.end()) {
      fail(options.key, "unknown name {} in columns; expected one of {}", quote(column),
           join(names, ", "));
    }
  }
  MessageTags::chat().rename(given_tags_, options.key);
}

std::string Converter::format() const {
  return columns_ ? name_of_layout(columns_->layout) : forced_ ? name_of_layout(*forced_) : "";
}

std::string Converter::name_of(const char* column) const {
  const auto given = given_.find(column);
  return given == given_.end() ? column : given->second;
}

bool Converter::has(const Json& object, const char* column, bool with_null) const {
  return has_value(object, name_of(column), with_null);
}

// Returns the column of messages; empty: none.
std::string Converter::messages_column(const Json& object, bool sharegpt) const {
  if (given_.contains("messages")) return name_of("messages");
  std::vector<std::string> found;
  for (const char* name : {"messages", "conversations", "conversation"}) {
    if (object.contains(name)) {
      found.push_back(name);
    }
  }
  if (found.size() > 1) {
    // Rows of several tables have each other's columns, with null.
    std::erase_if(found, [&](const std::string& name) { return object.at(name).is_null(); });
  }
  if (found.size() > 1) {
    fail("example", "there are columns {}; expected one; try columns: {{messages: {}}}",
         join(found, " and "), found[0]);
  }
  if (!found.empty()) return found[0];
  return sharegpt ? "conversations" : "messages";
}

// A label that would change what is learned is neither taken nor ignored in silence.
void Converter::check_label(const Json& object, Layout layout) const {
  if (given_.contains("label")) return;
  const auto label = object.find("label");
  if (label == object.end()) return;
  if (layout == Layout::completion) {
    if (!label->is_number()) return;
    fail("example",
         "label is a number; expected true or false; try columns: {{label: \"\"}} if it does not "
         "judge the completion");
  }
  if (!label->is_boolean()) return;
  fail("example",
       "the columns fit format {} with a label of true or false; try columns: {{label: label}} for "
       "answers that are judged, or columns: {{label: \"\"}} to ignore it",
       name_of_layout(layout));
}

std::vector<Layout> Converter::fitting(const Json& object, bool with_null) const {
  std::vector<Layout> fits;
  const auto there = [&](const char* column) { return has(object, column, with_null); };
  const bool pair = there("chosen") && there("rejected");
  const bool pair_of_messages = pair && object.at(name_of("chosen")).is_object();
  const bool alpaca = there("instruction") && (there("output") || pair);
  if (alpaca) {
    fits.push_back(Layout::alpaca);
  }
  const std::string messages = messages_column(object, false);
  const bool has_messages = has_value(object, messages, with_null);
  if (has_messages) {
    const auto role = given_tags_.find("role_tag");
    const bool sharegpt = (role == given_tags_.end() || role->second == "from") &&
                          begins_with_field(object.at(messages), "from");
    fits.push_back(sharegpt ? Layout::sharegpt : Layout::chat);
  }
  if (pair && !alpaca && !(has_messages && pair_of_messages)) {
    fits.push_back(Layout::preference);
  }
  if (there("prompt") && there("completion")) {
    const bool judged =
        there("label") && (given_.contains("label") || object.at(name_of("label")).is_boolean());
    fits.push_back(judged ? Layout::unpaired : Layout::completion);
  }
  if (fits.empty() && there("text")) {
    fits.push_back(Layout::text);  // beside others it is what they look like, rendered
  }
  return fits;
}

Layout Converter::recognise(const Json& object) const {
  std::vector<Layout> fits = fitting(object, true);
  if (fits.size() > 1) {
    if (const std::vector<Layout> real = fitting(object, false); !real.empty()) {
      fits = real;
    }
  }
  if (fits.empty()) {
    for (const auto& [column, name] : given_) {
      if (!name.empty() && !object.contains(name)) {
        fail("example", "it has no column {} (columns: {{{}: {}}}); expected one of its columns {}",
             name, column, name, column_list(object));
      }
    }
    fits_nothing(object);
  }
  if (fits.size() > 1) {
    std::vector<std::string> names;
    for (const Layout layout : fits) {
      names.push_back(name_of_layout(layout));
    }
    fail("example", "columns {} fit more than one format; try format: {}", column_list(object),
         join(names, " or format: "));
  }
  if (fits[0] != Layout::text && fits[0] != Layout::unpaired && fits[0] != Layout::preference) {
    check_label(object, fits[0]);
  }
  return fits[0];
}

// A name that is given for a column, or for something in messages, is not without effect.
void Converter::check_given(const Columns& columns) const {
  const char* format_name = name_of_layout(columns.layout);
  for (const auto& [column, name] : given_) {
    if (name.empty() || columns.names.contains(column)) continue;
    std::vector<std::string> known;
    for (const char* one : columns_read(columns.layout)) {
      known.push_back(one);
    }
    fail("example", "format {} has no column {} (columns: {{{}: {}}}); expected one of {}",
         format_name, column, column, name, join(known, ", "));
  }
  if (!given_tags_.empty() &&
      (columns.layout == Layout::text || columns.layout == Layout::alpaca)) {
    fail("example", "format {} has no messages, which tags are of; expected none", format_name);
  }
}

void Converter::expect_columns(const std::map<std::string, std::string>& columns,
                               const std::string& where) const {
  for (const auto& [column, name] : columns) {
    const auto use = uses_.find(name);
    if (name.empty() || (use != uses_.end() && use->second)) continue;
    if (column == "input" || column == "system") {
      // Axolotl's own types name both for data sets without them, too.
      log_warning("{}: no example has a column {} (columns: {{{}: {}}})", where, name, column,
                  name);
      continue;
    }
    fail(where, "no example has a column {} (columns: {{{}: {}}}); expected one of its columns",
         name, column, name);
  }
}

Converter::Columns Converter::columns_of(Layout layout, const Json& object) const {
  Columns columns;
  columns.layout = layout;
  for (const char* column : columns_read(layout)) {
    columns.names[column] = name_of(column);
  }
  const bool judged_by_tag =
      layout == Layout::chat || layout == Layout::sharegpt || layout == Layout::alpaca;
  if (judged_by_tag && !given_.contains("label")) {
    columns.names["label"] = "kto_tag";
  }
  if (columns.names.contains("messages")) {
    columns.names["messages"] = messages_column(object, layout == Layout::sharegpt);
  }
  columns.tags = layout == Layout::sharegpt ? MessageTags::sharegpt() : MessageTags::chat();
  columns.tags.rename(given_tags_);
  return columns;
}

std::string Converter::layout() const {
  std::vector<std::string> taken;
  if (!columns_) return "";
  for (const char* column : columns_read(columns_->layout)) {
    const std::string& name = columns_->names.at(column);
    const auto use = uses_.find(name);
    if (name.empty() || use == uses_.end() || !use->second) continue;
    if (std::string_view(column) == "messages") {
      taken.push_back(
          fmt::format("{} ({}, {})", name, columns_->tags.role, columns_->tags.content));
    } else {
      taken.push_back(name == column ? name : fmt::format("{} as {}", name, column));
    }
  }
  return join(taken, ", ");
}

void Converter::count_columns(const Json& object) {
  for (const auto& [name, value] : object.items()) {
    if (const auto use = uses_.find(name); use != uses_.end()) {
      use->second = true;
    } else if (ignored_.size() < kMaxIgnored || ignored_.contains(name)) {
      ++ignored_[name];
    }
  }
}

void Converter::convert(const Json& object, Example* example) {
  if (!object.is_object()) {
    fail("example", "it is {}; expected an object", type_text(object));
  }
  const Layout layout = forced_ ? *forced_ : recognise(object);
  if (columns_ && columns_->layout != layout) {
    fail("example", "its columns fit format {}; expected {} as the first example has it",
         name_of_layout(layout), format());
  }
  Columns first;
  if (!columns_) {
    first = columns_of(layout, object);
    check_given(first);
  }
  const Columns& columns = columns_ ? *columns_ : first;
  const Row row(object, columns.names);
  switch (layout) {
    case Layout::text:
      read_text(row, example);
      break;
    case Layout::chat:
    case Layout::sharegpt:
      read_chat(row, columns.tags, layout == Layout::sharegpt, example);
      break;
    case Layout::completion:
      read_completion(row, columns.tags, example);
      break;
    case Layout::preference:
      read_preference(row, columns.tags, example);
      break;
    case Layout::unpaired:
      read_unpaired(row, columns.tags, example);
      break;
    case Layout::alpaca:
      read_alpaca(row, example);
      break;
  }
  if (columns_ && example->kind != kind_) {
    fail("example", "it is {} data; expected {} as the first example is", to_string(example->kind),
         to_string(kind_));
  }
  if (!columns_) {
    kind_ = example->kind;
    columns_ = std::move(first);
    for (const auto& [column, name] : columns_->names) {
      uses_.emplace(name, false);
    }
  }
  count_columns(object);
}

}  // namespace hocket::data
