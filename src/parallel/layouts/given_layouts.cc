// SPDX-License-Identifier: Apache-2.0
#include "parallel/layouts/given_layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "ops/op.h"
#include "parallel/layouts/layout_rules.h"
#include "parallel/layouts/pins.h"
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

/// Union-find of the dims that share a letter in some application of an op, and so are split alike.
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
    positional = 1,  ///< some op indexes it by position
    fixed = 2,       ///< some op needs all of it
    contracted = 4,  ///< some op sums over it
    followed = 8,    ///< the indices that some op needs follow from those of another dim
  };

  /// Unites the dims of one application. `values`: types by value.
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
    std::map<char, graph::Dim> sizes;
    std::set<char>
        grouped;  // letters of dims of different size, such as heads of queries and of keys
    const auto unite = [&](const std::vector<std::string>& operands, const std::vector<int>& ids) {
      for (size_t i = 0; i < operands.size(); ++i) {
        for (size_t dim = 0; dim < operands[i].size(); ++dim) {
          const char letter = operands[i][dim];
          const graph::Dim& size = values[static_cast<size_t>(ids[i])].dims[dim];
          if (sizes.emplace(letter, size).first->second != size) {
            grouped.insert(letter);
          }
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
      const bool follows =
          grouped.contains(letter) ||
          std::any_of(op.layout.support.begin(), op.layout.support.end(),
                      [&](const ops::Support& support) { return support.letter == letter; });
      marks_[static_cast<size_t>(root(dim))] |= static_cast<uint8_t>(
          (op.layout.is_positional(letter) ? positional : 0) | (splits ? 0 : fixed) |
          (sums ? contracted : 0) | (follows ? followed : 0));
    }
  }

  int united(int value, int dim) const { return root(place(value, dim)); }
  uint8_t marks(int value, int dim) const { return marks_of(united(value, dim)); }
  uint8_t marks_of(int dim) const { return marks_[static_cast<size_t>(dim)]; }

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

/// Returns the dims of parameters that a forward node indexes by position, itself or through the
/// ops of its definition.
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
    ops::Decomposition decomposed = ops::decompose(op, node.attrs, in);
    if (decomposed.out.empty()) {
      decomposed.types = in;
      for (TensorId id : node.out) {
        decomposed.out.push_back(static_cast<int>(decomposed.types.size()));
        decomposed.types.push_back(graph.tensor(id).type);
      }
    }
    UnitedDims united(decomposed.types);
    std::vector<int> inputs(in.size());
    std::iota(inputs.begin(), inputs.end(), 0);
    united.add(op, decomposed.types, inputs, decomposed.out);
    for (const ops::Decomposition::Step& step : decomposed.steps) {
      united.add(*step.op, decomposed.types, step.in, step.out);
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

/// Returns the axes of more than one rank for which the predicate is true, outermost first.
std::vector<size_t> axes_that(const Mesh& mesh, bool (*splits)(std::string_view)) {
  std::vector<size_t> axes;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (mesh.axes[axis].size > 1 && splits(mesh.axes[axis].name)) {
      axes.push_back(axis);
    }
  }
  return axes;
}

int64_t ranks_of(const Mesh& mesh, std::span<const size_t> axes) {
  int64_t ranks = 1;
  for (size_t axis : axes) {
    ranks *= mesh.axes[axis].size;
  }
  return ranks;
}

/// A dim of a parameter, or of a KV cache, split over the first axes of a list.
struct SplitDim {
  TensorId tensor = kNone;
  int dim = 0;
  std::vector<size_t> axes;
};

/// Warns of parameters that are replicated because a dim is not split over all axes of tp. `less`:
/// number of axes that split each of them.
void warn_of_whole(const Graph& graph, const Mesh& mesh, const std::vector<size_t>& tp,
                   const std::map<TensorId, size_t>& less) {
  if (graph.grads.empty() || less.empty()) return;
  const auto& [first, axes] = *less.begin();
  const int64_t over = ranks_of(mesh, std::span(tp).first(axes));
  const int64_t all = ranks_of(mesh, tp);
  log_warning(
      "plan.tp is {} and does not divide {} ({}){}: it is {}; the result is right, but ranks "
      "repeat work on it; a plan.tp that divides heads and widths shares it (docs/parallelism.md)",
      all, graph.tensor(first).name, to_string(graph.tensor(first).type),
      less.size() > 1 ? fmt::format(" and {} more parameters", less.size() - 1) : "",
      over == 1 ? "replicated on all ranks of tp"
                : fmt::format("split over {} ranks of tp, in {} copies", over, all / over));
}

/// Returns the number of outermost axes that split a dim: the largest for which every rank has an
/// index. If `follows`, the dim's blocks must match another dim's (a key head serves several query
/// heads), so it must divide evenly.
size_t axes_for(int64_t size, const Mesh& mesh, const std::vector<size_t>& axes, bool follows) {
  size_t number = axes.size();
  const auto fits = [&](int64_t ranks) { return follows ? size % ranks == 0 : size >= ranks; };
  while (!fits(ranks_of(mesh, std::span(axes).first(number)))) {
    --number;
  }
  return number;
}

/// Applications of forward ops to values: those of a graph, and behind them inner ones of
/// definitions: their steps stand for the op.
struct Applications {
  struct Application {
    const ops::Op* op;
    std::vector<int> in, out;
  };
  std::vector<TensorType> types;  ///< of the values
  std::vector<Application> list;
};
Applications forward_applications(const Graph& graph) {
  Applications made;
  for (const graph::Tensor& tensor : graph.tensors) {
    made.types.push_back(tensor.type);
  }
  for (const graph::Node& node : graph.nodes) {
    if (node.phase != graph::Phase::forward) continue;
    const ops::Op& op = ops::find(node.op);
    // Accumulators come last. They are added to the outputs, and have the same dims.
    const std::vector<int> inputs(node.in.begin(),
                                  node.in.begin() + static_cast<std::ptrdiff_t>(num_inputs(node)));
    size_t accumulator = inputs.size();
    for (size_t output = 0; output < node.out.size(); ++output) {
      if (!node.accumulate.contains(output)) continue;
      made.list.push_back({&ops::of(ops::Meaning::sum),
                           {node.in[accumulator++], node.out[output]},
                           {node.out[output]}});
    }
    std::vector<TensorType> in;
    for (TensorId id : inputs) {
      in.push_back(graph.tensor(id).type);
    }
    const ops::Decomposition decomposed = ops::decompose(op, node.attrs, in);
    if (decomposed.out.empty()) {
      made.list.push_back({&op, inputs, node.out});
      continue;
    }
    std::vector<int> value = inputs;
    value.resize(decomposed.types.size(), kNone);
    for (size_t i = 0; i < decomposed.out.size(); ++i) {
      value[static_cast<size_t>(decomposed.out[i])] = node.out[i];
    }
    for (size_t i = 0; i < value.size(); ++i) {
      if (value[i] != kNone) continue;
      value[i] = static_cast<int>(made.types.size());
      made.types.push_back(decomposed.types[i]);
    }
    for (const ops::Decomposition::Step& step : decomposed.steps) {
      Applications::Application application{step.op, {}, {}};
      for (int i : step.in) {
        application.in.push_back(value[static_cast<size_t>(i)]);
      }
      for (int i : step.out) {
        application.out.push_back(value[static_cast<size_t>(i)]);
      }
      made.list.push_back(std::move(application));
    }
  }
  return made;
}

/// Returns the dims of parameters that are inner to a block of the model, and are no dims of
/// tokens. From the product that makes such a dim to the product that sums over it, no op needs all
/// of it. So heads and the width of an MLP are inner; the hidden width is not, since norms need it
/// whole. They are split over the outermost axes of tp that may split all their parameters together
/// (axes_for). Experts are split over the axes for their widths. A KV cache is split as the heads
/// that it holds.
std::vector<SplitDim> inner_dims(const Graph& graph, const Mesh& mesh) {
  const std::vector<size_t> tp = axes_that(mesh, splits_parameters);
  const std::vector<size_t> widths = axes_that(mesh, splits_expert_widths);
  const auto [types, applications] = forward_applications(graph);
  UnitedDims united(types);
  for (const Applications::Application& application : applications) {
    united.add(*application.op, types, application.in, application.out);
  }
  std::set<int> left_out;
  std::map<int, size_t> divided;  // by united dim: number of axes that may split all its parameters
  const auto for_each_dim = [&](const auto& visit) {
    for (size_t id = 0; id < graph.tensors.size(); ++id) {
      for (int dim = 0; dim < static_cast<int>(types[id].dims.size()); ++dim) {
        visit(graph.tensors[id], types[id].dims[static_cast<size_t>(dim)],
              united.united(static_cast<int>(id), dim), static_cast<TensorId>(id), dim);
      }
    }
  };
  for_each_dim([&](const graph::Tensor& tensor, const graph::Dim& size, int all, TensorId, int) {
    if (tensor.kind == TensorKind::input) {
      left_out.insert(all);
    }
    if (tensor.kind != TensorKind::param) return;
    const bool follows = (united.marks_of(all) & UnitedDims::followed) != 0;
    const size_t number = axes_for(size, mesh, tensor.expert ? widths : tp, follows);
    const auto known = divided.emplace(all, number).first;
    known->second = std::min(known->second, number);
  });
  std::vector<SplitDim> dims;
  std::map<int, std::vector<size_t>> axes_of;  // by united dim
  std::map<TensorId, size_t> less;
  for_each_dim([&](const graph::Tensor& tensor, const graph::Dim& size, int all, TensorId id,
                   int dim) {
    if (tensor.kind != TensorKind::param || left_out.contains(all)) return;
    const uint8_t marks = united.marks(static_cast<int>(id), dim);
    if ((marks & UnitedDims::fixed) != 0 || (marks & UnitedDims::contracted) == 0) return;
    const std::vector<size_t>& axes = tensor.expert ? widths : tp;
    const size_t number = divided.at(all);
    if (number < axes.size() && tensor.expert) {
      fail("plan", "plan.etp is {}; expected at most {}, the size of dim {} of {}, which it splits",
           ranks_of(mesh, axes), int64_t{size}, dim, tensor.name);
    }
    // Key heads fewer than ranks: each of them on several ranks is intended, so there is no
    // warning.
    if (number < axes.size() && ranks_of(mesh, axes) % size != 0) {
      less.emplace(id, number);
    }
    axes_of[all] = {axes.begin(), axes.begin() + static_cast<std::ptrdiff_t>(number)};
    dims.push_back({id, dim, axes_of[all]});
  });
  for_each_dim([&](const graph::Tensor& tensor, const graph::Dim&, int all, TensorId id, int dim) {
    if (tensor.state == graph::StateKind::cache && axes_of.contains(all)) {
      dims.push_back({id, dim, axes_of[all]});
    }
  });
  warn_of_whole(graph, mesh, tp, less);
  return dims;
}

/// Returns whether a tensor is an input of a micro-batch that is split by token. All ranks have all
/// tokens if their number is a symbol, unless it is a multiple of the ranks.
bool is_split_by_token(const graph::Tensor& tensor, const Mesh& mesh) {
  if (!tensor.by_token()) return false;
  const graph::Dim& tokens = tensor.type.dims[0];
  return !tokens.symbolic() || tokens.divides_into(ranks_of(mesh, axes_that(mesh, splits_tokens)));
}

/// Layout that a tensor has by default. A KV cache is divided like the tokens of its sequences.
Layout default_layout(const graph::Tensor& tensor, const Mesh& mesh) {
  Layout layout;
  const bool split_by_token =
      is_split_by_token(tensor, mesh) || tensor.state == graph::StateKind::cache;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const std::string& name = mesh.axes[axis].name;
    if (mesh.axes[axis].size == 1) continue;
    if ((split_by_token && splits_tokens(name)) || (tensor.expert && splits_experts(name))) {
      layout.set(axis, Placement::split(0));
    }
  }
  return layout;
}

