// SPDX-License-Identifier: Apache-2.0
#include "passes/chunk_parts.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/error.h"
#include "ops/op.h"

namespace hocket::passes {

using parallel::TaskTemplate;
using parallel::Value;
using program::Kind;
using program::kNone;

bool moves_rows(const Kind& kind) {
  const auto routed = [](const graph::TensorType& type) { return type.routed(); };
  return std::any_of(kind.in.begin(), kind.in.end(), routed) ||
         std::any_of(kind.out.begin(), kind.out.end(), routed);
}

bool makes_routing(const Kind& kind) {
  if (program::is_communication(kind)) return comm::op(kind.communication).makes_sizes;
  return ops::find(kind.op).routing.counts >= 0;
}

namespace {

/// Returns the letter for tokens in an op's notation: that of dim 1 of rows, or of dim 0 of a
/// routing input; 0: none.
char letter_of_tokens(const ops::Op& op, const Kind& kind, const ops::Letters& letters) {
  if (letters.any) return 0;
  if (op.routing.counts >= 0) return letters.in[0][0];
  for (size_t i = 0; i < kind.in.size(); ++i) {
    if (kind.in[i].routed()) return letters.in[i][1];
  }
  for (size_t i = 0; i < kind.out.size(); ++i) {
    if (kind.out[i].routed()) return letters.out[i][1];
  }
  return 0;
}

/// The dim of every operand along which its tokens lie; -1: it has none.
struct Along {
  std::vector<int> in, out;
};
Along tokens_of(const Kind& kind) {
  // In a communication only rows have tokens; in an op every operand with the letter.
  Along along;
  if (program::is_communication(kind)) {
    const auto dim = [](const graph::TensorType& type) { return type.routed() ? 1 : -1; };
    std::transform(kind.in.begin(), kind.in.end(), std::back_inserter(along.in), dim);
    std::transform(kind.out.begin(), kind.out.end(), std::back_inserter(along.out), dim);
    return along;
  }
  const ops::Op& op = ops::find(kind.op);
  const ops::Letters letters = ops::letters(op, kind.in, kind.out);
  const char tokens = letter_of_tokens(op, kind, letters);
  if (tokens == 0 || std::string_view(op.layout.split).find(tokens) == std::string_view::npos ||
      op.layout.is_positional(tokens)) {
    fail("chunk", "{} can't be done in pieces of its tokens; try plan.moe_chunks: 1", kind.op);
  }
  const auto dim = [tokens](const std::string& operand) {
    const size_t at = operand.find(tokens);
    return at == operand.npos ? -1 : static_cast<int>(at);
  };
  std::transform(letters.in.begin(), letters.in.end(), std::back_inserter(along.in), dim);
  std::transform(letters.out.begin(), letters.out.end(), std::back_inserter(along.out), dim);
  return along;
}

}  // namespace

void ChunkParts::note(const TaskTemplate& made) {
  // Records how routing is recomputed for other chunks. Rows inherit the routing of their inputs
  // (rows, or row numbers); an exchange moves them to their experts, with sizes, or back.
  const Kind& kind = kind_of(made);
  if (makes_routing(kind)) {
    for (ValueId value : made.out) {
      maker_[value] = made;
    }
    if (!program::is_communication(kind)) {
      const ops::Routing& routing = ops::find(kind.op).routing;
      rows_[made.out[routing.row_of]].counts = made.out[routing.counts];
    }
    return;
  }
  Rows rows;
  for (ValueId value : made.in) {
    const auto known = rows_.find(value);
    if (known == rows_.end()) continue;
    if (rows.counts == kNone || rank_.values[value].type.routed()) {
      rows = known->second;
    }
  }
  if (program::is_communication(kind)) {
    const comm::Op& op = comm::op(kind.communication);
    const bool to_experts = comm::after(op, kind.attrs) == graph::Placement::split(0);
    if (to_experts) {
      rows.came_by.push_back({made.in[1], frame_.groups[made.task.group].axes});
    } else if (!rows.came_by.empty()) {
      rows.came_by.pop_back();
    }
  }
  for (ValueId value : made.out) {
    if (rank_.values[value].type.routed()) {
      rows_[value] = rows;
    }
  }
}

void ChunkParts::bring(ValueId value, const program::Task& user, TaskList* result) {
  const int64_t from = chunks_ == forward_ ? backward_ : forward_;
  if (own_.contains({value, chunks_}) || !own_.contains({value, from})) return;
  if (const auto maker = maker_.find(value); maker != maker_.end()) {
    TaskTemplate again = maker->second;
    again.task.phase = user.phase;
    for (ValueId input : again.in) {
      bring(input, user, result);
    }
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      result->push_back(chunk_of(again, chunk));
    }
    return;
  }
  regroup(value, from, user, result);
}

