// SPDX-License-Identifier: Apache-2.0
// Memory reserves addresses and allocates pages on touch; an arena is as large as its largest user;
// the store keeps named tensors.
#include "runtime/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/error.h"

namespace hocket::runtime {
namespace {

using graph::DType;
using graph::Layout;
using graph::TensorType;

const int64_t kPage = sysconf(_SC_PAGESIZE);

TEST(CpuMemory, CommitsWhatIsTouched) {
  constexpr int64_t kReserved = int64_t{64} << 30;  // far more than the machine may have
  const auto memory = cpu_device()->reserve(kReserved);
  Memory& r = *memory;
  ASSERT_NE(r.data(), nullptr);
  EXPECT_EQ(r.bytes(), kReserved);
  r.data()[0] = std::byte{1};
  r.data()[kReserved - 1] = std::byte{2};
  EXPECT_EQ(r.data()[kReserved / 2], std::byte{0});
}

TEST(CpuMemory, CountsResidentBytes) {
  const auto memory = cpu_device()->reserve(1 << 20);  // below the size that uses large pages
  Memory& r = *memory;
  EXPECT_EQ(r.resident_bytes(), 0);
  std::memset(r.data(), 1, 100'000);
  EXPECT_GE(r.resident_bytes(), 100'000);
  EXPECT_LE(r.resident_bytes(), 200'000);
  std::memset(r.data(), 1, 1 << 20);
  EXPECT_EQ(r.resident_bytes(), 1 << 20);
}

TEST(CpuMemory, AllocatesOnlyCommittedLargePages) {
  constexpr int64_t kMiB = 1 << 20;
  const program::Range used[] = {{0, 9 * kMiB + kPage}, {33 * kMiB, 40 * kMiB - kPage}};
  const auto memory = cpu_device()->reserve(64 * kMiB);
  Memory& r = *memory;
  int64_t bytes = 0;
  for (const program::Range& u : used) {
    r.commit(u);
  }
  for (const program::Range& u : used) {
    std::memset(r.data() + u.begin, 1, static_cast<size_t>(u.end - u.begin));
    bytes += u.end - u.begin;
  }
  EXPECT_EQ(r.resident_bytes(), bytes) << "a large page reaches beyond what is used";
  r.data()[20 * kMiB] = std::byte{1};  // elsewhere a touch allocates one small page
  EXPECT_EQ(r.resident_bytes(), bytes + kPage);
}

TEST(CpuMemory, MayBeEmpty) {
  const auto none = cpu_device()->reserve(0);
  none->commit({0, 0});
  none->decommit({0, 0});
  EXPECT_EQ(none->data(), nullptr);
  EXPECT_EQ(none->resident_bytes(), 0);
}

TEST(CpuMemory, DecommitsWholePages) {
  const auto memory = cpu_device()->reserve(9 * kPage + 100);
  std::memset(memory->data(), 1, static_cast<size_t>(memory->bytes()));
  EXPECT_EQ(memory->resident_bytes(), 10 * kPage);
  memory->decommit({kPage + 1, 3 * kPage + 100});  // page 2
  EXPECT_EQ(memory->resident_bytes(), 9 * kPage);
  EXPECT_EQ(memory->data()[2 * kPage - 1], std::byte{1});
  EXPECT_EQ(memory->data()[3 * kPage], std::byte{1});
  memory->decommit({5 * kPage, memory->bytes()});  // the last page counts as whole
  EXPECT_EQ(memory->resident_bytes(), 4 * kPage);
  EXPECT_EQ(memory->data()[9 * kPage], std::byte{0});  // zeroed when touched again
}

TEST(CpuMemory, RefusesTheImpossible) {
  EXPECT_THROW(cpu_device()->reserve(int64_t{1} << 62), Error);
}

TEST(Arena, HasTheSizeOfItsLargestUser) {
  Arena arena(cpu_device());
  EXPECT_EQ(arena.memory(), nullptr);
  int small = 0, large = 0, between = 0;
  const auto fill = [&](int64_t bytes) {
    std::memset(arena.memory()->data(), 1, static_cast<size_t>(bytes));
  };
  arena.add(&small, 2 * kPage, {{0, 2 * kPage}});
  fill(2 * kPage);
  EXPECT_EQ(arena.memory()->bytes(), 2 * kPage);
  const int64_t first = arena.generation();
  arena.add(&large, 8 * kPage, {{0, 8 * kPage}});
  EXPECT_NE(arena.generation(), first) << "what the small one held is lost";
  EXPECT_EQ(arena.memory()->bytes(), 8 * kPage);
  fill(8 * kPage);
  const int64_t second = arena.generation();
  arena.add(&between, 5 * kPage, {{0, kPage}, {4 * kPage, 5 * kPage}});
  EXPECT_EQ(arena.generation(), second);
  EXPECT_EQ(arena.resident_bytes(), 8 * kPage);
  // Pages that only the large one uses are freed with it: 2, 3, 5, 6, 7.
  arena.remove(&large);
  EXPECT_EQ(arena.generation(), second) << "the others keep what they have";
  EXPECT_EQ(arena.resident_bytes(), 3 * kPage);
  arena.remove(&large);
  EXPECT_EQ(arena.resident_bytes(), 3 * kPage);
  arena.remove(&small);
  EXPECT_EQ(arena.resident_bytes(), 2 * kPage);
  arena.remove(&between);
  EXPECT_EQ(arena.memory(), nullptr);
  EXPECT_EQ(arena.resident_bytes(), 0);
}

program::Buffer persistent(const char* name, const TensorType& type,
                           const graph::Layout& layout = {}) {
  program::Buffer buffer;
  buffer.kind = program::BufferKind::persistent;
  buffer.name = name;
  buffer.type = type;
  buffer.layout = layout;
  return buffer;
}

/// Returns a program without tasks, with ranks on this mesh.
program::Program on_mesh(std::vector<graph::Axis> axes) {
  program::Program program;
  program.roles = {{"all", {std::move(axes)}}};
  return program;
}
program::Program alone() { return on_mesh({{"x", 1}}); }

TEST(PersistentStore, KeepsNamedTensors) {
  PersistentStore store;
  const TensorType type{DType::f32, {3, 5}};
  auto& entry = store.get(persistent("w", type), alone());
  EXPECT_FALSE(entry.initialised);
  for (int64_t i = 0; i < type.bytes(); ++i) {
    EXPECT_EQ(entry.data[i], std::byte{0});
  }
  entry.data[3] = std::byte{42};
  entry.initialised = true;
  auto& again = store.get(persistent("w", type), alone());
  EXPECT_EQ(&again, &entry);
  EXPECT_EQ(again.data[3], std::byte{42});
  EXPECT_EQ(store.find("w"), &entry);
  EXPECT_EQ(store.find("v"), nullptr);
  EXPECT_EQ(store.resident_bytes(), kPage);  // 60 bytes, and no other tensor in their page
  store.get(persistent("v", {DType::f64, {9}}), alone()).data[0] = std::byte{1};
  EXPECT_EQ(store.resident_bytes(), 2 * kPage);
  EXPECT_EQ(store.entries().size(), 2u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(store.find("v")->data) % 64, 0u);
}

TEST(PersistentStore, PutsTensorsOfAProgramSideBySide) {
  PersistentStore store;
  program::Program program = alone();
  const TensorType small{DType::f32, {3, 5}};
  const program::Buffer kept = persistent("kept", small);
  std::byte* const before = store.get(kept, program).data;
  program::Buffer host = persistent("host", small);
  host.space = program::Space::host;
  program.classes.resize(1);
  program.classes[0].box = {{0, 1}};
  program.classes[0].buffers = {persistent("a", small), kept, persistent("b", small), host};
  store.add(program);
  ASSERT_EQ(store.entries().size(), 4u);
  EXPECT_EQ(store.find("kept")->data, before);
  EXPECT_EQ(store.find("b")->data - store.find("a")->data, 64);
  EXPECT_EQ(store.find("host")->space, program::Space::host);
  store.find("a")->data[0] = store.find("b")->data[0] = store.find("host")->data[0] = std::byte{1};
  EXPECT_EQ(store.resident_bytes(), kPage);
  EXPECT_EQ(store.resident_bytes(program::Space::host), kPage);
  EXPECT_EQ(&store.get(program.classes[0].buffers[2], program), store.find("b"));
}

TEST(PersistentStore, RefusesAnotherTypeOrLayout) {
  PersistentStore store;
  store.get(persistent("w", {DType::f32, {4, 4}}), alone());
  EXPECT_THROW(store.get(persistent("w", {DType::f32, {2, 4}}), alone()), Error);
  EXPECT_THROW(store.get(persistent("w", {DType::f64, {4, 4}}), alone()), Error);
  Layout split;
  split.set(0, graph::Placement::split(0));
  EXPECT_THROW(store.get(persistent("w", {DType::f32, {4, 4}}, split), on_mesh({{"x", 2}})), Error);
  program::Buffer on_host = persistent("w", {DType::f32, {4, 4}});
  on_host.space = program::Space::host;
  EXPECT_THROW(store.get(on_host, alone()), Error);
  // The same elements, of other tensors.
  program::Buffer bucket = persistent("b", {DType::f32, {8}});
  bucket.slots = {{"w", {}, 0}, {"v", {}, 4}};
  store.get(bucket, alone());
  EXPECT_NO_THROW(store.get(bucket, alone()));
  std::swap(bucket.slots[0].tensor, bucket.slots[1].tensor);
  EXPECT_THROW(store.get(bucket, alone()), Error);
}

/// The rank's part of every dim counts, not the names of the axes that split it.
TEST(PersistentStore, TakesTheSameElementsUnderAnyMesh) {
  const program::Program wide = on_mesh({{"dp", 8}});
  const program::Program deep = on_mesh({{"dp", 2}, {"cp", 4}});
  const TensorType type{DType::f32, {2, 4}};
  const auto split = [](std::initializer_list<size_t> axes, std::vector<int64_t> sizes = {}) {
    Layout layout;
    for (const size_t axis : axes) {
      layout.set(axis, graph::Placement::split(0));
    }
    layout.give(0, std::move(sizes));
    return layout;
  };
  for (int32_t rank = 0; rank < 8; ++rank) {
    SCOPED_TRACE(rank);
    PersistentStore store(rank);
    auto& entry = store.get(persistent("w", type, split({0})), wide);
    EXPECT_EQ(&store.get(persistent("w", type, split({0, 1})), deep), &entry);
    // All elements, in explicit sizes that equal even blocks.
    const Layout given = split({0, 1}, std::vector<int64_t>(8, 2));
    EXPECT_EQ(&store.get(persistent("w", type, given), deep), &entry);
    store.get(persistent("whole", type), wide);
    EXPECT_NO_THROW(store.get(persistent("whole", type), deep));
    EXPECT_THROW(store.get(persistent("whole", type, split({1})), deep), Error);
    // The other order of the axes gives other rows, except on the first rank and the last one.
    const Layout turned = split({1, 0});
    if (rank == 0 || rank == 7) {
      EXPECT_NO_THROW(store.get(persistent("w", type, turned), deep));
    } else {
      EXPECT_THROW(store.get(persistent("w", type, turned), deep), Error);
    }
  }
}

}  // namespace
}  // namespace hocket::runtime
