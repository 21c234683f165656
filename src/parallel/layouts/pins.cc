// SPDX-License-Identifier: Apache-2.0
#include "parallel/layouts/pins.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "parallel/plan.h"

namespace hocket::parallel {

using graph::Graph;
using graph::kNone;
using graph::Layout;
using graph::Mesh;
using graph::Placement;
using graph::TensorId;
using graph::TensorKind;

namespace {

/// A parsed pin, with its layout on plan_axes().
struct Pin {
  std::string text, pattern;
  Layout layout;
  std::vector<bool> names;   ///< by axis of plan_axes(): the pin names it
  int matches = 0;           ///< number of matching tensors that can be pinned
  std::string other = {};    ///< first matching tensor that cannot be pinned
  std::string instead = {};  ///< advice: which tensor to pin in its place
};

/// Returns the axes that pins may name, whether the mesh has them or not.
const Mesh& plan_axes() {
  static const Mesh axes{{{kStageAxis, 1},
                          {kDataAxis, 1},
                          {kInnerDataAxis, 1},
                          {kExpertAxis, 1},
                          {kInnerExpertAxis, 1},
                          {kContextAxis, 1},
                          {kTensorAxis, 1}}};
  return axes;
}

/// Returns whether an axis of a mesh is a part of the plan's axis `name`.
bool is_part_of(std::string_view axis, std::string_view name) {
  if (name == kContextAxis) return splits_sequences(axis);
  if (name == kTensorAxis) return splits_parameters(axis);
  return axis == name;
}

Pin parse_pin(const std::string& text, const Mesh& mesh) {
  const size_t space = text.find(' ');
  Pin pin{.text = text, .pattern = text.substr(0, space), .layout = {}, .names = {}};
  if (space == std::string::npos || space == 0) {
    fail("plan.layouts", "got '{}'; expected PATTERN LAYOUT; try 'lm_head.weight tp:S0'", text);
  }
  // "axis:B" (whole along the axis) is no word of graph layouts, which name only split axes.
  const std::string layout = text.substr(space + 1);
  const Mesh& axes = plan_axes();
  pin.names.assign(axes.axes.size(), layout == "B");
  std::vector<std::string> splits;
  for (const std::string& word : split(layout, ' ')) {
    const int32_t whole = word.ends_with(":B") ? axes.axis(word.substr(0, word.size() - 2)) : -1;
    if (word == "B" && layout != "B") {
      fail("plan.layouts", "got '{}'; expected B alone, or axis:S<dim> and axis:B", text);
    }
    if (whole >= 0) {
      pin.names[whole] = true;
    } else {
      splits.push_back(word);
    }
  }
  try {
    pin.layout = graph::parse_layout(join(splits, " "), axes);
  } catch (const Error& error) {
    throw error.with(fmt::format("plan.layouts '{}' (axes {})", text, to_string(mesh)));
  }
  for (size_t axis = 0; axis < axes.axes.size(); ++axis) {
    const bool stages = axes.axes[axis].name == kStageAxis;
    if (pin.layout[axis].is_partial() || (stages && !pin.layout[axis].is_replicate())) {
      fail("plan.layouts",
           "got '{}'; expected axis:S<dim> or axis:B with one of edp, edp_inner, ep, ep_inner, cp, "
           "tp, or B",
           text);
    }
    if (pin.layout[axis].is_split()) {
      if (pin.names[axis]) {
        fail("plan.layouts", "axis {} is named twice in '{}'", axes.axes[axis].name, text);
      }
      pin.names[axis] = true;
    }
  }
  if (!pin.layout.given.empty()) {
    fail("plan.layouts", "got '{}'; expected even blocks, without sizes", text);
  }
  return pin;
}

/// Returns whether the pin names an axis of the mesh.
bool names(const Pin& pin, const std::string& axis) {
  for (size_t named = 0; named < pin.names.size(); ++named) {
    if (pin.names[named] && is_part_of(axis, plan_axes().axes[named].name)) return true;
  }
  return false;
}

/// Returns `layout` with the pin's placements on the axes that it names. They cut a dim in the
/// pin's order, inside of other axes that cut it.
Layout pinned(Layout layout, const Pin& pin, const Mesh& mesh) {
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (names(pin, mesh.axes[axis].name)) {
      layout.set(axis, Placement::replicate());
    }
  }
  for (int dim = 0; dim < static_cast<int>(graph::kMaxAxes); ++dim) {
    for (int32_t named : pin.layout.axes_of(dim)) {
      for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
        if (mesh.axes[axis].size > 1 &&
            is_part_of(mesh.axes[axis].name, plan_axes().axes[named].name)) {
          layout.set(axis, Placement::split(dim));
        }
      }
    }
  }
  return layout;
}

