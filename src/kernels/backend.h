// SPDX-License-Identifier: Apache-2.0
// Where an executor finds its kernels.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "kernels/abi.h"

namespace hocket::kernels {

/// The kernels of one device or library.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string describe() const = 0;
  /// The kernel of `op` on `device` for operands of these types, or null.
  virtual KernelFn find(std::string_view op, Device device, const OperandTypes& types) const = 0;
  /// Called first by every thread that runs kernels: how many threads each call may use. The
  /// count belongs to the calling thread; one that never called this has 1.
  virtual void enter_thread(int num_threads) = 0;
};

/// The kernels in this program for the CPU that it runs on.
std::shared_ptr<Backend> cpu_backend();

}  // namespace hocket::kernels
