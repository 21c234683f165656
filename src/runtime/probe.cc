// SPDX-License-Identifier: Apache-2.0
#include "runtime/probe.h"

#include <array>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/stats.h"
#include "ops/op.h"

namespace hocket::runtime {

namespace {

/// Dims of the measured product.
constexpr int64_t kSize = 256;
constexpr double kFlops = 2.0 * kSize * kSize * kSize;
/// Time to measure, in seconds.
constexpr double kSeconds = 0.004;
/// Minimum number of products.
constexpr size_t kMinProducts = 3;

}  // namespace

Probe::Probe(std::shared_ptr<kernels::Backend> backend)
    : backend_(std::move(backend)),
      x_(kSize * kSize, 0.5f),
      weight_(kSize * kSize, 0.25f),
      y_(kSize * kSize) {
  type_.dims = {kSize, kSize};
  const std::array in = {type_, type_};
  const std::array out = {type_};
  kernel_ = backend_->find("linear", kernels::Device::cpu, {in, out});
  if (!kernel_) {
    fail("probe", "{} has no f32 matrix product", backend_->describe());
  }
  workspace_.resize(static_cast<size_t>(ops::workspace_bytes("linear", attrs_, in, out)));
}

void Probe::multiply() {
  const std::array<kernels::TensorRef, 2> in = {{{x_.data(), &type_}, {weight_.data(), &type_}}};
  const std::array<kernels::TensorRef, 1> out = {{{y_.data(), &type_}}};
  kernels::KernelArgs args;
  args.attrs = &attrs_;
  args.in = in;
  args.out = out;
  args.workspace = workspace_.data();
  args.workspace_bytes = static_cast<int64_t>(workspace_.size());
  kernel_(args);
}

double Probe::flops_per_s() {
  backend_->enter_thread(1);
  multiply();  // warms up the caches
  std::vector<double> seconds;
  const int64_t begin = now_ns();
  while (seconds.size() < kMinProducts || seconds_since(begin) < kSeconds) {
    const int64_t start = now_ns();
    multiply();
    seconds.push_back(seconds_since(start));
  }
  return kFlops / median(seconds);
}

}  // namespace hocket::runtime
