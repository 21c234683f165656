// SPDX-License-Identifier: Apache-2.0
// Implements: Mutator (mutator.h), changes of buffers, attributes and workspaces.
#include "check/mutants/mutator.h"
#include "collectives/parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/op.h"
#include "program/memory.h"

namespace hocket::check {

bool Mutator::change_offset() {
  const auto [class_id, buffer_id] = any_buffer(true);
  if (buffer_id < 0) return false;
  RankClass& rc = p_.classes[class_id];
  Buffer& buffer = rc.buffers[buffer_id];
  int64_t to = 0;
  switch (random_.below(3)) {
    case 0:
      to = buffer.offset + (random_.flip() ? 64 : -64);
      break;
    case 1:
      to = static_cast<int64_t>(random_.below(static_cast<size_t>(rc.arena_bytes) / 64 + 1)) * 64;
      break;
    default:
      to = rc.buffers[random_.below(rc.buffers.size())].offset;
  }
  if (to == buffer.offset || to == kNone) return false;
  begin_buffer(class_id, buffer_id, fmt::format("offset changed from {} to {}", buffer.offset, to));
  buffer.offset = to;
  // Buffers at the new addresses are connected to the change.
  std::vector<BufferId> over;
  for (size_t k = 0; k < rc.buffers.size(); ++k) {
    const Buffer& other = rc.buffers[k];
    if (other.kind == BufferKind::step && other.offset < to + buffer.type.bytes() &&
        to < other.offset + other.type.bytes()) {
      over.push_back(k);
    }
  }
  collect_users(rc, class_id, over, &m_->near);
  return true;
}

/// Moves a buffer to the other memory, at its old offset.
bool Mutator::change_space() {
  const auto [class_id, buffer_id] = any_buffer(false);
  if (buffer_id < 0) return false;
  Buffer& buffer = p_.classes[class_id].buffers[buffer_id];
  const bool to_host = buffer.space == program::Space::device;
  begin_buffer(class_id, buffer_id, to_host ? "lies on the host" : "lies on the device");
  if (m_->tasks.empty()) return false;
  buffer.space = to_host ? program::Space::host : program::Space::device;
  return true;
}

bool Mutator::change_type() {
  const auto [class_id, buffer_id] = any_buffer(false);
  if (buffer_id < 0) return false;
  Buffer& buffer = p_.classes[class_id].buffers[buffer_id];
  if (buffer.type.dims.empty()) return false;
  graph::Dim& dim = buffer.type.dims[random_.below(buffer.type.dims.size())];
  begin_buffer(class_id, buffer_id, "size changed");
  dim = random_.flip() ? dim * 2 : dim + 1;
  return true;
}

/// Breaks the contract with the host: exchanges names with an equal buffer, or changes the layout
/// or the micro-batch.
bool Mutator::change_named() {
  const auto [class_id, buffer_id] = any_buffer(false, true);
  if (buffer_id < 0) return false;
  auto& buffers = p_.classes[class_id].buffers;
  Buffer& buffer = buffers[buffer_id];
  switch (random_.below(3)) {
    case 0: {
      std::vector<size_t> same;
      for (size_t k = 0; k < buffers.size(); ++k) {
        if (buffers[k].kind == buffer.kind && buffers[k].type == buffer.type && k != buffer_id) {
          same.push_back(k);
        }
      }
      if (same.empty()) return false;
      const size_t other = same[random_.below(same.size())];
      begin_buffer(class_id, buffer_id, fmt::format("names exchanged with buffer {}", other));
      begin_buffer(class_id, other, "");
      std::swap(buffer.name, buffers[other].name);
      std::swap(buffer.micro_batch, buffers[other].micro_batch);
      break;
    }
    case 1: {
      const auto& axes = p_.mesh_of(class_id).axes;
      const size_t axis = random_.below(axes.size());
      const graph::Placement to = random_.flip()
                                      ? graph::Placement::replicate()
                                      : graph::Placement::split(static_cast<int>(random_.below(2)));
      if (axes[axis].size == 1 || buffer.layout[axis] == to) return false;
      begin_buffer(class_id, buffer_id, "declared layout changed");
      buffer.layout.set(axis, to);
      break;
    }
    default:
      if (buffer.micro_batch == kNone) return false;
      begin_buffer(class_id, buffer_id, "micro-batch changed");
      buffer.micro_batch += random_.flip() ? 1 : -1;
  }
  return true;
}

/// Changes an attribute of one task: a scale, a dimension, an exponent.
bool Mutator::change_attribute() {
  const TaskRef ref = any_task([&](const Task& task) { return !p_.kind(task).attrs.empty(); });
  if (ref.cls < 0) return false;
  program::Kind kind = p_.kind(task(ref));
  auto it = kind.attrs.items().begin();
  std::advance(it, random_.below(kind.attrs.items().size()));
  const std::string key = it->first;
  graph::Attr value = it->second;
  if (auto* whole = std::get_if<int64_t>(&value)) {
    *whole = random_.flip() ? *whole + 1 : std::max<int64_t>(*whole - 1, 0);
  } else if (auto* real = std::get_if<double>(&value)) {
    *real = random_.flip() ? *real * 0.5 : *real + 1;
  } else if (key == comm::kSlots || key == comm::kBlocks || key == comm::kSizes) {
    // Moves one element from one member to another.
    std::vector<int64_t> lengths = comm::lengths_of(kind.attrs, key.c_str());
    int64_t& less = lengths[random_.below(lengths.size())];
    if (less < 2) return false;
    --less;
    ++lengths[random_.below(lengths.size())];
    graph::Attrs other;
    comm::set_lengths(lengths, key.c_str(), &other);
    value = other.s(key);
  } else {
    return false;
  }
  if (value == it->second) return false;
  begin(ref, fmt::format("attribute {} changed", key));
  kind.attrs.set(key, value);
  task(ref).kind = p_.intern(std::move(kind));
  return true;
}

/// Changes the declared cost of a communication.
bool Mutator::change_payload() {
  const TaskRef ref =
      any_task([&](const Task& task) { return program::is_communication(p_.kind(task)); });
  if (ref.cls < 0) return false;
  program::Kind kind = p_.kind(task(ref));
  switch (random_.below(3)) {
    case 0:
      kind.bytes = 0;
      break;
    case 1:
      kind.bytes += 1;
      break;
    default:
      kind.flops = 1;
  }
  begin(ref, "payload changed");
  task(ref).kind = p_.intern(std::move(kind));
  return true;
}

bool Mutator::change_accumulate() {
  const TaskRef ref = any_task([](const Task& task) { return !task.out.empty(); });
  if (ref.cls < 0) return false;
  begin(ref, "accumulation changed");
  task(ref).accumulate.flip(random_.below(std::min(task(ref).out.size(), OutputSet::kMaxOutputs)));
  return true;
}

bool Mutator::change_kind() {
  const TaskRef ref = any_task();
  if (ref.cls < 0) return false;
  const program::Kind& now = p_.kind(task(ref));
  std::vector<int32_t> same;
  for (size_t k = 0; k < p_.kinds.size(); ++k) {
    if (p_.kinds[k].in == now.in && p_.kinds[k].out == now.out &&
        static_cast<int32_t>(k) != task(ref).kind) {
      same.push_back(static_cast<int32_t>(k));
    }
  }
  if (same.empty()) return false;
  const int32_t to = same[random_.below(same.size())];
  begin(ref, "op changed to " + p_.kinds[to].op);
  task(ref).kind = to;
  return true;
}

/// Moves a workspace over other memory, or halves it (less than its op declares).
bool Mutator::change_workspace() {
  const TaskRef ref = any_task([&](const Task& task) { return p_.kind(task).workspace > 0; });
  if (ref.cls < 0) return false;
  RankClass& rank_class = cls(ref);
  if (random_.flip() && task(ref).workspace != kNone) {
    const program::Space space = program::workspace_space(task(ref).lane);
    const int64_t to =
        static_cast<int64_t>(random_.below(static_cast<size_t>(rank_class.arena(space)) / 64 + 1)) *
        64;
    begin(ref, fmt::format("workspace moved to {}", to));
    std::vector<BufferId> over;
    const int64_t end = to + p_.kind(task(ref)).workspace;
    for (size_t k = 0; k < rank_class.buffers.size(); ++k) {
      if (rank_class.buffers[k].kind == BufferKind::step && rank_class.buffers[k].space == space &&
          rank_class.buffers[k].offset < end &&
          to < rank_class.buffers[k].offset + rank_class.buffers[k].type.bytes()) {
        over.push_back(k);
      }
    }
    collect_users(rank_class, ref.cls, over, &m_->near);
    task(ref).workspace = to;
  } else {
    program::Kind kind = p_.kind(task(ref));
    begin(ref, "workspace halved");
    kind.workspace = kind.workspace / 128 * 64;
    task(ref).kind = p_.intern(std::move(kind));
  }
  return true;
}

/// Changes the declared cost of a kernel.
bool Mutator::change_cost() {
  const TaskRef ref =
      any_task([&](const Task& task) { return ops::find_or_null(p_.kind(task).op) != nullptr; });
  if (ref.cls < 0) return false;
  program::Kind kind = p_.kind(task(ref));
  const bool flops = random_.flip() && kind.flops > 0;
  const bool none = random_.flip();
  begin(ref, fmt::format("{} {}", flops ? "FLOPs" : "bytes", none ? "zero" : "doubled"));
  if (flops) {
    kind.flops = none ? 0 : kind.flops * 2;
  } else {
    kind.bytes = none ? 0 : kind.bytes * 2;
  }
  task(ref).kind = p_.intern(std::move(kind));
  return true;
}

namespace {

/// Returns whether halves of the first letter of the first input (tokens) lack indices that they
/// need.
bool lacks_support(const ops::Op& op, const program::Kind& kind) {
  if (op.layout.support.empty()) return false;
  const ops::Letters letters = ops::letters(op, kind.in, kind.out);
  const auto size = [&](char letter) -> int64_t {
    for (size_t i = 0; i < letters.in.size(); ++i) {
      const size_t dim = letters.in[i].find(letter);
      if (dim != std::string::npos) return kind.in[i].dims[dim];
    }
    return 0;
  };
  return !ops::cut_support(op, kind.attrs, letters.in[0][0], size).empty();
}

}  // namespace

/// Doubles the ranks along an axis that splits tokens, each with half of the tokens: correct except
/// for ops that need whole sequences. Returns false unless some op then gets half a sequence.
bool Mutator::cut_sequences() {
  // Rewrites the whole program: buffers shrink by their layouts (of step buffers, the label of the
  // lowering); kinds and costs follow from the new types. The result is well-typed, and wrong only
  // in its values.
  Program program = p_;
  graph::Mesh& mesh = program.roles[0].mesh;
  const int32_t found = mesh.axis("edp");
  if (found < 0 || mesh.axes[found].size < 2) return false;
  const size_t axis = static_cast<size_t>(found);
  mesh.axes[axis].size *= 2;
  // Blocks begin at the old begins, and in the middle between two.
  for (program::Table& table : program.tables) {
    if (std::find(table.axes.begin(), table.axes.end(), found) == table.axes.end()) continue;
    const int64_t length = table.values.size() > 1 ? table.values[1] - table.values[0] : 0;
    const size_t blocks = table.values.size() * 2;
    table.values.clear();
    for (size_t block = 0; block < blocks; ++block) {
      table.values.push_back(static_cast<int64_t>(block) * (length / 2));
    }
  }
  for (RankClass& cls : program.classes) {
    if (!cls.box[axis].is_all()) return false;
    for (Buffer& buffer : cls.buffers) {
      if (buffer.kind == BufferKind::view) return false;  // views have no labels
      const graph::Placement split = buffer.layout[axis];
      if (!split.is_split()) continue;
      if (!buffer.layout.given.empty()) return false;
      graph::Dim& dim = buffer.type.dims[split.dim()];
      if (!dim.divides_into(2)) return false;
      dim /= 2;
      if (buffer.expected_bytes != kNone) {
        buffer.expected_bytes = std::min(buffer.expected_bytes, buffer.type.bytes());
      }
    }
  }
  // Experts of the whole tensor: local ones times the ranks that split them.
  const auto experts_of = [&](const Buffer& buffer) {
    int64_t experts = buffer.type.dims[0];
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      if (buffer.layout[axis] == graph::Placement::split(0)) {
        experts *= mesh.axes[axis].size;
      }
    }
    return experts;
  };
  std::vector<TaskRef> cut;
  for (size_t c = 0; c < program.classes.size(); ++c) {
    RankClass& cls = program.classes[c];
    for (size_t i = 0; i < cls.tasks.size(); ++i) {
      Task& task = cls.tasks[i];
      program::Kind kind = program.kind(task);
      const std::vector<graph::TensorType> before = kind.in;
      int64_t experts = 0;
      const auto retype = [&](std::vector<graph::TensorType>& types,
                              const std::vector<BufferId>& ids) {
        for (size_t k = 0; k < types.size(); ++k) {
          const Buffer& buffer = cls.buffers[ids[k]];
          types[k] = buffer.type;
          if (buffer.type.routed()) {
            experts = experts_of(buffer);
          }
        }
      };
      retype(kind.in, task.in);
      retype(kind.out, task.out);
      if (const ops::Op* op = ops::find_or_null(kind.op)) {
        const ops::Cost cost =
            ops::cost_of(*op, {kind.attrs, kind.in, kind.out, experts, program.symbols});
        kind.flops = cost.flops;
        kind.bytes = cost.bytes;
        if (kind.in != before && lacks_support(*op, kind)) {
          cut.push_back({c, i});
        }
      } else {
        kind = program::communication_kind(kind.communication, kind.attrs, kind.in, kind.out,
                                           program.symbols);
      }
      task.kind = program.intern(std::move(kind));
    }
  }
  if (cut.empty()) return false;
  p_ = std::move(program);
  begin(cut[0], "and all others: tokens split further, sequences with them");
  for (const TaskRef& ref : cut) {
    m_->tasks.push_back(ref);
    m_->near.insert(ref);
  }
  return true;
}

