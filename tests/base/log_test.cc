// SPDX-License-Identifier: Apache-2.0
// Log lines carry level and rank; the progress line is rewritten on a terminal and rationed
// elsewhere.
#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace hocket {
namespace {

TEST(Log, HidesLowerLevelsAndPrintsTheRank) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, const std::string& line) { lines.push_back(line); });
  set_log_level(LogLevel::warning);
  log_debug("hidden {}", 1);
  std::thread([] {
    set_log_rank(2);
    log_warning("slow link {}", 3);
  }).join();
  set_log_level(LogLevel::debug);
  log_debug("lane {}", 1);
  set_log_level(LogLevel::warning);
  set_log_sink(nullptr);
  EXPECT_EQ(lines, (std::vector<std::string>{"[rank 2] warning: slow link 3", "debug: lane 1"}));
}

class ProgressTest : public testing::Test {
 protected:
  ProgressTest() {
    EXPECT_EQ(::pipe(pipe_), 0);
    ::fcntl(pipe_[0], F_SETFL, O_NONBLOCK);
  }
  ~ProgressTest() override {
    ::close(pipe_[0]);
    ::close(pipe_[1]);
  }
  ProgressOptions options(int terminal) {
    ProgressOptions o;
    o.fd = pipe_[1];
    o.terminal = terminal;
    o.width = 10;
    o.clock = [this] { return now_; };
    return o;
  }
  std::string written() {
    char buffer[4096];
    const ssize_t n = ::read(pipe_[0], buffer, sizeof buffer);
    return std::string(buffer, n > 0 ? static_cast<size_t>(n) : 0);
  }

  int pipe_[2];
  double now_ = 100;
};

TEST_F(ProgressTest, PlainLinesAreRationed) {
  Progress progress(options(0));
  progress.update("1");
  EXPECT_EQ(written(), "1\n");
  now_ += 9;
  progress.update("2");
  EXPECT_EQ(written(), "");
  now_ += 1;
  progress.update("3");
  EXPECT_EQ(written(), "3\n");
  progress.update("4");
  progress.print("note");
  EXPECT_EQ(written(), "note\n");
  progress.finish();
  EXPECT_EQ(written(), "");
  progress.update("5");
  progress.finish();
  EXPECT_EQ(written(), "5\n");
  progress.finish();
  EXPECT_EQ(written(), "");
}

TEST_F(ProgressTest, TerminalLineIsRewrittenAndCut) {
  Progress progress(options(1));
  progress.update("1");
  EXPECT_EQ(written(), "\r\x1b[K1");
  now_ += 0.05;
  progress.update("2");
  EXPECT_EQ(written(), "");
  now_ += 0.06;
  progress.update("\xc3\xa9 23456789abc");
  EXPECT_EQ(written(), "\r\x1b[K\xc3\xa9 2345678");
  progress.print("note");
  EXPECT_EQ(written(), "\r\x1b[Knote\n");
  progress.update("4");
  EXPECT_EQ(written(), "\r\x1b[K4");
  progress.finish();
  EXPECT_EQ(written(), "\n");
}

}  // namespace
}  // namespace hocket
