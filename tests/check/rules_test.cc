// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Every rule of the check has a case: a generated program with one fault, which that rule reports
// first. With the rule off, the fault is accepted, or another rule that the case names (`back_up`)
// reports it. So no rule can be weakened or removed unnoticed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>

#include "tests/check/rules_util.h"

namespace hocket::check {
namespace {

using test::Edit;
using test::FaultCase;

const std::vector<FaultCase>& cases() {
  static const std::vector<FaultCase> all = [] {
    std::vector<FaultCase> list;
    for (auto part : {test::structure_cases(), test::order_cases(), test::memory_cases(),
                      test::value_cases(), test::collective_cases()}) {
      list.insert(list.end(), part.begin(), part.end());
    }
    return list;
  }();
  return all;
}

std::string name(const FaultCase& fault) { return std::string(fault.rule) + ": " + fault.fault; }

TEST(Rules, UnchangedProgramsAreAccepted) {
  for (auto start :
       {test::one_rank, test::two_ranks, test::two_stages, test::three_stages, test::tied_stages,
        test::four_experts, test::four_ranks, test::two_stages_two_ranks, test::forward_only}) {
    const Edit e(start());
    const Verdict v = e.check();
    EXPECT_TRUE(v.ok()) << to_text(v);
  }
}

TEST(Rules, EachRuleRefusesItsFault) {
  for (const FaultCase& fault : cases()) {
    Edit e(fault.start());
    fault.edit(e);
    const Verdict v = e.check();
    if (v.ok()) {
      ADD_FAILURE() << name(fault) << ": accepted";
      continue;
    }
    EXPECT_EQ(v.problems[0].rule, fault.rule) << name(fault) << "\n" << to_text(v);
    for (const Problem& p : v.problems) {
      EXPECT_FALSE(p.text.empty()) << name(fault);
      EXPECT_FALSE(p.fix.empty()) << name(fault);
    }
  }
}

TEST(Rules, EachRuleIsNecessary) {
  for (const FaultCase& fault : cases()) {
    if (fault.only_refused) continue;
    Edit e(fault.start());
    fault.edit(e);
    const Verdict v = e.check_without(fault.rule);
    EXPECT_TRUE(v.proved.empty()) << name(fault);
    const std::string back_up = fault.back_up;
    if (back_up.empty()) {
      EXPECT_TRUE(v.ok()) << name(fault) << ": refused without the rule too\n" << to_text(v);
      continue;
    }
    EXPECT_NE(std::string(fault.why), "") << name(fault) << ": gives no reason for its back-up";
    ASSERT_FALSE(v.ok()) << name(fault) << ": names a back-up, but nothing refuses";
    EXPECT_EQ(v.problems[0].rule, back_up) << name(fault) << "\n" << to_text(v);
  }
}

TEST(Rules, EachRuleHasACase) {
  std::set<std::string> known, covered, switched_off;
  for (const RuleInfo& rule : rules()) {
    EXPECT_TRUE(known.insert(rule.name).second) << rule.name << " is listed twice";
  }
  for (const FaultCase& fault : cases()) {
    EXPECT_TRUE(known.contains(fault.rule)) << fault.rule << ": no such rule";
    covered.insert(fault.rule);
    if (!fault.only_refused) {
      switched_off.insert(fault.rule);
    }
  }
  for (const std::string& rule : known) {
    EXPECT_TRUE(covered.contains(rule)) << rule << ": no case is refused by this rule";
    EXPECT_TRUE(switched_off.contains(rule)) << rule << ": no case can be run with this rule off";
  }
  std::cout << known.size() << " rules, " << cases().size() << " faults\n";
}

/// docs/check.md lists the rules by name.
TEST(Rules, DocsNameEachRule) {
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  std::ifstream file(std::string(root ? root : ".") + "/docs/check.md");
  ASSERT_TRUE(file.good()) << "docs/check.md not found; run in the root of the repository";
  std::set<std::string> named;
  bool in_table = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("## ", 0) == 0) {
      in_table = line == "## Rules";
    }
    if (!in_table || line.rfind("| `", 0) != 0) continue;
    std::istringstream cell(line.substr(2, line.find(" |", 2) - 2));
    for (std::string word; cell >> word;) {
      named.insert(word.substr(1, word.size() - 2));
    }
  }
  std::set<std::string> known;
  for (const RuleInfo& rule : rules()) {
    known.insert(rule.name);
  }
  EXPECT_EQ(named, known);
}

}  // namespace
}  // namespace hocket::check
