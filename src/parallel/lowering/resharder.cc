// SPDX-License-Identifier: Apache-2.0
#include "parallel/lowering/resharder.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/log.h"
#include "collectives/comm_op.h"

namespace hocket::parallel {

using graph::kNone;
using graph::Layout;
using graph::Placement;
using graph::TensorId;
using graph::TensorType;

void Resharder::all_reduce(const std::vector<ValueId>& from, const std::vector<Layout>& to,
                           const ReshardStep& step, const TaskSite& site) {
  std::vector<ValueId> outs;
  for (size_t i = 0; i < from.size(); ++i) {
    const TensorId tensor = values_[from[i]].tensor;
    const bool in_step = values_[from[i]].life == Value::Life::step;
    outs.push_back(
        values_.add(tensor, to[i], in_step ? Value::Life::step : Value::Life::micro_batch));
  }
  TaskTemplate& made = tasks_.add_communication(*step.op, step.attrs,
                                                program::group_over(step.axes), from, outs, site);
  for (size_t i = 0; i < from.size(); ++i) {
    if (values_[from[i]].life == Value::Life::step) {
      made.shares.push_back({static_cast<int>(i), from[i]});
    }
  }
}

/// Returns the sizes matrix of an exchange of rows over `axis`; their experts are already split
/// over the axes `over`. The first call emits the exchange of counts, which also yields the counts
/// of the rank's experts: a value of the counts tensor in the new layout.
ValueId Resharder::sizes(TensorId counts, const std::vector<int32_t>& over, int32_t axis,
                         const TaskSite& site) {
  std::vector<int32_t> axes = over;
  axes.push_back(axis);
  if (const auto known = sizes_of_.find({counts, axes}); known != sizes_of_.end()) {
    return known->second;
  }
  Layout from = layouts_.tensor[counts];
  for (int32_t outer : over) {
    from.set(static_cast<size_t>(outer), Placement::split(0));
  }
  if (!over.empty() && values_.find(counts, from) == kNone) {
    sizes(counts, {over.begin(), over.end() - 1}, over.back(), site);
  }
  Layout to = from;
  to.set(axis, Placement::split(0));
  const ValueId in = values_.find(counts, from);
  HOCKET_CHECK(in != kNone, "counts {} are not on stage {}", graph_.tensor(counts).name,
               site.stage);
  const ValueId local = values_.add(counts, to, Value::Life::micro_batch);
  const auto exchange = comm::resharding(values_[in].type, from[axis], to[axis],
                                         mesh_.axes[axis].size, {.me = coords_[axis]});
  if (!exchange || !exchange->op->makes_sizes) {
    fail_with(Error::Code::layout, "lower", "the rows of {} can't be exchanged from {} to {}",
              graph_.tensor(counts).name, to_string(from, mesh_), to_string(to, mesh_));
  }
  // An auxiliary value of the counts tensor, without a layout.
  Value value;
  value.tensor = counts;
  value.type = exchange->out[0];
  value.name = graph_.tensor(counts).name + ".sizes";
  const ValueId sizes = values_.add(std::move(value));
  sizes_of_[{counts, axes}] = sizes;
  tasks_.add_communication(*exchange->op, exchange->attrs, program::group_over({axis}), {in},
                           {sizes, local}, site);
  return sizes;
}

/// Appends a copy of the rank's block of a value, which it reads through a view.
ValueId Resharder::slice(ValueId from, const ReshardStep& step, const TaskSite& site) {
  const TensorId tensor = values_[from].tensor;
  const TensorType& whole = graph_.tensor(tensor).type;
  const Layout had = values_[from].layout;
  const ValueId to = values_.add(tensor, step.to, site.life);
  // Offset of the block in the rank's piece, by the coordinates on the axes that split the dim, in
  // the mesh's order.
  program::Table table;
  table.axes = step.to.axes_of(step.dim);
  std::sort(table.axes.begin(), table.axes.end());
  const auto dim = static_cast<size_t>(step.dim);
  graph::for_each_coords(mesh_, table.axes, [&](const std::vector<int32_t>& coords) {
    table.values.push_back(graph::local_runs(whole, step.to, mesh_, coords)[dim].begin -
                           graph::local_runs(whole, had, mesh_, coords)[dim].begin);
  });
  Value view;
  view.tensor = tensor;
  view.layout = step.to;
  view.type = values_[to].type;
  view.life = values_[from].life;
  view.name = values_[from].name;
  view.base = from;
  view.dim = step.dim;
  view.by = tasks_.intern(std::move(table));
  const ValueId block = values_.add(std::move(view));
  tasks_.add_local(ops::Meaning::identity, {}, {block}, to, site);
  return to;
}

/// Returns the attributes of a step for the ranks of this class. `type`: of the value after it.
/// Sizes that differ from group to group are attributes where the members do not divide the dim
/// evenly.
graph::Attrs Resharder::attrs_here(const ReshardStep& step, const Layout& from,
                                   const TensorType& whole, const TensorType& type) const {
  graph::Attrs attrs = step.attrs;
  attrs.erase("size");
  const bool slot = step.op->move.placed == comm::Move::Placed::slot;
  const bool block = step.op->move.part == comm::Move::Part::block;
  for (const auto& [moves, attribute, layout] :
       {std::tuple{slot, comm::kSlots, &from}, {block, comm::kBlocks, &step.to}}) {
    attrs.erase(attribute);
    const std::vector<int64_t> lengths =
        uneven_lengths(*layout, whole, mesh_, step.axes[0], coords_);
    if (moves && !lengths.empty()) {
      comm::set_lengths(lengths, attribute, &attrs);
    }
  }
  if (!slot || type.routed() || attrs.has(comm::kSlots)) return attrs;
  int64_t members = 1;
  for (int32_t axis : step.axes) {
    members *= mesh_.axes[static_cast<size_t>(axis)].size;
  }
  const int dim = comm::dim_of(attrs, step.op->move.slot_dim);
  const graph::Dim& size = type.dims[static_cast<size_t>(dim)];
  if (!size.divides_into(members)) {
    attrs.set("size", int64_t{size});
  }
  return attrs;
}

ValueId Resharder::reshard(ValueId from, const Layout& to, const TaskSite& site) {
  // A step that exchanges routing counts yields the local counts and the sizes matrix. A step that
  // moves rows needs the sizes matrix of their routing.
  const TensorId tensor = values_[from].tensor;
  const graph::Tensor& logical = graph_.tensor(tensor);
  const Layout has = values_[from].layout;
  if (has == to) return from;
  log_debug("stage {}: reshard {} from {} to {}", site.stage, logical.name, to_string(has, mesh_),
            to_string(to, mesh_));
  const ReshardPath* const path = paths_.path(logical.type, has, to);
  if (!path) {
    fail_with(Error::Code::layout, "lower", "no resharding of {} from {} to {}: {}", logical.name,
              to_string(has, mesh_), to_string(to, mesh_), why_no_path(has, to, mesh_));
  }
  for (const ReshardStep& step : path->steps) {
    if (step.op == &comm::summing()) {
      if (values_.find(tensor, step.to) == kNone) {
        all_reduce({from}, {step.to}, step, site);
      }
      from = values_.find(tensor, step.to);
      continue;
    }
    if (!step.op) {
      from = slice(from, step, site);
      continue;
    }
    const int32_t axis = step.axes[0];
    // The other axes that split experts, before the step and after it.
    std::vector<int32_t> over = values_[from].layout.axes_of(0);
    std::erase(over, axis);
    if (step.op->makes_sizes) {
      sizes(tensor, over, axis, site);
      from = values_.find(tensor, step.to);
      HOCKET_CHECK(from != kNone, "no size exchange of {}", logical.name);
      continue;
    }
    std::vector<ValueId> in{from};
    if (step.op->needs_sizes) {
      in.push_back(sizes(layouts_.counts_of[tensor], over, axis, site));
    }
    const Layout before = values_[from].layout;
    from = values_.add(tensor, step.to, site.life);
    tasks_.add_communication(*step.op, attrs_here(step, before, logical.type, values_[from].type),
                             program::group_over(step.axes), std::move(in), {from}, site);
  }
  return from;
}

}  // namespace hocket::parallel
