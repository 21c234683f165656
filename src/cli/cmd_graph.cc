// SPDX-License-Identifier: Apache-2.0
// hocket graph
#include <fmt/core.h>

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
#include "passes/pass.h"
#include "program/finalize.h"

namespace hocket::cli {
namespace {

struct Options {
  std::vector<std::string> inputs, set;
  std::string stage = "program", out, passes, skip, dump_after;
  std::optional<int64_t> rank;
  int64_t limit = 200;
  bool dot = false, list_passes = false, diff = false, check = false, times = false;
};

void list_passes() {
  fmt::print("{:<12}{:<9}{:<10}{}\n", "pass", "on", "numerics", "what it does");
  for (const passes::Pass& p : passes::all())
    fmt::print("{:<12}{:<9}{:<10}{}\n", p.name, p.on_graph ? "graph" : "program",
               p.same_numerics ? "same" : "changed", p.help);
}

/// The class of ranks that `o.rank` is in, kNone for all.
int32_t class_of(const program::Program& p, const Options& o) {
  if (!o.rank) return program::kNone;
  if (*o.rank < 0 || *o.rank >= p.mesh.size())
    fail("hocket graph --rank", "got {}; the ranks are 0 to {}", *o.rank, p.mesh.size() - 1);
  return p.class_of(static_cast<int32_t>(*o.rank));
}

std::string text_of(const program::Program& p, const Options& o) {
  const int32_t cls = class_of(p, o);
  return o.dot ? program::to_dot(p, cls == program::kNone ? 0 : cls) : program::print(p, cls);
}
std::string text_of(const graph::Graph& g, const Options& o) {
  return o.dot ? graph::to_dot(g) : graph::print(g);
}

/// Watches a compilation: keeps the text of the stage or pass that is wanted, times every stage, and
/// checks what a pass made if asked.
class Watcher {
 public:
  Watcher(const train::Run& run, const Options& o) : run_(run), o_(o), last_(now_ns()) {
    wanted_ = !o.dump_after.empty() ? o.dump_after : o.stage;
    if (!o.dump_after.empty()) on_graph_ = passes::find(o.dump_after).on_graph != nullptr;
    else on_graph_ = o.stage != "program";
  }
  void see(const std::string& what, const graph::Graph& g, const program::Program& p) {
    const int64_t now = now_ns();
    if (o_.times)
      fmt::print(stderr, "{:<12}{}\n", what == "program" ? "finish" : what,
                 human_time(static_cast<double>(now - last_) * 1e-9));
    if (what == "graph" || what == "backward") reference_ = g;
    if (what == wanted_) {
      text_ = on_graph_ ? text_of(g, o_) : text_of(p, o_);
      found_ = true;
    }
    if (o_.check && what != "graph" && what != "backward") check(what, g, p);
    last_ = now_ns();
  }
  const std::string& text() const {
    if (!found_)
      fail("hocket graph", "{} did not run; the passes of this run are {}", wanted_,
           join(run_.config.plan.passes, ", "));
    return text_;
  }

 private:
  void check(const std::string& what, const graph::Graph& g, const program::Program& p) {
    program::Program made = p;
    const bool graph_pass = p.classes.empty();
    if (graph_pass) made = parallel::lower(g, run_.plan);
    program::finalize(made);
    const check::Verdict v = check::check(made, reference_);
    fmt::print(stderr, "{:<12}{}\n", what,
               v.ok() ? "checked: equal to the single-device graph" : "refused");
    if (!v.ok()) fail("hocket graph --check", "refused after {}:\n{}", what, check::to_text(v));
  }

