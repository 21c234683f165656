// SPDX-License-Identifier: Apache-2.0
// A full tensor of the parts that ranks hold, in whatever layouts and roles.
#include "engine/params.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "program/contract.h"

namespace hocket::engine {
namespace {

/// Four ranks of one role, two of another; a tensor of eight numbers.
struct Shards {
  program::Program program;
  graph::Tensor tensor;
  std::vector<std::vector<float>> held;
  std::vector<program::Buffer> buffers;
  std::vector<Part> parts;

  Shards() {
    program.roles = {{"wide", {{{"x", 2}, {"y", 2}}}}, {"narrow", {{{"x", 2}}}}};
    tensor.name = "t";
    tensor.type = {graph::DType::f32, {8}};
    held.reserve(16);
    buffers.reserve(16);
  }
  /// What the rank holds in this layout: every element is its own index.
  void add(int32_t rank, const graph::Layout& layout) {
    const graph::Mesh& mesh = program.roles[program.role_of(rank)].mesh;
    program::Buffer& buffer = buffers.emplace_back();
    buffer.name = "t";
    buffer.layout = layout;
    buffer.type = graph::local_type(tensor.type, layout, mesh);
    fill(rank);
  }
  /// What the rank holds of a bucket of 16 elements, in which the tensor begins at 6.
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
    parts.push_back({rank, &buffers.back(), reinterpret_cast<const std::byte*>(mine.data())});
  }
  void expect_whole() const {
    const std::vector<std::byte> full = put_together(tensor, program, parts);
    ASSERT_EQ(full.size(), 32u);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(reinterpret_cast<const float*>(full.data())[i], static_cast<float>(i));
    }
  }
};

graph::Layout split_along(int32_t axis) {
  graph::Layout layout;
  layout.set(axis, graph::Placement::split(0));
  return layout;
}

TEST(PutTogether, TakesEveryElementOnce) {
  Shards shards;
  for (int32_t rank = 0; rank < 4; ++rank) {
    shards.add(rank, split_along(0));
  }
  shards.expect_whole();
  // Of the second role, whose ranks count from 4 on.
  Shards narrow;
  narrow.add(4, split_along(0));
  narrow.add(5, split_along(0));
  narrow.expect_whole();
}

TEST(PutTogether, TakesElementsOfAnyLayout) {
  // Half in one layout, all of it in another.
  Shards shards;
  shards.add(0, split_along(0));
  shards.add(2, graph::Layout{});
  shards.expect_whole();
  // Elements 0-3, 6-7 and 4-7 fill it; without the last two are missing.
  Shards halves;
  halves.add(0, split_along(0));
  graph::Layout quarters = split_along(0);
  quarters.set(1, graph::Placement::split(0));
  halves.add(3, quarters);
  EXPECT_THROW(put_together(halves.tensor, halves.program, halves.parts), Error);
  halves.add(5, split_along(0));
  halves.expect_whole();
}

TEST(PutTogether, TakesElementsOfBuckets) {
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
  shards.expect_whole();
  shards.parts.erase(shards.parts.begin() + 2);
  EXPECT_THROW(put_together(shards.tensor, shards.program, shards.parts), Error);
}

}  // namespace
}  // namespace hocket::engine
