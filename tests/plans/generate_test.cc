// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// ctest: timeout=600
// Plans that train also generate: the program is proven, and its logits are those of one rank.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "base/intervals.h"
#include "check/check.h"
#include "check/mutants/mutate.h"
#include "engine/params.h"
#include "graph/names.h"
#include "kernels/backend.h"
#include "plan_util.h"
#include "program/buffer_contents.h"
#include "tests/comm/processes_util.h"
#include "tests/serve/generation_util.h"

namespace hocket::test::generate_test {
namespace {

constexpr int64_t kLongest = 16;

serve::StepLimits limits(const engine::Run& run) {
  return serve::limits_of(run, kLongest, kLongest);
}

/// Logits of the last tokens of a few steps.
std::vector<double> logits_of(const engine::Run& run, engine::Compiled compiled, uint64_t seed) {
  runtime::RankOptions options = engine::rank_options(run);
  options.threads = 1;
  runtime::LocalRanks ranks(compiled.program.num_ranks(), kernels::cpu_backend(), options);
  engine::Session session(std::move(compiled), runtime::Store(ranks));
  engine::initialise(session.graph(), session.program(), seed, session.store());
  std::vector<double> logits;
  serve::SessionStepper stepper(session, limits(run));
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kLongest; ++i) {
    ids.push_back(i * 7 % 17);
  }
  int64_t begin = 0;
  for (const int64_t count : {5, 1, 1, 3}) {
    const std::vector<double> last =
        serve::logits_of_step<double>(session, stepper, ids, begin, count);
    logits.insert(logits.end(), last.begin(), last.end());
    begin += count;
  }
  return logits;
}

std::vector<double> logits_of(const engine::Run& run, uint64_t seed) {
  return logits_of(run, serve::compile_generation(run, limits(run)), seed);
}

engine::Run on_one_rank(const engine::Run& run) {
  engine::Run one = run;
  one.plan = parallel::Plan{};
  one.plan.threads_per_rank = 1;
  return one;
}

TEST(Generate, RandomPlansGenerateLikeOneRank) {
  const uint64_t first = from_environment("HOCKET_SEED", 1);
  const uint64_t plans = from_environment("HOCKET_PLANS", fewer(40));
  for (uint64_t seed = first; seed < first + plans; ++seed) {
    const Case c = random_case(seed, 8, "f64");
    SCOPED_TRACE(c.name);
    const engine::Run run = engine::parse_run(c.text, c.name, {});
    EXPECT_LE(relative_l2(logits_of(run, seed), logits_of(on_one_rank(run), seed)), 1e-10);
  }
}

/// Random faults, of views where there are some: refused, or of no consequence.
TEST(Generate, FaultsAreRefused) {
  const uint64_t first = from_environment("HOCKET_SEED", 1);
  const uint64_t plans = from_environment("HOCKET_PLANS", 40);  // fewer may have no view
  uint64_t refused = 0, views = 0;
  for (uint64_t seed = first; seed < first + plans; ++seed) {
    const Case c = random_case(seed, 8, "f64");
    const engine::Run run = engine::parse_run(c.text, c.name, {});
    const engine::Compiled good = serve::compile_generation(run, limits(run));
    const std::vector<double> expected = logits_of(on_one_rank(run), seed);
    for (uint64_t i = 0; i < 6; ++i) {
      engine::Compiled faulty = good;
      check::Mutation mutation;
      const char* kind = i % 2 == 0 ? "view" : "";
      if (!check::mutate(faulty.program, seed * 100003 + i, &mutation, kind)) continue;
      views += mutation.kind == "view" ? 1 : 0;
      if (!check::check(faulty.program, good.reference).ok()) {
        ++refused;
        continue;
      }
      EXPECT_LE(relative_l2(logits_of(run, std::move(faulty), seed), expected), 1e-10)
          << c.name << ": " << mutation.kind << ": " << mutation.text;
    }
  }
  EXPECT_GT(views, plans / 4);
  EXPECT_GT(refused, 3 * plans);
}

/// Processes that count the bytes given to others.
class Counting : public comm::Processes {
 public:
  explicit Counting(comm::Processes& of) : of_(of) {}
  int32_t size() const override { return of_.size(); }
  int32_t index() const override { return of_.index(); }
  std::vector<std::string> all_gather(const std::string& mine) override {
    ADD_FAILURE() << "all processes get " << mine.size() << " bytes";
    return of_.all_gather(mine);
  }
  std::vector<std::string> exchange(std::vector<std::string> given) override {
    for (size_t process = 0; process < given.size(); ++process) {
      bytes += std::cmp_equal(process, index()) ? 0 : std::ssize(given[process]);
    }
    return of_.exchange(std::move(given));
  }
  int64_t bytes = 0;

