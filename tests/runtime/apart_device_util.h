// SPDX-License-Identifier: Apache-2.0
// Device with memory that the host cannot touch: each range is mapped twice, once without access
// for the host, and once for kernels. Any access by the host other than through the device raises
// SIGSEGV.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/communicator.h"
#include "runtime/device.h"

namespace hocket::fake {

class ApartDevice : public runtime::Device {
 public:
  kernels::Device kind() const override { return kernels::Device::cpu; }
  std::unique_ptr<runtime::Memory> reserve(int64_t bytes) override;
  std::unique_ptr<runtime::Queue> make_queue(runtime::Progress& progress,
                                             runtime::Failed failed) override;
  void copy(void* to, const void* from, int64_t bytes) const override;
  /// Returns the address at which kernels find this address; host memory is unchanged.
  std::byte* inside(const void* address) const;
  /// Bytes copied so far.
  int64_t copied() const;

 private:
  friend class ApartMemory;
  struct Mapped {
    int64_t bytes = 0;
    std::byte* inside = nullptr;
  };

  mutable std::mutex mutex_;
  std::map<const std::byte*, Mapped> mapped_;  // by first address; guarded by mutex_
  mutable int64_t copied_ = 0;                 // guarded by mutex_
};

/// World of ranks that are threads of one process, which exchanges data on the device.
class ApartWorld : public comm::World {
 public:
  ApartWorld(int32_t ranks, std::chrono::milliseconds timeout,
             std::shared_ptr<const ApartDevice> device);
  int32_t size() const override { return world_.size(); }
  comm::Communicator& communicator(int32_t rank) override;
  void abort(const std::string& reason) override { world_.abort(reason); }
  int64_t peak_message_bytes(int32_t rank) const override {
    return world_.peak_message_bytes(rank);
  }
  void leave() override { world_.leave(); }

 private:
  class Inside;
  comm::LocalWorld world_;
  std::vector<std::shared_ptr<comm::Communicator>> communicators_;
};

}  // namespace hocket::fake
