// SPDX-License-Identifier: Apache-2.0
// Implements: collective_cases (rules_util.h), faults of reductions, gathers, scatters, exchanges
// and transfers: values in layouts that they can't take.
#include "collectives/comm_op.h"
#include "tests/check/rules_util.h"

namespace hocket::check::test {
namespace {

graph::TensorType i64(graph::Dims dims) { return {graph::DType::i64, std::move(dims)}; }

/// The tasks around the first exchange of an MoE program. Collectives are inserted after the
/// exchange, where all operands are still alive; then the memory is planned again.
struct Exchange {
  explicit Exchange(Edit& edit) : e(edit), after(e.find("all_to_all") + 1) {}
  BufferId counts() { return e.task("route_plan").out[0]; }           // edp:P ep:P
  BufferId rows() { return e.task("route_plan").out[1]; }             // edp:S0 ep:S0
  BufferId by_token() { return e.task("dispatch").out[0]; }           // edp:S1 ep:S1
  BufferId local_counts() { return e.task("size_exchange").out[1]; }  // edp:P ep:S0

  void add(const std::string& op, const graph::Attrs& attrs, std::vector<int32_t> axes,
           std::vector<BufferId> in, std::vector<BufferId> out) {
    Task t = e.make_collective(op, attrs, std::move(axes), std::move(in), std::move(out));
    e.insert(after++, std::move(t));
  }
  /// Inserts a size_exchange over one axis, and returns the buffer of the sizes.
  BufferId exchange_sizes(BufferId from, int32_t axis) {
    const int64_t experts = e.buffer(from).type.dims[0];
    const int64_t ranks = e.program.roles[0].mesh.axes[axis].size;
    const BufferId sizes = e.add_buffer(i64({ranks, experts}));
    const BufferId local = e.add_buffer(i64({experts / ranks}));
    add("size_exchange", {}, {axis}, {from}, {sizes, local});
    return sizes;
  }
  /// Returns the other output of the last size_exchange.
  BufferId local_of(BufferId sizes) const { return sizes + 1; }
  BufferId exchange_rows(BufferId from, BufferId sizes, int32_t axis, int64_t split, int64_t to) {
    const graph::Attrs attrs{{"from", split}, {"to", to}};
    const std::vector<graph::TensorType> in{e.buffer(from).type, e.buffer(sizes).type};
    const int64_t ranks = e.program.roles[0].mesh.axes[axis].size;
    const auto out = comm::infer(comm::op(comm::find("all_to_all")), attrs, in, ranks);
    const BufferId rows = e.add_buffer(out[0]);
    add("all_to_all", attrs, {axis}, {from, sizes}, {rows});
    return rows;
  }

