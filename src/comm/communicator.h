// SPDX-License-Identifier: Apache-2.0
// How a rank's communication tasks reach other ranks: one interface for every transport.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace hocket::comm {

/// One communication task with its operands. `members` are the ranks of the group instance in rank
/// order (collectives), `peer` the other rank (send, recv).
struct Call {
  const program::Kind* kind = nullptr;
  std::span<void*const> in, out;  ///< one pointer per operand of the kind
  std::span<const int32_t> members;
  program::Lane lane = program::Lane::intra;
  int32_t peer = -1;
  int32_t tag = -1;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  /// Blocks until this rank's part is done. Throws Error when a peer does not come within the
  /// timeout, comes with something else, or the run was aborted.
  virtual void run(const Call& call) = 0;
};

/// Ranks that are threads of one process. They exchange data through these calls only.
class LocalWorld {
 public:
  LocalWorld(int32_t ranks, std::chrono::milliseconds timeout);
  ~LocalWorld();
  int32_t size() const;
  /// The communicator of a rank; lives as long as the world.
  Communicator& communicator(int32_t rank);
  /// Makes every waiting and later call throw with this reason (a failed rank).
  void abort(const std::string& reason);
  /// Most bytes that were ever held for what this rank had sent and its receivers had not taken
  /// yet.
  int64_t peak_message_bytes(int32_t rank) const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace hocket::comm
