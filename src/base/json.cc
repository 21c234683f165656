// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/ordered_json.h"
#include "base/text.h"

namespace hocket {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxOrderedKeys = 10'000;  // finding one is a scan

std::string position(std::string_view text, size_t offset) {
  offset = std::min(offset, text.size());
  int line = 1;
  size_t start = 0;
  for (size_t i = 0; i < offset; ++i) {
    if (text[i] == '\n') {
      ++line;
      start = i + 1;
    }
  }
  return fmt::format("line {}, column {}", line, offset - start + 1);
}

/// Returns the text after the first `mark`, or all of it without one.
std::string after_first(std::string_view text, std::string_view mark) {
  const size_t at = text.find(mark);
  return std::string(at == std::string_view::npos ? text : text.substr(at + mark.size()));
}

// Builds the document and stops at the first breach of a limit.
template <class Document>
class Builder : public nlohmann::json_sax<Document> {
 public:
  using typename nlohmann::json_sax<Document>::number_integer_t;
  using typename nlohmann::json_sax<Document>::number_unsigned_t;
  using typename nlohmann::json_sax<Document>::number_float_t;
  using typename nlohmann::json_sax<Document>::string_t;
  using typename nlohmann::json_sax<Document>::binary_t;
  /// Refuses integers beyond 64 bits and objects with very many keys if `exact`.
  Builder(int max_depth, bool exact) : max_depth_(max_depth), exact_(exact) {}

  Document root;
  std::string error;
  bool is_unsupported = false;  ///< the error is a limit of this reader, in valid JSON
  size_t error_at = SIZE_MAX;

  bool null() override { return value(Document(nullptr)); }
  bool boolean(bool v) override { return value(Document(v)); }
  bool number_integer(number_integer_t number) override { return value(Document(number)); }
  bool number_unsigned(number_unsigned_t number) override { return value(Document(number)); }
  bool number_float(number_float_t number, const string_t& digits) override {
    if (exact_ && digits.find_first_of(".eE") == string_t::npos) {
      return beyond(
          fmt::format("the integer {} is beyond 64 bits; try it as a string", quote(digits)));
    }
    return value(Document(number));
  }
  bool string(string_t& text) override { return value(Document(std::move(text))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Document::object()); }
  bool start_array(size_t) override { return open(Document::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (stack_.back()->contains(name)) {
      error = fmt::format("key {} appears twice in one object", quote(name));
      return false;
    }
    if (exact_ && stack_.back()->size() == kMaxOrderedKeys) {
      return beyond(fmt::format("{} has more than {} keys, the most of an object",
                                names_.back().empty() ? "an object" : quote(names_.back(), 60),
                                kMaxOrderedKeys));
    }
    key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t at, const std::string&,
                   const nlohmann::detail::exception& exception) override {
    // "[json.exception...] parse error at line 1, column 2: syntax error while parsing value - ..."
    constexpr int kSyntax = 101;
    error = after_first(exception.what(), ": ");
    if (error.starts_with("attempting to parse an empty input")) {  // since 3.11
      error = "unexpected end of input";
    } else if (exception.id == kSyntax) {
      error = after_first(error, " - ");
    }
    error_at = at == 0 ? 0 : at - 1;
    return false;
  }

 private:
  bool beyond(std::string limit) {
    error = std::move(limit);
    is_unsupported = true;
    return false;
  }
  Document* place(Document&& v) {
    if (stack_.empty()) {
      root = std::move(v);
      return &root;
    }
    Document& top = *stack_.back();
    if (top.is_array()) {
      top.push_back(std::move(v));
      return &top.back();
    }
    return &(top[key_] = std::move(v));
  }
  bool value(Document&& v) {
    place(std::move(v));
    return true;
  }
  bool open(Document&& v) {
    if (static_cast<int>(stack_.size()) >= max_depth_) {
      return beyond(fmt::format("nested too deep; expected at most {} levels", max_depth_));
    }
    if (exact_) {
      const bool is_member = !stack_.empty() && stack_.back()->is_object();
      names_.push_back(is_member ? key_ : "");
    }
    stack_.push_back(place(std::move(v)));
    return true;
  }
  bool close() {
    stack_.pop_back();
    if (exact_) {
      names_.pop_back();
    }
    return true;
  }

  const int max_depth_;
  const bool exact_;
  std::vector<Document*> stack_;
  std::vector<std::string> names_;  // of what is open, if `exact`; "": it has none
  std::string key_;
};

std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (value.is_string()) return quote(value.get_ref<const std::string&>());
  return value.dump();
}

template <class Document>
Document parse_as(std::string_view text, const std::string& where, const JsonLimits& limits,
                  bool exact) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    fail(where, "JSON too long; got {} bytes; expected at most {}", text.size(), limits.max_bytes);
  }
  Builder<Document> builder(limits.max_depth, exact);
  bool good = false;
  try {
    good = Document::sax_parse(text.begin(), text.end(), &builder);
  } catch (const nlohmann::detail::exception& exception) {
    builder.error = exception.what();
  }
  if (!good) {
    const std::string at =
        builder.error_at != SIZE_MAX ? position(text, builder.error_at) + ": " : "";
    fail(where, "{} JSON; {}{}", builder.is_unsupported ? "unsupported" : "not valid", at,
         builder.error);
  }
  return std::move(builder.root);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  return parse_as<Json>(text, where, limits, false);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where,
                                          const JsonLimits& limits) {
  return parse_as<nlohmann::ordered_json>(text, where, limits, true);
}

