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

std::vector<Level> whole_rings(const graph::Mesh& mesh, const std::vector<int32_t>& axes) {
  std::vector<Level> levels;
  for (int32_t axis : axes) {
    levels.push_back({axis, mesh.axes[axis].size, 1});
  }
  return levels;
}

std::vector<Level> halvings(const graph::Mesh& mesh, const std::vector<int32_t>& axes) {
  std::vector<Level> levels;
  for (int32_t axis : axes) {
    const int64_t size = mesh.axes[axis].size;
    int64_t stride = size & -size;  // the greatest power of two that divides it
    if (size > stride) {
      levels.push_back({axis, size / stride, stride});
    }
    while (stride > 1) {
      stride /= 2;
      levels.push_back({axis, 2, stride});
    }
  }
  return levels;
}

static int64_t all_ranks(const std::vector<Level>& levels) {
  int64_t all = 1;
  for (const Level& level : levels) {
    all *= level.ranks;
  }
  return all;
}

Rings::Rings(program::Program& program, program::ClassId cls, const Task& whole, int32_t first_tag)
    : writer_(program, cls),
      whole_(whole),
      kind_(program.kind(whole)),
      tag_(first_tag),
      first_view_(program.classes[cls].buffers.size()) {}

bool Rings::sums_rows(const std::vector<Level>& levels) const {
  const TensorType& type = kind_.in[0];
  return kind_.in.size() == 1 && !type.dims.empty() && type.dims[0] % all_ranks(levels) == 0 &&
         !is_cut(whole_.in[0]) && !is_cut(whole_.out[0]);
}

void Rings::all_reduce(const std::vector<Level>& levels) {
  // One operand of which all ranks have as many rows is summed where it lies. Else the operands are
  // copied into one flat buffer, with zeros behind them up to a multiple of the ranks, and back:
  // then a list is one message per hop, and sizes need not divide.
  if (sums_rows(levels)) {
    const int64_t rows = kind_.in[0].dims[0];
    const Part whole{whole_.out[0], false, rows, {}};
    Part to = whole;
    scatter({whole_.in[0], false, rows, {}}, &to, kNone, levels);
    gather(whole, levels);
    return;
  }
  std::vector<graph::DType> dtypes;
  for (const TensorType& operand : kind_.in) {
    if (std::find(dtypes.begin(), dtypes.end(), operand.dtype) == dtypes.end()) {
      dtypes.push_back(operand.dtype);
    }
  }
  for (graph::DType dtype : dtypes) {
    all_reduce_flat(levels, dtype);
  }
}

/// The operands of one element type, as one flat buffer of a multiple of all ranks' elements.
void Rings::all_reduce_flat(const std::vector<Level>& levels, graph::DType dtype) {
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
  const int64_t padded = round_up(elements, all_ranks(levels));
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
  scatter(whole, &to, kNone, levels);
  gather(whole, levels);
  for (size_t i = 0; i < places.size(); ++i) {
    copy(slots[i], whole_.out[places[i].operand]);
  }
}

void Rings::reduce_scatter(const std::vector<Level>& levels) {
  // A buffer of which others see parts is copied first, and last.
  BufferId from = whole_.in[0];
  if (is_cut(from)) {
    from = writer_.step(kind_.in[0]);
    copy(whole_.in[0], from);
  }
  const bool copied = writer_.list().buffers[whole_.out[0]].kind == BufferKind::view;
  const BufferId last = copied ? writer_.step(kind_.out[0]) : whole_.out[0];
  scatter({from, false, kind_.in[0].dims[0], {}}, nullptr, last, levels);
  if (copied) {
    copy(last, whole_.out[0]);
  }
}

void Rings::all_gather(const std::vector<Level>& levels) {
  const bool copied = is_cut(whole_.out[0]);
  const BufferId all = copied ? writer_.step(kind_.out[0]) : whole_.out[0];
  const Part whole{all, false, kind_.out[0].dims[0], {}};
  Part mine = whole;
  for (const Level& level : levels) {
    mine = block(mine, level, 0);
  }
  copy(whole_.in[0], view(mine));
  gather(whole, levels);
  if (copied) {
    copy(all, whole_.out[0]);
  }
}

