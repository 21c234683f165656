// SPDX-License-Identifier: Apache-2.0
#include "schedule_util.h"

#include <algorithm>

namespace hocket::test {

void set_schedule(uint64_t which, int64_t layers, parallel::Plan* plan) {
  const char* const names[] = {"zb-h1", "zb-v", "dualpipev", "dualpipe", "interleaved-overlap"};
  plan->pp_schedule = names[which];
  if (plan->pp_schedule == "dualpipe" && plan->pp % 2 != 0) {
    plan->pp_schedule = "dualpipev";
  }
  const bool is_v = plan->pp_schedule == "zb-v" || plan->pp_schedule == "dualpipev";
  const bool goes_around = plan->pp_schedule == "interleaved-overlap";
  plan->pp_chunks = is_v || goes_around ? 2 : 1;
  if (goes_around) {
    plan->num_micro_batches = (plan->num_micro_batches + plan->pp - 1) / plan->pp * plan->pp;
  }
  if (plan->pp_schedule.starts_with("dual")) {
    plan->num_micro_batches = std::max(plan->num_micro_batches, 2 * plan->pp);
  }
  if (plan->pp_schedule == "dualpipe") {
    plan->num_micro_batches += plan->num_micro_batches % 2;
  }
  plan->pp_layers.assign(static_cast<size_t>(plan->num_stages()), 0);
  for (int64_t layer = 0; layer < layers; ++layer) {
    ++plan->pp_layers[static_cast<size_t>((3 * layer + layers) % plan->num_stages())];
  }
}

}  // namespace hocket::test
