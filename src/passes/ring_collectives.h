// SPDX-License-Identifier: Apache-2.0
// Collectives of a class as messages, copies and sums: rings, level by level.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/layout.h"
#include "passes/writer.h"
#include "program/program.h"

namespace hocket::passes {

/// Rings of ranks that differ on one axis alone: neighbours in a ring lie `stride` coordinates
/// apart, and `ranks` make it up. A rank has the number coordinate / stride % ranks in its ring.
struct RingLevel {
  int32_t axis = 0;
  int64_t ranks = 1, stride = 1;
  /// The number of the rank that lies `shift` further along the ring.
  int64_t number(int64_t coordinate, int64_t shift) const {
    return ((coordinate / stride + shift) % ranks + ranks) % ranks;
  }
};
/// One ring along every axis, the outermost axis first.
std::vector<RingLevel> whole_rings(const graph::Mesh& mesh, const std::vector<int32_t>& axes);
/// Returns the levels of recursive halving and doubling: axis by axis rings of two, between ranks a
/// power of two apart, the furthest first, while the ranks can be halved; the odd rest of an axis
/// is a ring of its own, before them. In the opposite order a sum is halved between neighbours
/// first, and little of it goes far.
std::vector<RingLevel> halvings(const graph::Mesh& mesh, const std::vector<int32_t>& axes);

/// Levels of a sum or of blocks for ranks on nodes, the outermost first: rings between nodes, of
/// ranks that have the same place on theirs, and rings inside of nodes.
struct Nested {
  std::vector<RingLevel> across, inside;
  std::vector<RingLevel> all() const;
};
/// Returns the rings axis by axis: an axis with equal runs of ranks per node is a ring inside and
/// one across; others are a ring of one kind.
Nested nested_rings(const program::Program& program, program::ClassId cls,
                    const std::vector<int32_t>& axes);

/// A part of a buffer of the class: at every level, the rank's block of indices of dim 0, or of
/// elements. Its offset is `begin` plus the sum of its digits.
struct Part {
  /// `length` times the number of the rank that lies `shift` further along the ring of a level.
  struct Digit {
    RingLevel level;
    int64_t shift = 0, length = 0;
  };
  program::BufferId base = program::kNone;
  bool flat = false;
  int64_t length = 0;
  std::vector<Digit> digits{};
  int64_t begin = 0;

  /// Returns the block of the rank `shift` further along the ring at the level.
  Part block(const RingLevel& level, int64_t shift) const;
  /// Piece `number` of `pieces` equal ones.
  Part piece(int64_t number, int64_t pieces) const;
};

/// Views of parts, by their base.
using PartViews = std::map<program::BufferId, std::vector<program::BufferId>>;
/// The buffer that is the part: the base itself, or a view of it, one of `made` if it is there.
program::BufferId part_view(Writer& writer, const Part& part, PartViews* made);

/// The tasks of one collective in the class, in topological order: a value is reduced or gathered
/// over one level after the other. In a ring of n ranks, with blocks of 1/n:
///   reduce: n - 1 messages with partial sums of a block, to which the receiver adds its own part;
/// at the end every rank has the sum of its block.
///   gather: n - 1 messages with a finished block.
/// Over nested levels a piece travels between nodes while others travel inside (HO-Ring, Wu et al.,
/// arXiv 2310.06003 §3.3): these are separate links, with separate lanes. Sums and copies are in
/// the lane of the receives, so that no kernel waits behind them.
class RingCollectives {
 public:
  /// The buffers of a class that have a view along another dim than 0. While buffers are only
  /// added, it looks at each of them once, however many rings ask.
  class ViewsAlongOtherDims {
   public:
    bool contains(const std::vector<program::Buffer>& buffers, program::BufferId buffer);

   private:
    std::vector<bool> cut_;
    size_t seen_ = 0;
  };

  /// `whole`: the collective; the tasks get its labels. Messages have tags from `first_tag` on.
  /// Requires: `cut`, the class's, outlives this.
  RingCollectives(program::Program& program, program::ClassId cls, const program::Task& whole,
                  int32_t first_tag, ViewsAlongOtherDims* cut);

