// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Changes that keep every bit in fp32 at equal threads and micro-batches: the pipeline,
// recomputation, gradient buckets, the reuse of memory, the text form, and running again. Compares
// losses, norms, first gradients, and all parameters and moments after three steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/file.h"
#include "parallel/schedules/schedule.h"
#include "passes/pass.h"
#include "plan_util.h"
#include "program/finalize.h"

namespace hocket::test::bit_identity_test {
namespace {

constexpr int kSteps = 3;

/// Sums over ranks are native: around a ring, the order of a sum depends on where an element lies
/// among those that are summed together.
Outcome run(const Case& c, std::vector<std::string> overrides,
            const std::function<void(program::Program&)>& rewrite = nullptr) {
  overrides.emplace_back("plan.all_reduce=native");
  return train(c, {.steps = kSteps, .poison = true, .overrides = overrides, .rewrite = rewrite});
}

void expect_same_bits(const Outcome& a, const Outcome& b, const std::string& what) {
  SCOPED_TRACE(what);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  auto same = [](const auto& x, const auto& y) {
    ASSERT_EQ(x.size(), y.size());
    for (const auto& [name, values] : x) {
      ASSERT_TRUE(y.count(name)) << name;
      EXPECT_TRUE(values == y.at(name))
          << name << ": relative L2 " << relative_l2(values, y.at(name));
    }
  };
  same(a.grads, b.grads);
  same(a.params, b.params);
}

/// Cases with a pipeline of at least two stages (and the plan's other axes as drawn).
std::vector<Case> pipelines(uint64_t n) {
  std::vector<Case> found;
  for (uint64_t seed = 1000; found.size() < n; ++seed) {
    Case c = random_case(seed, 6, "f32", false);
    if (engine::parse_run(c.text, c.name, {}).plan.pp > 1) {
      found.push_back(c);
    }
  }
  return found;
}

TEST(BitIdentity, ARepeatedRunGivesTheSameBits) {
  for (uint64_t seed = 2000; seed < 2000 + fewer(8); ++seed) {
    Case c = random_case(seed, 6, "f32");
    expect_same_bits(run(c, {}), run(c, {}), c.name);
  }
}

TEST(BitIdentity, APipelineGivesTheBitsOfOneStage) {
  for (const Case& c : pipelines(fewer(10))) {
    expect_same_bits(run(c, {}), run(c, {"plan.pp=1", "plan.pp_layers=[]"}), c.name);
  }
}

TEST(BitIdentity, SplitAndGpipeSchedulesGiveTheSameBits) {
  const std::string path = testing::TempDir() + "hocket_bit_identity.csv";
  for (const Case& c : pipelines(fewer(6))) {
    const parallel::Plan plan = engine::parse_run(c.text, c.name, {}).plan;
    const int ranks = static_cast<int>(plan.pp), n = static_cast<int>(plan.num_micro_batches);
    const int chunks = static_cast<int>(plan.pp_chunks);
    // Every backward in two halves, dW as late as it may.
    const std::string name = chunks > 1 ? "interleaved" : "1f1b";
    parallel::Schedule split = parallel::make_schedule(name, ranks, n, chunks);
    for (auto& row : split.ranks) {
      std::vector<parallel::Action> late;
      for (auto& a : row) {
        if (a.kind == 'B') {
          a.kind = 'I';
          late.push_back({'W', a.stage, a.micro_batch});
        }
      }
      row.insert(row.end(), late.begin(), late.end());
    }
    std::ofstream(path) << parallel::to_csv(split);
    const Outcome base = run(c, {"plan.pp_schedule=" + name});
    expect_same_bits(base, run(c, {"plan.pp_schedule=gpipe", "plan.pp_chunks=1"}),
                     c.name + " gpipe");
    expect_same_bits(base, run(c, {"plan.pp_schedule=" + path}), c.name + " split backward");
  }
}

/// Ranks add up micro-batches in the order of 1F1B under every built-in schedule but dualpipe:
/// there each copy of a stage adds up half of them.
TEST(BitIdentity, AllBuiltInSchedulesButDualpipeGiveTheSameBits) {
  for (const Case& c : pipelines(fewer(4))) {
    const engine::Run run_of = engine::parse_run(c.text, c.name, {});
    const int64_t pp = run_of.plan.pp;
    const int64_t batch = 2 * pp * run_of.plan.dp * run_of.plan.micro_batch;
    const auto with = [&](const parallel::BuiltIn& built_in) {
      const int64_t chunks = std::max(built_in.chunks, 1);
      std::vector<int64_t> layers(static_cast<size_t>(pp * chunks), 0);
      for (int64_t layer = 0; layer < run_of.model.num_layers; ++layer) {
        ++layers[static_cast<size_t>(layer % std::ssize(layers))];
      }
      return run(c, {fmt::format("train.global_batch={}", batch),
                     fmt::format("plan.pp_schedule={}", built_in.name),
                     fmt::format("plan.pp_chunks={}", chunks),
                     fmt::format("plan.pp_layers=[{}]", fmt::join(layers, ","))});
    };
    const std::vector<parallel::BuiltIn>& all = parallel::built_in_schedules();
    const Outcome base = with(all[0]);
    for (const parallel::BuiltIn& built_in : all) {
      if (std::string(built_in.name) == "dualpipe") continue;
      expect_same_bits(base, with(built_in), c.name + " " + built_in.name);
    }
  }
}

/// Passes that declare `same_numerics` keep that promise: each pass on against off under its
/// samples, beside all others; on two programs that it changes, on eight with HOCKET_LONG=1.
TEST(BitIdentity, PassesThatKeepNumericsGiveTheSameBits) {
  for (const passes::Pass& pass : passes::all()) {
    if (!pass.same_numerics) continue;
    std::vector<std::string> all, others;
    for (const passes::Pass& other : passes::all()) {
      all.push_back(other.name);
      if (&other != &pass) {
        others.push_back(other.name);
      }
    }
    ASSERT_FALSE(pass.samples.empty()) << pass.name;
    int changed = 0;
    for (const std::string& sample : pass.samples) {
      const int before = changed;
      for (uint64_t seed = 4000; seed < 4008; ++seed) {
        if (is_sanitized() && changed > 0) break;
        if (!is_long() && changed > before + 1) break;
        const Case c = random_case(seed, 6, "f32");
        std::vector<std::string> programs;
        auto with = [&](const std::vector<std::string>& names) {
          return run(c, {"plan." + sample, fmt::format("plan.passes=[{}]", fmt::join(names, ","))},
                     [&](program::Program p) {
                       p.config.clear();  // names the passes
                       programs.push_back(program::print(p));
                     });
        };
        expect_same_bits(with(all), with(others), c.name + " without " + pass.name + ", " + sample);
        changed += programs[0] != programs[1];
      }
    }
    EXPECT_GT(changed, 0) << pass.name << " never changes a program: this compares nothing";
  }
}

/// Blocks of products beside collectives leave all bits, but those of sums along the rows over more
/// than two ranks.
TEST(BitIdentity, TilesGiveTheSameBits) {
  int changed = 0;
  for (uint64_t seed = 4100; seed < 4100 + fewer(30); ++seed) {
    const Case c = random_case(seed, 6, "f32");
    const engine::Run run_of = engine::parse_run(c.text, c.name, {});
    if (run_of.plan.sequence_parallel && run_of.plan.tp > 2) continue;
    std::vector<std::string> programs;
    const auto with = [&](int blocks) {
      return run(c, {fmt::format("plan.comm_tiles={}", blocks)}, [&](program::Program p) {
        p.config.clear();  // names the key
        programs.push_back(program::print(p));
      });
    };
    expect_same_bits(with(3), with(1), c.name);
    changed += programs[0] != programs[1];
  }
  EXPECT_GE(changed, static_cast<int>(fewer(30) / 6));
}

TEST(BitIdentity, ReusedMemoryGivesTheSameBits) {
  int64_t planned = 0, distinct = 0;
  for (uint64_t seed = 5000; seed < 5000 + fewer(10); ++seed) {
    Case c = random_case(seed, 6, "f32");
    // Every step buffer and every workspace at an address of its own.
    auto spread = [&](program::Program& p) {
      for (program::RankClass& cls : p.classes) {
        planned += cls.arena_bytes;
        int64_t top = 0;
        auto take = [&](int64_t bytes) {
          const int64_t at = top;
          top += (std::max<int64_t>(bytes, 1) + 63) / 64 * 64;
          return at;
        };
        for (program::Buffer& b : cls.buffers) {
          if (b.kind == program::BufferKind::step) {
            b.offset = take(b.type.bytes());
          }
        }
        for (size_t t = 0; t < cls.tasks.size(); ++t) {
          if (cls.tasks[t].workspace != program::kNone) {
            cls.tasks[t].workspace = take(p.kind(cls.tasks[t]).workspace);
          }
        }
        cls.arena_bytes = top;
        distinct += top;
      }
    };
    expect_same_bits(run(c, {}), run(c, {}, spread), c.name);
  }
  EXPECT_LT(planned, distinct / 2) << "the plan reuses nothing: this compares nothing";
}

TEST(BitIdentity, AParsedProgramGivesTheSameBits) {
  for (uint64_t seed = 6000; seed < 6000 + fewer(8); ++seed) {
    Case c = random_case(seed, 6, "f32");
    auto through_text = [](program::Program& p) { p = program::parse_program(program::print(p)); };
    expect_same_bits(run(c, {}), run(c, {}, through_text), c.name);
  }
}

}  // namespace
}  // namespace hocket::test::bit_identity_test
