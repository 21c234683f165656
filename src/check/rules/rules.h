// SPDX-License-Identifier: Apache-2.0
// Structural rules as data: tables of predicates over kinds, groups, classes, buffers and tasks. To
// add a rule, add a predicate and its row to rules.cc, or to task_rules.cc for tasks.
#pragma once

#include <string>
#include <vector>

#include "check/context.h"

namespace hocket::check {

/// A rule. Its predicate returns "" if the rule holds, else the fault.
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
/// Rules of views. Only the first broken rule of a buffer is reported.
const std::vector<Rule<const RankClass&, const program::Buffer&>>& view_rules();
const std::vector<Rule<const RankClass&, const program::Buffer&>>& buffer_rules();
/// Requires: ids are in range, and Context::index_tasks was called.
const std::vector<Rule<ClassId, const RankClass&, const Task&>>& task_rules();

/// Rules that are no predicate over one object: those of order, hazards, memory and values.
/// Context::report accepts only rules of one of the lists.
const std::vector<RuleInfo>& derived_rules();

}  // namespace hocket::check
