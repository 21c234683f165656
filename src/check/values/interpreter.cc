// SPDX-License-Identifier: Apache-2.0
#include "check/values/interpreter.h"

#include <fmt/format.h>

namespace hocket::check {

Interpreter::Interpreter(Context& ctx, Reference& reference, const Hazards& hazards)
    : m_(ctx, reference, hazards), local_(m_), collectives_(m_), transfers_(m_), named_(m_) {
  // Before the step only buffers that the host fills have values.
  for (size_t c = 0; c < ctx.program.classes.size(); ++c) {
    const RankClass& cls = ctx.program.classes[c];
    std::vector<Value> values(cls.buffers.size(), Value{});
    for (size_t i = 0; i < cls.buffers.size(); ++i) {
      const BufferKind kind = cls.buffers[i].kind;
      if (kind == BufferKind::step || kind == BufferKind::view) continue;
      values[i] = named_.initial_value(ClassId(c), BufferId(i));
    }
    m_.state.add_class(std::move(values));
  }
}

void Interpreter::step_across_classes(std::span<const std::vector<TaskRef>> instances) {
  if (is_transfer(m_.ctx.kind(m_.ctx.task(instances[0][0])))) {
    return transfers_.transfer(instances[0]);
  }
  collectives_.step_across_classes(instances);
}

void Interpreter::step(ClassId cls, TaskId task, int32_t global, std::span<const int32_t> senders) {
  // A message carries the value as of the send, whatever the sender writes over it later. Where the
  // peers of a class are of several classes, all must send one value.
  const TaskRef ref{cls, task};
  const Task& end = m_.ctx.task(ref);
  const KindInfo& info = m_.ctx.kind(end);
  if (is_local(info)) return local_.step(cls, task);
  if (is_message(info) && !is_receive(info)) {
    Value value = m_.io.read(ref, end.in[0]);
    if (value.expr < 0) {
      value.expr = kUnknown;
    }
    sent_[global] = value;
    return;
  }
  if (is_receive(info)) {
    Value value;
    for (const int32_t sender : senders) {
      const Value& sent = sent_[sender];
      if (sender == senders.front()) {
        value = sent;
      } else if (sent != value) {
        m_.ctx.report(
            "classes-differ", ProblemClass::value, ref,
            {m_.ctx.ref(senders.front()), m_.ctx.ref(sender)},
            fmt::format("{} receives {} from {}, but {} from {}", m_.ctx.name(ref),
                        m_.text.describe(value.expr), m_.ctx.name(m_.ctx.ref(senders.front())),
                        m_.text.describe(sent.expr), m_.ctx.name(m_.ctx.ref(sender))),
            "send one value, or give the receiving ranks classes of their own",
            m_.text.where_of_two(m_.ctx.ref(senders.front()), value, m_.ctx.ref(sender), sent));
        return m_.io.invalidate_outputs(ref);
      }
    }
    if (value.expr < 0) return m_.io.invalidate_outputs(ref);
    return receive(ref, end, value);
  }
  collectives_.step(cls, task);
}

const graph::Shift& Interpreter::to_peer(ClassId cls, const Task& end) {
  const program::RoleId role = m_.ctx.program.classes[cls].role;
  const auto [known, fresh] = to_peers_.try_emplace({role, end.peer_map()});
  graph::Shift& shift = known->second;
  if (fresh) {
    shift.axis = m_.ctx.axis_of(cls, end.peer_axis);
    shift.axes = m_.ctx.table_axes(cls, end.peer_by);
    shift.offsets.clear();
    m_.pieces.cuts.for_each(shift.axes, {}, [&](const graph::Coords& at) {
      const int32_t peer = m_.ctx.program.peer_of(end.peer_map(), m_.ctx.rank_at(role, at));
      shift.offsets.push_back(m_.ctx.coords_of(peer)[shift.axis] - at[shift.axis]);
    });
  }
  return shift;
}

void Interpreter::receive(TaskRef ref, const Task& end, const Value& value) {
  // Takes the peer's piece of every part, or of every tensor of a pack.
  const graph::Shift& shift = to_peer(ref.cls, end);
  if (m_.algebra.is_pack(value)) {
    const std::optional<Value> moved = m_.algebra.pack_from_peer(value, shift);
    if (moved) return m_.io.write(ref, 0, *moved);
    return m_.io.invalidate_outputs(ref);
  }
  std::vector<Value> parts = m_.algebra.parts_of(value);
  for (Value& part : parts) {
    if (part.piece == kAnyPiece) continue;
    const PieceId moved = m_.pieces.from_peer(part.piece, shift);
    if (moved != part.piece && m_.algebra.local_index(part.expr)) {
      const graph::Coords& at = m_.ctx.boxes[ref.cls].begin;
      const graph::Coords peer = m_.pieces.cuts.shifted(at, shift);
      m_.ctx.report(
          "message-rows", ProblemClass::value, ref, {},
          fmt::format("{} receives {}, which only means something on the rank that made it",
                      m_.ctx.name(ref), m_.text.describe(part.expr)),
          "plan the routing again on the received ids",
          fmt::format("{} would get {} of the rows of {}", m_.text.rank_text(ref.cls, at),
                      m_.text.held_text(part, peer), m_.text.rank_text(ref.cls, peer)));
      return m_.io.invalidate_outputs(ref);
    }
    part.piece = moved;
  }
  Value got = *m_.algebra.sum_of(parts);
  got.marks = m_.codec_marks.from_peer(got.marks, shift);
  m_.io.write(ref, 0, got);
}

}  // namespace hocket::check
