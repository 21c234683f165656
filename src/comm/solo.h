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
  void run(const Call& call, const NextCall& next = {}) override;

 private:
  int32_t rank_;
};

/// A world in which each rank is alone: its programs take no time for others.
class SoloWorld : public World {
 public:
  explicit SoloWorld(int32_t ranks) {
    for (int32_t rank = 0; rank < ranks; ++rank) {
      ranks_.emplace_back(rank);
    }
  }
  int32_t size() const override { return static_cast<int32_t>(ranks_.size()); }
  Communicator& communicator(int32_t rank) override { return ranks_[static_cast<size_t>(rank)]; }
  void abort(const std::string&) override {}
  int64_t peak_message_bytes(int32_t) const override { return 0; }
  void leave() override {}

 private:
  std::vector<SoloCommunicator> ranks_;
};

}  // namespace hocket::comm
