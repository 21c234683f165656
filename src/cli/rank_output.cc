// SPDX-License-Identifier: Apache-2.0
#include "cli/rank_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "comm/launch.h"
#ifndef HOCKET_SIM_ONLY
#include "engine/processes.h"
#endif

namespace hocket::cli {

namespace {

/// Standard error of the launcher; -1: it is still this process's own.
int& launcher_stderr() {
  static int fd = -1;
  return fd;
}

#ifndef HOCKET_SIM_ONLY
/// Closes the connection once the error is sent.
struct End {
  const std::string& why;
  ~End() { engine::disconnect(why); }
};
#endif

/// Returns whether this process speaks for all.
bool reports_failure() {
#ifndef HOCKET_SIM_ONLY
  if (comm::Connection* const connection = engine::connection()) {
    return connection->reports_failure();
  }
#endif
  return true;
}

}  // namespace

void redirect_output(const std::string& folder) {
  const comm::LaunchInfo& launch = comm::launch_info();
  if (launch.rank == 0) return;
  std::string path = "/dev/null";
  if (!folder.empty()) {
    make_dirs(folder);
    path = join_path(folder, fmt::format("rank-{}.log", launch.rank));
  }
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) fail_run(path, "can't be written: {}", std::strerror(errno));
  std::fflush(stdout);
  launcher_stderr() = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  ::dup2(file, STDOUT_FILENO);
  ::dup2(file, STDERR_FILENO);
  ::close(file);
}

void end_together() {
#ifndef HOCKET_SIM_ONLY
  engine::disconnect();
#endif
}

void print_error(const std::string& text, [[maybe_unused]] bool own) {
  // Rank 0 reports it, on the launcher's standard error: all failed alike.
  bool said = comm::is_common_error() && comm::launch_info().rank != 0;
  if (said && launcher_stderr() < 0) return;
#ifndef HOCKET_SIM_ONLY
  if (comm::Connection* const connection = engine::connection(); connection && own) {
    const std::string first =
        connection->fail(fmt::format("rank {}: {}", connection->index(), text));
    said = said || first == fmt::format("rank 0: {}", text);
  }
  const End end{text};
#endif
  std::fflush(stdout);
  fmt::print(stderr, "{}\n", text);
  std::fflush(stderr);
  // The launcher's stream is used only if known, since the launcher's own settings may be the
  // error.
  if (launcher_stderr() < 0 || said || !reports_failure()) return;
  const std::string line = fmt::format("[rank {}] {}\n", comm::launch_info().rank, text);
  [[maybe_unused]] const ssize_t written = ::write(launcher_stderr(), line.data(), line.size());
}

}  // namespace hocket::cli
