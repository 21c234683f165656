// SPDX-License-Identifier: Apache-2.0
// Safetensors reader on valid, hostile and randomly damaged files; conversions; the writer.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>

#include "base/error.h"
#include "base/rng.h"
#include "tests/checkpoint/checkpoint_util.h"
#include "tests/number_util.h"

namespace hocket::checkpoint {
namespace {

using graph::DType;

std::string with_length(uint64_t length, const std::string& rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + rest;
}
std::string file_of(const std::string& header, const std::string& data = "") {
  return with_length(header.size(), header + data);
}

// Writes the bytes, opens them and reads every tensor.
void open_and_read(const std::string& path, const std::string& bytes) {
  remove_file(path);  // truncating a file makes ext4 write it out at once
  FileWriter out(path, FileWriter::Mode::create);
  out.write(bytes);
  out.close();
  const SafetensorsFile file(path);
  for (const StoredTensor& t : file.tensors()) {
    const bool integer = t.type == StoredType::i64 || t.type == StoredType::i32 ||
                         t.type == StoredType::u8 || t.type == StoredType::boolean;
    std::vector<double> buffer(static_cast<size_t>(t.numel) + 1);
    file.read(t, 0, t.numel, integer ? DType::i64 : DType::f64, buffer.data());
  }
}

void expect_refused(const std::string& bytes, const std::string& part) {
  const TempFolder folder;
  const std::string path = folder / "x.safetensors";
  const std::string text = error_of([&] { open_and_read(path, bytes); });
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  EXPECT_NE(text.find("x.safetensors"), std::string::npos) << text;
}

TEST(Safetensors, HostileHeadersAreRefused) {
  expect_refused("", "0 bytes");
  expect_refused("1234567", "7 bytes");
  expect_refused(with_length(100, "{}"), "truncated");
  expect_refused(with_length(~uint64_t{0}, "{}"), "claims 18446744073709551615 bytes");
  expect_refused(with_length(uint64_t{1} << 40, "{}"), "at most");
  expect_refused(file_of("[]"), "does not begin with");
  expect_refused(file_of("{"), "not valid JSON");
  expect_refused(file_of("{}x"), "not valid JSON");
  expect_refused(file_of("{\"\xff\":1}"), "not valid JSON");
  expect_refused(file_of(R"({"a":1})"), "tensor 'a' is the number 1");
  expect_refused(file_of(R"({"a":null})"), "expected an object");
  expect_refused(file_of(R"({"a":[]})"), "expected an object");
  expect_refused(file_of(R"({"a":{"b":{}}})"), "unknown key");
  expect_refused(file_of(R"({"a":{"dtype":{}}})"), "dtype holds an object");
  expect_refused(file_of(R"({"__metadata__":{"a":1}})"), "expected a string");
  expect_refused(file_of(R"({"__metadata__":{"a":"x","a":"x"}})"), "twice");
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const std::string data(8, 'x');
  expect_refused(file_of("{\"a\":{" + good + "},\"a\":{" + good + "}}", data), "'a' appears twice");
  expect_refused(file_of("{\"a\":{" + good + "," + good + "}}", data), "dtype is given twice");
  expect_refused(file_of("{\"a\":{" + good + ",\"x\":1}}", data), "unknown key 'x'");
  expect_refused(file_of("{\"a\":{" + good + "}}", data.substr(1)), "truncated");
  expect_refused(file_of("{\"a\":{" + good + "}}", data + "x"), "damaged");
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return file_of("{\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
                       ",\"data_offsets\":" + offsets + "}}",
                   std::string(8, 'x'));
  };
  expect_refused(tensor("F31", "[2]", "[0,8]"), "dtype 'F31'");
  expect_refused(tensor("F32", "[3]", "[0,8]"), "12 bytes apart");
  expect_refused(tensor("F32", "[2]", "[8,0]"), "data_offsets");
  expect_refused(tensor("F32", "[2]", "[4,12]"), "leaves a gap");
  expect_refused(tensor("F32", "[2]", "[0]"), "data_offsets");
  expect_refused(tensor("F32", "[2]", "[0,8,8]"), "data_offsets");
  expect_refused(tensor("F32", "[-2]", "[0,8]"), "-2");
  expect_refused(tensor("F32", "[2.0]", "[0,8]"), "2.0");
  expect_refused(tensor("F32", "[1e1]", "[0,8]"), "1e1");
  expect_refused(tensor("F32", "[\"2\"]", "[0,8]"), "the string");
  expect_refused(tensor("F32", "[[2]]", "[0,8]"), "a list");
  expect_refused(tensor("F32", "2", "[0,8]"), "the number 2");
  expect_refused(tensor("F32", "[4294967296,4294967296]", "[0,0]"), "overflows");
  expect_refused(tensor("F32", "[9223372036854775807,2]", "[0,8]"), "overflows");
  expect_refused(tensor("F32", "[18446744073709551615]", "[0,8]"), "2^63");
  expect_refused(tensor("F32", "[2]", "[18446744073709551608,0]"), "2^63");
  expect_refused(tensor("F32", "[2]", "[9223372036854775800,9223372036854775807]"), "data_offsets");
  expect_refused(tensor("F32", "[" + std::string(40, '1') + "]", "[0,8]"), "number");
  std::string ones = "[1";
  for (int i = 0; i < 100; ++i) {
    ones += ",1";
  }
  expect_refused(tensor("F32", ones + "]", "[0,4]"), "more than 16");
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[2]}})"), "data_offsets is missing");
  const std::string overlap = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                              R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
  expect_refused(file_of(overlap, std::string(12, 'x')), "overlaps");
  const std::string same = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                           R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  expect_refused(file_of(same, std::string(8, 'x')), "overlaps");
}

