// SPDX-License-Identifier: Apache-2.0
// expand: collectives of one class of ranks become messages, copies and sums of their own
// (plan.all_reduce, plan.reduce_scatter, plan.all_gather), so that the check proves them, the
// simulator sees every hop, and a transport needs no more than messages.
#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/stop.h"
#include "collectives/parts.h"
#include "passes/pass.h"
#include "passes/ring_collectives.h"

namespace hocket::passes {

using program::BufferId;
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

constexpr double kMaxPieces = 1024;

struct ExpandOptions {
  std::string all_reduce = kNative, reduce_scatter = kNative, all_gather = kNative;
  int64_t ho_ring_pieces = 4;
  void fields(Fields& visit) {
    const std::vector<std::string> algorithms{kNative, "ring", kHalvingDoubling, kHierarchical,
                                              kHoRing};
    visit("all_reduce", all_reduce,
          "algorithm of sums over ranks: native, the transport's own; ring, messages around rings, "
          "one per axis of the mesh; halving_doubling, by halves between ranks a power of two "
          "apart; hierarchical, inside nodes and then between them; ho_ring, hierarchical in "
          "pieces, some inside while others are between")
        .one_of(algorithms);
    visit("reduce_scatter", reduce_scatter,
          "algorithm of reductions that leave a block on each rank, as for plan.all_reduce")
        .one_of(algorithms);
    visit("all_gather", all_gather,
          "algorithm of gathers of the blocks of all ranks, as for plan.all_reduce")
        .one_of(algorithms);
    visit("ho_ring_pieces", ho_ring_pieces, "most pieces per transfer of ho_ring")
        .min(1)
        .max(kMaxPieces);
  }
  /// Returns the number of pieces, for hierarchical algorithms.
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
  Expander(Program& program, ClassId cls, const ExpandOptions& options,
           const std::vector<std::vector<int32_t>>& stages, int32_t* next_tag)
      : program_(program), cls_(cls), options_(options), stages_(stages), next_tag_(*next_tag) {}

  void run() {
    // Expands each task first, then orders the results as in the list. An exception is the last
    // phase of a gradient all-reduce over nested levels. It moves behind the next all-reduce's
    // first phase in the lane inside of nodes, so that the links between nodes do not wait. This
    // requires that the next all-reduce is the next communication, and that nothing needs the first
    // result until then.
    const std::vector<Task> before = std::move(program_.classes[cls_].tasks);
    for (size_t i = 0; i < before.size(); ++i) {
      stop_if_asked();
      for (Task& one : one_by_one(before[i])) {
        written_.push_back(expanded(std::move(one)));
        written_.back().of = i;
      }
    }
    renamed_.resize(before.size(), kNone);
    Written* held = nullptr;
    for (size_t i = 0; i < written_.size(); ++i) {
      Written& one = written_[i];
      for (TaskId& dep : one.whole.deps) {
        dep = renamed_[dep];
      }
      follow(i);
      const bool holds = may_hold(i);
      put(one, 0, one.phases.first_end);
      if (held && one.messages) {
        put(*held, held->phases.last_begin, held->tasks.size());
        held = nullptr;
      }
      put(one, one.phases.first_end, holds ? one.phases.last_begin : one.tasks.size());
      held = holds ? &one : held;
    }
    program_.classes[cls_].tasks = std::move(after_);
  }

  /// Returns whether ranks of the same stages have different sizes. Row-wise reductions and the
  /// layout of flat buffers would then depend on the class, which the check does not follow.
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

 private:
  /// The expansion of a task, or of one of its operands.
  struct Written {
    Task whole{};
    TaskId of = kNone;  ///< in the list before
    bool messages = false;
    std::vector<Task> tasks{};  ///< the whole itself, if it stays
    RingCollectives::Phases phases{};
    std::array<TaskId, program::kNumLanes> ends{};  ///< last emitted task per lane
  };

  /// Emits tasks [begin, end) of the expansion.
  void put(Written& one, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      Task& task = one.tasks[i];
      task.deps = one.whole.deps;
      renamed_[one.of] = after_.size();
      one.ends[place_of(task.lane)] = after_.size();
      after_.push_back(std::move(task));
    }
  }

  /// Lets a collective start when the previous but one has left its lane, and lets it reuse that
  /// one's memory: two are in progress per lane.
  void follow(size_t number) {
    Written& one = written_[number];
    if (!one.messages) return;
    std::array<bool, program::kNumLanes> uses{};
    for (const Task& task : one.tasks) {
      uses[place_of(task.lane)] = true;
    }
    for (size_t lane = 0; lane < uses.size(); ++lane) {
      if (!uses[lane]) continue;
      std::vector<size_t>& users = users_[lane];
      if (users.size() > 1) {
        one.whole.deps.push_back(written_[users[users.size() - 2]].ends[lane]);
      }
      users.push_back(number);
    }
  }

