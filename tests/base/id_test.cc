// SPDX-License-Identifier: Apache-2.0
#include "base/id.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <concepts>
#include <map>
#include <sstream>
#include <unordered_set>
#include <vector>

namespace hocket {
namespace {

using TableId = Id<struct Table>;
using ChairId = Id<struct Chair>;

template <class Left, class Right>
concept Comparable = requires(Left left, Right right) {
  left == right;
};
template <class Left, class Right>
concept Ordered = requires(Left left, Right right) {
  left < right;
};
template <class Left, class Right>
concept Subtractable = requires(Left left, Right right) {
  left - right;
};

// The id of one table is no id of another.
static_assert(!std::convertible_to<TableId, ChairId>);
static_assert(!std::constructible_from<ChairId, TableId>);
static_assert(!std::assignable_from<ChairId&, TableId>);
static_assert(Comparable<TableId, TableId> && !Comparable<TableId, ChairId>);
static_assert(Ordered<TableId, TableId> && !Ordered<TableId, ChairId>);
static_assert(Subtractable<TableId, TableId> && !Subtractable<TableId, ChairId>);

// Numbers come in freely; out they go as an index, and on demand as anything else.
static_assert(std::convertible_to<int32_t, TableId> && std::convertible_to<size_t, TableId>);
static_assert(!std::convertible_to<bool, TableId> && !std::convertible_to<double, TableId>);
static_assert(std::convertible_to<TableId, size_t>);
static_assert(!std::convertible_to<TableId, int32_t> && std::constructible_from<int32_t, TableId>);
static_assert(!std::convertible_to<TableId, int64_t> && std::constructible_from<int64_t, TableId>);
static_assert(!std::constructible_from<bool, TableId>);

static_assert(sizeof(TableId) == sizeof(int32_t) && std::is_trivially_copyable_v<TableId>);

TEST(Id, IndexesAnyVector) {
  const std::vector<int> sizes{4, 6, 8};
  const TableId last = sizes.size() - 1;
  EXPECT_EQ(8, sizes[last]);
  EXPECT_EQ(6, sizes[last - 1]);
  EXPECT_EQ(4, sizes[TableId()]);
}

TEST(Id, NoneLiesBeforeAllAndIndexesNothing) {
  const TableId none = kNone;
  EXPECT_EQ(kNone, none);
  EXPECT_LT(none, TableId(0));
  EXPECT_LT(none, size_t{0});  // as a number, not as an index
  EXPECT_EQ(SIZE_MAX, size_t{none});
}

TEST(Id, PrintsAsANumber) {
  std::ostringstream out;
  out << TableId(7) << ' ' << TableId(kNone);
  EXPECT_EQ("7 -1", out.str());
  EXPECT_EQ("7 -1", fmt::format("{} {}", TableId(7), TableId(kNone)));
}

TEST(Id, CountsAndCompares) {
  TableId id = 0;
  for (int steps = 0; steps < 3; ++steps) {
    ++id;
  }
  EXPECT_EQ(TableId(3), id);
  EXPECT_EQ(TableId(3), id++);
  EXPECT_EQ(TableId(4), id);
  --id;
  EXPECT_EQ(3, id - TableId(0));
  EXPECT_EQ(TableId(5), id + size_t{2});
  EXPECT_EQ(TableId(-1), id - 4);
  EXPECT_TRUE(id < 4u && id <= 3 && id > int64_t{2} && 3 >= id && id != 4);
  EXPECT_FALSE(id == (int64_t{1} << 32) + 3);  // no number is cut off on the way
}

TEST(Id, ServesAsKeyAndText) {
  const std::map<TableId, int> ordered{{2, 20}, {kNone, 0}};
  EXPECT_EQ(kNone, ordered.begin()->first);
  const std::unordered_set<TableId> set{1, 1, 2};
  EXPECT_EQ(2u, set.size());
  EXPECT_EQ("7 -1", fmt::format("{} {}", TableId(7), TableId(kNone)));
}

TEST(Id, AnEnumIndexesATable) {
  enum class Meal : uint8_t { breakfast, lunch };
  constexpr const char* kNames[] = {"breakfast", "lunch"};
  EXPECT_STREQ("lunch", kNames[place_of(Meal::lunch)]);
}

}  // namespace
}  // namespace hocket
