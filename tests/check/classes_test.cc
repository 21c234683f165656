// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// The verdict does not depend on the partition of ranks into classes: classes split along any axis,
// evenly or not, are accepted as before, and a fault in one part is refused.
#include <gtest/gtest.h>

#include "check/check.h"
#include "tests/check/check_util.h"
#include "tests/compare_util.h"

namespace hocket::check {
namespace {

using program::Program;
using program::Task;

test::Case three_by_two() {
  parallel::Plan plan;
  plan.pp = 2;
  plan.dp = 3;
  plan.num_micro_batches = 2;
  return test::make_case(test::dense(2, true), plan);
}

/// Returns the n-th task of this op in the class.
Task& task(Program& p, size_t cls, const std::string& op, int n = 0) {
  for (Task& t : p.classes[cls].tasks) {
    if (p.kind(t).op == op && n-- == 0) return t;
  }
  throw std::logic_error("no such task");
}

TEST(SplitClasses, AreAcceptedAndMergeAgain) {
  std::mt19937_64 rng(3);
  int splits = 0;
  for (uint64_t i = 0; i < hocket::test::fewer(200); ++i) {
    const test::Case whole = test::random_case(rng);
    Program p = whole.program;
    splits += test::split_classes(p, rng);
    const Verdict v = check(p, whole.graph);
    ASSERT_TRUE(v.ok()) << whole.name << "\n" << to_text(v);
    Program again = program::parse_program(program::print(p));
    EXPECT_TRUE(again == p) << whole.name;
    program::unite_equal_classes(again);
    EXPECT_TRUE(again == whole.program) << whole.name;
  }
  EXPECT_GT(splits, static_cast<int>(hocket::test::fewer(200) / 2));
}

TEST(SplitClasses, AbsentCollectiveMemberIsRefused) {
  // Ranks 0 and 1 of the data-parallel axis are one class, rank 2 is another.
  test::Case c = three_by_two();
  test::split_class(c.program, 0, c.program.roles[0].mesh.axis("edp"), 2);
  ASSERT_TRUE(check(c.program, c.graph).ok()) << to_text(check(c.program, c.graph));
  auto& tasks = c.program.classes[2].tasks;
  size_t last = tasks.size();
  while (last-- > 0 && c.program.kind(tasks[last]).op != "all_reduce") {
  }
  for (Task& t : tasks) {
    std::erase(t.deps, program::TaskId(last));
    for (program::TaskId& dep : t.deps) {
      if (dep > program::TaskId(last)) {
        --dep;
      }
    }
  }
  tasks.erase(tasks.begin() + static_cast<int64_t>(last));
  const Verdict v = check(c.program, c.graph);
  ASSERT_FALSE(v.ok());
  EXPECT_EQ(v.problems[0].rule, std::string("collective-unmatched")) << to_text(v);
  EXPECT_NE(v.problems[0].text.find("class 2 (rank 2)"), std::string::npos) << to_text(v);
}

TEST(SplitClasses, MissingSendOfOneClassIsRefused) {
  test::Case c = three_by_two();
  test::split_class(c.program, 0, c.program.roles[0].mesh.axis("edp"), 1);
  ASSERT_TRUE(check(c.program, c.graph).ok());
  task(c.program, 2, "send").tag += 1000;
  const Verdict v = check(c.program, c.graph);
  ASSERT_FALSE(v.ok());
  EXPECT_EQ(v.problems[0].rule, std::string("recv-unmatched")) << to_text(v);
  EXPECT_NE(v.problems[0].text.find("has no matching send in class 2"), std::string::npos);
}

TEST(SplitClasses, PartsOnNoRankAreRefused) {
  parallel::Plan plan;
  plan.dp = 2;
  test::Case c = test::make_case(test::dense(1, false), plan, 8, 25 << 20, test::Purpose::logits);
  const int32_t axis = c.program.roles[0].mesh.axis("edp");
  test::split_class(c.program, 0, axis, 1);
  ASSERT_TRUE(check(c.program, c.graph).ok()) << to_text(check(c.program, c.graph));
  // Rank 1 does not output its half of the logits.
  program::RankClass& second = c.program.classes[1];
  int outputs = 0;
  for (program::Buffer& b : second.buffers) {
    if (b.kind != program::BufferKind::output) continue;
    EXPECT_TRUE(b.layout[axis].is_split());
    b.kind = program::BufferKind::step;
    b.name.clear();
    b.offset = second.arena_bytes;
    second.arena_bytes += (b.type.bytes() + 63) / 64 * 64;
    ++outputs;
  }
  ASSERT_EQ(outputs, 1);
  const Verdict v = check(c.program, c.graph);
  ASSERT_FALSE(v.ok());
  EXPECT_EQ(v.problems[0].rule, std::string("result-missing")) << to_text(v);
  EXPECT_NE(v.problems[0].text.find("the classes keep only some parts of"), std::string::npos);
}

/// Two roles side by side, each with the whole step, without communication between them.
TEST(Roles, TwoRolesAreCheckedAsTwoPrograms) {
  parallel::Plan wide;
  wide.dp = 2;
  wide.num_micro_batches = 2;
  test::Case c = test::make_case(test::dense(2, false), wide);
  Program both = c.program;
  test::twin_role(both);
  EXPECT_EQ(both.num_ranks(), 4);
  EXPECT_TRUE(program::parse_program(program::print(both)) == both);
  const Verdict v = check(both, c.graph);
  EXPECT_TRUE(v.ok()) << to_text(v);
  EXPECT_EQ(v.certificate.ranks, "first: pp 1 x edp 2 x ep 1 + second: pp 1 x edp 2 x ep 1");
  // A task with a group of the other role.
  Program wrong = both;
  task(wrong, 1, "all_reduce").group = task(wrong, 0, "all_reduce").group;
  const Verdict bad = check(wrong, c.graph);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.problems[0].rule, std::string("group-fits")) << to_text(bad);
  // A task with a table of the other role.
  Program elsewhere = both;
  for (program::RankClass& cls : elsewhere.classes) {
    for (Task& t : cls.tasks) {
      for (program::PieceOffset& begin : t.piece_offsets) {
        begin.by = 0;
      }
    }
  }
  ASSERT_FALSE(elsewhere.tables.empty());
  const Verdict apart = check(elsewhere, c.graph);
  ASSERT_FALSE(apart.ok());
  EXPECT_EQ(apart.problems[0].rule, std::string("ids-in-range")) << to_text(apart);
  EXPECT_NE(apart.problems[0].text.find("table 0 of the class's role"), std::string::npos);
}

}  // namespace
}  // namespace hocket::check