  const train::Run& run_;
  const Options& o_;
  std::string wanted_, text_;
  bool on_graph_ = false, found_ = false;
  graph::Graph reference_;
  int64_t last_;
};

int show(const Options& o) {
  if (o.list_passes) return list_passes(), 0;
  if (o.diff) {
    if (o.inputs.size() != 2)
      fail("hocket graph --diff", "got {} files; expected two: hocket graph --diff A B",
           o.inputs.size());
    if (o.limit < 0) fail("hocket graph", "--limit is negative");
    emit(o.out, diff_texts(o.inputs[0], read_file(o.inputs[0]), o.inputs[1], read_file(o.inputs[1]),
                           static_cast<size_t>(o.limit)));
    return 0;
  }
  if (o.inputs.size() != 1)
    fail("hocket graph", "got {} arguments; expected one RUN; try: hocket graph --help",
         o.inputs.size());
  if (o.stage != "graph" && o.stage != "backward" && o.stage != "program")
    fail("hocket graph --stage", "got {}; expected graph, backward or program", quote(o.stage));
  std::vector<std::string> set = o.set;
  if (!o.passes.empty()) {
    // "none" runs no pass at all.
    const std::vector<std::string> names =
        o.passes == "none" ? std::vector<std::string>{} : comma_list(o.passes);
    for (const std::string& n : names) passes::find(n);
    set.push_back("plan.passes=[" + join(names, ",") + "]");
  }
  const Source source = read_source(o.inputs[0], set, true);
  if (!source.program_text.empty() && o.dump_after.empty() && o.stage == "program") {
    emit(o.out, text_of(program::parse_program(source.program_text), o));
    return 0;
  }
  Watcher watcher(source.run, o);
  train::CompileOptions options;
  options.skip_passes = comma_list(o.skip);
  options.observe = [&](const std::string& what, const graph::Graph& g, const program::Program& p) {
    watcher.see(what, g, p);
  };
  train::compile(source.run, options);
  emit(o.out, watcher.text());
  return 0;
}

}  // namespace

void verb_graph(Args& args) {
  auto o = std::make_shared<Options>();
  args.about("show the graph or the program of a run, and what a pass changes",
             "The way of a run: the model's graph for one device (--stage graph), with backward and "
             "optimizer (backward), lowered to the tasks of every rank (program). The program's text "
             "goes into `train`, `check` and `simulate` in place of a run.yaml, with the same "
             "results. --diff compares two such texts: which kinds of tasks were added or removed, "
             "then the tasks in order.");
  args.positional("RUN", &o->inputs,
                  "a run.yaml, the text of a program, or a MODEL; with --diff: two texts", false);
  add_set(args, &o->set);
  args.option("--stage", "STAGE", &o->stage, "graph, backward or program");
  args.option("--rank", "R", &o->rank, "only the tasks of this rank's class (pipeline stage)");
  args.flag("--dot", &o->dot, "for Graphviz instead of text");
  args.option("--out", "FILE", &o->out, "write here instead of standard output");
  args.option("--passes", "A,B", &o->passes,
              "run these passes, in this order (none: no pass), instead of plan.passes");
  args.option("--skip", "A,B", &o->skip, "leave out these of the run's passes");
  args.option("--dump-after", "PASS", &o->dump_after, "what this pass left, instead of a stage");
  args.flag("--check", &o->check, "run the static check after lowering and after every pass");
  args.flag("--times", &o->times, "how long every stage and pass took, on standard error");
  args.flag("--list-passes", &o->list_passes, "the passes there are");
  args.flag("--diff", &o->diff, "compare two texts");
  args.option("--limit", "N", &o->limit, "with --diff: most lines of tasks per list");
  args.example("hocket graph configs/quickstart.yaml --set plan.pp=2 --rank 1 --out stage1.txt",
               "the tasks of the second pipeline stage");
  args.example("hocket graph configs/quickstart.yaml --set plan.dp=2 --set plan.micro_batch=2 "
               "--passes none --out plain.txt",
               "the program before any pass");
  args.example("hocket graph configs/quickstart.yaml --set plan.dp=2 --set plan.micro_batch=2 "
               "--passes bucket --check --times --out bucketed.txt",
               "after gradient bucketing, proven and timed");
  args.example("hocket graph --diff plain.txt bucketed.txt", "what bucketing did");
  args.example("hocket graph --list-passes", "the passes there are");
  args.run([o] { return show(*o); });
}

}  // namespace hocket::cli