/// Lowers the expected bytes of a buffer.
bool Mutator::change_expected() {
  const auto [class_id, buffer_id] = any_buffer(false);
  if (buffer_id < 0) return false;
  Buffer& buffer = p_.classes[class_id].buffers[buffer_id];
  const int64_t holds =
      buffer.expected_bytes != kNone ? buffer.expected_bytes : buffer.type.bytes();
  const int64_t to = random_.flip() ? holds / 4 : 1;
  if (to == buffer.expected_bytes) return false;
  begin_buffer(class_id, buffer_id, fmt::format("expects {} of {} bytes", to, holds));
  buffer.expected_bytes = to;
  return true;
}

std::string Mutator::move_begin(int64_t* begin, program::TableId* by, int64_t length) {
  const int64_t sign = random_.flip() ? 1 : -1;
  const int64_t change = sign * (random_.flip() ? length : 1);
  if (*by == kNone || random_.flip()) {
    *begin += change;
    return fmt::format("begins {} further", change);
  }
  program::Table table = p_.tables[*by];
  const size_t place = random_.below(table.values.size());
  table.values[place] += change;
  *by = p_.intern(std::move(table));
  return fmt::format("begins {} further at place {} of its table", change, place);
}

/// Moves the begin of a letter of a task.
bool Mutator::change_begin() {
  const TaskRef ref = any_task([](const Task& task) { return !task.piece_offsets.empty(); });
  if (ref.cls < 0) return false;
  program::PieceOffset& changed =
      task(ref).piece_offsets[random_.below(task(ref).piece_offsets.size())];
  const program::Kind& kind = p_.kind(task(ref));
  const graph::TensorType& type = kind.in.empty() ? kind.out[0] : kind.in[0];
  const std::string what = move_begin(&changed.begin, &changed.by, type.dims[0]);
  begin(ref, fmt::format("letter {} {}", changed.letter, what));
  return true;
}

