// SPDX-License-Identifier: Apache-2.0
// Regions reserve addresses and commit pages when touched; the store keeps named tensors.
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

TEST(Region, CommitsWhatIsTouched) {
  constexpr int64_t kReserved = int64_t{64} << 30;  // far more than the machine may have
  Region r(kReserved);
  ASSERT_NE(r.data(), nullptr);
  EXPECT_EQ(r.bytes(), kReserved);
  r.data()[0] = std::byte{1};
  r.data()[kReserved - 1] = std::byte{2};
  EXPECT_EQ(r.data()[kReserved / 2], std::byte{0});
}

TEST(Region, CountsResidentBytes) {
  Region r(1 << 20);  // below the size that asks for large pages
  EXPECT_EQ(r.resident_bytes(), 0);
  std::memset(r.data(), 1, 100'000);
  EXPECT_GE(r.resident_bytes(), 100'000);
  EXPECT_LE(r.resident_bytes(), 200'000);
  std::memset(r.data(), 1, 1 << 20);
  EXPECT_EQ(r.resident_bytes(), 1 << 20);
}

TEST(Region, TakesNoMoreThanIsMeantToBeUsed) {
  constexpr int64_t kMiB = 1 << 20;
  const program::Range used[] = {{0, 9 * kMiB + kPage}, {33 * kMiB, 40 * kMiB - kPage}};
  Region r(64 * kMiB, used);
  int64_t bytes = 0;
  for (const program::Range& u : used) {
    std::memset(r.data() + u.begin, 1, static_cast<size_t>(u.end - u.begin));
    bytes += u.end - u.begin;
  }
  EXPECT_EQ(r.resident_bytes(), bytes) << "a large page reaches beyond what is used";
  r.data()[20 * kMiB] = std::byte{1};  // elsewhere a touch takes one small page
  EXPECT_EQ(r.resident_bytes(), bytes + kPage);
}

TEST(Region, MovesAndMayBeEmpty) {
  Region empty, none(0);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(none.resident_bytes(), 0);
  Region a(4096);
  a.data()[7] = std::byte{9};
  std::byte* at = a.data();
  Region b(std::move(a));
  EXPECT_EQ(b.data(), at);
  EXPECT_EQ(b.data()[7], std::byte{9});
  empty = std::move(b);
  EXPECT_EQ(empty.data(), at);
  EXPECT_EQ(empty.bytes(), 4096);
}

TEST(Region, RefusesTheImpossible) { EXPECT_THROW(Region(int64_t{1} << 62), Error); }

TEST(PersistentStore, KeepsNamedTensors) {
  PersistentStore store;
  const TensorType type{DType::f32, {3, 5}};
  auto& entry = store.get("w", type, {});
  EXPECT_FALSE(entry.initialised);
  for (int64_t i = 0; i < type.bytes(); ++i) {
    EXPECT_EQ(entry.memory.data()[i], std::byte{0});
  }
  entry.memory.data()[3] = std::byte{42};
  entry.initialised = true;
  auto& again = store.get("w", type, {});
  EXPECT_EQ(&again, &entry);
  EXPECT_EQ(again.memory.data()[3], std::byte{42});
  EXPECT_EQ(store.find("w"), &entry);
  EXPECT_EQ(store.find("v"), nullptr);
  EXPECT_EQ(store.resident_bytes(), kPage);  // 60 bytes, and no other tensor in their page
  store.get("v", {DType::f64, {9}}, {}).memory.data()[0] = std::byte{1};
  EXPECT_EQ(store.resident_bytes(), 2 * kPage);
  EXPECT_EQ(store.entries().size(), 2u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(store.find("v")->memory.data()) % 64, 0u);
}

TEST(PersistentStore, RefusesAnotherTypeOrLayout) {
  PersistentStore store;
  store.get("w", {DType::f32, {4, 4}}, {});
  EXPECT_THROW(store.get("w", {DType::f32, {2, 4}}, {}), Error);
  EXPECT_THROW(store.get("w", {DType::f64, {4, 4}}, {}), Error);
  Layout split;
  split[0] = graph::Placement::split(0);
  EXPECT_THROW(store.get("w", {DType::f32, {4, 4}}, split), Error);
}

}  // namespace
}  // namespace hocket::runtime
