// SPDX-License-Identifier: Apache-2.0
#include "tests/check/refuse_util.h"

#include <gtest/gtest.h>

namespace hocket::check::test {

using program::Program;
using program::RankClass;
using program::Task;

Case make(int64_t pp, int64_t dp, int64_t ep, int64_t micro_batches, bool tied) {
  parallel::Plan plan;
  plan.pp = pp;
  plan.dp = dp;
  plan.ep = ep;
  plan.num_micro_batches = micro_batches;
  return make_case(ep > 1 ? moe(2) : dense(2, tied), plan, 8, 0);
}

int32_t find(const Program& p, int32_t cls, const std::string& op, int n) {
  const auto& tasks = p.classes[cls].tasks;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (p.kind(tasks[i]).op == op && n-- == 0) return static_cast<int32_t>(i);
  }
  ADD_FAILURE() << "no " << op;
  return 0;
}
Task& task(Program& p, int32_t cls, const std::string& op, int n) {
  return p.classes[cls].tasks[find(p, cls, op, n)];
}
void erase(Program& p, int32_t cls, int32_t at) {
  RankClass& c = p.classes[cls];
  c.tasks.erase(c.tasks.begin() + at);
  for (Task& t : c.tasks) {
    std::erase(t.deps, at);
    for (program::TaskId& d : t.deps) {
      d = d > at ? d - 1 : d;
    }
  }
}

void expect_refused(const Verdict& v, const std::string& rule, std::vector<std::string> words) {
  EXPECT_FALSE(v.ok());
  for (const Problem& p : v.problems) {
    if (p.rule != rule) continue;
    bool all = true;
    for (const std::string& w : words) {
      all &= p.text.find(w) != std::string::npos;
    }
    EXPECT_FALSE(p.fix.empty());
    if (all) return;
  }
  std::string wanted;
  for (const std::string& w : words) {
    wanted += " '" + w + "'";
  }
  ADD_FAILURE() << "no problem " << rule << " with" << wanted << " in\n" << to_text(v);
}

Verdict check_values(Case& c) {
  for (RankClass& cls : c.program.classes) {
    cls.arena_bytes = 0;
    for (auto& b : cls.buffers) {
      b.offset = program::kNone;
    }
  }
  CheckOptions options;
  options.allow_unplanned = true;
  return check(c.program, c.graph, options);
}

}  // namespace hocket::check::test
