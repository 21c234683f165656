// SPDX-License-Identifier: Apache-2.0
#include "gguf/writer.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/math.h"
#include "base/text.h"
#include "gguf/file.h"

namespace hocket::gguf {
namespace {

/// Numbers that are encoded at a time, a multiple of every block.
constexpr int64_t kPieceElements = int64_t{1} << 18;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_string(std::string& out, std::string_view text) {
  put(out, static_cast<uint64_t>(text.size()));
  out += text;
}

void put_integer(std::string& out, ValueType type, int64_t value) {
  // Two's complement, the lowest bytes first.
  out.append(reinterpret_cast<const char*>(&value), static_cast<size_t>(size_of(type)));
}

void put_real(std::string& out, ValueType type, double value) {
  if (type == ValueType::f32) {
    put(out, static_cast<float>(value));
  } else {
    put(out, value);
  }
}

void put_value(std::string& out, const Value& value);

/// Bodies of arrays, by the kind of their elements.
struct ArrayBody {
  std::string& out;
  ValueType element;
  void operator()(const std::vector<int64_t>& list) const {
    for (const int64_t each : list) {
      put_integer(out, element, each);
    }
  }
  void operator()(const std::vector<double>& list) const {
    for (const double each : list) {
      put_real(out, element, each);
    }
  }
  void operator()(const std::vector<std::string>& list) const {
    for (const std::string& each : list) {
      put_string(out, each);
    }
  }
  void operator()(const std::vector<Value>& list) const {
    for (const Value& each : list) {
      put_value(out, each);
    }
  }
  template <class T>
  void operator()(const T&) const {
    HOCKET_CHECK(false, "an array without elements of type {}", to_string(element));
  }
};

void put_value(std::string& out, const Value& value) {
  if (value.type == ValueType::array) {
    put(out, static_cast<uint32_t>(value.element));
    const size_t count = std::visit(
        [](const auto& data) -> size_t {
          if constexpr (requires { data.size(); }) return data.size();
          return 0;
        },
        value.data);
    put(out, static_cast<uint64_t>(count));
    std::visit(ArrayBody{out, value.element}, value.data);
  } else if (value.type == ValueType::string) {
    put_string(out, std::get<std::string>(value.data));
  } else if (const auto* real = std::get_if<double>(&value.data)) {
    put_real(out, value.type, *real);
  } else {
    put_integer(out, value.type, std::get<int64_t>(value.data));
  }
}

int64_t elements_of(const OutputTensor& tensor) {
  int64_t elements = 1;
  for (const int64_t dim : tensor.dims) {
    elements *= dim;
  }
  return elements;
}

int64_t bytes_of(const OutputTensor& tensor) {
  const BlockFormat& format = format_of(tensor.type);
  return elements_of(tensor) / format.elements * format.bytes;
}

std::string head_of(const Metadata& metadata, const std::vector<OutputTensor>& tensors,
                    int64_t alignment) {
  std::string head(kMagic);
  put(head, kVersion);
  put(head, static_cast<uint64_t>(tensors.size()));
  put(head, static_cast<uint64_t>(metadata.entries().size()));
  for (const auto& [key, value] : metadata.entries()) {
    put_string(head, key);
    put(head, static_cast<uint32_t>(value.type));
    put_value(head, value);
  }
  int64_t offset = 0;
  std::set<std::string_view> names;
  for (const OutputTensor& tensor : tensors) {
    HOCKET_CHECK(names.insert(tensor.name).second, "tensor {} is given twice", tensor.name);
    HOCKET_CHECK(tensor.dims.size() <= kMaxRank, "tensor {} has {} dims", tensor.name,
                 tensor.dims.size());
    const BlockFormat& format = format_of(tensor.type);
    HOCKET_CHECK(!tensor.dims.empty() && tensor.dims.back() % format.elements == 0,
                 "tensor {} has rows that cut a block of {}", tensor.name, format.name);
    put_string(head, tensor.name);
    put(head, static_cast<uint32_t>(tensor.dims.size()));
    for (size_t i = tensor.dims.size(); i-- > 0;) {
      put(head, static_cast<uint64_t>(int64_t{tensor.dims[i]}));
    }
    put(head, static_cast<uint32_t>(tensor.type));
    put(head, static_cast<uint64_t>(offset));
    offset = round_up(offset + bytes_of(tensor), alignment);
  }
  head.resize(static_cast<size_t>(round_up(std::ssize(head), alignment)), '\0');
  return head;
}

void write_data(FileWriter& out, const OutputTensor& tensor, const std::string& path) {
  const BlockFormat& format = format_of(tensor.type);
  HOCKET_CHECK(format.encode != nullptr, "tensor {}: {} is not written", tensor.name, format.name);
  const int64_t elements = elements_of(tensor);
  std::vector<float> numbers(static_cast<size_t>(std::min(kPieceElements, elements)));
  std::vector<uint8_t> blocks;
  for (int64_t first = 0; first < elements; first += kPieceElements) {
    const int64_t now = std::min(kPieceElements, elements - first);
    tensor.read(first, now, numbers.data());
    const int64_t count = now / format.elements;
    blocks.resize(static_cast<size_t>(count * format.bytes));
    if (!format.encode(numbers.data(), count, blocks.data())) {
      fail(path, "tensor {} has a number that {} cannot hold; try another type", quote(tensor.name),
           format.name);
    }
    out.write(blocks.data(), blocks.size());
  }
}

}  // namespace

int64_t save_gguf(const std::string& path, const Metadata& metadata,
                  const std::vector<OutputTensor>& tensors) {
  const int64_t alignment = metadata.integer(kAlignmentKey, kDefaultAlignment);
  const std::string head = head_of(metadata, tensors, alignment);
  int64_t written = 0;
  write_output(path, [&](FileWriter& out) {
    out.write(head);
    for (const OutputTensor& tensor : tensors) {
      write_data(out, tensor, path);
      const int64_t end = out.written();
      out.write(std::string(static_cast<size_t>(round_up(end, alignment) - end), '\0'));
    }
    written = out.written();
  });
  return written;
}

}  // namespace hocket::gguf
