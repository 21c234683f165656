// SPDX-License-Identifier: Apache-2.0
#include "parallel/lowering/template.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/stop.h"
#include "parallel/layouts/given_layouts.h"
#include "parallel/layouts/layouts.h"
#include "parallel/layouts/shares.h"
#include "parallel/lowering/lower_rank.h"
#include "parallel/lowering/pipeline.h"
#include "parallel/lowering/pipeline_owners.h"

namespace hocket::parallel {

using program::Program;

namespace {

/// Returns boxes of ranks with equal sizes of all tensors: neighbours on every axis. In a ring of
/// ranks with different sizes, every rank is a box, since its neighbours send it different sizes.
std::vector<program::Box> equal_ranks(const graph::Graph& graph, const Layouts& layouts,
                                      const graph::Mesh& mesh, const Plan& plan) {
  std::vector<program::Box> boxes(1);
  std::vector<std::vector<int32_t>> boundaries = size_boundaries(graph, layouts, mesh);
  for (size_t axis = 0; plan.ring && axis < boundaries.size(); ++axis) {
    if (!splits_sequences(mesh.axes[axis].name)) continue;
    if (boundaries[axis].empty() && !plan.uneven_parts) continue;
    boundaries[axis].resize(static_cast<size_t>(mesh.axes[axis].size) - 1);
    std::iota(boundaries[axis].begin(), boundaries[axis].end(), 0);
  }
  for (size_t axis = 0; axis < boundaries.size(); ++axis) {
    if (boundaries[axis].empty()) continue;
    std::vector<program::Box> cut;
    for (const program::Box& box : boxes) {
      int32_t begin = 0;
      for (size_t i = 0; i <= boundaries[axis].size(); ++i) {
        const int32_t end =
            i < boundaries[axis].size() ? boundaries[axis][i] + 1 : mesh.axes[axis].size;
        program::Box& part = cut.emplace_back(box);
        part[axis] = {begin, end - begin};
        begin = end;
      }
    }
    boxes = std::move(cut);
  }
  return boxes;
}

/// Returns the tensors that belong to a parameter: optimizer states, and gradients that the host
/// reads.
std::vector<program::Belongs> belongs_of(const graph::Graph& reference) {
  std::vector<program::Belongs> list;
  const auto add = [&](const graph::Tensor& tensor) {
    if (tensor.of != graph::kNone) {
      list.push_back({tensor.name, reference.tensor(tensor.of).name});
    }
  };
  for (const graph::Tensor& tensor : reference.tensors) {
    if (tensor.kind == graph::TensorKind::state) {
      add(tensor);
    }
  }
  for (const graph::TensorId output : reference.outputs) {
    add(reference.tensor(output));
  }
  return list;
}

Templates templates_of(const graph::Graph& reference, const Plan& plan) {
  // Choose layouts and stages for the whole graph, then lower every rank of the pipeline to a
  // template of one micro-batch of its stages. A pipeline rank is one class of the program, or
  // several where its ranks have different sizes of something (samples, heads, experts).
  Templates made;
  Program& program = made.frame;
  program.roles = {{"all", plan.mesh()}};
  program.num_micro_batches = static_cast<int32_t>(plan.num_micro_batches);
  program.num_layers = reference.num_layers;
  program.ranks_per_node = static_cast<int32_t>(plan.ranks_per_node);
  program.symbols = reference.symbols;
  program.belongs = belongs_of(reference);
  made.num_tensors = static_cast<int32_t>(reference.tensors.size());
  const int ranks = static_cast<int>(plan.pp);
  const int chunks = static_cast<int>(plan.pp_chunks);
  const int micro_batches = program.num_micro_batches;
  const bool train = !reference.grads.empty();
  Pipeline pipeline;
  pipeline.num_ranks = ranks;
  pipeline.stage_of_layer = plan.stage_of_layers(reference.num_layers);
  const Schedule schedule =
      train ? make_schedule(plan.pp_schedule, ranks, micro_batches, chunks)
            : forward_only(stage_owners(plan.pp_schedule, ranks, chunks), ranks, micro_batches);
  validate(schedule, ranks, micro_batches, train, chunks);
  Routes routes = routes_of(schedule, ranks, chunks, micro_batches);
  pipeline.routes = std::move(routes.ranks);
  made.route_of = std::move(routes.of);
  const graph::Mesh& mesh = program.roles[0].mesh;
  const LayoutsGiven given{
      stored_layouts(reference, mesh, plan.layouts),
      pinned_tensors(reference, mesh, plan.layouts),
      plan.shard,
      {.sequence_parallel = plan.sequence_parallel, .exchange_heads = plan.exchange_heads},
      {plan.dp_samples, plan.cp_shares}};
  Layouts layouts = choose_layouts(reference, mesh, given, plan.num_micro_batches);
  layouts.reshard_after_forward = plan.shard.reshard_after_forward;
  layouts.reshard_after_backward = plan.shard.reshard_after_backward;
  made.layouts_saved = layouts.saved;
  const graph::Graph& graph = layouts.decomposed ? *layouts.decomposed : reference;
  made.num_tags = static_cast<int32_t>(graph.tensors.size());
  const PipelineOwners owners(graph, pipeline);
  const int32_t pp_axis = program.roles[0].mesh.axis(kStageAxis);
  if (pp_axis >= 0) {
    set_partial_along_pipeline(graph, owners, pp_axis, &layouts);
  }
  const std::vector<program::Box> shares = equal_ranks(graph, layouts, mesh, plan);
  for (int rank = 0; rank < ranks; ++rank) {
    for (const program::Box& share : shares) {
      program::Box& box = program.classes.emplace_back().box;
      box = share;
      if (ranks > 1) {
        box[static_cast<size_t>(pp_axis)] = {rank, 1};
      }
    }
  }
  const LoweringInput input{graph, layouts, pipeline, owners};
  for (program::ClassId id = 0; id < program.classes.size(); ++id) {
    stop_if_asked();
    const int rank = id.value() / static_cast<int>(shares.size());
    const int share = id.value() % static_cast<int>(shares.size());
    const auto& actions = schedule.ranks[rank];
    const bool split = std::any_of(actions.begin(), actions.end(),
                                   [](const Action& action) { return action.kind == 'W'; });
    made.ranks.push_back(lower_rank(input, rank, split, id, program));
    made.actions.push_back(actions);
    std::set<int32_t> stages;
    for (const StageTemplate& stage : made.ranks.back().stages) {
      stages.insert(stage.stage);
    }
    std::string& name = program.classes[id].name;
    name = stages.empty() ? "idle" : fmt::format("stage{}", fmt::join(stages, "+"));
    if (share > 0) {
      name += fmt::format(".{}", share);
    }
  }
  made.pins = plan.layouts;
  return made;
}

}  // namespace

Templates make_templates(const graph::Graph& reference, const Plan& plan) {
  try {
    return templates_of(reference, plan);
  } catch (const Error& error) {
    // Without pins, such a plan is refused earlier.
    if (error.code() != Error::Code::layout || plan.layouts.empty()) throw;
    throw error.with(said_of_pins(plan.layouts).substr(2));
  }
}

}  // namespace hocket::parallel
