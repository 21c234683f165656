// SPDX-License-Identifier: Apache-2.0
// Resharding between every two layouts of a matrix on small meshes: planned, as cheap as any path,
// and as a program proven, run and simulated.
#include "parallel/layouts/reshard.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/stop.h"
#include "check/check.h"
#include "parallel/lowering/lower.h"
#include "program/finalize.h"
#include "tests/programs/program_builder_util.h"

namespace hocket::parallel {
namespace {

using graph::DType;
using graph::Mesh;
using graph::parse_layout;
using graph::Placement;
using test::BufferId;
using test::Layout;
using test::ProgramBuilder;
using test::TensorId;
using test::TensorType;

constexpr int64_t kRows = 12, kColumns = 24, kInner = 12;
const TensorType kMatrix{DType::f64, {kRows, kColumns}};

const std::vector<Mesh>& meshes() {
  static const std::vector<Mesh> all = {
      {{{"a", 4}}}, {{{"a", 2}, {"b", 2}}}, {{{"a", 2}, {"b", 3}}}};
  return all;
}

/// Returns all layouts of a matrix: every placement on each axis, in every order.
std::vector<Layout> every_layout(const Mesh& mesh) {
  std::vector<Layout> list{{}};
  std::vector<std::vector<size_t>> orders{{0}};
  if (mesh.axes.size() == 2) {
    orders = {{0, 1}, {1, 0}};
  }
  const std::vector<Placement> placements = {Placement::replicate(), Placement::split(0),
                                             Placement::split(1), Placement::partial()};
  std::set<Layout> known;
  for (const std::vector<size_t>& order : orders) {
    std::vector<Layout> made{{}};
    for (size_t axis : order) {
      std::vector<Layout> more;
      for (const Layout& layout : made) {
        for (const Placement placement : placements) {
          more.push_back(layout);
          more.back().set(axis, placement);
        }
      }
      made = std::move(more);
    }
    known.insert(made.begin(), made.end());
  }
  return {known.begin(), known.end()};
}

/// Returns whether the target is partial only where the source is.
bool is_possible(const Layout& from, const Layout& to, const Mesh& mesh) {
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (to[axis].is_partial() && !from[axis].is_partial()) return false;
  }
  return true;
}

TEST(Resharding, EveryPairHasTheCheapestPath) {
  for (const Mesh& mesh : meshes()) {
    ReshardPaths paths(mesh);
    const std::vector<Layout> layouts = every_layout(mesh);
    EXPECT_EQ(layouts.size(), mesh.axes.size() == 1 ? 4u : 18u);
    for (const Layout& to : layouts) {
      for (const Layout& from : layouts) {
        const std::string text = to_string(from, mesh) + " to " + to_string(to, mesh);
        const ReshardPath* const path = paths.path(kMatrix, from, to);
        ASSERT_EQ(path != nullptr, is_possible(from, to, mesh)) << text;
        if (!path) {
          EXPECT_NE(why_no_path(from, to, mesh).find("can't become P"), std::string::npos);
          continue;
        }
        EXPECT_EQ(path->steps.empty(), from == to) << text;
        // The steps lead to the target, and their costs add up.
        Layout here = from;
        double cost = 0;
        for (const ReshardStep& step : path->steps) {
          const std::vector<ReshardStep> all = paths.steps(kMatrix, here, to);
          EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const ReshardStep& one) {
            return one.to == step.to && one.cost == step.cost;
          })) << text;
          here = step.to;
          cost += step.cost;
        }
        EXPECT_TRUE(here == to) << text;
        EXPECT_DOUBLE_EQ(cost, path->cost) << text;
        // No path is cheaper: relax all steps until nothing changes (Bellman-Ford).
        std::map<Layout, double> least{{from, 0}};
        for (bool better = true; better;) {
          better = false;
          for (const auto& [at, so_far] : std::map<Layout, double>(least)) {
            for (const ReshardStep& step : paths.steps(kMatrix, at, to)) {
              const auto [place, fresh] = least.try_emplace(step.to, so_far + step.cost);
              if (!fresh && place->second <= so_far + step.cost) continue;
              place->second = so_far + step.cost;
              better = true;
            }
          }
        }
        EXPECT_NEAR(path->cost, least.at(to), 1e-6) << text;
      }
    }
  }
}

