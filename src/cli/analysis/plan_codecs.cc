// SPDX-License-Identifier: Apache-2.0
#include "cli/analysis/plan_codecs.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

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

namespace hocket::cli {

namespace {

using planner::CodecDecision;
using planner::CodecResult;
using planner::CodecTrial;

planner::CodecResult search(const CodecTrial& trial, const PlanCodecs& options) {
  const auto begun = std::chrono::steady_clock::now();
  Progress line;
  planner::CodecSearchOptions how;
  how.offload = options.offload;
  how.stop = [&] {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begun;
    return Interrupt::came() || (options.time_limit_s > 0 && spent.count() >= options.time_limit_s);
  };
  how.progress = [&](int64_t simulated, double best_s) {
    const std::string best = simulated > 0 ? ", best " + human_time(best_s) : "";
    line.update(fmt::format("{} simulated{}", simulated, best));
  };
  const Interrupt interrupt;
  CodecResult result = planner::choose_codecs(trial, how);
  line.finish();
  return result;
}

/// Of each transfer: what it is of, and what was decided.
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
  return fmt::format("{:<14} {} a step ({:.3g}x){}\n", what, human_time(outcome.step_s),
                     none.step_s / outcome.step_s,
                     outcome.fits ? "" : ", more memory than there is");
}
std::string steps_text(const CodecResult& result) {
  std::string text = step_text(passes::kNoCodec, result.none, result.none);
  for (const auto& [codec, outcome] : result.all) {
    text += step_text("all " + codec, outcome, result.none);
  }
  return text + step_text("chosen", result.chosen, result.none);
}

/// What hosts encode in place of devices, and how that was found.
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
      result.offload->all_tried ? ", all tried" : ", too many to try all: one size after another");
}

nlohmann::json json_of(const planner::CodecOutcome& outcome) {
  return {{"step_s", outcome.step_s}, {"fits", outcome.fits}};
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
                       {"all_tried", result.offload->all_tried},
                       {"gain_s", result.offload->gain_s}};
  }
  return json;
}

}  // namespace

int plan_codecs(const PlanCodecs& options) {
  const Source source = read_source(options.run, options.set, true);
  if (source.given) {
    fail("hocket plan --codecs",
         "{} is the text of a program, whose gradients travel as it says; expected a run.yaml or a "
         "MODEL",
         options.run);
  }
  const engine::Run& run = source.run;
  const PredictionBasis basis = prediction_basis(run, {.verb = "hocket plan",
                                                       .source = options.run,
                                                       .cluster = options.cluster,
                                                       .profile = options.profile,
                                                       .outputs = {{"--out", options.out}}});
  const CodecTrial trial(run, basis.cluster_file, basis.profile, options.codecs);
  const CodecResult result = search(trial, options);
  const std::string steps = steps_text(result);
  std::FILE* words = words_beside(options.out);
  if (options.json) {
    fmt::print("{}\n", json_of(trial, result).dump(2));
  } else {
    fmt::print(words, "model      {}\ncluster    {}\nsearch     {} simulated{}\n{}\n{}\n{}",
               engine::describe(run.model), trial.cluster().name, counted(result.simulated, "step"),
               result.complete ? "" : ", ended before all were tried", offload_text(result),
               table_text(trial, result), steps);
  }
  if (options.out.empty()) return 0;
  write_output(
      options.out,
      planner::run_text(trial.run_of(result.choice()),
                        fmt::format("codecs of gradients, predicted on {}\n{}",
                                    trial.cluster().name, steps.substr(0, steps.size() - 1))));
  if (!options.json) {
    fmt::print(words, "wrote {}\n", options.out);
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

}  // namespace hocket::cli