void ChunkParts::regroup(ValueId value, int64_t from, const program::Task& user, TaskList* result) {
  // Rows of all chunks, the sizes of the exchanges that placed them, and those of the exchanges
  // that would place them in the new chunks. Rows that never left have sizes of an exchange of
  // the rank with itself.
  const Rows rows = rows_.at(value);
  HOCKET_CHECK(rows.counts != kNone, "{} has no routing", rank_.values[value].name);
  std::vector<ValueId> had, wanted;
  if (rows.came_by.size() > 1) {
    fail("plan",
         "plan.moe_chunks is {} and plan.moe_chunks_backward {}, but rows come to their "
         "experts in {} steps; expected equal numbers of pieces backward and forward, or "
         "plan.ep_inner: 1",
         forward_, backward_, rows.came_by.size());
  }
  if (!rows.came_by.empty()) {
    const ValueId sizes = rows.came_by[0].sizes;
    bring(sizes, user, result);
    had = own_.at({sizes, from});
    wanted = own_.at({sizes, chunks_});
  } else {
    bring(rows.counts, user, result);
    had = own_sizes(rows.counts, from, user, result);
    wanted = own_sizes(rows.counts, chunks_, user, result);
  }
  TaskTemplate made;
  made.in = own_.at({value, from});
  made.in.insert(made.in.end(), had.begin(), had.end());
  made.in.insert(made.in.end(), wanted.begin(), wanted.end());
  for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
    made.out.push_back(own(value, 1, chunk));
  }
  const ops::Op& op = ops::of(ops::Meaning::regroup);
  Kind kind{.op = op.name,
            .attrs = {{"from", from}, {"to", chunks_}},
            .in = edit_.types_of(made.in),
            .out = edit_.types_of(made.out)};
  if (!rows.came_by.empty()) {
    // The rank's experts among all experts of the sizes.
    const std::vector<int32_t>& axes = rows.came_by[0].axes;
    const int32_t ranks = frame_.roles[0].mesh.axes[axes[0]].size;
    program::Table table{.role = 0, .axes = axes, .values = {}};
    for (int32_t rank = 0; rank < ranks; ++rank) {
      table.values.push_back(graph::share(experts_.at(value), ranks, rank).begin);
    }
    made.task.piece_offsets.push_back({'e', 0, frame_.intern(std::move(table))});
  }
  set_place(user, &made.task);
  made.task.kind = edit_.intern_local(std::move(kind), experts_.at(value));
  result->push_back(std::move(made));
}

/// Sizes of an exchange of the rank with itself, by chunk.
const std::vector<ChunkParts::ValueId>& ChunkParts::own_sizes(ValueId counts, int64_t chunks,
                                                              const program::Task& user,
                                                              TaskList* result) {
  // The op is the one that makes sizes; its group has no axes, so that the rank is alone in it.
  std::vector<ValueId>& sizes = own_sizes_[{counts, chunks}];
  if (!sizes.empty()) return sizes;
  const auto& all = comm::all();
  const auto op = std::find_if(all.begin(), all.end(),
                               [](const comm::Op* candidate) { return candidate->makes_sizes; });
  for (ValueId part : own_.at({counts, chunks})) {
    TaskTemplate made;
    made.in = {part};
    const std::vector<graph::TensorType> types = comm::infer(**op, {}, edit_.types_of(made.in), 1);
    for (const graph::TensorType& type : types) {
      Value value = rank_.values[part];
      value.type = type;
      made.out.push_back(edit_.add(std::move(value)));
    }
    set_place(user, &made.task);
    made.task.lane = program::link_lane(comm::Role::collective, false);
    made.task.group = frame_.intern(program::group_over({}));
    made.task.kind = edit_.intern_communication(**op, {}, made.in, made.out);
    sizes.push_back(made.out[0]);
    result->push_back(std::move(made));
  }
  return sizes;
}

TaskTemplate ChunkParts::chunk_of(const TaskTemplate& whole, int64_t chunk) {
  // The task on values of the chunk. An output that takes over the buffer of another value is
  // from now on that value, which each chunk changes in part.
  const Kind& kind = kind_of(whole);
  const Along along = tokens_of(kind);
  // The same holds for inputs that a task before it, of the same chunk, took over.
  TaskTemplate made = whole;
  rename(&made);
  made.shares.clear();
  for (size_t i = 0; i < whole.in.size(); ++i) {
    made.in[i] = part_read(made.in[i], along.in[i], chunk);
  }
  for (size_t i = 0; i < whole.out.size(); ++i) {
    made.out[i] = part_made(whole, i, along.out[i], chunk);
    // A sum over tokens: the first chunk writes it. (Stamping does the same for sums over
    // micro-batches.)
    if (made.out[i] == whole.out[i] && chunk > 0 && !rank_.values[whole.out[i]].accumulator) {
      made.task.accumulate.add(i);
    }
  }
  made.task.kind = kind_of_chunk(whole, made);
  return made;
}

ChunkParts::ValueId ChunkParts::part_read(ValueId value, int dim, int64_t chunk) {
  if (const auto own = own_.find({value, chunks_}); own != own_.end()) return own->second[chunk];
  return dim < 0 ? value : view(value, dim, chunk);
}

