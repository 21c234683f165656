// SPDX-License-Identifier: Apache-2.0
#include "program/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "collectives/comm_op.h"
#include "ops/op.h"

namespace hocket::program {

namespace {

/// Letters of a task's operands: from the op's notation; for a communication one per dim, 'a' for
/// dim 0, the same for inputs and outputs.
struct Operands {
  std::vector<std::string> in, out;
};

Operands letters_of(const Kind& kind) {
  if (!is_communication(kind)) {
    const ops::Letters letters = ops::letters(ops::find(kind.op), kind.in, kind.out);
    return {letters.in, letters.out};
  }
  const auto by_dim = [](const std::vector<TensorType>& types) {
    std::vector<std::string> list;
    for (const TensorType& type : types) {
      list.push_back(std::string("abcdef").substr(0, type.dims.size()));
    }
    return list;
  };
  return {by_dim(kind.in), by_dim(kind.out)};
}

/// Parts of one class. Buffers are added to it: views, which have no memory.
class Expansion {
 public:
  Expansion(const Program& from, ClassId cls, Program* to, int32_t first_tag)
      : from_(from), cls_(cls), to_(*to), first_tag_(first_tag) {}

  std::vector<TaskId> run() {
    // First the tasks for each original, then their operands, then dependencies: a dependency on a
    // task is one on its last part, and its first part has the task's dependencies.
    expect_ids();
    const std::vector<Task>& tasks = from_.classes[cls_].tasks;
    int32_t next = 0;
    for (size_t id = 0; id < tasks.size(); ++id) {
      if (!tasks[id].parts.empty()) {
        expect_divisible(id);
      }
      first_.push_back(next);
      next += count_of(tasks[id]);
    }
    RankClass& cls = to_.classes[cls_];
    cls.tasks.clear();
    std::vector<TaskId> origin;
    for (size_t id = 0; id < tasks.size(); ++id) {
      for (int32_t part = 0; part < count_of(tasks[id]); ++part) {
        Task made = tasks[id].parts.empty() ? tasks[id] : part_of(id, part);
        made.deps = deps_of(id, part);
        made.parts.clear();
        made.part_deps.clear();
        cls.tasks.push_back(std::move(made));
        origin.push_back(id);
      }
    }
    return origin;
  }

 private:
  [[noreturn]] void refuse(TaskId id, const std::string& why) const {
    const Task& task = from_.classes[cls_].tasks[id];
    throw PartsError(cls_, id,
                     fmt::format("task {} ({}) of class {} in parts along '{}': {}", id,
                                 from_.kind(task).op, cls_, task.parts[0].letter, why));
  }

  /// Checks the ids in parts. Everything else was checked before, by the parser or by the rules.
  void expect_ids() const {
    const RankClass& cls = from_.classes[cls_];
    const auto expect = [&](size_t task, const char* what, int64_t id, size_t count) {
      if (id >= 0 && std::cmp_less(id, count)) return;
      throw PartsError(
          cls_, task,
          fmt::format("task {} of class {}: {} {} does not exist", task, cls_, what, id));
    };
    for (size_t id = 0; id < cls.tasks.size(); ++id) {
      const Task& task = cls.tasks[id];
      const Kind& kind = from_.kind(task);
      if (task.in.size() != kind.in.size() || task.out.size() != kind.out.size()) {
        fail("parts", "task {} of class {} ({}) has {} inputs and {} outputs, its kind {} and {}",
             id, cls_, kind.op, task.in.size(), task.out.size(), kind.in.size(), kind.out.size());
      }
      for (const PartDep& dep : cls.tasks[id].part_deps) {
        expect(id, "task", dep.task.value(), cls.tasks.size());
      }
      for (const PieceOffset& parts : cls.tasks[id].parts) {
        if (parts.by == kNone) continue;
        expect(id, "table", parts.by.value(), from_.tables.size());
        if (from_.tables[parts.by].role != cls.role) {
          throw PartsError(
              cls_, id,
              fmt::format("task {} of class {}: table {} is of another role", id, cls_, parts.by));
        }
      }
    }
  }

  static int32_t count_of(const Task& task) {
    const int64_t count = task.parts.empty() ? 1 : task.parts[0].begin;
    return static_cast<int32_t>(std::clamp<int64_t>(count, -kMaxTaskParts - 1, kMaxTaskParts + 1)) *
           (count < 0 ? -1 : 1);
  }

  std::vector<TaskId> deps_of(TaskId id, int32_t part) const {
    const std::vector<Task>& tasks = from_.classes[cls_].tasks;
    std::vector<TaskId> deps;
    for (TaskId dep : tasks[id].deps) {
      if (part == 0) {
        deps.push_back(first_[dep] + count_of(tasks[dep]) - 1);
      }
    }
    for (const PartDep& dep : tasks[id].part_deps) {
      if (dep.own < 0 || dep.own >= count_of(tasks[id]) || dep.part < 0 ||
          dep.part >= count_of(tasks[dep.task])) {
        throw PartsError(
            cls_, id,
            fmt::format("part {} of task {} waits for part {} of task {}; they have {} and {}",
                        dep.own, id, dep.part, dep.task, count_of(tasks[id]),
                        count_of(tasks[dep.task])));
      }
      if (dep.own == part) {
        deps.push_back(first_[dep.task] + dep.part);
      }
    }
    std::sort(deps.begin(), deps.end());
    deps.erase(std::unique(deps.begin(), deps.end()), deps.end());
    return deps;
  }