/// Sums over the levels, one after the other. What a rank then has is its block of `to`, which may
/// be `from` itself; without `to` it is the buffer `last`.
Part Rings::scatter(Part from, Part* to, BufferId last, const std::vector<Level>& levels) {
  // Hop h of a ring: of block c - h, at rank c, the sum over the h ranks behind it goes on, that of
  // block c - h - 1 comes and gets the own part. Sums travel in two buffers by turns; the last one
  // is written to its place.
  const bool max = comm::monoid_of(kind_.attrs) == graph::Monoid::max;
  const std::string& add = ops::of(max ? ops::Meaning::merge_max : ops::Meaning::sum).name;
  for (size_t i = 0; i < levels.size(); ++i) {
    const Level& level = levels[i];
    const Part mine = block(from, level, 0);
    Part result = mine;
    if (to) {
      *to = block(*to, level, 0);
      result = *to;
    } else {
      const bool ends = i + 1 == levels.size();
      result = {ends ? last : writer_.step(type_of(mine)), mine.flat, mine.length, {}};
    }
    BufferId goes = view(block(from, level, -1));
    BufferId spare = kNone;
    for (int64_t hop = 1; hop < level.ranks; ++hop) {
      const BufferId comes = hop > 2 ? spare : writer_.step(type_of(mine));
      pass_on(level, goes, comes);
      const BufferId own = view(block(from, level, -hop - 1));
      if (hop + 1 < level.ranks) {
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

/// Collects the blocks of all ranks in `to`, of which every rank has its own, over the levels from
/// the last to the first.
void Rings::gather(Part to, const std::vector<Level>& levels) {
  std::vector<Part> parts;  // by level: what its blocks make up
  for (const Level& level : levels) {
    parts.push_back(to);
    to = block(to, level, 0);
  }
  for (size_t i = levels.size(); i-- > 0;) {
    const Level& level = levels[i];
    for (int64_t hop = 0; hop + 1 < level.ranks; ++hop) {
      pass_on(level, view(block(parts[i], level, -hop)), view(block(parts[i], level, -hop - 1)));
    }
  }
}

/// A message to the next rank of the ring, and the one from the rank before.
void Rings::pass_on(const Level& level, BufferId from, BufferId to) {
  tasks_.push_back(writer_.message(comm::Role::send, from, way(level, 1), tag_, whole_));
  tasks_.push_back(writer_.message(comm::Role::receive, to, way(level, -1), tag_, whole_));
  ++tag_;
}

/// To the rank that lies `shift` further along the ring: an offset along the axis, if the rings of
/// the level end where the axis does; else a table tells where each of them ends.
program::Way Rings::way(const Level& level, int64_t shift) {
  const int64_t size = mesh().axes[level.axis].size;
  if (level.ranks * level.stride == size) {
    return {level.axis, static_cast<int32_t>(shift * level.stride)};
  }
  program::Table table;
  table.role = writer_.list().role;
  table.axes = {level.axis};
  for (int64_t at = 0; at < size; ++at) {
    table.values.push_back((level.number(at, shift) - level.number(at, 0)) * level.stride);
  }
  return {level.axis, 0, writer_.program().intern(std::move(table))};
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

Part Rings::block(const Part& part, const Level& level, int64_t shift) const {
  Part block = part;
  block.length /= level.ranks;
  block.digits.push_back({level, shift, block.length});
  return block;
}

/// The buffer that is the part: the base itself, or a view of it, made once.
BufferId Rings::view(const Part& part) {
  if (part.digits.empty()) return part.base;
  program::Table table;
  table.role = writer_.list().role;
  for (const Part::Digit& digit : part.digits) {
    table.axes.push_back(digit.level.axis);
  }
  std::sort(table.axes.begin(), table.axes.end());
  table.axes.erase(std::unique(table.axes.begin(), table.axes.end()), table.axes.end());
  graph::for_each_coords(mesh(), table.axes, [&](const std::vector<int32_t>& at) {
    int64_t begin = 0;
    for (const Part::Digit& digit : part.digits) {
      begin += digit.length * digit.level.number(at[digit.level.axis], digit.shift);
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
