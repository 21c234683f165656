// SPDX-License-Identifier: Apache-2.0
// Sizes of types as they come from a model, and as an edit may leave them; encodings; text.
#include "graph/tensor_type.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/rng.h"
#include "graph/layout.h"

namespace hocket::graph {
namespace {

TEST(TensorType, BytesFollowFromDimsAndChosenExperts) {
  EXPECT_EQ((TensorType{DType::f32, {3, 5}}.bytes()), 60);
  EXPECT_EQ((TensorType{DType::f64, {}}.bytes()), 8);
  // 7 tokens choose 2 of 4 experts, or, choosing 9, all of them.
  EXPECT_EQ((TensorType{DType::bf16, {4, 7, 6}, 2}.bytes()), 2 * 7 * 2 * 6);
  EXPECT_EQ((TensorType{DType::bf16, {4, 7, 6}, 9}.max_rows()), 28);
}

TEST(TensorType, BytesOfSmallElementsIncludeTheirScales) {
  EXPECT_EQ((TensorType{DType::f16, {3, 5}}.bytes()), 30);
  EXPECT_EQ((TensorType{DType::f8_e4m3, {3, 5}}.bytes()), 15);
  EXPECT_EQ((TensorType{DType::u8, {3, 5}}.bytes()), 15);
  EXPECT_EQ((TensorType{DType::i4, {3, 6}}.bytes()), 9);
  EXPECT_THROW(size_of(DType::i4), Error);
  // A scale of one byte per 32 elements, of two per 16, of four per 32; rows of whole blocks.
  EXPECT_EQ(parse_tensor_type("f8_e4m3/f8_e8m0:32[5,64]").bytes(), 5 * 2 * 33);
  EXPECT_EQ(parse_tensor_type("f4_e2m1/f8_e4m3:16[5,64]").bytes(), 5 * 4 * 9);
  EXPECT_EQ(parse_tensor_type("i8/f32:32[5,64]").bytes(), 5 * 2 * 36);
  EXPECT_EQ(parse_tensor_type("i4/f16:32[8,4,64]@2").bytes(), 4 * 2 * 2 * 18);
  EXPECT_EQ(parse_tensor_type("i4/f16:32[8,4,64]@2").bytes_of(64), 36);
}

TEST(TensorType, PrintsAndParsesBack) {
  const uint64_t seed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  int encoded = 0, symbolic = 0, routed = 0;
  for (int i = 0; i < 3000; ++i) {
    TensorType type;
    type.dtype = static_cast<DType>(rng.below(kNumDTypes));
    if (rng.below(3) == 0) {
      type.encoding.block = 1 << rng.below(6);
      const DType scales[] = {DType::f8_e8m0, DType::f16, DType::f32,
                              static_cast<DType>(rng.below(kNumDTypes))};
      type.encoding.scale = scales[rng.below(4)];
    }
    for (size_t d = rng.below(5); d > 0; --d) {
      const int64_t multiple = int64_t{1} << rng.below(7);
      const int64_t bound = multiple * static_cast<int64_t>(1 + rng.below(9));
      type.dims.push_back(rng.below(3) == 0
                              ? Dim::of(static_cast<SymbolId>(rng.below(4)), bound,
                                        static_cast<int64_t>(1 + rng.below(8)), multiple)
                              : Dim(bound));
    }
    if (type.dims.size() >= 2 && rng.below(3) == 0) {
      type.top_k = static_cast<int32_t>(1 + rng.below(4));
    }
    const std::string text = to_string(type);
    SCOPED_TRACE(text);
    EXPECT_EQ(text.find_first_of(" \"'="), text.npos);
    if (const std::string why = why_invalid(type); !why.empty()) {
      EXPECT_THROW(parse_tensor_type(text), Error);
      continue;
    }
    const TensorType back = parse_tensor_type(text);
    EXPECT_EQ(back, type);
    EXPECT_EQ(back.bytes(), type.bytes());
    EXPECT_EQ(type.bytes() * 8 % 8, 0);
    encoded += static_cast<bool>(type.encoding);
    symbolic += type.symbolic();
    routed += type.routed();
  }
  EXPECT_GT(encoded, 30);
  EXPECT_GT(symbolic, 500);
  EXPECT_GT(routed, 200);
}

TEST(TensorType, RefusesInvalidTypes) {
  for (const char* text : {"f32/f8_e8m0:32[64]",
                           "f8_e8m0/f32:32[64]",
                           "i8/i32:32[64]",
                           "i8/f4_e2m1:32[64]",
                           "f8_e4m3/f8_e8m0:32[64,33]",
                           "f8_e4m3/f8_e8m0:0[64]",
                           "f8_e4m3/f8_e8m0[64]",
                           "f4_e2m1/f8_e8m0:3[64,3]",
                           "i4[3,3]",
                           "i4[]",
                           "i4/f16:32[8,32]@2",
                           "f9[4]",
                           "f8_e4m3/f8_e8m0:32[s0:64%16]",
                           "f32[s0]",
                           "f32[s0:12%8]",
                           "f32[s-1:8]",
                           "f32[s0/0:8]",
                           "f32[s0/70000:8]",
                           "f32[s40000:8]",
                           "f32[s0:0]",
                           "f32[4,]x",
                           "f32[4]@1",
                           "f32[4"}) {
    EXPECT_THROW(parse_tensor_type(text), Error) << text;
  }
  EXPECT_EQ(to_string(parse_tensor_type("f8_e4m3/f8_e8m0:32[s0:64%32]")),
            "f8_e4m3/f8_e8m0:32[s0:64%32]");
}

TEST(TensorType, NoPartCutsABlockOrAByte) {
  const Mesh mesh{{{"a", 2}, {"b", 4}}};
  const auto local = [&](const char* type, const char* layout) {
    return to_string(local_type(parse_tensor_type(type), parse_layout(layout, mesh), mesh));
  };
  EXPECT_EQ(local("f8_e4m3/f8_e8m0:32[8,128]", "b:S1"), "f8_e4m3/f8_e8m0:32[8,32]");
  EXPECT_EQ(local("f8_e4m3/f8_e8m0:32[8,64]", "a:S0 b:S0"), "f8_e4m3/f8_e8m0:32[1,64]");
  EXPECT_THROW(local("f8_e4m3/f8_e8m0:32[8,64]", "b:S1"), Error);
  EXPECT_THROW(local("f8_e4m3/f8_e8m0:32[8,128]", "a:S1 b:S1"), Error);
  EXPECT_EQ(local("i4[8,8]", "b:S1"), "i4[8,2]");
  EXPECT_THROW(local("i4[8,4]", "b:S1"), Error);
}

TEST(TensorType, HugeOrInconsistentDimsDoNotOverflow) {
  constexpr int64_t kMaxSize = std::numeric_limits<int64_t>::max();
  const TensorType fits{DType::f32, {int64_t{1} << 40}};
  for (const TensorType& type : {TensorType{DType::f64, {kMaxSize, kMaxSize}},
                                 TensorType{DType::f64, {kMaxSize, 3, kMaxSize}, 2},
                                 TensorType{DType::f32, {64}, 2}, TensorType{DType::f32, {}, 1}}) {
    EXPECT_GT(type.bytes(), fits.bytes()) << type.dims.size() << " dims";
    EXPECT_LT(type.bytes(), kMaxSize);
  }
}

/// The parts of all ranks cover each index once, as evenly as possible.
TEST(LocalRuns, FillEveryDimOnce) {
  const Mesh mesh{{{"a", 2}, {"b", 3}}};
  for (const char* text : {"B", "a:S0", "b:S1", "a:S0 b:S0", "a:S0 b:S1", "a:S1 b:S1"}) {
    const Layout layout = parse_layout(text, mesh);
    for (int64_t size = 6; size <= 13; ++size) {
      const TensorType type{DType::f32, {size, 2 * size + 1}};
      std::vector<int> held(static_cast<size_t>(type.numel()), 0);
      int64_t least = type.numel(), most = 0;
      for (int32_t rank = 0; rank < mesh.size(); ++rank) {
        const std::vector<graph::Run> runs = local_runs(type, layout, mesh, mesh.coords(rank));
        const TensorType local = local_type(type, layout, mesh, mesh.coords(rank));
        for (int64_t i = 0; i < runs[0].length; ++i) {
          for (int64_t j = 0; j < runs[1].length; ++j) {
            const int64_t row = runs[0].begin + i;
            ++held[static_cast<size_t>(row * type.dims[1] + runs[1].begin + j)];
          }
        }
        EXPECT_EQ(local.numel(), runs[0].length * runs[1].length);
        least = std::min(least, runs[0].length);
        most = std::max(most, runs[0].length);
      }
      EXPECT_LE(most - least, 1) << text;
      // Axes that split nothing have replicas.
      int64_t replicas = 1;
      for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
        replicas *= layout[axis].is_replicate() ? mesh.axes[axis].size : 1;
      }
      EXPECT_EQ(std::count(held.begin(), held.end(), replicas), type.numel()) << text << size;
    }
  }
  EXPECT_EQ(share(7, 2, 0), (graph::Run{0, 4}));
  EXPECT_EQ(share(7, 2, 1), (graph::Run{4, 3}));
  EXPECT_THROW(local_type({DType::f32, {2}}, parse_layout("b:S0", mesh), mesh, {0, 2}), Error);
}

}  // namespace
}  // namespace hocket::graph
