// SPDX-License-Identifier: Apache-2.0
// Implements: resolve_dataset_info (files.h), the registry of data sets of LLaMA-Factory.
#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "data/examples/files.h"

namespace hocket::data {
namespace {

constexpr const char* kInfo = "dataset_info.json";

// Columns by LLaMA-Factory's names, with ours and those of an entry that names none.
constexpr struct {
  const char* key;
  const char* column;
  const char* usual;
} kInfoColumns[] = {{"prompt", "instruction", "instruction"},
                    {"query", "input", "input"},
                    {"response", "output", "output"},
                    {"history", "history", ""},
                    {"messages", "messages", "conversations"},
                    {"system", "system", ""},
                    {"tools", "tools", ""},
                    {"chosen", "chosen", ""},
                    {"rejected", "rejected", ""},
                    {"kto_tag", "label", ""}};

constexpr struct {
  const char* key;
  const char* usual;
} kInfoTags[] = {
    {"role_tag", "from"},     {"content_tag", "value"},           {"user_tag", "human"},
    {"assistant_tag", "gpt"}, {"observation_tag", "observation"}, {"function_tag", "function_call"},
    {"system_tag", "system"}};

std::string shown_names(const JsonView& info) {
  std::vector<std::string> names = info.keys();
  const size_t count = names.size();
  if (count > 20) {
    names.resize(20);
  }
  return join(names, ", ") + (count > 20 ? fmt::format(", ... ({} in all)", count) : "");
}

void expect_keys(const JsonView& object, const std::vector<std::string>& known) {
  for (const std::string& key : object.keys()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const std::string close = nearest(key, known);
      object.fail(fmt::format("has the unknown key {}{}", quote(key),
                              close.empty() ? "" : fmt::format("; the nearest is {}", close)));
    }
  }
}

/// Throws Error for keys that an entry may have and that are not read here.
void refuse_others(const JsonView& entry) {
  for (const char* key :
       {"hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"}) {
    if (entry.has(key)) {
      entry.fail(fmt::format("has {}, which is not on this machine; try a file_name", key));
    }
  }
  for (const char* key : {"subset", "folder", "num_samples"}) {
    if (entry.has(key)) {
      entry.fail(fmt::format("has {}, which is not read; try an entry without it{}", key,
                             std::string_view(key) == "num_samples" ? ", and a weight" : ""));
    }
  }
  if (entry.get_string("split", "train") != "train") {
    entry.fail("has a split other than train, which a file does not have");
  }
  expect_keys(entry, {"file_name", "file_sha1", "formatting", "ranking", "columns", "tags", "split",
                      "subset", "folder", "num_samples", "hf_hub_url", "ms_hub_url", "om_hub_url",
                      "script_url", "cloud_file_name"});
}

/// Adds the columns of an entry that its format reads; an entry with any has no others.
void take_columns(const JsonView& entry, bool ranking, bool alpaca, SourceOptions* source) {
  const bool named = entry.has("columns");
  if (named) {
    const JsonView columns = entry.at("columns");
    for (const char* key : {"images", "videos", "audios"}) {
      if (columns.has(key)) {
        columns.fail(fmt::format("has {}; expected text alone", key));
      }
    }
    std::vector<std::string> known = {"images", "videos", "audios"};
    for (const auto& column : kInfoColumns) {
      known.push_back(column.key);
    }
    expect_keys(columns, known);
  }
  for (const auto& column : kInfoColumns) {
    const std::string name =
        named ? entry.at("columns").get_string(column.key, "") : std::string(column.usual);
    const bool of_pair =
        std::string_view(column.key) == "chosen" || std::string_view(column.key) == "rejected";
    if (of_pair && ranking && name.empty()) {
      entry.fail(fmt::format("has ranking without a column {}", column.key));
    }
    const std::string_view known = column.column;
    const bool of_alpaca =
        known == "instruction" || known == "input" || known == "output" || known == "history";
    const bool is_read = alpaca ? known != "messages" : !of_alpaca;
    source->columns.emplace(column.column, !is_read || (of_pair && !ranking) ? "" : name);
  }
}

void take_tags(const JsonView& entry, SourceOptions* source) {
  const bool named = entry.has("tags");
  if (named) {
    std::vector<std::string> known;
    for (const auto& tag : kInfoTags) {
      known.push_back(tag.key);
    }
    expect_keys(entry.at("tags"), known);
    for (const char* key : {"role_tag", "content_tag"}) {
      if (!entry.at("tags").has(key)) {
        entry.at("tags").fail(fmt::format("has no {}", key));
      }
    }
  }
  for (const auto& tag : kInfoTags) {
    source->tags.emplace(tag.key,
                         named ? entry.at("tags").get_string(tag.key, "") : std::string(tag.usual));
  }
}

/// Warns if a file is another one than the entry says. Line ends may differ between platforms, so
/// that this is no error, as in LLaMA-Factory. The system's sha1sum computes it.
void compare_sha1(const JsonView& entry, const std::string& path) {
  if (!entry.has("file_sha1") || !file_exists(path) || is_directory(path)) return;
  constexpr size_t kDigits = 40;
  std::string wanted = entry.get_string("file_sha1");
  std::transform(wanted.begin(), wanted.end(), wanted.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::string found;
  try {
    found = run_command("sha1sum < " + shell_quoted(path), "", "sha1sum").substr(0, kDigits);
  } catch (const Error& error) {
    log_warning("{}: file_sha1 was not compared: {}", path, error.what());
    return;
  }
  if (found != wanted) {
    log_warning("{} has the SHA-1 {}; {} says file_sha1 {}: it is another file, or was changed",
                path, found, entry.where(), wanted);
  }
}

}  // namespace

SourceOptions resolve_dataset_info(const SourceOptions& source) {
  const bool folder = is_directory(source.path);
  const std::string path = folder ? join_path(source.path, kInfo) : source.path;
  if (file_name(path) != kInfo || !file_exists(path)) return source;
  const nlohmann::json json = read_json(path);
  const JsonView info(json, path);
  if (source.name.empty()) {
    fail(source.key, "{} has several data sets; expected the name of one: {}; try name: {}", path,
         shown_names(info), json.empty() ? "NAME" : info.keys()[0]);
  }
  if (!info.has(source.name)) {
    const std::string close = nearest(source.name, info.keys());
    fail(source.key, "{} has no entry {}; expected one of {}{}", path, quote(source.name),
         shown_names(info), close.empty() ? "" : fmt::format("; try name: {}", close));
  }
  if (source.format != "auto" || !source.columns.empty() || !source.tags.empty()) {
    fail(source.key, "{} says format, columns and tags of {}; expected none of these here", path,
         quote(source.name));
  }
  const JsonView entry = info.at(source.name);
  refuse_others(entry);
  SourceOptions result = source;
  result.path = join_path(parent_path(path), entry.get_string("file_name"));
  compare_sha1(entry, result.path);
  result.text_lines = true;  // each line of a text file is a document there
  const std::string formatting = entry.get_string("formatting", "alpaca");
  const bool ranking = entry.get_bool("ranking", false);
  take_columns(entry, ranking, formatting == "alpaca", &result);
  const bool answers =
      ranking || !result.columns["output"].empty() || !result.columns["label"].empty();
  if (formatting == "alpaca" && !answers) {
    // Without an answer the prompt is plain text.
    for (const char* column : {"input", "history", "system", "tools"}) {
      if (!result.columns[column].empty()) {
        entry.fail(
            fmt::format("has a prompt without a response, and {} beside it; expected the "
                        "prompt alone, as text",
                        result.columns[column]));
      }
    }
    result.format = "text";
    result.columns = {{"text", result.columns["instruction"]}};
  } else if (formatting == "alpaca") {
    result.format = "alpaca";
  } else if (formatting == "sharegpt" || formatting == "openai") {
    result.format = formatting == "openai" ? "chat" : "sharegpt";
    take_tags(entry, &result);
  } else {
    entry.fail(fmt::format("has the formatting {}; expected alpaca, sharegpt or openai",
                           quote(formatting)));
  }
  return result;
}

}  // namespace hocket::data
