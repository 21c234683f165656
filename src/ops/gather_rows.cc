// SPDX-License-Identifier: Apache-2.0
// gather_rows: chosen rows of a matrix, such as those of the tokens that need logits.
#include "ops/rules.h"

namespace hocket::ops::gather_rows {
namespace {

constexpr const char* kOp = "gather_rows";

std::vector<TensorType> infer(const Attrs&, Types in) {
  want_inputs(kOp, in, 2);
  want_rank(kOp, in[0], 2);
  want_float(kOp, in[0]);
  want_rank(kOp, in[1], 1);
  want_dtype(kOp, in[1], DType::i32);
  return {{in[0].dtype, {in[1].dims[0], in[0].dims[1]}}};
}

/// Work of a copy: only the rows that are chosen are read.
Work work(const Call& call) { return {0, call.in[1].bytes() + 2 * call.out[0].bytes()}; }

std::vector<Sample> samples() {
  return {{"4 of 6x8",
           {},
           {{DType::f64, {6, 8}}, {DType::i32, {4}}},
           {{}, {.kind = Fill::Kind::integers, .lo = -1, .hi = 5}},
           {}},
          {"6 of 3x4",
           {},
           {{DType::f64, {3, 4}}, {DType::i32, {6}}},
           {{}, {.kind = Fill::Kind::integers, .hi = 2}},
           {}}};
}

}  // namespace

void add_to(std::vector<Op>& ops) {
  ops.push_back({.name = kOp,
                 .doc = "y[R,D] = x[rows[R]], x[T,D]; 0 for a negative row number",
                 .infer = infer,
                 // Not declared linear: rows of an unfinished sum would be added up in another
                 // place, and so in another order, than those of a training.
                 .layout = {"td,r->rd", "rd"},
                 .work = work,
                 .samples = samples,
                 .family = Family::moving,
                 .takes_any_type = true});
}

}  // namespace hocket::ops::gather_rows
