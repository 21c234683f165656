// SPDX-License-Identifier: Apache-2.0
// Ops on flat buffers of several tensors. An op that acts on every element by itself does to each
// of the tensors what it does to a tensor alone; what it contracts is a sum over them.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "check/values/values.h"

namespace hocket::check {

using graph::Coords;
using graph::Run;

/// A task whose op acts on every element by itself, on operands of which some are packs: what it
/// does to each of the tensors in them.
class Values::PackTask {
 public:
  PackTask(Values& values, TaskRef ref, const Task& task, const KindInfo& info)
      : values_(values), ref_(ref), task_(task), info_(info) {
    for (size_t i = 0; i < task.in.size(); ++i) {
      operands_.push_back({values.exprs_[i], values.ins_[i], values.in_marks_[i]});
    }
  }

  /// The outputs; nothing (and reported) if the op can't take these packs.
  std::optional<std::vector<Value>> run();

 private:
  const program::Kind& kind() const { return values_.ctx_.program.kind(task_); }
  /// `at`: the coordinates of a rank where it is so; null: everywhere.
  bool refuse(const std::string& why, const Coords* at = nullptr);
  std::string where(const Coords* at);
  bool find_elements();
  bool meet(const Coords& coords, const Packs::Meeting& meeting);
  bool apply(const std::vector<int32_t>& components);
  std::optional<Value> elements(size_t output);
  std::optional<Value> contracted(size_t output);

  Values& values_;
  const TaskRef ref_;
  const Task& task_;
  const KindInfo& info_;
  std::vector<Value> operands_;
  ops::Letters letters_;        ///< of the task's own operands
  std::string dims_;            ///< of the elements
  std::vector<size_t> inputs_;  ///< that hold elements
  std::vector<PackId> packs_;   ///< of these
  /// What lies in the same places of all inputs: a component of each, and what the op makes of
  /// them.
  std::map<std::vector<int32_t>, int32_t> parts_;
  std::vector<std::vector<Value>> made_;  ///< by part and output
  std::vector<Value> first_;              ///< by part: its component of the first input
  std::map<Coords, PackRow> rows_;        ///< runs of parts
};

bool Values::PackTask::refuse(const std::string& why, const Coords* at) {
  std::string text = values_.ctx_.name(ref_) + " acts on several tensors in one buffer: " + why;
  std::vector<TaskRef> related;
  for (size_t i = 0; i < task_.in.size(); ++i) {
    text += fmt::format(
        "{} {} holds {}", i ? "," : ";", values_.ctx_.buffer_name(ref_.cls, task_.in[i]),
        values_.is_pack(operands_[i]) ? values_.pack_text(values_.pack_of(operands_[i]))
                                      : values_.describe(operands_[i].expr));
    const int32_t writer =
        values_.hazards_.writer(ref_.cls, task_.in[i], values_.ctx_.global(ref_.cls, ref_.task));
    if (writer >= 0) {
      related.push_back(values_.ctx_.ref(writer));
    }
  }
  values_.ctx_.report("pack-fits", ProblemClass::value, ref_, related, text,
                      "give all operands the same tensors in the same places", where(at));
  return false;
}

std::string Values::PackTask::where(const Coords* at) {
  // The first rank of the class in whose place something meets something else.
  const graph::CoordBox& box = values_.ctx_.boxes[ref_.cls];
  const Coords& first = at && box.contains(*at, values_.packs_.axes(packs_)) ? *at : box.begin;
  Coords rank = box.begin;
  for (AxisMask left = values_.packs_.axes(packs_); left; left &= left - 1) {
    const int axis = std::countr_zero(left);
    rank[static_cast<size_t>(axis)] = first[static_cast<size_t>(axis)];
  }
  std::string text = values_.rank_text(ref_.cls, rank) + " has";
  for (size_t i = 0; i < operands_.size(); ++i) {
    text += fmt::format("{} {} in {}", i ? ", and" : "", values_.held_text(operands_[i], rank),
                        values_.ctx_.buffer_name(ref_.cls, task_.in[i]));
  }
  return text;
}

/// Which operands hold the elements, by the op's notation.
bool Values::PackTask::find_elements() {
  try {
    letters_ = ops::letters(*info_.rules, kind().in, kind().out);
  } catch (const Error&) {
    letters_.any = true;
  }
  for (size_t i = 0; i < operands_.size() && !letters_.any && dims_.empty(); ++i) {
    if (values_.is_pack(operands_[i])) {
      dims_ = letters_.in[i];
    }
  }
  if (!ops::acts_by_element(info_.rules->layout, letters_, dims_)) {
    return refuse("its op does not act on every element by itself");
  }
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (letters_.in[i] != dims_) continue;
    const PackId id = values_.flat(operands_[i], kind().in[i].numel());
    if (id == kNone) {
      return refuse(fmt::format("input {} has no order in memory that all ranks share", i));
    }
    inputs_.push_back(i);
    packs_.push_back(id);
  }
  return true;
}