/// Emits the steps of a path from buffer `at`, and returns the last buffer.
BufferId emit(ProgramBuilder& w, const TensorType& whole, const ReshardPath& path, Layout from,
              BufferId at) {
  for (const ReshardStep& step : path.steps) {
    const BufferId next = w.step_buffer(w.local(whole, step.to));
    if (step.op) {
      std::vector<std::string> axes;
      for (int32_t axis : step.axes) {
        axes.push_back(w.mesh().axes[static_cast<size_t>(axis)].name);
      }
      w.collective(step.op->name, step.attrs, axes, {at}, {next});
    } else {
      const Mesh mesh = w.mesh();
      const auto dim = static_cast<size_t>(step.dim);
      const auto begin = [=, to = step.to](const test::At& coords) {
        return local_runs(whole, to, mesh, coords)[dim].begin -
               local_runs(whole, from, mesh, coords)[dim].begin;
      };
      const BufferId view = w.view(at, step.dim, w.type(next).dims[dim], begin);
      w.task("copy", {}, {view}, {next});
    }
    at = next;
    from = step.to;
  }
  return at;
}

/// z = x W^T, produced in layout `from`; where that is partial, the inner dim is split.
struct Product {
  ProgramBuilder w;
  TensorId x, weight, z;
  explicit Product(const Mesh& mesh) : w(mesh.axes) {
    x = w.input("x", {DType::f64, {kRows, kInner}});
    weight = w.input("W", {DType::f64, {kColumns, kInner}});
    z = w.apply("z", "linear", {}, {x, weight})[0];
  }
  BufferId make(const Layout& from) {
    Layout rows;
    Layout columns;
    for (int dim : {0, 1}) {
      Layout& operand = dim == 0 ? rows : columns;
      for (int32_t axis : from.axes_of(dim)) {
        operand.set(static_cast<size_t>(axis), Placement::split(0));
      }
      operand.give(0, from.sizes_of(dim));
    }
    for (size_t axis = 0; axis < w.mesh().axes.size(); ++axis) {
      if (!from[axis].is_partial()) continue;
      rows.set(axis, Placement::split(1));
      columns.set(axis, Placement::split(1));
    }
    const BufferId made = w.step_buffer(w.local(kMatrix, from));
    w.task("linear", {}, {w.input_buffer(x, rows), w.input_buffer(weight, columns)}, {made});
    return made;
  }
};

/// Reshards from one layout to all others, each to an output of its own. Partial ones are summed at
/// the end.
ProgramBuilder to_every_layout(const Mesh& mesh, const Layout& from) {
  Product p(mesh);
  ReshardPaths paths(mesh);
  std::vector<std::pair<TensorId, Layout>> ends;
  for (const Layout& to : every_layout(mesh)) {
    if (!is_possible(from, to, mesh)) continue;
    ends.emplace_back(p.w.apply(fmt::format("to {}", to_string(to, mesh)), "copy", {}, {p.z})[0],
                      to);
    p.w.result(ends.back().first);
  }
  const BufferId made = p.make(from);
  for (const auto& [tensor, to] : ends) {
    // Views of a buffer are cut along one dim, so each path has a buffer of its own.
    const BufferId start = p.w.step_buffer(p.w.type(made));
    p.w.task("copy", {}, {made}, {start});
    const BufferId arrived = emit(p.w, kMatrix, *paths.path(kMatrix, from, to), from, start);
    Layout whole = to;
    std::vector<std::string> sums;
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      if (!to[axis].is_partial()) continue;
      whole.set(axis, Placement::replicate());
      sums.push_back(mesh.axes[axis].name);
    }
    const BufferId end = p.w.output_buffer(tensor, whole);
    p.w.task("copy", {}, {arrived}, {end});
    if (!sums.empty()) {
      p.w.collective("all_reduce", {}, sums, {end}, {end});
    }
  }
  return std::move(p.w);
}

TEST(Resharding, EveryPairIsProvenRunAndSimulated) {
  std::vector<test::ProgramCase> cases;
  for (const Mesh& mesh : meshes()) {
    for (const Layout& from : every_layout(mesh)) {
      cases.push_back({fmt::format("{}: {} to all", to_string(mesh), to_string(from, mesh)),
                       [&mesh, from] { return to_every_layout(mesh, from); }});
    }
  }
  EXPECT_EQ(cases.size(), 40u);
  test::expect_proven_run_simulated(cases);
}

