// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/id.h"
#include "base/text.h"

namespace hocket::checkpoint {
namespace {

using nlohmann::json;

// Header limit of the reference implementation.
constexpr uint64_t kMaxHeader = 100'000'000;
constexpr int64_t kLengthBytes = 8;  // size of the length field before the header
/// Most dims of a tensor.
constexpr size_t kMaxRank = 16;

constexpr struct {
  StoredType type;
  const char* name;
  int64_t size;
} kTypes[] = {{StoredType::f32, "F32", 4},        {StoredType::f64, "F64", 8},
              {StoredType::bf16, "BF16", 2},      {StoredType::f16, "F16", 2},
              {StoredType::i64, "I64", 8},        {StoredType::i32, "I32", 4},
              {StoredType::i16, "I16", 2},        {StoredType::i8, "I8", 1},
              {StoredType::u64, "U64", 8},        {StoredType::u32, "U32", 4},
              {StoredType::u16, "U16", 2},        {StoredType::u8, "U8", 1},
              {StoredType::boolean, "BOOL", 1},   {StoredType::f8_e4m3, "F8_E4M3", 1},
              {StoredType::f8_e5m2, "F8_E5M2", 1}};

// SAX handler that turns JSON events into tensors. Depth 1 is the outer object, 2 a tensor or the
// metadata, 3 a list of a tensor.
class Events : public json::json_sax_t {
 public:
  Events(Header& header, const std::string& where) : header_(header), where_(where) {}

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool number_float(double, const std::string& text) override {
    return unexpected("the number " + quote(text, 40));
  }
  bool number_integer(int64_t value) override {
    return unexpected(fmt::format("the number {}", value));
  }
  bool number_unsigned(uint64_t value) override {
    if (depth_ != 3) return unexpected(fmt::format("the number {}", value));
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      fail(where_, "tensor {}: {} has the number {}; expected less than 2^63", quote(name_), key_,
           value);
    }
    if (list_->size() >= kMaxRank) {
      fail(where_, "tensor {}: {} has more than {} entries", quote(name_), key_, kMaxRank);
    }
    list_->push_back(static_cast<int64_t>(value));
    return true;
  }
  bool string(std::string& value) override {
    if (depth_ == 2 && in_metadata_) {
      if (!header_.metadata.emplace(key_, value).second) {
        fail(where_, "the header's metadata has {} twice", quote(key_));
      }
      return true;
    }
    if (depth_ != 2 || key_ != "dtype") return unexpected("the string " + quote(value, 40));
    for (const auto& t : kTypes) {
      if (value != t.name) continue;
      tensor_.type = t.type;
      has_dtype_ = true;
      return true;
    }
    fail(where_,
         "tensor {}: dtype {} is not supported; expected F32, F64, BF16, F16, I64, I32, U8 "
         "or BOOL",
         quote(name_), quote(value, 40));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool start_object(size_t) override {
    if (depth_ >= 2) return unexpected("an object");
    if (++depth_ == 2) {
      in_metadata_ = name_ == "__metadata__";
      tensor_ = {};
      shape_.clear();
      offsets_.clear();
      has_dtype_ = has_shape_ = has_offsets_ = false;
    }
    return true;
  }
  bool key(std::string& key) override {
    if (depth_ == 1) {
      name_ = key;
      return true;
    }
    key_ = key;
    if (in_metadata_) return true;
    bool* seen = key == "dtype"          ? &has_dtype_
                 : key == "shape"        ? &has_shape_
                 : key == "data_offsets" ? &has_offsets_
                                         : nullptr;
    if (seen == nullptr) {
      fail(where_, "tensor {}: unknown key {}; expected dtype, shape and data_offsets",
           quote(name_), quote(key, 40));
    }
    if (*seen) fail(where_, "tensor {}: {} is given twice", quote(name_), key);
    return true;
  }
  bool end_object() override {
    if (depth_-- != 2 || in_metadata_) return true;
    if (!has_dtype_ || !has_shape_ || !has_offsets_) {
      fail(where_, "tensor {}: {} is missing", quote(name_),
           !has_dtype_   ? "dtype"
           : !has_shape_ ? "shape"
                         : "data_offsets");
    }
    finish_tensor();
    return true;
  }
  bool start_array(size_t) override {
    const bool shape = depth_ == 2 && !in_metadata_ && key_ == "shape";
    const bool offsets = depth_ == 2 && !in_metadata_ && key_ == "data_offsets";
    if (!shape && !offsets) return unexpected("a list");
    list_ = shape ? &shape_ : &offsets_;
    (shape ? has_shape_ : has_offsets_) = true;
    depth_ = 3;
    return true;
  }
  bool end_array() override {
    depth_ = 2;
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& exception) override {
    fail(where_, "the header is not valid JSON (byte {}): {}", position,
         quote(exception.what(), 160));
  }

 private:
  bool unexpected(const std::string& what) {
    if (depth_ == 0) fail(where_, "the header is {}; expected an object", what);
    if (depth_ == 1) fail(where_, "tensor {} is {}; expected an object", quote(name_), what);
    if (in_metadata_) {
      fail(where_, "the header's metadata {} is {}; expected a string", quote(key_), what);
    }
    fail(where_, "tensor {}: {} holds {}; expected {}", quote(name_), key_, what,
         key_ == "dtype" ? "a string" : "whole numbers from 0");
  }

  void finish_tensor() {
    int64_t bytes = size_of(tensor_.type);
    tensor_.numel = 1;
    // A zero dim makes the tensor empty, however large the other dims are.
    const bool empty = std::find(shape_.begin(), shape_.end(), 0) != shape_.end();
    for (int64_t d : shape_) {
      if (empty) break;
      if (__builtin_mul_overflow(bytes, d, &bytes)) {
        fail(where_, "tensor {}: shape [{}] overflows", quote(name_), fmt::join(shape_, ","));
      }
      tensor_.numel *= d;
    }
    if (empty) {
      bytes = tensor_.numel = 0;
    }
    if (offsets_.size() != 2 || offsets_[1] < offsets_[0] || offsets_[1] - offsets_[0] != bytes) {
      fail(where_,
           "tensor {}: data_offsets are [{}]; expected two that lie {} bytes apart for {} [{}]",
           quote(name_), fmt::join(offsets_, ","), bytes, to_string(tensor_.type),
           fmt::join(shape_, ","));
    }
    tensor_.name = name_;
    tensor_.dims = graph::Dims(shape_.begin(), shape_.end());
    tensor_.begin = offsets_[0];
    header_.tensors.push_back(tensor_);
  }

  Header& header_;
  const std::string& where_;
  int depth_ = 0;
  bool in_metadata_ = false;
  std::string name_, key_;
  StoredTensor tensor_;
  std::vector<int64_t> shape_, offsets_;
  std::vector<int64_t>* list_ = nullptr;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
};

// Requires unique names, and data without gaps or overlaps up to the end of the file. Sorts the
// tensors by offset.
void check_places(Header& header, int64_t data_begin, int64_t data_bytes,
                  const std::string& where) {
  auto& list = header.tensors;
  std::vector<std::string_view> names;
  for (const StoredTensor& stored : list) {
    names.push_back(stored.name);
  }
  std::sort(names.begin(), names.end());
  if (auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    fail(where, "tensor {} appears twice", quote(*twice));
  }
  std::sort(list.begin(), list.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::make_pair(a.begin, a.bytes()) < std::make_pair(b.begin, b.bytes());
  });
  int64_t end = 0;
  for (StoredTensor& stored : list) {
    if (stored.begin != end) {
      fail(where, "tensor {}: its data begins at byte {}, which {} the data before it; expected {}",
           quote(stored.name), stored.begin, stored.begin < end ? "overlaps" : "leaves a gap to",
           end);
    }
    if (stored.bytes() > data_bytes - end) {
      fail(where, "tensor {}: its data ends at byte {} of {}: the file is truncated",
           quote(stored.name), stored.begin + stored.bytes(), data_bytes);
    }
    end += stored.bytes();
    stored.begin += data_begin;
  }
  if (end != data_bytes) {
    fail(where, "{} bytes of data; got tensors for {}: the file is damaged", data_bytes, end);
  }
}

}  // namespace