/// The op on one tensor of each pack, whatever of it is there.
bool Values::PackTask::apply(const std::vector<int32_t>& components) {
  Values& values = values_;
  values.exprs_.clear();
  values.ins_.clear();
  std::vector<graph::TensorType> in;
  std::vector<graph::TensorType> out = kind().out;
  std::vector<TypeId> logical;
  std::vector<Value> operands = operands_;
  for (size_t k = 0; k < inputs_.size(); ++k) {
    operands[inputs_[k]] = values.packs_[packs_[k]].components[components[k]];
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    Value value = operands[i];
    if (values.ref_.terms[value.expr].kind == Expr::Kind::unfinished) {
      return refuse(fmt::format("input {} holds {}", i, values.describe(value.expr)));
    }
    if (value.piece == kAnyPiece) {
      value.piece = values.pieces_.whole(kind().in[i].dims.size());
    }
    values.exprs_.push_back(value.expr);
    values.ins_.push_back(value.piece);
    logical.push_back(values.ref_.terms[value.expr].type);
    in.push_back(logical[i] < 0 ? kind().in[i] : values.ctx_.types[logical[i]]);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (letters_.out[i] == dims_) {
      out[i].dims = in[inputs_[0]].dims;
    }
  }
  Taken taken;
  bool by_element = true;
  try {
    // The same operands as in the task hold the elements, which have more dims here.
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
      Pieces::Begins begins;
      begins.at = [](char, const Coords&) { return int64_t{0}; };
      begins.axes = [](char) { return AxisMask{0}; };
      taken = values.pieces_.take(info_.key, letters, values.ins_, logical, out, values.ctx_.types,
                                  begins, values.ctx_.boxes[ref_.cls]);
    }
  } catch (const Error&) {
    by_element = false;
  }
  if (!by_element) return refuse("its op does not act on every element of such tensors by itself");
  if (taken.fault != Taken::Fault::none) {
    values.explain_pieces(ref_, taken);
    return false;
  }
  const AppId app = values.ref_.find(info_.key, values.exprs_);
  if (app < 0 || values.ref_.terms.app(app).num_out != static_cast<int32_t>(task_.out.size())) {
    values.explain_unknown(ref_);
    return false;
  }
  values.made_[values.ctx_.global(ref_.cls, ref_.task)] = app;
  MarkId marks = 0;
  for (const Value& operand : operands) {
    marks = values.unite_marks(marks, operand.marks, 0);
  }
  std::vector<Value> made;
  for (size_t output = 0; output < task_.out.size(); ++output) {
    made.push_back(
        {values.ref_.terms.output(app, static_cast<int32_t>(output)), taken.out[output], marks});
  }
  made_.push_back(std::move(made));
  first_.push_back(operands[inputs_[0]]);
  return true;
}

bool Values::PackTask::meet(const Coords& coords, const Packs::Meeting& meeting) {
  // The same elements of one tensor in each operand, or zeros in all of them. What the op makes of
  // these tensors is worked out where they meet first.
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
      return refuse("its op makes something else of the zeros between them", &coords);
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

std::optional<Value> Values::PackTask::elements(size_t output) {
  std::vector<Value> components;
  for (const std::vector<Value>& made : made_) {
    components.push_back(made[output]);
  }
  const PackId id = values_.packs_.make(components, values_.packs_.axes(packs_),
                                        [&](const Coords& coords) { return rows_[coords]; });
  return values_.unflat(id, 1);
}

std::optional<Value> Values::PackTask::contracted(size_t output) {
  // Of each tensor, the part of the result that its elements here make up: addends are numbered by
  // the elements.
  Values& values = values_;
  std::vector<Value> sum;
  std::vector<int32_t> axes;
  for (size_t part = 0; part < made_.size(); ++part) {
    const Value& tensor = first_[part];
    const Piece held = values.pieces_[tensor.piece];
    for (size_t dim = 1; dim < held.dims; ++dim) {
      // Other ranks have the same elements, or all others.
      if (!values.pieces_.cuts.is_split(held.cut[dim], &axes)) {
        refuse(fmt::format("{} is cut unevenly along dim {}", values.describe(tensor.expr), dim));
        return std::nullopt;
      }
    }
    std::vector<std::vector<Run>> rows;
    const AxisMask all = values.packs_.axes(packs_);
    values.pieces_.cuts.for_each(all, {}, [&](const Coords& coords) {
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
      refuse(fmt::format("some of {} is there twice", values.describe(tensor.expr)));
      return std::nullopt;
    }
    Piece piece = values.pieces_[made_[part][output].piece];
    const CutId set = values.pieces_.cuts.make(values.elements_of(tensor), all, rows);
    Space space{.key = info_.key, .letter = '#'};
    Piece row{held.dims, held.cut, {}};
    row.cut[0] = graph::CutTable::kWhole;
    if (row != Piece{held.dims, {}, {}}) {
      space.row = values.pieces_.intern(row);
      space.size = values.elements_of(tensor) / values.row_width(tensor);
    }
    piece.addends.push_back({values.pieces_.intern_space(space), set});
    sum.push_back({made_[part][output].expr, values.pieces_.intern(std::move(piece)),
                   made_[part][output].marks});
  }
  if (sum.empty()) return Value{kZero, kAnyPiece};
  const std::optional<Value> value = values.sum_of(sum);
  if (!value) {
    refuse("its sum over them could not be finished: they are cut along different axes");
  }
  return value;
}

std::optional<std::vector<Value>> Values::PackTask::run() {
  if (!find_elements()) return std::nullopt;
  bool good = true;
  const bool alike =
      values_.packs_.side_by_side(packs_, [&](const Coords& coords, const Packs::Meeting& meeting) {
        good = good && meet(coords, meeting);
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

void Values::compute_packs(ClassId cls, TaskId task, const Task& reader, const KindInfo& info) {
  const TaskRef ref{cls, task};
  const std::optional<std::vector<Value>> made = PackTask(*this, ref, reader, info).run();
  if (!made) return lose_outputs(cls, reader);
  for (size_t output = 0; output < made->size(); ++output) {
    set(cls, reader, output, (*made)[output], nullptr, ref);
  }
}

}  // namespace hocket::check
