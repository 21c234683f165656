// SPDX-License-Identifier: Apache-2.0
// Records of the files of frozen weights.
#include "train/weight_files.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "base/file.h"
#include "tests/checkpoint/checkpoint_util.h"

namespace hocket::train {
namespace {

constexpr const char* kOther =
    "model.safetensors has another size or time than when the training began";

TEST(WeightFiles, ChangeWithSizeTimeAndNumber) {
  const checkpoint::TempFolder folder;
  for (const char* name :
       {"config.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json"}) {
    write_file_atomic(folder / name, "a");
  }
  const std::vector<std::string> before = weight_files(folder.path());
  EXPECT_EQ(before.size(), 2U);
  const auto changed = [&] { return change_of_files(before, weight_files(folder.path())); };
  write_file_atomic(folder / "tokenizer.json", "other");
  write_file_atomic(folder / "optimizer.safetensors", "other");
  EXPECT_EQ(changed(), "");
  const std::string file = folder / "model.safetensors";
  const auto time = std::filesystem::last_write_time(file);
  std::filesystem::last_write_time(file, time + std::chrono::seconds(1));
  EXPECT_EQ(changed(), kOther);
  std::filesystem::last_write_time(file, time);
  EXPECT_EQ(changed(), "");
  write_file_atomic(file, "longer");
  std::filesystem::last_write_time(file, time);
  EXPECT_EQ(changed(), kOther);
  write_file_atomic(file, "a");
  std::filesystem::last_write_time(file, time);
  write_file_atomic(folder / "model-2.safetensors", "a");
  EXPECT_EQ(changed(), "model-2.safetensors was not there when the training began");
  remove_file(folder / "model-2.safetensors");
  remove_file(folder / "config.json");
  EXPECT_EQ(changed(), "config.json is missing, which was there when the training began");
}

TEST(WeightFiles, AreThoseOfTheModelAndItsAdapter) {
  const checkpoint::TempFolder base, adapter;
  write_file_atomic(base / "model.safetensors", "a");
  write_file_atomic(adapter / "adapter_model.safetensors", "b");
  EXPECT_EQ(weight_files("").size(), 0U);
  EXPECT_EQ(weight_files(base / "model.safetensors").size(), 1U);
  EXPECT_EQ(weight_files(base.path()), weight_files(base / "model.safetensors"));
  EXPECT_EQ(weight_files(base.path(), adapter.path()).size(), 2U);
}

}  // namespace
}  // namespace hocket::train
