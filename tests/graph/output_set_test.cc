// SPDX-License-Identifier: Apache-2.0
// A set of outputs may be asked about any position, and takes only those that it has a place for.
#include "graph/output_set.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace hocket::graph {
namespace {

TEST(OutputSet, HoldsTheFirst) {
  OutputSet set{0, 31};
  EXPECT_EQ(set.size(), 2u);
  EXPECT_EQ(set.bits(), 0x80000001u);
  EXPECT_TRUE(set.contains(0) && set.contains(31));
  // A shift by these would be undefined, and gives output 0 on most machines.
  for (const size_t beyond : {size_t{32}, size_t{63}, size_t{64}, size_t{96}, SIZE_MAX}) {
    EXPECT_FALSE(set.contains(beyond)) << beyond;
  }
  set.flip(31);
  set.flip(5);
  EXPECT_EQ(set, (OutputSet{0, 5}));
  EXPECT_TRUE(set.within({0, 1, 5}));
  EXPECT_FALSE(set.within({0, 1}));
  EXPECT_TRUE(OutputSet().empty());
  EXPECT_EQ(OutputSet::of_bits(set.bits()), set);
}

TEST(OutputSet, RefusesAnOutputBeyondItsCapacity) {
  EXPECT_THROW(OutputSet{OutputSet::kMaxOutputs}, std::logic_error);
}

}  // namespace
}  // namespace hocket::graph
