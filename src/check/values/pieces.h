// SPDX-License-Identifier: Apache-2.0
// Pieces of terms: the part of a term that a buffer holds at each coordinate. A piece has per dim
// the indices in their order (a cut), and per unfinished reduction the addends that are in (a set).
// The buffer at a coordinate is the sum over these addends of the term restricted to the cuts.
// Rules of local tasks hold rank by rank; only communication relates ranks.
#pragma once

#include <array>
#include <bit>
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
using SpaceId = Id<struct AddendSpace>;
using PieceId = Id<struct Piece>;
using MarkId = int32_t;
inline constexpr int32_t kAnyPiece = -1;  ///< piece of zero, which fits every piece

/// Returns the lowest axis of a mask, or -1.
constexpr int32_t lowest_axis(AxisMask axes) { return axes ? std::countr_zero(axes) : -1; }

/// Index space of the addends of an unfinished reduction: the indices of a letter that an op
/// contracts, or, behind a linear op, the space of its partial input. Names the reduction, never
/// ranks. A linear op gives the image of a sum as the sum of the addends' images. So the addends of
/// its output are those of its input, lifted through the op's `key`.
struct AddendSpace {
  int32_t key = -1;       ///< OpKeys: the op that contracts, or is linear
  char letter = 0;        ///< contracted; 0: lifted; '#': the elements, in memory order
  int32_t input = -1;     ///< lifted: the partial input
  SpaceId inner = kNone;  ///< lifted: of that input
  ops::Monoid monoid = ops::Monoid::sum;
  /// If an index needs only some addends (causal attention): the function `needs` of the piece's
  /// indices of dim `by_dim`; `size` of the letter and `by_size` of that dim, in elements.
  int32_t needs = -1;  ///< Pieces::support_; -1: all addends are needed
  int32_t by_dim = -1;
  int64_t size = 0, by_size = 0;
  /// For letter '#': cuts of the dims behind the rows of a tensor of `size` rows. They change the
  /// numbers of the elements. kNone: the rows are whole.
  PieceId row = kNone;
  auto operator<=>(const AddendSpace&) const = default;
};

struct Addends {
  SpaceId space = kNone;
  CutId set = 0;  ///< the addends that are in
  auto operator<=>(const Addends&) const = default;
};

inline constexpr size_t kMaxDims = 6;

/// Normal form: dims beyond `dims` are whole; sets hold only addends that the cuts need; complete
/// sets are left out; sorted by space.
struct Piece {
  uint8_t dims = 0;
  std::array<CutId, kMaxDims> cut{};
  std::vector<Addends> addends;
  auto operator<=>(const Piece&) const = default;
};

/// Content of a buffer.
struct Value {
  ExprId expr = kUnwritten;
  PieceId piece = kAnyPiece;
  MarkId marks = 0;  ///< CodecMarks: losses to codecs; 0: none. A pack has those of its components
  auto operator<=>(const Value&) const = default;
};

/// Piece after a collective or a message, or the reason why it is impossible.
struct CollectiveResult {
  enum class Fault : uint8_t {
    none,
    not_split,    ///< gather, but the dim is not cut along `axis`
    split,        ///< reduction, but ranks along `axis` hold different indices
    not_partial,  ///< reduction, but ranks along `axis` hold the same addends
    overlap,      ///< reduction, but some addends are in several parts, or in none
    monoid,       ///< reduction by another monoid than that of the piece's own reduction
    differs,      ///< parts along `axis` differ in more than their place
  } fault = Fault::none;
  PieceId piece = kNone;
  int32_t axis = -1;
};

/// Pieces of the outputs of a local op, by its index notation, or the reason why it can't take its
/// inputs.
struct LocalOpResult {
  enum class Fault : uint8_t {
    none,
    cut,      ///< a letter is cut differently in two inputs, or must not be cut at all
    partial,  ///< an unfinished sum where the op is not linear, or in two inputs
    begin,    ///< a positional letter that is no single run, or begins elsewhere than the task says
  } fault = Fault::none;
  std::vector<PieceId> out;
  AxisMask axes = 0;  ///< axes that the fault concerns
  /// cut, partial: the input that the op can't take, and the input that it differs from, or kNone.
  int32_t input = kNone, other = kNone;
  int32_t dim = kNone;  ///< cut: dim of the input
  RankFault wrong;      ///< begin: the first rank at fault
};

/// Interned pieces over the coordinates of all meshes, and their rules.
class Pieces {
 public:
  /// `keys` must outlive it.
  Pieces(const graph::Coords& extents, const OpKeys& keys);

  graph::CutTable cuts;

