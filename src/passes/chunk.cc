// SPDX-License-Identifier: Apache-2.0
// chunk (Tutel, Hwang et al., arXiv 2206.03382; FSMoE, Pan et al., arXiv 2501.10714): the experts
// of a layer take the tokens of a micro-batch in plan.moe_chunks pieces, each with a dispatch, an
// exchange there, products, an exchange back and a combine of its own, forward and backward. While
// one piece is with its experts, the next one is on the way. The backward pass may have another
// number of pieces (plan.moe_chunks_backward): rows that it reads are regrouped.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "ops/op.h"
#include "passes/pass.h"

namespace hocket::passes {

using parallel::RankTemplate;
using parallel::StageTemplate;
using parallel::TaskTemplate;
using parallel::Templates;
using parallel::Value;
using parallel::ValueId;
using program::Kind;
using program::kNone;

namespace {

using TaskList = std::vector<TaskTemplate>;

/// Rewrites the tasks of one class of ranks. Token by token means: along dim 1 of routed rows, and
/// along the dims of other operands that an op's notation gives the same letter.
///
/// Three sorts of values take part. Rows and their routing (counts, row numbers, sizes of
/// exchanges) are made chunk by chunk, in values of their own, since row numbers and the order of
/// rows are those of a chunk. Dense values by token are seen through views of them, so that who
/// makes or reads them whole is left as it is. What is summed over tokens (gradients) is added up
/// by the chunks, one after the other.
///
/// Where the backward pass has another number of chunks, the routing that it reads is made again
/// for them, and rows of the forward pass are put into them by the sizes of both exchanges.
class Chunker {
 public:
  Chunker(program::Program& frame, RankTemplate& rank, int64_t forward, int64_t backward)
      : frame_(frame), rank_(rank), forward_(forward), backward_(backward) {}

  void run() {
    // Routing that somebody reads for all tokens (the balance loss, the host) stays beside that of
    // the chunks. Then every list that runs per micro-batch; a list is never mixed with another,
    // since the schedule may put time between them.
    for (StageTemplate& stage : rank_.stages) {
      look(stage.forward);
      look(stage.backward);
    }
    chunks_ = forward_;
    for (StageTemplate& stage : rank_.stages) {
      stage.forward = rewritten(std::move(stage.forward));
    }
    chunks_ = backward_;
    for (StageTemplate& stage : rank_.stages) {
      const auto weights = stage.backward.begin() + static_cast<int64_t>(stage.weights_begin);
      TaskList late;
      std::move(weights, stage.backward.end(), std::back_inserter(late));
      stage.backward.erase(weights, stage.backward.end());
      stage.backward = rewritten(std::move(stage.backward));
      stage.weights_begin = stage.backward.size();
      late = rewritten(std::move(late));
      std::move(late.begin(), late.end(), std::back_inserter(stage.backward));
    }
  }

 private:
  const Kind& kind_of(const TaskTemplate& made) const { return frame_.kind(made.task); }

  static bool moves_rows(const Kind& kind) {
    const auto routed = [](const graph::TensorType& type) { return type.routed(); };
    return std::any_of(kind.in.begin(), kind.in.end(), routed) ||
           std::any_of(kind.out.begin(), kind.out.end(), routed);
  }
  /// Makes counts and row numbers of tokens, or the sizes of their exchange.
  static bool makes_routing(const Kind& kind) {
    if (program::is_communication(kind)) return comm::op(kind.communication).makes_sizes;
    return ops::find(kind.op).routing.counts >= 0;
  }
  bool chunked(const TaskTemplate& made) const {
    return moves_rows(kind_of(made)) || makes_routing(kind_of(made));
  }

  void look(const TaskList& list) {
    for (const TaskTemplate& made : list) {
      if (!chunked(made)) {
        read_whole_.insert(made.in.begin(), made.in.end());
      }
    }
  }
  /// Whether the task makes routing that is wanted for all tokens, too.
  bool wanted_whole(const TaskTemplate& made) const {
    return makes_routing(kind_of(made)) &&
           std::any_of(made.out.begin(), made.out.end(), [&](ValueId value) {
             return rank_.values[value].output || read_whole_.contains(value);
           });
  }

