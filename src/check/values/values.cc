// SPDX-License-Identifier: Apache-2.0
#include "check/values/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "program/contract.h"

namespace hocket::check {

namespace {

/// Pieces are functions of all coordinates of the meshes; a class holds them at those of its box.
graph::Coords extents_of(const Context& ctx) {
  graph::Coords extents;
  extents.fill(1);
  for (size_t axis = 0; axis < ctx.mesh.axes.size(); ++axis) {
    extents[axis] = ctx.mesh.axes[axis].size;
  }
  return extents;
}

}  // namespace

Values::Values(Context& ctx, Reference& reference, const Hazards& hazards)
    : ctx_(ctx),
      ref_(reference),
      hazards_(hazards),
      pieces_(extents_of(ctx), reference.keys),
      packs_(pieces_.cuts),
      families_(pieces_.cuts) {
  // Before the step nothing is written but what the host provides: persistent buffers hold the old
  // value of the graph tensor of their name, inputs that of their micro-batch, each in the layout
  // that it declares. That the name, the micro-batch and the local type fit the graph is shown here
  // too, for outputs as well; a buffer where they do not is lost from the start.
  signatures_.resize(ctx.kinds.size());
  experts_.assign(ctx.kinds.size(), 0);
  made_.assign(ctx.position.size(), -1);
  for (size_t c = 0; c < ctx.program.classes.size(); ++c) {
    const RankClass& cls = ctx.program.classes[c];
    const ClassId class_id = static_cast<int32_t>(c);
    std::vector<Value> values(cls.buffers.size(), Value{});
    for (size_t i = 0; i < cls.buffers.size(); ++i) {
      const BufferKind kind = cls.buffers[i].kind;
      if (kind == BufferKind::step || kind == BufferKind::view) continue;
      values[i] = declared(class_id, BufferId(i));
    }
    values_.push_back(std::move(values));
    bases_.emplace_back();
    if (!ctx.views[c].any()) continue;
    // What the host fills of a base is there before any part of it is written.
    find_regions(class_id);
    for (auto& [id, base] : bases_[c].of) {
      if (values_[c][id].expr != kUnwritten) {
        base.entries.push_back({graph::CutTable::kWhole, values_[c][id]});
      }
    }
  }
}

const char* Values::bad_name(const program::Buffer& buffer, int32_t tensor) const {
  if (tensor < 0) return "is not a tensor of the single-device graph";
  const graph::Tensor& info = ref_.graph().tensor(tensor);
  const bool persistent =
      info.kind == graph::TensorKind::param || info.kind == graph::TensorKind::state;
  const bool input = info.kind == graph::TensorKind::input;
  if (buffer.kind == BufferKind::persistent && !persistent) {
    return "is not a parameter or state of the single-device graph";
  }
  if (buffer.kind == BufferKind::input && !input) {
    return "is not an input of the single-device graph";
  }
  const bool known_micro_batch =
      buffer.micro_batch >= 0 && buffer.micro_batch < ref_.num_micro_batches();
  if (input && (info.per_step ? buffer.micro_batch != program::kNone : !known_micro_batch)) {
    return "names a micro-batch that does not exist";
  }
  return nullptr;
}

ExprId Values::before_step(const program::Buffer& buffer, int32_t tensor) {
  const TypeId logical = ref_.type_of[tensor];
  switch (ref_.graph().tensor(tensor).kind) {
    case graph::TensorKind::param:
    case graph::TensorKind::state:
      return ref_.terms.tensor(tensor, logical);
    case graph::TensorKind::input:
      return ref_.terms.input(tensor, buffer.micro_batch, logical);
    default:
      return kUnwritten;
  }
}

Value Values::declared(ClassId cls, BufferId id) {
  // What the host fills, or nothing in what it only reads; kUnknown, and reported, where the buffer
  // can be neither.
  const program::Buffer& buffer = ctx_.program.classes[cls].buffers[id];
  const std::vector<std::string> names = program::tensors_of(buffer.name, buffer.slots);
  const bool bucket = !buffer.slots.empty();
  const char* wrong = nullptr;
  std::string which;
  for (const std::string& name : names) {
    if (wrong) continue;
    wrong = bad_name(buffer, ref_.find(name));
    which = bucket && wrong ? fmt::format(": '{}'", name) : "";
  }
  Value value;
  if (!wrong && bucket) {
    wrong = bad_slots(cls, buffer);
  } else if (!bucket) {
    const int32_t tensor = ref_.find(names[0]);
    const TypeId logical = tensor >= 0 ? ref_.type_of[tensor] : TypeId(kNone);
    if (tensor >= 0 && !buffer.layout.given.empty()) {
      which = graph::why_invalid(buffer.layout, ctx_.types[logical], ctx_.program.mesh_of(cls));
    }
    if (!which.empty()) {
      wrong = "has no such blocks: ";
    } else if (tensor >= 0) {
      value.piece = pieces_.of(buffer.layout, ctx_.types[logical], ctx_.axis_of(cls, 0));
      for (int dim = 0; dim < static_cast<int>(pieces_[value.piece].dims); ++dim) {
        pieces_.known_as(ctx_.boxes[cls], value.piece, dim, false);
      }
      if (!wrong && pieces_.local_type(value.piece, logical, ctx_.types, ctx_.boxes[cls]) !=
                        ctx_.buffer_type[cls][id]) {
        wrong = "is not the local part of the logical tensor under its layout";
        const TypeId local = pieces_.local_type(value.piece, logical, ctx_.types, ctx_.boxes[cls]);
        which = local < 0 ? ", which does not divide it"
                          : ", which is " + graph::to_string(ctx_.types[local]);
      }
    }
  }
  if (wrong) {
    const std::vector<TaskRef> users = ctx_.users(cls, id);
    ctx_.report(
        "named-tensor", ProblemClass::value, users.empty() ? TaskRef{cls, -1} : users[0], users,
        fmt::format("{} in class {}, {} with layout {}, {}{}", ctx_.buffer_name(cls, id), cls,
                    graph::to_string(buffer.type),
                    graph::to_string(buffer.layout, ctx_.program.mesh_of(cls)), wrong, which),
        "name a tensor of the graph, with the type that its layout gives it");
    undeclared_.insert({cls, id});
    value.expr = kUnknown;
    return value;
  }
  std::vector<ExprId> terms;
  for (const std::string& name : names) {
    terms.push_back(before_step(buffer, ref_.find(name)));
    if (terms.back() == kUnwritten) return value;
  }
  if (bucket) return contents(cls, buffer, terms);
  value.expr = terms[0];
  return value;
}

void Values::lose_outputs(ClassId cls, const Task& task) {
  for (BufferId output : task.out) {
    lose(cls, output);
  }
}

void Values::refuse(const char* rule, TaskRef ref, BufferId buffer, const std::string& why,
                    const char* fix, std::string at_rank) {
  std::vector<TaskRef> related;
  std::string text = ctx_.name(ref);
  if (buffer >= 0) {
    const int32_t writer = hazards_.writer(ref.cls, buffer, ctx_.global(ref.cls, ref.task));
    if (writer >= 0) {
      related.push_back(ctx_.ref(writer));
    }
    const Value value = at(ref.cls, buffer);
    text += fmt::format(": {} holds {}, layout {}", ctx_.buffer_name(ref.cls, buffer),
                        describe(value.expr), piece_text(value));
    if (writer >= 0) {
      text += ", written by " + ctx_.name(ctx_.ref(writer));
    }
    if (at_rank.empty()) {
      at_rank = where(ref.cls, value);
    }
  }
  ctx_.report(rule, ProblemClass::value, ref, related, text + "; " + why, fix, std::move(at_rank));
}

bool Values::fits(const Value& value, TypeId local, ClassId cls, bool* uniform) {
  for (const Value& part : parts_of(value)) {
    if (is_pack(part)) {
      const Pack& pack = packs_[pack_of(part)];
      const graph::TensorType& type = ctx_.types[local];
      if (type.dims.size() != 1) return false;
      if (packs_.length(pack_of(part)) != type.dims[0]) {
        if (uniform) {
          *uniform = false;
        }
        if (packs_.length(pack_of(part), ctx_.boxes[cls]) != type.dims[0]) return false;
      }
      for (const Value& component : pack.components) {
        if (ctx_.types[ref_.terms[component.expr].type].dtype != type.dtype) return false;
      }
      continue;
    }
    const TypeId logical = ref_.terms[part.expr].type;
    if (logical < 0 || part.piece == kAnyPiece) continue;
    if (pieces_.local_type(part.piece, logical, ctx_.types) == local) continue;
    if (uniform) {
      *uniform = false;
    }
    if (pieces_.local_type(part.piece, logical, ctx_.types, ctx_.boxes[cls]) != local) return false;
  }
  return true;
}

/// Output `o` gets this value, or adds it. The logical type of the term, cut as the piece says,
/// must be the local type of the buffer (`memo` spares working that out again for the same logical
/// type).
void Values::set(ClassId cls, const Task& task, size_t output, Value made, Signature* memo,
                 TaskRef ref) {
  const KindInfo& info = ctx_.kind(task);
  const TypeId logical = ref_.terms[made.expr].type;
  if (!memo || memo->fitting[output] != logical) {
    bool uniform = true;
    if (!fits(made, info.out[output], cls, &uniform)) {
      ctx_.report(
          "local-size", ProblemClass::value, ref, {},
          fmt::format("{} makes {} of type {}; under layout {} the local part of {} differs",
                      ctx_.name(ref), describe(made.expr),
                      graph::to_string(ctx_.types[info.out[output]]), piece_text(made),
                      logical < 0 ? "it" : graph::to_string(ctx_.types[logical])),
          "give the task the local types that its layout implies",
          where_of_size(cls, made, info.out[output]));
      lose(cls, task.out[output]);
      return;
    }
    if (memo && uniform) {
      memo->fitting[output] = logical;
    }
  }
  if (task.accumulate.contains(output)) {
    const Value value = read(ref, task.out[output]);
    if (value.expr < 0) return lose(cls, task.out[output]);
    const std::optional<Value> sum = add(value, made);
    if (!sum) {
      refuse("sum-layout", ref, task.out[output],
             fmt::format("it would add a value of layout {}", piece_text(made)),
             "reduce both to one layout before adding",
             where(cls, value, " in it; what is added is ", made, ""));
      return lose(cls, task.out[output]);
    }
    made = *sum;
  }
  put(cls, task.out[output], made);
  if (ctx_.options.on_write) {
    tell_written(ref, output, made);
  }
  if (task.accumulate.contains(output)) return;
  check_expected(cls, task, output, made.piece, ref);
}

/// A ragged buffer is planned for at least the rows that even routing brings: its layout says which
/// share of the experts, and so of the rows, is here. A task that is not told how many rows there
/// are writes all of it, and so does a zero, which alone has any layout.
void Values::check_expected(ClassId cls, const Task& task, size_t output, PieceId piece,
                            TaskRef ref) {
  const BufferId id = task.out[output];
  const program::Buffer& buffer = ctx_.program.classes[cls].buffers[id];
  if (buffer.expected_bytes == program::kNone) return;
  if (buffer.expected_bytes >= buffer.type.bytes()) return;
  if (!buffer.type.routed()) return;  // expected-routed
  const KindInfo& info = ctx_.kind(task);
  const bool told =
      info.comm ? info.comm->needs_sizes : ops::reads_counts(ctx_.program.kind(task).in);
  if (!told || piece == kAnyPiece) {
    ctx_.report("expected-rows", ProblemClass::memory, ref, {},
                fmt::format("{} writes all {} bytes of {}, planned to hold {}: it is not told how "
                            "many rows there are",
                            ctx_.name(ref), buffer.type.bytes(), ctx_.buffer_name(cls, id),
                            buffer.expected_bytes),
                "drop the expected size: the buffer holds exactly what its type says",
                where(cls, at(cls, id)));
    return;
  }
  // The same on every rank, since the buffer's type is.
  const CutId experts = pieces_[piece].cut[0];
  const int64_t cells = pieces_.cuts[experts].cells;
  const double share =
      static_cast<double>(pieces_.cuts.local_size(experts, cells, ctx_.boxes[cls])) /
      static_cast<double>(cells);
  const int64_t row_bytes = buffer.type.bytes_of(buffer.type.row_size());
  const double even =
      static_cast<double>(buffer.type.dims[1] * buffer.type.top_k * row_bytes) * share;
  const double factor = static_cast<double>(buffer.expected_bytes) / even;
  least_factor_ = least_factor_ == 0 ? factor : std::min(least_factor_, factor);
  if (factor >= 1) return;
  ctx_.report("expected-rows", ProblemClass::memory, ref, {},
              fmt::format("{} writes {}, planned to hold {} bytes; even routing brings {:.0f}{}",
                          ctx_.name(ref), ctx_.buffer_name(cls, id), buffer.expected_bytes, even,
                          share == 1 ? ", always: all experts are here" : ""),
              share == 1 ? "drop the expected size: the buffer holds exactly what its type says"
                         : "expect at least the rows of even routing, and some more",
              where(cls, at(cls, id)));
}

Pieces::Begins Values::begins_of(ClassId cls, const Task& task) const {
  Pieces::Begins begins;
  begins.at = [this, cls, &task](char letter, const graph::Coords& at) {
    const program::Begin* const begin = task.begin_of(letter);
    return begin ? begin_at(ctx_.program.classes[cls].role, *begin, at) : 0;
  };
  begins.axes = [this, cls, &task](char letter) {
    const program::Begin* const begin = task.begin_of(letter);
    return begin ? axes_of(cls, begin->by) : AxisMask{0};
  };
  return begins;
}

/// What the task's op makes of the pieces in `ins_`. Kinds meet few different pieces in a program,
/// so a list per kind is searched.
Values::Signature& Values::signature(ClassId cls, const Task& task, const KindInfo& info) {
  const ClassId asked = *info.rules->layout.positional ? cls : ClassId(program::kNone);
  auto& list = signatures_[task.kind];
  for (Signature& signature : list) {
    if (signature.in == ins_ && signature.in_types == in_types_ &&
        signature.begins == task.begins && signature.cls == asked) {
      return signature;
    }
  }
  Signature signature;
  signature.cls = asked;
  signature.in = ins_;
  signature.in_types = in_types_;
  signature.begins = task.begins;
  const Pieces::Begins begins = begins_of(cls, task);
  const program::Kind& kind = ctx_.program.kind(task);
  signature.fitting.assign(kind.out.size(), -1);
  try {
    const ops::Letters letters = ops::letters(*info.rules, kind.in, kind.out);
    signature.taken = pieces_.take(info.key, letters, ins_, in_types_, kind.out, ctx_.types, begins,
                                   ctx_.boxes[cls]);
  } catch (const Error&) {
    signature.taken.fault = Taken::Fault::cut;  // no rule for operands of these ranks
  }
  list.push_back(std::move(signature));
  return list.back();
}

void Values::compute(ClassId cls, TaskId task, const Task& reader, const KindInfo& info) {
  // The term comes from the terms of the inputs, the piece from their pieces. A zero is added to
  // anything; an op that wants one gets all of it. Terms are looked up, not made: an application
  // that the single-device step does not contain is refused here, where it is made, and what it
  // would have written is lost, so that nothing is refused twice.
  exprs_.clear();
  ins_.clear();
  in_types_.clear();
  in_marks_.clear();
  marks_in_ = 0;
  bool known = true;
  for (BufferId input : reader.in) {
    const Value value = read({cls, task}, input);
    marks_in_ = exprs_.empty() ? value.marks : unite_marks(marks_in_, value.marks, 0);
    in_marks_.push_back(value.marks);
    known = known && value.expr >= 0;
    exprs_.push_back(value.expr);
    ins_.push_back(value.piece);
  }
  if (!known) return lose_outputs(cls, reader);
  const TaskRef ref{cls, task};
  switch (info.op_class) {
    case OpClass::zero:
      return set(cls, reader, 0, {kZero, kAnyPiece}, nullptr, ref);
    case OpClass::copy:
      return set(cls, reader, 0, {exprs_[0], ins_[0], marks_in_}, nullptr, ref);
    case OpClass::add:
      return add_inputs(cls, reader, ref);
    case OpClass::merge:
      return merge(cls, reader, info, ref);
    case OpClass::regroup:
      return regroup(cls, reader, ref);
    case OpClass::encode:
      return encode(cls, reader, info, ref);
    case OpClass::decode:
      return decode(cls, reader, info, ref);
    default:
      break;
  }
  for (size_t i = 0; i < ins_.size(); ++i) {
    if (is_pack({exprs_[i], ins_[i]})) return compute_packs(cls, task, reader, info);
  }
  for (size_t i = 0; i < ins_.size(); ++i) {
    in_types_.push_back(ref_.terms[exprs_[i]].type);
    if (ins_[i] == kAnyPiece) {
      ins_[i] = pieces_.whole(ctx_.program.kind(reader).in[i].dims.size());
    }
    if (ref_.terms[exprs_[i]].kind == Expr::Kind::unfinished) {
      explain_unfinished(ref, i);
      return lose_outputs(cls, reader);
    }
  }
  Signature& pieces = signature(cls, reader, info);
  if (pieces.taken.fault == Taken::Fault::begin) return refuse_begin(ref, pieces.taken.wrong);
  if (pieces.taken.fault != Taken::Fault::none) {
    explain_pieces(ref, pieces.taken);
    return lose_outputs(cls, reader);
  }
  const AppId app = ref_.find(info.key, exprs_);
  if (app < 0 || ref_.terms.app(app).num_out != static_cast<int32_t>(reader.out.size())) {
    explain_unknown(ref);
    return lose_outputs(cls, reader);
  }
  made_[ctx_.global(cls, task)] = app;
  for (const TypeId logical : in_types_) {
    if (logical >= 0 && ctx_.types[logical].routed()) {
      experts_[reader.kind] = ctx_.types[logical].dims[0];
    }
  }
  for (size_t output = 0; output < reader.out.size(); ++output) {
    const ExprId expr = ref_.terms.output(app, static_cast<int32_t>(output));
    set(cls, reader, output, {expr, pieces.taken.out[output], marks_in_}, &pieces, ref);
  }
}

void Values::refuse_begin(TaskRef ref, const AtRank& wrong) {
  ctx_.report("begin-fits", ProblemClass::value, ref, {},
              fmt::format("{} takes a letter by position: {}", ctx_.name(ref), wrong.text),
              "say in begins= where the rank's piece of the letter begins",
              at_rank_text(ref.cls, wrong));
  lose_outputs(ref.cls, ctx_.task(ref));
}

void Values::add_inputs(ClassId cls, const Task& reader, TaskRef ref) {
  const std::optional<Value> sum =
      add({exprs_[0], ins_[0], in_marks_[0]}, {exprs_[1], ins_[1], in_marks_[1]});
  if (!sum && (is_coded({exprs_[0], ins_[0]}) || is_coded({exprs_[1], ins_[1]}))) {
    refuse("codes-summed", ref, reader.in[0], "codes are not added up",
           "decode them first, and add up what they stand for");
    return lose_outputs(cls, reader);
  }
  if (!sum) {
    Taken taken;
    taken.fault = Taken::Fault::partial;
    taken.axes = partial_axes({exprs_[0], ins_[0]}) ^ partial_axes({exprs_[1], ins_[1]});
    taken.input = 0;
    taken.other = 1;
    explain_pieces(ref, taken);
    return lose_outputs(cls, reader);
  }
  set(cls, reader, 0, *sum, nullptr, ref);
}

void Values::merge(ClassId cls, const Task& reader, const KindInfo& info, TaskRef ref) {
  // Inputs come in two halves, each all outputs of one application, in parts of one reduction. The
  // outputs are the parts united.
  const size_t half = reader.in.size() / 2;
  const graph::Monoid monoid =
      info.rules->meaning == Meaning::merge_max ? graph::Monoid::max : graph::Monoid::softmax;
  const auto refuse_parts = [&](size_t input) {
    const Value other{exprs_[input + half], ins_[input + half]};
    refuse("merge-parts", ref, reader.in[input],
           fmt::format("it and {} of layout {} are not disjoint parts of one reduction",
                       describe(other.expr), piece_text(other)),
           "merge parts of one result, each once",
           where(cls, {exprs_[input], ins_[input]},
                 " in " + ctx_.buffer_name(cls, reader.in[input]) + ", and ", other,
                 " in " + ctx_.buffer_name(cls, reader.in[input + half])));
    lose_outputs(cls, reader);
  };
  std::vector<PieceId> united;
  for (size_t i = 0; i < half; ++i) {
    const Expr& term = ref_.terms[exprs_[i]];
    const bool together =
        i == 0 || (term.kind == Expr::Kind::output && term.a == ref_.terms[exprs_[0]].a &&
                   term.b == ref_.terms[exprs_[0]].b + static_cast<int32_t>(i));
    if (!together || exprs_[i] != exprs_[i + half] || ins_[i] == kAnyPiece ||
        ins_[i + half] == kAnyPiece) {
      return refuse_parts(i);
    }
    if (i > 0 && (pieces_[ins_[i]].addends != pieces_[ins_[0]].addends ||
                  pieces_[ins_[i + half]].addends != pieces_[ins_[half]].addends)) {
      return refuse_parts(i);
    }
    united.push_back(pieces_.unite(ins_[i], ins_[i + half], monoid));
    if (united.back() == kNone) return refuse_parts(i);
  }
  const std::vector<ExprId> exprs = exprs_;
  if (!lost_alike(in_marks_[0], in_marks_[half])) {
    marks_in_ = unite_marks(in_marks_[0], in_marks_[half],
                            axes_of({exprs_[0], ins_[0]}) | axes_of({exprs_[half], ins_[half]}));
  }
  for (size_t i = 0; i < half; ++i) {
    set(cls, reader, i, {exprs[i], united[i], marks_in_}, nullptr, ref);
  }
}

void Values::regroup(ClassId cls, const Task& reader, TaskRef ref) {
  // Inputs are chunks of one routed tensor by expert, the sizes that were exchanged for each, and
  // those of the chunks to make. Sizes carry the piece of the counts before they were exchanged:
  // which experts, and which tokens of the rank's own. All must be of the routing that placed the
  // rows and of one axis, and a rank must hold of each chunk what its members gave.
  const auto& attrs = ctx_.program.kind(reader).attrs;
  const size_t from = static_cast<size_t>(attrs.i("from"));
  const Expr& first = ref_.terms[exprs_[from]];
  const auto refuse_part = [&](size_t input, const char* what) {
    refuse("regroup-parts", ref, reader.in[input], what,
           "regroup all chunks of one routed tensor, each with the sizes of its own exchange",
           where(cls, {exprs_[input], ins_[input]},
                 " in " + ctx_.buffer_name(cls, reader.in[input]) + ", and ", {exprs_[0], ins_[0]},
                 " in " + ctx_.buffer_name(cls, reader.in[0])));
    lose_outputs(cls, reader);
  };
  const Piece rows = pieces_[ins_[0]];
  const TypeId logical = ref_.terms[exprs_[0]].type;
  const int64_t experts = logical < 0 ? 0 : int64_t{ctx_.types[logical].dims[0]};
  AxisMask over = 0;
  std::vector<CutId> held, had, wanted;
  for (size_t i = 0; i < ins_.size(); ++i) {
    if (ins_[i] == kAnyPiece) return refuse_part(i, "it is zero, wherever it lies");
    const Piece& piece = pieces_[ins_[i]];
    if (i < from) {
      Piece alike = piece;
      alike.cut[1] = rows.cut[1];
      // Rows of a sum that is not finished are put in another order like any.
      if (exprs_[i] != exprs_[0] || alike != rows || pieces_.has_support(ins_[i], 1) ||
          first.kind != Expr::Kind::sizes || route_of({exprs_[i], ins_[i]}) != first.a) {
        return refuse_part(i, "it is no chunk of the same rows");
      }
      held.push_back(piece.cut[1]);
      continue;
    }
    const Expr& expr = ref_.terms[exprs_[i]];
    if (expr.kind != Expr::Kind::sizes || expr.a != first.a || expr.b != first.b) {
      return refuse_part(i, "these are not sizes of the same routing and axis");
    }
    over = expr.b < 0 ? 0 : graph::axis_bit(expr.b);
    if (piece.addends.size() > 1 ||
        pieces_.cuts.block_of(piece.cut[0], over, experts) != rows.cut[0]) {
      return refuse_part(i, "these are the sizes of other experts");
    }
    (i < 2 * from ? had : wanted)
        .push_back(piece.addends.empty() ? CutId(graph::CutTable::kWhole) : piece.addends[0].set);
  }
  const AtRank misplaced =
      pieces_.misplaced(rows.cut[0], 'e', experts, begins_of(ref.cls, reader), ctx_.boxes[ref.cls]);
  if (!misplaced.text.empty()) return refuse_begin(ref, misplaced);
  const std::vector<CutId> made = pieces_.cuts.regroup(held, had, wanted, over);
  if (made.empty()) return refuse_part(0, "the chunks do not hold the tokens of their sizes");
  for (size_t chunk = 0; chunk < made.size(); ++chunk) {
    Piece piece = rows;
    piece.cut[1] = made[chunk];
    set(cls, reader, chunk, {exprs_[0], pieces_.intern(piece), marks_in_}, nullptr, ref);
  }
}

void Values::step(ClassId cls, TaskId task, int32_t global, std::span<const int32_t> senders) {
  // A message takes the value as it was when it was sent: it is kept for its receivers, whatever
  // the sender writes over it. Every rank gets what its peer had; where the peers of a class are of
  // several classes, these must hold one value.
  const Task& end = ctx_.program.classes[cls].tasks[task];
  const KindInfo& info = ctx_.kind(end);
  if (is_local(info)) return compute(cls, task, end, info);
  if (is_message(info) && !is_receive(info)) {
    Value value = read({cls, task}, end.in[0]);
    if (value.expr < 0) {
      value.expr = kUnknown;
    }
    sent_[global] = value;
    return;
  }
  if (is_receive(info)) {
    Value value;
    for (const int32_t sender : senders) {
      const Value& sent = sent_[sender];
      if (sender == senders.front()) {
        value = sent;
      } else if (sent != value) {
        ctx_.report("classes-differ", ProblemClass::value, {cls, task},
                    {ctx_.ref(senders.front()), ctx_.ref(sender)},
                    fmt::format("{} receives {} from {}, but {} from {}", ctx_.name({cls, task}),
                                describe(value.expr), ctx_.name(ctx_.ref(senders.front())),
                                describe(sent.expr), ctx_.name(ctx_.ref(sender))),
                    "send one value, or give the receiving ranks classes of their own",
                    where_of_two(ctx_.ref(senders.front()), value, ctx_.ref(sender), sent));
        return lose_outputs(cls, end);
      }
    }
    if (value.expr < 0) return lose_outputs(cls, end);
    return receive(cls, task, end, value);
  }
  collective(cls, task, end, info);
}

const graph::Shift& Values::to_peer(ClassId cls, const Task& end) {
  const program::RoleId role = ctx_.program.classes[cls].role;
  const auto [known, fresh] = to_peers_.try_emplace({role, end.way()});
  graph::Shift& shift = known->second;
  if (fresh) {
    shift.axis = ctx_.axis_of(cls, end.peer_axis);
    shift.axes = axes_of(cls, end.peer_by);
    shift.offsets.clear();
    pieces_.cuts.for_each(shift.axes, {}, [&](const graph::Coords& at) {
      const int32_t peer = ctx_.program.peer_of(end.way(), rank_at(role, at));
      shift.offsets.push_back(coords_of(peer)[shift.axis] - at[shift.axis]);
    });
  }
  return shift;
}

void Values::receive(ClassId cls, TaskId task, const Task& end, const Value& value) {
  // What the peer has of the value, part by part, or of a pack tensor by tensor.
  const TaskRef ref{cls, task};
  const graph::Shift& shift = to_peer(cls, end);
  if (is_pack(value)) {
    const std::optional<Value> moved = pack_from_peer(value, shift);
    if (moved) return set(cls, end, 0, *moved, nullptr, ref);
    return lose_outputs(cls, end);
  }
  std::vector<Value> parts = parts_of(value);
  for (Value& part : parts) {
    if (part.piece == kAnyPiece) continue;
    const PieceId moved = pieces_.from_peer(part.piece, shift);
    if (moved != part.piece && local_index(part.expr)) {
      const graph::Coords& at = ctx_.boxes[cls].begin;
      const graph::Coords peer = pieces_.cuts.shifted(at, shift);
      ctx_.report("message-rows", ProblemClass::value, ref, {},
                  fmt::format("{} receives {}, which only means something on the rank that made it",
                              ctx_.name(ref), describe(part.expr)),
                  "plan the routing again on the received ids",
                  fmt::format("{} would get {} of what {} numbers", rank_text(cls, at),
                              held_text(part, peer), rank_text(cls, peer)));
      return lose_outputs(cls, end);
    }
    part.piece = moved;
  }
  Value got = *sum_of(parts);
  got.marks = from_peer(got.marks, shift);
  set(cls, end, 0, got, nullptr, ref);
}

/// Whether a value lies, on the ranks of the class, as its buffer declares. What the host reads is
/// whole: host-contract.
bool Values::is_as_declared(const Value& value, ClassId cls, const program::Buffer& buffer) {
  if (value.expr == kZero) return true;
  if (value.piece == kAnyPiece) return false;
  const graph::TensorType& logical = ctx_.types[ref_.terms[value.expr].type];
  const PieceId declared = pieces_.of(buffer.layout, logical, ctx_.axis_of(cls, 0));
  return pieces_.same_in(value.piece, declared, logical, ctx_.boxes[cls]);
}

void Values::finish_bucket(ClassId cls, BufferId buffer, std::span<const ExprId> want,
                           const Value& left) {
  // Where it differs, the first element that does says what is missing; if it is of the tensor that
  // belongs there, the tensors lie otherwise than declared.
  const program::Buffer& bucket = ctx_.program.classes[cls].buffers[buffer];
  const Value right = contents(cls, bucket, want);
  const int32_t writer = hazards_.writer(cls, buffer);
  const TaskRef at = writer >= 0 ? ctx_.ref(writer) : TaskRef{cls, -1};
  Value value = left;
  take_marks(&value);
  if (value == right) return finish_marks(at, buffer, left);
  const std::array<PackId, 2> ids{flat(value, bucket.type.numel()),
                                  flat(right, bucket.type.numel())};
  ExprId got = kUnwritten;
  ExprId expected = kUnwritten;
  if (ids[0] != kNone) {
    packs_.side_by_side(ids, [&](const graph::Coords&, const Packs::Meeting& meeting) {
      const auto expr_of = [&](size_t side) {
        const int32_t component = meeting.runs[side].component;
        return component == kNone ? kZero : packs_[ids[side]].components[component].expr;
      };
      if (expected == kUnwritten && expr_of(0) != expr_of(1)) {
        got = expr_of(0);
        expected = expr_of(1);
      }
    });
  } else {
    got = value.expr;
    expected = want[0];
  }
  if (expected != kUnwritten) return explain_final(cls, buffer, expected, got);
  ctx_.report("final-layout", ProblemClass::value, at, {},
              fmt::format("{} leaves {} with {}; the host expects {}", ctx_.name(at),
                          ctx_.buffer_name(cls, buffer), pack_text(ids[0]), pack_text(ids[1])),
              "bring its tensors to where its slots say before the step ends",
              where(cls, value, "; the host expects ", right, ""));
}

void Values::finish_buffer(ClassId cls, BufferId id, Kept* kept) {
  // What the buffer holds must be what the step leaves in its tensors, in the layout that it
  // declares. What can't be what it says was refused before: named-tensor.
  if (undeclared_.contains({cls, id})) return;
  const program::Buffer& buffer = ctx_.program.classes[cls].buffers[id];
  const bool output = buffer.kind == BufferKind::output;
  const bool each = output && buffer.micro_batch >= 0;
  std::vector<ExprId> wanted;
  for (const std::string& name : program::tensors_of(buffer.name, buffer.slots)) {
    const int32_t tensor = ref_.find(name);
    (*kept)[{tensor, each ? buffer.micro_batch : -1}].push_back({cls, &buffer});
    wanted.push_back(ref_.value(tensor, output ? buffer.micro_batch : -1));
  }
  const Value value = left_in(cls, id);
  if (value.expr == kUnknown) return;
  if (*std::min_element(wanted.begin(), wanted.end()) < 0) {
    const std::vector<TaskRef> users = ctx_.users(cls, id);
    ctx_.report("named-tensor", ProblemClass::value, users.empty() ? TaskRef{cls, -1} : users[0],
                users,
                fmt::format("{} of class {}: the graph has no such value after the step",
                            ctx_.buffer_name(cls, id), cls),
                "let outputs name a loss or an output of the graph");
    return;
  }
  if (!buffer.slots.empty()) return finish_bucket(cls, id, wanted, value);
  if (terms_in(value) != wanted[0]) {
    return explain_final(cls, id, wanted[0], terms_in(value));
  }
  const int32_t writer = hazards_.writer(cls, id);
  const TaskRef at = writer >= 0 ? ctx_.ref(writer) : TaskRef{cls, -1};
  if (is_as_declared(value, cls, buffer)) return finish_marks(at, id, value);
  ctx_.report("final-layout", ProblemClass::value, at, {},
              fmt::format("{} leaves {} in layout {}; the host expects {}", ctx_.name(at),
                          ctx_.buffer_name(cls, id), piece_text(value),
                          graph::to_string(buffer.layout, ctx_.program.mesh_of(cls))),
              "reduce or gather it before the step ends, or declare the layout it has",
              where(cls, value, "; the host expects ",
                    {value.expr, pieces_.of(buffer.layout, ctx_.types[ref_.terms[value.expr].type],
                                            ctx_.axis_of(cls, 0))},
                    ""));
}

void Values::finish() {
  // Twice over the same pairs, from both sides: every named buffer must hold what the single-device
  // step leaves in the tensors of its name (persistent: updated or as before; output: of its
  // micro-batch, or summed), and every tensor that the step updates or gives out must be kept by
  // some classes, all its parts, whole or micro-batch by micro-batch.
  const graph::Graph& graph = ref_.graph();
  Kept kept;
  for (size_t c = 0; c < values_.size(); ++c) {
    const auto& buffers = ctx_.program.classes[c].buffers;
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].kind == BufferKind::persistent || buffers[i].kind == BufferKind::output) {
        finish_buffer(ClassId(c), BufferId(i), &kept);
      }
    }
  }
  judge_copies();
  std::vector<int32_t> wanted;
  for (size_t tensor = 0; tensor < graph.tensors.size(); ++tensor) {
    if (ref_.updated(static_cast<int32_t>(tensor))) {
      wanted.push_back(static_cast<int32_t>(tensor));
    }
  }
  wanted.insert(wanted.end(), graph.losses.begin(), graph.losses.end());
  wanted.insert(wanted.end(), graph.outputs.begin(), graph.outputs.end());
  // Nor is it asked again who keeps a tensor that lies in a buffer that was refused.
  std::set<int32_t> asked;
  for (const auto& [cls, id] : undeclared_) {
    const program::Buffer& buffer = ctx_.program.classes[cls].buffers[id];
    for (const std::string& name : program::tensors_of(buffer.name, buffer.slots)) {
      asked.insert(ref_.find(name));
    }
  }
  for (int32_t tensor : wanted) {
    if (!asked.insert(tensor).second) continue;
    bool each = ref_.per_micro_batch(tensor);
    bool some = !kept[{tensor, -1}].empty();
    for (int32_t mb = 0; mb < ref_.num_micro_batches() && each; ++mb) {
      some = some || !kept[{tensor, mb}].empty();
      each = ctx_.covers(graph.tensor(tensor), kept[{tensor, mb}]);
    }
    if (each || ctx_.covers(graph.tensor(tensor), kept[{tensor, -1}])) continue;
    ctx_.report("result-missing", ProblemClass::value, {}, {},
                fmt::format("{} '{}', which the single-device step computes",
                            some ? "the classes keep only some parts of" : "no class keeps",
                            graph.tensor(tensor).name),
                "add a persistent or output buffer of this name and the tasks that fill it",
                ctx_.uncovered(graph.tensor(tensor), kept[{tensor, -1}]));
  }
}

}  // namespace hocket::check
