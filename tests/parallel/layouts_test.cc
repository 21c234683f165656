// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Layouts over the whole graph: the search against exhaustive enumeration on small graphs, and the
// cases for which it exists.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>

#include "autodiff/autodiff.h"
#include "base/error.h"
#include "base/rng.h"
#include "check/check.h"
#include "ops/build.h"
#include "parallel/layouts/given_layouts.h"
#include "parallel/layouts/layout_cost.h"
#include "parallel/layouts/layout_problem.h"
#include "parallel/layouts/layouts.h"
#include "run/compile.h"
#include "tests/compare_util.h"

namespace hocket::parallel {
namespace {

using graph::DType;
using graph::Graph;
using graph::Mesh;
using graph::TensorId;

/// Returns a random sum of tables: over a tree of choices, or over random pairs and triples.
ChoiceProblem random_problem(Rng* rng, bool tree) {
  ChoiceProblem problem;
  const int64_t choices = rng->between(4, 8);
  for (int64_t i = 0; i < choices; ++i) {
    problem.values.push_back(rng->between(1, 4));
  }
  const auto add = [&](std::vector<ChoiceId> of) {
    CostTable table{std::move(of), {}};
    size_t entries = 1;
    for (ChoiceId choice : table.of) {
      entries *= problem.values[choice];
    }
    for (size_t i = 0; i < entries; ++i) {
      table.cost.push_back(static_cast<double>(rng->between(0, 50)));
    }
    problem.tables.push_back(std::move(table));
  };
  for (ChoiceId choice = 1; choice < choices; ++choice) {
    add({rng->below(choice), choice});
    for (int more = tree ? 0 : 2; more > 0 && choice > 1; --more) {
      const ChoiceId one = rng->below(choice), two = rng->below(choice);
      if (one != two) {
        add({one, two, choice});
      }
    }
  }
  return problem;
}

/// Visits all combinations of values.
template <class Visit>
void for_all(const std::vector<int32_t>& values, const Visit& visit) {
  std::vector<ChoiceId> of(values.size());
  std::iota(of.begin(), of.end(), ChoiceId());
  for_each_combination(of, values, visit);
}

double least(const ChoiceProblem& problem) {
  double least = kInfinity;
  for_all(problem.values, [&](const std::vector<int32_t>& value) {
    least = std::min(least, cost_of(problem, value));
  });
  return least;
}

TEST(LayoutSearch, ExactWhereTablesStaySmall) {
  Rng rng(3);
  for (int draw = 0; draw < 200; ++draw) {
    const ChoiceProblem problem = random_problem(&rng, draw % 2 == 0);
    const std::vector<int32_t> start(problem.values.size(), 0);
    const Chosen chosen = choose(problem, start);
    EXPECT_TRUE(chosen.exact);
    EXPECT_EQ(chosen.cost, least(problem)) << "draw " << draw;
    EXPECT_EQ(chosen.cost, cost_of(problem, chosen.value));
  }
}

TEST(LayoutSearch, ComesCloseWhereTablesAreLarge) {
  // Tables of at most 16 entries: trees are still exact; otherwise some choices are fixed.
  Rng rng(4);
  double excess = 0;
  int held = 0;
  int optimal = 0;
  for (int draw = 0; draw < 200; ++draw) {
    const bool tree = draw % 2 == 0;
    const ChoiceProblem problem = random_problem(&rng, tree);
    const std::vector<int32_t> start(problem.values.size(), 0);
    const Chosen chosen = choose(problem, start, 16);
    const double best = least(problem);
    EXPECT_LE(chosen.cost, cost_of(problem, start));
    EXPECT_TRUE(!tree || chosen.exact);
    EXPECT_TRUE(!chosen.exact || chosen.cost == best);
    if (chosen.exact) continue;
    ++held;
    optimal += chosen.cost == best ? 1 : 0;
    excess += chosen.cost / best - 1;
  }
  EXPECT_GT(held, 20);
  EXPECT_LT(excess / held, 0.03);
  fmt::print("{} irreducible problems: {} solved, {:.2f} % above the minimum on average\n", held,
             optimal, 100 * excess / held);
}

struct Drawn {
  Graph graph;
  Mesh mesh;
  int64_t micro_batches = 1;
};

/// Draws a small model on up to two axes: an embedding, up to three groups of norms, products and
/// sums, a loss, and all gradients.
Drawn draw_graph(Rng* rng) {
  const auto one_of = [&](std::vector<int64_t> list) { return list[rng->below(list.size())]; };
  const auto coin = [&] { return rng->below(2) == 0; };
  const std::vector<std::string> meshes{"edp:4", "cp:2", "tp:2", "edp:2 tp:2", "edp:2 ep:2"};
  Drawn drawn;
  drawn.mesh = graph::parse_mesh(meshes[rng->below(meshes.size())]);
  drawn.micro_batches = one_of({1, 1, 2, 8});
  Graph& graph = drawn.graph;
  graph.num_layers = 1;
  const int64_t tokens = one_of({16, 64, 1024});
  int64_t width = one_of({8, 64, 512});
  const auto input = [&](const char* name, DType dtype) {
    return graph.input(name, {dtype, {tokens}});
  };
  const auto param = [&](std::vector<graph::Dim> dims) {
    return graph.param(fmt::format("w{}", graph.tensors.size()), {DType::f32, std::move(dims)}, 0,
                       {});
  };
  const auto apply = [&](const char* op, graph::Attrs attrs, std::vector<TensorId> in) {
    const std::string name = fmt::format("{}{}", op, graph.tensors.size());
    return ops::apply(graph, op, std::move(attrs), std::move(in), name, 0)[0];
  };
  const int64_t vocab = one_of({64, 4096, 65536});
  TensorId hidden =
      apply("embedding", {{"vocab", vocab}}, {input("ids", DType::i32), param({vocab, width})});
  for (int64_t more = rng->between(0, 3); more > 0; --more) {
    const TensorId before = hidden;
    if (coin()) {
      hidden = apply("rms_norm", {{"eps", 1e-6}}, {hidden, param({width})});
    }
    const int64_t wide = one_of({8, 64, 2048});
    hidden = apply("linear", {}, {hidden, param({wide, width})});
    if (coin()) {
      hidden = apply("linear", {}, {hidden, param({width, wide})});
      hidden = coin() ? apply("add", {}, {before, hidden}) : hidden;
    } else {
      width = wide;
    }
  }
  const int64_t classes = one_of({64, 1024});
  const TensorId scale = graph.input("scale", {DType::f64, {1}}, true);
  graph.losses.push_back(
      apply("linear_cross_entropy", {{"grad", int64_t{1}}},
            {hidden, param({classes, width}), input("targets", DType::i32), scale}));
  autodiff::differentiate(graph);
  autodiff::append_grad_outputs(graph);
  return drawn;
}

/// Costs of a graph's layouts: node by node, as chosen, and the minimum.
struct Found {
  double by_node = 0, chosen = 0, least = 0;
  int64_t tried = 0;
};

/// Tries all combinations of signatures of all nodes on all axes, if there are at most `most`.
std::optional<Found> try_all(const Drawn& drawn, int64_t most) {
  const LayoutsGiven given{stored_layouts(drawn.graph, drawn.mesh, {}), {}, {}, {}};
  Layouts first;
  try {
    first = layouts_by_node(drawn.graph, drawn.mesh, given);
  } catch (const Error&) {
    return std::nullopt;  // a chain of products with more splits than the rules can follow
  }
  const Graph& graph = first.decomposed ? *first.decomposed : drawn.graph;
  LayoutsGiven start = given;
  start.stored = first.tensor;
  std::vector<AxisProblem> axes;
  struct NodeAxis {
    size_t node, axis;
  };
  std::vector<NodeAxis> places;
  std::vector<int32_t> values;
  double combinations = 1;
  for (size_t axis = 0; axis < drawn.mesh.axes.size(); ++axis) {
    LayoutRules rules(graph, drawn.mesh, start);
    axes.push_back(axis_problem(&rules, first, axis, drawn.micro_batches));
    for (size_t node = 0; node < graph.nodes.size(); ++node) {
      const ChoiceId choice = axes.back().choice_of[node];
      if (choice == graph::kNone) continue;
      places.push_back({node, axis});
      values.push_back(axes.back().problem.values[choice]);
      combinations *= values.back();
    }
  }
  if (combinations > static_cast<double>(most) || places.empty()) return std::nullopt;
  const auto cost = [&](const Layouts& layouts) {
    return layout_cost(graph, drawn.mesh, layouts, drawn.micro_batches).total;
  };
  Found found;
  found.by_node = cost(first);
  found.chosen = cost(choose_layouts(drawn.graph, drawn.mesh, given, drawn.micro_batches));
  found.least = kInfinity;
  for_all(values, [&](const std::vector<int32_t>& value) {
    std::vector<NodeLayouts> signatures = first.node;
    for (size_t i = 0; i < places.size(); ++i) {
      const auto [node, axis] = places[i];
      const auto choice = static_cast<size_t>(axes[axis].choice_of[node]);
      signatures[node].signature[axis] =
          axes[axis].signatures[choice][static_cast<size_t>(value[i])];
    }
    ++found.tried;
    if (const auto layouts = layouts_with(graph, drawn.mesh, given, signatures)) {
      found.least = std::min(found.least, cost(*layouts));
    }
  });
  return found;
}

/// Every tensor that a decomposition adds to the graph is made by one of its nodes.
TEST(LayoutSearch, AllTensorsOfTheChosenGraphAreUsed) {
  Rng rng(1);
  int decomposed = 0;
  for (int graphs = 0; graphs < 200; ++graphs) {
    const Drawn drawn = draw_graph(&rng);
    const LayoutsGiven given{stored_layouts(drawn.graph, drawn.mesh, {}), {}, {}, {}};
    Layouts layouts;
    try {
      layouts = layouts_by_node(drawn.graph, drawn.mesh, given);
    } catch (const Error&) {
      continue;  // a chain of products with more splits than the rules can follow
    }
    if (!layouts.decomposed) continue;
    ++decomposed;
    const Graph& graph = *layouts.decomposed;
    for (size_t id = drawn.graph.tensors.size(); id < graph.tensors.size(); ++id) {
      const bool made = std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const auto& node) {
        return std::count(node.out.begin(), node.out.end(), TensorId(static_cast<int32_t>(id))) > 0;
      });
      EXPECT_TRUE(made) << graph.tensors[id].name << " of graph " << graphs;
    }
  }
  EXPECT_GT(decomposed, 5);
}