  TaskList rewritten(TaskList list) {
    // Tasks on rows wait until something else needs what they make, or would change what they
    // read; all that have come together are then written chunk by chunk.
    TaskList result;
    for (TaskTemplate& made : list) {
      rename(&made);
      if (!chunked(made)) {
        if (meets_waiting(made)) {
          write_waiting(&result);
        }
        rename(&made);
        result.push_back(std::move(made));
        continue;
      }
      if (wanted_whole(made)) {
        result.push_back(made);
      }
      for (ValueId value : made.in) {
        waiting_reads_.insert(value);
      }
      for (ValueId value : made.out) {
        waiting_writes_.insert(value);
      }
      for (const auto& [output, taken] : made.shares) {
        waiting_writes_.insert(taken);
      }
      waiting_.push_back(std::move(made));
    }
    write_waiting(&result);
    return result;
  }

  bool meets_waiting(const TaskTemplate& made) const {
    const auto writes = [&](ValueId value) {
      return waiting_writes_.contains(value) || waiting_reads_.contains(value);
    };
    return std::any_of(made.in.begin(), made.in.end(),
                       [&](ValueId value) { return waiting_writes_.contains(value); }) ||
           std::any_of(made.out.begin(), made.out.end(), writes) ||
           std::any_of(made.shares.begin(), made.shares.end(),
                       [&](const auto& share) { return writes(share.second); });
  }

  void write_waiting(TaskList* result) {
    // A round is what can be done of a chunk before the next exchange of rows, and that exchange.
    // All chunks go through a round before any goes on to the next one: dispatches (each followed
    // by its exchange), then experts (each followed by the exchange back), then combines.
    std::map<ValueId, int> round_of;
    std::vector<int> rounds;
    int last = 0;
    for (const TaskTemplate& made : waiting_) {
      int round = 0;
      for (ValueId value : made.in) {
        if (const auto found = round_of.find(value); found != round_of.end()) {
          round = std::max(round, found->second);
        }
      }
      const bool ends = program::is_communication(kind_of(made)) && moves_rows(kind_of(made));
      for (ValueId value : made.out) {
        round_of[value] = round + (ends ? 1 : 0);
      }
      rounds.push_back(round);
      last = std::max(last, round);
      note(made);
    }
    for (int round = 0; round <= last; ++round) {
      for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
        for (size_t i = 0; i < waiting_.size(); ++i) {
          if (rounds[i] != round) continue;
          for (ValueId value : waiting_[i].in) {
            bring(value, waiting_[i].task, result);
          }
          result->push_back(chunk_of(waiting_[i], chunk));
        }
      }
    }
    waiting_.clear();
    waiting_reads_.clear();
    waiting_writes_.clear();
  }

  /// The routing of rows, and, where they are with their experts, the sizes of the exchange that
  /// brought them there and the axis that it goes along.
  struct Rows {
    ValueId counts = kNone, sizes = kNone;
    int32_t axis = kNone;
  };
  /// Where the rows are that the task makes, or how what it makes is made again.
  void note(const TaskTemplate& made) {
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
      // Rows tell more than row numbers.
      const auto known = rows_.find(value);
      if (known != rows_.end() && (rows.counts == kNone || rank_.values[value].type.routed())) {
        rows = known->second;
      }
    }
    if (program::is_communication(kind)) {
      const comm::Op& op = comm::op(kind.communication);
      const bool to_experts = comm::after(op, kind.attrs) == graph::Placement::split(0);
      rows.sizes = to_experts ? made.in[1] : kNone;
      rows.axis = frame_.groups[made.task.group].axes[0];
    }
    for (ValueId value : made.out) {
      if (rank_.values[value].type.routed()) {
        rows_[value] = rows;
      }
    }
  }

