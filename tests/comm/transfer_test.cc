// SPDX-License-Identifier: Apache-2.0
// Who copies what in a transfer, against a walk over all elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "comm/ops/parts.h"

namespace hocket::comm {
namespace {

int64_t volume(const Region& region) {
  int64_t size = 1;
  for (const graph::Run& run : region) {
    size *= run.length;
  }
  return size;
}

/// Calls `visit` with the index in the whole tensor and the place in the region's own memory.
template <class Visit>
void for_each_element(const Region& region, const std::vector<int64_t>& dims, const Visit& visit) {
  for (int64_t place = 0; place < volume(region); ++place) {
    int64_t rest = place;
    std::vector<int64_t> index(dims.size());
    for (size_t dim = dims.size(); dim-- > 0;) {
      index[dim] = region[dim].begin + rest % region[dim].length;
      rest /= region[dim].length;
    }
    int64_t whole = 0;
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      whole = whole * dims[dim] + index[dim];
    }
    visit(whole, place);
  }
}

TEST(PlanCopies, TakeEveryElementOnceFromTheFirstThatHasIt) {
  Rng rng(7);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(rng.next() % static_cast<uint64_t>(n));
  };
  int possible = 0;
  int impossible = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<int64_t> dims(static_cast<size_t>(1 + below(3)));
    for (int64_t& dim : dims) {
      dim = 1 + below(6);
    }
    const auto region = [&] {
      Region made;
      for (int64_t dim : dims) {
        const int64_t begin = below(dim);
        // Often all of it.
        made.push_back(below(2) ? graph::Run{0, dim} : graph::Run{begin, 1 + below(dim - begin)});
      }
      return made;
    };
    std::vector<Region> held(static_cast<size_t>(1 + below(5)));
    std::generate(held.begin(), held.end(), region);
    const Region wanted = region();
    const size_t first = static_cast<size_t>(below(static_cast<int64_t>(held.size())));

    int64_t all = 1;
    for (int64_t dim : dims) {
      all *= dim;
    }
    // Of every element: who gives it, and from where.
    std::vector<std::pair<int32_t, int64_t>> giver(static_cast<size_t>(all), {-1, -1});
    for (size_t i = held.size(); i-- > 0;) {
      const size_t source = (first + i) % held.size();
      for_each_element(held[source], dims, [&](int64_t whole, int64_t place) {
        giver[static_cast<size_t>(whole)] = {static_cast<int32_t>(source), place};
      });
    }
    bool covered = true;
    for_each_element(wanted, dims, [&](int64_t whole, int64_t) {
      covered = covered && giver[static_cast<size_t>(whole)].first >= 0;
    });
    const auto copies = plan_copies(held, wanted, first);
    ASSERT_EQ(copies.has_value(), covered) << round;
    ++(covered ? possible : impossible);
    if (!covered) continue;
    std::vector<std::pair<int32_t, int64_t>> got(static_cast<size_t>(volume(wanted)), {-1, -1});
    for (const Copy& copy : *copies) {
      for (int64_t i = 0; i < copy.count; ++i) {
        auto& element = got[static_cast<size_t>(copy.to + i)];
        ASSERT_EQ(element.first, -1) << "copied twice";
        element = {copy.source, copy.from + i};
      }
    }
    for_each_element(wanted, dims, [&](int64_t whole, int64_t place) {
      ASSERT_EQ(got[static_cast<size_t>(place)], giver[static_cast<size_t>(whole)]) << round;
    });
  }
  EXPECT_GT(possible, 500);
  EXPECT_GT(impossible, 500);
}

TEST(PlanCopies, NeighboursAreOneCopy) {
  const std::vector<Region> rows{{{0, 4}, {0, 8}}, {{4, 4}, {0, 8}}};
  EXPECT_EQ(*plan_copies(rows, {{2, 4}, {0, 8}}, 0),
            (std::vector<Copy>{{0, 16, 0, 16}, {1, 0, 16, 16}}));
  EXPECT_EQ(plan_copies(rows, {{2, 4}, {0, 3}}, 0)->size(), 4);
}

}  // namespace
}  // namespace hocket::comm