 private:
  comm::Processes& of_;
};

/// Bytes of parameters that ranks hold under one program and lack under another.
int64_t lacking(const graph::Graph& graph, const program::Program& from,
                const program::Program& to) {
  int64_t bytes = 0;
  for (const graph::Tensor& tensor : graph.tensors) {
    if (tensor.kind != graph::TensorKind::param) continue;
    for (int32_t rank = 0; rank < to.num_ranks(); ++rank) {
      Intervals seen;
      const auto each = [&](const program::Program& program, const auto& use) {
        for (const program::Buffer& buffer : program.classes[program.class_of(rank)].buffers) {
          if (buffer.kind != program::BufferKind::persistent) continue;
          program::for_each_run(
              buffer, tensor.name, tensor.type, program, rank,
              [&](int64_t begin, int64_t count, int64_t) { seen.add(begin, count, use); });
        }
      };
      each(from, [](int64_t, int64_t) {});
      each(to, [&](int64_t, int64_t count) { bytes += tensor.type.bytes_of(count); });
    }
  }
  return bytes;
}

/// Expects one rank's parameters of the generating program to be the initial values.
void expect_initial(const engine::Compiled& compiled, const runtime::Store& store, uint64_t seed) {
  for (const int32_t rank : store.ranks().ids()) {
    runtime::PersistentStore fresh(rank);
    engine::initialise(compiled.reference, compiled.program, seed, fresh);
    for (const auto& [name, entry] : fresh.entries()) {
      const graph::TensorId id = compiled.reference.find(name);
      if (compiled.reference.tensor(id).kind != graph::TensorKind::param) continue;
      const auto& own = store.at(rank).entries().at(name);
      ASSERT_TRUE(own.initialised) << name;
      EXPECT_EQ(std::memcmp(own.data, entry.data, static_cast<size_t>(entry.type.bytes())), 0)
          << name << " of rank " << rank;
    }
  }
}

/// Moves parameters from the training program to the generating one, on threads and between
/// processes. Each gets its missing parts and nothing else.
TEST(Generate, ParametersComeOnceFromTheTraining) {
  const uint64_t first = from_environment("HOCKET_SEED", 1);
  const uint64_t plans = from_environment("HOCKET_PLANS", fewer(40));
  int64_t moved = 0;
  for (uint64_t seed = first; seed < first + plans; ++seed) {
    const Case c = random_case(seed, 8, "f64");
    SCOPED_TRACE(c.name);
    const engine::Run run = engine::parse_run(c.text, c.name, {});
    const engine::Compiled trained = engine::compile(run);
    const engine::Compiled compiled = serve::compile_generation(run, limits(run));
    const runtime::RankOptions options = engine::rank_options(run);
    const int32_t world = trained.program.num_ranks();
    const int64_t max_in_flight = seed % 2 == 0 ? 200 : engine::kMaxInFlightBytes;
    const auto copy = [&](const runtime::Store& from, const runtime::Store& to) {
      engine::copy_parameters(compiled.reference, trained.program, from, compiled.program, to,
                              max_in_flight);
      expect_initial(compiled, to, seed);
    };
    runtime::LocalRanks ranks(world, kernels::cpu_backend(), options);
    const runtime::Store from(ranks);
    engine::initialise(trained.reference, trained.program, seed, from);
    copy(from, runtime::Store(ranks));

    std::atomic<int64_t> bytes = 0;
    const auto exchange = std::make_shared<comm::LocalWorld>(world, options.timeout);
    ThreadProcesses(world).expect_run([&](comm::Processes& processes) {
      Counting counting(processes);
      const auto part = std::make_shared<PartWorld>(exchange, counting);
      const std::vector<int32_t> mine{processes.index()};
      runtime::LocalRanks own(part, mine, kernels::cpu_backend(), options);
      const runtime::Store one(own);
      engine::initialise(trained.reference, trained.program, seed, one);
      copy(one, runtime::Store(own));
      bytes += counting.bytes;
    });
    EXPECT_EQ(bytes, lacking(compiled.reference, trained.program, compiled.program));
    moved += bytes > 0 ? 1 : 0;
  }
  EXPECT_GT(moved, static_cast<int64_t>(plans) / 10);
}

}  // namespace
}  // namespace hocket::test::generate_test
