// SPDX-License-Identifier: Apache-2.0
// hocket plan
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/analysis/plan_codecs.h"
#include "cli/analysis/plan_families.h"
#include "cli/analysis/plan_files.h"
#include "cli/analysis/plan_page.h"
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

constexpr int64_t kMaxSearchRanks = 1 << 16;

struct PlanOptions {
  PlanFile file;
  std::string cluster, profile, out, emit, html;
  std::optional<int64_t> ranks, threads;
  int64_t top = 5;
  double time_limit_s = 50;
  bool json = false;

  size_t rows() const { return static_cast<size_t>(top); }
  /// Returns the path for the plan: "-" is standard output; empty prints only the table.
  std::string destination() const { return out.empty() && !emit.empty() ? "-" : out; }
  /// Returns the stream for messages.
  std::FILE* messages() const {
    return json ? stderr : message_stream(html == "-" ? html : destination());
  }
};

/// Returns the number of ranks for another trainer's file. A number in the file stays, since its
/// batch may follow from it. Otherwise --ranks, or the cluster's number, fills it in.
interop::RanksOfFile ranks_of_file(const PlanOptions& options) {
  if (options.ranks) return {.otherwise = *options.ranks};
  const cost::Cluster cluster = cost::read_cluster(options.cluster);
  return {.otherwise = cluster.this_machine ? 0 : cluster.capacity()};
}

