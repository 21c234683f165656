// SPDX-License-Identifier: Apache-2.0
// Ranks, coordinates and peers of a mesh, against plain arithmetic on coordinates.
#include <gtest/gtest.h>

#include "base/error.h"
#include "graph/layout.h"

namespace hocket::graph {
namespace {

TEST(Mesh, APeerIsAnotherCoordinateOfTheAxisAroundItsEnd) {
  const Mesh mesh{{{"pp", 3}, {"edp", 2}, {"ep", 4}}};
  for (int32_t rank = 0; rank < mesh.size(); ++rank) {
    for (int32_t axis = 0; axis < 3; ++axis) {
      const int32_t n = mesh.axes[axis].size;
      for (int32_t offset = -3 * n; offset <= 3 * n; ++offset) {
        std::vector<int32_t> coords = mesh.coords(rank);
        int32_t& x = coords[axis];
        for (int32_t k = 0; k < offset; ++k) {
          x = x + 1 == n ? 0 : x + 1;
        }
        for (int32_t k = 0; k > offset; --k) {
          x = x == 0 ? n - 1 : x - 1;
        }
        EXPECT_EQ(mesh.moved(rank, axis, offset), mesh.rank(coords))
            << "rank " << rank << " axis " << axis << " offset " << offset;
      }
    }
  }
}

TEST(Mesh, MovingForthAndBackEndsWhereItBegan) {
  const Mesh mesh{{{"edp", 5}, {"ep", 3}}};
  for (int32_t rank = 0; rank < mesh.size(); ++rank) {
    for (int32_t offset : {1, 2, 4, INT32_MAX, INT32_MIN + 1}) {
      EXPECT_EQ(mesh.moved(mesh.moved(rank, 0, offset), 0, -offset), rank);
    }
  }
}

TEST(Mesh, AxesAndRanksAreChecked) {
  const Mesh mesh{{{"edp", 2}}};
  EXPECT_THROW(mesh.moved(0, 1, 1), std::exception);
  EXPECT_THROW(mesh.moved(0, -1, 1), std::exception);
  EXPECT_THROW(mesh.moved(2, 0, 1), std::exception);
  EXPECT_THROW(mesh.moved(-1, 0, 1), std::exception);
}

}  // namespace
}  // namespace hocket::graph
