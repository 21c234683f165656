// SPDX-License-Identifier: Apache-2.0
#include "passes/roles.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "passes/chunk_parts.h"
#include "passes/writer.h"

namespace hocket::passes {

using program::BufferId;
using program::kNone;
using program::Program;
using program::RankClass;
using program::Task;

namespace {

/// Rows of experts, and the routing that places them.
bool is_of_experts(const Program& program, const Task& task) {
  return moves_rows(program.kind(task)) || makes_routing(program.kind(task));
}

/// The exchange between the expert tasks of a class and its others.
class Side {
 public:
  Side(const Program& program, program::ClassId cls)
      : program_(program), list_(program.classes[cls]) {
    for (const Task& task : list_.tasks) {
      for (const BufferId output : task.out) {
        (is_of_experts(program, task) ? experts_ : others_).insert(list_.root(output));
        maker_[list_.root(output)] = &task;
      }
    }
    std::set<BufferId> known;
    for (const Task& task : list_.tasks) {
      for (const BufferId input : task.in) {
        note(task, list_.root(input), &known);
      }
    }
  }

  /// A buffer, and the layer and micro-batch of the task that is the first to take it.
  struct Crossing {
    BufferId buffer = kNone;
    int32_t micro_batch = kNone, layer = kNone;
    bool is_of(const Task& task) const {
      return task.micro_batch == micro_batch && task.layer == layer;
    }
  };
  /// Tensors that experts take from others, or others from experts, in order of use. Routing that
  /// others read (its counts) is computed on their side.
  const std::vector<Crossing>& to_experts() const { return to_experts_; }
  const std::vector<Crossing>& from_experts() const { return from_experts_; }
  /// The last task that makes some of the buffer.
  bool is_last_maker(const Task& task, BufferId buffer) const { return maker_.at(buffer) == &task; }
  bool read_by_others(BufferId root) const { return read_by_others_.contains(root); }

 private:
  void note(const Task& task, BufferId root, std::set<BufferId>* known) {
    const bool experts = is_of_experts(program_, task);
    if (!experts) {
      read_by_others_.insert(root);
    }
    const bool made_by_experts = experts_.contains(root) && !others_.contains(root);
    const bool crosses = experts ? others_.contains(root) : made_by_experts;
    if (!crosses || !known->insert(root).second) return;
    if (experts) {
      to_experts_.push_back({root, task.micro_batch, task.layer});
    } else if (!makes_routing(program_.kind(*maker_.at(root)))) {
      from_experts_.push_back({root, task.micro_batch, task.layer});
    }
  }

  const Program& program_;
  const RankClass& list_;
  std::set<BufferId> experts_, others_, read_by_others_;  ///< made or read by them
  std::map<BufferId, const Task*> maker_;
  std::vector<Crossing> to_experts_, from_experts_;
};

/// Leaves out the buffers that no task has.
void drop_unused(RankClass& cls) {
  std::vector<bool> used(cls.buffers.size(), false);
  for (const Task& task : cls.tasks) {
    for (const auto* list : {&task.in, &task.out}) {
      for (const BufferId buffer : *list) {
        used[buffer] = true;
        used[cls.root(buffer)] = true;
      }
    }
  }
  std::vector<BufferId> place(cls.buffers.size(), kNone);
  std::vector<program::Buffer> kept;
  for (size_t i = 0; i < cls.buffers.size(); ++i) {
    if (!used[i]) continue;
    place[i] = kept.size();
    kept.push_back(std::move(cls.buffers[i]));
    if (kept.back().base != kNone) {
      kept.back().base = place[kept.back().base];
    }
  }
  cls.buffers = std::move(kept);
  for (Task& task : cls.tasks) {
    for (auto* list : {&task.in, &task.out}) {
      for (BufferId& buffer : *list) {
        buffer = place[buffer];
      }
    }
  }
}

class Join {
 public:
  Join(const graph::Graph& graph, Program all, Program experts)
      : graph_(graph), all_(std::move(all)), experts_(std::move(experts)), made_(all_) {}

