// SPDX-License-Identifier: Apache-2.0
#include "check/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <set>
#include <string>

#include "base/error.h"
#include "check/context.h"
#include "check/hazards.h"
#include "check/memory.h"
#include "check/order_checker.h"
#include "check/reference.h"
#include "check/rules/costs.h"
#include "check/rules/rules.h"
#include "check/rules/structure.h"
#include "check/values/interpreter.h"
#include "program/parts.h"

namespace hocket::check {
namespace {

/// Adds the claims that a verdict without problems proves, each with its method. Claims nothing
/// about memory without a plan, or about values without a reference.
void claim(Verdict& verdict, bool planned, bool values) {
  const auto add = [&](std::string property, std::string rule) {
    verdict.proved.push_back({std::move(property), std::move(rule)});
  };
  add(fmt::format("{} tasks and {} buffers are well-formed: ids, types, lanes, in-place updates",
                  verdict.num_tasks, verdict.num_buffers),
      fmt::format("{} structural rules", structural_rules().size()));
  const bool any_send = verdict.stuck_when_sends_wait.empty();
  add(fmt::format("every run ends{}: {} messages pair with equal types, {} collectives come in one "
                  "order on all members, nothing waits in a cycle",
                  any_send ? ", whether a send completes alone or waits for its receiver"
                           : " if sends complete alone",
                  verdict.num_messages, verdict.num_collectives),
      any_send ? "abstract runs of all lanes, one representative rank per class, with both sends"
               : "abstract run of all lanes, one representative rank per class");
  add("no race: any two accesses to a buffer, one of them a write, are ordered; nothing is read "
      "before it is written",
      "vector clocks over lane order and dependencies");
  if (planned) {
    add("reused memory is free by then, workspaces included; all of it lies in the arena",
        "owners of address ranges, swept in a topological order, under the same clocks");
  }
  if (!verdict.memory.empty()) {
    add("a rank needs at most the memory below",
        "pages of named buffers, and of the arena between offset and offset + expected size; "
        "messages not known to be received when the next is sent");
  }
  if (values) {
    add(fmt::format(
            "every parameter, state and output ends the step with the value that the "
            "single-device graph gives it ({} applications), in the layout the host expects; "
            "no rank has a part of a sequence where an op needs all of it{}",
            verdict.num_applications,
            verdict.losses.empty() ? "" : "; up to the losses of the codecs below"),
        "terms and layouts derived from the tasks; op layout rules per mesh axis; sums as "
        "multisets");
  }
  add("predictions count the work that the kernels do",
      values ? "FLOPs and bytes of every kind worked out again from its op and types"
             : "FLOPs and bytes of every kind without routed rows worked out again from its op and "
               "types");
}

bool has_ragged(const Program& program) {
  for (const RankClass& cls : program.classes) {
    for (const program::Buffer& buffer : cls.buffers) {
      if (buffer.expected_bytes != program::kNone) return true;
    }
  }
  return false;
}

/// Adds assumptions and scope of the claims, also to a refused program.
void state_limits(Verdict& verdict, const Context& ctx, bool values) {
  if (values) {
    verdict.assumptions = {
        "the layout and gradient rules of src/ops are right (tested against one device and finite "
        "differences)",
        "the host fills inputs and initial persistent tensors as their declared layouts say",
        "addition is associative and commutative",
        "two different sums do not collide in a 128-bit hash",
    };
  }
  verdict.assumptions.push_back("ranks of a class run the same list of tasks");
  std::set<std::string> assumed;
  for (const program::Kind& kind : ctx.program.kinds) {
    const ops::Op* op = ops::find_or_null(kind.op);
    if (op != nullptr && op->assumes != nullptr) {
      assumed.insert(fmt::format("{} takes from the host: {}", op->name, op->assumes));
    }
  }
  verdict.assumptions.insert(verdict.assumptions.end(), assumed.begin(), assumed.end());
  if (!verdict.stuck_when_sends_wait.empty()) {
    verdict.assumptions.push_back(
        "sends complete without their receiver, as between local ranks (Gloo and NCCL wait); "
        "otherwise " +
        verdict.stuck_when_sends_wait);
  }
  if (verdict.ragged_factor > 0) {
    verdict.assumptions.push_back(
        fmt::format("memory: routing brings no rank more than {:.2f} times its even share of rows, "
                    "the planned size of ragged buffers; beyond that nothing is dropped, and a run "
                    "takes more memory and warns",
                    std::floor(verdict.ragged_factor * 100) / 100));
  } else if (!values && has_ragged(ctx.program)) {
    verdict.assumptions.push_back("memory: ragged buffers hold no more than their expected size");
  }
  verdict.outside = {
      "kernels' own correctness",
      "rounding, and the order in which addends are added: sums with the same addends are the same "
      "here. Ranks that add them up each in an order of its own keep copies of a parameter that "
      "differ by rounding, and drift apart; a collective gives all its ranks the same bits",
      "the communication library and the network",
      "data-dependent failures: ids out of range, ragged buffers beyond the memory budget",
      "memory that is not tensors: code, threads, tokenizer, the index of the data, and data held "
      "while a checkpoint is saved"};
}

Verdict run(const Program& program, Reference* reference, const CheckOptions& options);

/// Checks a program in which every part of a task is a task. Reports problems of the original
/// tasks.
Verdict run_parts(const program::Expanded& expanded, Reference* reference,
                  const CheckOptions& options) {
  Verdict verdict = run(expanded.program, reference, options);
  const auto to_whole = [&](TaskRef& ref) {
    if (ref.task >= 0) {
      ref.task = expanded.origin[ref.cls][ref.task];
    }
  };
  for (Problem& problem : verdict.problems) {
    to_whole(problem.task);
    std::for_each(problem.related.begin(), problem.related.end(), to_whole);
  }
  return verdict;
}

/// Expands tasks in parts. Returns nothing, and reports, if the parts do not fit; with that rule
/// off, expands as if there were no parts.
std::optional<program::Expanded> write_out_parts(Context& ctx) {
  TaskRef at;
  std::string text;
  try {
    return program::expand_parts(ctx.program);
  } catch (const program::PartsError& error) {
    at = {error.cls, error.task};
    text = error.text();
  } catch (const Error& error) {
    text = error.text();
  }
  ctx.report("parts-fit", ProblemClass::structure, at, {}, text,
             "cut along a letter that the op may be cut along, in equal blocks");
  if (!ctx.skips("parts-fit")) return std::nullopt;
  program::Expanded whole{ctx.program, {}};
  for (RankClass& cls : whole.program.classes) {
    std::vector<TaskId>& origin = whole.origin.emplace_back();
    for (Task& task : cls.tasks) {
      task.parts.clear();
      task.part_deps.clear();
      origin.push_back(origin.size());
    }
  }
  return whole;
}

/// Checks a program. `reference` null: checks no values. Structural rules come first, since all
/// other parts rely on valid ids, types and lanes. Then one pass over the tasks checks order,
/// hazards and values; memory and costs are checked on the program as a whole.
Verdict run(const Program& program, Reference* reference, const CheckOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Verdict verdict;
  TypeTable own_types;
  OpKeys own_keys;
  Problems problems;
  problems.limit = options.max_problems;
  Context ctx(program, options, reference ? reference->types : own_types,
              reference ? reference->keys : own_keys, problems);
  for (const RankClass& cls : program.classes) {
    verdict.num_tasks += static_cast<int64_t>(cls.tasks.size());
    verdict.num_buffers += static_cast<int64_t>(cls.buffers.size());
  }
  if (reference) {
    verdict.num_applications = reference->terms.num_apps();
  }
  bool well_formed = check_rules(ctx);
  if (well_formed && program::has_parts(program)) {
    if (const auto expanded = write_out_parts(ctx)) {
      Verdict of_parts = run_parts(*expanded, reference, options);
      of_parts.certificate.program = program::program_hash(program);
      return of_parts;
    }
    well_formed = false;
  }
  if (well_formed) {
    if (reference && reference->num_micro_batches() != program.num_micro_batches) {
      ctx.report("micro-batches", ProblemClass::value, {}, {},
                 fmt::format("the program runs {} micro-batches; the reference {}",
                             program.num_micro_batches, reference->num_micro_batches()),
                 "check against the program's number of micro-batches");
    }
    if (reference && reference->symbols() != program.symbols) {
      ctx.report("symbol-table", ProblemClass::value, {}, {},
                 "the symbols of the program are not those of the reference",
                 "list the symbols of the graph, in its order");
    }
    Hazards hazards(ctx);
    std::unique_ptr<Interpreter> interpreter;
    if (reference) {
      interpreter = std::make_unique<Interpreter>(ctx, *reference, hazards);
    }
    OrderChecker order(ctx);
    order.match();
    const bool finished = order.run(hazards, interpreter.get());
    if (finished && interpreter) {
      interpreter->finish();
    }
    if (interpreter) {
      verdict.ragged_factor = interpreter->least_factor();
      verdict.losses = interpreter->losses();
      verdict.codec_uses = interpreter->codec_uses();
    }
    if (program::is_planned(program)) {
      verdict.memory = check_memory(ctx);
    }
    check_costs(ctx, interpreter.get());
    if (problems.count == 0) {
      verdict.stuck_when_sends_wait = order.stuck_when_sends_wait();
    }
    verdict.num_messages = order.num_messages();
    verdict.num_collectives = order.num_collectives();
  }
  verdict.num_problems = problems.count;
  verdict.problems = std::move(problems.list);
  if (verdict.ok() && options.skip_rules.empty()) {
    claim(verdict, ctx.planned, reference != nullptr);
  }
  state_limits(verdict, ctx, reference != nullptr);
  verdict.certificate.program = program::program_hash(program);
  verdict.certificate.mesh = mesh_hash(program.roles);
  verdict.certificate.ranks = ranks_in_words(program.roles);
  if (reference) {
    verdict.certificate.reference = reference->hash();
  }
  verdict.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return verdict;
}

}  // namespace

const char* to_string(ProblemClass problem_class) {
  constexpr const char* kNames[] = {"structure", "order", "memory", "value"};
  return kNames[place_of(problem_class)];
}

std::vector<RuleInfo> rules() {
  std::vector<RuleInfo> all = structural_rules();
  all.insert(all.end(), derived_rules().begin(), derived_rules().end());
  return all;
}

struct Checker::Impl {
  Reference reference;
};

Checker::Checker(const graph::Graph& reference, int32_t num_micro_batches)
    : impl_(new Impl{Reference(reference, num_micro_batches)}) {}
Checker::~Checker() = default;

Verdict Checker::check(const Program& program, const CheckOptions& options) {
  return run(program, &impl_->reference, options);
}

Verdict check(const Program& program, const graph::Graph& reference, const CheckOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Checker checker(reference, program.num_micro_batches);
  Verdict verdict = checker.check(program, options);
  verdict.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return verdict;
}

Verdict check_structure(const Program& program, const CheckOptions& options) {
  return run(program, nullptr, options);
}

}  // namespace hocket::check
