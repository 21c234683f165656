// SPDX-License-Identifier: Apache-2.0
#include "engine/describe.h"

#include <fmt/format.h>

#include "engine/compile.h"

namespace hocket::engine {

std::string counted(int64_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string describe(const models::ModelConfig& m) {
  std::string text = fmt::format("{}: {} layers, width {}, {} heads over {} of {}, vocabulary {}",
                                 m.family, m.num_layers, m.hidden_size, m.num_heads, m.num_kv_heads,
                                 m.head_dim, m.vocab_size);
  if (m.num_experts > 0) {
    text += fmt::format(", {} experts of width {}, top-{}", m.num_experts, m.moe_intermediate_size,
                        m.top_k);
  }
  return text;
}

std::string describe(const Run& run) {
  const parallel::Plan& p = run.plan;
  // Ranks on several nodes are devices, not threads of this machine.
  const int threads = threads_per_rank(p);
  const std::string each = p.ranks_per_node > 0 && p.ranks_per_node < p.world()
                               ? fmt::format(", {} per node", p.ranks_per_node)
                               : fmt::format(" of {} thread{}", threads, threads == 1 ? "" : "s");
  return fmt::format(
      "pp {} x dp {}{} = {} rank{}{}, {}, {} micro-batch{} of {} x {} tokens per rank, "
      "recompute {}",
      p.pp, p.dp, p.ep > 1 ? fmt::format(" (ep {})", p.ep) : "", p.world(),
      p.world() == 1 ? "" : "s", each, p.pp > 1 ? p.pp_schedule : "no pipeline",
      p.num_micro_batches, p.num_micro_batches == 1 ? "" : "es", p.micro_batch,
      run.config.train.seq_len, run.config.plan.pass_options.text("recompute"));
}

}  // namespace hocket::engine