  PieceId intern(Piece piece);
  SpaceId intern_space(const AddendSpace& space);
  /// Returns whether the addends that the piece needs depend on its indices of a dim.
  bool has_support(PieceId id, int dim) const;
  const Piece& operator[](PieceId id) const { return pieces_[id]; }
  /// Returns all of a tensor with this number of dims.
  PieceId whole(size_t dims) { return intern({static_cast<uint8_t>(dims), {}, {}}); }
  /// Returns the piece of a tensor that a layout, on axes from `first_axis` on, describes. Partial
  /// placements are ignored.
  PieceId of(const graph::Layout& layout, const graph::TensorType& logical, int32_t first_axis);
  /// Returns whether both pieces of a tensor of this type are equal on the ranks of a box.
  bool equal_on(PieceId one, PieceId other, const graph::TensorType& logical,
                const graph::CoordBox& box) const;
  /// Compares cuts of one dim of `size` indices.
  bool equal_on(CutId one, CutId other, int64_t size, const graph::CoordBox& box) const;
  /// Axes along which an unfinished reduction runs.
  AxisMask partial_axes(PieceId id) const;
  /// Axes along which any dim is cut.
  AxisMask cut_axes(PieceId id) const;
  /// Returns the local type of a piece of a tensor; kNone if ranks differ, or cells do not divide.
  TypeId local_type(PieceId id, TypeId logical, TypeTable& types);
  /// Returns the same for the ranks in a box.
  TypeId local_type(PieceId id, TypeId logical, TypeTable& types, const graph::CoordBox& box);

  /// Returns the piece after a collective over the ranks along `over`, of a tensor of this type.
  /// `counted`: the cut before a gather, if the collective reverses that gather; kNone: even
  /// blocks.
  CollectiveResult move(PieceId id, AxisMask over, const comm::Movement& movement,
                        const graph::TensorType& logical, CutId counted = kNone);
  /// Returns the piece of the peer that the shift leads to.
  PieceId from_peer(PieceId id, const graph::Shift& shift);
  /// Returns the union of two parts of one term: of one reduction by this monoid, equal in all
  /// else, and disjoint unless the monoid is a maximum. kNone if they are not. A part without
  /// addends is the identity.
  PieceId unite(PieceId left, PieceId right, ops::Monoid monoid);
  /// Returns whether some reduction has no addends on any rank, and all reductions are by this
  /// monoid. Such a piece is the identity of this monoid, and of no other.
  bool is_identity(PieceId id, ops::Monoid monoid) const;
  /// Returns whether the needed addends of the space depend on the indices of a dim.
  bool has_support(SpaceId space) const { return spaces_[space].needs >= 0; }
  /// Monoid of the unfinished reductions; if they differ, the first that is no sum.
  ops::Monoid monoid(PieceId id) const;

  /// Restricts a piece to ranges of local indices of a dim of `size`, one range per coordinate on
  /// `axes`. kNone if some indices do not exist.
  PieceId restrict_to(PieceId id, int dim, int64_t size, AxisMask axes,
                      std::span<const graph::Run> ranges);
  /// A piece that lies in a region of a buffer.
  struct Part {
    CutId region;
    PieceId piece;
  };
  /// Joins parts of one term along `dim`: at every coordinate the parts that overlap `region`, in
  /// memory order. On every rank they must tile the region, and agree in all but the dim. A fault
  /// on the ranks in `box`, which own the buffer, gives kNone, and `why`. Less is known of other
  /// ranks: a fault there sets `guess`. `extent`: size of the buffer along `dim`; `size`: of the
  /// term.
  PieceId join(std::span<const Part> parts, CutId region, int64_t extent, int dim, int64_t size,
               const graph::CoordBox& box, bool* guess, RankFault* why);

  /// Returns the piece with the first cut seen that equals this one on the class's own ranks, those
  /// in `box`, along the same axes. A cut derived from one class may be wrong on ranks of others (a
  /// *guess*). Guesses thereby do not tell equal values apart. A cut that was certain once is kept.
  PieceId canonical(const graph::CoordBox& box, PieceId id, int dim, bool guess);
  bool is_guess(const graph::CoordBox& box, CutId cut) const;

  /// Begins of pieces of letters, as a task says.
  struct PieceOffsets {
    std::function<int64_t(char letter, const graph::Coords&)> at;
    std::function<AxisMask(char letter)> axes;  ///< along which begins differ
  };
  /// Applies an op to pieces of its inputs. `in`, `logical`: pieces and whole types of the inputs;
  /// `key`: the op with its attributes; `local_out`: local types of the outputs; `box`: the ranks
  /// that run the task.
  LocalOpResult apply(int32_t key, const ops::Letters& letters, std::span<const PieceId> in,
                      std::span<const TypeId> logical, std::span<const graph::TensorType> local_out,
                      const TypeTable& types, const PieceOffsets& offsets,
                      const graph::CoordBox& box);
  /// Compares the begins that a task says with the cut of a letter, a dim of `size`, on the ranks
  /// in a box. No text: they agree.
  RankFault misplaced(CutId cut, char letter, int64_t size, const PieceOffsets& offsets,
                      const graph::CoordBox& box) const;

