// SPDX-License-Identifier: Apache-2.0
#include "train/stop.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"

namespace hocket::train {

namespace {

const char* name_of(int signal) {
  switch (signal) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    default:
      return "SIGHUP";
  }
}

/// Leaves a terminal that is gone: further output must not end the process before its checkpoint.
void leave_terminal() {
  ::signal(SIGPIPE, SIG_IGN);
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat info {};
    const bool is_file = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    if (nowhere >= 0 && !is_file) {
      ::dup2(nowhere, fd);
    }
  }
}

}  // namespace

StopSignals::StopSignals() {
  sigemptyset(&signals_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    const bool ignored = now.sa_handler == SIG_IGN;
    if (ignored && signal == SIGHUP) {
      continue;  // nohup
    }
    // Shells start background jobs of scripts with SIGINT ignored.
    if (ignored) {
      ::signal(signal, SIG_DFL);
    }
    sigaddset(&signals_, signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  signal_fd_ = ::signalfd(-1, &signals_, SFD_CLOEXEC);
  end_fd_ = ::eventfd(0, EFD_CLOEXEC);
  if (signal_fd_ < 0 || end_fd_ < 0) fail_run("train", "no signals: {}", std::strerror(errno));
  thread_ = std::thread([this] { watch(); });
}

StopSignals::~StopSignals() {
  const uint64_t one = 1;
  const ssize_t written = ::write(end_fd_, &one, sizeof one);
  HOCKET_CHECK(written == sizeof one, "an eventfd takes 8 bytes");
  thread_.join();
  ::close(signal_fd_);
  ::close(end_fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool StopSignals::begin_step(int64_t step, const std::string& promise) {
  const std::lock_guard lock(mutex_);
  if (requested_ != 0) return false;
  step_ = step;
  promise_ = promise.empty() ? fmt::format("finishing step {} and saving it", step) : promise;
  return true;
}

int StopSignals::requested() {
  const std::lock_guard lock(mutex_);
  return requested_;
}

int StopSignals::end_steps() {
  const std::lock_guard lock(mutex_);
  step_ = 0;
  return requested_;
}

void StopSignals::set_resume(const std::string& text) {
  const std::lock_guard lock(mutex_);
  resume_ = text;
}

void StopSignals::watch() {
  for (;;) {
    pollfd waiting[2] = {{signal_fd_, POLLIN, 0}, {end_fd_, POLLIN, 0}};
    if (::poll(waiting, 2, -1) < 0) {
      continue;  // EINTR
    }
    if (waiting[1].revents != 0) return;
    signalfd_siginfo info{};
    if (::read(signal_fd_, &info, sizeof info) == sizeof info) {
      take(static_cast<int>(info.ssi_signo));
    }
  }
}

void StopSignals::take(int signal) {
  if (signal == SIGHUP) {
    leave_terminal();
  }
  // Holds the lock until the message is printed, so that it is still true.
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (signal == requested_ && now - requested_at_ < kSameSignal) return;
  if (step_ > 0 && requested_ == 0) {
    requested_ = signal;
    requested_at_ = now;
    print_line(
        fmt::format("{}: {}; once more ends now, and {}", name_of(signal), promise_, resume_));
    return;
  }
  print_line(fmt::format("{}: ended at once; {}", name_of(signal), resume_));
  std::fflush(stdout);
  std::_Exit(exit_code_of(signal));
}

}  // namespace hocket::train
