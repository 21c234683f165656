// SPDX-License-Identifier: Apache-2.0
// Helpers for the op files: shape expectations, work and workspace sums.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "base/error.h"
#include "ops/op.h"
#include "ops/workspace.h"

namespace hocket::ops {

using Types = std::span<const TensorType>;
using graph::Dim;
using graph::Dims;

/// Expects `n` inputs.
inline void want_inputs(std::string_view op, Types in, size_t n) {
  if (in.size() != n) fail(op, "got {} inputs; expected {}", in.size(), n);
}

/// Returns the type of long sums and of statistics per row: f32 for shorter floating-point types
/// (bf16 has 8 bits of precision), otherwise the type itself.
inline DType sum_dtype(DType dtype) {
  return graph::is_floating(dtype) && graph::bits_of(dtype) < 32 ? DType::f32 : dtype;
}

/// A sample with a short gradient of a parameter (grad_dtype).
inline Sample with_short_gradient(Sample sample) {
  sample.name += ", short gradient";
  sample.attrs.set("short_gradient", int64_t{1});
  return sample;
}

/// The type of a parameter's gradient that is made of such numbers: that of their sums, or with
/// attribute `short_gradient` their own, to which the op rounds the sum.
inline DType grad_dtype(const Attrs& attrs, DType dtype) {
  return attrs.i_or("short_gradient", 0) != 0 ? dtype : sum_dtype(dtype);
}

/// Expects a dense tensor of this rank.
inline void want_rank(std::string_view op, const TensorType& type, size_t rank) {
  if (type.dims.size() != rank || type.routed()) {
    fail(op, "got {}; expected a tensor of rank {}", to_string(type), rank);
  }
}

/// Expects plain elements, without scales.
inline void want_dtype(std::string_view op, const TensorType& type, DType dtype) {
  if (type.dtype != dtype || type.encoding) {
    fail(op, "got {}; expected {}", to_string(type), to_string(dtype));
  }
}

inline void want_float(std::string_view op, const TensorType& type) {
  if (!graph::is_floating(type.dtype) || type.encoding) {
    fail(op, "got {}; expected a floating type", to_string(type));
  }
}

/// Expects the same number, or the same part of the same symbol.
inline void want_equal(std::string_view op, const char* what, const Dim& got, const Dim& expected) {
  if (got != expected) fail(op, "{} is {}; expected {}", what, got, expected);
}

inline void want_same(std::string_view op, const TensorType& left, const TensorType& right) {
  if (!(left == right)) {
    fail(op, "types {} and {} differ; expected the same", to_string(left), to_string(right));
  }
}

/// Expects a dense index vector: `n` integers of this type.
inline void want_vector(std::string_view op, const TensorType& type, DType dtype, const Dim& n,
                        const char* what) {
  want_rank(op, type, 1);
  want_dtype(op, type, dtype);
  want_equal(op, what, type.dims[0], n);
}

inline void want_scalar(std::string_view op, const TensorType& type, DType dtype) {
  if (type.dtype != dtype || type.encoding || type.dims != Dims{1}) {
    fail(op, "got {}; expected {}[1]", to_string(type), to_string(dtype));
  }
}

inline int64_t total_bytes(Types in, Types out) {
  int64_t bytes = 0;
  for (const TensorType& type : in) {
    bytes += type.bytes();
  }
  for (const TensorType& type : out) {
    bytes += type.bytes();
  }
  return bytes;
}

/// Returns the elements of an operand; for a routed one under even routing, the local experts'
/// share of its tokens' rows. With an unknown number of experts it is the bound.
inline double even_numel(const Call& call, const TensorType& type) {
  const double numel = static_cast<double>(type.numel());
  if (!type.routed() || call.experts == 0) return numel;
  const double share = static_cast<double>(type.dims[0]) / static_cast<double>(call.experts);
  const double rows = static_cast<double>(type.dims[1]) * type.top_k * share;
  return std::min(numel, rows * static_cast<double>(type.row_size()));
}
inline int64_t even_bytes(const Call& call, const TensorType& type) {
  return type.routed() ? type.bytes_of(static_cast<int64_t>(even_numel(call, type))) : type.bytes();
}

/// Work of an op that touches every operand once, with `flops_per_element` of its largest output.
inline Work memory_bound(const Call& call, double flops_per_element) {
  Work work;
  for (const Types list : {call.in, call.out}) {
    for (const TensorType& type : list) {
      work.bytes += even_bytes(call, type);
    }
  }
  double largest = 0;
  for (const TensorType& type : call.out) {
    largest = std::max(largest, even_numel(call, type));
  }
  work.flops = largest * flops_per_element;
  return work;
}

/// Returns the bytes of an element.
inline int64_t element(const TensorType& type) { return graph::size_of(type.dtype); }
/// Returns the product of the dims [begin, end).
inline int64_t product(const Dims& dims, size_t begin, size_t end) {
  int64_t elements = 1;
  for (size_t i = begin; i < end; ++i) {
    elements *= dims[i];
  }
  return elements;
}
inline int64_t product(const Dims& dims, size_t begin) { return product(dims, begin, dims.size()); }

/// Returns the number of threads with scratch.
inline int64_t scratch_threads(const Attrs& attrs) {
  return std::max<int64_t>(1, attrs.i_or("threads", kScratchThreads));
}
/// Returns the scratch of products with inner dimension k and n columns.
inline int64_t product_scratch(const Attrs& attrs, int64_t n, int64_t k, int64_t element) {
  return scratch_threads(attrs) * gemm_scratch(n, k, element);
}

/// Expects the LM head: h[T,D], W[V,D], targets i32[T]; `softcap` is positive where it is given.
inline void want_lm_head(std::string_view op, const Attrs& attrs, Types in) {
  want_rank(op, in[0], 2);
  want_float(op, in[0]);
  want_rank(op, in[1], 2);
  want_dtype(op, in[1], in[0].dtype);
  want_equal(op, "width of W", in[1].dims[1], in[0].dims[1]);
  want_vector(op, in[2], DType::i32, in[0].dims[0], "number of targets");
  if (!attrs.has("softcap")) return;
  if (const double cap = attrs.f("softcap"); !(cap > 0 && std::isfinite(cap))) {
    fail(op, "softcap is {}; expected a positive number", cap);
  }
}

/// Returns the FLOPs of the logits of all tokens, h[T,D] W[V,D]^T.
inline double head_flops(Types in) {
  return 2 * static_cast<double>(in[0].numel()) * static_cast<double>(in[1].dims[0]);
}

/// Returns the workspace of the LM head, h[T,D] and W[V,D], over chunks of tokens. It has the
/// logits of one chunk and its rows of h, a term per token, and the numbers of tokens with a
/// target. It also has the scratch of the largest product; `grad`: with those of dh and dW.
inline int64_t head_workspace(const Call& call, bool grad) {
  const int64_t d = call.in[0].dims[1], v = call.in[1].dims[0], e = element(call.in[0]);
  const int64_t rows = cross_entropy_rows(call.in[0].dims[0], v, e);
  int64_t scratch = product_scratch(call.attrs, v, d, e);
  if (grad) {
    scratch = std::max(
        {scratch, product_scratch(call.attrs, d, v, e), product_scratch(call.attrs, d, rows, e)});
  }
  return round_up(rows * v * e, 64) + round_up(rows * d * e, 64) + round_up(rows * 8, 64) +
         round_up(call.in[0].dims[0] * 4, 64) + scratch;
}

}  // namespace hocket::ops
