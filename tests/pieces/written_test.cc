// SPDX-License-Identifier: Apache-2.0
// Programs that use pieces of tensors as the field's systems do: parts of a sequence that travel
// around a ring, sums in steps, a vocabulary cut over ranks. Each is proven, gives what one rank
// gives, and each of its mutants is refused or gives it too.
#include <gtest/gtest.h>

#include "tests/pieces/written_util.h"

namespace hocket::test {
namespace {

using graph::Attrs;

// --- attention over a split sequence -------------------------------------------------------------

constexpr int64_t kTokens = 24, kHeads = 2, kWidth = 3;

/// The graph of attention, forward and perhaps backward.
struct Attention {
  Written w;
  TensorId q, k, v, positions, o, lse, grad = graph::kNone, dq = 0, dk = 0, dv = 0;
  Attrs attrs;

  Attention(std::vector<graph::Axis> axes, int64_t seq, bool backward) : w(std::move(axes)) {
    attrs = {{"scale", 0.5}, {"seq", seq}};
    const TensorType rows = f64({kTokens, kHeads, kWidth});
    q = w.input("q", rows);
    k = w.input("k", rows);
    v = w.input("v", rows);
    positions = w.input("positions", i32({kTokens}));
    const auto out = w.apply("o", "attention", attrs, {q, k, v, positions});
    o = out[0];
    lse = out[1];
    if (!backward) {
      w.result(o);
      w.result(lse);
      return;
    }
    grad = w.input("do", rows);
    const auto back = w.apply("dq", "attention_bwd", attrs, {grad, q, k, v, o, lse, positions});
    dq = back[0];
    dk = back[1];
    dv = back[2];
    for (TensorId id : back) {
      w.result(id);
    }
  }
};

/// Each goes to the next rank of the ring; what came from the one before takes its place.
void pass_on(Written& w, std::initializer_list<BufferId*> buffers) {
  for (BufferId* buffer : buffers) {
    const BufferId next = w.step(w.type(*buffer));
    w.shift("cp", 1, *buffer, next);
    *buffer = next;
  }
}

/// Keys and values go around; every rank has its queries meet each part in turn. `rounds`: hops
/// that are made, fewer where no sequence reaches further.
Written ring_attention(int32_t ranks, int64_t seq, int32_t rounds, bool backward) {
  Attention a({{"cp", ranks}}, seq, backward);
  Written& w = a.w;
  const Layout rows = w.split(0, {"cp"});
  const int64_t part = kTokens / ranks;
  const BufferId q = w.fed(a.q, rows), positions = w.fed(a.positions, rows);
  BufferId k = w.fed(a.k, rows), v = w.fed(a.v, rows);
  const BufferId o = backward ? w.step(w.type(q)) : w.kept(a.o, rows);
  const BufferId lse = backward ? w.step(f64({part, kHeads})) : w.kept(a.lse, rows);
  const auto mine = [part](const At& at) { return at[0] * part; };
  const auto from = [part, ranks](int32_t hop) {
    return [part, ranks, hop](const At& at) { return (at[0] - hop + ranks) % ranks * part; };
  };
  const BufferId first_k = k, first_v = v;
  const BufferId more_o = w.step(w.type(q)), more_lse = w.step(f64({part, kHeads}));
  for (int32_t hop = 0; hop < rounds; ++hop) {
    if (hop > 0) {
      pass_on(w, {&k, &v});
    }
    const Written::Begins begins{{'t', mine}, {'s', from(hop)}};
    if (hop == 0) {
      w.task("attention", a.attrs, {q, k, v, positions}, {o, lse}, begins);
      continue;
    }
    w.task("attention", a.attrs, {q, k, v, positions}, {more_o, more_lse}, begins);
    w.task("softmax_merge", {}, {o, lse, more_o, more_lse}, {o, lse});
  }
  if (!backward) return w;
  // Gradients of keys and values travel with them, and are at home after a whole round.
  const BufferId grad = w.fed(a.grad, rows);
  const BufferId dq = w.kept(a.dq, rows);
  BufferId dk = w.step(w.type(q)), dv = w.step(w.type(q));
  const BufferId more[] = {w.step(w.type(q)), w.step(w.type(q)), w.step(w.type(q))};
  k = first_k;
  v = first_v;
  for (int32_t hop = 0; hop < ranks; ++hop) {
    const Written::Begins begins{{'t', mine}, {'s', from(hop)}};
    if (hop == 0) {
      w.task("attention_bwd", a.attrs, {grad, q, k, v, o, lse, positions}, {dq, dk, dv}, begins);
    } else {
      w.task("attention_bwd", a.attrs, {grad, q, k, v, o, lse, positions},
             {more[0], more[1], more[2]}, begins);
      w.task("add", {}, {dq, more[0]}, {dq});
      w.task("add", {}, {dk, more[1]}, {dk});
      w.task("add", {}, {dv, more[2]}, {dv});
    }
    const bool last = hop + 1 == ranks;
    const BufferId next_dk = last ? w.kept(a.dk, rows) : w.step(w.type(q));
    const BufferId next_dv = last ? w.kept(a.dv, rows) : w.step(w.type(q));
    w.shift("cp", 1, dk, next_dk);
    w.shift("cp", 1, dv, next_dv);
    dk = next_dk;
    dv = next_dv;
    if (last) break;
    pass_on(w, {&k, &v});
  }
  return w;
}

/// All keys and values on every rank, which has its own queries.
Written gathered_keys(int32_t ranks) {
  Attention a({{"cp", ranks}}, kTokens, false);
  Written& w = a.w;
  const Layout rows = w.split(0, {"cp"});
  const BufferId q = w.fed(a.q, rows), k = w.fed(a.k, rows), v = w.fed(a.v, rows);
  const BufferId all_k = w.step(f64({kTokens, kHeads, kWidth})), all_v = w.step(w.type(all_k));
  w.collective("all_gather", {{"dim", int64_t{0}}}, {"cp"}, {k}, {all_k});
  w.collective("all_gather", {{"dim", int64_t{0}}}, {"cp"}, {v}, {all_v});
  const int64_t part = kTokens / ranks;
  w.task("attention", a.attrs, {q, all_k, all_v, w.fed(a.positions, rows)},
         {w.kept(a.o, rows), w.kept(a.lse, rows)},
         {{'t', [part](const At& at) { return at[0] * part; }}});
  return w;
}

/// Rank c has blocks c and 2n-1-c of the sequence, so that all have as much to do. In every hop but
/// the first, either both halves of its queries meet the early block that came, or the late half
/// meets both: tables say which.
Written zigzag_attention(int32_t ranks) {
  Attention a({{"cp", ranks}}, kTokens, false);
  Written& w = a.w;
  const int64_t half = kTokens / (2 * ranks);
  const auto block = [ranks](int64_t which, int32_t c) {
    return which == 0 ? c : 2 * ranks - 1 - c;
  };
  // The host feeds all; every rank takes its two blocks.
  const auto take = [&](TensorId tensor) {
    const BufferId all = w.fed(tensor);
    TensorType type = w.type(all);
    type.dims[0] = 2 * half;
    const BufferId mine = w.step(type);
    for (int64_t which : {0, 1}) {
      w.task("copy", {},
             {w.part(all, 0, half, [=](const At& at) { return block(which, at[0]) * half; })},
             {w.part(mine, 0, half, which * half)});
    }
    return mine;
  };
  const BufferId q = take(a.q), positions = take(a.positions);
  BufferId k = take(a.k), v = take(a.v);
  const BufferId o = w.step(w.type(q)), lse = w.step(f64({2 * half, kHeads}));
  const BufferId more_o = w.step(f64({half, kHeads, kWidth})),
                 more_lse = w.step(f64({half, kHeads}));
  using Choice = std::function<int64_t(const At&)>;
  const auto meet = [&](int32_t hop, const Choice& queries, const Choice& keys, bool first) {
    const auto row = [half](const Choice& choice) {
      return [half, choice](const At& at) { return choice(at) * half; };
    };
    const auto source = [ranks, hop](const At& at) { return (at[0] - hop + ranks) % ranks; };
    const std::vector<BufferId> in{w.part(q, 0, half, row(queries)), w.part(k, 0, half, row(keys)),
                                   w.part(v, 0, half, row(keys)),
                                   w.part(positions, 0, half, row(queries))};
    const Written::Begins begins{
        {'t', [=](const At& at) { return block(queries(at), at[0]) * half; }},
        {'s',
         [=](const At& at) { return block(keys(at), static_cast<int32_t>(source(at))) * half; }}};
    const BufferId to_o = w.part(o, 0, half, row(queries)),
                   to_lse = w.part(lse, 0, half, row(queries));
    if (first) {
      w.task("attention", a.attrs, in, {to_o, to_lse}, begins);
      return;
    }
    w.task("attention", a.attrs, in, {more_o, more_lse}, begins);
    w.task("softmax_merge", {}, {to_o, to_lse, more_o, more_lse}, {to_o, to_lse});
  };
  const Choice early = [](const At&) { return 0; };
  const Choice late = [](const At&) { return 1; };
  for (int32_t hop = 0; hop < ranks; ++hop) {
    if (hop > 0) {
      pass_on(w, {&k, &v});
    }
    if (hop == 0) {
      meet(hop, early, early, true);
      meet(hop, late, early, true);
      meet(hop, late, late, false);
      continue;
    }
    const Choice either = [hop](const At& at) { return at[0] < hop ? 1 : 0; };
    meet(hop, late, early, false);
    meet(hop, either, either, false);
  }
  // Every rank puts all blocks in order.
  const auto give = [&](BufferId mine, TensorId tensor) {
    TensorType type = w.graph.tensor(tensor).type;
    const BufferId all = w.step(type), to = w.kept(tensor);
    w.collective("all_gather", {{"dim", int64_t{0}}}, {"cp"}, {mine}, {all});
    for (int32_t c = 0; c < ranks; ++c) {
      for (int64_t which : {0, 1}) {
        w.task("copy", {}, {w.part(all, 0, half, (2 * c + which) * half)},
               {w.part(to, 0, half, block(which, c) * half)});
      }
    }
  };
  give(o, a.o);
  give(lse, a.lse);
  return w;
}

// --- sums in steps -------------------------------------------------------------------------------

/// A weight gradient, partial over ranks that have different tokens.
struct Gradient {
  Written w;
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
    mine = w.kept(total);
    w.task("linear_dw", {}, {w.fed(dy, tokens), w.fed(x, tokens)}, {mine});
  }
};

/// Ring: block by block the sums of more and more ranks, then the finished blocks around.
Written ring_all_reduce(int32_t ranks) {
  Gradient g({{"dp", ranks}});
  Written& w = g.w;
  const int64_t rows = 8 / ranks;
  const auto block = [&](int32_t which) {
    return w.part(g.mine, 0, rows,
                  [=](const At& at) { return ((at[0] + which) % ranks + ranks) % ranks * rows; });
  };
  TensorType type = w.type(g.mine);
  type.dims[0] = rows;
  const BufferId arrived = w.step(type);
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
Written halving_doubling() {
  Gradient g({{"a", 2}, {"b", 2}});
  Written& w = g.w;
  const auto rows = [&](int64_t length, const Function& begin) {
    return w.part(g.mine, 0, length, begin);
  };
  const auto step_of = [&](int64_t length) {
    TensorType type = w.type(g.mine);
    type.dims[0] = length;
    return w.step(type);
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

/// Inside a node by blocks, across nodes the sum of each block, inside again: two blocks of rows
/// after each other.
Written two_level_all_reduce() {
  Gradient g({{"node", 2}, {"local", 2}});
  Written& w = g.w;
  for (int64_t chunk : {0, 1}) {
    const BufferId rows = w.part(g.mine, 0, 4, chunk * 4);
    TensorType type = w.type(rows);
    type.dims[0] = 2;
    const BufferId block = w.step(type);
    w.collective("reduce_scatter", {{"dim", int64_t{0}}}, {"local"}, {rows}, {block});
    w.collective("all_reduce", {}, {"node"}, {block}, {block});
    w.collective("all_gather", {{"dim", int64_t{0}}}, {"local"}, {block}, {rows});
  }
  return w;
}

/// A product whose inner dim is cut: the halves of tokens one after the other, each summed at once.
Written chunked_product(int64_t chunks) {
  Written w({{"tp", 2}});
  const TensorId x = w.input("x", f64({12, 6})), weight = w.input("W", f64({5, 6}));
  const TensorId y = w.apply("y", "linear", {}, {x, weight})[0];
  w.result(y);
  const BufferId from = w.fed(x, w.split(1, {"tp"})), by = w.fed(weight, w.split(1, {"tp"}));
  const BufferId to = w.kept(y);
  const int64_t rows = 12 / chunks;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const BufferId part = w.part(to, 0, rows, chunk * rows);
    w.task("linear", {}, {w.part(from, 0, rows, chunk * rows), by}, {part});
    w.collective("all_reduce", {}, {"tp"}, {part}, {part});
  }
  return w;
}

// --- the test ------------------------------------------------------------------------------------

const std::vector<WrittenCase>& cases() {
  static const std::vector<WrittenCase> all = {
      {"ring attention", [] { return ring_attention(4, kTokens, 4, false); }, {"begin"}},
      {"ring attention, two sequences", [] { return ring_attention(4, 12, 4, false); }, {"begin"}},
      {"ring attention, two hops suffice",
       [] { return ring_attention(4, 12, 2, false); },
       {"begin"}},
      {"attention, sequences inside ranks",
       [] { return ring_attention(4, 6, 1, false); },
       {"begin"}},
      {"ring attention and its gradient",
       [] { return ring_attention(3, kTokens, 3, true); },
       {"begin"}},
      {"gathered keys", [] { return gathered_keys(3); }, {"begin"}},
      {"zigzag attention", [] { return zigzag_attention(3); }, {"view", "begin"}},
      {"ring all-reduce", [] { return ring_all_reduce(4); }, {"view"}},
      {"ring all-reduce of two", [] { return ring_all_reduce(2); }, {"view"}},
      {"halving and doubling", halving_doubling, {"view"}},
      {"two-level all-reduce", two_level_all_reduce, {"view"}},
      {"chunked product", [] { return chunked_product(3); }, {"view"}},
  };
  return all;
}

TEST(Written, ProvenRunAndSimulated) { expect_proven_run_simulated(cases()); }
TEST(Written, MutantsAreRefusedOrEqual) { expect_mutants_refused_or_equal(cases()); }

}  // namespace
}  // namespace hocket::test
