// SPDX-License-Identifier: Apache-2.0
#include "serve/batch/custom_ids.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace hocket::serve {

namespace {

constexpr int64_t kRowsOfRead = 4096;
constexpr int64_t kBytesOfRead = int64_t{8} << 20;
constexpr const char* kKey = "custom_id";

/// Reads a row up to the custom_id of its object.
class IdReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string id;  ///< as JSON; "": none

  bool null() override { return !is_next_; }
  bool boolean(bool) override { return !is_next_; }
  bool number_integer(number_integer_t number) override { return take(number); }
  bool number_unsigned(number_unsigned_t number) override { return take(number); }
  bool number_float(number_float_t, const string_t&) override { return !is_next_; }
  bool string(string_t& text) override { return take(text); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    is_next_ = depth_ == 1 && name == kKey;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  template <class Value>
  bool take(const Value& value) {
    if (is_next_) {
      id = nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
    return !is_next_;
  }
  bool open() {
    ++depth_;
    return !is_next_;
  }
  bool close() { return --depth_ > 0; }

  int64_t depth_ = 0;
  bool is_next_ = false;  ///< the next value is the custom_id
};

std::string id_of(const std::string& row) {
  if (row.find(kKey) == std::string::npos) return "";
  IdReader reader;
  nlohmann::json::sax_parse(row, &reader);
  return std::move(reader.id);
}

}  // namespace

RepeatedIds find_repeated_ids(const InputRows& input, int64_t most_row_bytes) {
  std::vector<std::pair<uint64_t, int64_t>> ids;  // hash, row
  for (int64_t at = 0; at < input.rows();) {
    const int64_t count = std::min(kRowsOfRead, input.rows() - at);
    for (const InputRow& row : input.read(at, count, kBytesOfRead, most_row_bytes)) {
      at = row.row + 1;
      if (const std::string id = id_of(row.text); !id.empty()) {
        ids.emplace_back(hash64(id), row.row);
      }
    }
  }
  std::sort(ids.begin(), ids.end());
  RepeatedIds found;
  for (size_t i = 1; i < ids.size(); ++i) {
    if (ids[i].first != ids[i - 1].first) continue;
    if (found.rows++ == 0 || ids[i].second < found.first) {
      found.first = ids[i].second;
    }
  }
  if (found.rows > 0) {
    found.id = id_of(input.read(found.first, 1, kBytesOfRead, most_row_bytes).at(0).text);
  }
  return found;
}

}  // namespace hocket::serve
