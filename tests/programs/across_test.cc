// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Programs of ranks that do not all do the same: attention ranks and expert ranks as two roles of
// different size, with transfers between them, and experts that their ranks do not divide.
#include <gtest/gtest.h>

#include <functional>

#include "base/rng.h"
#include "check/check.h"
#include "program/transfer.h"
#include "tests/programs/program_builder_util.h"

namespace hocket::test::across_test {
namespace {

using graph::Attrs;

constexpr int64_t kTokens = 24, kWidth = 6, kHeads = 2, kHead = 3, kHidden = 4, kTop = 2;

/// The graph of a layer of experts on h, with the gradient of their second weights.
struct Experts {
  int64_t experts;
  TensorId h, weights, ids, counts, row_of, rows, w1, gate_up, hidden, w2, made, z;
  TensorId grad = graph::kNone, grad_rows = 0, grad_weights = 0, grad_w2 = 0;

  Experts(ProgramBuilder& w, TensorId input, int64_t number, bool backward)
      : experts(number), h(input) {
    w.experts = experts;
    const TensorId gate = w.input("gate", f64({experts, kWidth}));
    const TensorId logits = w.apply("logits", "linear", {}, {h, gate})[0];
    const auto routed =
        w.apply("router", "router", {{"top_k", kTop}, {"norm", int64_t{1}}}, {logits});
    weights = routed[0];
    ids = routed[1];
    const auto plan = w.apply("counts", "route_plan", {{"num_experts", experts}}, {ids});
    counts = plan[0];
    row_of = plan[1];
    rows = w.apply("rows", "dispatch", {{"num_experts", experts}}, {h, row_of})[0];
    w1 = w.input("w1", f64({experts, 2, kHidden, kWidth}));
    gate_up = w.apply("gate_up", "grouped_linear", {}, {rows, w1, counts})[0];
    hidden = w.apply("hidden", "swiglu", {}, {gate_up, counts})[0];
    w2 = w.input("w2", f64({experts, kWidth, kHidden}));
    made = w.apply("made", "grouped_linear", {}, {hidden, w2, counts})[0];
    z = w.apply("z", "combine", {}, {made, weights, row_of})[0];
    if (!backward) return;
    grad = w.input("dz", f64({kTokens, kWidth}));
    const auto back = w.apply("dmade", "combine_bwd", {}, {grad, made, weights, row_of});
    grad_rows = back[0];
    grad_weights = back[1];
    grad_w2 = w.apply("dw2", "grouped_linear_dw", {}, {grad_rows, hidden, counts})[0];
    w.result(grad_weights);
    w.result(grad_w2);
  }

  BufferId step_buffer(ProgramBuilder& w, TensorId tensor, const Layout& layout) const {
    return w.step_buffer(w.local(w.graph.tensor(tensor).type, layout));
  }

