// SPDX-License-Identifier: Apache-2.0
// hocket simulate
#include <fmt/core.h>

#include <memory>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "cli/inputs.h"
#include "cli/verbs.h"
#include "cost/cluster.h"
#include "cost/flops.h"
#include "cost/profile.h"
#include "engine/describe.h"
#include "engine/machine.h"
#include "sim/report_text.h"
#include "sim/sim_trace.h"
#include "sim/simulator.h"

namespace hocket::cli {

void verb_simulate(Args& args) {
  struct Options {
    std::string run, cluster, profile, trace;
    std::vector<std::string> set;
    bool json = false, all_ranks = false;
  };
  auto o = std::make_shared<Options>();
  args.about("predict a step's time and memory on any cluster, real or imagined",
             "Replays the very tasks that `train` would run in a discrete-event simulation: step "
             "time, where each rank's time goes, memory, MFU, the critical path. Durations come "
             "from a profile of this machine (`hocket profile`) where it has them, and otherwise "
             "from a roofline over the cluster file's constants: a prediction without a profile is "
             "marked uncalibrated. Needs only a config.json. docs/simulate.md says how it computes "
             "and what it leaves out.");
  args.positional("RUN", &o->run,
                  "a run.yaml, the text of a program, or a MODEL (its config.json: sequences of "
                  "4,096 tokens on one rank, see --set)");
  add_set(args, &o->set);
  args.option("--cluster", "FILE", &o->cluster,
              "cluster file (configs/clusters); default: cluster.file, else this machine");
  args.option("--profile", "FILE", &o->profile,
              "timings of `hocket profile`; default: cluster.profile");
  args.option("--trace", "FILE", &o->trace,
              "write the timeline, for Perfetto (.json or .json.gz; -: standard output)");
  args.flag("--all-ranks", &o->all_ranks,
            "replay every rank, also where one of its class would do");
  args.flag("--json", &o->json, "the prediction as JSON: seconds, bytes");
  args.example(
      "hocket simulate configs/qwen3-30b-a3b.yaml --cluster configs/clusters/h100-64x8.yaml",
      "a 30 B mixture of experts on 512 H100");
  args.example("hocket simulate configs/models/dense-26m --set plan.dp=2 --trace step.json.gz",
               "any config.json, on this machine; the timeline opens in ui.perfetto.dev");
  args.run([o] {
    if (o->json && o->trace == "-") {
      fail("hocket simulate",
           "--json and --trace - both go to standard output; expected one there");
    }
    const Source source = read_source(o->run, o->set, true);
    const engine::RunConfig& config = source.run.config;
    const std::string file = o->cluster.empty() ? config.cluster.file : o->cluster;
    const cost::Cluster cluster = engine::cluster_of(source.run, file);
    const std::string timed = o->profile.empty() ? config.cluster.profile : o->profile;
    std::optional<cost::Profile> profile;
    if (!timed.empty()) {
      profile = cost::read_profile(timed);
    }
    if (const std::string why = profile ? cost::mismatch(*profile, cluster) : ""; !why.empty()) {
      if (!o->profile.empty()) {
        fail("hocket simulate", "--profile {} {}; try without it", timed, why);
      }
      log_warning("cluster.profile {} is not used: it {}", timed, why);
      profile.reset();
    }

    const engine::Compiled compiled = source.compile();
    sim::SimOptions options;
    options.all_ranks = o->all_ranks;
    options.tokens = compiled.tokens_per_step;
    if (engine::evaluates(source.run)) {
      options.evaluation = engine::evaluation_bytes(
          engine::compile(source.run, engine::evaluation_options(source.run)).program);
    }
    options.model_flops = cost::model_flops(compiled.reference).training() *
                          static_cast<double>(compiled.program.num_micro_batches);
    const cost::CostModel costs(cluster, profile, sim::threads_per_rank(compiled.program, cluster));
    sim::Replay replay;
    const sim::SimReport report = sim::simulate(compiled.program, costs, options, &replay);
    if (!o->trace.empty()) {
      trace::write_trace(sim::to_trace(compiled.program, replay), o->trace);
    }
    if (o->json) {
      fmt::print("{}\n", sim::to_json(compiled.program, report));
      return 0;
    }
    std::FILE* words = words_beside(o->trace);
    fmt::print(words, "model    {}\nplan     {}\n{}", engine::describe(source.run.model),
               engine::describe(source.run), sim::to_text(compiled.program, report));
    if (!o->trace.empty()) {
      fmt::print(words, "wrote {}\n", o->trace);
    }
    return 0;
  });
}

}  // namespace hocket::cli
