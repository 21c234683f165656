// SPDX-License-Identifier: Apache-2.0
// The threads of a kernel call.
#include "kernels/team.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace hocket::kernels {
namespace {

/// Restores the calling thread's team.
struct TeamOf {
  explicit TeamOf(int n) { set_team_size(n); }
  ~TeamOf() { set_team_size(1); }
};

TEST(Team, RunsEveryPartOnceAndOneAtATimePerThread) {
  const TeamOf three(3);
  for (int round = 0; round < 2000; ++round) {
    const int64_t parts = round % 41, limit = 1 + round % 5;
    std::vector<std::atomic<int>> runs(static_cast<size_t>(parts));
    std::array<std::atomic<int>, 3> inside{};
    std::atomic<int> wrong = 0;
    auto part = [&](int64_t i, int64_t thread) {
      if (thread < 0 || thread >= std::min<int64_t>(limit, 3)) {
        ++wrong;
        return;
      }
      auto& here = inside[thread];
      if (here.fetch_add(1) != 0) {
        ++wrong;
      }
      ++runs[i];
      here.fetch_sub(1);
    };
    parallel(parts, limit, part);
    EXPECT_EQ(wrong, 0);
    for (const std::atomic<int>& n : runs) {
      ASSERT_EQ(n, 1) << "round " << round;
    }
  }
}

TEST(Team, HelpersTakePartsWhileTheCallerIsBusy) {
  const TeamOf two(2);
  std::atomic<bool> helped = false;
  auto part = [&](int64_t, int64_t thread) {
    if (thread == 1) {
      helped = true;
      return;
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!helped && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
  };
  parallel(2, 2, part);
  EXPECT_TRUE(helped);
}

TEST(Team, ThrowsWhatAPartThrewAndGoesOn) {
  const TeamOf three(3);
  std::atomic<int> after = 0;
  for (int at = 0; at < 3; ++at) {
    auto failing = [&](int64_t i, int64_t) {
      if (i == at) throw std::runtime_error("part " + std::to_string(i));
    };
    EXPECT_THROW(parallel(3, 3, failing), std::runtime_error);
    auto part = [&](int64_t, int64_t) { ++after; };
    parallel(4, 3, part);
  }
  EXPECT_EQ(after, 12);
  EXPECT_EQ(team_size(), 3);
}

TEST(Team, BelongsToItsThreadAndIsAloneInsideAPart) {
  const TeamOf three(3);
  int fresh = 0;
  std::thread([&] { fresh = team_size(); }).join();
  EXPECT_EQ(fresh, 1);
  std::atomic<int> most = 0;
  auto part = [&](int64_t, int64_t) {
    int seen = team_size();
    auto inner = [&](int64_t, int64_t thread) {
      seen = std::max<int>(seen, static_cast<int>(thread) + 1);
    };
    parallel(5, 3, inner);
    int before = most;
    while (before < seen && !most.compare_exchange_weak(before, seen)) {
    }
  };
  parallel(6, 3, part);
  EXPECT_EQ(most, 1);
  EXPECT_EQ(team_size(), 3);
}

}  // namespace
}  // namespace hocket::kernels