/// Searched keys that --set gives, with their values: they stay as they are.
std::map<std::string, std::string> given_keys(const std::vector<std::string>& assignments) {
  std::map<std::string, std::string> given;
  // Checks the type of each, independent of the mesh.
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

/// Returns the search's subject: RUN or MODEL, without a plan. `given` receives searched keys that
/// --set gives.
engine::Run read_target(const PlanOptions& options, std::map<std::string, std::string>* given) {
  std::vector<std::string> rest, fixed;
  const std::vector<std::string>& searched = planner::searched_keys();
  for (const std::string& assignment : options.file.overrides()) {
    const std::string key = assignment.substr(0, assignment.find('='));
    const bool is_searched = std::find(searched.begin(), searched.end(), key) != searched.end();
    (is_searched ? fixed : rest).push_back(assignment);
  }
  *given = given_keys(fixed);
  engine::Run run;
  std::string model_name;
  const bool is_file = file_exists(options.file.path) && !is_directory(options.file.path);
  if (!options.file.from.empty()) {
    PlanFile others = options.file;
    others.set = rest;
    others.global_batch.reset();
    others.seq_len.reset();
    run = read_foreign(others, ranks_of_file(options), false, options.messages(), &model_name);
  } else if (is_file && !options.file.path.ends_with(".json")) {
    run = engine::resolve_run(options.file.path, rest);
  } else {
    if (!file_exists(options.file.path)) {
      fail("hocket plan", "{} does not exist; expected a run.yaml or a model", options.file.path);
    }
    constexpr std::string_view kBatch = "train.global_batch=";
    std::string batch;
    for (const std::string& assignment : rest) {
      if (assignment.starts_with(kBatch)) {
        batch = assignment.substr(kBatch.size());
      }
    }
    if (batch.empty()) {
      fail("hocket plan", "{} is a model; expected --global-batch N beside it", options.file.path);
    }
    rest.push_back("plan.ranks_per_node=1");
    rest.push_back("plan.dp=" + batch);
    run = read_source(options.file.path, rest, true).run;
  }
  // Any plan will do for keys that are not searched: a sequence on each rank.
  std::vector<std::string> all = planner::kept_keys(run);
  if (!options.file.from.empty()) {
    std::erase_if(all, [&](const std::string& key) { return is_of_its_plan(key, rest); });
  }
  if (options.emit == "megatron") {
    for (std::string& assignment : interop::keys_for_megatron(run)) {
      all.push_back(std::move(assignment));
    }
  }
  if (!options.profile.empty()) {
    std::erase_if(all, [](const std::string& key) { return key.starts_with("cluster.profile="); });
    all.push_back("cluster.profile=" + nlohmann::json(options.profile).dump());
  }
  all.push_back("plan.ranks_per_node=1");
  all.push_back(fmt::format("plan.dp={}", run.config.train.global_batch));
  engine::Run target = engine::parse_run("{}", options.file.path, all);
  note_model(options.messages(), model_name, target);
  return target;
}

/// Throws Error if --set gives nodes another size than the cluster has, which all plans are made
/// for.
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

bool has_plan(const planner::SearchSpace& space) {
  bool found = false;
  for (const planner::PlanCandidate& mesh : planner::meshes(space)) {
    for (planner::PlanCandidate plan : planner::micro_batches(space, mesh)) {
      for (const planner::Pipeline& pipeline : planner::pipelines(space, plan)) {
        plan.schedule = pipeline.schedule;
        plan.chunks = pipeline.chunks;
        planner::visit_rest(space, plan, [&](const planner::PlanCandidate&) { found = true; });
        if (found) return true;
      }
    }
  }
  return false;
}

/// Returns a text with the given keys that exclude every plan.
std::string fault_text(const planner::SearchSpace& space) {
  std::vector<std::string> at_fault;
  for (const auto& [key, value] : space.given) {
    planner::SearchSpace others = space;
    others.given.erase(key);
    if (has_plan(others)) {
      at_fault.push_back(fmt::format("without {}={} there are some", key, value));
    }
  }
  return at_fault.empty() ? "" : "; " + join(at_fault, ", ");
}

/// Returns the least number of ranks that hold parameters and states, each once.
int64_t ranks_of_states(const planner::SearchResult& result, const planner::Trial& trial) {
  return static_cast<int64_t>(
      std::ceil(result.state_bytes / std::max(1.0, static_cast<double>(trial.memory()))));
}

/// Returns advice for a search in which nothing fits.
std::string remedies(const planner::SearchResult& result, const planner::Trial& trial,
                     const planner::SearchSpace& space) {
  const int64_t least = ranks_of_states(result, trial);
  if (space.ranks < least) {
    return fmt::format(
        "more ranks: parameters and optimizer states alone need at least {}, of {} a rank", least,
        human_bytes(result.state_bytes / static_cast<double>(space.ranks)));
  }
  std::vector<std::string> tries = {"more ranks or another batch"};
  for (const auto& [key, value] : space.given) {
    tries.push_back(fmt::format("without {}={}", key, value));
  }
  if (result.nearest_simulated.plan.pp > 1) {
    tries.push_back("other plan.pp_layers (tried: even ones, by time, by memory)");
  }
  if (!result.complete) {
    tries.push_back("a longer search");
  }
  return join(tries, ", or ");
}

/// Throws the Error of a search that found nothing that fits.
[[noreturn]] void fail_without(const planner::SearchResult& result, const planner::Trial& trial,
                               const planner::SearchSpace& space, const std::string& emit) {
  if (result.complete && result.counts.plans == 0) {
    std::vector<std::string> given;
    for (const auto& [key, value] : space.given) {
      given.push_back(key + "=" + value);
    }
    fail("hocket plan",
         "there is no plan of {} with train.global_batch {} and train.seq_len {}{}{}; expected a "
         "mesh that divides the batch and the model (docs/planner.md); try other --ranks, or fewer "
         "keys{}",
         counted(space.ranks, "rank"), space.global_batch, space.seq_len,
         given.empty() ? "" : " and " + join(given, ", "),
         emit.empty() ? "" : ", which " + emit + " can express", fault_text(space));
  }
  std::string why;
  const auto memory = static_cast<double>(trial.memory());
  const auto add_nearest = [&](const char* which, const planner::TooLarge& plan, bool is_planned) {
    if (plan.bytes == 0) return;
    std::string text = is_planned ? "takes " + human_bytes(plan.bytes) : estimate_text(plan);
    const double least = is_planned ? plan.bytes : plan.lower_bound_bytes;
    if (least > memory && human_bytes(least) == human_bytes(memory)) {
      text += fmt::format(", {} more than there is", human_bytes(least - memory));
    }
    why += fmt::format("\n  {} {}: {}", which, text, planner::describe(plan.plan, space));
  };
  add_nearest("the nearest of the simulated", result.nearest_simulated, true);
  add_nearest("the nearest of those too large by their bound is", result.nearest, false);
  add_nearest("the nearest of those not tried is", result.nearest_untried, false);
  for (const auto& [text, count] : result.refusals) {
    why += fmt::format("\n  {} x {}", count, text);
  }
  // Lower bounds prove that a plan never fits. A simulated plan may fit with other layers on its
  // stages.
  const bool is_proven = result.complete && result.counts.simulated == 0;
  throw Error(
      Error::Kind::kRun, "hocket plan",
      fmt::format("no plan of {} with train.global_batch {} {} into {} a rank; {}; try {}{}",
                  counted(space.ranks, "rank"), space.global_batch,
                  is_proven ? "fits" : "was found that fits", human_bytes(memory),
                  ending_text(result), remedies(result, trial, space), why));
}

std::string comment_of(const planner::Outcome& best, const planner::SearchResult& result,
                       const planner::Trial& trial, const planner::SearchSpace& space) {
  return fmt::format(
      "{}\npredicted on {}{}: {} a step, interval {} ({:.0f} % compute, {:.0f} % exposed "
      "communication, {:.0f} "
      "% bubble, {:.0f} % idle), {} a rank\ninterval: {}\n{}",
      planner::describe(best.plan, space), trial.cluster().name,
      trial.costs().calibrated() ? "" : " (uncalibrated)", human_time(best.step_s),
      interval_text(best), 100 * best.compute_s / best.step_s, 100 * best.exposed_s / best.step_s,
      100 * best.bubble_s / best.step_s, 100 * best.idle_s / best.step_s,
      human_bytes(static_cast<double>(best.bytes)), best.interval_why,
      result.complete ? "no plan of the space is faster" : "the best found when " + result.ended);
}

/// Runs the search, and shows how far it is. `begun_ns`: when the command began, whose time is
/// limited.
planner::SearchResult run_search(const PlanOptions& options, const planner::Trial& trial,
                                 const planner::SearchSpace& space, int64_t begun_ns) {
  Progress line;
  planner::SearchOptions search_options;
  search_options.time_limit_s = options.time_limit_s;
  search_options.spent_s = seconds_since(begun_ns);
  search_options.draws_families = !options.html.empty();
  search_options.threads = static_cast<int>(options.threads.value_or(0));
  search_options.stop = Interrupt::came;
  search_options.progress = [&](const planner::Counts& counts, const planner::Outcome* best,
                                const std::string& ended) {
    std::string text = found_text(counts);
    if (best) {
      text += fmt::format(", best {}: {}", human_time(best->step_s),
                          planner::describe(best->plan, space));
    } else if (!ended.empty()) {
      text += fmt::format("; {}: it goes on to the first plan that fits", ended);
    }
    line.update(text);
  };
  const Interrupt interrupt;
  planner::SearchResult result = planner::search(trial, space, search_options);
  line.finish();
  return result;
}

/// Searches a space for the fastest plan, prints a table, and writes the plan. Reports obstacles to
/// writing it before the search, where they are known.
int search_plan(const PlanOptions& options) {
  const int64_t begun_ns = now_ns();
  std::map<std::string, std::string> given;
  const engine::Run run = read_target(options, &given);
  const PredictionBasis basis =
      prediction_basis(run, {.verb = "hocket plan",
                             .source = options.file.path,
                             .cluster = options.cluster,
                             .profile = options.profile,
                             .outputs = {{"--out", options.out}, {"--html", options.html}}});
  expect_nodes_of(basis.cluster, options.file.set);
  const planner::Trial trial(run, basis.cluster_file, basis.profile, options.ranks.value_or(0));
  planner::SearchSpace space = trial.space(given);
  if (!options.emit.empty()) {
    space.expressible = options.emit == "megatron" ? interop::expressed_by_megatron(run)
                                                   : interop::expressed_by_torchtitan(run);
  }
  if (options.emit == "megatron") {
    space.waits_for_messages = interop::waits_in_megatron;
  }
  const planner::SearchResult result = run_search(options, trial, space, begun_ns);
  if (result.best.empty()) {
    fail_without(result, trial, space, options.emit);
  }
  std::FILE* messages = options.messages();
  if (options.json) {
    fmt::print("{}\n", search_json(result, space, trial.costs().calibrated(), options.rows(),
                                   trial.memory()));
  } else {
    fmt::print(messages, "model    {}\ncluster  {}: {} of {} x {}{}\nsearch   {}\n\n{}{}{}",
               engine::describe(run.model), trial.cluster().name, space.ranks,
               trial.cluster().capacity(), trial.cluster().device_names(trial.cluster().capacity()),
               trial.costs().calibrated() ? "" : " (uncalibrated; try --profile)",
               ending_text(result), table_text(result, space, options.rows()),
               why_text(result, space), families_text(result, space));
    for (const std::string& line : gains_lines(result, space, trial.memory())) {
      fmt::print(messages, "next     {}\n", line);
    }
    for (const auto& [why, count] : result.refusals) {
      fmt::print(messages, "no program of {}: {}\n", counted(count, "plan"), why);
    }
  }
  if (!options.html.empty()) {
    emit(options.html,
         plan_page(result, trial, space, engine::describe(run.model), options.rows()));
  }
  if (options.destination().empty()) return 0;
  const planner::Outcome& best = result.best.front();
  const interop::Emitted emitted =
      text_of(trial.run_of(best.plan, space), options.emit, comment_of(best, result, trial, space));
  for (const std::string& line : emitted.notes) {
    fmt::print(messages, "note     {}\n", line);
  }
  emit(options.destination(), emitted.text);
  if (options.destination() != "-" && !options.json) {
    fmt::print(messages, "wrote {}\n", options.out);
  }
  return 0;
}

int plan_run(const PlanOptions& options) {
  if (!(options.time_limit_s >= 0)) {
    fail("hocket plan", "--time-limit is {:g}; expected seconds, or 0 for none",
         options.time_limit_s);
  }
  if (options.json && options.destination() == "-") {
    fail("hocket plan",
         "--json and the plan both go to standard output; expected --out FILE for the plan");
  }
  if (options.html == "-" && (options.json || options.destination() == "-")) {
    fail("hocket plan", "--html - and {} both go to standard output; expected one there",
         options.json ? "--json" : "the plan");
  }
  expect_formats("hocket plan", options.file, options.emit);
  if (options.cluster.empty() && !(options.file.from.empty() && options.emit.empty())) {
    fail("hocket plan",
         "{} without --cluster: nothing says where the plan is to run; expected --cluster FILE, or "
         "hocket plan convert to keep the plan of the file",
         options.file.from.empty() ? "--emit" : "--from");
  }
  return search_plan(options);
}

}  // namespace

