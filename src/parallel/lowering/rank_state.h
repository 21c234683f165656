// SPDX-License-Identifier: Apache-2.0
// State shared by the lowering of one class of ranks: its inputs, the values and tasks that exist
// so far, and the template that is made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "parallel/lowering/lower_rank.h"
#include "parallel/lowering/rank_template.h"
#include "parallel/lowering/resharder.h"
#include "parallel/lowering/task_builder.h"
#include "parallel/lowering/value_table.h"
#include "parallel/plan.h"
#include "program/program.h"

namespace hocket::parallel {

struct RankState : LoweringInput {
  /// `cls`: the class that is made, of ranks with place `pipeline_rank` in the pipeline.
  RankState(const LoweringInput& input, int32_t pipeline_rank, program::ClassId cls,
            program::Program& made_for)
      : LoweringInput(input),
        rank(pipeline_rank),
        program(made_for),
        mesh(program.roles[0].mesh),
        pp_axis(mesh.axis(kStageAxis)),
        coords(program.coords(program.ranks_of(cls)[0])),
        values(graph, mesh, coords),
        tasks(program, cls, pp_axis, values),
        resharder(graph, mesh, layouts, coords, values, tasks) {
    for (int32_t route = 0; route < pipeline.num_routes(); ++route) {
      for (int32_t stage = 0; stage < pipeline.num_stages(); ++stage) {
        if (pipeline.rank_of(stage, route) == rank) {
          out.stages.push_back({.stage = stage, .route = route, .forward = {}, .backward = {}});
        }
      }
    }
  }
  RankState(const RankState&) = delete;
  RankState& operator=(const RankState&) = delete;

  int32_t stage_of(const graph::Node& node) const { return pipeline.stage_of(node.layer); }
  /// Returns the stage of a layer if this rank has it, else the rank's first stage. Labels the
  /// tasks at the end of the step, which run wherever a parameter is stored.
  int32_t own_stage(int32_t layer) const {
    const int32_t stage = pipeline.stage_of(layer);
    const bool own = std::any_of(out.stages.begin(), out.stages.end(),
                                 [&](const StageTemplate& made) { return made.stage == stage; });
    return own || out.stages.empty() ? stage : out.stages.front().stage;
  }
  /// Returns the group along the pipeline of `some` of its ranks, or of all if empty.
  program::Group over_pipeline(std::vector<int32_t> some) const {
    return {0, {pp_axis}, pp_axis, std::move(some)};
  }

  const int32_t rank;  ///< of the pipeline
  program::Program& program;
  const graph::Mesh& mesh;
  const int32_t pp_axis;
  const std::vector<int32_t> coords;  ///< of the first rank of the class
  ValueTable values;
  TaskBuilder tasks;
  Resharder resharder;
  RankTemplate out;
};

}  // namespace hocket::parallel
