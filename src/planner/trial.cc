// SPDX-License-Identifier: Apache-2.0
#include "planner/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/stop.h"
#include "base/text.h"
#include "cost/flops.h"
#include "parallel/schedules/schedule.h"
#include "planner/pipeline_shape.h"
#include "program/memory.h"
#include "run/compile.h"
#include "run/machine.h"
#include "run/run_text.h"
#include "sim/sim_trace.h"
#include "sim/simulator.h"

namespace hocket::planner {

namespace {

/// Keys of a plan that say how a mesh is cut, or name its ranks: none of them fits another mesh.
constexpr const char* kOfOneMesh[] = {"plan.cp_shares", "plan.layouts", "plan.shard.group",
                                      "plan.expert_ranks", "plan.ranks_per_node"};

/// A step with fewer passes through layers takes less than a second to simulate.
constexpr double kLongProgramPasses = 2048;
/// A step is shortened if it has this many times the micro-batches of all shorter steps together.
constexpr int64_t kShorterBy = 2;
/// Bound on the error of a line through two steps alone, as a share of the step.
constexpr double kErrorShareOfOneLine = 0.05;

bool is_searched(const std::string& path) {
  const std::vector<std::string>& keys = searched_keys();
  return std::find(keys.begin(), keys.end(), path) != keys.end() ||
         std::find(std::begin(kOfOneMesh), std::end(kOfOneMesh), path) != std::end(kOfOneMesh);
}

}  // namespace

std::vector<std::string> kept_keys(const engine::Run& run) {
  std::vector<std::string> kept;
  for (std::string& assignment : engine::assignments_of(run)) {
    if (is_searched(assignment.substr(0, assignment.find('=')))) continue;
    kept.push_back(std::move(assignment));
  }
  return kept;
}

Trial::Trial(const engine::Run& run, const std::string& cluster_file,
             std::optional<cost::Profile> profile, int64_t ranks)
    : base_(run), kept_(kept_keys(run)), profile_(std::move(profile)) {
  // This machine is shared by the plans' ranks, by default one per core; other clusters have a
  // size.
  std::erase_if(kept_, [](const std::string& key) { return key.starts_with("cluster.file="); });
  if (!cluster_file.empty()) {
    kept_.push_back(fmt::format("cluster.file={}", nlohmann::json(cluster_file).dump()));
  }
  engine::Run all = run;
  all.plan = parallel::Plan();
  all.plan.dp = std::max<int64_t>(1, ranks);
  cluster_ = engine::cluster_of(all, cluster_file);
  if (cluster_.this_machine && ranks <= 0) {
    ranks = all.plan.dp = cluster_.cores_per_node;
    cluster_ = engine::cluster_of(all, cluster_file);
  }
  ranks_ = ranks > 0 ? ranks : cluster_.capacity();
  if (ranks_ > cluster_.capacity()) {
    fail("hocket plan", "--ranks is {}; expected at most the {} of {}", ranks_, cluster_.capacity(),
         cluster_.name);
  }
  const double device = cluster_.at_best().device.plannable();
  memory_ =
      static_cast<int64_t>(std::min(device, run.config.cluster.memory_budget.value_or(device)));
}

namespace {

/// FLOPs of the layers of a model, for one sequence.
LayerCosts layer_costs(const ModelTable& table) {
  std::vector<double> flops;
  for (const LayerWork& type : table.layer_types) {
    double& of_device_type = flops.emplace_back(0);
    for (const NodeWork& node : type.nodes) {
      of_device_type += node.flops;
    }
  }
  LayerCosts costs{.embedding = flops[kEmbedding], .head = flops[kHead]};
  for (const size_t type : table.type_of) {
    costs.layer.push_back(flops[type]);
  }
  return costs;
}

}  // namespace

SearchSpace Trial::space(std::map<std::string, std::string> given) const {
  SearchSpace space{.model = base_.model,
                    .ranks = ranks_,
                    .ranks_per_node = cluster_.devices_per_node,
                    .global_batch = base_.config.train.global_batch,
                    .seq_len = base_.config.train.seq_len,
                    .given = std::move(given)};
  const ModelTable table = tables_of(graph(), std::span(kRecomputeNames).first(1)).front();
  const LayerCosts costs = layer_costs(table);
  if (cluster_.num_device_types() > 1) {
    const std::vector<double> of_device_type = speed_of_device_types(table);
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      space.speed.push_back(of_device_type[cluster_.device_type_of(static_cast<int32_t>(rank))]);
    }
  }
  balance_layers(costs, &space);
  distribute_samples(costs, &space);
  return space;
}

