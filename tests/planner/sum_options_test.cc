// SPDX-License-Identifier: Apache-2.0
// Espresso's tree of options: the number of paths that the paper counts, each valid, and their
// costs.
#include "planner/codecs/sum_options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "cost/cluster.h"
#include "cost/rooted.h"

namespace hocket::planner {
namespace {

using Kind = SumAct::Kind;

/// The paper counts 4,341. Of readings of its rules this one gives that number: at every boundary
/// codes may be kept, or decoded, and then encoded anew or not, each by the device or the host. If
/// they must be decoded where parts are added up there are 3,205, or 1,605 if elsewhere they are
/// only kept; if they may be kept everywhere but are encoded once, 597.
TEST(SumOptions, AreAsManyAsThePaperCounts) {
  const std::vector<SumOption> all = sum_options();
  EXPECT_EQ(all.size(), 4341U);
  EXPECT_EQ(std::count_if(all.begin(), all.end(), is_flat), 5 + 2 * 29);
  EXPECT_EQ(std::count_if(all.begin(), all.end(),
                          [](const SumOption& option) { return !is_encoded(option); }),
            9);
  std::set<std::string> texts;
  for (const SumOption& option : all) {
    texts.insert(to_string(option));
  }
  EXPECT_EQ(texts.size(), all.size());
  EXPECT_EQ(to_string(all.front()), "all_reduce");
}

/// Codes where codes are read, the gradient where it is, and at the end; collectives in pairs,
/// those inside of nodes around those between.
TEST(SumOptions, AreValid) {
  for (const SumOption& option : sum_options()) {
    SCOPED_TRACE(to_string(option));
    bool codes = false;
    std::vector<SumAct> open;
    for (const SumAct& act : option) {
      switch (act.kind) {
        case Kind::encode:
          EXPECT_FALSE(codes);
          codes = true;
          break;
        case Kind::decode:
          EXPECT_TRUE(codes);
          codes = false;
          break;
        case Kind::communicate:
          EXPECT_EQ(act.codes, codes);
          if (act.part == SumPart::scatter || act.part == SumPart::to_root) {
            open.push_back(act);
          } else if (act.part != SumPart::whole) {
            ASSERT_FALSE(open.empty());
            EXPECT_EQ(open.back().over, act.over);
            EXPECT_EQ(open.back().part == SumPart::scatter, act.part == SumPart::gather);
            open.pop_back();
          }
          break;
      }
    }
    EXPECT_FALSE(codes);
    EXPECT_TRUE(open.empty());
  }
}

cost::Cluster cluster_of(const std::string& inter, const std::string& host) {
  return cost::parse_cluster(
      "name: test\nnodes: 4\ndevices_per_node: 4\ndevice:\n  name: test\n  memory: {value: 4GB}\n"
      "  memory_bandwidth: {value: 10GB/s}\n  peak: {f32: {value: 10TFLOP/s}}\n"
      "  efficiency: {matmul: {value: 1}, attention: {value: 1}, memory: {value: 1}}\n" +
          host +
          "links:\n  intra: {latency: {value: 1us}, bandwidth: {value: 100GB/s}}\n  inter: "
          "{latency: {value: 1us}, bandwidth: {value: " +
          inter + "}}\ntopology: {adapters_per_node: 1}\n",
      "test");
}

std::string fastest(const cost::Cluster& cluster, double bytes) {
  const cost::CostModel costs(cluster, std::nullopt, 1);
  const passes::CodecOps codec("int8");
  const SumCosts sums(costs, 4, 4, codec);
  std::string best;
  double least = 0;
  for (const SumOption& option : sum_options()) {
    if (works_on_host(option) && !cluster.knows_hosts()) continue;
    const double seconds = sums.seconds(option, bytes);
    if (best.empty() || seconds < least) {
      least = seconds;
      best = to_string(option);
    }
  }
  return best;
}

/// Slow links between nodes are worth codes there; fast ones nothing.
TEST(SumOptions, EncodeBetweenNodesOnlyWhereLinksAreSlow) {
  const std::string slow = fastest(cluster_of("100MB/s", ""), 64 << 20);
  EXPECT_NE(slow.find("inside"), std::string::npos) << slow;
  EXPECT_NE(slow.find("encode"), std::string::npos) << slow;
  const std::string fast = fastest(cluster_of("10TB/s", ""), 64 << 20);
  EXPECT_EQ(fast.find("encode"), std::string::npos) << fast;
}

/// Reduce to a root and broadcast from it cost the same as these collectives alone.
TEST(SumOptions, RootedSumsCostAsMuchAsTheirCollectivesAlone) {
  const cost::Cluster cluster = cluster_of("1GB/s", "");
  const cost::CostModel costs(cluster, std::nullopt, 1);
  const passes::CodecOps codec("int8");
  const SumCosts sums(costs, 4, 4, codec);
  std::vector<int32_t> ranks(16);
  std::iota(ranks.begin(), ranks.end(), 0);
  const cost::GroupShape shape = cluster.shape(ranks);
  const auto alone = [&](const char* op, double bytes) {
    return costs.algorithm_times(*cost::find_costed(op), bytes, false, shape).front().seconds();
  };
  const SumAct to{.part = SumPart::to_root}, from{.part = SumPart::from_root};
  const double bytes = 4 << 20;
  EXPECT_NEAR(sums.seconds({to, from}, bytes), alone("reduce", bytes) + alone("broadcast", bytes),
              1e-12);
  // Codes of all ranks lie side by side at the root, and go back so: a quarter of the gradient's
  // bytes each, and a scale for each row.
  const double codes = 16 * (bytes / 4 + bytes / 1024);
  const SumAct gather{.part = SumPart::to_root, .codes = true};
  const SumAct back{.part = SumPart::from_root, .codes = true};
  const SumAct encode{SumAct::Kind::encode}, decode{SumAct::Kind::decode};
  const double work = sums.seconds({encode, decode}, bytes);
  const double moved = sums.seconds({encode, gather, back, decode}, bytes) - work;
  EXPECT_GT(moved, alone("gather", codes) + alone("broadcast", codes));
}

/// The parts of one collective over all ranks add up; hosts cost copies, too.
TEST(SumOptions, CostTheSumOfTheirParts) {
  const cost::Cluster cluster = cluster_of(
      "1GB/s",
      "  host: {kernels: {value: 1GB/s}, copies: {value: 10GB/s}, copy_latency: {value: 5us}}\n");
  const cost::CostModel costs(cluster, std::nullopt, 1);
  const passes::CodecOps codec("int8");
  const SumCosts sums(costs, 4, 4, codec);
  const double bytes = 4 << 20;
  const std::vector<SumOption> all = sum_options();
  std::vector<int32_t> ranks(16);
  for (int32_t rank = 0; rank < 16; ++rank) {
    ranks[static_cast<size_t>(rank)] = rank;
  }
  const cost::GroupShape shape = cluster.shape(ranks);
  const double plain =
      costs.algorithm_times(comm::op(comm::find("all_reduce")), bytes, false, shape)
          .front()
          .seconds();
  EXPECT_NEAR(sums.seconds(all.front(), bytes), plain, 1e-9);
  const auto of = [&](const std::string& text) {
    const auto found = std::find_if(
        all.begin(), all.end(), [&](const SumOption& option) { return to_string(option) == text; });
    EXPECT_NE(found, all.end()) << text;
    return sums.seconds(*found, bytes);
  };
  // 4 MiB are read and a quarter is written, with a scale for each row of 1,024.
  const double codes = bytes / 4 + bytes / 1024;
  const double device = of("encode, all_gather, decode");
  const double host = of("encode (host), all_gather, decode");
  const double encodes = (bytes + codes) / 1e9 - (bytes + codes) / 10e9;
  const double copies = 2 * 5e-6 + (bytes + codes) / 10e9;
  EXPECT_NEAR(host - device, encodes + copies, 0.02 * (encodes + copies));
}

}  // namespace
}  // namespace hocket::planner