  /// Adds the tasks of the current class, with tokens and experts split along its axis `ep`: from
  /// its tokens, with their experts and weights, to the experts' results.
  void run(ProgramBuilder& w, BufferId tokens, BufferId chosen, BufferId by, BufferId to) const {
    const Layout by_token = w.split(0, {"ep"}), rows_by_token = w.split(1, {"ep"});
    const Layout by_expert = w.split(0, {"ep"});
    const int64_t ranks = w.mesh().axes[0].size;
    const Attrs number{{"num_experts", experts}};
    const BufferId all = w.step_buffer({DType::i64, {experts}});
    const BufferId places = step_buffer(w, row_of, by_token);
    w.task("route_plan", number, {chosen}, {all, places});
    const BufferId sent = step_buffer(w, rows, rows_by_token);
    w.task("dispatch", number, {tokens, places}, {sent});
    const BufferId sizes = w.step_buffer({DType::i64, {ranks, experts}});
    const BufferId mine = step_buffer(w, counts, by_expert);
    w.collective("size_exchange", {}, {"ep"}, {all}, {sizes, mine});
    const Attrs there{{"from", int64_t{1}}, {"to", int64_t{0}}};
    const Attrs back{{"from", int64_t{0}}, {"to", int64_t{1}}};
    const BufferId came = step_buffer(w, rows, by_expert);
    w.collective("all_to_all", there, {"ep"}, {sent, sizes}, {came});
    const BufferId both = step_buffer(w, gate_up, by_expert),
                   half = step_buffer(w, hidden, by_expert);
    w.task("grouped_linear", {}, {came, w.input_buffer(w1, by_expert), mine}, {both});
    w.task("swiglu", {}, {both, mine}, {half});
    const BufferId done = step_buffer(w, made, by_expert),
                   home = step_buffer(w, made, rows_by_token);
    w.task("grouped_linear", {}, {half, w.input_buffer(w2, by_expert), mine}, {done});
    w.collective("all_to_all", back, {"ep"}, {done, sizes}, {home});
    w.task("combine", {}, {home, by, places}, {to});
    if (grad == graph::kNone) return;
    const BufferId back_rows = step_buffer(w, grad_rows, rows_by_token);
    w.task("combine_bwd", {}, {w.input_buffer(grad, by_token), home, by, places},
           {back_rows, w.output_buffer(grad_weights, by_token)});
    const BufferId back_came = step_buffer(w, grad_rows, by_expert);
    w.collective("all_to_all", there, {"ep"}, {back_rows, sizes}, {back_came});
    w.task("grouped_linear_dw", {}, {back_came, half, mine}, {w.output_buffer(grad_w2, by_expert)});
  }
};

/// Returns a program with attention on `attention` ranks, each with whole sequences, and experts on
/// `ranks` others. Tokens, their experts and weights go there, and the results come back.
ProgramBuilder two_roles(int32_t attention, int32_t ranks, int64_t experts) {
  ProgramBuilder w({{"dp", attention}});
  w.program.roles[0].name = "attention";
  w.current().name = "attention";
  const Attrs attrs{{"scale", 0.5}, {"group", int64_t{1}}, {"seq", kTokens / attention}};
  const TensorId x = w.input("x", f64({kTokens, kWidth}));
  const TensorId positions = w.input("positions", i32({kTokens}));
  std::vector<TensorId> projections, projected;
  for (const char* name : {"q", "k", "v"}) {
    projections.push_back(w.input(std::string("w") + name, f64({kHeads, kHead, kWidth})));
    projected.push_back(w.apply(name, "linear", {}, {x, projections.back()})[0]);
  }
  const TensorId o =
      w.apply("o", "attention", attrs, {projected[0], projected[1], projected[2], positions})[0];
  const TensorId wo = w.input("wo", f64({kWidth, kHeads, kHead}));
  const TensorId y = w.apply("y", "linear", {}, {o, wo})[0];
  const TensorId h = w.apply("h", "add", {}, {x, y})[0];
  const Experts layer(w, h, experts, false);
  const TensorId out = w.apply("out", "add", {}, {h, layer.z})[0];
  w.result(out);

  const Layout tokens = w.split(0, {"dp"});
  const int64_t part = kTokens / attention;
  const auto mine = [part](const At& at) { return at[0] * part; };
  const BufferId fed = w.input_buffer(x, tokens);
  std::vector<BufferId> heads;
  for (size_t i = 0; i < 3; ++i) {
    heads.push_back(layer.step_buffer(w, projected[i], tokens));
    w.task("linear", {}, {fed, w.input_buffer(projections[i])}, {heads.back()});
  }
  const BufferId attended = layer.step_buffer(w, o, tokens);
  w.task("attention", attrs, {heads[0], heads[1], heads[2], w.input_buffer(positions, tokens)},
         {attended, w.step_buffer(f64({part, kHeads}))}, {{'t', mine}, {'s', mine}});
  const BufferId mixed = layer.step_buffer(w, y, tokens), sum = layer.step_buffer(w, h, tokens);
  w.task("linear", {}, {attended, w.input_buffer(wo)}, {mixed});
  w.task("add", {}, {fed, mixed}, {sum});
  const BufferId logits = w.step_buffer(f64({part, experts}));
  const TensorId gate = w.graph.nodes[w.graph.tensor(layer.ids).producer - 1].in[1];
  w.task("linear", {}, {sum, w.input_buffer(gate)}, {logits});
  const BufferId by = layer.step_buffer(w, layer.weights, tokens);
  const BufferId chosen = layer.step_buffer(w, layer.ids, tokens);
  w.task("router", {{"top_k", kTop}, {"norm", int64_t{1}}}, {logits},
         {by, chosen, w.step_buffer(f64({part, experts})), w.step_buffer(f64({experts}))});
  w.send_to(1, sum, h, tokens);
  w.send_to(1, chosen, layer.ids, tokens);
  w.send_to(1, by, layer.weights, tokens);

  // Expert ranks with equal numbers of experts are a class.
  w.add_role("experts", {{"ep", ranks}});
  const int32_t more = static_cast<int32_t>(experts % ranks);
  const auto expert_rank = [&] {
    const Layout local = w.split(0, {"ep"});
    const BufferId came = layer.step_buffer(w, h, local),
                   who = layer.step_buffer(w, layer.ids, local);
    const BufferId weighted = layer.step_buffer(w, layer.weights, local);
    w.receive_from(0, came, h, local);
    w.receive_from(0, who, layer.ids, local);
    w.receive_from(0, weighted, layer.weights, local);
    const BufferId made = layer.step_buffer(w, layer.z, local);
    layer.run(w, came, who, weighted, made);
    w.send_to(0, made, layer.z, local);
  };
  if (more > 0) {
    w.current().box[0] = {0, more};
  }
  expert_rank();
  if (more > 0) {
    program::Box rest;
    rest[0] = {more, ranks - more};
    w.add_class(rest);
    expert_rank();
  }

  w.select(0);
  const BufferId back = layer.step_buffer(w, layer.z, tokens);
  w.receive_from(1, back, layer.z, tokens);
  w.task("add", {}, {sum, back}, {w.output_buffer(out, tokens)});
  return w;
}

/// Returns a program of one role whose ranks do not divide the experts. Ranks with equally many
/// experts form a class.
ProgramBuilder ragged_experts(int32_t ranks, int64_t experts) {
  ProgramBuilder w({{"ep", ranks}});
  const TensorId h = w.input("h", f64({kTokens, kWidth}));
  const Experts layer(w, h, experts, true);
  w.result(layer.z);
  const int32_t more = static_cast<int32_t>(experts % ranks);
  const auto all = [&] {
    const Layout tokens = w.split(0, {"ep"});
    const BufferId fed = w.input_buffer(h, tokens);
    const BufferId logits = w.step_buffer(f64({kTokens / ranks, experts}));
    const TensorId gate = w.graph.nodes[w.graph.tensor(layer.ids).producer - 1].in[1];
    w.task("linear", {}, {fed, w.input_buffer(gate)}, {logits});
    const BufferId by = layer.step_buffer(w, layer.weights, tokens);
    const BufferId chosen = layer.step_buffer(w, layer.ids, tokens);
    w.task("router", {{"top_k", kTop}, {"norm", int64_t{1}}}, {logits},
           {by, chosen, w.step_buffer(w.type(logits)), w.step_buffer(f64({experts}))});
    layer.run(w, fed, chosen, by, w.output_buffer(layer.z, tokens));
  };
  if (more > 0) {
    w.current().box[0] = {0, more};
  }
  all();
  if (more > 0) {
    program::Box rest;
    rest[0] = {more, ranks - more};
    w.add_class(rest);
    all();
  }
  return w;
}

/// A tensor from one role to another, in random layouts on random meshes; every rank is a class.
ProgramBuilder random_transfer(uint64_t seed) {
  Rng rng(seed);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng.next() % static_cast<uint64_t>(high - low + 1));
  };
  const auto mesh = [&] {
    std::vector<graph::Axis> axes;
    for (const char* name : {"a", "b"}) {
      axes.push_back({name, static_cast<int32_t>(between(1, 3))});
    }
    return axes;
  };
  const auto layout = [&] {
    Layout chosen;
    for (int axis = 0; axis < 2; ++axis) {
      const int64_t dim = between(-1, 2);
      if (dim >= 0) {
        chosen.set(axis, graph::Placement::split(static_cast<int>(dim)));
      }
    }
    return chosen;
  };
  ProgramBuilder w(mesh());
  w.program.roles[0].name = "first";
  const TensorId x = w.input("x", f64({between(9, 12), between(9, 12), between(9, 12)}));
  const TensorId y = w.apply("y", "add", {}, {x, x})[0];
  const TensorId z = w.apply("z", "add", {}, {y, x})[0];
  w.result(z);
  // There and back, with a sum on either side.
  const Layout here = layout(), there = layout();
  const auto each_rank = [&](const std::function<void()>& make) {
    const graph::Mesh all = w.mesh();
    for (int32_t rank = 0; rank < all.size(); ++rank) {
      program::Box box;
      for (size_t axis = 0; axis < all.axes.size(); ++axis) {
        box[axis] = {all.coords(rank)[axis], 1};
      }
      if (rank == 0) {
        w.current().box = box;
      } else {
        w.add_class(box);
      }
      make();
    }
  };
  each_rank([&] {
    const BufferId fed = w.input_buffer(x, here), back = w.step_buffer(w.type(fed));
    w.send_to(1, fed, x, here);
    w.receive_from(1, back, y, here);
    w.task("add", {}, {back, fed}, {w.output_buffer(z, here)});
  });
  w.add_role("second", mesh());
  each_rank([&] {
    const BufferId came = w.step_buffer(w.local(w.graph.tensor(x).type, there));
    const BufferId sum = w.step_buffer(w.type(came));
    w.receive_from(0, came, x, there);
    w.task("add", {}, {came, came}, {sum});
    w.send_to(0, sum, y, there);
  });
  return w;
}