/// Returns the speed of each device type for a micro-batch, relative to the fastest.
std::vector<double> Trial::speed_of_device_types(const ModelTable& table) const {
  const cost::CostModel all(cluster_, profile_, threads(), engine::collectives_of(base_));
  std::vector<double> speeds;
  for (size_t type = 0; type < cluster_.num_device_types(); ++type) {
    const cost::CostModel& costs = all.of_device_type(type);
    double seconds = 0;
    const auto add = [&](size_t layer) {
      for (const NodeWork& node : table.layer_types[layer].nodes) {
        const double moved = node.activations + node.parameters;
        seconds += costs.roofline_s(node.op, node.dtype, node.flops, static_cast<int64_t>(moved));
      }
    };
    for (const size_t layer : table.type_of) {
      add(layer);
    }
    add(kEmbedding);
    add(kHead);
    speeds.push_back(1 / seconds);
  }
  const double fastest = *std::max_element(speeds.begin(), speeds.end());
  for (double& speed : speeds) {
    speed /= fastest;
  }
  return speeds;
}

/// Assigns layers to stages, which are as fast as the slowest of their ranks, neighbours.
void Trial::balance_layers(const LayerCosts& costs, SearchSpace* space) const {
  const auto layers = static_cast<int32_t>(costs.layer.size());
  const auto balance = [&](const Stages& stages, const std::vector<double>& speed) {
    std::vector<int64_t> balanced = balanced_layers(costs, stages, speed);
    if (busiest_rank(costs, stages, speed, balanced) <
        busiest_rank(costs, stages, speed, even_layers(layers, stages.count())) * kWorthBalancing) {
      space->balanced[stages] = std::move(balanced);
    }
  };
  for (int32_t pp = 2; pp <= std::min<int64_t>(ranks_, layers); ++pp) {
    if (ranks_ % pp != 0) continue;
    std::vector<double> speed(static_cast<size_t>(pp), 1);
    for (size_t rank = 0; rank < speed.size() && !space->speed.empty(); ++rank) {
      const int64_t inside = ranks_ / pp;
      const auto first = space->speed.begin() + static_cast<int64_t>(rank) * inside;
      speed[rank] = *std::min_element(first, first + inside);
    }
    balance({pp}, speed);
    if (space->speed.empty()) continue;
    for (int32_t chunks = 2; pp * chunks <= layers; ++chunks) {
      balance({pp, chunks}, speed);
    }
    if (2 * pp <= layers) {
      balance({pp, 2, true}, speed);
    }
  }
}

