// SPDX-License-Identifier: Apache-2.0
#include "check/values/pack_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace hocket::check {

using graph::Coords;
using graph::Run;

PackOp::PackOp(Machine& machine, const Operands& operands, TaskRef ref, const Task& task,
               const KindInfo& info)
    : m_(machine), ref_(ref), task_(task), info_(info) {
  for (size_t i = 0; i < task.in.size(); ++i) {
    operands_.push_back(operands.marked(i));
  }
}

bool PackOp::refuse(const std::string& why, const Coords* at) {
  std::string text = m_.ctx.name(ref_) + " acts on several tensors in one buffer: " + why;
  std::vector<TaskRef> related;
  for (size_t i = 0; i < task_.in.size(); ++i) {
    text += fmt::format("{} {} holds {}", i ? "," : ";", m_.ctx.buffer_name(ref_.cls, task_.in[i]),
                        m_.algebra.is_pack(operands_[i])
                            ? m_.text.pack_text(m_.algebra.pack_of(operands_[i]))
                            : m_.text.describe(operands_[i].expr));
    const int32_t writer =
        m_.hazards.writer(ref_.cls, task_.in[i], m_.ctx.global(ref_.cls, ref_.task));
    if (writer >= 0) {
      related.push_back(m_.ctx.ref(writer));
    }
  }
  m_.ctx.report("pack-fits", ProblemClass::value, ref_, related, text,
                "give all operands the same tensors in the same places", where(at));
  return false;
}

std::string PackOp::where(const Coords* at) {
  // Takes a rank of the class on the axes that matter to the packs.
  const graph::CoordBox& box = m_.ctx.boxes[ref_.cls];
  const Coords& first = at && box.contains(*at, m_.packs.axes(packs_)) ? *at : box.begin;
  Coords rank = box.begin;
  for (AxisMask left = m_.packs.axes(packs_); left; left &= left - 1) {
    const int axis = std::countr_zero(left);
    rank[static_cast<size_t>(axis)] = first[static_cast<size_t>(axis)];
  }
  std::string text = m_.text.rank_text(ref_.cls, rank) + " has";
  for (size_t i = 0; i < operands_.size(); ++i) {
    text += fmt::format("{} {} in {}", i ? ", and" : "", m_.text.held_text(operands_[i], rank),
                        m_.ctx.buffer_name(ref_.cls, task_.in[i]));
  }
  return text;
}

/// Finds the operands that hold the elements, by the op's notation.
bool PackOp::find_elements() {
  try {
    letters_ = ops::letters(*info_.rules, kind().in, kind().out);
  } catch (const Error&) {
    letters_.any = true;
  }
  for (size_t i = 0; i < operands_.size() && !letters_.any && dims_.empty(); ++i) {
    if (m_.algebra.is_pack(operands_[i])) {
      dims_ = letters_.in[i];
    }
  }
  if (!ops::acts_by_element(info_.rules->layout, letters_, dims_)) {
    return refuse("its op does not act on every element by itself");
  }
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (letters_.in[i] != dims_) continue;
    const PackId id = m_.algebra.flat(operands_[i], kind().in[i].numel());
    if (id == kNone) {
      return refuse(fmt::format("input {} has no order in memory that all ranks share", i));
    }
    inputs_.push_back(i);
    packs_.push_back(id);
  }
  return true;
}

/// Applies the op to one tensor of each pack.
bool PackOp::apply(const std::vector<int32_t>& components) {
  Operands held;
  std::vector<graph::TensorType> in;
  std::vector<graph::TensorType> out = kind().out;
  std::vector<TypeId> logical;
  std::vector<Value> operands = operands_;
  for (size_t k = 0; k < inputs_.size(); ++k) {
    operands[inputs_[k]] = m_.packs[packs_[k]].components[components[k]];
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    Value value = operands[i];
    if (m_.ref.terms[value.expr].kind == Expr::Kind::unfinished) {
      return refuse(fmt::format("input {} holds {}", i, m_.text.describe(value.expr)));
    }
    if (value.piece == kAnyPiece) {
      value.piece = m_.pieces.whole(kind().in[i].dims.size());
    }
    held.exprs.push_back(value.expr);
    held.pieces.push_back(value.piece);
    logical.push_back(m_.ref.terms[value.expr].type);
    in.push_back(logical[i] < 0 ? kind().in[i] : m_.ctx.types[logical[i]]);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (letters_.out[i] == dims_) {
      out[i].dims = in[inputs_[0]].dims;
    }
  }
  LocalOpResult taken;
  bool by_element = true;
  try {
    // The same operands as in the task must hold the elements, which have more dims here.
    const ops::Letters letters = ops::letters(*info_.rules, in, out);
    const std::string& dims = letters.in[inputs_[0]];
    by_element = ops::acts_by_element(info_.rules->layout, letters, dims);
    for (size_t i = 0; i < in.size(); ++i) {
      by_element = by_element && (letters.in[i] == dims) == (letters_.in[i] == dims_);
    }
    for (size_t i = 0; i < out.size(); ++i) {
      by_element = by_element && (letters.out[i] == dims) == (letters_.out[i] == dims_);
    }
    if (by_element) {
      Pieces::PieceOffsets offsets;
      offsets.at = [](char, const Coords&) { return int64_t{0}; };
      offsets.axes = [](char) { return AxisMask{0}; };
      taken = m_.pieces.apply(info_.key, letters, held.pieces, logical, out, m_.ctx.types, offsets,
                              m_.ctx.boxes[ref_.cls]);
    }
  } catch (const Error&) {
    by_element = false;
  }
  if (!by_element) return refuse("its op does not act on every element of such tensors by itself");
  if (taken.fault != LocalOpResult::Fault::none) {
    m_.refusals.explain_pieces(ref_, held, taken);
    return false;
  }
  const AppId app = m_.ref.find(info_.key, held.exprs);
  if (app < 0 || m_.ref.terms.app(app).num_out != static_cast<int32_t>(task_.out.size())) {
    m_.refusals.explain_unknown(ref_, held);
    return false;
  }
  m_.state.set_application(m_.ctx.global(ref_.cls, ref_.task), app);
  MarkId marks = 0;
  for (const Value& operand : operands) {
    marks = m_.codec_marks.unite(marks, operand.marks, 0);
  }
  std::vector<Value> made;
  for (size_t output = 0; output < task_.out.size(); ++output) {
    made.push_back(
        {m_.ref.terms.output(app, static_cast<int32_t>(output)), taken.out[output], marks});
  }
  made_.push_back(std::move(made));
  first_.push_back(operands[inputs_[0]]);
  return true;
}

