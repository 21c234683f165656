// SPDX-License-Identifier: Apache-2.0
// How a rank's communication tasks reach other ranks: one interface for every transport.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
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
  std::span<const Copy> copies = {};  ///< of a transfer: what this rank takes
  std::span<const Copy> given = {};   ///< and what others take of it (Together::given)
  /// Of counts of rows: tokens of each member, where they do not have as many each. For who plays
  /// the others.
  std::span<const int64_t> tokens = {};
  program::TaskId task = program::kNone;  ///< whose call it is: likewise
  program::Lane lane = program::Lane::intra;
  int32_t peer = -1;
  int32_t tag = -1;
  /// Between processes so many times the bytes of every message go through the links: what comes
  /// behind its own is filler. At least 1, and the same at both ends.
  double traffic = 1;
};

/// The call that a lane runs next, if all that it reads is there already; null: not yet, or none.
using NextCall = std::function<const Call*()>;

class Communicator {
 public:
  virtual ~Communicator() = default;
  /// Blocks until this rank's part is done. Throws Error when a peer does not come within the
  /// timeout, comes with something else, or the run was aborted. While this call comes to its end,
  /// what the next one of its lane reads may be sent: `next` is asked for it, and that is the call
  /// that the lane then runs. Nothing is written to its operands before.
  virtual void run(const Call& call, const NextCall& next = {}) = 0;
};

/// Exchanges between the processes of a run outside of steps: all of them call, in the same order.
class Processes {
 public:
  virtual ~Processes() = default;
  virtual int32_t size() const = 0;
  /// The number of this one; 0 is the one that prints and decides.
  virtual int32_t index() const = 0;
  /// What this one is called in messages: by its rank, where each process has one.
  virtual std::string name() const { return "rank " + std::to_string(index()); }
  /// What every process gives, by its number. Throws Error when one does not come within the
  /// timeout, or has failed.
  virtual std::vector<std::string> all_gather(const std::string& mine) = 0;
  /// What every process has for this one, by its number; `given`: what this one has for each, and
  /// what it has for itself comes back. Throws as all_gather.
  virtual std::vector<std::string> exchange(std::vector<std::string> given) = 0;
  /// What process 0 gives.
  std::string from_first(const std::string& mine) { return all_gather(mine).front(); }
  /// Returns when all have come.
  void meet() { all_gather(""); }
};
/// Of a run that is one process.
Processes& alone();

/// The ranks of a run: some of them, or all, are in this process.
class World {
 public:
  virtual ~World() = default;
  virtual int32_t size() const = 0;
  /// The communicator of a rank that is here; lives as long as the world.
  virtual Communicator& communicator(int32_t rank) = 0;
  /// Makes every waiting and later call throw with this reason (a failed rank).
  virtual void abort(const std::string& reason) = 0;
  /// Most bytes that were ever held for what this rank had sent and its receivers had not taken
  /// yet. Of a rank that is here.
  virtual int64_t peak_message_bytes(int32_t rank) const = 0;
  /// Those that have the ranks.
  virtual Processes& processes() { return alone(); }
  /// What the ranks that are here do just now, for others to tell; `stop` is called when a rank
  /// elsewhere has failed, with why.
  virtual void watch(std::function<std::string()> /*doing*/,
                     std::function<void(const std::string&)> /*stop*/) {}
  /// The ranks that are here have ended: they are watched no more.
  virtual void leave() = 0;
};

/// Ranks that are threads of one process. They exchange data through these calls only.
class LocalWorld : public World {
 public:
  LocalWorld(int32_t ranks, std::chrono::milliseconds timeout);
  ~LocalWorld() override;
  int32_t size() const override;
  Communicator& communicator(int32_t rank) override;
  void abort(const std::string& reason) override;
  int64_t peak_message_bytes(int32_t rank) const override;
  void leave() override { abort("the ranks have ended"); }

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace hocket::comm
