// SPDX-License-Identifier: Apache-2.0
// Trace schema, shared by runs and simulations: one event per task, memory samples, and their
// coordinates. Written as Chrome JSON (plain or gzip), which Perfetto opens: a process per rank, a
// thread per lane, arrows from sends to receives, a counter per rank. docs/outputs.md describes the
// file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "program/program.h"

namespace hocket::trace {

/// Index into Trace::strings; 0 is the empty string.
using StringId = uint32_t;

/// End of a transfer that an event is at: the arrow goes from `out` to `in`.
enum class FlowEnd : uint8_t { none, out, in };

/// Execution of one task. -1 (kNone) where a coordinate does not apply. 104 bytes.
struct TraceEvent {
  int64_t start_ns = 0, end_ns = 0;  ///< since the trace's origin, on a clock common to all ranks
  int64_t bytes = 0;                 ///< memory traffic of a kernel; payload of a communication
  double flops = 0;
  /// Communication: time spent waiting for others before the transfer began; 0: none or unknown.
  int64_t waited_ns = 0;
  int64_t flow = 0;    ///< transfers: same id at both ends, 1 .. 2^53; 0 none
  StringId name = 0;   ///< text to show; the kind if empty
  StringId kind = 0;   ///< op name; colours are by kind
  StringId phase = 0;  ///< "forward", "backward", "grad", "optimizer"
  StringId moves = 0;  ///< communication: parameters that it moves, or their gradients
  uint32_t task = 0;   ///< index into the tasks of the rank's class
  int32_t rank = 0;
  StringId layer = 0;  ///< as graph::layer_name: "L3", "head"
  int32_t step = program::kNone, micro_batch = program::kNone, stage = program::kNone;
  int32_t group = program::kNone;  ///< collectives: same id for all members of one group
  int32_t group_ranks = 0;         ///< collectives: members of the group
  uint16_t lane = 0;               ///< index into Trace::lanes
  FlowEnd flow_end = FlowEnd::none;
  bool operator==(const TraceEvent&) const = default;
};

/// Bytes in use on a rank from `t_ns` on.
struct TraceMemory {
  int64_t t_ns = 0, bytes = 0;
  int32_t rank = 0;
  StringId name = 0;  ///< sort of memory: "arena", "persistent"
  bool operator==(const TraceMemory&) const = default;
};

/// Dependencies between lanes of a rank, for ranks that run the same tasks. Predecessors in a
/// task's own lane are not listed.
struct TraceWaits {
  std::vector<int32_t> ranks;
  std::vector<std::vector<int32_t>> tasks;  ///< a task, then the tasks that end before it starts
  bool operator==(const TraceWaits&) const = default;
};

struct Trace {
  Trace();

  std::string title;
  std::string source = "run";  ///< "run" or "simulation"
  int32_t num_ranks = 0;
  std::vector<std::string> lanes;  ///< starts with the lanes of `Lane`, in its order
  std::vector<int32_t> steps;      ///< steps that the trace covers
  /// Free-form facts: "model", "plan", "machine", "program_hash", "config", ...
  std::vector<std::pair<std::string, std::string>> properties;
  std::vector<TraceWaits> waits;  ///< from the program
  std::vector<TraceEvent> events;
  std::vector<TraceMemory> memory;
  std::vector<std::string> strings;  ///< add with intern()

  StringId intern(std::string_view text);
  const std::string& text(StringId id) const { return strings[id]; }
  /// Returns the value; empty if there is no such property.
  const std::string& property(std::string_view key) const;
  void set_property(std::string_view key, std::string_view value);

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::unordered_map<std::string, StringId, Hash, std::equal_to<>> index_;
};

/// Writes atomically; gzip if `path` ends in `.gz`. About 0.5 s per million events, 2 s with gzip.
/// Throws Error (exit code 1) if a write fails. Requires: event fields index the trace's own
/// tables.
void write_trace(const Trace& trace, const std::string& path);

}  // namespace hocket::trace
