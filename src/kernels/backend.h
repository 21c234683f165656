// SPDX-License-Identifier: Apache-2.0
// Look-up of kernels for the executor.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/abi.h"

namespace hocket::kernels {

/// The kernels of one device or library.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string describe() const = 0;
  /// Returns the kernel of `op` on `device` for operands of `types`, or null.
  virtual KernelFn find(std::string_view op, Device device, const OperandTypes& types) const = 0;
  /// Sets how many threads each call of the calling thread may use. Called first by every thread
  /// that runs kernels; one that never called this has 1.
  virtual void enter_thread(int num_threads) = 0;
};

/// The kernels in this program for the processor that it runs on: those of the most demanding
/// instruction set that it supports, or of the one that the environment's HOCKET_CPU names (Error
/// if there is none such). Results are the same to the bit within one instruction set, not between
/// two.
std::shared_ptr<Backend> cpu_backend();
/// The name of that instruction set.
std::string cpu_level();
/// Makes programs that are prepared from here on run the kernels of this level, as a run did that
/// goes on. Returns false, and changes nothing, if this processor does not support it, or
/// HOCKET_CPU names another.
bool use_cpu_level(std::string_view name);
/// Returns the initial choice of a process, with the reason: "x86-64-v4 (the best for this
/// processor of ...)".
std::string cpu_choice();
/// Every one that this processor supports, least demanding first.
std::vector<std::shared_ptr<Backend>> cpu_backends();

}  // namespace hocket::kernels
