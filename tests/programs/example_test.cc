// SPDX-License-Identifier: Apache-2.0
// A whole program written by hand, to copy: two ranks compute y = x W^T with half of the contracted
// dim each, and add their partial results up by an all-reduce.
#include <gtest/gtest.h>

#include "check/check.h"
#include "tests/programs/program_builder_util.h"

namespace hocket::test::example_test {
namespace {

constexpr int64_t kTokens = 4, kIn = 6, kOut = 3;

/// Returns the program; without `reduces` it lacks the all-reduce.
ProgramBuilder two_ranks(bool reduces = true) {
  // One role of two ranks, as a mesh with one axis. Both ranks run the same tasks: one class.
  ProgramBuilder w({{"tp", 2}});

  // The graph: the program's meaning, on whole tensors. It names no ranks.
  const TensorId x = w.input("x", f64({kTokens, kIn}));
  const TensorId weight = w.input("W", f64({kOut, kIn}));
  const TensorId y = w.apply("y", "linear", {}, {x, weight})[0];
  w.result(y);

  // The buffers of a rank. x and W are split along dim 1 over tp, so each rank has [4, 3] of x and
  // [3, 3] of W. y has no layout of its own: every rank has all of it.
  const Layout columns = w.split(1, {"tp"});
  const BufferId my_x = w.input_buffer(x, columns);
  const BufferId my_weight = w.input_buffer(weight, columns);
  const BufferId partial = w.step_buffer(f64({kTokens, kOut}));
  const BufferId my_y = w.output_buffer(y);

  // The tasks of a rank, in issue order. The product of the halves is one addend of y; the
  // all-reduce adds the addends of the ranks that differ along tp.
  w.task("linear", {}, {my_x, my_weight}, {partial});
  if (reduces) {
    w.collective("all_reduce", {}, {"tp"}, {partial}, {my_y});
  } else {
    w.task("copy", {}, {partial}, {my_y});
  }

  // Costs, dependencies between lanes, and offsets in the arena.
  w.finish();
  return w;
}

TEST(Example, ProvenAndEqualToOneRank) {
  const ProgramBuilder w = two_ranks();

  // The static check proves that every rank ends up with y, for any values.
  const check::Verdict verdict = check::check(w.program, w.graph);
  EXPECT_TRUE(verdict.ok()) << to_text(verdict);

  // Both ranks run as threads on random inputs; so does one rank, from the graph alone.
  const uint64_t seed = 1;
  const Results got = run(w, w.program, seed);
  EXPECT_EQ(got.at("y").size(), 2U);  // a copy on each rank
  EXPECT_EQ(difference(got, run_alone(w, seed)), "");
}

TEST(Example, WithoutTheAllReduceIsRefused) {
  const ProgramBuilder w = two_ranks(false);
  EXPECT_FALSE(check::check(w.program, w.graph).ok());
  EXPECT_NE(difference(run(w, w.program, 1), run_alone(w, 1)), "");
}

}  // namespace
}  // namespace hocket::test::example_test
