// SPDX-License-Identifier: Apache-2.0
// Layouts that no plan has: mesh axes in another order, and blocks of given sizes, for inputs,
// parameters, kept tensors and buckets; and checkpoints of parameters in them.
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "base/rng.h"
#include "check/check.h"
#include "checkpoint/safetensors.h"
#include "engine/params.h"
#include "kernels/backend.h"
#include "tests/checkpoint/checkpoint_util.h"
#include "tests/programs/program_builder_util.h"

namespace hocket::test::layouts_test {
namespace {

using graph::Attrs;
using program::BufferKind;

constexpr int64_t kWidth = 3;

Attrs along(int64_t dim) { return {{"dim", dim}}; }

/// y = x W^T and dW = dy^T x, all of it cut along dim 0 over two axes, b outside of a: W is
/// gathered from the inside, dW scattered from the outside.
ProgramBuilder turned(int32_t a, int32_t b) {
  ProgramBuilder w({{"a", a}, {"b", b}});
  const int64_t ranks = a * b;
  const int64_t tokens = 2 * ranks;
  const int64_t outputs = 3 * ranks;
  const TensorId x = w.input("x", f64({tokens, kWidth}));
  const TensorId dy = w.input("dy", f64({tokens, outputs}));
  const TensorId weight = w.param("W", f64({outputs, kWidth}));
  const TensorId y = w.apply("y", "linear", {}, {x, weight})[0];
  const TensorId dw = w.apply("dW", "linear_dw", {}, {dy, x})[0];
  w.result(y);
  w.result(dw);
  const Layout rows = graph::parse_layout("b:S0 a:S0", w.mesh());
  EXPECT_TRUE(rows == w.split(0, {"b", "a"}));
  const BufferId mine = w.persistent_buffer(weight, rows),
                 half = w.step_buffer(f64({outputs / b, kWidth}));
  const BufferId all = w.step_buffer(f64({outputs, kWidth}));
  w.collective("all_gather", along(0), {"a"}, {mine}, {half});
  w.collective("all_gather", along(0), {"b"}, {half}, {all});
  const BufferId in = w.input_buffer(x, rows);
  w.task("linear", {}, {in, all}, {w.output_buffer(y, rows)});
  const BufferId sum = w.step_buffer(f64({outputs, kWidth})),
                 part = w.step_buffer(f64({outputs / b, kWidth}));
  w.task("linear_dw", {}, {w.input_buffer(dy, rows), in}, {sum});
  w.collective("reduce_scatter", along(0), {"b"}, {sum}, {part});
  w.collective("reduce_scatter", along(0), {"a"}, {part}, {w.output_buffer(dw, rows)});
  return w;
}

/// Every rank of a mesh of two axes is a class; `make` writes the tasks of one.
void for_each_class(ProgramBuilder& w, const std::function<void()>& make) {
  const graph::Mesh mesh = w.mesh();
  for (int32_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int32_t> at = mesh.coords(rank);
    program::Box box;
    for (size_t axis = 0; axis < at.size(); ++axis) {
      box[axis] = {at[axis], 1};
    }
    if (rank == 0) {
      w.current().box = box;
    } else {
      w.add_class(box);
    }
    make();
  }
}

/// The same products on ranks with different numbers of tokens; a sum in blocks of given sizes
/// along dim 1; a bucket with a different share on every rank.
ProgramBuilder given() {
  ProgramBuilder w({{"a", 2}, {"b", 2}});
  const TensorId x = w.input("x", f64({10, kWidth}));
  const TensorId dy = w.input("dy", f64({10, 4}));
  const TensorId weight = w.param("W", f64({4, kWidth}));
  const TensorId bias = w.param("bias", f64({2, 9}));
  const TensorId more = w.input("more", f64({2, 9}));
  const TensorId y = w.apply("y", "linear", {}, {x, weight})[0];
  const TensorId dw = w.apply("dW", "linear_dw", {}, {dy, x})[0];
  const TensorId sum = w.apply("sum", "add", {}, {bias, more})[0];
  const TensorId other = w.param("other", f64({4, kWidth}));
  const TensorId copied = w.apply("copied", "copy", {}, {other})[0];
  for (TensorId id : {y, dw, sum, copied}) {
    w.result(id);
  }
  for_each_class(w, [&] {
    const Layout rows = graph::parse_layout("b:S0 a:S0[1,4,2,3]", w.mesh());
    const Layout columns = graph::parse_layout("b:S1[7,2]", w.mesh());
    const Layout shares = graph::parse_layout("a:S0 b:S0[5,2,4,3]", w.mesh());
    const BufferId in = w.input_buffer(x, rows);
    w.task("linear", {}, {in, w.persistent_buffer(weight)}, {w.output_buffer(y, rows)});
    const BufferId grad = w.output_buffer(dw);
    w.task("linear_dw", {}, {w.input_buffer(dy, rows), in}, {grad});
    w.collective("all_reduce", {}, {"a", "b"}, {grad}, {grad});
    w.task("add", {}, {w.persistent_buffer(bias, columns), w.input_buffer(more, columns)},
           {w.output_buffer(sum, columns)});
    const auto bucket = [&](BufferKind kind, const std::string& name, TensorId tensor) {
      return w.bucket(kind, name, 14, {{tensor, 1}}, shares);
    };
    const BufferId stored = bucket(BufferKind::persistent, "shares", other);
    const BufferId kept = bucket(BufferKind::output, "copies", copied);
    w.current().buffers[kept].micro_batch = 0;
    w.task("copy", {}, {stored}, {kept});
  });
  return w;
}

/// A bucket in blocks of the ranks of a role with the seventh axis of all.
ProgramBuilder seventh_axis() {
  ProgramBuilder w({{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}, {"f", 1}});
  const TensorId weight = w.param("W", f64({4, kWidth}));
  const TensorId copied = w.apply("copied", "copy", {}, {weight})[0];
  w.result(copied);
  w.add_role("second", {{"dp", 3}});
  const Layout blocks = w.split(0, {"dp"});
  const BufferId held = w.bucket(BufferKind::persistent, "held", 12, {{weight, 0}}, blocks);
  const BufferId all = w.step_buffer(f64({12}));
  w.collective("all_gather", along(0), {"dp"}, {held}, {all});
  w.task("copy", {}, {w.flat_view(all, {4, kWidth}, 0)}, {w.output_buffer(copied)});
  return w;
}

const std::vector<ProgramCase>& cases() {
  static const std::vector<ProgramCase> all = {
      {"b outside of a, 2 x 2", [] { return turned(2, 2); }},
      {"b outside of a, 2 x 3", [] { return turned(2, 3); }},
      {"b outside of a, 3 x 2", [] { return turned(3, 2); }},
      {"given sizes", given, {"slot"}},
      {"a bucket on the seventh axis", seventh_axis, {"slot"}},
  };
  return all;
}

TEST(WrittenLayouts, ProvenRunAndSimulated) { expect_proven_run_simulated(cases()); }
TEST(WrittenLayouts, MutantsAreRefusedOrEqual) { expect_mutants_refused_or_equal(cases()); }

/// The rules that a program with one layout replaced by another breaks; as it is, none.
std::vector<std::string> broken(ProgramBuilder w, const std::string& buffer,
                                const std::string& layout) {
  w.finish();
  EXPECT_TRUE(check::check(w.program, w.graph).ok());
  for (program::RankClass& cls : w.program.classes) {
    for (program::Buffer& each : cls.buffers) {
      if (each.name == buffer) {
        each.layout = graph::parse_layout(layout, w.program.roles[0].mesh);
      }
    }
  }
  std::vector<std::string> rules;
  for (const check::Problem& problem : check::check(w.program, w.graph).problems) {
    rules.push_back(problem.rule);
  }
  return rules;
}

TEST(WrittenLayouts, OtherOrdersAndSizesAreOtherLayouts) {
  using Rules = std::vector<std::string>;
  const auto has = [](const Rules& rules, const std::string& rule) {
    return std::find(rules.begin(), rules.end(), rule) != rules.end();
  };
  EXPECT_TRUE(broken(turned(2, 2), "W", "b:S0 a:S0").empty());
  EXPECT_FALSE(broken(turned(2, 2), "W", "a:S0 b:S0").empty());
  EXPECT_TRUE(has(broken(turned(2, 2), "dW", "a:S0 b:S0"), "final-layout"));
  EXPECT_TRUE(broken(given(), "y", "b:S0 a:S0[1,4,2,3]").empty());
  // Two ranks with their sizes exchanged; a block that ends one index later; another sum.
  EXPECT_TRUE(has(broken(given(), "y", "b:S0 a:S0[1,2,4,3]"), "named-tensor"));
  EXPECT_TRUE(has(broken(given(), "y", "a:S0 b:S0[1,2,4,3]"), "final-layout"));
  EXPECT_TRUE(has(broken(given(), "y", "b:S0 a:S0[1,4,2,4]"), "named-tensor"));
  EXPECT_TRUE(has(broken(given(), "bias", "b:S1[2,7]"), "named-tensor"));
  EXPECT_TRUE(has(broken(given(), "shares", "a:S0 b:S0[5,2,3,4]"), "named-tensor"));
  EXPECT_TRUE(has(broken(given(), "shares", "b:S0 a:S0[5,4,2,3]"), "final-layout"));
}

/// Ranks with parameter W in a layout.
struct Held {
  ProgramBuilder w;
  runtime::LocalRanks ranks;
  runtime::Store store{ranks};
  TensorId weight;
  Held(int32_t a, int32_t b, const std::string& layout)
      : w({{"a", a}, {"b", b}}), ranks(a * b, kernels::cpu_backend(), {}) {
    weight = w.param("W", f64({13, 5}));
    for_each_class(w, [&] { w.persistent_buffer(weight, graph::parse_layout(layout, w.mesh())); });
    engine::initialise(w.graph, w.program, 5, store);
  }
  const graph::Tensor& tensor() const { return w.graph.tensor(weight); }
};

TEST(WrittenLayouts, CheckpointsDoNotDependOnThem) {
  // Saved from ranks in one layout, loaded into ranks in another one, on other meshes.
  const checkpoint::TempFolder folder;
  const std::string path = folder / "w.safetensors";
  struct On {
    int32_t a, b;
    const char* layout;
  };
  const std::vector<On> all = {{1, 1, "B"},
                               {2, 2, "a:S0 b:S0"},
                               {2, 2, "b:S0 a:S0"},
                               {2, 3, "b:S0 a:S0[1,2,3,1,2,4]"},
                               {3, 2, "a:S1[1,3,1] b:S0[9,4]"},
                               {2, 3, "b:S1[2,1,2]"}};
  const std::vector<std::byte> first = [&] {
    Held held(all[0].a, all[0].b, all[0].layout);
    return engine::gather(held.tensor(), held.w.program, held.store);
  }();
  for (const On& from : all) {
    Held saved(from.a, from.b, from.layout);
    const std::vector<std::byte> whole =
        engine::gather(saved.tensor(), saved.w.program, saved.store);
    EXPECT_TRUE(whole == first) << from.layout << ": initial values depend on the layout";
    checkpoint::save_safetensors(path, {{"W", saved.tensor().type, whole.data()}});
    for (const On& to : all) {
      Held loaded(to.a, to.b, to.layout);
      const checkpoint::TensorFiles file(path);
      const auto entry = file.find("W");
      const auto zero = [](int64_t, int64_t count, void* into) {
        std::memset(into, 0, static_cast<size_t>(count) * 8);
      };
      engine::scatter(loaded.tensor(), loaded.w.program, loaded.store, zero);
      EXPECT_FALSE(engine::gather(loaded.tensor(), loaded.w.program, loaded.store) == whole);
      engine::scatter(loaded.tensor(), loaded.w.program, loaded.store,
                      [&](int64_t begin, int64_t count, void* into) {
                        entry.file->read(*entry.tensor, begin, count, DType::f64, into);
                      });
      EXPECT_TRUE(engine::gather(loaded.tensor(), loaded.w.program, loaded.store) == whole)
          << from.layout << " to " << to.layout;
    }
  }
}

}  // namespace
}  // namespace hocket::test::layouts_test
