// SPDX-License-Identifier: Apache-2.0
#include "passes/row_tiles.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "ops/op.h"
#include "passes/rings.h"

namespace hocket::passes {

using program::BufferId;
using program::Kind;
using program::kNone;
using program::Program;
using program::RankClass;
using program::Task;
using program::TaskId;

namespace {

class RowTiling {
 public:
  RowTiling(Program& program, program::ClassId cls, int64_t most, int32_t* next_tag)
      : program_(program),
        writer_(program, cls),
        first_view_(program.classes[cls].buffers.size()),
        most_(most),
        next_tag_(*next_tag) {
    for (const program::Buffer& buffer : writer_.list().buffers) {
      if (buffer.kind == program::BufferKind::view && buffer.dim != 0) {
        cut_otherwise_.insert(buffer.base);
      }
    }
  }

  /// Which products go with which collective is found in the list as it is; then both are written
  /// anew, the products where the first (or only) of them was, block by block.
  void run() {
    RankClass& cls = writer_.list();
    for (size_t i = 0; i < cls.tasks.size(); ++i) {
      find_products(cls.tasks, i);
    }
    const std::vector<Task> before = std::move(cls.tasks);
    std::vector<Task> after;
    std::vector<TaskId> renamed(before.size(), kNone);
    for (size_t i = 0; i < before.size(); ++i) {
      if (renamed[i] != kNone) continue;  // written with the product before it
      std::vector<size_t> which{i};
      std::vector<Task> made;
      if (const auto products = products_.find(i); products != products_.end()) {
        which = products->second.tasks;
        made = blocks_of(before, products->second);
      } else if (const auto ring = rings_.find(i); ring != rings_.end()) {
        made = around_ring(before[i], ring->second);
      } else {
        made = {before[i]};
      }
      add_deps(before, which, renamed, &made);
      after.insert(after.end(), made.begin(), made.end());
      for (size_t task : which) {
        renamed[task] = TaskId(after.size() - 1);
      }
    }
    cls.tasks = std::move(after);
  }

 private:
  /// How a collective and the products beside it are cut.
  struct Cut {
    Level level;
    int64_t pieces = 1;  ///< of the rows of every other rank
    bool gathers = true;
    BufferId whole = kNone;  ///< the rows of all ranks
  };
  /// Products that are written together.
  struct Products {
    Cut cut;
    std::vector<size_t> tasks;
  };

  void find_products(const std::vector<Task>& tasks, size_t place) {
    const Task& task = tasks[place];
    Cut cut;
    if (!is_along_rows(task, &cut)) return;
    Products products{cut, {}};
    const auto may_cut = [&](size_t i) {
      return !taken_.contains(i) && !rows_of(tasks[i], cut.whole).empty();
    };
    if (cut.gathers) {
      for (size_t i = first_toucher(tasks, place + 1, cut.whole); i < tasks.size(); ++i) {
        if (!has(tasks[i].in, cut.whole) || !may_cut(i) ||
            follows(tasks, products.tasks, tasks[i])) {
          break;
        }
        products.tasks.push_back(i);
      }
    } else {
      size_t maker = place;
      while (maker > 0 && !touches(tasks[maker - 1], cut.whole)) {
        --maker;
      }
      if (maker > 0 && has(tasks[maker - 1].out, cut.whole) && may_cut(maker - 1)) {
        products.tasks.push_back(maker - 1);
      }
    }
    if (products.tasks.empty()) return;
    rings_[place] = cut;
    taken_.insert(products.tasks.begin(), products.tasks.end());
    products_[products.tasks[0]] = std::move(products);
  }

