// SPDX-License-Identifier: Apache-2.0
// rms_norm over heads that are on several ranks, forward and backward: a number per token crosses
// them.
#include <gtest/gtest.h>

#include "tests/programs/program_builder_util.h"

namespace hocket::test::norm_test {
namespace {

using graph::Attrs;

constexpr int64_t kTokens = 6, kHeads = 4, kWidth = 3;

ProgramBuilder norm(int32_t ranks) {
  ProgramBuilder w({{"tp", ranks}});
  const TensorType all = f64({kTokens, kHeads, kWidth});
  const TensorId x = w.input("x", all), dy = w.input("dy", all);
  const TensorId weight = w.input("g", f64({kHeads, kWidth}));
  const Attrs offset{{"offset", 1.0}}, eps{{"row", kHeads * kWidth}, {"eps", 1e-6}};
  Attrs backward = offset, forward = offset;
  backward.set("dims", int64_t{2});
  forward.set("dims", int64_t{2});
  forward.set("eps", 1e-6);
  const auto out = w.apply("y", "rms_norm", forward, {x, weight});
  const auto grads = w.apply("dx", "rms_norm_bwd", backward, {dy, x, weight, out[1]});
  w.result(out[0]);
  w.result(grads[0]);
  w.result(grads[1]);
  const Layout heads = w.split(1, {"tp"}), rows = w.split(0, {"tp"});
  const BufferId mine = w.input_buffer(x, heads), dmine = w.input_buffer(dy, heads),
                 g = w.input_buffer(weight, rows);
  const BufferId sum = w.step_buffer(f64({kTokens})), rstd = w.step_buffer(f64({kTokens})),
                 dot = w.step_buffer(f64({kTokens}));
  w.task("row_sumsq", {}, {mine}, {sum});
  w.collective("all_reduce", {}, {"tp"}, {sum}, {sum});
  w.task("row_rstd", eps, {sum}, {rstd});
  w.task("row_normed", offset, {mine, g, rstd}, {w.output_buffer(out[0], heads)});
  w.task("row_dot", offset, {dmine, mine, g}, {dot});
  w.collective("all_reduce", {}, {"tp"}, {dot}, {dot});
  Attrs of_gradients = offset;
  of_gradients.set("row", kHeads * kWidth);
  w.task("row_normed_bwd", of_gradients, {dmine, mine, g, rstd, dot},
         {w.output_buffer(grads[0], heads), w.output_buffer(grads[1], rows)});
  return w;
}

const std::vector<ProgramCase>& cases() {
  static const std::vector<ProgramCase> all = {
      {"norm over two ranks", [] { return norm(2); }, {}},
      {"norm over four ranks", [] { return norm(4); }, {}},
  };
  return all;
}

TEST(NormsOverRanks, ProvenRunAndSimulated) { expect_proven_run_simulated(cases()); }
TEST(NormsOverRanks, MutantsAreRefusedOrEqual) { expect_mutants_refused_or_equal(cases()); }

}  // namespace
}  // namespace hocket::test::norm_test