/// Sorts the axes of a dim into mesh order where a pin names only some of them: nodes choose axes
/// in this order.
Layout in_order_of_mesh(Layout layout, const Pin& pin, const Mesh& mesh) {
  for (int dim = 0; dim < static_cast<int>(graph::kMaxAxes); ++dim) {
    std::vector<int32_t> axes = layout.axes_of(dim);
    if (std::all_of(axes.begin(), axes.end(),
                    [&](int32_t axis) { return names(pin, mesh.axes[axis].name); })) {
      continue;
    }
    for (int32_t axis : axes) {
      layout.set(axis, Placement::replicate());
    }
    std::sort(axes.begin(), axes.end());
    for (int32_t axis : axes) {
      layout.set(axis, Placement::split(dim));
    }
  }
  return layout;
}

std::vector<Pin> parse_pins(const std::vector<std::string>& pins, const Mesh& mesh) {
  std::vector<Pin> list;
  for (const std::string& text : pins) {
    list.push_back(parse_pin(text, mesh));
  }
  return list;
}

bool matches(const Pin& pin, const graph::Tensor& tensor) {
  return fnmatch(pin.pattern.c_str(), tensor.name.c_str(), 0) == 0;
}

/// Returns the last pin that matches the tensor's name, or null.
const Pin* find_last(const graph::Tensor& tensor, const std::vector<Pin>& pins) {
  const auto last = std::find_if(pins.rbegin(), pins.rend(),
                                 [&](const Pin& pin) { return matches(pin, tensor); });
  return last == pins.rend() ? nullptr : &*last;
}

/// Meaning of a pin, by the tensor that it matches.
enum class Pinnable : uint8_t {
  stored,      ///< layout of a parameter or input
  activation,  ///< layout in which its readers find it
  update,      ///< layout of an update: a state or a total gradient
  none,        ///< not possible: the layout follows from others
};

/// Tables by tensor.
struct PinnableTensors {
  std::vector<Pinnable> what;
  std::vector<TensorId> param;  ///< the parameter it belongs to, or kNone
};

PinnableTensors pinnable_tensors(const Graph& graph) {
  // By kind first. Then outputs of the optimizer belong to its parameter, and so do gradients. Only
  // the total of a gradient can be pinned, not its contributions.
  PinnableTensors all{std::vector<Pinnable>(graph.tensors.size(), Pinnable::none),
                      std::vector<TensorId>(graph.tensors.size(), kNone)};
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    const graph::Tensor& tensor = graph.tensors[id];
    if (tensor.kind == TensorKind::param || tensor.kind == TensorKind::input) {
      all.what[id] = Pinnable::stored;
    } else if (tensor.producer != kNone &&
               graph.nodes[tensor.producer].phase != graph::Phase::optimizer) {
      all.what[id] = Pinnable::activation;
    } else if (tensor.state == graph::StateKind::optimizer) {
      all.what[id] = Pinnable::update;
      all.param[id] = tensor.of;
    }
  }
  for (const graph::Node& node : graph.nodes) {
    if (node.phase != graph::Phase::optimizer) continue;
    const auto param = std::find_if(node.in.begin(), node.in.end(), [&](TensorId id) {
      return graph.tensor(id).kind == TensorKind::param;
    });
    if (param == node.in.end()) continue;
    for (TensorId id : node.out) {
      all.param[id] = *param;
    }
  }
  for (const graph::ParamGrad& grad : graph.grads) {
    for (TensorId id : grad.contributions) {
      all.what[id] = Pinnable::none;
      all.param[id] = grad.param;
    }
    if (grad.total != kNone) {
      all.what[grad.total] = Pinnable::update;
      all.param[grad.total] = grad.param;
    }
  }
  return all;
}

/// Returns advice for a tensor with a layout that follows from others.
std::string to_pin_instead(const Graph& graph, const PinnableTensors& pinnable, size_t id) {
  const TensorId param = pinnable.param[id];
  for (const graph::ParamGrad& grad : graph.grads) {
    if (param == kNone || grad.param != param || grad.total == kNone) continue;
    return fmt::format("its layout is that of the update of {}; try {}", graph.tensor(param).name,
                       graph.tensor(grad.total).name);
  }
  return "its layout follows from those of gradients and states; try grad.* or exp_avg.* of "
         "a parameter";
}

