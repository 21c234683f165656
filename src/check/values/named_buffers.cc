// SPDX-License-Identifier: Apache-2.0
#include "check/values/named_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "program/buffer_contents.h"

namespace hocket::check {

using graph::Coords;

const char* NamedBuffers::bad_name(const program::Buffer& buffer, int32_t tensor) const {
  if (tensor < 0) return "is not a tensor of the single-device graph";
  const graph::Tensor& info = m_.ref.graph().tensor(tensor);
  const bool persistent =
      info.kind == graph::TensorKind::param || info.kind == graph::TensorKind::state;
  const bool input = info.kind == graph::TensorKind::input;
  if (buffer.kind == BufferKind::persistent && !persistent) {
    return "is not a parameter or state of the single-device graph";
  }
  if (buffer.kind == BufferKind::input && !input) {
    return "is not an input of the single-device graph";
  }
  const bool known_micro_batch =
      buffer.micro_batch >= 0 && buffer.micro_batch < m_.ref.num_micro_batches();
  if (input && (info.per_step ? buffer.micro_batch != program::kNone : !known_micro_batch)) {
    return "names a micro-batch that does not exist";
  }
  return nullptr;
}

ExprId NamedBuffers::before_step(const program::Buffer& buffer, int32_t tensor) {
  const TypeId logical = m_.ref.type_of[tensor];
  switch (m_.ref.graph().tensor(tensor).kind) {
    case graph::TensorKind::param:
    case graph::TensorKind::state:
      return m_.ref.terms.tensor(tensor, logical);
    case graph::TensorKind::input:
      return m_.ref.terms.input(tensor, buffer.micro_batch, logical);
    default:
      return kUnwritten;
  }
}

const char* NamedBuffers::bad_slots(ClassId cls, const program::Buffer& buffer) {
  // Conditions on every slot: its tensor can lie among others, and its layout divides it. The local
  // part fits between the slot before it and the end of the bucket.
  const int32_t first = m_.ctx.axis_of(cls, 0);
  const graph::Mesh& mesh = m_.ctx.program.mesh_of(cls);
  const int64_t bucket = program::elements_of(buffer, mesh);
  if (const std::vector<int64_t>& given = buffer.layout.sizes_of(0); !given.empty()) {
    for (int32_t rank : m_.ctx.program.ranks_of(cls)) {
      const graph::BlockNumber mine =
          graph::block_number(buffer.layout, 0, mesh, m_.ctx.program.coords(rank));
      const bool known = std::cmp_equal(given.size(), mine.blocks);
      if (!known || given[static_cast<size_t>(mine.number)] != buffer.type.numel()) {
        return "has another size than its layout gives";
      }
    }
  }
  int64_t end = 0;
  for (const program::Slot& slot : buffer.slots) {
    const int32_t tensor = m_.ref.find(slot.tensor);
    const graph::TensorType& type = m_.ref.graph().tensor(tensor).type;
    if (type.symbolic() || type.granule() != 1) return "holds a tensor that can't be cut anywhere";
    if (type.dtype != buffer.type.dtype || type.routed()) {
      return "holds a tensor of another element type";
    }
    if (!graph::why_invalid(slot.layout, type, mesh).empty()) {
      return "holds a tensor that has no such dims, or not of such sizes";
    }
    const TypeId local = m_.pieces.local_type(m_.pieces.of(slot.layout, type, first),
                                              m_.ref.type_of[tensor], m_.ctx.types);
    if (local < 0) return "holds a tensor whose layout does not divide it";
    if (slot.begin < end) return "has a slot that begins before the one in front of it ends";
    end = slot.begin + m_.ctx.types[local].numel();
  }
  return end > bucket ? "is too small for its slots" : nullptr;
}

Value NamedBuffers::contents(ClassId cls, const program::Buffer& buffer,
                             std::span<const ExprId> terms) {
  // Concatenates the local parts of the tensors, with zeros between them; each rank has its block
  // of that.
  std::vector<Value> components;
  std::vector<PackId> packs;
  AxisMask axes = 0;
  const int32_t first = m_.ctx.axis_of(cls, 0);
  for (size_t i = 0; i < terms.size(); ++i) {
    const graph::TensorType& type = m_.ctx.types[m_.ref.terms[terms[i]].type];
    packs.push_back(
        m_.algebra.flat({terms[i], m_.pieces.of(buffer.slots[i].layout, type, first)}, 0));
    HOCKET_CHECK(packs[i] != kNone, "the slot of {} has no order", buffer.slots[i].tensor);
    HOCKET_CHECK(m_.packs[packs[i]].components.size() == 1, "a slot is one tensor");
    components.push_back(m_.packs[packs[i]].components[0]);
    axes |= m_.packs[packs[i]].axes;
  }
  const graph::Mesh& mesh = m_.ctx.program.mesh_of(cls);
  const int64_t bucket = program::elements_of(buffer, mesh);
  const PackId all = m_.packs.make(components, axes, [&](const Coords& coords) {
    PackRow row;
    int64_t at = 0;
    for (size_t i = 0; i < packs.size(); ++i) {
      row.push_back({program::kNone, 0, buffer.slots[i].begin - at});
      at = buffer.slots[i].begin;
      for (const PackRun& run : m_.packs.at(packs[i], coords)) {
        row.push_back({static_cast<int32_t>(i), run.begin, run.length});
        at += run.length;
      }
    }
    row.push_back({program::kNone, 0, bucket - at});
    return row;
  });
  AxisMask split = 0;
  for (int32_t axis : buffer.layout.axes_of(0)) {
    split |= graph::axis_bit(first + axis);
  }
  const PackId mine = m_.packs.restrict_to(all, split, [&](const Coords& coords) {
    const std::vector<int32_t> here(coords.begin() + first,
                                    coords.begin() + first + std::ssize(mesh.axes));
    const graph::BlockNumber block = graph::block_number(buffer.layout, 0, mesh, here);
    return buffer.layout.block(0, bucket, block.blocks, block.number);
  });
  return m_.algebra.unflat(mine, 1);
}

Value NamedBuffers::initial_value(ClassId cls, BufferId id) {
  const program::Buffer& buffer = m_.ctx.program.classes[cls].buffers[id];
  const std::vector<std::string> names = program::tensors_of(buffer.name, buffer.slots);
  const bool bucket = !buffer.slots.empty();
  const char* wrong = nullptr;
  std::string which;
  for (const std::string& name : names) {
    if (wrong) continue;
    wrong = bad_name(buffer, m_.ref.find(name));
    which = bucket && wrong ? fmt::format(": '{}'", name) : "";
  }
  Value value;
  if (!wrong && bucket) {
    wrong = bad_slots(cls, buffer);
  } else if (!bucket) {
    const int32_t tensor = m_.ref.find(names[0]);
    const TypeId logical = tensor >= 0 ? m_.ref.type_of[tensor] : TypeId(kNone);
    if (tensor >= 0 && !buffer.layout.given.empty()) {
      which = graph::why_invalid(buffer.layout, m_.ctx.types[logical], m_.ctx.program.mesh_of(cls));
    }
    if (!which.empty()) {
      wrong = "has no such blocks: ";
    } else if (tensor >= 0) {
      value.piece = m_.pieces.of(buffer.layout, m_.ctx.types[logical], m_.ctx.axis_of(cls, 0));
      for (int dim = 0; dim < static_cast<int>(m_.pieces[value.piece].dims); ++dim) {
        m_.pieces.canonical(m_.ctx.boxes[cls], value.piece, dim, false);
      }
      if (!wrong && m_.pieces.local_type(value.piece, logical, m_.ctx.types, m_.ctx.boxes[cls]) !=
                        m_.ctx.buffer_type[cls][id]) {
        wrong = "is not the local part of the logical tensor under its layout";
        const TypeId local =
            m_.pieces.local_type(value.piece, logical, m_.ctx.types, m_.ctx.boxes[cls]);
        which = local < 0 ? ", which does not divide it"
                          : ", which is " + graph::to_string(m_.ctx.types[local]);
      }
    }
  }
  if (wrong) {
    const std::vector<TaskRef> users = m_.ctx.users(cls, id);
    m_.ctx.report(
        "named-tensor", ProblemClass::value, users.empty() ? TaskRef{cls, -1} : users[0], users,
        fmt::format("{} in class {}, {} with layout {}, {}{}", m_.ctx.buffer_name(cls, id), cls,
                    graph::to_string(buffer.type),
                    graph::to_string(buffer.layout, m_.ctx.program.mesh_of(cls)), wrong, which),
        "name a tensor of the graph, with the type that its layout gives it");
    undeclared_.insert({cls, id});
    value.expr = kUnknown;
    return value;
  }
  std::vector<ExprId> terms;
  for (const std::string& name : names) {
    terms.push_back(before_step(buffer, m_.ref.find(name)));
    if (terms.back() == kUnwritten) return value;
  }
  if (bucket) return contents(cls, buffer, terms);
  value.expr = terms[0];
  return value;
}

/// Returns whether a value lies, on the ranks of the class, as its buffer declares. Outputs are
/// replicated, by rule host-contract.
bool NamedBuffers::matches_declaration(const Value& value, ClassId cls,
                                       const program::Buffer& buffer) {
  if (value.expr == kZero) return true;
  if (value.piece == kAnyPiece) return false;
  const graph::TensorType& logical = m_.ctx.types[m_.ref.terms[value.expr].type];
  const PieceId declared = m_.pieces.of(buffer.layout, logical, m_.ctx.axis_of(cls, 0));
  return m_.pieces.equal_on(value.piece, declared, logical, m_.ctx.boxes[cls]);
}

void NamedBuffers::finish_bucket(ClassId cls, BufferId buffer, std::span<const ExprId> want,
                                 const Value& left) {
  // The first element that differs decides: another tensor is a wrong value, the same tensor a
  // wrong layout.
  const program::Buffer& bucket = m_.ctx.program.classes[cls].buffers[buffer];
  const Value right = contents(cls, bucket, want);
  const int32_t writer = m_.hazards.writer(cls, buffer);
  const TaskRef at = writer >= 0 ? m_.ctx.ref(writer) : TaskRef{cls, -1};
  Value value = left;
  m_.algebra.take_marks(&value);
  if (value == right) return replicas_.add(at, buffer, left);
  const std::array<PackId, 2> ids{m_.algebra.flat(value, bucket.type.numel()),
                                  m_.algebra.flat(right, bucket.type.numel())};
  ExprId got = kUnwritten;
  ExprId expected = kUnwritten;
  if (ids[0] != kNone) {
    m_.packs.for_each_aligned(ids, [&](const graph::Coords&, const Packs::AlignedRuns& meeting) {
      const auto expr_of = [&](size_t side) {
        const int32_t component = meeting.runs[side].component;
        return component == kNone ? kZero : m_.packs[ids[side]].components[component].expr;
      };
      if (expected == kUnwritten && expr_of(0) != expr_of(1)) {
        got = expr_of(0);
        expected = expr_of(1);
      }
    });
  } else {
    got = value.expr;
    expected = want[0];
  }
  if (expected != kUnwritten) return m_.refusals.explain_final(cls, buffer, expected, got);
  m_.ctx.report("final-layout", ProblemClass::value, at, {},
                fmt::format("{} leaves {} with {}; the host expects {}", m_.ctx.name(at),
                            m_.ctx.buffer_name(cls, buffer), m_.text.pack_text(ids[0]),
                            m_.text.pack_text(ids[1])),
                "move its tensors to their slots before the step ends",
                m_.text.where(cls, value, "; the host expects ", right, ""));
}

void NamedBuffers::finish_buffer(ClassId cls, BufferId id, Kept* kept) {
  // Buffers that can't hold the tensors of their name were refused before the step (named-tensor).
  if (undeclared_.contains({cls, id})) return;
  const program::Buffer& buffer = m_.ctx.program.classes[cls].buffers[id];
  const bool output = buffer.kind == BufferKind::output;
  const bool each = output && buffer.micro_batch >= 0;
  std::vector<ExprId> wanted;
  for (const std::string& name : program::tensors_of(buffer.name, buffer.slots)) {
    const int32_t tensor = m_.ref.find(name);
    (*kept)[{tensor, each ? buffer.micro_batch : -1}].push_back({cls, &buffer});
    wanted.push_back(m_.ref.value(tensor, output ? buffer.micro_batch : -1));
  }
  const Value value = m_.io.left_in(cls, id);
  if (value.expr == kUnknown) {
    lost_ = true;
    return;
  }
  if (*std::min_element(wanted.begin(), wanted.end()) < 0) {
    const std::vector<TaskRef> users = m_.ctx.users(cls, id);
    m_.ctx.report("named-tensor", ProblemClass::value, users.empty() ? TaskRef{cls, -1} : users[0],
                  users,
                  fmt::format("{} of class {}: the graph has no such value after the step",
                              m_.ctx.buffer_name(cls, id), cls),
                  "let outputs name a loss or an output of the graph");
    return;
  }
  if (!buffer.slots.empty()) return finish_bucket(cls, id, wanted, value);
  if (m_.algebra.terms_in(value) != wanted[0]) {
    return m_.refusals.explain_final(cls, id, wanted[0], m_.algebra.terms_in(value));
  }
  const int32_t writer = m_.hazards.writer(cls, id);
  const TaskRef at = writer >= 0 ? m_.ctx.ref(writer) : TaskRef{cls, -1};
  if (matches_declaration(value, cls, buffer)) return replicas_.add(at, id, value);
  m_.ctx.report("final-layout", ProblemClass::value, at, {},
                fmt::format("{} leaves {} in layout {}; the host expects {}", m_.ctx.name(at),
                            m_.ctx.buffer_name(cls, id), m_.text.piece_text(value),
                            graph::to_string(buffer.layout, m_.ctx.program.mesh_of(cls))),
                "reduce or gather it before the step ends, or declare the layout it has",
                m_.text.where(cls, value, "; the host expects ",
                              {value.expr, m_.pieces.of(buffer.layout,
                                                        m_.ctx.types[m_.ref.terms[value.expr].type],
                                                        m_.ctx.axis_of(cls, 0))},
                              ""));
}

void NamedBuffers::finish() {
  // Compares from both sides. Every named buffer must hold the values that the single-device step
  // leaves in the tensors of its name (persistent: updated or as before; output: of its
  // micro-batch, or summed). Every tensor that the step updates or returns must be kept, with all
  // its parts, by some classes: whole, or micro-batch by micro-batch.
  const graph::Graph& graph = m_.ref.graph();
  Kept kept;
  for (size_t c = 0; c < m_.ctx.program.classes.size(); ++c) {
    const auto& buffers = m_.ctx.program.classes[c].buffers;
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].kind == BufferKind::persistent || buffers[i].kind == BufferKind::output) {
        finish_buffer(ClassId(c), BufferId(i), &kept);
      }
    }
  }
  replicas_.judge();
  std::vector<int32_t> wanted;
  for (size_t tensor = 0; tensor < graph.tensors.size(); ++tensor) {
    if (m_.ref.updated(static_cast<int32_t>(tensor))) {
      wanted.push_back(static_cast<int32_t>(tensor));
    }
  }
  wanted.insert(wanted.end(), graph.losses.begin(), graph.losses.end());
  wanted.insert(wanted.end(), graph.outputs.begin(), graph.outputs.end());
  // Skips tensors of refused buffers.
  std::set<int32_t> asked;
  for (const auto& [cls, id] : undeclared_) {
    const program::Buffer& buffer = m_.ctx.program.classes[cls].buffers[id];
    for (const std::string& name : program::tensors_of(buffer.name, buffer.slots)) {
      asked.insert(m_.ref.find(name));
    }
  }
  for (int32_t tensor : wanted) {
    if (!asked.insert(tensor).second) continue;
    bool each = m_.ref.per_micro_batch(tensor);
    bool some = !kept[{tensor, -1}].empty();
    for (int32_t mb = 0; mb < m_.ref.num_micro_batches() && each; ++mb) {
      some = some || !kept[{tensor, mb}].empty();
      each = m_.ctx.covers(graph.tensor(tensor), kept[{tensor, mb}]);
    }
    if (each || m_.ctx.covers(graph.tensor(tensor), kept[{tensor, -1}])) continue;
    m_.ctx.report("result-missing", ProblemClass::value, {}, {},
                  fmt::format("{} '{}', which the single-device step computes",
                              some ? "the classes keep only some parts of" : "no class keeps",
                              graph.tensor(tensor).name),
                  "add a persistent or output buffer of this name and the tasks that fill it",
                  m_.ctx.uncovered(graph.tensor(tensor), kept[{tensor, -1}]));
  }
  // A value is unknown only as the consequence of a problem. Without one nothing is proven.
  HOCKET_CHECK(!lost_ || m_.ctx.problems.count > 0 || !m_.ctx.options.skip_rules.empty(),
               "the check lost a value without a problem");
}

}  // namespace hocket::check
