// SPDX-License-Identifier: Apache-2.0
// Groups of c10d over NCCL, where LibTorch was built for CUDA. The build defines USE_C10D_NCCL, or
// HOCKET_NO_NCCL with the reason.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace hocket::comm {

/// Returns the number of GPUs that this process sees; 0: none, with the reason.
int32_t count_gpus(std::string* why_none);

/// Creates a group; blocks until all members have come with their GPUs. Throws std::exception.
c10::intrusive_ptr<c10d::Backend> nccl_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             int size, at::Device gpu,
                                             std::chrono::milliseconds timeout);

}  // namespace hocket::comm
