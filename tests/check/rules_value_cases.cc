// SPDX-License-Identifier: Apache-2.0
// Implements: value_cases (rules_util.h), faults of named buffers, terms, layouts, sums and views.
#include "tests/check/rules_util.h"

namespace hocket::check::test {
namespace {

/// Adds a named buffer that no task uses.
program::Buffer& add_named(Edit& e, BufferKind kind, const std::string& name,
                           graph::TensorType type, int32_t c = 0) {
  program::Buffer b;
  b.type = std::move(type);
  b.kind = kind;
  b.name = name;
  e.cls(c).buffers.push_back(b);
  return e.cls(c).buffers.back();
}

/// Turns a named buffer into a step buffer.
void forget(Edit& e, BufferId b) {
  const BufferId step = e.add_like(b);
  const program::Buffer place = e.buffer(step);
  e.cls().buffers.pop_back();
  e.buffer(b) = place;
}

/// Returns an all_reduce, and its operand of rank 2: the rank's part of a gradient.
std::pair<TaskId, BufferId> unsummed_rows(Edit& e) {
  const TaskId at = e.find("all_reduce");
  for (BufferId part : e.at(at).in) {
    if (e.buffer(part).type.dims.size() == 2) return {at, part};
  }
  throw std::runtime_error("no gradient of rank 2");
}

/// Inserts an encoder of a buffer of rows before `at`, and returns its codes and scales.
std::vector<BufferId> int8_codes(Edit& e, TaskId at, BufferId rows) {
  const graph::TensorType type = e.buffer(rows).type;
  const BufferId codes = e.add_buffer({graph::DType::i8, type.dims});
  const BufferId scales = e.add_buffer({graph::DType::f32, {type.dims[0]}});
  e.insert(at, e.make("encode_int8", {}, {rows}, {codes, scales}));
  return {codes, scales};
}

std::vector<FaultCase> named_cases() {
  const graph::TensorType tokens{graph::DType::i32, {8}}, scalar{graph::DType::f64, {1}};
  return {
      {"micro-batches", "more micro-batches than the reference", one_rank,
       [](Edit& e) { ++e.program.num_micro_batches; }},
      {"named-tensor", "a name that the graph lacks", two_ranks,
       [](Edit& e) { e.buffer(e.named("tokens", 0)).name = "tokenz"; }},
      {"named-tensor", "a persistent buffer that is no parameter", one_rank,
       [](Edit& e) {
         add_named(e, BufferKind::persistent, "loss_scale", {graph::DType::f64, {1}});
       }},
      {"named-tensor", "an input that is no input", one_rank,
       [](Edit& e) {
         add_named(e, BufferKind::input, "model.norm.weight", {graph::DType::f32, {16}});
       }},
      {"named-tensor", "an input of a micro-batch that does not exist", one_rank,
       [](Edit& e) {
         add_named(e, BufferKind::input, "tokens", {graph::DType::i32, {8}}).micro_batch = 7;
       }},
      {"named-tensor", "an input of the step with a micro-batch", one_rank,
       [](Edit& e) {
         add_named(e, BufferKind::input, "loss_scale", {graph::DType::f64, {1}}).micro_batch = 0;
       }},
      {"named-tensor", "another size than the layout implies", two_stages_two_ranks,
       [](Edit& e) {
         add_named(e, BufferKind::input, "tokens", {graph::DType::i32, {8}}, 1).micro_batch = 0;
       }},
      {"named-tensor", "an output that is no result of the graph", one_rank,
       [](Edit& e) {
         add_named(e, BufferKind::output, "tokens", {graph::DType::i32, {8}}).micro_batch = 0;
       }},
      {"named-tensor", "a bucket that is too small for what it holds", one_rank,
       [](Edit& e) {
         add_named(e, BufferKind::persistent, "bucket", {graph::DType::f32, {24}}).slots = {
             {"model.norm.weight", {}, 0}, {"model.norm.weight", {}, 16}};
       }},
      {"named-tensor", "a bucket of tensors that the graph lacks", one_rank,
       [](Edit& e) {
         add_named(e, BufferKind::persistent, "bucket", {graph::DType::f32, {32}}).slots = {
             {"model.norm.weight", {}, 0}, {"model.storm.weight", {}, 16}};
       }},
      {"final-value", "a bucket of parameters that nothing updates", one_rank,
       [](Edit& e) {
         add_named(e, BufferKind::persistent, "bucket", {graph::DType::f32, {32}}).slots = {
             {"model.norm.weight", {}, 0}};
       }},
      {"result-missing", "a loss in no buffer", one_rank,
       [](Edit& e) { forget(e, e.named("loss")); }},
      {"result-missing", "an output of one micro-batch in no buffer", four_experts,
       [](Edit& e) { forget(e, e.named("moe.counts.0", 1)); }},
  };
}

std::vector<FaultCase> term_cases() {
  return {
      {"not-in-graph", "another attribute", four_experts,
       [](Edit& e) {
         e.rekind(e.task("balance_loss"),
                  [](Kind& k) { k.attrs.set("coef", k.attrs.f("coef") * 2); });
       }},
      {"not-in-graph", "an operand of another micro-batch", one_rank,
       [](Edit& e) { e.task("embedding", 1).in[0] = e.task("embedding", 0).in[0]; }},
      {"not-in-graph", "a contribution that a gradient lacks", one_rank,
       [](Edit& e) {
         // The contribution goes to a buffer of its own.
         const BufferId other = e.add_like(e.task("embedding_dw").out[0]);
         e.task("embedding_dw", 1).out[0] = other;
         e.task("embedding_dw", 1).accumulate = {};
       }},
      {"not-in-graph", "a contribution that a gradient has twice", one_rank,
       [](Edit& e) {
         const TaskId at = e.find("embedding_dw", 1);
         e.insert(at + 1, Task(e.at(at)));
       }},
      {"final-value", "a parameter that is not updated", one_rank,
       [](Edit& e) { e.erase(e.find("adamw", 2)); }},
      {"final-value", "a loss without one of its micro-batches", one_rank,
       [](Edit& e) { e.task("linear_cross_entropy", 1).accumulate.flip(0); }},
      {"final-layout", "a loss of which every rank keeps a part", two_ranks,
       [](Edit& e) { e.erase(e.find("all_reduce", -1)); }},
  };
}

std::vector<FaultCase> layout_cases() {
  return {
      {"layout-legal", "a partial gradient where a whole one is needed", two_ranks,
       [](Edit& e) { e.erase(e.find("all_reduce")); }},
      {"local-size", "an op on zeros of another size than the graph's", one_rank,
       [](Edit& e) {
         // Zero is one term for all sizes, but an op on it makes a typed term.
         const graph::TensorType few{graph::DType::f64, {4, 2, 6}};
         const graph::TensorType many{graph::DType::f64, {8, 2, 6}};
         const auto type = [](const graph::TensorType& of) {
           return graph::Attrs{{"type", graph::to_string(of)}};
         };
         const auto add_node = [&e](const char* op, const graph::Attrs& attrs,
                                    const std::vector<graph::TensorId>& in,
                                    const graph::TensorType& out) {
           graph::Tensor made;
           made.name = std::string("made by ") + op;
           made.type = out;
           made.producer = static_cast<graph::NodeId>(e.graph.nodes.size());
           graph::Node node;
           node.op = op;
           node.attrs = attrs;
           node.in = in;
           node.out = {e.graph.add_tensor(made)};
           e.graph.nodes.push_back(node);
           return node.out[0];
         };
         add_node("swiglu", {}, {add_node("zero", type(few), {}, few)}, {few.dtype, {4, 6}});
         const BufferId from = e.add_buffer(many), to = e.add_buffer({many.dtype, {8, 6}});
         e.append(e.make("zero", type(many), {}, {from}));
         e.append(e.make("swiglu", {}, {from}, {to}));
       }},
      {"sum-layout", "a partial gradient added to a whole one", two_ranks,
       [](Edit& e) {
         const TaskId at = e.find("embedding_dw", 1);
         const BufferId b = e.at(at).out[0];
         e.insert(at, e.make_collective("all_reduce", {}, {e.axis("edp")}, {b}, {b}));
       }},
      {"sum-layout", "stages that hold a sum in different layouts", two_stages_two_ranks,
       [](Edit& e) {
         // Stage 0 has a whole weight, stage 1 partial gradients.
         const BufferId weight = e.named("model.layers.0.input_layernorm.weight");
         const BufferId whole = e.add_like(weight), parts = e.add_like(weight);
         e.append(e.make("copy", {}, {weight}, {whole}));
         const TaskId at = e.find("rms_norm_bwd", 0, 1);
         const BufferId grad = e.at(at, 1).out[1];
         e.add_like(grad, 1);
         const BufferId copy = e.cls(1).buffers.size() - 1;
         e.insert(at + 1, e.make("copy", {}, {grad}, {copy}, 1), 1);
         e.append(e.make_collective("all_reduce", {}, {e.axis("pp")}, {whole}, {parts}));
         e.append(e.make_collective("all_reduce", {}, {e.axis("pp")}, {copy}, {copy}, 1), 1);
       }},
      {"layout-legal", "attention to a part of the keys, used as the whole result", two_ranks,
       [](Edit& e) {
         // Treats all tokens as one long sequence, in the graph and in the program.
         for (graph::Node& n : e.graph.nodes) {
           if (n.op.starts_with("attention")) {
             n.attrs.set("seq", int64_t{16});
           }
         }
         for (Task& t : e.cls().tasks) {
           if (e.kind(t).op.starts_with("attention")) {
             e.rekind(t, [](Kind& k) {
               k.attrs.set("seq", int64_t{16});
               Edit::set_cost(k);
             });
           }
         }
         e.replan();
       }},
      {"begin-fits", "attention without the begin of its tokens", two_ranks,
       [](Edit& e) { e.task("attention").piece_offsets.clear(); }},
      {"begin-fits", "a table with different begins on two ranks with equal parts", two_ranks,
       [](Edit& e) {
         const program::Table table{0, e.program.groups[0].axes, {0, 1}};
         e.task("embedding").piece_offsets = {{'v', 0, e.program.intern(table)}};
       }},
      {"merge-parts", "attention merged with itself", one_rank,
       [](Edit& e) {
         const TaskId at = e.find("attention");
         const BufferId o = e.at(at).out[0], lse = e.at(at).out[1];
         const BufferId to = e.add_like(o), to_lse = e.add_like(lse);
         e.insert(at + 1, e.make("softmax_merge", {}, {o, lse, o, lse}, {to, to_lse}));
       }},
      {"parts-fit", "a product in more parts than it has rows", one_rank,
       [](Edit& e) {
         e.task("linear").parts = {{'t', 7}};
       }},
      {"codec-parts", "codes of one value with the scales of another", two_ranks,
       [](Edit& e) {
         const auto [at, part] = unsummed_rows(e);
         const BufferId twice = e.add_like(part), back = e.add_like(part);
         const std::vector<BufferId> one = int8_codes(e, at, part);
         e.insert(at + 1, e.make("copy", {}, {part}, {twice}));
         e.insert(at + 2, e.make("add", {}, {part, part}, {twice}));
         const std::vector<BufferId> two = int8_codes(e, at + 3, twice);
         e.insert(at + 4,
                  e.make("decode_int8", {{"dtype", std::string("f32")}}, {one[0], two[1]}, {back}));
       }},
      {"codes-summed", "an all_reduce of codes", two_ranks,
       [](Edit& e) {
         const auto [at, part] = unsummed_rows(e);
         const BufferId codes = int8_codes(e, at, part)[0];
         e.insert(at + 1,
                  e.make_collective("all_reduce", {}, e.program.groups[0].axes, {codes}, {codes}));
       }},
      {"replicas-differ", "a sum of the own part exactly and of the decoded part of the peer",
       two_ranks,
       [](Edit& e) {
         const auto [at, part] = unsummed_rows(e);
         const BufferId other = e.add_like(part), sum = e.add_like(part);
         const BufferId total = e.at(at).out[0] == e.at(at).in[0] ? part : other;
         for (Task& task : e.cls().tasks) {
           if (e.kind(task).op == "adamw") {
             std::replace(task.in.begin(), task.in.end(), total, sum);
           }
         }
         const std::vector<BufferId> codes = int8_codes(e, at, part);
         std::vector<BufferId> came;
         TaskId next = at + 1;
         const int32_t axis = e.program.groups[e.at(at + 1).group].axes[0];
         for (BufferId code : codes) {
           came.push_back(e.add_like(code));
           const int32_t tag = 700 + static_cast<int32_t>(came.size());
           e.insert(next++, e.make_message("send", code, axis, 1, tag));
           e.insert(next++, e.make_message("recv", came.back(), axis, -1, tag));
         }
         e.insert(next++, e.make("decode_int8", {{"dtype", std::string("f32")}}, came, {other}));
         e.insert(next, e.make("add", {}, {part, other}, {sum}));
       }},
      {"regroup-parts", "a chunk of rows regrouped with itself", four_experts,
       [](Edit& e) {
         const TaskId at = e.find("all_to_all");
         const BufferId rows = e.at(at).out[0], sizes = e.at(at).in[1];
         graph::TensorType type = e.buffer(rows).type;
         type.dims[1] *= 2;
         const BufferId both = e.add_buffer(type);
         Task task = e.make("regroup", {{"from", int64_t{2}}, {"to", int64_t{1}}},
                            {rows, rows, sizes, sizes, sizes}, {both});
         task.piece_offsets = {
             {'e', 0, e.program.intern(program::Table{0, {e.axis("ep")}, {0, type.dims[0]}})}};
         e.insert(at + 1, task);
       }},
      {"unfinished-sum", "the square of parts of two sums", two_ranks,
       [](Edit& e) {
         // Gradients of embedding and head are sums over tokens of their own.
         const TaskId head = e.find("linear_cross_entropy", 1);
         const BufferId kept = e.add_like(e.at(head).out[2]);
         e.insert(head + 1, e.make("copy", {}, {e.at(head).out[2]}, {kept}));
         const TaskId last = e.find("embedding_dw", 1);
         const BufferId sum = e.add_like(kept), square = e.add_buffer({graph::DType::f64, {1}});
         e.insert(last + 1, e.make("sumsq", {}, {sum}, {square}));
         e.insert(last + 1, e.make("add", {}, {e.at(last).out[0], kept}, {sum}));
       }},
  };
}

/// Returns a view of rows [begin, begin + rows) of a buffer.
program::Buffer rows_of(const Edit& e, BufferId base, int64_t begin, int64_t rows) {
  program::Buffer view;
  view.kind = BufferKind::view;
  view.type = e.program.classes[0].buffers[base].type;
  view.type.dims[0] = rows;
  view.base = base;
  view.dim = 0;
  view.begin = begin;
  return view;
}
BufferId add_view(Edit& e, const program::Buffer& view) {
  e.cls().buffers.push_back(view);
  return e.cls().buffers.size() - 1;
}

/// Inserts copies of two buffers of one type into a flat buffer, behind a task.
BufferId add_bucket(Edit& e, TaskId behind, BufferId one, BufferId other) {
  const graph::TensorType type = e.buffer(one).type;
  const BufferId bucket = e.add_buffer({type.dtype, {2 * type.numel()}});
  program::Buffer view;
  view.kind = BufferKind::view;
  view.type = type;
  view.base = bucket;
  const BufferId first = add_view(e, view);
  view.begin = type.numel();
  const BufferId second = add_view(e, view);
  e.insert(behind + 1, e.make("copy", {}, {one}, {first}));
  e.insert(behind + 2, e.make("copy", {}, {other}, {second}));
  return bucket;
}

std::vector<FaultCase> view_cases() {
  // The embedding, [32, 16].
  const auto weight = [](Edit& e) { return e.named("model.embed_tokens.weight"); };
  return {
      {"table-fits", "a table that lacks a coordinate", two_ranks,
       [](Edit& e) {
         e.program.tables.push_back({0, {e.axis("edp")}, {0}});
       }},
      {"table-fits", "a number so large that sums overflow", two_ranks,
       [](Edit& e) {
         e.program.tables.push_back({0, {e.axis("edp")}, {0, int64_t{1} << 60}});
       }},
      {"table-fits", "a table of no role", two_ranks,
       [](Edit& e) {
         e.program.tables.push_back({1, {e.axis("edp")}, {0, 0}});
       }},
      {"ids-in-range", "a view of no buffer", one_rank,
       [=](Edit& e) {
         program::Buffer view = rows_of(e, weight(e), 0, 8);
         view.base = 4000;
         add_view(e, view);
       },
       "", "", true},
      {"view-base", "a buffer of its own that begins somewhere", one_rank,
       [=](Edit& e) { e.buffer(e.task("swiglu").out[0]).begin = 4; }},
      {"view-base", "a buffer of its own along a dim", one_rank,
       [=](Edit& e) { e.buffer(e.task("swiglu").out[0]).dim = 0; }},
      {"view-base", "a view with a name of its own", one_rank,
       [=](Edit& e) {
         program::Buffer view = rows_of(e, weight(e), 0, 8);
         view.name = "rows";
         add_view(e, view);
       }},
      {"view-base", "a view of a view", one_rank,
       [=](Edit& e) {
         const BufferId view = add_view(e, rows_of(e, weight(e), 0, 8));
         add_view(e, rows_of(e, view, 0, 4));
       },
       "", "", true},
      {"view-base", "a view of nothing", one_rank,
       [=](Edit& e) {
         const BufferId view = add_view(e, rows_of(e, weight(e), 0, 8));
         e.buffer(view).base = program::kNone;
       },
       "", "", true},
      {"view-base", "a view of itself", one_rank,
       [=](Edit& e) {
         const BufferId view = add_view(e, rows_of(e, weight(e), 0, 8));
         e.buffer(view).base = view;
       },
       "", "", true},
      {"view-base", "views of one buffer along two dims", one_rank,
       [=](Edit& e) {
         add_view(e, rows_of(e, weight(e), 0, 8));
         program::Buffer columns = rows_of(e, weight(e), 0, 32);
         columns.dim = 1;
         columns.type.dims[1] = 8;
         add_view(e, columns);
       },
       "", "", true},
      {"view-base", "a view in another memory than its base", one_rank,
       [=](Edit& e) {
         program::Buffer view = rows_of(e, weight(e), 0, 8);
         view.space = program::Space::host;
         add_view(e, view);
       }},
      {"view-region", "a view whose begin depends on a symbol", one_rank,
       [=](Edit& e) {
         const graph::Dim n = e.graph.symbol({"n", 16, 8, 1});
         e.program.symbols = e.graph.symbols;
         const BufferId base = e.add_like(weight(e));
         e.buffer(base).type.dims[1] = n;
         add_view(e, rows_of(e, base, 8, 8));
       }},
      {"view-region", "a part of a symbol that begins inside another one", one_rank,
       [=](Edit& e) {
         const graph::Dim n = e.graph.symbol({"n", 32, 8, 4});
         e.program.symbols = e.graph.symbols;
         const BufferId base = e.add_like(weight(e));
         e.buffer(base).type.dims[0] = n;
         program::Buffer view = rows_of(e, base, 4, 8);
         view.type.dims[0] = n;
         view.type.dims[0] /= 4;
         add_view(e, view);
       }},
      {"view-region", "a view that begins inside a block", one_rank,
       [=](Edit& e) {
         const BufferId base = e.add_like(weight(e));
         e.buffer(base).type = graph::parse_tensor_type("i8/f32:16[64]");
         program::Buffer view = rows_of(e, base, 8, 32);
         add_view(e, view);
       }},
      {"view-region", "rows beyond the last", two_ranks,
       [=](Edit& e) {
         program::Buffer view = rows_of(e, weight(e), 16, 8);
         view.by = e.program.intern(program::Table{0, {e.axis("edp")}, {0, 16}});
         add_view(e, view);
       }},
      {"view-gaps", "a sum of columns", one_rank,
       [=](Edit& e) {
         program::Buffer columns = rows_of(e, weight(e), 0, 32);
         columns.dim = 1;
         columns.type.dims[1] = 8;
         const BufferId view = add_view(e, columns);
         const BufferId copy = e.add_like(view);
         e.append(e.make("copy", {}, {view}, {copy}));
         e.append(e.make("add", {}, {view, view}, {copy}));
       }},
      {"view-tiled", "a read of rows of which half were written", one_rank,
       [=](Edit& e) {
         const BufferId base = e.add_like(weight(e));
         const BufferId half = add_view(e, rows_of(e, base, 0, 16));
         const BufferId from = add_view(e, rows_of(e, weight(e), 0, 16));
         const BufferId to = e.add_like(weight(e));
         e.append(e.make("copy", {}, {from}, {half}));
         e.append(e.make("copy", {}, {base}, {to}));
       }},
      {"view-tiled", "a value read in another shape", one_rank,
       [=](Edit& e) {
         program::Buffer view = rows_of(e, weight(e), 0, 16);
         view.dim = kNone;
         view.type.dims = {16, 32};
         const BufferId from = add_view(e, view), to = e.add_buffer(view.type);
         e.append(e.make("copy", {}, {from}, {to}));
       }},
      {"view-tiled", "a tensor across the elements of two tensors", one_rank,
       [=](Edit& e) {
         const TaskId square = e.find("sumsq");
         const BufferId grad = e.at(square).in[0];
         add_bucket(e, square, grad, grad);
         program::Buffer across = e.buffer(e.at(square + 1).out[0]);
         across.begin = 1;
         const BufferId from = add_view(e, across), to = e.add_like(grad);
         e.insert(square + 3, e.make("copy", {}, {from}, {to}));
       }},
      {"pack-fits", "the norm of a gradient that is there twice", one_rank,
       [=](Edit& e) {
         const TaskId square = e.find("sumsq");
         const BufferId grad = e.at(square).in[0];
         const BufferId bucket = add_bucket(e, square, grad, grad);
         const BufferId norm = e.add_buffer({graph::DType::f64, {1}});
         e.insert(square + 3, e.make("sumsq", {}, {bucket}, {norm}));
       }},
      {"view-tiled", "rows of two values", one_rank,
       [=](Edit& e) {
         const BufferId base = e.add_like(weight(e));
         const BufferId to = e.add_like(weight(e));
         for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
           const int64_t begin = name[0] == 'm' ? 0 : 16;
           const BufferId from = add_view(e, rows_of(e, e.named(name), begin, 16));
           e.append(e.make("copy", {}, {from}, {add_view(e, rows_of(e, base, begin, 16))}));
         }
         e.append(e.make("copy", {}, {base}, {to}));
       }},
  };
}

}  // namespace

std::vector<FaultCase> value_cases() {
  std::vector<FaultCase> list;
  for (const auto& part : {named_cases(), term_cases(), layout_cases(), view_cases()}) {
    list.insert(list.end(), part.begin(), part.end());
  }
  return list;
}

}  // namespace hocket::check::test