/// Distributes micro-batches over heterogeneous replicas: for every divisor of the batch, the
/// sequences that take less time than equal numbers.
void Trial::distribute_samples(const LayerCosts& costs, SearchSpace* space) const {
  if (space->speed.empty()) return;
  const int64_t layers = std::ssize(costs.layer);
  const auto distribute = [&](int64_t pp, int64_t dp, bool balanced) {
    const std::vector<double> speed = replica_speeds(
        *space, dp, costs,
        balanced ? space->balanced.at({static_cast<int32_t>(pp)}) : even_layers(layers, pp));
    const double slowest = *std::min_element(speed.begin(), speed.end());
    for (int64_t sequences = dp; sequences <= dp * kMaxMicroBatch; ++sequences) {
      if (space->global_batch % sequences != 0) continue;
      const std::vector<int64_t> samples = sequences_by_speed(sequences, speed);
      const double as_many = static_cast<double>(sequences) / static_cast<double>(dp) / slowest;
      if (longest_replica(samples, speed) < as_many * kWorthBalancing) {
        space->samples_by_speed[{static_cast<int32_t>(pp), static_cast<int32_t>(dp),
                                 static_cast<int32_t>(sequences), balanced}] = samples;
      }
    }
  };
  for (int64_t pp = 1; pp <= std::min(ranks_, layers); ++pp) {
    for (int64_t dp = 2; ranks_ % pp == 0 && dp <= ranks_ / pp; ++dp) {
      if (ranks_ / pp % dp != 0) continue;
      distribute(pp, dp, false);
      if (space->balanced.count({static_cast<int32_t>(pp)}) > 0) {
        distribute(pp, dp, true);
      }
    }
  }
}

graph::Graph Trial::graph() const {
  std::vector<std::string> alone = kept_;
  std::erase_if(alone,
                [](const std::string& key) { return key.starts_with("train.global_batch="); });
  alone.push_back("train.global_batch=1");
  return engine::reference(engine::parse_run("{}", base_.name, alone));
}

int64_t Trial::threads() const {
  return cluster_.threads_per_rank(base_.config.plan.threads_per_rank, ranks_);
}

cost::CostModel Trial::costs() const {
  const cost::CostModel costs(cluster_, profile_, threads(), engine::collectives_of(base_));
  return costs.at_best();
}

bool Trial::blocking() const {
  return base_.config.plan.pass_options.text("comm_tiles") == "1" &&
         base_.config.plan.pass_options.text("moe_chunks") == "1";
}

double Trial::bucket_bytes() const {
  double mib = 25;
  parse_double(base_.config.plan.pass_options.text("bucket_mib"), &mib);
  return mib * (1 << 20);
}

engine::Run Trial::run_of(const PlanCandidate& plan, const SearchSpace& space) const {
  return run_of(plan, space, num_micro_batches(space, plan));
}

engine::Run Trial::run_of(const PlanCandidate& plan, const SearchSpace& space,
                          int64_t micro_batches) const {
  std::vector<std::string> all = kept_;
  const std::vector<std::string> chosen = assignments(plan, space);
  all.insert(all.end(), chosen.begin(), chosen.end());
  if (micro_batches != num_micro_batches(space, plan)) {
    constexpr const char* kBatch = "train.global_batch=";
    const int64_t each = plan.sequences > 0 ? plan.sequences : int64_t{plan.dp} * plan.micro_batch;
    std::erase_if(all, [](const std::string& key) { return key.starts_with(kBatch); });
    all.push_back(kBatch + std::to_string(micro_batches * each));
  }
  return engine::parse_run("{}", base_.name, all);
}

double program_passes(const PlanCandidate& plan, const SearchSpace& space, int64_t micro_batches) {
  // Ranks of a ring, and stages, up to which a pass counts once; beyond, it counts in proportion.
  // Not measured. With less, more steps count as long, and are extrapolated. With more, whole
  // programs of long rings (cp=512 took more than 50 s, bench/results/2026-11-26-plan.md) and of
  // many stages are simulated early.
  constexpr double kRingRanksPerPass = 8, kStagesPerPass = 16;
  const double stages = static_cast<double>(plan.pp) * plan.chunks;
  const bool in_ring = plan.cp > 1 && plan.cp_comm_type == CpCommType::p2p;
  return static_cast<double>(micro_batches * space.model.num_layers) *
         (in_ring ? std::max(1.0, plan.cp / kRingRanksPerPass) : 1) *
         std::max(1.0, stages / kStagesPerPass);
}

