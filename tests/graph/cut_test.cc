// SPDX-License-Identifier: Apache-2.0
// Cuts against brute force. A cut is a function from coordinates to a list of element indices; the
// tests repeat every operation on such lists.
#include "graph/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "base/error.h"

namespace hocket::graph {
namespace {

using List = std::vector<int64_t>;
/// Indices of the elements that a rank holds, in order, by the coordinates of the rank.
using Function = std::map<Coords, List>;

constexpr int64_t kSize = 24;  // elements of the dim

class CutsTest : public ::testing::Test {
 protected:
  static constexpr Coords kExtents{2, 3, 1, 2, 1, 1};

  CutsTest() : table_(kExtents) {
    Coords coords{};
    for (coords[0] = 0; coords[0] < kExtents[0]; ++coords[0]) {
      for (coords[1] = 0; coords[1] < kExtents[1]; ++coords[1]) {
        for (coords[3] = 0; coords[3] < kExtents[3]; ++coords[3]) {
          all_.push_back(coords);
        }
      }
    }
  }

  /// Returns the elements that a cut gives to every rank.
  Function of(CutId id) const {
    Function function;
    const int64_t cell = kSize / table_[id].cells;
    for (const Coords& coords : all_) {
      List list;
      for (const graph::Run& run : table_.at(id, coords)) {
        for (int64_t i = run.begin * cell; i < (run.begin + run.length) * cell; ++i) {
          list.push_back(i);
        }
      }
      function[coords] = list;
    }
    return function;
  }

  /// Returns a random cut. The number of cells divides kSize.
  CutId random_cut(bool ordered) {
    constexpr int64_t kCells[] = {1, 2, 3, 4, 6, 12};
    const int64_t cells = kCells[random() % std::size(kCells)];
    AxisMask axes = 0;
    for (int32_t axis : {0, 1, 3}) {
      if (random() % 2) {
        axes |= axis_bit(axis);
      }
    }
    std::vector<std::vector<graph::Run>> rows(static_cast<size_t>(table_.ranks(axes)));
    for (auto& row : rows) {
      List order(static_cast<size_t>(cells));
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), engine_);
      order.resize(random() % (order.size() + 1));
      if (ordered) {
        std::sort(order.begin(), order.end());
      }
      for (int64_t cell : order) {
        row.push_back({cell, 1});
      }
    }
    return table_.make(cells, axes, rows);
  }

  uint64_t random() { return engine_(); }

  CutTable table_;
  std::vector<Coords> all_;
  std::mt19937_64 engine_{7};
};

bool has_twice(const List& list) {
  return std::set<int64_t>(list.begin(), list.end()).size() != list.size();
}

/// Returns the ranks that differ from `coords` along `over` only; the last axis varies fastest.
std::vector<Coords> members(const std::vector<Coords>& all, const Coords& coords, AxisMask over) {
  std::vector<Coords> list;
  for (const Coords& other : all) {
    bool same = true;
    for (int32_t axis = 0; axis < kMaxAxes; ++axis) {
      same = same && ((over & axis_bit(axis)) != 0 || other[axis] == coords[axis]);
    }
    if (same) {
      list.push_back(other);
    }
  }
  return list;
}

TEST_F(CutsTest, EqualFunctionsHaveEqualIdsAndOnlyThese) {
  std::map<Function, CutId> known;
  for (int i = 0; i < 3000; ++i) {
    const CutId id = random_cut(false);
    const auto [it, fresh] = known.emplace(of(id), id);
    EXPECT_EQ(it->second, id) << table_.text(id) << " and " << table_.text(it->second);
  }
  EXPECT_LT(known.size(), 3000u);
}

TEST_F(CutsTest, OperationsAreThoseOfTheLists) {
  // Ordered cuts list no element twice, so that the operations of sets apply.
  for (int i = 0; i < 1000; ++i) {
    const CutId left = random_cut(true);
    const CutId right = random_cut(true);
    const Function a = of(left);
    const Function b = of(right);
    Function common, either, both;
    bool twice = false;
    for (const Coords& coords : all_) {
      std::set_intersection(a.at(coords).begin(), a.at(coords).end(), b.at(coords).begin(),
                            b.at(coords).end(), std::back_inserter(common[coords]));
      std::set_union(a.at(coords).begin(), a.at(coords).end(), b.at(coords).begin(),
                     b.at(coords).end(), std::back_inserter(either[coords]));
      both[coords] = a.at(coords);
      both[coords].insert(both[coords].end(), b.at(coords).begin(), b.at(coords).end());
      twice = twice || has_twice(both[coords]);
    }
    EXPECT_EQ(of(table_.intersection(left, right)), common);
    EXPECT_EQ(of(table_.unite(left, right)), either);
    const CutId joined = table_.concat(left, right);
    EXPECT_EQ(joined == kNone, twice);
    if (!twice) {
      EXPECT_EQ(of(joined), both);
    }
  }
}

