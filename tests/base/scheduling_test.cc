// SPDX-License-Identifier: Apache-2.0
// Real-time scheduling of threads that others wake. Where the system forbids it, threads run as
// usual. Every case runs in its own thread, since a policy stays with its thread.
#include "base/scheduling.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <thread>

namespace hocket {
namespace {

int policy() {
  int policy = -1;
  sched_param ignored = {};
  EXPECT_EQ(::pthread_getschedparam(::pthread_self(), &policy, &ignored), 0);
  return policy;
}

void on_a_thread(const std::function<void()>& run) { std::thread(run).join(); }

/// Returns whether this process has the right to use SCHED_RR.
bool allowed() {
  bool could = false;
  on_a_thread([&] { could = set_scheduling(SCHED_RR); });
  return could;
}

TEST(Scheduling, AThreadAndThoseThatItStartsRunWhenWoken) {
  if (!allowed()) {
    GTEST_SKIP() << "the system does not allow SCHED_RR";
  }
  on_a_thread([] {
    run_when_woken();
    EXPECT_EQ(policy(), SCHED_RR);
    on_a_thread([] { EXPECT_EQ(policy(), SCHED_RR); });
  });
  EXPECT_EQ(policy(), SCHED_OTHER);
}

TEST(Scheduling, AScopeRestoresThePolicy) {
  if (!allowed()) {
    GTEST_SKIP() << "the system does not allow SCHED_RR";
  }
  on_a_thread([] {
    {
      const RunsWhenWoken outer;
      EXPECT_EQ(policy(), SCHED_RR);
      {
        const RunsWhenWoken inner;
        EXPECT_EQ(policy(), SCHED_RR);
      }
      EXPECT_EQ(policy(), SCHED_RR) << "the inner scope took nothing";
    }
    EXPECT_EQ(policy(), SCHED_OTHER);
  });
}

TEST(Scheduling, AScopeLeavesAThreadAsItIs) {
  if (!allowed()) {
    GTEST_SKIP() << "the system does not allow SCHED_RR";
  }
  on_a_thread([] {
    run_when_woken();
    { const RunsWhenWoken prompt; }
    EXPECT_EQ(policy(), SCHED_RR);
  });
  on_a_thread([] {
    ASSERT_TRUE(set_scheduling(SCHED_BATCH));
    {
      const RunsWhenWoken prompt;
      EXPECT_EQ(policy(), SCHED_BATCH);
    }
    EXPECT_EQ(policy(), SCHED_BATCH);
  });
}

/// Gives up root and every real-time priority, and returns 0 if threads then keep SCHED_OTHER.
/// Requires: called in a child process.
int policies_without_rights() {
  const rlimit none = {0, 0};
  if (::setrlimit(RLIMIT_RTPRIO, &none) != 0) return 2;
  if (::geteuid() == 0 && ::syscall(SYS_setuid, 65534) != 0) return 3;
  if (set_scheduling(SCHED_RR)) return 4;
  run_when_woken();
  if (policy() != SCHED_OTHER) return 5;
  {
    const RunsWhenWoken prompt;
    if (policy() != SCHED_OTHER) return 6;
  }
  return policy() == SCHED_OTHER ? 0 : 7;
}

TEST(SchedulingDeathTest, WithoutTheRightNothingChanges) {
  EXPECT_EXIT(::_exit(policies_without_rights()), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace hocket
