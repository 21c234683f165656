// SPDX-License-Identifier: Apache-2.0
// Cuts: which indices of a dim a buffer holds, and in which order, at each coordinate of a box of
// ranks. Splits, chunks, rotations, zigzags and ragged bounds are all cuts; they are evaluated and
// interned, never reasoned about, so that two of them are equal exactly if their ids are.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/id.h"
#include "graph/layout.h"

namespace hocket::graph {

using CutId = Id<struct Cut>;
/// Bit per axis of the meshes of all roles, which are numbered one role after the other.
using AxisMask = uint32_t;
inline constexpr int kMaxCutAxes = 32;
/// Coordinates on all cut axes.
using Coords = std::array<int32_t, kMaxCutAxes>;
/// Coordinates [begin, begin + count) on every axis.
struct CoordBox {
  Coords begin{}, count{};
  /// Sizes of the axes of a mask.
  bool contains(const Coords& coords, AxisMask axes) const;
  /// Ranks that have one choice of coordinates on these axes.
  int64_t ranks_beside(AxisMask axes) const;
};
constexpr AxisMask axis_bit(int32_t axis) { return AxisMask{1} << axis; }
/// A permutation of ranks along an axis: a distance, with wrap-around, for every coordinate on
/// `axes` (the last counts fastest).
struct Shift {
  int32_t axis = 0;
  AxisMask axes = 0;
  std::vector<int32_t> offsets{0};
  auto operator<=>(const Shift&) const = default;
};

/// A dim as `cells` equal cells, and for every coordinate on `axes` (the last axis counts fastest)
/// the runs of held cells, in local order. Coordinates on other axes do not matter. Normal form,
/// unique per function: no run is empty or continues the previous one, cells are as large as
/// possible, and every axis of `axes` matters. No row holds a cell twice. A *set* is a cut with
/// ascending rows.
struct Cut {
  int64_t cells = 1;
  AxisMask axes = 0;
  std::vector<uint32_t> row;  ///< row i is runs[row[i]] .. runs[row[i + 1]]
  std::vector<Run> runs;
  bool operator==(const Cut&) const = default;
};

/// The union of runs, in ascending order.
std::vector<Run> united(std::vector<Run> row);
/// Returns the gaps of ascending runs in a range.
std::vector<Run> gaps_in(const std::vector<Run>& row, Run range);
/// Returns whether some row holds a cell twice: no cut does.
bool holds_twice(const std::vector<std::vector<Run>>& rows);

/// Interned cuts over one box of coordinates. A result that does not exist is kNone. Operations are
/// memoised, since a program repeats few different ones.
class CutTable {
 public:
  /// Ranks of the box along every axis; 1 for axes that the box does not extend along.
  explicit CutTable(const Coords& extents);

  static constexpr int32_t kWhole = 0;  ///< id of the cut that holds all, in order
  const Cut& operator[](CutId id) const { return cuts_[id]; }
  const Coords& extents() const { return extents_; }
  /// The least set of axes that the cut depends on.
  AxisMask axes(CutId id) const { return cuts_[id].axes; }
  bool is_whole(CutId id) const { return id == kWhole; }
  /// Ranks of the box along the axes of a mask.
  int64_t ranks(AxisMask axes) const;
  /// The runs at a coordinate.
  std::span<const Run> at(CutId id, const Coords& coords) const;

  /// Makes a cut from rows in the order of Cut::row, one for every coordinate on `axes`. Throws
  /// Error if a run lies outside of [0, cells), or a row holds a cell twice. Throws it also if the
  /// table would grow beyond kMaxRows or kMaxRuns.
  CutId make(int64_t cells, AxisMask axes, const std::vector<std::vector<Run>>& rows);
  /// Cut into equal blocks, one a rank, numbered by its coordinates on the axes, the first axis
  /// counting slowest.
  CutId split(std::span<const int32_t> axes);
  CutId split(std::initializer_list<int32_t> axes) { return split(std::span(axes)); }
  /// The same of a dim of `size` elements, as evenly as they divide (graph::share).
  CutId split(std::span<const int32_t> axes, int64_t size);
  /// Blocks of any sizes, one after the other, that make up a dim of `size` elements.
  CutId split(std::span<const int32_t> axes, int64_t size, std::span<const Run> blocks);
  /// Returns whether the cut is such a split, and its axes.
  bool is_split(CutId id, std::vector<int32_t>* axes) const;

