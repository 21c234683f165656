// SPDX-License-Identifier: Apache-2.0
// hocket graph
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "check/check.h"
#include "cli/diff.h"
#include "cli/inputs.h"
#include "cli/op_list.h"
#include "cli/verbs.h"
#include "parallel/lowering/lower.h"
#include "parallel/lowering/stamp.h"
#include "parallel/lowering/template.h"
#include "parallel/schedules/schedule.h"
#include "passes/finish.h"
#include "passes/pass.h"
#include "program/finalize.h"

namespace hocket::cli {
namespace {

struct GraphOptions {
  std::vector<std::string> inputs, set, passes, skip;
  std::string stage, out, dump_after, purpose;
  std::optional<int64_t> rank;
  int64_t limit = 200;
  bool dot = false, list_passes = false, list_ops = false, diff = false, check = false,
       times = false;
  bool finish = false;
};

void list_passes() {
  fmt::print("{:<12}{:<11}{:<10}{}\n", "pass", "on", "numerics", "what it does");
  for (const passes::Pass& pass : passes::all()) {
    fmt::print("{:<12}{:<11}{:<10}{}\n", pass.name, pass.level(),
               pass.same_numerics ? "same" : "changed", pass.help);
  }
}

/// The class of ranks that --rank is in, kNone for all.
program::ClassId class_of(const program::Program& program, const GraphOptions& options) {
  if (!options.rank) return program::kNone;
  if (*options.rank < 0 || *options.rank >= program.num_ranks()) {
    fail("hocket graph --rank", "got {}; the ranks are 0 to {}", *options.rank,
         program.num_ranks() - 1);
  }
  return program.class_of(static_cast<int32_t>(*options.rank));
}

/// A rank of every class.
std::vector<std::string> first_ranks(const program::Program& program) {
  std::vector<std::string> list;
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    list.push_back(fmt::format("{}", program.ranks_of(cls)[0]));
  }
  return list;
}

std::string text_of(const program::Program& program, const GraphOptions& options) {
  const program::ClassId cls = class_of(program, options);
  if (!options.dot) return program::print(program, cls);
  if (cls == program::kNone && program.classes.size() > 1) {
    fail("hocket graph --dot",
         "the program has {} classes of ranks; expected --rank R, a rank of the class to draw: {}",
         program.classes.size(), join(first_ranks(program), ", "));
  }
  return program::to_dot(program, cls == program::kNone ? 0 : cls);
}
std::string text_of(const graph::Graph& graph, const GraphOptions& options) {
  return options.dot ? graph::to_dot(graph) : graph::print(graph);
}
std::string text_of(const parallel::Templates& templates, const GraphOptions& options) {
  return parallel::print(templates, class_of(templates.frame, options));
}

/// Returns the selected stage or pass.
std::string wanted_of(const GraphOptions& options) {
  if (!options.dump_after.empty()) return options.dump_after;
  return options.stage.empty() ? "program" : options.stage;
}

/// Returns the selected level: "graph", "templates" or "program".
std::string level_of(const GraphOptions& options) {
  if (!options.dump_after.empty()) return passes::resolve(options.dump_after).level();
  const std::string wanted = wanted_of(options);
  return wanted == "backward" ? "graph" : wanted;
}

/// --for: which of the programs of a run.
engine::ProgramSpec spec_of(const engine::Run& run, const GraphOptions& options) {
  return engine::spec_named(run, options.purpose, "hocket graph --for");
}

/// Observes a compilation: keeps the text of the selected stage or pass, times every stage, and
/// checks each pass's result on request.
class Watcher {
 public:
  Watcher(const engine::Run& run, const GraphOptions& options)
      : run_(run),
        options_(options),
        wanted_(wanted_of(options)),
        level_(level_of(options)),
        last_(now_ns()) {}
  void see(const std::string& what, const engine::Progress& made) {
    const int64_t now = now_ns();
    if (options_.times) {
      fmt::print(stderr, "{:<11} {}\n", what == "program" ? "finish" : what,
                 human_time(static_cast<double>(now - last_) * 1e-9));
    }
    const bool unchanged = what == "graph" || what == "backward";
    if (unchanged) {
      reference_ = made.graph;
    }
    if (what == wanted_) {
      text_ = text(made);
      found_ = true;
    }
    // Templates as they are made are looked at when they are stamped.
    if (options_.check && !unchanged && what != "templates") {
      check(what, made);
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
  std::string text(const engine::Progress& made) const {
    if (level_ == "graph") return text_of(made.graph, options_);
    return level_ == "templates" ? text_of(made.templates, options_)
                                 : text_of(made.program, options_);
  }

  /// Returns the program after a pass; lowers and stamps it where there is none yet.
  program::Program program_of(const engine::Progress& made) const {
    if (!made.program.classes.empty()) return made.program;
    if (!made.templates.ranks.empty()) return parallel::stamp(made.templates);
    parallel::Plan plan = run_.plan;
    if (options_.purpose == "generate") {
      plan.num_micro_batches = 1;
    }
    return parallel::lower(made.graph, plan);
  }

  void check(const std::string& what, const engine::Progress& made) {
    program::Program program = program_of(made);
    program::finalize(program);
    const check::Verdict verdict = check::check(program, reference_);
    fmt::print(stderr, "{:<11} {}\n", what,
               verdict.ok() ? "checked: " + check::equality_text(verdict) : "refused");
    if (!verdict.ok())
      fail("hocket graph --check", "refused after {}:\n{}", what, check::to_text(verdict));
  }

  const engine::Run& run_;
  const GraphOptions& options_;
  const std::string wanted_, level_;
  std::string text_;
  bool found_ = false;
  graph::Graph reference_;
  int64_t last_;
};

int show_schedule(const engine::Run& run, const GraphOptions& options) {
  if (options.dot) {
    fail("hocket graph --dot", "a schedule is a CSV; expected --stage graph, backward or program");
  }
  const int ranks = static_cast<int>(run.plan.pp);
  const int chunks = static_cast<int>(run.plan.pp_chunks);
  const int micro_batches = static_cast<int>(run.plan.num_micro_batches);
  const parallel::Schedule schedule =
      parallel::make_schedule(run.plan.pp_schedule, ranks, micro_batches, chunks);
  parallel::validate(schedule, ranks, micro_batches, true, chunks);
  emit(options.out, parallel::to_csv(schedule));
  return 0;
}

/// --diff: two texts as they are.
int diff(const GraphOptions& options) {
  if (!options.stage.empty() || !options.dump_after.empty() || !options.passes.empty() ||
      !options.skip.empty() || !options.set.empty() || options.rank || options.dot ||
      options.check || options.times) {
    fail("hocket graph --diff",
         "compares two texts as they are; it goes with --limit and --out only");
  }
  if (options.inputs.size() != 2) {
    fail("hocket graph --diff", "got {} files; expected two: hocket graph --diff A B",
         options.inputs.size());
  }
  if (options.limit < 0) fail("hocket graph", "--limit is negative");
  const std::string &a = options.inputs[0], &b = options.inputs[1];
  emit(options.out,
       diff_texts(a, read_file(a), b, read_file(b), static_cast<size_t>(options.limit)));
  return 0;
}

/// Throws Error unless the options name one thing of one run.
void check_graph_options(const GraphOptions& options) {
  if (options.inputs.size() != 1) {
    fail("hocket graph", "got {} arguments; expected one RUN; try: hocket graph --help",
         options.inputs.size());
  }
  const std::string& stage = options.stage;
  if (!options.dump_after.empty() && !stage.empty()) {
    fail("hocket graph", "got --stage {} and --dump-after {}; expected one of them", quote(stage),
         quote(options.dump_after));
  }
  constexpr std::string_view kStages[] = {"",          "graph",   "backward",
                                          "templates", "program", "schedule"};
  if (std::find(std::begin(kStages), std::end(kStages), stage) == std::end(kStages)) {
    fail("hocket graph --stage", "got {}; expected graph, backward, templates, program or schedule",
         quote(stage));
  }
  const std::string level = level_of(options);
  if (options.dot && level == "templates") {
    fail("hocket graph --dot", "templates have a text alone; expected a graph or a program");
  }
  if (options.rank && level != "templates" && level != "program") {
    fail("hocket graph --rank", "{} has no ranks; expected a program: --stage program",
         options.dump_after.empty() ? "--stage " + stage : "the graph after " + options.dump_after);
  }
}

/// Names in options that may be repeated, each a list with commas; a command goes on to the end of
/// its option, since it may have some itself.
std::vector<std::string> pass_names(const std::vector<std::string>& lists) {
  std::vector<std::string> names;
  for (std::string_view list : lists) {
    while (!list.empty()) {
      const std::string_view rest = trim(list);
      const size_t end =
          rest.starts_with(passes::kCommand) ? rest.size() : std::min(rest.find(','), rest.size());
      if (const std::string name(trim(rest.substr(0, end))); !name.empty()) {
        names.push_back(name);
      }
      list = rest.substr(std::min(end + 1, rest.size()));
    }
  }
  return names;
}

/// --set, and --passes as an override like them; "none" runs no pass at all.
std::vector<std::string> overrides_of(const GraphOptions& options) {
  std::vector<std::string> overrides = options.set;
  if (options.passes.empty()) return overrides;
  std::vector<std::string> names = pass_names(options.passes);
  if (names == std::vector<std::string>{"none"}) {
    names.clear();
  }
  for (const std::string& name : names) {
    passes::resolve(name);
  }
  overrides.push_back("plan.passes=" + nlohmann::json(names).dump());
  return overrides;
}

/// Returns the text of `path` if it is a program's (its passes have run); "-" reads standard
/// input.
std::optional<std::string> program_text(const std::string& path) {
  if (path != "-" && (!file_exists(path) || is_directory(path))) return std::nullopt;
  std::string text = read_file(path == "-" ? "/dev/stdin" : path);
  if (!text.starts_with("hocket-program")) return std::nullopt;
  return text;
}

/// --finish: an edited text with dependencies, costs and a memory plan.
int finish_text(const GraphOptions& options) {
  const std::string& path = options.inputs[0];
  const std::optional<std::string> text = program_text(path);  // read once: it may be a pipe
  if (!text) {
    fail("hocket graph --finish", "{} is no text of a program; lowering finishes its own programs",
         path);
  }
  program::Program program = program::parse_program(*text, path);
  passes::finish(program, path, *text);
  emit(options.out, text_of(program, options));
  return 0;
}

/// Returns the text of one stage of the compilation, or of a pass's result. Compiles to the end;
/// the observer keeps the selected text.
int show(const GraphOptions& options) {
  if (options.list_passes) {
    list_passes();
    return 0;
  }
  if (options.list_ops) {
    emit(options.out, list_ops(options.inputs.empty() ? "" : options.inputs[0]));
    return 0;
  }
  require_output("hocket graph --out", options.out, options.inputs);
  if (options.diff) return diff(options);
  check_graph_options(options);
  const bool only_reads =
      options.passes.empty() && options.skip.empty() && !options.check && !options.times;
  if (!only_reads && program_text(options.inputs[0])) {
    fail(options.inputs[0],
         "is a program after its passes; --passes, --skip, --check and --times need the "
         "run.yaml that it was made from");
  }
  if (options.finish) return finish_text(options);
  const Source source = read_source(options.inputs[0], overrides_of(options), true);
  require_output("hocket graph --out", options.out, {source.run.config.plan.pp_schedule});
  if (options.stage == "schedule") return show_schedule(source.run, options);
  if (source.parsed_program && options.purpose.empty() && wanted_of(options) == "program") {
    emit(options.out, text_of(*source.parsed_program, options));
    return 0;
  }
  Watcher watcher(source.run, options);
  engine::ProgramSpec spec = spec_of(source.run, options);
  spec.lowering.skip_passes = pass_names(options.skip);
  spec.lowering.observe = [&](const std::string& what, const engine::Progress& made) {
    watcher.see(what, made);
  };
  engine::compile(spec);
  emit(options.out, watcher.text());
  return 0;
}

}  // namespace

void verb_graph(Args& args) {
  // Declares options and help; show() does the work.
  auto options = std::make_shared<GraphOptions>();
  args.about("show the graph or the program of a run, and the changes of a pass",
             "The way of a run: the model's graph for one device (--stage graph), with "
             "backward and optimizer (backward), lowered to the tasks of a micro-batch "
             "(templates), and stamped into the tasks of every rank (program) in the order of "
             "the pipeline schedule (schedule: a CSV as PyTorch writes and plan.pp_schedule "
             "takes it, a row per pipeline rank). The program's text goes into `train`, "
             "`check` and `simulate` in place of a run.yaml, with the same results. --diff "
             "compares two such texts: which kinds of tasks were added or removed, then the "
             "tasks in order.");
  args.positional("RUN", &options->inputs,
                  "a run.yaml, the text of a program, or a MODEL; with --diff: two texts", false);
  add_set(args, &options->set);
  args.option("--stage", "STAGE", &options->stage,
              "stage to print: graph, backward, templates, program (the default) or schedule");
  args.option(
      "--rank", "R", &options->rank,
      "print only the tasks of this rank's class, those of its pipeline stages (for --stage "
      "program or templates)");
  args.option("--for", "PURPOSE", &options->purpose,
              "program of the run to print: train (the default), evaluate, gradients, logits, or "
              "generate (lengths are symbols)");
  args.flag("--dot", &options->dot, "write for Graphviz, in place of text");
  args.option("--out", "FILE", &options->out, "write here instead of standard output (-)");
  args.option("--passes", "A,B", &options->passes,
              "run these passes, in this order (none: no pass), instead of plan.passes; may be "
              "repeated; the name of a command, exec:COMMAND, goes on to the end of the option");
  args.option("--skip", "A,B", &options->skip,
              "leave out these of the run's passes; written as for --passes");
  args.option("--dump-after", "PASS", &options->dump_after,
              "print the result of this pass, in place of a stage");
  args.flag("--check", &options->check, "run the static check after lowering and after every pass");
  args.flag("--times", &options->times, "print the time of every stage and pass on standard error");
  args.flag("--list-passes", &options->list_passes, "list all passes");
  args.flag("--list-ops", &options->list_ops,
            "list all ops; with a name in place of RUN: its operands, its in-place updates, and "
            "kinds of it as in a text");
  args.flag("--finish", &options->finish,
            "add the dependencies, costs and memory plan that a text written or edited by hand "
            "lacks (RUN -: standard input)");
  args.flag("--diff", &options->diff, "compare two texts");
  args.option("--limit", "N", &options->limit, "most lines of tasks per list, for --diff");
  args.example("hocket graph configs/quickstart.yaml --set plan.pp=2 --rank 1 --out stage1.txt",
               "the tasks of the second pipeline stage");
  args.example("hocket graph configs/quickstart.yaml --stage templates --out templates.txt",
               "the tasks and values of one micro-batch, before they are stamped");
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
  args.example("hocket graph --diff plain.txt bucketed.txt", "the effect of bucketing");
  args.example("hocket graph --finish plain.txt --out finished.txt",
               "a text, edited by hand, made ready to check, simulate and train");
  args.example("hocket graph configs/quickstart.yaml --for generate --out generate.txt",
               "the program that generates: lengths are symbols");
  args.example("hocket graph --list-passes", "the passes there are");
  args.example("hocket graph --list-ops linear", "operands and results of this op");
  args.run([options] { return show(*options); });
}

}  // namespace hocket::cli
