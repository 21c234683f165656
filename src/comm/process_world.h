// SPDX-License-Identifier: Apache-2.0
// Ranks as processes: this one has one rank, and reaches the others through a connection.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives/implementation.h"
#include "comm/connection.h"

namespace hocket::comm {

/// World with one rank per process. Messages are sent as they are. A collective of our own runs by
/// its record, as between threads. Before that, every member sends each other one the slices that
/// the other one reads (Op::reads). The order of reductions, hence the bits, are those of local
/// ranks; the traffic is that of the algorithm `direct`.
class ProcessWorld : public World {
 public:
  /// Requires: worlds of one connection are used one after another.
  explicit ProcessWorld(std::shared_ptr<Connection> connection,
                        Collectives collectives = Collectives::own);
  ~ProcessWorld() override;
  int32_t size() const override;
  Communicator& communicator(int32_t rank) override;
  void abort(const std::string& reason) override;
  int64_t peak_message_bytes(int32_t rank) const override;
  Processes& processes() override { return *connection_; }
  void watch(std::function<std::string()> doing,
             std::function<void(const std::string&)> stop) override;
  void leave() override;

 private:
  class Rank;

  const std::shared_ptr<Connection> connection_;
  std::unique_ptr<Rank> rank_;
};

}  // namespace hocket::comm
