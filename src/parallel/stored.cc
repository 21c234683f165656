// SPDX-License-Identifier: Apache-2.0
#include "parallel/stored.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "ops/op.h"
#include "parallel/plan.h"

namespace hocket::parallel {

using graph::Graph;
using graph::kNone;
using graph::Layout;
using graph::Mesh;
using graph::Placement;
using graph::TensorId;
using graph::TensorKind;
using graph::TensorType;

namespace {

/// Dims of values that have one letter in some application: as far as ops say, they are cut alike.
class UnitedDims {
 public:
  explicit UnitedDims(const std::vector<TensorType>& values) {
    int dims = 0;
    for (const TensorType& type : values) {
      first_.push_back(dims);
      dims += static_cast<int>(type.dims.size());
    }
    parent_.resize(static_cast<size_t>(dims));
    std::iota(parent_.begin(), parent_.end(), 0);
    marks_.resize(parent_.size(), 0);
  }

  enum Mark : uint8_t {
    positional = 1,  ///< some op goes along it by position
    fixed = 2,       ///< some op needs all of it
    contracted = 4,  ///< some op sums over it
  };

  /// `values`: types by value.
  template <class Values>
  void add(const ops::Op& op, const Values& values, const std::vector<int>& in,
           const std::vector<int>& out) {
    const ops::Letters letters = ops::letters(op, types_of(values, in), types_of(values, out));
    if (letters.any) {
      for (const std::vector<int>* ids : {&in, &out}) {
        for (int id : *ids) {
          const auto dims = static_cast<int>(values[static_cast<size_t>(id)].dims.size());
          for (int dim = 0; dim < dims; ++dim) {
            marks_[static_cast<size_t>(united(id, dim))] |= fixed;
          }
        }
      }
      return;
    }
    std::map<char, int> seen;
    const auto unite = [&](const std::vector<std::string>& operands, const std::vector<int>& ids) {
      for (size_t i = 0; i < operands.size(); ++i) {
        for (size_t dim = 0; dim < operands[i].size(); ++dim) {
          const char letter = operands[i][dim];
          const int mine = root(place(ids[i], static_cast<int>(dim)));
          const int other = root(seen.emplace(letter, mine).first->second);
          parent_[static_cast<size_t>(mine)] = other;
          marks_[static_cast<size_t>(other)] |= marks_[static_cast<size_t>(mine)];
        }
      }
    };
    unite(letters.in, in);
    unite(letters.out, out);
    for (const auto& [letter, dim] : seen) {
      const bool splits = std::string_view(op.layout.split).find(letter) != std::string_view::npos;
      const bool sums = std::none_of(letters.out.begin(), letters.out.end(), [&](const auto& dims) {
        return dims.find(letter) != std::string::npos;
      });
      marks_[static_cast<size_t>(root(dim))] |=
          static_cast<uint8_t>((op.layout.is_positional(letter) ? positional : 0) |
                               (splits ? 0 : fixed) | (sums ? contracted : 0));
    }
  }

  int united(int value, int dim) const { return root(place(value, dim)); }
  uint8_t marks(int value, int dim) const {
    return marks_[static_cast<size_t>(united(value, dim))];
  }

