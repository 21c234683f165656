// SPDX-License-Identifier: Apache-2.0
// A mixture-of-experts layer in other orders than one exchange there and one back: in chunks of
// tokens, equally many forward and backward or not (Tutel, FSMoE), and through two levels of a
// machine.
#include <gtest/gtest.h>

#include "tests/programs/program_builder_util.h"

namespace hocket::test::moe_test {
namespace {

using graph::Attrs;

constexpr int64_t kTokens = 24, kExperts = 4, kWidth = 3, kInner = 2;
constexpr int32_t kTopK = 2;
const Attrs kRouting{{"num_experts", kExperts}};

/// Rows [E,T,F] of a number of tokens.
TensorType routed(int64_t experts, int64_t tokens, int64_t width) {
  return {DType::f64, {experts, tokens, width}, kTopK};
}

/// The layer on one device: two grouped products, forward and backward.
struct Layer {
  ProgramBuilder w;
  TensorId x, experts, weights, first, second, dy;
  TensorId y, d_weights, d_first, d_second, dx;

  explicit Layer(std::vector<graph::Axis> axes) : w(std::move(axes)) {
    x = w.input("x", f64({kTokens, kWidth}));
    experts = w.input("experts", i32({kTokens, kTopK}));
    weights = w.input("weights", f64({kTokens, kTopK}));
    first = w.input("W1", f64({kExperts, kInner, kWidth}));
    second = w.input("W2", f64({kExperts, kWidth, kInner}));
    dy = w.input("dy", f64({kTokens, kWidth}));
    const auto plan = w.apply("plan", "route_plan", kRouting, {experts});
    const TensorId counts = plan[0], row_of = plan[1];
    const TensorId rows = w.apply("rows", "dispatch", kRouting, {x, row_of})[0];
    const TensorId h = w.apply("h", "grouped_linear", {}, {rows, first, counts})[0];
    const TensorId out = w.apply("out", "grouped_linear", {}, {h, second, counts})[0];
    y = w.apply("y", "combine", {}, {out, weights, row_of})[0];
    const auto back = w.apply("d_out", "combine_bwd", {}, {dy, out, weights, row_of});
    d_weights = back[1];
    const TensorId dh = w.apply("dh", "grouped_linear_dx", {}, {back[0], second, counts})[0];
    d_second = w.apply("dW2", "grouped_linear_dw", {}, {back[0], h, counts})[0];
    const TensorId d_rows = w.apply("d_rows", "grouped_linear_dx", {}, {dh, first, counts})[0];
    d_first = w.apply("dW1", "grouped_linear_dw", {}, {dh, rows, counts})[0];
    dx = w.apply("dx", "dispatch_bwd", {}, {d_rows, row_of})[0];
    for (TensorId id : {y, d_weights, d_first, d_second, dx}) {
      w.result(id);
    }
  }
};

/// Tokens over edp x ep ranks, experts over ep, everything chunk by chunk of the rank's tokens.
class Chunked {
 public:
  Chunked(int32_t edp, int32_t ep, int64_t forward, int64_t backward)
      : layer_({{"edp", edp}, {"ep", ep}}),
        w_(layer_.w),
        ep_(ep),
        tokens_(kTokens / (edp * ep)),
        forward_(forward),
        backward_(backward) {}

