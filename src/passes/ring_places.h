// SPDX-License-Identifier: Apache-2.0
// Where the tokens of a class's rings of attention lie, whose keys a rank has after each step, and
// who then meets whom.
#pragma once

#include <vector>

#include "passes/ring_parts.h"
#include "program/program.h"

namespace hocket::passes {

class RingPlaces {
 public:
  /// Of the rings along `axis` that ranks of the class `cls` are on. `blocks`: those of each class,
  /// none of classes without rings; empty: not known yet, so that only `blocks_of` may be asked.
  RingPlaces(const program::Program& frame, program::ClassId cls, int32_t axis, bool zigzag,
             std::vector<Blocks> blocks);

  /// Blocks of `size` tokens, which the ranks of the class's rings have together: each ends where
  /// the next one begins.
  Blocks blocks_of(const program::Begin* begin, int64_t size) const;
  /// Those of the class itself.
  const Blocks& own_blocks() const { return blocks_[cls_.value()]; }
  /// The parts of every rank, in zigzag order.
  const Halves& halves() const { return halves_; }

  int32_t size() const { return mesh_.axes[axis_].size; }
  /// The place of the first rank of the class; where ranks have unlike parts, of all of it.
  int32_t own() const { return frame_.span(cls_, axis_).begin; }
  /// Whose keys the rank at this place has after `hop` steps.
  int32_t owner(int64_t place, int32_t hop) const { return mesh_.wrap(axis_, place - hop); }
  /// The keys that ranks of the class have after `hop` steps: as many on all of them.
  int64_t keys_after(const Site& site, int32_t hop) const {
    return site.blocks[owner(own(), hop)].length;
  }

  /// Axes that the begins of a task depend on, and that of the ring.
  std::vector<int32_t> axes_of(const program::Task& task) const;
  /// Where the queries' part lies, on the rank at these coordinates, and that of the keys that come
  /// to it after `hop` steps.
  graph::Run queries_at(const program::Task& task, const Site& site, const Choice& choice,
                        std::vector<int32_t> coords) const;
  graph::Run keys_at(const program::Task& task, const Site& site, const Choice& choice, int32_t hop,
                     const std::vector<int32_t>& coords) const;

  /// Who meets whom after `hop` steps. In the first one a rank has its own keys, and what is met
  /// first there comes first. Of halves of other lengths both meet theirs, one of them for nothing:
  /// a task has operands of one size on all ranks of all classes.
  std::vector<Meeting> meetings(const program::Task& task, const Site& site, int32_t hop) const;

 private:
  int64_t value_at(const program::Begin* begin, const std::vector<int32_t>& coords) const;
  const Blocks& blocks_at(const program::Task& task, const std::vector<int32_t>& coords) const;
  graph::Run part_at(const Blocks& blocks, const Choice& choice, int64_t chooser,
                     int32_t place) const;
  bool needed(const program::Task& task, const Site& site, const Meeting& meeting,
              int32_t hop) const;

  const program::Program& frame_;
  const program::ClassId cls_;
  const graph::Mesh mesh_;
  const int32_t axis_;
  const bool zigzag_;
  const std::vector<Blocks> blocks_;
  bool unlike_ = false;  ///< other classes have other blocks
  Halves halves_;        ///< in zigzag order
};

/// What a task says of where a letter begins; null: nothing.
const program::Begin* begin_of(const program::Task& task, char letter);

}  // namespace hocket::passes
