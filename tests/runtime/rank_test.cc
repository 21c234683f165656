// SPDX-License-Identifier: Apache-2.0
// Programs on one rank share its threads and its memory, take turns, and stay out of each other's
// data.
#include "runtime/rank.h"

#include <gtest/gtest.h>

#include <future>
#include <numeric>

#include "base/error.h"
#include "runtime/local_ranks.h"
#include "tests/runtime/fake_util.h"

namespace hocket::runtime {
namespace {

using fake::Builder;
using fake::f64s;
using kernels::KernelArgs;
using program::BufferId;
using program::BufferKind;
using program::kPageBytes;
using program::Lane;
using program::Program;

constexpr int64_t kPerPage = kPageBytes / 8;

/// Program that doubles its input through a step buffer of this many pages, in two lanes.
std::shared_ptr<const Program> doubling(int64_t pages) {
  Builder b;
  const BufferId in = b.named(0, BufferKind::input, "in", f64s(pages * kPerPage), 0);
  const BufferId middle = b.buffer(0, f64s(pages * kPerPage));
  const BufferId out = b.named(0, BufferKind::output, "out", f64s(pages * kPerPage));
  b.task(0, Lane::compute, {in}, {middle}, [](const KernelArgs& a) {
    std::copy_n(a.in[0].as<double>(), a.in[0].dim(0), a.out[0].as<double>());
  });
  b.task(0, Lane::host, {middle}, {out}, [](const KernelArgs& a) {
    for (int64_t i = 0; i < a.in[0].dim(0); ++i) {
      a.out[0].as<double>()[i] = 2 * a.in[0].as<double>()[i];
    }
  });
  return std::make_shared<const Program>(b.finish());
}

void feed(Executor& executor, double first) {
  auto* in = static_cast<double*>(executor.input("in", 0));
  std::iota(in, in + executor.buffer("in", 0).type.numel(), first);
}
void expect_doubled(const Executor& executor, double first) {
  const auto* out = static_cast<const double*>(executor.output("out"));
  for (int64_t i = 0; i < executor.buffer("out").type.numel(); ++i) {
    ASSERT_EQ(out[i], 2 * (first + static_cast<double>(i)));
  }
}
void step(Executor& executor) {
  executor.start();
  executor.wait();
}

std::string failure(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Rank, ProgramsShareThreadsAndMemory) {
  const auto backend = std::make_shared<fake::Backend>();
  const auto lane_threads = [&] { return backend->entered().size(); };  // started so far
  Rank rank(0, backend, nullptr, {});
  std::vector<std::unique_ptr<Executor>> executors;
  // In falling and rising sizes: the arena is moved under the programs that exist already.
  for (const int64_t pages : {4, 2, 16, 8, 32, 1}) {
    executors.push_back(std::make_unique<Executor>(rank, rank.make_store(), doubling(pages)));
  }
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < executors.size(); ++i) {
      feed(*executors[i], static_cast<double>(i));
      step(*executors[i]);
      expect_doubled(*executors[i], static_cast<double>(i));
    }
  }
  EXPECT_EQ(lane_threads(), 2u) << "one for each of the two lanes";
  EXPECT_EQ(rank.arena_resident_bytes(), 32 * kPageBytes);
  EXPECT_EQ(rank.inputs_outputs_resident_bytes(), 64 * kPageBytes);
  executors.erase(executors.begin() + 4);  // the largest
  EXPECT_EQ(rank.arena_resident_bytes(), 16 * kPageBytes);
  feed(*executors[2], 5);
  step(*executors[2]);
  expect_doubled(*executors[2], 5);
  executors.clear();
  EXPECT_EQ(rank.arena_resident_bytes(), 0);
  EXPECT_EQ(rank.inputs_outputs_resident_bytes(), 0);
  // And again from the beginning.
  Executor again(rank, rank.make_store(), doubling(3));
  feed(again, 1);
  step(again);
  expect_doubled(again, 1);
  EXPECT_EQ(lane_threads(), 4u) << "a rank without programs has no threads";
}

