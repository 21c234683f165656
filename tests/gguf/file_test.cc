// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// GGUF reader on hostile and randomly damaged files, reading by range, and the writer's limits.
#include "gguf/file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/rng.h"
#include "base/small_float.h"
#include "gguf/writer.h"
#include "tests/checkpoint/checkpoint_util.h"
#include "tests/fuzz_util.h"

namespace hocket::gguf {
namespace {

using checkpoint::error_of;
using checkpoint::TempFolder;
using graph::DType;

/// Writer of a file's header, field by field.
class Head {
 public:
  Head() { out_ = "GGUF"; }
  template <class T>
  Head& number(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Head& u32(uint32_t value) { return number(value); }
  Head& u64(uint64_t value) { return number(value); }
  Head& string(const std::string& text) {
    u64(text.size());
    out_ += text;
    return *this;
  }
  Head& start(uint64_t tensors, uint64_t keys) { return u32(3).u64(tensors).u64(keys); }
  Head& key(const std::string& name, uint32_t type) { return string(name).u32(type); }
  Head& tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
               uint64_t offset) {
    string(name).u32(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) {
      u64(dim);
    }
    return u32(type).u64(offset);
  }
  /// Returns the header, padded to the alignment, with `bytes` bytes of data behind it.
  std::string with(size_t bytes) const {
    std::string file = out_;
    file.resize((file.size() + 31) / 32 * 32);
    return file + std::string(bytes, '\1');
  }
  std::string text() const { return out_; }

