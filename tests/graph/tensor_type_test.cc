// SPDX-License-Identifier: Apache-2.0
// Sizes of types as they come from a model, and as an edit may leave them.
#include "graph/tensor_type.h"

#include <gtest/gtest.h>

#include <limits>

namespace hocket::graph {
namespace {

TEST(TensorType, Sizes) {
  EXPECT_EQ((TensorType{DType::f32, {3, 5}}.bytes()), 60);
  EXPECT_EQ((TensorType{DType::f64, {}}.bytes()), 8);
  // 7 tokens choose 2 of 4 experts, or, choosing 9, all of them.
  EXPECT_EQ((TensorType{DType::bf16, {4, 7, 6}, 2}.bytes()), 2 * 7 * 2 * 6);
  EXPECT_EQ((TensorType{DType::bf16, {4, 7, 6}, 9}.max_rows()), 28);
}

TEST(TensorType, AnEditedTypeFitsNowhere) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const TensorType fits{DType::f32, {int64_t{1} << 40}};
  for (const TensorType& type :
       {TensorType{DType::f64, {kMost, kMost}}, TensorType{DType::f64, {kMost, 3, kMost}, 2},
        TensorType{DType::f32, {64}, 2}, TensorType{DType::f32, {}, 1}}) {
    EXPECT_GT(type.bytes(), fits.bytes()) << type.dims.size() << " dims";
    EXPECT_LT(type.bytes(), kMost);
  }
}

}  // namespace
}  // namespace hocket::graph