ChunkParts::ValueId ChunkParts::part_made(const TaskTemplate& whole, size_t output, int dim,
                                          int64_t chunk) {
  // Returns the task's output, or the one that it takes the buffer of: separate per chunk, a sum
  // over chunks, or written part by part.
  const Kind& kind = kind_of(whole);
  ValueId made = whole.out[output];
  for (const auto& [shared, taken] : whole.shares) {
    if (shared != static_cast<int>(output)) continue;
    if (rank_.values[made].output) {
      rank_.values[taken].output = true;
      rank_.values[taken].name = rank_.values[made].name;
    }
    renamed_[made] = taken;
    made = taken;
  }
  if (kind.out[output].routed() || makes_routing(kind)) return own(made, dim, chunk);
  if (dim >= 0) return view(made, dim, chunk);
  if (!ops::find(kind.op).accumulates.contains(output)) {
    fail("chunk", "{} can't add up {} over pieces of its tokens; try plan.moe_chunks: 1", kind.op,
         rank_.values[made].name);
  }
  return made;
}

void ChunkParts::refuse_tokens(const Value& value, const graph::Dim& tokens) const {
  fail("plan",
       "plan.moe_chunks{} is {}, but {} has {} tokens of a micro-batch on a rank; expected a "
       "divisor of that",
       chunks_ == forward_ ? "" : "_backward", chunks_, value.name, tokens);
}

graph::TensorType ChunkParts::type_of_part(const Value& value, int dim) const {
  graph::TensorType type = value.type;
  if (dim < 0) return type;
  if (!type.dims[dim].divides_into(chunks_)) {
    refuse_tokens(value, type.dims[dim]);
  }
  type.dims[dim] /= chunks_;
  return type;
}

/// A value that is made by chunk `chunk` alone.
ChunkParts::ValueId ChunkParts::own(ValueId whole, int dim, int64_t chunk) {
  std::vector<ValueId>& parts = own_[{whole, chunks_}];
  while (std::ssize(parts) < chunks_) {
    Value value = rank_.values[whole];
    value.type = type_of_part(value, dim);
    value.layout = {};
    value.output = false;
    if (value.expected_bytes != kNone) {
      const int64_t row = value.type.bytes_of(value.type.row_size());
      const int64_t rows = value.expected_bytes / row;
      value.expected_bytes = std::min(value.type.bytes(), (rows + chunks_ - 1) / chunks_ * row);
    }
    parts.push_back(edit_.add(std::move(value)));
  }
  return parts[chunk];
}

/// The tokens of the chunk in a value that is whole elsewhere.
ChunkParts::ValueId ChunkParts::view(ValueId whole, int dim, int64_t chunk) {
  std::vector<ValueId>& parts = views_[{whole, chunks_}];
  while (std::ssize(parts) < chunks_) {
    const Value& value = rank_.values[whole];
    if (value.base != kNone) {
      fail("chunk", "{} is in pieces already; expected the pass once in plan.passes", value.name);
    }
    const int64_t length = type_of_part(value, dim).dims[dim];
    parts.push_back(edit_.view(whole, dim, length, std::ssize(parts) * length));
  }
  return parts[chunk];
}

/// Returns the kind of the task on the parts; its costs follow from their types.
program::KindId ChunkParts::kind_of_chunk(const TaskTemplate& whole, const TaskTemplate& part) {
  const Kind& kind = kind_of(whole);
  int64_t experts = 0;  // over which all rows are spread
  for (size_t i = 0; i < whole.in.size(); ++i) {
    const auto known = experts_.find(whole.in[i]);
    experts = std::max(experts, known == experts_.end() ? 0 : known->second);
  }
  for (size_t i = 0; i < whole.out.size(); ++i) {
    if (!kind.out[i].routed()) continue;
    experts = std::max(experts, int64_t{kind.out[i].dims[0]});
    experts_[whole.out[i]] = experts;
  }
  if (program::is_communication(kind)) {
    // Members with different numbers of tokens take the same share of each.
    graph::Attrs attrs = kind.attrs;
    for (const char* attribute : {comm::kSlots, comm::kBlocks}) {
      std::vector<int64_t> tokens = comm::lengths_of(attrs, attribute);
      for (int64_t& number : tokens) {
        if (number % chunks_ != 0) {
          refuse_tokens(rank_.values[whole.in[0]], number);
        }
        number /= chunks_;
      }
      if (!tokens.empty()) {
        comm::set_lengths(tokens, attribute, &attrs);
      }
    }
    return edit_.intern_communication(comm::op(kind.communication), attrs, part.in, part.out);
  }
  Kind made{.op = kind.op,
            .attrs = kind.attrs,
            .in = edit_.types_of(part.in),
            .out = edit_.types_of(part.out)};
  return edit_.intern_local(std::move(made), experts);
}

void ChunkParts::rename(TaskTemplate* made) const {
  const auto one = [&](ValueId* value) {
    for (auto it = renamed_.find(*value); it != renamed_.end(); it = renamed_.find(*value)) {
      *value = it->second;
    }
  };
  for (ValueId& value : made->in) {
    one(&value);
  }
  for (auto& [output, taken] : made->shares) {
    one(&taken);
  }
}

}  // namespace hocket::passes
