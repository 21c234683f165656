// SPDX-License-Identifier: Apache-2.0
#include "passes/ring_attention_places.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"

namespace hocket::passes {

using program::kNone;
using Coords = std::vector<int32_t>;

RingAttentionPlaces::RingAttentionPlaces(const program::Program& frame, program::ClassId cls,
                                         int32_t axis, bool zigzag, std::vector<Blocks> blocks)
    : frame_(frame),
      cls_(cls),
      mesh_(frame.mesh_of(cls)),
      axis_(axis),
      zigzag_(zigzag),
      blocks_(std::move(blocks)) {
  const auto first = std::find_if(blocks_.begin(), blocks_.end(),
                                  [](const Blocks& ring) { return !ring.empty(); });
  if (first == blocks_.end()) return;
  blocks_differ_ = std::any_of(blocks_.begin(), blocks_.end(), [&](const Blocks& others) {
    return !others.empty() && others != own_blocks();
  });
  if (!zigzag_) return;
  halves_ = Halves(*first);
  HOCKET_CHECK(!halves_.uneven() || frame_.span(cls_, axis_).count == 1,
               "ranks with other parts of the tokens are in one class");
}

Blocks RingAttentionPlaces::blocks_of(const program::PieceOffset* begin, int64_t size) const {
  Coords coords(mesh_.axes.size());
  for (size_t axis = 0; axis < coords.size(); ++axis) {
    coords[axis] = frame_.span(cls_, static_cast<int32_t>(axis)).begin;
  }
  Blocks blocks;
  coords[axis_] = 0;
  const int64_t first = value_at(begin, coords);
  for (; coords[axis_] < this->size(); ++coords[axis_]) {
    blocks.push_back({value_at(begin, coords) - first, 0});
  }
  for (size_t place = 0; place < blocks.size(); ++place) {
    const int64_t end = place + 1 < blocks.size() ? blocks[place + 1].begin : size;
    blocks[place].length = end - blocks[place].begin;
  }
  return blocks;
}

/// A number of a task's begins at these coordinates.
int64_t RingAttentionPlaces::value_at(const program::PieceOffset* begin,
                                      const Coords& coords) const {
  if (!begin) return 0;
  if (begin->by == kNone) return begin->begin;
  const program::Table& table = frame_.tables[begin->by];
  int64_t place = 0;
  for (int32_t axis : table.axes) {
    place = place * mesh_.axes[axis].size + coords[axis];
  }
  return begin->begin + table.values[place];
}

std::vector<int32_t> RingAttentionPlaces::axes_of(const program::Task& task) const {
  std::set<int32_t> axes{axis_};
  for (const program::PieceOffset& begin : task.piece_offsets) {
    if (begin.by == kNone) continue;
    const std::vector<int32_t>& more = frame_.tables[begin.by].axes;
    axes.insert(more.begin(), more.end());
  }
  return {axes.begin(), axes.end()};
}

/// The blocks of the ring on which the rank at these coordinates on the task's axes is.
const Blocks& RingAttentionPlaces::blocks_at(const program::Task& task,
                                             const Coords& coords) const {
  if (!blocks_differ_) return own_blocks();
  const std::vector<int32_t> axes = axes_of(task);
  for (program::ClassId id = 0; id < frame_.classes.size(); ++id) {
    const bool here = std::all_of(axes.begin(), axes.end(), [&](int32_t axis) {
      return axis == axis_ || frame_.span(id, axis).contains(coords[axis]);
    });
    if (here && !blocks_[id.value()].empty()) return blocks_[id.value()];
  }
  return own_blocks();
}

/// Returns the part that the rank at `chooser` takes of the part of the one at `place`.
graph::Run RingAttentionPlaces::part_at(const Blocks& blocks, const PartChoice& choice,
                                        int64_t chooser, int32_t place) const {
  return zigzag_ ? halves_.at(place, choice.at(chooser)) : blocks[place];
}

graph::Run RingAttentionPlaces::queries_at(const program::Task& task, const Site& site,
                                           const PartChoice& choice, Coords coords) const {
  const int32_t place = coords[axis_];
  const Blocks& blocks = blocks_at(task, coords);
  coords[axis_] = 0;
  graph::Run part = part_at(blocks, choice, place, place);
  part.begin += value_at(task.piece_offset(site.query_letter), coords);
  return part;
}

graph::Run RingAttentionPlaces::keys_at(const program::Task& task, const Site& site,
                                        const PartChoice& choice, int32_t hop,
                                        const Coords& coords) const {
  const int32_t place = coords[axis_];
  graph::Run part = part_at(blocks_at(task, coords), choice, place, owner(place, hop));
  part.begin += value_at(task.piece_offset(site.key_letter), coords);
  return part;
}

/// Returns whether some query of the part needs a key of the part on some rank of a ring.
bool RingAttentionPlaces::needed(const program::Task& task, const Site& site, const BlockPair& pair,
                                 int32_t hop) const {
  bool any = false;
  const ops::Support& support = site.op->layout.support[0];
  graph::for_each_coords(mesh_, axes_of(task), [&](const Coords& coords) {
    const graph::Run queries = queries_at(task, site, pair.queries, coords);
    const graph::Run keys = keys_at(task, site, pair.keys, hop, coords);
    const int64_t end = std::max(queries.begin + queries.length, keys.begin + keys.length);
    const graph::Run wanted = support.of(frame_.kind(task).attrs, queries, end, end);
    any = any ||
          (keys.begin < wanted.begin + wanted.length && wanted.begin < keys.begin + keys.length);
  });
  return any;
}

std::vector<BlockPair> RingAttentionPlaces::block_pairs(const program::Task& task, const Site& site,
                                                        int32_t hop) const {
  const PartChoice early{PartChoice::Which::early}, late{PartChoice::Which::late};
  const PartChoice either{PartChoice::Which::late_before, hop};
  std::vector<BlockPair> all{{early, early}};
  if (zigzag_) {
    all = hop == 0 ? std::vector<BlockPair>{{early, early}, {late, late}, {late, early}}
                   : std::vector<BlockPair>{{late, early}, {either, either}};
  }
  if (halves_.uneven() && hop > 0) {
    all = {{late, early}, {early, early}, {late, late}};
  }
  std::erase_if(all, [&](const BlockPair& pair) { return !needed(task, site, pair, hop); });
  return all;
}

}  // namespace hocket::passes