  ProgramBuilder program() {
    // Writes the forward pass chunk by chunk. Tensors kept for the backward pass come in its own
    // chunks: the same ones, or regrouped by the sizes of both. Rows of a rank's own tokens are
    // regrouped by the sizes of an exchange with itself.
    const Layout by_token = w_.split(0, {"edp", "ep"}), by_expert = w_.split(0, {"ep"});
    x_ = w_.input_buffer(layer_.x, by_token);
    experts_ = w_.input_buffer(layer_.experts, by_token);
    weights_ = w_.input_buffer(layer_.weights, by_token);
    first_ = w_.input_buffer(layer_.first, by_expert);
    second_ = w_.input_buffer(layer_.second, by_expert);
    dy_ = w_.input_buffer(layer_.dy, by_token);
    const BufferId y = w_.output_buffer(layer_.y, by_token);
    std::vector<Chunk> chunks;
    for (int64_t c = 0; c < forward_; ++c) {
      Chunk chunk = plan(c, forward_);
      const BufferId rows = w_.step_buffer(routed(kExperts, chunk.tokens, kWidth));
      w_.task("dispatch", kRouting, {chunk.part(x_), chunk.row_of}, {rows});
      chunk.rows = exchange(chunk, rows, true);
      chunk.h = w_.step_buffer(routed(kExperts / ep_, chunk.tokens * ep_, kInner));
      const BufferId out = w_.step_buffer(w_.type(chunk.rows));
      w_.task("grouped_linear", {}, {chunk.rows, first_, chunk.counts}, {chunk.h});
      w_.task("grouped_linear", {}, {chunk.h, second_, chunk.counts}, {out});
      chunk.out = exchange(chunk, out, false);
      w_.task("combine", {}, {chunk.out, chunk.part(weights_), chunk.row_of}, {chunk.part(y)});
      chunks.push_back(std::move(chunk));
    }
    if (backward_ != forward_) {
      chunks = regrouped(chunks);
    }
    const BufferId d_weights = w_.output_buffer(layer_.d_weights, by_token);
    const BufferId dx = w_.output_buffer(layer_.dx, by_token);
    const BufferId d_first = w_.output_buffer(layer_.d_first, by_expert);
    const BufferId d_second = w_.output_buffer(layer_.d_second, by_expert);
    for (const Chunk& chunk : chunks) {
      const BufferId d_out = w_.step_buffer(w_.type(chunk.out));
      w_.task("combine_bwd", {}, {chunk.part(dy_), chunk.out, chunk.part(weights_), chunk.row_of},
              {d_out, chunk.part(d_weights)});
      const BufferId there = exchange(chunk, d_out, true);
      const BufferId dh = w_.step_buffer(w_.type(chunk.h)),
                     d_rows = w_.step_buffer(w_.type(chunk.rows));
      w_.task("grouped_linear_dx", {}, {there, second_, chunk.counts}, {dh});
      add_to(d_second,
             w_.task("grouped_linear_dw", {}, {there, chunk.h, chunk.counts}, {d_second}));
      w_.task("grouped_linear_dx", {}, {dh, first_, chunk.counts}, {d_rows});
      add_to(d_first, w_.task("grouped_linear_dw", {}, {dh, chunk.rows, chunk.counts}, {d_first}));
      w_.task("dispatch_bwd", {}, {exchange(chunk, d_rows, false), chunk.row_of}, {chunk.part(dx)});
    }
    w_.collective("all_reduce", {}, {"edp"}, {d_first, d_second}, {d_first, d_second});
    return std::move(w_);
  }

 private:
  /// A part of a rank's tokens, the place of their rows, and the tensors kept of them.
  struct Chunk {
    int64_t tokens = 0;
    std::function<BufferId(BufferId)> part;  ///< of a tensor by token
    BufferId row_of, own_counts, sizes, counts;
    BufferId rows, h, out;
  };

