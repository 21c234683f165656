// SPDX-License-Identifier: Apache-2.0
// One process at a time writes into a folder.
#pragma once

#include <string>

namespace hocket {

/// Held while a process writes into a folder, which must exist; its file `.lock` stays there. It
/// ends with the process, however that ends.
class FolderLock {
 public:
  /// `doing` completes "another process is ...", e.g. "training into this folder"; `advice` is the
  /// suggestion. Throws Error for another holder or an unwritable folder. A file system without
  /// locks gives a warning.
  FolderLock(const std::string& folder, const std::string& doing, const std::string& advice);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

}  // namespace hocket
