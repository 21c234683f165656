// SPDX-License-Identifier: Apache-2.0
// Texts of refusals: the tasks and ranks that they name, beside the first task.
#include <gtest/gtest.h>

#include <algorithm>

#include "check/check.h"
#include "tests/check/refuse_util.h"
#include "tests/programs/program_builder_util.h"

namespace hocket::check {
namespace {

using hocket::test::ProgramBuilder;
using program::RankClass;
using test::check_values;
using test::expect_refused;
using test::make;

TEST(RefuseTexts, AMissingResultIsFoundWhereItWasComputed) {
  // The only application of the graph is computed, but the output is filled with zeros.
  ProgramBuilder w({{"a", 1}});
  const graph::TensorType type{graph::DType::f64, {4, 2}};
  const graph::TensorId x = w.input("x", {graph::DType::f64, {4, 3}});
  const graph::TensorId weight = w.input("w", {graph::DType::f64, {2, 3}});
  const graph::TensorId y = w.apply("y", "linear", {}, {x, weight})[0];
  w.result(y);
  w.task("linear", {}, {w.input_buffer(x), w.input_buffer(weight)}, {w.step_buffer(type)});
  w.task("zero", {{"type", graph::to_string(type)}}, {}, {w.output_buffer(y)});
  w.finish();
  expect_refused(check(w.program, w.graph), "final-value", {"'y'", "is computed by", "linear"});
}

TEST(RefuseTexts, AViewOutsideItsBaseNamesTheFirstRank) {
  ProgramBuilder w({{"a", 3}});
  const graph::TensorType type{graph::DType::f64, {10}};
  const program::BufferId base = w.input_buffer(w.input("x", type));
  const auto begin = [](const hocket::test::At& at) { return at[0] == 0 ? 0 : 8; };
  w.task("copy", {}, {w.view(base, 0, 4, begin)}, {w.step_buffer({graph::DType::f64, {4}})});
  CheckOptions options;
  options.allow_unplanned = true;
  expect_refused(check_structure(w.program, options), "view-region",
                 {"has 4 from 8 on, of 10 on rank 1"});
}

TEST(RefuseTexts, TasksThatReadARefusedBufferAreNoFurtherProblems) {
  test::Case c = make(1, 2, 1, 1);
  for (program::Buffer& buffer : c.program.classes[0].buffers) {
    if (buffer.name == "model.norm.weight") {
      buffer.layout.set(c.program.roles[0].mesh.axis("edp"), graph::Placement::split(0));
    }
  }
  const Verdict v = check_values(c);
  expect_refused(v, "named-tensor", {"model.norm.weight", "is not the local part"});
  EXPECT_EQ(v.num_problems, 1) << to_text(v);
}

TEST(RefuseTexts, TwoBuffersOfATensorNameTheTasksOfBoth) {
  test::Case c = make(1, 1, 1, 1);
  RankClass& cls = c.program.classes[0];
  const auto weight = std::find_if(cls.buffers.begin(), cls.buffers.end(), [](const auto& buffer) {
    return buffer.name == "model.norm.weight";
  });
  const program::BufferId first = weight - cls.buffers.begin(), second = cls.buffers.size();
  program::TaskId reader = 0;
  while (std::count(cls.tasks[reader].in.begin(), cls.tasks[reader].in.end(), first) == 0) {
    ++reader;
  }
  std::replace(cls.tasks[reader].in.begin(), cls.tasks[reader].in.end(), first, second);
  cls.buffers.push_back(*weight);
  const Verdict v = check(c.program, c.graph);
  expect_refused(v, "named-once", {"model.norm.weight", "has two buffers"});
  const std::vector<TaskRef>& related = v.problems[0].related;
  EXPECT_EQ(std::count(related.begin(), related.end(), TaskRef{program::ClassId(0), reader}), 1);
}

}  // namespace
}  // namespace hocket::check
