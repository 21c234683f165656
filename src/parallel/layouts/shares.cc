// SPDX-License-Identifier: Apache-2.0
#include "parallel/layouts/shares.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/stop.h"
#include "parallel/plan.h"

namespace hocket::parallel {

using graph::Graph;
using graph::Layout;
using graph::Mesh;
using graph::TensorId;
using graph::TensorKind;
using graph::TensorType;

namespace {

int64_t num_blocks(const std::vector<int32_t>& axes, const Mesh& mesh) {
  int64_t blocks = 1;
  for (int32_t axis : axes) {
    blocks *= mesh.axes[static_cast<size_t>(axis)].size;
  }
  return blocks;
}

/// Cuts every block evenly into one part per rank of the axis.
std::vector<int64_t> cut_again(const std::vector<int64_t>& blocks, int64_t ranks) {
  std::vector<int64_t> parts;
  for (int64_t block : blocks) {
    for (int64_t number = 0; number < ranks; ++number) {
      parts.push_back(graph::share(block, ranks, number).length);
    }
  }
  return parts;
}

/// Cuts every block in proportion to the shares.
std::vector<int64_t> cut_as_given(const std::vector<int64_t>& blocks,
                                  const std::vector<int64_t>& shares) {
  std::vector<int64_t> parts;
  for (int64_t block : blocks) {
    const std::vector<int64_t> cut = shares_of(block, shares);
    parts.insert(parts.end(), cut.begin(), cut.end());
  }
  return parts;
}

/// Returns the sizes of blocks of `size` indices, or nothing if they are even (graph::share).
std::vector<int64_t> unless_even(std::vector<int64_t> sizes, int64_t size) {
  const int64_t blocks = std::ssize(sizes);
  for (int64_t number = 0; number < blocks; ++number) {
    if (sizes[static_cast<size_t>(number)] != graph::share(size, blocks, number).length) {
      return sizes;
    }
  }
  return {};
}

}  // namespace

Shares::Shares(const Graph& graph, const Mesh& mesh, TokenShares given)
    : mesh_(mesh), given_(std::move(given)), of_params_(graph.tensors.size(), false) {
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    const graph::Tensor& tensor = graph.tensors[id];
    const bool made_at_end =
        tensor.producer != graph::kNone &&
        graph.nodes[static_cast<size_t>(tensor.producer)].phase == graph::Phase::optimizer;
    of_params_[id] =
        tensor.kind == TensorKind::param || tensor.kind == TensorKind::state || made_at_end;
    if (tensor.by_token() && !tensor.type.dims[0].symbolic()) {
      tokens_ = tensor.type.dims[0];
    }
  }
  for (const graph::ParamGrad& grad : graph.grads) {
    for (TensorId id : grad.contributions) {
      of_params_[static_cast<size_t>(id)] = true;
    }
  }
}

bool Shares::is_data_axis(int32_t axis) const {
  const std::string& name = mesh_.axes[static_cast<size_t>(axis)].name;
  return splits_tokens(name) && !splits_sequences(name);
}

bool Shares::is_context_axis(int32_t axis) const {
  return splits_sequences(mesh_.axes[static_cast<size_t>(axis)].name);
}

/// Returns whether the dim is the tokens of a micro-batch, split over ranks with different
/// sequences. Tokens are dim 0 of a tensor that is neither rows of experts nor counts of such rows.
bool Shares::may_be_tokens(const Graph& graph, TensorId id, int dim,
                           const std::vector<int32_t>& axes) const {
  const TensorType& type = graph.tensor(id).type;
  const bool counts = type.dtype == graph::DType::i64 && type.dims.size() == 1 &&
                      graph.tensor(id).kind == TensorKind::activation;
  if (dim != 0 || type.routed() || counts || type.dims[0] != tokens_) return false;
  const bool of_param = static_cast<size_t>(id) < of_params_.size()
                            ? of_params_[static_cast<size_t>(id)]
                            : graph.tensor(id).kind != TensorKind::activation;
  return !of_param && std::any_of(axes.begin(), axes.end(), [&](int32_t axis) {
    return is_data_axis(axis) || (!given_.along_cp.empty() && is_context_axis(axis));
  });
}

std::vector<int64_t> Shares::sizes_of_tokens(const std::vector<int32_t>& axes) const {
  // Cut the samples of every data-parallel rank among its ranks of cp and tp, axis by axis. A block
  // then has the sum over the ranks with its coordinates on `axes`.
  std::vector<int32_t> all;
  int64_t data_ranks = 1;
  std::vector<int32_t> inside;
  for (int32_t axis = 0; std::cmp_less(axis, mesh_.axes.size()); ++axis) {
    const graph::Axis& ranks = mesh_.axes[static_cast<size_t>(axis)];
    if (is_data_axis(axis)) {
      all.push_back(axis);
      data_ranks *= ranks.size;
    } else if (ranks.name != kStageAxis) {
      inside.push_back(axis);
    }
  }
  std::vector<int64_t> parts = given_.samples;
  if (parts.empty()) {
    parts.assign(static_cast<size_t>(data_ranks), 1);
  }
  const int64_t samples = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  for (int64_t& part : parts) {
    part *= tokens_ / samples;
  }
  if (!given_.along_cp.empty()) {
    parts = cut_as_given(parts, given_.along_cp);
  }
  for (int32_t axis : inside) {
    // The axes of cp come first and together have one rank per share.
    const bool is_cut = !given_.along_cp.empty() && is_context_axis(axis);
    parts = is_cut ? parts : cut_again(parts, mesh_.axes[static_cast<size_t>(axis)].size);
    all.push_back(axis);
  }
  std::vector<int64_t> sizes(static_cast<size_t>(num_blocks(axes, mesh_)), 0);
  auto part = parts.begin();
  graph::for_each_coords(mesh_, all, [&](const std::vector<int32_t>& coords) {
    int64_t block = 0;
    for (int32_t axis : axes) {
      const auto place = static_cast<size_t>(axis);
      block = block * mesh_.axes[place].size + coords[place];
    }
    sizes[static_cast<size_t>(block)] += *part++;
  });
  return sizes;
}

