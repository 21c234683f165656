// SPDX-License-Identifier: Apache-2.0
// hocket launch
#include <fmt/core.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <poll.h>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "cli/verbs.h"

namespace hocket::cli {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct LaunchOptions {
  int64_t processes = 0;
  double grace_s = 10;
  std::vector<std::string> command;
};

/// Returns a free port of this host.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  const int error = errno;
  close(fd);
  if (!bound) fail_run("launch", "no free port: {}", std::strerror(error));
  return ntohs(address.sin_port);
}

/// The processes of one run on this host.
class Processes {
 public:
  explicit Processes(const LaunchOptions& options) : options_(options) {}
  /// Starts them, passes signals on, and waits for all. When one fails, the others have a while to
  /// end by themselves; then they are ended. Returns the exit code of the first one that failed.
  int run();

 private:
  void start();
  [[noreturn]] void become(int64_t rank, const sigset_t& before) const;
  void take(int signal);
  void reap();
  void note_end(int64_t rank, int status);
  void signal_all(int signal) const;
  int64_t left() const;

  const LaunchOptions& options_;
  const int port_ = free_port();
  std::vector<pid_t> pids_;  ///< by rank; 0: has ended
  int signals_ = -1;
  int exit_code_ = 0;
  std::optional<steady_clock::time_point> first_failure_;
  int pressed_ = 0;  ///< how hard those that are left were asked to end
};

int Processes::run() {
  start();
  while (left() > 0) {
    pollfd waiting = {signals_, POLLIN, 0};
    poll(&waiting, 1, 100);
    signalfd_siginfo info{};
    if ((waiting.revents & POLLIN) != 0 && read(signals_, &info, sizeof info) == sizeof info) {
      take(static_cast<int>(info.ssi_signo));
    }
    reap();
    if (!first_failure_ || left() == 0) continue;
    const double since =
        std::chrono::duration<double>(steady_clock::now() - *first_failure_).count();
    if (since > options_.grace_s && pressed_ == 0) {
      print_line(fmt::format("launch: {} processes have not ended within {} s; ending them", left(),
                             options_.grace_s));
      signal_all(SIGTERM);
      pressed_ = 1;
    } else if (since > options_.grace_s + 2 && pressed_ == 1) {
      signal_all(SIGKILL);
      pressed_ = 2;
    }
  }
  return exit_code_;
}

void Processes::start() {
  // Blocked signals come to the descriptor alone; the processes keep the previous mask.
  sigset_t taken, before;
  sigemptyset(&taken);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    sigaddset(&taken, signal);
  }
  sigprocmask(SIG_BLOCK, &taken, &before);
  signals_ = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
  for (int64_t rank = 0; rank < options_.processes; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      become(rank, before);
    }
    if (pid < 0) {
      const int error = errno;
      signal_all(SIGKILL);
      fail_run("launch", "rank {} could not be started: {}", rank, std::strerror(error));
    }
    pids_.push_back(pid);
  }
}

/// Turns the new process into a rank. Each has a group of its own, so that a signal of the terminal
/// reaches it once, from here.
void Processes::become(int64_t rank, const sigset_t& before) const {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  };
  for (const char* name : {"RANK", "LOCAL_RANK"}) {
    set(name, std::to_string(rank));
  }
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
    set(name, std::to_string(options_.processes));
  }
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port_));
  std::vector<std::string> words = {"hocket"};
  words.insert(words.end(), options_.command.begin(), options_.command.end());
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  execv("/proc/self/exe", arguments.data());
  _exit(127);
}

void Processes::take(int signal) {
  if (signal == SIGCHLD) return;
  signal_all(signal);
}

void Processes::reap() {
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    int status = 0;
    if (pids_[rank] != 0 && waitpid(pids_[rank], &status, WNOHANG) == pids_[rank]) {
      pids_[rank] = 0;
      note_end(static_cast<int64_t>(rank), status);
    }
  }
}

void Processes::note_end(int64_t rank, int status) {
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (WIFSIGNALED(status) && pressed_ == 0) {
    print_line(fmt::format("launch: rank {} was ended by signal {} ({})", rank, WTERMSIG(status),
                           strsignal(WTERMSIG(status))));
  }
  if (code != 0 && !first_failure_) {
    exit_code_ = code;
    first_failure_ = steady_clock::now();
  }
}

void Processes::signal_all(int signal) const {
  for (pid_t pid : pids_) {
    if (pid != 0) {
      kill(pid, signal);
    }
  }
}

int64_t Processes::left() const {
  int64_t count = 0;
  for (pid_t pid : pids_) {
    count += pid != 0 ? 1 : 0;
  }
  return count;
}

}  // namespace

void verb_launch(Args& args) {
  auto options = std::make_shared<LaunchOptions>();
  args.about("start a verb in several processes on this machine, one for each rank",
             "Every process gets its rank in torchrun's variables (RANK, WORLD_SIZE, "
             "LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and plan.ranks is "
             "gloo, or nccl where there are GPUs for all, unless the run sets them; plan.dp "
             "defaults to the processes left by the plan's other axes. Rank 0 prints; the "
             "others write to output.dir/logs. Signals are passed on to all. When one process "
             "fails the others end, too; the exit code is that of the first one.\nOn several "
             "machines: torchrun, mpirun, srun or Kubernetes (docs/ranks.md).");
  args.option("-n", "N", &options->processes, "processes to start", 1, 4096);
  args.option("--grace", "SECONDS", &options->grace_s,
              "seconds that the others have to end by themselves when one has failed");
  args.rest("VERB", &options->command, "a verb of hocket with its words");
  args.example("hocket launch -n 2 train configs/quickstart.yaml --set plan.micro_batch=2",
               "two data-parallel processes");
  args.example(
      "hocket launch -n 4 train configs/quickstart.yaml --set plan.pp=2 --set plan.micro_batch=2",
      "a pipeline of two ranks, twice");
  args.run([options] {
    if (options->processes < 1) {
      fail("hocket launch", "-n is missing: how many processes; try: hocket launch --help");
    }
    if (options->grace_s < 0) {
      fail("hocket launch", "--grace is {}; expected 0 or more seconds", options->grace_s);
    }
    return Processes(*options).run();
  });
}

}  // namespace hocket::cli