 private:
  std::string out_;
};

Head begin(uint64_t tensors, uint64_t keys) { return Head().start(tensors, keys); }

void write(const std::string& path, const std::string& bytes) {
  remove_file(path);
  FileWriter out(path, FileWriter::Mode::create);
  out.write(bytes);
  out.close();
}

void open_and_read(const std::string& path, const std::string& bytes) {
  write(path, bytes);
  const File file(path);
  for (const StoredTensor& tensor : file.tensors()) {
    std::vector<float> numbers(static_cast<size_t>(tensor.numel));
    file.read(tensor, 0, tensor.numel, DType::f32, numbers.data());
  }
}

void expect_refused(const std::string& bytes, const std::string& part) {
  const TempFolder folder;
  const std::string text = error_of([&] { open_and_read(folder / "x.gguf", bytes); });
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  EXPECT_NE(text.find("x.gguf"), std::string::npos) << text;
}

TEST(Gguf, HostileHeadsAreRefused) {
  const uint64_t huge = ~uint64_t{0};
  expect_refused("", "truncated");
  expect_refused("GGU", "truncated");
  expect_refused("GGML1234", "begins with 'GGML'");
  expect_refused(Head().u32(1).text(), "version is 1");
  expect_refused(Head().u32(0x03000000).text(), "big-endian");
  expect_refused(Head().u32(3).text(), "truncated");
  expect_refused(begin(huge, 0).text(), "number of tensors claims 18446744073709551615");
  expect_refused(begin(0, huge).text(), "number of keys claims 18446744073709551615");
  expect_refused(begin(0, 1).u64(huge).with(8), "name of key 0 claims");
  expect_refused(begin(0, 1).string(std::string(2000, 'k')).with(40), "claims 2000 bytes");
  expect_refused(begin(0, 1).key("k", 13).with(8), "key 'k' has a value of type 13");
  expect_refused(begin(0, 1).key("k", 8).u64(1000).with(8), "key 'k' claims 1000 bytes");
  expect_refused(begin(0, 1).key("k", 9).u32(0).u64(huge).with(8), "key 'k' claims");
  expect_refused(begin(0, 1).key("k", 9).u32(8).u64(1 << 30).with(8), "elements");
  expect_refused(begin(0, 1).key("k", 9).u32(77).u64(1).with(8), "type 77");
  Head nested = begin(0, 1).key("k", 9);
  for (int i = 0; i < 100; ++i) {
    nested.u32(9).u64(1);
  }
  expect_refused(nested.with(64), "deep");
  expect_refused(begin(0, 2).key("k", 0).number<uint8_t>(1).key("k", 0).number<uint8_t>(1).with(8),
                 "key 'k' is given twice");
  expect_refused(begin(0, 1).key("general.alignment", 4).u32(3).with(8), "power of two");
  expect_refused(begin(0, 1).key("general.alignment", 4).u32(0).with(8), "power of two");
  expect_refused(begin(0, 1).key("general.alignment", 8).string("x").with(8), "general.alignment");
  expect_refused(begin(1, 0).tensor("t", {2, 2, 2, 2, 2}, 0, 0).with(256), "5 dims");
  expect_refused(begin(1, 0).tensor("t", {8}, 10, 0).with(64), "stored as Q2_K");
  expect_refused(begin(1, 0).tensor("t", {8}, 99, 0).with(64), "type 99");
  expect_refused(begin(1, 0).tensor("t", {0}, 0, 0).with(64), "dims [0]");
  expect_refused(begin(1, 0).tensor("t", {huge, 2}, 0, 0).with(64), "below 2^59");
  expect_refused(begin(1, 0).tensor("t", {1u << 30, 1u << 30}, 0, 0).with(64), "below 2^59");
  expect_refused(begin(1, 0).tensor("t", {1u << 30, 1u << 28}, 0, 0).with(64), "truncated");
  expect_refused(begin(1, 0).tensor("t", {33}, 8, 0).with(64), "rows of 33 elements");
  expect_refused(begin(1, 0).tensor("t", {8}, 0, huge).with(64), "offset");
  expect_refused(begin(1, 0).tensor("t", {8}, 0, 32).with(64), "expected 0");
  expect_refused(begin(1, 0).tensor("t", {8}, 0, 0).with(31), "truncated");
  expect_refused(begin(2, 0).tensor("a", {8}, 0, 0).tensor("b", {8}, 0, 0).with(64), "expected 32");
  expect_refused(begin(2, 0).tensor("a", {8}, 0, 0).tensor("a", {8}, 0, 32).with(64),
                 "'a' is given twice");
  const TempFolder folder;
  open_and_read(folder / "fine.gguf",
                begin(2, 0).tensor("a", {3}, 0, 0).tensor("b", {8}, 0, 32).with(64));
  open_and_read(folder / "empty.gguf", begin(0, 0).text());
}

TEST(Gguf, GettersNameTheKeyAndTheKind) {
  Metadata metadata("x.gguf");
  metadata.add("s", Value::of_string("a"));
  metadata.add("list", Value::of_i32s({3, 3}));
  metadata.add("uneven", Value::of_i32s({3, 4}));
  metadata.add("none", Value::of_i32s({}));
  metadata.add("flag", Value::of_bool(true));
  metadata.add("half", Value::of_f32(0.5));
  EXPECT_EQ(metadata.integer("list"), 3);
  EXPECT_EQ(metadata.integer("absent", 7), 7);
  const auto expect_error = [&](const std::function<void()>& action, const std::string& part) {
    const std::string text = error_of(action);
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(text.find("x.gguf"), std::string::npos) << text;
  };
  expect_error([&] { metadata.integer("absent"); }, "'absent' is missing");
  expect_error([&] { metadata.integer("s"); }, "'s' is of type string; expected an integer");
  expect_error([&] { metadata.integer("uneven"); }, "differs between layers, 3 and 4");
  expect_error([&] { metadata.integer("none"); }, "empty array");
  expect_error([&] { metadata.integer("flag"); }, "of type bool");
  expect_error([&] { metadata.integer("half"); }, "of type f32");
  expect_error([&] { metadata.boolean("half", true); }, "expected a bool");
  expect_error([&] { metadata.strings("list"); }, "an array of i32; expected an array of strings");
}

/// A tensor of every writable type, with random numbers.
std::string sample(const TempFolder& folder, std::vector<float>* numbers) {
  numbers->resize(64 * 96);
  for (size_t i = 0; i < numbers->size(); ++i) {
    (*numbers)[i] = static_cast<float>(uniform(3, 1, i) - 0.5);
  }
  Metadata metadata;
  metadata.add("general.architecture", Value::of_string("llama"));
  metadata.add("tokens", Value::of_strings({"a", "bc", ""}));
  std::vector<OutputTensor> tensors;
  for (const ElementType type :
       {ElementType::f32, ElementType::f16, ElementType::bf16, ElementType::q8_0}) {
    tensors.push_back(
        {format_of(type).name, type, {64, 96}, [numbers](int64_t first, int64_t count, float* to) {
           std::copy_n(numbers->begin() + first, count, to);
         }});
  }
  const std::string path = folder / "sample.gguf";
  save_gguf(path, metadata, tensors);
  return path;
}

TEST(Gguf, ReadsAnyRangeAsAnyType) {
  const TempFolder folder;
  std::vector<float> numbers;
  const File file(sample(folder, &numbers));
  for (const StoredTensor& tensor : file.tensors()) {
    std::vector<float> whole(numbers.size());
    file.read(tensor, 0, tensor.numel, DType::f32, whole.data());
    const double step = tensor.type == ElementType::f32 ? 0 : 0.5 / 127 / 1.9;
    for (size_t i = 0; i < whole.size(); ++i) {
      ASSERT_NEAR(whole[i], numbers[i], step) << tensor.name << " " << i;
    }
    for (uint64_t draw = 0; draw < 50; ++draw) {
      const auto first = static_cast<int64_t>(uniform(5, 1, draw) * 6143);
      const auto count =
          static_cast<int64_t>(uniform(5, 2, draw) * static_cast<double>(6144 - first));
      std::vector<double> part(static_cast<size_t>(count) + 1, -7);
      file.read(tensor, first, count, DType::f64, part.data());
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(part[i], whole[first + i]) << tensor.name << " " << first << " + " << i;
      }
      ASSERT_EQ(part.back(), -7);
    }
    std::vector<uint16_t> small(numbers.size());
    file.read(tensor, 0, tensor.numel, DType::bf16, small.data());
    ASSERT_EQ(small[17], Bf16::encode(whole[17]));
    file.read(tensor, 0, tensor.numel, DType::f16, small.data());
    ASSERT_EQ(small[17], F16::encode(whole[17]));
  }
}

TEST(Gguf, NumbersWithoutACodeAreNotWritten) {
  const TempFolder folder;
  const auto save = [&](ElementType type, float number) {
    return error_of([&] {
      save_gguf(folder / "x.gguf", Metadata(),
                {{"t", type, {32}, [&](int64_t, int64_t count, float* to) {
                    std::fill_n(to, count, number);
                  }}});
    });
  };
  EXPECT_EQ(save(ElementType::f16, 65504), "");
  EXPECT_NE(save(ElementType::f16, 70000).find("'t' has a number that F16 cannot hold"),
            std::string::npos);
  EXPECT_EQ(save(ElementType::bf16, 70000), "");
  EXPECT_NE(save(ElementType::bf16, std::numeric_limits<float>::max()).find("BF16"),
            std::string::npos);
  EXPECT_EQ(save(ElementType::q8_0, 8e6f), "");
  EXPECT_NE(save(ElementType::q8_0, 1e7f).find("Q8_0"), std::string::npos);
  EXPECT_NE(save(ElementType::q8_0, std::nanf("")).find("Q8_0"), std::string::npos);
  EXPECT_EQ(save(ElementType::f32, std::nanf("")), "");
}

TEST(Gguf, RandomDamageNeverCrashes) {
  const TempFolder folder;
  std::vector<float> numbers;
  const std::string good = read_file(sample(folder, &numbers));
  const size_t head = good.find("Q8_0") + 64;
  int refused = 0;
  for (uint64_t round = 0; round < 3000; ++round) {
    std::string bad = good;
    auto draw = [&, n = uint64_t{0}]() mutable { return uniform(11, round, n++); };
    const int changes = 1 + static_cast<int>(draw() * 3);
    for (int i = 0; i < changes; ++i) {
      const auto at = static_cast<size_t>(draw() * static_cast<double>(head));
      const double kind = draw();
      if (kind < 0.4) {
        bad[at] = static_cast<char>(draw() * 256);
      } else if (kind < 0.7) {
        const uint64_t big =
            draw() < 0.5 ? ~uint64_t{0} : uint64_t{1} << static_cast<int>(draw() * 63);
        std::memcpy(bad.data() + at, &big, sizeof big);
      } else if (kind < 0.85) {
        bad.resize(at + 1);
        bad.resize(std::max(bad.size(), head));
      } else {
        bad.erase(at, static_cast<size_t>(draw() * 16));
        bad.resize(std::max(bad.size(), head));
      }
    }
    try {
      open_and_read(folder / "bad.gguf", bad);
    } catch (const Error& error) {
      ++refused;
      ASSERT_EQ(error.exit_code(), 2) << error.what();
      ASSERT_NE(std::string(error.what()).find("bad.gguf"), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 3000);
}

// HOCKET_FUZZ_SECONDS and HOCKET_SEED: see tests/fuzz_util.h.
TEST(Gguf, MutatedFilesNeitherCrashNorHang) {
  const TempFolder folder;
  std::vector<float> numbers;
  const std::string good = read_file(sample(folder, &numbers));
  const size_t head = good.find("Q8_0") + 64;
  test::fuzz(
      2, [&](Rng* rng) { return test::mutated_bytes(good, head, rng); },
      [&](const std::string& bytes) { open_and_read(folder / "mutated.gguf", bytes); });
}

TEST(Gguf, ATruncationWhileItIsOpenIsAnError) {
  const TempFolder folder;
  std::vector<float> numbers;
  const std::string path = sample(folder, &numbers);
  const File file(path);
  FileWriter(path, FileWriter::Mode::within).set_size(100);
  std::vector<float> got(32);
  try {
    file.read(*file.find("Q8_0"), 0, 32, DType::f32, got.data());
    FAIL() << "read beyond the end";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("sample.gguf"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace hocket::gguf
