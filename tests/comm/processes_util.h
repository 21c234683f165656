// SPDX-License-Identifier: Apache-2.0
// Processes of a run without a launcher: threads that emulate them, and real child processes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace hocket::test {

/// Processes emulated by threads.
class ThreadProcesses {
 public:
  explicit ThreadProcesses(int32_t size);
  ~ThreadProcesses();
  comm::Processes& at(int32_t index);
  /// Runs `body` once per process and returns the text that each threw; "": nothing. A process that
  /// throws has exited for the others.
  std::vector<std::string> run(const std::function<void(comm::Processes&)>& body);
  /// Likewise, and fails the test if one throws.
  void expect_run(const std::function<void(comm::Processes&)>& body);

 private:
  class Member;
  std::vector<std::string> all_gather(int32_t index, const std::string& mine);

  std::vector<std::unique_ptr<Member>> members_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> given_, gathered_;
  size_t count_ = 0;
  int64_t round_ = 0;
  int32_t gone_ = -1;  ///< first one that has thrown
};

/// Some ranks of a world; the others are elsewhere.
class PartWorld : public comm::World {
 public:
  PartWorld(std::shared_ptr<comm::World> world, comm::Processes& processes)
      : world_(std::move(world)), processes_(processes) {}
  int32_t size() const override { return world_->size(); }
  comm::Communicator& communicator(int32_t rank) override { return world_->communicator(rank); }
  void abort(const std::string& reason) override { world_->abort(reason); }
  int64_t peak_message_bytes(int32_t rank) const override {
    return world_->peak_message_bytes(rank);
  }
  comm::Processes& processes() override { return processes_; }
  void leave() override { world_->leave(); }

 private:
  std::shared_ptr<comm::World> world_;
  comm::Processes& processes_;
};

/// Child processes, which may be killed. A child without its peers gets an error.
class ForkedProcesses {
 public:
  /// Forks children that run `body` and exit, with code 3 after an Error.
  ForkedProcesses(int32_t size, const std::function<void(comm::Processes&)>& body);
  /// Kills the remaining children.
  ~ForkedProcesses();
  void kill(int32_t index) const;
  /// Waits for a child and returns its exit code, -1 if it was killed. Fails the test, and kills
  /// it, after `patience`.
  int wait(int32_t index, std::chrono::seconds patience);

 private:
  std::vector<pid_t> children_;  ///< 0: already waited for
};

}  // namespace hocket::test
