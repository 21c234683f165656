// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Whole training steps on a device that runs kernels long after they are launched, out of step with
// the lanes. Results equal the CPU's to the bit.
#include <gtest/gtest.h>

#include <iostream>

#include "base/error.h"
#include "plan_util.h"
#include "program/finalize.h"
#include "tests/runtime/async_device_util.h"

namespace hocket::test::async_device_test {
namespace {

void expect_same_bits(const Outcome& got, const Outcome& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.grads, want.grads);
  EXPECT_EQ(got.params, want.params);
}

TEST(AsyncTraining, TrainsAsTheCpuDoes) {
  int64_t late = 0;
  int ranks_of_several = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const Case c = random_case(seed, 4, seed % 2 ? "f32" : "f64");
    SCOPED_TRACE(c.name);
    const bool poison = seed % 3 == 0;
    const auto device = std::make_shared<fake::AsyncDevice>(fake::AsyncOptions{.seed = seed});
    const Outcome want = train(c, {.steps = 2, .poison = poison});
    const Outcome got = train(c, {.steps = 2, .poison = poison, .device = device});
    expect_same_bits(got, want);
    late += device->late();
    ranks_of_several += c.name.find("pp1 dp1") == std::string::npos;
  }
  std::cout << "seeds 1 to 12, " << ranks_of_several << " of them with several ranks; " << late
            << " kernels had not run when their launch returned\n";
  EXPECT_GT(late, 10'000);
  EXPECT_GT(ranks_of_several, 6);
}

/// The comparison can fail: if a dependency counts as done at its launch, kernels read unwritten
/// data.
TEST(AsyncTraining, GoesWrongIfLaunchesCountAsDone) {
  int wrong = 0, tried = 0;
  for (uint64_t seed = 1; tried < (is_long() ? 4 : 2); ++seed) {
    const Case c = random_case(seed, 4, "f64");
    // Routing that has not been written yet would lead beyond all buffers.
    if (c.name.find("dense") == std::string::npos) continue;
    ++tried;
    SCOPED_TRACE(c.name);
    const auto device = std::make_shared<fake::AsyncDevice>(
        fake::AsyncOptions{.seed = seed, .done_at_launch = true});
    // Transfers in a lane of the device depend on kernels of another. Kernels with integers stay in
    // their lane: tokens and positions that have not been written yet would lead beyond all
    // buffers, too.
    const auto split_lanes = [](program::Program& program) {
      for (program::RankClass& cls : program.classes) {
        const auto is_number = [&](program::BufferId id) {
          return is_floating(cls.buffers[static_cast<size_t>(id)].type.dtype);
        };
        for (size_t i = 0; i < cls.tasks.size(); i += 2) {
          program::Task& task = cls.tasks[i];
          if (task.lane == program::Lane::compute && program.kind(task).workspace == 0 &&
              std::ranges::all_of(task.in, is_number) && std::ranges::all_of(task.out, is_number)) {
            task.lane = program::Lane::h2d;
          }
        }
      }
      program::finalize(program);
    };
    const Outcome want = train(c, {.with_grads = false, .rewrite = split_lanes});
    const Outcome right =
        train(c, {.with_grads = false,
                  .rewrite = split_lanes,
                  .device = std::make_shared<fake::AsyncDevice>(fake::AsyncOptions{.seed = seed})});
    expect_same_bits(right, want);
    try {
      const Outcome got = train(c, {.with_grads = false, .rewrite = split_lanes, .device = device});
      wrong += got.params != want.params;
    } catch (const Error&) {
      ++wrong;  // a token that was not there yet is none of the vocabulary
    }
  }
  EXPECT_EQ(wrong, tried);
}

}  // namespace
}  // namespace hocket::test::async_device_test
