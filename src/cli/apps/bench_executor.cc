// SPDX-License-Identifier: Apache-2.0
// hocket bench executor: empty tasks, so that only the executor's own time remains.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/stats.h"
#include "cli/apps/bench.h"
#include "runtime/local_ranks.h"

namespace hocket::cli {
namespace {

/// Kernels that do nothing, so that only the executor's time remains.
class EmptyBackend : public kernels::Backend {
 public:
  std::string describe() const override { return "empty kernels"; }
  kernels::KernelFn find(std::string_view, kernels::Device,
                         const kernels::OperandTypes&) const override {
    return [](const kernels::KernelArgs&) {};
  }
  void enter_thread(int) override {}
};

/// `count` tasks without operands; with `hop` each in another lane than the one before, on which it
/// depends.
program::Program empty_tasks(int32_t count, bool hop) {
  program::Program program;
  program.roles = {{"all", {{{"rank", 1}}}}};
  program::Kind empty;
  empty.op = "empty";
  const program::KindId kind = program.intern(std::move(empty));
  program::RankClass cls;
  cls.name = "bench";
  for (int32_t i = 0; i < count; ++i) {
    program::Task task;
    task.kind = kind;
    task.lane = hop && i % 2 == 1 ? program::Lane::host : program::Lane::compute;
    if (hop && i > 0) {
      task.deps = {i - 1};
    }
    cls.tasks.push_back(std::move(task));
  }
  program.classes.push_back(std::move(cls));
  return program;
}

/// Nanoseconds per task, the median of `rounds` steps.
double time_empty(int32_t count, bool hop, int rounds) {
  runtime::LocalRanks rank(1, std::make_shared<EmptyBackend>(), {});
  runtime::LocalRun run(std::make_shared<const program::Program>(empty_tasks(count, hop)),
                        runtime::Store(rank));
  run.step();
  std::vector<double> ns;
  for (int i = 0; i < rounds; ++i) {
    const int64_t start = now_ns();
    run.step();
    ns.push_back(static_cast<double>(now_ns() - start) / count);
  }
  return median(ns);
}

}  // namespace

void declare_bench_executor(Args& args) {
  // Two figures: the cost of a task without dependents, and the cost of waking another lane. Waking
  // takes far longer, so a twentieth of the tasks is enough.
  struct ExecutorBenchOptions {
    int64_t tasks = 100'000;
    bool json = false;
  };
  auto options = std::make_shared<ExecutorBenchOptions>();
  args.about("the executor's overhead per task",
             "Empty tasks in one lane, and in two lanes in turn.");
  args.option("--tasks", "N", &options->tasks, "tasks in one lane");
  args.flag("--json", &options->json, "print the result as JSON");
  args.example("hocket bench executor", "nanoseconds per task and per hop between lanes");
  args.example("hocket bench executor --tasks 20000 --json", "a shorter one, for a script");
  args.run([options] {
    if (options->tasks < 1 || options->tasks > 100'000'000) {
      fail("hocket bench executor", "--tasks is {}; expected 1 to 100,000,000", options->tasks);
    }
    const int32_t n = static_cast<int32_t>(options->tasks);
    const double lane = time_empty(n, false, 7);
    const double hop = time_empty(std::max(2, n / 20), true, 5);
    if (options->json) {
      JsonWriter json;
      json.object().member("tasks", n).member("ns_per_task", lane).member("ns_per_hop", hop).end();
      fmt::print("{}\n", json.take());
    } else {
      fmt::print(
          "{} empty tasks in one lane: {:.0f} ns each (median of 7 steps)\n"
          "a task in another lane than the one it waits for: {:.0f} ns\n",
          n, lane, hop);
    }
    return 0;
  });
}

}  // namespace hocket::cli
