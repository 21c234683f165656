// SPDX-License-Identifier: Apache-2.0
// Templates of a graph under a plan, before there are micro-batches. Per class of ranks: the tasks
// of every micro-batch and of the end of the step, over values, and the order in which they are
// stamped into a program. Templates are smaller than the program by the number of micro-batches, so
// rewrites that are the same in each of them belong here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "parallel/layouts/layouts.h"
#include "parallel/lowering/rank_template.h"
#include "parallel/plan.h"
#include "parallel/schedules/schedule.h"
#include "program/program.h"

namespace hocket::parallel {

struct Templates {
  /// Tables that tasks refer to: roles, symbols, tables, kinds, groups, and classes without tasks
  /// and buffers. Tasks of a template refer to values instead: those of class c to the values of
  /// `ranks[c]`.
  program::Program frame;
  std::vector<RankTemplate> ranks;           ///< by class
  std::vector<std::vector<Action>> actions;  ///< by class: its row of the schedule
  std::vector<int> route_of;                 ///< by micro-batch: its route
  /// Number of message tags per micro-batch; those of the next micro-batch follow.
  int32_t num_tags = 0;
  /// Number of tensors of the given graph. Values inside of definitions have higher tensor numbers.
  int32_t num_tensors = 0;
  std::optional<LayoutsSaved> layouts_saved;
  std::vector<std::string> pins;  ///< Plan::layouts; for messages
};

/// Lowers a graph of one global micro-batch under a plan. Chooses layouts by their cost over the
/// whole graph (layouts.h). Inserts communication where a tensor is read in another layout than it
/// is produced (resharder.h). Stages send each other the tensors that cross them. Throws Error for
/// a plan that the graph does not allow.
Templates make_templates(const graph::Graph& graph, const Plan& plan);

/// Returns a readable text with a line per value and task. `only`: this class, or all for kNone.
std::string print(const Templates& templates, program::ClassId only = program::kNone);

}  // namespace hocket::parallel
