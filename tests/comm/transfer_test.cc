// SPDX-License-Identifier: Apache-2.0
// Copies of a transfer, compared with a walk over all elements; and a transfer among processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "collectives/parts.h"
#include "comm/process_world.h"
#include "tests/comm/transport_util.h"

namespace hocket::comm {
namespace {

int64_t volume(const Region& region) {
  int64_t size = 1;
  for (const graph::Run& run : region) {
    size *= run.length;
  }
  return size;
}

/// Calls `visit` with the index in the whole tensor and the offset in the region's own memory.
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

TEST(PlanCopies, CopyEveryElementOnceFromItsFirstHolder) {
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
        // Often the whole dim.
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
    // Expected source rank and offset of every element.
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

/// Two ranks send halves of the rows. One receiver wants rows of both, contiguous in each; the
/// other wants columns of all rows, in many pieces.
TEST(Transfer, MovesRowsAndColumnsAmongProcesses) {
  const std::vector<int64_t> dims = {8, 3};
  const std::vector<Region> parts = {
      {{0, 4}, {0, 3}}, {{4, 4}, {0, 3}}, {{2, 4}, {0, 3}}, {{0, 8}, {1, 2}}};
  constexpr size_t kRanks = 4, kGivers = 2;
  const std::vector<int32_t> members = {0, 1, 2, 3};
  std::vector<std::vector<Copy>> copies(kRanks), given(kRanks);
  for (size_t taker = kGivers; taker < kRanks; ++taker) {
    copies[taker] =
        *plan_copies({parts.begin(), parts.begin() + kGivers}, parts[taker], taker - kGivers);
    for (Copy copy : copies[taker]) {
      const auto giver =
          static_cast<size_t>(std::exchange(copy.source, static_cast<int32_t>(taker)));
      given[giver].push_back(copy);
    }
  }
  std::vector<std::vector<double>> memory(kRanks), want(kRanks);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    for_each_element(parts[rank], dims,
                     [&](int64_t whole, int64_t) { want[rank].push_back(double(whole)); });
    memory[rank] = rank < kGivers ? want[rank] : std::vector<double>(want[rank].size(), -1);
  }
  const auto connections = test::connections(kRanks, std::chrono::seconds(20));
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const bool gives = rank < kGivers;
      const TensorType type = {graph::DType::f64, {parts[rank][0].length, parts[rank][1].length}};
      const std::vector<TensorType> one = {type}, none;
      const program::Kind kind =
          program::communication_kind(find("transfer"), {}, gives ? one : none, gives ? none : one);
      void* operand = memory[rank].data();
      Call call;
      call.kind = &kind;
      (gives ? call.in : call.out) = {&operand, 1};
      call.members = members;
      call.copies = copies[rank];
      call.given = given[rank];
      try {
        ProcessWorld world(connections[rank]);
        world.communicator(static_cast<int32_t>(rank)).run(call);
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(errors[rank], "");
    EXPECT_EQ(memory[rank], want[rank]) << "rank " << rank;
  }
}

}  // namespace
}  // namespace hocket::comm
