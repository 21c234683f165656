// SPDX-License-Identifier: Apache-2.0
// expand: collectives of one class of ranks become messages, copies and sums of their own
// (plan.all_reduce, plan.reduce_scatter, plan.all_gather), so that the check proves them, the
// simulator sees every hop, and a transport needs no more than messages.
#include <algorithm>
#include <map>
#include <string>

#include "passes/pass.h"
#include "passes/rings.h"

namespace hocket::passes {

using program::ClassId;
using program::Group;
using program::Kind;
using program::kNone;
using program::Program;
using program::RankClass;
using program::Task;
using program::TaskId;

namespace {

struct Options {
  std::string all_reduce = "native", reduce_scatter = "native", all_gather = "native";
  void fields(Fields& visit) {
    visit("all_reduce", all_reduce,
          "sums over ranks: of the transport, or as messages around rings, one per axis of the "
          "mesh")
        .one_of({"native", "ring"});
    visit("reduce_scatter", reduce_scatter, "sums of which each rank gets a block: likewise")
        .one_of({"native", "ring"});
    visit("all_gather", all_gather, "blocks of all ranks: likewise").one_of({"native", "ring"});
  }
  bool native() const {
    return all_reduce == "native" && reduce_scatter == "native" && all_gather == "native";
  }
};

/// Rewrites the tasks of one class.
class Expander {
 public:
  Expander(Program& program, ClassId cls, const Options& options,
           const std::vector<std::vector<int32_t>>& stages, int32_t* next_tag)
      : program_(program), cls_(cls), options_(options), stages_(stages), next_tag_(*next_tag) {}

  void run() {
    const std::vector<Task> before = std::move(program_.classes[cls_].tasks);
    std::vector<Task> after;
    std::vector<TaskId> renamed;  // by task: the last of those that it became
    for (Task task : before) {
      for (TaskId& dep : task.deps) {
        dep = renamed[dep];
      }
      const std::vector<TaskId> deps = task.deps;
      std::vector<Task> made = expanded(task);
      if (made.empty()) {
        made.push_back(std::move(task));
      } else {
        for (Task& part : made) {
          part.deps = deps;
        }
      }
      after.insert(after.end(), made.begin(), made.end());
      renamed.push_back(std::ssize(after) - 1);
    }
    program_.classes[cls_].tasks = std::move(after);
  }

 private:
  /// What a collective becomes; nothing if it stays.
  std::vector<Task> expanded(const Task& task) {
    const Kind& kind = program_.kind(task);
    if (task.group == kNone || kind.communication == comm::Id::none) return {};
    const Group& group = program_.groups[task.group];
    const comm::Op& op = comm::op(kind.communication);
    if (op.role != comm::Role::collective || !group.members.empty() || group.axes.empty() ||
        program_.crosses_classes(group)) {
      return {};
    }
    Rings rings(program_, cls_, task, next_tag_);
    // Blocks are numbered by the coordinates on the axes, the last counting fastest; a sum may
    // begin between neighbours, whose links are the fastest.
    std::vector<int32_t> axes = group.axes;
    std::sort(axes.begin(), axes.end());
    using comm::Move;
    const bool sums = op.move.placed == Move::Placed::sum && !op.makes_sizes;
    const bool summed = std::all_of(kind.in.begin(), kind.in.end(), [](const auto& type) {
      return (graph::is_floating(type.dtype) || type.dtype == graph::DType::i64) &&
             !type.symbolic();
    });
    const bool along_rows = !op.list && kind.in[0].dims.size() > 0;
    if (sums && op.list && summed && options_.all_reduce == "ring") {
      std::reverse(axes.begin(), axes.end());
      // Of a maximum, zeros behind the operands of a flat buffer are no part.
      const bool max = comm::monoid_of(kind.attrs) == graph::Monoid::max;
      if ((max || shares_are_uneven()) && !rings.sums_rows(axes)) return {};
      rings.all_reduce(axes);
    } else if (sums && !op.list && summed && along_rows && options_.reduce_scatter == "ring" &&
               comm::movement(op, kind.attrs).part_dim == 0) {
      rings.reduce_scatter(axes);
    } else if (op.move.placed == Move::Placed::slot && op.move.part == Move::Part::whole &&
               options_.all_gather == "ring" && comm::movement(op, kind.attrs).slot_dim == 0) {
      rings.all_gather(axes);
    }
    next_tag_ = rings.next_tag();
    return rings.take();
  }

  /// Whether other ranks of the same stages have other sizes: what lies where in a flat buffer then
  /// depends on the class, which the check does not follow.
  bool shares_are_uneven() const {
    const RankClass& mine = program_.classes[cls_];
    for (size_t other = 0; other < program_.classes.size(); ++other) {
      if (cls_ != other && program_.classes[other].role == mine.role &&
          stages_[other] == stages_[cls_]) {
        return true;
      }
    }
    return false;
  }

  Program& program_;
  ClassId cls_;
  const Options& options_;
  const std::vector<std::vector<int32_t>>& stages_;  // by class
  int32_t& next_tag_;
};

void run(Program& program, const Options& options) {
  if (options.native()) return;
  int32_t next_tag = 0;
  for (const RankClass& cls : program.classes) {
    for (const Task& task : cls.tasks) {
      next_tag = std::max(next_tag, task.tag + 1);
    }
  }
  std::vector<std::vector<int32_t>> stages;
  for (const RankClass& cls : program.classes) {
    stages.push_back(program::stages_of(cls));
  }
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    Expander(program, cls, options, stages, &next_tag).run();
  }
}

}  // namespace

Pass pass_expand() {
  return program_pass("expand", "writes collectives as messages and sums (plan.all_reduce, ..)",
                      false, {"all_reduce=ring"}, run);
}

}  // namespace hocket::passes
