// SPDX-License-Identifier: Apache-2.0
// Symbolic dims with values set by the executor, and buffers in host memory.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "program/memory.h"
#include "runtime/local_ranks.h"
#include "tests/runtime/apart_device_util.h"
#include "tests/runtime/fake_util.h"

namespace hocket::runtime {
namespace {

using fake::Builder;
using graph::DType;
using graph::TensorType;
using kernels::KernelArgs;
using program::BufferId;
using program::BufferKind;
using program::Lane;
using program::Program;
using program::Space;

/// Computes y = x + 1 over n numbers, summed over the ranks, and a state of n rows. Symbol n is at
/// most 12 and a multiple of 4.
struct Counting {
  explicit Counting(int ranks) : builder(1, ranks) {
    builder.raw().symbols = {{"n", 12, 4, 4}};
    const TensorType type{DType::f64, {graph::Dim::of(0, 12, 1, 4)}};
    const BufferId x = builder.named(0, BufferKind::input, "x", type);
    const BufferId state = builder.named(0, BufferKind::persistent, "state", type);
    const BufferId y = builder.named(0, BufferKind::output, "y", type);
    builder.task(0, Lane::compute, {x, state}, {y, state}, [this](const KernelArgs& args) {
      seen = args.in[0].dim(0);
      EXPECT_FALSE(args.in[0].type->symbolic());
      EXPECT_EQ(args.out[0].dim(0), args.in[0].dim(0));
      for (int64_t i = 0; i < args.in[0].type->numel(); ++i) {
        args.out[1].as<double>()[i] += 1;
        args.out[0].as<double>()[i] = args.in[0].as<double>()[i] + args.out[1].as<double>()[i];
      }
    });
    if (ranks > 1) {
      builder.all_reduce(0, Lane::intra, y);
    }
    program = builder.finish();
  }
  Builder builder;
  Program program;
  std::atomic<int64_t> seen = 0;  ///< by any of the ranks
};

RankOptions quick() {
  RankOptions options;
  options.timeout = std::chrono::milliseconds(5000);
  return options;
}

/// All ranks of a program, prepared to run on them.
struct Ranks {
  explicit Ranks(const Program& program)
      : local(program.num_ranks(), std::make_shared<fake::Backend>(), quick()),
        run(std::make_shared<const Program>(program), Store(local)) {}
  void* input(int32_t rank, const char* name) { return run.executor(rank).input(name); }
  const void* output(int32_t rank, const char* name) { return run.executor(rank).output(name); }
  LocalRanks local;
  LocalRun run;
};

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Symbols, KernelsSeeTheValueOfTheStep) {
  Counting counting(1);
  Ranks ranks(counting.program);
  LocalRun& run = ranks.run;
  double expected_state[12] = {};
  for (int64_t n : {4, 12, 8, 8, 4}) {
    run.set_symbol("n", n);
    auto* x = static_cast<double*>(ranks.input(0, "x"));
    std::iota(x, x + n, 0.0);
    run.step();
    EXPECT_EQ(counting.seen, n);
    const auto* y = static_cast<const double*>(ranks.output(0, "y"));
    for (int64_t i = 0; i < n; ++i) {
      expected_state[i] += 1;
      EXPECT_EQ(y[i], static_cast<double>(i) + expected_state[i]) << "of " << n;
    }
  }
}

TEST(Symbols, CollectivesMoveTheValueOfTheStep) {
  Counting counting(2);
  Ranks ranks(counting.program);
  LocalRun& run = ranks.run;
  run.set_symbol("n", 8);
  for (int rank : {0, 1}) {
    auto* x = static_cast<double*>(ranks.input(rank, "x"));
    std::fill(x, x + 12, 10.0 + rank);
    auto* y = static_cast<double*>(ranks.input(rank, "y"));
    std::fill(y, y + 12, -1.0);
  }
  run.step();
  for (int rank : {0, 1}) {
    const auto* y = static_cast<const double*>(ranks.output(rank, "y"));
    for (int i = 0; i < 12; ++i) {
      EXPECT_EQ(y[i], i < 8 ? 23.0 : -1.0) << i;
    }
  }
}

TEST(Symbols, ValuesAreCheckedAndMustBeThere) {
  Counting counting(1);
  Ranks ranks(counting.program);
  LocalRun& run = ranks.run;
  EXPECT_NE(error_of([&] { run.step(); }).find("n has no value"), std::string::npos);
  EXPECT_NE(error_of([&] { run.set_symbol("n", 16); }).find("n is 16; expected 1 to 12"),
            std::string::npos);
  EXPECT_NE(error_of([&] { run.set_symbol("n", 6); }).find("expected a multiple of 4"),
            std::string::npos);
  EXPECT_NE(error_of([&] { run.set_symbol("n", 0); }).find("expected 1 to 12"), std::string::npos);
  EXPECT_NE(error_of([&] { run.set_symbol("m", 4); }).find("no symbol 'm'"), std::string::npos);
  run.set_symbol("n", 4);
  run.step();
  EXPECT_EQ(counting.seen, 4);
}

/// Each of two ranks sees its half of the step's rows through a view.
TEST(Symbols, AViewOfARanksPartBeginsAtItsOffset) {
  Builder builder(1, 2);
  builder.raw().symbols = {{"n", 12, 4, 4}};
  graph::Dim half = graph::Dim::of(0, 12, 1, 4);
  const BufferId x = builder.named(0, BufferKind::input, "x", {DType::f64, {half, 2}});
  half /= 2;
  const TensorType part{DType::f64, {half, 2}};
  program::Buffer view;
  view.kind = BufferKind::view;
  view.base = x;
  view.type = part;
  view.dim = 0;
  view.by = builder.raw().intern(program::Table{0, {1}, {0, 6}});
  auto& buffers = builder.raw().classes[0].buffers;
  buffers.push_back(view);
  const BufferId mine = buffers.size() - 1;
  const BufferId y = builder.named(0, BufferKind::output, "y", part);
  builder.task(0, Lane::compute, {mine}, {y}, [](const KernelArgs& args) {
    std::copy_n(args.in[0].as<double>(), args.in[0].type->numel(), args.out[0].as<double>());
  });
  const Program program = builder.finish();
  EXPECT_TRUE(program::parse_program(program::print(program)) == program);
  Ranks ranks(program);
  for (const int64_t n : {4, 12, 8, 8, 4}) {
    ranks.run.set_symbol("n", n);
    for (const int rank : {0, 1}) {
      auto* all = static_cast<double*>(ranks.input(rank, "x"));
      std::iota(all, all + 2 * n, 0.0);
    }
    ranks.run.step();
    for (const int rank : {0, 1}) {
      const auto* has = static_cast<const double*>(ranks.output(rank, "y"));
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(has[i], static_cast<double>(rank * n + i)) << "of " << n << " on " << rank;
      }
    }
  }
}