Json read_json(const std::string& path, const JsonLimits& limits) {
  return parse_json(read_file(path, limits.max_bytes), path, limits);
}

JsonView::JsonView(const Json& value, std::string where) : JsonView(value, std::move(where), "") {}
JsonView::JsonView(const Json& value, std::string where, std::string path)
    : value_(&value), where_(std::move(where)), path_(std::move(path)) {}

void JsonView::fail(const std::string& what) const {
  hocket::fail(where_, "{} {}", path_.empty() ? "the document" : path_, what);
}

void JsonView::wrong_type(const char* expected) const {
  fail(fmt::format("is {}; expected {}", shown(*value_), expected));
}

bool JsonView::has(std::string_view key) const {
  if (!value_->is_object()) {
    wrong_type("an object");
  }
  const auto it = value_->find(std::string(key));
  return it != value_->end() && !it->is_null();
}

JsonView JsonView::at(std::string_view key) const {
  if (!value_->is_object()) {
    wrong_type("an object");
  }
  const std::string name(key);
  const std::string path = path_.empty() ? name : path_ + "." + name;
  const auto it = value_->find(name);
  if (it == value_->end() || it->is_null()) {
    const std::string close = nearest(key, keys());
    hocket::fail(where_, "{} is {}{}", path, it == value_->end() ? "missing" : "null",
                 close.empty() || close == name ? "" : fmt::format("; there is '{}'", close));
  }
  return {*it, where_, path};
}

JsonView JsonView::at(size_t index) const {
  if (!value_->is_array()) {
    wrong_type("an array");
  }
  if (index >= value_->size()) {
    fail(fmt::format("has {} elements; expected more than {}", value_->size(), index));
  }
  return {(*value_)[index], where_, fmt::format("{}[{}]", path_, index)};
}

size_t JsonView::size() const {
  if (!value_->is_structured()) {
    wrong_type("an array or object");
  }
  return value_->size();
}

std::vector<std::string> JsonView::keys() const {
  if (!value_->is_object()) {
    wrong_type("an object");
  }
  std::vector<std::string> out;
  for (auto it = value_->begin(); it != value_->end(); ++it) {
    out.push_back(it.key());
  }
  return out;
}

bool JsonView::is_object() const { return value_->is_object(); }
bool JsonView::is_array() const { return value_->is_array(); }
bool JsonView::is_string() const { return value_->is_string(); }
bool JsonView::is_number() const { return value_->is_number(); }
bool JsonView::is_bool() const { return value_->is_boolean(); }
bool JsonView::is_null() const { return value_->is_null(); }

bool JsonView::as_bool() const {
  if (!value_->is_boolean()) {
    wrong_type("true or false");
  }
  return value_->get<bool>();
}

int64_t JsonView::as_int() const {
  if (value_->is_number_unsigned()) {
    const auto v = value_->get<uint64_t>();
    if (v > static_cast<uint64_t>(INT64_MAX)) {
      wrong_type("an integer below 2^63");
    }
    return static_cast<int64_t>(v);
  }
  if (value_->is_number_integer()) return value_->get<int64_t>();
  if (value_->is_number_float()) {
    const double v = value_->get<double>();
    if (v == std::floor(v) && std::fabs(v) <= 0x1p53) return static_cast<int64_t>(v);
  }
  wrong_type("an integer");
}

double JsonView::as_double() const {
  if (!value_->is_number()) {
    wrong_type("a number");
  }
  return value_->get<double>();
}

const std::string& JsonView::as_string() const {
  if (!value_->is_string()) {
    wrong_type("a string");
  }
  return value_->get_ref<const std::string&>();
}

std::vector<int64_t> JsonView::as_ints() const {
  if (!value_->is_array()) {
    wrong_type("an array of integers");
  }
  std::vector<int64_t> out;
  out.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    out.push_back(at(i).as_int());
  }
  return out;
}

std::vector<std::string> JsonView::as_strings() const {
  if (!value_->is_array()) {
    wrong_type("an array of strings");
  }
  std::vector<std::string> out;
  out.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    out.push_back(at(i).as_string());
  }
  return out;
}

bool JsonView::get_bool(std::string_view key, bool otherwise) const {
  return has(key) ? at(key).as_bool() : otherwise;
}
int64_t JsonView::get_int(std::string_view key, int64_t otherwise) const {
  return has(key) ? at(key).as_int() : otherwise;
}
double JsonView::get_double(std::string_view key, double otherwise) const {
  return has(key) ? at(key).as_double() : otherwise;
}
std::string JsonView::get_string(std::string_view key, const std::string& otherwise) const {
  return has(key) ? at(key).as_string() : otherwise;
}

}  // namespace hocket
