// SPDX-License-Identifier: Apache-2.0
// What the tests of refusals share: small programs, single changes of them, and what a verdict
// says.
#pragma once

#include <string>
#include <vector>

#include "check/check.h"
#include "tests/check/check_util.h"

namespace hocket::check::test {

/// A small model (a mixture of experts, if they are split) under this plan.
Case make(int64_t pp, int64_t dp, int64_t ep, int64_t micro_batches, bool tied = false);
/// The n-th task of this op in the class.
int32_t find(const program::Program& p, int32_t cls, const std::string& op, int n = 0);
program::Task& task(program::Program& p, int32_t cls, const std::string& op, int n = 0);
void erase(program::Program& p, int32_t cls, int32_t at);
/// Expects that some problem of this rule contains all the words.
void expect_refused(const Verdict& v, const std::string& rule, std::vector<std::string> words);
/// The verdict without regard to memory: the plan taken away, as between passes.
Verdict check_values(Case& c);

}  // namespace hocket::check::test