TEST(Resharding, MovesEveryBit) {
  // Where nothing is summed, the received bits are those that were sent.
  for (const Mesh& mesh : meshes()) {
    for (const Layout& from : every_layout(mesh)) {
      if (!is_possible({}, from, mesh)) continue;
      ProgramBuilder w = to_every_layout(mesh, from);
      w.finish();
      const test::Results results = test::run(w, w.program, 3);
      const auto whole = results.find("to B");
      ASSERT_TRUE(whole != results.end());
      const std::vector<double>& want = whole->second.at(0).values;
      for (const auto& [name, copies] : results) {
        for (const test::Copy& copy : copies) {
          for (size_t i = 0; i < want.size(); ++i) {
            if (copy.held[i]) {
              ASSERT_EQ(copy.values[i], want[i]) << name;
            }
          }
        }
      }
    }
  }
}

TEST(Resharding, GoesToBlocksOfGivenSizes) {
  const Mesh mesh{{{"a", 2}, {"b", 2}}};
  const auto to_given = [mesh](const char* from_text, const char* to_text) {
    const Layout from = parse_layout(from_text, mesh);
    const Layout to = parse_layout(to_text, mesh);
    Product p(mesh);
    ReshardPaths paths(mesh);
    p.w.result(p.z);
    const ReshardPath* const path = paths.path(kMatrix, from, to);
    EXPECT_TRUE(path) << from_text << " to " << to_text;
    for (int32_t rank = 0; path && rank < mesh.size(); ++rank) {
      const std::vector<int32_t> at = mesh.coords(rank);
      program::Box box;
      box[0] = {at[0], 1};
      box[1] = {at[1], 1};
      if (rank == 0) {
        p.w.current().box = box;
      } else {
        p.w.add_class(box);
      }
      const BufferId arrived = emit(p.w, kMatrix, *path, from, p.make(from));
      p.w.task("copy", {}, {arrived}, {p.w.output_buffer(p.z, to)});
    }
    return std::move(p.w);
  };
  std::vector<test::ProgramCase> cases;
  for (const auto& [from, to] :
       std::vector<std::pair<const char*, const char*>>{{"B", "b:S0 a:S0[1,5,2,4]"},
                                                        {"B", "a:S0[7,5] b:S1[1,23]"},
                                                        {"a:P b:P", "b:S0 a:S0[1,5,2,4]"},
                                                        {"a:S0 b:P", "b:S1 a:S0[11,1]"},
                                                        {"a:S0[7,5]", "a:S0[7,5] b:S1"},
                                                        {"a:S0[7,5] b:P", "a:S0[7,5]"},
                                                        {"a:S0[7,5] b:S1", "a:S0[7,5]"},
                                                        {"a:S0[6,6]", "b:S0[3,9]"}}) {
    cases.push_back({fmt::format("{} to {}", from, to), [=] { return to_given(from, to); }});
  }
  test::expect_proven_run_simulated(cases);
  // No given block fits inside of the others, and not every layout is valid for the tensor.
  ReshardPaths paths(mesh);
  EXPECT_FALSE(paths.path(kMatrix, {}, parse_layout("a:S0[7,6]", mesh)));
  EXPECT_EQ(why_no_path(parse_layout("a:S0[7,5]", mesh), {}, mesh),
            "no sequence of collectives does this, or sizes do not divide");
}

/// Thousands of blocks of different sizes: their number may not enter to the second power.
TEST(Resharding, FindsPathsOfThousandsOfUnevenBlocks) {
  const Mesh mesh{{{"a", 1024}, {"b", 8}}};
  std::vector<int64_t> sizes;
  for (int32_t rank = 0; rank < mesh.size(); ++rank) {
    sizes.push_back(1 + rank % 3);
  }
  const TensorType rows{DType::f64, {std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), 8}};
  Layout given = parse_layout("a:S0 b:S0", mesh);
  given.give(0, sizes);
  ReshardPaths paths(mesh);
  {
    const StopWhen at_once([] { return true; });
    EXPECT_THROW(paths.path(rows, given, {}), Stopped);
  }
  const ReshardPath* const gathered = paths.path(rows, given, {});
  ASSERT_TRUE(gathered);
  EXPECT_EQ(gathered->steps.size(), 2);
  EXPECT_FALSE(gathered->steps[0].to.sizes_of(0).empty());
  const ReshardPath* const cut = paths.path(rows, {}, given);
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->steps.size(), 1);
}

