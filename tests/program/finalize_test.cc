// SPDX-License-Identifier: Apache-2.0
// Dependencies and the memory plan of random programs against brute force: the transitive closure
// of happens-before.
#include "program/finalize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <set>

#include "base/rng.h"

namespace hocket::program {
namespace {

using graph::DType;

/// Random tasks over random buffers: a buffer is written before it is read, sometimes written again
/// or added to; lanes and sizes (times `scale`) are random, and some dependencies are given.
Program random_program(uint64_t seed, int64_t scale = 1) {
  Rng rng(seed);
  Program p;
  p.classes.resize(1);
  RankClass& cls = p.classes[0];
  const uint64_t lanes = 1 + rng.below(static_cast<uint64_t>(kNumLanes));
  const uint64_t tasks = 1 + rng.below(60), recent = 1 + rng.below(12);
  for (uint64_t i = 0; i < tasks; ++i) {
    Task t;
    Kind kind;
    kind.op = "fake" + std::to_string(i);
    t.lane = static_cast<Lane>(rng.below(lanes));
    if (t.lane == Lane::compute && rng.below(3) == 0) {
      kind.workspace = static_cast<int64_t>(rng.below(500));
    }
    const uint64_t n = cls.buffers.size();
    auto old = [&] { return n - 1 - rng.below(std::min(n, recent)); };
    if (n > 0) {
      for (uint64_t k = rng.below(4); k > 0; --k) {
        t.in.push_back(old());
      }
    }
    if (n > 0 && rng.below(4) == 0) {
      t.out.push_back(old());
    }
    for (uint64_t k = rng.below(3) + (t.out.empty() ? 1 : 0); k > 0; --k) {
      Buffer b;
      b.type = {DType::f32, {scale * static_cast<int64_t>(1 + rng.below(300))}};
      if (rng.below(10) == 0) {
        b.kind = BufferKind::persistent;
        b.name = "p" + std::to_string(cls.buffers.size());
      } else if (rng.below(6) == 0) {
        b.expected_bytes = b.type.bytes() / 2;
      }
      t.out.push_back(cls.buffers.size());
      cls.buffers.push_back(b);
    }
    if (i > 0 && rng.below(8) == 0) {
      t.deps.push_back(rng.below(i));
    }
    t.kind = p.intern(kind);
    cls.tasks.push_back(t);
  }
  return p;
}

/// before[i][j]: task j has ended before task i starts.
std::vector<std::vector<bool>> happens_before(const RankClass& cls) {
  const size_t n = cls.tasks.size();
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n));
  for (size_t i = 0; i < n; ++i) {
    auto add = [&](size_t j) {
      before[i][j] = true;
      for (size_t k = 0; k < j; ++k) {
        if (before[j][k]) {
          before[i][k] = true;
        }
      }
    };
    for (size_t j = 0; j < i; ++j) {
      if (cls.tasks[j].lane == cls.tasks[i].lane) {
        add(j);
      }
    }
    for (TaskId d : cls.tasks[i].deps) {
      add(static_cast<size_t>(d));
    }
  }
  return before;
}

bool uses(const std::vector<BufferId>& list, BufferId b) {
  return std::find(list.begin(), list.end(), b) != list.end();
}

