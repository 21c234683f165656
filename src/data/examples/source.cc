// SPDX-License-Identifier: Apache-2.0
#include "data/examples/source.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json_writer.h"
#include "base/ordered_json.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/examples/bytes.h"
#include "data/examples/convert.h"
#include "data/examples/files.h"
#include "data/examples/records.h"
#include "data/examples/token_files.h"
#include "data/split.h"

namespace hocket::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxUnreadable = 1000;  // unreadable examples before the first readable one

bool has_nul(const Json& value) {
  if (value.is_string()) {
    return value.get_ref<const std::string&>().find('\0') != std::string::npos;
  }
  return value.is_structured() && std::any_of(value.begin(), value.end(), has_nul);
}

void refuse_nul(const Example& example) {
  const bool found =
      example.text.find('\0') != std::string::npos ||
      std::ranges::any_of(std::initializer_list<const Json*>{&example.messages, &example.prompt,
                                                             &example.completion, &example.chosen,
                                                             &example.rejected, &example.tools,
                                                             &example.template_variables},
                          [](const Json* value) { return has_nul(*value); });
  if (found) fail("example", "its text has a NUL character");
}

/// Removes keys with null below a value: a table has every key in every row.
void drop_nulls(Json* value) {
  if (value->is_object()) {
    for (auto it = value->begin(); it != value->end();) {
      it = it->is_null() ? value->erase(it) : std::next(it);
    }
  }
  if (value->is_structured()) {
    for (Json& item : *value) {
      drop_nulls(&item);
    }
  }
}

/// Returns the text of an error without a line that is counted from the example's own.
std::string reason_of(std::string_view text) {
  constexpr std::string_view kOwnLine = "line 1, ";
  std::string reason(text);
  const size_t at = reason.find(kOwnLine);
  return at == reason.npos ? reason : reason.erase(at, kOwnLine.size());
}

/// Reads the files of one source, and keeps its report.
class SourceReader {
 public:
  /// Makes an example of an object; throws Error for one that cannot be used.
  using Convert = std::function<void(Json&& object, Example* made)>;
  using Take = std::function<bool(Example&&)>;
  SourceReader(const SourceOptions& options, Convert convert, const Take& take)
      : options_(options), convert_(std::move(convert)), take_(take) {}

  ReadReport read() {
    const std::vector<DataFile> files = list_data_files(options_, &report_.left_out);
    for (const DataFile& file : files) {
      if (ended_) break;
      read_file(file);
    }
    report_.format = files[0].kind == DataFile::Kind::tokens ? "tokens" : "";
    if (!ended_) {
      judge();
    }
    return std::move(report_);
  }

 private:
  void read_file(const DataFile& file) {
    ++report_.files;
    if (file.kind == DataFile::Kind::tokens) return read_tokens(file);
    using Form = RecordReader::Form;
    const bool text = file.kind == DataFile::Kind::text;
    const bool table = file.kind == DataFile::Kind::table;
    const Form form = table                 ? Form::lines
                      : !text               ? Form::json
                      : options_.text_lines ? Form::lines
                                            : Form::whole;
    RecordReader reader(table ? open_table(file.path) : open_bytes(file.path), file.path, form,
                        options_.max_example_bytes);
    Record record;
    while (!ended_ && reader.next(&record)) {
      Example example;
      example.file = file.path;
      example.line = record.line;
      example.entry = record.entry;
      add(std::move(example), [&](Example* made) {
        if (record.too_long) {
          too_long(text && !options_.text_lines ? "; try text_lines" : "");
        }
        convert_(text ? text_object(record.text) : object_of(record.text, table), made);
      });
    }
  }

  void read_tokens(const DataFile& file) {
    if (options_.format != "auto") {
      fail(options_.key, "{}.idx has tokens and no columns; expected format: auto", file.path);
    }
    TokenFiles tokens(file.path);
    for (int64_t i = 0; i < tokens.documents() && !ended_; ++i) {
      Example example;
      example.kind = Example::Kind::tokens;
      example.file = file.path + ".bin";
      example.line = i + 1;
      add(std::move(example), [&](Example* made) {
        if (tokens.bytes_of(i) > options_.max_example_bytes) {
          too_long("");
        }
        made->ids = tokens.read(i);
        if (made->ids.empty()) fail("example", "the document has no tokens");
      });
    }
  }

  /// Hands an example on, or names it with the reason why it cannot be used.
  template <class Make>
  void add(Example&& example, const Make& make) {
    try {
      make(&example);
      refuse_nul(example);
    } catch (const Error& error) {
      ++report_.unreadable;
      if (report_.first_unreadable.size() < ReadReport::kNamed) {
        report_.first_unreadable.push_back(
            fmt::format("{}: {}", example.place(), reason_of(error.text())));
      }
      if (report_.examples == 0 && report_.unreadable >= kMaxUnreadable) {
        judge();
      }
      return;
    }
    ++report_.examples;
    ended_ = !take_(std::move(example));
  }

  [[noreturn]] void too_long(const char* advice) const {
    fail("example", "it has more than {} bytes (max_example_bytes){}", options_.max_example_bytes,
         advice);
  }

  Json text_object(std::string& text) const {
    if (!is_utf8(text)) {
      fail("example", "byte {} of it is no UTF-8", utf8_valid_until(text, 0));
    }
    const auto name = options_.columns.find("text");
    Json object = Json::object();
    object[name == options_.columns.end() ? "text" : name->second] = std::move(text);
    return object;
  }

  Json object_of(const std::string& text, bool table) const {
    if (trim(text) == "{") {
      fail("example",
           "an object begins that goes on in the next line; expected one object a line, "
           "or a list of them");
    }
    Json object = parse_ordered_json(text, "example");
    if (table) {
      drop_nulls(&object);
    }
    return object;
  }

