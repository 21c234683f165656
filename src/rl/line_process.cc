// SPDX-License-Identifier: Apache-2.0
#include "rl/line_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/stop.h"
#include "base/text.h"

extern char** environ;

namespace hocket::rl {

namespace {

// Nanoseconds: between two looks at stop_if_asked(), and for a process to end by itself.
constexpr int64_t kLookSlice = 50'000'000, kEndGrace = 500'000'000;
constexpr size_t kMaxErrorLine = 400;  // of standard error in a message
constexpr size_t kErrorLines = 4;      // of standard error in the message of a failed start
constexpr int kFirstFd = 10;           // above the numbers that a child's files get

/// A pipe; its ends are closed unless they are taken.
struct OwnedPipe {
  int read = -1, write = -1;
  explicit OwnedPipe(const std::string& where) {
    std::array<int, 2> ends{-1, -1};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      fail_run(where, "no pipe could be made: {}", std::strerror(errno));
    }
    read = raised(ends[0]);
    write = raised(ends[1]);
    if (read < 0 || write < 0) fail_run(where, "no pipe could be made: {}", std::strerror(errno));
  }
  ~OwnedPipe() {
    shut(&read);
    shut(&write);
  }
  OwnedPipe(const OwnedPipe&) = delete;
  OwnedPipe& operator=(const OwnedPipe&) = delete;

  static int raised(int fd) {
    const int high = fcntl(fd, F_DUPFD_CLOEXEC, kFirstFd);
    close(fd);
    return high;
  }
  static void shut(int* fd) {
    if (*fd >= 0) {
      close(*fd);
    }
    *fd = -1;
  }
  static int taken(int* fd) {
    fcntl(*fd, F_SETFL, O_NONBLOCK);
    return std::exchange(*fd, -1);
  }
};

/// Files and attributes of a process to be: defaults for all signals, a group.
class Spawning {
 public:
  explicit Spawning(pid_t group) {
    posix_spawn_file_actions_init(&files_);
    posix_spawnattr_init(&attributes_);
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes_, &signals);
    for (const int each : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD}) {
      sigaddset(&signals, each);
    }
    posix_spawnattr_setsigdefault(&attributes_, &signals);
    posix_spawnattr_setpgroup(&attributes_, group);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~Spawning() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&attributes_);
  }
  Spawning(const Spawning&) = delete;
  Spawning& operator=(const Spawning&) = delete;

  void give(int fd, int as) { posix_spawn_file_actions_adddup2(&files_, fd, as); }
  void give_nothing(int as) {
    posix_spawn_file_actions_addopen(&files_, as, "/dev/null", O_RDWR, 0);
  }
  /// Returns the process; -1 with errno.
  pid_t shell(const std::string& command) {
    std::string name = "sh", option = "-c", text = command;
    std::array<char*, 4> words{name.data(), option.data(), text.data(), nullptr};
    pid_t pid = -1;
    errno = posix_spawn(&pid, "/bin/sh", &files_, &attributes_, words.data(), environ);
    return errno == 0 ? pid : -1;
  }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

