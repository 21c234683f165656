// SPDX-License-Identifier: Apache-2.0
// Pieces against the layout rules of the ops: on one axis, an op accepts exactly the pieces that
// its signatures allow, with their results. Also movements of pieces, by their results.
#include "check/values/pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string>

#include "check/values/encoded_sets.h"
#include "collectives/comm_op.h"
#include "ops/op.h"
#include "tests/compare_util.h"

namespace hocket::check {
namespace {

using graph::Placement;
using graph::TensorType;

constexpr int32_t kAxis = 1;

bool is_placed(const Placement& placement) { return !placement.is_replicate(); }

constexpr graph::CoordBox kEverywhere{{}, {1, 2, 3}};

struct Setting {
  TypeTable types;
  OpKeys keys;
  Pieces pieces{graph::Coords{1, 2, 3, 1, 1, 1}, keys};

  /// Returns the piece of a placement on kAxis. A partial one sums over the letter k of an op.
  PieceId piece(Placement placement, size_t dims, int32_t key) {
    Piece piece{static_cast<uint8_t>(dims), {}, {}};
    if (placement.is_split()) {
      piece.cut[placement.dim()] = pieces.cuts.split({kAxis});
    }
    if (placement.is_partial()) {
      piece.addends = {
          {pieces.intern_space({.key = key, .letter = 'k'}), pieces.cuts.split({kAxis})}};
    }
    return pieces.intern(piece);
  }

