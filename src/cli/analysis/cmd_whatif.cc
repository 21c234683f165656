// SPDX-License-Identifier: Apache-2.0
// hocket whatif
#include <fmt/core.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/error.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "cli/analysis/whatif_bottleneck.h"
#include "cli/inputs.h"
#include "cli/verbs.h"
#include "cost/cluster.h"
#include "whatif/analysis.h"
#include "whatif/importers.h"
#include "whatif/report.h"

namespace hocket::cli {

namespace {

struct WhatifOptions {
  std::vector<std::string> traces, scales;
  std::string format, html, cluster;
  BottleneckWords bottleneck;
  bool surface = false, json = false;
};

/// Tables of a trace are freed where others of that size follow: their memory is used again, not
/// given back and taken anew, a page at a time.
void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLargest = 1 << 25;  // the most that is kept, by glibc's limit
  mallopt(M_MMAP_THRESHOLD, kLargest);
  mallopt(M_TRIM_THRESHOLD, 16 * kLargest);
#endif
}

/// Every scale alone, then all of several.
std::vector<whatif::ScaledStep> scaled_steps(const whatif::MeasuredRun& run,
                                             const std::vector<std::string>& texts,
                                             whatif::Replayer* replayer) {
  std::vector<whatif::Scale> scales;
  std::vector<whatif::ScaledStep> steps;
  for (const std::string& text : texts) {
    scales.push_back(whatif::parse_scale(text, run));
    steps.push_back({text, replayer->mean(whatif::scaled(run, {scales.back()}))});
  }
  if (scales.size() > 1) {
    steps.push_back({"all of these", replayer->mean(whatif::scaled(run, scales))});
  }
  return steps;
}

/// --bottleneck of a table of gradients, which says nothing else.
int run_table(const WhatifOptions& options, whatif::BottleneckOptions settings) {
  const std::string& path = options.traces[0];
  if (!options.bottleneck.asked || options.traces.size() > 1 || !options.html.empty() ||
      options.surface || !options.scales.empty() || !options.cluster.empty()) {
    fail("hocket whatif",
         "{} is a table of gradients; expected --bottleneck, and of other options "
         "only its own and --json",
         path);
  }
  const whatif::Bottleneck found =
      whatif::find_bottleneck(whatif::read_gradients(path), std::move(settings));
  if (!options.json) {
    fmt::print("{}", whatif::to_text(found));
    return 0;
  }
  JsonWriter json;
  json.object().key("bottleneck");
  whatif::put(found, &json);
  fmt::print("{}\n", json.end().take());
  return 0;
}

bool is_table(const WhatifOptions& options) {
  const std::string& path = options.traces[0];
  return options.format.empty() && (path.ends_with(".yaml") || path.ends_with(".yml"));
}

int run_whatif(const WhatifOptions& options) {
  if (options.json && options.html == "-") {
    fail("hocket whatif", "--json and --html - both go to standard output; expected one there");
  }
  whatif::BottleneckOptions bottleneck = bottleneck_options(options.bottleneck);
  if (is_table(options)) return run_table(options, std::move(bottleneck));
  keep_freed_memory();
  require_output("hocket whatif --html", options.html, options.traces);
  std::optional<cost::Cluster> cluster;
  if (!options.cluster.empty()) {
    cluster = cost::read_cluster(options.cluster);
  }
  const whatif::MeasuredRun run =
      whatif::read_run(options.traces, options.format, cluster ? &*cluster : nullptr);
  whatif::Findings findings;
  findings.analysis = whatif::analyze(run);
  if (!options.scales.empty() || options.surface || options.bottleneck.asked) {
    whatif::Replayer replayer(run);
    findings.scaled = scaled_steps(run, options.scales, &replayer);
    if (options.surface) {
      findings.surface = whatif::surface(run, &replayer);
    }
    if (options.bottleneck.asked) {
      findings.bottleneck =
          whatif::find_bottleneck(whatif::gradients_of(run, &replayer), std::move(bottleneck));
    }
  }
  if (!options.html.empty()) {
    emit(options.html, whatif::to_html(run, findings));
  }
  if (options.json) {
    for (const std::string& note : run.dropped.notes) {
      log_warning("{}: {}", options.traces[0], note);
    }
    fmt::print("{}\n", whatif::to_json(run, findings));
    return 0;
  }
  std::FILE* messages = message_stream(options.html);
  fmt::print(messages, "{}", whatif::to_text(run, findings));
  if (!options.html.empty() && options.html != "-") {
    fmt::print(messages, "wrote {}\n", options.html);
  }
  return 0;
}

}  // namespace

void verb_whatif(Args& args) {
  auto options = std::make_shared<WhatifOptions>();
  args.about(
      "stragglers of a measured run: their cost, place and cause, and the gain of "
      "faster ops",
      "Replays a trace: as it was measured, as it would have been had all ops of a "
      "kind taken the same time, and with one stage, data-parallel rank, kind of op or "
      "worker at a time as it was. The ratio of the times is the slowdown S, in all, "
      "by step, by stage and by rank. The first cause that explains half of the loss "
      "is named (a slow worker, the last stage, uneven sequences, pauses, a slow "
      "link), with the gain of curing it. Unusable parts of a trace are listed. "
      "docs/whatif.md defines all of it.");
  std::string formats;
  for (const whatif::Importer& importer : whatif::importers()) {
    formats += fmt::format("{}{}: {}{}", formats.empty() ? "" : "; ", importer.name, importer.what,
                           importer.several ? ", a file per rank" : "");
  }
  args.positional("TRACE", &options->traces, "a trace, .json or .json.gz; of some formats several");
  args.option("--format", "NAME", &options->format,
              "format of TRACE (default: by the beginning of the file). " + formats);
  args.option("--cluster", "FILE", &options->cluster,
              "for Chakra traces: cluster file of the devices and links by which nodes without a "
              "duration get one, from their operations and bytes");
  args.option("--scale", "OP=K", &options->scales,
              "replay with OP K times faster: a kind of op, compute, communication, messages, "
              "collectives, gradients or all, at a place if one follows "
              "(forward-compute@pp=3=2; dp, pp, rank, step). A communication K times faster "
              "has a link K times wider, or a payload compressed K times");
  args.flag("--surface", &options->surface,
            "show the scaling of a step with wider links and compressed gradients");
  add_bottleneck(args, &options->bottleneck);
  args.option("--html", "FILE", &options->html, "write heat maps as a page (-: standard output)");
  args.flag("--json", &options->json, "print the results as JSON, times in seconds");
  args.example("hocket whatif step.json.gz", "the trace of a run or of a simulation");
  args.example("hocket whatif step.json.gz --scale communication=4 --scale compute@pp=0=1.1",
               "links four times as wide; the first stage a tenth faster; both");
  args.example("hocket whatif step.json.gz --bottleneck --bandwidths 10Gbit/s --used 0.6",
               "is the network the bottleneck on up to 64 ranks, used fully or to 60 %");
  args.run([options] { return run_whatif(*options); });
}

}  // namespace hocket::cli
