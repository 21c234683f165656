// SPDX-License-Identifier: Apache-2.0
// The static check. Refuses a program that is malformed, can deadlock, races, reads overwritten
// memory, exceeds its memory, or does not compute the single-device graph. Reports the task, the
// ranks, the reason, and the change to make. Values are derived from the tasks alone (op,
// attributes, buffers read and written, groups, messages); origin labels are never read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check/certificate.h"
#include "graph/graph.h"
#include "program/memory.h"
#include "program/program.h"

namespace hocket::check {

struct OutputValue;

struct TaskRef {
  program::ClassId cls = program::kNone;
  program::TaskId task = program::kNone;
  bool operator==(const TaskRef&) const = default;
  auto operator<=>(const TaskRef&) const = default;
};

/// Class of a fault. Structure: ids, types, lanes. Order: deadlock, unmatched messages, races.
/// Memory: overlaps of the arena, budget. Value: the result is not that of the single-device graph.
enum class ProblemClass : uint8_t { structure, order, memory, value };
const char* to_string(ProblemClass problem_class);

struct Problem {
  std::string rule;  ///< name in docs/check.md: "types-agree", "race", "not-in-graph"
  ProblemClass problem_class = ProblemClass::structure;
  TaskRef task;                  ///< to look at first; task < 0: the class as a whole
  std::vector<TaskRef> related;  ///< other tasks involved, the most helpful first
  std::vector<int32_t> ranks;    ///< ranks concerned
  std::string text;              ///< the task, and the reason
  /// The first rank at which the rule fails, its part of the tensor, and the missing part: "rank 2
  /// (edp 1, ep 0) has dim 0 [8:12) of 16, addends t [0:2) of 4; missing t [2:4); so on 1 more
  /// rank".
  /// "" if no part of a tensor is involved.
  std::string where;
  std::string fix;  ///< the change to make
};

/// A loss to a codec on the way to a result, which then differs from that of one device by more
/// than rounding.
struct CodecLoss {
  std::string buffer;  ///< the result
  std::string codec;   ///< "int8"
  std::string term;    ///< that was encoded
  auto operator<=>(const CodecLoss&) const = default;
};
inline constexpr size_t kMaxListedLosses =
    1000;  ///< losses listed in a verdict; further ones are counted
/// Use of a codec: the number of values that it encoded, and of named buffers that these reach.
struct CodecUse {
  std::string codec;
  int64_t values = 0, buffers = 0;
};

/// A statement that holds for every run of the program, and the rule that proves it.
struct Claim {
  std::string property;
  std::string rule;
};

struct LiveBuffer {
  program::BufferId buffer = program::kNone;
  int64_t bytes = 0;
  std::string what;  ///< "f32[512,2048], written by linear L3 mb2 fwd (task 118)"
};

/// Memory of one rank of a class, recomputed from the planned offsets.
struct ClassMemory {
  program::ClassId cls = 0;
  std::string name;  ///< program::stage_name
  program::Memory planned;
  TaskRef peak_task;                ///< during which most bytes are alive; only if over budget
  std::vector<LiveBuffer> largest;  ///< alive then, largest first; only if over budget
};

struct CheckOptions {
  int64_t memory_budget = 0;     ///< bytes per rank; 0: not compared
  int64_t devices_per_node = 0;  ///< of the cluster; 0: not compared
  std::string budget_from;       ///< origin of the budget, for texts: "cluster.memory_budget"
  /// A program without problems that evaluates on the same ranks, in turn with this one; null:
  /// none.
  const program::Program* evaluation = nullptr;
  program::Kernels kernels = program::Kernels::on_copies;  ///< those of the checked memory's device
  bool allow_unplanned = false;  ///< accepts a program between passes, without a memory plan
  int max_problems = 20;         ///< problems kept in the verdict; all are counted
  /// For tests of the check itself: rules to leave out. A verdict with rules left out proves
  /// nothing.
  std::vector<std::string> skip_rules = {};
  /// For tests that run the program: called with the value of every output of every task (held.h).
  std::function<void(const OutputValue&)> on_write = {};
};

/// A rule of the check: its name in verdicts, and the statement that holds if it refuses nothing.
struct RuleInfo {
  const char* name;
  const char* says;
};
/// Returns all rules, in the order of evaluation.
std::vector<RuleInfo> rules();

struct Verdict {
  int64_t num_problems = 0;
  std::vector<Problem> problems;
  std::vector<Claim> proved;  ///< empty if anything was refused
  /// Results that are equal only up to codecs: the first kMaxListedLosses, and counts of all.
  std::vector<CodecLoss> losses;
  std::vector<CodecUse> codec_uses;
  std::vector<std::string> assumptions;  ///< of the proof
  std::vector<std::string> outside;      ///< the scope of the proof
  std::vector<ClassMemory> memory;       ///< of every class; empty without a memory plan
  /// Planned rows of ragged buffers over the rows of even routing, the least ratio; 0: there are no
  /// ragged buffers, or no reference to derive it from.
  double ragged_factor = 0;
  int64_t num_tasks = 0, num_buffers = 0, num_messages = 0, num_collectives = 0;
  int64_t num_applications = 0;  ///< distinct op applications of the single-device step
  double seconds = 0;
  Certificate certificate;  ///< the subject of this verdict
  /// The cycle of waits if sends waited for their receivers; "" if the program ends then, too.
  std::string stuck_when_sends_wait;
  bool ok() const { return num_problems == 0; }
};

/// Checks programs against one single-device graph. Interprets the graph's step once.
class Checker {
 public:
  /// `num_micro_batches`: runs of forward and backward nodes; optimizer nodes run once.
  Checker(const graph::Graph& reference, int32_t num_micro_batches);
  ~Checker();
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;
  /// Checks a program. Never throws for a bad program: all problems are in the verdict.
  Verdict check(const program::Program& program, const CheckOptions& options = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Checks structure, order, memory, and equality with `reference`.
Verdict check(const program::Program& program, const graph::Graph& reference,
              const CheckOptions& options = {});

/// Checks structure, order and memory of a program without its graph.
Verdict check_structure(const program::Program& program, const CheckOptions& options = {});

/// Returns a verdict as text for people: each problem with its fix, or the proof with its rules,
/// assumptions and scope.
std::string to_text(const Verdict& verdict);

/// Returns one line for a program without problems: "equal to the single-device graph", and the
/// first losses of codecs.
std::string equality_text(const Verdict& verdict);

/// Returns a verdict as JSON, with all hashes: the certificate. `evaluation`: verdict on the
/// program that evaluates beside this one, or null.
std::string to_json(const Verdict& verdict, const Verdict* evaluation = nullptr);

}  // namespace hocket::check
