// SPDX-License-Identifier: Apache-2.0
// Every element of a tensor is found once among the ranks' parts, in any layouts and roles.
#include "engine/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "program/buffer_contents.h"

namespace hocket::engine {
namespace {

/// Four ranks of one role, two of another; a tensor of eight numbers.
struct Shards {
  program::Program program;
  graph::Tensor tensor;
  std::vector<std::vector<float>> held;
  std::vector<program::Buffer> buffers;
  std::vector<Holder> holders;

  Shards() {
    program.roles = {{"wide", {{{"x", 2}, {"y", 2}}}}, {"narrow", {{{"x", 2}}}}};
    tensor.name = "t";
    tensor.type = {graph::DType::f32, {8}};
    held.reserve(16);
    buffers.reserve(16);
  }
  /// Adds the rank's part in this layout; every element is its own index.
  void add(int32_t rank, const graph::Layout& layout) {
    const graph::Mesh& mesh = program.roles[program.role_of(rank)].mesh;
    program::Buffer& buffer = buffers.emplace_back();
    buffer.name = "t";
    buffer.layout = layout;
    buffer.type = graph::local_type(tensor.type, layout, mesh);
    fill(rank);
  }
  /// Adds the rank's part of a bucket of 16 elements, in which the tensor begins at 6.
  void add_bucket(int32_t rank, const graph::Layout& layout) {
    program::Buffer& buffer = buffers.emplace_back();
    buffer.name = "bucket";
    buffer.slots = {{"other", {}, 0}, {"t", {}, 6}};
    buffer.layout = layout;
    buffer.type = graph::local_type({graph::DType::f32, {16}}, layout,
                                    program.roles[program.role_of(rank)].mesh);
    fill(rank);
  }
  void fill(int32_t rank) {
    held.emplace_back(buffers.back().type.numel(), -1.0f);
    std::vector<float>& mine = held.back();
    program::for_each_run(buffers.back(), "t", tensor.type, program, rank,
                          [&](int64_t begin, int64_t count, int64_t local) {
                            for (int64_t i = 0; i < count; ++i) {
                              mine[static_cast<size_t>(local + i)] = static_cast<float>(begin + i);
                            }
                          });
    holders.push_back({rank, &buffers.back()});
  }
  /// Returns the number of elements on no rank. Expects every other one once.
  int64_t missing() const {
    std::vector<int> taken(8, 0);
    const int64_t missing = for_each_once(tensor, program, holders, [&](const Held& here) {
      const auto of = static_cast<size_t>(here.buffer - buffers.data());
      for (int64_t i = 0; i < here.count; ++i) {
        EXPECT_EQ(held[of][static_cast<size_t>(here.local + i)],
                  static_cast<float>(here.begin + i));
        ++taken[static_cast<size_t>(here.begin + i)];
      }
    });
    EXPECT_LE(*std::max_element(taken.begin(), taken.end()), 1);
    EXPECT_EQ(std::count(taken.begin(), taken.end(), 0), missing);
    return missing;
  }
};

graph::Layout split_along(int32_t axis) {
  graph::Layout layout;
  layout.set(axis, graph::Placement::split(0));
  return layout;
}

TEST(Placement, TakesEveryElementOnce) {
  Shards shards;
  for (int32_t rank = 0; rank < 4; ++rank) {
    shards.add(rank, split_along(0));
  }
  EXPECT_EQ(shards.missing(), 0);
  // Parts of the second role: its ranks count from 4 on.
  Shards narrow;
  narrow.add(4, split_along(0));
  narrow.add(5, split_along(0));
  EXPECT_EQ(narrow.missing(), 0);
}

TEST(Placement, TakesElementsOfAnyLayout) {
  // Half in one layout, all of it in another.
  Shards shards;
  shards.add(0, split_along(0));
  shards.add(2, graph::Layout{});
  EXPECT_EQ(shards.missing(), 0);
  // Elements 0-3, 6-7 and 4-7 fill it; without the last two are missing.
  Shards halves;
  halves.add(0, split_along(0));
  graph::Layout quarters = split_along(0);
  quarters.set(1, graph::Placement::split(0));
  halves.add(3, quarters);
  EXPECT_EQ(halves.missing(), 2);
  halves.add(5, split_along(0));
  EXPECT_EQ(halves.missing(), 0);
}

TEST(Placement, TakesElementsOfBuckets) {
  // Blocks of four: the tensor's elements are the last two of the second block, the third, and the
  // first two of the fourth.
  graph::Layout quarters = split_along(0);
  quarters.set(1, graph::Placement::split(0));
  Shards shards;
  for (int32_t rank = 0; rank < 4; ++rank) {
    shards.add_bucket(rank, quarters);
  }
  EXPECT_EQ(shards.held[0], (std::vector<float>{-1, -1, -1, -1}));
  EXPECT_EQ(shards.held[1], (std::vector<float>{-1, -1, 0, 1}));
  EXPECT_EQ(shards.held[2], (std::vector<float>{2, 3, 4, 5}));
  EXPECT_EQ(shards.held[3], (std::vector<float>{6, 7, -1, -1}));
  EXPECT_EQ(shards.missing(), 0);
  shards.holders.erase(shards.holders.begin() + 2);
  EXPECT_EQ(shards.missing(), 4);
}

}  // namespace
}  // namespace hocket::engine
