// SPDX-License-Identifier: Apache-2.0
// Abstract interpretation of the tasks: every buffer holds (term, layout). Compute tasks make terms
// and move layouts by their op's rule; communication moves layouts and keeps terms. A computed term
// that the single-device step does not contain is refused where it is made.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "check/context.h"
#include "check/hazards.h"

namespace hocket::check {

struct Value {
  ExprId expr = kUnwritten;
  LayoutId layout = 0;
};

class Values {
 public:
  Values(Context& ctx, Reference& reference, const Hazards& hazards);

  /// A task that no other class waits for: local ops, collectives inside a class, messages.
  /// `senders`: for recv, the global tasks of the matching sends (already stepped).
  void step(ClassId cls, TaskId task, int32_t global, std::span<const int32_t> senders);
  /// One collective that crosses classes: the tasks that meet in each sort of instance.
  void meet(std::span<const std::vector<TaskRef>> instances);
  /// The content of this buffer follows from something already refused.
  void lose(ClassId cls, BufferId buffer) { at(cls, buffer).expr = kUnknown; }
  /// Experts of the whole tensors whose rows a kind works on; 0 if none was seen.
  int64_t experts(program::KindId kind) const { return experts_[kind]; }
  /// After the last task: named buffers hold what the single-device step leaves in them.
  void finish();
  /// Least ratio of what a ragged buffer expects to the rows of even routing; 0: there is none.
  double least_factor() const { return least_factor_; }

 private:
  /// Output layouts of a kind for input layouts, worked out once.
  struct Signature {
    std::vector<LayoutId> in, out;
    std::vector<TypeId> logical;  ///< by output: logical type last found to fit, -1
    int32_t bad_axis = -1;        ///< no legal signature on this axis, or one that cuts
    std::string cut;              ///< what the split on bad_axis cuts that the op needs whole
  };

  Value& at(ClassId cls, BufferId buffer) { return values_[cls][buffer]; }
  void set(ClassId cls, const Task& task, size_t output, ExprId expr, LayoutId layout,
           Signature* memo, TaskRef ref);
  void check_expected(ClassId cls, const Task& task, size_t output, LayoutId layout, TaskRef ref);
  void lose_outputs(ClassId cls, const Task& task);
  Signature& signature(const Task& task, const KindInfo& info);
  bool fits(ClassId cls, ExprId expr, LayoutId layout, TypeId local);
  void compute(ClassId cls, TaskId task, const Task& reader, const KindInfo& info);
  void collective(ClassId cls, TaskId task, const Task& member, const KindInfo& info);

  // Collectives: false (and reported) if the value does not lie as the op needs it, or if sizes are
  // not those of the rows.
  bool move(TaskRef ref, const KindInfo& info, const std::vector<int32_t>& axes, size_t operand,
            Value* value);
  void meet(std::span<const TaskRef> tasks);
  void refuse_meeting(std::span<const TaskRef> tasks);
  bool alike(std::span<const TaskRef> tasks);
  bool sizes_fit(TaskRef ref, int32_t axis, const Value& rows, const Value& sizes);
  bool innermost(const Layout& layout, int32_t axis, int32_t dim) const;
  bool local_index(ExprId expr) const;
  void refuse(const char* rule, TaskRef ref, BufferId buffer, const std::string& why,
              const char* fix);

  // Localisation (explain.cc).
  void explain_unknown(TaskRef ref);
  void explain_layout(TaskRef ref, const Signature& signature);
  void explain_final(ClassId cls, BufferId buffer, ExprId want, ExprId got);
  std::string describe(ExprId expr) const;
  std::string difference(ExprId want, ExprId got, std::vector<TaskRef>* who) const;
  std::string whereabouts(ClassId cls, ExprId want, ExprId got, std::vector<TaskRef>* who) const;
  std::vector<TaskRef> makers(ExprId expr, ClassId only_class = kNone) const;
  std::vector<TaskRef> carriers(ExprId expr, ClassId only_class = kNone) const;
  TaskRef misplaced_ancestor(TaskRef ref) const;
  AppId closest(const Task& task, const KindInfo& info) const;

  Context& ctx_;
  Reference& ref_;
  const Hazards& hazards_;
  std::vector<std::vector<Value>> values_;
  std::vector<std::vector<Signature>> signatures_;  ///< by kind
  std::vector<int64_t> experts_;                    ///< by kind, 0: unknown or none
  std::vector<AppId> made_;                         ///< by global task: application computed, -1
  std::map<int32_t, Value> sent_;                   ///< by global task of the send
  double least_factor_ = 0;
  std::vector<ExprId> exprs_;
  std::vector<LayoutId> ins_;
};

}  // namespace hocket::check
