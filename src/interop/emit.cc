// SPDX-License-Identifier: Apache-2.0
#include "interop/emit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace hocket::interop {

namespace {

/// Mesh, schedule, recompute and sharding; how ranks are started is the launcher's.
constexpr const char* kEverybodyHas[] = {"plan.pp",
                                         "plan.pp_chunks",
                                         "plan.dp",
                                         "plan.ep",
                                         "plan.etp",
                                         "plan.cp",
                                         "plan.tp",
                                         "plan.sequence_parallel",
                                         "plan.micro_batch",
                                         "plan.pp_schedule",
                                         "plan.pp_layers",
                                         "plan.recompute",
                                         "plan.cp_comm_type",
                                         "plan.cp_order",
                                         "plan.shard.params",
                                         "plan.shard.grads",
                                         "plan.shard.optimizer",
                                         "plan.shard.group",
                                         "plan.shard.reshard_after_forward",
                                         "plan.ranks",
                                         "plan.collectives",
                                         "plan.ranks_per_node",
                                         "plan.timeout_s",
                                         "plan.threads_per_rank"};

template <class Keys>
bool among(const Keys& keys, const std::string& key) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

/// Returns the keys that the run sets to another value than their default, each with that default.
std::vector<std::pair<ResolvedConfig::Entry, std::string>> differing_from_default(
    const engine::Run& run) {
  engine::RunConfig copy;
  const ResolvedConfig by_default = parse_config(copy, "{}", "defaults");
  std::vector<std::pair<ResolvedConfig::Entry, std::string>> found;
  for (const ResolvedConfig::Entry& entry : run.resolved.entries()) {
    if (entry.origin == "default") continue;
    for (const ResolvedConfig::Entry& other : by_default.entries()) {
      if (other.path == entry.path && other.value != entry.value) {
        found.push_back({entry, other.value});
      }
    }
  }
  return found;
}

}  // namespace

void refuse_key(const engine::Run& run, const std::string& trainer, const std::string& key,
                const std::string& value, const std::string& expected) {
  fail(run.name, "{} is {}, which {} cannot express; expected {}", key, value, trainer, expected);
}

void expect_expressed(const engine::Run& run, const std::string& trainer,
                      const std::vector<std::string>& others) {
  if (!run.config.optimizer.groups.empty()) {
    refuse_key(run, trainer, "optimizer.groups", "given", "none");
  }
  for (const auto& [entry, by_default] : differing_from_default(run)) {
    const bool others_have_one = entry.path == "optimizer.name" || entry.path == "train.schedule" ||
                                 entry.path == "train.epochs" || entry.path == "train.warmup_share";
    if (!entry.path.starts_with("plan.") && !others_have_one) continue;
    if (among(kEverybodyHas, entry.path) || among(others, entry.path)) continue;
    refuse_key(run, trainer, entry.path, entry.value, by_default);
  }
}

void expect_one_sequence(const engine::Run& run, const std::string& trainer) {
  const engine::PlanSection& plan = run.config.plan;
  if (plan.cp == 1 || plan.micro_batch == 1) return;
  refuse_key(run, trainer, "plan.micro_batch",
             fmt::format("{} with plan.cp {}", plan.micro_batch, plan.cp),
             "1: every sequence is spread over these ranks there, but here the tokens of a "
             "micro-batch");
}

int64_t steps_of(const engine::TrainSection& train) {
  engine::TrainSection by_steps = train;
  by_steps.minutes = 0;
  return by_steps.num_steps();
}

std::vector<std::string> notes_of_left_out(const engine::Run& run, const std::string& trainer,
                                           const std::vector<std::string>& keys) {
  std::vector<std::string> notes;
  for (const auto& [entry, by_default] : differing_from_default(run)) {
    if (among(keys, entry.path)) {
      notes.push_back(fmt::format("{} {} is left out: {} has nothing like it", entry.path,
                                  entry.value, trainer));
    }
  }
  return notes;
}

int64_t timeout_in(int64_t seconds, const engine::Run& run, const std::string& trainer,
                   std::vector<std::string>* notes) {
  const double wanted = run.config.plan.timeout_s;
  const auto units = static_cast<int64_t>(std::ceil(wanted / static_cast<double>(seconds)));
  if (static_cast<double>(units * seconds) != wanted) {
    notes->push_back(fmt::format("plan.timeout_s is {}; {} takes whole {}: {} of them", wanted,
                                 trainer, seconds == 1 ? "seconds" : "minutes", units));
  }
  return units;
}

}  // namespace hocket::interop