  /// The routing of a chunk, and the sizes of its exchange.
  Chunk plan(int64_t number, int64_t of) {
    Chunk chunk;
    chunk.tokens = tokens_ / of;
    chunk.part = [this, number, length = chunk.tokens](BufferId buffer) {
      return w_.view(buffer, 0, length, number * length);
    };
    chunk.own_counts = w_.step_buffer({DType::i64, {kExperts}});
    chunk.row_of = w_.step_buffer(i32({chunk.tokens, kTopK}));
    w_.task("route_plan", kRouting, {chunk.part(experts_)}, {chunk.own_counts, chunk.row_of});
    chunk.sizes = w_.step_buffer({DType::i64, {ep_, kExperts}});
    chunk.counts = w_.step_buffer({DType::i64, {kExperts / ep_}});
    w_.collective("size_exchange", {}, {"ep"}, {chunk.own_counts}, {chunk.sizes, chunk.counts});
    return chunk;
  }
  /// To the experts or back.
  BufferId exchange(const Chunk& chunk, BufferId rows, bool there) {
    const TensorType& type = w_.type(rows);
    const int64_t experts = there ? kExperts / ep_ : kExperts;
    const BufferId to =
        w_.step_buffer(routed(experts, there ? chunk.tokens * ep_ : chunk.tokens, type.dims[2]));
    const Attrs attrs{{"from", int64_t{there}}, {"to", int64_t{!there}}};
    w_.collective("all_to_all", attrs, {"ep"}, {rows, chunk.sizes}, {to});
    return to;
  }
  std::vector<Chunk> regrouped(const std::vector<Chunk>& from) {
    std::vector<Chunk> to;
    for (int64_t c = 0; c < backward_; ++c) {
      to.push_back(plan(c, backward_));
    }
    const Attrs attrs{{"from", forward_}, {"to", backward_}};
    // `sizes`: of the exchange that placed the rows.
    const auto regroup = [&](BufferId Chunk::*rows, BufferId Chunk::*sizes,
                             const ProgramBuilder::PieceOffsets& offsets) {
      std::vector<BufferId> in, out;
      for (const Chunk& chunk : from) {
        in.push_back(chunk.*rows);
      }
      for (const Chunk& chunk : from) {
        in.push_back(chunk.*sizes);
      }
      for (Chunk& chunk : to) {
        in.push_back(chunk.*sizes);
        TensorType type = w_.type(from[0].*rows);
        type.dims[1] = type.dims[1] * forward_ / backward_;
        chunk.*rows = w_.step_buffer(type);
        out.push_back(chunk.*rows);
      }
      w_.task("regroup", attrs, in, out, offsets);
    };
    const int64_t local = kExperts / ep_;
    const ProgramBuilder::PieceOffsets mine{{'e', [local](const At& at) { return at[1] * local; }}};
    regroup(&Chunk::rows, &Chunk::sizes, mine);
    regroup(&Chunk::h, &Chunk::sizes, mine);
    // Chunks of a rank's own tokens.
    std::vector<Chunk> own_from = from;
    for (std::vector<Chunk>* list : {&own_from, &to}) {
      for (Chunk& chunk : *list) {
        const BufferId sizes = w_.step_buffer({DType::i64, {1, kExperts}});
        const BufferId counts = w_.step_buffer({DType::i64, {kExperts}});
        w_.collective("size_exchange", {}, {}, {chunk.own_counts}, {sizes, counts});
        chunk.own_counts = sizes;
      }
    }
    std::vector<BufferId> in, out;
    for (const Chunk& chunk : own_from) {
      in.push_back(chunk.out);
    }
    for (const Chunk& chunk : own_from) {
      in.push_back(chunk.own_counts);
    }
    for (Chunk& chunk : to) {
      in.push_back(chunk.own_counts);
      chunk.out = w_.step_buffer(routed(kExperts, chunk.tokens, kWidth));
      out.push_back(chunk.out);
    }
    w_.task("regroup", attrs, in, out);
    return to;
  }
  /// The first chunk writes a gradient, the others add to it.
  void add_to(BufferId gradient, program::Task& task) {
    if (!written_.insert(gradient).second) {
      task.accumulate.add(0);
    }
  }

