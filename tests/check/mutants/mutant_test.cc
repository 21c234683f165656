// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Random faults in correct programs are refused with the right task named, or are harmless. Tests
// that run programs check that accepted mutants compute the single-rank result.
#include "check/mutants/mutate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "tests/check/check_util.h"
#include "tests/compare_util.h"

namespace hocket::check {
namespace {

/// HOCKET_MUTANTS=N draws N mutants instead of 500; HOCKET_MUTATION=kind draws only this kind.
TEST(Mutants, RefusedWithTheRightTaskNamed) {
  const char* number = std::getenv("HOCKET_MUTANTS");
  const char* only = std::getenv("HOCKET_MUTATION");
  const int n = number ? std::atoi(number) : static_cast<int>(hocket::test::fewer(500));
  // Faults that always change a value or its place.
  const std::set<std::string> never_harmless = {
      "drop-task", "space", "buffer-size", "attribute",    "accumulate",
      "message",   "op",    "twin-group",  "far-peer",     "payload",
      "expected",  "plan",  "cost",        "cut-sequences"};
  std::mt19937_64 rng(11);
  std::map<std::string, std::map<Localisation, int>> counts;
  // A wrong part of a value is valid until it meets the other parts. Behind blocks, codes and rings
  // that may be some tasks after the fault, for a few mutants.
  const auto moves_parts_on = [](const std::string& plan) {
    return plan.find("comm_tiles=") != plan.npos || plan.find("grad_codec=") != plan.npos ||
           plan.find("all_reduce=") != plan.npos;
  };
  std::string far;
  int missed = 0;
  for (int i = 0; i < n; ++i) {
    test::Case c = test::random_case(rng);
    Mutation m;
    if (!mutate(c.program, static_cast<uint64_t>(i), &m, only ? only : "")) continue;
    const Verdict v = check(c.program, c.graph);
    const Localisation l = localise(m, v);
    ++counts[m.kind][l];
    const std::string what =
        "mutant " + std::to_string(i) + " of " + c.name + ": " + m.kind + ": " + m.text;
    if (moves_parts_on(c.name)) {
      missed += l == Localisation::missed;
      far += l == Localisation::missed ? what + "\n" + to_text(v) : "";
    } else {
      EXPECT_NE(l, Localisation::missed) << what << "\n" << to_text(v);
    }
    if (l == Localisation::accepted) {
      EXPECT_FALSE(never_harmless.contains(m.kind)) << what;
      if (only) {
        std::cout << "accepted " << what << "\n";
      }
    }
  }
  EXPECT_LE(missed, std::max(1, n / 200)) << far;
  for (auto& [kind, row] : counts) {
    std::cout << kind << ": first problem names the task " << row[Localisation::exact]
              << ", another or a neighbour " << row[Localisation::near] << ", accepted "
              << row[Localisation::accepted] << "\n";
  }
}

TEST(Mutants, EveryKindIsDrawn) {
  if (hocket::test::is_sanitized()) {
    GTEST_SKIP() << "which are drawn is the same without sanitizers, eight times as fast";
  }
  // Lowered plans have no such tasks; programs of tests/programs do.
  const std::set<std::string> by_hand = {"slot", "parts", "part-dep"};
  const size_t expected = mutation_kinds().size() - by_hand.size();
  std::mt19937_64 rng(3);
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 1600 && seen.size() < expected; ++seed) {
    test::Case c = test::random_case(rng);
    Mutation m;
    if (mutate(c.program, seed, &m)) {
      seen.insert(m.kind);
    }
  }
  for (const std::string& kind : mutation_kinds()) {
    EXPECT_NE(seen.contains(kind), by_hand.contains(kind)) << kind;
  }
}

TEST(Mutants, SameSeedSameMutant) {
  std::mt19937_64 rng(1);
  const test::Case c = test::random_case(rng);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    program::Program a = c.program, b = c.program;
    Mutation x, y;
    ASSERT_TRUE(mutate(a, seed, &x));
    ASSERT_TRUE(mutate(b, seed, &y));
    EXPECT_EQ(x.text, y.text);
    EXPECT_EQ(program::program_hash(a).hex(), program::program_hash(b).hex());
  }
}

}  // namespace
}  // namespace hocket::check
