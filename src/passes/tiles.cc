// SPDX-License-Identifier: Apache-2.0
// tiles (asynchronous tensor parallelism, Wang et al., ASPLOS 2023; Comet, Zhang et al., arXiv
// 2502.19811): where a product feeds a collective, or a collective a product, both are done in
// plan.comm_tiles blocks of rows, so that one block is on its way while the next one is computed.
// A block is computed as it was among all rows: results stay the same to the bit, but for sums
// along the rows over more than two ranks (row_tiles.h).
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "ops/op.h"
#include "passes/pass.h"
#include "passes/row_tiles.h"
#include "passes/writer.h"
#include "program/parts.h"

namespace hocket::passes {

using program::BufferId;
using program::Kind;
using program::kNone;
using program::Program;
using program::Task;
using program::TaskId;

namespace {

/// Cut of an op in blocks of rows of one of its operands.
struct Cutting {
  char letter = 0;              ///< 0: it can't
  std::vector<size_t> columns;  ///< inputs that have the letter behind their first dim
};

Cutting cutting(const Kind& kind, bool of_output, size_t operand) {
  // Each output must have the letter, as its first dim, so that nothing is added up over blocks:
  // a part along another dim has gaps, which kernels do not take. Of inputs such a part is copied
  // first.
  if (program::is_communication(kind)) return {};
  const ops::Op& op = ops::find(kind.op);
  const ops::Letters letters = ops::letters(op, kind.in, kind.out);
  const std::string& of = letters.any ? std::string()
                          : of_output ? letters.out[operand]
                                      : letters.in[operand];
  if (of.empty() || std::string_view(op.layout.split).find(of[0]) == std::string_view::npos) {
    return {};
  }
  const auto routed = [](const graph::TensorType& type) { return type.routed(); };
  if (std::any_of(kind.in.begin(), kind.in.end(), routed) ||
      std::any_of(kind.out.begin(), kind.out.end(), routed)) {
    return {};
  }
  Cutting cut{of[0], {}};
  for (const std::string& output : letters.out) {
    if (output.empty() || output[0] != cut.letter) return {};
  }
  for (size_t input = 0; input < letters.in.size(); ++input) {
    const size_t at = letters.in[input].find(cut.letter);
    if (letters.in_partial_of[input] == std::string(1, cut.letter)) return {};
    if (at == 0 || at == std::string::npos) continue;
    if (op.layout.is_positional(cut.letter)) return {};
    cut.columns.push_back(input);
  }
  return cut;
}

/// The most blocks up to `most` that all these rows divide into.
int64_t blocks_of(const graph::TensorType& type, int64_t most) {
  if (type.dims.empty() || type.dims[0].symbolic()) return 1;
  const int64_t rows = type.dims[0];
  int64_t blocks = std::min(most, rows);
  while (rows % blocks != 0) {
    --blocks;
  }
  return blocks;
}

class Tiling {
 public:
  Tiling(Program& program, program::ClassId cls, int64_t most)
      : program_(program), writer_(program, cls), most_(most) {}

  void run() {
    // Finds the producer and the reader of each collective in the list; then writes cut tasks anew.
    std::vector<Task>& tasks = writer_.list().tasks;
    for (const program::Buffer& buffer : writer_.list().buffers) {
      if (buffer.kind == program::BufferKind::view) {
        dims_[buffer.base].insert(buffer.dim);
      }
    }
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (is_movable(tasks[i])) {
        tile(i);
      }
    }
    std::vector<Task> made;
    std::vector<TaskId> renamed;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const auto cut = columns_.find(i);
      if (cut == columns_.end()) {
        made.push_back(tasks[i]);
      } else {
        write_blocks(tasks[i], cut->second, &made);
      }
      renamed.push_back(made.size() - 1);
    }
    for (Task& task : made) {
      for (TaskId& dep : task.deps) {
        dep = renamed[dep];
      }
    }
    writer_.list().tasks = std::move(made);
  }