TEST(Safetensors, DeepNestingNeitherCrashesNorAllocates) {
  expect_refused(file_of("{\"a\":" + std::string(2'000'000, '[')), "expected an object");
  expect_refused(file_of("{\"a\":" + std::string(2'000'000, '{')), "");
}

TEST(Safetensors, EmptyTensorsScalarsAndPadding) {
  const TempFolder folder;
  const std::string header =
      R"({"e":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]},)"
      R"("s":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}    )";
  const double value = 3.25;
  open_and_read(folder / "f",
                file_of(header, std::string(reinterpret_cast<const char*>(&value), 8)));
  const SafetensorsFile file(folder / "f");
  EXPECT_EQ(file.find("e")->numel, 0);
  EXPECT_EQ(file.find("none"), nullptr);
  double got = 0;
  file.read(*file.find("s"), 0, 1, DType::f64, &got);
  EXPECT_EQ(got, value);
  open_and_read(folder / "g", file_of("{}"));
}

// Returns a file with every type that converts.
std::string sample_file() {
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("bf":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},)"
                             R"("h":{"dtype":"F16","shape":[2,3],"data_offsets":[6,18]},)"
                             R"("i":{"dtype":"I64","shape":[2],"data_offsets":[18,34]},)"
                             R"("j":{"dtype":"I32","shape":[2],"data_offsets":[34,42]},)"
                             R"("u":{"dtype":"U8","shape":[2],"data_offsets":[42,44]},)"
                             R"("b":{"dtype":"BOOL","shape":[2],"data_offsets":[44,46]},)"
                             R"("f":{"dtype":"F32","shape":[2],"data_offsets":[46,54]},)"
                             R"("d":{"dtype":"F64","shape":[1],"data_offsets":[54,62]}})";
  std::string data;
  const auto put = [&data](auto value) {
    data.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (int x : {0x3f80, 0xc049, 0x7f80}) {
    put(static_cast<uint16_t>(x));  // 1, -3.140625, inf
  }
  for (int x : {0x3c00, 0xc200, 0x0001, 0x83ff, 0x7bff, 0xfc00}) {
    put(static_cast<uint16_t>(x));
  }
  put(int64_t{-5}), put(int64_t{1} << 40);
  put(int32_t{7}), put(int32_t{-8});
  put(uint8_t{255}), put(uint8_t{3});
  put(uint8_t{1}), put(uint8_t{0});
  put(1.5f), put(-0.1f);
  put(0.1);
  return file_of(header, data);
}