  Program run() {
    // Both lists are in the order of the graph, micro-batch by micro-batch, and so are transfers:
    // the k-th of one role matches the k-th of the other.
    made_.roles[0].name = "attention";
    program::Role role = experts_.roles[0];
    role.name = "experts";
    made_.roles.push_back(std::move(role));
    group_ = made_.intern(program::group_between(0, 1));
    const std::vector<Side> mine = sides_of(all_);
    const std::vector<Side> others = sides_of(experts_);
    if (mine[0].to_experts().empty()) {
      fail("plan",
           "plan.expert_ranks is set, but the model has no experts; try plan.expert_ranks: 0");
    }
    find_begins(experts_, others, 1);
    find_begins(all_, mine, 0);
    for (size_t cls = 0; cls < others.size(); ++cls) {
      add_class(cls, others[cls]);
    }
    for (size_t cls = 0; cls < mine.size(); ++cls) {
      keep_others(cls, mine[cls]);
    }
    for (RankClass& cls : made_.classes) {
      drop_unused(cls);
    }
    return std::move(made_);
  }

 private:
  static std::vector<Side> sides_of(const Program& program) {
    std::vector<Side> sides;
    for (program::ClassId cls = 0; cls < program.classes.size(); ++cls) {
      sides.emplace_back(program, cls);
    }
    return sides;
  }

  /// Finds the offsets of crossing tensors on every rank of a role. Its classes have the same list,
  /// and ranks have consecutive parts of their class's size.
  void find_begins(const Program& program, const std::vector<Side>& sides, program::RoleId role) {
    for (const auto list : {&Side::to_experts, &Side::from_experts}) {
      for (size_t number = 0; number < (sides[0].*list)().size(); ++number) {
        std::vector<BufferId> buffers;
        for (const Side& side : sides) {
          HOCKET_CHECK((side.*list)().size() == (sides[0].*list)().size(),
                       "classes of a role give and take other numbers of values");
          buffers.push_back((side.*list)()[number].buffer);
        }
        const std::vector<program::PieceOffset> piece_offsets =
            piece_offsets_of(program, buffers, role);
        for (size_t cls = 0; cls < buffers.size(); ++cls) {
          const size_t first = role == 0 ? 0 : all_.classes.size();
          piece_offsets_[{program::ClassId(first + cls), buffers[cls]}] = piece_offsets;
        }
      }
    }
  }

  /// The same of one tensor, which is a buffer of each class.
  std::vector<program::PieceOffset> piece_offsets_of(const Program& program,
                                                     const std::vector<BufferId>& buffers,
                                                     program::RoleId role) {
    const auto buffer_of = [&](size_t cls) -> const program::Buffer& {
      return program.classes[program::ClassId(cls)].buffers[buffers[cls]];
    };
    HOCKET_CHECK(buffer_of(0).logical != kNone, "a buffer that is given has no tensor");
    const graph::TensorType& whole = graph_.tensor(buffer_of(0).logical).type;
    std::vector<program::PieceOffset> piece_offsets;
    for (size_t dim = 0; dim < whole.dims.size(); ++dim) {
      std::vector<int64_t> lengths(static_cast<size_t>(program.num_ranks()), 0);
      for (size_t cls = 0; cls < buffers.size(); ++cls) {
        for (const int32_t rank : program.ranks_of(program::ClassId(cls))) {
          lengths[static_cast<size_t>(rank)] = buffer_of(cls).type.dims[dim];
        }
      }
      if (std::all_of(lengths.begin(), lengths.end(),
                      [&](int64_t length) { return whole.dims[dim] == length; })) {
        continue;
      }
      program::Table table{.role = role, .axes = {}, .values = {}};
      for (size_t axis = 0; axis < program.roles[0].mesh.axes.size(); ++axis) {
        table.axes.push_back(static_cast<int32_t>(axis));
      }
      int64_t begin = 0;
      for (const int64_t length : lengths) {
        table.values.push_back(begin);
        begin += length;
      }
      if (whole.dims[dim] != begin) {
        fail("plan",
             "plan.expert_ranks: ranks have {} together of {}; expected each index on one rank",
             begin, to_string(whole));
      }
      piece_offsets.push_back({static_cast<char>('a' + dim), 0, made_.intern(std::move(table))});
    }
    return piece_offsets;
  }

  /// The end of a transfer of all of a buffer.
  Task transfer(program::ClassId cls, BufferId buffer, bool gives, const Task& beside) {
    const Writer writer(made_, cls);
    const comm::Id op = between();
    const std::vector<BufferId> moved{buffer}, none;
    Task task =
        writer.collective(op, {}, group_, gives ? moved : none, gives ? none : moved, beside);
    task.piece_offsets = piece_offsets_.at({cls, buffer});
    return task;
  }
  static comm::Id between() {
    for (const comm::Op* op : comm::all()) {
      if (op->role == comm::Role::between) return op->id;
    }
    HOCKET_CHECK(false, "no op transfers between roles");
  }

