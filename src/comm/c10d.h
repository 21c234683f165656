// SPDX-License-Identifier: Apache-2.0
// The transport between processes: LibTorch's c10d, in a library of its own that is loaded when it
// is asked for.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "comm/wire.h"

namespace hocket::comm {

/// Which of c10d's groups Wire::team makes.
enum class Groups : uint8_t {
  gloo,
  nccl,  ///< on a GPU of every rank, from which and to which its operands are copied
};

/// GPUs that this process sees.
struct Gpus {
  int32_t count = 0;
  std::string why_none;  ///< no such library, a PyTorch without CUDA, no driver
};
/// Asked once.
const Gpus& gpus();

/// Meets the other processes of the run: blocks until all have come. Throws Error when there is no
/// such library, or one that was built with another interface (comm/wire.h), or no GPU for groups
/// of NCCL, or when some processes do not come within the timeout, or come with other groups.
std::unique_ptr<Wire> open_c10d(const Place& place, std::chrono::milliseconds timeout,
                                Groups groups = Groups::gloo);

/// What an error of c10d says, without the frames of its stack behind it.
std::string_view said(std::string_view what);

}  // namespace hocket::comm
