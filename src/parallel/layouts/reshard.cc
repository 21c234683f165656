// SPDX-License-Identifier: Apache-2.0
#include "parallel/layouts/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <queue>
#include <set>

#include "base/error.h"
#include "base/stop.h"

namespace hocket::parallel {

using graph::Layout;
using graph::Mesh;
using graph::Placement;
using graph::TensorType;

namespace {

/// Overheads of a step, as bytes over a link: the latency of an empty message, and the start of a
/// task.
constexpr double kRoundBytes = 16384;
constexpr double kStepBytes = 1024;
/// Cost of a byte copied in the rank's memory, relative to a byte over a link.
constexpr double kCopied = 1.0 / 16;

/// Returns the number of blocks into which these axes cut a dim.
int64_t blocks_over(const std::vector<int32_t>& axes, const Mesh& mesh) {
  int64_t blocks = 1;
  for (int32_t axis : axes) {
    blocks *= mesh.axes[static_cast<size_t>(axis)].size;
  }
  return blocks;
}

/// The blocks of a dim by rank. Requires: the dim is no symbol.
class DimBlocks {
 public:
  DimBlocks(const Layout& layout, int dim, const TensorType& type, const Mesh& mesh)
      : layout_(layout),
        mesh_(mesh),
        dim_(dim),
        size_(type.dims[static_cast<size_t>(dim)]),
        axes_(layout.axes_of(dim)),
        count_(blocks_over(axes_, mesh)) {}

  int64_t count() const { return count_; }
  graph::Run block(int64_t number) const { return layout_.block(dim_, size_, count_, number); }
  /// Returns the block of the rank at these coordinates.
  graph::Run at(const std::vector<int32_t>& coords) const {
    int64_t number = 0;
    for (const int32_t axis : axes_) {
      const auto place = static_cast<size_t>(axis);
      number = number * mesh_.axes[place].size + coords[place];
    }
    return block(number);
  }
  /// Visits the blocks of the ranks along an axis that have these coordinates on all others.
  template <class Visit>
  void visit_along(int32_t axis, std::vector<int32_t> coords, const Visit& visit) const {
    const int32_t members = mesh_.axes[static_cast<size_t>(axis)].size;
    for (int32_t& at_axis = coords[static_cast<size_t>(axis)] = 0; at_axis < members; ++at_axis) {
      visit(at(coords));
    }
  }
  std::vector<int64_t> lengths_along(int32_t axis, const std::vector<int32_t>& coords) const {
    std::vector<int64_t> lengths;
    visit_along(axis, coords, [&](const graph::Run& run) { lengths.push_back(run.length); });
    return lengths;
  }

 private:
  const Layout& layout_;
  const Mesh& mesh_;
  const int dim_;
  const int64_t size_;
  const std::vector<int32_t> axes_;
  const int64_t count_;
};

/// Returns whether a tensor may be counts of rows. These have the layout of their rows: no rank
/// takes a slice of them alone.
bool may_be_row_counts(const TensorType& type) {
  return type.dtype == graph::DType::i64 && type.dims.size() == 1;
}

/// Steps between layouts that can be part of a path to `to`.
class Moves {
 public:
  Moves(const TensorType& type, const Mesh& mesh, bool slices, const Layout& from, const Layout& to)
      : type_(type),
        mesh_(mesh),
        slices_(slices),
        from_(plain(from)),
        to_(plain(to)),
        active_(find_active(from_, to_)) {}

  /// Returns the canonical form of a layout: without axes of one rank, and without sizes that are
  /// even shares (graph::share).
  Layout plain(Layout layout) const {
    for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
      if (mesh_.axes[axis].size == 1) {
        const std::vector<graph::GivenSizes> given = layout.given;
        layout.set(axis, Placement::replicate());
        layout.given = given;
      }
    }
    std::erase_if(layout.given, [&](const graph::GivenSizes& one) {
      const graph::Dim& size = type_.dims[static_cast<size_t>(one.dim)];
      const int64_t blocks = std::ssize(one.sizes);
      for (int64_t number = 0; number < blocks; ++number) {
        if (one.sizes[static_cast<size_t>(number)] != graph::share(size, blocks, number).length) {
          return false;
        }
      }
      return true;
    });
    return layout;
  }
  const Layout& to() const { return to_; }