  static bool sums_in_phases(const Written& one) {
    return one.whole.phase == program::Phase::grad && one.phases.last_begin > 0;
  }
  /// Returns whether its last phase may wait for the first one of the next communication.
  bool may_hold(size_t number) const {
    const Written& sum = written_[number];
    if (!sums_in_phases(sum)) return false;
    std::set<BufferId> results;
    for (BufferId result : sum.whole.out) {
      results.insert(program_.classes[cls_].root(result));
    }
    const auto is_result = [&](BufferId buffer) {
      return results.contains(program_.classes[cls_].root(buffer));
    };
    for (size_t next = number + 1; next < written_.size(); ++next) {
      const Task& other = written_[next].whole;
      if (std::any_of(other.in.begin(), other.in.end(), is_result) ||
          std::any_of(other.out.begin(), other.out.end(), is_result) ||
          std::find(other.deps.begin(), other.deps.end(), sum.of) != other.deps.end()) {
        return false;
      }
      if (program::is_communication(program_.kind(other))) return sums_in_phases(written_[next]);
    }
    return false;
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
    const std::vector<int64_t> sizes = comm::sizes_of(kind.attrs, all.size());
    for (size_t operand = 0; operand < all.size(); ++operand) {
      Task& one = all[operand];
      one.in = {task.in[operand]};
      one.out = {task.out[operand]};
      graph::Attrs attrs = kind.attrs;
      if (!sizes.empty()) {
        comm::set_sizes({sizes[operand]}, &attrs);
      }
      one.kind = program_.intern(
          program::communication_kind(kind.communication, std::move(attrs), {kind.in[operand]},
                                      {kind.out[operand]}, program_.symbols));
    }
    return all;
  }

  Written expanded(Task task) {
    Written one;
    if (joins_one_class(task)) {
      RingCollectives rings(program_, cls_, task, next_tag_, &cut_);
      write(task, &rings);
      next_tag_ = rings.next_tag();
      one.tasks = rings.take();
      one.phases = rings.phases();
    }
    one.messages = !one.tasks.empty();
    if (!one.messages) {
      one.tasks.push_back(task);
    }
    one.whole = std::move(task);
    return one;
  }

  /// Returns whether all members of the collective have this list of tasks.
  bool joins_one_class(const Task& task) const {
    const Kind& kind = program_.kind(task);
    if (task.group == kNone || kind.communication == comm::Id::none) return false;
    const Group& group = program_.groups[task.group];
    return comm::op(kind.communication).role == comm::Role::collective && group.members.empty() &&
           !group.axes.empty() && !program_.crosses_classes(group);
  }

  /// Writes the expansion of a collective; nothing if it stays native.
  void write(const Task& task, RingCollectives* rings) const {
    const Kind& kind = program_.kind(task);
    const Group& group = program_.groups[task.group];
    const comm::Op& op = comm::op(kind.communication);
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
      // An all-reduce may start between neighbours, with the fastest links.
      std::vector<RingLevel> levels = levels_of(group, options_.all_reduce);
      std::reverse(levels.begin(), levels.end());
      // Parts of a maximum are not put together in a flat buffer, either.
      const bool max = comm::monoid_of(kind.attrs) == graph::Monoid::max;
      if (shares_are_uneven() || (max && !rings->sums_rows(levels))) return;
      if (is_nested(options_.all_reduce)) {
        rings->all_reduce(nested, options_.pieces(options_.all_reduce));
      } else {
        rings->all_reduce(levels);
      }
    } else if (sums && !all_reduces && summed && along_rows && options_.reduce_scatter != kNative &&
               comm::movement(op, kind.attrs).part_dim == 0 && !shares_are_uneven()) {
      if (is_nested(options_.reduce_scatter)) {
        rings->reduce_scatter(nested, options_.pieces(options_.reduce_scatter));
      } else {
        rings->reduce_scatter(levels_of(group, options_.reduce_scatter));
      }
    } else if (op.move.placed == Move::Placed::slot && op.move.part == Move::Part::whole &&
               !kind.in[0].symbolic() && options_.all_gather != kNative &&
               comm::movement(op, kind.attrs).slot_dim == 0) {
      if (is_nested(options_.all_gather)) {
        rings->all_gather(nested, options_.pieces(options_.all_gather));
      } else {
        rings->all_gather(levels_of(group, options_.all_gather));
      }
    }
  }

  /// Outermost first: blocks are numbered by the coordinates on the axes, the last counting
  /// fastest.
  std::vector<RingLevel> levels_of(const Group& group, const std::string& algorithm) const {
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

  Program& program_;
  ClassId cls_;
  const ExpandOptions& options_;
  const std::vector<std::vector<int32_t>>& stages_;  // by class
  int32_t& next_tag_;
  RingCollectives::ViewsAlongOtherDims cut_;
  std::vector<Written> written_;
  std::vector<Task> after_;
  std::vector<TaskId> renamed_;  // per original task the last task of its expansion
  std::array<std::vector<size_t>, program::kNumLanes> users_;  // by lane: the collectives in it
};

void run_expand(Program& program, const ExpandOptions& options) {
  if (options.native()) return;
  const int32_t first_tag = next_tag(program);
  int32_t tag = first_tag;
  std::vector<std::vector<int32_t>> stages;
  for (const RankClass& cls : program.classes) {
    stages.push_back(program::stages_of(cls));
  }
  bool some_uneven = false;
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    Expander expander(program, cls, options, stages, &tag);
    some_uneven = some_uneven || expander.shares_are_uneven();
    expander.run();
  }
  const bool sums = options.all_reduce != kNative || options.reduce_scatter != kNative;
  if (some_uneven && sums && program.purpose.empty()) {
    log_warning(
        "plan.all_reduce, plan.reduce_scatter: ranks of a stage have uneven shares; "
        "their all-reduces stay native");
  }
  receive_in_order(program, first_tag);
}

}  // namespace

Pass pass_expand() {
  return program_pass("expand", "writes collectives as messages and sums (plan.all_reduce, ..)",
                      false, {"all_reduce=ring", "all_reduce=halving_doubling"}, run_expand);
}

}  // namespace hocket::passes