  // Refuses the source where too much of it cannot be used.
  void judge() const {
    const std::string& path = options_.path;
    const int64_t all = report_.examples + report_.unreadable;
    if (all == 0) {
      fail(options_.key, "{} has no examples: {} empty; expected at least one", path,
           report_.files == 1 ? "it is" : fmt::format("its {} files are", report_.files));
    }
    const bool too_many = static_cast<double>(report_.unreadable) >
                          options_.max_unreadable * static_cast<double>(all);
    if (!too_many && report_.examples > 0) return;
    constexpr size_t kShown = 5;
    const auto& first = report_.first_unreadable;
    const std::vector<std::string> shown(first.begin(),
                                         first.begin() + std::min(first.size(), kShown));
    fail(options_.key,
         "{} of {} of {} cannot be used; expected at most the share {} (max_unreadable); the "
         "first: {}",
         report_.unreadable, counted(all, "example"), path, options_.max_unreadable,
         join(shown, "; "));
  }

  const SourceOptions options_;
  const Convert convert_;
  const Take& take_;
  ReadReport report_;
  bool ended_ = false;
};

void add_text(Hasher& hasher, const std::string& text) {
  hasher.add(text.size()).add(std::string_view(text));
}

template <class Count>
void put_counts(JsonWriter& json, const char* key, const Count& counts) {
  json.key(key).object();
  for (const auto& [name, count] : counts) {
    json.member(name, count);
  }
  json.end();
}

}  // namespace

JsonWriter& ReadReport::put(JsonWriter& json) const {
  json.member("format", format).member("layout", layout).member("files", files);
  json.member("examples", examples).member("unreadable", unreadable);
  json.member("first_unreadable", first_unreadable);
  put_counts(json, "ignored_columns", ignored_columns);
  put_counts(json, "left_out", left_out);
  return json;
}

ReadReport read_source(const SourceOptions& options, const std::function<bool(Example&&)>& take) {
  const SourceOptions resolved = resolve_dataset_info(options);
  Converter converter(resolved);
  const auto convert = [&](Json&& object, Example* made) { converter.convert(object, made); };
  bool ended = false;
  const std::function<bool(Example &&)> take_one = [&](Example&& example) {
    ended = !take(std::move(example));
    return !ended;
  };
  ReadReport report = SourceReader(resolved, convert, take_one).read();
  if (!ended) {
    converter.expect_columns(options.columns, options.key);
  }
  if (report.format.empty()) {
    report.format = converter.format();
  }
  report.layout = converter.layout();
  report.ignored_columns = converter.ignored();
  return report;
}

ReadReport read_objects(const SourceOptions& options,
                        const std::function<bool(Json&& object, const std::string& place)>& take) {
  bool goes_on = true;
  const auto convert = [&](Json&& object, Example* made) {
    if (!object.is_object()) fail("example", "it is no object");
    goes_on = take(std::move(object), made->place());
  };
  ReadReport report = SourceReader(resolve_dataset_info(options), convert, [&](Example&&) {
                        return goes_on;
                      }).read();
  if (report.format == "tokens") {
    fail(options.key, "{} has tokens and no columns; expected JSON or a table", options.path);
  }
  return report;
}

Hash128 content_hash(const Example& example) {
  Hasher hasher;
  hasher.add(static_cast<uint64_t>(example.kind)).add(uint64_t{example.label});
  add_text(hasher, example.text);
  for (const Json* value :
       {&example.messages, &example.prompt, &example.completion, &example.chosen, &example.rejected,
        &example.tools, &example.template_variables}) {
    add_text(hasher, value->is_null() ? "" : value->dump());
  }
  hasher.add(example.ids.size());
  for (const int32_t id : example.ids) {
    hasher.add(static_cast<uint64_t>(id));
  }
  return hasher.finish();
}

std::vector<bool> hold_out(const std::vector<Hash128>& contents, double share, uint64_t seed,
                           int64_t least) {
  std::vector<bool> held(contents.size(), false);
  if (!(share >= 0 && share < 1)) {
    fail("data", "the share {} is held out; expected 0 or more, and less than 1", share);
  }
  if (share == 0 || contents.empty()) return held;
  const auto draw = [&](const Hash128& content) {
    return std::pair(split_draw(content, seed), content);
  };
  std::vector<std::pair<double, Hash128>> order;
  for (const Hash128& content : contents) {
    order.push_back(draw(content));
  }
  std::sort(order.begin(), order.end());
  if (order.front() == order.back()) {
    fail("data", "{} with one content: nothing can be held out; try more examples, or share 0",
         counted(std::ssize(contents), "example"));
  }
  const auto drawn = std::partition_point(order.begin(), order.end(),
                                          [&](const auto& one) { return one.first < share; });
  const auto few = std::min<int64_t>(std::max<int64_t>(least, 1), std::ssize(order) / 2);
  const int64_t count = std::clamp<int64_t>(drawn - order.begin(), few, std::ssize(order) - few);
  // Contents equal to the last one go with it, all or none: whichever leaves both sides enough, and
  // is nearer to the count. Nothing on one side is the furthest from enough.
  const auto cost = [&](auto end) {
    const int64_t held_out = end - order.begin(), trained = order.end() - end;
    const int64_t lacking = std::max<int64_t>(few - std::min(held_out, trained), 0);
    return std::pair(lacking, std::abs(held_out - count));
  };
  const auto [none, all] = std::equal_range(order.begin(), order.end(), order[count - 1]);
  const auto first = cost(all) <= cost(none) ? all : none;  // that is not held out
  for (size_t i = 0; i < contents.size(); ++i) {
    held[i] = draw(contents[i]) < *first;
  }
  return held;
}

}  // namespace hocket::data
