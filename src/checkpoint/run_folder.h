// SPDX-License-Identifier: Apache-2.0
// The folder of a run's checkpoints as its processes see it: one folder for all, or one on each
// host where hosts share no file system.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/record.h"
#include "comm/communicator.h"

namespace hocket::checkpoint {

/// The name of this host; empty: it has none.
std::string host_name();

class RunFolder {
 public:
  /// Of a run of one process.
  RunFolder(const std::string& path);  // implicit: whoever is alone names the folder
  /// Of a process that has these ranks; all processes call. Each writes a file into the folder and
  /// looks for those of the others: who finds it sees the same file system. Error, in all: the
  /// folder is not writable somewhere.
  RunFolder(const std::string& path, comm::Processes& processes, const std::vector<int32_t>& ranks);

  const std::string& path() const { return path_; }
  comm::Processes& processes() const { return *processes_; }
  /// Whether this process does what is done once per file system.
  bool leads() const { return leader_ == processes_->index(); }
  /// The process id of the one that does.
  int64_t leader_pid() const { return leader_pid_; }
  /// The hosts, of which each has a file system of its own.
  const std::vector<Host>& hosts() const { return hosts_; }
  /// The number of this one.
  int32_t host() const { return host_; }
  bool is_shared() const { return hosts_.size() == 1; }

 private:
  std::string path_;
  comm::Processes* processes_;
  int32_t leader_ = 0;
  int64_t leader_pid_ = 0;
  int32_t host_ = 0;
  std::vector<Host> hosts_;
};

}  // namespace hocket::checkpoint
