// SPDX-License-Identifier: Apache-2.0
// c10d's groups over NCCL, where LibTorch was built for CUDA. The build says so by USE_C10D_NCCL,
// or in HOCKET_NO_NCCL why not.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace hocket::comm {

/// GPUs that this process sees; 0: none, and why.
int32_t count_gpus(std::string* why_none);

/// Meets the other members: blocks until all have come with their GPUs. Throws std::exception.
c10::intrusive_ptr<c10d::Backend> nccl_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             int size, at::Device gpu,
                                             std::chrono::milliseconds timeout);

}  // namespace hocket::comm
