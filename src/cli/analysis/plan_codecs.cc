// SPDX-License-Identifier: Apache-2.0
#include "cli/analysis/plan_codecs.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "planner/codecs/codecs.h"
#include "planner/codecs/espresso.h"
#include "planner/trial.h"
#include "run/describe.h"
#include "run/run_text.h"

namespace hocket::cli {

namespace {

using planner::CodecDecision;
using planner::CodecResult;
using planner::CodecTrial;

struct CodecOptions {
  std::string run;               ///< RUN or MODEL
  std::string cluster, profile;  ///< files; empty: those of the run, else this machine
  std::string out;               ///< file of the run; empty: none
  std::vector<std::string> set;
  std::string codecs = "int8";  ///< names with commas between them
  double time_limit_s = 50;     ///< 0: none
  bool offload = false;         ///< CPUs of hosts may encode, too
  bool json = false;
};

/// `begun_ns`: when the command began, whose time is limited.
planner::CodecResult search(const CodecTrial& trial, const CodecOptions& options,
                            int64_t begun_ns) {
  Progress line;
  planner::CodecSearchOptions search_options;
  search_options.offload = options.offload;
  search_options.stop = [&] {
    return Interrupt::came() ||
           (options.time_limit_s > 0 && seconds_since(begun_ns) >= options.time_limit_s);
  };
  search_options.progress = [&](int64_t simulated, double best_s) {
    const std::string best = simulated > 0 ? ", best " + human_time(best_s) : "";
    line.update(fmt::format("{} simulated{}", simulated, best));
  };
  const Interrupt interrupt;
  CodecResult result = planner::choose_codecs(trial, search_options);
  line.finish();
  return result;
}

/// Returns a row per transfer: its payload and the decision.
std::string table_text(const CodecTrial& trial, const CodecResult& result) {
  std::string text = fmt::format("{:>3}  {:>10}  {:>10}  {:>14}  {:>10}  {}\n", "", "bytes",
                                 "gap before", "codec", "gain", "gradients of");
  for (size_t t = 0; t < result.decisions.size(); ++t) {
    const passes::GradSum& transfer = trial.transfers()[t];
    const CodecDecision& decision = result.decisions[t];
    const std::string gain = decision.dropped      ? "in time"
                             : decision.gain_s > 0 ? human_time(decision.gain_s)
                                                   : "-";
    const auto others = std::ssize(transfer.parameters) - 1;
    text += fmt::format("{:>3}  {:>10}  {:>10}  {:>14}  {:>10}  {}{}\n", t + 1,
                        human_bytes(static_cast<double>(transfer.bytes)),
                        human_time(decision.gap_s), decision.codec, gain, transfer.parameters[0],
                        others > 0 ? fmt::format(" and {}", counted(others, "other")) : "");
  }
  return text;
}

/// A predicted step beside the one with nothing encoded.
std::string step_text(const std::string& what, const planner::CodecOutcome& outcome,
                      const planner::CodecOutcome& none) {
  const std::string interval = outcome.high_s > 0
                                   ? fmt::format(", interval {} to {}", human_time(outcome.low_s),
                                                 human_time(outcome.high_s))
                                   : "";
  return fmt::format("{:<14} {} a step ({:.3g}x){}{}\n", what, human_time(outcome.step_s),
                     none.step_s / outcome.step_s, interval,
                     outcome.fits ? "" : ", more memory than there is");
}
std::string steps_text(const CodecResult& result) {
  std::string text = step_text(passes::kNoCodec, result.none, result.none);
  for (const auto& [codec, outcome] : result.all) {
    text += step_text("all " + codec, outcome, result.none);
  }
  text += step_text("chosen", result.chosen, result.none);
  return text + fmt::format("{:<14} {}\n", "interval", result.chosen.interval_why);
}

/// Returns a text on encoding by hosts instead of devices, and the method that chose it.
std::string offload_text(const CodecResult& result) {
  if (!result.offload) return "";
  const planner::CodecChoice choice = result.choice();
  const auto on_hosts = std::count_if(choice.begin(), choice.end(), [](const std::string& codec) {
    return codec.ends_with(passes::kOnHost);
  });
  return fmt::format(
      "offload    {} of {} encoded transfers to hosts, {} shorter; {:.0f} choices{}\n", on_hosts,
      std::count_if(choice.begin(), choice.end(),
                    [](const std::string& codec) { return codec != passes::kNoCodec; }),
      human_time(result.offload->gain_s), result.offload->choices,
      !result.offload->all_tried ? ", too many to try all: one size after another"
      : result.complete          ? ", all tried"
                                 : "");
}

nlohmann::json json_of(const planner::CodecOutcome& outcome) {
  nlohmann::json interval = {{"why", outcome.interval_why}};
  if (outcome.high_s > 0) {
    interval["low_s"] = outcome.low_s;
    interval["high_s"] = outcome.high_s;
  }
  return {{"step_s", outcome.step_s}, {"interval", interval}, {"fits", outcome.fits}};
}
nlohmann::json json_of(const CodecTrial& trial, const CodecResult& result) {
  nlohmann::json transfers = nlohmann::json::array();
  for (size_t t = 0; t < result.decisions.size(); ++t) {
    const CodecDecision& decision = result.decisions[t];
    transfers.push_back({{"parameters", trial.transfers()[t].parameters},
                         {"bytes", trial.transfers()[t].bytes},
                         {"gap_s", decision.gap_s},
                         {"codec", decision.codec},
                         {"gain_s", decision.gain_s},
                         {"before_bubble", decision.dropped}});
  }
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [codec, outcome] : result.all) {
    all[codec] = json_of(outcome);
  }
  nlohmann::json json = {{"transfers", transfers},
                         {"none", json_of(result.none)},
                         {"all", all},
                         {"chosen", json_of(result.chosen)},
                         {"simulated", result.simulated},
                         {"complete", result.complete}};
  if (result.offload) {
    json["offload"] = {{"choices", result.offload->choices},
                       {"all_tried", result.offload->all_tried && result.complete},
                       {"gain_s", result.offload->gain_s}};
  }
  return json;
}

int plan_codecs(const CodecOptions& options) {
  const int64_t begun_ns = now_ns();
  if (!(options.time_limit_s >= 0)) {
    fail("hocket plan codecs", "--time-limit is {:g}; expected seconds, or 0 for none",
         options.time_limit_s);
  }
  if (options.json && options.out == "-") {
    fail("hocket plan codecs",
         "--json and the run both go to standard output; expected --out FILE for the run");
  }
  const Source source = read_source(options.run, options.set, true);
  if (source.parsed_program) {
    fail("hocket plan codecs",
         "{} is the text of a program, with its codecs fixed; expected a run.yaml or a "
         "MODEL",
         options.run);
  }
  const engine::Run& run = source.run;
  const PredictionBasis basis = prediction_basis(run, {.verb = "hocket plan codecs",
                                                       .source = options.run,
                                                       .cluster = options.cluster,
                                                       .profile = options.profile,
                                                       .outputs = {{"--out", options.out}}});
  const CodecTrial trial(run, basis.cluster_file, basis.profile, split(options.codecs, ','));
  const CodecResult result = search(trial, options, begun_ns);
  const std::string steps = steps_text(result);
  std::FILE* messages = message_stream(options.out);
  if (options.json) {
    fmt::print("{}\n", json_of(trial, result).dump(2));
  } else {
    fmt::print(messages, "model      {}\ncluster    {}\nsearch     {} simulated{}\n{}\n{}\n{}",
               engine::describe(run.model), trial.cluster().name, counted(result.simulated, "step"),
               result.complete ? "" : ", ended before all were tried", offload_text(result),
               table_text(trial, result), steps);
  }
  if (options.out.empty()) return 0;
  write_output(options.out, engine::run_yaml(trial.run_of(result.choice()),
                                             fmt::format("codecs of gradients, predicted on {}\n{}",
                                                         trial.cluster().name,
                                                         steps.substr(0, steps.size() - 1))));
  if (!options.json) {
    fmt::print(messages, "wrote {}\n", options.out);
  }
  return 0;
}

int plan_espresso(const std::string& file, const std::vector<std::string>& set) {
  planner::EspressoInput input;
  read_config(input, file, set);
  const std::vector<planner::EspressoOption> options = planner::espresso_options(input);
  fmt::print("{:>12}  {:>6}  {:<48}  {}\n", "elements", "option", "", "gradient of");
  for (size_t i = 0; i < options.size(); ++i) {
    fmt::print("{:>12}  {:>6}  {:<48}  {}\n", input.tensors[i].elements, options[i].number,
               options[i].what, input.tensors[i].name);
  }
  return 0;
}

}  // namespace

