// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Every collective on every kind of value: the check accepts exactly the layouts that the op's
// movement needs, and derives the layouts that it yields. New ops are tested automatically.
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "tests/check/rules_util.h"

namespace hocket::check {
namespace {

using graph::Placement;
using test::Edit;

/// A value of an MoE program, and its layout on the innermost axis, `ep`.
struct Value {
  const char* name;
  program::BufferId buffer;
  Placement placement;
};

std::vector<Value> values(Edit& e) {
  return {{"tokens", e.named("tokens", 0), Placement::split(0)},
          {"a weight", e.named("model.norm.weight"), Placement::replicate()},
          {"sums of probabilities", e.task("router").out[3], Placement::partial()},
          {"row counts", e.task("route_plan").out[0], Placement::partial()},
          {"rows by token", e.task("dispatch").out[0], Placement::split(1)},
          {"rows by expert", e.task("all_to_all").out[0], Placement::split(0)},
          {"an activation", e.task("embedding").out[0], Placement::split(0)}};
}

/// Returns the attributes of an op for all combinations of 0 and 1 as dims.
std::vector<graph::Attrs> all_attrs(const comm::Op& op) {
  std::vector<graph::Attrs> list{{}};
  for (const char* name : {op.move.slot_dim, op.move.part_dim}) {
    if (!name) continue;
    std::vector<graph::Attrs> longer;
    for (const graph::Attrs& attrs : list) {
      for (int64_t dim : {0, 1}) {
        longer.push_back(attrs);
        longer.back().set(name, dim);
      }
    }
    list = longer;
  }
  return list;
}

TEST(Collectives, AreAcceptedExactlyWhereTheirMovementFits) {
  for (const comm::Op* op : comm::all()) {
    if (op->role != comm::Role::collective) continue;
    int taken = 0, refused = 0;
    for (const graph::Attrs& attrs : all_attrs(*op)) {
      for (size_t v = 0; v < 7; ++v) {
        Edit e(test::four_experts());
        const Value value = values(e)[v];
        const program::TaskId after = e.find("all_to_all") + 1;
        std::vector<program::BufferId> in{value.buffer}, out;
        if (op->needs_sizes) {
          in.push_back(e.task("size_exchange").out[0]);
        }
        std::vector<graph::TensorType> types, made;
        for (program::BufferId b : in) {
          types.push_back(e.buffer(b).type);
        }
        try {
          made = comm::infer(*op, attrs, types, 2);
        } catch (const Error&) {
          continue;  // the op does not take such a tensor
        }
        for (const graph::TensorType& t : made) {
          out.push_back(e.add_buffer(t));
        }
        e.insert(after, e.make_collective(op->name, attrs, {e.axis("ep")}, in, out));
        e.replan();
        const bool counts = std::string(value.name) == "row counts";
        const bool fits =
            value.placement == comm::before(*op, attrs) && (!op->makes_sizes || counts);
        const Verdict verdict = e.check();
        EXPECT_EQ(verdict.ok(), fits)
            << op->name << to_string(attrs) << " of " << value.name << "\n"
            << to_text(verdict);
        ++(fits ? taken : refused);
      }
    }
    EXPECT_GT(taken, 0) << op->name;
    // Rows and row counts in wrong layouts are refused by their types already.
    if (op->takes == comm::Takes::any || op->takes == comm::Takes::dense) {
      EXPECT_GT(refused, 0) << op->name;
    }
  }
}

}  // namespace
}  // namespace hocket::check
