// SPDX-License-Identifier: Apache-2.0
// A model with a symbolic number of tokens, on several ranks: proven symbolically, priced by the
// expected number, run at every value, equal to one rank.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "check/check.h"
#include "check/mutants/mutate.h"
#include "engine/params.h"
#include "engine/session.h"
#include "graph/names.h"
#include "kernels/backend.h"
#include "ops/build.h"
#include "parallel/lowering/lower.h"
#include "program/finalize.h"

namespace hocket::engine {
namespace {

using graph::DType;
using graph::TensorId;

constexpr int64_t kBound = 24, kDivisor = 4;

/// Returns an f64 model with a symbolic number of tokens: embedding, a layer of experts with a
/// residual, and a head.
graph::Graph model(int64_t divisor) {
  graph::Graph graph;
  graph.name = "tiny";
  graph.num_layers = 1;
  const graph::Dim tokens = graph.symbol({"tokens", kBound, 2 * kDivisor, divisor});
  const graph::Init init{graph::Init::Kind::normal, 0.5};
  const int64_t D = 8, E = 4, F = 6, V = 11, K = 2;
  const TensorId ids = graph.input(graph::names::kTokens, {DType::i32, {tokens}});
  const TensorId table = graph.param("table", {DType::f64, {V, D}}, -1, init);
  const auto apply = [&](const char* op, graph::Attrs attrs, std::vector<TensorId> in,
                         const std::string& name, int32_t layer = 0) {
    return ops::apply(graph, op, std::move(attrs), std::move(in), name, layer);
  };
  const TensorId x = apply("embedding", {{"vocab", V}}, {ids, table}, "x", -1)[0];
  const TensorId gate = graph.param("gate", {DType::f64, {E, D}}, 0, init);
  const TensorId scores = apply("linear", {}, {x, gate}, "scores")[0];
  const auto route = apply("router", {{"top_k", K}, {"norm", int64_t{1}}}, {scores}, "route");
  const auto plan = apply("route_plan", {{"num_experts", E}}, {route[1]}, "counts");
  const TensorId xs = apply("dispatch", {{"num_experts", E}}, {x, plan[1]}, "xs")[0];
  const TensorId up = graph.param("up", {DType::f64, {E, 2, F, D}}, 0, init, true);
  const TensorId down = graph.param("down", {DType::f64, {E, D, F}}, 0, init, true);
  const TensorId gu = apply("grouped_linear", {}, {xs, up, plan[0]}, "gu")[0];
  const TensorId h = apply("swiglu", {}, {gu, plan[0]}, "h")[0];
  const TensorId ys = apply("grouped_linear", {}, {h, down, plan[0]}, "ys")[0];
  const TensorId y = apply("combine", {}, {ys, route[0], plan[1]}, "y")[0];
  const TensorId sum = apply("add", {}, {x, y}, "sum")[0];
  graph.outputs.push_back(apply("linear", {}, {sum, table}, graph::names::kLogits, 1)[0]);
  graph.outputs.push_back(plan[0]);
  return graph;
}

Compiled compiled(const graph::Graph& graph, int64_t dp, int64_t ep, int64_t pp = 1) {
  parallel::Plan plan;
  plan.dp = dp;
  plan.ep = ep;
  plan.pp = pp;
  plan.num_micro_batches = 2;
  Compiled result;
  result.reference = graph;
  result.program = parallel::lower(graph, plan);
  program::finalize(result.program);
  return result;
}

std::vector<double> logits(Session& session, int64_t tokens) {
  Batch batch(2, tokens);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    batch.tokens[i] = static_cast<int32_t>((3 * i * i + i) % 11);
  }
  session.set_symbol("tokens", tokens);
  session.feed(batch);
  session.step();
  std::vector<double> all;
  for (int32_t mb : {0, 1}) {
    const std::vector<double> part = session.collect_as<double>(graph::names::kLogits, mb);
    EXPECT_EQ(part.size(), static_cast<size_t>(tokens * 11));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

/// A session of a program, with its ranks.
struct Running {
  explicit Running(Compiled compiled)
      : ranks(compiled.program.num_ranks(), kernels::cpu_backend(), {}),
        session(std::move(compiled), runtime::Store(ranks)) {
    initialise(session.graph(), session.program(), 5, session.store());
  }
  runtime::LocalRanks ranks;
  Session session;
};

/// Relative L2.
double root_distance(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  EXPECT_GT(size, 0);
  return std::sqrt(error / size);
}

/// Faults are refused, or harmless: an accepted program gives the same result at every value.
TEST(SymbolicTokens, FaultsAreRefusedOrHarmless) {
  const graph::Graph graph = model(kDivisor);
  Running one(compiled(graph, 1, 1));
  const std::vector<Compiled> good{compiled(graph, 2, 2), compiled(graph, 4, 2),
                                   compiled(graph, 2, 2, 2)};
  check::Checker checker(graph, 2);
  int refused = 0, accepted = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Compiled mutant = good[seed % good.size()];
    check::Mutation mutation;
    if (!check::mutate(mutant.program, seed, &mutation)) continue;
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << ": " << mutation.kind << ": " << mutation.text);
    if (!checker.check(mutant.program).ok()) {
      ++refused;
      continue;
    }
    ++accepted;
    Running running(std::move(mutant));
    for (int64_t tokens : {kDivisor, 3 * kDivisor, kBound}) {
      EXPECT_LE(root_distance(logits(running.session, tokens), logits(one.session, tokens)), 1e-10);
    }
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(accepted, 5);
  std::cout << refused << " refused, " << accepted << " accepted and run\n";
}

TEST(SymbolicTokens, EveryPlanEqualsOneRankAtEveryValue) {
  const graph::Graph graph = model(kDivisor);
  Running one(compiled(graph, 1, 1));
  struct Case {
    int64_t dp, ep, pp;
  };
  for (const Case& c :
       {Case{2, 1, 1}, Case{2, 2, 1}, Case{4, 2, 1}, Case{4, 4, 1}, Case{2, 2, 2}}) {
    SCOPED_TRACE(testing::Message() << "dp " << c.dp << " ep " << c.ep << " pp " << c.pp);
    Compiled made = compiled(graph, c.dp, c.ep, c.pp);
    const check::Verdict verdict = check::check(made.program, graph);
    ASSERT_TRUE(verdict.ok()) << to_text(verdict);
    ASSERT_FALSE(verdict.proved.empty());
    EXPECT_TRUE(program::parse_program(program::print(made.program)) == made.program);
    Running running(std::move(made));
    for (int64_t tokens = kDivisor; tokens <= kBound; tokens += kDivisor) {
      EXPECT_LE(root_distance(logits(running.session, tokens), logits(one.session, tokens)), 1e-12)
          << tokens << " tokens";
    }
  }
}

/// Every rank has all tokens if the number of ranks does not divide the divisor.
TEST(SymbolicTokens, MoreRanksThanTheDivisorAllowsDoNotSplitThem) {
  for (const auto& [divisor, dp] : {std::pair{2, 4}, {1, 2}}) {
    const engine::Compiled whole = compiled(model(divisor), dp, 1);
    EXPECT_TRUE(check::check(whole.program, whole.reference).ok());
    for (const program::Buffer& buffer : whole.program.classes[0].buffers) {
      if (buffer.kind != program::BufferKind::input || !buffer.type.symbolic()) continue;
      EXPECT_EQ(buffer.layout, graph::Layout{}) << buffer.name;
    }
  }
}

/// Work is priced for the expected number of tokens, memory for the bound.
TEST(SymbolicTokens, CostsCountWithTheExpected) {
  graph::Graph graph = model(kDivisor);
  const program::Program symbolic = compiled(graph, 2, 2).program;
  const auto fixed = [&](int64_t tokens) {
    graph::Graph numbers = graph;
    for (graph::Tensor& tensor : numbers.tensors) {
      tensor.type = tensor.type.at(std::vector{tokens});
    }
    numbers.symbols.clear();
    return compiled(numbers, 2, 2).program;
  };
  const program::Program expected = fixed(2 * kDivisor), bound = fixed(kBound);
  ASSERT_EQ(symbolic.classes[0].tasks.size(), expected.classes[0].tasks.size());
  for (size_t i = 0; i < symbolic.classes[0].tasks.size(); ++i) {
    const program::Kind& kind = symbolic.kind(symbolic.classes[0].tasks[i]);
    const program::Kind& same = expected.kind(expected.classes[0].tasks[i]);
    EXPECT_EQ(kind.flops, same.flops) << program::types_text(kind);
    EXPECT_EQ(kind.bytes, same.bytes) << program::types_text(kind);
    EXPECT_EQ(kind.workspace, bound.kind(bound.classes[0].tasks[i]).workspace);
  }
  EXPECT_EQ(symbolic.classes[0].arena_bytes, bound.classes[0].arena_bytes);
}

}  // namespace
}  // namespace hocket::engine