TEST(Finalize, OrdersEveryConflictAndNothingTwice) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    Program p = random_program(seed);
    const std::vector<Task> given = p.classes[0].tasks;
    finalize(p);
    const RankClass& cls = p.classes[0];
    const auto before = happens_before(cls);
    for (size_t i = 0; i < cls.tasks.size(); ++i) {
      const Task& a = cls.tasks[i];
      for (TaskId d : given[i].deps) {
        EXPECT_TRUE(before[i][d]) << seed;
      }
      for (size_t j = 0; j < i; ++j) {
        const Task& b = cls.tasks[j];
        bool conflict = false;
        for (BufferId x : a.out) {
          conflict |= uses(b.in, x) || uses(b.out, x);
        }
        for (BufferId x : a.in) {
          conflict |= uses(b.out, x);
        }
        EXPECT_TRUE(!conflict || before[i][j]) << "seed " << seed << ": " << j << " and " << i;
      }
      // No dependency follows from the lane or from the others.
      for (TaskId d : a.deps) {
        EXPECT_NE(cls.tasks[d].lane, a.lane) << seed;
        RankClass without = cls;
        auto& deps = without.tasks[i].deps;
        deps.erase(std::find(deps.begin(), deps.end(), d));
        EXPECT_FALSE(happens_before(without)[i][d])
            << "seed " << seed << ": task " << i << " needs not wait for " << d;
      }
    }
  }
}

TEST(Finalize, ClocksAreHappensBefore) {
  for (uint64_t seed = 500; seed < 700; ++seed) {
    Program p = random_program(seed);
    finalize(p);
    const RankClass& cls = p.classes[0];
    const auto before = happens_before(cls);
    const auto at = clocks(cls);
    const auto position = lane_positions(cls);
    for (size_t i = 0; i < cls.tasks.size(); ++i) {
      for (size_t j = 0; j < cls.tasks.size(); ++j) {
        EXPECT_EQ(at[i][place_of(cls.tasks[j].lane)] >= position[j], before[i][j])
            << "seed " << seed << ": " << j << " before " << i;
      }
    }
  }
}

TEST(Finalize, BuffersShareMemoryOnlyWhereSafe) {
  int64_t planned = 0, distinct = 0;
  for (uint64_t seed = 1000; seed < 1400; ++seed) {
    // Large ones are placed a second time, the largest first.
    constexpr int64_t kLarge = 1 << 20;
    Program p = random_program(seed, seed % 2 == 0 ? 1 : kLarge);
    finalize(p);
    const RankClass& cls = p.classes[0];
    const auto before = happens_before(cls);
    std::vector<std::vector<size_t>> users(cls.buffers.size());
    for (size_t i = 0; i < cls.tasks.size(); ++i) {
      for (const auto* list : {&cls.tasks[i].in, &cls.tasks[i].out}) {
        for (BufferId b : *list) {
          users[b].push_back(i);
        }
      }
    }
    auto all_before = [&](const std::vector<size_t>& first, const std::vector<size_t>& then) {
      for (size_t i : then) {
        for (size_t j : first) {
          if (i == j || !before[i][j]) return false;
        }
      }
      return true;
    };
    for (size_t a = 0; a < cls.buffers.size(); ++a) {
      const Buffer& x = cls.buffers[a];
      if (x.kind != BufferKind::step) {
        EXPECT_EQ(x.offset, kNone);
        continue;
      }
      ASSERT_GE(x.offset, 0) << seed;
      EXPECT_EQ(x.offset % 64, 0);
      EXPECT_LE(x.offset + x.type.bytes(), cls.arena_bytes);
      distinct += x.type.bytes();
      for (size_t b = a + 1; b < cls.buffers.size(); ++b) {
        const Buffer& y = cls.buffers[b];
        if (y.kind != BufferKind::step || x.offset >= y.offset + y.type.bytes() ||
            y.offset >= x.offset + x.type.bytes()) {
          continue;
        }
        EXPECT_TRUE(all_before(users[a], users[b]) || all_before(users[b], users[a]))
            << "seed " << seed << ": buffers " << a << " and " << b;
      }
    }
    for (size_t i = 0; i < cls.tasks.size(); ++i) {
      const int64_t bytes = p.kind(cls.tasks[i]).workspace, at = cls.tasks[i].workspace;
      if (bytes == 0) continue;
      EXPECT_EQ(cls.tasks[i].lane, Lane::compute);
      ASSERT_GE(at, 0);
      EXPECT_LE(at + bytes, cls.arena_bytes);
      for (const Buffer& b : cls.buffers) {
        EXPECT_TRUE(b.kind != BufferKind::step || b.offset + b.type.bytes() <= at ||
                    b.offset >= at + bytes);
      }
    }
    planned += cls.arena_bytes;
  }
  std::cout << "arena " << planned << " bytes for buffers of " << distinct << "\n";
  EXPECT_LT(planned, distinct * 3 / 4);
}

