// SPDX-License-Identifier: Apache-2.0
#include "torch/nccl_group.h"

#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#else
#include <stdexcept>
#endif

namespace hocket::comm {

#ifdef USE_C10D_NCCL

int32_t count_gpus(std::string* why_none) {
  const int32_t count = c10::cuda::device_count();
  if (count == 0) {
    *why_none = "CUDA sees no GPU; check the driver and CUDA_VISIBLE_DEVICES";
  }
  return count;
}

c10::intrusive_ptr<c10d::Backend> nccl_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             int size, at::Device gpu,
                                             std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  group->eagerConnectSingleDevice(gpu);
  return group;
}

#else

int32_t count_gpus(std::string* why_none) {
  *why_none = HOCKET_NO_NCCL;
  return 0;
}

c10::intrusive_ptr<c10d::Backend> nccl_group(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                             at::Device, std::chrono::milliseconds) {
  throw std::runtime_error(HOCKET_NO_NCCL);
}

#endif

}  // namespace hocket::comm