/// Counts the matches of each pin.
void count_matches(const Graph& graph, const PinnableTensors& pinnable, std::vector<Pin>* pins) {
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    for (Pin& pin : *pins) {
      if (!matches(pin, graph.tensors[id])) continue;
      if (pinnable.what[id] != Pinnable::none) {
        ++pin.matches;
      } else if (pin.other.empty()) {
        pin.other = graph.tensors[id].name;
        pin.instead = to_pin_instead(graph, pinnable, id);
      }
    }
  }
}

/// Refuses pins that match nothing in the graph of a training, which has all tensors that pins may
/// name. In other graphs of the same run, pins of training tensors match nothing.
void refuse_unmatched(const Graph& graph, const std::vector<Pin>& pins) {
  const bool trains = !graph.grads.empty() &&
                      std::any_of(graph.tensors.begin(), graph.tensors.end(),
                                  [](const auto& one) { return one.kind == TensorKind::state; });
  for (const Pin& pin : pins) {
    if (!trains || pin.matches > 0) continue;
    if (!pin.other.empty()) {
      fail("plan.layouts", "'{}' matches {}, which cannot be pinned: {}", pin.text, pin.other,
           pin.instead);
    }
    fail("plan.layouts",
         "no tensor matches '{}'; expected a name or pattern of `hocket graph RUN --stage "
         "backward`, e.g. model.embed_tokens.weight or model.layers.*.mlp.down_proj.weight",
         pin.pattern);
  }
}

}  // namespace

std::string why_not(const graph::Tensor& tensor, const Layout& layout, const Mesh& mesh) {
  Layout even = layout;
  std::vector<int32_t> last;  // coordinates of the rank with the smallest piece
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const std::string& name = mesh.axes[axis].name;
    last.push_back(mesh.axes[axis].size - 1);
    if (splits_parameters(name) || (tensor.expert && name == kExpertAxis)) {
      even.set(axis, Placement::replicate());
    }
  }
  try {
    graph::local_type(tensor.type, even, mesh);
    graph::local_type(tensor.type, layout, mesh, last);
  } catch (const Error& error) {
    return std::string(error.what());
  }
  return "";
}

std::set<TensorId> pin_stored(const Graph& graph, const Mesh& mesh,
                              const std::vector<std::string>& pins, std::vector<Layout>* layouts) {
  std::vector<Pin> list = parse_pins(pins, mesh);
  const PinnableTensors pinnable = pinnable_tensors(graph);
  count_matches(graph, pinnable, &list);
  refuse_unmatched(graph, list);
  std::set<TensorId> all;
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    if (pinnable.what[id] != Pinnable::stored) continue;
    const graph::Tensor& tensor = graph.tensors[id];
    const Pin* const pin = find_last(tensor, list);
    if (!pin) continue;
    Layout& layout = (*layouts)[id];
    layout = in_order_of_mesh(pinned(layout, *pin, mesh), *pin, mesh);
    const std::string why = why_not(tensor, layout, mesh);
    if (!why.empty()) fail("plan.layouts", "'{}' is not possible: {}", pin->text, why);
    all.insert(id);
  }
  return all;
}

PinnedTensors pinned_tensors(const Graph& graph, const Mesh& mesh,
                             const std::vector<std::string>& pins) {
  const std::vector<Pin> list = parse_pins(pins, mesh);
  const PinnableTensors pinnable = pinnable_tensors(graph);
  PinnedTensors all;
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    const graph::Tensor& tensor = graph.tensors[id];
    if (pinnable.what[id] == Pinnable::none) continue;
    const Pin* const pin = find_last(tensor, list);
    if (!pin) continue;
    Pinned one{pinned({}, *pin, mesh), {}, pin->text};
    const std::string why = why_not(tensor, one.layout, mesh);
    if (!why.empty()) fail("plan.layouts", "'{}' is not possible: {}", pin->text, why);
    for (const graph::Axis& axis : mesh.axes) {
      one.axes.push_back(names(*pin, axis.name));
    }
    if (pinnable.what[id] != Pinnable::update) {
      all.tensors[id] = std::move(one);
      continue;
    }
    const auto [known, fresh] = all.updates.try_emplace(pinnable.param[id], one);
    if (!fresh && (known->second.layout != one.layout || known->second.axes != one.axes)) {
      fail(
          "plan.layouts",
          "'{}' and '{}' both set the layout of the update of {}, which its gradient and optimizer "
          "states share; expected one of them, or the same layout in both",
          known->second.text, pin->text, graph.tensor(pinnable.param[id]).name);
    }
  }
  return all;
}

std::string said_of_pins(const std::vector<std::string>& pins) {
  if (pins.empty()) return "";
  return fmt::format("; plan.layouts '{}' pins some tensors; try without", join(pins, "', '"));
}

}  // namespace hocket::parallel