TEST(Symbols, ATypeThatContradictsTheSymbolTableIsRefused) {
  Counting counting(1);
  counting.program.symbols[0].bound = 24;
  EXPECT_NE(error_of([&] { Ranks ranks(counting.program); }).find("symbol 'n', at most 24"),
            std::string::npos);
}

TEST(Symbols, MemoryIsPlannedByBoundAndTouchedByValue) {
  const int64_t rows = 1 << 16;
  Builder builder;
  builder.raw().symbols = {{"n", rows, rows / 2, 1}};
  const TensorType type{DType::f64, {graph::Dim::of(0, rows, 1, 1), 8}};
  const BufferId state = builder.named(0, BufferKind::persistent, "state", type);
  const BufferId step = builder.buffer(0, type);
  builder.task(0, Lane::compute, {state}, {step, state}, [](const KernelArgs& args) {
    std::fill_n(args.out[0].as<double>(), args.out[0].type->numel(), 1.0);
    std::fill_n(args.out[1].as<double>(), args.out[1].type->numel(), 1.0);
  });
  const Program program = builder.finish();
  const int64_t bound = rows * 64;
  const program::Memory planned = program::memory_of(program).at(0);
  EXPECT_EQ(planned.persistent, bound);
  EXPECT_EQ(planned.step_buffers, bound);
  const program::Memory less = program::memory_of(program, std::vector{rows / 16}).at(0);
  EXPECT_EQ(less.persistent, bound / 16);
  EXPECT_EQ(less.step_buffers, bound / 16);
  Ranks ranks(program);
  LocalRun& run = ranks.run;
  run.set_symbol("n", rows / 16);
  run.step();
  EXPECT_EQ(ranks.local.measured(0).persistent, less.persistent);
  run.set_symbol("n", rows / 8);
  run.step();
  EXPECT_EQ(ranks.local.measured(0).persistent, bound / 8);
}

