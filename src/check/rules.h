// SPDX-License-Identifier: Apache-2.0
// The structural rules as data: what a well-formed kind, group, class, buffer and task looks like.
// To add a rule, add a row in rules.cc.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "check/context.h"

namespace hocket::check {

/// A predicate gives "" when the rule holds, else what is wrong.
template <typename... Args>
struct Rule {
  const char* name;
  const char* says;
  const char* fix;
  std::string (*wrong)(const Context&, Args...);
};

/// What FLOPs or bytes of a compute kind differ from those that its op works out; "" if none do.
/// `experts`: of the whole tensors, see ops::Call.
std::string cost_differs(const program::Kind& kind, const ops::Op& rules, int64_t experts);

/// A rule that two parts of the check apply.
struct RuleText {
  const char* name;
  const char* says;
  const char* fix;
};
inline constexpr RuleText kCostRule{
    "cost-follows", "FLOPs and bytes of a kernel are those that its op works out from its types",
    "give the kind the FLOPs and bytes that ops::cost_of says"};
/// True for kinds with routed inputs.
inline bool has_rows(const program::Kind& kind) {
  return std::any_of(kind.in.begin(), kind.in.end(), [](const auto& t) { return t.routed(); });
}

inline bool in_range(int64_t i, size_t n) { return i >= 0 && static_cast<size_t>(i) < n; }

const std::vector<Rule<const program::Kind&, const KindInfo&>>& kind_rules();
const std::vector<Rule<const program::Group&, size_t>>& group_rules();
const std::vector<Rule<const RankClass&, size_t>>& class_rules();
const std::vector<Rule<const RankClass&, const program::Buffer&>>& buffer_rules();
/// Ids are in range when these are applied, and Context::place was called.
const std::vector<Rule<int32_t, const RankClass&, const Task&>>& task_rules();

}  // namespace hocket::check