/// A ragged buffer shares addresses only with ragged buffers of its size, and those begin with it.
/// Memory freed by a lane that compute does not wait for does not keep a larger piece beside it
/// from compute; a lane that waits gets both as one.
TEST(Finalize, APieceThatWaitsKeepsNoNeighbourFromUse) {
  for (const bool waits : {false, true}) {
    Program p;
    p.classes.resize(1);
    RankClass& cls = p.classes[0];
    const auto buffer = [&](int64_t elements) {
      Buffer made;
      made.type = {DType::f32, {elements}};
      cls.buffers.push_back(made);
      return static_cast<BufferId>(std::ssize(cls.buffers) - 1);
    };
    const auto task = [&](Lane lane, std::vector<BufferId> in, std::vector<BufferId> out) {
      Kind kind;
      kind.op = "fake" + std::to_string(cls.tasks.size());
      Task made;
      made.kind = p.intern(kind);
      made.lane = lane;
      made.in = std::move(in);
      made.out = std::move(out);
      cls.tasks.push_back(made);
    };
    const BufferId large = buffer(256), small = buffer(16), left = buffer(16), sent = buffer(16);
    const BufferId next = buffer(waits ? 272 : 256);
    task(Lane::compute, {}, {large});
    task(Lane::intra, {}, {small});
    task(Lane::compute, {large}, {left});
    task(Lane::intra, {small}, {sent});
    task(Lane::compute, waits ? std::vector{left, sent} : std::vector{left}, {next});
    finalize(p);
    EXPECT_EQ(cls.buffers[small].offset, cls.buffers[large].offset + 1024);
    EXPECT_EQ(cls.buffers[next].offset, cls.buffers[large].offset) << (waits ? "waits" : "");
  }
}

TEST(Finalize, RaggedBuffersHaveSlots) {
  int shared = 0;
  for (uint64_t seed = 2000; seed < 2400; ++seed) {
    Program p = random_program(seed);
    for (Buffer& b : p.classes[0].buffers) {  // few sizes, so that slots find tenants
      if (b.expected_bytes != kNone) {
        b.type.dims = {200}, b.expected_bytes = seed % 2 ? 100 : 800;
      }
    }
    finalize(p);
    const RankClass& cls = p.classes[0];
    for (size_t a = 0; a < cls.buffers.size(); ++a) {
      const Buffer& x = cls.buffers[a];
      if (x.kind != BufferKind::step || x.expected_bytes == kNone) continue;
      for (size_t b = 0; b < cls.buffers.size(); ++b) {
        const Buffer& y = cls.buffers[b];
        if (a == b || y.kind != BufferKind::step || x.offset >= y.offset + y.type.bytes() ||
            y.offset >= x.offset + x.type.bytes()) {
          continue;
        }
        ++shared;
        EXPECT_EQ(x.offset, y.offset) << "seed " << seed << ": buffers " << a << " and " << b;
        EXPECT_EQ(x.expected_bytes, y.expected_bytes) << "seed " << seed;
        EXPECT_EQ(x.type.bytes(), y.type.bytes()) << "seed " << seed;
      }
    }
  }
  EXPECT_GT(shared, 100) << "no slot has a second tenant: this compares nothing";
}

TEST(Finalize, TheSameProgramGivesTheSamePlan) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Program a = random_program(seed), b = random_program(seed);
    finalize(a), finalize(b);
    EXPECT_EQ(print(a), print(b));
    const std::string once = print(a);
    finalize(a);
    EXPECT_EQ(print(a), once) << "finalizing again changed something";
  }
}

}  // namespace
}  // namespace hocket::program
