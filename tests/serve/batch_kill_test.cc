// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Batch jobs of several processes: kill -9 of workers and master, stragglers, rows that end their
// worker.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "serve/batch/batch_socket.h"
#include "tests/serve/batch_util.h"

namespace hocket::serve {
namespace {

/// A child process that runs a function.
class Child {
 public:
  explicit Child(std::function<int()> body) : body_(std::move(body)) { start(); }
  ~Child() { kill_now(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void start() {
    pid_ = ::fork();
    if (pid_ != 0) return;
    set_log_sink([](LogLevel, const std::string&) {});
    int code = 1;
    try {
      code = body_();
    } catch (const std::exception&) {
    }
    ::_exit(code);
  }
  void kill_now() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  /// Exit code; -1 while it runs, 128 + the signal that ended it.
  int code() {
    int status = 0;
    if (pid_ <= 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  bool is_running() const { return pid_ > 0; }

 private:
  std::function<int()> body_;
  pid_t pid_ = -1;
};

int free_port() { return BatchListener("127.0.0.1", 0).port(); }

std::function<int()> master_body(const BatchFolder& folder, int port) {
  return [&folder, port] {
    BatchMasterOptions options = folder.master_options();
    options.port = port;
    return run_batch_master(options).is_complete ? 0 : 3;
  };
}

std::function<int()> worker_body(int port, int64_t row_us) {
  return [port, row_us] {
    SleepingGenerator generator(row_us);
    run_batch_worker(batch_worker_options(port, generator));
    return 0;
  };
}

/// Waits for a master; its exit code.
int end_of(Child& master, double limit_s) {
  const int64_t start = now_ns();
  int code = -1;
  while ((code = master.code()) < 0 && seconds_since(start) < limit_s) {
    ::usleep(2000);
  }
  return code;
}

TEST(BatchKill, FiftyKillsLoseAndDoubleNoRow) {
  const char* given = std::getenv("HOCKET_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : 1;
  SCOPED_TRACE(fmt::format("HOCKET_SEED={}", seed));
  Rng rng(seed);
  const BatchFolder folder(8000);
  const int port = free_port();
  Child master(master_body(folder, port));
  std::vector<std::unique_ptr<Child>> workers;
  for (int i = 0; i < 4; ++i) {
    workers.push_back(std::make_unique<Child>(worker_body(port, 1000)));
  }
  int kills = 0, master_kills = 0;
  while (kills < 50 && master.code() < 0 && master.is_running()) {
    ::usleep(static_cast<useconds_t>(rng.between(10'000, 50'000)));
    const uint64_t victim = rng.below(5);
    if (victim == 4) {
      if (master.code() >= 0) break;
      master.kill_now();
      ::usleep(static_cast<useconds_t>(rng.between(0, 20'000)));
      master.start();
      ++master_kills;
    } else {
      workers[victim]->kill_now();
      workers[victim]->start();
    }
    ++kills;
  }
  EXPECT_EQ(kills, 50) << "the job was too short";
  EXPECT_GE(master_kills, 3);
  EXPECT_EQ(end_of(master, 60), 0);
  folder.expect_whole();
}

/// One of four workers takes four times the time. A static split would wait for its quarter.
TEST(BatchKill, AStragglerDoesNotHoldTheJobUp) {
  constexpr int64_t kRows = 800, kRowUs = 4000;
  const BatchFolder folder(kRows);
  const int port = free_port();
  std::vector<std::unique_ptr<Child>> workers;
  for (int i = 0; i < 4; ++i) {
    workers.push_back(std::make_unique<Child>(worker_body(port, i == 0 ? 4 * kRowUs : kRowUs)));
  }
  BatchMasterOptions options = folder.master_options();
  options.port = port;
  options.shards.target_s = 0.2;
  const BatchSummary summary = run_batch_master(options);
  EXPECT_TRUE(summary.is_complete);
  folder.expect_whole();
  const double static_split = static_cast<double>(kRows / 4 * 4 * kRowUs) * 1e-6;
  EXPECT_GE(static_split / summary.seconds, 1.8) << summary.seconds << " s";
}

/// Ends its process at one row.
class PoisonedGenerator : public SleepingGenerator {
 public:
  explicit PoisonedGenerator(int64_t row) : SleepingGenerator(100), row_(row) {}
  void begin(InputRow row, Done done) override {
    if (row.row == row_) {
      ::_exit(9);
    }
    SleepingGenerator::begin(std::move(row), std::move(done));
  }

 private:
  const int64_t row_;
};

TEST(BatchKill, ARowThatEndsItsWorkersIsRecorded) {
  constexpr int64_t kPoison = 411;
  const BatchFolder folder(600);
  const int port = free_port();
  Child master([&] {
    BatchMasterOptions options = folder.master_options();
    options.port = port;
    options.shards.max_losses = 3;
    return run_batch_master(options).is_complete ? 0 : 3;
  });
  std::vector<std::unique_ptr<Child>> workers;
  for (int i = 0; i < 2; ++i) {
    workers.push_back(std::make_unique<Child>([port] {
      PoisonedGenerator generator(kPoison);
      run_batch_worker(batch_worker_options(port, generator));
      return 0;
    }));
  }
  int crashes = 0, code = -1;
  const int64_t start = now_ns();
  while ((code = master.code()) < 0 && seconds_since(start) < 60) {
    for (auto& worker : workers) {
      if (worker->code() == 9) {
        ++crashes;
        worker->start();
      }
    }
    ::usleep(2000);
  }
  EXPECT_EQ(code, 0);
  EXPECT_GE(crashes, 3);
  EXPECT_LE(crashes, 12);
  folder.expect_whole({kPoison});
}

}  // namespace
}  // namespace hocket::serve