TEST(Safetensors, ConvertsOnRead) {
  const TempFolder folder;
  open_and_read(folder / "f", sample_file());
  const SafetensorsFile file(folder / "f");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const auto read = [&file](const char* name) {
    const StoredTensor& t = *file.find(name);
    std::vector<double> v(static_cast<size_t>(t.numel));
    file.read(t, 0, t.numel, DType::f64, v.data());
    return v;
  };
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(read("bf"), (std::vector<double>{1, -3.140625, inf}));
  EXPECT_EQ(read("h"), (std::vector<double>{1, -3, 0x1p-24, -1023 * 0x1p-24, 65504, -inf}));
  EXPECT_EQ(read("f"), (std::vector<double>{1.5, static_cast<double>(-0.1f)}));
  EXPECT_EQ(read("d"), (std::vector<double>{0.1}));
  float narrow = 0;
  file.read(*file.find("d"), 0, 1, DType::f32, &narrow);
  EXPECT_EQ(narrow, 0.1f);
  int64_t i[2];
  file.read(*file.find("i"), 0, 2, DType::i64, i);
  EXPECT_EQ(i[0], -5);
  EXPECT_EQ(i[1], int64_t{1} << 40);
  int32_t j[2];
  file.read(*file.find("u"), 0, 2, DType::i32, j);
  EXPECT_EQ(j[0], 255);
  EXPECT_THROW(file.read(*file.find("i"), 0, 2, DType::i32, j), Error);  // 2^40
  EXPECT_THROW(file.read(*file.find("i"), 0, 2, DType::f32, j), Error);
  EXPECT_THROW(file.read(*file.find("f"), 0, 2, DType::i32, j), Error);
  EXPECT_THROW(file.read(*file.find("f"), 1, 2, DType::f32, j), std::logic_error);
}

TEST(Safetensors, RoundsToF16Once) {
  const TempFolder folder;
  Rng rng(8);
  std::vector<double> values = {0, -0.0, 1, 65504, 65519.9, 65520, 1e300, -1e300, 0x1p-25, 0x1p-26};
  for (int i = 0; i < 2000; ++i) {
    const double number =
        hocket::test::value_of(DType::f16, static_cast<uint32_t>(rng.below(0x7bff)));
    values.push_back(-number * (1 + 0x1p-11 + static_cast<double>(rng.between(-3, 3)) * 0x1p-45));
  }
  save_safetensors(folder / "f",
                   {{"x", {DType::f64, {static_cast<int64_t>(values.size())}}, values.data()}});
  const SafetensorsFile file(folder / "f");
  std::vector<uint16_t> got(values.size());
  file.read(*file.find("x"), 0, std::ssize(values), DType::f16, got.data());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(got[i], hocket::test::code_of(DType::f16, values[i])) << values[i];
  }
}