const std::vector<ProgramCase>& cases() {
  static const std::vector<ProgramCase> all = {
      {"4 attention ranks, 2 expert ranks", [] { return two_roles(4, 2, 8); }, {"begin", "letter"}},
      {"2 attention ranks, 4 expert ranks", [] { return two_roles(2, 4, 8); }, {"begin"}},
      {"4 attention ranks, 7 experts on 3", [] { return two_roles(4, 3, 7); }, {"begin", "group"}},
      {"7 experts on 2 ranks", [] { return ragged_experts(2, 7); }, {}},
      {"8 experts on 3 ranks", [] { return ragged_experts(3, 8); }, {}},
  };
  return all;
}

std::vector<ProgramCase> random_cases() {
  std::vector<ProgramCase> list;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    list.push_back({"random transfer " + std::to_string(seed),
                    [seed] { return random_transfer(seed); },
                    {"begin", "letter", "buffer-size"}});
  }
  return list;
}

TEST(Across, RandomTransfersAreProvenRunAndSimulated) {
  expect_proven_run_simulated(random_cases());
}
TEST(Across, MutantsOfRandomTransfersAreRefusedOrEqual) {
  expect_mutants_refused_or_equal(random_cases());
}

/// Content of the tensor that goes to another role and back: exact, decoded from a lossy codec, or
/// a flat buffer of two tensors.
enum class Given { exact, decoded, flat };
ProgramBuilder there_and_back(Given given) {
  ProgramBuilder w({{"a", 1}});
  w.program.roles[0].name = "first";
  const TensorId x = w.input("x", f64({kTokens, kWidth})), z = w.apply("z", "add", {}, {x, x})[0];
  w.result(z);
  BufferId from = w.input_buffer(x);
  if (given == Given::decoded) {
    const BufferId codes = w.step_buffer({graph::DType::i8, {kTokens, kWidth}});
    const BufferId scales = w.step_buffer({graph::DType::f32, {kTokens}}),
                   back = w.step_buffer(w.type(from));
    w.task("encode_int8", {}, {from}, {codes, scales});
    w.task("decode_int8", {{"dtype", std::string("f64")}}, {codes, scales}, {back});
    from = back;
  }
  if (given == Given::flat) {
    const TensorType two = f64({2 * kTokens * kWidth});
    const BufferId both = w.step_buffer(two);
    w.task("copy", {}, {from}, {w.flat_view(both, {kTokens, kWidth}, 0)});
    w.task("copy", {}, {from}, {w.flat_view(both, {kTokens, kWidth}, kTokens * kWidth)});
    w.send_to(1, both, x, {});
    w.task("add", {}, {from, from}, {w.output_buffer(z)});
    w.add_role("second", {{"b", 1}});
    w.receive_from(0, w.step_buffer(two), x, {});
  } else {
    const BufferId again = w.step_buffer(w.type(from));
    w.send_to(1, from, x, {});
    w.receive_from(1, again, x, {});
    w.task("add", {}, {again, again}, {w.output_buffer(z)});
    w.add_role("second", {{"b", 1}});
    const BufferId came = w.step_buffer(f64({kTokens, kWidth}));
    w.receive_from(0, came, x, {});
    w.send_to(0, came, x, {});
  }
  w.finish();
  return w;
}