  Placement placement(PieceId id) const {
    const Piece& piece = pieces[id];
    for (int dim = 0; dim < piece.dims; ++dim) {
      if (!pieces.cuts.is_whole(piece.cut[dim])) return Placement::split(dim);
    }
    if (piece.addends.empty()) return Placement::replicate();
    return Placement::partial(pieces.monoid(id));
  }
};

/// Returns placements of inputs on one axis: those of the signatures, and all others. Ops with many
/// inputs have millions, of which it returns every n-th unless HOCKET_LONG=1 asks for all.
std::vector<std::vector<Placement>> placements(const std::vector<TensorType>& in,
                                               const std::vector<ops::AxisSignature>& signatures) {
  constexpr int64_t kMaxChecked = 4000;
  const int least = Placement::partial().code;
  std::vector<int64_t> choices;
  for (const TensorType& type : in) {
    choices.push_back(static_cast<int>(std::min<size_t>(type.dims.size(), 3)) - least);
  }
  const int64_t all =
      std::accumulate(choices.begin(), choices.end(), int64_t{1}, std::multiplies<>());
  int64_t step = test::is_long() ? 1 : std::max<int64_t>(1, all / kMaxChecked);
  while (std::gcd(step, all) != 1) ++step;  // every choice of every input occurs
  std::vector<std::vector<Placement>> result;
  for (const ops::AxisSignature& one : signatures) result.push_back(one.in);
  for (int64_t index = 0; index < all; index += step) {
    std::vector<Placement> placed(in.size(), Placement::partial());
    int64_t rest = index;
    for (size_t i = 0; i < in.size(); rest /= choices[i++]) {
      placed[i].code = static_cast<decltype(placed[i].code)>(least + rest % choices[i]);
    }
    result.push_back(std::move(placed));
  }
  return result;
}

TEST(Pieces, OpsAcceptExactlyTheirSignatures) {
  int taken = 0;
  int refused = 0;
  for (const ops::Op* op : ops::all()) {
    if (op->meaning == ops::Meaning::sum || !op->samples)
      continue;  // sums have a rule of their own
    for (const ops::Sample& sample : op->samples()) {
      Setting s;
      const size_t inputs =
          sample.num_inputs < 0 ? sample.types.size() : static_cast<size_t>(sample.num_inputs);
      const std::vector<TensorType> in(sample.types.begin(),
                                       sample.types.begin() + static_cast<std::ptrdiff_t>(inputs));
      const std::vector<TensorType> out = op->infer(sample.attrs, in);
      const int32_t key = s.keys.intern(op->name, sample.attrs);
      const ops::Letters letters = ops::letters(*op, in, out);
      const std::vector<ops::AxisSignature> all = ops::signatures(*op, in, out);
      for (const std::vector<Placement>& placed : placements(in, all)) {
        std::vector<PieceId> pieces;
        std::vector<TypeId> logical;
        for (size_t i = 0; i < inputs; ++i) {
          pieces.push_back(s.piece(placed[i], in[i].dims.size(), key));
          logical.push_back(s.types.intern(in[i]));
        }
        // Blocks of a cut letter begin one after the other.
        Pieces::PieceOffsets offsets;
        offsets.axes = [](char) { return graph::axis_bit(kAxis); };
        offsets.at = [&](char letter, const graph::Coords& at) {
          for (size_t i = 0; i < inputs; ++i) {
            const size_t dim = letters.in[i].find(letter);
            if (dim == std::string::npos) continue;
            const bool cut = placed[i] == Placement::split(static_cast<int>(dim));
            return cut ? at[kAxis] * in[i].dims[dim] / 2 : int64_t{0};
          }
          return int64_t{0};
        };
        const LocalOpResult result =
            s.pieces.apply(key, letters, pieces, logical, out, s.types, offsets, kEverywhere);
        const auto signature = std::find_if(all.begin(), all.end(), [&](const auto& one) {
          return std::equal(placed.begin(), placed.end(), one.in.begin(), one.in.end());
        });
        const bool legal = signature != all.end();
        const std::vector<Placement> want =
            legal ? signature->out : std::vector<Placement>(out.size());
        const bool takes = result.fault == LocalOpResult::Fault::none;
        // No layout splits positional letters, or letters with parts that are not summed.
        const bool unsplit = *op->layout.positional || !op->layout.contractions.empty();
        if (takes && !legal && unsplit) continue;
        if (takes && !legal) {
          // Inputs cut along different letters, or partial: every rank has a piece of the result,
          // but all ranks together lack some of it.
          EXPECT_GE(std::count_if(placed.begin(), placed.end(), is_placed), 2)
              << op->name << " " << sample.name;
          continue;
        }
        ASSERT_EQ(takes, legal) << op->name << " " << sample.name;
        ++(legal ? taken : refused);
        for (size_t output = 0; output < out.size() && legal; ++output) {
          EXPECT_EQ(s.placement(result.out[output]), want[output])
              << op->name << " " << sample.name;
        }
      }
    }
  }
  EXPECT_GT(taken, 200);
  EXPECT_GT(refused, 1000);
}

/// A task has no field for an offset that depends on a symbol, so positional ops refuse such parts.
/// Other ops accept them.
TEST(Pieces, PartOfASymbolIsRefusedByPosition) {
  for (const char* name : {"attention", "add"}) {
    const ops::Op& op = ops::find(name);
    const bool positional = *op.layout.positional != 0;
    Setting s;
    const graph::Dim tokens = graph::Dim::of(0, 48, 1, 12);
    const TensorType rows{graph::DType::f64, {tokens, 2, 4}};
    std::vector<TensorType> in{rows, rows};
    graph::Attrs attrs;
    if (positional) {
      attrs = {{"scale", 1.0}, {"group", int64_t{1}}};
      in.push_back(rows);
      in.push_back({graph::DType::i32, {tokens}});
    }
    const int32_t key = s.keys.intern(op.name, attrs);
    const ops::Letters letters = ops::letters(op, in, op.infer(attrs, in));
    const auto take = [&](Placement placement) {
      std::vector<PieceId> pieces;
      std::vector<TypeId> logical;
      for (const TensorType& type : in) {
        pieces.push_back(s.piece(placement, type.dims.size(), key));
        logical.push_back(s.types.intern(type));
      }
      // The offset at the least value of the symbol.
      Pieces::PieceOffsets offsets;
      offsets.axes = [](char) { return graph::axis_bit(kAxis); };
      offsets.at = [&](char, const graph::Coords& at) {
        return placement.is_split() ? int64_t{6} * at[kAxis] : int64_t{0};
      };
      return s.pieces
          .apply(key, letters, pieces, logical, op.infer(attrs, in), s.types, offsets, kEverywhere)
          .fault;
    };
    EXPECT_EQ(take(Placement::replicate()), LocalOpResult::Fault::none) << name;
    EXPECT_EQ(take(Placement::split(0)),
              positional ? LocalOpResult::Fault::begin : LocalOpResult::Fault::none)
        << name;
  }
}

class Movements : public ::testing::Test {
 protected:
  CollectiveResult moved(const char* op, const graph::Attrs& attrs, PieceId piece, AxisMask over) {
    const comm::Op& record = comm::op(comm::find(op));
    const comm::Movement movement = comm::movement(record, attrs);
    return s_.pieces.move(piece, over, movement, {graph::DType::f64, {12, 12}});
  }
  PieceId cut(CutId first, CutId second = 0) { return s_.pieces.intern({2, {first, second}, {}}); }
  SpaceId space(char letter) { return s_.pieces.intern_space({.key = 0, .letter = letter}); }
  PieceId partial(char letter, CutId set, char other = 0, CutId other_set = 0) {
    Piece piece{2, {}, {{space(letter), set}}};
    if (other) {
      piece.addends.push_back({space(other), other_set});
    }
    return s_.pieces.intern(piece);
  }
  graph::CutTable& cuts() { return s_.pieces.cuts; }

