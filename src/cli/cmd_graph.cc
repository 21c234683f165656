// SPDX-License-Identifier: Apache-2.0
// hocket graph
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "check/check.h"
#include "cli/diff.h"
#include "cli/inputs.h"
#include "cli/verbs.h"
#include "parallel/lower.h"
#include "parallel/schedule.h"
#include "passes/pass.h"
#include "program/finalize.h"

namespace hocket::cli {
namespace {

struct Options {
  std::vector<std::string> inputs, set;
  std::string stage, out, passes, skip, dump_after;
  std::optional<int64_t> rank;
  int64_t limit = 200;
  bool dot = false, list_passes = false, diff = false, check = false, times = false;
};

void list_passes() {
  fmt::print("{:<12}{:<9}{:<10}{}\n", "pass", "on", "numerics", "what it does");
  for (const passes::Pass& pass : passes::all()) {
    fmt::print("{:<12}{:<9}{:<10}{}\n", pass.name, pass.on_graph ? "graph" : "program",
               pass.same_numerics ? "same" : "changed", pass.help);
  }
}

/// The class of ranks that `o.rank` is in, kNone for all.
program::ClassId class_of(const program::Program& program, const Options& o) {
  if (!o.rank) return program::kNone;
  if (*o.rank < 0 || *o.rank >= program.mesh.size()) {
    fail("hocket graph --rank", "got {}; the ranks are 0 to {}", *o.rank, program.mesh.size() - 1);
  }
  return program.class_of(static_cast<int32_t>(*o.rank));
}

/// A rank of every pipeline stage.
std::vector<std::string> first_ranks(const program::Program& program) {
  std::vector<std::string> list;
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    list.push_back(fmt::format("{}", program.ranks_of(cls)[0]));
  }
  return list;
}

std::string text_of(const program::Program& p, const Options& o) {
  const program::ClassId cls = class_of(p, o);
  if (!o.dot) return program::print(p, cls);
  if (cls == program::kNone && p.classes.size() > 1) {
    fail("hocket graph --dot",
         "the program has {} pipeline stages; expected --rank R, a rank of the stage to draw: {}",
         p.classes.size(), join(first_ranks(p), ", "));
  }
  return program::to_dot(p, cls == program::kNone ? 0 : cls);
}
std::string text_of(const graph::Graph& graph, const Options& o) {
  return o.dot ? graph::to_dot(graph) : graph::print(graph);
}

/// Whether a graph is wanted, rather than a program.
bool shows_graph(const Options& o) {
  return o.dump_after.empty() ? o.stage != "program"
                              : passes::find(o.dump_after).on_graph != nullptr;
}

/// Watches a compilation: keeps the text of the stage or pass that is wanted, times every stage,
/// and checks what a pass made if asked.
class Watcher {
 public:
  Watcher(const engine::Run& run, const Options& o) : run_(run), o_(o), last_(now_ns()) {
    wanted_ = o.dump_after.empty() ? o.stage : o.dump_after;
    on_graph_ = shows_graph(o);
  }
  void see(const std::string& what, const graph::Graph& g, const program::Program& p) {
    const int64_t now = now_ns();
    if (o_.times) {
      fmt::print(stderr, "{:<12}{}\n", what == "program" ? "finish" : what,
                 human_time(static_cast<double>(now - last_) * 1e-9));
    }
    if (what == "graph" || what == "backward") {
      reference_ = g;
    }
    if (what == wanted_) {
      text_ = on_graph_ ? text_of(g, o_) : text_of(p, o_);
      found_ = true;
    }
    if (o_.check && what != "graph" && what != "backward") {
      check(what, g, p);
    }
    last_ = now_ns();
  }
  const std::string& text() const {
    if (!found_) {
      fail("hocket graph", "{} did not run; the passes of this run are {}", wanted_,
           join(run_.config.plan.passes, ", "));
    }
    return text_;
  }

 private:
  void check(const std::string& what, const graph::Graph& g, const program::Program& program) {
    program::Program made = program;
    const bool graph_pass = program.classes.empty();
    if (graph_pass) {
      made = parallel::lower(g, run_.plan);
    }
    program::finalize(made);
    const check::Verdict verdict = check::check(made, reference_);
    fmt::print(stderr, "{:<12}{}\n", what,
               verdict.ok() ? "checked: equal to the single-device graph" : "refused");
    if (!verdict.ok())
      fail("hocket graph --check", "refused after {}:\n{}", what, check::to_text(verdict));
  }