  /// Sees to it that what was made in chunks is there in as many as there are now. `user`: the task
  /// that reads it.
  void bring(ValueId value, const program::Task& user, TaskList* result) {
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

  void regroup(ValueId value, int64_t from, const program::Task& user, TaskList* result) {
    // Rows of all chunks, the sizes of the exchanges that placed them, and those of the exchanges
    // that would place them in the new chunks. Rows that never left have sizes of an exchange of
    // the rank with itself.
    const Rows rows = rows_.at(value);
    HOCKET_CHECK(rows.counts != kNone, "{} has no routing", rank_.values[value].name);
    std::vector<ValueId> had, wanted;
    if (rows.sizes != kNone) {
      bring(rows.sizes, user, result);
      had = own_.at({rows.sizes, from});
      wanted = own_.at({rows.sizes, chunks_});
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
              .in = types_of(made.in),
              .out = types_of(made.out)};
    if (rows.sizes != kNone) {
      // The rank's experts among all that the sizes tell of.
      const int32_t ranks = frame_.roles[0].mesh.axes[rows.axis].size;
      program::Table table{.role = 0, .axes = {rows.axis}, .values = {}};
      for (int32_t rank = 0; rank < ranks; ++rank) {
        table.values.push_back(graph::share(experts_.at(value), ranks, rank).begin);
      }
      made.task.begins.push_back({'e', 0, frame_.intern(std::move(table))});
    }
    set_place(user, &made.task);
    made.task.kind = intern_local(std::move(kind), experts_.at(value));
    result->push_back(std::move(made));
  }

  /// Sizes of an exchange of the rank with itself, by chunk.
  const std::vector<ValueId>& own_sizes(ValueId counts, int64_t chunks, const program::Task& user,
                                        TaskList* result) {
    std::vector<ValueId>& sizes = own_sizes_[{counts, chunks}];
    if (!sizes.empty()) return sizes;
    const auto& all = comm::all();
    const auto op = std::find_if(all.begin(), all.end(),
                                 [](const comm::Op* candidate) { return candidate->makes_sizes; });
    for (ValueId part : own_.at({counts, chunks})) {
      TaskTemplate made;
      made.in = {part};
      const std::vector<graph::TensorType> types = comm::infer(**op, {}, types_of(made.in), 1);
      for (const graph::TensorType& type : types) {
        Value value = rank_.values[part];
        value.type = type;
        made.out.push_back(add(std::move(value)));
      }
      set_place(user, &made.task);
      made.task.lane = program::link_lane(comm::Role::collective, false);
      made.task.group = frame_.intern(program::group_over({}));
      made.task.kind = frame_.intern(program::communication_kind(
          (*op)->id, {}, types_of(made.in), types_of(made.out), frame_.symbols));
      sizes.push_back(made.out[0]);
      result->push_back(std::move(made));
    }
    return sizes;
  }

  static void set_place(const program::Task& user, program::Task* task) {
    task->phase = user.phase;
    task->stage = user.stage;
    task->layer = user.layer;
  }

  TaskTemplate chunk_of(const TaskTemplate& whole, int64_t chunk) {
    // The task on values of the chunk. An output that takes over the buffer of another value is
    // from now on that value, which each chunk changes in part.
    const Kind& kind = kind_of(whole);
    const Along along = tokens_of(kind);
    TaskTemplate made = whole;
    made.shares.clear();
    for (size_t i = 0; i < whole.in.size(); ++i) {
      made.in[i] = part_read(whole.in[i], along.in[i], chunk);
    }
    for (size_t i = 0; i < whole.out.size(); ++i) {
      made.out[i] = part_made(whole, i, along.out[i], chunk);
      // A sum over tokens: the first chunk writes it. (Stamping does so for what is summed over
      // micro-batches, too.)
      if (made.out[i] == whole.out[i] && chunk > 0 && !rank_.values[whole.out[i]].accumulator) {
        made.task.accumulate.add(i);
      }
    }
    made.task.kind = kind_of_chunk(whole, made);
    return made;
  }

  /// The dim of every operand along which its tokens lie; -1: it has none.
  struct Along {
    std::vector<int> in, out;
  };
  Along tokens_of(const Kind& kind) const {
    // Of a communication only rows have them. The notation of an op has a letter for tokens: that
    // of dim 1 of the rows, or of dim 0 of what routing starts from.
    Along along{std::vector<int>(kind.in.size(), -1), std::vector<int>(kind.out.size(), -1)};
    const auto each = [&](auto&& visit) {
      for (size_t i = 0; i < kind.in.size(); ++i) {
        visit(kind.in[i], i, true);
      }
      for (size_t i = 0; i < kind.out.size(); ++i) {
        visit(kind.out[i], i, false);
      }
    };
    if (program::is_communication(kind)) {
      each([&](const graph::TensorType& type, size_t i, bool input) {
        (input ? along.in : along.out)[i] = type.routed() ? 1 : -1;
      });
      return along;
    }
    const ops::Op& op = ops::find(kind.op);
    const ops::Letters letters = ops::letters(op, kind.in, kind.out);
    const auto of = [&](size_t i, bool input) -> const std::string& {
      return (input ? letters.in : letters.out)[i];
    };
    char tokens = 0;
    if (!letters.any) {
      tokens = op.routing.counts >= 0 ? letters.in[0][0] : 0;
      each([&](const graph::TensorType& type, size_t i, bool input) {
        if (type.routed()) {
          tokens = of(i, input)[1];
        }
      });
    }
    if (tokens == 0 || std::string_view(op.layout.split).find(tokens) == std::string_view::npos ||
        op.layout.is_positional(tokens)) {
      fail("chunk", "{} can't be done in pieces of its tokens; try plan.moe_chunks: 1", kind.op);
    }
    each([&](const graph::TensorType&, size_t i, bool input) {
      const size_t at = of(i, input).find(tokens);
      (input ? along.in : along.out)[i] = at == std::string::npos ? -1 : static_cast<int>(at);
    });
    return along;
  }

  ValueId part_read(ValueId value, int dim, int64_t chunk) {
    if (const auto own = own_.find({value, chunks_}); own != own_.end()) return own->second[chunk];
    return dim < 0 ? value : view(value, dim, chunk);
  }

  ValueId part_made(const TaskTemplate& whole, size_t output, int dim, int64_t chunk) {
    const ValueId value = whole.out[output];
    const Kind& kind = kind_of(whole);
    if (kind.out[output].routed() || makes_routing(kind)) return own(value, dim, chunk);
    if (dim < 0) {
      if (!ops::find(kind.op).accumulates.contains(output)) {
        fail("chunk", "{} can't add up {} over pieces of its tokens; try plan.moe_chunks: 1",
             kind.op, rank_.values[value].name);
      }
      return value;
    }
    for (const auto& [shared, taken] : whole.shares) {
      if (shared != static_cast<int>(output)) continue;
      if (rank_.values[value].output) {
        rank_.values[taken].output = true;
        rank_.values[taken].name = rank_.values[value].name;
      }
      renamed_[value] = taken;
      return view(taken, dim, chunk);
    }
    return view(value, dim, chunk);
  }

  graph::TensorType type_of_part(const Value& value, int dim) const {
    graph::TensorType type = value.type;
    if (dim < 0) return type;
    if (!type.dims[dim].divides_into(chunks_)) {
      fail("plan",
           "plan.moe_chunks{} is {}, but {} has {} tokens of a micro-batch on a rank; expected a "
           "divisor of that",
           chunks_ == forward_ ? "" : "_backward", chunks_, value.name, type.dims[dim]);
    }
    type.dims[dim] /= chunks_;
    return type;
  }

  /// A value that is made by chunk `chunk` alone.
  ValueId own(ValueId whole, int dim, int64_t chunk) {
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
      parts.push_back(add(std::move(value)));
    }
    return parts[chunk];
  }