 private:
  /// A collective of one operand inside of a class that takes rows as they come.
  bool is_movable(const Task& task) const {
    const Kind& kind = program_.kind(task);
    if (!program::is_collective(kind) || kind.in.size() != 1 || kind.out.size() != 1) return false;
    const comm::Op& op = comm::op(kind.communication);
    if (op.role != comm::Role::collective || kind.in[0].routed()) return false;
    const comm::Movement movement = comm::movement(op, kind.attrs);
    const bool along_rows =
        (movement.move.placed == comm::Move::Placed::slot && movement.slot_dim == 0) ||
        (movement.move.part == comm::Move::Part::block && movement.part_dim == 0);
    return !along_rows && task.parts.empty() &&
           !program_.crosses_classes(program_.groups[task.group]);
  }

  void tile(size_t place) {
    std::vector<Task>& tasks = writer_.list().tasks;
    Task& moved = tasks[place];
    const int64_t blocks = blocks_of(program_.kind(moved).in[0], most_);
    if (blocks == 1 || !may_view(moved.in[0]) || !may_view(moved.out[0])) return;
    const bool feeds = cut_neighbour(maker_of(place), moved.in[0], true, blocks);
    const bool fed = cut_neighbour(taker_of(place), moved.out[0], false, blocks);
    if (!feeds && !fed) return;
    moved.parts = {{'a', blocks, kNone}};
    will_view(moved.in[0]);
    will_view(moved.out[0]);
  }

  /// Cuts the task that makes the buffer, or takes it, in blocks of its rows, if that can be.
  bool cut_neighbour(size_t place, BufferId buffer, bool makes, int64_t blocks) {
    std::vector<Task>& tasks = writer_.list().tasks;
    if (place == tasks.size()) return false;
    Task& task = tasks[place];
    const std::vector<BufferId>& list = makes ? task.out : task.in;
    const size_t operand =
        static_cast<size_t>(std::find(list.begin(), list.end(), buffer) - list.begin());
    const Kind& kind = program_.kind(task);
    const Cutting cut = cutting(kind, makes, operand);
    if (cut.letter == 0) return false;
    if (columns_.contains(place)) return false;
    if (!task.parts.empty()) {
      return task.parts[0] == program::PieceOffset{cut.letter, blocks, kNone};
    }
    const ops::Letters letters = ops::letters(ops::find(kind.op), kind.in, kind.out);
    std::vector<BufferId> cuts = task.out;
    for (size_t input = 0; input < task.in.size(); ++input) {
      const bool column =
          std::find(cut.columns.begin(), cut.columns.end(), input) != cut.columns.end();
      if (!column && letters.in[input].find(cut.letter) != std::string::npos) {
        cuts.push_back(task.in[input]);
      } else if (column && !may_view(task.in[input], columns_dim(letters, input, cut.letter))) {
        return false;
      }
    }
    if (!std::all_of(cuts.begin(), cuts.end(), [&](BufferId id) { return may_view(id); })) {
      return false;
    }
    for (const BufferId id : cuts) {
      will_view(id);
    }
    if (cut.columns.empty()) {
      task.parts = {{cut.letter, blocks, kNone}};
      return true;
    }
    for (size_t input : cut.columns) {
      dims_[writer_.list().root(task.in[input])].insert(columns_dim(letters, input, cut.letter));
    }
    columns_[place] = {cut, blocks};
    return true;
  }

  static int32_t columns_dim(const ops::Letters& letters, size_t input, char letter) {
    return static_cast<int32_t>(letters.in[input].find(letter));
  }

  /// Returns whether parts of the buffer along a dim can be views: all views of a base lie along
  /// one.
  bool may_view(BufferId buffer, int32_t dim = 0) const {
    const program::Buffer& own = writer_.list().buffers[buffer];
    if (own.kind == program::BufferKind::view && own.dim != dim) return false;
    const auto known = dims_.find(writer_.list().root(buffer));
    return known == dims_.end() || known->second == std::set<int32_t>{dim};
  }
  void will_view(BufferId buffer) { dims_[writer_.list().root(buffer)].insert(0); }

  bool touches(const Task& task, BufferId buffer) const {
    const program::RankClass& cls = writer_.list();
    const auto meets = [&](BufferId other) { return cls.root(other) == cls.root(buffer); };
    return std::any_of(task.in.begin(), task.in.end(), meets) ||
           std::any_of(task.out.begin(), task.out.end(), meets);
  }

