// SPDX-License-Identifier: Apache-2.0
// How fast the machine is at this moment. Clocks change, and others run beside: times of one hour
// are those of another only at equal speed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace hocket::runtime {

/// One fixed product, [256, 256] by [256, 256] in f32 (0.03 GFLOP), on one thread.
class Probe {
 public:
  /// Error: the backend has no such product.
  explicit Probe(std::shared_ptr<kernels::Backend> backend);

  /// FLOP/s of the products that about 4 ms have room for, three at the least: their median, so
  /// that one interruption does not count. The calling thread has one thread for kernels from then
  /// on.
  double flops_per_s();
  /// One product, some 0.2 ms: a fixed piece of work.
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