/// Ranks that do not divide a dim have shares of it, the first ones with one index more; or blocks
/// of any sizes.
TEST(Resharding, MovesUnevenShares) {
  const Mesh mesh{{{"a", 5}}};
  const auto between = [mesh](const char* from_text, const char* to_text) {
    const Layout from = parse_layout(from_text, mesh);
    const Layout to = parse_layout(to_text, mesh);
    Product p(mesh);
    ReshardPaths paths(mesh);
    p.w.result(p.z);
    const ReshardPath* const path = paths.path(kMatrix, from, to);
    EXPECT_TRUE(path) << from_text << " to " << to_text;
    for (int32_t rank = 0; path && rank < mesh.size(); ++rank) {
      const program::Box box = program::Box::at(0, rank);
      if (rank == 0) {
        p.w.current().box = box;
      } else {
        p.w.add_class(box);
      }
      const BufferId arrived = emit(p.w, kMatrix, *path, from, p.make(from));
      p.w.task("copy", {}, {arrived}, {p.w.output_buffer(p.z, to)});
    }
    return std::move(p.w);
  };
  constexpr const char* kGiven = "a:S0[3,2,2,4,1]";
  std::vector<test::ProgramCase> cases;
  for (const auto& [from, to] : std::vector<std::pair<const char*, const char*>>{{"a:S0", "B"},
                                                                                 {"a:S1", "B"},
                                                                                 {"a:S0", "a:S1"},
                                                                                 {"a:S1", "a:S0"},
                                                                                 {"B", "a:S1"},
                                                                                 {"a:P", "a:S0"},
                                                                                 {"a:P", "a:S1"},
                                                                                 {kGiven, "B"},
                                                                                 {kGiven, "a:S1"},
                                                                                 {"a:S1", kGiven},
                                                                                 {"a:P", kGiven}}) {
    cases.push_back({fmt::format("{} to {}", from, to), [=] { return between(from, to); }});
  }
  test::expect_proven_run_simulated(cases);
}

TEST(Resharding, RowsAndCountsUseExchangesOnly) {
  const Mesh mesh{{{"edp", 2}, {"ep", 2}}};
  ReshardPaths paths(mesh);
  const TensorType rows{DType::f32, {7, 24, 16}, 2};
  const Layout by_token = parse_layout("edp:S1 ep:S1", mesh);
  const Layout by_expert = parse_layout("edp:S1 ep:S0", mesh);
  const ReshardPath* const there = paths.path(rows, by_token, by_expert);
  ASSERT_TRUE(there);
  ASSERT_EQ(there->steps.size(), 1u);
  EXPECT_TRUE(there->steps[0].op->needs_sizes);
  EXPECT_EQ(there->steps[0].axes, (std::vector<int32_t>{1}));
  ASSERT_TRUE(paths.path(rows, by_expert, by_token));
  // The same over an outer axis: rows are then of tokens that are not consecutive, and return to
  // the tokens' ranks.
  const Layout by_outer = parse_layout("edp:S0 ep:S1", mesh);
  for (const auto& [from, to] : {std::pair{by_token, by_outer}, {by_outer, by_token}}) {
    const ReshardPath* const exchange = paths.path(rows, from, to);
    ASSERT_TRUE(exchange);
    ASSERT_EQ(exchange->steps.size(), 1u);
    EXPECT_TRUE(exchange->steps[0].op->needs_sizes);
    EXPECT_EQ(exchange->steps[0].axes, (std::vector<int32_t>{0}));
    EXPECT_EQ(exchange->steps[0].to, to);
  }
  EXPECT_FALSE(paths.path(rows, {}, by_expert));
  const TensorType counts{DType::i64, {7}};
  const ReshardPath* const sizes =
      paths.path(counts, parse_layout("ep:P", mesh), parse_layout("ep:S0", mesh));
  ASSERT_TRUE(sizes);
  EXPECT_TRUE(sizes->steps.at(0).op->makes_sizes);
  EXPECT_FALSE(paths.path(counts, {}, parse_layout("ep:S0", mesh)));
  // Over three ranks, an exchange and a gather would take fewer rounds than an all-reduce.
  ReshardPaths three({{{"ep", 3}}});
  const ReshardPath* const sum =
      three.path({DType::i64, {6}}, parse_layout("ep:P", {{{"ep", 3}}}), {});
  ASSERT_TRUE(sum);
  ASSERT_EQ(sum->steps.size(), 1u);
  EXPECT_EQ(sum->steps[0].op, &comm::summing());
  // Gradients of experts that the ranks do not divide are reduced in place.
  const TensorType weights{DType::f32, {7, 16, 4}};
  EXPECT_TRUE(paths.path(weights, parse_layout("edp:P ep:S0", mesh), parse_layout("ep:S0", mesh)));
}

