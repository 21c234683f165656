// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of refusals: small programs, single changes, and expectations of verdicts.
#pragma once

#include <string>
#include <vector>

#include "check/check.h"
#include "tests/check/check_util.h"

namespace hocket::check::test {

/// Returns a small model under this plan; MoE if `ep` > 1.
Case make(int64_t pp, int64_t dp, int64_t ep, int64_t micro_batches, bool tied = false);
/// Returns the n-th task of this op in the class.
int32_t find(const program::Program& p, int32_t cls, const std::string& op, int n = 0);
program::Task& task(program::Program& p, int32_t cls, const std::string& op, int n = 0);
void erase(program::Program& p, int32_t cls, int32_t at);
/// Expects a problem of this rule with all the words in its text.
void expect_refused(const Verdict& v, const std::string& rule, std::vector<std::string> words);
/// Checks without a memory plan, as between passes.
Verdict check_values(Case& c);

}  // namespace hocket::check::test