 private:
  template <class Values>
  static std::vector<TensorType> types_of(const Values& values, const std::vector<int>& ids) {
    std::vector<TensorType> list;
    for (int id : ids) {
      list.push_back(values[static_cast<size_t>(id)]);
    }
    return list;
  }
  int place(int value, int dim) const { return first_[static_cast<size_t>(value)] + dim; }
  int root(int dim) const {
    while (parent_[static_cast<size_t>(dim)] != dim) {
      dim = parent_[static_cast<size_t>(dim)];
    }
    return dim;
  }
  std::vector<int> first_, parent_;
  std::vector<uint8_t> marks_;
};

/// The dims of parameters that a forward node takes by position, or that the ops do that it is made
/// of by its definition.
std::map<TensorId, int> positional_dims(const Graph& graph) {
  std::map<TensorId, int> dims;
  for (const graph::Node& node : graph.nodes) {
    if (node.phase != graph::Phase::forward) continue;
    if (std::none_of(node.in.begin(), node.in.end(),
                     [&](TensorId id) { return graph.tensor(id).kind == TensorKind::param; })) {
      continue;
    }
    const ops::Op& op = ops::find(node.op);
    if (*op.layout.positional == 0 && !op.define) continue;
    std::vector<TensorType> in;
    for (TensorId id : node.in) {
      in.push_back(graph.tensor(id).type);
    }
    ops::Unfolded unfolded = ops::unfold(op, node.attrs, in);
    if (unfolded.out.empty()) {
      unfolded.types = in;
      for (TensorId id : node.out) {
        unfolded.out.push_back(static_cast<int>(unfolded.types.size()));
        unfolded.types.push_back(graph.tensor(id).type);
      }
    }
    UnitedDims united(unfolded.types);
    std::vector<int> inputs(in.size());
    std::iota(inputs.begin(), inputs.end(), 0);
    united.add(op, unfolded.types, inputs, unfolded.out);
    for (const ops::Unfolded::Step& step : unfolded.steps) {
      united.add(*step.op, unfolded.types, step.in, step.out);
    }
    for (size_t i = 0; i < in.size(); ++i) {
      if (graph.tensor(node.in[i]).kind != TensorKind::param) continue;
      for (int dim = 0; dim < static_cast<int>(in[i].dims.size()); ++dim) {
        if (united.marks(static_cast<int>(i), dim) & UnitedDims::positional) {
          dims.emplace(node.in[i], dim);
        }
      }
    }
  }
  return dims;
}

/// The dims of parameters inside of a block of the model: from the product that makes a dim to the
/// product that sums over it no op needs all of it, and it is none of the tokens'. So are heads and
/// the width of an MLP, but not that of the hidden vectors, which norms need whole. Left out are
/// dims that do not divide in all their parameters, and experts, which are split among themselves.
std::map<TensorId, int> inner_dims(const Graph& graph, int64_t ranks) {
  std::vector<TensorType> types;
  for (const graph::Tensor& tensor : graph.tensors) {
    types.push_back(tensor.type);
  }
  UnitedDims united(types);
  for (const graph::Node& node : graph.nodes) {
    if (node.phase != graph::Phase::forward) continue;
    const ops::Op& op = ops::find(node.op);
    united.add(op, types, node.in, node.out);
  }
  std::set<int> left_out;
  std::map<int, TensorId> uneven;  // by united dim: a parameter that does not divide
  const auto for_each_dim = [&](const auto& visit) {
    for (size_t id = 0; id < graph.tensors.size(); ++id) {
      for (int dim = 0; dim < static_cast<int>(types[id].dims.size()); ++dim) {
        visit(static_cast<TensorId>(id), dim, united.united(static_cast<int>(id), dim));
      }
    }
  };
  for_each_dim([&](TensorId id, int dim, int all) {
    const graph::Tensor& tensor = graph.tensor(id);
    const bool divides = types[id].dims[static_cast<size_t>(dim)].divides_into(ranks);
    const bool param = tensor.kind == TensorKind::param;
    if (tensor.kind == TensorKind::input || tensor.kind == TensorKind::state ||
        (param && tensor.expert)) {
      left_out.insert(all);
    } else if (param && !divides) {
      uneven.emplace(all, id);
    }
  });
  std::map<TensorId, int> dims;
  std::set<TensorId> stay_whole;
  for_each_dim([&](TensorId id, int dim, int all) {
    if (graph.tensor(id).kind != TensorKind::param || left_out.contains(all)) return;
    if (united.marks(static_cast<int>(id), dim) != UnitedDims::contracted) return;
    const auto whole = uneven.find(all);
    if (whole == uneven.end()) {
      dims.emplace(id, dim);
    } else {
      stay_whole.insert(whole->second);
    }
  });
  if (!graph.grads.empty() && !stay_whole.empty()) {
    const graph::Tensor& first = graph.tensor(*stay_whole.begin());
    log_warning(
        "plan.tp is {} and does not divide {} ({}){}: it is whole on all ranks of tp", ranks,
        first.name, to_string(first.type),
        stay_whole.size() > 1 ? fmt::format(" and {} more like it", stay_whole.size() - 1) : "");
  }
  return dims;
}

Layout default_layout(const graph::Tensor& tensor, const Mesh& mesh) {
  Layout layout;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const std::string& name = mesh.axes[axis].name;
    if (mesh.axes[axis].size == 1) continue;
    const bool by_token =
        tensor.kind == TensorKind::input && !tensor.per_step && splits_tokens(name);
    if (by_token || (tensor.expert && splits_experts(name))) {
      layout.set(axis, Placement::split(0));
    }
  }
  return layout;
}

/// A pin, its layout on a mesh with all axes of a plan.
struct Pin {
  std::string text, pattern;
  Layout layout;
  bool whole = false;  ///< "B"
  int matches = 0;
};

/// All axes of a plan: those of the mesh, then those that are of one rank in this plan.
Mesh with_all_axes(Mesh mesh) {
  for (const char* name : {kStageAxis, kDataAxis, kInnerDataAxis, kExpertAxis, kInnerExpertAxis,
                           kContextAxis, kTensorAxis}) {
    if (mesh.axis(name) < 0) {
      mesh.axes.push_back({name, 1});
    }
  }
  return mesh;
}

Pin parse_pin(const std::string& text, const Mesh& all) {
  const size_t space = text.find(' ');
  Pin pin{.text = text, .pattern = text.substr(0, space), .layout = {}};
  if (space == std::string::npos || space == 0) {
    fail("plan.layouts", "got '{}'; expected PATTERN LAYOUT; try 'lm_head.weight tp:S0'", text);
  }
  const std::string layout = text.substr(space + 1);
  pin.whole = layout == "B";
  try {
    pin.layout = graph::parse_layout(layout, all);
  } catch (const Error& error) {
    throw error.with(fmt::format("plan.layouts '{}' (axes {})", text, to_string(all)));
  }
  for (size_t axis = 0; axis < all.axes.size(); ++axis) {
    const bool stages = all.axes[axis].name == kStageAxis;
    if (pin.layout[axis].is_partial() || (stages && !pin.layout[axis].is_replicate())) {
      fail("plan.layouts",
           "got '{}'; expected axis:S<dim> with one of edp, edp_inner, ep, ep_inner, cp, tp, or B",
           text);
    }
  }
  if (!pin.layout.given.empty()) {
    fail("plan.layouts", "got '{}'; expected even blocks, without sizes", text);
  }
  return pin;
}

/// `layout` with what the pin says of the axes that it names.
Layout pinned(Layout layout, const Pin& pin, const Mesh& mesh) {
  if (pin.whole) return {};
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (pin.layout[axis].is_split()) {
      layout.set(axis, Placement::replicate());
    }
  }
  for (int dim = 0; dim < static_cast<int>(graph::kMaxAxes); ++dim) {
    for (int32_t axis : pin.layout.axes_of(dim)) {
      const auto place = static_cast<size_t>(axis);
      if (place < mesh.axes.size() && mesh.axes[place].size > 1) {
        layout.set(place, Placement::split(dim));
      }
    }
  }
  return layout;
}