  std::vector<ReshardStep> from(const Layout& layout) const {
    std::vector<ReshardStep> list;
    add_sums(layout, &list);
    for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
      if (!active_[axis]) continue;
      const Placement here = layout[axis];
      const bool innermost =
          here.is_split() && layout.axes_of(here.dim()).back() == static_cast<int32_t>(axis);
      const bool by_token = type_.routed() && here == Placement::split(1);
      if (here.is_split() && !innermost && !by_token) continue;
      if (here.is_split() && innermost) {
        add_collective(layout, {axis}, Placement::replicate(), &list);
      }
      for (int dim = 0; dim < static_cast<int>(type_.dims.size()); ++dim) {
        if (here.is_replicate()) {
          add_slice(layout, dim, {static_cast<int32_t>(axis)}, &list);
        } else if (here != Placement::split(dim)) {
          add_collective(layout, {axis}, Placement::split(dim), &list);
        }
      }
    }
    for (int dim = 0; dim < static_cast<int>(type_.dims.size()); ++dim) {
      add_slice_to_given(layout, dim, &list);
    }
    return list;
  }

 private:
  /// Returns the axes that change their placement, or their order inside of a dim: those after the
  /// common beginning of both orders, or all of the dim's axes if its blocks get other sizes.
  std::vector<bool> find_active(const Layout& from, const Layout& to) const {
    std::vector<bool> active(mesh_.axes.size(), false);
    for (size_t axis = 0; axis < active.size(); ++axis) {
      active[axis] = from[axis] != to[axis];
    }
    for (int dim = 0; dim < static_cast<int>(type_.dims.size()); ++dim) {
      const std::vector<int32_t> before = from.axes_of(dim);
      const std::vector<int32_t> after = to.axes_of(dim);
      size_t common = 0;
      if (from.sizes_of(dim) == to.sizes_of(dim) || before.empty() || after.empty()) {
        const auto end = std::mismatch(before.begin(), before.end(), after.begin(), after.end());
        common = static_cast<size_t>(end.first - before.begin());
      }
      for (const std::vector<int32_t>& axes : {before, after}) {
        for (size_t i = common; i < axes.size(); ++i) {
          active[static_cast<size_t>(axes[i])] = true;
        }
      }
    }
    return active;
  }

  /// Adds the block sizes of dims that a step cuts differently, summed from the known blocks at the
  /// end or the beginning of the path.
  Layout with_sizes(const Layout& before, Layout layout) const {
    for (int dim = 0; dim < static_cast<int>(type_.dims.size()); ++dim) {
      const std::vector<int32_t> axes = layout.axes_of(dim);
      if (axes == before.axes_of(dim)) continue;
      // Rows go with their tokens, also where these have no given sizes.
      const bool of_rows = is_of_tokens(dim) && !type_.dims[static_cast<size_t>(dim)].symbolic();
      for (const Layout* known : {&before, &to_}) {
        if (axes.empty() || (!of_rows && known->sizes_of(dim).empty())) continue;
        const std::vector<int32_t> has = known->axes_of(dim);
        const bool knows = std::all_of(axes.begin(), axes.end(), [&](int32_t axis) {
          return std::find(has.begin(), has.end(), axis) != has.end();
        });
        if (knows) {
          layout.give(dim, block_sizes(*known, dim, layout));
        }
      }
    }
    return plain(layout);
  }

  /// Returns whether tokens along this dim of a routed tensor decide where rows go.
  bool is_of_tokens(int dim) const { return type_.routed() && dim == 1; }

  /// Returns the sizes of the blocks of `layout`. Requires: its axes are among those of `known`.
  std::vector<int64_t> block_sizes(const Layout& known, int dim, const Layout& layout) const {
    std::vector<int64_t> sizes(static_cast<size_t>(blocks_over(layout.axes_of(dim), mesh_)), 0);
    const DimBlocks blocks(known, dim, type_, mesh_);
    graph::for_each_coords(mesh_, known.axes_of(dim), [&](const std::vector<int32_t>& coords) {
      const int64_t number = graph::block_number(layout, dim, mesh_, coords).number;
      sizes[static_cast<size_t>(number)] += blocks.at(coords).length;
    });
    return sizes;
  }

