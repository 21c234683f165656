// SPDX-License-Identifier: Apache-2.0
// Blocks and files against the fixtures that tests/peers/gguf/make.py wrote with the package gguf.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "gguf/file.h"
#include "gguf/writer.h"
#include "tests/checkpoint/checkpoint_util.h"

namespace hocket::gguf {
namespace {

std::string fixture(const std::string& name) {
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  return std::string(root == nullptr ? "." : root) + "/tests/peers/gguf/fixtures/" + name;
}

const nlohmann::json& fixtures() {
  static const nlohmann::json json = read_json(fixture("blocks.json"));
  return json;
}

std::vector<uint8_t> bytes_of(const nlohmann::json& hex) {
  const auto& text = hex.get_ref<const std::string&>();
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<float> floats_of(const nlohmann::json& hex) {
  const std::vector<uint8_t> bytes = bytes_of(hex);
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

const BlockFormat& format_named(const std::string& name) {
  for (uint32_t type = 0; type < 100; ++type) {
    const BlockFormat* format = find_format(type);
    if (format != nullptr && name == format->name) return *format;
  }
  ADD_FAILURE() << name;
  return format_of(ElementType::f32);
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& want,
                      const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    // A NaN of small types has more than one form.
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
        << what << " element " << i << ": " << got[i] << ", expected " << want[i];
  }
}

TEST(GgufPeers, EveryTypeIsDecodedBitByBit) {
  const nlohmann::json& decoded = fixtures()["decoded"];
  EXPECT_EQ(decoded.size(), 11u);
  for (const auto& [name, sample] : decoded.items()) {
    const BlockFormat& format = format_named(name);
    const std::vector<uint8_t> blocks = bytes_of(sample["blocks"]);
    const int64_t count = std::ssize(blocks) / format.bytes;
    ASSERT_EQ(count * format.bytes, std::ssize(blocks)) << name;
    std::vector<float> numbers(static_cast<size_t>(count * format.elements));
    format.decode(blocks.data(), count, numbers.data());
    expect_same_bits(numbers, floats_of(sample["numbers"]), name);
  }
}

TEST(GgufPeers, TypesToWriteAreEncodedBitByBit) {
  const nlohmann::json& encoded = fixtures()["encoded"];
  const std::vector<float> numbers = floats_of(encoded["numbers"]);
  for (const std::string name : {"F16", "BF16", "Q8_0"}) {
    const BlockFormat& format = format_named(name);
    const int64_t count = std::ssize(numbers) / format.elements;
    std::vector<uint8_t> blocks(static_cast<size_t>(count * format.bytes));
    ASSERT_TRUE(format.encode(numbers.data(), count, blocks.data())) << name;
    EXPECT_EQ(blocks, bytes_of(encoded[name])) << name;
  }
}

TEST(GgufPeers, AFileOfEveryTypeIsReadAndWrittenAgain) {
  const std::string path = fixture("every_type.gguf");
  const File file(path);
  const Metadata& metadata = file.metadata();
  EXPECT_EQ(metadata.string("general.architecture"), "llama");
  EXPECT_EQ(metadata.integer("test.u8"), 200);
  EXPECT_EQ(metadata.integer("test.i8"), -100);
  EXPECT_EQ(metadata.integer("test.u16"), 60000);
  EXPECT_EQ(metadata.integer("test.i16"), -30000);
  EXPECT_EQ(metadata.integer("test.u32"), 4000000000);
  EXPECT_EQ(metadata.integer("test.i32"), -2000000000);
  EXPECT_EQ(metadata.integer("test.i64"), -(int64_t{1} << 62));
  EXPECT_NE(checkpoint::error_of([&] { metadata.integer("test.u64"); }).find("9223372036854775813"),
            std::string::npos);
  EXPECT_EQ(metadata.number("test.f32"), static_cast<double>(0.1f));
  EXPECT_EQ(metadata.number("test.f64"), 0.1);
  EXPECT_EQ(metadata.number("test.i8"), -100);
  EXPECT_TRUE(metadata.boolean("test.bool", false));
  EXPECT_EQ(metadata.string("test.string"), "zwölf\n");
  EXPECT_EQ(metadata.strings("test.strings"), (std::vector<std::string>{"a", "", "Ġ b"}));
  EXPECT_EQ(metadata.integers("test.ints"), (std::vector<int64_t>{3, -1, 4}));
  const nlohmann::json& tensors = fixtures()["tensors"];
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, want] : tensors.items()) {
    const StoredTensor* tensor = file.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(format_of(tensor->type).name, want["type"]);
    EXPECT_EQ(graph::sizes(tensor->dims), want["dims"].get<std::vector<int64_t>>());
    std::vector<float> numbers(static_cast<size_t>(tensor->numel));
    file.read(*tensor, 0, tensor->numel, graph::DType::f32, numbers.data());
    expect_same_bits(numbers, floats_of(want["numbers"]), name);
  }

  // The same keys and the tensors of writable types, by the package's writer and by ours: the bytes
  // of the head up to the first tensor's description are equal.
  const checkpoint::TempFolder folder;
  std::vector<OutputTensor> outputs;
  for (const StoredTensor& tensor : file.tensors()) {
    if (format_of(tensor.type).encode == nullptr || tensor.type == ElementType::q8_0) continue;
    outputs.push_back({tensor.name, tensor.type, tensor.dims,
                       [&file, &tensor](int64_t first, int64_t count, float* numbers) {
                         file.read(tensor, first, count, graph::DType::f32, numbers);
                       }});
  }
  ASSERT_EQ(outputs.size(), 3u);
  const std::string copy = folder / "copy.gguf";
  const int64_t bytes = save_gguf(copy, metadata, outputs);
  EXPECT_EQ(bytes, file_size(copy));
  const File again(copy);
  EXPECT_EQ(again.metadata().entries(), metadata.entries());
  const std::string ours = read_file(copy), theirs = read_file(path);
  const size_t keys = theirs.find(outputs[0].name);
  ASSERT_NE(keys, std::string::npos);
  EXPECT_EQ(ours.substr(16, keys - 16), theirs.substr(16, keys - 16));
  for (const OutputTensor& output : outputs) {
    const StoredTensor& from = *file.find(output.name);
    const StoredTensor& to = *again.find(output.name);
    EXPECT_EQ(to.begin % 64, 0);
    EXPECT_EQ(to.dims, from.dims);
    EXPECT_EQ(ours.substr(to.begin, to.bytes()), theirs.substr(from.begin, from.bytes()));
  }
}

}  // namespace
}  // namespace hocket::gguf