/// Gives optimizer states of their parameter's shape the parameter's layout.
void let_states_follow(const Graph& graph, std::vector<Layout>* layouts) {
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    const graph::Tensor& state = graph.tensors[id];
    if (state.state == graph::StateKind::optimizer &&
        state.type.dims == graph.tensor(state.of).type.dims) {
      (*layouts)[id] = (*layouts)[static_cast<size_t>(state.of)];
    }
  }
}

}  // namespace

std::vector<Layout> stored_layouts(const Graph& graph, const Mesh& mesh,
                                   const std::vector<std::string>& pins) {
  // Defaults first, then pins; states last, since they follow their parameters.
  std::vector<Layout> layouts;
  for (const graph::Tensor& tensor : graph.tensors) {
    layouts.push_back(default_layout(tensor, mesh));
  }
  std::map<TensorId, int> by_position;
  const std::vector<size_t> tp = axes_that(mesh, splits_parameters);
  if (!tp.empty()) {
    by_position = positional_dims(graph);
    for (const SplitDim& split : inner_dims(graph, mesh)) {
      for (size_t axis : split.axes) {
        layouts[static_cast<size_t>(split.tensor)].set(axis, Placement::split(split.dim));
      }
    }
  }
  for (const auto& [id, dim] : by_position) {
    for (size_t axis : tp) {
      layouts[static_cast<size_t>(id)].set(axis, Placement::split(dim));
    }
  }
  const std::set<TensorId> pinned = pin_stored(graph, mesh, pins, &layouts);
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    const graph::Tensor& tensor = graph.tensors[id];
    const auto known = by_position.find(static_cast<TensorId>(id));
    if (known == by_position.end() || pinned.contains(known->first)) continue;
    const std::string why = why_not(tensor, layouts[id], mesh);
    if (why.empty()) continue;
    fail("plan",
         "plan.tp is {}; expected at most {}, the size of dim {} of {}, which it splits; try "
         "plan.layouts: [{} B]",
         ranks_of(mesh, tp), int64_t{tensor.type.dims[static_cast<size_t>(known->second)]},
         known->second, tensor.name, tensor.name);
  }
  const bool splits = std::any_of(layouts.begin(), layouts.end(), [&](const Layout& layout) {
    return std::any_of(tp.begin(), tp.end(), [&](size_t axis) { return layout[axis].is_split(); });
  });
  if (!tp.empty() && !splits) {
    fail("plan", "plan.tp is {}, but no parameter is split over it; try plan.tp: 1",
         ranks_of(mesh, tp));
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