  /// Sorts the axes that split the tokens of a routed tensor into their order at the end of the
  /// path. Changes nothing if they are not the same axes. Rows that a rank has of other ranks'
  /// tokens, by expert, go with their tokens, wherever the axis was among those that split tokens.
  Layout in_order(Layout layout) const {
    if (!type_.routed()) return layout;
    const std::vector<int32_t> has = layout.axes_of(1);
    const std::vector<int32_t> wants = to_.axes_of(1);
    if (has == wants || !std::is_permutation(has.begin(), has.end(), wants.begin(), wants.end())) {
      return layout;
    }
    for (int32_t axis : wants) {
      layout.set(static_cast<size_t>(axis), Placement::replicate());
    }
    for (int32_t axis : wants) {
      layout.set(static_cast<size_t>(axis), Placement::split(1));
    }
    return layout;
  }

  /// Returns whether a step may move indices of the dims that it cuts differently: blocks are
  /// equal, or fit together (shares_out). Dims that it leaves alone may have any cuts.
  bool may_move(const Layout& before, const Layout& after, int32_t axis, bool exchange) const {
    for (int dim = 0; dim < static_cast<int>(type_.dims.size()); ++dim) {
      if (before.axes_of(dim) == after.axes_of(dim)) continue;
      const graph::Dim& size = type_.dims[static_cast<size_t>(dim)];
      const bool given = !before.sizes_of(dim).empty() || !after.sizes_of(dim).empty();
      if (exchange && dim == 0 && !given) continue;
      const bool even = size.divides_into(blocks_over(before.axes_of(dim), mesh_)) &&
                        size.divides_into(blocks_over(after.axes_of(dim), mesh_));
      if (even && !given) continue;
      const bool gathers = before[static_cast<size_t>(axis)].is_split() &&
                           after[static_cast<size_t>(axis)].is_replicate();
      if (size.symbolic() || (may_be_row_counts(type_) && !gathers)) return false;
      if (!shares_out(before, after, dim, axis)) return false;
    }
    return true;
  }

  /// Returns whether the blocks of the ranks along the axis, side by side, make up each rank's
  /// block in the other layout. One of the two splits the dim by the axis. Rows go with their
  /// tokens, so they need not be side by side.
  bool shares_out(const Layout& before, const Layout& after, int dim, int32_t axis) const {
    const bool gathers = before[static_cast<size_t>(axis)] == Placement::split(dim);
    const Layout& cut = gathers ? before : after;
    const Layout& whole = gathers ? after : before;
    const DimBlocks parts(cut, dim, type_, mesh_), wholes(whole, dim, type_, mesh_);
    bool fits = true;
    for_each_group(cut, dim, axis, [&](const std::vector<int32_t>& coords) {
      const graph::Run all = wholes.at(coords);
      int64_t length = 0;
      parts.visit_along(axis, coords, [&](const graph::Run& part) {
        fits = fits && (type_.routed() || part.begin == all.begin + length);
        length += part.length;
      });
      fits = fits && length == all.length;
    });
    return fits;
  }

  /// Visits the coordinates of the first rank of every group of ranks along an axis, as far as
  /// they hold different blocks of the dim.
  template <class Visit>
  void for_each_group(const Layout& layout, int dim, int32_t axis, const Visit& visit) const {
    std::vector<int32_t> others = layout.axes_of(dim);
    std::erase(others, axis);
    graph::for_each_coords(mesh_, others, visit);
  }

  /// Returns the type of the first rank's piece, the largest. Returns nullopt if some rank has
  /// nothing, or if ranks would have different sizes in the middle of the path: ranks of one class
  /// have equal sizes where it begins and ends.
  std::optional<TensorType> local(const Layout& layout) const {
    for (int dim = 0; dim < static_cast<int>(type_.dims.size()); ++dim) {
      const graph::Dim& size = type_.dims[static_cast<size_t>(dim)];
      const std::vector<int32_t> axes = layout.axes_of(dim);
      const int64_t blocks = blocks_over(axes, mesh_);
      if (size.symbolic()) continue;
      if (size < blocks) return std::nullopt;
      const auto begins = [&](const Layout& known) {
        const std::vector<int32_t> all = known.axes_of(dim);
        if (is_of_tokens(dim)) {
          // Sets of ranks with equal numbers of tokens have equal sums.
          return std::all_of(axes.begin(), axes.end(), [&](int32_t axis) {
            return std::find(all.begin(), all.end(), axis) != all.end();
          });
        }
        return axes.size() <= all.size() && std::equal(axes.begin(), axes.end(), all.begin());
      };
      if (!size.divides_into(blocks) && !begins(from_) && !begins(to_)) return std::nullopt;
    }
    try {
      return graph::local_type(type_, layout, mesh_, std::vector<int32_t>(mesh_.axes.size(), 0));
    } catch (const Error&) {
      return std::nullopt;  // a symbol that does not divide, or a part of a block
    }
  }