/// "" or why the tensor cannot lie so on all ranks alike. Experts need not divide over ep.
std::string why_not(const graph::Tensor& tensor, Layout layout, const Mesh& mesh) {
  const int32_t experts = mesh.axis(kExpertAxis);
  if (tensor.expert && experts >= 0 && layout[experts] == Placement::split(0)) {
    layout.set(static_cast<size_t>(experts), Placement::replicate());
  }
  try {
    graph::local_type(tensor.type, layout, mesh);
  } catch (const Error& error) {
    return std::string(error.what());
  }
  return "";
}

/// What the optimizer keeps for a parameter: states that a node reads with it, of its type.
void let_states_follow(const Graph& graph, std::vector<Layout>* layouts) {
  for (const graph::Node& node : graph.nodes) {
    if (node.phase != graph::Phase::optimizer) continue;
    const auto param = std::find_if(node.in.begin(), node.in.end(), [&](TensorId id) {
      return graph.tensor(id).kind == TensorKind::param;
    });
    if (param == node.in.end()) continue;
    for (TensorId id : node.in) {
      const graph::Tensor& tensor = graph.tensor(id);
      if (tensor.kind == TensorKind::state && tensor.type.dims == graph.tensor(*param).type.dims) {
        (*layouts)[static_cast<size_t>(id)] = (*layouts)[static_cast<size_t>(*param)];
      }
    }
  }
}

}  // namespace

