// SPDX-License-Identifier: Apache-2.0
// route_plan, dispatch and combine: tokens to the rows of their experts and back, dropless under
// any imbalance. Rows are sorted by (expert, token); row_of[t,k] is the row of token t's k-th
// expert.
#include "ops/rules.h"

namespace hocket::ops::dispatch {
namespace {

void want_row_of(std::string_view op, const TensorType& type, const Dim& tokens) {
  want_rank(op, type, 2);
  want_dtype(op, type, DType::i32);
  want_equal(op, "tokens of row_of", type.dims[0], tokens);
}

std::vector<TensorType> infer_plan(const Attrs& attrs, Types in) {
  want_inputs("route_plan", in, 1);
  want_rank("route_plan", in[0], 2);
  want_dtype("route_plan", in[0], DType::i32);
  int64_t experts = attrs.i("num_experts");
  if (in[0].dims[1] > experts) fail("route_plan", "top-{} of {} experts", in[0].dims[1], experts);
  return {{DType::i64, {experts}}, in[0]};
}

std::vector<TensorType> infer_dispatch(const Attrs& attrs, Types in) {
  want_inputs("dispatch", in, 2);
  want_rank("dispatch", in[0], 2);
  want_float("dispatch", in[0]);
  want_row_of("dispatch", in[1], in[0].dims[0]);
  if (in[1].dims[1].symbolic()) {
    fail("dispatch", "got row_of {}; expected a number of rows per token", to_string(in[1]));
  }
  return {{in[0].dtype,
           {attrs.i("num_experts"), in[0].dims[0], in[0].dims[1]},
           static_cast<int32_t>(in[1].dims[1])}};
}

std::vector<TensorType> infer_dispatch_bwd(const Attrs&, Types in) {
  want_inputs("dispatch_bwd", in, 2);
  if (!in[0].routed() || in[0].dims.size() != 3) {
    fail("dispatch_bwd", "got {}; expected [E,T,D]@k", to_string(in[0]));
  }
  want_float("dispatch_bwd", in[0]);
  want_row_of("dispatch_bwd", in[1], in[0].dims[1]);
  return {{in[0].dtype, {in[0].dims[1], in[0].dims[2]}}};
}

std::vector<TensorType> infer_combine(const Attrs&, Types in) {
  want_inputs("combine", in, 3);
  if (!in[0].routed() || in[0].dims.size() != 3) {
    fail("combine", "got {}; expected [E,T,D]@k", to_string(in[0]));
  }
  want_row_of("combine", in[2], in[0].dims[1]);
  want_rank("combine", in[1], 2);
  want_float("combine", in[0]);
  want_dtype("combine", in[1], in[0].dtype);
  if (in[1].dims != in[2].dims) {
    fail("combine", "got weights {} and row_of {}", to_string(in[1]), to_string(in[2]));
  }
  return {{in[0].dtype, {in[0].dims[1], in[0].dims[2]}}};
}

std::vector<TensorType> infer_combine_bwd(const Attrs& attrs, Types in) {
  want_inputs("combine_bwd", in, 4);
  want_same("combine_bwd", in[0], infer_combine(attrs, in.subspan(1))[0]);
  return {in[1], in[2]};
}

std::vector<TensorType> infer_combine_dys(const Attrs& attrs, Types in) {
  want_inputs("combine_dys", in, 3);
  want_rank("combine_dys", in[0], 2);
  want_float("combine_dys", in[0]);
  want_row_of("combine_dys", in[2], in[0].dims[0]);
  want_same("combine_dys", in[1], {in[0].dtype, in[2].dims});
  if (in[2].dims[1].symbolic()) {
    fail("combine_dys", "got row_of {}; expected a number of rows per token", to_string(in[2]));
  }
  return {{in[0].dtype,
           {attrs.i("num_experts"), in[0].dims[0], in[0].dims[1]},
           static_cast<int32_t>(in[2].dims[1])}};
}

std::vector<TensorType> infer_combine_dw(const Attrs& attrs, Types in) {
  want_inputs("combine_dw", in, 3);
  want_row_of("combine_dw", in[2], in[0].dims[0]);
  const TensorType weights{in[1].dtype, in[2].dims};
  const TensorType combined[] = {in[1], weights, in[2]};
  want_same("combine_dw", in[0], infer_combine(attrs, combined)[0]);
  return {weights};
}

std::vector<int> define_combine_bwd(Definition& graph, const Attrs&, std::span<const int> in) {
  const int dy = in[0], ys = in[1], weights = in[2], row_of = in[3];
  const Attrs experts{{"num_experts", int64_t{graph.type(ys).dims[0]}}};
  const int dys = graph.apply("combine_dys", experts, {dy, weights, row_of})[0];
  return {dys, graph.apply("combine_dw", {}, {dy, ys, row_of})[0]};
}

Work work_plan(const Call& call) { return memory_bound(call, 2); }
/// A counter per expert.
int64_t workspace_plan(const Call& call) { return call.attrs.i("num_experts") * 8; }

/// Work of moving rows: each is read and written once.
Work rows_moved(const TensorType& rows, double flops_per_element) {
  const double n =
      static_cast<double>(rows.dims[1]) * rows.top_k * static_cast<double>(rows.row_size());
  return {flops_per_element * n, rows.bytes_of(static_cast<int64_t>(2 * n))};
}
Work work_dispatch(const Call& call) { return rows_moved(call.out[0], 0); }
Work work_dispatch_bwd(const Call& call) { return rows_moved(call.in[0], 1); }
Work work_combine(const Call& call) { return rows_moved(call.in[0], 2); }
Work work_combine_bwd(const Call& call) { return rows_moved(call.in[1], 3); }
Work work_combine_dys(const Call& call) { return rows_moved(call.out[0], 1); }
Work work_combine_dw(const Call& call) { return rows_moved(call.in[1], 2); }

void grad_dispatch(GradContext& context) {
  if (context.needs(0)) {
    context.emit_grad("dispatch_bwd", {}, {context.grad_out(0), context.node().in[1]}, 0);
  }
}
void grad_combine(GradContext& context) {
  const auto& node = context.node();
  auto d =
      context.emit("combine_bwd", {}, {context.grad_out(0), node.in[0], node.in[1], node.in[2]});
  context.add_grad(0, d[0]);
  context.add_grad(1, d[1]);
}

constexpr int64_t kE = 4, kT = 6, kK = 2, kD = 3;
const TensorType kX{DType::f64, {kT, kD}};
const TensorType kRows{DType::f64, {kE, kT, kD}, kK};
const TensorType kRowOf{DType::i32, {kT, kK}};
const TensorType kW{DType::f64, {kT, kK}};
const Fill kFrom{.kind = Fill::Kind::from_op};
const Fill kRoutes{.kind = Fill::Kind::routes, .hi = kE - 1};
const Attrs kAttrs{{"num_experts", kE}};

/// `inputs` with row_of last, made from random routes.
Sample with_routes(std::vector<TensorType> inputs, Attrs attrs) {
  Sample sample;
  sample.name = "6 tokens, 2 of 4 experts";
  sample.attrs = std::move(attrs);
  int n = static_cast<int>(inputs.size());
  sample.types = std::move(inputs);
  sample.fills.resize(sample.types.size());
  sample.fills.back() = kFrom;
  sample.types.push_back(kRowOf);
  sample.fills.push_back(kRoutes);
  sample.chain = {{"route_plan", kAttrs, {n}, {-1, n - 1}}};
  sample.num_inputs = n;
  return sample;
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  // route_plan turns the router's choices into row numbers; dispatch copies tokens to these rows,
  // and combine adds them up again, weighted; each has its backward op. That of combine is two in
  // one, which lowering takes apart where rows are parts of a sum (combine_dw is linear in them).
  ops.push_back({.name = "route_plan",
                 .doc = "counts[E] rows per expert and row_of[T,K], rows in (expert, token) order",
                 .infer = infer_plan,
                 .layout = {"tk->e,tk", "t"},
                 .work = work_plan,
                 .samples =
                     [] {
                       return std::vector<Sample>{{"6 tokens", kAttrs, {kRowOf}, {kRoutes}, {}}};
                     },
                 .workspace = workspace_plan,
                 .family = Family::routing,
                 .routing = {.counts = 0, .row_of = 1}});
  ops.push_back({.name = "dispatch",
                 .doc = "xs[e,t,:] = x[t,:] for the experts e of token t",
                 .infer = infer_dispatch,
                 .layout = {"td,tk->etd", "t", "1"},
                 .work = work_dispatch,
                 .grad = grad_dispatch,
                 .samples =
                     [] {
                       return std::vector<Sample>{with_routes({kX, kRowOf}, kAttrs)};
                     },
                 .family = Family::routing,
                 .cheap_to_repeat = true,
                 .takes_any_type = true});
  ops.push_back({.name = "dispatch_bwd",
                 .doc = "dx[t,:] = sum over experts e of token t of dxs[e,t,:]",
                 .infer = infer_dispatch_bwd,
                 .layout = {"etd,tk->td", "t", "1"},
                 .work = work_dispatch_bwd,
                 .samples =
                     [] {
                       return std::vector<Sample>{with_routes({kRows, kRowOf}, {})};
                     },
                 .accumulates = {0},
                 .family = Family::routing});
  ops.push_back({.name = "combine",
                 .doc = "y[t,:] = sum_k w[t,k] ys[e_k,t,:]",
                 .infer = infer_combine,
                 .layout = {"etd,tk,tk->td", "t", "11"},
                 .work = work_combine,
                 .grad = grad_combine,
                 .samples =
                     [] {
                       return std::vector<Sample>{with_routes({kRows, kW, kRowOf}, {})};
                     },
                 .family = Family::routing});
  ops.push_back({.name = "combine_bwd",
                 .doc = "dys[e_k,t,:] = w[t,k] dy[t,:], dw[t,k] = dy[t,:] . ys[e_k,t,:]",
                 .infer = infer_combine_bwd,
                 .layout = {"td,etd,tk,tk->etd,tk", "t", "1"},
                 .work = work_combine_bwd,
                 .samples =
                     [] {
                       return std::vector<Sample>{with_routes({kX, kRows, kW, kRowOf}, {})};
                     },
                 .family = Family::routing,
                 .define = define_combine_bwd,
                 .defined = Defined::expands});
  ops.push_back({.name = "combine_dys",
                 .doc = "dys[e_k,t,:] = w[t,k] dy[t,:]",
                 .infer = infer_combine_dys,
                 .layout = {"td,tk,tk->etd", "t", "11"},
                 .work = work_combine_dys,
                 .samples =
                     [] {
                       return std::vector<Sample>{with_routes({kX, kW, kRowOf}, kAttrs)};
                     },
                 .family = Family::routing});
  ops.push_back({.name = "combine_dw",
                 .doc = "dw[t,k] = dy[t,:] . ys[e_k,t,:]",
                 .infer = infer_combine_dw,
                 .layout = {"td,etd,tk->tk", "t", "11"},
                 .work = work_combine_dw,
                 .samples =
                     [] {
                       return std::vector<Sample>{with_routes({kX, kRows, kRowOf}, {})};
                     },
                 .family = Family::routing});
}

}  // namespace hocket::ops::dispatch