  /// A sum of which every rank gets a block of rows, or blocks that all get, along one axis.
  bool is_along_rows(const Task& task, Cut* cut) const {
    const Kind& kind = program_.kind(task);
    if (task.group == kNone || !program::is_collective(kind) || !task.parts.empty()) return false;
    const program::Group& group = program_.groups[task.group];
    const comm::Op& op = comm::op(kind.communication);
    if (op.role != comm::Role::collective || &op == &comm::summing() || kind.in.size() != 1 ||
        kind.out.size() != 1 || !group.members.empty() || program_.crosses_classes(group)) {
      return false;
    }
    using comm::Move;
    const comm::Movement movement = comm::movement(op, kind.attrs);
    cut->gathers = op.move.placed == Move::Placed::slot && op.move.part == Move::Part::whole &&
                   movement.slot_dim == 0;
    const bool scatters =
        op.move.placed == Move::Placed::sum && !op.makes_sizes && movement.part_dim == 0;
    if (!cut->gathers && !scatters) return false;
    cut->whole = cut->gathers ? task.out[0] : task.in[0];
    const graph::TensorType& type = writer_.type(cut->whole);
    if (type.routed() || type.symbolic() || type.dims.empty() || !graph::is_floating(type.dtype) ||
        !is_whole(cut->whole)) {
      return false;
    }
    const std::vector<Level> levels = whole_rings(program_.mesh_of(writer_.cls()), group.axes);
    if (levels.size() != 1) return false;
    cut->level = levels[0];
    const int64_t rows = type.dims[0] / cut->level.ranks;
    cut->pieces = std::clamp<int64_t>((most_ - 1) / (cut->level.ranks - 1), 1, rows);
    while (rows % cut->pieces != 0) {
      --cut->pieces;
    }
    return true;
  }

  /// True if parts of it along its rows may be seen: it is none itself, and has no others.
  bool is_whole(BufferId buffer) const {
    return writer_.list().buffers[buffer].kind != program::BufferKind::view &&
           !cut_otherwise_.contains(buffer);
  }

  /// By operand, inputs first: whether it has the rows of the collective, as its first dim. Empty
  /// if the task can't be done in blocks of them.
  std::vector<bool> rows_of(const Task& task, BufferId whole) const {
    const Kind& kind = program_.kind(task);
    if (program::is_communication(kind) || task.lane != program::Lane::compute ||
        !task.begins.empty() || !task.parts.empty()) {
      return {};
    }
    const ops::Op& op = ops::find(kind.op);
    const ops::Letters letters = ops::letters(op, kind.in, kind.out);
    if (letters.any) return {};
    char letter = 0;
    for (size_t i = 0; i < task.in.size() + task.out.size(); ++i) {
      const bool input = i < task.in.size();
      const size_t k = input ? i : i - task.in.size();
      const std::string& own = input ? letters.in[k] : letters.out[k];
      if ((input ? task.in[k] : task.out[k]) == whole && !own.empty()) {
        letter = own[0];
      }
    }
    if (letter == 0 || op.layout.is_positional(letter) ||
        std::string_view(op.layout.split).find(letter) == std::string_view::npos) {
      return {};
    }
    std::vector<bool> rows;
    const auto add = [&](const std::string& own, BufferId buffer, bool needed) {
      const size_t at = own.find(letter);
      const bool fits = at == 0 && is_whole(buffer) && !writer_.type(buffer).routed();
      rows.push_back(at == 0);
      return at == std::string::npos ? !needed : fits;
    };
    for (size_t i = 0; i < task.in.size(); ++i) {
      if (letters.in_partial_of[i].find(letter) != std::string::npos) return {};
      if (!add(letters.in[i], task.in[i], false)) return {};
    }
    for (size_t i = 0; i < task.out.size(); ++i) {
      if (!add(letters.out[i], task.out[i], true)) return {};
    }
    return rows;
  }