  /// Returns whether the reduction over these levels needs no flat buffer: one operand with equal
  /// rows on all ranks.
  bool sums_rows(const std::vector<RingLevel>& levels) const;
  /// Sums operands, or takes their maximum, over these levels, in `in` and `out` as the collective
  /// has them.
  void all_reduce(const std::vector<RingLevel>& levels) { all_reduce({}, levels, 1); }
  /// Inside of nodes first, in at most `pieces` pieces, of a row or element for each rank at least.
  void all_reduce(const Nested& levels, int64_t pieces);
  /// The block of the rank among all on these levels, outermost first, of the sum along dim 0.
  void reduce_scatter(const std::vector<RingLevel>& levels) { reduce_scatter(levels, 1); }
  /// Reduces and scatters; with one level, each block in this many equal pieces, in sequence.
  void reduce_scatter(const std::vector<RingLevel>& levels, int64_t pieces);
  void reduce_scatter(const Nested& levels, int64_t pieces);
  /// The blocks of all ranks on these levels, outermost first, along dim 0.
  void all_gather(const std::vector<RingLevel>& levels) { all_gather(levels, 1); }
  void all_gather(const std::vector<RingLevel>& levels, int64_t pieces);
  void all_gather(const Nested& levels, int64_t pieces);

  std::vector<program::Task> take() { return std::move(tasks_); }
  int32_t next_tag() const { return tag_; }
  /// For an all-reduce over nested levels: the end of the first phase, which reduces inside of
  /// nodes, and the begin of the last one, which gathers there. Both 0: no phases.
  struct Phases {
    size_t first_end = 0, last_begin = 0;
  };
  const Phases& phases() const { return phases_; }

 private:
  /// One of the equal pieces of every block.
  struct Piece {
    int64_t number = 0, of = 1;
  };
  void all_reduce(const std::vector<RingLevel>& inside, const std::vector<RingLevel>& rest,
                  int64_t pieces);
  void all_reduce(Part from, Part to, const std::vector<RingLevel>& inside,
                  const std::vector<RingLevel>& rest, int64_t pieces);
  void all_reduce_flat(const std::vector<RingLevel>& inside, const std::vector<RingLevel>& rest,
                       int64_t pieces, graph::DType dtype);
  template <class Scatter>
  void reduce_scatter_by(const Scatter& scatter_all);
  template <class Gather>
  void all_gather_by(const std::vector<RingLevel>& levels, const Gather& gather_all);
  Part scatter(Part from, const Part* to, const Part* last, const std::vector<RingLevel>& levels,
               Piece piece);
  Part scatter_level(const Part& from, const Part& result, const RingLevel& level, Piece piece);
  void gather(Part to, const std::vector<RingLevel>& levels, Piece piece);
  void pass_on(const RingLevel& level, program::BufferId from, program::BufferId to);
  void begin_at(const RingLevel& level);
  program::PeerMap peer_map(const RingLevel& level, int64_t shift);
  void local(const std::string& op, const graph::Attrs& attrs,
             const std::vector<program::BufferId>& in, program::BufferId out);
  void copy(program::BufferId from, program::BufferId to);
  program::BufferId view(const Part& part) { return part_view(writer_, part, &views_); }
  program::BufferId slot(program::BufferId base, const graph::TensorType& type, int64_t begin);
  graph::TensorType type_of(const Part& part) const;
  bool is_cut(program::BufferId buffer) const;
  const graph::Mesh& mesh() const { return writer_.program().mesh_of(writer_.cls()); }

  Writer writer_;
  program::Task whole_;
  program::Kind kind_;
  int32_t tag_;
  ViewsAlongOtherDims* cut_;
  program::Lane arrives_ = program::Lane::compute;  ///< where messages come in at present
  PartViews views_;
  std::vector<program::Task> tasks_;
  Phases phases_;
};

}  // namespace hocket::passes
