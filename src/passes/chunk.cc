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

#include "passes/chunk_parts.h"
#include "passes/pass.h"

namespace hocket::passes {

using parallel::RankTemplate;
using parallel::StageTemplate;
using parallel::TaskTemplate;
using parallel::Templates;
using parallel::ValueId;
using program::Kind;

namespace {

using TaskList = ChunkParts::TaskList;

/// Rewrites the tasks of one class of ranks.
class Chunker {
 public:
  Chunker(program::Program& frame, RankTemplate& rank, int64_t forward, int64_t backward)
      : frame_(frame), rank_(rank), parts_(frame, rank, forward, backward) {}

  void run() {
    // Routing that somebody reads for all tokens (the balance loss, the host) stays beside that of
    // the chunks. Then every list that runs per micro-batch; a list is never mixed with another,
    // since the schedule may put time between them.
    for (const StageTemplate& stage : rank_.stages) {
      look(stage.forward);
      look(stage.backward);
    }
    for (const StageTemplate& stage : rank_.stages) {
      look_back(stage.backward);
    }
    for (const StageTemplate& stage : rank_.stages) {
      look_back(stage.forward);
    }
    for (StageTemplate& stage : rank_.stages) {
      stage.forward = rewritten(std::move(stage.forward));
    }
    parts_.go_backward();
    for (StageTemplate& stage : rank_.stages) {
      rewrite_backward(&stage, [&](TaskList list) { return rewritten(std::move(list)); });
    }
  }

 private:
  const Kind& kind_of(const TaskTemplate& made) const { return frame_.kind(made.task); }
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
  /// Marks the inputs of values that are needed whole as needed whole.
  void look_back(const TaskList& list) {
    for (size_t i = list.size(); i-- > 0;) {
      if (wanted_whole(list[i])) {
        read_whole_.insert(list[i].in.begin(), list[i].in.end());
      }
    }
  }
  /// Returns whether the task makes routing that is also needed for all tokens.
  bool wanted_whole(const TaskTemplate& made) const {
    return makes_routing(kind_of(made)) &&
           std::any_of(made.out.begin(), made.out.end(), [&](ValueId value) {
             return rank_.values[value].output || read_whole_.contains(value);
           });
  }

  TaskList rewritten(TaskList list) {
    // Tasks on rows are collected until another task reads their outputs or overwrites their
    // inputs, and are then written chunk by chunk.
    TaskList result;
    for (TaskTemplate& made : list) {
      parts_.rename(&made);
      if (!chunked(made)) {
        if (meets_waiting(made)) {
          write_waiting(&result);
        }
        parts_.rename(&made);
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
    // A round is the work on a chunk up to the next exchange of rows, and that exchange. All chunks
    // finish a round before any enters the next one: dispatches (each followed by its exchange),
    // then experts (each followed by the exchange back), then combines.
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
      parts_.note(made);
    }
    for (int round = 0; round <= last; ++round) {
      for (int64_t chunk = 0; chunk < parts_.chunks(); ++chunk) {
        for (size_t i = 0; i < waiting_.size(); ++i) {
          if (rounds[i] != round) continue;
          for (ValueId value : waiting_[i].in) {
            parts_.bring(value, waiting_[i].task, result);
          }
          result->push_back(parts_.chunk_of(waiting_[i], chunk));
        }
      }
    }
    waiting_.clear();
    waiting_reads_.clear();
    waiting_writes_.clear();
  }

  program::Program& frame_;
  RankTemplate& rank_;
  ChunkParts parts_;
  std::set<ValueId> read_whole_;
  TaskList waiting_;  // on rows, not yet written
  std::set<ValueId> waiting_reads_, waiting_writes_;
};

/// Returns whether the program has symbolic token counts, as in generation: these cannot be cut.
bool has_symbols(const Templates& templates) { return !templates.frame.symbols.empty(); }

struct ChunkOptions {
  int64_t moe_chunks = 1, moe_chunks_backward = 0;
  void fields(Fields& visit) {
    visit("moe_chunks", moe_chunks,
          "pieces of a rank's tokens, which go to their experts one after another")
        .min(1)
        .max(256);
    visit("moe_chunks_backward", moe_chunks_backward,
          "pieces in the backward pass; 0: the forward's number")
        .min(0)
        .max(256);
  }
};

void run_chunk(Templates& templates, const ChunkOptions& options) {
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
                        {"moe_chunks=2", "moe_chunks=4", "moe_chunks_backward=2"}, run_chunk);
}

}  // namespace hocket::passes
