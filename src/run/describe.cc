// SPDX-License-Identifier: Apache-2.0
#include "run/describe.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "run/compile.h"

namespace hocket::engine {

std::string describe(const models::ModelConfig& config) {
  std::string text =
      fmt::format("{}: {} layers, width {}, {} heads over {} of {}, vocabulary {}", config.family,
                  config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads,
                  config.head_dim, config.vocab_size);
  const auto windows = std::count_if(config.windows.begin(), config.windows.end(),
                                     [](int64_t window) { return window > 0; });
  if (windows > 0) {
    text +=
        fmt::format(", window {}", *std::max_element(config.windows.begin(), config.windows.end()));
    text += windows < config.num_layers ? fmt::format(" in {} layers", windows) : "";
  }
  if (config.num_experts > 0) {
    text += fmt::format(", {} experts of width {}, top-{}", config.num_experts,
                        config.moe_intermediate_size, config.top_k);
  }
  // The family's name says the rest.
  if (config.form.position_table > 0) {
    text += fmt::format(", {} learned positions", config.form.position_table);
  } else if (const auto without =
                 std::count(config.rope_layer.begin(), config.rope_layer.end(), false)) {
    text += fmt::format(", no rope in {} layers", without);
  }
  return text;
}

std::string describe(const Run& run) {
  const parallel::Plan& plan = run.plan;
  // Ranks on several nodes are devices, not threads of this machine.
  const std::string each = plan.ranks_per_node > 0 && plan.ranks_per_node < plan.world()
                               ? fmt::format(", {} per node", plan.ranks_per_node)
                               : fmt::format(" of {}", counted(threads_per_rank(plan), "thread"));
  std::string schedule = plan.num_stages() > 1 ? plan.pp_schedule : "no pipeline";
  if (plan.pp_chunks > 1) {
    schedule += fmt::format(" of {} stages per rank", plan.pp_chunks);
  }
  std::string more = plan.ep > 1 ? fmt::format(" (ep {}", plan.ep) : "";
  more +=
      plan.ep_inner > 1 ? fmt::format(" = {} x {}", plan.ep / plan.ep_inner, plan.ep_inner) : "";
  const parallel::Plan::Over over = plan.ep_over();
  if (over.cp * over.tp > 1) {
    more += fmt::format(" over dp {} x cp {} x tp {}", over.dp, over.cp, over.tp);
  }
  more += plan.ep > 1 ? ")" : "";
  more += plan.expert_ranks > 0 ? fmt::format(" + {} of experts", plan.expert_ranks) : "";
  more += plan.cp > 1 ? fmt::format(" x cp {}", plan.cp) : "";
  more += plan.cp_shares.empty() ? "" : fmt::format(" [{}]", fmt::join(plan.cp_shares, ", "));
  more += plan.tp > 1 ? fmt::format(" x tp {}", plan.tp) : "";
  more += plan.etp > 1 ? fmt::format(" (etp {})", plan.etp) : "";
  more += plan.sequence_parallel ? " (sequence parallel)" : "";
  const std::string samples = plan.dp_samples.empty()
                                  ? fmt::format("{}", plan.micro_batch)
                                  : fmt::format("[{}]", fmt::join(plan.dp_samples, ", "));
  std::string split;
  for (const auto& [what, among] : {std::pair{"params", plan.shard.params},
                                    {"grads", plan.shard.grads},
                                    {"optimizer", plan.shard.update()}}) {
    if (among == parallel::Shard::none) continue;
    const bool near = among == parallel::Shard::group;
    split += fmt::format("{}{}{}", split.empty() ? ", split: " : " and ", what,
                         near ? fmt::format(" in groups of {}", plan.shard.group) : "");
  }
  return fmt::format(
      "pp {} x dp {}{} = {}{}, {}, {} micro-batch{} of {} x {} tokens per {}, "
      "recompute {}{}",
      plan.pp, plan.dp, more, counted(plan.world(), "rank"), each, schedule, plan.num_micro_batches,
      plan.num_micro_batches == 1 ? "" : "es", samples, run.config.train.seq_len,
      plan.cp * plan.tp > 1 ? "dp rank" : "rank", run.config.plan.pass_options.text("recompute"),
      split);
}

}  // namespace hocket::engine
