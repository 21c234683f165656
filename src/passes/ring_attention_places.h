// SPDX-License-Identifier: Apache-2.0
// Token positions of a class's rings of attention: the keys of a rank after each step, and the
// pairs of query and key blocks.
#pragma once

#include <vector>

#include "passes/ring_attention_parts.h"
#include "program/program.h"

namespace hocket::passes {

class RingAttentionPlaces {
 public:
  /// The rings along `axis` of the ranks of class `cls`. `blocks`: those of each class, empty for
  /// classes without rings; an empty list: unknown yet, so that only `blocks_of` is available.
  RingAttentionPlaces(const program::Program& frame, program::ClassId cls, int32_t axis,
                      bool zigzag, std::vector<Blocks> blocks);

  /// Blocks of `size` tokens, which the ranks of the class's rings have together: each ends where
  /// the next one begins.
  Blocks blocks_of(const program::PieceOffset* begin, int64_t size) const;
  /// Returns the blocks of the class itself.
  const Blocks& own_blocks() const { return blocks_[cls_.value()]; }
  /// The parts of every rank, in zigzag order.
  const Halves& halves() const { return halves_; }

  int32_t size() const { return mesh_.axes[axis_].size; }
  /// Returns the ring position of the first rank of the class; with different parts per rank, of
  /// all its ranks.
  int32_t own() const { return frame_.span(cls_, axis_).begin; }
  /// Returns the home position of the keys at this position after `hop` steps.
  int32_t owner(int64_t place, int32_t hop) const { return mesh_.wrap(axis_, place - hop); }
  /// Returns the number of keys of the class's ranks after `hop` steps.
  int64_t keys_after(const Site& site, int32_t hop) const {
    return site.blocks[owner(own(), hop)].length;
  }

  /// Axes that the begins of a task depend on, and that of the ring.
  std::vector<int32_t> axes_of(const program::Task& task) const;
  /// Return the tokens of the queries' part at these coordinates, and of the keys' part after `hop`
  /// steps.
  graph::Run queries_at(const program::Task& task, const Site& site, const PartChoice& choice,
                        std::vector<int32_t> coords) const;
  graph::Run keys_at(const program::Task& task, const Site& site, const PartChoice& choice,
                     int32_t hop, const std::vector<int32_t>& coords) const;

  /// Returns the block pairs after `hop` steps. In the first step a rank has its own keys, and
  /// pairs of equal blocks come first. With halves of different lengths both such pairs are
  /// computed, one of them masked: a task has operands of one size on all ranks of all classes.
  std::vector<BlockPair> block_pairs(const program::Task& task, const Site& site,
                                     int32_t hop) const;

 private:
  int64_t value_at(const program::PieceOffset* begin, const std::vector<int32_t>& coords) const;
  const Blocks& blocks_at(const program::Task& task, const std::vector<int32_t>& coords) const;
  graph::Run part_at(const Blocks& blocks, const PartChoice& choice, int64_t chooser,
                     int32_t place) const;
  bool needed(const program::Task& task, const Site& site, const BlockPair& pair,
              int32_t hop) const;

  const program::Program& frame_;
  const program::ClassId cls_;
  const graph::Mesh mesh_;
  const int32_t axis_;
  const bool zigzag_;
  const std::vector<Blocks> blocks_;
  bool blocks_differ_ = false;  ///< other classes have other blocks
  Halves halves_;               ///< in zigzag order
};

}  // namespace hocket::passes