/// Copies down to the host, through a task of the host, and up again; other buffers have the same
/// offsets in the other arena.
TEST(Spaces, EachMemorySpaceHasItsArena) {
  Builder builder;
  const TensorType type{DType::f64, {512}};
  const auto host = [&](BufferId id) {
    builder.raw().classes[0].buffers[id].space = Space::host;
    return id;
  };
  const BufferId x = builder.named(0, BufferKind::input, "x", type);
  const BufferId a = builder.buffer(0, type);
  const BufferId b = host(builder.buffer(0, type));
  const BufferId c = host(builder.buffer(0, type));
  const BufferId d = builder.buffer(0, type);
  const BufferId y = builder.named(0, BufferKind::output, "y", type);
  const BufferId kept = host(builder.named(0, BufferKind::persistent, "kept", type));
  const auto plus = [](double term) {
    return [term](const KernelArgs& args) {
      for (int64_t i = 0; i < args.out[0].type->numel(); ++i) {
        args.out[0].as<double>()[i] = args.in[0].as<double>()[i] + term;
      }
    };
  };
  builder.task(0, Lane::compute, {x}, {a}, plus(1));
  builder.task(0, Lane::d2h, {a}, {b}, plus(0));
  builder.task(0, Lane::host, {b}, {c}, plus(10));
  builder.task(0, Lane::host, {c}, {kept}, plus(0));
  builder.task(0, Lane::h2d, {c}, {d}, plus(0));
  builder.task(0, Lane::compute, {d, a}, {y}, [](const KernelArgs& args) {
    for (int64_t i = 0; i < args.out[0].type->numel(); ++i) {
      args.out[0].as<double>()[i] = args.in[0].as<double>()[i] * 1000 + args.in[1].as<double>()[i];
    }
  });
  const Program program = builder.finish();
  const program::RankClass& cls = program.classes[0];
  EXPECT_EQ(cls.buffers[a].offset, 0);
  EXPECT_EQ(cls.buffers[b].offset, 0);
  EXPECT_EQ(cls.arena_bytes, 2 * 4096);
  EXPECT_EQ(cls.host_arena_bytes, 2 * 4096);
  EXPECT_TRUE(program::parse_program(program::print(program)) == program);
  const program::Memory planned = program::memory_of(program).at(0);
  EXPECT_EQ(planned.step_buffers, 2 * 4096);
  EXPECT_EQ(planned.host, 3 * 4096);
  EXPECT_EQ(planned.with_host(), planned.total() + planned.host);
  EXPECT_NE(program::parts_text(planned).find("in host memory"), std::string::npos);

  Ranks ranks(program);
  LocalRun& run = ranks.run;
  for (int step = 0; step < 3; ++step) {
    auto* in = static_cast<double*>(ranks.input(0, "x"));
    std::iota(in, in + 512, step);
    run.step();
    const auto* out = static_cast<const double*>(ranks.output(0, "y"));
    for (int i = 0; i < 512; ++i) {
      const double up = i + step + 1;
      ASSERT_EQ(out[i], (up + 10) * 1000 + up);
    }
  }
  const program::Memory measured = ranks.local.measured(0);
  EXPECT_EQ(measured.host, planned.host);
  EXPECT_EQ(measured.step_buffers, planned.step_buffers);
  EXPECT_EQ(measured.persistent, 0);
}

