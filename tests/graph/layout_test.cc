// SPDX-License-Identifier: Apache-2.0
// Layouts against brute force: random axis orders and block sizes, the parts of every rank, and the
// texts.
#include "graph/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/error.h"

namespace hocket::graph {
namespace {

class Layouts : public ::testing::Test {
 protected:
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }

  /// A layout and its parts: per dim the axes outermost first, and the block sizes.
  struct Case {
    Mesh mesh;
    TensorType type{DType::f32, {}};
    Layout layout;
    std::vector<std::vector<int32_t>> axes;
    std::vector<std::vector<int64_t>> sizes;
  };
  Case random_case() {
    Case c;
    for (int64_t axis = between(1, 4); axis > 0; --axis) {
      const char name = static_cast<char>('a' + c.mesh.axes.size());
      c.mesh.axes.push_back({std::string(1, name), static_cast<int32_t>(between(1, 3))});
    }
    const auto dims = static_cast<size_t>(between(1, 3));
    c.axes.resize(dims);
    c.sizes.resize(dims);
    std::vector<int32_t> order(c.mesh.axes.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    for (int32_t axis : order) {
      const int64_t dim = between(-2, static_cast<int64_t>(dims) - 1);
      if (dim >= 0) {
        c.axes[static_cast<size_t>(dim)].push_back(axis);
      } else if (dim == -2) {
        c.layout.set(static_cast<size_t>(axis), Placement::partial(Monoid(between(0, 2))));
      }
    }
    for (size_t dim = 0; dim < dims; ++dim) {
      int64_t blocks = 1;
      for (int32_t axis : c.axes[dim]) {
        c.layout.set(static_cast<size_t>(axis), Placement::split(static_cast<int>(dim)));
        blocks *= c.mesh.axes[static_cast<size_t>(axis)].size;
      }
      if (between(0, 1) == 0) {
        // As even as divisibility allows: the first ones have one more.
        const int64_t size = between(blocks, 3 * blocks);
        for (int64_t block = 0; block < blocks; ++block) {
          c.sizes[dim].push_back(size / blocks + (block < size % blocks ? 1 : 0));
        }
      } else {
        for (int64_t block = 0; block < blocks; ++block) {
          c.sizes[dim].push_back(between(1, 4));
        }
        if (!c.axes[dim].empty()) {
          c.layout.give(static_cast<int>(dim), c.sizes[dim]);
        }
      }
      c.type.dims.push_back(std::accumulate(c.sizes[dim].begin(), c.sizes[dim].end(), int64_t{0}));
    }
    return c;
  }

  std::mt19937_64 random_{7};
};

TEST_F(Layouts, GiveEveryRankItsBlocks) {
  int given = 0, turned = 0;
  for (int i = 0; i < 3000; ++i) {
    const Case c = random_case();
    const std::string text = to_string(c.layout, c.mesh) + " of " + to_string(c.type);
    ASSERT_EQ(why_invalid(c.layout, c.type, c.mesh), "") << text;
    given += c.layout.given.empty() ? 0 : 1;
    for (size_t dim = 0; dim < c.axes.size(); ++dim) {
      EXPECT_EQ(c.layout.axes_of(static_cast<int>(dim)), c.axes[dim]) << text;
      turned += std::is_sorted(c.axes[dim].begin(), c.axes[dim].end()) ? 0 : 1;
    }
    for (int32_t rank = 0; rank < c.mesh.size(); ++rank) {
      const std::vector<int32_t> coords = c.mesh.coords(rank);
      std::vector<graph::Run> want;
      for (size_t dim = 0; dim < c.axes.size(); ++dim) {
        size_t number = 0;
        for (int32_t axis : c.axes[dim]) {
          const auto place = static_cast<size_t>(axis);
          number = number * static_cast<size_t>(c.mesh.axes[place].size) +
                   static_cast<size_t>(coords[place]);
        }
        const auto block = c.sizes[dim].begin() + static_cast<std::ptrdiff_t>(number);
        want.push_back({std::accumulate(c.sizes[dim].begin(), block, int64_t{0}), *block});
      }
      ASSERT_EQ(local_runs(c.type, c.layout, c.mesh, coords), want) << text << " rank " << rank;
      const TensorType local = local_type(c.type, c.layout, c.mesh, coords);
      for (size_t dim = 0; dim < want.size(); ++dim) {
        ASSERT_EQ(local.dims[dim], want[dim].length) << text << " rank " << rank;
      }
    }
  }
  EXPECT_GT(given, 500);
  EXPECT_GT(turned, 300);
}

TEST_F(Layouts, PrintAndParseToTheSame) {
  for (int i = 0; i < 3000; ++i) {
    const Case c = random_case();
    const std::string text = to_string(c.layout, c.mesh);
    const Layout back = parse_layout(text, c.mesh);
    ASSERT_TRUE(back == c.layout) << text << " became " << to_string(back, c.mesh);
    ASSERT_EQ(to_string(back, c.mesh), text);
  }
}

TEST_F(Layouts, EqualMeaningsHaveOneRepresentation) {
  // In whatever order dims get their axes, and through whatever detours.
  for (int i = 0; i < 1000; ++i) {
    const Case c = random_case();
    Layout again;
    for (size_t axis = c.mesh.axes.size(); axis-- > 0;) {
      again.set(axis, Placement::split(static_cast<int>(between(0, 2))));
    }
    for (size_t axis = 0; axis < c.mesh.axes.size(); ++axis) {
      again.set(axis, c.layout[axis].is_split() ? Placement::replicate() : c.layout[axis]);
    }
    for (size_t dim = c.axes.size(); dim-- > 0;) {
      for (int32_t axis : c.axes[dim]) {
        again.set(static_cast<size_t>(axis), Placement::split(static_cast<int>(dim)));
      }
      again.give(static_cast<int>(dim), c.layout.sizes_of(static_cast<int>(dim)));
    }
    ASSERT_TRUE(again == c.layout) << to_string(c.layout, c.mesh);
  }
}

TEST_F(Layouts, TextInMeshOrderIsUnchanged) {
  const Mesh mesh{{{"pp", 2}, {"edp", 2}, {"ep", 3}}};
  for (const char* text :
       {"B", "edp:S0 ep:P", "pp:S1 edp:S0 ep:S1", "ep:S0 edp:S0", "ep:Pmax", "edp:Psoftmax ep:S2",
        "ep:S0[4,3,1]", "edp:S1 ep:S0[4,3,1]", "pp:S0[2,1]"}) {
    EXPECT_EQ(to_string(parse_layout(text, mesh), mesh), text);
  }
  // Words of one dim share out the places that they have in the mesh.
  EXPECT_EQ(to_string(parse_layout("ep:S0 pp:S1 edp:S0[1,2,3,4,5,6]", mesh), mesh),
            "pp:S1 ep:S0 edp:S0[1,2,3,4,5,6]");
}

TEST_F(Layouts, RefuseMalformedTexts) {
  const Mesh mesh{{{"edp", 2}, {"ep", 3}}};
  const auto error = [&](const auto& action) -> std::string {
    try {
      action();
    } catch (const Error& thrown) {
      return thrown.what();
    }
    return "";
  };
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"tp:S0", "with an axis of the mesh"},
           {"ep", "got 'ep'"},
           {"ep:S", "got 'ep:S'"},
           {"ep:Pmin", "got 'ep:Pmin'"},
           {"ep:P[3]", "got 'ep:P[3]'"},
           {"ep:S0[", "got 'ep:S0['"},
           {"ep:S0[]", "got 'ep:S0[]'"},
           {"ep:S0[1,2,3", "got 'ep:S0[1,2,3'"},
           {"ep:S0[1,2,3]x", "got 'ep:S0[1,2,3]x'"},
           {"ep:S0[4,0,3]", "got 'ep:S0[4,0,3]'"},
           {"ep:S0[4,-1,3]", "got 'ep:S0[4,-1,3]'"},
           {"ep:S0 ep:S1", "axis ep comes twice"},
           {"ep:P ep:P", "axis ep comes twice"},
           {"ep:S0[4,3]", "2 given sizes for 3 blocks"},
           {"edp:S0 ep:S0[4,3,1]", "3 given sizes for 6 blocks"},
           {"edp:S0[4,3] ep:S0", "come before its innermost axis"}}) {
    const std::string said = error([&] { parse_layout(text, mesh); });
    EXPECT_NE(said.find(why), said.npos) << text << ": " << said;
  }
  const auto refused = [&](const std::string& type, const std::string& text) {
    const Layout layout = parse_layout(text, mesh);
    const TensorType whole = parse_tensor_type(type);
    EXPECT_NE(error([&] { local_type(whole, layout, mesh, {0, 0}); }), "") << text;
    EXPECT_NE(error([&] { local_type(whole, layout, mesh); }), "") << text;
    return why_invalid(layout, whole, mesh);
  };
  EXPECT_EQ(refused("f32[9]", "ep:S0[4,3,1]"), "the given sizes of dim 0 do not add up to its 9");
  EXPECT_EQ(refused("f32[7]", "ep:S0[4,3,1]"), "the given sizes of dim 0 do not add up to its 7");
  EXPECT_EQ(refused("f32[8]", "ep:S0[9223372036854775807,9223372036854775807,1]"),
            "the given sizes of dim 0 do not add up to its 8");
  EXPECT_EQ(refused("f32[8]", "ep:S1[4,3,1]"), "f32[8] has no dim 1");
  EXPECT_EQ(refused("f32[s0:9]", "ep:S0[4,3,2]"),
            "dim 0 of f32[s0:9] is a symbol: blocks of it have no given sizes");
  // The last rank would have no element.
  EXPECT_EQ(why_invalid(parse_layout("ep:S0", mesh), {DType::f32, {2}}, mesh), "");
  EXPECT_THROW(local_type({DType::f32, {2}}, parse_layout("ep:S0", mesh), mesh, {0, 2}), Error);
  // Blocks of different sizes have no type that is the same on all ranks; equal ones do.
  EXPECT_THROW(local_type({DType::f32, {8}}, parse_layout("ep:S0[4,3,1]", mesh), mesh), Error);
  EXPECT_EQ(to_string(local_type({DType::f32, {9}}, parse_layout("ep:S0[3,3,3]", mesh), mesh)),
            "f32[3]");
}

}  // namespace
}  // namespace hocket::graph
