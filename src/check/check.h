// SPDX-License-Identifier: Apache-2.0
// The static check: refuses a program that is malformed, can deadlock, races, reads memory that was
// overwritten, exceeds its memory, or does not compute the single-device graph; says which task,
// which ranks, why, and what to change. What a task computes is derived from what it does (op,
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

struct Wrote;

struct TaskRef {
  program::ClassId cls = program::kNone;
  program::TaskId task = program::kNone;
  bool operator==(const TaskRef&) const = default;
  auto operator<=>(const TaskRef&) const = default;
};

/// Structure: ids, types, lanes. Order: deadlock, unmatched messages, races. Memory: overlaps of
/// the arena, budget. Value: the result is not that of the single-device graph.
enum class ProblemClass : uint8_t { structure, order, memory, value };
const char* to_string(ProblemClass problem_class);

struct Problem {
  std::string rule;  ///< name in docs/check.md: "types-agree", "race", "not-in-graph"
  ProblemClass problem_class = ProblemClass::structure;
  TaskRef task;                  ///< where to look first; task < 0: the class as a whole
  std::vector<TaskRef> related;  ///< other tasks that take part, most telling first
  std::vector<int32_t> ranks;    ///< ranks concerned
  std::string text;              ///< which task, and why
  /// The first rank at which it fails, what that rank has, and what is missing there: "rank 2 (edp
  /// 1, ep 0) has dim 0 [8:12) of 16, addends t [0:2) of 4; missing t [2:4); so on 1 more rank". ""
  /// where no piece of a tensor plays a part.
  std::string where;
  std::string fix;  ///< what to change
};

/// What a codec lost on the way to a result, which is why it differs from that of one device by
/// more than rounding.
struct Lossy {
  std::string buffer;  ///< the result
  std::string codec;   ///< "int8"
  std::string term;    ///< what went through it
  auto operator<=>(const Lossy&) const = default;
};
inline constexpr size_t kMostLossy = 1000;
/// How much goes through a codec: values that it encoded, and named buffers that they reach.
struct LossyCodec {
  std::string codec;
  int64_t values = 0, buffers = 0;
};

/// One statement that holds for every run of the program, and the rule that showed it.
struct Claim {
  std::string what;
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
  TaskRef peak_task;  ///< while it runs, the most bytes are alive (only when over budget)
  std::vector<LiveBuffer> largest;  ///< alive then, largest first (only when over budget)
};

struct CheckOptions {
  int64_t memory_budget = 0;     ///< bytes per rank; 0: not compared
  int64_t devices_per_node = 0;  ///< of the cluster; 0: not compared
  std::string budget_from;       ///< who says so, for the refusal: "cluster.memory_budget"
  /// A good program that evaluates on the same ranks, in turn with this one; null: none.
  const program::Program* evaluation = nullptr;
  /// Of the device whose memory it is.
  program::Kernels kernels = program::Kernels::on_copies;
  bool allow_unplanned = false;  ///< a program between passes: no memory plan yet
  int max_problems = 20;         ///< problems kept in the verdict; all are counted
  /// For tests of the check itself: what these rules refuse is passed over. The verdict of a
  /// check with rules left out proves nothing.
  std::vector<std::string> skip_rules = {};
  /// For tests that run the program: told of every output of every task what is left in it
  /// (held.h).
  std::function<void(const Wrote&)> on_write = {};
};

/// A rule of the check: its name in a verdict, and what holds when it refuses nothing.
struct RuleInfo {
  const char* name;
  const char* says;
};
/// All rules, in the order in which they are looked at.
std::vector<RuleInfo> rules();

struct Verdict {
  int64_t num_problems = 0;
  std::vector<Problem> problems;
  std::vector<Claim> proved;  ///< empty when something was refused
  /// Results that are equal only up to codecs: the first kMostLossy of them, and how many there
  /// are.
  std::vector<Lossy> lossy;
  std::vector<LossyCodec> lossy_codecs;
  std::vector<std::string> assumptions;  ///< what the proof takes for granted
  std::vector<std::string> outside;      ///< what it says nothing about
  std::vector<ClassMemory> memory;       ///< of every class; empty without a memory plan
  /// Ragged buffers are planned for this many times the rows of even routing (the least of them);
  /// 0: there are none, or no reference to tell.
  double ragged_factor = 0;
  int64_t num_tasks = 0, num_buffers = 0, num_messages = 0, num_collectives = 0;
  int64_t num_applications = 0;  ///< distinct op applications of the single-device step
  double seconds = 0;
  Certificate certificate;  ///< what this verdict is about
  /// Who waits for whom if a send waited for its receiver; "" if the program ends then, too.
  std::string stuck_when_sends_wait;
  bool ok() const { return num_problems == 0; }
};

/// Checks programs against one single-device graph; the step of the graph is interpreted once.
class Checker {
 public:
  /// `num_micro_batches`: forward and backward nodes run this often, optimizer nodes once.
  Checker(const graph::Graph& reference, int32_t num_micro_batches);
  ~Checker();
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;
  /// Never throws for a bad program: everything found is in the verdict.
  Verdict check(const program::Program& program, const CheckOptions& options = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Structure, order, memory, and equality with `reference`.
Verdict check(const program::Program& program, const graph::Graph& reference,
              const CheckOptions& options = {});

/// Structure, order and memory of a program whose graph is not at hand.
Verdict check_structure(const program::Program& program, const CheckOptions& options = {});

/// What was found, for people: refused (each problem with its fix), or proved, by which rule, under
/// which assumptions, and what lies outside.
std::string to_text(const Verdict& verdict);

/// Of a good program, in a line: "equal to the single-device graph", and up to which losses of
/// codecs (the first of them).
std::string equality_text(const Verdict& verdict);

/// The certificate: the same as JSON, with the program's hash. `evaluation`: the verdict on the
/// program that evaluates beside this one, or null.
std::string to_json(const Verdict& verdict, const Verdict* evaluation = nullptr);

}  // namespace hocket::check
