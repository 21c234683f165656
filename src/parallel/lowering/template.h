// SPDX-License-Identifier: Apache-2.0
// Templates: what a graph and a plan come to before there are micro-batches. Per class of ranks,
// the tasks that every micro-batch runs (and those at the end of the step) over values, and the
// order in which they are stamped into a program. Smaller than the program by the number of
// micro-batches: what is the same in each of them is best rewritten here.
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
  /// What the tasks refer to: roles, symbols, tables, kinds, groups, and classes without tasks and
  /// buffers. Tasks of a template refer to values instead: ClassId c has those of `ranks[c]`.
  program::Program frame;
  std::vector<RankTemplate> ranks;           ///< by class
  std::vector<std::vector<Action>> actions;  ///< by class: the row of the schedule that it runs
  std::vector<int> route_of;                 ///< by micro-batch: whose stages run it
  /// Messages of a micro-batch have tags below this; those of the next one follow.
  int32_t num_tags = 0;
  /// Of the graph that was lowered. Values of definitions are labelled with numbers behind these.
  int32_t num_tensors = 0;
  std::optional<LayoutsSaved> layouts_saved;
  std::vector<std::string> pins;  ///< Plan::layouts; for messages
};

/// Lowers a graph of one global micro-batch under a plan: layouts are chosen by what they cost
/// over the whole graph, communication is inserted where a produced layout differs from the wanted
/// one (stage.cc), pipeline stages exchange what crosses them. Throws Error for a plan that the
/// graph does not allow.
Templates make_templates(const graph::Graph& graph, const Plan& plan);

/// The program of one step: the tasks of every action, in the schedule's order, over buffers of
/// their micro-batch. Without dependencies and memory plan: see program::finalize.
program::Program stamp(const Templates& templates);

/// One line per value and task, to be read by people. `only`: of this class; kNone: of all.
std::string print(const Templates& templates, program::ClassId only = program::kNone);

}  // namespace hocket::parallel
