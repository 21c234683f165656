// SPDX-License-Identifier: Apache-2.0
// Packs against brute force, a list of elements at every coordinate.
#include "check/values/packs.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace hocket::check {
namespace {

using graph::Coords;

/// An element: its component (-1 for a zero) and its number.
using Element = std::pair<int32_t, int64_t>;
using Elements = std::map<Coords, std::vector<Element>>;

constexpr int32_t kComponents = 4;
constexpr int64_t kSize = 12;

Coords extents() {
  Coords extents;
  extents.fill(1);
  extents[0] = 2;
  extents[2] = 3;
  return extents;
}
constexpr AxisMask kAll = 0b101;

struct Random {
  Rng rng;
  graph::CutTable cuts{extents()};
  Packs packs{cuts};
  explicit Random(uint64_t seed) : rng(seed) {}

  int64_t below(int64_t n) { return rng.between(0, n - 1); }

  /// Draws equally many elements for every rank. They differ along `axes` only.
  Elements elements(AxisMask axes) {
    Elements all;
    const int64_t length = 6;
    cuts.for_each(kAll, {}, [&](const Coords& coords) {
      Coords base = coords;
      for (int32_t axis = 0; axis < graph::kMaxAxes; ++axis) {
        if (!(axes & graph::axis_bit(axis))) {
          base[axis] = 0;
        }
      }
      if (const auto known = all.find(base); known != all.end() && base != coords) {
        const std::vector<Element> same = known->second;
        all[coords] = same;
        return;
      }
      std::vector<Element>& row = all[coords];
      while (std::ssize(row) < length) {
        const auto component = static_cast<int32_t>(below(kComponents + 1)) - 1;
        const int64_t run = 1 + below(length - std::ssize(row));
        const int64_t begin = component < 0 ? 0 : below(kSize - run + 1);
        for (int64_t i = 0; i < run; ++i) {
          row.push_back({component, component < 0 ? 0 : begin + i});
        }
      }
    });
    return all;
  }

  /// Makes the pack in a random way: components in any order, some repeated or unused, zeros as a
  /// component, runs cut anywhere.
  PackId make(const Elements& elements) {
    std::vector<Value> components;
    for (int32_t i = 0; i < 2 * kComponents; ++i) {
      components.push_back({7 + i % kComponents, 3});
    }
    components.push_back({kZero, kAnyPiece});
    rng.shuffle(components);
    const auto place = [&](int32_t component) {
      const Value value = component < 0 ? Value{kZero, kAnyPiece} : Value{7 + component, 3};
      std::vector<int32_t> places;
      for (size_t i = 0; i < components.size(); ++i) {
        if (components[i] == value) {
          places.push_back(static_cast<int32_t>(i));
        }
      }
      return places[static_cast<size_t>(below(std::ssize(places)))];
    };
    return packs.make(components, kAll, [&](const Coords& coords) {
      PackRow row;
      for (const auto& [component, at] : elements.at(coords)) {
        if (component < 0 && below(2) == 0) {
          row.push_back({kNone, 0, 1});
        } else {
          row.push_back({place(component), at, 1});
        }
      }
      return row;
    });
  }

  Elements of(PackId id) {
    Elements all;
    cuts.for_each(kAll, {}, [&](const Coords& coords) {
      for (const PackRun& run : packs.at(id, coords)) {
        for (int64_t i = 0; i < run.length; ++i) {
          const bool zero = run.component == kNone;
          all[coords].push_back(
              {zero ? -1 : packs[id].components[run.component].expr - 7, zero ? 0 : run.begin + i});
        }
      }
    });
    return all;
  }
};

TEST(Packs, EqualPacksHaveOneId) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    const AxisMask axes = static_cast<AxisMask>(random.below(8)) & kAll;
    const Elements elements = random.elements(axes);
    const PackId id = random.make(elements);
    EXPECT_EQ(random.of(id), elements) << seed;
    EXPECT_EQ(random.make(elements), id) << seed;
    EXPECT_EQ(random.packs[id].axes & ~axes, 0u) << seed;
    EXPECT_EQ(random.packs.length(id), 6) << seed;
    EXPECT_TRUE(
        std::is_sorted(random.packs[id].components.begin(), random.packs[id].components.end()));
  }
}