// Compares with the definition: the nearest neighbour, the even one at a tie.
TEST(Safetensors, RoundsToBf16Once) {
  const TempFolder folder;
  Rng rng(7);
  std::vector<double> values = {
      0, -0.0, 1, 0x1p-140, 1e300, -1e300, std::numeric_limits<double>::infinity()};
  for (int i = 0; i < 5000; ++i) {
    // Near a tie, off by less than a float's resolution.
    const auto top = static_cast<uint32_t>(rng.below(0x7f00) << 16 | 0x8000);
    const double tie = std::bit_cast<float>(top);
    values.push_back(tie * (1 + static_cast<double>(rng.between(-3, 3)) * 0x1p-45));
    values.push_back(rng.normal() * 1e-3);
  }
  NamedTensor t{"x", {DType::f64, {static_cast<int64_t>(values.size())}}, values.data()};
  save_safetensors(folder / "f", {t});
  const SafetensorsFile file(folder / "f");
  std::vector<uint16_t> got(values.size());
  file.read(*file.find("x"), 0, t.type.dims[0], DType::bf16, got.data());
  const auto value_of = [](uint32_t b) {
    // The step beyond the largest finite value counts as 2^128, as in IEEE 754.
    const double x = std::bit_cast<float>(b << 16);
    return std::isinf(x) ? std::copysign(0x1p128, x) : x;
  };
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = values[i];
    if (std::isinf(x)) {
      EXPECT_EQ(got[i], 0x7f80);
      continue;
    }
    ASSERT_EQ(std::signbit(x), (got[i] & 0x8000) != 0) << x;
    const uint32_t magnitude = got[i] & 0x7fffu;
    const double error = std::fabs(std::fabs(x) - value_of(magnitude));
    for (uint32_t other : {magnitude - 1, magnitude + 1}) {
      if (other > 0x7f80) continue;
      const double away = std::fabs(std::fabs(x) - value_of(other));
      EXPECT_TRUE(error < away || (error == away && magnitude % 2 == 0)) << x;
    }
  }
}

TEST(Safetensors, RandomDamageNeverCrashes) {
  const TempFolder folder;
  const std::string good = sample_file();
  uint64_t header = 0;
  std::memcpy(&header, good.data(), 8);
  constexpr uint64_t kSeed = 20240607;
  RecordProperty("seed", std::to_string(kSeed));
  Rng rng(kSeed);
  const std::string alphabet = "0123456789[]{}\",:-.eEtf \\u";
  int refused = 0, accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = good;
    const int edits = static_cast<int>(rng.between(1, 4));
    for (int e = 0; e < edits && !bytes.empty(); ++e) {
      const size_t at = rng.below(rng.uniform() < 0.8 ? std::min<size_t>(bytes.size(), header + 8)
                                                      : bytes.size());
      switch (rng.below(6)) {
        case 0:
          bytes[at] = static_cast<char>(rng.below(256));
          break;
        case 1:
          bytes[at] = alphabet[rng.below(alphabet.size())];
          break;
        case 2:
          bytes.resize(at);
          break;
        case 3:
          bytes.insert(at, std::string(rng.below(20), alphabet[rng.below(alphabet.size())]));
          break;
        case 4:
          bytes.erase(at, rng.below(20));
          break;
        case 5: {
          const std::string part = bytes.substr(at, rng.below(60));
          bytes.insert(rng.below(bytes.size()), part);
          break;
        }
      }
      // Half of the time the length matches the edited header, so that its content is reached.
      if (rng.uniform() < 0.5 && bytes.size() >= 8) {
        const uint64_t length = header + bytes.size() - good.size();
        if (length <= bytes.size()) {
          std::memcpy(bytes.data(), &length, 8);
        }
      }
    }
    try {
      open_and_read(folder / "f", bytes);
      ++accepted;
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      ++refused;
    }
  }
  EXPECT_GT(refused, 2000);
  EXPECT_GT(accepted, 10);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  EXPECT_LT(usage.ru_maxrss, 1 << 20) << "KiB";
}