bool PackOp::apply_at(const Coords& coords, const Packs::AlignedRuns& meeting) {
  // All operands must hold the same elements of one tensor each, or zeros. The op is applied to
  // these tensors at the first coordinate where they meet.
  std::vector<int32_t> components;
  size_t zeros = 0;
  for (const PackRun& run : meeting.runs) {
    components.push_back(run.component);
    zeros += run.component == program::kNone;
    if (run.begin != meeting.runs[0].begin) {
      return refuse("its operands hold other elements in the same places", &coords);
    }
  }
  int32_t part = program::kNone;
  if (zeros == components.size()) {
    if (!info_.rules->layout.keeps_zero) {
      return refuse("its op does not keep the zeros between them", &coords);
    }
  } else if (zeros > 0) {
    return refuse("where one operand holds a tensor, another holds zeros", &coords);
  } else {
    const auto known = parts_.find(components);
    if (known == parts_.end()) {
      if (!apply(components)) return false;
      part = static_cast<int32_t>(parts_.size());
      parts_.emplace(components, part);
    } else {
      part = known->second;
    }
  }
  rows_[coords].push_back({part, meeting.runs[0].begin, meeting.runs[0].length});
  return true;
}

std::optional<Value> PackOp::elements(size_t output) {
  std::vector<Value> components;
  for (const std::vector<Value>& made : made_) {
    components.push_back(made[output]);
  }
  const PackId id = m_.packs.make(components, m_.packs.axes(packs_),
                                  [&](const Coords& coords) { return rows_[coords]; });
  return m_.algebra.unflat(id, 1);
}

std::optional<Value> PackOp::contracted(size_t output) {
  // The local elements of each tensor give a partial result. Its addends are numbered by the
  // elements.
  std::vector<Value> sum;
  std::vector<int32_t> axes;
  for (size_t part = 0; part < made_.size(); ++part) {
    const Value& tensor = first_[part];
    const Piece held = m_.pieces[tensor.piece];
    for (size_t dim = 1; dim < held.dims; ++dim) {
      // Even cuts only: another rank has the same elements, or none of them.
      if (!m_.pieces.cuts.is_split(held.cut[dim], &axes)) {
        refuse(fmt::format("{} is cut unevenly along dim {}", m_.text.describe(tensor.expr), dim));
        return std::nullopt;
      }
    }
    std::vector<std::vector<Run>> rows;
    const AxisMask all = m_.packs.axes(packs_);
    m_.pieces.cuts.for_each(all, {}, [&](const Coords& coords) {
      std::vector<Run>& row = rows.emplace_back();
      for (const PackRun& run : rows_[coords]) {
        if (run.component == static_cast<int32_t>(part)) {
          row.push_back({run.begin, run.length});
        }
      }
      std::sort(row.begin(), row.end(),
                [](const Run& left, const Run& right) { return left.begin < right.begin; });
    });
    if (graph::holds_twice(rows)) {
      refuse(fmt::format("some of {} is there twice", m_.text.describe(tensor.expr)));
      return std::nullopt;
    }
    Piece piece = m_.pieces[made_[part][output].piece];
    const CutId set = m_.pieces.cuts.make(m_.algebra.elements_of(tensor), all, rows);
    AddendSpace space{.key = info_.key, .letter = '#'};
    Piece row{held.dims, held.cut, {}};
    row.cut[0] = graph::CutTable::kWhole;
    if (row != Piece{held.dims, {}, {}}) {
      space.row = m_.pieces.intern(row);
      space.size = m_.algebra.elements_of(tensor) / m_.algebra.row_width(tensor);
    }
    piece.addends.push_back({m_.pieces.intern_space(space), set});
    sum.push_back(
        {made_[part][output].expr, m_.pieces.intern(std::move(piece)), made_[part][output].marks});
  }
  if (sum.empty()) return Value{kZero, kAnyPiece};
  const std::optional<Value> value = m_.algebra.sum_of(sum);
  if (!value) {
    refuse("its sum over them could not be finished: they are cut along different axes");
  }
  return value;
}

std::optional<std::vector<Value>> PackOp::run() {
  if (!find_elements()) return std::nullopt;
  bool good = true;
  const bool alike = m_.packs.for_each_aligned(
      packs_, [&](const Coords& coords, const Packs::AlignedRuns& meeting) {
        good = good && apply_at(coords, meeting);
      });
  if (!good) return std::nullopt;
  if (!alike) {
    refuse("its operands hold different numbers of elements");
    return std::nullopt;
  }
  std::vector<Value> outputs;
  for (size_t output = 0; output < task_.out.size(); ++output) {
    const std::optional<Value> value =
        letters_.out[output] == dims_ ? elements(output) : contracted(output);
    if (!value) return std::nullopt;
    outputs.push_back(*value);
  }
  return outputs;
}

}  // namespace hocket::check
