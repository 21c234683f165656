// SPDX-License-Identifier: Apache-2.0
// segment_sum, segment_gather, token_sum.
#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

namespace {

void check_segment(const char* op, int32_t segment, int64_t segments) {
  if (segment >= segments) {
    fail_run(op, "got the segment {}; expected at most {}", segment, segments - 1);
  }
}

}  // namespace

/// Sums in the order of the tokens, on one thread.
void segment_sum(const KernelArgs& args) {
  const double* x = in<double>(args, 0);
  const int32_t* segments = in<int32_t>(args, 1);
  double* y = out<double>(args, 0);
  const int64_t n = count(args.out[0]);
  std::fill_n(y, n, 0.0);
  for (int64_t t = 0; t < count(args.in[0]); ++t) {
    check_segment("segment_sum", segments[t], n);
    if (segments[t] >= 0) {
      y[segments[t]] += x[t];
    }
  }
}

void segment_gather(const KernelArgs& args) {
  const double* x = in<double>(args, 0);
  const int32_t* segments = in<int32_t>(args, 1);
  double* y = out<double>(args, 0);
  const int64_t n = count(args.in[0]);
  for (int64_t t = 0; t < count(args.out[0]); ++t) {
    check_segment("segment_gather", segments[t], n);
    y[t] = segments[t] >= 0 ? x[segments[t]] : 0.0;
  }
}

/// Sums in the order of the tokens, on one thread.
void token_sum(const KernelArgs& args) {
  const double* x = in<double>(args, 0);
  double sum = 0;
  for (int64_t t = 0; t < count(args.in[0]); ++t) {
    sum += x[t];
  }
  *out<double>(args, 0) = *in<double>(args, 1) * sum;
}

}  // namespace hocket::kernels::HOCKET_CPU
