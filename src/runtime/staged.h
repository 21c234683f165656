// SPDX-License-Identifier: Apache-2.0
// Communication of the host for ranks of a device: operands go to the host and back.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "runtime/device.h"

namespace hocket::runtime {

/// Hands on every call with copies of its operands in memory of the host, and copies the outputs
/// back. Operands that are the same memory are one copy.
class StagedCommunicator : public comm::Communicator {
 public:
  /// `of` outlives it.
  StagedCommunicator(comm::Communicator& of, std::shared_ptr<const Device> device)
      : of_(of), device_(std::move(device)) {}
  void run(const comm::Call& call, const comm::NextCall& next = {}) override;

 private:
  comm::Communicator& of_;
  const std::shared_ptr<const Device> device_;
};

}  // namespace hocket::runtime