TEST(Safetensors, WritesWhatItReadsAligned) {
  const TempFolder folder;
  std::vector<float> a(300'000);
  std::vector<double> b = {1.0 / 3, -0.0};
  std::vector<int32_t> c = {1, 2, 3};
  Rng rng(3);
  for (float& x : a) {
    x = static_cast<float>(rng.normal());
  }
  a[5] = std::numeric_limits<float>::quiet_NaN();
  const auto n = static_cast<int64_t>(a.size());
  std::vector<NamedTensor> tensors = {
      {"c", {DType::i32, {3}}, c.data()},
      {"a \"quoted\" \xC3\xA9", {DType::f32, {n / 2, 2}}, a.data()},
      {"pieces",
       {DType::f32, {n}},
       nullptr,
       [&](int64_t first, int64_t count, void* dst) {
         std::memcpy(dst, a.data() + first, static_cast<size_t>(count) * 4);
       }},
      {"b", {DType::f64, {1, 2}}, b.data()},
      {"none", {DType::f32, {0, 4}}},
  };
  save_safetensors(folder / "f.safetensors", tensors, {{"note", "x"}});
  const TensorFiles file(folder / "f.safetensors");
  EXPECT_EQ(file.names().size(), 5u);
  for (const NamedTensor& t : tensors) {
    const auto e = file.find(t.name);
    ASSERT_NE(e.tensor, nullptr) << t.name;
    EXPECT_EQ(e.tensor->dims, t.type.dims);
    EXPECT_EQ(e.tensor->begin % size_of(e.tensor->type), 0) << t.name;
    const auto* expected = static_cast<const std::byte*>(t.data ? t.data : a.data());
    std::vector<std::byte> bytes(static_cast<size_t>(t.type.bytes()));
    e.file->read(*e.tensor, 0, t.type.numel(), t.type.dtype, bytes.data());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected));
  }
  const SafetensorsFile single(folder / "f.safetensors");
  EXPECT_EQ(single.metadata().at("format"), "pt");
  EXPECT_EQ(single.metadata().at("note"), "x");
  std::vector<float> back(a.size());
  file.read("pieces", DType::f32, n, back.data());
  EXPECT_EQ(0, std::memcmp(back.data(), a.data(), a.size() * 4));
  EXPECT_THROW(file.read("pieces", DType::f32, n - 1, back.data()), Error);
  EXPECT_THROW(file.read("absent", DType::f32, n, back.data()), Error);
}