  /// Returns the producer of the collective's operand; the end if it cannot be cut.
  size_t maker_of(size_t place) const {
    const std::vector<Task>& tasks = writer_.list().tasks;
    const BufferId buffer = tasks[place].in[0];
    for (size_t i = place; i-- > 0;) {
      if (!touches(tasks[i], buffer)) continue;
      const auto& out = tasks[i].out;
      const bool makes = tasks[i].lane == program::Lane::compute &&
                         std::find(out.begin(), out.end(), buffer) != out.end();
      return makes ? i : tasks.size();
    }
    return tasks.size();
  }
  /// Returns the first reader of the collective's result.
  size_t taker_of(size_t place) const {
    const std::vector<Task>& tasks = writer_.list().tasks;
    const BufferId buffer = tasks[place].out[0];
    for (size_t i = place + 1; i < tasks.size(); ++i) {
      if (!touches(tasks[i], buffer)) continue;
      const auto& in = tasks[i].in;
      const bool takes = tasks[i].lane == program::Lane::compute &&
                         std::find(in.begin(), in.end(), buffer) != in.end();
      return takes ? i : tasks.size();
    }
    return tasks.size();
  }

  struct Columns {
    Cutting cut;
    int64_t blocks = 1;
  };
  /// Writes a task with inputs cut along a later dim: copies their parts, block by block, each
  /// before its use.
  void write_blocks(const Task& task, const Columns& columns, std::vector<Task>* made) {
    const Kind kind = program_.kind(task);
    const ops::Letters letters = ops::letters(ops::find(kind.op), kind.in, kind.out);
    for (int64_t block = 0; block < columns.blocks; ++block) {
      Task part = task;
      const auto view = [&](BufferId of, int32_t dim) {
        const program::Buffer& whole = writer_.list().buffers[of];
        const bool is_view = whole.kind == program::BufferKind::view;
        const BufferId base = is_view ? whole.base : of;
        const int64_t begin = is_view ? whole.begin : 0;
        const program::TableId by = is_view ? whole.by : program::TableId(kNone);
        const int64_t length = whole.type.dims[dim] / columns.blocks;
        return writer_.part(base, dim, length, begin + block * length, by);
      };
      for (size_t input = 0; input < task.in.size(); ++input) {
        const size_t dim = letters.in[input].find(columns.cut.letter);
        if (dim == std::string::npos) continue;
        part.in[input] = view(task.in[input], static_cast<int32_t>(dim));
        if (dim == 0) continue;
        const BufferId copied = writer_.step(graph::TensorType(writer_.type(part.in[input])));
        made->push_back(writer_.local(ops::of(ops::Meaning::identity).name, {}, {part.in[input]},
                                      {copied}, task));
        part.in[input] = copied;
      }
      for (BufferId& output : part.out) {
        output = view(output, 0);
      }
      part.kind = writer_.local(kind.op, kind.attrs, part.in, part.out, task).kind;
      if (block > 0) {
        part.deps.clear();
      }
      made->push_back(std::move(part));
    }
  }

  Program& program_;
  Writer writer_;
  const int64_t most_;
  std::map<BufferId, std::set<int32_t>> dims_;  ///< along which there are views of a base
  std::map<size_t, Columns> columns_;           ///< by place
};

struct TilesOptions {
  int64_t comm_tiles = 1;
  void fields(Fields& visit) {
    visit("comm_tiles", comm_tiles,
          "blocks of rows in which a product and a collective that feeds it, or is fed by it, are "
          "done; the most that divide them")
        .min(1)
        .max(256);
  }
};

void run_tiles(Program& program, const TilesOptions& options) {
  if (options.comm_tiles == 1) return;
  const int32_t first_tag = next_tag(program);
  int32_t tag = first_tag;
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    tile_rows(program, cls, options.comm_tiles, &tag);
    Tiling(program, cls, options.comm_tiles).run();
  }
  if (program::has_parts(program)) {
    program = program::expand_parts(program).program;
  }
  receive_in_order(program, first_tag);
}

}  // namespace

Pass pass_tiles() {
  return program_pass("tiles",
                      "does products and the movement of their rows in blocks (plan.comm_tiles)",
                      false, {"comm_tiles=2", "comm_tiles=4"}, run_tiles);
}

}  // namespace hocket::passes