/// Holds SIGPIPE back from this thread: a process that has ended is an answer of write().
class PipeSignalBlock {
 public:
  PipeSignalBlock() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~PipeSignalBlock() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec at_once{0, 0};
    while (sigtimedwait(&pipe_, nullptr, &at_once) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  PipeSignalBlock(const PipeSignalBlock&) = delete;
  PipeSignalBlock& operator=(const PipeSignalBlock&) = delete;

 private:
  sigset_t pipe_, before_;
};

/// Waits until the process has ended, without reaping it. False: it still lives.
bool child_ended(pid_t pid, int64_t deadline_ns, siginfo_t* info) {
  for (;;) {
    *info = {};
    if (waitid(P_PID, static_cast<id_t>(pid), info, WEXITED | WNOWAIT | WNOHANG) == 0 &&
        info->si_pid == pid) {
      return true;
    }
    if (now_ns() >= deadline_ns) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void reap_child(pid_t pid) {
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

/// Returns "ended with status 3" and the like.
std::string shown_status(const siginfo_t& info) {
  if (info.si_code != CLD_EXITED) return fmt::format("was ended by signal {}", info.si_status);
  constexpr int kOfSignal = 128;  // the shell's status of a command that a signal ended
  const int signal = info.si_status - kOfSignal;
  return signal > 0 ? fmt::format("ended with status {} (signal {})", info.si_status, signal)
                    : fmt::format("ended with status {}", info.si_status);
}

/// Returns the value of a line {"ready": ...}; none: it is another one.
std::optional<bool> ready_of(std::string_view line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || json.size() != 1) return {};
  const auto ready = json.find("ready");
  if (ready == json.end() || !ready->is_boolean()) return {};
  return ready->get<bool>();
}

int64_t after(int64_t ns, double seconds) { return ns + static_cast<int64_t>(seconds * 1e9); }

}  // namespace

LineProcess::LineProcess(const std::string& command, const std::string& where,
                         const LineLimits& limits)
    : where_(where), limits_(limits), started_ns_(now_ns()) {
  OwnedPipe in(where), out(where), err(where), lifeline(where);
  const auto check = [&](pid_t pid) {
    if (pid < 0) fail_run(where, "the command could not be started: {}", std::strerror(errno));
    return pid;
  };
  // The watcher's input ends with this process, even if that is killed; then it kills the group. It
  // comes first, and leads the group, so that the command is never without one. (A death signal of
  // the system's would come when the thread that started the command ends.)
  Spawning watcher(0);
  watcher.give(lifeline.read, STDIN_FILENO);
  watcher.give_nothing(STDOUT_FILENO);
  watcher.give_nothing(STDERR_FILENO);
  watcher_ = check(watcher.shell("trap '' INT TERM HUP; read -r _; kill -KILL 0"));
  try {
    Spawning child(watcher_);
    child.give(in.read, STDIN_FILENO);
    child.give(out.write, STDOUT_FILENO);
    child.give(err.write, STDERR_FILENO);
    pid_ = check(child.shell(command));
  } catch (...) {
    end();
    throw;
  }
  in_ = OwnedPipe::taken(&in.write);
  out_ = OwnedPipe::taken(&out.read);
  err_ = OwnedPipe::taken(&err.read);
  lifeline_ = std::exchange(lifeline.write, -1);
}

LineProcess::~LineProcess() {
  if (closed_ns_ != 0) {
    siginfo_t info;
    child_ended(pid_, closed_ns_ + kEndGrace, &info);
  }
  end();
}

void LineProcess::end() {
  // Neither is reaped yet, so no other process has their numbers. The command may have made a group
  // of its own.
  kill(-watcher_, SIGKILL);
  if (pid_ >= 0) {
    kill(-pid_, SIGKILL);
    kill(pid_, SIGKILL);
    reap_child(pid_);
  }
  reap_child(watcher_);
  for (int* fd : {&in_, &out_, &err_, &lifeline_}) {
    OwnedPipe::shut(fd);
  }
}

void LineProcess::close_input() {
  OwnedPipe::shut(&in_);
  closed_ns_ = now_ns();
}

int64_t LineProcess::start_deadline_ns() const { return after(started_ns_, limits_.start_s); }

bool LineProcess::take_news() {
  bool found = false;
  size_t end = 0;
  while (state_ != State::ready && (end = output_.find('\n')) != std::string::npos) {
    const std::optional<bool> ready = ready_of(std::string_view(output_).substr(0, end));
    if (!ready) break;
    state_ = *ready ? State::ready : State::starting;
    output_.erase(0, end + 1);
    found = true;
  }
  return found;
}

std::string LineProcess::start_within(double silent_s) {
  for (;;) {
    stop_if_asked();
    error_bytes_ = 0;  // a start may say much
    read_errors();
    const bool goes_on = read_output();
    take_news();
    siginfo_t info;
    if (!goes_on || child_ended(pid_, 0, &info)) return with_last_errors(shown_end());
    if (state_ == State::ready || (is_starting() && !output_.empty())) return "";
    const bool is_silent = state_ == State::silent;
    const int64_t deadline_ns = is_silent ? after(started_ns_, silent_s) : start_deadline_ns();
    if (now_ns() >= deadline_ns) {
      if (is_silent) return "";
      return with_last_errors(
          fmt::format("was not ready within start_timeout_s, {} s", limits_.start_s));
    }
    wait_for(false, std::min(deadline_ns, now_ns() + kLookSlice));
  }
}

std::string LineProcess::ask(std::string_view line) {
  error_bytes_ = 0;
  if (!read_output()) {
    fail_at_end();
  }
  take_news();
  if (!output_.empty()) {
    fail_with_error(fmt::format("wrote {} that nobody asked for", quote(output_, 40)));
  }
  const auto deadline = [this] {
    return is_starting() ? start_deadline_ns() : after(now_ns(), limits_.answer_s);
  };
  int64_t deadline_ns = deadline();
  const std::string text = std::string(line) + "\n";
  std::string_view left = text;
  for (;;) {
    stop_if_asked();
    send_some(&left);
    // Standard error first: the line that explains an end is in it.
    read_errors();
    const bool goes_on = read_output();
    if (take_news()) {
      deadline_ns = deadline();
    }
    if (error_bytes_ > kMaxErrorBytes) {
      fail_with_error(fmt::format("wrote more than {} to standard error for one sample",
                                  human_bytes(kMaxErrorBytes)));
    }
    if (output_.find('\n') != std::string::npos) {
      if (!left.empty()) {
        fail_with_error("answered before it had read the sample");
      }
      return take_answer();
    }
    if (output_.size() > kMaxAnswerLine) {
      fail_with_error(
          fmt::format("wrote more than {} without a line's end", human_bytes(kMaxAnswerLine)));
    }
    if (!goes_on) {
      fail_at_end();
    }
    if (now_ns() >= deadline_ns) {
      fail_with_error(
          is_starting() ? fmt::format("was not ready within start_timeout_s, {} s", limits_.start_s)
                        : fmt::format("gave no answer within {} s", limits_.answer_s));
    }
    wait_for(!left.empty(), std::min(deadline_ns, now_ns() + kLookSlice));
  }
}

std::string LineProcess::take_answer() {
  const size_t end = output_.find('\n');
  if (end + 1 != output_.size()) {
    fail_with_error(
        fmt::format("answered one sample with more than one line: {}", quote(output_, 60)));
  }
  state_ = State::ready;
  std::string answer = std::move(output_);
  output_.clear();
  answer.resize(end);
  return answer;
}

void LineProcess::send_some(std::string_view* left) {
  const PipeSignalBlock block;
  while (!left->empty()) {
    const ssize_t written = write(in_, left->data(), left->size());
    if (written > 0) {
      left->remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      read_errors();
      fail_at_end();
    }
  }
}

void LineProcess::wait_for(bool to_write, int64_t deadline_ns) {
  std::array<pollfd, 3> ends{pollfd{out_, POLLIN, 0}, pollfd{err_, POLLIN, 0},
                             pollfd{to_write ? in_ : -1, POLLOUT, 0}};
  const int64_t left_ns = std::max<int64_t>(deadline_ns - now_ns(), 0);
  const timespec timeout{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
  ppoll(ends.data(), ends.size(), &timeout, nullptr);
}

bool LineProcess::read_output() {
  std::array<char, 1 << 16> buffer;
  // At most one answer too many is kept; the rest stays in the pipe.
  while (!output_ended_ && output_.size() <= kMaxAnswerLine) {
    const ssize_t got = read(out_, buffer.data(), buffer.size());
    if (got > 0) {
      output_.append(buffer.data(), static_cast<size_t>(got));
    } else if (got == 0) {
      output_ended_ = true;
    } else if (errno != EINTR) {
      break;
    }
  }
  return !output_ended_;
}

bool LineProcess::read_errors() {
  std::array<char, 1 << 16> buffer;
  while (err_ >= 0 && error_bytes_ <= kMaxErrorBytes) {
    const ssize_t got = read(err_, buffer.data(), buffer.size());
    if (got > 0) {
      error_bytes_ += static_cast<size_t>(got);
      take_errors({buffer.data(), static_cast<size_t>(got)});
    } else if (got == 0) {
      OwnedPipe::shut(&err_);
    } else if (errno != EINTR) {
      break;
    }
  }
  return err_ >= 0;
}

void LineProcess::take_errors(std::string_view bytes) {
  for (const char c : bytes) {
    if (c != '\n') {
      if (error_line_.size() < kMaxErrorLine) {
        error_line_ += c;
      }
      continue;
    }
    if (!trim(error_line_).empty()) {
      log_debug("[{}] {}", where_, printable(error_line_));
      last_errors_.push_back(error_line_);
      if (last_errors_.size() > kErrorLines) {
        last_errors_.pop_front();
      }
    }
    error_line_.clear();
  }
}

std::string LineProcess::with_last_error(const std::string& what) {
  read_errors();
  if (trim(error_line_).empty() && last_errors_.empty()) return what;
  const std::string& line = trim(error_line_).empty() ? last_errors_.back() : error_line_;
  return fmt::format("{}; the last line of its standard error: {}", what, printable(trim(line)));
}

std::string LineProcess::with_last_errors(const std::string& what) {
  read_errors();
  std::vector<std::string> lines(last_errors_.begin(), last_errors_.end());
  if (!trim(error_line_).empty()) {
    lines.push_back(error_line_);
  }
  if (lines.size() < 2) return with_last_error(what);
  for (std::string& line : lines) {
    line = printable(trim(line));
  }
  return fmt::format("{}; the last lines of its standard error: {}", what, join(lines, " | "));
}

void LineProcess::fail_with_error(const std::string& what) {
  fail_run(where_, "the command {}", with_last_error(what));
}

std::string LineProcess::shown_end() {
  siginfo_t info;
  if (!child_ended(pid_, now_ns() + kEndGrace, &info)) {
    return "closed its standard output or input";
  }
  const std::string rest =
      output_.empty() ? "" : fmt::format(" within the line {}", quote(output_, 40));
  return shown_status(info) + rest;
}

void LineProcess::fail_at_end() { fail_with_error(shown_end()); }

std::string LineProcess::end_within(double seconds) {
  siginfo_t info;
  if (!child_ended(pid_, after(now_ns(), seconds), &info)) return "";
  return with_last_error(shown_status(info));
}

}  // namespace hocket::rl