  /// Returns the part of a tensor that the rank at a coordinate holds.
  Held held(PieceId id, const graph::TensorType& logical, const graph::Coords& at);

  /// Text: "edp:S0 ep:P", or the rows of the cuts where no layout describes the piece.
  std::string text(PieceId id, const graph::Mesh& mesh) const;

 private:
  class Joining;
  int32_t intern_support(decltype(ops::Support::of) needs);
  /// Letter of the op that contracts, behind any linear ops after it.
  char letter_of(SpaceId space) const;
  /// Returns the addends of a space that the cuts of a piece need.
  CutId needed(SpaceId space, const Piece& piece);
  CollectiveResult move_parts(const Piece& piece, AxisMask over, const comm::Movement& movement,
                              int64_t size, CutId counted);
  bool sum_over(Piece* piece, AxisMask over, ops::Monoid monoid, CollectiveResult* moved);
  /// Cut of a letter of the op's notation in the inputs; kNone: no input has the letter.
  struct LetterCut {
    CutId cut = kNone;
    int32_t input = kNone;  ///< the first that has the letter
    int64_t size = 0;
    bool symbolic = false;
  };
  struct LetterCuts {
    std::array<LetterCut, 256> by_letter;
    LetterCut& of(char letter) { return by_letter[static_cast<unsigned char>(letter)]; }
  };
  // The steps of apply(). They return false, and fill `taken`, if the op can't take the pieces.
  bool take_cuts(const ops::LayoutRule& rule, const ops::Letters& letters,
                 std::span<const PieceId> in, std::span<const TypeId> logical,
                 const TypeTable& types, LetterCuts* held, LocalOpResult* taken) const;
  bool take_positions(const OpKey& op, const ops::Letters& letters, std::span<const TypeId> logical,
                      std::span<const graph::TensorType> local_out, const TypeTable& types,
                      const PieceOffsets& offsets, const graph::CoordBox& box, LetterCuts* held,
                      LocalOpResult* taken);
  bool take_addends(int32_t key, const ops::Letters& letters, std::span<const PieceId> in,
                    LetterCuts* held, std::vector<Addends>* lifted, LocalOpResult* taken);
  /// Returns the run of a letter's indices that each rank makes; kNone, and `why`, if it leaves the
  /// tensor.
  CutId made_run(char letter, int64_t class_has, int64_t size, const PieceOffsets& offsets,
                 const graph::CoordBox& box, RankFault* why);
  CutId canonical(const graph::CoordBox& box, CutId cut, bool guess);
  bool fills_hull(const std::vector<Addends>& parts, AxisMask over);
  bool layout_text(const Piece& piece, const graph::Mesh& mesh, std::string* text) const;
  TypeId cut_type(PieceId id, TypeId logical, TypeTable& types, const graph::CoordBox* box);

  const OpKeys& keys_;
  std::vector<Piece> pieces_;
  std::map<Piece, PieceId> index_;
  std::vector<AddendSpace> spaces_;
  std::vector<decltype(ops::Support::of)> support_;
  std::map<AddendSpace, SpaceId> space_index_;
  std::map<std::tuple<PieceId, AxisMask, int, int, int, int, int, int64_t, int64_t, int64_t, CutId,
                      std::vector<int64_t>>,
           CollectiveResult>
      moves_;
  std::map<std::pair<PieceId, graph::Shift>, PieceId> from_peers_;
  std::map<std::pair<PieceId, TypeId>, TypeId> local_types_;
  /// Local types of pieces that differ between ranks, by box.
  std::map<std::tuple<PieceId, TypeId, graph::Coords, graph::Coords>, TypeId> box_types_;
  std::map<std::pair<SpaceId, CutId>, CutId> needed_;
  /// Cuts that are equal on the ranks of a box: the first one, and those that are certain on other
  /// ranks too. By box, axes, and the cut on the box.
  struct Known {
    CutId first;
    std::set<CutId> certain;
  };
  std::map<std::tuple<graph::Coords, graph::Coords, AxisMask, CutId>, Known> known_in_;
  std::set<std::tuple<graph::Coords, graph::Coords, CutId>> guesses_;
};

}  // namespace hocket::check