  /// Adds a class of the second role: its expert tasks, preceded by the inputs of a layer, and
  /// followed by its outputs.
  void add_class(program::ClassId from, const Side& side) {
    const program::ClassId id(made_.classes.size());
    made_.classes.push_back(experts_.classes[from]);
    made_.classes[id].tasks.clear();
    made_.classes[id].role = 1;
    made_.classes[id].name = "experts";
    for (program::Buffer& buffer : made_.classes[id].buffers) {
      buffer.by = moved(buffer.by);
    }
    for (const Task& given : experts_.classes[from].tasks) {
      if (!is_of_experts(experts_, given)) continue;
      const Task task = brought(id, given);
      take_before(side.to_experts(), id, false, task);
      push(id, task);
      for (const Side::Crossing& crossing : side.from_experts()) {
        if (side.is_last_maker(given, crossing.buffer)) {
          push(id, transfer(id, crossing.buffer, true, task));
        }
      }
    }
  }
  /// Takes the crossing tensors of a task's layer and micro-batch, once.
  void take_before(const std::vector<Side::Crossing>& all, program::ClassId cls, bool gives,
                   const Task& task) {
    for (const Side::Crossing& crossing : all) {
      if (crossing.is_of(task) && moved_.insert({cls, crossing.buffer}).second) {
        push(cls, transfer(cls, crossing.buffer, gives, task));
      }
    }
  }
  void push(program::ClassId cls, Task task) {
    made_.classes[cls].tasks.push_back(std::move(task));
  }

  program::TableId moved(program::TableId by) {
    if (by == kNone) return by;
    program::Table table = experts_.tables[by];
    table.role = 1;
    return made_.intern(std::move(table));
  }
  /// A task of the second program, by the numbers of the made one.
  Task brought(program::ClassId cls, Task task) {
    task.kind = made_.intern(experts_.kind(task));
    if (task.group != kNone) {
      program::Group group = experts_.groups[task.group];
      group.role = 1;
      task.group = made_.intern(group);
      // Its ranks are others now, and so may be the nodes that they are on.
      const comm::Role role = comm::op(made_.kind(task).communication).role;
      task.lane = program::link_lane(role, made_.leaves_node(made_.groups[task.group], cls));
    }
    for (auto* list : {&task.piece_offsets, &task.parts}) {
      for (program::PieceOffset& begin : *list) {
        begin.by = moved(begin.by);
      }
    }
    task.peer_by = moved(task.peer_by);
    task.deps.clear();
    return task;
  }

  /// The first role without experts: a layer's inputs are given in place of its first expert task,
  /// and its results taken in place of the last one.
  void keep_others(program::ClassId id, const Side& side) {
    const RankClass& cls = all_.classes[id];
    made_.classes[id].tasks.clear();
    for (const Task& task : cls.tasks) {
      if (!is_of_experts(all_, task)) {
        push(id, task);
        continue;
      }
      take_before(side.to_experts(), id, true, task);
      const bool wanted = std::any_of(task.out.begin(), task.out.end(), [&](BufferId output) {
        const BufferId root = cls.root(output);
        return cls.buffers[root].kind == program::BufferKind::output || side.read_by_others(root);
      });
      if (makes_routing(all_.kind(task)) && wanted) {
        push(id, task);
      }
      for (const Side::Crossing& crossing : side.from_experts()) {
        if (side.is_last_maker(task, crossing.buffer)) {
          push(id, transfer(id, crossing.buffer, false, task));
        }
      }
    }
  }

  const graph::Graph& graph_;
  const Program all_, experts_;
  Program made_;
  program::GroupId group_ = kNone;
  std::set<std::pair<program::ClassId, BufferId>> moved_;
  /// Offsets of crossing tensors, by class and buffer of the new program.
  std::map<std::pair<program::ClassId, BufferId>, std::vector<program::PieceOffset>> piece_offsets_;
};

}  // namespace

Program with_expert_role(const graph::Graph& graph, Program all, Program experts) {
  return Join(graph, std::move(all), std::move(experts)).run();
}

}  // namespace hocket::passes