TEST(Across, CodecLossIsReportedOnTheReceivingSide) {
  const ProgramBuilder exact = there_and_back(Given::exact), lossy = there_and_back(Given::decoded);
  const check::Verdict right = check::check(exact.program, exact.graph);
  ASSERT_TRUE(right.ok()) << to_text(right);
  EXPECT_EQ(equality_text(right), "equal to the single-device graph");
  const check::Verdict verdict = check::check(lossy.program, lossy.graph);
  ASSERT_TRUE(verdict.ok()) << to_text(verdict);
  EXPECT_EQ(equality_text(verdict), "equal to the single-device graph up to z: ~int8 of input 'x'");
  EXPECT_NE(to_text(verdict).find("  - z: ~int8 of input 'x'\n"), std::string::npos);
}

TEST(Across, ZerosOfOneRoleAreZerosInTheOther) {
  ProgramBuilder w({{"a", 1}});
  const TensorType type = f64({10});
  const TensorId x = w.input("x", type);
  const TensorId nothing = w.apply("nothing", "zero", {{"type", graph::to_string(type)}}, {})[0];
  const TensorId y = w.apply("y", "add", {}, {x, nothing})[0];
  w.result(y);
  const BufferId made = w.step_buffer(type);
  w.task("zero", {{"type", graph::to_string(type)}}, {}, {made});
  w.send_to(1, made, nothing, {});
  w.add_role("others", {{"b", 2}});
  const BufferId came = w.step_buffer(type);
  w.receive_from(0, came, nothing, {});
  w.task("add", {}, {w.input_buffer(x), came}, {w.output_buffer(y)});
  w.finish();
  const check::Verdict verdict = check::check(w.program, w.graph);
  ASSERT_TRUE(verdict.ok()) << to_text(verdict);
  EXPECT_EQ(equality_text(verdict), "equal to the single-device graph");
}

