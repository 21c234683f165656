// SPDX-License-Identifier: Apache-2.0
// Every rule of the check refuses something that no other rule refuses. Each row is a generated
// program with one fault: it is refused, by the row's rule first; with that rule off it is
// accepted, or refused by the back-up that the row names. So no rule can be weakened or removed
// unseen.
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
using test::Row;

const std::vector<Row>& rows() {
  static const std::vector<Row> all = [] {
    std::vector<Row> list;
    for (auto part : {test::structure_rows(), test::order_rows(), test::memory_rows(),
                      test::value_rows(), test::collective_rows()}) {
      list.insert(list.end(), part.begin(), part.end());
    }
    return list;
  }();
  return all;
}

std::string name(const Row& row) { return std::string(row.rule) + ": " + row.fault; }

TEST(Rules, StartsAreAccepted) {
  for (auto start :
       {test::one_rank, test::two_ranks, test::two_stages, test::three_stages, test::tied_stages,
        test::four_experts, test::four_ranks, test::two_stages_two_ranks, test::forward_only}) {
    const Edit e(start());
    const Verdict v = e.check();
    EXPECT_TRUE(v.ok()) << to_text(v);
  }
}

TEST(Rules, EachRefusesItsFault) {
  for (const Row& row : rows()) {
    Edit e(row.start());
    row.edit(e);
    const Verdict v = e.check();
    if (v.ok()) {
      ADD_FAILURE() << name(row) << ": accepted";
      continue;
    }
    EXPECT_EQ(v.problems[0].rule, row.rule) << name(row) << "\n" << to_text(v);
    for (const Problem& p : v.problems) {
      EXPECT_FALSE(p.text.empty()) << name(row);
      EXPECT_FALSE(p.fix.empty()) << name(row);
    }
  }
}

TEST(Rules, NoneCanBeOff) {
  for (const Row& row : rows()) {
    if (row.only_refused) continue;
    Edit e(row.start());
    row.edit(e);
    const Verdict v = e.check_without(row.rule);
    EXPECT_TRUE(v.proved.empty()) << name(row);
    const std::string back_up = row.back_up;
    if (back_up.empty()) {
      EXPECT_TRUE(v.ok()) << name(row) << ": refused without the rule too\n" << to_text(v);
      continue;
    }
    EXPECT_NE(std::string(row.why), "") << name(row) << ": does not say why another rule sees it";
    ASSERT_FALSE(v.ok()) << name(row) << ": names a back-up, but nothing refuses";
    EXPECT_EQ(v.problems[0].rule, back_up) << name(row) << "\n" << to_text(v);
  }
}

TEST(Rules, EachHasARow) {
  std::set<std::string> known, rowed, switched_off;
  for (const RuleInfo& rule : rules()) {
    EXPECT_TRUE(known.insert(rule.name).second) << rule.name << " is listed twice";
  }
  for (const Row& row : rows()) {
    EXPECT_TRUE(known.contains(row.rule)) << row.rule << ": no such rule";
    rowed.insert(row.rule);
    if (!row.only_refused) {
      switched_off.insert(row.rule);
    }
  }
  for (const std::string& rule : known) {
    EXPECT_TRUE(rowed.contains(rule)) << rule << ": no row refuses by this rule";
    EXPECT_TRUE(switched_off.contains(rule)) << rule << ": no row can be run with this rule off";
  }
  std::cout << known.size() << " rules, " << rows().size() << " faults\n";
}

/// docs/check.md lists the rules by name.
TEST(Rules, DocsNameThemAll) {
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
