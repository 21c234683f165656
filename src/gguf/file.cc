// SPDX-License-Identifier: Apache-2.0
#include "gguf/file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/math.h"
#include "base/text.h"
#include "graph/elements.h"

namespace hocket::gguf {

static_assert(std::endian::native == std::endian::little, "GGUF files are read little-endian");

namespace {

/// Bound of the bytes before the data: published files have up to some 20 MB of tokens and merges.
constexpr int64_t kMaxHeadBytes = int64_t{1} << 28;
constexpr size_t kMaxNameBytes = 1024;  // of keys and tensors
constexpr int kMaxNesting = 8;          // arrays in arrays
constexpr int64_t kMaxAlignment = int64_t{1} << 20;
constexpr int64_t kReadAhead = int64_t{1} << 20;
/// Fewest bytes of a key with its value, and of a tensor's description.
constexpr int64_t kMinKeyBytes = 8 + 4 + 1, kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

/// Reads the head of a file from front to back. Errors name the field that is being read.
class HeadReader {
 public:
  explicit HeadReader(const RandomFile& file)
      : file_(file), end_(std::min(file.size(), kMaxHeadBytes)) {}

  int64_t at() const { return at_; }
  int64_t left() const { return end_ - at_; }
  void set_field(std::string field) { field_ = std::move(field); }
  const std::string& field() const { return field_; }

  template <class T>
  T number() {
    T value;
    take(&value, sizeof value);
    return value;
  }

  std::string string(int64_t limit) {
    const auto length = number<uint64_t>();
    if (length > static_cast<uint64_t>(std::min(limit, left()))) {
      fail(file_.path(), "{} claims {} bytes; expected at most {}", field_, length,
           std::min(limit, left()));
    }
    std::string text(length, '\0');
    take(text.data(), text.size());
    return text;
  }

  /// Returns a count of things that take at least `least` bytes each.
  int64_t count(int64_t least, const char* what) {
    const auto number = this->number<uint64_t>();
    if (number > static_cast<uint64_t>(left() / least)) {
      fail(file_.path(), "{} claims {} {}; the {} bytes after it hold at most {}", field_, number,
           what, left(), left() / least);
    }
    return static_cast<int64_t>(number);
  }

  void take(void* to, size_t bytes) {
    if (static_cast<int64_t>(bytes) > left()) {
      fail(file_.path(), "{} ends beyond {}: the file is truncated or damaged", field_,
           end_ < file_.size() ? fmt::format("the {} bytes that a head may have", end_)
                               : fmt::format("the file's {} bytes", end_));
    }
    auto* out = static_cast<char*>(to);
    while (bytes > 0) {
      if (at_ < ahead_at_ || at_ >= ahead_at_ + std::ssize(ahead_)) {
        ahead_at_ = at_;
        ahead_.resize(static_cast<size_t>(std::min(kReadAhead, left())));
        file_.read(ahead_at_, ahead_.data(), ahead_.size());
      }
      const auto skip = static_cast<size_t>(at_ - ahead_at_);
      const size_t now = std::min(bytes, ahead_.size() - skip);
      std::memcpy(out, ahead_.data() + skip, now);
      out += now;
      bytes -= now;
      at_ += static_cast<int64_t>(now);
    }
  }

