// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/small_float.h"
#include "base/text.h"
#include "checkpoint/safetensors_header.h"

namespace hocket::checkpoint {

using graph::DType;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace {

/// Largest index file that is read.
constexpr int64_t kMaxIndexBytes = 100'000'000;
/// Buffer for conversions and streamed tensors, 1 MiB.
constexpr int64_t kChunkBytes = int64_t{1} << 20;
constexpr const char* kIndexFile = "model.safetensors.index.json";

/// Converts with a single rounding from any source type: going through float would round a double
/// twice.
template <typename To>
Stored<To> rounded(double x) {
  if constexpr (kIsSmallFloat<To>) {
    return To::encode(x);
  } else {
    return static_cast<To>(x);
  }
}

template <typename From, typename To>
void convert_floats(const char* src, int64_t count, void* dst) {
  auto* out = static_cast<Stored<To>*>(dst);
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(out, src, static_cast<size_t>(count) * sizeof(*out));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    Stored<From> value;  // the file's data need not be aligned
    std::memcpy(&value, src + i * static_cast<int64_t>(sizeof(value)), sizeof(value));
    out[i] = rounded<To>(number<From>(value));
  }
}

template <typename From, typename To>
bool convert_integers(const char* src, int64_t count, void* dst) {
  auto* out = static_cast<To*>(dst);
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, src + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    const auto wide = static_cast<int64_t>(value);
    if (wide < std::numeric_limits<To>::min() || wide > std::numeric_limits<To>::max()) {
      return false;
    }
    out[i] = static_cast<To>(wide);
  }
  return true;
}

template <typename To>
bool read_floats(StoredType type, const char* src, int64_t count, void* dst) {
  switch (type) {
    case StoredType::f32:
      return convert_floats<float, To>(src, count, dst), true;
    case StoredType::f64:
      return convert_floats<double, To>(src, count, dst), true;
    case StoredType::bf16:
      return convert_floats<Bf16, To>(src, count, dst), true;
    case StoredType::f16:
      return convert_floats<F16, To>(src, count, dst), true;
    default:
      return false;
  }
}

enum class Outcome { ok, wrong_type, out_of_range };

template <typename To>
Outcome read_integers(StoredType type, const char* src, int64_t count, void* dst) {
  bool fits = false;
  switch (type) {
    case StoredType::i64:
      fits = convert_integers<int64_t, To>(src, count, dst);
      break;
    case StoredType::i32:
      fits = convert_integers<int32_t, To>(src, count, dst);
      break;
    case StoredType::u8:
    case StoredType::boolean:
      fits = convert_integers<uint8_t, To>(src, count, dst);
      break;
    default:
      return Outcome::wrong_type;
  }
  return fits ? Outcome::ok : Outcome::out_of_range;
}

Outcome convert(StoredType type, const char* src, int64_t count, DType dtype, void* dst) {
  const auto as = [](bool ok) { return ok ? Outcome::ok : Outcome::wrong_type; };
  switch (dtype) {
    case DType::f32:
      return as(read_floats<float>(type, src, count, dst));
    case DType::f64:
      return as(read_floats<double>(type, src, count, dst));
    case DType::bf16:
      return as(read_floats<Bf16>(type, src, count, dst));
    case DType::f16:
      return as(read_floats<F16>(type, src, count, dst));
    case DType::i32:
      return read_integers<int32_t>(type, src, count, dst);
    case DType::i64:
      return read_integers<int64_t>(type, src, count, dst);
    default:
      return Outcome::wrong_type;
  }
}

}  // namespace

StoredType stored_type(DType dtype) {
  constexpr std::pair<DType, StoredType> kSame[] = {
      {DType::f32, StoredType::f32},         {DType::f64, StoredType::f64},
      {DType::bf16, StoredType::bf16},       {DType::f16, StoredType::f16},
      {DType::f8_e4m3, StoredType::f8_e4m3}, {DType::f8_e5m2, StoredType::f8_e5m2},
      {DType::i64, StoredType::i64},         {DType::i32, StoredType::i32},
      {DType::i8, StoredType::i8},           {DType::u8, StoredType::u8}};
  for (const auto& [ours, stored] : kSame) {
    if (ours == dtype) return stored;
  }
  fail("safetensors", "elements of type {} are neither read nor written", graph::to_string(dtype));
}

std::optional<DType> floating_type(StoredType type) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    if (stored_type(dtype) == type) return dtype;
  }
  return {};
}

DType common_type(DType a, DType b) {
  if (a == b) return a;
  return a == DType::f64 || b == DType::f64 ? DType::f64 : DType::f32;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  Header header = read_header(file_);
  set_tensors(std::move(header.tensors));
  metadata_ = std::move(header.metadata);
}

