// SPDX-License-Identifier: Apache-2.0
// Transport between processes by LibTorch's c10d, in a separate library that is loaded on demand.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "comm/transport.h"

namespace hocket::comm {

/// Backend of the c10d groups that Transport::group creates.
enum class GroupBackend : uint8_t {
  gloo,
  nccl,  ///< on a GPU of every rank; operands are copied to it and back
};

/// GPUs that this process sees.
struct Gpus {
  /// Number of GPUs, and the reason if there are none.
  int32_t count = 0;
  std::string why_none;  ///< library missing, PyTorch without CUDA, no driver
};
/// Returns the GPUs; queried once.
const Gpus& gpus();

/// Connects to the other processes of the run, and blocks until all are connected. Throws Error
/// when the library is missing or has another interface (comm/transport.h), or when NCCL groups
/// have no GPU. Throws Error also when processes do not connect within the timeout, or use
/// different groups.
std::unique_ptr<Transport> open_c10d(const LaunchInfo& info, std::chrono::milliseconds timeout,
                                     GroupBackend groups = GroupBackend::gloo);

/// Returns the message of a c10d error without its stack trace.
std::string_view without_backtrace(std::string_view what);

}  // namespace hocket::comm