TEST_F(CutsTest, PiecesOfAGroupAreThoseOfItsMembers) {
  constexpr AxisMask kOver[] = {1, 2, 8, 3, 9, 11};
  for (int i = 0; i < 1000; ++i) {
    const CutId id = random_cut(i % 2 == 0);
    const AxisMask over = kOver[random() % std::size(kOver)];
    const Function from = of(id);
    Function gathered, united, blocks;
    bool twice = false;
    bool divides = true;
    // Gathers each member's parts, part by part: the first ones of all members, then the second
    // ones.
    const size_t parts = 1 + random() % 2;
    const auto part_of = [](const List& list, size_t part, size_t of) {
      const size_t length = list.size() / of;
      const auto begin = list.begin() + static_cast<std::ptrdiff_t>(part * length);
      return List(begin, begin + static_cast<std::ptrdiff_t>(length));
    };
    for (const Coords& coords : all_) {
      const std::vector<Coords> group = members(all_, coords, over);
      for (size_t part = 0; part < parts; ++part) {
        for (const Coords& member : group) {
          const List piece = part_of(from.at(member), part, parts);
          gathered[coords].insert(gathered[coords].end(), piece.begin(), piece.end());
        }
      }
      twice = twice || has_twice(gathered[coords]);
      const std::set<int64_t> all(gathered[coords].begin(), gathered[coords].end());
      united[coords].assign(all.begin(), all.end());
      const List& held = from.at(coords);
      divides = divides && held.size() % (group.size() * parts) == 0;
      const size_t me =
          static_cast<size_t>(std::find(group.begin(), group.end(), coords) - group.begin());
      for (size_t part = 0; part < parts; ++part) {
        const List piece = part_of(held, part * group.size() + me, parts * group.size());
        blocks[coords].insert(blocks[coords].end(), piece.begin(), piece.end());
      }
    }
    const CutId whole = table_.gather(id, over, static_cast<int64_t>(parts));
    EXPECT_EQ(whole == kNone, twice);
    if (!twice && divides) {
      EXPECT_EQ(of(whole), gathered);
    }
    EXPECT_EQ(of(table_.unite_over(table_.set_of(id), over)), united);
    const CutId block = table_.block(id, over, static_cast<int64_t>(parts));
    if (divides && kSize % table_[block].cells == 0) {
      EXPECT_EQ(of(block), blocks);
    }
  }
}

/// Blocks equal to the members' shares, or of given lengths.
TEST_F(CutsTest, BlocksHaveTheGivenLengths) {
  int found = 0;
  for (int i = 0; i < 300; ++i) {
    const CutId id = random_cut(true);
    for (const AxisMask over : {AxisMask{1}, AxisMask{2}, AxisMask{9}}) {
      const CutId whole = table_.gather(id, over);
      if (whole == kNone) continue;
      ++found;
      EXPECT_EQ(table_.block_like(whole, over, id), id);
      const CutId more = table_.unite_over(table_.set_of(id), over);
      EXPECT_EQ(table_.block_like(table_.gather(whole, 0), over, more) == kNone,
                table_.ranks(over) > 1 && !table_.empty(id));
    }
  }
  EXPECT_GT(found, 50);
  const std::vector<int32_t> axes{1};
  const std::vector<graph::Run> runs{{0, 5}, {5, 1}, {6, 6}};
  const CutId three = table_.split(axes, 12, runs);
  const std::vector<int64_t> lengths{5, 1, 6};
  EXPECT_EQ(table_.block_of(CutTable::kWhole, 2, 12, lengths), three);
  // For ranks with more or fewer elements than these, the blocks are as even as divisibility
  // allows.
  EXPECT_EQ(table_.block_of(CutTable::kWhole, 2, 24, lengths),
            table_.block_of(CutTable::kWhole, 2, 24));
}