TEST(Packs, MovementsEqualBruteForce) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    const Elements elements = random.elements(kAll);
    const PackId id = random.make(elements);
    Packs& packs = random.packs;
    const AxisMask over = random.below(2) ? graph::axis_bit(2) : kAll;
    const int64_t ranks = random.cuts.ranks(over);
    Elements part, block, gathered, exchanged, moved, swapped;
    const graph::Shift swap{2, graph::axis_bit(0) | graph::axis_bit(2), {1, -1, 0, 0, 1, 2}};
    random.cuts.for_each(kAll, {}, [&](const Coords& coords) {
      const std::vector<Element>& mine = elements.at(coords);
      const auto number = over == kAll ? coords[0] * 3 + coords[2] : coords[2];
      const auto slice_of = [&](const std::vector<Element>& row, int64_t begin, int64_t length) {
        return std::vector<Element>(row.begin() + begin, row.begin() + begin + length);
      };
      const int64_t length = 6 / ranks;
      part[coords] = slice_of(mine, coords[2], 2);
      block[coords] = slice_of(mine, number * length, length);
      for (int32_t x = over == kAll ? 0 : coords[0]; x <= (over == kAll ? 1 : coords[0]); ++x) {
        for (int32_t y = 0; y < 3; ++y) {
          Coords from = coords;
          from[0] = x;
          from[2] = y;
          const std::vector<Element>& theirs = elements.at(from);
          gathered[coords].insert(gathered[coords].end(), theirs.begin(), theirs.end());
          const auto sent = slice_of(theirs, number * length, length);
          exchanged[coords].insert(exchanged[coords].end(), sent.begin(), sent.end());
        }
      }
      Coords peer = coords;
      peer[2] = (coords[2] + 2) % 3;
      moved[coords] = elements.at(peer);
      peer[2] = (coords[2] + swap.offsets[static_cast<size_t>(coords[0] * 3 + coords[2])]) % 3;
      swapped[coords] = elements.at(peer);
    });
    EXPECT_EQ(packs.restrict_to(id, graph::axis_bit(2),
                                [](const Coords& coords) {
                                  return graph::Run{coords[2], 2};
                                }),
              random.make(part));
    EXPECT_EQ(packs.restrict_to(id, 0, [](const Coords&) { return graph::Run{5, 2}; }), kNone);
    EXPECT_EQ(packs.block(id, over), random.make(block));
    EXPECT_EQ(packs.gather(id, over, false), random.make(gathered));
    EXPECT_EQ(packs.gather(id, over, true), random.make(exchanged));
    EXPECT_EQ(packs.moved(id, packs[id].components, {2, 0, {-1}}), random.make(moved));
    EXPECT_EQ(packs.moved(id, packs[id].components, swap), random.make(swapped));
  }
}

TEST(Packs, MemoisedResultsDependOnTheOrderOfComponents) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    const Elements elements = random.elements(kAll);
    const PackId id = random.make(elements);
    Packs& packs = random.packs;
    for (int round = 0; round < 12; ++round) {
      // Other components, some equal, some zero.
      std::map<int32_t, int32_t> names;
      std::vector<Value> components;
      for (const Value& component : packs[id].components) {
        const auto name = static_cast<int32_t>(random.below(kComponents + 1)) - 1;
        names[component.expr - 7] = name;
        components.push_back(name < 0 ? Value{kZero, kAnyPiece} : Value{7 + name, 3});
      }
      Elements renamed;
      for (const auto& [coords, row] : elements) {
        for (const auto& [component, at] : row) {
          const int32_t name = component < 0 ? -1 : names.at(component);
          renamed[coords].push_back({name, name < 0 ? 0 : at});
        }
      }
      EXPECT_EQ(packs.with(id, components), random.make(renamed)) << seed;
    }
    const auto behind = [](const Coords&) { return graph::Run{5, 2}; };
    const auto inside = [](const Coords&) { return graph::Run{4, 2}; };
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(packs.restrict_to(id, 0, {5, 2}, behind), kNone);
      EXPECT_EQ(packs.restrict_to(id, 0, {4, 2}, inside), packs.restrict_to(id, 0, inside));
    }
  }
}

TEST(Packs, AlignedRunsEqualBruteForce) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    const std::array<Elements, 2> both{random.elements(1), random.elements(4)};
    const std::array<PackId, 2> ids{random.make(both[0]), random.make(both[1])};
    std::array<Elements, 2> seen;
    EXPECT_TRUE(random.packs.for_each_aligned(
        ids, [&](const Coords& coords, const Packs::AlignedRuns& meeting) {
          for (size_t k : {0, 1}) {
            const PackRun& run = meeting.runs[k];
            EXPECT_EQ(run.length, meeting.runs[0].length);
            for (int64_t i = 0; i < run.length; ++i) {
              const bool zero = run.component == kNone;
              seen[k][coords].push_back(
                  {zero ? -1 : random.packs[ids[k]].components[run.component].expr - 7,
                   zero ? 0 : run.begin + i});
            }
          }
        }));
    for (size_t k : {0, 1}) {
      for (const auto& [coords, row] : seen[k]) {
        EXPECT_EQ(row, both[k].at(coords)) << seed;
      }
    }
    const PackId longer = random.packs.gather(ids[0], graph::axis_bit(0), false);
    const std::array<PackId, 2> different{ids[0], longer};
    EXPECT_FALSE(
        random.packs.for_each_aligned(different, [](const Coords&, const Packs::AlignedRuns&) {}));
  }
}

}  // namespace
}  // namespace hocket::check
