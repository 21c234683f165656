// SPDX-License-Identifier: Apache-2.0
// Views: which overlap, against sets of elements; where they lie, against indices.
#include "program/views.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace hocket::program {
namespace {

struct Space {
  Program program;
  std::mt19937_64 engine{11};

  Space() {
    program.roles[0].mesh.axes = {{"pp", 2}, {"dp", 3}, {"tp", 2}};
    program.classes.resize(2);
    program.classes[0].box = Box::at(0, 0);
    program.classes[1].box = Box::at(0, 1);
    Buffer base;
    base.type = {graph::DType::f32, {6, 12, 5}};
    program.classes[1].buffers.push_back(base);
  }
  RankClass& cls() { return program.classes[1]; }

  /// A view along `dim` (kNone: flat) that begins at a random place, by a random table.
  BufferId add(int32_t dim) {
    const TensorType& base = cls().buffers[0].type;
    const int64_t size = dim == kNone ? base.numel() : int64_t{base.dims[dim]};
    const int64_t length = 1 + static_cast<int64_t>(engine() % (size / 2));
    Buffer view;
    view.kind = BufferKind::view;
    view.base = 0;
    view.dim = dim;
    view.type = base;
    if (dim == kNone) {
      view.type.dims = {length};
    } else {
      view.type.dims[dim] = length;
    }
    const std::vector<std::vector<int32_t>> kAxes{{}, {1}, {2}, {1, 2}, {0, 2}};
    const auto& axes = kAxes[engine() % kAxes.size()];
    if (!axes.empty()) {
      Table table{0, axes, {}};
      int64_t values = 1;
      for (int32_t axis : axes) {
        values *= program.roles[0].mesh.axes[axis].size;
      }
      for (int64_t i = 0; i < values; ++i) {
        table.values.push_back(static_cast<int64_t>(engine() % (size - length + 1)));
      }
      view.by = program.intern(table);
    } else {
      view.begin = static_cast<int64_t>(engine() % (size - length + 1));
    }
    cls().buffers.push_back(view);
    return cls().buffers.size() - 1;
  }

  /// Elements of the base that a view has on a rank, found by its offset and strides.
  std::vector<int64_t> elements(BufferId id, int32_t rank) {
    const Buffer& view = cls().buffers[id];
    std::vector<int64_t> strides = strides_of(cls(), view);
    if (strides.empty()) {
      strides.assign(view.type.dims.size(), 1);
      for (size_t dim = strides.size() - 1; dim-- > 0;) {
        strides[dim] = strides[dim + 1] * view.type.dims[dim + 1];
      }
    }
    std::vector<int64_t> list{byte_offset(program, cls(), view, rank, {}) / 4};
    for (size_t dim = 0; dim < strides.size(); ++dim) {
      std::vector<int64_t> next;
      for (int64_t at : list) {
        for (int64_t i = 0; i < view.type.dims[dim]; ++i) {
          next.push_back(at + i * strides[dim]);
        }
      }
      list = next;
    }
    return list;
  }
};

TEST(Views, OverlapExactlyWhereTheyShareElements) {
  for (int32_t dim : {0, 1, 2, kNone}) {
    for (int round = 0; round < 40; ++round) {
      Space space;
      space.engine.seed(static_cast<uint64_t>(round));
      std::vector<BufferId> list;
      for (int i = 0; i < 7; ++i) {
        list.push_back(space.add(dim));
      }
      // A second base with the same regions.
      std::vector<Buffer>& buffers = space.cls().buffers;
      const auto first = static_cast<int32_t>(buffers.size());
      for (int32_t id = 0; id < first; ++id) {
        buffers.push_back(buffers[static_cast<size_t>(id)]);
        if (id > 0) {
          buffers.back().base = first;
        }
      }
      const Views views(space.program, 1);
      EXPECT_EQ(views.meets(0).size(), list.size());
      std::set<std::pair<BufferId, BufferId>> meet;
      for (int32_t rank : space.program.ranks_of(1)) {
        for (BufferId one : list) {
          const auto mine = space.elements(one, rank);
          for (int64_t element : mine) {
            ASSERT_TRUE(element >= 0 && element < 360);
          }
          for (BufferId other : list) {
            const auto theirs = space.elements(other, rank);
            const std::set<int64_t> all(theirs.begin(), theirs.end());
            if (std::any_of(mine.begin(), mine.end(), [&](int64_t x) { return all.contains(x); })) {
              meet.insert({one, other});
            }
          }
        }
      }
      for (BufferId one : list) {
        const auto found = views.meets(one);
        for (BufferId other : list) {
          const bool known = std::find(found.begin(), found.end(), other) != found.end();
          EXPECT_EQ(known, one != other && meet.contains({one, other})) << "seed " << round;
        }
        EXPECT_NE(std::find(found.begin(), found.end(), BufferId(0)), found.end());
        EXPECT_TRUE(std::is_sorted(found.begin(), found.end()));
        const auto there = views.meets(one + first);
        EXPECT_TRUE(std::equal(found.begin(), found.end(), there.begin(), there.end(),
                               [&](BufferId id, BufferId other) { return id + first == other; }));
      }
    }
  }
}

TEST(Views, PrintAndParseToTheSame) {
  Space space;
  space.add(0);
  space.add(0);
  space.program.config = "{}";
  const std::string text = print(space.program);
  EXPECT_EQ(print(parse_program(text)), text);
  EXPECT_EQ(parse_program(text), space.program);
}

}  // namespace
}  // namespace hocket::program
