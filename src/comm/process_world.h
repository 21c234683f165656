// SPDX-License-Identifier: Apache-2.0
// Ranks as processes: this one has one rank, and reaches the others through a connection.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives/transport.h"
#include "comm/connection.h"

namespace hocket::comm {

/// Messages go as they are. A collective of our own is done by its record, as between threads,
/// after every member has sent to each other one what that reads of it (Op::reads): in the order of
/// sums, and so in its bits, it is that of local ranks; its bytes are those of the algorithm
/// `direct`.
class ProcessWorld : public World {
 public:
  /// Worlds of one connection take turns.
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
