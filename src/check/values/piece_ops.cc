// SPDX-License-Identifier: Apache-2.0
// Implements: take, misplaced (pieces.h): what ops make of pieces, by their index notation.
#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "check/values/pieces.h"

namespace hocket::check {

namespace {

using graph::Coords;
using graph::CutTable;

/// Size of a dim; of a symbol, the number that all its values are multiples of.
int64_t known_size(const graph::Dim& dim) { return dim.symbolic() ? dim.multiple() : int64_t{dim}; }

}  // namespace

RankFault Pieces::misplaced(CutId cut, char letter, int64_t size, const PieceOffsets& offsets,
                            const graph::CoordBox& box) const {
  RankFault wrong;
  // Begins may differ even on ranks that hold equal cuts.
  const AxisMask axes = cuts.axes(cut) | offsets.axes(letter);
  cuts.for_each(axes, box.begin, [&](const Coords& at) {
    if (!box.contains(at, axes)) return;
    const std::vector<graph::Run> runs = cuts.part_at(cut, at, size, 0, -1);
    if (runs.empty()) return;
    std::string text;
    if (runs.size() > 1) {
      text = fmt::format("its piece along {} is no single run", letter);
    } else if (const int64_t begin = offsets.at(letter, at); begin != runs[0].begin) {
      text = fmt::format("its piece along {} begins at {}; the task says {}", letter, runs[0].begin,
                         begin);
    }
    wrong.add(std::move(text), at);
  });
  wrong.ranks *= box.ranks_beside(axes);
  return wrong;
}

CutId Pieces::made_run(char letter, int64_t class_has, int64_t size, const PieceOffsets& offsets,
                       const graph::CoordBox& box, RankFault* why) {
  // Ranks of the class have as many indices as its type says. Ranks of others, whose type is not at
  // hand, have all indices up to the next begin, so that all classes derive one piece.
  if (class_has == size) return CutTable::kWhole;
  const AxisMask axes = offsets.axes(letter);
  std::set<int64_t> all{size};
  cuts.for_each(axes, {}, [&](const Coords& at) { all.insert(offsets.at(letter, at)); });
  std::vector<std::vector<graph::Run>> rows;
  cuts.for_each(axes, {}, [&](const Coords& at) {
    const int64_t begin = offsets.at(letter, at);
    const auto next = all.upper_bound(begin);
    const bool here = box.contains(at, axes) || next == all.end();
    const int64_t local = here ? class_has : *next - begin;
    if (begin < 0 || begin > size - local) {
      why->add(fmt::format("its piece along {} would be {} from {} on, of {}", letter, local, begin,
                           size),
               at);
    }
    rows.push_back({{begin, local}});
  });
  return why->text.empty() ? cuts.make(size, axes, rows) : CutId(kNone);
}

bool Pieces::take_cuts(const ops::LayoutRule& rule, const ops::Letters& letters,
                       std::span<const PieceId> in, std::span<const TypeId> logical,
                       const TypeTable& types, LetterCuts* held, LocalOpResult* taken) const {
  // The first input that has a letter defines its cut. All other inputs must agree, and only
  // letters that the op may be split along are cut. Without letters everything is whole.
  for (size_t i = 0; i < in.size(); ++i) {
    const Piece& piece = pieces_[in[i]];
    for (size_t dim = 0; dim < piece.dims; ++dim) {
      const CutId cut = piece.cut[dim];
      const char letter = letters.any || letters.in[i].empty() ? char{0} : letters.in[i][dim];
      const auto refused = [&](AxisMask axes, int32_t other = kNone) {
        taken->fault = LocalOpResult::Fault::cut;
        taken->axes = axes;
        taken->input = static_cast<int32_t>(i);
        taken->dim = static_cast<int32_t>(dim);
        taken->other = other;
        return false;
      };
      if (letter == 0) {
        if (cut != CutTable::kWhole) return refused(cuts.axes(cut));
        continue;
      }
      LetterCut& known = held->of(letter);
      if (known.cut == kNone) {
        known.cut = cut;
        known.input = static_cast<int32_t>(i);
        known.size = logical[i] < 0 ? 0 : known_size(types[logical[i]].dims[dim]);
        known.symbolic = logical[i] >= 0 && types[logical[i]].dims[dim].symbolic();
      }
      if (known.cut != cut) {
        const AxisMask axes = cuts.axes(known.cut) ^ cuts.axes(cut);
        return refused(axes ? axes : cuts.axes(cut), known.input);
      }
      if (cut != CutTable::kWhole &&
          std::string_view(rule.split).find(letter) == std::string::npos) {
        return refused(cuts.axes(cut));
      }
    }
  }
  return true;
}

bool Pieces::take_positions(const OpKey& op, const ops::Letters& letters,
                            std::span<const TypeId> logical,
                            std::span<const graph::TensorType> local_out, const TypeTable& types,
                            const PieceOffsets& offsets, const graph::CoordBox& box,
                            LetterCuts* held, LocalOpResult* taken) {
  // Handles positional letters. A letter that no input has gets a run as long as in the outputs,
  // from where the task says. All must begin where the task says, on every rank.
  const auto refused = [&](AxisMask axes) {
    taken->fault = LocalOpResult::Fault::begin;
    taken->axes = axes;
    return false;
  };
  for (const char* letter = op.rules->layout.positional; *letter; ++letter) {
    LetterCut& known = held->of(*letter);
    if (known.cut == kNone) {
      const auto [output, dim] = ops::place_in_outputs(letters, *letter);
      if (output < 0 || std::count(logical.begin(), logical.end(), kNone) > 0) continue;
      std::vector<graph::TensorType> whole;
      for (const TypeId type : logical) {
        whole.push_back(types[type]);
      }
      const graph::Dim all = op.rules->infer(op.attrs, whole).at(output).dims.at(dim);
      known.size = all;
      known.symbolic = all.symbolic();
      known.cut =
          made_run(*letter, local_out[output].dims[dim], known.size, offsets, box, &taken->wrong);
      if (known.cut == kNone) return refused(offsets.axes(*letter));
      known.cut = canonical(box, known.cut, true);
    }
    if (known.size % cuts[known.cut].cells != 0) continue;
    if (known.symbolic && known.cut != CutTable::kWhole) {
      taken->wrong.add(
          fmt::format("its piece along {} has another begin in every step, since a symbol changes",
                      *letter),
          box.begin);
      return refused(cuts.axes(known.cut));
    }
    taken->wrong = misplaced(known.cut, *letter, known.size, offsets, box);
    if (!taken->wrong.text.empty()) return refused(cuts.axes(known.cut));
  }
  return true;
}

bool Pieces::take_addends(int32_t key, const ops::Letters& letters, std::span<const PieceId> in,
                          LetterCuts* held, std::vector<Addends>* lifted, LocalOpResult* taken) {
  // An input that the notation calls a sum over a letter must have exactly the addends of the
  // letter's cut. One of the other inputs may be unfinished, if the op is linear in it: its addends
  // are lifted.
  const std::string_view linear = keys_[key].rules->layout.linear;
  int partial_input = -1;
  for (size_t i = 0; i < in.size(); ++i) {
    const Piece piece = pieces_[in[i]];
    const auto refused = [&](AxisMask axes, int32_t other = kNone) {
      taken->fault = LocalOpResult::Fault::partial;
      taken->axes = axes;
      taken->input = static_cast<int32_t>(i);
      taken->other = other;
      return false;
    };
    if (!letters.any && !letters.in_partial_of[i].empty()) {
      const CutId cut = held->of(letters.in_partial_of[i][0]).cut;
      const CutId set = cut == kNone ? CutId(CutTable::kWhole) : cuts.set_of(cut);
      const bool all = set == CutTable::kWhole;
      if (all ? piece.addends.empty() : piece.addends.size() == 1 && piece.addends[0].set == set) {
        continue;
      }
      const AxisMask axes = partial_axes(in[i]) ^ cuts.axes(set);
      const char letter = letters.in_partial_of[i][0];
      return refused(axes ? axes : cuts.axes(set), held->of(letter).input);
    }
    if (piece.addends.empty()) continue;
    bool may = !letters.any && i < linear.size() && linear[i] == '1' && partial_input < 0;
    for (const Addends& part : piece.addends) {
      const AddendSpace& space = spaces_[part.space];
      may = may && space.monoid == ops::Monoid::sum && space.needs < 0;
    }
    if (!may) return refused(partial_axes(in[i]), partial_input);
    partial_input = static_cast<int>(i);
    for (const Addends& part : piece.addends) {
      lifted->push_back(
          {intern_space({.key = key, .input = partial_input, .inner = part.space}), part.set});
    }
  }
  return true;
}

LocalOpResult Pieces::apply(int32_t key, const ops::Letters& letters, std::span<const PieceId> in,
                            std::span<const TypeId> logical,
                            std::span<const graph::TensorType> local_out, const TypeTable& types,
                            const PieceOffsets& offsets, const graph::CoordBox& box) {
  // Every letter must have one cut in all inputs that have it. It must be whole unless the op acts
  // index by index along it or contracts it. Where the op goes by position, the cut is one run that
  // begins where the task says. An output has the cuts of its letters, and is an unfinished
  // reduction over every cut letter that it lacks. One input may itself be an unfinished sum if the
  // op is linear in it; all outputs are then unfinished over the same addends. An input that the
  // notation calls a sum ("e/t", counts) has exactly the addends of the letter's cut. A positional
  // letter that no input has gives the output a run that begins where the task says. Of a symbol
  // only rules for every value hold, since begins and needed indices change from step to step.
  const OpKey& op = keys_[key];
  const ops::LayoutRule& rule = op.rules->layout;
  LocalOpResult taken;
  LetterCuts held;
  std::vector<Addends> lifted;
  if (!take_cuts(rule, letters, in, logical, types, &held, &taken) ||
      !take_positions(op, letters, logical, local_out, types, offsets, box, &held, &taken) ||
      !take_addends(key, letters, in, &held, &lifted, &taken)) {
    return taken;
  }
  for (size_t output = 0; output < letters.out.size(); ++output) {
    const std::string& has = letters.out[output];
    Piece piece{static_cast<uint8_t>(letters.dims_out[output]), {}, lifted};
    for (size_t dim = 0; dim < has.size(); ++dim) {
      const CutId cut = held.of(has[dim]).cut;
      piece.cut[dim] = cut == kNone ? CutId(CutTable::kWhole) : cut;
    }
    for (size_t number = 0; number < held.by_letter.size(); ++number) {
      const char letter = static_cast<char>(number);
      const LetterCut& known = held.of(letter);
      const CutId cut = known.cut;
      if (cut == kNone || has.find(letter) != std::string::npos) continue;
      AddendSpace space{.key = key, .letter = letter, .monoid = rule.monoid(letter)};
      // A symbol needs all indices, since its size is not known before the step, unless shares of
      // it need shares: then sizes are counted in parts that every value has.
      const ops::Support* support = rule.support_of(letter, static_cast<int>(output));
      const bool sized = !known.symbolic && !(support && held.of(support->by).symbolic);
      if (support && (sized || support->of_shares)) {
        space.needs = intern_support(support->of);
        space.by_dim = static_cast<int32_t>(has.find(support->by));
        space.size = known.size;
        space.by_size = held.of(support->by).size;
      }
      piece.addends.push_back({intern_space(space), cuts.set_of(cut)});
    }
    taken.out.push_back(intern(std::move(piece)));
  }
  return taken;
}

char Pieces::letter_of(SpaceId space) const {
  while (spaces_[space].letter == 0) {
    space = spaces_[space].inner;
  }
  return spaces_[space].letter;
}

}  // namespace hocket::check
