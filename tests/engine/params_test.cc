// SPDX-License-Identifier: Apache-2.0
// A full tensor of the parts that ranks hold, in whatever layouts and roles.
#include "engine/params.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace hocket::engine {
namespace {

/// Four ranks of one role, two of another; a tensor of eight numbers.
struct Shards {
  program::Program program;
  graph::Tensor tensor;
  std::vector<std::vector<float>> held;
  std::vector<Part> parts;

  Shards() {
    program.roles = {{"wide", {{{"x", 2}, {"y", 2}}}}, {"narrow", {{{"x", 2}}}}};
    tensor.name = "t";
    tensor.type = {graph::DType::f32, {8}};
    held.reserve(16);
  }
  /// What the rank holds in this layout: every element is its own index.
  void add(int32_t rank, const graph::Layout& layout) {
    const graph::Mesh& mesh = program.roles[program.role_of(rank)].mesh;
    held.emplace_back(graph::local_type(tensor.type, layout, mesh).numel());
    std::vector<float>& mine = held.back();
    for_each_run(tensor.type, layout, program, rank,
                 [&](int64_t begin, int64_t count, int64_t local) {
                   for (int64_t i = 0; i < count; ++i) {
                     mine[static_cast<size_t>(local + i)] = static_cast<float>(begin + i);
                   }
                 });
    parts.push_back({rank, layout, reinterpret_cast<const std::byte*>(mine.data())});
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
  layout[axis] = graph::Placement::split(0);
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

TEST(PutTogether, OtherLayoutsAreNoPartsOfTheFirst) {
  // Half in one layout and all of it in another: the halves of two layouts make nothing.
  Shards shards;
  shards.add(0, split_along(0));
  shards.add(2, graph::Layout{});
  shards.expect_whole();
  Shards halves;
  halves.add(0, split_along(0));
  graph::Layout quarters = split_along(0);
  quarters[1] = graph::Placement::split(0);
  halves.add(3, quarters);
  halves.add(5, split_along(0));
  EXPECT_THROW(put_together(halves.tensor, halves.program, halves.parts), Error);
}

}  // namespace
}  // namespace hocket::engine
