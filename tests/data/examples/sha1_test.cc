// SPDX-License-Identifier: Apache-2.0
// SHA-1, compared with Python's hashlib.
#include "data/examples/sha1.h"

#include <gtest/gtest.h>

#include "tests/data/data_util.h"

namespace hocket::data {
namespace {

TEST(Sha1, IsThatOfHashlibWhereverABlockEnds) {
  const std::pair<size_t, const char*> wanted[] = {
      {0, "da39a3ee5e6b4b0d3255bfef95601890afd80709"},
      {55, "c1c8bbdc22796e28c0e15163d20899b65621d65a"},
      {56, "c2db330f6083854c99d4b5bfb6e8f29f201be699"},
      {63, "03f09f5b158a7a8cdad920bddc29b81c18a551f5"},
      {64, "0098ba824b5c16427bd7a1122a5a442a25ec644d"},
      {119, "ee971065aaa017e0632a8ca6c77bb3bf8b1dfc56"},
      {1'000'000, "34aa973cd4c4daa4f61eeb2bdbad27316534016f"}};
  for (const auto& [count, hex] : wanted) {
    const std::string text(count, 'a');
    Sha1 whole, parts;
    whole.add(text);
    for (size_t at = 0; at < count; at += 7) {
      parts.add(std::string_view(text).substr(at, 7));
    }
    EXPECT_EQ(whole.hex(), hex) << count;
    EXPECT_EQ(parts.hex(), hex) << count;
  }
}

TEST(Sha1, ReadsFiles) {
  const TempFolder folder;
  EXPECT_EQ(sha1_of_file(folder.add("a", "abc")), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_ERROR(sha1_of_file(folder / "absent"), "absent");
}

}  // namespace
}  // namespace hocket::data
