// SPDX-License-Identifier: Apache-2.0
// What a flat buffer of several tensors holds: at every coordinate runs of elements of other
// values, one after the other. A bucket that a shard boundary cuts through, padding, blocks that
// travel around a ring are all packs; like cuts they are evaluated and interned, so that two packs
// are equal exactly if their ids are.
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

/// Elements [begin, begin + length) of a component, in memory order; kNone: that many zeros.
struct PackRun {
  int32_t component = kNone;
  int64_t begin = 0, length = 0;
  auto operator<=>(const PackRun&) const = default;
};
using PackRow = std::vector<PackRun>;
/// Elements [begin, begin + length) of a row, as far as they are there.
PackRow slice(const PackRow& row, int64_t begin, int64_t length);

/// Which elements of its components a pack has, and in which order. The packs of many tensors have
/// few shapes.
struct PackShape {
  AxisMask axes = 0;
  std::vector<PackRow> rows;  ///< for every coordinate on `axes`, the last axis counting fastest
  bool operator==(const PackShape&) const = default;
};

/// Components are tensors, of which dim 0 is whole: what a rank has of its rows is said by the
/// runs. Elements are those that are left of a row under the component's cuts of its other dims.
/// Normal form: components are in order and all used, no run continues the one before it, and every
/// axis of `axes` makes a difference.
struct Pack {
  std::vector<Value> components;
  AxisMask axes = 0;  ///< of the shape
  ShapeId shape = 0;
  auto operator<=>(const Pack&) const = default;
};

/// Packs over the coordinates of one box of ranks. An operation is worked out once for all packs of
/// the same shapes whose components are in the same order.
class Packs {
 public:
  explicit Packs(const graph::CutTable& cuts) : cuts_(cuts) {}

  using RowAt = std::function<PackRow(const graph::Coords&)>;
  /// From rows that depend on coordinates on `axes` at most. Components that are zero become zeros.
  /// They may be those of a pack of this table.
  PackId make(std::span<const Value> components, AxisMask axes, const RowAt& row);
  /// All that the rows of a result depend on: an operation, and ids and numbers.
  enum class Op : uint8_t { flat, restricted, moved, renamed, joined, summed };
  struct Question {
    Op op;
    std::vector<int64_t> of;
    auto operator<=>(const Question&) const = default;
  };
  /// The same; the rows are asked for only if the question is a new one.
  PackId make(Question question, std::span<const Value> components, AxisMask axes,
              const RowAt& row);
  const Pack& operator[](PackId id) const { return packs_[id]; }
  const std::vector<PackRow>& rows(PackId id) const { return shapes_[packs_[id].shape].rows; }
  /// The runs at a coordinate.
  const PackRow& at(PackId id, const graph::Coords& coords) const;
  /// Elements at every coordinate; -1 if ranks differ.
  int64_t length(PackId id) const;
  /// The same at the coordinates of a box.
  int64_t length(PackId id, const graph::CoordBox& box) const;

  /// At every coordinate local elements of a range; kNone if they are not all there.
  using RangeAt = std::function<graph::Run(const graph::Coords&)>;
  PackId restrict_to(PackId id, AxisMask axes, const RangeAt& range);
  /// The same; `by`: the numbers that the range depends on.
  PackId restrict_to(PackId id, AxisMask axes, std::vector<int64_t> by, const RangeAt& range);
  /// At every coordinate the block of the local elements that has the rank's number along `over`.
  PackId block(PackId id, AxisMask over);
  /// At every coordinate what all ranks along `over` have, by their number: of each all, or the
  /// block that has the coordinate's number. Its components must not depend on `over`.
  PackId gather(PackId id, AxisMask over, bool blocks);
  /// What the rank has that the shift leads to; `components`: theirs, as seen from here.
  PackId moved(PackId id, std::span<const Value> components, const graph::Shift& shift);
  /// The same elements of other components.
  PackId with(PackId id, std::span<const Value> components);

  /// Elements that lie in the same place of several packs.
  struct Meeting {
    std::vector<PackRun> runs;  ///< by pack, all of one length
  };
  /// Walks through packs of one length side by side, at every coordinate that matters to any of
  /// them. False if they differ in length.
  bool side_by_side(std::span<const PackId> ids,
                    const std::function<void(const graph::Coords&, const Meeting&)>& visit) const;
  /// Axes that matter to any of them.
  AxisMask axes(std::span<const PackId> ids) const;

 private:
  /// A result for any components: its shape, kNone if there is none, and which of them it has.
  struct Made {
    ShapeId shape = kNone;
    std::vector<int32_t> components;
  };
  Made normal(std::span<const Value> components, AxisMask axes, const RowAt& row);
  Made restricted(PackId id, AxisMask axes, const RangeAt& range);
  PackId pack_of(const Made& made, std::span<const Value> components);
  ShapeId intern(PackShape shape);
  int64_t number(AxisMask over, const graph::Coords& coords) const;

  const graph::CutTable& cuts_;
  std::vector<Pack> packs_;
  std::map<Pack, PackId> index_;
  std::vector<PackShape> shapes_;
  std::vector<int64_t> lengths_;  ///< by shape: elements at every coordinate; -1 if ranks differ
  std::unordered_multimap<uint64_t, ShapeId> shape_index_;
  std::map<Question, Made> made_;
};

}  // namespace hocket::check