std::vector<int64_t> shortened_micro_batches(const PlanCandidate& plan, const SearchSpace& space) {
  const int64_t all = num_micro_batches(space, plan);
  if (program_passes(plan, space, all) < kLongProgramPasses) return {};
  const int64_t step = std::max<int64_t>(2, plan.pp);
  std::vector<int64_t> counts = {2 * step, 3 * step, 4 * step};
  if (all < kShorterBy * (counts[0] + counts[1] + counts[2])) return {};
  const parallel::BuiltIn& schedule = parallel::built_in_schedules()[plan.schedule];
  for (const int64_t count : counts) {
    const auto least = static_cast<int>(count);
    if (plan.pp > 1 && schedule.fitting && schedule.fitting(plan.pp, plan.chunks, least) != least) {
      return {};
    }
  }
  return counts;
}

namespace {

/// Returns whether some rank keeps the activations of all micro-batches.
bool keeps_all_micro_batches(const PlanCandidate& plan, int64_t count) {
  PipelineShapes shapes;
  const PipelineShape& shape = shapes.of(plan, count);
  return std::any_of(shape.ranks.begin(), shape.ranks.end(), [&](const PipelineShape::Rank& rank) {
    return shape.live(rank, count) > rank.live;
  });
}

/// Returns the outcome for `count` micro-batches on the line through two shorter steps. `step`:
/// micro-batches between these; `longer`: micro-batches of the second one. Memory does not grow
/// with micro-batches, except for their inputs, unless a rank keeps the activations of all.
Outcome extrapolated(const Outcome& one, const Outcome& two, double count, int64_t step,
                     int64_t longer, bool keeps_all) {
  const double times = (count - static_cast<double>(longer)) / static_cast<double>(step);
  Outcome whole = two;
  whole.extrapolated = true;
  for (double Outcome::*part : {&Outcome::step_s, &Outcome::compute_s, &Outcome::exposed_s,
                                &Outcome::bubble_s, &Outcome::idle_s}) {
    whole.*part += times * (two.*part - one.*part);
  }
  whole.whole_s *= count / static_cast<double>(longer);
  const int64_t grown_once = keeps_all ? two.bytes - one.bytes : two.input_bytes - one.input_bytes;
  const int64_t fuller = keeps_all ? 0 : std::max<int64_t>(0, one.bytes - two.bytes);
  whole.bytes += fuller + static_cast<int64_t>(times * static_cast<double>(grown_once));
  // Useful work is proportional to the micro-batches.
  whole.mfu *= count / static_cast<double>(longer) * two.step_s / whole.step_s;
  return whole;
}

}  // namespace

trace::Trace Trial::timeline(const PlanCandidate& plan, const SearchSpace& space,
                             int64_t micro_batches) const {
  const engine::Run run = run_of(plan, space, micro_batches);
  const engine::Compiled compiled = engine::compile(run);
  const cost::CostModel costs(cluster_, profile_, sim::threads_per_rank(compiled.program, cluster_),
                              engine::collectives_of(run));
  sim::Replay replay;
  sim::simulate(compiled.program, costs, {}, &replay);
  return sim::to_trace(compiled.program, replay);
}

std::optional<Outcome> Trial::simulate(const PlanCandidate& plan, const SearchSpace& space,
                                       const std::function<bool()>& stop) const {
  return simulate_micro_batches(plan, space, num_micro_batches(space, plan), stop);
}

std::optional<Outcome> Trial::extrapolate(const PlanCandidate& plan, const SearchSpace& space,
                                          double enough_s,
                                          const std::function<bool()>& stop) const {
  const std::vector<int64_t> counts = shortened_micro_batches(plan, space);
  if (counts.empty()) return simulate(plan, space, stop);
  const auto count = static_cast<double>(num_micro_batches(space, plan));
  const int64_t step = counts[1] - counts[0];
  const bool keeps_all = keeps_all_micro_batches(plan, num_micro_batches(space, plan));
  std::optional<Outcome> last, whole;
  for (const int64_t shorter : counts) {
    std::optional<Outcome> here = simulate_micro_batches(plan, space, shorter, stop);
    if (!here || !here->refused.empty()) return here;
    if (last) {
      Outcome longer = extrapolated(*last, *here, count, step, shorter, keeps_all);
      longer.fits = here->fits && longer.bytes <= memory_;
      // Later micro-batches settle further: a second line shows how far the first one was off.
      longer.error_s =
          whole ? std::abs(longer.step_s - whole->step_s) : kErrorShareOfOneLine * longer.step_s;
      const bool ends = whole || !longer.fits || longer.step_s > enough_s;
      whole = std::move(longer);
      if (ends) return whole;
    }
    last = std::move(here);
  }
  return whole;
}