int64_t size_of(StoredType type) { return kTypes[place_of(type)].size; }
const char* to_string(StoredType type) { return kTypes[place_of(type)].name; }

Header read_header(const RandomFile& file) {
  // Eight bytes of length, little-endian; that many bytes of JSON; the data. Every number is
  // checked against the file's size before use. The JSON is read as events, so that a large or
  // hostile header never becomes a tree in memory.
  const std::string& where = file.path();
  if (file.size() < kLengthBytes) {
    fail(where, "not a safetensors file: {} bytes; expected at least {}", file.size(),
         kLengthBytes);
  }
  uint64_t length = 0;
  file.read(0, &length, sizeof length);
  if (length > kMaxHeader) {
    fail(where, "the header claims {} bytes; expected at most {}: not a safetensors file", length,
         kMaxHeader);
  }
  const int64_t after = file.size() - kLengthBytes;
  if (static_cast<int64_t>(length) > after) {
    fail(where, "the header claims {} bytes but the file has {} after it begins: truncated", length,
         after);
  }
  std::string text(length, '\0');
  file.read(kLengthBytes, text.data(), text.size());
  if (text.empty() || text[0] != '{') fail(where, "the header does not begin with '{{'");
  Header header;
  Events events(header, where);
  try {
    json::sax_parse(text.begin(), text.end(), &events);
  } catch (const json::exception& exception) {
    fail(where, "the header is not valid JSON: {}", quote(exception.what(), 160));
  }
  const auto data_begin = kLengthBytes + static_cast<int64_t>(length);
  check_places(header, data_begin, file.size() - data_begin, where);
  return header;
}

}  // namespace hocket::checkpoint
