// SPDX-License-Identifier: Apache-2.0
// The structural rules as data: what a well-formed kind, group, class, buffer and task looks like.
// To add a rule, add a predicate and its row to rules.cc, or of a task to task_rules.cc.
#pragma once

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

inline bool in_range(int64_t i, size_t n) { return i >= 0 && static_cast<size_t>(i) < n; }
template <class Of>
bool in_range(Id<Of> id, size_t n) {
  return id >= 0 && id < n;
}

/// "(f32[4], i32[2])".
std::string types_text(const std::vector<graph::TensorType>& list);

const std::vector<Rule<const program::Kind&, const KindInfo&>>& kind_rules();
const std::vector<Rule<const program::Group&, size_t>>& group_rules();
const std::vector<Rule<const RankClass&, size_t>>& class_rules();
/// Those that say which buffers are parts of others; of one that is bad, the first rule speaks.
const std::vector<Rule<const RankClass&, const program::Buffer&>>& view_rules();
const std::vector<Rule<const RankClass&, const program::Buffer&>>& buffer_rules();
/// Ids are in range when these are applied, and Context::place was called.
const std::vector<Rule<ClassId, const RankClass&, const Task&>>& task_rules();

/// The rules that are no predicate over one thing: what the abstract run, the hazards, the memory
/// and the values refuse. Context::report takes no rule that stands in neither list.
const std::vector<RuleInfo>& derived_rules();

}  // namespace hocket::check