void TensorFile::set_tensors(std::vector<StoredTensor> tensors) {
  tensors_ = std::move(tensors);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    by_name_.emplace(tensors_[i].name, i);
  }
}

const StoredTensor* TensorFile::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

void SafetensorsFile::read(const StoredTensor& tensor, int64_t first, int64_t count, DType dtype,
                           void* dst) const {
  // Floating-point types convert into each other with rounding; integers must fit; floating-point
  // types and integers do not convert into each other.
  HOCKET_CHECK(first >= 0 && count >= 0 && first <= tensor.numel - count,
               "{}: elements {} + {} of {}", tensor.name, first, count, tensor.numel);
  // Elements of the same type are read straight into the destination, others through a buffer.
  const int64_t size = size_of(tensor.type);
  const int64_t begin = tensor.begin + first * size;
  if (tensor.type == stored_type(dtype)) {
    file_.read(begin, dst, static_cast<size_t>(count * size));
    return;
  }
  std::string chunk(static_cast<size_t>(std::min(count * size, kChunkBytes)), '\0');
  const int64_t step = kChunkBytes / size, wide = graph::size_of(dtype);
  Outcome outcome = Outcome::ok;
  for (int64_t at = 0; at < count && outcome == Outcome::ok; at += step) {
    const int64_t now = std::min(step, count - at);
    file_.read(begin + at * size, chunk.data(), static_cast<size_t>(now * size));
    outcome = convert(tensor.type, chunk.data(), now, dtype, static_cast<char*>(dst) + at * wide);
  }
  if (outcome == Outcome::wrong_type) {
    fail(path(), "tensor {} is stored as {}; expected {}", quote(tensor.name),
         to_string(tensor.type),
         graph::is_floating(dtype) ? "F32, F64, BF16 or F16" : "I64, I32, U8 or BOOL");
  }
  if (outcome == Outcome::out_of_range) {
    fail(path(), "tensor {} has a value beyond the range of {}", quote(tensor.name),
         graph::to_string(dtype));
  }
}

bool has_safetensors(const std::string& folder) {
  return file_exists(join_path(folder, kModelFile)) || file_exists(join_path(folder, kIndexFile));
}

TensorFiles::TensorFiles(std::unique_ptr<TensorFile> file) : path_(file->path()) {
  add_file(std::move(file));
}

void TensorFiles::add_file(std::unique_ptr<TensorFile> opened) {
  files_.push_back(std::move(opened));
  const TensorFile& file = *files_.back();
  for (const StoredTensor& stored : file.tensors()) {
    const auto [it, fresh] = entries_.emplace(stored.name, Entry{&file, &stored});
    if (!fresh) {
      fail(file.path(), "tensor {} is also in {}; expected it once", quote(stored.name),
           it->second.file->path());
    }
  }
}

TensorFiles::TensorFiles(const std::string& path) : path_(path) {
  std::string index = path;
  if (is_directory(path)) {
    const std::string single = join_path(path, kModelFile);
    index = join_path(path, kIndexFile);
    if (file_exists(single)) {
      add_file(std::make_unique<SafetensorsFile>(single));
      return;
    }
    if (!file_exists(index)) {
      fail(path, "no {} and no {}; expected weights in safetensors form", kModelFile, kIndexFile);
    }
  } else if (!path.ends_with(".json")) {
    add_file(std::make_unique<SafetensorsFile>(path));
    return;
  }
  const nlohmann::json object = read_json(index, {.max_depth = 8, .max_bytes = kMaxIndexBytes});
  const JsonView map = JsonView(object, index).at("weight_map");
  if (!map.is_object()) {
    map.fail("is not an object; expected one from tensor names to files");
  }
  std::vector<std::string> shards;
  for (const auto& [name, file] : map.json().items()) {
    if (!file.is_string()) fail(index, "weight_map {} is not a file name", quote(name));
    const auto& shard = file.get_ref<const std::string&>();
    // A shard lies beside its index, so the index may not name a path outside of its folder.
    if (shard.empty() || shard.find('/') != shard.npos || shard.find('\0') != shard.npos ||
        shard[0] == '.') {
      fail(index, "weight_map {} names {}; expected a file of the same folder", quote(name),
           quote(shard));
    }
    shards.push_back(shard);
  }
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  allow_open_files(std::ssize(shards));
  for (const std::string& shard : shards) {
    const std::string file = join_path(parent_path(index), shard);
    if (!file_exists(file)) {
      fail(index, "names {}, which does not exist; expected all {} shards in one folder",
           quote(shard), shards.size());
    }
    add_file(std::make_unique<SafetensorsFile>(file));
  }
  for (const auto& [name, file] : map.json().items()) {
    const Entry entry = find(name);
    const std::string expected = join_path(parent_path(index), file.get<std::string>());
    if (entry.file == nullptr) {
      absent_.emplace(name, expected);
    } else if (entry.file->path() != expected) {
      fail(index, "says that {} holds tensor {}; {} does", expected, quote(name),
           entry.file->path());
    }
  }
}

