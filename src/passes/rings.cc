// SPDX-License-Identifier: Apache-2.0
#include "passes/rings.h"

#include <algorithm>
#include <utility>

#include "base/math.h"
#include "ops/op.h"

namespace hocket::passes {

using graph::TensorType;
using program::Buffer;
using program::BufferId;
using program::BufferKind;
using program::kNone;
using program::Task;

Rings::Rings(program::Program& program, program::ClassId cls, const Task& whole, int32_t first_tag)
    : writer_(program, cls),
      whole_(whole),
      kind_(program.kind(whole)),
      tag_(first_tag),
      first_view_(program.classes[cls].buffers.size()) {}

int64_t Rings::all_ranks(const std::vector<int32_t>& axes) const {
  int64_t all = 1;
  for (int32_t axis : axes) {
    all *= ranks(axis);
  }
  return all;
}

bool Rings::sums_rows(const std::vector<int32_t>& axes) const {
  const TensorType& type = kind_.in[0];
  return kind_.in.size() == 1 && !type.dims.empty() && type.dims[0] % all_ranks(axes) == 0 &&
         !is_cut(whole_.in[0]) && !is_cut(whole_.out[0]);
}

void Rings::all_reduce(const std::vector<int32_t>& axes) {
  // One operand of which all ranks have as many rows is summed where it lies. Else the operands are
  // copied into one flat buffer, with zeros behind them up to a multiple of the ranks, and back:
  // then a list is one message per hop, and sizes need not divide.
  const int64_t all = all_ranks(axes);
  if (sums_rows(axes)) {
    const int64_t rows = kind_.in[0].dims[0];
    const Part whole{whole_.out[0], false, rows, {}};
    Part to = whole;
    scatter({whole_.in[0], false, rows, {}}, &to, kNone, axes);
    gather(whole, axes);
    return;
  }
  std::vector<graph::DType> dtypes;
  for (const TensorType& operand : kind_.in) {
    if (std::find(dtypes.begin(), dtypes.end(), operand.dtype) == dtypes.end()) {
      dtypes.push_back(operand.dtype);
    }
  }
  for (graph::DType dtype : dtypes) {
    all_reduce_flat(axes, dtype, all);
  }
}

/// The operands of one element type, as one flat buffer of a multiple of `all` elements.
void Rings::all_reduce_flat(const std::vector<int32_t>& axes, graph::DType dtype, int64_t all) {
  struct Slot {
    size_t operand;
    int64_t begin;
  };
  std::vector<Slot> places;
  int64_t elements = 0;
  for (size_t i = 0; i < kind_.in.size(); ++i) {
    if (kind_.in[i].dtype != dtype) continue;
    places.push_back({i, elements});
    elements += kind_.in[i].numel();
  }
  const int64_t padded = round_up(elements, all);
  const BufferId flat = writer_.step({dtype, {padded}});
  std::vector<BufferId> slots;
  for (const Slot& place : places) {
    slots.push_back(slot(flat, kind_.in[place.operand], place.begin));
    copy(whole_.in[place.operand], slots.back());
  }
  if (padded > elements) {
    const TensorType rest{dtype, {padded - elements}};
    local(ops::of(ops::Meaning::empty).name, {{"type", to_string(rest)}}, {},
          slot(flat, rest, elements));
  }
  const Part whole{flat, true, padded, {}};
  Part to = whole;
  scatter(whole, &to, kNone, axes);
  gather(whole, axes);
  for (size_t i = 0; i < places.size(); ++i) {
    copy(slots[i], whole_.out[places[i].operand]);
  }
}

void Rings::reduce_scatter(const std::vector<int32_t>& axes) {
  // A buffer of which others see parts is copied first, and last.
  BufferId from = whole_.in[0];
  if (is_cut(from)) {
    from = writer_.step(kind_.in[0]);
    copy(whole_.in[0], from);
  }
  const bool copied = writer_.list().buffers[whole_.out[0]].kind == BufferKind::view;
  const BufferId last = copied ? writer_.step(kind_.out[0]) : whole_.out[0];
  scatter({from, false, kind_.in[0].dims[0], {}}, nullptr, last, axes);
  if (copied) {
    copy(last, whole_.out[0]);
  }
}

void Rings::all_gather(const std::vector<int32_t>& axes) {
  const bool copied = is_cut(whole_.out[0]);
  const BufferId all = copied ? writer_.step(kind_.out[0]) : whole_.out[0];
  const Part whole{all, false, kind_.out[0].dims[0], {}};
  Part mine = whole;
  for (int32_t axis : axes) {
    mine = block(mine, axis, 0);
  }
  copy(whole_.in[0], view(mine));
  gather(whole, axes);
  if (copied) {
    copy(all, whole_.out[0]);
  }
}

/// Sums over the axes, one after the other. What a rank then has is its block of `to`, which may be
/// `from` itself; without `to` it is the buffer `last`.
Part Rings::scatter(Part from, Part* to, BufferId last, const std::vector<int32_t>& axes) {
  // Hop h of a ring: of block c - h, at rank c, the sum over the h ranks behind it goes on, that of
  // block c - h - 1 comes and gets the own part. Sums travel in two buffers by turns; the last one
  // is written to its place.
  const bool max = comm::monoid_of(kind_.attrs) == graph::Monoid::max;
  const std::string& add = ops::of(max ? ops::Meaning::merge_max : ops::Meaning::sum).name;
  for (size_t level = 0; level < axes.size(); ++level) {
    const int32_t axis = axes[level];
    const int64_t n = ranks(axis);
    const Part mine = block(from, axis, 0);
    Part result = mine;
    if (to) {
      *to = block(*to, axis, 0);
      result = *to;
    } else {
      const bool ends = level + 1 == axes.size();
      result = {ends ? last : writer_.step(type_of(mine)), mine.flat, mine.length, {}};
    }
    BufferId goes = view(block(from, axis, -1));
    BufferId spare = kNone;
    for (int64_t hop = 1; hop < n; ++hop) {
      const BufferId comes = hop > 2 ? spare : writer_.step(type_of(mine));
      pass_on(axis, goes, comes);
      const BufferId own = view(block(from, axis, -hop - 1));
      if (hop + 1 < n) {
        local(add, {}, {comes, own}, comes);
      } else {
        local(add, {}, {own, comes}, view(result));
      }
      spare = hop > 1 ? goes : kNone;
      goes = comes;
    }
    from = result;
  }
  return from;
}

/// Collects the blocks of all ranks in `to`, of which every rank has its own, over the axes from
/// the last to the first.
void Rings::gather(Part to, const std::vector<int32_t>& axes) {
  std::vector<Part> levels;
  for (int32_t axis : axes) {
    levels.push_back(to);
    to = block(to, axis, 0);
  }
  for (size_t level = axes.size(); level-- > 0;) {
    const int32_t axis = axes[level];
    for (int64_t hop = 0; hop + 1 < ranks(axis); ++hop) {
      pass_on(axis, view(block(levels[level], axis, -hop)),
              view(block(levels[level], axis, -hop - 1)));
    }
  }
}

/// A message to the next rank on the axis, and the one from the rank before.
void Rings::pass_on(int32_t axis, BufferId from, BufferId to) {
  tasks_.push_back(writer_.message(comm::Role::send, from, {axis, 1}, tag_, whole_));
  tasks_.push_back(writer_.message(comm::Role::receive, to, {axis, -1}, tag_, whole_));
  ++tag_;
}

void Rings::local(const std::string& op, const graph::Attrs& attrs, const std::vector<BufferId>& in,
                  BufferId out) {
  tasks_.push_back(writer_.local(op, attrs, in, {out}, whole_));
}

void Rings::copy(BufferId from, BufferId to) {
  local(ops::of(ops::Meaning::identity).name, {}, {from}, to);
}

/// A tensor in a flat buffer.
BufferId Rings::slot(BufferId base, const TensorType& type, int64_t begin) {
  Buffer buffer;
  buffer.kind = BufferKind::view;
  buffer.type = type;
  buffer.base = base;
  buffer.begin = begin;
  writer_.list().buffers.push_back(std::move(buffer));
  return writer_.list().buffers.size() - 1;
}

TensorType Rings::type_of(const Part& part) const {
  TensorType type = writer_.type(part.base);
  if (part.flat) {
    type.dims = {part.length};
  } else {
    type.dims[0] = part.length;
  }
  return type;
}

Part Rings::block(const Part& part, int32_t axis, int64_t shift) const {
  Part block = part;
  block.length /= ranks(axis);
  block.digits.push_back({axis, shift, block.length});
  return block;
}

/// The buffer that is the part: the base itself, or a view of it, made once.
BufferId Rings::view(const Part& part) {
  if (part.digits.empty()) return part.base;
  program::Table table;
  table.role = writer_.list().role;
  for (const Part::Digit& digit : part.digits) {
    table.axes.push_back(digit.axis);
  }
  std::sort(table.axes.begin(), table.axes.end());
  graph::for_each_coords(mesh(), table.axes, [&](const std::vector<int32_t>& at) {
    int64_t begin = 0;
    for (const Part::Digit& digit : part.digits) {
      begin += digit.stride * mesh().wrap(digit.axis, at[digit.axis] + digit.shift);
    }
    table.values.push_back(begin);
  });
  Buffer made;
  made.kind = BufferKind::view;
  made.type = type_of(part);
  made.base = part.base;
  made.dim = part.flat ? kNone : 0;
  made.by = writer_.program().intern(std::move(table));
  std::vector<Buffer>& buffers = writer_.list().buffers;
  const auto known = std::find(buffers.begin() + first_view_, buffers.end(), made);
  if (known != buffers.end()) return known - buffers.begin();
  buffers.push_back(std::move(made));
  return buffers.size() - 1;
}

/// Whether parts of the buffer along dim 0 can't be seen: it is one itself, or is cut otherwise.
bool Rings::is_cut(BufferId buffer) const {
  const std::vector<Buffer>& buffers = writer_.list().buffers;
  return buffers[buffer].kind == BufferKind::view ||
         std::any_of(buffers.begin(), buffers.end(), [&](const Buffer& other) {
           return other.kind == BufferKind::view && other.base == buffer && other.dim != 0;
         });
}

}  // namespace hocket::passes