  /// The products in blocks of rows. Gathered: those of the rank itself, then the others' as they
  /// come. Scattered: the others' as they go, the own ones last.
  std::vector<Task> blocks_of(const std::vector<Task>& tasks, const Products& products) {
    const Cut& cut = products.cut;
    std::vector<Part> parts;
    const Part rows{kNone, false, writer_.type(cut.whole).dims[0]};
    for (int64_t piece = 0; piece < cut.pieces; ++piece) {
      for (int64_t hop = 1; hop < cut.level.ranks; ++hop) {
        parts.push_back(rows.block(cut.level, -hop).piece(piece, cut.pieces));
      }
    }
    parts.insert(cut.gathers ? parts.begin() : parts.end(), rows.block(cut.level, 0));
    std::vector<Task> made;
    for (const Part& part : parts) {
      for (size_t i : products.tasks) {
        made.push_back(block_of(tasks[i], cut.whole, part));
      }
    }
    return made;
  }

  Task block_of(const Task& task, BufferId whole, Part part) {
    const std::vector<bool> rows = rows_of(task, whole);
    Task block = task;
    const auto see = [&](BufferId* operand, bool has_rows) {
      if (!has_rows) return;
      part.base = *operand;
      *operand = part_view(writer_, part, first_view_);
    };
    for (size_t i = 0; i < block.in.size(); ++i) {
      see(&block.in[i], rows[i]);
    }
    for (size_t i = 0; i < block.out.size(); ++i) {
      see(&block.out[i], rows[block.in.size() + i]);
    }
    const Kind& kind = program_.kind(task);
    block.kind = writer_.local(kind.op, graph::Attrs(kind.attrs), block.in, block.out, task).kind;
    block.deps.clear();
    return block;
  }

  std::vector<Task> around_ring(const Task& task, const Cut& cut) {
    Rings::CutOtherwise otherwise;
    Rings rings(program_, writer_.cls(), task, next_tag_, &otherwise);
    if (cut.gathers) {
      rings.all_gather({cut.level}, cut.pieces);
    } else {
      rings.reduce_scatter({cut.level}, cut.pieces);
    }
    next_tag_ = rings.next_tag();
    return rings.take();
  }

  /// What was written waits for what those in its place waited for.
  static void add_deps(const std::vector<Task>& before, const std::vector<size_t>& which,
                       const std::vector<TaskId>& renamed, std::vector<Task>* made) {
    std::vector<TaskId> deps;
    for (size_t task : which) {
      for (TaskId dep : before[task].deps) {
        deps.push_back(renamed[dep]);
      }
    }
    for (Task& task : *made) {
      task.deps = deps;
    }
  }

  bool touches(const Task& task, BufferId buffer) const {
    const RankClass& cls = writer_.list();
    const auto meets = [&](BufferId other) { return cls.root(other) == cls.root(buffer); };
    return std::any_of(task.in.begin(), task.in.end(), meets) ||
           std::any_of(task.out.begin(), task.out.end(), meets);
  }
  size_t first_toucher(const std::vector<Task>& tasks, size_t from, BufferId buffer) const {
    while (from < tasks.size() && !touches(tasks[from], buffer)) {
      ++from;
    }
    return from;
  }
  static bool has(const std::vector<BufferId>& list, BufferId buffer) {
    return std::find(list.begin(), list.end(), buffer) != list.end();
  }
  /// True if the task takes or changes what one of these makes.
  bool follows(const std::vector<Task>& tasks, const std::vector<size_t>& which,
               const Task& task) const {
    return std::any_of(which.begin(), which.end(), [&](size_t i) {
      return std::any_of(tasks[i].out.begin(), tasks[i].out.end(),
                         [&](BufferId made) { return touches(task, made); });
    });
  }

  Program& program_;
  Writer writer_;
  const size_t first_view_;  ///< buffers from here on are made here
  const int64_t most_;
  int32_t& next_tag_;
  std::set<BufferId> cut_otherwise_;     ///< not along rows
  std::map<size_t, Cut> rings_;          ///< by the place of the collective
  std::map<size_t, Products> products_;  ///< by the place of the first
  std::set<size_t> taken_;               ///< places of all products
};

}  // namespace

void tile_rows(Program& program, program::ClassId cls, int64_t most, int32_t* next_tag) {
  RowTiling(program, cls, most, next_tag).run();
}

}  // namespace hocket::passes
