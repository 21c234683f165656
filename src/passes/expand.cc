// SPDX-License-Identifier: Apache-2.0
// expand: collectives of one class of ranks become messages, copies and sums of their own
// (plan.all_reduce, plan.reduce_scatter, plan.all_gather), so that the check proves them, the
// simulator sees every hop, and a transport needs no more than messages.
#include <algorithm>
#include <array>
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

const char* const kNative = "native";
const char* const kHalvingDoubling = "halving_doubling";
const char* const kHierarchical = "hierarchical";
const char* const kHoRing = "ho_ring";

constexpr double kMostPieces = 1024;

struct Options {
  std::string all_reduce = kNative, reduce_scatter = kNative, all_gather = kNative;
  int64_t ho_ring_pieces = 4;
  void fields(Fields& visit) {
    const std::vector<std::string> algorithms{kNative, "ring", kHalvingDoubling, kHierarchical,
                                              kHoRing};
    visit("all_reduce", all_reduce,
          "sums over ranks: of the transport, or as messages: around rings, one per axis of the "
          "mesh, by halves between ranks a power of two apart, inside of nodes and then between "
          "them, or so in pieces, of which some go inside while others go between")
        .one_of(algorithms);
    visit("reduce_scatter", reduce_scatter, "sums of which each rank gets a block: likewise")
        .one_of(algorithms);
    visit("all_gather", all_gather, "blocks of all ranks: likewise").one_of(algorithms);
    visit("ho_ring_pieces", ho_ring_pieces, "most pieces that ho_ring makes of what it moves")
        .min(1)
        .max(kMostPieces);
  }
  /// Of algorithms for nodes: in how many pieces.
  int64_t pieces(const std::string& algorithm) const {
    return algorithm == kHoRing ? ho_ring_pieces : 1;
  }
  bool native() const {
    return all_reduce == kNative && reduce_scatter == kNative && all_gather == kNative;
  }
};

/// Rewrites the tasks of one class.
class Expander {
 public:
  Expander(Program& program, ClassId cls, const Options& options,
           const std::vector<std::vector<int32_t>>& stages, int32_t* next_tag)
      : program_(program), cls_(cls), options_(options), stages_(stages), next_tag_(*next_tag) {
    last_.fill(kNone);
  }

  void run() {
    const std::vector<Task> before = std::move(program_.classes[cls_].tasks);
    std::vector<Task> after;
    std::vector<TaskId> renamed;  // by task: the last of those that it became
    for (Task task : before) {
      for (TaskId& dep : task.deps) {
        dep = renamed[dep];
      }
      for (Task& one : one_by_one(task)) {
        std::vector<TaskId> deps = one.deps;
        std::vector<Task> made = expanded(one);
        if (made.empty()) {
          made.push_back(std::move(one));
        } else {
          follow(made, std::ssize(after), &deps);
          for (Task& part : made) {
            part.deps = deps;
          }
        }
        after.insert(after.end(), made.begin(), made.end());
      }
      renamed.push_back(std::ssize(after) - 1);
    }
    program_.classes[cls_].tasks = std::move(after);
  }

 private:
  /// A collective follows the one before it in every lane that both use: what that one had of
  /// memory may then be had again.
  void follow(const std::vector<Task>& made, TaskId first, std::vector<TaskId>* deps) {
    const std::array<TaskId, program::kNumLanes> before = last_;
    for (size_t i = 0; i < made.size(); ++i) {
      last_[place_of(made[i].lane)] = TaskId(first.value() + static_cast<int32_t>(i));
    }
    for (size_t lane = 0; lane < before.size(); ++lane) {
      if (before[lane] != kNone && before[lane] != last_[lane]) {
        deps->push_back(before[lane]);
      }
    }
  }

