// SPDX-License-Identifier: Apache-2.0
// Model FLOPs of small graphs against the formulas of docs/outputs.md.
#include "cost/flops.h"

#include <gtest/gtest.h>

namespace hocket::cost {
namespace {

using graph::DType;
using graph::Graph;

graph::TensorId tensor(Graph& g, graph::Dims dims, int32_t top_k = 0) {
  graph::Tensor t;
  t.type = {DType::f32, std::move(dims), top_k};
  return g.add_tensor(t);
}

void node(Graph& g, const char* op, std::vector<graph::TensorId> in, graph::Attrs attrs = {},
          graph::Phase phase = graph::Phase::forward, bool recompute = false) {
  graph::Node n;
  n.op = op;
  n.in = std::move(in);
  n.attrs = std::move(attrs);
  n.phase = phase;
  n.recompute = recompute;
  g.nodes.push_back(n);
}

TEST(ModelFlops, CountsForwardProductsOnce) {
  Graph g;
  const auto x = tensor(g, {100, 8});
  const auto w = tensor(g, {4, 3, 8});  // 12 outputs in two dims
  node(g, "linear", {x, w});
  node(g, "linear", {x, w}, {}, graph::Phase::forward, true);  // recomputed: not counted
  node(g, "linear_dw", {x, x}, {}, graph::Phase::backward);
  node(g, "rms_norm", {x, w});
  EXPECT_EQ(model_flops(g).forward(), 2.0 * 100 * 12 * 8);
  EXPECT_EQ(model_flops(g).training(), 6.0 * 100 * 12 * 8);
}

TEST(ModelFlops, CountsActiveExpertsOnly) {
  Graph g;
  const auto xs = tensor(g, {16, 100, 8}, 2);  // 16 experts, 100 tokens, top-2
  const auto w = tensor(g, {16, 5, 8});
  const auto counts = tensor(g, {16});
  node(g, "grouped_linear", {xs, w, counts});
  EXPECT_EQ(model_flops(g).linear, 2.0 * 200 * 5 * 8);
}

TEST(ModelFlops, CountsCausalAttentionByVisibleKeys) {
  Graph g;
  const auto q = tensor(g, {64, 2, 4});
  node(g, "attention", {q, q, q}, {{"seq", int64_t{16}}});
  // 64 queries x 2 heads, each 8.5 keys on average, two products of width 4.
  EXPECT_EQ(model_flops(g).attention, 4 * 8.5 * 64 * 2 * 4);
  EXPECT_EQ(model_flops(g, 3.0).attention, 4 * 3.0 * 64 * 2 * 4);
  // In a window of 3 the first two of 16 queries see fewer keys, as in documents of 5.
  g.nodes[0].attrs.set("window", int64_t{3});
  EXPECT_DOUBLE_EQ(model_flops(g).attention, 4 * (1 + 2 + 14 * 3) / 16.0 * 64 * 2 * 4);
  EXPECT_DOUBLE_EQ(model_flops(g, 3.0).attention, 4 * (1 + 2 + 3 * 3) / 5.0 * 64 * 2 * 4);
  g.nodes[0].attrs.set("window", int64_t{16});
  EXPECT_EQ(model_flops(g).attention, 4 * 8.5 * 64 * 2 * 4);
}

TEST(ModelFlops, CountsTheHead) {
  Graph g;
  const auto h = tensor(g, {10, 8});
  const auto w = tensor(g, {100, 8});
  node(g, "linear_cross_entropy", {h, w});
  EXPECT_EQ(model_flops(g).head, 2.0 * 10 * 100 * 8);
}

}  // namespace
}  // namespace hocket::cost
