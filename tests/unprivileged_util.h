// SPDX-License-Identifier: Apache-2.0
// A user without access to a closed folder: root reads everything, and tests often run as root.
#pragma once

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>

namespace hocket {

/// Runs `body` as a user bound by file modes, and owner of `folder` with its content: in this
/// process, or, if that is root's, in a child with user and group 65534. Failures in the child are
/// printed and fail the test. Returns the reason if it could not be run, for GTEST_SKIP; empty
/// otherwise.
inline std::string run_unprivileged(const std::string& folder, const std::function<void()>& body) {
  if (::geteuid() != 0) {
    body();
    return "";
  }
  constexpr uid_t kNobody = 65534;
  constexpr int kNoSuchUser = 3, kUnreachable = 4;  // exit codes of the child
  const auto give = [&](const std::string& path) {
    return ::lchown(path.c_str(), kNobody, kNobody) == 0;
  };
  bool given = give(folder);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    given = give(entry.path()) && given;
  }
  if (!given) return "root here may not give files to user 65534";
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(kNobody, kNobody, kNobody) != 0 ||
        ::setresuid(kNobody, kNobody, kNobody) != 0) {
      ::_exit(kNoSuchUser);
    }
    if (::access(folder.c_str(), R_OK | W_OK | X_OK) != 0) {
      ::_exit(kUnreachable);
    }
    try {
      body();
    } catch (const std::exception& exception) {
      ADD_FAILURE() << exception.what();
    }
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoSuchUser)
    return "root cannot become user 65534";
  if (WIFEXITED(status) && WEXITSTATUS(status) == kUnreachable) {
    return folder + " lies where user 65534 cannot reach it; try another TMPDIR";
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "failed as user 65534, status " << status;
  return "";
}

}  // namespace hocket
