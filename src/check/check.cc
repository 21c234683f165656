// SPDX-License-Identifier: Apache-2.0
#include "check/check.h"

#include <fmt/format.h>

#include <chrono>

#include "base/error.h"
#include "check/context.h"
#include "check/hazards.h"
#include "check/memory.h"
#include "check/reference.h"
#include "check/rules.h"
#include "check/structure.h"
#include "check/sweep.h"
#include "check/values.h"

namespace hocket::check {
namespace {

void claim(Verdict& v, bool planned, bool values) {
  auto add = [&](std::string what, std::string rule) {
    v.proved.push_back({std::move(what), std::move(rule)});
  };
  add(fmt::format("{} tasks and {} buffers are well-formed: ids, types, lanes, in-place updates",
                  v.num_tasks, v.num_buffers),
      fmt::format("{} structural rules", structural_rules().size()));
  add(fmt::format("every run ends: {} messages pair with equal types, {} collectives come in one "
                  "order on all members, nothing waits in a cycle",
                  v.num_messages, v.num_collectives),
      "abstract run of all lanes, one representative rank per class; sends complete alone");
  add("no race: every two accesses to a buffer of which one writes are ordered; nothing is read "
      "before it is written",
      "vector clocks over lane order and dependencies");
  if (planned)
    add("memory that is used twice is free by then, workspaces included; all of it lies in the "
        "arena",
        "owners of address ranges, swept in a topological order, under the same clocks");
  if (values)
    add(fmt::format(
            "every parameter, state and output ends the step with the value that the "
            "single-device graph gives it ({} applications), in the layout the host expects",
            v.num_applications),
        "terms and layouts derived from the tasks; op layout rules per mesh axis; sums as "
        "multisets");
}

void state_limits(Verdict& v, bool values) {
  if (values)
    v.assumptions = {
        "the layout and gradient rules of src/ops are right (tested against one device and finite "
        "differences)",
        "the host fills inputs and initial persistent tensors as their declared layouts say, and "
        "splits micro-batches between documents",
        "addition is associative and commutative",
        "two different sums do not collide in a 128-bit hash",
    };
  v.assumptions.push_back("ranks of a class run the same list of tasks");
  v.outside = {
      "kernels' own correctness", "rounding and the order of reductions",
      "the communication library and the network",
      "data-dependent failures: ids out of range, ragged buffers beyond the memory budget"};
}

/// Shared by both entries; `reference` null: no values.
Verdict run(const Program& program, Reference* reference, const CheckOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Verdict v;
  TypeTable own_types;
  OpKeys own_keys;
  Problems problems;
  problems.limit = options.max_problems;
  Context ctx(program, options, reference ? reference->types : own_types,
              reference ? reference->keys : own_keys, problems);
  for (const RankClass& c : program.classes) {
    v.num_tasks += static_cast<int64_t>(c.tasks.size());
    v.num_buffers += static_cast<int64_t>(c.buffers.size());
  }
  if (reference) v.num_applications = reference->terms.num_apps();
  if (check_rules(ctx)) {
    if (reference && reference->num_micro_batches() != program.num_micro_batches)
      ctx.report("micro-batches", ProblemClass::value, {}, {},
                 fmt::format("the program runs {} micro-batches; the reference {}",
                             program.num_micro_batches, reference->num_micro_batches()),
                 "check against as many micro-batches as the program runs");
    Hazards hazards(ctx);
    std::unique_ptr<Values> values;
    if (reference) values = std::make_unique<Values>(ctx, *reference, hazards);
    Sweep sweep(ctx);
    sweep.match();
    const bool finished = sweep.run(hazards, values.get());
    if (finished && values) values->finish();
    v.memory = check_memory(ctx, hazards);
    v.num_messages = sweep.num_messages();
    v.num_collectives = sweep.num_collectives();
  }
  v.num_problems = problems.count;
  v.problems = std::move(problems.list);
  if (v.ok() && options.skip_rules.empty()) claim(v, ctx.planned, reference != nullptr);
  state_limits(v, reference != nullptr);
  v.program_hash = program_hash(program);
  v.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return v;
}

}  // namespace

const char* to_string(ProblemClass c) {
  constexpr const char* kNames[] = {"structure", "order", "memory", "value"};
  return kNames[static_cast<int>(c)];
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
  Verdict v = checker.check(program, options);
  v.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return v;
}

Verdict check_structure(const Program& program, const CheckOptions& options) {
  return run(program, nullptr, options);
}

Hash128 program_hash(const Program& program) {
  std::vector<uint64_t> words;
  Hasher hasher;
  auto flush = [&] {
    hasher.add(std::string_view(reinterpret_cast<const char*>(words.data()), words.size() * 8));
    words.clear();
  };
  auto put = [&](auto x) { words.push_back(static_cast<uint64_t>(x)); };
  auto put_text = [&](const std::string& s) {
    put(s.size());
    put(hash64(s));
  };
  auto put_type = [&](const graph::TensorType& t) {
    put(t.dtype);
    put(t.top_k);
    put(t.dims.size());
    for (int64_t d : t.dims) put(d);
  };
  auto put_layout = [&](const Layout& l) {
    for (const Placement& p : l.on) put(static_cast<int64_t>(p.code));
  };
  put(program.mesh.axes.size());
  for (const graph::Axis& a : program.mesh.axes) {
    put_text(a.name);
    put(a.size);
  }
  put(program.num_micro_batches);
  put(program.kinds.size());
  for (const program::Kind& k : program.kinds) {
    put_text(k.op + graph::to_string(k.attrs));
    put(k.in.size());
    for (const auto& t : k.in) put_type(t);
    put(k.out.size());
    for (const auto& t : k.out) put_type(t);
    put(k.workspace);
  }
  put(program.groups.size());
  for (const program::Group& g : program.groups) {
    put(g.axes.size());
    for (int32_t a : g.axes) put(a);
    put(g.members.size());
    for (int32_t m : g.members) put(m);
  }
  put(program.classes.size());
  for (const RankClass& c : program.classes) {
    put(c.stage);
    put(c.arena_bytes);
    put(c.expected_bytes);
    put(c.tasks.size());
    for (size_t i = 0; i < c.tasks.size(); ++i) {
      const Task& t = c.tasks[i];
      put(t.kind);
      put(static_cast<uint64_t>(t.lane) << 32 | t.accumulate);
      put(t.in.size() << 32 | t.out.size());
      for (BufferId b : t.in) put(b);
      for (BufferId b : t.out) put(b);
      put(t.deps.size());
      for (TaskId d : t.deps) put(d);
      put(t.group);
      put(t.peer_axis);
      put(t.peer);
      put(t.tag);
      put(c.task_workspace.empty() ? program::kNone : c.task_workspace[i]);
      if (words.size() > 4096) flush();
    }
    put(c.buffers.size());
    for (const program::Buffer& b : c.buffers) {
      put_type(b.type);
      put(b.kind);
      put(b.offset);
      put(b.expected_bytes);
      put(b.micro_batch);
      if (b.kind != BufferKind::step) {
        put_text(b.name);
        put_layout(b.layout);
      }
      if (words.size() > 4096) flush();
    }
  }
  flush();
  return hasher.finish();
}

}  // namespace hocket::check
