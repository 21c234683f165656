// SPDX-License-Identifier: Apache-2.0
// Ranges of addresses, and the extra memory of a second program beyond a first on the same ranks.
#include "program/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ops/op.h"
#include "program/finalize.h"

namespace hocket::program {
namespace {

using Ranges = std::vector<Range>;

TEST(Ranges, AreJoinedAndSubtracted) {
  EXPECT_EQ(joined({{8, 9}, {0, 2}, {1, 4}, {4, 5}}), (Ranges{{0, 5}, {8, 9}}));
  EXPECT_EQ(without({{0, 5}, {8, 9}}, {}), (Ranges{{0, 5}, {8, 9}}));
  EXPECT_EQ(without({{0, 5}, {8, 12}}, {{1, 2}, {4, 9}}), (Ranges{{0, 1}, {2, 4}, {9, 12}}));
  EXPECT_EQ(without({{3, 5}}, {{0, 9}}), Ranges{});
  EXPECT_EQ(total_bytes({{0, 5}, {8, 9}}), 6);
}

TEST(Ranges, AreSetsOfAddresses) {
  // Against sets of single addresses; seed 1.
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const auto draw = [&](std::vector<bool>& at) {
      Ranges list;
      for (int i = 0; i < 5; ++i) {
        const int64_t begin = static_cast<int64_t>(random() % 40);
        const int64_t end = begin + 1 + static_cast<int64_t>(random() % 8);
        list.push_back({begin, end});
        std::fill(at.begin() + begin, at.begin() + end, true);
      }
      return joined(list);
    };
    std::vector<bool> in_a(64), in_b(64);
    const Ranges a = draw(in_a), b = draw(in_b), rest = without(a, b);
    std::vector<bool> in_rest(64);
    for (const Range& range : rest) {
      std::fill(in_rest.begin() + range.begin, in_rest.begin() + range.end, true);
    }
    for (size_t i = 0; i < in_a.size(); ++i) {
      ASSERT_EQ(in_rest[i], in_a[i] && !in_b[i]) << "round " << round << ", address " << i;
    }
    ASSERT_EQ(total_bytes(rest), std::count(in_rest.begin(), in_rest.end(), true));
  }
}

/// A program of one rank: pages [first, end) of step buffers, and named buffers of the given
/// numbers of pages.
Program program_of(int64_t first, int64_t end, int64_t inputs,
                   const std::vector<std::pair<std::string, int64_t>>& named) {
  const auto buffer = [](BufferKind kind, std::string name, int64_t pages) {
    Buffer made;
    made.kind = kind;
    made.name = std::move(name);
    made.type = {graph::DType::f64, {pages * kPageBytes / 8}};
    return made;
  };
  Program program;
  program.roles[0].mesh.axes = {{"pp", 1}};
  RankClass cls;
  cls.buffers.push_back(buffer(BufferKind::step, "", end - first));
  cls.buffers.back().offset = first * kPageBytes;
  cls.arena_bytes = end * kPageBytes;
  cls.buffers.push_back(buffer(BufferKind::input, "in", inputs));
  for (const auto& [name, pages] : named) {
    cls.buffers.push_back(buffer(BufferKind::persistent, name, pages));
  }
  program.classes.push_back(std::move(cls));
  return program;
}

TEST(MemoryBeyond, CountsOnlyAdditionalMemory) {
  const Program training = program_of(0, 3, 1, {{"w", 2}});
  const Program other = program_of(2, 5, 3, {{"w", 2}, {"kv", 1}});
  const auto pages = [](int64_t n) { return std::vector<int64_t>{n * kPageBytes}; };
  // Pages 3 and 4, two of inputs, one of the cache.
  EXPECT_EQ(memory_beyond(training, other), pages(5));
  EXPECT_EQ(memory_beyond(other, training), pages(2));  // pages 0 and 1
  EXPECT_EQ(memory_beyond(training, training), pages(0));
  // With it, the two together are a program that does both.
  EXPECT_EQ(memory_of(training)[0].total() + memory_beyond(training, other)[0],
            memory_of(other)[0].total() + memory_beyond(other, training)[0]);
}

TEST(MemoryBeyond, CountsEverySpaceByItself) {
  const auto to_host = [](Program program) {
    for (Buffer& buffer : program.classes[0].buffers) {
      buffer.space = Space::host;
    }
    std::swap(program.classes[0].arena_bytes, program.classes[0].host_arena_bytes);
    return program;
  };
  const Program training = program_of(0, 3, 1, {{"w", 2}});
  const Program other = program_of(2, 5, 3, {{"w", 2}, {"kv", 1}});
  const auto pages = [](int64_t n) { return std::vector<int64_t>{n * kPageBytes}; };
  EXPECT_EQ(memory_of(to_host(other))[0].host, memory_of(other)[0].total());
  EXPECT_EQ(memory_of(to_host(other))[0].total(), 0);
  EXPECT_EQ(memory_beyond(training, other, Space::host), pages(0));
  EXPECT_EQ(memory_beyond(to_host(training), to_host(other), Space::host), pages(5));
  EXPECT_EQ(memory_beyond(to_host(training), to_host(other)), pages(0));
  EXPECT_EQ(memory_beyond(training, to_host(other), Space::host), pages(3 + 3 + 1));
  EXPECT_EQ(memory_with(training, nullptr), memory_of(training));
  Memory both = memory_of(training)[0];
  both.evaluation = memory_beyond(training, other)[0];
  EXPECT_EQ(memory_with(training, &other), std::vector{both});
  // With another part of w, the two have stores of their own, and still share arenas.
  const Program otherwise = program_of(2, 5, 3, {{"w", 1}, {"kv", 1}});
  both.evaluation = (2 + 2 + 1 + 1) * kPageBytes;
  EXPECT_EQ(memory_with(training, &otherwise), std::vector{both});
  const Program in_host = to_host(other);
  both = memory_of(training)[0];
  both.host = (3 + 3 + 2 + 1) * kPageBytes;  // w lies in other memory, and so is had twice
  EXPECT_EQ(memory_with(training, &in_host), std::vector{both});
}

/// A bf16 product in a lane, of one rank, with its workspace.
Program product_in(Lane lane) {
  Program program;
  program.roles[0].mesh.axes = {{"pp", 1}};
  Kind kind;
  kind.op = "linear";
  kind.in = {{graph::DType::bf16, {512, 64}}, {graph::DType::bf16, {32, 64}}};
  kind.out = {{graph::DType::bf16, {512, 32}}};
  kind.workspace = ops::workspace_bytes(kind.op, kind.attrs, kind.in, kind.out);
  RankClass cls;
  Task task;
  task.lane = lane;
  for (const auto* types : {&kind.in, &kind.out}) {
    for (const graph::TensorType& type : *types) {
      Buffer buffer;
      buffer.kind = types == &kind.in ? BufferKind::input : BufferKind::step;
      buffer.name = types == &kind.in ? "in" + std::to_string(cls.buffers.size()) : "";
      buffer.type = type;
      buffer.space = workspace_space(lane);
      (types == &kind.in ? task.in : task.out).push_back(cls.buffers.size());
      cls.buffers.push_back(buffer);
    }
  }
  task.kind = program.intern(kind);
  cls.tasks.push_back(task);
  program.classes.push_back(std::move(cls));
  finalize(program);
  return program;
}

TEST(Workspaces, LieWhereTheirLaneWorks) {
  const Program on_device = product_in(Lane::compute), on_host = product_in(Lane::host);
  EXPECT_EQ(on_device.classes[0].host_arena_bytes, 0);
  EXPECT_EQ(on_host.classes[0].arena_bytes, 0);
  EXPECT_EQ(on_host.classes[0].host_arena_bytes, on_device.classes[0].arena_bytes);
  EXPECT_GE(on_host.classes[0].tasks[0].workspace, 512 * 32 * 2);
  EXPECT_EQ(planned_pages(on_host, 0), Ranges{});
  EXPECT_EQ(planned_pages(on_host, 0, Space::host), planned_pages(on_device, 0));
  EXPECT_EQ(memory_of(on_host)[0].host,
            memory_of(on_device)[0].step_buffers + memory_of(on_device)[0].inputs_outputs);
}

TEST(Workspaces, NativeKernelsNeedNoCopies) {
  // Copies of x, W and y in f32.
  const int64_t copies = (512 * 64 + 32 * 64 + 512 * 32) * 4;
  const Program program = product_in(Lane::compute);
  const int64_t all = workspaces(program, Kernels::on_copies)[0];
  const int64_t rest = workspaces(program, Kernels::native)[0];
  EXPECT_EQ(all, program.kinds[0].workspace);
  EXPECT_LE(rest, all - copies);
  EXPECT_GE(rest, 0);
  const Memory here = memory_of(program)[0], there = memory_of(program, Kernels::native)[0];
  EXPECT_NEAR(here.step_buffers - there.step_buffers, all - rest, 2 * kPageBytes);
  EXPECT_EQ(here.inputs_outputs, there.inputs_outputs);
  EXPECT_EQ(memory_with(program, &program, Kernels::native), std::vector{there});
  // The host of such a device has the CPU's kernels.
  const Program on_host = product_in(Lane::host);
  EXPECT_EQ(memory_of(on_host, Kernels::native), memory_of(on_host));
  // Other types have no copies.
  Program wide = program;
  for (graph::TensorType& type : wide.kinds[0].in) {
    type.dtype = graph::DType::f32;
  }
  wide.kinds[0].out[0].dtype = graph::DType::f32;
  EXPECT_EQ(workspaces(wide, Kernels::native), workspaces(wide, Kernels::on_copies));
}

TEST(MemoryLimits, ADeviceThatIsTheHostHasItsBuffersToo) {
  Memory memory;
  memory.persistent = 10;
  memory.host = 5;
  const auto fits = [&](const MemoryLimits& limits) { return !limits.exceeded_by(memory); };
  EXPECT_TRUE(fits({}));
  EXPECT_TRUE(fits({.device = 10}));
  EXPECT_FALSE(fits({.device = 9}));
  EXPECT_TRUE(fits({.device = 15, .device_is_host = true}));
  EXPECT_FALSE(fits({.device = 14, .device_is_host = true}));
  // A budget stands for a device with memory of its own.
  EXPECT_TRUE(fits({.device = 15, .device_is_host = true, .budget = 10}));
  EXPECT_FALSE(fits({.device = 15, .device_is_host = true, .budget = 9}));
  const auto excess = MemoryLimits{.device = 4, .device_is_host = true, .budget = 9};
  EXPECT_EQ(excess.exceeded_by(memory)->there, 4);
  EXPECT_EQ(excess.exceeded_by(memory)->needed, 15);
  EXPECT_EQ((MemoryLimits{.device = 9, .budget = 8}.exceeded_by(memory)->there), 8);
}

TEST(MemoryBeyond, GoesByRankWhereClassesDiffer) {
  // Ranks 0 and 1 do different things in one program and the same in the other.
  Program apart = program_of(0, 3, 1, {{"w", 2}});
  apart.roles[0].mesh.axes = {{"pp", 2}};
  apart.classes.push_back(program_of(0, 5, 1, {{"w", 2}}).classes[0]);
  apart.classes[0].box = Box::at(0, 0);
  apart.classes[1].box = Box::at(0, 1);
  Program together = program_of(0, 4, 1, {{"w", 2}});
  together.roles = apart.roles;
  EXPECT_EQ(memory_beyond(apart, together), (std::vector<int64_t>{kPageBytes, 0}));
  // The rank that needs most stands for its class.
  EXPECT_EQ(memory_beyond(together, apart), (std::vector<int64_t>{kPageBytes}));
}

/// Each of four ranks sends a number to the rank two further, and gets a message back that it has
/// come. Then it sends another one by a permutation.
int64_t bytes_in_flight(const std::vector<int32_t>& second) {
  Program program;
  program.roles[0].mesh.axes = {{"dp", 4}};
  program.classes.emplace_back();
  RankClass& cls = program.classes[0];
  Table there{0, {0}, {}};
  Table back{0, {0}, {0, 0, 0, 0}};
  for (int32_t rank = 0; rank < 4; ++rank) {
    const int32_t to = second[static_cast<size_t>(rank)];
    there.values.push_back(to - rank);
    back.values[static_cast<size_t>(to)] = rank - to;
  }
  const graph::TensorType type{graph::DType::f64, {1}};
  const auto message = [&](const PeerMap& to, const PeerMap& from, int32_t tag) {
    for (const bool sends : {true, false}) {
      Task task;
      const comm::Role role = sends ? comm::Role::send : comm::Role::receive;
      const std::vector<graph::TensorType> moved{type}, none;
      task.kind = program.intern(communication_kind(comm::message(role).id, {},
                                                    sends ? moved : none, sends ? none : moved));
      const PeerMap& peer_map = sends ? to : from;
      task.lane = link_lane(role, false);
      task.peer_axis = peer_map.axis;
      task.peer = peer_map.offset;
      task.peer_by = peer_map.by;
      task.tag = tag;
      if (sends && !cls.tasks.empty()) {
        task.deps = {cls.tasks.size() - 1};
      }
      cls.tasks.push_back(task);
    }
  };
  message({0, 2}, {0, 2}, 0);
  message({0, 2}, {0, 2}, 1);
  message({0, 0, program.intern(there)}, {0, 0, program.intern(back)}, 2);
  return memory_of(program)[0].messages;
}

/// Received messages are known by rank, not by class: rank 0 has one peer with a message that
/// implies the first number; others have two.
TEST(MessagesInFlight, CountTheRankWithTheMost) {
  EXPECT_EQ(bytes_in_flight({2, 3, 0, 1}), 16);
  EXPECT_EQ(bytes_in_flight({2, 0, 3, 1}), 24);
  EXPECT_EQ(bytes_in_flight({1, 0, 3, 2}), 24);
}

}  // namespace
}  // namespace hocket::program