  /// Returns whether all groups of ranks along an axis take blocks of the same lengths, or even
  /// shares. The check can prove only these, since it sees one group at a time.
  bool takes_alike(const Layout& layout, int32_t axis) const {
    const int dim = layout[static_cast<size_t>(axis)].dim();
    const bool given = !layout.sizes_of(dim).empty();
    if (!given || type_.dims[static_cast<size_t>(dim)].symbolic()) return true;
    const DimBlocks blocks(layout, dim, type_, mesh_);
    std::optional<std::vector<int64_t>> first;
    bool alike = true;
    for_each_group(layout, dim, axis, [&](const std::vector<int32_t>& coords) {
      const std::vector<int64_t> lengths = unless_shares(blocks.lengths_along(axis, coords));
      first = first.value_or(lengths);
      alike = alike && lengths == *first;
    });
    return alike;
  }

  /// Adds the all-reduces over any of the partial axes that end up whole, each in one collective.
  void add_sums(const Layout& layout, std::vector<ReshardStep>* list) const {
    std::vector<size_t> partial;
    for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
      if (active_[axis] && layout[axis].is_partial()) {
        partial.push_back(axis);
      }
    }
    for (uint32_t chosen = 1; chosen < (1u << partial.size()); ++chosen) {
      std::vector<size_t> axes;
      for (size_t i = 0; i < partial.size(); ++i) {
        if (chosen & (1u << i)) {
          axes.push_back(partial[i]);
        }
      }
      if (std::all_of(axes.begin(), axes.end(),
                      [&](size_t axis) { return layout[axis] == layout[axes[0]]; })) {
        add_collective(layout, axes, Placement::replicate(), list);
      }
    }
  }

  /// Adds the collective over these axes, which have equal placements, that gives them another
  /// placement.
  void add_collective(const Layout& layout, const std::vector<size_t>& axes, Placement placement,
                      std::vector<ReshardStep>* list) const {
    ReshardStep step;
    step.to = layout;
    int64_t members = 1;
    for (size_t axis : axes) {
      step.to.set(axis, placement);
      step.axes.push_back(static_cast<int32_t>(axis));
      members *= mesh_.axes[axis].size;
    }
    step.to = with_sizes(layout, in_order(step.to));
    const std::optional<TensorType> before = local(layout);
    const std::optional<TensorType> after = local(step.to);
    if (!before || !after) return;
    comm::Sharing sharing;
    const int32_t along = step.axes[0];
    const Placement had = layout[axes[0]];
    if (had.is_split() && !type_.routed()) {
      const graph::Dim& size = after->dims[static_cast<size_t>(had.dim())];
      const bool even = size.symbolic() || size.divides_into(members);
      sharing.size = even ? 0 : int64_t{size};
    }
    const std::vector<int32_t> first(mesh_.axes.size(), 0);
    sharing.slots = uneven_lengths(layout, type_, mesh_, along, first);
    sharing.blocks = uneven_lengths(step.to, type_, mesh_, along, first);
    sharing.size = sharing.slots.empty() ? sharing.size : 0;
    if (!type_.routed() && placement.is_split() && !takes_alike(step.to, along)) return;
    if (type_.routed()) {
      // The members hold together all experts except those on axes that already split experts.
      std::vector<int32_t> others = layout.axes_of(0);
      std::erase(others, along);
      const int64_t parts = blocks_over(others, mesh_);
      if (!type_.dims[0].divides_into(parts)) return;
      sharing.experts = type_.dims[0] / parts;
    }
    const std::optional<comm::Resharding> found =
        comm::resharding(*before, layout[axes[0]], placement, members, sharing);
    if (!found || found->out.back() != *after) return;
    // Sizes are exchanged only for rows that follow, never as an intermediate step.
    if (found->op->makes_sizes && to_[axes[0]] != placement) return;
    const bool exchange = found->op->needs_sizes || found->op->makes_sizes;
    if (!may_move(layout, step.to, step.axes[0], exchange)) return;
    step.op = found->op;
    step.attrs = found->attrs;
    step.bytes = found->bytes;
    step.cost = found->bytes + found->rounds * kRoundBytes + kStepBytes;
    list->push_back(std::move(step));
  }

  /// Adds the slice that leaves every rank the block of a dim that these axes number, the last one
  /// fastest.
  void add_slice(const Layout& layout, int dim, const std::vector<int32_t>& axes,
                 std::vector<ReshardStep>* list) const {
    if (!slices_ || type_.routed() || may_be_row_counts(type_)) return;
    // The offset of a view must be known before the step, unless it is a part of a symbol at the
    // first dim.
    const auto behind = type_.dims.begin() + dim + (dim == 0 ? 1 : 0);
    if (std::any_of(behind, type_.dims.end(), [](const auto& size) { return size.symbolic(); })) {
      return;
    }
    ReshardStep step;
    step.to = layout;
    for (int32_t axis : axes) {
      step.to.set(static_cast<size_t>(axis), Placement::split(dim));
    }
    step.to = with_sizes(layout, step.to);
    const std::optional<TensorType> after = local(step.to);
    if (!local(layout) || !after || !nests(layout, step.to, dim)) return;
    step.axes = axes;
    step.dim = dim;
    step.cost = static_cast<double>(after->bytes()) * kCopied + kStepBytes;
    list->push_back(std::move(step));
  }

  /// Adds the slice over all missing axes of a dim with given sizes at once: the sizes in between
  /// are not known.
  void add_slice_to_given(const Layout& layout, int dim, std::vector<ReshardStep>* list) const {
    const std::vector<int32_t> has = layout.axes_of(dim);
    const std::vector<int32_t> wants = to_.axes_of(dim);
    if (to_.sizes_of(dim).empty() || wants.size() < has.size() + 2) return;
    if (!std::equal(has.begin(), has.end(), wants.begin())) return;
    const std::vector<int32_t> rest(wants.begin() + std::ssize(has), wants.end());
    if (std::all_of(rest.begin(), rest.end(), [&](int32_t axis) {
          return layout[static_cast<size_t>(axis)].is_replicate();
        })) {
      add_slice(layout, dim, rest, list);
    }
  }

  /// Returns whether every rank's new block of the dim lies in its old one.
  bool nests(const Layout& before, const Layout& after, int dim) const {
    const DimBlocks outer(before, dim, type_, mesh_), inner(after, dim, type_, mesh_);
    const int64_t times = inner.count() / outer.count();
    for (int64_t number = 0; number < inner.count(); ++number) {
      const graph::Run had = outer.block(number / times), gets = inner.block(number);
      if (gets.begin < had.begin || gets.begin + gets.length > had.begin + had.length) return false;
    }
    return true;
  }

  const TensorType& type_;
  const Mesh& mesh_;
  const bool slices_;
  const Layout from_, to_;
  const std::vector<bool> active_;
};

