// SPDX-License-Identifier: Apache-2.0
// Ranks in refusals: the first rank at which a rule fails, its part, and the missing part.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>

#include "tests/check/rules_util.h"

namespace hocket::check {
namespace {

using test::Edit;
using test::FaultCase;

/// Returns the first case of each rule about values, collectives and memory.
std::vector<FaultCase> first_cases() {
  std::vector<FaultCase> list;
  std::set<std::string> seen;
  for (const auto& part : {test::value_cases(), test::collective_cases(), test::memory_cases()}) {
    for (const FaultCase& fault : part) {
      if (seen.insert(fault.rule).second) {
        list.push_back(fault);
      }
    }
  }
  return list;
}

/// Rules about values that concern no piece, but the program, a group or a name.
const std::set<std::string> kWithoutPiece = {"micro-batches", "symbol-table", "named-tensor",
                                             "exchange-axis"};

struct Said {
  const char* rule;
  const char* where;
};

const Said kSaid[] = {
    {"final-value", "rank 0 has [0:16) of 'model.norm.weight' as it was before the step, 16 zeros"},
    {"result-missing", "elements [0:1) of 1 are on no rank"},
    {"not-in-graph", "rank 0 (edp 0, ep 0) has all of it; so on 3 more ranks"},
    {"final-layout",
     "rank 0 (edp 0) has all of it with addends t [0:1) of 2; the host expects all of it; so on 1 "
     "more rank"},
    {"layout-legal",
     "rank 0 (edp 0) has all of it with addends t [0:1) of 2; missing t [1:2); so on 1 more rank"},
    {"local-size", "rank 0 has all of it, which is f64[4,6]; the buffer is f64[8,6]"},
    {"sum-layout",
     "rank 0 (edp 0) has all of it (embedding_dw mb0 ('grad.model.embed_tokens.weight')) in it; "
     "to be added: all of it with addends t [0:1) of 2 (embedding_dw mb1 "
     "('grad.model.embed_tokens.weight')); so on 1 more rank"},
    {"begin-fits", "rank 1 (edp 1): its piece along t begins at 8; the task says 0"},
    {"merge-parts",
     "rank 0 has all of it in buffer 15 (f32[8,4,4]), and all of it in buffer 15 (f32[8,4,4])"},
    {"codec-parts",
     "rank 0 (edp 0) has all of it with addends t [0:1) of 2; missing t [1:2); so on 1 more rank"},
    {"codes-summed",
     "rank 0 (edp 0) has all of it with addends t [0:1) of 2; missing t [1:2); so on 1 more rank"},
    {"replicas-differ", "element 0 of 512 is on rank 0 (edp 0), and on rank 1 (edp 1)"},
    {"regroup-parts",
     "rank 0 (edp 0, ep 0) has dim 0 [0:4) of 8, dim 1 [0:16) of 32 in buffer 43 (f32[4,16,16]@2), "
     "and dim 0 [0:4) of 8, dim 1 [0:16) of 32 in buffer 43 (f32[4,16,16]@2); so on 3 more ranks"},
    {"unfinished-sum",
     "rank 0 (edp 0) has all of it with addends t [0:1) of 2 + all of it with addends t [0:1) of "
     "2; missing t [1:2), t [1:2); so on 1 more rank"},
    {"view-tiled", "rank 0 has indices [0:16) of [0:32); missing [16:32)"},
    {"pack-fits",
     "rank 0 has [0:512) of a sum of 2 terms (linear_dw of linear_cross_entropy head mb0, "
     "linear_dw of linear_cross_entropy head mb1), [0:512) of a sum of 2 terms (linear_dw of "
     "linear_cross_entropy head mb0, linear_dw of linear_cross_entropy head mb1) in buffer 130 "
     "(f32[1024])"},
    {"reduce-replicated", "rank 0 (edp 0) and rank 1 (edp 1) both have all of it"},
    {"reduce-split",
     "rank 0 (edp 0) has dim 0 [0:8) of 16, and rank 1 (edp 1) has dim 0 [8:16) of 16"},
    {"classes-reduce-only",
     "rank 0 (pp 0) has all of it (adamw L0 output 0 "
     "('adamw.model.layers.0.input_layernorm.weight')), and rank 1 (pp 1) has all of it (adamw "
     "head output 0 ('adamw.model.norm.weight'))"},
    {"classes-differ",
     "rank 0 (pp 0, edp 0) has all of it (adamw embedding output 0 "
     "('adamw.model.embed_tokens.weight')) in one meeting, and all of it (a sum of 2 terms (adamw "
     "head output 0 ('adamw.lm_head.weight'), adamw embedding output 0 "
     "('adamw.model.embed_tokens.weight'))) in another; so on 1 more rank"},
    {"gather-layout", "rank 0 (edp 0) and rank 1 (edp 1) both have all of it"},
    {"scatter-layout", "rank 0 (edp 0) and rank 1 (edp 1) both have all of it"},
    {"reduce-monoid",
     "rank 0 (edp 0) has all of it with addends t [0:1) of 2, and rank 1 (edp 1) has all of it "
     "with addends t [1:2) of 2"},
    {"reduce-overlap",
     "rank 0 (edp 0) has all of it with addends t [0:1)+[3:4) of 4, and rank 1 (edp 1) has all of "
     "it with addends t [0:2) of 4; both have t [0:1); so on 2 more ranks"},
    {"exchange-counts", "rank 0 (edp 0, ep 0) has all of it; so on 3 more ranks"},
    {"exchange-sizes",
     "rank 0 (edp 0, ep 0) has all of it with addends t [0:1) of 4; missing t [1:4); so on 3 more "
     "ranks"},
    {"exchange-layout",
     "rank 0 (edp 0, ep 0) has dim 0 [0:4) of 8, dim 1 [0:8)+[16:24) of 32, and rank 1 (edp 0, ep "
     "1) has dim 0 [0:4) of 8, dim 1 [8:16)+[24:32) of 32; so on 2 more ranks"},
    {"message-rows",
     "rank 0 (edp 0, ep 0) would get dim 0 [8:16) of 32 of the rows of rank 1 (edp 0, ep 1)"},
    {"transfer-layout", "rank 1 (edp 1): its piece along a begins at 8; the task says 0"},
    {"transfer-covers", "rank 2 takes dim 0 [0:17); missing [16:17)"},
    {"expected-rows",
     "rank 0 (edp 0, ep 0) has dim 0 [0:4) of 8, dim 1 [0:16) of 32; so on 3 more ranks"},
};

/// HOCKET_SHOW=1 prints all texts.
TEST(Where, EveryValueRuleNamesTheRank) {
  const bool show = std::getenv("HOCKET_SHOW") != nullptr;
  for (const FaultCase& fault : first_cases()) {
    Edit edit(fault.start());
    fault.edit(edit);
    const Verdict verdict = edit.check();
    ASSERT_FALSE(verdict.ok()) << fault.rule;
    const Problem& problem = verdict.problems[0];
    if (show) {
      std::cout << problem.rule << " | " << fault.fault << "\n    " << problem.text << "\n    "
                << problem.where << "\n";
    }
    const auto said = std::find_if(std::begin(kSaid), std::end(kSaid), [&](const Said& one) {
      return one.rule == std::string(fault.rule);
    });
    const std::string where = said == std::end(kSaid) ? "" : said->where;
    EXPECT_EQ(problem.where, where) << fault.rule << ": " << fault.fault;
    const bool needs_one =
        problem.problem_class == ProblemClass::value && !kWithoutPiece.contains(fault.rule);
    EXPECT_TRUE(!needs_one || !where.empty()) << fault.rule;
    const bool printed = to_text(verdict).find("   where: " + problem.where) != std::string::npos;
    EXPECT_EQ(printed, !problem.where.empty()) << to_text(verdict);
  }
}

}  // namespace
}  // namespace hocket::check
