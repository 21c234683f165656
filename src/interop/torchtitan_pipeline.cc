// SPDX-License-Identifier: Apache-2.0
// Implements: read_pipeline (import_torchtitan.h): stages, their layers, and the schedule.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/product.h"
#include "base/text.h"
#include "interop/import_torchtitan.h"
#include "interop/torchtitan_names.h"

namespace hocket::interop {

namespace {

/// Returns a schedule by its name; null: there is none. Earlier releases wrote interleaved_1f1b.
const ScheduleName* find_schedule(const std::string& name) {
  const auto* const found =
      std::find_if(std::begin(kTorchtitanSchedules), std::end(kTorchtitanSchedules),
                   [&](const ScheduleName& schedule) {
                     std::string one = schedule.theirs, other = name;
                     for (std::string* text : {&one, &other}) {
                       std::erase(*text, '_');
                       std::transform(text->begin(), text->end(), text->begin(),
                                      [](unsigned char c) { return std::tolower(c); });
                     }
                     return one == other;
                   });
  return found == std::end(kTorchtitanSchedules) ? nullptr : found;
}

}  // namespace

void TorchtitanImport::read_pipeline() {
  const std::string csv = job_.text("parallelism.pipeline_parallel_schedule_csv", "");
  const std::string name = job_.text("parallelism.pipeline_parallel_schedule", "1F1B");
  const int64_t per_stage = job_.integer("parallelism.pipeline_parallel_layers_per_stage", 0);
  const std::vector<int64_t> layers = layers_of_parts();
  const std::vector<std::string> points = job_.texts("parallelism.pipeline_parallel_split_points");
  if (pp_ == 1) return;
  if (!points.empty() && layers.empty()) {
    fail(name_,
         "{} is [{}], and the file does not say how many layers the last stage has; expected "
         "layers of all stages; try without it, and --set plan.pp_layers",
         job_.name_of("parallelism.pipeline_parallel_split_points"), join(points, ", "));
  }
  const ScheduleName* schedule = find_schedule(name);
  if (csv.empty() && schedule == nullptr) {
    std::vector<std::string> known;
    for (const ScheduleName& each : kTorchtitanSchedules) {
      known.push_back(each.theirs);
    }
    fail(name_, "{} is {}; expected one of {}, or a schedule of one's own in …_schedule_csv",
         job_.name_of("parallelism.pipeline_parallel_schedule"), quote(name), join(known, ", "));
  }
  set("plan.pp_schedule", csv.empty() ? schedule->ours : csv);
  int64_t chunks = schedule != nullptr && schedule->looped ? 2 : 1;
  if (!layers.empty()) {
    if (std::ssize(layers) % pp_ != 0) {
      fail(name_, "parallelism.module_fqns_per_model_part has {} parts; expected a multiple of {}",
           layers.size(), pp_);
    }
    chunks = std::ssize(layers) / pp_;
    set("plan.pp_layers", fmt::format("[{}]", fmt::join(layers, ", ")));
  } else if (per_stage > 0) {
    chunks = chunks_of(per_stage, chunks);
  }
  if (chunks > 1) {
    set("plan.pp_chunks", chunks);
  }
  stages_ = product_at_most({pp_, chunks});
  if (layers.empty()) {
    share_layers_out();
  }
}

/// Returns the layers that the "first" or "last" stage has less: the embedding or the head counts
/// as so many.
int64_t TorchtitanImport::less_layers(const char* stage) {
  // Far beyond any model. Sums with the numbers of layers and stages cannot overflow.
  constexpr int64_t kMaxLessLayers = int64_t{1} << 20;
  const std::string path = fmt::format("parallelism.pipeline_parallel_{}_stage_less_layers", stage);
  const int64_t less = job_.at_least(0, path, 1);
  if (less > kMaxLessLayers) {
    job_.refuse(path, fmt::format("at most {}", kMaxLessLayers));
  }
  return less;
}

/// Returns whether stages can have torchtitan's layers: their number is known, and no other
/// stages are asked for. Releases with the degree in [experimental] shared layers out otherwise.
bool TorchtitanImport::follows_their_rule() {
  constexpr const char* kStages[] = {"plan.pp", "plan.pp_chunks", "plan.pp_layers",
                                     "plan.pp_schedule"};
  return layers_ > 0 && beside_.keeps_plan &&
         job_.text("parallelism.pipeline_parallel_schedule_csv", "").empty() &&
         std::none_of(std::begin(kStages), std::end(kStages),
                      [&](const char* key) { return beside_.has(key); }) &&
         !job_.name_of("parallelism.pipeline_parallel_degree").starts_with("experimental.");
}

/// Returns the stages of a rank that have at most `per_stage` layers each.
int64_t TorchtitanImport::chunks_of(int64_t per_stage, int64_t otherwise) {
  const char* const path = "parallelism.pipeline_parallel_layers_per_stage";
  if (!follows_their_rule()) {
    job_.leave(path, "set plan.pp_chunks to the layers of a rank divided by it");
    return otherwise;
  }
  const int64_t all = layers_ + less_layers("first") + less_layers("last");
  const int64_t stages = (all - 1) / per_stage + 1;
  if (stages % pp_ != 0) {
    job_.refuse(path, fmt::format("a number that makes a multiple of {} stages, not {}, of {} "
                                  "layers and {} for the ends",
                                  pp_, stages, layers_, all - layers_));
  }
  return stages / pp_;
}

/// Assigns layers to stages as torchtitan does, which counts the embedding and the head as layers.
void TorchtitanImport::share_layers_out() {
  const int64_t first = less_layers("first"), last = less_layers("last");
  if ((first == 0 && last == 0) || !beside_.keeps_plan || beside_.has("plan.pp_layers")) return;
  if (!follows_their_rule()) {
    imported_.notes.push_back(fmt::format(
        "stages have equally many layers here; torchtitan gives the first {} and the last {} "
        "less (pipeline_parallel_*_stage_less_layers, 1 by default); try --set plan.pp_layers",
        first, last));
    return;
  }
  const int64_t all = layers_ + first + last, least = all / stages_;
  if (least < std::max(first, last)) {
    fail(name_,
         "there are {} stages of {} layers, with {} more for the embedding and {} for the head; "
         "expected room for these in the first stage and the last; try fewer stages, or --set "
         "plan.pp_layers",
         stages_, layers_, first, last);
  }
  std::vector<int64_t> of_stage(static_cast<size_t>(stages_), least);
  for (int64_t stage = 0; stage < all % stages_; ++stage) {
    ++of_stage[static_cast<size_t>(stage)];
  }
  of_stage.front() -= first;
  of_stage.back() -= last;
  set("plan.pp_layers", fmt::format("[{}]", fmt::join(of_stage, ", ")));
}

/// Layers among the modules of each part of the model.
std::vector<int64_t> TorchtitanImport::layers_of_parts() {
  const char* const path = "parallelism.module_fqns_per_model_part";
  std::vector<int64_t> layers;
  const ConfigNode* parts = job_.node(path);
  if (parts == nullptr) return layers;
  const bool is_list = parts->kind == ConfigNode::Kind::list;
  for (const ConfigNode& part : parts->items) {
    if (!is_list || part.kind != ConfigNode::Kind::list) {
      job_.refuse(path, "a list of lists of names");
    }
    layers.push_back(std::count_if(part.items.begin(), part.items.end(), [](const auto& name) {
      return name.text.starts_with("layers.");
    }));
  }
  return layers;
}

}  // namespace hocket::interop