  /// The operands of a list that is scattered or gathered as messages, each as a task of its own.
  std::vector<Task> one_by_one(const Task& task) {
    const Kind kind = program_.kind(task);
    const bool list = kind.communication != comm::Id::none && kind.in.size() > 1 &&
                      comm::op(kind.communication).list && kind.communication != comm::summing().id;
    if (!list) return {task};
    const bool sums = comm::op(kind.communication).move.placed == comm::Move::Placed::sum;
    if ((sums ? options_.reduce_scatter : options_.all_gather) == kNative) return {task};
    std::vector<Task> all(kind.in.size(), task);
    for (size_t operand = 0; operand < all.size(); ++operand) {
      Task& one = all[operand];
      one.in = {task.in[operand]};
      one.out = {task.out[operand]};
      one.kind = program_.intern(
          program::communication_kind(kind.communication, kind.attrs, {kind.in[operand]},
                                      {kind.out[operand]}, program_.symbols));
    }
    return all;
  }

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
    using comm::Move;
    const bool sums = op.move.placed == Move::Placed::sum && !op.makes_sizes;
    const bool summed = std::all_of(kind.in.begin(), kind.in.end(), [](const auto& type) {
      return (graph::is_floating(type.dtype) || type.dtype == graph::DType::i64) &&
             !type.symbolic();
    });
    const bool all_reduces = &op == &comm::summing();
    const bool along_rows = !all_reduces && kind.in[0].dims.size() > 0;
    const Nested nested = nested_rings(program_, cls_, axes_of(group));
    if (all_reduces && summed && options_.all_reduce != kNative) {
      // A sum may begin between neighbours, whose links are the fastest.
      std::vector<Level> levels = levels_of(group, options_.all_reduce);
      std::reverse(levels.begin(), levels.end());
      // Parts of a maximum are not put together in a flat buffer, either.
      const bool max = comm::monoid_of(kind.attrs) == graph::Monoid::max;
      if (shares_are_uneven() || (max && !rings.sums_rows(levels))) return {};
      if (is_nested(options_.all_reduce)) {
        rings.all_reduce(nested, options_.pieces(options_.all_reduce));
      } else {
        rings.all_reduce(levels);
      }
    } else if (sums && !all_reduces && summed && along_rows && options_.reduce_scatter != kNative &&
               comm::movement(op, kind.attrs).part_dim == 0) {
      if (is_nested(options_.reduce_scatter)) {
        rings.reduce_scatter(nested, options_.pieces(options_.reduce_scatter));
      } else {
        rings.reduce_scatter(levels_of(group, options_.reduce_scatter));
      }
    } else if (op.move.placed == Move::Placed::slot && op.move.part == Move::Part::whole &&
               options_.all_gather != kNative && comm::movement(op, kind.attrs).slot_dim == 0) {
      if (is_nested(options_.all_gather)) {
        rings.all_gather(nested, options_.pieces(options_.all_gather));
      } else {
        rings.all_gather(levels_of(group, options_.all_gather));
      }
    }
    next_tag_ = rings.next_tag();
    return rings.take();
  }

  /// Outermost first: blocks are numbered by the coordinates on the axes, the last counting
  /// fastest.
  std::vector<Level> levels_of(const Group& group, const std::string& algorithm) const {
    const graph::Mesh& mesh = program_.mesh_of(cls_);
    const std::vector<int32_t> axes = axes_of(group);
    return algorithm == kHalvingDoubling ? halvings(mesh, axes) : whole_rings(mesh, axes);
  }
  static bool is_nested(const std::string& algorithm) {
    return algorithm == kHierarchical || algorithm == kHoRing;
  }
  static std::vector<int32_t> axes_of(const Group& group) {
    std::vector<int32_t> axes = group.axes;
    std::sort(axes.begin(), axes.end());
    return axes;
  }

  /// Whether other ranks of the same stages have other sizes: which sums are taken row by row, and
  /// what lies where in a flat buffer, then depends on the class, which the check does not follow.
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
  std::array<TaskId, program::kNumLanes> last_;  // of what was made so far, by lane
};

void run(Program& program, const Options& options) {
  if (options.native()) return;
  const int32_t first_tag = next_tag(program);
  int32_t tag = first_tag;
  std::vector<std::vector<int32_t>> stages;
  for (const RankClass& cls : program.classes) {
    stages.push_back(program::stages_of(cls));
  }
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    Expander(program, cls, options, stages, &tag).run();
  }
  receive_in_order(program, first_tag);
}

}  // namespace

Pass pass_expand() {
  return program_pass("expand", "writes collectives as messages and sums (plan.all_reduce, ..)",
                      false, {"all_reduce=ring", "all_reduce=halving_doubling"}, run);
}

}  // namespace hocket::passes
