// SPDX-License-Identifier: Apache-2.0
// A folder is held by one process at a time, and by none that has ended.
#include "base/folder_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/error.h"
#include "base/file.h"

namespace hocket {
namespace {

class FolderLocks : public testing::Test {
 protected:
  FolderLocks() {
    char name[] = "/tmp/hocket_lock_test.XXXXXX";
    dir_ = ::mkdtemp(name);
  }
  ~FolderLocks() override { remove_tree(dir_); }
  FolderLock take() const { return {dir_, "writing here", "go elsewhere"}; }
  std::string refusal() const {
    try {
      const FolderLock lock = take();
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      return e.what();
    }
    return "";
  }

  std::string dir_;
};

TEST_F(FolderLocks, ASecondHolderIsRefused) {
  {
    const FolderLock lock = take();
    EXPECT_EQ(refusal(),
              "[" + dir_ + "] another process is writing here; wait for it, or go elsewhere");
  }
  EXPECT_EQ(refusal(), "");
  // A killed holder holds nothing.
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock = take();
    if (::write(ready[1], "", 1) == 1) {
      ::pause();
    }
    ::_exit(1);
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_NE(refusal(), "");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(refusal(), "");
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace hocket