TensorFiles::Entry TensorFiles::find(std::string_view name) const {
  auto it = entries_.find(name);
  return it == entries_.end() ? Entry{} : it->second;
}

std::vector<std::string> TensorFiles::names() const {
  std::vector<std::string> list;
  for (const auto& item : entries_) {
    list.push_back(item.first);
  }
  return list;
}

void TensorFiles::read(std::string_view name, DType dtype, int64_t numel, void* dst) const {
  const Entry entry = find(name);
  if (entry.file == nullptr) fail(path_, "tensor {} is missing", quote(name));
  if (entry.tensor->numel != numel) {
    fail(entry.file->path(), "tensor {} has {} elements; expected {}", quote(name),
         entry.tensor->numel, numel);
  }
  entry.file->read(*entry.tensor, 0, numel, dtype, dst);
}

namespace {

int64_t bytes_of(const graph::TensorType& type) {
  int64_t bytes = graph::size_of(type.dtype);
  for (int64_t dim : type.dims) {
    bytes *= dim;
  }
  return bytes;
}

}  // namespace

FileLayout lay_out(const std::vector<NamedTensor>& tensors,
                   std::map<std::string, std::string> metadata) {
  // Tensors with larger elements come first, so that every tensor is aligned to its elements if the
  // data begins at a multiple of 8. The header is padded for that.
  FileLayout layout;
  for (size_t i = 0; i < tensors.size(); ++i) {
    layout.order.push_back(i);
  }
  std::sort(layout.order.begin(), layout.order.end(), [&](size_t i, size_t k) {
    const NamedTensor &a = tensors[i], &b = tensors[k];
    const int64_t x = graph::size_of(a.type.dtype), y = graph::size_of(b.type.dtype);
    return x != y ? x > y : a.name < b.name;
  });
  metadata.emplace("format", "pt");
  JsonWriter header;
  header.object().key("__metadata__").object();
  for (const auto& [key, value] : metadata) {
    header.member(key, value);
  }
  header.end();
  int64_t offset = 0;
  std::set<std::string_view> names;
  layout.begin.resize(tensors.size());
  for (const size_t i : layout.order) {
    const NamedTensor& tensor = tensors[i];
    HOCKET_CHECK(names.insert(tensor.name).second, "tensor {} is given twice", tensor.name);
    HOCKET_CHECK(!tensor.type.encoding, "tensor {} is {}", tensor.name, to_string(tensor.type));
    const int64_t bytes = bytes_of(tensor.type);
    header.key(tensor.name).object();
    header.member("dtype", to_string(stored_type(tensor.type.dtype)));
    header.member("shape", graph::sizes(tensor.type.dims));
    header.member("data_offsets", std::vector<int64_t>{offset, offset + bytes}).end();
    layout.begin[i] = offset;
    offset += bytes;
  }
  std::string text = header.end().take();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  layout.header.assign(reinterpret_cast<const char*>(&length), sizeof length);
  layout.header += text;
  const auto data_begin = static_cast<int64_t>(layout.header.size());
  for (int64_t& begin : layout.begin) {
    begin += data_begin;
  }
  layout.bytes = data_begin + offset;
  return layout;
}

int64_t write_safetensors(FileWriter& out, const std::vector<NamedTensor>& tensors,
                          std::map<std::string, std::string> metadata) {
  // Writes the header, then the tensors, chunk by chunk if they come so.
  const FileLayout layout = lay_out(tensors, std::move(metadata));
  out.write(layout.header);
  std::string chunk;
  for (const size_t i : layout.order) {
    const NamedTensor& tensor = tensors[i];
    const int64_t size = graph::size_of(tensor.type.dtype);
    const int64_t count = bytes_of(tensor.type) / size;
    if (tensor.data != nullptr || count == 0) {
      out.write(tensor.data, static_cast<size_t>(count * size));
      continue;
    }
    HOCKET_CHECK(tensor.read != nullptr, "tensor {} has no data", tensor.name);
    const int64_t step = kChunkBytes / size;
    chunk.resize(static_cast<size_t>(kChunkBytes));
    for (int64_t first = 0; first < count; first += step) {
      const int64_t n = std::min(step, count - first);
      tensor.read(first, n, chunk.data());
      out.write(chunk.data(), static_cast<size_t>(n * size));
    }
  }
  return layout.bytes;
}

void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                      std::map<std::string, std::string> metadata) {
  write_output(path, [&](FileWriter& out) { write_safetensors(out, tensors, metadata); });
}

}  // namespace hocket::checkpoint