  Edit& e;
  TaskId after;
};

/// Returns an edit that applies `change` to the exchange, and plans the program again.
std::function<void(Edit&)> with_exchange(void (*change)(Exchange&)) {
  return [change](Edit& e) {
    Exchange x(e);
    change(x);
    e.replan();
  };
}

std::vector<FaultCase> reduction_cases() {
  return {
      {"reduce-replicated", "a sum of a replicated value", two_ranks,
       [](Edit& e) {
         const BufferId from = e.named("model.norm.weight"), to = e.add_like(from);
         e.append(e.make_collective("all_reduce", {}, {e.axis("edp")}, {from}, {to}));
       }},
      {"reduce-split", "a sum of different parts", two_ranks,
       [](Edit& e) {
         const BufferId from = e.named("tokens", 0), to = e.add_like(from);
         e.append(e.make_collective("all_reduce", {}, {e.axis("edp")}, {from}, {to}));
       }},
      {"classes-reduce-only", "a gather over the stages", two_stages,
       [](Edit& e) {
         for (int32_t c = 0; c < 2; ++c) {
           const char* const name =
               c == 0 ? "model.layers.0.input_layernorm.weight" : "model.norm.weight";
           const BufferId to = e.add_buffer({graph::DType::f32, {32}}, c);
           e.append(e.make_collective("all_gather", {{"dim", int64_t{0}}}, {e.axis("pp")},
                                      {e.named(name, kNone, c)}, {to}, c),
                    c);
         }
       }},
      {"classes-reduce-only", "a maximum of values that the stages should add", two_stages,
       [](Edit& e) {
         // Every stage has some of the gradients' squares; their sums become maxima.
         for (int32_t c = 0; c < 2; ++c) {
           for (Task& t : e.cls(c).tasks) {
             if (t.group == kNone || e.program.groups[t.group].axes[0] != e.axis("pp")) continue;
             program::Kind kind = e.program.kind(t);
             kind.attrs = {{"monoid", std::string("max")}};
             t.kind = e.program.intern(std::move(kind));
           }
         }
       }},
      {"classes-differ", "two sums that one of two classes exchanges", two_stages_two_ranks,
       [](Edit& e) {
         // Consistent in the class itself: only ranks of stage 0 get the sums exchanged.
         for (const int32_t stage : {0, 1}) {
           const BufferId weight =
               e.named(stage == 0 ? "model.embed_tokens.weight" : "lm_head.weight", kNone, stage);
           const BufferId one = e.add_like(weight, stage), other = e.add_like(weight, stage);
           const BufferId held = stage == 0 ? one : other, none = stage == 0 ? other : one;
           const std::string type = graph::to_string(e.buffer(weight, stage).type);
           e.append(e.make("copy", {}, {weight}, {held}, stage), stage);
           e.append(e.make("zero", {{"type", type}}, {}, {none}, stage), stage);
           e.append(e.make_collective("all_reduce", {}, {e.axis("pp")}, {one, other}, {one, other},
                                      stage),
                    stage);
         }
         split_class(e.program, 1, e.axis("edp"), 1);
         for (auto* list : {&e.cls(2).tasks.back().in, &e.cls(2).tasks.back().out}) {
           std::swap((*list)[0], (*list)[1]);
         }
       }},
      {"classes-differ", "different messages from two classes of senders", two_stages_two_ranks,
       [](Edit& e) {
         split_class(e.program, 0, e.axis("edp"), 1);
         Task& send = e.task("send", 0, 2);
         for (TaskId t = 0; t < e.find("send", 0, 2); ++t) {
           for (BufferId b : e.at(t, 2).out) {
             if (b != send.in[0] && e.buffer(b, 2).type == e.buffer(send.in[0], 2).type) {
               send.in = {b};
               return e.replan();
             }
           }
         }
       }},
      {.rule = "types-follow",
       .fault = "a gather along a dim that is 0 in its low 32 bits",
       .start = two_ranks,
       .edit =
           [](Edit& e) {
             const TaskId norm = e.find("rms_norm");
             const BufferId from = e.at(norm).out[0];
             graph::TensorType all = e.buffer(from).type;
             all.dims[0] *= 2;
             e.insert(norm + 1, e.make_collective("all_gather", {{"dim", int64_t{1} << 32}},
                                                  {e.axis("edp")}, {from}, {e.add_buffer(all)}));
           },
       .only_refused = true},
      {"gather-layout", "a gather of a replicated value", two_ranks,
       [](Edit& e) {
         const BufferId to = e.add_buffer({graph::DType::f32, {32}});
         e.append(e.make_collective("all_gather", {{"dim", int64_t{0}}}, {e.axis("edp")},
                                    {e.named("model.norm.weight")}, {to}));
       }},
      {"gather-layout", "a gather of row numbers", four_experts, with_exchange([](Exchange& x) {
         graph::TensorType all = x.e.buffer(x.rows()).type;
         all.dims[0] *= 2;
         x.add("all_gather", {{"dim", int64_t{0}}}, {x.e.axis("ep")}, {x.rows()},
               {x.e.add_buffer(all)});
       })},
      {"scatter-layout", "a scatter of a replicated value", two_ranks,
       [](Edit& e) {
         const BufferId to = e.add_buffer({graph::DType::f32, {8}});
         e.append(e.make_collective("reduce_scatter", {{"dim", int64_t{0}}}, {e.axis("edp")},
                                    {e.named("model.norm.weight")}, {to}));
       }},
      {"reduce-monoid", "a maximum of partial sums", two_ranks,
       [](Edit& e) {
         const TaskId at = e.find("embedding_dw", -1);
         const BufferId to = e.add_like(e.at(at).out[0]);
         e.insert(at + 1, e.make_collective("all_reduce", {{"monoid", std::string("max")}},
                                            {e.axis("edp")}, {e.at(at).out[0]}, {to}));
       }},
      {"reduce-overlap", "a sum of parts that have addends in common", four_ranks,
       [](Edit& e) {
         // Every rank adds its neighbour's part to its own, and the sums are reduced.
         const TaskId at = e.find("embedding_dw", -1);
         const BufferId grad = e.at(at).out[0];
         const BufferId part = e.add_like(grad), sum = e.add_like(grad), all = e.add_like(grad);
         e.insert(at + 1, e.make_collective("all_reduce", {}, {e.axis("edp")}, {sum}, {all}));
         e.insert(at + 1, e.make("add", {}, {grad, part}, {sum}));
         e.insert(at + 1, e.make_message("recv", part, e.axis("edp"), -1, 900));
         e.insert(at + 1, e.make_message("send", grad, e.axis("edp"), 1, 900));
       }},
  };
}

std::vector<FaultCase> exchange_cases() {
  return {
      {"exchange-axis", "an exchange over two axes", four_experts, with_exchange([](Exchange& x) {
         x.add("size_exchange", {}, {x.e.axis("edp"), x.e.axis("ep")}, {x.counts()},
               {x.e.add_buffer(i64({4, 8})), x.e.add_buffer(i64({2}))});
       })},
      {"exchange-counts", "sizes from counts that were summed already", four_experts,
       with_exchange(
           [](Exchange& x) { x.exchange_sizes(x.e.task("all_reduce").out[1], x.e.axis("ep")); })},
      {"exchange-counts", "sizes from a value that is no count", four_experts,
       with_exchange([](Exchange& x) {
         const BufferId zero = x.e.add_buffer(i64({8}));
         x.e.insert(x.after++, x.e.make("zero", {{"type", std::string("i64[8]")}}, {}, {zero}));
         x.exchange_sizes(zero, x.e.axis("ep"));
       })},
      {"exchange-sizes", "sizes of another micro-batch", four_experts,
       [](Edit& e) {
         Task t = e.task("all_to_all");
         const TaskId at = e.find("size_exchange", 1);
         t.in[1] = e.at(at).out[0];
         t.out[0] = e.add_like(t.out[0]);
         t.deps.clear();
         e.insert(at + 1, std::move(t));
         e.replan();
       }},
      {"exchange-sizes", "sizes of other tokens", four_experts, with_exchange([](Exchange& x) {
         // Summed over edp first, the counts are of the rows of all these ranks.
         const BufferId sum = x.e.add_like(x.counts());
         x.add("all_reduce", {}, {x.e.axis("edp")}, {x.counts()}, {sum});
         const BufferId sizes = x.exchange_sizes(sum, x.e.axis("ep"));
         x.exchange_rows(x.by_token(), sizes, x.e.axis("ep"), 1, 0);
       })},
      {"exchange-layout", "an exchange back over another axis than there", four_experts,
       with_exchange([](Exchange& x) {
         const BufferId sizes = x.exchange_sizes(x.counts(), x.e.axis("edp"));
         const BufferId rows = x.exchange_rows(x.by_token(), sizes, x.e.axis("edp"), 1, 0);
         x.exchange_rows(rows, sizes, x.e.axis("ep"), 0, 1);
       })},
      {"message-rows", "row numbers sent to another rank", four_experts,
       with_exchange([](Exchange& x) {
         const BufferId to = x.e.add_like(x.rows());
         x.e.insert(x.after++, x.e.make_message("send", x.rows(), x.e.axis("ep"), 1, 900));
         x.e.insert(x.after++, x.e.make_message("recv", to, x.e.axis("ep"), -1, 900));
       })},
  };
}

/// A second role of one rank, to which all ranks of the first role give a part of a buffer.
struct Between {
  explicit Between(Edit& edit) : e(edit) {
    e.program.roles.push_back({"other", {{{"x", 1}}}});
    RankClass other;
    other.name = "other";
    other.role = 1;
    e.program.classes.push_back(other);
    group = e.program.intern(program::group_between(0, 1));
  }
  Task end(std::vector<BufferId> in, std::vector<BufferId> out, int32_t c) {
    Task t = e.make("transfer", {}, std::move(in), std::move(out), c);
    t.lane = Lane::intra;
    t.group = group;
    return t;
  }
  void give(BufferId from, const std::vector<int64_t>& begins = {}) {
    Task t = end({from}, {}, 0);
    if (!begins.empty()) {
      t.piece_offsets = {{'a', 0, e.program.intern(program::Table{0, {e.axis("edp")}, begins})}};
    }
    e.append(std::move(t));
  }
  void take(const graph::TensorType& type) {
    const BufferId to = e.add_buffer(type, 1);
    e.append(end({}, {to}, 1), 1);
  }

