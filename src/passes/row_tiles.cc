// SPDX-License-Identifier: Apache-2.0
#include "passes/row_tiles.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "ops/op.h"
#include "passes/ring_collectives.h"

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
      : program_(program), writer_(program, cls), most_(most), next_tag_(*next_tag) {
    for (const program::Buffer& buffer : writer_.list().buffers) {
      if (buffer.kind == program::BufferKind::view && buffer.dim != 0) {
        cut_otherwise_.insert(buffer.base);
      }
    }
  }

  /// Finds the products of each collective in the list, then writes both anew, block by block. The
  /// products take the place of the first (or only) of them.
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
      if (const auto products = products_.find(i); products != products_.end()) {
        write_products(before, products->second, &after, &renamed);
        continue;
      }
      const auto ring = rings_.find(i);
      const bool cut = ring != rings_.end();
      std::vector<Task> made =
          cut ? around_ring(before[i], ring->second) : std::vector<Task>{before[i]};
      add_deps(before, {i}, renamed, &made);
      after.insert(after.end(), made.begin(), made.end());
      renamed[i] = TaskId(after.size() - 1);
    }
    cls.tasks = std::move(after);
  }

 private:
  /// Cut of a collective and the products beside it.
  struct Cut {
    RingLevel level;
    int64_t pieces = 1;  ///< of the rows of every other rank
    bool gathers = true;
    BufferId whole = kNone;  ///< the rows of all ranks
  };
  /// Products that are written together, beside a collective, and of each the buffer that has the
  /// collective's rows.
  struct Products {
    Cut cut;
    size_t collective = 0;  ///< its place
    std::vector<size_t> tasks;
    std::vector<BufferId> wholes;
    void add(size_t task, BufferId whole) {
      tasks.push_back(task);
      wholes.push_back(whole);
    }
  };

  void find_products(const std::vector<Task>& tasks, size_t place) {
    const Task& task = tasks[place];
    Cut cut;
    if (!is_along_rows(task, &cut)) return;
    Products products{cut, place, {}, {}};
    const auto may_cut = [&](size_t i) {
      return !taken_.contains(i) && !rows_of(tasks[i], cut.whole).empty();
    };
    if (cut.gathers) {
      for (size_t i = first_toucher(tasks, place + 1, cut.whole); i < tasks.size(); ++i) {
        if (!has(tasks[i].in, cut.whole) || !may_cut(i) ||
            follows(tasks, products.tasks, tasks[i])) {
          break;
        }
        products.add(i, cut.whole);
      }
    } else {
      find_makers(tasks, place, &products);
    }
    if (products.tasks.empty()) return;
    rings_[place] = cut;
    taken_.insert(products.tasks.begin(), products.tasks.end());
    products_[products.tasks[0]] = std::move(products);
  }

  /// Finds the product behind a scattered value, or behind the last operand of its sum, as in a
  /// parallel block: sums take no time to hide a scatter. Tasks between it and the collective move
  /// with it.
  void find_makers(const std::vector<Task>& tasks, size_t place, Products* products) const {
    Products found{products->cut, place, {}, {}};
    std::vector<BufferId> taken{products->cut.whole};  // by the collective and all found
    std::vector<BufferId> operands = taken;  // and their outputs, which nothing else touches
    while (true) {
      const size_t maker = last_toucher(tasks, place, operands);
      if (maker == kNowhere || taken_.contains(maker)) return;
      const Task& task = tasks[maker];
      const auto made = std::find_if(taken.begin(), taken.end(),
                                     [&](BufferId buffer) { return has(task.out, buffer); });
      if (made == taken.end()) return;
      const std::vector<bool> rows = rows_of(task, *made);
      if (rows.empty()) return;
      const auto waits_meanwhile = [&](size_t later) {
        const std::vector<TaskId>& deps = tasks[later].deps;
        return std::any_of(deps.begin(), deps.end(), [&](TaskId dep) { return dep >= maker; });
      };
      if (std::any_of(found.tasks.begin(), found.tasks.end(), waits_meanwhile)) return;
      found.tasks.insert(found.tasks.begin(), maker);
      found.wholes.insert(found.wholes.begin(), *made);
      if (std::find(rows.begin(), rows.end(), false) != rows.end()) break;  // it has weights
      place = maker;
      taken.insert(taken.end(), task.in.begin(), task.in.end());
      operands.insert(operands.end(), task.in.begin(), task.in.end());
      operands.insert(operands.end(), task.out.begin(), task.out.end());
    }
    *products = std::move(found);
  }

  /// Returns whether the task is a reduction with a block of rows per rank, or a gather of blocks,
  /// along one axis.
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
    const std::vector<RingLevel> levels = whole_rings(program_.mesh_of(writer_.cls()), group.axes);
    if (levels.size() != 1) return false;
    cut->level = levels[0];
    const int64_t rows = type.dims[0] / cut->level.ranks;
    cut->pieces = std::clamp<int64_t>((most_ - 1) / (cut->level.ranks - 1), 1, rows);
    while (rows % cut->pieces != 0) {
      --cut->pieces;
    }
    return true;
  }

  /// Returns whether parts of a buffer along its rows can be views: it is no view itself, and has
  /// no other parts.
  bool is_whole(BufferId buffer) const {
    return writer_.list().buffers[buffer].kind != program::BufferKind::view &&
           !cut_otherwise_.contains(buffer);
  }

  /// Returns by operand, inputs first, whether it has the rows of the collective, as its first dim.
  /// Empty if the task can't be done in blocks of them.
  std::vector<bool> rows_of(const Task& task, BufferId whole) const {
    const Kind& kind = program_.kind(task);
    if (program::is_communication(kind) || task.lane != program::Lane::compute ||
        !task.piece_offsets.empty() || !task.parts.empty()) {
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
      for (size_t i = 0; i < products.tasks.size(); ++i) {
        made.push_back(block_of(tasks[products.tasks[i]], products.wholes[i], part));
      }
    }
    return made;
  }

  void write_products(const std::vector<Task>& before, const Products& products,
                      std::vector<Task>* after, std::vector<TaskId>* renamed) {
    std::vector<Task> made = blocks_of(before, products);
    add_deps(before, products.tasks, *renamed, &made);
    std::vector<Task> ring;
    if (const auto ahead = ahead_of(before, products)) {
      for (size_t task : *ahead) {
        std::vector<Task> moved{before[task]};
        add_deps(before, {task}, *renamed, &moved);
        after->push_back(std::move(moved[0]));
        (*renamed)[task] = TaskId(after->size() - 1);
      }
      ring = around_ring(before[products.collective], products.cut);
      add_deps(before, {products.collective}, *renamed, &ring);
    }
    // A task of the ring is placed as soon as its blocks are there. So a received block may come
    // before the next computed one.
    size_t written = 0;
    for (Task& task : ring) {
      const size_t needed = blocks_needed(task, products, made);
      for (; written < needed; ++written) {
        after->push_back(made[written]);
      }
      after->push_back(std::move(task));
    }
    after->insert(after->end(), made.begin() + static_cast<std::ptrdiff_t>(written), made.end());
    for (size_t task : products.tasks) {
      (*renamed)[task] = TaskId(after->size() - 1);
    }
    if (!ring.empty()) {
      (*renamed)[products.collective] = TaskId(after->size() - 1);
    }
  }

  /// Returns the tasks to write before the products so that their scatter can be interleaved: the
  /// collectives that precede it in its lane. Nothing if that is impossible.
  std::optional<std::vector<size_t>> ahead_of(const std::vector<Task>& tasks,
                                              const Products& products) const {
    if (products.cut.gathers) return std::nullopt;
    const Task& scatter = tasks[products.collective];
    const size_t first = products.tasks.front();
    const auto is_product = [&](size_t task) {
      return std::find(products.tasks.begin(), products.tasks.end(), task) != products.tasks.end();
    };
    std::vector<size_t> ahead, passed;
    for (size_t i = first; i < products.collective; ++i) {
      const Task& task = tasks[i];
      if (!is_product(i) && touches(task, scatter.out[0])) return std::nullopt;
      if (is_product(i) || task.lane != scatter.lane) {
        passed.push_back(i);
        continue;
      }
      std::vector<BufferId> operands = task.in;
      operands.insert(operands.end(), task.out.begin(), task.out.end());
      const auto meets = [&](size_t other) {
        return std::any_of(operands.begin(), operands.end(),
                           [&](BufferId buffer) { return touches(tasks[other], buffer); });
      };
      const bool waits =
          std::any_of(task.deps.begin(), task.deps.end(), [&](TaskId dep) { return dep >= first; });
      if (waits || rings_.contains(i) || std::any_of(passed.begin(), passed.end(), meets)) {
        return std::nullopt;
      }
      ahead.push_back(i);
    }
    const bool waits = std::any_of(scatter.deps.begin(), scatter.deps.end(), [&](TaskId dep) {
      return dep >= first && !is_product(dep.value());
    });
    if (waits) return std::nullopt;
    return ahead;
  }

  /// Returns the number of block tasks before a task of the ring: up to its last operand block; all
  /// if its operand is no block.
  size_t blocks_needed(const Task& task, const Products& products,
                       const std::vector<Task>& made) const {
    const RankClass& cls = writer_.list();
    std::vector<BufferId> operands = task.in;
    operands.insert(operands.end(), task.out.begin(), task.out.end());
    size_t needed = 0;
    for (const BufferId operand : operands) {
      if (cls.root(operand) != products.cut.whole) continue;
      const auto makes = [&](const Task& block) {
        return std::any_of(block.out.begin(), block.out.end(),
                           [&](BufferId out) { return cls.buffers[out] == cls.buffers[operand]; });
      };
      const auto block = std::find_if(made.begin(), made.end(), makes);
      needed = std::max<size_t>(needed, block - made.begin() + (block != made.end()));
    }
    return needed;
  }

  Task block_of(const Task& task, BufferId whole, Part part) {
    const std::vector<bool> rows = rows_of(task, whole);
    Task block = task;
    const auto see = [&](BufferId* operand, bool has_rows) {
      if (!has_rows) return;
      part.base = *operand;
      *operand = part_view(writer_, part, &views_);
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
    RingCollectives rings(program_, writer_.cls(), task, next_tag_, &cut_along_others_);
    if (cut.gathers) {
      rings.all_gather({cut.level}, cut.pieces);
    } else {
      rings.reduce_scatter({cut.level}, cut.pieces);
    }
    next_tag_ = rings.next_tag();
    return rings.take();
  }

  /// Adds to new tasks the dependencies of those that they replace.
  static void add_deps(const std::vector<Task>& before, const std::vector<size_t>& which,
                       const std::vector<TaskId>& renamed, std::vector<Task>* made) {
    std::vector<TaskId> deps;
    for (size_t task : which) {
      for (TaskId dep : before[task].deps) {
        if (renamed[dep] != kNone) {
          deps.push_back(renamed[dep]);
        }  // otherwise it is written with this one, its reader
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
  static constexpr size_t kNowhere = static_cast<size_t>(-1);
  /// Returns the last task before `place` that touches one of the buffers.
  size_t last_toucher(const std::vector<Task>& tasks, size_t place,
                      const std::vector<BufferId>& buffers) const {
    while (place-- > 0) {
      const auto met = [&](BufferId buffer) { return touches(tasks[place], buffer); };
      if (std::any_of(buffers.begin(), buffers.end(), met)) return place;
    }
    return kNowhere;
  }
  static bool has(const std::vector<BufferId>& list, BufferId buffer) {
    return std::find(list.begin(), list.end(), buffer) != list.end();
  }
  /// Returns whether the task reads or changes an output of a task in `which`.
  bool follows(const std::vector<Task>& tasks, const std::vector<size_t>& which,
               const Task& task) const {
    return std::any_of(which.begin(), which.end(), [&](size_t i) {
      return std::any_of(tasks[i].out.begin(), tasks[i].out.end(),
                         [&](BufferId made) { return touches(task, made); });
    });
  }

  Program& program_;
  Writer writer_;
  PartViews views_;
  const int64_t most_;
  int32_t& next_tag_;
  std::set<BufferId> cut_otherwise_;                       ///< not along rows
  RingCollectives::ViewsAlongOtherDims cut_along_others_;  ///< for rings
  std::map<size_t, Cut> rings_;                            ///< by the place of the collective
  std::map<size_t, Products> products_;                    ///< by the place of the first
  std::set<size_t> taken_;                                 ///< places of all products
};

}  // namespace

void tile_rows(Program& program, program::ClassId cls, int64_t most, int32_t* next_tag) {
  RowTiling(program, cls, most, next_tag).run();
}

}  // namespace hocket::passes