  /// Part number `part` of a task.
  Task part_of(TaskId id, int32_t part) {
    const Task& task = from_.classes[cls_].tasks[id];
    const Kind& kind = from_.kind(task);
    const PieceOffset& parts = task.parts[0];
    const Operands letters = letters_of(kind);
    Task made = task;
    Kind small = kind;
    int64_t logical = 0;  // of the letter, of one part
    const auto cut = [&](const std::vector<std::string>& names, std::vector<TensorType>* types,
                         std::vector<BufferId>* buffers) {
      for (size_t i = 0; i < names.size(); ++i) {
        const size_t dim = names[i].find(parts.letter);
        if (dim == std::string::npos) continue;
        TensorType& type = (*types)[i];
        if (!type.dims[dim].divides_into(count_of(task))) {
          refuse(id, fmt::format("{} can't be {} equal parts", to_string(type), count_of(task)));
        }
        type.dims[dim] /= count_of(task);
        logical = type.dims[dim];
        (*buffers)[i] = block((*buffers)[i], static_cast<int32_t>(dim), type, task, part, id);
      }
    };
    cut(letters.in, &small.in, &made.in);
    cut(letters.out, &small.out, &made.out);
    if (logical == 0) refuse(id, "no operand has it");
    for (size_t output = 0; output < letters.out.size(); ++output) {
      if (letters.out[output].find(parts.letter) == std::string::npos && part > 0) {
        made.accumulate.add(output);
      }
    }
    if (!is_communication(kind)) {
      const ops::Op& op = ops::find(kind.op);
      if (op.layout.is_positional(parts.letter)) {
        move_begin(&made, task, part, logical);
      }
      const ops::Cost cost = ops::cost_of(op, {small.attrs, small.in, small.out, 0, from_.symbols});
      small.flops = cost.flops;
      small.bytes = cost.bytes;
      small.workspace = cost.workspace;
    } else {
      const comm::Op& op = comm::op(kind.communication);
      small.bytes = op.payload(small.attrs, graph::expected_types(small.in, from_.symbols),
                               graph::expected_types(small.out, from_.symbols));
      if (made.tag != kNone) {
        const int64_t tag = int64_t{first_tag_} + int64_t{task.tag} * kMaxTaskParts + part;
        if (!std::in_range<int32_t>(tag)) refuse(id, fmt::format("tag {} is too large", task.tag));
        made.tag = static_cast<int32_t>(tag);
      }
    }
    made.kind = to_.intern(std::move(small));
    return made;
  }

  /// A letter along which the task can be done block by block.
  void expect_divisible(TaskId id) const {
    const Task& task = from_.classes[cls_].tasks[id];
    const Kind& kind = from_.kind(task);
    const Operands letters = letters_of(kind);
    const char letter = task.parts[0].letter;
    if (task.parts.size() > 1) refuse(id, "parts along one letter at a time");
    if (count_of(task) < 1 || count_of(task) > kMaxTaskParts) {
      refuse(id, fmt::format("got {} parts; expected 1 to {}", count_of(task), kMaxTaskParts));
    }
    for (const auto* list : {&kind.in, &kind.out}) {
      for (const TensorType& type : *list) {
        if (type.routed()) refuse(id, "routed rows are in no order that could be cut");
      }
    }
    if (is_communication(kind)) {
      const comm::Op& op = comm::op(kind.communication);
      if (op.role == comm::Role::between || op.needs_sizes || op.makes_sizes) {
        refuse(id, "the other operands decide its movement");
      }
      for (const auto* list : {&letters.in, &letters.out}) {
        for (const std::string& operand : *list) {
          if (operand.find(letter) == std::string::npos) refuse(id, "an operand lacks it");
        }
      }
      if (op.role != comm::Role::collective) return;
      const comm::Movement movement = comm::movement(op, kind.attrs);
      const int dim = letter - 'a';
      const bool along =
          (movement.move.placed == comm::Move::Placed::slot && movement.slot_dim == dim) ||
          (movement.move.part == comm::Move::Part::block && movement.part_dim == dim);
      if (along) refuse(id, "it moves blocks along that dim");
      return;
    }
    const ops::Op& op = ops::find(kind.op);
    if (std::string_view(op.layout.split).find(letter) == std::string::npos) {
      refuse(id, "the op needs all of it at once");
    }
    for (size_t output = 0; output < letters.out.size(); ++output) {
      if (letters.out[output].find(letter) == std::string::npos && count_of(task) > 1 &&
          (!op.accumulates.contains(output) || op.layout.monoid(letter) != ops::Monoid::sum)) {
        refuse(id,
               fmt::format("output {} is put together from its blocks, and not added to", output));
      }
    }
  }