/// Moves a view inside its base.
bool Mutator::change_view() {
  std::vector<std::pair<ClassId, BufferId>> list;
  for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
    for (size_t id = 0; id < p_.classes[cls].buffers.size(); ++id) {
      if (p_.classes[cls].buffers[id].kind == BufferKind::view) {
        list.push_back({cls, id});
      }
    }
  }
  if (list.empty()) return false;
  const auto [class_id, id] = list[random_.below(list.size())];
  Buffer view = p_.classes[class_id].buffers[id];
  const int64_t length = view.dim == kNone ? view.type.numel() : int64_t{view.type.dims[view.dim]};
  const std::string what = move_begin(&view.begin, &view.by, length);
  begin_buffer(class_id, id, what);
  p_.classes[class_id].buffers[id] = view;
  return true;
}

/// Changes, moves, exchanges or removes a tensor of a bucket.
bool Mutator::change_slot() {
  std::vector<std::pair<ClassId, BufferId>> list;
  for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
    for (size_t id = 0; id < p_.classes[cls].buffers.size(); ++id) {
      if (!p_.classes[cls].buffers[id].slots.empty()) {
        list.push_back({cls, id});
      }
    }
  }
  if (list.empty()) return false;
  const auto [class_id, id] = list[random_.below(list.size())];
  auto& buffers = p_.classes[class_id].buffers;
  program::Slot& slot = buffers[id].slots[random_.below(buffers[id].slots.size())];
  switch (random_.below(4)) {
    case 0: {
      const int64_t by = random_.flip() ? 1 : -1;
      begin_buffer(class_id, id, fmt::format("'{}' lies {} further", slot.tensor, by));
      slot.begin += by;
      return true;
    }
    case 1: {
      const BufferId other = list[random_.below(list.size())].second;
      program::Slot& with = buffers[other].slots[random_.below(buffers[other].slots.size())];
      if (with.tensor == slot.tensor) return false;
      begin_buffer(class_id, id, fmt::format("'{}' and '{}' exchanged", slot.tensor, with.tensor));
      begin_buffer(class_id, other, "");
      std::swap(slot.tensor, with.tensor);
      return true;
    }
    case 2: {
      const size_t axis = random_.below(p_.mesh_of(class_id).axes.size());
      const graph::Placement to = random_.flip()
                                      ? graph::Placement::replicate()
                                      : graph::Placement::split(static_cast<int>(random_.below(2)));
      if (slot.layout[axis] == to) return false;
      begin_buffer(class_id, id, fmt::format("layout of '{}' changed", slot.tensor));
      slot.layout.set(axis, to);
      return true;
    }
    default:
      begin_buffer(class_id, id, fmt::format("without '{}'", slot.tensor));
      buffers[id].slots.erase(buffers[id].slots.begin() + (&slot - buffers[id].slots.data()));
      return true;
  }
}

/// Removes the memory plan of one class, or of all.
bool Mutator::drop_plan() {
  const bool all = random_.flip();
  const ClassId one = random_.below(p_.classes.size());
  m_->text = all ? "memory plan removed" : fmt::format("memory plan of class {} removed", one);
  for (ClassId cls = 0; cls < p_.classes.size(); ++cls) {
    if (!all && cls != one) continue;
    RankClass& rc = p_.classes[cls];
    m_->tasks.push_back({cls, -1});
    for (size_t i = 0; i < rc.tasks.size(); ++i) {
      m_->tasks.push_back({cls, i});
    }
    for (Buffer& buffer : rc.buffers) {
      buffer.offset = kNone;
    }
    rc.arena_bytes = 0;
    rc.host_arena_bytes = 0;
    for (Task& task : rc.tasks) {
      task.workspace = kNone;
    }
  }
  return true;
}

}  // namespace hocket::check