  Edit& e;
  program::GroupId group;
};

graph::TensorType longer(graph::TensorType type, int64_t times, int64_t more = 0) {
  type.dims[0] = type.dims[0] * times + more;
  return type;
}

std::vector<FaultCase> transfer_cases() {
  return {
      {"transfer-layout", "parts that begin elsewhere than the task says", two_ranks,
       [](Edit& e) {
         Between b(e);
         const BufferId tokens = e.named("tokens", 0);
         b.give(tokens);
         b.take(longer(e.buffer(tokens).type, 2));
       }},
      {"transfer-layout", "a sum that is not finished", two_ranks,
       [](Edit& e) {
         Between b(e);
         const BufferId sum = e.task("embedding_dw").out[0];
         const BufferId part = e.add_like(sum);
         e.insert(e.find("embedding_dw") + 1, e.make("copy", {}, {sum}, {part}));
         b.give(part);
         b.take(e.buffer(sum).type);
       }},
      {"transfer-covers", "more rows than the tensor has", two_ranks,
       [](Edit& e) {
         Between b(e);
         const BufferId tokens = e.named("tokens", 0);
         b.give(tokens, {0, e.buffer(tokens).type.dims[0]});
         b.take(longer(e.buffer(tokens).type, 2, 1));
       }},
      {"transfer-covers", "a part that no rank gives", two_ranks,
       [](Edit& e) {
         Between b(e);
         const BufferId norm = e.named("model.norm.weight");
         program::Buffer half;
         half.kind = BufferKind::view;
         half.type = e.buffer(norm).type;
         half.type.dims[0] /= 2;
         half.base = norm;
         half.dim = 0;
         e.cls().buffers.push_back(half);
         b.give(e.cls().buffers.size() - 1);
         b.take(e.buffer(norm).type);
       }},
      {"message-rows", "row numbers given to another role", four_experts,
       [](Edit& e) {
         Between b(e);
         const BufferId rows = e.task("route_plan").out[1];
         b.give(rows);
         b.take(e.buffer(rows).type);
         e.replan();  // keeps the row numbers alive until then
       }},
      {"collective-differs", "a transfer that both roles take", two_ranks,
       [](Edit& e) {
         Between b(e);
         const graph::TensorType type{graph::DType::f32, {4}};
         e.append(b.end({}, {e.add_buffer(type)}, 0));
         b.take(type);
       },
       "deadlock", "an incomplete match never ends in the abstract run"},
      {.rule = "group-fits",
       .fault = "a transfer inside a role",
       .start = two_ranks,
       .edit =
           [](Edit& e) {
             Between b(e);
             b.give(e.named("model.norm.weight"));
             b.take(e.buffer(e.named("model.norm.weight")).type);
             e.task("transfer").group = e.task("all_reduce").group;
           },
       .only_refused = true},
      {.rule = "group-axes",
       .fault = "two roles and axes",
       .start = two_ranks,
       .edit =
           [](Edit& e) {
             Between b(e);
             b.give(e.named("model.norm.weight"));
             b.take(e.buffer(e.named("model.norm.weight")).type);
             e.program.groups[b.group].axes = {0};
           },
       .only_refused = true},
      {.rule = "group-axes",
       .fault = "a second role that does not exist",
       .start = two_ranks,
       .edit =
           [](Edit& e) {
             Between b(e);
             b.give(e.named("model.norm.weight"));
             b.take(e.buffer(e.named("model.norm.weight")).type);
             e.program.groups[b.group].with = 2;
           },
       .only_refused = true},
  };
}

}  // namespace

std::vector<FaultCase> collective_cases() {
  std::vector<FaultCase> list = reduction_cases();
  for (const auto& rows : {exchange_cases(), transfer_cases()}) {
    list.insert(list.end(), rows.begin(), rows.end());
  }
  return list;
}

}  // namespace hocket::check::test
