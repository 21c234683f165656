// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Random mutants of good programs (PlanEquality.NoRandomPlanIsRefused) are refused with the right
// task named, or run and give the single-rank result. The numbers that a release is held to:
//   HOCKET_MUTANTS=1000 HOCKET_PLANS=100 python3 tools/gtest_file.py build/hocket_tests
//       tests/plans/mutants_test.cc
// HOCKET_SEED=S draws others; the printed seed draws the same again.
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <optional>
#include <random>

#include "check/check.h"
#include "check/mutants/mutate.h"
#include "plan_util.h"
#include "tests/check/check_util.h"

namespace hocket::test::mutants_test {
namespace {

uint64_t seed() { return from_environment("HOCKET_SEED", 1); }
uint64_t num_plans() { return from_environment("HOCKET_PLANS", fewer(60)); }
uint64_t num_mutants() { return from_environment("HOCKET_MUTANTS", fewer(300)); }

/// One of the plans, its program, and the result of one rank once somebody asks for it.
struct Plan {
  explicit Plan(uint64_t number)
      : c(random_case(number, 8, "f64")),
        good(engine::compile(engine::parse_run(c.text, c.name, {}))) {
    // Some have classes that are cut along some axis.
    if (number % 3 == 0) {
      std::mt19937_64 rng(number);
      check::test::split_classes(good.program, rng);
    }
  }
  Case c;
  engine::Compiled good;
  std::optional<Outcome> single;
};

std::vector<Plan>& plans() {
  static std::vector<Plan> list = [] {
    std::cout << "HOCKET_SEED=" << seed() << " HOCKET_PLANS=" << num_plans()
              << " HOCKET_MUTANTS=" << num_mutants() << "\n";
    std::vector<Plan> made;
    for (uint64_t i = 0; i < num_plans(); ++i) {
      made.emplace_back((seed() - 1) * num_plans() + i + 1);
    }
    return made;
  }();
  return list;
}

/// Returns the fault in an accepted mutant's results; "" if it computes the single-rank result.
std::string differs(Plan& plan, const program::Program& mutant) {
  if (!plan.single) {
    plan.single = train(plan.c, {.on_one_rank = true, .with_grads = false});
  }
  try {
    const auto run_mutant = [&](program::Program& p) { p = mutant; };
    return difference(train(plan.c, {.poison = true, .with_grads = false, .rewrite = run_mutant}),
                      *plan.single);
  } catch (const std::exception& e) {
    return e.what();
  }
}

TEST(PlanCheck, MutantsAreRefusedOrEqual) {
  struct Fates {
    int exact = 0, near = 0, missed = 0, equal = 0, wrong = 0;
  };
  std::map<std::string, Fates> by_kind;
  Fates all;
  uint64_t behind_rings = 0;
  for (uint64_t i = 0; i < num_mutants(); ++i) {
    Plan& plan = plans()[i % plans().size()];
    program::Program mutant = plan.good.program;
    check::Mutation mutation;
    ASSERT_TRUE(check::mutate(mutant, (seed() - 1) * num_mutants() + i, &mutation)) << plan.c.name;
    const check::Verdict v = check::check(mutant, plan.good.reference);
    const std::string what = "mutant " + std::to_string(i) + " of " + plan.c.name + ": " +
                             mutation.kind + ": " + mutation.text;
    for (Fates* fates : {&by_kind[mutation.kind], &all}) {
      switch (check::localise(mutation, v)) {
        case check::Localisation::exact:
          ++fates->exact;
          break;
        case check::Localisation::near:
          ++fates->near;
          break;
        case check::Localisation::missed:
          ++fates->missed;
          break;
        case check::Localisation::accepted:
          ++fates->equal;
          break;
      }
    }
    // The loss of a hop around a ring may first be missed where the sum is used. So may a begin,
    // which only gives the rank's part of a gradient.
    const bool rings =
        plan.c.text.find("all_reduce: native") == std::string::npos || mutation.kind == "begin";
    if (check::localise(mutation, v) == check::Localisation::missed && rings) {
      std::cout << what << ": refused elsewhere\n";
      ++behind_rings;
    } else {
      EXPECT_NE(check::localise(mutation, v), check::Localisation::missed)
          << what << ": refused elsewhere\n"
          << to_text(v);
    }
    if (!v.ok()) continue;
    const std::string wrong = differs(plan, mutant);
    EXPECT_EQ(wrong, "") << what << ": accepted, but wrong";
    for (Fates* fates : {&by_kind[mutation.kind], &all}) {
      fates->wrong += !wrong.empty();
      fates->equal -= !wrong.empty();
    }
  }
  EXPECT_LE(behind_rings, 1 + num_mutants() / 100);
  by_kind["all"] = all;
  for (const auto& [kind, f] : by_kind) {
    std::cout << kind << ": refused at the changed task " << f.exact << ", at one connected to it "
              << f.near << ", elsewhere " << f.missed << "; accepted and equal to one rank "
              << f.equal << ", accepted and wrong " << f.wrong << "\n";
  }
}

}  // namespace
}  // namespace hocket::test::mutants_test