  /// The cells in ascending order.
  CutId set_of(CutId id);
  /// Local pieces one after the other; kNone if a cell would be held twice.
  CutId concat(CutId left, CutId right);
  /// Concatenates the pieces of all ranks along `over`, by their number (the last axis counts
  /// fastest); kNone if a cell would be held twice. `parts`: the first of that many parts of each
  /// piece, then the second ones, and so on.
  CutId gather(CutId id, AxisMask over, int64_t parts = 1);
  /// Returns the block of the local piece with the rank's number along `over`; with `parts`, that
  /// block of each of the parts of the piece.
  CutId block(CutId id, AxisMask over, int64_t parts = 1);
  /// The block where it is one of a dim of `size` elements, which are as even as they divide; 0:
  /// not known.
  CutId block_of(CutId id, AxisMask over, int64_t size);
  /// The block if those of a dim of `size` elements have these lengths, by the rank's number; if
  /// these do not add up to the held cells, an even one.
  CutId block_of(CutId id, AxisMask over, int64_t size, std::span<const int64_t> lengths);
  /// The block of the size of the rank's piece of `like`, with consecutive blocks along `over`;
  /// kNone if they do not make up the local piece.
  CutId block_like(CutId id, AxisMask over, CutId like);
  /// Regroups chunks that were gathered over `over`: `from` are the pieces after each gather, `had`
  /// the sets that the members gave to it, `wanted` the sets that they should have given. Per
  /// member the same cells in the same order; otherwise empty.
  std::vector<CutId> regroup(std::span<const CutId> from, std::span<const CutId> had,
                             std::span<const CutId> wanted, AxisMask over);
  /// Local elements [begin, begin + length) of a dim of `size` elements: at every coordinate on
  /// `axes` the begin of its number. kNone if they are not all there, or `size` has no whole number
  /// of elements per cell.
  CutId restrict_to(CutId id, int64_t size, AxisMask axes, std::span<const int64_t> begins,
                    int64_t length);
  /// The same, with a local range at every coordinate on `axes`.
  CutId restrict_to(CutId id, int64_t size, AxisMask axes, std::span<const Run> ranges);
  /// Returns the piece of the rank at these coordinates along `over`.
  CutId fixed(CutId id, AxisMask over, const Coords& at);
  /// Returns, at every coordinate, the piece of the rank that the shift leads to.
  CutId moved(CutId id, const Shift& shift);
  /// The coordinates of that rank.
  Coords shifted(const Coords& coords, const Shift& shift) const;

  // Set operations.
  CutId intersection(CutId left, CutId right);
  CutId unite(CutId left, CutId right);
  /// Cut with, at every coordinate, the union over all ranks along `over`.
  CutId unite_over(CutId id, AxisMask over);
  bool empty(CutId id) const { return cuts_[id].runs.empty(); }
  bool disjoint(CutId left, CutId right) {
    return hulls_apart(left, right) || empty(intersection(left, right));
  }
  /// The share of the dim that is held at a coordinate, in cells of `cells` (a multiple of the
  /// cut's own).
  int64_t volume(CutId id, const Coords& coords, int64_t cells) const;

  /// The runs at a coordinate, in cells of `cells` (a multiple of the cut's own): those of
  /// [begin, begin + length) of them in local order; all if `length` is negative.
  std::vector<Run> part_at(CutId id, const Coords& coords, int64_t cells, int64_t begin,
                           int64_t length) const;
  /// Returns whether the ranks at two coordinates have no cell of a set in common.
  bool apart(CutId id, const Coords& one, const Coords& other) const;

  /// Elements held of a dim of `size` elements; -1 if this differs between ranks, or `size` has no
  /// whole number of elements per cell.
  int64_t local_size(CutId id, int64_t size) const;
  /// The same at the coordinates of a box.
  int64_t local_size(CutId id, int64_t size, const CoordBox& box) const;

  /// Visits the coordinates along `axes` (the last axis counts fastest), the others as in `coords`.
  /// Throws Error if there are more than kMaxRows.
  template <class Visit>
  void for_each(AxisMask axes, Coords coords, const Visit& visit) const {
    const int64_t count = ranks(axes);
    if (count > static_cast<int64_t>(kMaxRows)) {
      refuse_rows(count);
    }
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i;
      for (AxisMask left = axes; left;) {
        const int32_t axis = std::bit_width(left) - 1;
        left ^= axis_bit(axis);
        coords[axis] = static_cast<int32_t>(rest % extents_[axis]);
        rest /= extents_[axis];
      }
      visit(coords);
    }
  }

  /// "[2:4)/8", by coordinate where it differs: "[0:1)|[1:2)/2".
  std::string text(CutId id) const;

  static constexpr size_t kMaxRows = 1 << 16;
  static constexpr size_t kMaxRuns = 1 << 20;

 private:
  enum class Op : uint8_t {
    set,
    concat,
    gather,
    block,
    intersection,
    unite,
    unite_over,
    block_like
  };
  struct Key {
    Op op;
    CutId left;
    int64_t right;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  using Rows = std::vector<std::vector<Run>>;

  [[noreturn]] static void refuse_rows(int64_t rows);
  CutId intern(Cut cut);
  /// Returns whether one ends before the other begins, whatever the coordinates: known without a
  /// look-up.
  bool hulls_apart(CutId left, CutId right) const;
  CutId normal(int64_t cells, AxisMask axes, Rows rows);
  size_t row_index(AxisMask axes, const Coords& coords) const;
  /// Rows for every coordinate on `axes`, from a function of the coordinates.
  template <class Function>
  Rows rows_over(AxisMask axes, const Function& row) const;
  /// The pieces of the ranks along `over`, concatenated.
  std::vector<Run> held_along(CutId id, AxisMask over, const Coords& coords) const;
  int64_t block_number(std::span<const int32_t> axes, const Coords& coords) const;
  template <class Function>
  CutId memoised(Op op, CutId left, int64_t right, const Function& make);
  std::vector<Run> scaled(CutId id, const Coords& coords, int64_t cells) const;

  Coords extents_;
  std::vector<Cut> cuts_;
  std::vector<Run> hulls_;  ///< by cut: from the first cell on any rank to the last, in its cells
  std::unordered_multimap<uint64_t, CutId> index_;
  std::vector<int64_t> held_;  ///< by cut: its cells on every rank; -1 where ranks differ
  std::unordered_map<Key, CutId, KeyHash> memo_;
};

}  // namespace hocket::graph
