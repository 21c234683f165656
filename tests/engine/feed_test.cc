// SPDX-License-Identifier: Apache-2.0
// Inputs of any type reach the ranks that read them, by name; values that do not fit are refused.
#include "engine/feed.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "base/error.h"
#include "engine/params.h"
#include "engine/session.h"
#include "kernels/backend.h"
#include "ops/build.h"
#include "parallel/lowering/lower.h"
#include "program/finalize.h"

namespace hocket::engine {
namespace {

using graph::DType;
using graph::TensorId;

constexpr int64_t kRows = 8, kWidth = 4;
constexpr int32_t kMicroBatches = 2;

/// features + shared, rows of floats that data-parallel ranks split.
Compiled sum_of_inputs(int64_t dp) {
  graph::Graph graph;
  graph.num_layers = 1;
  const graph::TensorType type{DType::f32, {kRows, kWidth}};
  const TensorId features = graph.input("features", type);
  const TensorId shared = graph.input("shared", type);
  graph.outputs.push_back(ops::apply(graph, "add", {}, {features, shared}, "sum", 0)[0]);
  parallel::Plan plan;
  plan.dp = dp;
  plan.num_micro_batches = kMicroBatches;
  Compiled result;
  result.reference = graph;
  result.program = parallel::lower(graph, plan);
  program::finalize(result.program);
  return result;
}

std::vector<float> counted(int64_t count, float first) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

std::string failure(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Feed, FeedsFloatsByNameAndMicroBatch) {
  const std::vector<float> features = counted(kMicroBatches * kRows * kWidth, 0);
  const std::vector<float> shared = counted(kRows * kWidth, 1000);
  for (const int64_t dp : {1, 2}) {
    SCOPED_TRACE(dp);
    Compiled compiled = sum_of_inputs(dp);
    runtime::LocalRanks ranks(compiled.program.num_ranks(), kernels::cpu_backend(), {});
    Session session(std::move(compiled), runtime::Store(ranks));
    FeedMap feeds;
    feeds.add("features", std::span<const float>(features));
    feeds.keep("shared", shared, 0);  // the same in every micro-batch
    feeds.keep("unread", std::vector<double>{1});
    session.feed(feeds);
    session.step();
    for (int32_t m = 0; m < kMicroBatches; ++m) {
      const std::vector<float> sum = session.collect_as<float>("sum", m);
      ASSERT_EQ(sum.size(), shared.size());
      for (size_t i = 0; i < sum.size(); ++i) {
        EXPECT_EQ(sum[i], features[static_cast<size_t>(m) * sum.size() + i] + shared[i]);
      }
    }
  }
}

TEST(Feed, RefusesInputsThatTheProgramDoesNotRead) {
  Compiled compiled = sum_of_inputs(2);
  runtime::LocalRanks ranks(compiled.program.num_ranks(), kernels::cpu_backend(), {});
  Session session(std::move(compiled), runtime::Store(ranks));
  const auto with = [&](const std::function<void(FeedMap&)>& change) {
    FeedMap feeds;
    feeds.keep("features", counted(kMicroBatches * kRows * kWidth, 0));
    feeds.keep("shared", counted(kRows * kWidth, 0), 0);
    change(feeds);
    return failure([&] { session.feed(feeds); });
  };
  EXPECT_EQ(with([](FeedMap&) {}), "");
  EXPECT_NE(with([](FeedMap& feeds) {
              feeds.keep("shared", std::vector<double>(kRows * kWidth), 0);
            }).find("shared is given as f64; the program reads f32"),
            std::string::npos);
  EXPECT_NE(with([](FeedMap& feeds) {
              feeds.keep("features", counted(7, 0));
            }).find("features is given 28 bytes; expected 256"),
            std::string::npos);
  EXPECT_NE(failure([&] {
              FeedMap feeds;
              feeds.keep("features", counted(kMicroBatches * kRows * kWidth, 0));
              session.feed(feeds);
            }).find("reads shared on rank 0"),
            std::string::npos);
}

}  // namespace
}  // namespace hocket::engine