  Layer layer_;
  ProgramBuilder& w_;
  int64_t ep_, tokens_, forward_, backward_;
  std::set<BufferId> written_;
  BufferId x_ = 0, experts_ = 0, weights_ = 0, first_ = 0, second_ = 0, dy_ = 0;
};

ProgramBuilder chunked(int32_t edp, int32_t ep, int64_t forward, int64_t backward) {
  return Chunked(edp, ep, forward, backward).program();
}

/// Rows travel to their experts in two levels. First among the ranks of a node, where each gets the
/// rows for its number on all nodes; then among the ranks of that number; and back.
ProgramBuilder two_levels() {
  Layer layer({{"node", 2}, {"local", 2}});
  ProgramBuilder& w = layer.w;
  const Layout by_token = w.split(0, {"node", "local"});
  const int64_t tokens = kTokens / 4;
  w.graph.outputs = {layer.y};
  const BufferId own_counts = w.step_buffer({DType::i64, {kExperts}});
  const BufferId row_of = w.step_buffer(i32({tokens, kTopK}));
  w.task("route_plan", kRouting, {w.input_buffer(layer.experts, by_token)}, {own_counts, row_of});
  const Attrs outer{{"outer", int64_t{2}}};
  const BufferId inside = w.step_buffer({DType::i64, {2, kExperts}});
  const BufferId half_counts = w.step_buffer({DType::i64, {kExperts / 2}});
  w.collective("size_exchange", outer, {"local"}, {own_counts}, {inside, half_counts});
  const BufferId across = w.step_buffer({DType::i64, {2, kExperts / 2}});
  const BufferId counts = w.step_buffer({DType::i64, {kExperts / 4}});
  w.collective("size_exchange", {}, {"node"}, {half_counts}, {across, counts});
  const auto exchange = [&](bool there, bool in_node, BufferId rows) {
    TensorType type = w.type(rows);
    type.dims[0] = there ? type.dims[0] / 2 : type.dims[0] * 2;
    type.dims[1] = there ? type.dims[1] * 2 : type.dims[1] / 2;
    const BufferId to = w.step_buffer(type);
    Attrs attrs{{"from", int64_t{there}}, {"to", int64_t{!there}}};
    if (in_node) {
      attrs.set("outer", int64_t{2});
    }
    w.collective("all_to_all", attrs, {in_node ? "local" : "node"},
                 {rows, in_node ? inside : across}, {to});
    return to;
  };
  const BufferId rows = w.step_buffer(routed(kExperts, tokens, kWidth));
  w.task("dispatch", kRouting, {w.input_buffer(layer.x, by_token), row_of}, {rows});
  const BufferId there = exchange(true, false, exchange(true, true, rows));
  const BufferId h = w.step_buffer(routed(1, kTokens, kInner)), out = w.step_buffer(w.type(there));
  // Rank (node, local) has expert 2 node + local.
  const Layout by_expert = w.split(0, {"node", "local"});
  w.task("grouped_linear", {}, {there, w.input_buffer(layer.first, by_expert), counts}, {h});
  w.task("grouped_linear", {}, {h, w.input_buffer(layer.second, by_expert), counts}, {out});
  const BufferId back = exchange(false, true, exchange(false, false, out));
  w.task("combine", {}, {back, w.input_buffer(layer.weights, by_token), row_of},
         {w.output_buffer(layer.y, by_token)});
  return std::move(w);
}

const std::vector<ProgramCase>& cases() {
  static const std::vector<ProgramCase> all = {
      {"one chunk", [] { return chunked(1, 2, 1, 1); }},
      {"two chunks", [] { return chunked(2, 2, 2, 2); }, {"view"}},
      {"three chunks", [] { return chunked(1, 4, 3, 3); }, {"view"}},
      {"four chunks over one rank", [] { return chunked(1, 1, 4, 4); }, {"view"}},
      {"three chunks, two backward", [] { return chunked(1, 2, 3, 2); }, {"view", "begin"}},
      {"one chunk, three backward", [] { return chunked(1, 4, 1, 3); }, {"view", "begin"}},
      {"two chunks, one backward", [] { return chunked(2, 2, 2, 1); }, {"view", "begin"}},
      {"two levels of exchange", two_levels},
      {"three chunks, four backward", [] { return chunked(1, 2, 3, 4); }, {"view", "begin"}},
  };
  return all;
}

TEST(ChunkedExperts, ProvenRunAndSimulated) { expect_proven_run_simulated(cases()); }
TEST(ChunkedExperts, MutantsAreRefusedOrEqual) { expect_mutants_refused_or_equal(cases()); }

}  // namespace
}  // namespace hocket::test::moe_test