  /// The tokens of the chunk in a value that is whole elsewhere.
  ValueId view(ValueId whole, int dim, int64_t chunk) {
    std::vector<ValueId>& parts = views_[{whole, chunks_}];
    while (std::ssize(parts) < chunks_) {
      Value value = rank_.values[whole];
      HOCKET_CHECK(value.base == kNone, "{} is a view already", value.name);
      value.type = type_of_part(value, dim);
      value.layout = {};
      value.output = false;
      value.base = whole;
      value.dim = dim;
      value.begin = std::ssize(parts) * value.type.dims[dim];
      parts.push_back(add(std::move(value)));
    }
    return parts[chunk];
  }

  ValueId add(Value value) {
    rank_.values.push_back(std::move(value));
    return static_cast<ValueId>(rank_.values.size() - 1);
  }

  /// The kind of the task on the parts: what it costs follows from their types.
  program::KindId kind_of_chunk(const TaskTemplate& whole, const TaskTemplate& part) {
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
      return frame_.intern(program::communication_kind(
          kind.communication, kind.attrs, types_of(part.in), types_of(part.out), frame_.symbols));
    }
    Kind made{
        .op = kind.op, .attrs = kind.attrs, .in = types_of(part.in), .out = types_of(part.out)};
    return intern_local(std::move(made), experts);
  }

  program::KindId intern_local(Kind kind, int64_t experts) {
    const ops::Cost cost =
        ops::cost_of(ops::find(kind.op), {kind.attrs, kind.in, kind.out, experts, frame_.symbols});
    kind.flops = cost.flops;
    kind.bytes = cost.bytes;
    kind.workspace = cost.workspace;
    return frame_.intern(std::move(kind));
  }

  std::vector<graph::TensorType> types_of(const std::vector<ValueId>& values) const {
    std::vector<graph::TensorType> types;
    for (ValueId value : values) {
      types.push_back(rank_.values[value].type);
    }
    return types;
  }

  void rename(TaskTemplate* made) const {
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

  /// A value in a number of chunks.
  using InChunks = std::pair<ValueId, int64_t>;

  program::Program& frame_;
  RankTemplate& rank_;
  const int64_t forward_, backward_;
  int64_t chunks_ = 0;  // of the list that is rewritten
  std::set<ValueId> read_whole_;
  TaskList waiting_;  // on rows, not yet written
  std::set<ValueId> waiting_reads_, waiting_writes_;
  std::map<InChunks, std::vector<ValueId>> own_, views_, own_sizes_;  // by chunk
  std::map<ValueId, ValueId> renamed_;     // to whose buffer it took over
  std::map<ValueId, int64_t> experts_;     // of rows
  std::map<ValueId, Rows> rows_;           // of rows and row numbers
  std::map<ValueId, TaskTemplate> maker_;  // of routing
};

/// Generation takes as many tokens as come: there is nothing to cut.
bool has_symbols(const Templates& templates) { return !templates.frame.symbols.empty(); }

struct Options {
  int64_t moe_chunks = 1, moe_chunks_backward = 0;
  void fields(Fields& visit) {
    visit("moe_chunks", moe_chunks,
          "pieces of a rank's tokens that go to their experts one after another")
        .min(1)
        .max(256);
    visit("moe_chunks_backward", moe_chunks_backward,
          "pieces in the backward pass; 0: as many as forward")
        .min(0)
        .max(256);
  }
};

void run(Templates& templates, const Options& options) {
  const int64_t forward = options.moe_chunks;
  const int64_t backward = options.moe_chunks_backward == 0 ? forward : options.moe_chunks_backward;
  if ((forward == 1 && backward == 1) || has_symbols(templates)) return;
  for (RankTemplate& rank : templates.ranks) {
    Chunker(templates.frame, rank, forward, backward).run();
  }
}

}  // namespace

Pass pass_chunk() {
  return templates_pass("chunk", "sends tokens to experts in pieces (plan.moe_chunks)", false,
                        {"moe_chunks=2", "moe_chunks=4", "moe_chunks_backward=2"}, run);
}

}  // namespace hocket::passes
