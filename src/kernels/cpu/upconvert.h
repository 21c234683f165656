// SPDX-License-Identifier: Apache-2.0
// Kernels that were compiled for f32, on operands of fewer bits.
#pragma once

#include "kernels/abi.h"

namespace hocket::kernels::HOCKET_CPU {

/// Calls `kernel` on f32 copies of all short operands (ops::is_short) at the front of the workspace
/// (ops::cost_of counts them), and rounds its outputs. An output in the memory of an input shares
/// that copy. Sums are in f32, and every output is rounded once.
void on_f32_copies(const KernelArgs& args, KernelFn kernel);

}  // namespace hocket::kernels::HOCKET_CPU
