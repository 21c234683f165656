// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Progress wakes exactly the threads that are due. On a device that runs kernels long after their
// launch, everything that follows a task follows its event.
#include "runtime/device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "runtime/local_ranks.h"
#include "tests/runtime/async_device_util.h"
#include "tests/runtime/fake_util.h"

namespace hocket::runtime {
namespace {

using fake::Builder;
using fake::f64s;
using fake::i64s;
using kernels::KernelArgs;
using program::BufferId;
using program::Lane;
using std::chrono::milliseconds;

TEST(Progress, WakesExactlyTheDueThreads) {
  Progress progress;
  std::vector<std::future<Progress::Wait>> waits;
  for (int64_t count = 1; count <= 4; ++count) {
    waits.push_back(std::async(std::launch::async,
                               [&, count] { return progress.wait(count, milliseconds(20'000)); }));
  }
  std::this_thread::sleep_for(milliseconds(30));  // most are asleep by now
  for (size_t i = 0; i < waits.size(); ++i) {
    EXPECT_EQ(waits[i].wait_for(milliseconds(0)), std::future_status::timeout) << i;
    progress.advance();
    EXPECT_EQ(waits[i].get(), Progress::Wait::reached);
  }
  EXPECT_EQ(progress.wait(4, milliseconds(0)), Progress::Wait::reached);
  EXPECT_EQ(progress.wait(5, milliseconds(1)), Progress::Wait::timed_out);
}

TEST(Progress, LosesNoWakeUp) {
  // Two threads alternate: with one lost wake-up, a wait times out.
  Progress here, there;
  constexpr int64_t kRounds = 20'000;
  int64_t missed = 0;
  std::thread other([&] {
    for (int64_t i = 1; i <= kRounds; ++i) {
      missed += here.wait(i, milliseconds(20'000)) != Progress::Wait::reached;
      there.advance();
    }
  });
  for (int64_t i = 1; i <= kRounds; ++i) {
    here.advance();
    ASSERT_EQ(there.wait(i, milliseconds(20'000)), Progress::Wait::reached) << i;
  }
  other.join();
  EXPECT_EQ(missed, 0);
}

TEST(Progress, StopEndsAllWaits) {
  Progress progress;
  auto sleeping =
      std::async(std::launch::async, [&] { return progress.wait(1, milliseconds(20'000)); });
  std::this_thread::sleep_for(milliseconds(10));
  progress.stop();
  EXPECT_EQ(sleeping.get(), Progress::Wait::stopped);
  EXPECT_EQ(progress.wait(1, milliseconds(20'000)), Progress::Wait::stopped);
  EXPECT_TRUE(progress.stopped());
  progress.reset();
  progress.advance();
  EXPECT_EQ(progress.wait(1, milliseconds(0)), Progress::Wait::reached);
}

/// Ranks on a device that runs kernels later.
struct AsyncRanks {
  explicit AsyncRanks(const program::Program& program, fake::AsyncOptions async_options = {},
                      milliseconds timeout = milliseconds(20'000))
      : device(std::make_shared<fake::AsyncDevice>(async_options)),
        local(program.num_ranks(), std::make_shared<fake::Backend>(),
              {.timeout = timeout, .device = device}),
        run(std::make_shared<const program::Program>(program), Store(local)) {}
  std::string failure() {
    try {
      run.step();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::shared_ptr<fake::AsyncDevice> device;
  LocalRanks local;
  LocalRun run;
};

/// Returns the value that a task of another lane reads, which is written 20 ms after the launch.
int64_t seen_behind_a_late_kernel(bool done_at_launch) {
  std::atomic<int64_t> seen{-1};
  Builder b;
  const BufferId x = b.buffer(0, i64s(1)), y = b.buffer(0, i64s(1));
  b.task(0, Lane::compute, {}, {x}, [](const KernelArgs& a) {
    std::this_thread::sleep_for(milliseconds(20));
    std::atomic_ref(*a.out[0].as<int64_t>()) = 7;
  });
  b.task(0, Lane::h2d, {x}, {y}, [&](const KernelArgs& a) {
    seen = std::atomic_ref(
        *a.in[0].as<int64_t>());  // runs at the same time as the writer if the wait fails
  });
  AsyncRanks ranks(b.finish(),
                   {.most_delay = std::chrono::microseconds(0), .done_at_launch = done_at_launch});
  ranks.run.step();
  EXPECT_GT(ranks.device->late(), 0);
  return seen;
}

TEST(AsyncDevice, ADependencyIsNotDoneWhenItIsLaunched) {
  EXPECT_EQ(seen_behind_a_late_kernel(false), 7);
  EXPECT_NE(seen_behind_a_late_kernel(true), 7) << "the device would not show such a fault";
}

TEST(AsyncDevice, ACommunicationWaitsForKernelsOfItsOwnLaneAndOfOthers) {
  for (const Lane lane : {Lane::intra, Lane::compute}) {
    std::atomic<int64_t> got{-1};
    Builder b(2);
    const BufferId x = b.buffer(0, i64s(1)), y = b.buffer(1, i64s(1)), z = b.buffer(1, i64s(1));
    b.task(0, lane, {}, {x}, [](const KernelArgs& a) {
      std::this_thread::sleep_for(milliseconds(20));
      *a.out[0].as<int64_t>() = 11;
    });
    b.send(0, x, 1, 1);
    b.recv(1, y, 0, 1);
    b.task(1, Lane::compute, {y}, {z}, [&](const KernelArgs& a) { got = *a.in[0].as<int64_t>(); });
    AsyncRanks ranks(b.finish());
    ranks.run.step();
    EXPECT_EQ(got, 11) << to_string(lane);
  }
}

TEST(AsyncDevice, AStepEndsWhenItsLastKernelHasRun) {
  std::atomic<int> ran{0};
  Builder b;
  BufferId last = b.buffer(0, i64s(1));
  b.task(0, Lane::compute, {}, {last}, [&](const KernelArgs&) { ++ran; });
  for (int i = 0; i < 5; ++i) {
    const BufferId next = b.buffer(0, i64s(1));
    b.task(0, Lane::compute, {last}, {next}, [&](const KernelArgs&) {
      std::this_thread::sleep_for(milliseconds(2));
      ++ran;
    });
    last = next;
  }
  AsyncRanks ranks(b.finish());
  for (int step = 1; step <= 3; ++step) {
    ranks.run.step();
    EXPECT_EQ(ran, 6 * step);
  }
}

TEST(AsyncDevice, TimesAreThoseOfTheDevice) {
  Builder b;
  const BufferId x = b.buffer(0, i64s(1)), y = b.buffer(0, i64s(1));
  const auto slow = [](const KernelArgs&) { std::this_thread::sleep_for(milliseconds(5)); };
  b.task(0, Lane::compute, {}, {x}, slow);
  b.task(0, Lane::h2d, {x}, {y}, slow);
  AsyncRanks ranks(b.finish());
  const int64_t before = now_ns();
  ranks.run.step();
  const auto& times = ranks.run.executor(0).times();
  EXPECT_GE(times[0].start_ns, before);
  EXPECT_GE(times[0].end_ns - times[0].start_ns, 5'000'000);
  EXPECT_GE(times[1].start_ns, times[0].end_ns);
  EXPECT_GE(times[1].end_ns - times[1].start_ns, 5'000'000);
}

TEST(AsyncDevice, AnErrorBehindTheLaunchNamesItsTask) {
  std::atomic<int> after{0};
  Builder b;
  const BufferId x = b.buffer(0, f64s(1)), y = b.buffer(0, f64s(1));
  b.task(0, Lane::compute, {}, {x}, nullptr);
  b.task(0, Lane::compute, {x}, {y}, [](const KernelArgs&) {
    std::this_thread::sleep_for(milliseconds(10));
    throw std::runtime_error("an illegal instruction");
  });
  b.task(0, Lane::compute, {y}, {b.buffer(0, f64s(1))}, [&](const KernelArgs&) { ++after; });
  b.task(0, Lane::h2d, {y}, {b.buffer(0, f64s(1))}, [&](const KernelArgs&) { ++after; });
  AsyncRanks ranks(b.finish());
  const int64_t begin = now_ns();
  const std::string what = ranks.failure();
  EXPECT_LT(seconds_since(begin), 10);
  for (const char* part : {"rank 0", "stage0 task 1", "an illegal instruction"}) {
    EXPECT_NE(what.find(part), what.npos) << what;
  }
  EXPECT_EQ(after, 0);
  EXPECT_NE(ranks.failure().find("an illegal instruction"), std::string::npos);
}

TEST(AsyncDevice, AKernelThatNeverEndsIsNamed) {
  std::promise<void> door;
  std::shared_future<void> opened = door.get_future().share();
  Builder b;
  const BufferId x = b.buffer(0, f64s(1));
  b.task(0, Lane::compute, {}, {x}, nullptr);
  b.task(0, Lane::compute, {x}, {b.buffer(0, f64s(1))},
         [opened](const KernelArgs&) { opened.wait_for(std::chrono::seconds(20)); });
  AsyncRanks ranks(b.finish(), {}, milliseconds(200));
  const std::string what = ranks.failure();
  EXPECT_NE(what.find("(stage0 task 1) has not ended"), what.npos) << what;
  door.set_value();
}

}  // namespace
}  // namespace hocket::runtime