/// Returns the number of ranks that may have parts of a micro-batch's tokens.
int64_t Shares::ranks_of_tokens() const {
  int64_t ranks = 1;
  for (const graph::Axis& axis : mesh_.axes) {
    ranks *= axis.name == kStageAxis ? 1 : axis.size;
  }
  return ranks;
}

std::vector<int64_t> Shares::sizes(const Graph& graph, TensorId id, int dim,
                                   const std::vector<int32_t>& axes) const {
  const graph::Dim& size = graph.tensor(id).type.dims[static_cast<size_t>(dim)];
  if (axes.empty() || size.symbolic()) return {};
  // If all ranks have equally many tokens, every sum of shares is even, too.
  const bool even = size % num_blocks(axes, mesh_) == 0;
  if (even && !are_given() && tokens_ % ranks_of_tokens() == 0) return {};
  const bool of_rows = graph.tensor(id).type.routed() && dim == 1;
  if (of_rows || may_be_tokens(graph, id, dim, axes))
    return unless_even(sizes_of_tokens(axes), size);
  if (even) return {};
  std::vector<int64_t> blocks{size};
  for (int32_t axis : axes) {
    blocks = cut_again(blocks, mesh_.axes[static_cast<size_t>(axis)].size);
  }
  return unless_even(std::move(blocks), size);
}

Layout Shares::given(const Graph& graph, TensorId id, Layout layout) const {
  const int dims = static_cast<int>(graph.tensor(id).type.dims.size());
  for (int dim = 0; dim < dims; ++dim) {
    layout.give(dim, sizes(graph, id, dim, layout.axes_of(dim)));
  }
  return layout;
}

void Shares::give(const Graph& graph, Layouts* layouts) const {
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    const auto tensor = static_cast<TensorId>(id);
    layouts->tensor[id] = given(graph, tensor, layouts->tensor[id]);
    layouts->storage[id] = given(graph, tensor, layouts->storage[id]);
  }
  for (size_t index = 0; index < graph.grads.size(); ++index) {
    layouts->update[index] = given(graph, graph.grads[index].param, layouts->update[index]);
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const graph::Node& node = graph.nodes[n];
    for (size_t i = 0; i < node.in.size(); ++i) {
      layouts->node[n].in[i] = given(graph, node.in[i], layouts->node[n].in[i]);
    }
  }
}

namespace {

/// A dim that is cut into blocks of different sizes: its size, the axes, the sizes.
using Uneven = std::tuple<int64_t, std::vector<int32_t>, std::vector<int64_t>>;

void note_uneven(const TensorType& type, const Layout& layout, const Mesh& mesh,
                 std::set<Uneven>* found) {
  for (size_t i = 0; i < type.dims.size(); ++i) {
    const int dim = static_cast<int>(i);
    const std::vector<int32_t> axes = layout.axes_of(dim);
    const int64_t blocks = num_blocks(axes, mesh);
    const bool given = !layout.sizes_of(dim).empty();
    if (type.dims[i].symbolic() || (!given && type.dims[i] % blocks == 0)) continue;
    std::vector<int64_t> sizes;
    for (int64_t number = 0; number < blocks; ++number) {
      sizes.push_back(layout.block(dim, type.dims[i], blocks, number).length);
    }
    found->emplace(type.dims[i], axes, std::move(sizes));
  }
}

}  // namespace

std::vector<std::vector<int32_t>> size_boundaries(const Graph& graph, const Layouts& layouts,
                                                  const Mesh& mesh) {
  // Collect every uneven cut of a dim once. Then compare, axis by axis, blocks that are neighbours
  // on it, at all coordinates of the other axes.
  std::set<Uneven> found;
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    stop_if_asked();
    note_uneven(graph.tensors[id].type, layouts.tensor[id], mesh, &found);
    note_uneven(graph.tensors[id].type, layouts.storage[id], mesh, &found);
  }
  for (size_t index = 0; index < graph.grads.size(); ++index) {
    note_uneven(graph.tensor(graph.grads[index].param).type, layouts.update[index], mesh, &found);
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (size_t i = 0; i < graph.nodes[n].in.size(); ++i) {
      note_uneven(graph.tensor(graph.nodes[n].in[i]).type, layouts.node[n].in[i], mesh, &found);
    }
  }
  std::vector<std::set<int32_t>> differing(mesh.axes.size());
  for (const auto& [size, axes, sizes] : found) {
    size_t stride = sizes.size();  // between blocks that are neighbours on the axis
    for (int32_t axis : axes) {
      const auto ranks = static_cast<size_t>(mesh.axes[static_cast<size_t>(axis)].size);
      stride /= ranks;
      for (size_t block = 0; block + stride < sizes.size(); ++block) {
        const size_t at = block / stride % ranks;
        if (at + 1 < ranks && sizes[block] != sizes[block + stride]) {
          differing[static_cast<size_t>(axis)].insert(static_cast<int32_t>(at));
        }
      }
    }
  }
  std::vector<std::vector<int32_t>> result;
  for (const std::set<int32_t>& behind : differing) {
    result.emplace_back(behind.begin(), behind.end());
  }
  return result;
}

}  // namespace hocket::parallel
