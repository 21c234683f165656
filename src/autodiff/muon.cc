// SPDX-License-Identifier: Apache-2.0
// Muon (Jordan et al., kellerjordan.github.io/posts/muon; Liu et al., arXiv 2502.16982): the
// momentum of a matrix, orthogonalised (ops/muon.cc). One state per matrix. All that is no matrix
// of a block is updated by AdamW: vectors, embeddings, the head.
#include <algorithm>
#include <cmath>
#include <optional>

#include "autodiff/optimizer.h"
#include "base/error.h"
#include "graph/names.h"
#include "ops/op.h"

namespace hocket::autodiff {

namespace {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::TensorId;

constexpr double kA = 3.4445, kB = -4.775, kC = 2.0315;  // Jordan's coefficients
constexpr double kEps = 1e-7;

/// The matrices of a parameter: its first `each` dims number them, the next `rows` dims are the
/// rows of one, the others its columns.
struct Matrices {
  int each = 0, rows = 0;
};

/// Returns the letters of a node's operands; its accumulators have none.
ops::Letters letters_of(const Graph& graph, const Node& node) {
  const auto types = [&](const std::vector<TensorId>& ids, size_t count) {
    std::vector<graph::TensorType> list;
    for (size_t i = 0; i < count; ++i) {
      list.push_back(graph.tensor(ids[i]).type);
    }
    return list;
  };
  return ops::letters(ops::find(node.op), types(node.in, node.in.size() - node.accumulate.size()),
                      types(node.out, node.out.size()));
}

bool is_product(const ops::Op& op) {
  return op.family == ops::Family::products || op.family == ops::Family::expert_products;
}

bool has(const std::vector<std::string>& operands, char letter) {
  return std::any_of(operands.begin(), operands.end(), [&](const std::string& dims) {
    return dims.find(letter) != std::string::npos;
  });
}

/// Returns whether a product has a matrix for each index of the letter.
bool numbers_matrices(const ops::Letters& letters, char letter) {
  return has(letters.out, letter) &&
         std::all_of(letters.in.begin(), letters.in.end(), [&](const std::string& dims) {
           return dims.find(letter) != std::string::npos;
         });
}

/// Calls `visit(node, input)` for the forward nodes that read a tensor.
template <class Visit>
void for_each_reader(const Graph& graph, TensorId id, const Visit& visit) {
  for (const Node& node : graph.nodes) {
    if (node.phase != graph::Phase::forward) continue;
    for (size_t i = 0; i < node.in.size(); ++i) {
      if (node.in[i] == id) {
        visit(node, i);
      }
    }
  }
}

/// Returns whether a reader, perhaps behind further memory-bound ops, tells the parts along a dim
/// apart. It combines them, as gate and up, or multiplies each by its own matrix, as the adapters
/// of gate and up.
bool distinguishes_parts(const Graph& graph, TensorId id, size_t dim) {
  bool apart = false;
  for_each_reader(graph, id, [&](const Node& node, size_t input) {
    const ops::Op& op = ops::find(node.op);
    const bool product = is_product(op);
    if (!product && op.cost_class != ops::CostClass::memory) return;
    const ops::Letters letters = letters_of(graph, node);
    const bool operand = input < letters.in.size();
    if (letters.any || !operand || dim >= letters.in[input].size()) return;
    const char letter = letters.in[input][dim];
    if (product) {
      apart = apart || numbers_matrices(letters, letter);
      return;
    }
    const std::string_view split = op.layout.split;
    apart = apart || (!has(letters.out, letter) && split.find(letter) == std::string_view::npos);
    for (size_t output = 0; output < node.out.size(); ++output) {
      const size_t at = letters.out[output].find(letter);
      if (at != std::string::npos) {
        apart = apart || distinguishes_parts(graph, node.out[output], at);
      }
    }
  });
  return apart;
}

/// Returns the matrices by which a product multiplies: dims that all operands have number them,
/// dims of its result are rows, dims that it sums over are columns.
std::optional<Matrices> factor_of(const Graph& graph, const Node& product, size_t input) {
  const ops::Letters letters = letters_of(graph, product);
  const std::string& mine = letters.in[input];
  Matrices found;
  size_t dim = 0;
  const auto count = [&](bool in_other, bool in_out) {
    int dims = 0;
    for (; dim < mine.size(); ++dim, ++dims) {
      const char letter = mine[dim];
      bool other = false;
      for (size_t i = 0; i < letters.in.size(); ++i) {
        other = other || (i != input && letters.in[i].find(letter) != std::string::npos);
      }
      if (other != in_other || has(letters.out, letter) != in_out) break;
    }
    return dims;
  };
  found.each = count(true, true);
  found.rows = count(false, true);
  const int columns = count(true, false);
  if (dim != mine.size() || found.rows == 0 || columns == 0) return std::nullopt;
  // The dims of the result that its readers treat apart number matrices, too.
  const size_t first = letters.out[0].find(mine[static_cast<size_t>(found.each)]);
  if (found.rows > 1 && distinguishes_parts(graph, product.out[0], first)) {
    ++found.each;
    --found.rows;
  }
  return found;
}

/// Returns the matrices of a parameter of a block, which a linear layer multiplies by: itself, or a
/// cast of it. Nothing: it is none.
std::optional<Matrices> matrices_of(const Graph& graph, TensorId id) {
  const graph::Tensor& tensor = graph.tensor(id);
  if (tensor.layer < 0 || tensor.layer >= graph.num_layers) return std::nullopt;
  std::optional<Matrices> found;
  for_each_reader(graph, id, [&](const Node& node, size_t input) {
    if (found) return;
    if (is_product(ops::find(node.op))) {
      found = factor_of(graph, node, input);
    } else if (graph.tensor(node.out[0]).type.dims == tensor.type.dims && node.in.size() == 1) {
      found = matrices_of(graph, node.out[0]);
    }
  });
  return found;
}

/// Returns the factor on the learning rate by the shape of a matrix.
double ratio_of(const std::string& adjust, double rows, double columns) {
  if (adjust == "original") return std::sqrt(std::max(1.0, rows / columns));
  return 0.2 * std::sqrt(std::max(rows, columns));
}

void update_matrices(const Update& update, const Matrices& matrices) {
  const OptimizerConfig& config = update.config();
  const graph::Tensor& param = update.graph().tensor(update.param());
  const graph::Dims dims = param.type.dims;
  const int each = matrices.each;
  double rows = 1;
  double columns = 1;
  for (int dim = each; dim < std::ssize(dims); ++dim) {
    (dim < each + matrices.rows ? rows : columns) *= static_cast<double>(dims[dim]);
  }
  if (each > 0 && std::ssize(dims) != each + 2) {
    fail("autodiff", "muon: {} is {}, of which {} number matrices; expected two more", param.name,
         to_string(param.type), each);
  }
  const TensorId mean = update.state(graph::names::kMomentumOf);
  const TensorId direction =
      update.emit("muon_momentum",
                  {{"momentum", config.momentum}, {"nesterov", int64_t{config.nesterov ? 1 : 0}}},
                  {update.gradient(), mean, update.coef()})[1];
  graph::Attrs series{{"a", kA}, {"b", kB}, {"c", kC}, {"eps", kEps}, {"steps", config.ns_steps}};
  if (matrices.rows > 1) {
    series.set("rows", int64_t{matrices.rows});
  }
  const TensorId orthogonal = update.emit(each > 0 ? "orthogonalize_each" : "orthogonalize",
                                          std::move(series), {direction})[0];
  update.apply("muon",
               {{"weight_decay", update.weight_decay()},
                {"ratio", ratio_of(config.adjust_lr, rows, columns)}},
               orthogonal, {});
}

}  // namespace

std::vector<std::string> lr_adjustments() { return {"match_rms_adamw", "original"}; }

Optimizer optimizer_muon() {
  return {"muon",
          [](const Update& update) {
            if (const auto matrices = matrices_of(update.graph(), update.param())) {
              update_matrices(update, *matrices);
            } else {
              optimizer_adamw().update(update);
            }
          },
          optimizer_adamw().hyper};
}

}  // namespace hocket::autodiff
