// SPDX-License-Identifier: Apache-2.0
// Packs: contents of flat buffers of several tensors. At every coordinate a pack is a list of runs
// of elements of other values. Buckets with a shard boundary inside a tensor, padding, and blocks
// that travel around a ring are all packs. Packs are evaluated and interned: equal packs have equal
// ids.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "check/values/pieces.h"

namespace hocket::check {

using PackId = Id<struct Pack>;
using ShapeId = Id<struct PackShape>;

/// Elements [begin, begin + length) of a component, in memory order; of kNone, `length` zeros.
struct PackRun {
  int32_t component = kNone;
  int64_t begin = 0, length = 0;
  auto operator<=>(const PackRun&) const = default;
};
using PackRow = std::vector<PackRun>;
/// Returns elements [begin, begin + length) of a row, as far as they exist.
PackRow slice(const PackRow& row, int64_t begin, int64_t length);

/// The elements of its components that a pack has, in order. Many packs share few shapes.
struct PackShape {
  AxisMask axes = 0;
  std::vector<PackRow> rows;  ///< one per coordinate on `axes`; the last axis is fastest
  bool operator==(const PackShape&) const = default;
};

/// Components are tensors with a whole dim 0: the runs say which of their rows a rank has. A row
/// has the elements that the component's cuts of its other dims leave.
/// Normal form: components are in order and all used, no run continues the previous one, and every
/// axis of `axes` makes a difference.
struct Pack {
  std::vector<Value> components;
  AxisMask axes = 0;  ///< of the shape
  ShapeId shape = 0;
  auto operator<=>(const Pack&) const = default;
};

/// Interned packs. The result of an operation is computed once for all packs of the same shapes if
/// their components compare alike.
class Packs {
 public:
  explicit Packs(const graph::CutTable& cuts) : cuts_(cuts) {}

  using RowAt = std::function<PackRow(const graph::Coords&)>;
  /// Makes a pack of rows that depend on no axes but `axes`. Zero components become zeros.
  /// `components` may be a reference into this table.
  PackId make(std::span<const Value> components, AxisMask axes, const RowAt& row);
  /// Key of a memoised result: an operation, and all ids and numbers that its rows depend on.
  enum class Op : uint8_t { flat, restricted, moved, renamed, joined, summed };
  struct Key {
    Op op;
    std::vector<int64_t> of;
    auto operator<=>(const Key&) const = default;
  };
  /// Makes a pack as above; calls `row` only if the key is new.
  PackId make(Key key, std::span<const Value> components, AxisMask axes, const RowAt& row);
  const Pack& operator[](PackId id) const { return packs_[id]; }
  const std::vector<PackRow>& rows(PackId id) const { return shapes_[packs_[id].shape].rows; }
  /// Returns the runs at a coordinate.
  const PackRow& at(PackId id, const graph::Coords& coords) const;
  /// Number of elements at every coordinate; -1 if ranks differ.
  int64_t length(PackId id) const;
  /// Number of elements at the coordinates of a box; -1 if its ranks differ.
  int64_t length(PackId id, const graph::CoordBox& box) const;

  /// Returns the local elements of a range, at every coordinate; kNone if some do not exist.
  using RangeAt = std::function<graph::Run(const graph::Coords&)>;
  PackId restrict_to(PackId id, AxisMask axes, const RangeAt& range);
  /// Returns the same elements, memoised. `by`: all numbers that the range depends on.
  PackId restrict_to(PackId id, AxisMask axes, std::vector<int64_t> by, const RangeAt& range);
  /// Returns the rank's block of the local elements, by its number along `over` (reduce-scatter).
  PackId block(PackId id, AxisMask over);
  /// Concatenates the elements of all ranks along `over`, by number: all of each (all-gather), or
  /// its block with the receiver's number (all-to-all). Requires: components do not depend on
  /// `over`.
  PackId gather(PackId id, AxisMask over, bool blocks);
  /// Returns the pack of the peer that the shift leads to. `components`: as the receiver sees them.
  PackId moved(PackId id, std::span<const Value> components, const graph::Shift& shift);
  /// Replaces the components.
  PackId with(PackId id, std::span<const Value> components);

  /// Runs of elements at the same position of several packs.
  struct AlignedRuns {
    std::vector<PackRun> runs;  ///< by pack, all of one length
  };
  /// Visits the elements of several packs in parallel, at every coordinate that matters to any of
  /// them. Returns false if they differ in length.
  bool for_each_aligned(
      std::span<const PackId> ids,
      const std::function<void(const graph::Coords&, const AlignedRuns&)>& visit) const;
  /// Axes that matter to any of the packs.
  AxisMask axes(std::span<const PackId> ids) const;

 private:
  /// A result for any components: its shape (kNone: no result), and the components that it has.
  struct Result {
    ShapeId shape = kNone;
    std::vector<int32_t> components;
  };
  Result normal(std::span<const Value> components, AxisMask axes, const RowAt& row);
  Result restricted(PackId id, AxisMask axes, const RangeAt& range);
  PackId pack_of(const Result& made, std::span<const Value> components);
  ShapeId intern(PackShape shape);
  int64_t number(AxisMask over, const graph::Coords& coords) const;

  const graph::CutTable& cuts_;
  std::vector<Pack> packs_;
  std::map<Pack, PackId> index_;
  std::vector<PackShape> shapes_;
  std::vector<int64_t> lengths_;  ///< by shape: elements at every coordinate; -1 if ranks differ
  std::unordered_multimap<uint64_t, ShapeId> shape_index_;
  std::map<Key, Result> made_;
};

}  // namespace hocket::check
