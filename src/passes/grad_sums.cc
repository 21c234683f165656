// SPDX-License-Identifier: Apache-2.0
#include "passes/grad_sums.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "ops/op.h"

namespace hocket::passes {

using graph::TensorType;
using program::BufferId;
using program::kNone;
using program::Program;
using program::RankClass;
using program::Task;

namespace {

/// Returns the parameter of a named buffer that holds an optimizer state, or the gradient for the
/// host. Returns an empty name for another buffer, or one of several parameters. `belongs`:
/// Program::parameters_of_tensors.
std::string parameter_of(const program::Buffer& buffer,
                         const std::map<std::string, std::string>& belongs) {
  if (buffer.slots.size() > 1) return "";
  const auto found = belongs.find(buffer.slots.empty() ? buffer.name : buffer.slots[0].tensor);
  return found == belongs.end() ? "" : found->second;
}

bool have_in_common(const GradSum& one, const GradSum& other) {
  return std::any_of(one.parameters.begin(), one.parameters.end(), [&](const std::string& name) {
    return std::find(other.parameters.begin(), other.parameters.end(), name) !=
           other.parameters.end();
  });
}
void add_names(const std::vector<std::string>& names, std::vector<std::string>* to) {
  for (const std::string& name : names) {
    if (std::find(to->begin(), to->end(), name) == to->end()) {
      to->push_back(name);
    }
  }
}
/// Joins the sum with those that have a parameter in common with it, at the place of the first.
void join_sum(GradSum sum, const std::function<int64_t(int64_t, int64_t)>& bytes,
              std::vector<GradSum>* sums) {
  const auto meets = [&](const GradSum& other) { return have_in_common(other, sum); };
  auto at = std::find_if(sums->begin(), sums->end(), meets);
  const auto place = at - sums->begin();
  while (at != sums->end()) {
    add_names(at->parameters, &sum.parameters);
    for (const auto& [codec, names] : at->taken_by) {
      add_names(names, &sum.taken_by[codec]);
    }
    sum.bytes = bytes(sum.bytes, at->bytes);
    at = std::find_if(sums->erase(at), sums->end(), meets);
  }
  sums->insert(sums->begin() + place, std::move(sum));
}

}  // namespace

AxisRoutes best_routes(const CodecOps& codec, TensorType type, std::vector<AxisSum> axes,
                       Route route) {
  if (axes.empty()) return {};
  AxisSum level = axes.back();
  axes.pop_back();
  const double n = level.ranks;
  const std::vector<TensorType> codes = codec.codes(type);
  double bytes = 0;
  for (const TensorType& code : codes) {
    bytes += static_cast<double>(code.bytes());
  }
  AxisRoutes best = best_routes(codec, type, axes, route);
  best.bytes += (n - 1) * bytes;
  level.by_blocks = false;
  best.axes.insert(best.axes.begin(), level);
  if (route == Route::at_once || !codec.by_rows(type) || !type.dims[0].divides_into(level.ranks)) {
    return best;
  }
  type.dims[0] /= level.ranks;
  AxisRoutes blocks = best_routes(codec, type, std::move(axes), route);
  blocks.bytes += 2 * (n - 1) / n * bytes;
  level.by_blocks = true;
  blocks.axes.insert(blocks.axes.begin(), level);
  return route == Route::by_blocks || blocks.bytes < best.bytes ? blocks : best;
}

GradSums::GradSums(const Program& program, program::ClassId cls)
    : program_(program), cls_(cls), parameters_(parameters_of_gradients(program, cls)) {
  find_sums_of_several();
}

std::vector<GradSum> GradSums::all(const Codecs& codecs,
                                   const std::vector<std::string>& names) const {
  std::vector<GradSum> sums;
  for (const Task& task : list().tasks) {
    if (!is_sum(task)) continue;
    GradSum sum = sum_of(task, codecs, names);
    if (!sum.parameters.empty()) {
      sums.push_back(std::move(sum));
    }
  }
  return sums;
}

/// Finds buffers that add up products of different nodes of the model, such as gradients of tied
/// parameters, on one rank or several. Also finds the buffers that they are moved to. Each rank's
/// part then belongs to a different sum, so one code cannot stand for it.
void GradSums::find_sums_of_several() {
  std::map<BufferId, std::string> made_by;
  for (const Task& task : list().tasks) {
    const program::Kind& kind = program_.kind(task);
    if (program::is_communication(kind)) {
      const bool meets_others = kind.communication == comm::summing().id && !is_within_class(task);
      for (size_t i = 0; i < task.out.size(); ++i) {
        const bool moved = i < task.in.size() && of_several_.contains(list().root(task.in[i]));
        if (meets_others || moved) {
          of_several_.insert(list().root(task.out[i]));
        }
      }
      continue;
    }
    const ops::Meaning meaning = ops::find(kind.op).meaning;
    for (const BufferId output : task.out) {
      const BufferId root = list().root(output);
      const std::string& first = made_by.try_emplace(root, kind.op).first->second;
      if (first != kind.op || meaning == ops::Meaning::sum) {
        of_several_.insert(root);
      }
    }
  }
}

GradSum GradSums::sum_of(const Task& task, const Codecs& codecs,
                         const std::vector<std::string>& names) const {
  GradSum sum;
  // Codecs with a route by which one of the operands goes otherwise than by least bytes.
  std::set<std::string> others;
  for (size_t operand = 0; operand < task.in.size(); ++operand) {
    const std::string& name = parameter(task, operand);
    if (name.empty()) continue;
    bool taken = false;
    for (const std::string& codec : names) {
      if (!takes(codecs.named(codec), task, operand)) continue;
      sum.taken_by[codec].push_back(name);
      taken = true;
      for (const Route route : {Route::at_once, Route::by_blocks}) {
        if (differs(codecs.named(codec), route, task, operand)) {
          others.insert(codec + " " + to_string(route));
        }
      }
    }
    if (!taken) continue;
    sum.parameters.push_back(name);
    sum.bytes += program_.kind(task).in[operand].bytes();
  }
  for (const std::string& other : others) {
    sum.taken_by[other] = sum.taken_by.at(other.substr(0, other.find(' ')));
  }
  return sum;
}

bool GradSums::is_sum(const Task& task) const {
  const program::Kind& kind = program_.kind(task);
  if (task.phase != program::Phase::grad || task.group == kNone || !task.deps.empty()) {
    return false;
  }
  const comm::Op& op = comm::op(kind.communication);
  if (&op != &comm::summing()) return false;
  return is_within_class(task);
}

bool GradSums::is_within_class(const Task& task) const {
  const program::Group& group = program_.groups[task.group];
  return group.with == kNone && group.members.empty() && !program_.crosses_classes(group);
}

const std::string& GradSums::parameter(const Task& task, size_t operand) const {
  static const std::string unnamed;
  const auto found = parameters_.find(list().root(task.out[operand]));
  return found == parameters_.end() ? unnamed : found->second;
}

std::vector<AxisSum> GradSums::axes_of(const Task& task) const {
  std::vector<AxisSum> levels;
  for (int32_t axis : program_.groups[task.group].axes) {
    levels.push_back({axis, program_.mesh_of(cls_).axes[axis].size, false});
  }
  return levels;
}

/// Returns whether an operand's codes take another route here than the one of least bytes.
bool GradSums::differs(const CodecOps& codec, Route route, const Task& task, size_t operand) const {
  const TensorType& type = program_.kind(task).in[operand];
  const std::vector<AxisSum> axes = axes_of(task);
  const std::vector<AxisSum> least = best_routes(codec, type, axes).axes;
  const std::vector<AxisSum> other = best_routes(codec, type, axes, route).axes;
  return !std::equal(least.begin(), least.end(), other.begin(), other.end(),
                     [](const AxisSum& a, const AxisSum& b) { return a.by_blocks == b.by_blocks; });
}

bool GradSums::takes(const CodecOps& codec, const Task& task, size_t operand) const {
  if (of_several_.contains(list().root(task.in[operand]))) return false;
  const program::Kind& kind = program_.kind(task);
  const TensorType& type = kind.in[operand];
  if (!graph::is_floating(type.dtype) || type.routed() || !codec.takes(type)) return false;
  if (has_parts_of_rows(task.in[operand])) return false;
  const auto members = static_cast<double>(program_.size_of(program_.groups[task.group]));
  const comm::Op& op = comm::op(kind.communication);
  double plain = 0;
  for (const comm::Algorithm& way : op.algorithms(members, static_cast<double>(type.bytes()))) {
    plain = plain == 0 ? way.bytes : std::min(plain, way.bytes);
  }
  return best_routes(codec, type, axes_of(task)).bytes <= plain * (1 + 1e-9);
}

/// Returns whether the buffer has parts of rows. Rows are encoded whole: a codec's scale is of all
/// their elements. A view lies as its base does.
bool GradSums::has_parts_of_rows(BufferId buffer) const {
  const graph::Layout& layout = list().buffers[list().root(buffer)].layout;
  return std::any_of(layout.on.begin(), layout.on.end(),
                     [](graph::Placement placed) { return placed.is_split() && placed.dim() > 0; });
}

std::map<BufferId, std::string> parameters_of_gradients(const Program& program,
                                                        program::ClassId cls) {
  // An optimizer makes a state of a parameter from its gradient, which is of the same shape.
  const std::map<std::string, std::string> belongs = program.parameters_of_tensors();
  const RankClass& list = program.classes[cls];
  std::map<BufferId, std::string> parameters;
  for (const Task& task : list.tasks) {
    for (const BufferId output : task.out) {
      const std::string parameter = parameter_of(list.buffers[list.root(output)], belongs);
      if (parameter.empty()) continue;
      if (list.buffers[list.root(output)].kind == program::BufferKind::output) {
        parameters[list.root(output)] = parameter;
      }
      for (const BufferId input : task.in) {
        const program::Buffer& read = list.buffers[list.root(input)];
        if (read.kind != program::BufferKind::step) continue;
        if (list.buffers[input].type == list.buffers[output].type) {
          parameters[list.root(input)] = parameter;
        }
      }
    }
  }
  return parameters;
}

std::vector<GradSum> grad_sums(const Program& program, const std::vector<std::string>& codecs) {
  Codecs all{GradCodecOptions{}};
  std::vector<GradSum> sums;
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    std::vector<GradSum> here;
    for (GradSum& sum : GradSums(program, cls).all(all, codecs)) {
      join_sum(std::move(sum), std::plus<>(), &here);
    }
    for (GradSum& sum : here) {
      join_sum(
          std::move(sum), [](int64_t one, int64_t other) { return std::max(one, other); }, &sums);
    }
  }
  return sums;
}

}  // namespace hocket::passes
