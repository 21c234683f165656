// SPDX-License-Identifier: Apache-2.0
// Attention over a sequence that is split over ranks: keys and values that travel around a ring
// (Ring Attention), keys of all ranks on each (as Llama 3 was trained), and the zigzag order, in
// which all ranks have equal work.
#include <gtest/gtest.h>

#include "tests/programs/program_builder_util.h"

namespace hocket::test::attention_test {
namespace {

using graph::Attrs;

constexpr int64_t kTokens = 24, kHeads = 2, kWidth = 3;

/// The graph of attention, forward and perhaps backward.
struct Attention {
  ProgramBuilder w;
  TensorId q, k, v, positions, o, lse, grad = graph::kNone, dq = 0, dk = 0, dv = 0;
  Attrs attrs;

  /// `documents`: several in a sequence, of any length; else one.
  Attention(std::vector<graph::Axis> axes, int64_t seq, bool backward, bool documents = false)
      : w(std::move(axes)) {
    attrs = {{"scale", 0.5}, {"group", int64_t{1}}, {"seq", seq}};
    const TensorType rows = f64({kTokens, kHeads, kWidth});
    q = w.input("q", rows);
    k = w.input("k", rows);
    v = w.input("v", rows);
    positions = w.input(documents ? "documents" : "positions", i32({kTokens}));
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

/// Passes each on to the next rank of the ring; the previous rank's takes its place.
void pass_on(ProgramBuilder& w, std::initializer_list<BufferId*> buffers) {
  for (BufferId* buffer : buffers) {
    const BufferId next = w.step_buffer(w.type(*buffer));
    w.shift("cp", 1, *buffer, next);
    *buffer = next;
  }
}

/// Keys and values go around; every rank has its queries meet each part in turn. `rounds`: hops
/// that are made, fewer where no sequence reaches further.
ProgramBuilder ring_attention(int32_t ranks, int64_t seq, int32_t rounds, bool backward,
                              bool documents = false) {
  Attention a({{"cp", ranks}}, seq, backward, documents);
  ProgramBuilder& w = a.w;
  const Layout rows = w.split(0, {"cp"});
  const int64_t part = kTokens / ranks;
  const BufferId q = w.input_buffer(a.q, rows), positions = w.input_buffer(a.positions, rows);
  BufferId k = w.input_buffer(a.k, rows), v = w.input_buffer(a.v, rows);
  const BufferId o = backward ? w.step_buffer(w.type(q)) : w.output_buffer(a.o, rows);
  const BufferId lse = backward ? w.step_buffer(f64({part, kHeads})) : w.output_buffer(a.lse, rows);
  const auto mine = [part](const At& at) { return at[0] * part; };
  const auto from = [part, ranks](int32_t hop) {
    return [part, ranks, hop](const At& at) { return (at[0] - hop + ranks) % ranks * part; };
  };
  const BufferId first_k = k, first_v = v;
  const BufferId more_o = w.step_buffer(w.type(q)), more_lse = w.step_buffer(f64({part, kHeads}));
  for (int32_t hop = 0; hop < rounds; ++hop) {
    if (hop > 0) {
      pass_on(w, {&k, &v});
    }
    const ProgramBuilder::PieceOffsets offsets{{'t', mine}, {'s', from(hop)}};
    if (hop == 0) {
      w.task("attention", a.attrs, {q, k, v, positions}, {o, lse}, offsets);
      continue;
    }
    w.task("attention", a.attrs, {q, k, v, positions}, {more_o, more_lse}, offsets);
    w.task("softmax_merge", {}, {o, lse, more_o, more_lse}, {o, lse});
  }
  if (!backward) return w;
  // Gradients of keys and values travel with them, and are at home after a whole round.
  const BufferId grad = w.input_buffer(a.grad, rows);
  const BufferId dq = w.output_buffer(a.dq, rows);
  BufferId dk = w.step_buffer(w.type(q)), dv = w.step_buffer(w.type(q));
  const BufferId more[] = {w.step_buffer(w.type(q)), w.step_buffer(w.type(q)),
                           w.step_buffer(w.type(q))};
  k = first_k;
  v = first_v;
  for (int32_t hop = 0; hop < ranks; ++hop) {
    const ProgramBuilder::PieceOffsets offsets{{'t', mine}, {'s', from(hop)}};
    if (hop == 0) {
      w.task("attention_bwd", a.attrs, {grad, q, k, v, o, lse, positions}, {dq, dk, dv}, offsets);
    } else {
      w.task("attention_bwd", a.attrs, {grad, q, k, v, o, lse, positions},
             {more[0], more[1], more[2]}, offsets);
      w.task("add", {}, {dq, more[0]}, {dq});
      w.task("add", {}, {dk, more[1]}, {dk});
      w.task("add", {}, {dv, more[2]}, {dv});
    }
    const bool last = hop + 1 == ranks;
    const BufferId next_dk = last ? w.output_buffer(a.dk, rows) : w.step_buffer(w.type(q));
    const BufferId next_dv = last ? w.output_buffer(a.dv, rows) : w.step_buffer(w.type(q));
    w.shift("cp", 1, dk, next_dk);
    w.shift("cp", 1, dv, next_dv);
    dk = next_dk;
    dv = next_dv;
    if (last) break;
    pass_on(w, {&k, &v});
  }
  return w;
}

/// All keys and values on every rank, which has its own queries. Their gradients are sums over the
/// queries of all ranks, reduce-scattered so that each gets those of its own keys.
ProgramBuilder gathered_keys(int32_t ranks, bool backward) {
  Attention a({{"cp", ranks}}, kTokens, backward, true);
  ProgramBuilder& w = a.w;
  const Layout rows = w.split(0, {"cp"});
  const BufferId q = w.input_buffer(a.q, rows), k = w.input_buffer(a.k, rows),
                 v = w.input_buffer(a.v, rows);
  const BufferId all_k = w.step_buffer(f64({kTokens, kHeads, kWidth})),
                 all_v = w.step_buffer(w.type(all_k));
  const Attrs along{{"dim", int64_t{0}}};
  w.collective("all_gather", along, {"cp"}, {k}, {all_k});
  w.collective("all_gather", along, {"cp"}, {v}, {all_v});
  const int64_t part = kTokens / ranks;
  const BufferId positions = w.input_buffer(a.positions, rows);
  const BufferId o = backward ? w.step_buffer(w.type(q)) : w.output_buffer(a.o, rows);
  const BufferId lse = backward ? w.step_buffer(f64({part, kHeads})) : w.output_buffer(a.lse, rows);
  const ProgramBuilder::PieceOffsets offsets{{'t', [part](const At& at) { return at[0] * part; }}};
  w.task("attention", a.attrs, {q, all_k, all_v, positions}, {o, lse}, offsets);
  if (!backward) return w;
  const BufferId dk = w.step_buffer(w.type(all_k)), dv = w.step_buffer(w.type(all_k));
  w.task("attention_bwd", a.attrs,
         {w.input_buffer(a.grad, rows), q, all_k, all_v, o, lse, positions},
         {w.output_buffer(a.dq, rows), dk, dv}, offsets);
  w.collective("reduce_scatter", along, {"cp"}, {dk}, {w.output_buffer(a.dk, rows)});
  w.collective("reduce_scatter", along, {"cp"}, {dv}, {w.output_buffer(a.dv, rows)});
  return w;
}

/// Rank c has blocks c and 2n-1-c of the sequence, so that all have equal work. In every hop but
/// the first, either both halves of its queries attend to the received early block, or the late
/// half attends to both: tables give the case.
class Zigzag {
 public:
  explicit Zigzag(int32_t ranks, bool backward)
      : a_({{"cp", ranks}}, kTokens, backward, true),
        w_(a_.w),
        ranks_(ranks),
        half_(kTokens / (2 * ranks)) {}

  ProgramBuilder forward() {
    attend();
    give(o_, a_.o);
    give(lse_, a_.lse);
    return std::move(w_);
  }

  /// Gradients of keys and values travel with them, and are at home after a whole round.
  ProgramBuilder backward() {
    attend();
    const BufferId grad = take(a_.grad);
    const BufferId dq = like(q_);
    BufferId k = k_, v = v_, dk = like(q_), dv = like(q_);
    for (int32_t hop = 0; hop < ranks_; ++hop) {
      for (const Meeting& m : meetings(hop)) {
        const BufferId more[] = {rows_of(half_), rows_of(half_), rows_of(half_)};
        const BufferId queries[] = {part(grad, m.queries), part(q_, m.queries)};
        const BufferId keys[] = {part(k, m.keys), part(v, m.keys)};
        w_.task("attention_bwd", a_.attrs,
                {queries[0], queries[1], keys[0], keys[1], part(o_, m.queries),
                 part(lse_, m.queries), part(positions_, m.queries)},
                {more[0], more[1], more[2]}, offsets(hop, m));
        const BufferId to[] = {part(dq, m.queries), part(dk, m.keys), part(dv, m.keys)};
        for (int i : {0, 1, 2}) {
          const bool first = i == 0 ? m.first_of_queries : m.first_of_keys;
          if (first) {
            w_.task("copy", {}, {more[i]}, {to[i]});
          } else {
            w_.task("add", {}, {to[i], more[i]}, {to[i]});
          }
        }
      }
      // In halves, which are sums over different queries.
      for (BufferId* gradient : {&dk, &dv}) {
        const BufferId next = like(*gradient);
        for (int64_t which : {0, 1}) {
          const Choice half = [which](const At&) { return which; };
          w_.shift("cp", 1, part(*gradient, half), part(next, half));
        }
        *gradient = next;
      }
      if (hop + 1 < ranks_) {
        pass_on(w_, {&k, &v});
      }
    }
    give(dq, a_.dq);
    give(dk, a_.dk);
    give(dv, a_.dv);
    return std::move(w_);
  }

 private:
  /// 0 or 1, by rank: the early or the late block.
  using Choice = std::function<int64_t(const At&)>;
  /// A block of queries that meets one of keys, and whether either meets anything for the first
  /// time.
  struct Meeting {
    Choice queries, keys;
    bool first_of_queries, first_of_keys;
  };

  std::vector<Meeting> meetings(int32_t hop) const {
    const Choice early = [](const At&) { return 0; };
    const Choice late = [](const At&) { return 1; };
    if (hop == 0) {
      return {{early, early, true, true}, {late, early, true, false}, {late, late, false, true}};
    }
    const Choice either = [hop](const At& at) { return at[0] < hop ? 1 : 0; };
    return {{late, early, false, false}, {either, either, false, false}};
  }

  /// The blocks that a rank has, by number.
  int64_t block(int64_t which, int64_t c) const { return which == 0 ? c : 2 * ranks_ - 1 - c; }
  ProgramBuilder::PieceOffsets offsets(int32_t hop, const Meeting& m) const {
    const auto first = [ranks = ranks_, half = half_](int64_t which, int64_t c) {
      return (which == 0 ? c : 2 * ranks - 1 - c) * half;
    };
    return {{'t', [first, m](const At& at) { return first(m.queries(at), at[0]); }},
            {'s', [first, m, hop, ranks = ranks_](const At& at) {
               return first(m.keys(at), (at[0] - hop + ranks) % ranks);
             }}};
  }
  BufferId part(BufferId of, const Choice& which) {
    const int64_t half = half_;
    return w_.view(of, 0, half, [half, which](const At& at) { return which(at) * half; });
  }
  BufferId like(BufferId other) { return w_.step_buffer(TensorType(w_.type(other))); }
  BufferId rows_of(int64_t rows) { return w_.step_buffer(f64({rows, kHeads, kWidth})); }

  /// The host feeds all; every rank takes its two blocks.
  BufferId take(TensorId tensor) {
    const BufferId all = w_.input_buffer(tensor);
    TensorType type = w_.type(all);
    type.dims[0] = 2 * half_;
    const BufferId mine = w_.step_buffer(type);
    for (int64_t which : {0, 1}) {
      const auto from = [=, ranks = ranks_, half = half_](const At& at) {
        return (which == 0 ? at[0] : 2 * ranks - 1 - at[0]) * half;
      };
      w_.task("copy", {}, {w_.view(all, 0, half_, from)}, {w_.view(mine, 0, half_, which * half_)});
    }
    return mine;
  }
  /// Every rank puts all blocks in order.
  void give(BufferId mine, TensorId tensor) {
    const BufferId all = w_.step_buffer(w_.graph.tensor(tensor).type),
                   to = w_.output_buffer(tensor);
    w_.collective("all_gather", {{"dim", int64_t{0}}}, {"cp"}, {mine}, {all});
    for (int32_t c = 0; c < ranks_; ++c) {
      for (int64_t which : {0, 1}) {
        w_.task("copy", {}, {w_.view(all, 0, half_, (2 * c + which) * half_)},
                {w_.view(to, 0, half_, block(which, c) * half_)});
      }
    }
  }

  void attend() {
    q_ = take(a_.q);
    positions_ = take(a_.positions);
    k_ = take(a_.k);
    v_ = take(a_.v);
    o_ = like(q_);
    lse_ = w_.step_buffer(f64({2 * half_, kHeads}));
    const BufferId more_o = rows_of(half_), more_lse = w_.step_buffer(f64({half_, kHeads}));
    BufferId k = k_, v = v_;
    for (int32_t hop = 0; hop < ranks_; ++hop) {
      if (hop > 0) {
        pass_on(w_, {&k, &v});
      }
      for (const Meeting& m : meetings(hop)) {
        const std::vector<BufferId> in{part(q_, m.queries), part(k, m.keys), part(v, m.keys),
                                       part(positions_, m.queries)};
        const BufferId to_o = part(o_, m.queries), to_lse = part(lse_, m.queries);
        if (m.first_of_queries) {
          w_.task("attention", a_.attrs, in, {to_o, to_lse}, offsets(hop, m));
          continue;
        }
        w_.task("attention", a_.attrs, in, {more_o, more_lse}, offsets(hop, m));
        w_.task("softmax_merge", {}, {to_o, to_lse, more_o, more_lse}, {to_o, to_lse});
      }
    }
  }

  Attention a_;
  ProgramBuilder& w_;
  int32_t ranks_;
  int64_t half_;
  BufferId q_ = 0, k_ = 0, v_ = 0, positions_ = 0, o_ = 0, lse_ = 0;
};

const std::vector<ProgramCase>& cases() {
  static const std::vector<ProgramCase> all = {
      {"ring attention", [] { return ring_attention(4, kTokens, 4, false); }, {"begin", "merge"}},
      // With two sequences, every other hop brings keys that no query needs: parts of length zero.
      {"ring attention, two sequences",
       [] { return ring_attention(4, 12, 4, false); },
       {"begin", "merge"}},
      {"ring attention, two hops suffice",
       [] { return ring_attention(4, 12, 2, false); },
       {"begin"}},
      {"attention, sequences inside ranks",
       [] { return ring_attention(4, 6, 1, false); },
       {"begin"}},
      {"ring attention, packed documents",
       [] { return ring_attention(4, kTokens, 4, false, true); },
       {"begin"}},
      {"ring attention and its gradient",
       [] { return ring_attention(3, kTokens, 3, true, true); },
       {"begin"}},
      {"ring attention of two sequences and its gradient",
       [] { return ring_attention(4, 12, 4, true); },
       {"begin", "merge"}},
      {"gathered keys", [] { return gathered_keys(3, false); }, {"begin"}},
      {"gathered keys and their gradient", [] { return gathered_keys(3, true); }, {"begin"}},
      {"zigzag attention", [] { return Zigzag(3, false).forward(); }, {"view", "begin"}},
      {"zigzag attention and its gradient",
       [] { return Zigzag(3, true).backward(); },
       {"view", "begin"}},
  };
  return all;
}

TEST(SplitAttention, ProvenRunAndSimulated) { expect_proven_run_simulated(cases()); }
TEST(SplitAttention, MutantsAreRefusedOrEqual) { expect_mutants_refused_or_equal(cases()); }

}  // namespace
}  // namespace hocket::test::attention_test