/// The cost of layouts counts the way of gradients into the layout in which they are kept.
TEST(LayoutSearch, ShardedGradientsCostBytesOfEachMicroBatch) {
  const engine::Run run = engine::parse_run(
      "model: {config: {model_type: llama, vocab_size: 64, hidden_size: 16, "
      "num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 2, head_dim: 8, "
      "intermediate_size: 32}}\ntrain: {global_batch: 8, seq_len: 8}\n"
      "plan: {dp: 2, micro_batch: 1}\n",
      "test", {});
  const Graph graph = engine::compile(run).reference;
  const Mesh mesh = run.plan.mesh();
  const auto bytes = [&](Shard grads) {
    Sharding sharding;
    sharding.grads = grads;
    const LayoutsGiven given{stored_layouts(graph, mesh, {}), {}, sharding, {}};
    const Layouts layouts = layouts_by_node(graph, mesh, given);
    return layout_cost(graph, mesh, layouts, 4).bytes_per_micro_batch;
  };
  EXPECT_LT(bytes(Shard::none), 64);  // the loss alone
  EXPECT_GT(bytes(Shard::all), 1000);
}

TEST(LayoutsOfAGraph, ComeCloseToTheMinimumOnSmallGraphs) {
  const int kGraphs = static_cast<int>(test::fewer(200));
  const char* const given = std::getenv("HOCKET_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : 1;
  Rng rng(seed);
  double sum = 0, most = 0, sum_by_node = 0, most_by_node = 0;
  int exact = 0, exact_by_node = 0;
  int64_t tried = 0;
  for (int graphs = 0; graphs < kGraphs;) {
    const Drawn drawn = draw_graph(&rng);
    const std::optional<Found> found = try_all(drawn, 2048);
    if (!found) continue;
    ++graphs;
    EXPECT_GE(found->chosen, found->least * (1 - 1e-12));
    EXPECT_LE(found->chosen, found->by_node);
    const auto gap = [&](double cost) { return std::max(cost / found->least - 1, 0.0); };
    EXPECT_TRUE(drawn.mesh.axes.size() > 1 || gap(found->chosen) < 1e-9) << print(drawn.graph);
    sum += gap(found->chosen);
    most = std::max(most, gap(found->chosen));
    exact += gap(found->chosen) < 1e-9 ? 1 : 0;
    sum_by_node += gap(found->by_node);
    most_by_node = std::max(most_by_node, gap(found->by_node));
    exact_by_node += gap(found->by_node) < 1e-9 ? 1 : 0;
    tried += found->tried;
  }
  fmt::print(
      "seed {}, {} graphs, {} layouts tried: over the whole graph {} exact, {:.3f} % above the "
      "minimum on average, {:.2f} % at most; node by node {} exact, {:.3f} %, {:.2f} %\n",
      seed, kGraphs, tried, exact, 100 * sum / kGraphs, 100 * most, exact_by_node,
      100 * sum_by_node / kGraphs, 100 * most_by_node);
  EXPECT_GE(exact, kGraphs * 95 / 100);
  EXPECT_LT(sum / kGraphs, 0.002);
  EXPECT_LT(most, 0.1);
}

/// Compiles and proves the training of a dense model with a large vocabulary.
program::Program proven(const std::string& plan, bool tied = false, int64_t sequences = 4) {
  const engine::Run run = engine::parse_run(
      fmt::format("model: {{config: {{model_type: llama, vocab_size: 16384, hidden_size: 64, "
                  "num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 2, "
                  "head_dim: 32, intermediate_size: 64, tie_word_embeddings: {}}}}}\n"
                  "train: {{global_batch: {}, seq_len: 64}}\n"
                  "plan: {{{}, threads_per_rank: 1}}\n",
                  tied, sequences, plan),
      "layouts", {});
  engine::Compiled made = engine::compile(run);
  const check::Verdict verdict = check::check(made.program, made.reference);
  EXPECT_TRUE(verdict.ok()) << plan << "\n" << to_text(verdict);
  return std::move(made.program);
}

/// Returns the layout of the first output of the first task of an op.
std::string layout_made(const program::Program& program, const std::string& op) {
  const program::RankClass& cls = program.classes[program::ClassId(0)];
  for (const program::Task& task : cls.tasks) {
    if (program.kind(task).op == op) {
      return to_string(cls.buffers[task.out[0]].layout, program.roles[0].mesh);
    }
  }
  return "none";
}

TEST(LayoutsOfAGraph, GatherTokensWhereTheEmbeddingGradientIsLarger) {
  const auto embedding = [](const program::Program& program) {
    return layout_made(program, "embedding_dw");
  };
  EXPECT_EQ(embedding(proven("dp: 4")), "B");
  EXPECT_EQ(embedding(proven("dp: 4, ep: 1, shard: {optimizer: all}")), "B");
  EXPECT_EQ(embedding(proven("dp: 2, tp: 2, micro_batch: 2")), "tp:S0");
  EXPECT_EQ(embedding(proven("dp: 2, cp: 2, micro_batch: 2")), "B");
  // A reduction once per step is cheaper than gathering the tokens of many micro-batches. The
  // gradient of a table that the head also uses is reduced in any case.
  EXPECT_EQ(embedding(proven("dp: 4", false, 512)), "edp:P");
  EXPECT_EQ(embedding(proven("dp: 4", true)), "edp:P");
}

/// Weights cast to 8 bits stay where their parameters are. Tokens move for a product, however many
/// replicas have tokens.
TEST(LayoutsOfAGraph, GatherNoWeightsOf8Bits) {
  const engine::Run run = engine::parse_run(
      "model: {float8: true, dtype: bf16, config: {model_type: llama, vocab_size: 64, "
      "hidden_size: 64, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 2, "
      "head_dim: 32, intermediate_size: 1024}}\n"
      "train: {global_batch: 8, seq_len: 256}\n"
      "plan: {dp: 8, tp: 2, sequence_parallel: true, micro_batch: 1, threads_per_rank: 1}\n",
      "layouts", {});
  const engine::Compiled made = engine::compile(run);
  int gathered = 0;
  for (const program::Task& task : made.program.classes[program::ClassId(0)].tasks) {
    const program::Kind& kind = made.program.kind(task);
    EXPECT_NE(kind.op, "resplit");
    if (kind.op != "all_gather" || graph::bits_of(kind.out[0].dtype) != 8) continue;
    ++gathered;
    EXPECT_EQ(kind.out[0].dims, (std::vector<graph::Dim>{256, 64}));
  }
  EXPECT_GT(gathered, 0);
}

/// A norm over all heads does not keep heads from being split: ranks sum a number per token.
TEST(LayoutsOfAGraph, SplitHeadsThatANormReads) {
  constexpr int64_t kTokens = 64, kWidth = 32, kHeads = 4, kEach = 8, kVocab = 64;
  Graph graph;
  graph.num_layers = 1;
  const auto param = [&](const char* name, std::vector<graph::Dim> dims) {
    return graph.param(name, {DType::f32, std::move(dims)}, 0, {});
  };
  const auto apply = [&](const char* op, graph::Attrs attrs, std::vector<TensorId> in) {
    return ops::apply(graph, op, std::move(attrs), std::move(in), op, 0)[0];
  };
  const TensorId ids = graph.input("ids", {DType::i32, {kTokens}});
  const TensorId hidden =
      apply("embedding", {{"vocab", kVocab}}, {ids, param("embed", {kVocab, kWidth})});
  const TensorId in = param("in", {kHeads, kEach, kWidth}), norm = param("norm", {kHeads, kEach}),
                 out = param("out", {kWidth, kHeads, kEach});
  const TensorId heads = apply("linear", {}, {hidden, in});
  const TensorId normed = apply("rms_norm", {{"eps", 1e-6}, {"dims", int64_t{2}}}, {heads, norm});
  const TensorId sum = apply("add", {}, {hidden, apply("linear", {}, {normed, out})});
  const TensorId last = apply("rms_norm", {{"eps", 1e-6}}, {sum, param("last", {kWidth})});
  graph.losses.push_back(
      apply("linear_cross_entropy", {{"grad", int64_t{1}}},
            {last, param("head", {kVocab, kWidth}), graph.input("targets", {DType::i32, {kTokens}}),
             graph.input("scale", {DType::f64, {1}}, true)}));
  autodiff::differentiate(graph);
  autodiff::append_grad_outputs(graph);
  const Mesh mesh = graph::parse_mesh("tp:2");
  const LayoutsGiven given{stored_layouts(graph, mesh, {}), {}, {}, {}};
  const auto stored = [&](TensorId id) {
    return to_string(given.stored[static_cast<size_t>(id)], mesh);
  };
  EXPECT_EQ(stored(in), "tp:S0");
  EXPECT_EQ(stored(norm), "tp:S0");
  EXPECT_EQ(stored(out), "tp:S1");
  const Layouts layouts = choose_layouts(graph, mesh, given, 1);
  ASSERT_TRUE(layouts.decomposed);
  std::map<std::string, int> count;
  for (const graph::Node& node : layouts.decomposed->nodes) {
    ++count[node.op];
  }
  EXPECT_EQ(count["row_normed"], 1);
  EXPECT_EQ(count["row_normed_bwd"], 1);
  EXPECT_EQ(count["rms_norm"], 1);  // over the width, which is not split
  EXPECT_EQ(to_string(layouts.tensor[static_cast<size_t>(normed)], mesh), "tp:S1");
}

}  // namespace
}  // namespace hocket::parallel