namespace {

void set_interval(const sim::SimReport& report, Outcome* outcome) {
  const auto step_ns = static_cast<double>(std::max<int64_t>(1, report.step_ns));
  outcome->low = static_cast<double>(report.interval.low_ns) / step_ns;
  outcome->high = static_cast<double>(report.interval.high_ns) / step_ns;
  outcome->interval_why = report.interval.why;
}

}  // namespace

std::optional<Outcome> Trial::simulate_micro_batches(const PlanCandidate& plan,
                                                     const SearchSpace& space,
                                                     int64_t micro_batches,
                                                     const std::function<bool()>& stop) const {
  Outcome outcome;
  outcome.plan = plan;
  const StopWhen given_up(stop);
  const auto begun = std::chrono::steady_clock::now();
  try {
    const engine::Run run = run_of(plan, space, micro_batches);
    const engine::Compiled compiled = engine::compile(run);
    std::optional<engine::Compiled> evaluation;
    if (engine::evaluates(run)) {
      evaluation = engine::compile(engine::evaluation(run));
    }
    const cost::CostModel costs(cluster_, profile_,
                                sim::threads_per_rank(compiled.program, cluster_),
                                engine::collectives_of(run));
    sim::SimOptions options;
    options.record = false;
    options.memory_budget = static_cast<int64_t>(run.config.cluster.memory_budget.value_or(0));
    options.tokens = compiled.tokens_per_step;
    options.model_flops = cost::model_flops(compiled.reference).training() *
                          static_cast<double>(compiled.program.num_micro_batches);
    options.memory = program::memory_with(
        compiled.program, evaluation ? &evaluation->program : nullptr, cost::kernels_of(cluster_));
    const sim::SimReport report = sim::simulate(compiled.program, costs, options);
    outcome.step_s = static_cast<double>(report.step_ns) * 1e-9;
    outcome.mfu = report.mfu;
    set_interval(report, &outcome);
    double ranks = 0;
    for (const sim::RankReport& rank : report.time) {
      const double multiplicity = rank.multiplicity;
      ranks += multiplicity;
      outcome.compute_s += static_cast<double>(rank.time.compute_ns) * 1e-9 * multiplicity;
      outcome.exposed_s += static_cast<double>(rank.time.exposed_ns) * 1e-9 * multiplicity;
      outcome.bubble_s += static_cast<double>(rank.time.bubble_ns) * 1e-9 * multiplicity;
      outcome.idle_s += static_cast<double>(rank.time.idle_ns) * 1e-9 * multiplicity;
    }
    for (double* seconds :
         {&outcome.compute_s, &outcome.exposed_s, &outcome.bubble_s, &outcome.idle_s}) {
      *seconds /= std::max(1.0, ranks);
    }
    for (size_t cls = 0; cls < report.memory.size(); ++cls) {
      const program::Memory& memory = report.memory[cls];
      const int64_t bytes = memory.total() + report.logits_bytes[cls];
      if (bytes > outcome.bytes) {
        outcome.bytes = bytes;
        outcome.input_bytes = memory.inputs_outputs;
      }
    }
    outcome.fits = report.fits();
    outcome.whole_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  } catch (const Stopped&) {
    return std::nullopt;
  } catch (const Error& error) {
    outcome.refused = error.what();
  }
  return outcome;
}

}  // namespace hocket::planner
