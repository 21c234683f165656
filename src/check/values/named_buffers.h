// SPDX-License-Identifier: Apache-2.0
// Named buffers against the single-device graph: the values that the host puts into inputs and
// persistent buffers before the step, and those that the step must leave in them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "check/values/replicas.h"

namespace hocket::check {

class NamedBuffers {
 public:
  explicit NamedBuffers(Machine& machine) : m_(machine), replicas_(machine) {}

  /// Returns the value of a named buffer before the step: filled by the host, or unwritten if the
  /// host only reads it. kUnknown, and reported, if its name, micro-batch or type do not fit the
  /// graph.
  Value initial_value(ClassId cls, BufferId buffer);
  /// Requires: the last task has run. Refuses buffers with values other than the single-device
  /// step's, and results that no class keeps.
  void finish();
  const Replicas& replicas() const { return replicas_; }

 private:
  /// Holders by tensor and micro-batch; -1: tensors of the step.
  using Kept = std::map<std::pair<int32_t, int32_t>, std::vector<Holder>>;
  /// Returns why a named buffer can't hold (a part of) this tensor of the graph, or null.
  const char* bad_name(const program::Buffer& buffer, int32_t tensor) const;
  /// Returns why the slots of a bucket can't be filled by their layouts, or null.
  const char* bad_slots(ClassId cls, const program::Buffer& buffer);
  /// Term of a tensor before the step; kUnwritten for an output.
  ExprId before_step(const program::Buffer& buffer, int32_t tensor);
  /// Returns the content of a bucket if these are the terms of its slots.
  Value contents(ClassId cls, const program::Buffer& buffer, std::span<const ExprId> terms);
  bool matches_declaration(const Value& value, ClassId cls, const program::Buffer& buffer);
  void finish_buffer(ClassId cls, BufferId buffer, Kept* kept);
  void finish_bucket(ClassId cls, BufferId buffer, std::span<const ExprId> want,
                     const Value& value);

  Machine& m_;
  Replicas replicas_;
  std::set<std::pair<ClassId, BufferId>> undeclared_;  ///< refused before the step
  bool lost_ = false;                                  ///< a named buffer's value is kUnknown
};

}  // namespace hocket::check
