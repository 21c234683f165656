// SPDX-License-Identifier: Apache-2.0
// Communicator for one rank without its peers, which are emulated as copies of it: every peer is
// assumed to hold the same data. Sizes and index tensors stay valid, so that a rank of any program
// can be timed alone (the ex-situ tracing of Echo, arXiv 2412.12487).
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace hocket::comm {

/// Overwrites the outputs of a rank's call with values that are known without the peers.
using KnownOutputs = std::function<void(int32_t rank, const Call& call)>;

/// Communicator with emulated peers.
class SoloCommunicator : public Communicator {
 public:
  explicit SoloCommunicator(int32_t rank, KnownOutputs known = {})
      : rank_(rank), known_(std::move(known)) {}
  void run(const Call& call, const NextCall& next = {}) override;

 private:
  void emulate_peers(const Call& call);

  int32_t rank_;
  KnownOutputs known_;
};

/// World in which every rank runs alone and waits for no other.
class SoloWorld : public World {
 public:
  explicit SoloWorld(int32_t ranks, const KnownOutputs& known = {}) {
    for (int32_t rank = 0; rank < ranks; ++rank) {
      ranks_.emplace_back(rank, known);
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
