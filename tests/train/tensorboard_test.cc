// SPDX-License-Identifier: Apache-2.0
// Numbers of metrics.jsonl that are events, and those that are not.
#include "train/tensorboard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"

namespace hocket::train {
namespace {

TEST(EventFile, HasEveryNumberButPositions) {
  const std::string folder = testing::TempDir() + "events-" + std::to_string(::getpid());
  make_dirs(folder);
  EventFile file(folder, 0);
  file.append(
      "{\"step\":3,\"time_s\":1.5,\"tokens\":96,\"train/loss\":2.5,\"entropy\":0.5,"
      "\"device\":\"emulated\",\"eval/final\":true,\"moe/layers\":[0]}");
  const std::string bytes = read_file(file.path());
  for (const char* tag : {"train/loss", "entropy"}) {
    EXPECT_NE(bytes.find(tag), bytes.npos) << tag;
  }
  for (const char* tag : {"step", "time_s", "tokens", "device", "eval/final", "moe/layers"}) {
    EXPECT_EQ(bytes.find(tag), bytes.npos) << tag;
  }
}

}  // namespace
}  // namespace hocket::train