TEST(Safetensors, AFullDiskLeavesTheOldFile) {
  const TempFolder folder;
  const std::vector<float> ones(200'000, 1), twos(200'000, 2);
  const std::string path = folder / "f.safetensors";
  save_safetensors(path, {{"x", {DType::f32, {200'000}}, ones.data()}});
  {
    const FileFaults fault(FileFaults::Op::write, 2, ENOSPC);
    EXPECT_THROW(save_safetensors(path, {{"x", {DType::f32, {200'000}}, twos.data()}}), Error);
  }
  const SafetensorsFile file(path);
  std::vector<float> kept(ones.size());
  file.read(*file.find("x"), 0, std::ssize(kept), DType::f32, kept.data());
  EXPECT_EQ(kept, ones);
  EXPECT_EQ(list_dir(folder.path()).size(), 1u);
}

// Another process truncates a file while its tensors are being loaded: an error, and no signal.
TEST(Safetensors, ATruncationWhileItIsOpenIsAnError) {
  const TempFolder folder;
  const std::string path = folder / "f.safetensors";
  const std::vector<float> ones(1 << 20, 1);
  const auto count = std::ssize(ones);
  save_safetensors(path, {{"x", {DType::f32, {count}}, ones.data()}});
  const SafetensorsFile file(path);
  const StoredTensor& x = *file.find("x");
  std::filesystem::resize_file(path, 8192);
  std::vector<double> to(ones.size());
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    file.read(x, 0, 1000, dtype, to.data());  // the part that is still there
    try {
      file.read(x, 0, count, dtype, to.data());
      ADD_FAILURE() << "read what is gone";
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 1);
      EXPECT_NE(std::string(e.what()).find(path + "] was cut off while it was read; "
                                                  "got 8192 bytes; expected"),
                std::string::npos)
          << e.what();
    }
  }
}

// Conversion in pieces gives the same result at the seams.
TEST(Safetensors, ConvertsLongTensorsFromAnyElementOn) {
  const TempFolder folder;
  std::vector<float> values(700'000);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i);
  }
  save_safetensors(folder / "f", {{"x", {DType::f32, {700'000}}, values.data()}});
  const SafetensorsFile file(folder / "f");
  for (const int64_t first : {0, 3, 262'143, 699'999}) {
    std::vector<double> wide(values.size() - static_cast<size_t>(first));
    file.read(*file.find("x"), first, std::ssize(wide), DType::f64, wide.data());
    for (size_t i = 0; i < wide.size(); ++i) {
      ASSERT_EQ(wide[i], values[static_cast<size_t>(first) + i]) << first << " + " << i;
    }
  }
}

TEST(Safetensors, ShardsAndHostileIndexes) {
  const TempFolder folder;
  const float x = 1, y = 2;
  save_safetensors(folder / "m-1.safetensors", {{"x", {DType::f32, {1}}, &x}});
  save_safetensors(folder / "m-2.safetensors", {{"y", {DType::f32, {1}}, &y}});
  const auto index = [&folder](const std::string& text) {
    write_file_atomic(folder / "model.safetensors.index.json", text);
    return error_of([&] { const TensorFiles s(folder.path()); });
  };
  EXPECT_EQ(index(R"({"metadata":{},"weight_map":{"x":"m-1.safetensors","y":"m-2.safetensors"}})"),
            "");
  const TensorFiles good(folder.path());
  float got = 0;
  good.read("y", DType::f32, 1, &got);
  EXPECT_EQ(got, 2);
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"{", "not valid JSON"},
      {"[]", "expected an object"},
      {"{}", "weight_map is missing"},
      {R"({"weight_map":[]})", "weight_map"},
      {R"({"weight_map":{"x":1}})", "is not a file name"},
      {R"({"weight_map":{"x":"../m-1.safetensors"}})", "same folder"},
      {R"({"weight_map":{"x":"/etc/passwd"}})", "same folder"},
      {R"({"weight_map":{"x":""}})", "same folder"},
      {R"({"weight_map":{"x":"m-9.safetensors"}})", "does not exist"},
      {R"({"weight_map":{"x":"m-2.safetensors","y":"m-1.safetensors"}})", "m-1.safetensors does"},
  };
  for (const auto& [text, part] : bad) {
    EXPECT_NE(index(text).find(part), std::string::npos) << text;
  }
  save_safetensors(folder / "m-3.safetensors", {{"x", {DType::f32, {1}}, &x}});
  EXPECT_NE(
      index(R"({"weight_map":{"x":"m-1.safetensors","y":"m-3.safetensors"}})").find("is also in"),
      std::string::npos);
  const TempFolder empty;
  EXPECT_NE(error_of([&] { const TensorFiles s(empty.path()); }).find("no model.safetensors"),
            std::string::npos);
}

TEST(Safetensors, ReadsMoreShardsThanFilesThatMayBeOpen) {
  const TempFolder folder;
  std::string names;
  for (int shard = 0; shard < 80; ++shard) {
    const float value = static_cast<float>(shard);
    const std::string file = "m-" + std::to_string(shard) + ".safetensors";
    const std::string tensor = "t" + std::to_string(shard);
    save_safetensors(folder / file, {{tensor, {DType::f32, {1}}, &value}});
    names += (shard ? ",\"" : "\"") + tensor + "\":\"" + file + "\"";
  }
  write_file_atomic(folder / "model.safetensors.index.json", "{\"weight_map\":{" + names + "}}");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  const auto open = std::filesystem::directory_iterator("/proc/self/fd");
  low.rlim_cur = static_cast<rlim_t>(std::distance(begin(open), end(open))) + 40;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  float got = 0;
  const std::string error = error_of([&] {
    const TensorFiles files(folder.path());
    files.read("t79", DType::f32, 1, &got);
  });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(error, "");
  EXPECT_EQ(got, 79);
}

}  // namespace
}  // namespace hocket::checkpoint
