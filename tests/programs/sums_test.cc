// SPDX-License-Identifier: Apache-2.0
// Collectives in steps: an all-reduce as a ring of messages and additions, by recursive halving and
// doubling, by levels of the machine; and a product that is summed chunk by chunk.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/programs/program_builder_util.h"

namespace hocket::test::sums_test {
namespace {

/// A weight gradient, partial over ranks that have different tokens.
struct Gradient {
  ProgramBuilder w;
  TensorId total;
  BufferId mine;

  explicit Gradient(std::vector<graph::Axis> axes) : w(std::move(axes)) {
    const TensorId dy = w.input("dy", f64({8, 8}));
    const TensorId x = w.input("x", f64({8, 3}));
    total = w.apply("g", "linear_dw", {}, {dy, x})[0];
    w.result(total);
    std::vector<std::string> names;
    for (const graph::Axis& axis : w.mesh().axes) {
      names.push_back(axis.name);
    }
    const Layout tokens = w.split(0, names);
    mine = w.output_buffer(total);
    w.task("linear_dw", {}, {w.input_buffer(dy, tokens), w.input_buffer(x, tokens)}, {mine});
  }
};

/// Ring: block by block the sums of more and more ranks, then the finished blocks around.
ProgramBuilder ring_all_reduce(int32_t ranks) {
  Gradient g({{"dp", ranks}});
  ProgramBuilder& w = g.w;
  const int64_t rows = 8 / ranks;
  const auto block = [&](int32_t which) {
    return w.view(g.mine, 0, rows,
                  [=](const At& at) { return ((at[0] + which) % ranks + ranks) % ranks * rows; });
  };
  TensorType type = w.type(g.mine);
  type.dims[0] = rows;
  const BufferId arrived = w.step_buffer(type);
  for (int32_t hop = 1; hop < ranks; ++hop) {
    w.shift("dp", 1, block(1 - hop), arrived);
    const BufferId to = block(-hop);
    w.task("add", {}, {to, arrived}, {to});
  }
  for (int32_t hop = 0; hop + 1 < ranks; ++hop) {
    w.shift("dp", 1, block(1 - hop), block(-hop));
  }
  return w;
}

/// Recursive halving and doubling among four ranks, as two axes of two: halves are exchanged and
/// added along one axis, quarters along the other, and back.
ProgramBuilder halving_doubling() {
  Gradient g({{"a", 2}, {"b", 2}});
  ProgramBuilder& w = g.w;
  const auto rows = [&](int64_t length, const Function& begin) {
    return w.view(g.mine, 0, length, begin);
  };
  const auto step_of = [&](int64_t length) {
    TensorType type = w.type(g.mine);
    type.dims[0] = length;
    return w.step_buffer(type);
  };
  const auto half = [](int64_t other) {
    return [other](const At& at) { return (other ? 1 - at[0] : at[0]) * 4; };
  };
  const auto quarter = [](int64_t other) {
    return [other](const At& at) { return at[0] * 4 + (other ? 1 - at[1] : at[1]) * 2; };
  };
  const BufferId four = step_of(4), two = step_of(2);
  w.shift("a", 1, rows(4, half(1)), four);
  const BufferId mine = rows(4, half(0));
  w.task("add", {}, {mine, four}, {mine});
  w.shift("b", 1, rows(2, quarter(1)), two);
  const BufferId least = rows(2, quarter(0));
  w.task("add", {}, {least, two}, {least});
  w.shift("b", 1, least, rows(2, quarter(1)));
  w.shift("a", 1, rows(4, half(0)), rows(4, half(1)));
  return w;
}

/// Recursive halving and doubling on one axis. A rank exchanges with ranks at coordinates that
/// differ from its own in one bit: first with its neighbour, to which half of the rows go, last
/// with the furthest one. Its block of the sum is then its own number with bits reversed.
ProgramBuilder halving_doubling_by_bits(int32_t bits) {
  Gradient g({{"dp", 1 << bits}});
  ProgramBuilder& w = g.w;
  // Returns the rows of a rank after this many halvings, or the rows given away in the last of
  // them.
  const auto rows_after = [&](int32_t halvings, bool given) {
    return w.view(g.mine, 0, 8 >> halvings, [=](const At& at) {
      int64_t begin = 0;
      for (int32_t bit = 0; bit < halvings; ++bit) {
        const bool upper = (at[0] >> bit & 1) != (given && bit + 1 == halvings);
        begin += upper ? 8 >> (bit + 1) : 0;
      }
      return begin;
    });
  };
  const auto partner = [](int32_t bit) {
    return [bit](const At& at) { return (at[0] ^ (1 << bit)) - at[0]; };
  };
  for (int32_t bit = 0; bit < bits; ++bit) {
    const BufferId kept = rows_after(bit + 1, false), came = w.step_buffer(w.type(kept));
    w.shift("dp", partner(bit), partner(bit), rows_after(bit + 1, true), came);
    w.task("add", {}, {kept, came}, {kept});
  }
  for (int32_t bit = bits; bit-- > 0;) {
    w.shift("dp", partner(bit), partner(bit), rows_after(bit + 1, false),
            rows_after(bit + 1, true));
  }
  return w;
}

/// Returns a ring all-reduce in which neighbours do not have consecutive numbers.
ProgramBuilder ring_in_another_order(const std::vector<int32_t>& order) {
  const int32_t ranks = static_cast<int32_t>(order.size());
  Gradient g({{"dp", ranks}});
  ProgramBuilder& w = g.w;
  const int64_t rows = 8 / ranks;
  const auto place = [=](int32_t rank) {
    return static_cast<int32_t>(std::find(order.begin(), order.end(), rank) - order.begin());
  };
  const auto at_place = [=](int32_t where) {
    return order[static_cast<size_t>((where % ranks + ranks) % ranks)];
  };
  const auto block = [&](int32_t which) {
    return w.view(g.mine, 0, rows, [=](const At& at) {
      return ((place(at[0]) + which) % ranks + ranks) % ranks * rows;
    });
  };
  const auto pass_on = [&](BufferId from, BufferId to) {
    w.shift(
        "dp", [=](const At& at) { return at_place(place(at[0]) + 1) - at[0]; },
        [=](const At& at) { return at_place(place(at[0]) - 1) - at[0]; }, from, to);
  };
  TensorType type = w.type(g.mine);
  type.dims[0] = rows;
  const BufferId arrived = w.step_buffer(type);
  for (int32_t hop = 1; hop < ranks; ++hop) {
    pass_on(block(1 - hop), arrived);
    const BufferId to = block(-hop);
    w.task("add", {}, {to, arrived}, {to});
  }
  for (int32_t hop = 0; hop + 1 < ranks; ++hop) {
    pass_on(block(1 - hop), block(-hop));
  }
  return w;
}

/// Returns a hierarchical all-reduce: reduce-scatter inside nodes, all-reduce of each block across
/// nodes, all-gather inside nodes. Two blocks of rows, one after the other.
ProgramBuilder two_level_all_reduce() {
  Gradient g({{"node", 2}, {"local", 2}});
  ProgramBuilder& w = g.w;
  for (int64_t chunk : {0, 1}) {
    const BufferId rows = w.view(g.mine, 0, 4, chunk * 4);
    TensorType type = w.type(rows);
    type.dims[0] = 2;
    const BufferId block = w.step_buffer(type);
    w.collective("reduce_scatter", {{"dim", int64_t{0}}}, {"local"}, {rows}, {block});
    w.collective("all_reduce", {}, {"node"}, {block}, {block});
    w.collective("all_gather", {{"dim", int64_t{0}}}, {"local"}, {block}, {rows});
  }
  return w;
}

/// Returns a product whose inner dim is split over ranks. Its tokens are computed in chunks, each
/// reduced at once.
ProgramBuilder chunked_product(int64_t chunks) {
  ProgramBuilder w({{"tp", 2}});
  const TensorId x = w.input("x", f64({12, 6})), weight = w.input("W", f64({5, 6}));
  const TensorId y = w.apply("y", "linear", {}, {x, weight})[0];
  w.result(y);
  const BufferId from = w.input_buffer(x, w.split(1, {"tp"})),
                 by = w.input_buffer(weight, w.split(1, {"tp"}));
  const BufferId to = w.output_buffer(y);
  const int64_t rows = 12 / chunks;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const BufferId part = w.view(to, 0, rows, chunk * rows);
    w.task("linear", {}, {w.view(from, 0, rows, chunk * rows), by}, {part});
    w.collective("all_reduce", {}, {"tp"}, {part}, {part});
  }
  return w;
}

/// Two stages, each of two ranks that split the tokens, have a product each. The result is the sum
/// of both, with its norm in a vector. Both are reduced by blocks over all ranks, and gathered.
ProgramBuilder sums_by_blocks_over_stages() {
  ProgramBuilder w({{"pp", 2}, {"dp", 2}});
  std::vector<TensorId> made, norms, rows, by;
  for (const char* stage : {"0", "1"}) {
    const std::string name = stage;
    rows.push_back(w.input("dy" + name, f64({12, 8})));
    by.push_back(w.input("x" + name, f64({12, 2})));
    made.push_back(w.apply("g" + name, "linear_dw", {}, {rows.back(), by.back()})[0]);
    norms.push_back(w.apply("norm" + name, "sumsq", {}, {rows.back()})[0]);
    w.result(norms.back());
  }
  const TensorId sum = w.apply("g", "add", {}, made)[0];
  w.result(sum);
  const Layout tokens = w.split(0, {"dp"});
  const std::vector<std::string> all{"pp", "dp"};
  for (int32_t stage = 0; stage < 2; ++stage) {
    program::Box box;
    box[0] = {stage, 1};
    if (stage == 0) {
      w.current().box = box;
    } else {
      w.add_class(box);
    }
    const size_t mine = static_cast<size_t>(stage);
    const BufferId vector = w.step_buffer(f64({4})), block = w.step_buffer(f64({1}));
    w.task("zero", {{"type", to_string(f64({4}))}}, {}, {vector});
    const BufferId from = w.input_buffer(rows[mine], tokens);
    w.task("sumsq", {}, {from}, {w.flat_view(vector, {1}, stage)});
    const BufferId product = w.step_buffer(f64({8, 2})), part = w.step_buffer(f64({2, 2}));
    w.task("linear_dw", {}, {from, w.input_buffer(by[mine], tokens)}, {product});
    w.collective("reduce_scatter", {{"dim", int64_t{0}}}, all, {vector}, {block});
    w.collective("all_gather", {{"dim", int64_t{0}}}, all, {block}, {vector});
    w.collective("reduce_scatter", {{"dim", int64_t{0}}}, all, {product}, {part});
    w.collective("all_gather", {{"dim", int64_t{0}}}, all, {part}, {w.output_buffer(sum)});
    for (size_t i = 0; i < norms.size(); ++i) {
      const auto begin = static_cast<int64_t>(i);
      w.task("copy", {}, {w.flat_view(vector, {1}, begin)}, {w.output_buffer(norms[i])});
    }
  }
  return w;
}

const std::vector<ProgramCase>& cases() {
  static const std::vector<ProgramCase> all = {
      {"ring all-reduce", [] { return ring_all_reduce(4); }, {"view", "both-ends"}},
      {"ring all-reduce of two", [] { return ring_all_reduce(2); }, {"view"}},
      {"halving and doubling", halving_doubling, {"view"}},
      {"halving and doubling by bits", [] { return halving_doubling_by_bits(2); }, {"both-ends"}},
      {"halving and doubling by three bits",
       [] { return halving_doubling_by_bits(3); },
       {"message", "both-ends"}},
      {"ring in another order",
       [] {
         return ring_in_another_order({0, 2, 1, 3});
       },
       {"message", "both-ends"}},
      {"two-level all-reduce", two_level_all_reduce, {"view", "monoid"}},
      {"chunked product", [] { return chunked_product(3); }, {"view"}},
      {"sums by blocks over stages", sums_by_blocks_over_stages, {"view", "group"}},
  };
  return all;
}

TEST(SumsInSteps, ProvenRunAndSimulated) { expect_proven_run_simulated(cases()); }
TEST(SumsInSteps, MutantsAreRefusedOrEqual) { expect_mutants_refused_or_equal(cases()); }

/// Some rows of a gradient are reduced, others are a rank's own partial sums.
TEST(Sums, RowsWithDifferentAddendsDoNotFormAValue) {
  for (const bool all : {true, false}) {
    Gradient g({{"dp", 2}});
    for (const int64_t begin : {0, 4}) {
      const BufferId half = g.w.view(g.mine, 0, 4, begin);
      if (begin == 0 || all) {
        g.w.collective("all_reduce", {}, {"dp"}, {half}, {half});
      }
    }
    g.w.finish();
    const check::Verdict verdict = check::check(g.w.program, g.w.graph);
    ASSERT_EQ(verdict.ok(), all) << to_text(verdict);
    if (all) continue;
    EXPECT_EQ(verdict.problems[0].rule, "view-tiled") << to_text(verdict);
    EXPECT_EQ(
        verdict.problems[0].where,
        "rank 0 (dp 0) has dim 0 [4:8) of 8 with addends t [0:1) of 2 in [4:8), dim 0 [0:4) of "
        "8 in [0:4)");
  }
}

/// One part of a buffer arrives in a message that waits for no kernel. The memory of the whole must
/// be free by then, regardless of the task that writes the other part.
TEST(Sums, PartsThatDoNotWaitNeedFreeMemory) {
  ProgramBuilder w({{"dp", 2}});
  const TensorId x = w.input("x", f64({8})), z = w.input("z", f64({8}));
  const TensorId before = w.apply("h", "add", {}, {x, x})[0];
  const TensorId first = w.apply("first", "add", {}, {before, before})[0];
  const TensorId second = w.apply("second", "add", {}, {z, z})[0];
  w.result(first);
  w.result(second);
  const BufferId fed = w.input_buffer(x), blocks = w.input_buffer(z, w.split(0, {"dp"}));
  const BufferId early = w.step_buffer(f64({8})), late = w.step_buffer(f64({8}));
  w.task("add", {}, {fed, fed}, {early});
  w.task("add", {}, {early, early}, {w.output_buffer(first)});
  w.task("copy", {}, {blocks}, {w.view(late, 0, 4, [](const At& at) { return at[0] * 4; })});
  w.shift("dp", 1, blocks, w.view(late, 0, 4, [](const At& at) { return 4 - at[0] * 4; }));
  w.task("add", {}, {late, late}, {w.output_buffer(second)});
  w.finish();
  EXPECT_TRUE(check::check(w.program, w.graph).ok());
  std::vector<program::Buffer>& buffers = w.program.classes[0].buffers;
  EXPECT_NE(buffers[late].offset, buffers[early].offset);
  buffers[late].offset = buffers[early].offset;
  const check::Verdict verdict = check::check(w.program, w.graph);
  ASSERT_FALSE(verdict.ok());
  EXPECT_EQ(verdict.problems[0].rule, "race") << to_text(verdict);
}

/// The comparison at every write has its own expected values: another seed makes it fail.
TEST(Sums, WritesOfOtherValuesAreSeen) {
  ProgramBuilder w = ring_all_reduce(4);
  w.finish();
  check::Checker checker(w.graph, 1);
  for (const uint64_t seed : {1, 2}) {
    TermValues terms(seed);
    const ExpectedOutputs values(checker, w.program, terms);
    ASSERT_TRUE(values.accepted());
    const std::string wrong = run_watched(w, w.program, values, 1);
    EXPECT_EQ(wrong.empty(), seed == 1) << wrong;
  }
}

TEST(Sums, WrongWritesOfStepBuffersAreSeen) {
  // The results are right; a copy of the sum holds a rank's earlier partial sum.
  Gradient g({{"dp", 2}});
  ProgramBuilder& w = g.w;
  const BufferId before = w.step_buffer(w.type(g.mine));
  const BufferId after = w.step_buffer(w.type(g.mine));
  w.task("copy", {}, {g.mine}, {before});
  w.collective("all_reduce", {}, {"dp"}, {g.mine}, {g.mine});
  w.task("copy", {}, {g.mine}, {after});
  w.finish();
  check::Checker checker(w.graph, 1);
  TermValues terms(1);
  const ExpectedOutputs values(checker, w.program, terms);
  ASSERT_TRUE(values.accepted());
  EXPECT_EQ(run_watched(w, w.program, values, 1), "");
  program::Program wrong = w.program;
  wrong.classes[0].tasks.back().in = {before};
  EXPECT_EQ(difference(run(w, wrong, 1), run_alone(w, 1)), "");
  const std::string seen = run_watched(w, wrong, values, 1);
  EXPECT_NE(seen.find("copy"), std::string::npos) << seen;
}

}  // namespace
}  // namespace hocket::test::sums_test
