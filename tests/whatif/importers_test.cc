// SPDX-License-Identifier: Apache-2.0
// The replay of measured runs, ideal durations, scales, and importers on broken files. Whole traces
// are compared with brute force in tests/whatif/whatif_test.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "base/error.h"
#include "whatif/analysis.h"
#include "whatif/block_times.h"
#include "whatif/even_stages.h"
#include "whatif/importers.h"
#include "whatif/measured_run.h"
#include "whatif/replay.h"
#include "whatif/scale.h"
#include "whatif/transfers.h"

namespace hocket::whatif {
namespace {

/// Two workers, in each of two replicas, one step: worker 0 computes and sends, worker 1 receives
/// and computes. Both then all-reduce over replicas, worker 0 `sums` times.
MeasuredRun two_stages(int sums = 1) {
  MeasuredRun run;
  run.names = {"forward-compute", "forward-send", "forward-recv", "sum"};
  run.replicas = 2;
  run.pattern_workers = 2;
  run.stages = 2;
  for (int32_t stage = 0; stage < 2; ++stage) {
    for (int32_t replica = 0; replica < 2; ++replica) {
      run.workers.push_back({stage * 2 + replica, stage, replica, "worker"});
    }
  }
  std::vector<Observed> seen;
  const auto add = [&](PatternWorkerId worker, NameId name, double start, double duration,
                       double later) {
    for (int32_t replica = 0; replica < 2; ++replica) {
      Observed op;
      op.worker = worker;
      op.name = name;
      op.replica = replica;
      op.start = start + later * replica;
      op.duration = duration + (name == 0 ? later * replica : 0);
      op.step = 7;
      seen.push_back(op);
    }
  };
  add(0, 0, 0, 2, 0);
  add(0, 1, 2, 1, 0);
  add(1, 2, 1, 2, 0);
  add(1, 0, 3, 4, 1);
  for (int i = 0; i < sums; ++i) {
    add(0, 3, 3 + 6 * i, 6, 0);
  }
  add(1, 3, 7, 2, 2);
  assemble(seen, "test", &run);
  give_blocks({Traffic::none, Traffic::message, Traffic::message, Traffic::gradients}, &run);
  const auto op = [&](PatternWorkerId worker, NameId name) {
    for (OpId i = 0; i < run.ops.size(); ++i) {
      if (run.ops[i].worker == worker && run.ops[i].name == name) return i;
    }
    return OpId(kNone);
  };
  const auto group = [&](std::vector<OpId> ops, bool across) {
    for (const OpId member : ops) {
      run.ops[member].group = run.groups.size();
    }
    run.groups.push_back({ops, across});
  };
  add_wait(&run, op(0, 1), op(0, 0));
  add_wait(&run, op(1, 0), op(1, 2));
  add_wait(&run, op(0, 3), op(0, 1));
  add_wait(&run, op(1, 3), op(1, 0));
  group({op(0, 1), op(1, 2)}, false);
  for (OpId i = 0; i < run.ops.size(); ++i) {
    if (run.ops[i].name == 3) {
      group({i}, true);
    }
  }
  return run;
}

TEST(WhatifEvenStages, ParametersMoveWithLayersAsMoreSums) {
  const int sums_of_0 = 2;
  MeasuredRun run = two_stages(sums_of_0);
  const auto each = [&](PatternWorkerId worker, const char* name, auto&& f) {
    for (OpId op = 0; op < run.ops.size(); ++op) {
      if (run.ops[op].worker != worker || run.kind(op).name != name) continue;
      for (SampleId sample = 0; sample < run.samples(); ++sample) {
        f(op, run.at(op, sample));
      }
    }
  };
  for (const int32_t worker : {0, 1}) {
    each(worker, "forward-compute", [&](OpId op, size_t) {
      run.ops[op].micro_batch = run.blocks[run.ops[op].block].micro_batch = 0;
    });
    each(worker, "sum", [&](OpId, size_t cell) { run.duration[cell] = worker == 0 ? 1 : 6; });
  }
  // Passes take 4 s on stage 0 and 9 s on stage 1, of both replicas; sums 4 s and 12 s.
  const auto expect_even = [&](double of_0, double of_1) {
    const EvenStages even = even_stages(run, BlockTimes(run));
    EXPECT_EQ(even.passes, (std::vector<double>{4, 9}));
    for (const int32_t worker : {0, 1}) {
      double passes = 0, sums = 0;
      each(worker, "forward-compute", [&](OpId, size_t at) { passes += even.duration[at]; });
      each(worker, "sum", [&](OpId, size_t at) { sums += even.duration[at]; });
      EXPECT_DOUBLE_EQ(passes, 6.5);
      EXPECT_DOUBLE_EQ(sums, worker == 0 ? of_0 : of_1);
    }
  };
  expect_even(8, 8);
  // Sums now begin before the last pass ends. Stage 0 got 2.5 s of passes and 4 s of sums. They
  // count as more sums, not as longer ones, so they end half of the lesser number sooner.
  each(1, "sum", [&](OpId, size_t cell) { run.start[cell] -= 0.5; });
  expect_even(8 - 2.5 / sums_of_0, 8);
}

TEST(WhatifReplay, CommunicationBeginsWithTheLastMember) {
  MeasuredRun run = two_stages();
  settle_transfers(&run);
  Replayer replayer(run);
  // Replica 1 computes from 3 for 5 s on worker 1; the sum of worker 1 begins then, and took 2 s
  // from the later start (9 - 9) on.
  const std::vector<double> steps = replayer.replay(run.duration);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_NEAR(steps[0], 3 + 5 + 2, 1e-12);
}

TEST(WhatifReplay, NegativeTransfersEndBeforeTheyBegin) {
  MeasuredRun run = two_stages();
  for (OpId op = 0; op < run.ops.size(); ++op) {
    if (run.ops[op].name != 2) continue;
    run.duration[run.at(op, 0)] = -0.005;  // within the error of clocks: kept
    run.duration[run.at(op, 1)] = -0.02;   // beyond the error of clocks
  }
  MeasuredRun kept = run;
  // All begin a message and an all-reduce at once: measured times are transfers.
  for (MeasuredRun* one : {&run, &kept}) {
    for (const Group& group : one->groups) {
      for (const OpId op : group.ops) {
        one->start[one->at(op, 0)] = one->start[one->at(op, 1)] = 0;
      }
    }
  }
  settle_transfers(&run);
  settle_transfers(&kept, Early::kept);
  for (OpId op = 0; op < run.ops.size(); ++op) {
    if (run.ops[op].name != 2) continue;
    EXPECT_EQ(run.duration[run.at(op, 0)], 0);
    EXPECT_EQ(kept.duration[kept.at(op, 0)], -0.005);
    EXPECT_EQ(kept.duration[kept.at(op, 1)], 0);
    const std::vector<double> ends = Replayer(kept).ends(kept.duration);
    EXPECT_NEAR(ends[kept.at(op, 0)], 2 - 0.005, 1e-12);  // when the send begins
  }
  // An op that waits for one which ended before the step began, begins before it, too.
  std::fill(kept.duration.begin(), kept.duration.end(), 0.0);
  for (OpId op = 0; op < kept.ops.size(); ++op) {
    kept.duration[kept.at(op, 0)] = kept.duration[kept.at(op, 1)] = kept.ops[op].name == 2 ? -1 : 0;
  }
  const std::vector<double> ends = Replayer(kept).ends(kept.duration);
  EXPECT_EQ(*std::min_element(ends.begin(), ends.end()), -1);
  EXPECT_EQ(std::count(ends.begin(), ends.end(), -1.0), 2 * 3);  // receive, pass and sum of stage 1
}

TEST(WhatifIdeal, RefusesAnIdealStepWithoutTime) {
  // One of the all-reduces takes time; their median takes none, like all else.
  MeasuredRun run = two_stages();
  std::fill(run.duration.begin(), run.duration.end(), 0.0);
  run.duration[run.at(run.ops.size() - 1, 0)] = 1;
  ASSERT_EQ(run.kind(run.ops.size() - 1).name, "sum");
  try {
    analyze(run);
    FAIL() << "a slowdown over nothing";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("zero length"), std::string::npos);
  }
}

TEST(WhatifReplay, CycleIsAnError) {
  MeasuredRun run = two_stages();
  add_wait(&run, 0, run.ops.size() - 1);
  add_wait(&run, run.ops.size() - 1, 0);
  EXPECT_THROW(Replayer{run}, Error);
}

TEST(WhatifIdeal, TakesTheMeanOfComputeAndTheMedianOfCommunication) {
  MeasuredRun run = two_stages();
  const std::vector<double> ideal = ideal_durations(run);
  for (OpId op = 0; op < run.ops.size(); ++op) {
    if (run.ops[op].name == 0) {
      EXPECT_NEAR(ideal[run.at(op, 0)], (2 + 2 + 4 + 5) / 4.0, 1e-12);
    }
    if (run.ops[op].name == 3) {
      EXPECT_NEAR(ideal[run.at(op, 1)], (2 + 6) / 2.0, 1e-12);
    }
  }
}

TEST(WhatifIdeal, OpsOfABlockKeepTheirShares) {
  MeasuredRun run = two_stages();
  // The receive of worker 1 joins its pass: they are one element of 2 + 4 or 2 + 5 seconds.
  OpId pass = kNone;
  for (OpId op = 0; op < run.ops.size(); ++op) {
    if (run.ops[op].worker == 1 && run.ops[op].name == 0) {
      pass = op;
    }
  }
  for (Op& op : run.ops) {
    if (op.worker == 1 && op.name == 2) {
      op.block = run.ops[pass].block;
    }
  }
  const std::vector<double> ideal = ideal_durations(run);
  const double mean = (2 + 2 + 6 + 7) / 4.0;
  EXPECT_NEAR(ideal[run.at(pass, 0)], 4 * mean / 6, 1e-12);
  EXPECT_NEAR(ideal[run.at(pass, 1)], 5 * mean / 7, 1e-12);
}

TEST(WhatifScale, ScalesTheOpsOfAStageOrReplica) {
  MeasuredRun run = two_stages();
  settle_transfers(&run);
  Replayer replayer(run);
  // Then the sum of worker 0 ends last: 3 + 6.
  EXPECT_NEAR(replayer.mean(scaled(run, {parse_scale("forward-compute@pp=1=5", run)})), 9, 1e-12);
  EXPECT_NEAR(replayer.mean(scaled(run, {parse_scale("forward-c*@dp=0=5", run)})), 10, 1e-12);
  EXPECT_NEAR(replayer.mean(scaled(run, {parse_scale("all=2", run)})), 5, 1e-12);
}

TEST(WhatifScale, WrongOnesAreRefusedWithTheNearestName) {
  const MeasuredRun run = two_stages();
  for (const std::string text :
       {"forward-compute", "forward-compute=0", "forward-compute=-1", "forward-compute=x",
        "forward-compte=2", "compute@pp=9=2", "compute@stage=0=2", "compute@pp=2"}) {
    EXPECT_THROW(parse_scale(text, run), Error) << text;
  }
  try {
    parse_scale("forward-compte=2", run);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean forward-compute?"), std::string::npos);
  }
}

TEST(WhatifSurface, EfficiencyGoesToOneAsLinksWiden) {
  MeasuredRun run = two_stages();
  settle_transfers(&run);
  Replayer replayer(run);
  const Surface at = surface(run, &replayer);
  EXPECT_NEAR(at.alone, 2 + 5, 1e-12);
  for (size_t row = 1; row < at.factor.size(); ++row) {
    EXPECT_GE(at.factor[row][0], at.factor[row - 1][0]);
    EXPECT_GE(at.factor[row][1], at.factor[row][0]);
  }
  EXPECT_GT(at.factor.back().back(), 0.98);
}

Observed of_a_second(int64_t step, NameId name) {
  Observed op;
  op.step = step;
  op.name = name;
  op.duration = 1;
  return op;
}

TEST(WhatifAssemble, StepsThatDifferAreDroppedAndNamed) {
  MeasuredRun run;
  run.names = {"a", "b"};
  run.pattern_workers = 1;
  std::vector<Observed> seen;
  for (int32_t step = 0; step < 4; ++step) {
    for (int32_t name = 0; name < 2; ++name) {
      if (step == 2 && name == 1) continue;
      seen.push_back(of_a_second(step, name));
    }
  }
  assemble(seen, "test", &run);
  EXPECT_EQ(run.steps, (std::vector<int64_t>{0, 1, 3}));
  ASSERT_EQ(run.dropped.notes.size(), 1u);
  EXPECT_NE(run.dropped.notes[0].find("step 2 is not used: replica 0 lacks 1 of 2 ops, one is b 0"),
            std::string::npos)
      << run.dropped.notes[0];
}

TEST(WhatifAssemble, KeepsTheStepWithMostOpsIfAllDiffer) {
  MeasuredRun run;
  run.names = {"a", "b", "c"};
  run.pattern_workers = 1;
  std::vector<Observed> seen;
  // A window that cuts the first step and the last one.
  for (const auto& [step, name] : {std::pair(5, 2), {6, 0}, {6, 1}, {6, 2}, {7, 0}, {7, 1}}) {
    seen.push_back(of_a_second(step, name));
  }
  assemble(seen, "test", &run);
  EXPECT_EQ(run.steps, std::vector<int64_t>{6});
  EXPECT_EQ(run.ops.size(), 3u);
  EXPECT_NE(run.dropped.notes.back().find("none shows that it is whole"), std::string::npos)
      << run.dropped.notes.back();
}

}  // namespace
}  // namespace hocket::whatif
