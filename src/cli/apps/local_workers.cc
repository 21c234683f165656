// SPDX-License-Identifier: Apache-2.0
#include "cli/apps/local_workers.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

namespace hocket::cli {

namespace {

constexpr int64_t kRestartNs = 1'000'000'000;
/// Failures in a row, without a finished row between them, that end the job: a row that ends its
/// workers takes some to be found. Before the first row the reason is another.
constexpr int64_t kMaxFailures = 30, kMaxFirstFailures = 3;
constexpr int kBadInput = 2;

}  // namespace

LocalWorkers::LocalWorkers(int64_t count,
                           std::function<std::vector<std::string>(int64_t)> arguments)
    : arguments_(std::move(arguments)), processes_(static_cast<size_t>(count)) {}

LocalWorkers::~LocalWorkers() { join(0); }

void LocalWorkers::start() {
  for (size_t i = 0; i < processes_.size(); ++i) {
    start(&processes_[i], static_cast<int64_t>(i));
  }
}

void LocalWorkers::start(Process* process, int64_t index) const {
  std::vector<std::string> words = arguments_(index);
  words.insert(words.begin(), "hocket");
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) fail_run("batch", "a worker could not be started: {}", std::strerror(errno));
  if (pid == 0) {
    // A group of its own: a signal of the terminal reaches it through its master.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) {
      ::_exit(0);
    }
    ::execv("/proc/self/exe", arguments.data());
    ::_exit(127);
  }
  *process = {pid, 0};
}

void LocalWorkers::note_end(Process* process, int status, int64_t rows) {
  process->pid = 0;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kBadInput) {
    fail("batch", "a worker refused its input, as it reported");
  }
  failures_ = rows > rows_ ? 1 : failures_ + 1;
  rows_ = rows;
  const std::string ending = WIFSIGNALED(status)
                                 ? fmt::format("was ended by signal {}", WTERMSIG(status))
                                 : fmt::format("ended with status {}", WEXITSTATUS(status));
  if (failures_ >= (rows == 0 ? kMaxFirstFailures : kMaxFailures)) {
    fail_run("batch", "a worker {}; {} ended without a finished row between them", ending,
             failures_);
  }
  log_warning("batch: a worker {}; it is started again", ending);
  process->starts_at = now_ns() + kRestartNs;
}

void LocalWorkers::tend(int64_t rows) {
  for (size_t i = 0; i < processes_.size(); ++i) {
    Process& process = processes_[i];
    int status = 0;
    if (process.pid != 0 && ::waitpid(process.pid, &status, WNOHANG) == process.pid) {
      note_end(&process, status, rows);
    }
    if (process.starts_at != 0 && now_ns() >= process.starts_at) {
      start(&process, static_cast<int64_t>(i));
    }
  }
}

void LocalWorkers::join(double seconds) {
  const int64_t begin = now_ns();
  for (Process& process : processes_) {
    process.starts_at = 0;
    while (process.pid != 0) {
      const bool is_late = seconds_since(begin) >= seconds;
      if (is_late) {
        ::kill(process.pid, SIGKILL);
      }
      if (::waitpid(process.pid, nullptr, is_late ? 0 : WNOHANG) == process.pid) {
        process.pid = 0;
      } else {
        ::usleep(5000);
      }
    }
  }
}

}  // namespace hocket::cli
