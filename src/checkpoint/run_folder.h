// SPDX-License-Identifier: Apache-2.0
// Checkpoint folder of a run as its processes see it: one shared folder, or one per host where
// hosts share no file system.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/record.h"
#include "comm/communicator.h"

namespace hocket::checkpoint {

/// Returns the name of this host; empty if it has none.
std::string host_name();

/// Checkpoint folder of a run and the processes that share it.
class RunFolder {
 public:
  /// Constructs the folder of a run with a single process.
  RunFolder(const std::string& path);  // implicit, so that a single process can pass a path
  /// Constructs the folder for a process with these ranks. Collective. Each process writes a marker
  /// file into the folder and looks for those of the others. So it finds out which of them share
  /// its file system. Throws Error in all processes if the folder is not writable on some host.
  RunFolder(const std::string& path, comm::Processes& processes, const std::vector<int32_t>& ranks);

  const std::string& path() const { return path_; }
  comm::Processes& processes() const { return *processes_; }
  /// Returns whether this process does the work that is done once per file system.
  bool leads() const { return leader_ == processes_->index(); }
  /// Process id of the leader of this file system.
  int64_t leader_pid() const { return leader_pid_; }
  /// Hosts, each with a file system of its own.
  const std::vector<Host>& hosts() const { return hosts_; }
  /// Index of this process's host.
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
