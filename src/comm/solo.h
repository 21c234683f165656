// SPDX-License-Identifier: Apache-2.0
// A communicator for one rank that plays with copies of itself: every peer is taken to hold the
// same data. Sizes and index tensors stay valid, so that a rank of any program can be timed alone
// (the ex-situ tracing of Echo, arXiv 2412.12487).
#pragma once

#include "comm/communicator.h"

namespace hocket::comm {

class SoloCommunicator : public Communicator {
 public:
  explicit SoloCommunicator(int32_t rank) : rank_(rank) {}
  void run(const Call& call) override;

 private:
  int32_t rank_;
};

}  // namespace hocket::comm
