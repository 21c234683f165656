// SPDX-License-Identifier: Apache-2.0
// Gradients, fusion and rings of `hocket whatif --bottleneck`. Whole tables are compared with brute
// force in tests/whatif/whatif_test.py.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/error.h"
#include "whatif/bottleneck.h"
#include "whatif/gradients.h"

namespace hocket::whatif {
namespace {

std::string temporary(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

/// Bytes and times at which batches are handed over, in one text.
std::string batches(const GradientLog& log, const Fusion& fusion) {
  std::string text;
  for (const Batch& batch : fuse(log, fusion)) {
    text += std::to_string(static_cast<int>(batch.bytes)) + "@" +
            std::to_string(static_cast<int>(batch.ready)) + " ";
  }
  return text;
}

TEST(WhatifFusion, ABatchEndsWhenFullOversizedLateOrLast) {
  const Fusion fusion{100, 5};
  EXPECT_EQ(batches({}, fusion), "");
  EXPECT_EQ(batches({{{10, 1}, {10, 2}}}, fusion), "20@2 ");               // the last one
  EXPECT_EQ(batches({{{40, 1}, {60, 2}, {1, 3}}}, fusion), "100@2 1@3 ");  // full
  EXPECT_EQ(batches({{{40, 1}, {70, 2}, {1, 3}}}, fusion), "40@2 71@3 ");  // would be too much
  EXPECT_EQ(batches({{{400, 1}, {70, 2}}}, fusion), "400@1 70@2 ");        // alone too much
  EXPECT_EQ(batches({{{40, 1}, {10, 6}, {1, 9}}}, fusion), "40@6 11@9 ");  // late at just that time
  EXPECT_EQ(batches({{{40, 1}, {10, 5}, {1, 9}}}, fusion), "50@6 1@9 ");
  EXPECT_EQ(batches({{{4, 1}, {5, 1}, {6, 1}}}, {0, 5}), "4@1 5@1 6@1 ");  // no fusion
}

TEST(WhatifRing, TimeCountsBytesAndAdditionsOfEveryStep) {
  EXPECT_DOUBLE_EQ(ring_seconds(800, {4, 100, 1}, {}), 2 * 800 * 3 / (4 * 100.0));
  EXPECT_DOUBLE_EQ(ring_seconds(800, {4, 100, 2}, {}), 800 * 3 / (4 * 100.0));
  EXPECT_DOUBLE_EQ(ring_seconds(800, {4, 100, 2}, AddTimes(10)), 6 + 3 * 400 / 4 / 10.0);
  // One after another: the second waits for the first.
  EXPECT_DOUBLE_EQ(end_of_all_reduces({{100, 1}, {100, 2}}, {2, 10, 1}, {}), 21);
  EXPECT_DOUBLE_EQ(end_of_all_reduces({{100, 1}, {100, 20}}, {2, 10, 1}, {}), 30);
}

TEST(WhatifAdds, TableIsLinearBetweenItsRows) {
  const AddTimes add(std::vector<std::pair<double, double>>{{10, 2}, {30, 4}});
  EXPECT_DOUBLE_EQ(add.seconds(0), 0);
  EXPECT_DOUBLE_EQ(add.seconds(5), 1);
  EXPECT_DOUBLE_EQ(add.seconds(20), 3);
  EXPECT_DOUBLE_EQ(add.seconds(130), 14);
  const AddTimes read = read_add_times(temporary("adds.txt", "# n t\n1KiB 1us\n\n2048, 3us # x\n"));
  EXPECT_DOUBLE_EQ(read.seconds(1536), 2e-6);
  for (const char* text :
       {"", "1KiB", "1KiB x", "2KiB 1us\n1KiB 2us", "1KiB 2us\n2KiB 1us", "0 1us"}) {
    EXPECT_THROW(read_add_times(temporary("adds.txt", text)), Error) << text;
  }
}

/// A rank's two gradients, reduced with the other replica's; a third reduction of one worker's own;
/// their compute ops; and a task behind all.
MeasuredRun two_replicas(bool with_bytes = true) {
  MeasuredRun run;
  run.names = {"compute", "sum", "optimizer"};
  run.replicas = 2;
  run.pattern_workers = 1;
  run.workers = {{0, 0, 0, "rank 0"}, {1, 0, 1, "rank 1"}};
  std::vector<Observed> seen;
  const auto add = [&](NameId name, double start, std::vector<double> durations) {
    for (int32_t replica = 0; replica < 2; ++replica) {
      Observed op;
      op.name = name;
      op.replica = replica;
      op.start = start;
      op.duration = durations[replica];
      seen.push_back(op);
    }
  };
  add(0, 0, {2, 3});
  add(1, 3, {4, 4});
  add(0, 3, {2, 2});
  add(1, 7, {4, 4});
  add(2, 11, {1, 1});
  assemble(seen, "test", &run);
  give_blocks({Traffic::none, Traffic::gradients, Traffic::none}, &run);
  std::vector<OpId> computes, sums, last;
  for (OpId op = 0; op < run.ops.size(); ++op) {
    (run.ops[op].name == 0 ? computes : run.ops[op].name == 1 ? sums : last).push_back(op);
  }
  add_wait(&run, computes[1], computes[0]);
  for (size_t i = 0; i < 2; ++i) {
    run.ops[sums[i]].bytes = with_bytes ? 100 * (i + 1) : 0;
    run.ops[sums[i]].group = i;
    run.groups.push_back({{sums[i]}, true, false});
    add_wait(&run, sums[i], computes[i]);
    add_wait(&run, last[0], sums[i]);
  }
  add_wait(&run, sums[1], sums[0]);
  return run;
}

TEST(WhatifGradients, AreReadyWhenTheLastRankCouldBegin) {
  const MeasuredRun run = two_replicas();
  Replayer replayer(run);
  const Gradients found = gradients_of(run, &replayer);
  EXPECT_EQ(found.ranks, 2);
  EXPECT_DOUBLE_EQ(found.step, 6);            // 3 + 2 + 1
  EXPECT_DOUBLE_EQ(found.measured_step, 12);  // 3 + 4 + 4 + 1
  EXPECT_DOUBLE_EQ(found.bus_bandwidth, 600 / 16.0);
  ASSERT_EQ(found.steps.size(), 1u);
  EXPECT_DOUBLE_EQ(found.steps[0].backward, 5);
  ASSERT_EQ(found.steps[0].logs.size(), 1u);
  const std::vector<Gradient>& log = found.steps[0].logs[0].gradients;
  ASSERT_EQ(log.size(), 2u);
  EXPECT_DOUBLE_EQ(log[0].ready, 3);
  EXPECT_DOUBLE_EQ(log[1].bytes, 200);

  // Sums of 100 and 200 bytes at 25 bytes/s: from 3 to 7, from 7 to 15, 10 behind the backward
  // pass.
  BottleneckOptions options;
  options.ranks = {2};
  options.bandwidths = {25};
  options.ratios = {1, 4};
  options.used = 0.5;
  options.fusion = {0, 0};
  const Bottleneck bottleneck = find_bottleneck(found, options);
  EXPECT_DOUBLE_EQ(bottleneck.factor[0][0][0], 6.0 / 16);
  EXPECT_DOUBLE_EQ(bottleneck.factor[0][0][1], 6.0 / 8);  // to 4, and from 5 to 7
  EXPECT_DOUBLE_EQ(bottleneck.used_factor[0][0][0], 6.0 / 28);
  EXPECT_DOUBLE_EQ(bottleneck.measured_factor, 0.5);
  EXPECT_DOUBLE_EQ(bottleneck.bytes, 300);
  // f is 0.95 where the last sum takes 6/0.95 - 6 seconds.
  EXPECT_NEAR(bottleneck.ratio_needed[0][0], 16 / (6 / kNearLinear - 6), 1e-6);
  EXPECT_NEAR(scaling_factor(found, options.fusion, {2, 12.5, bottleneck.ratio_needed[0][0]}, {}),
              kNearLinear, 1e-9);
}

TEST(WhatifGradients, WithoutSumsOrBytesIsAnError) {
  const MeasuredRun silent = two_replicas(false);
  Replayer replayer(silent);
  EXPECT_THROW(gradients_of(silent, &replayer), Error);
  MeasuredRun none = two_replicas();
  for (OpKind& kind : none.kinds) {
    kind.traffic = kind.communicates() ? Traffic::collective : kind.traffic;
  }
  Replayer other(none);
  EXPECT_THROW(gradients_of(none, &other), Error);
}

}  // namespace
}  // namespace hocket::whatif