/// Device with a limited amount of memory.
class CountingDevice : public Device {
 public:
  kernels::Device kind() const override { return kernels::Device::cpu; }
  std::unique_ptr<Queue> make_queue(Progress& progress, Failed failed) override {
    return cpu_device()->make_queue(progress, std::move(failed));
  }
  std::unique_ptr<Memory> reserve(int64_t bytes) override {
    struct Counted : Memory {
      Counted(std::unique_ptr<Memory> of, int64_t& sum)
          : Memory(of->data(), of->bytes()), inner(std::move(of)), all(sum) {
        all += bytes();
      }
      ~Counted() override { all -= bytes(); }
      void commit(program::Range range) override { inner->commit(range); }
      void decommit(program::Range range) override { inner->decommit(range); }
      int64_t resident_bytes() const override { return inner->resident_bytes(); }
      std::unique_ptr<Memory> inner;
      int64_t& all;
    };
    auto memory = std::make_unique<Counted>(cpu_device()->reserve(bytes), all_);
    most_ = std::max(most_, all_);
    return memory;
  }
  void copy(void* to, const void* from, int64_t bytes) const override {
    cpu_device()->copy(to, from, bytes);
  }
  int64_t most() const { return most_; }

 private:
  int64_t all_ = 0, most_ = 0;
};

TEST(Rank, FreesAnArenaThatALargerOneReplaces) {
  const auto device = std::make_shared<CountingDevice>();
  Rank rank(0, std::make_shared<fake::Backend>(), nullptr, {.device = device});
  std::vector<std::unique_ptr<Executor>> executors;
  for (int64_t pages = 1; pages <= 8; ++pages) {
    executors.push_back(std::make_unique<Executor>(rank, rank.make_store(), doubling(pages)));
    for (auto& executor : executors) {
      feed(*executor, 1);
      step(*executor);
    }
  }
  EXPECT_EQ(device->most(), (8 + 16) * kPageBytes);
}

TEST(Rank, InputsAndOutputsBelongToTheLastFedProgram) {
  Rank rank(0, std::make_shared<fake::Backend>(), nullptr, {});
  const auto store = rank.make_store();
  Executor a(rank, store, doubling(1)), b(rank, store, doubling(1));
  feed(a, 1);
  step(a);
  step(a);  // the inputs are still there
  expect_doubled(a, 1);
  feed(a, 3);
  feed(b, 5);
  EXPECT_NE(failure([&] { a.start(); }).find("try to feed it again"), std::string::npos);
  EXPECT_NE(failure([&] { a.output("out"); }).find("another program"), std::string::npos);
  step(b);
  expect_doubled(b, 5);
  feed(a, 7);
  EXPECT_NE(failure([&] { b.output("out"); }).find("another program"), std::string::npos);
  EXPECT_NE(failure([&] { b.start(); }).find("try to feed it again"), std::string::npos);
  // A larger program moves the memory: the inputs are lost.
  Executor large(rank, store, doubling(9));
  EXPECT_NE(failure([&] { a.start(); }).find("try to feed it again"), std::string::npos);
  feed(a, 2);
  step(a);
  expect_doubled(a, 2);
  // A program that was never fed owns no inputs.
  EXPECT_NE(failure([&] { large.start(); }).find("try to feed it again"), std::string::npos);
}