/// A kernel of the host lane has its workspace in host memory, on every device, since devices keep
/// the host out of their own.
TEST(Spaces, WorkspacesLieWhereTheirLanesWork) {
  Builder builder;
  const TensorType type{DType::f64, {64}};
  const auto host = [&](BufferId id) {
    builder.raw().classes[0].buffers[id].space = Space::host;
    return id;
  };
  const auto by_workspace = [](const KernelArgs& args) {
    auto* const scratch = reinterpret_cast<double*>(args.workspace);
    std::copy_n(args.in[0].as<double>(), 64, scratch);
    for (int64_t i = 0; i < 64; ++i) {
      args.out[0].as<double>()[i] = scratch[i] + 1;
    }
  };
  const auto copy = [](const KernelArgs& args) {
    std::copy_n(args.in[0].as<double>(), 64, args.out[0].as<double>());
  };
  constexpr int64_t kBytes = 64 * 8;
  const BufferId x = builder.named(0, BufferKind::input, "x", type);
  const BufferId a = builder.buffer(0, type), d = builder.buffer(0, type);
  const BufferId b = host(builder.buffer(0, type)), c = host(builder.buffer(0, type));
  const BufferId y = builder.named(0, BufferKind::output, "y", type);
  builder.task(0, Lane::compute, {x}, {a}, by_workspace, kBytes);
  builder.task(0, Lane::d2h, {a}, {b}, copy);
  builder.task(0, Lane::host, {b}, {c}, by_workspace, kBytes);
  builder.task(0, Lane::h2d, {c}, {d}, copy);
  builder.task(0, Lane::compute, {d}, {y}, copy);
  const Program program = builder.finish();
  EXPECT_EQ(program.classes[0].host_arena_bytes, 3 * kBytes);
  EXPECT_EQ(program.classes[0].tasks[2].workspace, 2 * kBytes);
  EXPECT_EQ(program::total_bytes(program::planned_pages(program, program::ClassId(0), Space::host)),
            program::kPageBytes);

  const auto device = std::make_shared<fake::ApartDevice>();
  RankOptions options = quick();
  options.device = device;
  options.poison = true;
  LocalRanks local(1, std::make_shared<fake::Backend>(), options);
  LocalRun run(std::make_shared<const Program>(program), Store(local));
  Executor& executor = run.executor(0);
  for (const bool is_inline : {false, true}) {
    std::vector<double> in(64), out(64);
    std::iota(in.begin(), in.end(), is_inline ? 100 : 0);
    device->copy(executor.input("x"), in.data(), kBytes);
    if (is_inline) {
      executor.run_inline([](program::TaskId, const std::function<void()>& task) { task(); });
    } else {
      run.step();
    }
    device->copy(out.data(), executor.output("y"), kBytes);
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i], in[i] + 2);
    }
  }
}

/// Programs with and without symbols alternate on one rank and one state: each has its own values,
/// and a running step keeps them.
TEST(Symbols, BelongToOneProgram) {
  Counting counting(1), other(1);
  LocalRanks local(1, std::make_shared<fake::Backend>(), quick());
  const Store store(local);
  LocalRun one(std::make_shared<const Program>(counting.program), store);
  LocalRun two(std::make_shared<const Program>(other.program), store);
  one.set_symbol("n", 4);
  two.set_symbol("n", 12);
  for (int step = 0; step < 3; ++step) {
    for (auto [run, made, n] : {std::tuple{&one, &counting, 4}, std::tuple{&two, &other, 12}}) {
      auto* x = static_cast<double*>(run->executor(0).input("x"));
      std::fill(x, x + n, 0.0);
      run->step();
      EXPECT_EQ(made->seen, n);
      const auto* y = static_cast<const double*>(run->executor(0).output("y"));
      EXPECT_EQ(y[n - 1], n == 4 ? 2.0 * step + 1 : step + 1.0);
    }
  }
}

}  // namespace
}  // namespace hocket::runtime
