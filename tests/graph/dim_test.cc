// SPDX-License-Identifier: Apache-2.0
// Symbols among dims: equality, splitting and joining, values.
#include "graph/dim.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "graph/graph.h"
#include "graph/layout.h"

namespace hocket::graph {
namespace {

TEST(Dim, EqualsOnlyTheSamePartOfTheSameSymbol) {
  const Dim tokens = Dim::of(0, 64, 1, 8), same = Dim::of(0, 64, 1, 8);
  EXPECT_EQ(tokens, same);
  EXPECT_NE(tokens, Dim::of(1, 64, 1, 8));
  EXPECT_NE(tokens, Dim::of(0, 64, 2, 8));
  EXPECT_NE(tokens, Dim::of(0, 64, 1, 4));
  EXPECT_NE(tokens, Dim(64));
  EXPECT_NE(tokens, 64);
  EXPECT_EQ(Dim(64), 64);
  EXPECT_EQ(int64_t{tokens}, 64);
  EXPECT_GT(tokens, 63);
  // The result of arithmetic is a number.
  EXPECT_NE(Dim(tokens * 1), tokens);
  EXPECT_FALSE(Dim(tokens + 0).symbolic());
}

TEST(Dim, SplitsOnlyIntoDivisorsOfItsSymbol) {
  const uint64_t seed = 3;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  int split = 0;
  for (int i = 0; i < 2000; ++i) {
    const int64_t divisor = static_cast<int64_t>(1 + rng.below(48));
    const int64_t bound = divisor * static_cast<int64_t>(1 + rng.below(9));
    const int64_t n = static_cast<int64_t>(1 + rng.below(12));
    const Dim whole = Dim::of(2, bound, 1, divisor);
    Dim part = whole;
    if (divisor % n != 0) {
      EXPECT_FALSE(whole.divides_into(n));
      EXPECT_THROW(part /= n, Error);
      continue;
    }
    ++split;
    EXPECT_TRUE(whole.divides_into(n));
    part /= n;
    EXPECT_EQ(part.parts(), n);
    // Every value that the symbol can have is n parts of it.
    for (int64_t value = divisor; value <= bound; value += divisor) {
      const std::vector<int64_t> values{0, 0, value};
      EXPECT_EQ(part.at(values) * n, whole.at(values));
      EXPECT_LE(part.at(values), int64_t{part});
    }
    EXPECT_EQ(parse_dim(to_string(part)), part);
    EXPECT_THROW(part *= n + 1, Error);
    part *= n;
    EXPECT_EQ(part, whole);
  }
  EXPECT_GT(split, 200);
}

TEST(Symbol, ATableRefusesInvalidSymbolsAndValues) {
  Graph graph;
  const Dim tokens = graph.symbol({"tokens", 64, 16, 8});
  EXPECT_EQ(to_string(tokens), "s0:64%8");
  EXPECT_EQ(to_string(graph.symbol({"cache", 100, 50, 1})), "s1:100");
  for (const Symbol& bad : {Symbol{"tokens", 64, 1, 1}, Symbol{"", 64, 1, 1}, Symbol{"a", 0, 1, 1},
                            Symbol{"a", 60, 1, 8}, Symbol{"a", 64, 65, 1}, Symbol{"a", 64, 0, 1},
                            Symbol{"a", 64, 1, 0}}) {
    EXPECT_THROW(graph.symbol(bad), Error) << to_string(bad);
  }
  expect_value(graph.symbols[0], 8);
  expect_value(graph.symbols[0], 64);
  for (int64_t value : {0, -8, 4, 9, 72}) {
    EXPECT_THROW(expect_value(graph.symbols[0], value), Error) << value;
  }
}

TEST(Symbol, TypesAgreeWithTheirTable) {
  Graph graph;
  const Dim tokens = graph.symbol({"tokens", 64, 16, 8});
  const Mesh mesh{{{"dp", 4}}};
  const TensorType type{DType::f32, {tokens, 3}};
  const TensorType local = local_type(type, parse_layout("dp:S0", mesh), mesh);
  EXPECT_EQ(to_string(local), "f32[s0/4:16%2,3]");
  EXPECT_EQ(symbols_differ(type, graph.symbols), "");
  EXPECT_EQ(symbols_differ(local, graph.symbols), "");
  EXPECT_EQ(to_string(expected_types(std::vector{local}, graph.symbols)[0]), "f32[4,3]");
  EXPECT_THROW(local_type(type, parse_layout("d:S0", Mesh{{{"d", 3}}}), Mesh{{{"d", 3}}}), Error);
  std::vector<Symbol> other = graph.symbols;
  other[0].bound = 128;
  EXPECT_NE(symbols_differ(local, other), "");
  other = graph.symbols;
  other[0].divisor = 4;
  EXPECT_NE(symbols_differ(type, other), "");
  EXPECT_NE(symbols_differ(type, {}), "");
  EXPECT_THROW(expected_types(std::vector{type}, {}), Error);
}

TEST(Symbol, GraphTextPrintsAndParsesBack) {
  Graph graph;
  graph.name = "g";
  const Dim tokens = graph.symbol({"new \"tokens\"", 64, 16, 8});
  const Dim cache = graph.symbol({"cache", 100, 100, 1});
  graph.input("x", {DType::i32, {tokens}});
  graph.input("y", {DType::f32, {cache, 4}});
  const std::string text = print(graph);
  const Graph back = parse_graph(text);
  EXPECT_EQ(back.symbols, graph.symbols);
  EXPECT_EQ(back.tensors[0].type, graph.tensors[0].type);
  EXPECT_EQ(print(back), text);
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"s0:64%8", "s2:64%8"},
                                                        {"s0:64%8", "s0:32%8"},
                                                        {"s0:64%8", "s0:64%4"},
                                                        {"symbol 1", "symbol 2"},
                                                        {"bound=64", "bound=60"}}) {
    std::string spoilt = text;
    spoilt.replace(spoilt.find(from), from.size(), to);
    EXPECT_THROW(parse_graph(spoilt), Error) << to;
  }
}

}  // namespace
}  // namespace hocket::graph
