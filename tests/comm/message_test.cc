// SPDX-License-Identifier: Apache-2.0
// Memory of messages: what the pool keeps, and the peak that it counts.
#include <gtest/gtest.h>

#include "comm/transport.h"

namespace hocket::comm {
namespace {

TEST(Messages, ReleasingThePoolResetsThePeak) {
  const int64_t before = peak_message_bytes();
  { const Message large(before + (int64_t{8} << 20)); }
  EXPECT_GE(peak_message_bytes(), before + (int64_t{8} << 20));
  release_pooled_messages();
  EXPECT_LE(peak_message_bytes(), before);
}

}  // namespace
}  // namespace hocket::comm
