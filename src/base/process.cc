// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace hocket {

namespace {

/// Both ends of a pipe, closed by the destructor.
struct Pipe {
  int read = -1, write = -1;
  explicit Pipe(const std::string& what) {
    std::array<int, 2> ends;
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      fail_run(what, "no pipe could be made: {}", std::strerror(errno));
    }
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    shut(&read);
    shut(&write);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  static void shut(int* end) {
    if (*end >= 0) {
      close(*end);
    }
    *end = -1;
  }
};

/// A command that does not read its input must not end this process.
class WithoutBrokenPipes {
 public:
  WithoutBrokenPipes() {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &before_);
  }
  ~WithoutBrokenPipes() { sigaction(SIGPIPE, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

}  // namespace

std::string run_command(const std::string& command, std::string_view input,
                        const std::string& what) {
  // Input is written and output read as either end is ready: a command may print before it has read
  // everything.
  Pipe to(what);
  Pipe from(what);
  WithoutBrokenPipes guard;
  const pid_t child = fork();
  if (child < 0) fail_run(what, "it could not be started: {}", std::strerror(errno));
  if (child == 0) {
    dup2(to.read, STDIN_FILENO);
    dup2(from.write, STDOUT_FILENO);
    signal(SIGPIPE, SIG_DFL);
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  Pipe::shut(&to.read);
  Pipe::shut(&from.write);
  fcntl(to.write, F_SETFL, O_NONBLOCK);
  std::string output;
  std::array<char, 1 << 16> buffer;
  while (from.read >= 0) {
    std::array<pollfd, 2> ends{pollfd{from.read, POLLIN, 0}, pollfd{to.write, POLLOUT, 0}};
    if (input.empty()) {
      Pipe::shut(&to.write);
      ends[1].fd = -1;
    }
    if (poll(ends.data(), ends.size(), -1) < 0 && errno != EINTR) break;
    if (ends[1].revents != 0) {
      const ssize_t written = write(to.write, input.data(), input.size());
      if (written > 0) {
        input.remove_prefix(static_cast<size_t>(written));
      } else if (errno != EAGAIN && errno != EINTR) {
        input = {};  // no reader
      }
    }
    if (ends[0].revents != 0) {
      const ssize_t got = read(from.read, buffer.data(), buffer.size());
      if (got > 0) {
        output.append(buffer.data(), static_cast<size_t>(got));
      } else if (got == 0 || errno != EINTR) {
        Pipe::shut(&from.read);
      }
    }
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) fail_run(what, "it was ended by signal {}", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) fail_run(what, "it ended with status {}", WEXITSTATUS(status));
  return output;
}

}  // namespace hocket