TEST(Across, OnlyTensorsAreTransferred) {
  const ProgramBuilder flat = there_and_back(Given::flat);
  const check::Verdict verdict = check::check(flat.program, flat.graph);
  ASSERT_FALSE(verdict.ok());
  EXPECT_EQ(verdict.problems[0].rule, "transfer-layout");
  EXPECT_NE(verdict.problems[0].text.find("it is no tensor, but a pack of elements"),
            std::string::npos)
      << to_text(verdict);
}

/// A transfer takes the time of its busiest link: a rank's receives, or a rank's sends to all its
/// receivers.
TEST(Across, ATransferIsAsLongAsItsBusiestLink) {
  const auto traffic = [](const ProgramBuilder& w, program::ClassId cls, bool gives) {
    const auto& tasks = w.program.classes[cls].tasks;
    for (program::TaskId id = 0; id < tasks.size(); ++id) {
      if (w.program.kind(tasks[id]).op != "transfer" || tasks[id].in.empty() == gives) continue;
      return program::Transfers(w.program).of(cls, id).traffic();
    }
    return int64_t{0};
  };
  constexpr int64_t kAll = kTokens * kWidth * 8;
  const ProgramBuilder fewer = two_roles(4, 2, 8), more = two_roles(2, 4, 8);
  EXPECT_EQ(traffic(fewer, 0, true), kAll / 2);   // each of two takes half
  EXPECT_EQ(traffic(fewer, 0, false), kAll / 2);  // each of two gives half
  EXPECT_EQ(traffic(more, 1, false), kAll / 2);
  // One rank sends the whole tensor to each of three.
  ProgramBuilder w({{"a", 1}});
  const TensorId x = w.input("x", f64({10}));
  w.send_to(1, w.input_buffer(x), x, {});
  w.add_role("others", {{"b", 3}});
  w.receive_from(0, w.step_buffer(f64({10})), x, {});
  EXPECT_EQ(traffic(w, 0, true), 3 * 80);
  EXPECT_EQ(traffic(w, 1, false), 3 * 80);
}

TEST(Across, ProvenRunAndSimulated) { expect_proven_run_simulated(cases()); }
TEST(Across, MutantsAreRefusedOrEqual) { expect_mutants_refused_or_equal(cases()); }

}  // namespace
}  // namespace hocket::test::across_test
