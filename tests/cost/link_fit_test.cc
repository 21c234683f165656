// SPDX-License-Identifier: Apache-2.0
// Fits of links. The constants that generated the samples are recovered, also with noise and with
// launches that hide short transfers; groups without samples are predicted. Public logs (not part
// of the repository: HOCKET_NCCL_DATA) are fitted within the error given in docs/cluster-files.md.
#include "cost/link_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/rng.h"
#include "cost/known_clusters.h"
#include "cost/link_errors.h"
#include "interop/comm_log_reader.h"

namespace hocket::cost {
namespace {

/// Returns a cluster with constants that the fit must recover.
Cluster truth() {
  Cluster c = known_cluster("azure-nd-a100-v4");
  c.links.intra = {{1e-6, "t"}, {200e9, "t"}, {1, ""}};
  c.links.intra.start = {30e-6, "t"};
  c.links.intra.half_size = {1e6, "t"};
  c.links.intra.short_messages = {{10e-6, "t"}, {0.3e-6, "t"}, {20e9, "t"}, {}};
  c.links.inter = {{12e-6, "t"}, {20e9, "t"}, {1, ""}};
  c.links.inter.start = {30e-6, "t"};
  c.links.inter.short_messages = {{10e-6, "t"}, {3e-6, "t"}, {8e9, "t"}, {}};
  // NCCL's trees reach less than its rings.
  c.links.inter.tree = {{30e-6, "t"}, {12e-6, "t"}, {0.92 * 20e9, "t"}, {}};
  c.topology.rails = false;
  return c;
}

/// Returns times of a collective by the truth's own cost model, with relative noise.
std::vector<CommSample> made(const char* op, int32_t ranks, int32_t nodes, double noise) {
  std::vector<CommSample> samples;
  uint64_t at = static_cast<uint64_t>(ranks) * 1000;
  for (double bytes = 8192; bytes <= 0x1p30; bytes *= 2) {
    CommSample s{op, bytes, ranks, nodes, ranks / nodes};
    s.seconds = predicted_s(truth(), s) * (1 + noise * (2 * uniform(7, 0, at++) - 1));
    samples.push_back(s);
  }
  return samples;
}

std::vector<CommSample> concat(const std::vector<std::vector<CommSample>>& lists) {
  std::vector<CommSample> all;
  for (const auto& list : lists) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

void expect_small(const std::vector<GroupError>& errors, double mean) {
  EXPECT_FALSE(errors.empty());
  for (const GroupError& e : errors) {
    EXPECT_LE(e.mean, mean) << e.op << " of " << e.ranks << " on " << e.nodes << " by "
                            << e.predicted_from;
  }
}

TEST(LinkFit, RecoversTheConstants) {
  const auto seen = concat({made("all_reduce", 2, 1, 0), made("all_reduce", 4, 1, 0),
                            made("all_gather", 8, 1, 0), made("all_reduce", 16, 2, 0)});
  const LinkFit fit = fit_links(known_cluster("azure-nd-a100-v4"), seen, "made up");
  EXPECT_EQ(fit.fitted, (std::vector<std::string>{"links.intra", "links.inter"}));
  const Link& near = fit.cluster.links.intra;
  EXPECT_NEAR(near.bandwidth.value / 200e9, 1, 0.02);
  EXPECT_NEAR(near.start.value / 30e-6, 1, 0.1);
  EXPECT_NEAR(near.latency.value / 1e-6, 1, 0.1);
  EXPECT_NEAR(fit.cluster.links.inter.bandwidth.value / 20e9, 1, 0.03);
  EXPECT_NE(near.bandwidth.source.find("made up: all_gather and all_reduce of 2, 4, 8 ranks"),
            std::string::npos)
      << near.bandwidth.source;
  EXPECT_EQ(fit.cluster.unsourced(), std::vector<std::string>{});
  // Larger groups and other collectives, without samples.
  const auto unseen = concat({made("all_reduce", 64, 8, 0), made("reduce_scatter", 32, 4, 0)});
  expect_small(errors_of(fit.cluster, unseen, ""), 0.05);
}

TEST(LinkFit, ToleratesNoiseAndHostLaunches) {
  // Each process drives all devices of its node, 4 us each, a lower bound on its times.
  auto seen = concat({made("all_reduce", 2, 1, 0.03), made("all_reduce", 4, 1, 0.03),
                      made("all_reduce", 8, 1, 0.03)});
  for (CommSample& s : seen) {
    s.per_process = s.ranks;
    s.seconds = std::max(s.seconds, s.ranks * 4e-6);
  }
  Cluster base = known_cluster("azure-nd-a100-v4");
  base.links.inter = truth().links.inter;
  const LinkFit fit = fit_links(base, seen, "made up");
  EXPECT_EQ(fit.left_out.size(), 1u);
  EXPECT_EQ(fit.cluster.links.inter.bandwidth.value, 20e9);
  expect_small(errors_of(fit.cluster, made("all_reduce", 16, 2, 0), ""), 0.05);
  expect_small(held_out(base, seen), 0.10);
}

/// In the logs of one node a process launches all its devices, which adds 30 us. The constants of
/// the network come from the groups over nodes alone.
TEST(LinkFit, LaunchesInsideANodeDoNotPullTheNetwork) {
  auto seen = concat({made("all_reduce", 2, 1, 0.02), made("all_reduce", 4, 1, 0.02),
                      made("all_reduce", 8, 1, 0.02)});
  for (CommSample& s : seen) {
    s.per_process = s.ranks;
    s.seconds += 30e-6;
  }
  Cluster base = known_cluster("azure-nd-a100-v4");
  base.links.intra.start = {25e-6, "t"};
  base.links.inter = truth().links.inter;
  base.links.inter.latency.value = 15e-6;  // one shape of groups fixes no latency
  for (CommSample s : made("all_reduce", 16, 2, 0.02)) {
    s.per_process = 1;
    seen.push_back(s);
  }
  const LinkFit fit = fit_links(base, seen, "made up");
  EXPECT_GT(fit.cluster.links.intra.start.value, 45e-6);
  EXPECT_NEAR(fit.cluster.links.inter.start.value / 30e-6, 1, 0.25);
  EXPECT_NEAR(fit.cluster.links.inter.latency.value / 12e-6, 1, 0.5);
  expect_small(errors_of(fit.cluster, made("all_reduce", 64, 8, 0), ""), 0.08);
  expect_small(errors_of(fit.cluster, made("all_reduce", 128, 16, 0), ""), 0.08);
}

/// A group with many measured sizes counts no more than a group with few.
TEST(LinkFit, GroupsCountAlikeForAnyNumberOfSizes) {
  auto seen = made("all_reduce", 8, 1, 0);
  std::vector<CommSample> slow;
  for (const CommSample& s : made("all_reduce", 4, 1, 0)) {
    for (int i = 0; i < 30; ++i) {
      slow.push_back(s);
      slow.back().bytes += i;
      slow.back().seconds *= 1.3;
    }
  }
  const LinkFit fit = fit_links(known_cluster("azure-nd-a100-v4"), concat({seen, slow}), "x");
  Cluster links = fit.cluster;
  links.measured.clear();
  const double of_few = errors_of(links, seen, "").at(0).mean;
  EXPECT_LT(of_few, 0.2);  // and 0.3 where every time counts alike
}

/// Times that bend between sizes four times apart. A line in logarithms would be 9 % off.
TEST(MeasuredTimes, FollowTheBendOfTheTimes) {
  MeasuredTimes times{"all_reduce", 8, 1, "log", {}, {}};
  const auto us = [](double bytes) { return 50 + bytes / 200e3; };
  for (double bytes = 1 << 18; bytes <= 0x1p30; bytes *= 4) {
    times.bytes.push_back(bytes);
    times.us.push_back(us(bytes));
  }
  for (double bytes = 1 << 19; bytes < 0x1p30; bytes *= 4) {
    EXPECT_NEAR(times.seconds(bytes) * 1e6 / us(bytes), 1, 0.035) << bytes;
    EXPECT_GT(times.seconds(bytes), times.seconds(bytes / 2));
    EXPECT_LT(times.seconds(bytes), times.seconds(bytes * 2));
  }
  EXPECT_DOUBLE_EQ(times.seconds(times.bytes[3]) * 1e6, times.us[3]);
  EXPECT_DOUBLE_EQ(times.seconds(1) * 1e6, times.us.front());
  MeasuredTimes two{"all_reduce", 8, 1, "log", {1000, 4000}, {10, 20}};
  EXPECT_NEAR(two.seconds(2000) * 1e6, std::sqrt(200), 1e-9);
}

TEST(LinkFit, KeepsTheShortProtocolWithoutShortSamples) {
  // Inside a node only long messages were timed. The protocol of short ones, which groups over
  // nodes use there as well, is kept.
  std::vector<CommSample> seen = made("all_reduce", 8, 1, 0);
  std::erase_if(seen, [](const CommSample& s) { return s.bytes < kMinJudgedBytes; });
  const Cluster base = truth();
  const LinkFit fit = fit_links(base, concat({seen, made("all_reduce", 16, 2, 0)}), "made up");
  EXPECT_EQ(fit.cluster.links.intra.short_messages.latency.value,
            base.links.intra.short_messages.latency.value);
  EXPECT_TRUE(fit.doubts.empty());
  expect_small(errors_of(fit.cluster, made("all_reduce", 64, 8, 0), ""), 0.05);
}

TEST(LinkFit, WarnsOfTimesThatNoConstantsExplain) {
  // Successive sizes take 1, 2 and 4 times the time.
  std::vector<CommSample> seen = made("all_reduce", 8, 1, 0);
  for (size_t k = 0; k < seen.size(); ++k) {
    seen[k].seconds *= std::pow(2, k % 3);
  }
  const LinkFit fit = fit_links(known_cluster("azure-nd-a100-v4"), seen, "made up");
  ASSERT_EQ(fit.doubts.size(), 1u);
  EXPECT_TRUE(fit.doubts[0].starts_with("links.intra is ")) << fit.doubts[0];
}

TEST(LinkFit, SendsAndExchangesHaveTheirOwnCurves) {
  std::vector<CommSample> seen = made("all_reduce", 8, 1, 0);
  for (double bytes = 1024; bytes <= 0x1p28; bytes *= 2) {
    seen.push_back({"send", bytes, 2, 1, 2, 5e-6 + bytes / 250e9});
    seen.push_back({"all_to_all", bytes, 8, 1, 8, 20e-6 + bytes * 7 / 8 / 100e9});
  }
  const LinkFit fit = fit_links(known_cluster("azure-nd-a100-v4"), seen, "made up");
  EXPECT_NEAR(fit.cluster.links.intra.message.bandwidth.value / 250e9, 1, 0.02);
  EXPECT_NEAR(fit.cluster.links.intra.direct.bandwidth.value / 100e9, 1, 0.02);
  Cluster unmeasured = fit.cluster;
  unmeasured.measured.clear();
  expect_small(errors_of(unmeasured, seen, ""), 0.05);
}

TEST(LinkFit, RoundTripKeepsPredictions) {
  const LinkFit fit =
      fit_links(known_cluster("azure-nd-a100-v4"),
                concat({made("all_reduce", 4, 1, 0.02), made("all_reduce", 8, 1, 0.02)}),
                "a \"log\": of mine");
  const Cluster again = parse_cluster(to_yaml(fit.cluster), "again.yaml");
  EXPECT_EQ(to_yaml(again), to_yaml(fit.cluster));
  for (const CommSample& s : made("all_reduce", 16, 2, 0)) {
    EXPECT_NEAR(predicted_s(again, s) / predicted_s(fit.cluster, s), 1, 1e-7);
  }
  EXPECT_THROW(fit_links(fit.cluster, {}, "nothing"), Error);
  EXPECT_THROW(fit_links(fit.cluster, {{"all_reduce", 8, 1, 1, 1, 1e-6}}, "one rank"), Error);
}

/// Echo's logs of ND A100 v4: nccl_2.log, ... nccl_16.log. A fit to one node, with the network of
/// the shipped file, predicts two nodes.
TEST(LinkFit, PublicLogsPredictTwoNodesFromOne) {
  const char* folder = std::getenv("HOCKET_NCCL_DATA");
  if (!folder) {
    GTEST_SKIP() << "HOCKET_NCCL_DATA names no folder with nccl_2.log ... nccl_16.log";
  }
  const auto log = [&](const char* name) {
    return interop::read_comm_log(std::string(folder) + "/" + name).samples;
  };
  const Cluster base = known_cluster("azure-nd-a100-v4");
  const LinkFit fit =
      fit_links(base, concat({log("nccl_2.log"), log("nccl_4.log"), log("nccl_8.log")}), "Echo");
  EXPECT_EQ(fit.fitted, std::vector<std::string>{"links.intra"});
  expect_small(errors_of(fit.cluster, log("nccl_16.log"), ""), 0.08);
  // With one group inside a node: only its long messages show its links.
  Cluster links = fit_links(base, concat({log("nccl_8.log"), log("nccl_16.log")}), "Echo").cluster;
  links.measured.clear();
  expect_small(errors_of(links, log("nccl_16.log"), ""), 0.05);
}

/// A fit to every second size of the same logs predicts the others from 1 MiB on, and vice versa.
TEST(LinkFit, PublicLogsPredictEveryOtherSize) {
  const char* folder = std::getenv("HOCKET_NCCL_DATA");
  if (!folder) {
    GTEST_SKIP() << "HOCKET_NCCL_DATA names no folder with nccl_2.log ... nccl_16.log";
  }
  for (const int half : {0, 1}) {
    std::vector<CommSample> seen, unseen;
    for (const char* name : {"nccl_2.log", "nccl_4.log", "nccl_8.log", "nccl_16.log"}) {
      int at = 0;
      for (const CommSample& s : interop::read_comm_log(std::string(folder) + "/" + name).samples) {
        const bool hidden = s.bytes >= kMinJudgedBytes && at++ % 2 == half;
        (hidden ? unseen : seen).push_back(s);
      }
    }
    const LinkFit fit = fit_links(known_cluster("azure-nd-a100-v4"), seen, "Echo");
    expect_small(errors_of(fit.cluster, unseen, ""), 0.05);
  }
}

}  // namespace
}  // namespace hocket::cost
