// SPDX-License-Identifier: Apache-2.0
#include "plan/emit.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace hocket::plan {

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

}  // namespace

void refuse_key(const engine::Run& run, const std::string& trainer, const std::string& key,
                const std::string& value, const std::string& expected) {
  fail(run.name, "{} is {}, which {} cannot express; expected {}", key, value, trainer, expected);
}

void expect_expressed(const engine::Run& run, const std::string& trainer,
                      const std::vector<std::string>& others) {
  const auto among = [](const auto& keys, const std::string& key) {
    return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
  };
  engine::RunConfig copy;
  const ResolvedConfig by_default = parse_config(copy, "{}", "defaults");
  for (const ResolvedConfig::Entry& entry : run.resolved.entries()) {
    if (!entry.path.starts_with("plan.") || entry.origin == "default") continue;
    if (among(kEverybodyHas, entry.path) || among(others, entry.path)) continue;
    for (const ResolvedConfig::Entry& other : by_default.entries()) {
      if (other.path == entry.path && other.value != entry.value) {
        refuse_key(run, trainer, entry.path, entry.value, other.value);
      }
    }
  }
}

}  // namespace hocket::plan
