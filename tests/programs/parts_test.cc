// SPDX-License-Identifier: Apache-2.0
// Tasks in parts: an all-gather that feeds a product tile by tile, a product that feeds a sum, keys
// in the order in which a ring brings them, a sum over blocks.
#include <gtest/gtest.h>

#include "base/error.h"
#include "check/check.h"
#include "check/mutants/mutate.h"
#include "passes/finish.h"
#include "program/finalize.h"
#include "program/parts.h"
#include "program/text.h"
#include "tests/programs/program_builder_util.h"

namespace hocket::test::parts_test {
namespace {

using graph::Attrs;
using program::PartDep;

constexpr int64_t kTokens = 12, kIn = 6, kOut = 5;

/// y = x W^T; W on every rank unless `inner` splits both along the contracted dim.
struct Product {
  ProgramBuilder w;
  TensorId x, weight, y;

  explicit Product(int32_t ranks) : w({{"tp", ranks}}) {
    x = w.input("x", f64({kTokens, kIn}));
    weight = w.input("W", f64({kOut, kIn}));
    y = w.apply("y", "linear", {}, {x, weight})[0];
    w.result(y);
  }
};

/// Columns of x are gathered rows by rows, and each tile of rows is multiplied as soon as it is
/// there.
ProgramBuilder gather_then_product(int64_t tiles) {
  Product p(2);
  ProgramBuilder& w = p.w;
  const BufferId all = w.step_buffer(f64({kTokens, kIn}));
  w.collective("all_gather", {{"dim", int64_t{1}}}, {"tp"},
               {w.input_buffer(p.x, w.split(1, {"tp"}))}, {all});
  w.program.classes[0].tasks.back().parts = {{'a', tiles}};
  w.task("linear", {}, {all, w.input_buffer(p.weight)}, {w.output_buffer(p.y)}).parts = {
      {'t', tiles}};
  return std::move(w);
}

/// A product with its inner dim cut; each tile of rows is reduced while the next one is multiplied.
ProgramBuilder product_then_sum(int64_t tiles) {
  Product p(2);
  ProgramBuilder& w = p.w;
  const Layout columns = w.split(1, {"tp"});
  const BufferId y = w.output_buffer(p.y);
  w.task("linear", {}, {w.input_buffer(p.x, columns), w.input_buffer(p.weight, columns)}, {y})
      .parts = {{'t', tiles}};
  w.collective("all_reduce", {}, {"tp"}, {y}, {y});
  w.program.classes[0].tasks.back().parts = {{'a', tiles}};
  return std::move(w);
}

/// Rows of x go around a ring into their places. A product in equally many parts takes them in the
/// order of arrival: the rank's own, then the one before, around.
ProgramBuilder product_around_a_ring(int32_t ranks) {
  Product p(ranks);
  ProgramBuilder& w = p.w;
  const int64_t rows = kTokens / ranks;
  const BufferId all = w.step_buffer(f64({kTokens, kIn}));
  const auto place = [&](int32_t hop) {
    return w.view(all, 0, rows, [=](const At& at) { return (at[0] - hop + ranks) % ranks * rows; });
  };
  w.task("copy", {}, {w.input_buffer(p.x, w.split(0, {"tp"}))}, {place(0)});
  for (int32_t hop = 1; hop < ranks; ++hop) {
    w.shift("tp", 1, place(hop - 1), place(hop));
  }
  const program::TableId own = w.table([](const At& at) { return at[0]; });
  w.task("linear", {}, {all, w.input_buffer(p.weight)}, {w.output_buffer(p.y)}).parts = {
      {'t', -ranks, own}};
  return std::move(w);
}

/// The gradient of W as a sum over blocks of tokens, equal to the single rank's.
ProgramBuilder sum_over_blocks(int64_t blocks) {
  ProgramBuilder w({{"dp", 2}});
  const TensorId dy = w.input("dy", f64({kTokens, kOut})), x = w.input("x", f64({kTokens, kIn}));
  const TensorId g = w.apply("g", "linear_dw", {}, {dy, x})[0];
  w.result(g);
  const Layout tokens = w.split(0, {"dp"});
  const BufferId total = w.output_buffer(g);
  w.task("linear_dw", {}, {w.input_buffer(dy, tokens), w.input_buffer(x, tokens)}, {total})
      .parts = {{'t', blocks}};
  w.collective("all_reduce", {}, {"dp"}, {total}, {total});
  return w;
}

const std::vector<ProgramCase>& cases() {
  static const std::vector<ProgramCase> all = {
      {"an all-gather feeds a product tile by tile",
       [] { return gather_then_product(3); },
       {"view"}},
      {"a product feeds a sum tile by tile", [] { return product_then_sum(4); }, {"view"}},
      {"a product in the order of a ring", [] { return product_around_a_ring(4); }, {"view"}},
      {"a sum over blocks", [] { return sum_over_blocks(3); }, {"view"}},
  };
  return all;
}

TEST(Parts, ProvenRunAndSimulated) { expect_proven_run_simulated(cases()); }
TEST(Parts, MutantsAreRefusedOrEqual) { expect_mutants_refused_or_equal(cases()); }

/// A task may be cut into one part, which is the whole task.
TEST(Parts, OnePartIsTheWholeTask) {
  ProgramBuilder w = gather_then_product(1);
  w.finish();
  const check::Verdict verdict = check::check(w.program, w.graph);
  EXPECT_TRUE(verdict.ok()) << to_text(verdict);
}

/// The program before expansion, with the dependencies between parts given by hand.
ProgramBuilder by_hand(int64_t tiles) {
  ProgramBuilder w = gather_then_product(tiles);
  passes::complete(w.program);
  std::vector<PartDep>& deps = w.program.classes[0].tasks[1].part_deps;
  for (int32_t tile = 0; tile < tiles; ++tile) {
    deps.push_back({tile, 0, tile});
  }
  return w;
}

check::Verdict verdict_of(const ProgramBuilder& w) {
  check::CheckOptions options;
  options.allow_unplanned = true;
  return check::check(w.program, w.graph, options);
}

TEST(Parts, WaitForPartsOfOthers) {
  ProgramBuilder w = by_hand(3);
  EXPECT_TRUE(verdict_of(w).ok()) << to_text(verdict_of(w));
  const std::string text = program::print(w.program);
  EXPECT_NE(text.find("parts=t3"), std::string::npos) << text;
  EXPECT_NE(text.find("part_deps=0:0.0,1:0.1,2:0.2"), std::string::npos) << text;
  EXPECT_EQ(program::parse_program(text), w.program);
  // A part that waits for the one before its own reads unwritten data.
  w.program.classes[0].tasks[1].part_deps[2].part = 1;
  const check::Verdict verdict = verdict_of(w);
  ASSERT_FALSE(verdict.ok());
  EXPECT_EQ(verdict.problems[0].rule, "race");
  EXPECT_LE(verdict.problems[0].task.task, 1);  // of the program as it is written
}

/// Faults of the parts themselves, in programs that are not written out yet. Those that the check
/// takes have the dependencies that it has seen, a plan of their memory, and the right result.
TEST(Parts, FaultsOfPartsAreRefusedOrEqual) {
  struct Start {
    const char* name;
    ProgramBuilder w;
  };
  std::vector<Start> starts;
  starts.push_back({"tile by tile", by_hand(3)});
  starts.push_back({"in the order of a ring", product_around_a_ring(4)});
  passes::complete(starts[1].w.program);
  program::add_dependencies(starts[1].w.program, starts[1].w.program.classes[0]);
  for (const Start& start : starts) {
    EXPECT_TRUE(verdict_of(start.w).ok()) << start.name << "\n" << to_text(verdict_of(start.w));
    const Results want = run_alone(start.w, 1);
    int refused = 0;
    int equal = 0;
    for (uint64_t seed = 0; seed < 120; ++seed) {
      ProgramBuilder w = start.w;
      check::Mutation mutation;
      const char* const kind = seed % 2 == 0 ? "parts" : "part-dep";
      if (!check::mutate(w.program, seed, &mutation, kind)) continue;
      const check::Verdict verdict = verdict_of(w);
      if (!verdict.ok()) {
        ++refused;
        EXPECT_NE(check::localise(mutation, verdict), check::Localisation::missed)
            << mutation.text << "\n"
            << to_text(verdict);
        continue;
      }
      ++equal;
      program::Program plain = program::expand_parts(w.program).program;
      program::plan_memory(plain, plain.classes[0]);
      EXPECT_EQ(difference(run(w, plain, 1), want), "") << start.name << ": " << mutation.text;
    }
    EXPECT_GT(refused, 10) << start.name;
    EXPECT_GT(equal, 0) << start.name;
  }
}

TEST(Parts, EachIsATaskOfItsOwn) {
  const ProgramBuilder w = by_hand(3);
  const program::Expanded expanded = program::expand_parts(w.program);
  const auto& tasks = expanded.program.classes[0].tasks;
  ASSERT_EQ(tasks.size(), 6u);
  EXPECT_EQ(expanded.origin[0], (std::vector<program::TaskId>{0, 0, 0, 1, 1, 1}));
  for (size_t tile = 0; tile < 3; ++tile) {
    EXPECT_EQ(tasks[3 + tile].deps, std::vector<program::TaskId>{static_cast<int32_t>(tile)});
    const auto& view = expanded.program.classes[0].buffers[tasks[3 + tile].in[0]];
    EXPECT_EQ(view.kind, program::BufferKind::view);
    EXPECT_EQ(view.begin, static_cast<int64_t>(tile) * kTokens / 3);
    EXPECT_EQ(view.type.dims[0], kTokens / 3);
  }
  EXPECT_FALSE(program::has_parts(expanded.program));
}

TEST(Parts, RefuseTasksThatCannotBeCut) {
  const auto refused = [](const std::function<void(program::RankClass&)>& spoil) {
    ProgramBuilder w = by_hand(3);
    spoil(w.program.classes[0]);
    const check::Verdict verdict = verdict_of(w);
    return verdict.problems.empty() ? ""
                                    : verdict.problems[0].rule + ": " + verdict.problems[0].text;
  };
  EXPECT_EQ(refused([](auto&) {}), "");
  const auto expect = [&](const char* says, const std::function<void(program::RankClass&)>& spoil) {
    const std::string text = refused(spoil);
    EXPECT_EQ(text.rfind("parts-fit: ", 0), 0u) << text;
    EXPECT_NE(text.find(says), std::string::npos) << text;
  };
  expect("can't be 5 equal parts", [](auto& cls) { cls.tasks[1].parts[0].begin = 5; });
  expect("an operand lacks it", [](auto& cls) { cls.tasks[0].parts[0].letter = 'e'; });
  expect("got 1025 parts", [](auto& cls) { cls.tasks[1].parts[0].begin = (int64_t{1} << 32) + 3; });
  expect("table 7 does not exist", [](auto& cls) { cls.tasks[1].parts[0].by = 7; });
  expect("needs all of it", [](auto& cls) { cls.tasks[1].parts[0].letter = 'z'; });
  expect("moves blocks along", [](auto& cls) { cls.tasks[0].parts[0].letter = 'b'; });
  expect("they have 3 and 3", [](auto& cls) { cls.tasks[1].part_deps[0].part = 3; });
  expect("task 9 does not exist", [](auto& cls) { cls.tasks[1].part_deps[0].task = 9; });
  expect("one letter at a time", [](auto& cls) { cls.tasks[1].parts.push_back({'f', 5}); });
  expect("got 0 parts", [](auto& cls) { cls.tasks[1].parts[0].begin = 0; });
  // Other rules come first: a program that they refuse is not expanded.
  const std::string other = refused([](auto& cls) { cls.tasks[1].in[0] = 99; });
  EXPECT_NE(other, "");
  EXPECT_NE(other.rfind("parts-fit", 0), 0u) << other;
  // The executor and the simulator take programs in their expanded form.
  ProgramBuilder w = by_hand(3);
  EXPECT_THROW(program::expect_no_parts(w.program, "here"), Error);
}

}  // namespace
}  // namespace hocket::test::parts_test
