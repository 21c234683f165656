// SPDX-License-Identifier: Apache-2.0
// Tasks and values of a template in chunks of its tokens, for the pass `chunk`.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "passes/template_edit.h"

namespace hocket::passes {

/// Moves or computes routed rows.
bool moves_rows(const program::Kind& kind);
/// Makes counts and row numbers of tokens, or the sizes of their exchange.
bool makes_routing(const program::Kind& kind);

/// The chunks of one class of ranks, with three kinds of values. Rows and their routing
/// (counts, row numbers, sizes of exchanges) are values per chunk: row numbers and the order
/// of rows belong to a chunk. Dense values by token are accessed through views, so tasks that
/// use them whole stay unchanged. Sums over tokens (gradients) are accumulated chunk by
/// chunk.
/// If the backward pass has another number of chunks, its routing is recomputed. Rows of the
/// forward pass are then regrouped by the sizes of both exchanges.
class ChunkParts {
 public:
  using ValueId = parallel::ValueId;
  using TaskList = std::vector<parallel::TaskTemplate>;

  /// Requires: all arguments outlive it.
  ChunkParts(program::Program& frame, parallel::RankTemplate& rank, int64_t forward,
             int64_t backward)
      : frame_(frame),
        rank_(rank),
        edit_(frame, rank),
        forward_(forward),
        backward_(backward),
        chunks_(forward) {}

  /// Switches to the chunks of the backward pass.
  void go_backward() { chunks_ = backward_; }
  int64_t chunks() const { return chunks_; }

  /// Records a task on rows or routing, before its chunks are made.
  void note(const parallel::TaskTemplate& made);
  /// Converts a value made in chunks to the present number of chunks; appends the necessary tasks
  /// to `result`. `user`: the reading task.
  void bring(ValueId value, const program::Task& user, TaskList* result);
  /// Returns the task on values of one chunk. Throws Error if its tokens do not divide, or if its
  /// op cannot work on a part of them.
  parallel::TaskTemplate chunk_of(const parallel::TaskTemplate& whole, int64_t chunk);
  /// Redirects a later task to the values that chunks write.
  void rename(parallel::TaskTemplate* made) const;

 private:
  /// The sizes of an exchange that brought rows to their experts.
  struct Exchange {
    ValueId sizes = program::kNone;
    std::vector<int32_t> axes;  ///< of its group
  };
  /// The routing of rows, and how they came to where they are.
  struct Rows {
    ValueId counts = program::kNone;
    std::vector<Exchange> came_by;  ///< the first one first
  };
  /// A value in a number of chunks.
  using InChunks = std::pair<ValueId, int64_t>;

  const program::Kind& kind_of(const parallel::TaskTemplate& made) const {
    return frame_.kind(made.task);
  }
  void regroup(ValueId value, int64_t from, const program::Task& user, TaskList* result);
  const std::vector<ValueId>& own_sizes(ValueId counts, int64_t chunks, const program::Task& user,
                                        TaskList* result);
  ValueId part_read(ValueId value, int dim, int64_t chunk);
  ValueId part_made(const parallel::TaskTemplate& whole, size_t output, int dim, int64_t chunk);
  [[noreturn]] void refuse_tokens(const parallel::Value& value, const graph::Dim& tokens) const;
  graph::TensorType type_of_part(const parallel::Value& value, int dim) const;
  ValueId own(ValueId whole, int dim, int64_t chunk);
  ValueId view(ValueId whole, int dim, int64_t chunk);
  program::KindId kind_of_chunk(const parallel::TaskTemplate& whole,
                                const parallel::TaskTemplate& part);

  program::Program& frame_;
  parallel::RankTemplate& rank_;
  TemplateEdit edit_;
  const int64_t forward_, backward_;
  int64_t chunks_;
  std::map<InChunks, std::vector<ValueId>> own_, views_, own_sizes_;  // by chunk
  std::map<ValueId, ValueId> renamed_;               // to the value with the buffer that it reuses
  std::map<ValueId, int64_t> experts_;               // of rows: of all ranks together
  std::map<ValueId, Rows> rows_;                     // of rows and row numbers
  std::map<ValueId, parallel::TaskTemplate> maker_;  // of routing
};

}  // namespace hocket::passes
