// SPDX-License-Identifier: Apache-2.0
// hocket profile
#include <memory>

#include "base/error.h"
#include "cli/analysis/profile_import.h"
#include "cli/inputs.h"
#include "cli/verbs.h"
#ifndef HOCKET_SIM_ONLY
#include "cli/apps/profile_tasks.h"
#endif

namespace hocket::cli {

namespace {

struct ProfileCommand {
  std::vector<std::string> given;  ///< RUN, or the logs of --import
  std::string out, cluster, op, hold_out;
  std::vector<std::string> set;
  double seconds = 1.5;
  bool json = false, import = false;
};

int import_given(const ProfileCommand& options) {
  if (options.given.empty()) {
    fail("hocket profile --import", "got no FILE; expected logs of nccl-tests, or Vidur's tables");
  }
  if (!options.set.empty()) {
    fail("hocket profile --import", "--set goes with a RUN; expected none");
  }
#ifdef HOCKET_NO_ANALYSIS
  fail("hocket profile", "--import is not in this program (HOCKET_ANALYSIS=OFF); try make build");
#else
  return import_logs({.files = options.given,
                      .cluster = options.cluster,
                      .op = options.op,
                      .out = options.out.empty() ? "cluster.yaml" : options.out,
                      .hold_out = options.hold_out,
                      .json = options.json});
#endif
}

/// Times a RUN's tasks here.
int time_given(const ProfileCommand& options) {
  if (!options.cluster.empty() || !options.op.empty() || !options.hold_out.empty()) {
    fail("hocket profile", "--cluster, --op and --hold-out go with --import; try adding it");
  }
  if (options.given.size() != 1) {
    fail("hocket profile", "got {} RUNs; expected one, or --import with logs",
         options.given.size());
  }
#ifdef HOCKET_SIM_ONLY
  fail("hocket profile", "this program has no kernels (make sim); try make build, or --import");
#else
  return profile_tasks({.run = options.given.front(),
                        .out = options.out.empty() ? "profile.json" : options.out,
                        .set = options.set,
                        .seconds = options.seconds,
                        .json = options.json});
#endif
}

}  // namespace

void verb_profile(Args& args) {
  auto options = std::make_shared<ProfileCommand>();
  args.about("time this machine's tasks, or read logs, so that predictions are calibrated",
             "Times every distinct task of the run's program, with one rank per core at a "
             "time and the inputs of a real step, and the links between ranks: threads, or "
             "under a launcher processes and their hosts. `simulate --profile` and "
             "cluster.profile take the file; tasks of other sizes are interpolated from it. "
             "`train` does this by itself before its first step. Run it on an idle "
             "machine.\nWith --import, logs of nccl-tests (of any collective that simulate "
             "has) or tables of Vidur's network profiles become a cluster file: the links' "
             "constants are fitted, all else is as in --cluster, and errors are printed for "
             "the times that were not fitted (docs/cluster-files.md).");
  args.positional("RUN", &options->given,
                  "a run.yaml, the text of a program, or a MODEL; with --import any number of logs",
                  false);
  add_set(args, &options->set);
  args.option(
      "--out", "FILE", &options->out,
      "file to write, -: standard output (default: profile.json, with --import cluster.yaml)");
  args.option("--seconds", "S", &options->seconds,
              "seconds, at least, for which the tasks of each pipeline stage run");
  args.flag("--import", &options->import, "read logs in place of timing a RUN");
  args.option("--cluster", "FILE", &options->cluster,
              "for --import: cluster file with the values that the logs do not cover (default: the "
              "shipped cluster of the devices that they name)");
  args.option("--op", "NAME", &options->op,
              "for --import: collective of a log, where neither the log nor its name says it");
  args.option("--hold-out", "RANKS", &options->hold_out,
              "for --import: sizes of groups, such as 16 or 16,32, whose times are not fitted, "
              "only predicted (default: each group in turn, and every other size)");
  args.flag("--json", &options->json, "print the timings, or the fit, as JSON");
  args.example("hocket profile configs/quickstart.yaml --out profile.json", "then:");
  args.example("hocket simulate configs/quickstart.yaml --profile profile.json",
               "a prediction from timed tasks");
  args.example("hocket launch -n 4 profile run.yaml", "with the links between four processes");
  args.run([options] { return options->import ? import_given(*options) : time_given(*options); });
}

}  // namespace hocket::cli
