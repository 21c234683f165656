// SPDX-License-Identifier: Apache-2.0
// Passes drawn in place of tasks: their tasks, overlapping passes, and the work between them.
#include "diagnose/passes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace hocket::diagnose {
namespace {

using trace::Trace;
using trace::TraceEvent;

/// A step with tasks that are added one by one.
class Step {
 public:
  Step() { trace_.steps = {3}; }

  TraceEvent& add(int32_t rank, const char* lane, const char* kind, const char* phase,
                  int32_t stage, int32_t micro_batch, int64_t start, int64_t end) {
    TraceEvent event;
    event.rank = rank;
    event.lane = static_cast<uint16_t>(std::find(trace_.lanes.begin(), trace_.lanes.end(), lane) -
                                       trace_.lanes.begin());
    event.kind = trace_.intern(kind);
    event.phase = trace_.intern(phase);
    event.stage = stage;
    event.micro_batch = micro_batch;
    event.step = 3;
    event.start_ns = start;
    event.end_ns = end;
    trace_.num_ranks = std::max(trace_.num_ranks, rank + 1);
    return trace_.events.emplace_back(event);
  }
  void forward(int32_t rank, int32_t stage, int32_t micro_batch, int64_t start, int64_t end) {
    add(rank, "compute", "linear", "forward", stage, micro_batch, start, end);
  }
  void inputs(int32_t rank, int32_t stage, int32_t micro_batch, int64_t start, int64_t end) {
    add(rank, "compute", "linear_dx", "backward", stage, micro_batch, start, end);
  }
  void weights(int32_t rank, int32_t stage, int32_t micro_batch, int64_t start, int64_t end) {
    add(rank, "compute", "linear_dw", "backward", stage, micro_batch, start, end);
  }

  /// Returns "0:0F0[0,10) ..."
  std::string passes() const {
    const Trace drawn = passes_of(trace_);
    std::string text;
    for (const TraceEvent& event : drawn.events) {
      text += fmt::format("{}{}:{}[{},{})", text.empty() ? "" : " ", event.rank,
                          drawn.text(event.name), event.start_ns, event.end_ns);
    }
    return text;
  }
  const Trace& trace() const { return trace_; }

 private:
  Trace trace_;
};

TEST(Passes, MergeTheTasksOfAMicroBatch) {
  Step step;
  step.forward(1, 1, 0, 30, 40);
  step.forward(0, 0, 0, 0, 10);
  step.forward(0, 0, 0, 12, 20);  // waits inside
  step.add(0, "intra", "all_gather", "forward", 0, 0, 10, 12);
  step.inputs(0, 0, 0, 50, 60);
  step.weights(0, 0, 0, 60, 70);
  step.inputs(0, 0, 0, 70, 75);
  step.add(0, "intra", "recv", "backward", 0, 0, 20, 50);
  EXPECT_EQ(step.passes(), "0:0F0[0,20) 0:0B0[50,75) 1:1F0[30,40)");
  const Trace drawn = passes_of(step.trace());
  EXPECT_EQ(drawn.steps, std::vector<int32_t>{3});
  EXPECT_EQ(drawn.num_ranks, 2);
  EXPECT_EQ(drawn.text(drawn.events[1].kind), "B");
  EXPECT_EQ(drawn.text(drawn.events[1].layer), "stage 0");
  EXPECT_EQ(drawn.events[1].micro_batch, 0);
}

TEST(Passes, SplitGradientsOfWeightsAreOwnPasses) {
  Step step;
  step.inputs(0, 0, 0, 0, 10);
  step.weights(0, 0, 0, 10, 20);  // with nothing between them they are one pass
  EXPECT_EQ(step.passes(), "0:0B0[0,20)");
  step.inputs(1, 1, 0, 0, 10);
  step.forward(1, 1, 1, 10, 15);
  step.weights(1, 1, 0, 15, 25);  // here they overlap, so they are split nowhere
  EXPECT_EQ(step.passes(), "0:0I0[0,10) 0:0W0[10,20) 1:1I0[0,10) 1:1F1[10,15) 1:1W0[15,25)");
}

TEST(Passes, OverlappingPassesAreMerged) {
  Step step;
  step.forward(0, 0, 3, 0, 10);
  step.inputs(0, 1, 2, 10, 20);
  step.forward(0, 0, 3, 20, 30);
  step.weights(0, 1, 2, 30, 40);
  EXPECT_EQ(step.passes(), "0:0F3;1B2[0,40)");
  const Trace drawn = passes_of(step.trace());
  EXPECT_EQ(drawn.text(drawn.events[0].kind), "F;B");
}

TEST(Passes, WorkPerStepIsDrawnBetweenPasses) {
  Step step;
  step.forward(0, 0, 0, 0, 1000);
  step.inputs(0, 0, 0, 2000, 9000);
  step.add(0, "inter", "reduce_scatter", "grad", 0, -1, 1000, 1500).waited_ns = 200;
  step.add(0, "inter", "reduce_scatter", "grad", 0, -1, 8000, 9300);  // beside a pass
  step.add(0, "inter", "reduce_scatter", "grad", 0, -1, 9305, 9400);
  step.add(0, "inter", "all_reduce", "grad", 0, -1, 9600, 9650).waited_ns = 40;
  step.add(0, "compute", "adamw", "optimizer", 0, -1, 9700, 9800);
  step.add(0, "inter", "all_gather", "optimizer", 0, -1, 9750, 10000);
  EXPECT_EQ(step.passes(),
            "0:0F0[0,1000) 0:0B0[2000,9000) 0:gradients[1200,1500) 0:gradients[9000,9400) "
            "0:gradients[9640,9650) 0:optimizer[9700,10000)");
}

TEST(Passes, AreEmptyWithoutMicroBatches) {
  Step step;
  step.forward(0, 0, program::kNone, 0, 10);
  EXPECT_TRUE(passes_of(step.trace()).events.empty());
  EXPECT_TRUE(passes_of(Trace()).events.empty());
}

}  // namespace
}  // namespace hocket::diagnose
