// SPDX-License-Identifier: Apache-2.0
#include "ops/workspace.h"

namespace hocket::ops {
namespace {

using graph::Attrs;
using graph::TensorType;
using Types = std::span<const TensorType>;

int64_t product(const graph::Dims& dims, size_t begin, size_t end) {
  int64_t n = 1;
  for (size_t i = begin; i < end; ++i) n *= dims[i];
  return n;
}
int64_t per_token(const TensorType& t) { return product(t.dims, 1, t.dims.size()); }
int64_t rows_of_last(const TensorType& t) { return product(t.dims, 0, t.dims.size() - 1); }
int64_t element(const TensorType& t) { return graph::size_of(t.dtype); }

int64_t threads(const Attrs& a) { return std::max<int64_t>(1, a.i_or("threads", kScratchThreads)); }

int64_t gemms(const Attrs& a, int64_t n, int64_t k, int64_t bytes) {
  return threads(a) * gemm_scratch(n, k, bytes);
}

int64_t grouped(const Attrs& a, const TensorType& counts, int64_t n, int64_t k, int64_t bytes) {
  return round_up((counts.numel() + 1) * 8, 64) + gemms(a, n, k, bytes);
}

int64_t cross_entropy(const Attrs& a, Types in) {
  const int64_t t = in[0].dims[0], d = in[0].dims[1], v = in[1].dims[0], e = element(in[0]);
  const int64_t rows = cross_entropy_rows(t, v, e);
  int64_t scratch = gemms(a, v, d, e);
  if (a.i("grad"))
    scratch = std::max({scratch, gemms(a, d, v, e), gemms(a, d, rows, e)});
  return round_up(rows * v * e, 64) + round_up(rows * 8, 64) + scratch;
}

int64_t rope(Types in) {
  const int64_t t = in[0].dims[0], d = in[0].dims[2], e = element(in[0]);
  return round_up(d / 2 * 8, 64) + round_up(t * d * e, 64) + kRopeStep * d * 8 +
         round_up((t / kRopeStep + 1) * d * 8, 64) + 64;
}

int64_t bytes_of(std::string_view op, const Attrs& a, Types in, Types out) {
  if (op == "linear" || op == "linear_dx")
    return gemms(a, per_token(out[0]), per_token(in[0]), element(in[0]));
  if (op == "linear_dw")
    return gemms(a, per_token(in[1]), in[0].dims[0], element(in[0]));
  if (op == "grouped_linear" || op == "grouped_linear_dx")
    return grouped(a, in[2], out[0].row_size(), in[0].row_size(), element(in[0]));
  if (op == "grouped_linear_dw")
    return grouped(a, in[2], in[1].row_size(), in[0].max_rows(), element(in[0]));
  if (op == "linear_cross_entropy") return cross_entropy(a, in);
  if (op == "rms_norm_bwd") {
    const int64_t rows = rows_of_last(in[1]), d = in[1].dims.back();
    const int64_t block = norm_block_rows(rows);
    return (rows + block - 1) / block * d * element(in[1]);
  }
  if (op == "router") {
    const int64_t t = in[0].dims[0], block = norm_block_rows(t);
    return (t + block - 1) / block * in[0].dims[1] * element(in[0]);
  }
  if (op == "rope") return rope(in);
  if (op == "attention")
    return round_up(in[0].dims[0] * 12, 64) +
           threads(a) * attention_scratch(in[0].dims[2], element(in[0]));
  if (op == "attention_bwd")
    return round_up(in[1].dims[0] * 12, 64) +
           round_up(in[1].dims[0] * in[1].dims[1] * element(in[1]), 64) +
           threads(a) * attention_bwd_scratch(in[1].dims[2], element(in[1]));
  if (op == "attention_cached")
    return threads(a) * round_up(in[3].dims[0] * element(in[0]), 64);
  if (op == "route_plan") return a.i("num_experts") * 8;
  if (op == "sumsq") return (in[0].numel() + kSumBlock - 1) / kSumBlock * 8;
  return 0;
}

}  // namespace

int64_t workspace_bytes(std::string_view op, const Attrs& attrs, Types in, Types out) {
  return round_up(bytes_of(op, attrs, in, out), 64);
}

}  // namespace hocket::ops
