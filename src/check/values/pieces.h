// SPDX-License-Identifier: Apache-2.0
// Pieces of terms: what of a term a buffer holds at each coordinate of a class. Per dim the indices
// and their order (a cut), and per unfinished reduction which of its addends are in (a set). The
// buffer at a coordinate is the sum over the addends of the term restricted to the cuts: rules of
// local tasks hold rank by rank, and only communication relates ranks.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "check/terms.h"
#include "check/values/held.h"
#include "collectives/comm_op.h"
#include "graph/cut.h"
#include "graph/layout.h"
#include "ops/op.h"

namespace hocket::check {

using graph::AxisMask;
using graph::CutId;
using SpaceId = Id<struct Space>;
using PieceId = Id<struct Piece>;
using MarkId = int32_t;
inline constexpr int32_t kAnyPiece = -1;  ///< of zero: fits every piece

/// What the addends of an unfinished reduction are numbered by: the indices of a letter that an op
/// contracts, or, where a partial value went through a linear op, what they were before it. Named
/// by what it is, never by ranks.
struct Space {
  int32_t key = -1;       ///< OpKeys: the op that contracts, or is linear
  char letter = 0;        ///< contracted; 0: lifted through `key`
  int32_t input = -1;     ///< lifted: the partial input
  SpaceId inner = kNone;  ///< lifted: of that input
  ops::Monoid monoid = ops::Monoid::sum;
  /// Where an index needs only some of them: those that `needs` says for the indices that the piece
  /// has of dim `by_dim`; sizes of both in elements.
  int32_t needs = -1;  ///< Pieces::support_; -1: all of them
  int32_t by_dim = -1;
  int64_t size = 0, by_size = 0;
  /// Letter '#', elements of a tensor of `size` rows in memory order: how dims other than 0 are cut
  /// there, of which these are the numbers. kNone: not at all, or in whole rows, which are the same
  /// however they are cut.
  PieceId row = kNone;
  auto operator<=>(const Space&) const = default;
};

struct Addends {
  SpaceId space = kNone;
  CutId set = 0;  ///< which of them are in
  auto operator<=>(const Addends&) const = default;
};

inline constexpr size_t kMaxDims = 6;

/// Normal form: dims beyond `dims` are whole; of the addends only those that the cuts need are
/// told, and nothing if they are all there; sorted by space.
struct Piece {
  uint8_t dims = 0;
  std::array<CutId, kMaxDims> cut{};
  std::vector<Addends> addends;
  auto operator<=>(const Piece&) const = default;
};

/// What a buffer holds.
struct Value {
  ExprId expr = kUnwritten;
  PieceId piece = kAnyPiece;
  MarkId marks = 0;  ///< what codecs lost of it (Values::Marks); 0: nothing. Of a pack: its parts'
  auto operator<=>(const Value&) const = default;
};

/// What a movement makes of a piece, or why it can't be done.
struct Moved {
  enum class Fault : uint8_t {
    none,
    not_split,    ///< to be put side by side along a dim, but not cut along `axis` there
    split,        ///< to be added up, but ranks along `axis` hold different indices
    not_partial,  ///< to be added up, but ranks along `axis` hold the same: counted more than once
    overlap,      ///< to be added up, but some addends are in more than one part, or none
    monoid,       ///< to be put together otherwise than its reduction does
    differs,      ///< parts along `axis` differ in something else than where they are placed
  } fault = Fault::none;
  PieceId piece = kNone;
  int32_t axis = -1;
};

/// How an op takes pieces, read from its index notation.
struct Taken {
  enum class Fault : uint8_t {
    none,
    cut,      ///< a letter is cut differently in two inputs, or may not be cut at all
    partial,  ///< an unfinished sum where the op is not linear, or in two inputs
    begin,    ///< a letter that the op takes by position is no single run, or begins elsewhere
  } fault = Fault::none;
  std::vector<PieceId> out;
  AxisMask axes = 0;  ///< with a fault: axes that have to do with it
  /// cut, partial: the input that the op can't take, and the one that it differs from, or kNone.
  int32_t input = kNone, other = kNone;
  int32_t dim = kNone;  ///< cut: of the input
  AtRank wrong;         ///< begin: what is wrong
};

/// Interned pieces over the coordinates of one box of ranks.
class Pieces {
 public:
  /// `keys` must outlive it.
  Pieces(const graph::Coords& extents, const OpKeys& keys);

  graph::CutTable cuts;