TEST(Rank, RunsOneProgramAtATime) {
  std::promise<void> started, go_on;
  Builder slow;
  slow.task(0, Lane::compute, {}, {slow.buffer(0, f64s(1))}, [&](const KernelArgs&) {
    started.set_value();
    go_on.get_future().wait_for(std::chrono::seconds(20));
  });
  Rank rank(0, std::make_shared<fake::Backend>(), nullptr, {});
  const auto store = rank.make_store();
  Executor a(rank, store, std::make_shared<const Program>(slow.finish()));
  Executor b(rank, store, doubling(1));
  feed(b, 1);
  a.start();
  started.get_future().wait();
  EXPECT_NE(failure([&] { b.start(); }).find("one program at a time"), std::string::npos);
  EXPECT_NE(failure([&] { b.input("in", 0); }).find("between steps"), std::string::npos);
  EXPECT_NE(failure([&] { Executor(rank, store, doubling(1)); }).find("between steps"),
            std::string::npos);
  go_on.set_value();
  a.wait();
  feed(b, 4);
  step(b);
  expect_doubled(b, 4);
}

TEST(Rank, AnExecutorThatGoesStopsItsOwnStepOnly) {
  std::promise<void> started;
  std::atomic<bool> go_on{false};
  Builder slow;
  const BufferId x = slow.buffer(0, f64s(1));
  slow.task(0, Lane::compute, {}, {x}, [&](const KernelArgs&) {
    started.set_value();
    while (!go_on) {
      std::this_thread::yield();
    }
  });
  Rank rank(0, std::make_shared<fake::Backend>(), nullptr, {});
  auto a = std::make_unique<Executor>(rank, rank.make_store(),
                                      std::make_shared<const Program>(slow.finish()));
  auto b = std::make_unique<Executor>(rank, rank.make_store(), doubling(1));
  a->start();
  started.get_future().wait();
  b.reset();  // leaves the step alone
  go_on = true;
  a->wait();
}

TEST(Rank, ProgramsShareAStore) {
  // One program increments a value in the store, the other reads it.
  Builder up, read;
  const BufferId n = up.named(0, BufferKind::persistent, "n", f64s(1));
  up.task(0, Lane::compute, {n}, {n}, [](const KernelArgs& a) { ++*a.out[0].as<double>(); });
  const BufferId m = read.named(0, BufferKind::persistent, "n", f64s(1));
  const BufferId out = read.named(0, BufferKind::output, "out", f64s(1));
  read.task(0, Lane::compute, {m}, {out},
            [](const KernelArgs& a) { *a.out[0].as<double>() = *a.in[0].as<double>(); });
  Rank rank(0, std::make_shared<fake::Backend>(), nullptr, {});
  const auto store = rank.make_store();
  const auto reading = std::make_shared<const Program>(read.finish());
  Executor counter(rank, store, std::make_shared<const Program>(up.finish()));
  Executor reader(rank, store, reading);
  for (int i = 0; i < 3; ++i) {
    step(counter);
  }
  step(reader);
  EXPECT_EQ(*static_cast<const double*>(reader.output("out")), 3);
  // In another store of the rank the value is still 0.
  Executor elsewhere(rank, rank.make_store(), reading);
  step(elsewhere);
  EXPECT_EQ(*static_cast<const double*>(elsewhere.output("out")), 0);
}

TEST(Rank, CountsTheMemoryOfItsStores) {
  Builder builder;
  builder.task(0, Lane::compute, {},
               {builder.named(0, BufferKind::persistent, "n", f64s(kPageBytes / 4))},
               [](const KernelArgs& a) {
                 std::memset(a.out[0].data, 1, static_cast<size_t>(a.out[0].type->bytes()));
               });
  const auto program = std::make_shared<const Program>(builder.finish());
  Rank rank(0, std::make_shared<fake::Backend>(), nullptr, {});
  EXPECT_EQ(rank.stores_resident_bytes(), 0);
  auto one = std::make_unique<Executor>(rank, rank.make_store(), program);
  step(*one);
  EXPECT_EQ(rank.stores_resident_bytes(), 2 * kPageBytes);
  Executor other(rank, rank.make_store(), program);
  step(other);
  EXPECT_EQ(rank.stores_resident_bytes(), 4 * kPageBytes);
  one.reset();
  EXPECT_EQ(rank.stores_resident_bytes(), 2 * kPageBytes);
}

}  // namespace
}  // namespace hocket::runtime