 private:
  const RandomFile& file_;
  const int64_t end_;
  int64_t at_ = 0;
  int64_t ahead_at_ = 0;
  std::string ahead_;
  std::string field_ = "the header";
};

int64_t read_integer(HeadReader& in, ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::boolean:
      return in.number<uint8_t>();
    case ValueType::i8:
      return in.number<int8_t>();
    case ValueType::u16:
      return in.number<uint16_t>();
    case ValueType::i16:
      return in.number<int16_t>();
    case ValueType::u32:
      return in.number<uint32_t>();
    case ValueType::i32:
      return in.number<int32_t>();
    default:
      return in.number<int64_t>();
  }
}

double read_real(HeadReader& in, ValueType type) {
  return type == ValueType::f32 ? static_cast<double>(in.number<float>()) : in.number<double>();
}

bool is_real(ValueType type) { return type == ValueType::f32 || type == ValueType::f64; }

ValueType read_type(HeadReader& in, const std::string& where) {
  const auto type = in.number<uint32_t>();
  if (type > static_cast<uint32_t>(ValueType::f64)) {
    fail(where, "{} has a value of type {}; expected 0 to {}", in.field(), type,
         static_cast<uint32_t>(ValueType::f64));
  }
  return static_cast<ValueType>(type);
}

Value read_value(HeadReader& in, ValueType type, const std::string& where, int nesting);

Value read_array(HeadReader& in, const std::string& where, int nesting) {
  if (nesting >= kMaxNesting) {
    fail(where, "{} has arrays {} deep; expected at most {}", in.field(), nesting + 1, kMaxNesting);
  }
  Value value{ValueType::array, read_type(in, where), {}};
  const int64_t bytes = size_of(value.element);
  // A string takes its length, an array the type and number of its elements.
  const int64_t least = bytes > 0 ? bytes : value.element == ValueType::string ? 8 : 12;
  const int64_t count = in.count(least, "elements");
  if (value.element == ValueType::string) {
    std::vector<std::string> list(static_cast<size_t>(count));
    for (std::string& text : list) {
      text = in.string(in.left());
    }
    value.data = std::move(list);
  } else if (value.element == ValueType::array) {
    std::vector<Value> list;
    for (int64_t i = 0; i < count; ++i) {
      list.push_back(read_array(in, where, nesting + 1));
    }
    value.data = std::move(list);
  } else if (is_real(value.element)) {
    std::vector<double> list(static_cast<size_t>(count));
    for (double& number : list) {
      number = read_real(in, value.element);
    }
    value.data = std::move(list);
  } else {
    std::vector<int64_t> list(static_cast<size_t>(count));
    for (int64_t& number : list) {
      number = read_integer(in, value.element);
    }
    value.data = std::move(list);
  }
  return value;
}

Value read_value(HeadReader& in, ValueType type, const std::string& where, int nesting) {
  if (type == ValueType::array) return read_array(in, where, nesting);
  Value value{type, {}, {}};
  if (type == ValueType::string) {
    value.data = in.string(in.left());
  } else if (is_real(type)) {
    value.data = read_real(in, type);
  } else {
    value.data = read_integer(in, type);
  }
  return value;
}

/// Counts of the header.
struct Counts {
  int64_t tensors = 0;
  int64_t keys = 0;
};

Counts read_counts(HeadReader& in, const std::string& where) {
  char magic[4];
  in.take(magic, sizeof magic);
  if (std::string_view(magic, sizeof magic) != kMagic) {
    fail(where, "not a GGUF file: begins with {}; expected {}",
         quote(std::string_view(magic, sizeof magic)), kMagic);
  }
  const auto version = in.number<uint32_t>();
  if (version != 2 && version != kVersion) {
    fail(where, "the GGUF version is {}{}; expected 2 or {}", version,
         version != 0 && version % 65536 == 0 ? ", of a big-endian file" : "", kVersion);
  }
  Counts counts;
  in.set_field("the number of tensors");
  counts.tensors = in.count(kMinTensorBytes, "tensors");
  in.set_field("the number of keys");
  counts.keys = in.count(kMinKeyBytes, "keys");
  return counts;
}

StoredTensor read_tensor(HeadReader& in, int64_t number, const std::string& where) {
  in.set_field(fmt::format("the name of tensor {}", number));
  StoredTensor tensor;
  tensor.name = in.string(kMaxNameBytes);
  const std::string shown = quote(tensor.name);
  in.set_field(fmt::format("tensor {}", shown));
  const auto rank = in.number<uint32_t>();
  if (rank > kMaxRank) {
    fail(where, "tensor {} has {} dims; expected at most {}", shown, rank, kMaxRank);
  }
  std::vector<uint64_t> dims(rank);
  for (uint64_t& dim : dims) {
    dim = in.number<uint64_t>();
  }
  const auto type = in.number<uint32_t>();
  const BlockFormat* format = find_format(type);
  if (format == nullptr) {
    fail(where, "tensor {} is stored as {}, which is not read; expected {}", shown, type_name(type),
         readable_types());
  }
  tensor.type = format->type;
  // A number of elements whose bytes, and those of f64, are below 2^63.
  for (const uint64_t dim : dims) {
    if (dim < 1 || dim > static_cast<uint64_t>((INT64_MAX >> 4) / tensor.numel)) {
      fail(where, "tensor {} has dims [{}]; expected 1 or more each, and a product below 2^59",
           shown, fmt::join(dims, ","));
    }
    tensor.numel *= static_cast<int64_t>(dim);
  }
  const uint64_t row = dims.empty() ? 1 : dims[0];
  if (row % static_cast<uint64_t>(format->elements) != 0) {
    fail(where, "tensor {} has rows of {} elements; expected a multiple of {}, a block of {}",
         shown, row, format->elements, format->name);
  }
  tensor.dims = graph::Dims(dims.rbegin(), dims.rend());
  const auto offset = in.number<uint64_t>();
  if (offset > static_cast<uint64_t>(INT64_MAX)) {
    fail(where, "tensor {} has offset {}; expected less than 2^63", shown, offset);
  }
  tensor.begin = static_cast<int64_t>(offset);
  return tensor;
}

int64_t alignment_of(const Metadata& metadata) {
  const int64_t alignment = metadata.integer(kAlignmentKey, kDefaultAlignment);
  if (alignment < 1 || alignment > kMaxAlignment ||
      !std::has_single_bit(static_cast<uint64_t>(alignment))) {
    metadata.fail(kAlignmentKey,
                  fmt::format("is {}; expected a power of two up to {}", alignment, kMaxAlignment));
  }
  return alignment;
}

/// Turns offsets into places of the file. Requires tensors that follow each other, each aligned,
/// as the reference implementation does.
void place_tensors(std::vector<StoredTensor>& tensors, int64_t head_bytes, int64_t alignment,
                   int64_t file_bytes, const std::string& where) {
  const int64_t data = round_up(head_bytes, alignment);
  int64_t offset = 0;
  for (StoredTensor& tensor : tensors) {
    if (tensor.begin != offset) {
      fail(where, "tensor {} has offset {}; expected {}, the end of the tensor before it",
           quote(tensor.name), tensor.begin, offset);
    }
    const int64_t bytes = tensor.bytes();
    if (bytes > file_bytes - data - offset) {
      fail(where, "tensor {} ends at byte {} of {}: the file is truncated", quote(tensor.name),
           data + offset + bytes, file_bytes);
    }
    tensor.begin += data;
    offset = round_up(offset + bytes, alignment);
  }
}

}  // namespace