void declare_plan_codecs(Args& args) {
  auto options = std::make_shared<CodecOptions>();
  args.about("choose which gradients travel through a codec",
             "Keeps the plan of RUN, and chooses for each gradient all-reduce one of the codecs or "
             "none by the predicted step (plan.grad_codec_of). docs/planner.md.");
  args.positional("RUN", &options->run, "a run.yaml, or a MODEL (its config.json)");
  add_set(args, &options->set);
  add_prediction_basis(args, &options->cluster, &options->profile);
  args.option("--codecs", "CODEC[,..]", &options->codecs, "codecs to choose from");
  args.flag("--offload", &options->offload,
            "let the CPUs of hosts encode in place of devices (docs/planner.md)");
  args.option("--time-limit", "SECONDS", &options->time_limit_s,
              "end with the best choice so far after this time; 0: never");
  args.option("--out", "FILE", &options->out, "write the run here (-: standard output)");
  args.flag("--json", &options->json, "print the choices and the predicted steps as JSON");
  args.example(
      "hocket plan codecs configs/models/dense-26m --cluster configs/clusters/box-4x2.yaml --set "
      "train.global_batch=16 --set train.seq_len=512 --set plan.dp=4 --set plan.ranks_per_node=2 "
      "--out codecs.yaml",
      "which gradients of 4 replicas to send as int8");
  args.run([options] { return plan_codecs(*options); });
}

void declare_plan_espresso(Args& args) {
  struct EspressoOptions {
    std::string file;
    std::vector<std::string> set;
  };
  auto options = std::make_shared<EspressoOptions>();
  args.about("print the decisions of Espresso's public selector",
             "Reads a file of gradients and their times, and prints which option the selector "
             "published with Espresso chooses for each. docs/planner.md has the keys of the file.");
  args.positional("FILE", &options->file, "a YAML file of gradients");
  args.option("--set", "KEY=VALUE", &options->set, "override a key of the file; may be repeated");
  args.example("hocket plan espresso docs/examples/espresso.yaml",
               "the option chosen for every gradient");
  args.run([options] { return plan_espresso(options->file, options->set); });
}

}  // namespace hocket::cli
