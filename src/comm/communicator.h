// SPDX-License-Identifier: Apache-2.0
// Communication between ranks, as tasks see it: one interface for every transport.
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

/// One communication task with its operands. `members` are the group's ranks in order
/// (collectives), `peer` is the other rank (send, recv).
struct Call {
  const program::Kind* kind = nullptr;
  std::span<void*const> in, out;  ///< one pointer per operand of the kind
  std::span<const int32_t> members;
  std::span<const Copy> copies = {};  ///< of a transfer: elements that this rank receives
  std::span<const Copy> given = {};   ///< and elements that it sends (CollectiveArgs::given)
  /// Tokens of each member, for row counts, where members differ. For communicators that emulate
  /// peers.
  std::span<const int64_t> tokens = {};
  program::TaskId task =
      program::kNone;  ///< task of this call; for communicators that emulate peers
  program::Lane lane = program::Lane::intra;
  int32_t peer = -1;
  int32_t tag = -1;
  /// Factor on the bytes that every message puts on the links between processes, by padding. At
  /// least 1, and equal at both ends.
  double traffic = 1;
};

/// Returns the lane's next call if all of its inputs are ready; null if they are not, or if there
/// is none.
using NextCall = std::function<const Call*()>;

/// Communication of one rank.
class Communicator {
 public:
  virtual ~Communicator() = default;
  /// Executes a call and blocks until this rank's part is done. Throws Error when a peer does not
  /// come within the timeout, comes with a different operation, or when the run was aborted.
  /// Towards its end, the call may already send inputs of the call that `next` returns. The lane
  /// must run that call next, and nothing may write its inputs before then.
  virtual void run(const Call& call, const NextCall& next = {}) = 0;
};

/// Collective operations on the processes of a run, outside of steps. Every process calls them in
/// the same order.
class Processes {
 public:
  virtual ~Processes() = default;
  virtual int32_t size() const = 0;
  /// Index of this process; process 0 prints and decides.
  virtual int32_t index() const = 0;
  /// Name of this process in messages: its rank, where each process has one.
  virtual std::string name() const { return "rank " + std::to_string(index()); }
  /// Returns the text of every process, by index. Throws Error when a process does not come within
  /// the timeout, or has failed.
  virtual std::vector<std::string> all_gather(const std::string& mine) = 0;
  /// All-to-all: sends given[i] to process i and returns the texts of all processes for this one,
  /// by index. The own entry is returned unchanged. Throws as all_gather does.
  virtual std::vector<std::string> exchange(std::vector<std::string> given) = 0;
  /// Broadcasts the text of process 0.
  std::string broadcast(const std::string& mine) { return all_gather(mine).front(); }
  /// Barrier: returns when every process has called it.
  void barrier() { all_gather(""); }
};
/// Returns the processes of a run with a single process.
Processes& alone();

/// Ranks of a run, some or all of them in this process.
class World {
 public:
  virtual ~World() = default;
  virtual int32_t size() const = 0;
  /// Returns the communicator of a local rank; the world owns it.
  virtual Communicator& communicator(int32_t rank) = 0;
  /// Makes every pending and later call throw with this reason, after a rank has failed.
  virtual void abort(const std::string& reason) = 0;
  /// Returns the peak bytes that were sent by this local rank and not yet received.
  virtual int64_t peak_message_bytes(int32_t rank) const = 0;
  /// Processes that run the ranks.
  virtual Processes& processes() { return alone(); }
  /// Registers callbacks: `doing` describes the local ranks' work, for reports of other processes;
  /// `stop` is called with the reason when a rank elsewhere has failed.
  virtual void watch(std::function<std::string()> /*doing*/,
                     std::function<void(const std::string&)> /*stop*/) {}
  /// Ends the monitoring of the local ranks, after they have ended.
  virtual void leave() = 0;
};

/// World with threads of one process as ranks; they exchange data only through these calls.
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