/// A layout that the search has reached, and its best known predecessor.
struct Reached {
  double cost = 0;
  Layout before;
  std::optional<ReshardStep> step;
  bool done = false;
};

}  // namespace

namespace {

/// Returns the number of different monoids by which the parts of the tensor combine. Two of them
/// cannot be swapped, and a layout does not say which comes first.
size_t num_monoids(const Layout& layout, const Mesh& mesh) {
  std::set<graph::Monoid> monoids;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (mesh.axes[axis].size > 1 && layout[axis].is_partial()) {
      monoids.insert(layout[axis].monoid());
    }
  }
  return monoids.size();
}

}  // namespace

const ReshardPath* ReshardPaths::path(const TensorType& type, const Layout& from,
                                      const Layout& to) {
  auto known = paths_.find({type, from, to});
  if (known == paths_.end()) {
    known = paths_.emplace(std::tuple(type, from, to), cheapest(type, from, to)).first;
  }
  return known->second ? &*known->second : nullptr;
}

std::optional<ReshardPath> ReshardPaths::cheapest(const TensorType& type, const Layout& from,
                                                  const Layout& to) const {
  // Dijkstra's algorithm over layouts. Ties are broken by the order in which layouts were reached.
  for (const Layout& layout : {from, to}) {
    if (!why_invalid(layout, type, mesh_).empty()) return std::nullopt;
  }
  if (num_monoids(from, mesh_) > 1) return std::nullopt;
  const Moves moves(type, mesh_, slices_, from, to);
  const Layout start = moves.plain(from);
  using Entry = std::tuple<double, size_t, Layout>;  // cost, order in which it was reached
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  std::map<Layout, Reached> reached;
  reached[start] = {};
  open.emplace(0.0, 0, start);
  size_t number = 0;
  while (!open.empty()) {
    stop_if_asked();
    const auto [cost, when, here] = open.top();
    open.pop();
    if (std::exchange(reached[here].done, true)) continue;
    if (here == moves.to()) break;
    for (ReshardStep& step : moves.from(here)) {
      const Layout next = step.to;
      const double total = cost + step.cost;
      const auto [place, first] = reached.try_emplace(next);
      if (!first && place->second.cost <= total) continue;
      place->second = {total, here, std::move(step)};
      open.emplace(total, ++number, next);
    }
  }
  const auto end = reached.find(moves.to());
  if (end == reached.end()) return std::nullopt;
  ReshardPath result;
  result.cost = end->second.cost;
  for (Layout at = moves.to(); at != start;) {
    const Reached& last = reached[at];
    result.steps.push_back(*last.step);
    result.bytes += last.step->bytes;
    at = last.before;
  }
  std::reverse(result.steps.begin(), result.steps.end());
  if (!result.steps.empty()) {
    result.steps.back().to = to;
  }
  return result;
}