bool is_gguf(const std::string& path) {
  if (!file_exists(path) || is_directory(path)) return false;
  bool begins = false;
  read_pieces(path, [&](std::string_view piece) {
    begins = piece.starts_with(kMagic);
    return false;
  });
  return begins;
}

File::File(const std::string& path) : file_(path), metadata_(path) {
  HeadReader in(file_);
  const Counts counts = read_counts(in, path);
  for (int64_t i = 0; i < counts.keys; ++i) {
    in.set_field(fmt::format("the name of key {}", i));
    std::string key = in.string(kMaxNameBytes);
    in.set_field(fmt::format("key {}", quote(key)));
    const ValueType type = read_type(in, path);
    metadata_.add(std::move(key), read_value(in, type, path, 0));
  }
  for (int64_t i = 0; i < counts.tensors; ++i) {
    tensors_.push_back(read_tensor(in, i, path));
    if (!by_name_.emplace(tensors_.back().name, i).second) {
      fail(path, "tensor {} is given twice", quote(tensors_.back().name));
    }
  }
  place_tensors(tensors_, in.at(), alignment_of(metadata_), file_.size(), path);
}

const StoredTensor* File::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

void File::read(const StoredTensor& tensor, int64_t first, int64_t count, graph::DType dtype,
                void* dst, float add) const {
  HOCKET_CHECK(first >= 0 && count >= 0 && first <= tensor.numel - count,
               "{}: elements {} + {} of {}", tensor.name, first, count, tensor.numel);
  const BlockFormat& format = format_of(tensor.type);
  const int64_t most = std::max<int64_t>(kReadAhead / format.bytes, 1);  // blocks at a time
  const int64_t last = ceil_div(first + count, format.elements);
  int64_t block = first / format.elements;
  const int64_t held = std::min(most, last - block);
  std::vector<uint8_t> raw(static_cast<size_t>(held * format.bytes));
  std::vector<float> numbers(static_cast<size_t>(held * format.elements));
  auto* out = static_cast<char*>(dst);
  for (int64_t at = first; at < first + count;) {
    const int64_t now = std::min(most, last - block);
    file_.read(tensor.begin + block * format.bytes, raw.data(),
               static_cast<size_t>(now * format.bytes));
    format.decode(raw.data(), now, numbers.data());
    const int64_t skip = at - block * format.elements;
    const int64_t taken = std::min(now * format.elements - skip, first + count - at);
    if (add != 0) {
      std::for_each_n(numbers.begin() + skip, taken, [add](float& number) { number += add; });
    }
    graph::write_numbers(
        std::span(numbers).subspan(static_cast<size_t>(skip), static_cast<size_t>(taken)), dtype,
        out);
    out += taken * graph::size_of(dtype);
    at += taken;
    block += now;
  }
}

}  // namespace hocket::gguf