TEST_F(CutsTest, MovesAndRestrictionsEqualBruteForce) {
  for (int i = 0; i < 1000; ++i) {
    const CutId id = random_cut(false);
    const Function from = of(id);
    const int32_t axis = std::array{0, 1, 3}[random() % 3];
    // Shifts along the axis by one distance, or by another one at every coordinate.
    Shift shift{axis, random() % 2 ? static_cast<AxisMask>(random() % 16) : 0, {}};
    for (int64_t k = 0; k < table_.ranks(shift.axes); ++k) {
      shift.offsets.push_back(static_cast<int32_t>(random() % 9) - 4);
    }
    Function moved;
    Function part;
    const int64_t length = static_cast<int64_t>(random() % 5);
    const AxisMask axes = random() % 2 ? axis_bit(1) : 0;
    List begins;
    for (int64_t k = 0; k < table_.ranks(axes); ++k) {
      begins.push_back(static_cast<int64_t>(random() % 8));
    }
    bool inside = true;
    int64_t local = -1;
    bool even = true;
    for (const Coords& coords : all_) {
      size_t place = 0;
      for (int32_t a = 0; a < 4; ++a) {
        if (shift.axes & axis_bit(a)) {
          place = place * static_cast<size_t>(kExtents[a]) + static_cast<size_t>(coords[a]);
        }
      }
      Coords peer = coords;
      const int32_t extent = kExtents[axis];
      peer[axis] = ((coords[axis] + shift.offsets[place]) % extent + extent) % extent;
      EXPECT_EQ(table_.shifted(coords, shift), peer);
      moved[coords] = from.at(peer);
      const int64_t begin = begins[axes ? static_cast<size_t>(coords[1]) : 0];
      const List& held = from.at(coords);
      const int64_t size = static_cast<int64_t>(held.size());
      inside = inside && begin + length <= size;
      if (inside) {
        part[coords].assign(held.begin() + begin, held.begin() + begin + length);
      }
      even = even && (local < 0 || local == size);
      local = size;
    }
    EXPECT_EQ(of(table_.moved(id, shift)), moved);
    const CutId restricted = table_.restrict_to(id, kSize, axes, begins, length);
    EXPECT_EQ(restricted == kNone, !inside);
    if (inside) {
      EXPECT_EQ(of(restricted), part);
    }
    EXPECT_EQ(table_.local_size(id, kSize), even ? local : -1);
  }
}

TEST_F(CutsTest, SplitsAreRecognisedAndGathered) {
  const CutId split = table_.split({3, 1});  // axis 3 outermost
  EXPECT_EQ(table_.text(split), "[0:1)|[3:4)|[1:2)|[4:5)|[2:3)|[5:6)/6");
  std::vector<int32_t> axes;
  ASSERT_TRUE(table_.is_split(split, &axes));
  EXPECT_EQ(axes, (std::vector<int32_t>{3, 1}));
  EXPECT_EQ(table_.gather(split, axis_bit(1)), table_.split({3}));
  EXPECT_EQ(table_.gather(table_.split({3}), axis_bit(3)), CutId(CutTable::kWhole));
  EXPECT_EQ(table_.block(CutId(CutTable::kWhole), axis_bit(1)), table_.split({1}));
  EXPECT_FALSE(table_.is_split(table_.moved(split, {1, 0, {1}}), &axes));
  EXPECT_EQ(table_.split({2}), CutId(CutTable::kWhole));  // an axis of one rank
}

TEST_F(CutsTest, RefusesEmptyOrOverlappingPieces) {
  EXPECT_THROW(table_.make(0, 0, {{}}), Error);
  EXPECT_THROW(table_.make(4, 0, {{{3, 2}}}), Error);
  EXPECT_THROW(table_.make(4, 0, {{{1, 2}, {2, 1}}}), Error);
  EXPECT_THROW(table_.make(4, axis_bit(0), {{{0, 1}}}), Error);
}

TEST_F(CutsTest, RefusesWhatIsTooLarge) {
  CutTable wide({1 << 9, 1 << 8, 1, 1, 1, 1});
  EXPECT_THROW(wide.split({0, 1}), Error);
  const AxisMask both = axis_bit(0) | axis_bit(1);
  EXPECT_THROW(wide.for_each(both, {}, [](const Coords&) {}), Error);
  // 2^16 runs on each rank.
  EXPECT_NO_THROW(CutTable({1 << 3, 1, 1, 1, 1, 1}).block(CutTable::kWhole, axis_bit(0), 1 << 16));
  EXPECT_THROW(CutTable({1 << 5, 1, 1, 1, 1, 1}).block(CutTable::kWhole, axis_bit(0), 1 << 16),
               Error);
}

TEST_F(CutsTest, SizesMayNeedMoreThan32Bits) {
  const int64_t held = int64_t{1} << 40;
  const CutId all_but_one = table_.make(held + 1, 0, {{{0, held}}});
  EXPECT_EQ(table_.local_size(all_but_one, held + 1), held);
  EXPECT_EQ(table_.local_size(all_but_one, 2 * (held + 1)), 2 * held);
}

}  // namespace
}  // namespace hocket::graph
