// SPDX-License-Identifier: Apache-2.0
#include "runtime/probe.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "kernels/backend.h"

namespace hocket::runtime {
namespace {

TEST(Probe, RunsShortlyAndCountsItsProducts) {
  Probe probe(kernels::cpu_backend());
  probe.flops_per_s();  // touches pages and starts threads
  const int64_t begin = now_ns();
  const double rate = probe.flops_per_s();
  const double seconds = static_cast<double>(now_ns() - begin) * 1e-9;
  // At least four products of 2 x 256^3 FLOPs fit in that time.
  EXPECT_GT(rate * seconds, 2.0 * 256 * 256 * 256);
  EXPECT_GT(rate, 1e6);
  EXPECT_LT(rate, 1e13);
}

}  // namespace
}  // namespace hocket::runtime
