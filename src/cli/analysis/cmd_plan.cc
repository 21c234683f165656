// SPDX-License-Identifier: Apache-2.0
// hocket plan
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/analysis/plan_codecs.h"
#include "cli/analysis/plan_report.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/verbs.h"
#include "interop/foreign.h"
#include "models/build.h"
#include "planner/search.h"
#include "run/describe.h"

namespace hocket::cli {

namespace {

constexpr int64_t kMostRanks = 1 << 16;

struct PlanOptions {
  std::string run, cluster, profile, out, from, emit, model_out, codecs;
  std::vector<std::string> set;
  std::optional<int64_t> global_batch, seq_len, ranks, threads, top;
  std::optional<double> time_limit;
  bool json = false, espresso = false, offload = false;

  size_t rows() const { return static_cast<size_t>(top.value_or(5)); }
  double seconds() const { return time_limit.value_or(50); }
  bool searches() const { return !cluster.empty() || (from.empty() && emit.empty()); }
  /// Where the result goes, "-" for standard output; empty: there is none but what is printed.
  std::string destination() const {
    const bool is_printed = out.empty() && (!emit.empty() || !searches());
    return is_printed ? "-" : out;
  }
};

std::vector<std::string> overrides_of(const PlanOptions& options) {
  std::vector<std::string> set = options.set;
  if (options.global_batch) {
    set.push_back(fmt::format("train.global_batch={}", *options.global_batch));
  }
  if (options.seq_len) {
    set.push_back(fmt::format("train.seq_len={}", *options.seq_len));
  }
  return set;
}

/// Ranks of a file of another trainer. A conversion has those of --ranks; where another plan is
/// searched for, its own stay, from which its batch may follow, and those of the search fill in
/// what the file leaves open.
interop::RanksOfFile ranks_of_file(const PlanOptions& options) {
  if (!options.searches()) return {.asked = options.ranks.value_or(0)};
  if (options.ranks) return {.otherwise = *options.ranks};
  const cost::Cluster cluster = cost::read_cluster(options.cluster);
  return {.otherwise = cluster.this_machine ? 0 : cluster.capacity()};
}

std::string parameters_text(const models::ModelConfig& model) {
  const int64_t count = models::param_count(models::build(model, {.tokens = 1}));
  return human_count(static_cast<double>(count)) + " parameters";
}

/// The run that a file of another trainer describes; what was left aside is told. The model's
/// config.json, where the file has its sizes, is written beside the run. Its plan is looked at only
/// if it stays. `model_name`: as the file names its model, empty if it does not.
engine::Run read_foreign(const PlanOptions& options, std::string* model_name) {
  const std::string text = read_file(options.run);
  const interop::RanksOfFile ranks = ranks_of_file(options);
  const bool named =
      std::any_of(options.set.begin(), options.set.end(), [](const std::string& key) {
        return key.starts_with("model.path=") || key.starts_with("model.config");
      });
  const interop::Imported imported = options.from == "megatron"
                                         ? interop::import_megatron(text, options.run, ranks, named)
                                         : interop::import_torchtitan(text, options.run, ranks);
  std::vector<std::string> all;
  for (const auto& [key, value] : imported.keys) {
    all.push_back(fmt::format("{}={}", key, value));
  }
  nlohmann::json tree = nlohmann::json::object();
  if (!imported.config_json.empty() && !named) {
    if (options.model_out.empty()) {
      tree["model"]["config"] = parse_json(imported.config_json, options.run);
    } else {
      const std::string file = join_path(options.model_out, "config.json");
      make_dirs(options.model_out);
      write_output(file, imported.config_json);
      tree["model"]["path"] = file;
    }
  } else if (!named) {
    fail(options.run,
         "names the model {} without its sizes; expected --set model.path=MODEL, a folder with its "
         "config.json",
         quote(imported.model_name));
  }
  std::FILE* words = options.json ? stderr : words_beside(options.destination());
  if (!imported.lacks.empty()) {
    const models::ModelConfig model = models::parse_config(imported.config_json, options.run);
    fmt::print(words, "note     this is another model here, of {}: without {}\n",
               parameters_text(model), join(imported.lacks, ", "));
  }
  for (const std::string& line : imported.notes) {
    fmt::print(words, "note     {}\n", line);
  }
  for (const std::string& line : imported.ignored) {
    fmt::print(words, "ignored  {}\n", line);
  }
  const std::vector<std::string> set = overrides_of(options);
  all.insert(all.end(), set.begin(), set.end());
  *model_name = imported.model_name;
  return options.searches() ? engine::resolve_text(tree.dump(), options.run, all)
                            : engine::parse_run(tree.dump(), options.run, all);
}

/// Where a file names its model, whose sizes come from another place: they may be of another one.
void tell_model(const PlanOptions& options, const std::string& model_name, const engine::Run& run) {
  if (model_name.empty()) return;
  fmt::print(options.json ? stderr : words_beside(options.destination()),
             "note     the file names the model {}; the one of this run has {} ({})\n",
             quote(model_name), parameters_text(run.model), engine::describe(run.model));
}

/// Searched keys that --set gives, with their values: they stay as they are.
std::map<std::string, std::string> given_keys(const std::vector<std::string>& assignments) {
  std::map<std::string, std::string> given;
  // Whatever the mesh is, each must be of its type.
  const engine::Run run = engine::resolve_text("{}", "hocket plan --set", assignments);
  for (const ResolvedConfig::Entry& entry : run.resolved.entries()) {
    if (entry.origin != "--set") continue;
    std::string value = entry.value;
    if (value.size() > 1 && (value.front() == '"' || value.front() == '\'')) {
      value = value.substr(1, value.size() - 2);
    }
    given[entry.path] = value;
  }
  return given;
}

/// Keys that a file of another trainer has from its mesh and its schedule: where these are left
/// aside, so are they, unless --set gives them.
bool is_of_its_plan(const std::string& assignment, const std::vector<std::string>& set) {
  const std::string key = assignment.substr(0, assignment.find('='));
  const bool of_plan = key == "plan.overlap_p2p_comm" ||
                       key == "plan.shard.reshard_after_forward" ||
                       key == "plan.shard.reshard_after_backward";
  return of_plan && std::none_of(set.begin(), set.end(), [&](const std::string& given) {
           return given.starts_with(key + "=");
         });
}

/// What is searched for: RUN or the MODEL, without a plan; `given`: searched keys that --set gives.
engine::Run read_target(const PlanOptions& options, std::map<std::string, std::string>* given) {
  std::vector<std::string> rest, fixed;
  const std::vector<std::string>& searched = planner::searched_keys();
  for (const std::string& assignment : overrides_of(options)) {
    const std::string key = assignment.substr(0, assignment.find('='));
    const bool is_searched = std::find(searched.begin(), searched.end(), key) != searched.end();
    (is_searched ? fixed : rest).push_back(assignment);
  }
  *given = given_keys(fixed);
  engine::Run run;
  std::string model_name;
  const bool is_file = file_exists(options.run) && !is_directory(options.run);
  if (!options.from.empty()) {
    PlanOptions others = options;
    others.set = rest;
    others.global_batch.reset();
    others.seq_len.reset();
    run = read_foreign(others, &model_name);
  } else if (is_file && !options.run.ends_with(".json")) {
    run = engine::resolve_run(options.run, rest);
  } else {
    if (!file_exists(options.run)) {
      fail("hocket plan", "{} does not exist; expected a run.yaml or a model", options.run);
    }
    if (!options.global_batch) {
      fail("hocket plan", "{} is a model; expected --global-batch N beside it", options.run);
    }
    rest.push_back("plan.ranks_per_node=1");
    rest.push_back(fmt::format("plan.dp={}", *options.global_batch));
    run = read_source(options.run, rest, true).run;
  }
  // Any plan will do for what is not searched for: a sequence on each rank.
  std::vector<std::string> all = planner::kept_keys(run);
  if (!options.from.empty()) {
    std::erase_if(all, [&](const std::string& key) { return is_of_its_plan(key, rest); });
  }
  if (!options.profile.empty()) {
    std::erase_if(all, [](const std::string& key) { return key.starts_with("cluster.profile="); });
    all.push_back("cluster.profile=" + nlohmann::json(options.profile).dump());
  }
  all.push_back("plan.ranks_per_node=1");
  all.push_back(fmt::format("plan.dp={}", run.config.train.global_batch));
  engine::Run target = engine::parse_run("{}", options.run, all);
  tell_model(options, model_name, target);
  return target;
}

/// Error: --set gives nodes another size than the cluster has, which all plans are made for.
void expect_nodes_of(const cost::Cluster& cluster, const std::vector<std::string>& set) {
  const std::string key = "plan.ranks_per_node=";
  for (const std::string& assignment : set) {
    if (!assignment.starts_with(key) || cluster.this_machine) continue;
    const std::string value = assignment.substr(key.size());
    if (value != std::to_string(cluster.devices_per_node)) {
      fail("hocket plan --set",
           "plan.ranks_per_node is {}; expected {}, as nodes of {} have devices", value,
           cluster.devices_per_node, cluster.name);
    }
  }
}

bool has_plan(const planner::Space& space) {
  bool found = false;
  for (const planner::Choice& mesh : planner::meshes(space)) {
    for (planner::Choice choice : planner::micro_batches(space, mesh)) {
      for (const planner::Pipeline& pipeline : planner::pipelines(space, choice)) {
        choice.schedule = pipeline.schedule;
        choice.chunks = pipeline.chunks;
        planner::visit_rest(space, choice, [&](const planner::Choice&) { found = true; });
        if (found) return true;
      }
    }
  }
  return false;
}

/// Which of the given keys there would be plans without.
std::string fault_text(const planner::Space& space) {
  std::vector<std::string> at_fault;
  for (const auto& [key, value] : space.given) {
    planner::Space others = space;
    others.given.erase(key);
    if (has_plan(others)) {
      at_fault.push_back(fmt::format("without {}={} there are some", key, value));
    }
  }
  return at_fault.empty() ? "" : "; " + join(at_fault, ", ");
}

/// What may help where nothing fits.
std::string remedies(const planner::SearchResult& result, const planner::Space& space) {
  std::vector<std::string> tries = {"more ranks or another batch"};
  for (const auto& [key, value] : space.given) {
    tries.push_back(fmt::format("without {}={}", key, value));
  }
  if (result.nearest_simulated.choice.pp > 1) {
    tries.push_back("other plan.pp_layers (tried: even ones, by time, by memory)");
  }
  if (!result.complete) {
    tries.push_back("a longer search");
  }
  return join(tries, ", or ");
}

/// Error: the search found nothing that fits.
[[noreturn]] void fail_without(const planner::SearchResult& result, const planner::Trial& trial,
                               const planner::Space& space, const std::string& emit) {
  if (result.complete && result.counts.plans == 0) {
    std::vector<std::string> given;
    for (const auto& [key, value] : space.given) {
      given.push_back(key + "=" + value);
    }
    fail("hocket plan",
         "there is no plan of {} with train.global_batch {} and train.seq_len {}{}{}; expected a "
         "mesh that divides the batch and the model (docs/plan.md); try other --ranks, or fewer "
         "keys{}",
         counted(space.ranks, "rank"), space.global_batch, space.seq_len,
         given.empty() ? "" : " and " + join(given, ", "),
         emit.empty() ? "" : ", which " + emit + " can express", fault_text(space));
  }
  std::string why;
  const auto add_nearest = [&](const planner::TooLarge& plan, const char* bytes) {
    if (plan.bytes == 0) return;
    why += fmt::format("\n  {} {}: {}", bytes, human_bytes(plan.bytes),
                       planner::describe(plan.choice, space));
  };
  add_nearest(result.nearest_simulated, "the nearest of the simulated takes");
  add_nearest(result.nearest, "the nearest of the others takes at least");
  for (const auto& [text, count] : result.refusals) {
    why += fmt::format("\n  {} x {}", count, text);
  }
  // Bounds say that a plan never fits; what was simulated may, with other layers on its stages.
  const bool is_proven = result.complete && result.counts.simulated == 0;
  throw Error(
      Error::Kind::kRun, "hocket plan",
      fmt::format("no plan of {} with train.global_batch {} {} into {} a rank; {}; try {}{}",
                  counted(space.ranks, "rank"), space.global_batch,
                  is_proven ? "fits" : "was found that fits",
                  human_bytes(static_cast<double>(trial.memory())), ending_text(result),
                  remedies(result, space), why));
}

/// `run` in the form of another trainer, or as a run.yaml.
interop::Emitted text_of(const engine::Run& run, const std::string& emit,
                         const std::string& comment) {
  if (emit == "megatron") return interop::emit_megatron(run);
  if (emit == "torchtitan") return interop::emit_torchtitan(run);
  return {planner::run_text(run, comment), {}};
}

std::string comment_of(const planner::Outcome& best, const planner::SearchResult& result,
                       const planner::Trial& trial, const planner::Space& space) {
  return fmt::format(
      "{}\npredicted on {}{}: {} a step ({:.0f} % compute, {:.0f} % exposed communication, {:.0f} "
      "% "
      "bubble, {:.0f} % idle), {} a rank\n{}",
      planner::describe(best.choice, space), trial.cluster().name,
      trial.costs().calibrated() ? "" : " (uncalibrated)", human_time(best.step_s),
      100 * best.compute_s / best.step_s, 100 * best.exposed_s / best.step_s,
      100 * best.bubble_s / best.step_s, 100 * best.idle_s / best.step_s,
      human_bytes(static_cast<double>(best.bytes)),
      result.complete ? "no plan of the space is faster" : "the best found when " + result.ended);
}

/// Writes what was made, and says what it says in another way.
void write_result(const PlanOptions& options, const interop::Emitted& emitted, std::FILE* words) {
  for (const std::string& line : emitted.notes) {
    fmt::print(words, "note     {}\n", line);
  }
  emit(options.destination(), emitted.text);
  if (options.destination() != "-" && options.searches() && !options.json) {
    fmt::print(words, "wrote {}\n", options.out);
  }
}

/// Runs the search, and shows how far it is.
planner::SearchResult run_search(const PlanOptions& options, const planner::Trial& trial,
                                 const planner::Space& space) {
  Progress line;
  planner::SearchOptions how;
  how.time_limit_s = options.seconds();
  how.threads = static_cast<int>(options.threads.value_or(0));
  how.stop = Interrupt::came;
  how.progress = [&](const planner::Counts& counts, const planner::Outcome* best,
                     const std::string& ended) {
    std::string text = found_text(counts);
    if (best) {
      text += fmt::format(", best {}: {}", human_time(best->step_s),
                          planner::describe(best->choice, space));
    } else if (!ended.empty()) {
      text += fmt::format("; {}: it goes on to the first plan that fits", ended);
    }
    line.update(text);
  };
  const Interrupt interrupt;
  planner::SearchResult result = planner::search(trial, space, how);
  line.finish();
  return result;
}

/// The plans of a space are searched for the fastest one, of which a table is printed; then it is
/// written. What would keep it from being written is told before, as far as it can be known.
int search_plan(const PlanOptions& options) {
  std::map<std::string, std::string> given;
  const engine::Run run = read_target(options, &given);
  const PredictionBasis basis = prediction_basis(run, {.verb = "hocket plan",
                                                       .source = options.run,
                                                       .cluster = options.cluster,
                                                       .profile = options.profile,
                                                       .outputs = {{"--out", options.out}}});
  expect_nodes_of(basis.cluster, options.set);
  const planner::Trial trial(run, basis.cluster_file, basis.profile, options.ranks.value_or(0));
  planner::Space space = trial.space(given);
  if (!options.emit.empty()) {
    space.expressible = options.emit == "megatron" ? interop::expressed_by_megatron(run)
                                                   : interop::expressed_by_torchtitan(run);
  }
  const planner::SearchResult result = run_search(options, trial, space);
  if (result.best.empty()) {
    fail_without(result, trial, space, options.emit);
  }
  const std::string destination = options.destination();
  std::FILE* words = options.json ? stderr : words_beside(destination);
  if (options.json) {
    fmt::print("{}\n", search_json(result, space, trial.costs().calibrated(), options.rows()));
  } else {
    fmt::print(words, "model    {}\ncluster  {}: {} of {} x {}{}\nsearch   {}\n\n{}{}",
               engine::describe(run.model), trial.cluster().name, space.ranks,
               trial.cluster().capacity(), trial.cluster().device_names(trial.cluster().capacity()),
               trial.costs().calibrated() ? "" : " (uncalibrated; try --profile)",
               ending_text(result), table_text(result, space, options.rows()),
               why_text(result, space));
    for (const auto& [why, count] : result.refusals) {
      fmt::print(words, "no program of {}: {}\n", counted(count, "plan"), why);
    }
  }
  if (destination.empty()) return 0;
  const planner::Outcome& best = result.best.front();
  write_result(options,
               text_of(trial.run_of(best.choice, space), options.emit,
                       comment_of(best, result, trial, space)),
               words);
  return 0;
}

/// Error: a mode of the verb is given what it has no use for.
void expect_none(const std::string& mode, const std::string& why,
                 const std::vector<std::pair<const char*, bool>>& others) {
  for (const auto& [option, given] : others) {
    if (given) {
      fail("hocket plan " + mode, "goes without {}: {}", option, why);
    }
  }
}

/// A run of another trainer as ours, or the other way round, with the plan that it has.
int convert(const PlanOptions& options) {
  expect_none("without --cluster", "nothing is searched for, the plan is written as it is",
              {{"--json", options.json},
               {"--top", options.top.has_value()},
               {"--threads", options.threads.has_value()},
               {"--time-limit", options.time_limit.has_value()},
               {"--profile", !options.profile.empty()},
               {"--ranks", options.ranks.has_value() && options.from.empty()}});
  require_output("hocket plan --out", options.out, {options.run});
  require_writable("hocket plan --out", options.out);
  std::string model_name;
  const engine::Run run = options.from.empty()
                              ? read_source(options.run, overrides_of(options), true).run
                              : read_foreign(options, &model_name);
  tell_model(options, model_name, run);
  if (options.ranks && run.plan.world() != *options.ranks) {
    fail("hocket plan", "--ranks is {}; expected {}, which the plan has with the keys of --set",
         *options.ranks, run.plan.world());
  }
  const std::string comment =
      options.from.empty() ? "" : fmt::format("from {} ({})", options.run, options.from);
  write_result(options, text_of(run, options.emit, comment), words_beside(options.destination()));
  return 0;
}

/// The plan stays: only the codecs of its gradients are chosen.
int choose(const PlanOptions& options) {
  expect_none("--codecs",
              "the plan of RUN stays, and is written as a run.yaml; try --set for its keys",
              {{"--ranks", options.ranks.has_value()},
               {"--threads", options.threads.has_value()},
               {"--top", options.top.has_value()},
               {"--from", !options.from.empty()},
               {"--emit", !options.emit.empty()},
               {"--model-out", !options.model_out.empty()}});
  return plan_codecs({.run = options.run,
                      .cluster = options.cluster,
                      .profile = options.profile,
                      .out = options.out,
                      .set = overrides_of(options),
                      .codecs = split(options.codecs, ','),
                      .time_limit_s = options.seconds(),
                      .offload = options.offload,
                      .json = options.json});
}

/// RUN is no run, but a file of gradients.
int decide_as_espresso(const PlanOptions& options) {
  expect_none("--espresso", "RUN has all that it decides by; try --set for the keys of RUN",
              {{"--codecs", !options.codecs.empty()},
               {"--offload", options.offload},
               {"--cluster", !options.cluster.empty()},
               {"--profile", !options.profile.empty()},
               {"--out", !options.out.empty()},
               {"--json", options.json},
               {"--global-batch", options.global_batch.has_value()},
               {"--seq-len", options.seq_len.has_value()},
               {"--ranks", options.ranks.has_value()},
               {"--threads", options.threads.has_value()},
               {"--top", options.top.has_value()},
               {"--time-limit", options.time_limit.has_value()},
               {"--from", !options.from.empty()},
               {"--emit", !options.emit.empty()},
               {"--model-out", !options.model_out.empty()}});
  return plan_espresso(options.run, options.set);
}

int plan_run(const PlanOptions& options) {
  if (!(options.seconds() >= 0)) {
    fail("hocket plan", "--time-limit is {:g}; expected seconds, or 0 for none", options.seconds());
  }
  if (options.espresso) return decide_as_espresso(options);
  if (options.json && options.destination() == "-" && options.searches()) {
    fail("hocket plan",
         "--json and the plan both go to standard output; expected --out FILE for the plan");
  }
  if (!options.codecs.empty()) return choose(options);
  if (options.offload) {
    fail("hocket plan --offload", "says where codecs encode; try it with --codecs int8");
  }
  for (const auto& [option, value] :
       {std::pair{"--from", options.from}, {"--emit", options.emit}}) {
    if (!value.empty() && value != "megatron" && value != "torchtitan") {
      fail(fmt::format("hocket plan {}", option), "is {}; expected megatron or torchtitan",
           quote(value));
    }
  }
  if (!options.model_out.empty() && options.from != "megatron") {
    fail("hocket plan",
         "--model-out goes with --from megatron, whose files have the model's sizes");
  }
  return options.searches() ? search_plan(options) : convert(options);
}

}  // namespace

void verb_plan(Args& args) {
  auto options = std::make_shared<PlanOptions>();
  args.about(
      "find the plan with the shortest predicted step on a cluster",
      "Looks at every mesh (pp, dp, cp, tp, ep, etp, with and without sequence_parallel; ep in one "
      "step or two), schedule and number of chunks, micro-batch (by speed where replicas are "
      "unlike), recompute, sharding (ZeRO-1 to 3) and algorithm of "
      "collectives that the model, the batch and the ranks allow. What cannot fit into memory is "
      "dropped by a bound; the rest is simulated, the most promising first, by the replay of "
      "`hocket simulate`, until no plan that is left can beat the best one or the time is up. "
      "Ctrl-C "
      "ends it with the best so far, and once more without a plan. Other keys of the run stay as "
      "they are, and so does every key "
      "that --set gives. The plan is written as a run.yaml that train, check and simulate take. "
      "With --codecs the plan of RUN stays, and only what its gradients travel through is chosen, "
      "transfer by transfer. "
      "--from reads the plan of another trainer, --emit writes one; without --cluster nothing is "
      "searched for then. docs/plan.md.");
  args.positional("RUN", &options->run,
                  "a run.yaml, whose plan is replaced, or a MODEL (its config.json); with --from a "
                  "shell script of Megatron-LM or a job file of torchtitan");
  add_set(args, &options->set);
  args.option("--cluster", "FILE", &options->cluster,
              "cluster file (configs/clusters); default: cluster.file, else this machine");
  args.option("--profile", "FILE", &options->profile,
              "timings of `hocket profile`; default: cluster.profile");
  args.option("--ranks", "N", &options->ranks,
              "ranks of the plan; default: all devices of the cluster; with --from and no "
              "--cluster those of RUN",
              1, kMostRanks);
  args.option("--global-batch", "N", &options->global_batch, "train.global_batch: sequences a step",
              1, int64_t{1} << 40);
  args.option("--seq-len", "N", &options->seq_len, "train.seq_len: tokens a sequence", 1,
              int64_t{1} << 27);
  args.option("--top", "N", &options->top, "plans that are printed; default: 5", 1, 1000);
  args.option("--out", "FILE", &options->out,
              "write the best plan's run here (-: standard output)");
  args.option("--time-limit", "SECONDS", &options->time_limit,
              "end with the best so far after this time, or with the first plan that fits if there "
              "is none by then; 0: never; default: 50");
  args.option("--threads", "N", &options->threads, "that simulate; default: as many as cores", 1,
              1024);
  args.option(
      "--codecs", "CODEC[,..]", &options->codecs,
      "keep the plan, and choose for each transfer of gradients one of these codecs or none "
      "by the predicted step (plan.grad_codec_of)");
  args.flag("--offload", &options->offload,
            "with --codecs: the CPUs of hosts may encode in place of devices (docs/plan.md)");
  args.flag(
      "--espresso", &options->espresso,
      "RUN is a file of gradients: print what the public selector of Espresso decides of them "
      "(docs/plan.md)");
  args.flag("--json", &options->json, "the best plans and what the search did, as JSON");
  args.option(
      "--from", "FORMAT", &options->from,
      "RUN is of megatron or torchtitan: read its model and plan, and list what is ignored");
  args.option("--model-out", "FOLDER", &options->model_out,
              "with --from megatron: write the model's config.json here; default: into the run");
  args.option("--emit", "FORMAT", &options->emit,
              "write the plan for megatron or torchtitan, or say which key they cannot express; a "
              "search looks only at what they can");
  args.example(
      "hocket plan configs/models/dense-26m --cluster configs/clusters/box-4x2.yaml --global-batch "
      "16 --seq-len 512 --time-limit 20 --out plan.yaml",
      "8 ranks of a box; hocket train plan.yaml takes it");
  args.example(
      "hocket plan configs/qwen3-30b-a3b.yaml --cluster configs/clusters/h100-64x8.yaml "
      "--time-limit "
      "30 --set plan.recompute=selective",
      "512 GPUs, with one key given");
  args.example(
      "hocket plan configs/models/dense-26m --cluster configs/clusters/box-4x2.yaml --global-batch "
      "16 --seq-len 512 --set plan.dp=4 --set plan.ranks_per_node=2 --codecs int8 --out "
      "codecs.yaml",
      "which gradients of 4 replicas to send as int8");
  args.run([options] { return plan_run(*options); });
}

}  // namespace hocket::cli