  PieceId intern(Piece piece);
  SpaceId intern_space(const Space& space);
  /// True if which addends the piece needs depends on its indices of a dim.
  bool has_support(PieceId id, int dim) const;
  const Piece& operator[](PieceId id) const { return pieces_[id]; }
  /// All of a tensor with this number of dims.
  PieceId whole(size_t dims) { return intern({static_cast<uint8_t>(dims), {}, {}}); }
  /// What a layout on axes from `first_axis` on says of a tensor; axes over which it is partial are
  /// for the caller.
  PieceId of(const graph::Layout& layout, const graph::TensorType& logical, int32_t first_axis);
  /// True if the ranks of a box hold the same of a tensor of this type by either piece.
  bool same_in(PieceId one, PieceId other, const graph::TensorType& logical,
               const graph::CoordBox& box) const;
  /// The same of one dim of so many indices.
  bool same_in(CutId one, CutId other, int64_t size, const graph::CoordBox& box) const;
  /// Axes that an unfinished reduction runs along.
  AxisMask partial_axes(PieceId id) const;
  /// Axes that a dim is cut along.
  AxisMask cut_axes(PieceId id) const;
  /// Local type of a piece of a tensor; kNone if ranks differ, or cells do not divide.
  TypeId local_type(PieceId id, TypeId logical, TypeTable& types);
  /// The same for the ranks in a box.
  TypeId local_type(PieceId id, TypeId logical, TypeTable& types, const graph::CoordBox& box);

  /// What ranks hold after each took its part of what all ranks along `over` had, of a tensor of
  /// this type. `counted`: what each had before they put it together, of which it takes as much
  /// back; kNone: blocks that are as even as they divide.
  Moved move(PieceId id, AxisMask over, const comm::Movement& movement,
             const graph::TensorType& logical, CutId counted = kNone);
  /// What the rank holds that the shift leads to.
  PieceId from_peer(PieceId id, const graph::Shift& shift);
  /// Two parts of one term put together, which are parts of one reduction of this monoid and
  /// otherwise alike: disjoint ones, unless it is a maximum. kNone if they are not. A part without
  /// addends of this monoid changes nothing.
  PieceId unite(PieceId left, PieceId right, ops::Monoid monoid);
  /// True if some reduction has none of its addends, on any rank, and all are of this monoid: what
  /// changes nothing when it is put to something else by it, and only by it.
  bool is_identity(PieceId id, ops::Monoid monoid) const;
  /// True if indices of a dim need only some addends of the space.
  bool has_support(SpaceId space) const { return spaces_[space].needs >= 0; }
  /// How its unfinished reductions put parts together; of several that differ, not as sums.
  ops::Monoid monoid(PieceId id) const;

  /// The part of a piece between local indices of a dim of `size`: a range at every coordinate on
  /// `axes`. kNone if it is not there.
  PieceId restrict_to(PieceId id, int dim, int64_t size, AxisMask axes,
                      std::span<const graph::Run> ranges);
  /// A piece that lies in a region of a buffer.
  struct Part {
    CutId region;
    PieceId piece;
  };
  /// Parts of one term put together: at every coordinate those that overlap `region`, in the order
  /// in which they lie. They must tile it, and agree in everything but the dim along which they are
  /// put together, rank by rank: on the ranks in `box`, whose buffer it is; on others as far as
  /// what is known of them does, else `guess` becomes true. kNone, and why, if they do not.
  /// `extent`: of the buffer along `dim`; `size`: of the term.
  PieceId join(std::span<const Part> parts, CutId region, int64_t extent, int dim, int64_t size,
               const graph::CoordBox& box, bool* guess, AtRank* why);

  /// What a class does may say too little of what ranks of other classes have: that is not to tell
  /// apart what its own ranks have, those in `box`. The piece with a cut along a dim that is this
  /// one on them, along the same axes: of such cuts the first that was seen, if this one is a
  /// guess on other ranks, and never was certain.
  PieceId known_as(const graph::CoordBox& box, PieceId id, int dim, bool guess);
  bool is_guess(const graph::CoordBox& box, CutId cut) const;

