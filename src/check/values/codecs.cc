// SPDX-License-Identifier: Apache-2.0
// Codecs. An encoder gives codes of its operand's term, in the operand's piece; they are moved like
// any value, but not added up. A decoder gives the term back, in the piece in which its codes then
// lie, with the mark of the codec if that loses something. Marks go wherever the value goes.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "check/values/values.h"
#include "program/contract.h"

namespace hocket::check {

namespace {

/// What of two lists of runs in ascending order is in both, the first of it; nothing if none is.
graph::Run first_common(const std::vector<graph::Run>& left, const std::vector<graph::Run>& right) {
  for (size_t i = 0, j = 0; i < left.size() && j < right.size();) {
    const int64_t ends[] = {left[i].begin + left[i].length, right[j].begin + right[j].length};
    const int64_t begin = std::max(left[i].begin, right[j].begin);
    const int64_t end = std::min(ends[0], ends[1]);
    if (begin < end) return {begin, end - begin};
    if (ends[0] < ends[1]) {
      ++i;
    } else {
      ++j;
    }
  }
  return {};
}

}  // namespace

MarkId Values::unite_marks(MarkId left, MarkId right, AxisMask axes) {
  if (left == right) return left;
  const Marks& mine = marks_[left];
  const Marks& theirs = marks_[right];
  Marks all{{}, mine.apart | theirs.apart | axes};
  const auto key = [](const Mark& mark) { return std::tie(mark.codec, mark.term); };
  auto other = theirs.list.begin();
  for (const Mark& mark : mine.list) {
    while (other != theirs.list.end() && key(*other) < key(mark)) {
      all.list.push_back(*other++);
    }
    all.list.push_back(mark);
    if (other != theirs.list.end() && key(*other) == key(mark)) {
      all.list.back().addends = families_.unite(mark.addends, (other++)->addends);
    }
  }
  all.list.insert(all.list.end(), other, theirs.list.end());
  return intern_marks(std::move(all));
}

MarkId Values::intern_marks(Marks marks) {
  const auto [known, fresh] =
      marks_index_.try_emplace(std::move(marks), static_cast<MarkId>(marks_.size()));
  if (fresh) {
    marks_.push_back(known->first);
  }
  return known->second;
}

bool Values::lost_alike(MarkId left, MarkId right) const {
  if (left == right) return true;
  const Marks& mine = marks_[left];
  const Marks& theirs = marks_[right];
  return mine.apart == theirs.apart &&
         std::equal(mine.list.begin(), mine.list.end(), theirs.list.begin(), theirs.list.end(),
                    [&](const Mark& one, const Mark& other) {
                      return one.codec == other.codec && one.term == other.term &&
                             families_.shares(one.addends) == families_.shares(other.addends);
                    });
}

MarkId Values::with_addends(MarkId marks, const std::function<FamilyId(FamilyId)>& change) {
  if (marks_[marks].list.empty()) return marks;
  Marks changed = marks_[marks];
  for (Mark& mark : changed.list) {
    mark.addends = change(mark.addends);
  }
  return changed == marks_[marks] ? marks : intern_marks(std::move(changed));
}

MarkId Values::from_peer(MarkId marks, const graph::Shift& shift) {
  return with_addends(marks, [&](FamilyId addends) { return families_.from_peer(addends, shift); });
}

MarkId Values::over_all(MarkId marks, AxisMask over) {
  if (over == 0) return marks;
  return with_addends(marks, [&](FamilyId addends) { return families_.over_all(addends, over); });
}

MarkId Values::settled(MarkId marks) {
  const auto [known, fresh] = settled_.try_emplace(marks, marks);
  if (fresh) {
    known->second =
        with_addends(marks, [&](FamilyId addends) { return families_.settled(addends); });
  }
  return known->second;
}

AxisMask Values::axes_of_marks(MarkId marks) const {
  AxisMask axes = 0;
  for (const Mark& mark : marks_[marks].list) {
    axes |= families_.axes(mark.addends);
  }
  return axes;
}

MarkId Values::marks_at(MarkId marks, const graph::Coords& coords) {
  const MarkId left = settled(marks);
  const AxisMask axes = axes_of_marks(left);
  if (axes == 0) return left;
  return with_addends(left, [&](FamilyId addends) { return families_.at(addends, axes, coords); });
}

std::optional<MarkId> Values::join_marks(const Base& base, std::span<const Entry* const> hits,
                                         CutId region) {
  // Of each codec and term the parts by themselves.
  const Value& first = hits[0]->value;
  Marks all = marks_[first.marks];
  for (const Entry* hit : hits) {
    if (!lost_alike(hit->value.marks, first.marks)) return std::nullopt;
  }
  const int64_t size = ctx_.types[ref_.terms[first.expr].type].dims[base.dim];
  for (size_t i = 0; i < all.list.size(); ++i) {
    std::vector<Families::Part> parts;
    for (const Entry* hit : hits) {
      const Piece& piece = pieces_[hit->value.piece];
      parts.push_back({hit->region, piece.cut[base.dim], families_.of(piece.addends),
                       marks_[hit->value.marks].list[i].addends});
    }
    all.list[i].addends = families_.join(parts, region, base.size, size);
    if (all.list[i].addends == program::kNone) return std::nullopt;
  }
  return intern_marks(std::move(all));
}

bool Values::is_coded(const Value& value) const {
  return value.expr >= 0 && ref_.terms[value.expr].kind == Expr::Kind::coded;
}

/// The pieces of all outputs of an encoder or a decoder, by the letters of its notation; addends of
/// an unfinished sum are those of the operands. Nothing, and reported, where they do not fit.
std::vector<PieceId> Values::coded_pieces(ClassId cls, const Task& reader, const KindInfo& info,
                                          TaskRef ref) {
  // A codec acts on what a rank has, whatever part of a sum that is.
  const std::vector<Addends> addends = pieces_[ins_[0]].addends;
  for (size_t i = 0; i < ins_.size(); ++i) {
    Piece piece = pieces_[ins_[i]];
    const bool by_position =
        std::any_of(piece.addends.begin(), piece.addends.end(),
                    [&](const Addends& part) { return pieces_.has_support(part.space); });
    if (piece.addends != addends || by_position) {
      refuse("codec-parts", ref, reader.in[i], "it is another part of a sum than what it goes with",
             "decode codes and scales of one value together");
      return {};
    }
    piece.addends.clear();
    ins_[i] = pieces_.intern(std::move(piece));
    in_types_.push_back(ref_.terms[exprs_[i]].type);
  }
  const Taken taken = signature(cls, reader, info).taken;
  if (taken.fault != Taken::Fault::none) {
    explain_pieces(ref, taken);
    return {};
  }
  std::vector<PieceId> out;
  for (const PieceId id : taken.out) {
    Piece piece = pieces_[id];
    piece.addends = addends;
    out.push_back(pieces_.intern(std::move(piece)));
  }
  return out;
}

void Values::encode(ClassId cls, const Task& reader, const KindInfo& info, TaskRef ref) {
  const Value value{exprs_[0], ins_[0]};
  if (value.piece == kAnyPiece || is_coded(value)) {
    refuse("codec-parts", ref, reader.in[0],
           is_coded(value) ? "it is codes already" : "its parts lie nowhere in particular",
           "encode one value, or one part of a sum");
    return lose_outputs(cls, reader);
  }
  const std::vector<PieceId> pieces = coded_pieces(cls, reader, info, ref);
  if (pieces.empty()) return lose_outputs(cls, reader);
  const std::vector<graph::TensorType> types = info.rules->infer(
      ctx_.program.kind(reader).attrs, std::vector{ctx_.types[ref_.terms[value.expr].type]});
  for (size_t output = 0; output < reader.out.size(); ++output) {
    const ExprId codes = ref_.terms.coded(value.expr, info.key, static_cast<int32_t>(output),
                                          ctx_.types.intern(types[output]));
    set(cls, reader, output, {codes, pieces[output], marks_in_}, nullptr, ref);
  }
}

void Values::decode(ClassId cls, const Task& reader, const KindInfo& info, TaskRef ref) {
  // All outputs of one encoder of this codec, for one term, in their order.
  const Expr& first = ref_.terms[exprs_[0]];
  for (size_t i = 0; i < exprs_.size(); ++i) {
    const bool codes = is_coded({exprs_[i], ins_[i]}) && ins_[i] != kAnyPiece;
    const Expr& expr = ref_.terms[exprs_[i]];
    const Terms::Codes made = codes ? ref_.terms.codes_of(exprs_[i]) : Terms::Codes{-1, -1};
    if (!codes ||
        std::string_view(ref_.keys[made.key].rules->codec.name) != info.rules->codec.name ||
        expr.a != first.a || made.part != static_cast<int32_t>(i)) {
      refuse("codec-parts", ref, reader.in[i],
             fmt::format("it is {}; expected output {} of the {} encoder", describe(exprs_[i]), i,
                         info.rules->codec.name),
             "decode codes and scales of one value together");
      return lose_outputs(cls, reader);
    }
  }
  const ExprId term = first.a;
  const std::vector<PieceId> pieces = coded_pieces(cls, reader, info, ref);
  if (pieces.empty()) return lose_outputs(cls, reader);
  MarkId marks = marks_in_;
  if (!info.rules->codec.lossless) {
    const Mark mark{info.rules->codec.name, term, families_.of(pieces_[pieces[0]].addends)};
    marks = unite_marks(marks, intern_marks({{mark}, 0}), 0);
  }
  set(cls, reader, 0, {term, pieces[0], marks}, nullptr, ref);
}

MarkId Values::take_marks(Value* value) {
  MarkId marks = value->marks;
  value->marks = 0;
  if (!is_pack(*value)) return marks;
  std::vector<Value> components = packs_[pack_of(*value)].components;
  for (Value& component : components) {
    marks = unite_marks(marks, component.marks, 0);
    component.marks = 0;
  }
  if (marks != 0) {
    *value = unflat(packs_.with(pack_of(*value), components), 1);
  }
  return marks;
}

/// What codecs lost of a named buffer is part of the verdict. What is kept must be the same on all
/// ranks that have it: judge_copies.
void Values::finish_marks(TaskRef at, BufferId buffer, const Value& value) {
  const program::Buffer& named = ctx_.program.classes[at.cls].buffers[buffer];
  if (marks_.size() == 1) return;  // no codec lost anything
  Value unmarked = value;
  for (const Mark& mark : marks_[take_marks(&unmarked)].list) {
    Lost& lost = lost_[mark.codec];
    lost.values.insert(mark.term);
    lost.buffers.insert(named.name);
    if (lossy_.size() == kMostLossy) continue;
    const Lossy lossy{named.name, mark.codec, describe(mark.term)};
    if (std::find(lossy_.begin(), lossy_.end(), lossy) == lossy_.end()) {
      lossy_.push_back(lossy);
    }
  }
  if (named.kind != program::BufferKind::persistent) return;
  for (const std::string& name : program::tensors_of(named.name, named.slots)) {
    copies_[ref_.find(name)].push_back({at, buffer, value});
    copies_[ref_.find(name)].back().value.marks = settled(value.marks);
  }
}

std::vector<LossyCodec> Values::lossy_codecs() const {
  std::vector<LossyCodec> list;
  for (const auto& [codec, lost] : lost_) {
    list.push_back({codec, std::ssize(lost.values), std::ssize(lost.buffers)});
  }
  return list;
}

/// The states in which a rank keeps a tensor in one buffer, added to `states`.
void Values::add_states(const graph::Tensor& tensor, const KeptCopy& copy, int32_t rank,
                        std::vector<KeptState>* states) {
  const graph::Coords coords = coords_of(rank);
  const auto hold = [&](MarkId all, int64_t begin, int64_t length) {
    const MarkId marks = marks_at(all, coords);
    graph::Coords at{};
    for (size_t axis = 0; axis < coords.size(); ++axis) {
      if (marks_[marks].apart & graph::axis_bit(static_cast<int32_t>(axis))) {
        at[axis] = coords[axis];
      }
    }
    const auto same = std::find_if(states->begin(), states->end(), [&](const KeptState& known) {
      return known.marks == marks && known.at == at;
    });
    KeptState& known = same == states->end() ? states->emplace_back(KeptState{marks, at}) : *same;
    known.held.push_back({begin, length});
  };
  const auto hold_run = [&](int64_t begin, int64_t count, int64_t local) {
    if (!is_pack(copy.value)) return hold(copy.value.marks, begin, count);
    const PackId id = pack_of(copy.value);
    for (const PackRun& run : slice(packs_.at(id, coords), local, count)) {
      const bool zero = run.component == kNone;
      hold(zero ? 0 : packs_[id].components[run.component].marks, begin, run.length);
      begin += run.length;
    }
  };
  program::for_each_run(ctx_.program.classes[copy.at.cls].buffers[copy.buffer], tensor.name,
                        tensor.type, ctx_.program, rank, hold_run);
  for (KeptState& state : *states) {
    state.held = graph::united(std::move(state.held));
  }
}

/// The first rank that keeps an element of the tensor in this state, and who left it there.
std::pair<TaskRef, int32_t> Values::holder_of(int32_t tensor, const KeptState& state,
                                              int64_t element) {
  for (const KeptCopy& copy : copies_.at(tensor)) {
    for (int32_t rank : ctx_.program.ranks_of(copy.at.cls)) {
      std::vector<KeptState> states;
      add_states(ref_.graph().tensor(tensor), copy, rank, &states);
      for (const KeptState& here : states) {
        const bool same = here.marks == state.marks && here.at == state.at;
        if (same && first_common(here.held, {{element, 1}}).length > 0) return {copy.at, rank};
      }
    }
  }
  return {};
}

/// "exactly", or "up to ~int8 of ..".
std::string Values::marks_text(MarkId marks, bool sets) const {
  std::string text;
  for (const Mark& mark : marks_[marks].list) {
    text +=
        fmt::format("{}~{} of {}", text.empty() ? "up to " : ", ", mark.codec, describe(mark.term));
    const std::string& shares = families_.shares(mark.addends);
    if (shares.empty()) continue;
    text += sets ? fmt::format(", its addends {} each at once", families_.text(mark.addends))
                 : fmt::format(", of {} of its addends at once", shares);
  }
  return text.empty() ? "exactly" : text;
}

/// Refuses a tensor that ranks keep in two states, of which some elements are the same.
void Values::refuse_copies(int32_t tensor, const KeptState& one, const KeptState& other,
                           const graph::Run& both) {
  const graph::Tensor& info = ref_.graph().tensor(tensor);
  const auto [first, rank] = holder_of(tensor, one, both.begin);
  const auto [second, other_rank] = holder_of(tensor, other, both.begin);
  const std::string where = fmt::format("element {} of {} is on {}, and on {}", both.begin,
                                        info.type.numel(), rank_text(first.cls, coords_of(rank)),
                                        rank_text(second.cls, coords_of(other_rank)));
  if (marks_[one.marks].list == marks_[other.marks].list) {
    ctx_.report("replicas-differ", ProblemClass::value, second, {first},
                fmt::format("{} keeps '{}' of which ranks have their own part as it was, and those "
                            "of others as a codec left them",
                            ctx_.name(second), info.name),
                "let every rank use what it decodes of its own part, too", where);
    return;
  }
  const bool sets = lost_alike(one.marks, other.marks);
  ctx_.report(
      "replicas-differ", ProblemClass::value, second, {first},
      fmt::format("{} keeps '{}' {}, but {} keeps it {}", ctx_.name(second), info.name,
                  marks_text(other.marks, sets), ctx_.name(first), marks_text(one.marks, sets)),
      "let all ranks that keep it use what they decode, or none of them", where);
}

void Values::judge_copies() {
  // A tensor is one tensor on whatever ranks it lies: of every element, all must keep the same. Two
  // ranks do not if codecs lost different things of it, or if each has another part of it exact.
  for (const auto& [tensor, copies] : copies_) {
    const MarkId first = copies[0].value.marks;
    const bool same = std::all_of(copies.begin(), copies.end(), [&](const KeptCopy& copy) {
      return !is_pack(copy.value) && copy.value.marks == first;
    });
    if (same && marks_[first].apart == 0 && axes_of_marks(first) == 0) continue;
    const graph::Tensor& info = ref_.graph().tensor(tensor);
    std::vector<KeptState> states;
    for (const KeptCopy& copy : copies) {
      for (int32_t rank : ctx_.program.ranks_of(copy.at.cls)) {
        add_states(info, copy, rank, &states);
      }
    }
    graph::Run both;
    for (size_t i = 0; i < states.size() && both.length == 0; ++i) {
      for (size_t j = 0; j < i && both.length == 0; ++j) {
        both = first_common(states[j].held, states[i].held);
        if (both.length > 0) {
          refuse_copies(tensor, states[j], states[i], both);
        }
      }
    }
  }
}

}  // namespace hocket::check
