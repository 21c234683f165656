// SPDX-License-Identifier: Apache-2.0
// Implements: read_pipeline (import_megatron.h): stages, their layers, and the schedule.
#include <algorithm>

#include "base/error.h"
#include "base/product.h"
#include "base/text.h"
#include "interop/import_megatron.h"
#include "interop/megatron_model.h"

namespace hocket::interop {

void MegatronImport::read_pipeline() {
  const int64_t first = arguments_.integer("--decoder-first-pipeline-num-layers", -1);
  const int64_t last = arguments_.integer("--decoder-last-pipeline-num-layers", -1);
  const std::string layout = arguments_.text("--pipeline-model-parallel-layout");
  const int64_t chunks = layout.empty() ? read_chunks() : read_layout(layout);
  if (pp_ > 1 && chunks > 1) {
    set("plan.pp_chunks", chunks);
    const bool overlaps = arguments_.has("--overlap-moe-expert-parallel-comm");
    set("plan.pp_schedule", std::string(overlaps ? "interleaved-overlap" : "interleaved"));
  }
  const char* const kOverlap = "--overlap-moe-expert-parallel-comm";
  if (arguments_.has(kOverlap) && (pp_ == 1 || chunks == 1)) {
    need_key(kOverlap, "plan.pp_schedule", "it goes with virtual stages of a pipeline here");
  }
  const bool no_overlap = arguments_.has("--no-overlap-p2p-communication");
  if (pp_ > 1 && (chunks == 1 || no_overlap)) {
    set("plan.overlap_p2p_comm", false);
  }
  if (!layout.empty()) {
    for (const char* flag :
         {"--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"}) {
      arguments_.leave(flag, "--pipeline-model-parallel-layout says so");
    }
  }
  read_groups_of_micro_batches(chunks);
  if (pp_ == 1) {
    expect_pipeline(chunks);
  }
  if (pp_ == 1 || !layout.empty()) return;
  if (first >= 0 || last >= 0) {
    read_ends(first, last, chunks);
  } else {
    read_even(chunks);
  }
}

/// Refuses other groups: a rank's chunk gets as many micro-batches in turn as the pipeline has
/// ranks.
void MegatronImport::read_groups_of_micro_batches(int64_t chunks) {
  const char* const flag = "--microbatch-group-size-per-virtual-pipeline-stage";
  const int64_t group = arguments_.integer(flag, pp_);
  if (chunks > 1 && group != pp_ && !beside_.has("plan.pp_schedule") && beside_.keeps_plan) {
    fail(name_, "{} is {}; expected {}, the ranks of the pipeline; try --set plan.pp_schedule",
         flag, group, pp_);
  }
}

/// Throws Error if a flag divides a pipeline that there is not.
void MegatronImport::expect_pipeline(int64_t chunks) {
  for (const char* flag :
       {"--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers",
        "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank",
        "--pipeline-model-parallel-layout"}) {
    if (!arguments_.has(flag)) continue;
    const bool is_one = std::string_view(flag) == "--num-virtual-stages-per-pipeline-rank" ||
                        std::string_view(flag) == "--pipeline-model-parallel-layout";
    if (is_one && chunks == 1) continue;
    fail(name_, "{} is {} without a pipeline; expected --pipeline-model-parallel-size above 1",
         flag, arguments_.text(flag));
  }
}

/// Stages of a rank where no layout says so.
int64_t MegatronImport::read_chunks() {
  const char* const flag = "--num-layers-per-virtual-pipeline-stage";
  if (!arguments_.has(flag)) {
    return arguments_.at_least(1, "--num-virtual-stages-per-pipeline-rank", 1);
  }
  const int64_t per_stage = arguments_.at_least(1, flag, 1);
  if (layers_ == 0) {
    arguments_.leave(flag,
                     "set plan.pp_chunks to the layers of a rank divided by it: the script "
                     "has no --num-layers");
    return 1;
  }
  const int64_t parts = layers_and_ends();
  if (parts % product_at_most({pp_, per_stage}) != 0) {
    fail(name_, "{} is {}; expected a divisor of the {} layers of a pipeline rank", flag, per_stage,
         parts / pp_);
  }
  return parts / pp_ / per_stage;
}

/// Layers, and the embedding and the loss where they count as one when stages are made.
int64_t MegatronImport::layers_and_ends() {
  return layers_ + (counts_embedding() ? 1 : 0) + (counts_loss() ? 1 : 0);
}

/// Reads an even split of layers over stages; Megatron-LM refuses an uneven one here.
void MegatronImport::read_even(int64_t chunks) {
  if (layers_ == 0) {
    const char* const why = "the script has no --num-layers";
    arguments_.leave("--account-for-embedding-in-pipeline-split", why);
    arguments_.leave("--account-for-loss-in-pipeline-split", why);
    return;
  }
  const int64_t parts = layers_and_ends(), stages = product_at_most({pp_, chunks});
  if (parts % stages != 0) {
    fail(name_,
         "--num-layers is {}{}; expected a multiple of the {} stages of the pipeline, or "
         "--pipeline-model-parallel-layout",
         layers_, parts > layers_ ? fmt::format(", {} with the ends", parts) : "", stages);
  }
  if (parts == layers_) return;
  std::vector<int64_t> of_stage(static_cast<size_t>(stages), parts / stages);
  of_stage.front() -= counts_embedding() ? 1 : 0;
  of_stage.back() -= counts_loss() ? 1 : 0;
  set("plan.pp_layers", fmt::format("[{}]", fmt::join(of_stage, ", ")));
}

/// Reads a split with given layers of the first and last stage; the others share the rest.
void MegatronImport::read_ends(int64_t first, int64_t last, int64_t chunks) {
  if (layers_ == 0) {
    const char* const why = "the script has no --num-layers: set plan.pp_layers";
    arguments_.leave("--decoder-first-pipeline-num-layers", why);
    arguments_.leave("--decoder-last-pipeline-num-layers", why);
    return;
  }
  const int64_t between = pp_ - (first >= 0 ? 1 : 0) - (last >= 0 ? 1 : 0);
  const int64_t left = layers_ - std::max<int64_t>(first, 0) - std::max<int64_t>(last, 0);
  if (chunks > 1 || left < 0 || pp_ > layers_ || (between > 0 && left % between != 0) ||
      (between == 0 && left != 0)) {
    fail(name_,
         "--decoder-first-pipeline-num-layers {} and --decoder-last-pipeline-num-layers "
         "{} leave {} layers to {} stages; expected equal numbers, and no virtual stages",
         first, last, left, between);
  }
  std::vector<int64_t> of_stage(static_cast<size_t>(pp_), between > 0 ? left / between : 0);
  if (first >= 0) {
    of_stage.front() = first;
  }
  if (last >= 0) {
    of_stage.back() = last;
  }
  set("plan.pp_layers", fmt::format("[{}]", fmt::join(of_stage, ", ")));
}

/// Layers of every stage; returns the stages of a rank.
int64_t MegatronImport::read_layout(const std::string& text) {
  std::string flat;
  if (!read_pipeline_layout(text, &flat)) {
    fail(name_,
         "--pipeline-model-parallel-layout is {}; expected letters E, t, L and stages "
         "between |, as in Et*3|(t*4|)*6tL",
         quote(text));
  }
  std::vector<int64_t> of_stage;
  for (const std::string& stage : split(flat, '|')) {
    of_stage.push_back(std::count(stage.begin(), stage.end(), 't'));
  }
  if (flat.find('m') != std::string::npos) {
    arguments_.leave("--mtp-num-layers", "models here predict one token");
  }
  const int64_t stages = std::ssize(of_stage);
  if (stages % pp_ != 0) {
    fail(name_, "--pipeline-model-parallel-layout has {} stages; expected a multiple of {}", stages,
         pp_);
  }
  set("plan.pp_layers", fmt::format("[{}]", fmt::join(of_stage, ", ")));
  return stages / pp_;
}

}  // namespace hocket::interop
