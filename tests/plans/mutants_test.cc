// SPDX-License-Identifier: Apache-2.0
// Good programs are accepted; random mutants of them are refused with the right task named, or run
// and give the single-rank result.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>

#include "check/check.h"
#include "check/mutants/mutate.h"
#include "plan_util.h"

namespace hocket::test {
namespace {

constexpr double kTolerance = 1e-10;

engine::Compiled compiled(const Case& c) {
  return engine::compile(engine::parse_run(c.text, c.name, {}));
}

TEST(PlanCheck, NoGoodPlanIsRefused) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Case c = random_case(seed, 8, "f64");
    engine::Compiled good = compiled(c);
    check::Verdict v = check::check(good.program, good.reference);
    EXPECT_TRUE(v.ok()) << c.name << "\n" << c.text << to_text(v);
  }
}

/// HOCKET_MUTANTS=N draws N mutants instead of 300.
TEST(PlanCheck, MutantsAreRefusedOrEqual) {
  const char* number = std::getenv("HOCKET_MUTANTS");
  const int n = number ? std::atoi(number) : 300;
  int exact = 0, near = 0, missed = 0, equal = 0;
  std::map<uint64_t, Outcome> single;  // one-rank results, by seed of the case
  for (int i = 0; i < n; ++i) {
    const uint64_t seed = 1 + static_cast<uint64_t>(i) % 60;
    Case c = random_case(seed, 8, "f64");
    engine::Compiled good = compiled(c);
    program::Program mutant = good.program;
    check::Mutation mutation;
    ASSERT_TRUE(check::mutate(mutant, static_cast<uint64_t>(i), &mutation)) << c.name;
    check::Verdict v = check::check(mutant, good.reference);
    const std::string what = "mutant " + std::to_string(i) + " of " + c.name + ": " +
                             mutation.kind + ": " + mutation.text;
    switch (check::localise(mutation, v)) {
      case check::Localisation::exact: ++exact; continue;
      case check::Localisation::near: ++near; continue;
      case check::Localisation::missed:
        ++missed;
        ADD_FAILURE() << what << "\n" << to_text(v);
        continue;
      case check::Localisation::accepted: break;
    }
    if (!single.count(seed)) single[seed] = train(c, true, 1, false, {}, false);
    Outcome many;
    ASSERT_NO_THROW(many = train(c, false, 1, true, {}, false,
                                 [&](program::Program& p) { p = mutant; })) << what;
    const Outcome& one = single[seed];
    EXPECT_NEAR(many.losses[0], one.losses[0], kTolerance * std::abs(one.losses[0])) << what;
    EXPECT_NEAR(many.norms[0], one.norms[0], kTolerance * one.norms[0]) << what;
    for (auto& [name, param] : one.params)
      EXPECT_LE(relative_l2(many.params[name], param), kTolerance) << what << " " << name;
    ++equal;
  }
  std::cout << n << " mutants: refused with the task itself named first " << exact
            << ", with a task connected to it " << near << ", elsewhere " << missed
            << "; accepted and equal to one rank " << equal << "\n";
}

}  // namespace
}  // namespace hocket::test
