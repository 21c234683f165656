// SPDX-License-Identifier: Apache-2.0
// Schedules simulated without a model: the figures of the papers, and costs.
#include "sim/schedule_sim.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "sim/schedule_step.h"

namespace hocket::sim {
namespace {

ScheduleReport run_schedule(const char* name, int ranks, int chunks, int n,
                            const std::string& costs = "") {
  return simulate_schedule(parallel::make_schedule(name, ranks, n, chunks), ranks * chunks, n,
                           parse_costs(costs));
}

TEST(ScheduleSim, StepTimesMatchThePapers) {
  // With p ranks and F = I = W: (p - 1)(F + B) idle of 1F1B, (p - 1)(F + I - W) of ZB-H1
  // (arXiv 2401.10241, table 2); of ZB-V p - 1 stages of half the layers (arXiv 2405.15362).
  for (int p : {2, 4, 8}) {
    for (int n : {2 * p, 4 * p}) {
      EXPECT_DOUBLE_EQ(run_schedule("1f1b", p, 1, n).step, 3 * n + 3 * (p - 1));
      EXPECT_DOUBLE_EQ(run_schedule("gpipe", p, 1, n).step, 3 * n + 3 * (p - 1));
      EXPECT_DOUBLE_EQ(run_schedule("zb-h1", p, 1, n).step, 3 * n + p - 1) << p << " " << n;
      EXPECT_DOUBLE_EQ(run_schedule("interleaved", p, 2, n).step, 6 * n + 3 * (p - 1));
      EXPECT_DOUBLE_EQ(run_schedule("zb-v", p, 2, n).step, 6 * n + p - 1) << p << " " << n;
    }
  }
}

TEST(ScheduleSim, ReportsBubblesAndPeakLiveMicroBatches) {
  const ScheduleReport one = run_schedule("1f1b", 4, 1, 8);
  const ScheduleReport split = run_schedule("zb-h1", 4, 1, 8);
  EXPECT_DOUBLE_EQ(one.bubble, 9.0 / 33);
  EXPECT_DOUBLE_EQ(split.bubble, 3.0 / 27);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(one.ranks[rank].peak_live, 4 - rank);
    EXPECT_EQ(split.ranks[rank].peak_live, 4);
  }
  for (const ScheduleRank& rank : run_schedule("zb-v", 4, 2, 8).ranks) {
    EXPECT_EQ(rank.peak_live, 4);
  }
}

TEST(ScheduleSim, StepFollowsTheGivenCosts) {
  // A message between the two ranks each way, and uneven halves.
  EXPECT_DOUBLE_EQ(run_schedule("1f1b", 2, 1, 1, "F=2,I=3,W=0.5,comm=0.25").step,
                   2 * (2 + 3.5) + 0.5);
  EXPECT_DOUBLE_EQ(run_schedule("1f1b", 2, 1, 1, "B=1").step, 4);
  const ScheduleReport both = run_schedule("dualpipev", 2, 2, 8);
  EXPECT_LT(run_schedule("dualpipev", 2, 2, 8, "FB=2").step, both.step);
  EXPECT_EQ(both.ranks[0].cells.size(), parallel::dual_pipe_v(2, 8).ranks[0].size() - 11);
  for (const char* wrong : {"F", "F=", "F=-1", "Q=1", "F=1e9", "F=nan", "=1"}) {
    EXPECT_THROW(static_cast<void>(parse_costs(wrong)), Error) << wrong;
  }
}

TEST(ScheduleSim, CellsAndMessagesHaveTimesOfTheirOwn) {
  // A long stage sets the pace; a slow link alone adds its way there and back.
  const parallel::Schedule schedule = parallel::one_f_one_b(4, 8);
  const auto step = [&](double longer, double slow) {
    return schedule_step(
        schedule, 4, 8,
        {.cell =
             [&](int rank, std::span<const parallel::Action> cell) {
               return (cell.front().kind == 'F' ? 1 : 2) * (rank == 3 ? longer : 1);
             },
         .message = [&](int from, int to) { return std::max(from, to) == 2 ? slow : 0.0; }});
  };
  EXPECT_DOUBLE_EQ(step(1, 0), run_schedule("1f1b", 4, 1, 8).step);
  EXPECT_DOUBLE_EQ(step(2, 0), 8 * 6 + 3 * 3);
  EXPECT_GE(step(1, 0.5), step(1, 0) + 2 * 0.5);
  // A rank sends one message at a time: those of the 8 micro-batches follow each other.
  EXPECT_GE(step(1, 5), 8 * 5);
}

TEST(ScheduleSim, TheLongestPathIsTheReplayedStep) {
  for (const parallel::BuiltIn& built_in : parallel::built_in_schedules()) {
    for (const int ranks : {2, 4, 6}) {
      const int chunks = built_in.chunks > 0 ? built_in.chunks : built_in.shown_chunks;
      const int n = built_in.fitting ? built_in.fitting(ranks, chunks, 2 * ranks) : 2 * ranks;
      const parallel::Schedule schedule = built_in.make(ranks, chunks, n);
      const int stages = ranks * chunks;
      for (const double message : {0.0, 0.25, 3.0}) {
        const CellTimes times{.cell =
                                  [](int, std::span<const parallel::Action> cell) {
                                    double sum = 0;
                                    for (const parallel::Action& action : cell) {
                                      sum += action.kind == 'F'   ? 1.25
                                             : action.kind == 'I' ? 1
                                             : action.kind == 'W' ? 0.5
                                                                  : 1.5;
                                    }
                                    return sum;
                                  },
                              .message = [&](int, int) { return message; }};
        const ScheduleReport replayed = simulate_schedule(
            schedule, stages, n,
            {.forward = 1.25, .inputs = 1, .weights = 0.5, .communication = message});
        EXPECT_DOUBLE_EQ(schedule_step(schedule, stages, n, times), replayed.step)
            << built_in.name << ", " << ranks << " ranks, messages of " << message;
      }
    }
  }
}

TEST(ScheduleSim, TextAndSvgDrawTheTimeline) {
  const std::string text = to_text(run_schedule("1f1b", 2, 1, 2));
  EXPECT_NE(text.find("   0  F0 F1 ......B0--- ...B1---\n"), std::string::npos) << text;
  EXPECT_NE(text.find("bubble   33.3 %"), std::string::npos) << text;
  const std::string svg = to_svg(run_schedule("dualpipe", 2, 1, 4));
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_NE(to_json(run_schedule("zb-h1", 2, 1, 2)).find("\"0I0\""), std::string::npos);
}

}  // namespace
}  // namespace hocket::sim
