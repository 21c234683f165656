// SPDX-License-Identifier: Apache-2.0
// Builder of a trace from a program and the times of its tasks. It alone defines the contents of an
// event, for the executor and the simulator.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"
#include "trace/trace.h"

namespace hocket::trace {

/// Builder of a trace. The program must outlive it. Times are nanoseconds since the trace's origin.
class TraceBuilder {
 public:
  /// Creates an empty trace. `source`: "run" or "simulation".
  TraceBuilder(const program::Program& program, std::string title, std::string source);

  void add(int32_t rank, program::TaskId task, int32_t step, int64_t start_ns, int64_t end_ns);
  /// Adds all tasks of one rank in one step: entry i is task i of the rank's class. Times are
  /// shifted by `offset_ns`. Tasks with end < start did not run and are left out. The live bytes of
  /// step buffers become a memory counter. A buffer counts from the start of the first task that
  /// uses it to the end of the last; a ragged one counts with its expected size. `transfer_ns`, if
  /// known: when each communication began to transfer.
  void add_step(int32_t rank, int32_t step, std::span<const int64_t> start_ns,
                std::span<const int64_t> end_ns, int64_t offset_ns = 0,
                std::span<const int64_t> transfer_ns = {});

  Trace& trace() { return trace_; }
  /// Returns the trace, with `steps` filled; the builder is empty afterwards.
  Trace take();

 private:
  void add_waits();
  StringId layer_name(int32_t layer);
  StringId moves(program::ClassId cls, program::TaskId task);
  int32_t group_instance(program::GroupId group, int32_t rank);
  int64_t message(int32_t step, int32_t sender, int32_t receiver, int32_t tag, bool sends);
  void add_live_bytes(int32_t rank, std::span<const int64_t> start_ns,
                      std::span<const int64_t> end_ns, int64_t offset_ns);

  const program::Program& program_;
  Trace trace_;
  std::vector<program::ClassId> class_of_rank_;
  std::vector<StringId> kind_, recomputed_;  // per Kind: op, "op (recompute)"
  std::vector<StringId> phase_;
  std::map<int32_t, StringId> layer_;                        // names of Task::layer
  std::map<program::ClassId, std::vector<StringId>> moves_;  // per task of a class
  std::map<std::pair<program::GroupId, int32_t>, int32_t> group_of_rank_;
  std::map<std::vector<int32_t>, int32_t> groups_;
  using Message = std::array<int32_t, 4>;                 // step, sender, receiver, tag
  std::map<std::pair<Message, bool>, int32_t> passed_;    // messages seen at one end (true: sends)
  std::map<std::pair<Message, int32_t>, int64_t> flows_;  // id of the k-th such message
};

}  // namespace hocket::trace
