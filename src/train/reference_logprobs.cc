// SPDX-License-Identifier: Apache-2.0
// The file: a line of JSON (format, version, key, per_row, tables by name and number of rows), per
// table its row numbers (i64) and their values (f64, per_row of each), and the XXH3-64 of all
// before; little-endian.
#include "train/reference_logprobs.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/json_writer.h"

namespace hocket::train {

static_assert(std::endian::native == std::endian::little);

namespace {

constexpr const char* kFormat = "hocket-reference-logprobs";
constexpr int64_t kVersion = 1;

template <typename T>
void append(std::string* out, const std::vector<T>& values) {
  out->append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

/// Takes `count` numbers from the front of `bytes`. False: there are less.
template <typename T>
bool read(std::string_view* bytes, size_t count, std::vector<T>* out) {
  if (bytes->size() / sizeof(T) < count) return false;
  out->resize(count);
  std::memcpy(out->data(), bytes->data(), count * sizeof(T));
  bytes->remove_prefix(count * sizeof(T));
  return true;
}

}  // namespace

bool ReferenceLogprobs::has(const std::string& table, const std::vector<int64_t>& rows) const {
  const auto found = tables_.find(table);
  return std::all_of(rows.begin(), rows.end(), [&](int64_t row) {
    return row < 0 || (found != tables_.end() && found->second.places.contains(row));
  });
}

void ReferenceLogprobs::put(const std::string& table, const std::vector<int64_t>& rows,
                            std::span<const double> values) {
  HOCKET_CHECK(std::ssize(values) == std::ssize(rows) * per_row_, "{} values of {} rows of {}",
               values.size(), rows.size(), per_row_);
  Table& to = tables_[table];
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || !to.places.emplace(rows[i], to.places.size()).second) continue;
    const auto of_row =
        values.subspan(i * static_cast<size_t>(per_row_), static_cast<size_t>(per_row_));
    to.values.insert(to.values.end(), of_row.begin(), of_row.end());
  }
}

std::vector<double> ReferenceLogprobs::of(const std::string& table,
                                          const std::vector<int64_t>& rows) const {
  HOCKET_CHECK(has(table, rows), "rows of {} have no log-probabilities of the reference", table);
  const auto n = static_cast<size_t>(per_row_);
  std::vector<double> out(rows.size() * n, 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0) continue;
    const Table& from = tables_.at(table);
    std::copy_n(from.values.begin() + static_cast<int64_t>(from.places.at(rows[i]) * n), n,
                out.begin() + static_cast<int64_t>(i * n));
  }
  return out;
}

bool ReferenceLogprobs::keep_only(const std::vector<std::string>& tables) {
  const size_t dropped = std::erase_if(tables_, [&](const auto& named) {
    return std::find(tables.begin(), tables.end(), named.first) == tables.end();
  });
  return dropped > 0 && tables_.size() < tables.size();
}

int64_t ReferenceLogprobs::size(const std::string& table) const {
  const auto found = tables_.find(table);
  return found == tables_.end() ? 0 : std::ssize(found->second.places);
}

std::string ReferenceLogprobs::to_bytes() const {
  JsonWriter head;
  head.object().member("format", kFormat).member("version", kVersion).member("key", key_);
  head.member("per_row", per_row_).key("tables").array();
  for (const auto& [name, table] : tables_) {
    head.object().member("name", name).member("rows", table.places.size()).end();
  }
  std::string out = head.end().end().take() + "\n";
  for (const auto& [name, table] : tables_) {
    std::vector<int64_t> rows(table.places.size());
    for (const auto& [row, place] : table.places) {
      rows[place] = row;
    }
    append(&out, rows);
    append(&out, table.values);
  }
  append(&out, std::vector<uint64_t>{hash64(out)});
  return out;
}

bool ReferenceLogprobs::take(std::string_view bytes, const std::string& path) {
  const auto damaged = [&]() { fail(path, "is damaged; remove it, and it is made again"); };
  const size_t line = bytes.find('\n');
  if (line == bytes.npos || bytes.size() < line + 1 + sizeof(uint64_t)) {
    damaged();
  }
  uint64_t hash = 0;
  std::memcpy(&hash, bytes.data() + bytes.size() - sizeof hash, sizeof hash);
  if (hash != hash64(bytes.substr(0, bytes.size() - sizeof hash))) {
    damaged();
  }
  const nlohmann::json json = parse_json(std::string(bytes.substr(0, line)), path);
  const JsonView head(json, path);
  if (head.get_string("format") != kFormat || head.get_int("version") != kVersion) {
    damaged();
  }
  if (head.get_string("key") != key_ || head.get_int("per_row") != per_row_) return false;
  std::string_view rest = bytes.substr(line + 1, bytes.size() - line - 1 - sizeof hash);
  for (const nlohmann::json& table : json.at("tables")) {
    const JsonView of(table, path);
    const auto count = static_cast<size_t>(of.get_int("rows"));
    std::vector<int64_t> rows;
    std::vector<double> values;
    if (!read(&rest, count, &rows) ||
        !read(&rest, count * static_cast<size_t>(per_row_), &values)) {
      damaged();
    }
    put(of.get_string("name"), rows, values);
  }
  return true;
}

}  // namespace hocket::train