std::vector<ReshardStep> ReshardPaths::steps(const TensorType& type, const Layout& from,
                                             const Layout& to) const {
  const Moves moves(type, mesh_, slices_, from, to);
  return moves.from(moves.plain(from));
}

std::vector<int64_t> lengths_along(const Layout& layout, int dim, const TensorType& type,
                                   const Mesh& mesh, int32_t axis,
                                   const std::vector<int32_t>& coords) {
  return DimBlocks(layout, dim, type, mesh).lengths_along(axis, coords);
}

std::vector<int64_t> unless_shares(std::vector<int64_t> lengths) {
  const int64_t all = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const int64_t members = std::ssize(lengths);
  for (int64_t member = 0; member < members; ++member) {
    if (lengths[static_cast<size_t>(member)] != graph::share(all, members, member).length) {
      return lengths;
    }
  }
  return {};
}

std::vector<int64_t> uneven_lengths(const Layout& layout, const TensorType& type, const Mesh& mesh,
                                    int32_t axis, const std::vector<int32_t>& coords) {
  const Placement placed = layout[static_cast<size_t>(axis)];
  const bool of_experts = type.routed() && placed == Placement::split(0);
  if (!placed.is_split() || of_experts) return {};
  if (type.dims[static_cast<size_t>(placed.dim())].symbolic()) return {};
  std::vector<int64_t> lengths = lengths_along(layout, placed.dim(), type, mesh, axis, coords);
  // Lengths are the only record of the rows' numbers of tokens, unless all are equal.
  const bool alike = std::all_of(lengths.begin(), lengths.end(),
                                 [&](int64_t length) { return length == lengths[0]; });
  return type.routed() && !alike ? lengths : unless_shares(std::move(lengths));
}

std::string why_no_path(const Layout& from, const Layout& to, const Mesh& mesh) {
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (mesh.axes[axis].size > 1 && to[axis].is_partial() && from[axis] != to[axis]) {
      return fmt::format("{} on {} can't become {}", to_string(from[axis]), mesh.axes[axis].name,
                         to_string(to[axis]));
    }
  }
  if (num_monoids(from, mesh) > 1) return "its partial axes combine by different operations";
  return "no sequence of collectives does this, or sizes do not divide";
}

}  // namespace hocket::parallel
