// SPDX-License-Identifier: Apache-2.0
// Current speed of the machine. Clock frequencies and other load vary: times measured at different
// moments are comparable only at equal speed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace hocket::runtime {

/// Fixed matrix product, [256, 256] by [256, 256] in f32 (0.03 GFLOP), on one thread.
class Probe {
 public:
  /// Throws Error if the backend has no such product.
  explicit Probe(std::shared_ptr<kernels::Backend> backend);

  /// Returns FLOP/s: the median of the products in about 4 ms, at least three, so that one
  /// interruption does not matter. Sets the calling thread to one kernel thread from then on.
  double flops_per_s();
  /// Runs one product, about 0.2 ms: a fixed amount of work.
  void multiply();

 private:
  std::shared_ptr<kernels::Backend> backend_;
  graph::TensorType type_;
  graph::Attrs attrs_;
  kernels::KernelFn kernel_ = nullptr;
  std::vector<float> x_, weight_, y_;
  std::vector<std::byte> workspace_;
};

}  // namespace hocket::runtime