  /// What an op makes of pieces of its inputs. `in`, `logical`: pieces and whole types of the
  /// inputs; `key`: the op with its attributes; `local_out`: local types of the outputs; `begins`:
  /// where the task says that its piece of a letter begins, on the ranks in `box`.
  struct Begins {
    std::function<int64_t(char letter, const graph::Coords&)> at;
    std::function<AxisMask(char letter)> axes;  ///< along which ranks begin elsewhere
  };
  Taken take(int32_t key, const ops::Letters& letters, std::span<const PieceId> in,
             std::span<const TypeId> logical, std::span<const graph::TensorType> local_out,
             const TypeTable& types, const Begins& begins, const graph::CoordBox& box);
  /// What is wrong with a task that says where its piece of a letter, a dim of `size`, begins on
  /// the ranks in a box; no text if nothing is.
  AtRank misplaced(CutId cut, char letter, int64_t size, const Begins& begins,
                   const graph::CoordBox& box) const;

  /// What the rank at a coordinate holds of a tensor.
  Held held(PieceId id, const graph::TensorType& logical, const graph::Coords& at);

  /// "edp:S0 ep:P", or, where no layout says it, the rows of the cuts.
  std::string text(PieceId id, const graph::Mesh& mesh) const;

 private:
  class Joining;
  int32_t intern_support(decltype(ops::Support::of) needs);
  /// Of the op that contracts, whatever linear ops came after it.
  char letter_of(SpaceId space) const;
  /// Of the addends of a space, those that the cuts of a piece need.
  CutId needed(SpaceId space, const Piece& piece);
  Moved move_parts(const Piece& piece, AxisMask over, const comm::Movement& movement, int64_t size,
                   CutId counted);
  bool sum_over(Piece* piece, AxisMask over, ops::Monoid monoid, Moved* moved);
  /// What inputs have of a letter of the op's notation; kNone: none has it.
  struct LetterCut {
    CutId cut = kNone;
    int32_t input = kNone;  ///< that has it first
    int64_t size = 0;
    bool symbolic = false;
  };
  struct LetterCuts {
    std::array<LetterCut, 256> by_letter;
    LetterCut& of(char letter) { return by_letter[static_cast<unsigned char>(letter)]; }
  };
  // The steps of take(); false, and `taken` says why, if the op can't take the pieces.
  bool take_cuts(const ops::LayoutRule& rule, const ops::Letters& letters,
                 std::span<const PieceId> in, std::span<const TypeId> logical,
                 const TypeTable& types, LetterCuts* held, Taken* taken) const;
  bool take_positions(const OpKey& op, const ops::Letters& letters, std::span<const TypeId> logical,
                      std::span<const graph::TensorType> local_out, const TypeTable& types,
                      const Begins& begins, const graph::CoordBox& box, LetterCuts* held,
                      Taken* taken);
  bool take_addends(int32_t key, const ops::Letters& letters, std::span<const PieceId> in,
                    LetterCuts* held, std::vector<Addends>* lifted, Taken* taken);
  /// The run of a letter's indices that every rank makes; kNone, and why, if it leaves the tensor.
  CutId made_run(char letter, int64_t class_has, int64_t size, const Begins& begins,
                 const graph::CoordBox& box, AtRank* why);
  CutId known_as(const graph::CoordBox& box, CutId cut, bool guess);
  bool fills_hull(const std::vector<Addends>& parts, AxisMask over);
  bool layout_text(const Piece& piece, const graph::Mesh& mesh, std::string* text) const;
  TypeId cut_type(PieceId id, TypeId logical, TypeTable& types, const graph::CoordBox* box);

  const OpKeys& keys_;
  std::vector<Piece> pieces_;
  std::map<Piece, PieceId> index_;
  std::vector<Space> spaces_;
  std::vector<decltype(ops::Support::of)> support_;
  std::map<Space, SpaceId> space_index_;
  std::map<std::tuple<PieceId, AxisMask, int, int, int, int, int, int64_t, int64_t, int64_t, CutId,
                      std::vector<int64_t>>,
           Moved>
      moves_;
  std::map<std::pair<PieceId, graph::Shift>, PieceId> from_peers_;
  std::map<std::pair<PieceId, TypeId>, TypeId> local_types_;
  /// Of those that differ between ranks, by box too.
  std::map<std::tuple<PieceId, TypeId, graph::Coords, graph::Coords>, TypeId> box_types_;
  std::map<std::pair<SpaceId, CutId>, CutId> needed_;
  /// By box, axes, and what a cut is on the ranks of the box: the first one, and those that are
  /// certain on others, too.
  struct Known {
    CutId first;
    std::set<CutId> certain;
  };
  std::map<std::tuple<graph::Coords, graph::Coords, AxisMask, CutId>, Known> known_in_;
  std::set<std::tuple<graph::Coords, graph::Coords, CutId>> guesses_;
};

}  // namespace hocket::check