std::vector<Layout> stored_layouts(const Graph& graph, const Mesh& mesh,
                                   const std::vector<std::string>& pins) {
  // By default first, then what is pinned; states last, since they follow their parameters.
  std::vector<Layout> layouts;
  for (const graph::Tensor& tensor : graph.tensors) {
    layouts.push_back(default_layout(tensor, mesh));
  }
  std::map<TensorId, int> by_position;
  const int32_t tp = mesh.axis(kTensorAxis);
  if (tp >= 0 && mesh.axes[static_cast<size_t>(tp)].size > 1) {
    by_position = positional_dims(graph);
    for (const auto& [id, dim] : inner_dims(graph, mesh.axes[static_cast<size_t>(tp)].size)) {
      layouts[static_cast<size_t>(id)].set(static_cast<size_t>(tp), Placement::split(dim));
    }
  }
  for (const auto& [id, dim] : by_position) {
    layouts[static_cast<size_t>(id)].set(static_cast<size_t>(tp), Placement::split(dim));
  }
  const Mesh all = with_all_axes(mesh);
  std::vector<Pin> list;
  for (const std::string& text : pins) {
    list.push_back(parse_pin(text, all));
  }
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    const graph::Tensor& tensor = graph.tensors[id];
    if (tensor.kind != TensorKind::param) continue;
    const Pin* last = nullptr;
    for (Pin& pin : list) {
      if (fnmatch(pin.pattern.c_str(), tensor.name.c_str(), 0) != 0) continue;
      ++pin.matches;
      last = &pin;
    }
    if (last) {
      layouts[id] = pinned(layouts[id], *last, mesh);
    }
    const std::string why = why_not(tensor, layouts[id], mesh);
    if (why.empty()) continue;
    if (last) fail("plan.layouts", "'{}' cannot be: {}", last->text, why);
    const auto known = by_position.find(static_cast<TensorId>(id));
    if (known == by_position.end()) continue;
    fail("plan",
         "plan.tp is {}; expected a divisor of the {} of dim {} of {}, over which it is "
         "split; try plan.layouts: [{} B]",
         mesh.axes[static_cast<size_t>(tp)].size,
         int64_t{tensor.type.dims[static_cast<size_t>(known->second)]}, known->second, tensor.name,
         tensor.name);
  }
  const bool splits = std::any_of(layouts.begin(), layouts.end(), [&](const Layout& layout) {
    return tp >= 0 && layout[static_cast<size_t>(tp)].is_split();
  });
  if (tp >= 0 && mesh.axes[static_cast<size_t>(tp)].size > 1 && !splits) {
    fail("plan", "plan.tp is {}, but no parameter is split over it; try plan.tp: 1",
         mesh.axes[static_cast<size_t>(tp)].size);
  }
  for (const Pin& pin : list) {
    if (pin.matches > 0) continue;
    fail("plan.layouts",
         "no parameter matches '{}'; expected a name or pattern of `hocket graph RUN --stage "
         "graph`, e.g. model.embed_tokens.weight or model.layers.*.mlp.down_proj.weight",
         pin.pattern);
  }
  let_states_follow(graph, &layouts);
  return layouts;
}

std::vector<std::string> positional_pins(const Graph& graph) {
  std::vector<std::string> pins;
  for (const auto& [id, dim] : positional_dims(graph)) {
    pins.push_back(fmt::format("{} {}:S{}", graph.tensor(id).name, kTensorAxis, dim));
  }
  return pins;
}

}  // namespace hocket::parallel
