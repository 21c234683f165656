// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Executor with fake kernels: order under delays, overlap of lanes, errors and timeouts that
// surface at the step's end, poisoned memory.
#include "runtime/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "runtime/local_ranks.h"
#include "tests/runtime/fake_util.h"

namespace hocket::runtime {
namespace {

using fake::Body;
using fake::Builder;
using fake::f64s;
using fake::i64s;
using kernels::KernelArgs;
using kernels::TensorRef;
using program::BufferId;
using program::BufferKind;
using program::Lane;
using program::Program;
using std::chrono::milliseconds;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr Lane kLanes[] = {Lane::compute,  Lane::intra, Lane::inter, Lane::intra_rx,
                           Lane::inter_rx, Lane::h2d,   Lane::d2h,   Lane::host};

/// Latch that opens once; waiting for it gives up after 20 s.
class Door {
 public:
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

/// All ranks of a program, prepared to run on them.
struct Ranks {
  explicit Ranks(const Program& p, const RankOptions& options = {})
      : backend(std::make_shared<fake::Backend>()),
        local(p.num_ranks(), backend, options),
        run(std::make_shared<const Program>(p), Store(local)) {}
  std::shared_ptr<fake::Backend> backend;
  LocalRanks local;
  LocalRun run;
};

std::string failure(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 1);
    return e.what();
  }
  return "";
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

void nap(uint64_t seed, uint64_t i) {
  const uint64_t r = random_bits(seed, 0, i) % 10;
  if (r < 2) {
    std::this_thread::sleep_for(std::chrono::microseconds(20 + 30 * r));
  }
  if (r == 9) {
    std::this_thread::yield();
  }
}

/// Random program over 8 lanes. Every kernel checks, before and after a delay, that its inputs hold
/// the values of sequential execution in issue order, then writes its outputs.
Program random_program(uint64_t seed, std::atomic<int>& ran, std::atomic<int>& wrong) {
  Rng rng(seed);
  Builder b;
  const size_t lanes = 1 + rng.below(8), tasks = 20 + rng.below(120);
  std::vector<BufferId> buffers;
  std::vector<int64_t> holds;  // version of each buffer's content; -1: never written
  auto grow = [&] {
    const auto n = static_cast<int64_t>(1 + rng.below(60));
    buffers.push_back(rng.below(6) ? b.buffer(0, i64s(n))
                                   : b.named(0, BufferKind::persistent,
                                             "p" + std::to_string(buffers.size()), i64s(n)));
    holds.push_back(-1);
    return buffers.size() - 1;
  };
  for (size_t i = 0; i < tasks; ++i) {
    std::vector<BufferId> in, out;
    std::vector<int64_t> expected;
    std::vector<size_t> written;
    for (size_t k = 0; k < buffers.size(); ++k) {
      if (holds[k] >= 0) {
        written.push_back(k);
      }
    }
    for (uint64_t k = rng.below(4); k > 0 && !written.empty(); --k) {
      // Mostly recent values, so that others die and their memory is reused.
      const size_t back = rng.below(std::min<size_t>(written.size(), rng.below(5) ? 4 : 1000));
      const size_t w = written[written.size() - 1 - back];
      in.push_back(buffers[w]);
      expected.push_back(holds[w]);
    }
    const auto version = static_cast<int64_t>(i + 1);
    for (uint64_t k = 1 + rng.below(2); k > 0; --k) {
      const size_t w = buffers.empty() || rng.below(3) ? grow() : rng.below(buffers.size());
      if (std::find(out.begin(), out.end(), buffers[w]) != out.end()) continue;
      out.push_back(buffers[w]);
      holds[w] = version;
    }
    const int64_t workspace = rng.below(4) == 0 ? 64 : 0;
    const Lane lane = workspace ? Lane::compute : kLanes[rng.below(lanes)];
    b.task(
        0, lane, in, out,
        [=, &ran, &wrong](const KernelArgs& args) {
          auto check = [&] {
            for (size_t k = 0; k < args.in.size(); ++k) {
              for (int64_t e = 0; e < args.in[k].dim(0); ++e) {
                if (args.in[k].as<int64_t>()[e] != expected[k]) {
                  ++wrong;
                }
              }
            }
          };
          check();
          if (args.workspace_bytes) {
            std::memset(args.workspace, 0x77, 64);
          }
          nap(seed, static_cast<uint64_t>(version) * 1000 + static_cast<uint64_t>(ran.load()));
          check();
          for (const TensorRef& o : args.out) {
            std::fill_n(o.as<int64_t>(), o.dim(0), version);
          }
          ++ran;
        },
        workspace);
  }
  return b.finish();
}

TEST(Executor, KeepsTheOrderOfRandomProgramsUnderDelays) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::atomic<int> ran{0}, wrong{0};
    const Program p = random_program(seed, ran, wrong);
    RankOptions options;
    options.timeout = milliseconds(20'000);
    options.poison = seed % 2 == 0;
    Ranks ranks(p, options);
    for (int step = 0; step < 3; ++step) {
      ran = 0;
      ASSERT_NO_THROW(ranks.run.step());
      ASSERT_EQ(ran, static_cast<int>(p.classes[0].tasks.size()));
      ASSERT_EQ(wrong, 0);
      for (const TaskTime& t : ranks.run.executor(0).times()) {
        EXPECT_LE(t.start_ns, t.end_ns);
      }
    }
  }
}

TEST(Executor, NoticesAMissingDependency) {
  // The test above can fail: without a dependency the result is wrong.
  Door door;
  std::atomic<int64_t> seen{-1};
  Builder b;
  const BufferId x = b.buffer(0, i64s(1)), y = b.buffer(0, i64s(1));
  b.task(0, Lane::compute, {}, {x}, [&](const KernelArgs& a) {
    door.wait();
    *a.out[0].as<int64_t>() = 7;
  });
  b.task(0, Lane::intra, {x}, {y}, [&](const KernelArgs& a) {
    seen = *a.in[0].as<int64_t>();
    door.open();
  });
  Program p = b.finish();
  ASSERT_EQ(p.classes[0].tasks[1].deps, std::vector<program::TaskId>{0});
  p.classes[0].tasks[1].deps.clear();
  Ranks ranks(p);
  ranks.run.step();
  EXPECT_NE(seen, 7);
}

TEST(Executor, LanesOverlap) {
  Door compute, link;
  std::atomic<bool> met{true};
  Builder b;
  const BufferId x = b.buffer(0, f64s(8)), y = b.buffer(0, f64s(8));
  // Each kernel waits for the other. In one lane neither would return.
  b.task(0, Lane::compute, {}, {x}, [&](const KernelArgs&) {
    compute.open();
    met = met && link.wait();
  });
  b.task(0, Lane::intra, {}, {y}, [&](const KernelArgs&) {
    link.open();
    met = met && compute.wait();
  });
  Ranks ranks(b.finish());
  ranks.run.step();
  EXPECT_TRUE(met);
  const auto& t = ranks.run.executor(0).times();
  EXPECT_LT(std::max(t[0].start_ns, t[1].start_ns), std::min(t[0].end_ns, t[1].end_ns));
}

TEST(Executor, HoldsItsLanesForTheEmulatedTime) {
  // A short task is held, and its successor waits; a long one is not delayed further.
  Builder b;
  const BufferId x = b.buffer(0, f64s(8)), y = b.buffer(0, f64s(8)), z = b.buffer(0, f64s(8));
  b.task(0, Lane::compute, {}, {x}, nullptr);
  b.task(0, Lane::intra, {x}, {y}, nullptr);
  b.task(0, Lane::compute, {}, {z},
         [](const KernelArgs&) { std::this_thread::sleep_for(milliseconds(50)); });
  const auto program = std::make_shared<const Program>(b.finish());
  const auto emulated = std::make_shared<const EmulatedDevice>(
      EmulatedDevice{{{{.min_ns = 30'000'000}, {.min_ns = 0}, {.min_ns = 20'000'000}}}});
  LocalRanks local(1, std::make_shared<fake::Backend>(), {});
  LocalRun run(program, Store(local), emulated);
  for (int step = 0; step < 2; ++step) {
    run.step();
    const std::vector<TaskTime>& t = run.executor(0).times();
    EXPECT_GE(t[0].end_ns - t[0].start_ns, 30'000'000);
    EXPECT_GE(t[1].start_ns, t[0].end_ns);
    EXPECT_GE(t[2].start_ns, t[0].end_ns);
    EXPECT_LT(t[2].end_ns - t[2].start_ns, 68'000'000);
  }
}

TEST(Executor, SetsTheThreadsOfItsLanes) {
  Builder b;
  b.task(0, Lane::compute, {}, {b.buffer(0, f64s(1))}, nullptr);
  b.task(0, Lane::host, {}, {b.buffer(0, f64s(1))}, nullptr);
  b.task(0, Lane::intra, {}, {b.buffer(0, f64s(1))}, nullptr);
  RankOptions options;
  options.threads = 3;
  Ranks ranks(b.finish(), options);
  ranks.run.step();
  std::vector<int> entered = ranks.backend->entered();
  std::sort(entered.begin(), entered.end());
  EXPECT_EQ(entered, (std::vector<int>{1, 3, 3}));
}

TEST(Executor, AnErrorNamesRankTaskAndCauseAndStopsTheOthers) {
  std::atomic<int> after{0};
  Builder b(2, 2);
  const BufferId x = b.buffer(0, f64s(4)), y = b.buffer(1, f64s(4)), z = b.buffer(1, f64s(4));
  // Stage 0 waits for stage 1. There the second task fails on one of two ranks.
  std::atomic<int> arrived{0};
  b.recv(0, x, 1, 5);
  b.task(0, Lane::compute, {x}, {b.buffer(0, f64s(4))}, [&](const KernelArgs&) { ++after; });
  b.task(1, Lane::compute, {}, {y}, nullptr);
  b.task(1, Lane::compute, {y}, {z}, [&](const KernelArgs&) {
    if (++arrived == 1) throw std::runtime_error("the disk is on fire");
  });
  b.all_reduce(1, Lane::intra, z);
  b.send(1, z, 0, 5);
  RankOptions options;
  options.timeout = milliseconds(60'000);
  Ranks ranks(b.finish(), options);
  const auto begin = Clock::now();
  const std::string what = failure([&] { ranks.run.step(); });
  EXPECT_LT(seconds_since(begin), 20) << "the others were not told";
  expect_contains(what, "rank ");
  expect_contains(what, "stage1 task 1");
  expect_contains(what, "the disk is on fire");
  EXPECT_EQ(after, 0);
  // The next step is refused with the same cause, and nothing runs.
  arrived = 0;
  const std::string again = failure([&] { ranks.run.step(); });
  expect_contains(again, "the disk is on fire");
  EXPECT_EQ(arrived, 0);
}

TEST(Executor, TheFailedRankIsNamedForAnyErrorText) {
  Builder b(2, 1);
  b.recv(0, b.buffer(0, f64s(4)), 1, 5);
  const BufferId x = b.buffer(1, f64s(4));
  // This text looks like the error of a rank that another rank stopped.
  b.task(1, Lane::compute, {}, {x},
         [](const KernelArgs&) { throw std::runtime_error("stopped: the tape was cancelled"); });
  b.send(1, x, 0, 5);
  RankOptions options;
  options.timeout = milliseconds(60'000);
  Ranks ranks(b.finish(), options);
  const std::string what = failure([&] { ranks.run.step(); });
  EXPECT_EQ(what.find("[step] [run] rank 1: "), 0u) << what;
}

TEST(Executor, AReceiveWithoutASendTimesOut) {
  Builder b(2, 1);
  b.task(0, Lane::compute, {}, {b.buffer(0, f64s(1))}, nullptr);
  b.recv(1, b.buffer(1, f64s(1)), 0, 3);
  RankOptions options;
  options.timeout = milliseconds(200);
  Ranks ranks(b.finish(), options);
  const auto begin = Clock::now();
  const std::string what = failure([&] { ranks.run.step(); });
  EXPECT_GE(seconds_since(begin), 0.19);
  expect_contains(what, "rank 1");
  expect_contains(what, "recv");
  expect_contains(what, "nothing from rank 0");
}

TEST(Executor, ACollectiveThatMissesAMemberTimesOut) {
  Builder b(1, 3);
  const BufferId x = b.buffer(0, f64s(1));
  std::atomic<int> entered{0};
  Door door;
  // One of three ranks, whichever comes last, does not reach the collective in time.
  b.task(0, Lane::compute, {}, {x}, [&](const KernelArgs&) {
    if (++entered == 3) {
      door.wait();
    }
  });
  b.all_reduce(0, Lane::intra, x);
  RankOptions options;
  options.timeout = milliseconds(300);
  Ranks ranks(b.finish(), options);
  const auto begin = Clock::now();
  const std::string what = failure([&] { ranks.run.step(); });
  EXPECT_GE(seconds_since(begin), 0.29);
  EXPECT_LT(seconds_since(begin), 20);
  // Any of three timers may expire first: that of a member in the collective, that of the missing
  // rank's own lane, or, on a busy machine, that of its step.
  expect_contains(what, "rank ");
  const bool told = what.find("all_reduce") != what.npos &&
                    (what.find("2 of 3 ranks arrived within 0.3 s") != what.npos ||
                     what.find("waited 0.3 s for task 0 of lane compute") != what.npos);
  EXPECT_TRUE(told || what.find("(stage0 task 0) has not ended") != what.npos) << what;
  door.open();
}

TEST(Executor, AKernelThatNeverEndsIsNamed) {
  Door door;
  Builder b;
  const BufferId x = b.buffer(0, f64s(1));
  b.task(0, Lane::compute, {}, {x}, [&](const KernelArgs&) { door.wait(); });
  b.task(0, Lane::intra, {x}, {b.buffer(0, f64s(1))}, nullptr);
  RankOptions options;
  options.timeout = milliseconds(200);
  Ranks ranks(b.finish(), options);
  const auto begin = Clock::now();
  const std::string what = failure([&] { ranks.run.step(); });
  EXPECT_LT(seconds_since(begin), 15);
  expect_contains(what, "rank 0");
  expect_contains(what, "fake forward (stage0 task 0)");
  expect_contains(what, "0.2 s");
  door.open();
}

TEST(Executor, AHangInTheOnlyLaneIsNoticed) {
  Door door;
  Builder b;
  b.task(0, Lane::compute, {}, {b.buffer(0, f64s(1))}, nullptr);
  b.task(0, Lane::compute, {}, {b.buffer(0, f64s(1))}, [&](const KernelArgs&) { door.wait(); });
  RankOptions options;
  options.timeout = milliseconds(200);
  Ranks ranks(b.finish(), options);
  const std::string what = failure([&] { ranks.run.step(); });
  expect_contains(what, "stage0 task 1");
  expect_contains(what, "has not ended");
  // The step can't be waited for again, nor another be started, while it runs.
  expect_contains(failure([&] { ranks.run.step(); }), "has not ended");
  door.open();
}

// A kernel returns with an error after its executor and its program are gone.
TEST(Executor, ALateErrorReadsNoDestroyedObject) {
  Door door, thrown;
  Builder b;
  b.task(0, Lane::compute, {}, {b.buffer(0, f64s(1))}, [&](const KernelArgs&) {
    door.wait();
    thrown.open();
    throw std::runtime_error("too late");
  });
  RankOptions options;
  options.timeout = milliseconds(100);
  auto rank = std::make_unique<Rank>(0, std::make_shared<fake::Backend>(), nullptr, options);
  auto executor = std::make_unique<Executor>(*rank, rank->make_store(),
                                             std::make_shared<const Program>(b.finish()));
  bool told = false;
  rank->set_on_error([&](const std::string&) { told = true; });
  executor->start();
  expect_contains(failure([&] { executor->wait(); }), "has not ended");
  EXPECT_TRUE(std::exchange(told, false));
  executor.reset();
  rank.reset();
  door.open();
  thrown.wait();
  std::this_thread::sleep_for(milliseconds(200));  // for the lane, which is not joined
  EXPECT_FALSE(told);
}

TEST(Executor, CancelStopsAtTheNextTask) {
  Door started, go_on;
  std::atomic<int> second{0};
  Builder b;
  const BufferId x = b.buffer(0, f64s(1));
  b.task(0, Lane::compute, {}, {x}, [&](const KernelArgs&) {
    started.open();
    go_on.wait();
  });
  b.task(0, Lane::compute, {x}, {b.buffer(0, f64s(1))}, [&](const KernelArgs&) { ++second; });
  Ranks ranks(b.finish());
  Executor& e = ranks.run.executor(0);
  e.start();
  started.wait();
  ranks.local.at(0).cancel();
  go_on.open();
  expect_contains(failure([&] { e.wait(); }), "cancelled");
  EXPECT_EQ(second, 0);
}

TEST(Executor, RefusesInvalidPrograms) {
  auto construct = [](const std::function<void(Program&)>& spoil) {
    Builder b;
    const BufferId x = b.buffer(0, f64s(1));
    b.task(0, Lane::compute, {}, {x}, nullptr);
    b.all_reduce(0, Lane::intra, x);
    Program p = b.finish();
    spoil(p);
    return failure([&] { Ranks{p}; });
  };
  EXPECT_EQ(construct([](Program&) {}), "");
  const std::string unknown = construct([](Program& p) { p.kinds[0].op = "mystery"; });
  expect_contains(unknown, "no kernel for mystery () -> (f64[1])");
  expect_contains(construct([](Program& p) { p.classes[0].tasks[0].out.clear(); }),
                  "has 0 inputs and 0 outputs; expected 0 and 1");
}

TEST(Executor, FindsInputsAndOutputsByName) {
  Builder b;
  const BufferId in = b.named(0, BufferKind::input, "tokens", f64s(2), 0);
  const BufferId out = b.named(0, BufferKind::output, "loss", f64s(2));
  b.task(0, Lane::compute, {in}, {out}, [](const KernelArgs& a) {
    for (int i : {0, 1}) {
      a.out[0].as<double>()[i] = 2 * a.in[0].as<double>()[i];
    }
  });
  Ranks ranks(b.finish());
  Executor& e = ranks.run.executor(0);
  EXPECT_TRUE(e.has("tokens", 0));
  EXPECT_FALSE(e.has("tokens", 1));
  EXPECT_FALSE(e.has("tokens"));
  EXPECT_EQ(e.buffer("loss").type, f64s(2));
  expect_contains(failure([&] { e.input("tokens", 4); }), "no buffer 'tokens' of micro-batch 4");
  auto* tokens = static_cast<double*>(e.input("tokens", 0));
  tokens[0] = 3, tokens[1] = -1;
  ranks.run.step();
  const auto* loss = static_cast<const double*>(e.output("loss"));
  EXPECT_EQ(loss[0], 6);
  EXPECT_EQ(loss[1], -2);
}

/// Every rank passes its value on to the next one along the axis, cyclically, and records the order
/// in which values arrive: 10^k times the k-th number.
Program ring(int stages, int ranks_per_stage, int32_t axis) {
  Builder b(stages, ranks_per_stage);
  const int n = axis == 0 ? stages : ranks_per_stage;
  for (int s = 0; s < stages; ++s) {
    BufferId passing = b.named(s, BufferKind::input, "own", f64s(1));
    BufferId seen = b.buffer(s, f64s(1));
    b.task(s, Lane::compute, {passing}, {seen},
           [](const KernelArgs& a) { a.out[0].as<double>()[0] = a.in[0].as<double>()[0]; });
    for (int hop = 1; hop < n; ++hop) {
      const BufferId arrived = b.buffer(s, f64s(1));
      const BufferId next =
          hop + 1 < n ? b.buffer(s, f64s(1)) : b.named(s, BufferKind::output, "seen", f64s(1));
      b.send_along(s, axis, 1, passing, hop);
      b.recv_along(s, axis, -1, arrived, hop);
      const double digit = std::pow(10, hop);
      b.task(s, Lane::compute, {seen, arrived}, {next}, [digit](const KernelArgs& a) {
        a.out[0].as<double>()[0] = a.in[0].as<double>()[0] + digit * a.in[1].as<double>()[0];
      });
      passing = arrived;
      seen = next;
    }
  }
  return b.finish();
}

TEST(Executor, MessagesGoAroundARing) {
  struct Shape {
    int stages, ranks_per_stage, axis;
  };
  for (const Shape& shape : {Shape{1, 4, 1}, Shape{3, 2, 1}, Shape{4, 1, 0}, Shape{3, 2, 0}}) {
    const Program p = ring(shape.stages, shape.ranks_per_stage, shape.axis);
    Ranks ranks(p, {.timeout = milliseconds(20'000)});
    const graph::Mesh& mesh = p.roles[0].mesh;
    for (int32_t r = 0; r < mesh.size(); ++r) {
      static_cast<double*>(ranks.run.executor(r).input("own"))[0] = r + 1;
    }
    ranks.run.step();
    for (int32_t r = 0; r < mesh.size(); ++r) {
      double want = 0;
      const int32_t n = mesh.axes[shape.axis].size;
      for (int32_t back = 0; back < n; ++back) {
        want += std::pow(10, back) * (mesh.moved(r, shape.axis, -back) + 1);
      }
      EXPECT_EQ(static_cast<const double*>(ranks.run.executor(r).output("seen"))[0], want)
          << "rank " << r;
    }
  }
}

TEST(Executor, RunsInlineInIssueOrder) {
  std::vector<int> order;
  Builder b;
  for (int i = 0; i < 6; ++i) {
    b.task(0, kLanes[i % 3], {}, {b.buffer(0, f64s(1))},
           [&order, i](const KernelArgs&) { order.push_back(i); });
  }
  Ranks ranks(b.finish());
  std::vector<program::TaskId> visited;
  ranks.run.executor(0).run_inline([&](program::TaskId id, const std::function<void()>& run) {
    visited.push_back(id);
    run();
    if (id == 2) {
      run();
    }
  });
  EXPECT_EQ(visited, (std::vector<program::TaskId>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 2, 3, 4, 5}));
}

TEST(Executor, PoisonFillsUnwrittenAndDeadBuffers) {
  std::atomic<int> clean{0};
  std::atomic<const std::byte*> dead{nullptr};
  auto poisoned = [](const void* at, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      if (static_cast<const std::byte*>(at)[i] != std::byte{0xff}) return false;
    }
    return true;
  };
  Builder b;
  const BufferId x = b.buffer(0, f64s(8)), y = b.buffer(0, f64s(100)), z = b.buffer(0, f64s(200));
  b.task(0, Lane::compute, {}, {x}, [&](const KernelArgs& a) {
    clean += !poisoned(a.out[0].data, 64);  // before its first write
    EXPECT_TRUE(std::isnan(a.out[0].as<double>()[0]));
    std::fill_n(a.out[0].as<double>(), 8, 1.0);
    dead = static_cast<const std::byte*>(a.out[0].data);
  });
  b.task(0, Lane::intra, {x}, {y}, [&](const KernelArgs& a) {
    clean += !poisoned(a.out[0].data, 800);
    EXPECT_EQ(a.in[0].as<double>()[7], 1.0);
    std::fill_n(a.out[0].as<double>(), 100, 2.0);
  });
  b.task(0, Lane::compute, {y}, {z}, [&](const KernelArgs& a) {
    clean += !poisoned(dead, 64);  // x has had its last use
    EXPECT_EQ(a.in[0].as<double>()[99], 2.0);
    std::fill_n(a.out[0].as<double>(), 200, 3.0);
  });
  RankOptions options;
  options.poison = true;
  Ranks ranks(b.finish(), options);
  for (int step = 0; step < 2; ++step) {
    ranks.run.step();
    EXPECT_EQ(clean, 0) << "step " << step;
  }
}

TEST(Executor, RefusesAProgramWithoutAMemoryPlan) {
  Builder b;
  const BufferId x = b.buffer(0, f64s(4));
  b.task(0, Lane::compute, {}, {x}, nullptr);
  Program p = b.finish();
  EXPECT_EQ(failure([&] { Ranks{p}; }), "");
  p.classes[0].buffers[0].offset = program::kNone;
  expect_contains(failure([&] { Ranks{p}; }), "no memory plan");
}

/// The transport buffers all messages that are sent before the receiver posts a receive, and the
/// plan counts them.
TEST(Executor, AFloodOfMessagesIsPlanned) {
  constexpr int kMessages = 6;
  Builder b(2);
  Door all_sent;
  const BufferId begin = b.buffer(1, f64s(1)), end = b.buffer(0, f64s(1));
  const program::TaskId waits = b.task(1, Lane::compute, {}, {begin},
                                       [&](const KernelArgs&) { EXPECT_TRUE(all_sent.wait()); });
  std::vector<program::TaskId> sends;
  for (int i = 0; i < kMessages; ++i) {
    const BufferId x = b.buffer(0, f64s(100 + i)), y = b.buffer(1, f64s(100 + i));
    b.task(0, Lane::compute, {}, {x}, nullptr);
    sends.push_back(b.send(0, x, 1, i));
    b.recv(1, y, 0, i);
    b.last(1).deps = {waits};
  }
  b.task(0, Lane::compute, {}, {end}, [&](const KernelArgs&) { all_sent.open(); });
  b.last(0).deps = sends;
  const Program p = b.finish();
  const std::vector<program::Memory> planned = program::memory_of(p);
  EXPECT_EQ(planned[0].messages, 8 * (100 * kMessages + 15));
  EXPECT_EQ(planned[1].messages, 0);
  Ranks ranks(p);
  ranks.run.step();
  EXPECT_EQ(ranks.local.measured(0).messages, planned[0].messages);
  EXPECT_EQ(ranks.local.measured(1).messages, 0);
}

/// A sender that waits for an answer before the next message never has two in flight.
TEST(Executor, AnAnswerImpliesThatTheMessageWasReceived) {
  Builder b(2);
  BufferId answer = b.buffer(0, f64s(50));
  b.task(0, Lane::compute, {}, {answer}, nullptr);
  for (int i = 0; i < 8; ++i) {
    const BufferId x = b.buffer(0, f64s(100)), y = b.buffer(1, f64s(100)),
                   z = b.buffer(1, f64s(50));
    b.task(0, Lane::compute, {answer}, {x}, nullptr);
    b.send(0, x, 1, i);
    b.recv(1, y, 0, i);
    b.task(1, Lane::compute, {y}, {z},
           [](const KernelArgs&) { std::this_thread::sleep_for(std::chrono::microseconds(200)); });
    b.send(1, z, 0, 100 + i);
    answer = b.buffer(0, f64s(50));
    b.recv(0, answer, 1, 100 + i);
  }
  const Program p = b.finish();
  const std::vector<program::Memory> planned = program::memory_of(p);
  EXPECT_EQ(planned[0].messages, 800);
  EXPECT_EQ(planned[1].messages, 400);
  Ranks ranks(p);
  for (int step = 0; step < 20; ++step) {
    ranks.run.step();
  }
  EXPECT_EQ(ranks.local.measured(0).messages, 800);
  EXPECT_EQ(ranks.local.measured(1).messages, 400);
}

TEST(Executor, OverheadOfAnEmptyTaskIsSmall) {
  auto ns_per_task = [](const Program& p) {
    Ranks ranks(p);
    ranks.run.step();
    double best = 1e30;
    for (int i = 0; i < 3; ++i) {
      const auto begin = Clock::now();
      ranks.run.step();
      best = std::min(best, seconds_since(begin));
    }
    return 1e9 * best / static_cast<double>(p.classes[0].tasks.size());
  };
  Builder one, two;
  const BufferId x = one.buffer(0, f64s(1));
  for (int i = 0; i < 100'000; ++i) {
    one.task(0, Lane::compute, {}, {x}, nullptr);
  }
  // A chain that alternates between two lanes.
  const BufferId y = two.buffer(0, f64s(1));
  for (int i = 0; i < 5'000; ++i) {
    two.task(0, i % 2 ? Lane::intra : Lane::compute, {}, {y}, nullptr);
  }
  const double lane = ns_per_task(one.finish()), hop = ns_per_task(two.finish());
  std::printf("%.0f ns per task in one lane, %.0f ns per hop between lanes\n", lane, hop);
  RecordProperty("ns_per_task", std::to_string(lane));
  EXPECT_LT(lane, 100'000);  // generous, since the machine may be shared
}

}  // namespace
}  // namespace hocket::runtime
