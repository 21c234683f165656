// SPDX-License-Identifier: Apache-2.0
#include "passes/ring_collectives.h"

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

std::vector<RingLevel> whole_rings(const graph::Mesh& mesh, const std::vector<int32_t>& axes) {
  std::vector<RingLevel> levels;
  for (int32_t axis : axes) {
    if (mesh.axes[axis].size > 1) {
      levels.push_back({axis, mesh.axes[axis].size, 1});
    }
  }
  return levels;
}

std::vector<RingLevel> halvings(const graph::Mesh& mesh, const std::vector<int32_t>& axes) {
  std::vector<RingLevel> levels;
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

namespace {

int64_t all_ranks(const std::vector<RingLevel>& levels) {
  int64_t all = 1;
  for (const RingLevel& level : levels) {
    all *= level.ranks;
  }
  return all;
}

std::vector<RingLevel> joined(std::vector<RingLevel> first, const std::vector<RingLevel>& then) {
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

/// Returns the number of consecutive ranks, `stride` apart on the axis, on one node: the same
/// everywhere, or 1.
int64_t on_node(int64_t size, int64_t stride, int64_t ranks_per_node) {
  if (ranks_per_node % stride != 0) return 1;
  const int64_t run = ranks_per_node / stride;
  if (run % size == 0) return size;
  return size % run == 0 ? run : 1;
}

/// The most pieces, of `most`, that `size` divides into.
int64_t pieces_of(int64_t size, int64_t most) {
  int64_t pieces = std::min(size, most);
  while (pieces > 1 && size % pieces != 0) {
    --pieces;
  }
  return std::max<int64_t>(pieces, 1);
}

/// Returns the innermost of the rank's nested blocks at these levels.
Part own_block(Part part, const std::vector<RingLevel>& levels) {
  for (const RingLevel& level : levels) {
    part = part.block(level, 0);
  }
  return part;
}

}  // namespace

std::vector<RingLevel> Nested::all() const { return joined(across, inside); }

Nested nested_rings(const program::Program& program, program::ClassId cls,
                    const std::vector<int32_t>& axes) {
  const graph::Mesh& mesh = program.mesh_of(cls);
  const int64_t per_node = program.ranks_per_node;
  const bool begins_node =
      per_node > 0 && program.first_rank(program.classes[cls].role) % per_node == 0;
  Nested levels;
  for (int32_t axis : axes) {
    const int64_t size = mesh.axes[axis].size;
    int64_t stride = 1;
    for (size_t inner = static_cast<size_t>(axis) + 1; inner < mesh.axes.size(); ++inner) {
      stride *= mesh.axes[inner].size;
    }
    int64_t near = per_node > 0 ? 1 : size;
    if (begins_node) {
      near = on_node(size, stride, per_node);
    }
    if (near > 1) {
      levels.inside.push_back({axis, near, 1});
    }
    if (near < size) {
      levels.across.push_back({axis, size / near, near});
    }
  }
  return levels;
}

Part Part::block(const RingLevel& level, int64_t shift) const {
  Part block = *this;
  block.length /= level.ranks;
  block.digits.push_back({level, shift, block.length});
  return block;
}

Part Part::piece(int64_t number, int64_t pieces) const {
  Part piece = *this;
  piece.length /= pieces;
  piece.begin += number * piece.length;
  return piece;
}

namespace {

TensorType type_of(const Writer& writer, const Part& part) {
  TensorType type = writer.type(part.base);
  if (part.flat) {
    type.dims = {part.length};
  } else {
    type.dims[0] = part.length;
  }
  return type;
}

}  // namespace

BufferId part_view(Writer& writer, const Part& part, PartViews* made_before) {
  const TensorType type = type_of(writer, part);
  if (part.digits.empty() && type == writer.type(part.base)) return part.base;
  program::Table table;
  table.role = writer.list().role;
  for (const Part::Digit& digit : part.digits) {
    table.axes.push_back(digit.level.axis);
  }
  std::sort(table.axes.begin(), table.axes.end());
  table.axes.erase(std::unique(table.axes.begin(), table.axes.end()), table.axes.end());
  const graph::Mesh& mesh = writer.program().mesh_of(writer.cls());
  graph::for_each_coords(mesh, table.axes, [&](const std::vector<int32_t>& at) {
    int64_t begin = 0;
    for (const Part::Digit& digit : part.digits) {
      begin += digit.length * digit.level.number(at[digit.level.axis], digit.shift);
    }
    table.values.push_back(begin);
  });
  Buffer made;
  made.kind = BufferKind::view;
  made.type = type;
  made.base = part.base;
  made.dim = part.flat ? kNone : 0;
  made.begin = part.begin;
  if (!part.digits.empty()) {
    made.by = writer.program().intern(std::move(table));
  }
  std::vector<Buffer>& buffers = writer.list().buffers;
  std::vector<BufferId>& views = (*made_before)[part.base];
  for (const BufferId known : views) {
    if (buffers[known] == made) return known;
  }
  buffers.push_back(std::move(made));
  views.push_back(BufferId(buffers.size() - 1));
  return views.back();
}

RingCollectives::RingCollectives(program::Program& program, program::ClassId cls, const Task& whole,
                                 int32_t first_tag, ViewsAlongOtherDims* cut)
    : writer_(program, cls),
      whole_(whole),
      kind_(program.kind(whole)),
      tag_(first_tag),
      cut_(cut) {}

bool RingCollectives::sums_rows(const std::vector<RingLevel>& levels) const {
  const TensorType& type = kind_.in[0];
  return kind_.in.size() == 1 && !type.dims.empty() && type.dims[0] % all_ranks(levels) == 0 &&
         !is_cut(whole_.in[0]) && !is_cut(whole_.out[0]);
}

void RingCollectives::all_reduce(const Nested& levels, int64_t pieces) {
  // Neighbours first, with the fastest links; pieces if there are two kinds of links.
  std::vector<RingLevel> inside(levels.inside.rbegin(), levels.inside.rend());
  std::vector<RingLevel> across(levels.across.rbegin(), levels.across.rend());
  const bool two = !inside.empty() && !across.empty();
  all_reduce(inside, across, two ? pieces : 1);
}

void RingCollectives::all_reduce(const std::vector<RingLevel>& inside,
                                 const std::vector<RingLevel>& rest, int64_t pieces) {
  // Reduces in place if there is one operand with equal rows on all ranks. Otherwise operands are
  // copied into one flat buffer, padded to a multiple of the ranks, and back: a list is then one
  // message per hop, and sizes need not divide.
  const std::vector<RingLevel> levels = joined(inside, rest);
  if (levels.empty()) return;
  begin_at(levels[0]);
  if (sums_rows(levels)) {
    const int64_t rows = kind_.in[0].dims[0];
    all_reduce({whole_.in[0], false, rows}, {whole_.out[0], false, rows}, inside, rest,
               pieces_of(rows / all_ranks(levels), pieces));
    return;
  }
  std::vector<graph::DType> dtypes;
  for (const TensorType& operand : kind_.in) {
    if (std::find(dtypes.begin(), dtypes.end(), operand.dtype) == dtypes.end()) {
      dtypes.push_back(operand.dtype);
    }
  }
  for (graph::DType dtype : dtypes) {
    all_reduce_flat(inside, rest, pieces, dtype);
  }
}

/// The operands of one element type, as one flat buffer of a multiple of all ranks' elements.
void RingCollectives::all_reduce_flat(const std::vector<RingLevel>& inside,
                                      const std::vector<RingLevel>& rest, int64_t pieces,
                                      graph::DType dtype) {
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
  const int64_t ranks = all_ranks(inside) * all_ranks(rest);
  pieces = std::clamp<int64_t>(elements / ranks, 1, pieces);
  const int64_t padded = round_up(elements, ranks * pieces);
  const BufferId flat = writer_.step({dtype, {padded}});
  std::vector<BufferId> slots;
  for (const Slot& place : places) {
    slots.push_back(slot(flat, kind_.in[place.operand], place.begin));
    copy(whole_.in[place.operand], slots.back());
  }
  if (padded > elements) {
    const TensorType left{dtype, {padded - elements}};
    local(ops::of(ops::Meaning::empty).name, {{"type", to_string(left)}}, {},
          slot(flat, left, elements));
  }
  const Part whole{flat, true, padded};
  all_reduce(whole, whole, inside, rest, pieces);
  for (size_t i = 0; i < places.size(); ++i) {
    copy(slots[i], whole_.out[places[i].operand]);
  }
}

/// Reduces all pieces inside, then each over the rest, then gathers all inside: two lanes work at
/// the same time on different pieces. Over the rest, a piece is gathered after the next one's
/// reduction has started: the link stays busy while a rank waits for its next addend.
void RingCollectives::all_reduce(Part from, Part to, const std::vector<RingLevel>& inside,
                                 const std::vector<RingLevel>& rest, int64_t pieces) {
  std::vector<Part> summed;
  for (int64_t number = 0; number < pieces; ++number) {
    const Part sum = to.piece(number, pieces);
    summed.push_back(scatter(from.piece(number, pieces), &sum, nullptr, inside, {}));
  }
  const bool nested = !inside.empty() && !rest.empty();
  if (nested && phases_.first_end == 0) {
    phases_.first_end = tasks_.size();
  }
  const auto mine = [&](int64_t number) { return own_block(to.piece(number, pieces), inside); };
  for (int64_t number = 0; number < pieces; ++number) {
    const Part sum = mine(number);
    scatter(summed[static_cast<size_t>(number)], &sum, nullptr, rest, {});
    if (number > 0) {
      gather(mine(number - 1), rest, {});
    }
  }
  gather(mine(pieces - 1), rest, {});
  phases_.last_begin = nested ? tasks_.size() : 0;
  for (int64_t number = 0; number < pieces; ++number) {
    gather(to.piece(number, pieces), inside, {});
  }
}

/// Copies a buffer with other views first, and back last. `scatter_all(from, last)`.
template <class Scatter>
void RingCollectives::reduce_scatter_by(const Scatter& scatter_all) {
  BufferId from = whole_.in[0];
  if (is_cut(from)) {
    from = writer_.step(kind_.in[0]);
    copy(whole_.in[0], from);
  }
  const bool copied = writer_.list().buffers[whole_.out[0]].kind == BufferKind::view;
  const BufferId last = copied ? writer_.step(kind_.out[0]) : whole_.out[0];
  scatter_all(Part{from, false, kind_.in[0].dims[0]}, Part{last, false, kind_.out[0].dims[0]});
  if (copied) {
    copy(last, whole_.out[0]);
  }
}

void RingCollectives::reduce_scatter(const std::vector<RingLevel>& levels, int64_t pieces) {
  if (levels.empty()) return;
  HOCKET_CHECK(pieces == 1 || levels.size() == 1, "pieces over {} levels", levels.size());
  begin_at(levels[0]);
  reduce_scatter_by([&](const Part& from, const Part& last) {
    for (int64_t number = 0; number < pieces; ++number) {
      const Part sum = last.piece(number, pieces);
      scatter(from, nullptr, &sum, levels, {number, pieces});
    }
  });
}

void RingCollectives::reduce_scatter(const Nested& levels, int64_t pieces) {
  // A node's blocks lie together, one node's behind the other's. Inside of nodes the blocks of each
  // are summed by themselves, the ones that leave first at first; then the rank has its node's sum
  // of a block for every node, and these are summed across. A piece is one of each block.
  if (levels.across.size() != 1 || levels.inside.empty()) {
    reduce_scatter(levels.all());
    return;
  }
  const RingLevel& across = levels.across[0];
  begin_at(levels.inside[0]);
  reduce_scatter_by([&](const Part& from, const Part& last) {
    const int64_t n = levels.inside.size() == 1 ? pieces_of(last.length, pieces) : 1;
    std::vector<Part> of_nodes;
    for (int64_t number = 0; number < n; ++number) {
      TensorType type = kind_.out[0];
      type.dims[0] = last.length / n * across.ranks;
      const Part blocks{writer_.step(type), false, type.dims[0]};
      for (int64_t shift = 1; shift <= across.ranks; ++shift) {
        const Part sum = blocks.block(across, -shift);
        scatter(from.block(across, -shift), nullptr, &sum, levels.inside, {number, n});
      }
      of_nodes.push_back(blocks);
    }
    for (int64_t number = 0; number < n; ++number) {
      const Part mine = last.piece(number, n);
      scatter(of_nodes[static_cast<size_t>(number)], nullptr, &mine, levels.across, {});
    }
  });
}

/// Puts the own block in its place, and gathers all others by `gather_all(whole)`.
template <class Gather>
void RingCollectives::all_gather_by(const std::vector<RingLevel>& levels,
                                    const Gather& gather_all) {
  const bool copied = is_cut(whole_.out[0]);
  const BufferId all = copied ? writer_.step(kind_.out[0]) : whole_.out[0];
  const Part whole{all, false, kind_.out[0].dims[0]};
  copy(whole_.in[0], view(own_block(whole, levels)));
  gather_all(whole);
  if (copied) {
    copy(all, whole_.out[0]);
  }
}

void RingCollectives::all_gather(const std::vector<RingLevel>& levels, int64_t pieces) {
  if (levels.empty()) return;
  HOCKET_CHECK(pieces == 1 || levels.size() == 1, "pieces over {} levels", levels.size());
  begin_at(levels.back());
  all_gather_by(levels, [&](const Part& whole) {
    for (int64_t number = 0; number < pieces; ++number) {
      gather(whole, levels, {number, pieces});
    }
  });
}

void RingCollectives::all_gather(const Nested& levels, int64_t pieces) {
  // The opposite way: a rank's blocks of all nodes come across, and each is passed on inside.
  if (levels.across.size() != 1 || levels.inside.empty()) {
    all_gather(levels.all());
    return;
  }
  const RingLevel& across = levels.across[0];
  begin_at(across);
  all_gather_by(levels.all(), [&](const Part& whole) {
    const int64_t block = own_block(whole, levels.all()).length;
    const int64_t n = levels.inside.size() == 1 ? pieces_of(block, pieces) : 1;
    for (int64_t number = 0; number < n; ++number) {
      const auto from_node = [&](int64_t shift) {
        return view(own_block(whole.block(across, shift), levels.inside).piece(number, n));
      };
      for (int64_t hop = 0; hop + 1 < across.ranks; ++hop) {
        pass_on(across, from_node(-hop), from_node(-hop - 1));
      }
    }
    for (int64_t number = 0; number < n; ++number) {
      for (int64_t shift = 0; shift < across.ranks; ++shift) {
        gather(whole.block(across, -shift), levels.inside, {number, n});
      }
    }
  });
}

/// Reduces over the levels in sequence. Returns the rank's block of `to`, which may be `from`
/// itself; without `to` it is `last`. With one level, a piece of each block.
Part RingCollectives::scatter(Part from, const Part* to, const Part* last,
                              const std::vector<RingLevel>& levels, Piece piece) {
  Part target = to ? *to : Part{};
  for (size_t i = 0; i < levels.size(); ++i) {
    Part result = from.block(levels[i], 0).piece(piece.number, piece.of);
    if (to) {
      target = target.block(levels[i], 0);
      result = target;
    } else if (i + 1 == levels.size()) {
      result = *last;
    } else {
      result = {writer_.step(type_of(result)), result.flat, result.length};
    }
    from = scatter_level(from, result, levels[i], piece);
  }
  return from;
}

Part RingCollectives::scatter_level(const Part& from, const Part& result, const RingLevel& level,
                                    Piece piece) {
  // Hop h of a ring: rank c sends the sum of block c - h over the h ranks behind it. It receives
  // that of block c - h - 1, and adds its own part. Sums travel in two buffers by turns; the last
  // one is written to its place.
  const bool max = comm::monoid_of(kind_.attrs) == graph::Monoid::max;
  const std::string& add = ops::of(max ? ops::Meaning::merge_max : ops::Meaning::sum).name;
  const auto mine = [&](int64_t shift) {
    return from.block(level, shift).piece(piece.number, piece.of);
  };
  BufferId goes = view(mine(-1));
  BufferId spare = kNone;
  for (int64_t hop = 1; hop < level.ranks; ++hop) {
    const BufferId comes = hop > 2 ? spare : writer_.step(type_of(mine(0)));
    pass_on(level, goes, comes);
    const BufferId own = view(mine(-hop - 1));
    if (hop + 1 < level.ranks) {
      local(add, {}, {comes, own}, comes);
    } else {
      local(add, {}, {own, comes}, view(result));
    }
    spare = hop > 1 ? goes : kNone;
    goes = comes;
  }
  return result;
}

/// Gathers the blocks of all ranks in `to`, over the levels from the last to the first. With one
/// level, a piece of each block.
void RingCollectives::gather(Part to, const std::vector<RingLevel>& levels, Piece piece) {
  std::vector<Part> parts;  // per level: the union of its blocks
  for (const RingLevel& level : levels) {
    parts.push_back(to);
    to = to.block(level, 0);
  }
  for (size_t i = levels.size(); i-- > 0;) {
    const RingLevel& level = levels[i];
    const auto block = [&](int64_t shift) {
      return view(parts[i].block(level, shift).piece(piece.number, piece.of));
    };
    for (int64_t hop = 0; hop + 1 < level.ranks; ++hop) {
      pass_on(level, block(-hop), block(-hop - 1));
    }
  }
}

/// Places copies for the first message over this level in the lane of its receives.
void RingCollectives::begin_at(const RingLevel& level) {
  const bool leaves = writer_.program().leaves_node(peer_map(level, -1), writer_.cls());
  arrives_ = program::link_lane(comm::Role::receive, leaves);
}

/// A message to the next rank of the ring, and the one from the rank before.
void RingCollectives::pass_on(const RingLevel& level, BufferId from, BufferId to) {
  tasks_.push_back(writer_.message(comm::Role::send, from, peer_map(level, 1), tag_, whole_));
  tasks_.push_back(writer_.message(comm::Role::receive, to, peer_map(level, -1), tag_, whole_));
  arrives_ = tasks_.back().lane;
  ++tag_;
}

/// Returns the mapping to the rank `shift` further along the ring: an offset along the axis if the
/// rings of the level end with the axis, otherwise a table.
program::PeerMap RingCollectives::peer_map(const RingLevel& level, int64_t shift) {
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

void RingCollectives::local(const std::string& op, const graph::Attrs& attrs,
                            const std::vector<BufferId>& in, BufferId out) {
  tasks_.push_back(writer_.local(op, attrs, in, {out}, whole_));
  tasks_.back().lane = arrives_;
}

void RingCollectives::copy(BufferId from, BufferId to) {
  local(ops::of(ops::Meaning::identity).name, {}, {from}, to);
}

/// A tensor in a flat buffer.
BufferId RingCollectives::slot(BufferId base, const TensorType& type, int64_t begin) {
  Buffer buffer;
  buffer.kind = BufferKind::view;
  buffer.type = type;
  buffer.base = base;
  buffer.begin = begin;
  writer_.list().buffers.push_back(std::move(buffer));
  return writer_.list().buffers.size() - 1;
}

TensorType RingCollectives::type_of(const Part& part) const {
  return passes::type_of(writer_, part);
}

bool RingCollectives::ViewsAlongOtherDims::contains(const std::vector<Buffer>& buffers,
                                                    BufferId buffer) {
  cut_.resize(buffers.size());
  for (; seen_ < buffers.size(); ++seen_) {
    const Buffer& one = buffers[seen_];
    if (one.kind == BufferKind::view && one.dim != 0) {
      cut_[one.base] = true;
    }
  }
  return cut_[buffer];
}

/// Returns whether the buffer has no views along dim 0: it is a view, or is cut otherwise.
bool RingCollectives::is_cut(BufferId buffer) const {
  const std::vector<Buffer>& buffers = writer_.list().buffers;
  return buffers[buffer].kind == BufferKind::view || cut_->contains(buffers, buffer);
}

}  // namespace hocket::passes