TEST(Resharding, ReducesPartialMaximaByMaximum) {
  const Mesh mesh{{{"a", 2}, {"b", 2}}};
  ReshardPaths paths(mesh);
  const ReshardPath* const greatest = paths.path(kMatrix, parse_layout("a:Pmax b:Pmax", mesh), {});
  ASSERT_TRUE(greatest);
  ASSERT_EQ(greatest->steps.size(), 1u);
  EXPECT_EQ(greatest->steps[0].attrs.s("monoid"), "max");
  EXPECT_FALSE(paths.path(kMatrix, parse_layout("a:P b:Pmax", mesh), {}));
  EXPECT_EQ(why_no_path(parse_layout("a:P b:Pmax", mesh), {}, mesh),
            "its partial axes combine by different operations");
  EXPECT_FALSE(paths.path(kMatrix, parse_layout("a:Psoftmax", mesh), {}));
  EXPECT_FALSE(paths.path(kMatrix, parse_layout("a:P", mesh), parse_layout("a:Pmax", mesh)));
  EXPECT_EQ(why_no_path(parse_layout("a:P", mesh), parse_layout("a:Pmax", mesh), mesh),
            "P on a can't become Pmax");
}

TEST(Resharding, TakesNoSlicesIfTheyAreForbidden) {
  const Mesh mesh{{{"a", 2}, {"b", 2}}};
  ReshardPaths paths(mesh, false);
  EXPECT_FALSE(paths.path(kMatrix, {}, parse_layout("a:S0", mesh)));
  EXPECT_TRUE(paths.path(kMatrix, parse_layout("a:P", mesh), parse_layout("a:S0", mesh)));
  // All sums are one collective; blocks are gathered from the innermost axis outwards.
  const ReshardPath* const sums = paths.path(kMatrix, parse_layout("a:P b:P", mesh), {});
  ASSERT_TRUE(sums);
  EXPECT_EQ(sums->steps.size(), 1u);
  const ReshardPath* const blocks = paths.path(kMatrix, parse_layout("b:S0 a:S0", mesh), {});
  ASSERT_TRUE(blocks);
  ASSERT_EQ(blocks->steps.size(), 2u);
  EXPECT_EQ(to_string(blocks->steps[0].to, mesh), "b:S0");
}

/// Lowers a sum of an operand that every rank has whole and one that is split among them.
TEST(Resharding, LoweringTakesBlocksOfWholeOperands) {
  for (const bool twice : {false, true}) {
    ProgramBuilder w({{"one", 1}});
    const TensorType rows{DType::f64, {8, 3}};
    const TensorId whole = w.input("whole", rows);
    const TensorId split = w.input("split", rows, false);
    TensorId sum = w.apply("sum", "add", {}, {split, whole})[0];
    if (twice) {
      sum = w.apply("again", "add", {}, {sum, whole})[0];
    }
    w.result(sum);
    Plan plan;
    plan.dp = 4;
    program::Program program = lower(w.graph, plan);
    program::finalize(program);
    const check::Verdict verdict = check::check(program, w.graph);
    EXPECT_TRUE(verdict.ok()) << to_text(verdict);
    int views = 0;
    for (const program::Buffer& buffer : program.classes[0].buffers) {
      views += buffer.kind == program::BufferKind::view ? 1 : 0;
      EXPECT_TRUE(buffer.kind != program::BufferKind::view || buffer.by != program::kNone);
    }
    EXPECT_EQ(views, 1) << "of what is fed once per step";
    EXPECT_TRUE(
        std::none_of(program.classes[0].tasks.begin(), program.classes[0].tasks.end(),
                     [](const program::Task& task) { return task.group != program::kNone; }));
    EXPECT_EQ(test::difference(test::run(w, program, 1), test::run_alone(w, 1)), "");
  }
}

}  // namespace
}  // namespace hocket::parallel