  /// Returns the offset of block `part`, relative to another offset: a constant, or a table.
  PieceOffset piece_offset(const Task& task, int32_t part, int64_t length,
                           const PieceOffset& beside) {
    const PieceOffset& parts = task.parts[0];
    const int64_t count = count_of(task);
    const int64_t step = parts.begin < 0 ? -part : part;
    const auto block = [&](int64_t first) {
      return ((first + step) % count + count) % count * length;
    };
    if (parts.by == kNone) return {beside.letter, beside.begin + block(0), beside.by};
    const auto& tables = from_.tables;
    Table table;
    table.role = from_.classes[cls_].role;
    table.axes = tables[parts.by].axes;
    if (beside.by != kNone) {
      table.axes.insert(table.axes.end(), tables[beside.by].axes.begin(),
                        tables[beside.by].axes.end());
      std::sort(table.axes.begin(), table.axes.end());
      table.axes.erase(std::unique(table.axes.begin(), table.axes.end()), table.axes.end());
    }
    const Mesh& mesh = from_.mesh_of(cls_);
    std::vector<int32_t> at(mesh.axes.size(), 0);
    const int32_t first_rank = from_.first_rank(table.role);
    bool more = true;
    while (more) {
      const int32_t rank = first_rank + mesh.rank(at);
      table.values.push_back(block(from_.begin_at(0, parts.by, rank)) +
                             (beside.by == kNone ? 0 : from_.begin_at(0, beside.by, rank)));
      more = false;
      for (size_t i = table.axes.size(); i-- > 0 && !more;) {
        int32_t& coordinate = at[table.axes[i]];
        more = ++coordinate < mesh.axes[table.axes[i]].size;
        if (!more) {
          coordinate = 0;
        }
      }
    }
    return {beside.letter, beside.begin, to_.intern(std::move(table))};
  }

  /// The view that a part has of an operand.
  BufferId block(BufferId of, int32_t dim, const TensorType& type, const Task& task, int32_t part,
                 TaskId id) {
    auto& buffers = to_.classes[cls_].buffers;
    const Buffer& whole = buffers[of];
    Buffer view;
    view.kind = BufferKind::view;
    view.type = type;
    view.base = of;
    view.dim = dim;
    PieceOffset beside;
    if (whole.kind == BufferKind::view) {
      if (whole.dim != dim) refuse(id, "an operand is a view along another dim");
      view.base = whole.base;
      beside = {0, whole.begin, whole.by};
    }
    const PieceOffset begin = piece_offset(task, part, type.dims[dim], beside);
    view.begin = begin.begin;
    view.by = begin.by;
    const auto key =
        std::tuple(view.base.value(), dim, view.begin, view.by.value(), int64_t{type.dims[dim]});
    const auto [known, fresh] = views_.try_emplace(key, BufferId(buffers.size()));
    if (fresh) {
      buffers.push_back(view);
    }
    return known->second;
  }

  /// Moves the begin of a part: for a positional letter of the op, its offset is its block's.
  void move_begin(Task* made, const Task& task, int32_t part, int64_t length) {
    const char letter = task.parts[0].letter;
    const PieceOffset* const whole = task.piece_offset(letter);
    const PieceOffset begin =
        piece_offset(task, part, length, whole ? *whole : PieceOffset{letter, 0, kNone});
    if (whole) {
      made->piece_offsets[static_cast<size_t>(whole - task.piece_offsets.data())] = begin;
    } else {
      made->piece_offsets.push_back(begin);
    }
  }

  const Program& from_;
  ClassId cls_;
  Program& to_;
  int32_t first_tag_;
  std::vector<int32_t> first_;
  std::map<std::tuple<int32_t, int32_t, int64_t, int32_t, int64_t>, BufferId> views_;
  static constexpr int32_t kMaxTaskParts = 1024;
};

}  // namespace

bool has_parts(const Program& program) {
  return std::any_of(program.classes.begin(), program.classes.end(), [](const RankClass& cls) {
    return std::any_of(cls.tasks.begin(), cls.tasks.end(), [](const Task& task) {
      return !task.parts.empty() || !task.part_deps.empty();
    });
  });
}

void expect_no_parts(const Program& program, const char* where) {
  if (!has_parts(program)) return;
  fail(where,
       "the program has tasks in parts; write them out first: hocket graph PROGRAM --finish");
}

Expanded expand_parts(const Program& program) {
  Expanded expanded{program, {}};
  int32_t last_tag = -1;
  for (const RankClass& cls : program.classes) {
    for (const Task& task : cls.tasks) {
      last_tag = std::max(last_tag, task.tag);
    }
  }
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    expanded.origin.push_back(Expansion(program, cls, &expanded.program, last_tag + 1).run());
  }
  return expanded;
}

}  // namespace hocket::program