  const engine::Run& run_;
  const Options& o_;
  std::string wanted_, text_;
  bool on_graph_ = false, found_ = false;
  graph::Graph reference_;
  int64_t last_;
};

int schedule(const engine::Run& run, const Options& o) {
  if (o.dot) {
    fail("hocket graph --dot", "a schedule is a CSV; expected --stage graph, backward or program");
  }
  const int stages = static_cast<int>(run.plan.pp);
  const int micro_batches = static_cast<int>(run.plan.num_micro_batches);
  const parallel::Schedule s = parallel::make_schedule(run.plan.pp_schedule, stages, micro_batches);
  parallel::validate(s, stages, micro_batches, true);
  emit(o.out, parallel::to_csv(s));
  return 0;
}

int show(Options& o) {
  if (o.list_passes) return list_passes(), 0;
  if (o.diff) {
    if (!o.stage.empty() || !o.dump_after.empty() || !o.passes.empty() || !o.skip.empty() ||
        !o.set.empty() || o.rank || o.dot || o.check || o.times) {
      fail("hocket graph --diff",
           "compares two texts as they are; it goes with --limit and --out only");
    }
    if (o.inputs.size() != 2) {
      fail("hocket graph --diff", "got {} files; expected two: hocket graph --diff A B",
           o.inputs.size());
    }
    if (o.limit < 0) fail("hocket graph", "--limit is negative");
    emit(o.out, diff_texts(o.inputs[0], read_file(o.inputs[0]), o.inputs[1], read_file(o.inputs[1]),
                           static_cast<size_t>(o.limit)));
    return 0;
  }
  if (o.inputs.size() != 1) {
    fail("hocket graph", "got {} arguments; expected one RUN; try: hocket graph --help",
         o.inputs.size());
  }
  if (!o.stage.empty() && !o.dump_after.empty()) {
    fail("hocket graph", "got --stage {} and --dump-after {}; expected one of them", quote(o.stage),
         quote(o.dump_after));
  }
  if (o.stage.empty()) {
    o.stage = "program";
  }
  if (o.stage != "graph" && o.stage != "backward" && o.stage != "program" &&
      o.stage != "schedule") {
    fail("hocket graph --stage", "got {}; expected graph, backward, program or schedule",
         quote(o.stage));
  }
  if (o.rank && shows_graph(o)) {
    fail("hocket graph --rank", "{} has no ranks; expected a program: --stage program",
         o.dump_after.empty() ? "--stage " + o.stage : "the graph after " + o.dump_after);
  }
  std::vector<std::string> set = o.set;
  if (!o.passes.empty()) {
    // "none" runs no pass at all.
    const std::vector<std::string> names =
        o.passes == "none" ? std::vector<std::string>{} : comma_list(o.passes);
    for (const std::string& text : names) {
      passes::find(text);
    }
    set.push_back("plan.passes=[" + join(names, ",") + "]");
  }
  const Source source = read_source(o.inputs[0], set, true);
  if (o.stage == "schedule") return schedule(source.run, o);
  if (!source.program_text.empty() && (!o.skip.empty() || o.check || o.times)) {
    fail(o.inputs[0],
         "is a program, whose passes have run; --skip, --check and --times need the "
         "run.yaml that it was made from");
  }
  if (!source.program_text.empty() && o.dump_after.empty() && o.stage == "program") {
    emit(o.out, text_of(program::parse_program(source.program_text), o));
    return 0;
  }
  Watcher watcher(source.run, o);
  engine::CompileOptions options;
  options.skip_passes = comma_list(o.skip);
  options.observe = [&](const std::string& what, const graph::Graph& graph,
                        const program::Program& program) { watcher.see(what, graph, program); };
  engine::compile(source.run, options);
  emit(o.out, watcher.text());
  return 0;
}

}  // namespace

void verb_graph(Args& args) {
  auto options = std::make_shared<Options>();
  args.about(
      "show the graph or the program of a run, and what a pass changes",
      "The way of a run: the model's graph for one device (--stage graph), with backward and "
      "optimizer (backward), lowered to the tasks of every rank (program) in the order of the "
      "pipeline schedule (schedule: a CSV as PyTorch writes and plan.pp_schedule takes it, a "
      "row per stage). The program's text goes into `train`, `check` and `simulate` in place "
      "of a run.yaml, with the same results. --diff compares two such texts: which kinds of "
      "tasks were added or removed, then the tasks in order.");
  args.positional("RUN", &options->inputs,
                  "a run.yaml, the text of a program, or a MODEL; with --diff: two texts", false);
  add_set(args, &options->set);
  args.option("--stage", "STAGE", &options->stage,
              "graph, backward, program (the default) or schedule");
  args.option("--rank", "R", &options->rank,
              "of a program: only the tasks of this rank's pipeline stage");
  args.flag("--dot", &options->dot, "for Graphviz instead of text");
  args.option("--out", "FILE", &options->out, "write here instead of standard output (-)");
  args.option("--passes", "A,B", &options->passes,
              "run these passes, in this order (none: no pass), instead of plan.passes");
  args.option("--skip", "A,B", &options->skip, "leave out these of the run's passes");
  args.option("--dump-after", "PASS", &options->dump_after,
              "what this pass left, instead of a stage");
  args.flag("--check", &options->check, "run the static check after lowering and after every pass");
  args.flag("--times", &options->times, "how long every stage and pass took, on standard error");
  args.flag("--list-passes", &options->list_passes, "the passes there are");
  args.flag("--diff", &options->diff, "compare two texts");
  args.option("--limit", "N", &options->limit, "with --diff: most lines of tasks per list");
  args.example("hocket graph configs/quickstart.yaml --set plan.pp=2 --rank 1 --out stage1.txt",
               "the tasks of the second pipeline stage");
  args.example(
      "hocket graph configs/quickstart.yaml --set plan.dp=2 --set plan.micro_batch=2 "
      "--passes none --out plain.txt",
      "the program before any pass");
  args.example(
      "hocket graph configs/quickstart.yaml --set plan.dp=2 --set plan.micro_batch=2 "
      "--passes bucket --check --times --out bucketed.txt",
      "after gradient bucketing, proven and timed");
  args.example(
      "hocket graph configs/quickstart.yaml --set plan.pp=2 --set plan.micro_batch=1 "
      "--stage schedule --out 1f1b.csv",
      "the order of forward and backward passes, for plan.pp_schedule=1f1b.csv");
  args.example("hocket graph --diff plain.txt bucketed.txt", "what bucketing did");
  args.example("hocket graph --list-passes", "the passes there are");
  args.run([options] { return show(*options); });
}

}  // namespace hocket::cli
