// SPDX-License-Identifier: Apache-2.0
#include "base/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace hocket {

FolderLock::FolderLock(const std::string& folder, const std::string& doing,
                       const std::string& advice) {
  const std::string path = join_path(folder, ".lock");
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) fail(path, "cannot be opened: {}", std::strerror(errno));
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  if (error == EWOULDBLOCK) {
    ::close(fd_);
    fail(folder, "another process is {}; wait for it, or {}", doing, advice);
  }
  // Some network file systems have no locks.
  log_warning("{}: no lock ({}): take care that no other process is {}", path, std::strerror(error),
              doing);
}

FolderLock::~FolderLock() { ::close(fd_); }

}  // namespace hocket