void verb_plan(Args& args) {
  auto options = std::make_shared<PlanOptions>();
  args.about(
      "find the plan with the shortest predicted step on a cluster",
      "Looks at every mesh (pp, dp, cp, tp, ep, etp, with and without sequence_parallel; ep in one "
      "step or two), schedule and number of chunks, micro-batch (by speed where replicas are "
      "heterogeneous), recompute, sharding (ZeRO-1 to 3) and algorithm of collectives that the "
      "model, the batch and the ranks allow. Candidates that cannot fit into memory are dropped by "
      "a bound; the rest is simulated by the replay of `hocket simulate`, first the best plans of "
      "every family that practitioners start with, then the most promising of all, until no "
      "candidate can beat the best plan or the time is up. Long steps are extrapolated from "
      "fewer micro-batches (+- a bound on the error), the two best simulated in full. The output "
      "has the best plans, the best of every family (FSDP, tp, pp, ...) with the cause of its "
      "distance to the best, and the gains from 10 % more of each resource of the cluster. "
      "Ctrl-C ends the search with the best plan so far, and once more without a plan. Other keys "
      "of the run stay "
      "as they are, and so does every key that --set gives. The plan is written as a run.yaml that "
      "train, check and simulate take. docs/planner.md.");
  add_plan_file(args, &options->file);
  add_prediction_basis(args, &options->cluster, &options->profile);
  args.option("--ranks", "N", &options->ranks,
              "ranks of the plan; default: all devices of the cluster", 1, kMaxSearchRanks);
  args.option("--top", "N", &options->top, "plans to print", 1, 1000);
  args.option("--out", "FILE", &options->out,
              "write the best plan's run here (-: standard output)");
  args.option("--time-limit", "SECONDS", &options->time_limit_s,
              "end with the best plan so far after this time; without one go on until one fits or "
              "eight plans were simulated; 0: never");
  args.option("--threads", "N", &options->threads, "threads that simulate; default: one per core",
              1, 1024);
  args.option("--html", "FILE", &options->html,
              "write a page with the best of every family, their timelines, and the next "
              "bottleneck (-: standard output)");
  args.flag("--json", &options->json, "print the best plans and the search's counts as JSON");
  add_emit(args, &options->emit,
           "write the plan for megatron or torchtitan; the search looks only at plans that it can "
           "express");
  args.replaced("--codecs", "hocket plan codecs RUN --codecs CODEC");
  args.replaced("--offload", "hocket plan codecs RUN --offload");
  args.replaced("--espresso", "hocket plan espresso FILE");
  args.example(
      "hocket plan configs/models/dense-26m --cluster configs/clusters/box-4x2.yaml --global-batch "
      "16 --seq-len 512 --time-limit 20 --out plan.yaml",
      "8 ranks of a box; hocket train plan.yaml takes it");
  args.example(
      "hocket plan configs/qwen3-30b-a3b.yaml --cluster configs/clusters/h100-64x8.yaml "
      "--time-limit 30 --set plan.recompute=selective",
      "512 GPUs, with one key given");
  args.run([options] { return plan_run(*options); });
  declare_plan_convert(args.sub("convert"));
  declare_plan_codecs(args.sub("codecs"));
  declare_plan_espresso(args.sub("espresso"));
}

}  // namespace hocket::cli