  Setting s_;
  static constexpr AxisMask kTwo = 2, kThree = 4;  // axes of two and three ranks
};

TEST_F(Movements, GatherConcatenatesParts) {
  const PieceId rows = cut(cuts().split({1, 2}));
  EXPECT_EQ(moved("all_gather", {{"dim", int64_t{0}}}, rows, kThree).piece, cut(cuts().split({1})));
  EXPECT_EQ(moved("all_gather", {{"dim", int64_t{0}}}, rows, kTwo | kThree).piece, cut(0));
  // The outer axis: its blocks are not adjacent.
  const CollectiveResult outer = moved("all_gather", {{"dim", int64_t{0}}}, rows, kTwo);
  EXPECT_EQ(s_.pieces.text(outer.piece, {{{"a", 1}, {"b", 2}, {"c", 3}}}),
            "dim 0 [0:1)[3:4)|[1:2)[4:5)|[2:3)[5:6)/6 by c");
  EXPECT_EQ(moved("all_gather", {{"dim", int64_t{1}}}, rows, kTwo).fault,
            CollectiveResult::Fault::not_split);
  EXPECT_EQ(
      moved("all_gather", {{"dim", int64_t{0}}}, cut(cuts().split({1}), cuts().split({1, 2})), kTwo)
          .fault,
      CollectiveResult::Fault::differs);
}

TEST_F(Movements, SumsNeedDisjointPartsThatFillTheirHull) {
  const PieceId both = partial('t', cuts().split({1, 2}));
  EXPECT_EQ(moved("all_reduce", {}, both, kTwo | kThree).piece, cut(0));
  EXPECT_EQ(moved("all_reduce", {}, both, kThree).piece, partial('t', cuts().split({1})));
  EXPECT_EQ(moved("all_reduce", {}, partial('t', cuts().split({1})), kThree).fault,
            CollectiveResult::Fault::not_partial);
  EXPECT_EQ(moved("all_reduce", {}, cut(cuts().split({2})), kThree).fault,
            CollectiveResult::Fault::split);
  // Two reductions, one along each axis.
  EXPECT_EQ(moved("all_reduce", {}, partial('t', cuts().split({1}), 'k', cuts().split({2})),
                  kTwo | kThree)
                .piece,
            cut(0));
  // Two reductions along one axis: the ranks hold the diagonal of a square.
  EXPECT_EQ(moved("all_reduce", {}, partial('t', cuts().split({2}), 'k', cuts().split({2})), kThree)
                .fault,
            CollectiveResult::Fault::overlap);
  // Own part and neighbour's part: every addend is there twice.
  const CutId pair = cuts().unite(cuts().split({2}), cuts().moved(cuts().split({2}), {2, 0, {1}}));
  EXPECT_EQ(moved("all_reduce", {}, partial('t', pair), kThree).fault,
            CollectiveResult::Fault::overlap);
}

TEST_F(Movements, ScatterAndExchangeGiveBlocks) {
  EXPECT_EQ(
      moved("reduce_scatter", {{"dim", int64_t{1}}}, partial('t', cuts().split({2})), kThree).piece,
      cut(0, cuts().split({2})));
  const PieceId rows = cut(0, cuts().split({1, 2}));
  const graph::Attrs there{{"from", int64_t{1}}, {"to", int64_t{0}}};
  const graph::Attrs back{{"from", int64_t{0}}, {"to", int64_t{1}}};
  const CollectiveResult by_expert = moved("all_to_all", there, rows, kThree);
  EXPECT_EQ(by_expert.piece, cut(cuts().split({2}), cuts().split({1})));
  EXPECT_EQ(moved("all_to_all", back, by_expert.piece, kThree).piece, rows);
}

TEST_F(Movements, PartsOfOneReductionUnite) {
  const CutId mine = cuts().split({2});
  const CutId next = cuts().moved(mine, {2, 0, {1}});
  const PieceId two = s_.pieces.unite(partial('t', mine), partial('t', next), graph::Monoid::sum);
  ASSERT_NE(two, PieceId(kNone));
  EXPECT_EQ(s_.pieces.unite(two, partial('t', cuts().moved(mine, {2, 0, {2}})), graph::Monoid::sum),
            cut(0));
  EXPECT_EQ(s_.pieces.unite(two, partial('t', next), graph::Monoid::sum), PieceId(kNone))
      << "added twice";
  EXPECT_EQ(s_.pieces.unite(partial('t', mine), partial('k', next), graph::Monoid::sum),
            PieceId(kNone));
  EXPECT_EQ(s_.pieces.from_peer(partial('t', mine), {2, 0, {1}}), partial('t', next));
}

/// Uncertain facts about ranks of other classes do not separate values that are equal on the
/// class's own ranks; certain facts do.
TEST(Pieces, GuessesAboutOtherClassesDoNotSplitEqualValues) {
  Setting s;
  const graph::CoordBox first{{}, {1, 1, 3}};
  const graph::CoordBox second{{0, 1}, {1, 1, 3}};
  const auto piece = [&](const std::vector<std::vector<graph::Run>>& rows) {
    return s.pieces.intern({1, {s.pieces.cuts.make(5, graph::axis_bit(kAxis), rows)}, {}});
  };
  const PieceId declared = piece({{{0, 3}}, {{3, 2}}});
  const PieceId guessed = piece({{{0, 3}}, {{3, 1}}});
  EXPECT_EQ(s.pieces.canonical(first, declared, 0, false), declared);
  EXPECT_EQ(s.pieces.canonical(first, guessed, 0, true), declared);
  EXPECT_EQ(s.pieces.canonical(second, guessed, 0, true), guessed);
  EXPECT_TRUE(s.pieces.is_guess(second, s.pieces[guessed].cut[0]));
  EXPECT_FALSE(s.pieces.is_guess(first, s.pieces[guessed].cut[0]));
  EXPECT_EQ(s.pieces.canonical(first, guessed, 0, false), guessed);
  EXPECT_EQ(s.pieces.canonical(first, guessed, 0, true), guessed);
  EXPECT_EQ(s.pieces.canonical(kEverywhere, guessed, 0, true), guessed);

  // Parts that are adjacent on the first rank, and overlap on the other.
  const auto region = [&](graph::Run run) { return s.pieces.cuts.make(3, 0, {{run}}); };
  const Pieces::Part parts[] = {{region({0, 1}), piece({{{0, 1}}, {{3, 2}}})},
                                {region({1, 2}), piece({{{1, 2}}, {{3, 2}}})}};
  const auto join = [&](const graph::CoordBox& box, bool* guess, RankFault* why) {
    return s.pieces.join(parts, graph::CutTable::kWhole, 3, 0, 5, box, guess, why);
  };
  bool guess = false;
  RankFault why;
  EXPECT_EQ(join(first, &guess, &why), declared);
  EXPECT_TRUE(guess);
  EXPECT_EQ(why.text, "");
  EXPECT_EQ(join(kEverywhere, &guess, &why), kNone);
  EXPECT_EQ(why.text, "some of its parts are the same part of the value");
}

/// Parts that are adjacent along one dim keep their cut along the other.
TEST(Pieces, JoinedColumnsKeepTheCutOfTheRows) {
  Setting s;
  const CutId rows = s.pieces.cuts.split({kAxis});
  const auto columns = [&](graph::Run run) { return s.pieces.cuts.make(5, 0, {{run}}); };
  const auto part = [&](graph::Run run) { return s.pieces.intern({2, {rows, columns(run)}, {}}); };
  const auto region = [&](graph::Run run) { return s.pieces.cuts.make(5, 0, {{run}}); };
  const Pieces::Part parts[] = {{region({0, 2}), part({0, 2})}, {region({2, 3}), part({2, 3})}};
  bool guess = false;
  RankFault why;
  EXPECT_EQ(s.pieces.join(parts, graph::CutTable::kWhole, 5, 1, 5, kEverywhere, &guess, &why),
            s.pieces.intern({2, {rows, graph::CutTable::kWhole}, {}}))
      << why.text;
}

/// Parts that share indices must have lost the same addends to a codec; parts that share none need
/// not.
TEST(EncodedSets, PartsThatOverlapMustHaveLostTheSame) {
  Setting s;
  graph::CutTable& cuts = s.pieces.cuts;
  EncodedSets sets(cuts);
  const SpaceId space = s.pieces.intern_space({.key = 1, .letter = 'k'});
  const FamilyId addends = sets.of({});
  const FamilyId some = sets.of({{space, cuts.make(2, 0, {{{0, 1}}})}});
  const FamilyId all = sets.of({{space, graph::CutTable::kWhole}});
  const auto at = [&](int64_t size, graph::Run run) { return cuts.make(size, 0, {{run}}); };
  const auto join = [&](graph::Run second, FamilyId lost) {
    const EncodedSets::Part parts[] = {{at(8, {0, 4}), at(8, {0, 4}), addends, some},
                                       {at(8, {4, 4}), at(8, second), addends, lost}};
    return sets.join(parts, graph::CutTable::kWhole, 8, 8);
  };
  EXPECT_NE(join({4, 4}, all), FamilyId(kNone));
  EXPECT_EQ(join({0, 4}, all), FamilyId(kNone));
  EXPECT_EQ(join({2, 4}, all), FamilyId(kNone));
}

TEST(PieceOf, LayoutAndPieceAgreeOnEveryRank) {
  const graph::Mesh mesh{{{"a", 1}, {"b", 2}, {"c", 3}}};
  const graph::Mesh both{{{"z", 4}, {"a", 1}, {"b", 2}, {"c", 3}}};
  OpKeys keys;
  Pieces pieces{graph::Coords{4, 1, 2, 3}, keys};  // behind an axis of another role
  const TensorType type{graph::DType::f32, {12, 12}};
  std::map<std::string, PieceId> known;
  for (const char* text :
       {"B", "b:S0", "c:S1", "b:S0 c:S0", "c:S0 b:S0", "b:S1 c:S0", "c:S1 b:S1", "a:S0 c:S1",
        "c:S1 b:S1[1,2,3,1,2,3]", "b:S0[5,7] c:S1[10,1,1]", "b:S0[6,6]", "b:S1[7,5]"}) {
    const graph::Layout layout = graph::parse_layout(text, mesh);
    const PieceId id = pieces.of(layout, type, 1);
    for (int32_t rank = 0; rank < mesh.size(); ++rank) {
      const std::vector<int32_t> coords = mesh.coords(rank);
      const graph::Coords here{2, coords[0], coords[1], coords[2]};
      const std::vector<graph::Run> held = graph::local_runs(type, layout, mesh, coords);
      for (size_t dim = 0; dim < held.size(); ++dim) {
        const graph::CutId cut = pieces[id].cut[dim];
        EXPECT_EQ(pieces.cuts.part_at(cut, here, type.dims[dim], 0, -1),
                  std::vector<graph::Run>{held[dim]})
            << text << ", rank " << rank;
      }
    }
    known[text] = id;
    if (layout.given.empty()) {
      const graph::Layout shown = graph::parse_layout(pieces.text(id, both), both);
      EXPECT_EQ(pieces.of(shown, type, 0), id) << text;
    }
  }
  EXPECT_EQ(known["b:S0"], known["b:S0[6,6]"]);
  EXPECT_NE(known["b:S0 c:S0"], known["c:S0 b:S0"]);
}

}  // namespace
}  // namespace hocket::check
