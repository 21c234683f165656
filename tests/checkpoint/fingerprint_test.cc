// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/fingerprint.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/file.h"
#include "tests/checkpoint/checkpoint_util.h"

namespace hocket::checkpoint {
namespace {

std::string fingerprint(const std::string& path) {
  Hasher hasher;
  hash_model_files(path, &hasher);
  return hasher.finish().hex();
}

void overwrite(const std::string& path, int64_t at, const std::string& bytes) {
  FileWriter file(path, FileWriter::Mode::within);
  file.seek(at);
  file.write(bytes);
  file.close();
}

TEST(Fingerprint, WeightsOfEqualSizeDiffer) {
  const TempFolder folder;
  const std::string path = folder / "model.safetensors";
  write_file_atomic(path, std::string(3 << 20, 'a'));
  const std::string before = fingerprint(path);
  EXPECT_EQ(fingerprint(path), before);
  overwrite(path, 2'000'000, "b");
  EXPECT_NE(fingerprint(path), before);
}

TEST(Fingerprint, LargeFilesDifferByTheirHeadersAndEveryTensor) {
  constexpr int64_t kLarge = int64_t{80} << 20, kNorm = 4096;  // bytes of two tensors
  const TempFolder folder;
  const std::string path = folder / "model.safetensors";
  std::string header =
      fmt::format(R"({{"large":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}},)"
                  R"("norm":{{"dtype":"U8","shape":[{1}],"data_offsets":[{0},{2}]}}}})",
                  kLarge, kNorm, kLarge + kNorm);
  std::string length(8, '\0');
  const uint64_t header_bytes = header.size();
  std::memcpy(length.data(), &header_bytes, 8);
  write_file_atomic(path, length + header);
  {
    FileWriter file(path, FileWriter::Mode::within);
    file.set_size(static_cast<int64_t>(8 + header_bytes) + kLarge + kNorm);  // zeros, not stored
    file.close();
  }
  const int64_t data = static_cast<int64_t>(8 + header_bytes);
  std::string before = fingerprint(path);
  const auto expect_change = [&](int64_t at, const std::string& bytes) {
    overwrite(path, at, bytes);
    const std::string after = fingerprint(path);
    EXPECT_NE(after, before) << "byte " << at;
    before = after;
  };
  expect_change(data, "x");                       // the large tensor's first byte
  expect_change(data + kLarge - 1, "x");          // its last one
  expect_change(data + kLarge + kNorm / 2, "x");  // a small tensor counts whole
  overwrite(path, 8 + static_cast<int64_t>(header.find("norm")), "nurm");
  EXPECT_NE(fingerprint(path), before);
  // A large file that is no weights counts with its name and size.
  overwrite(path, 0, std::string(8, '\xff'));
  EXPECT_FALSE(fingerprint(path).empty());
}

}  // namespace
}  // namespace hocket::checkpoint
