// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// A checkpoint saved under one plan, by any number of processes, is loaded under any other, by any
// other number, bit for bit. Where hosts share no file system, missing parts are reported.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "engine/params.h"
#include "kernels/backend.h"
#include "plan_util.h"
#include "tests/checkpoint/checkpoint_util.h"
#include "tests/comm/processes_util.h"
#include "train/resume.h"

namespace hocket::test::checkpoint_test {
namespace {

using checkpoint::TempFolder;

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoll(value);
}

/// The value of an element of a parameter or state, in every plan.
double value_of(const std::string& tensor, int64_t element) {
  return static_cast<double>(mix64(hash_name(tensor) + static_cast<uint64_t>(element)) >> 40) - 7e6;
}

bool persists(const graph::Tensor& tensor) {
  return tensor.kind == graph::TensorKind::param || tensor.kind == graph::TensorKind::state;
}

template <class Number>
void write(const std::string& name, int64_t begin, int64_t count, void* to) {
  for (int64_t i = 0; i < count; ++i) {
    static_cast<Number*>(to)[i] = static_cast<Number>(value_of(name, begin + i));
  }
}

template <class Number>
int64_t wrong(const std::string& name, int64_t begin, int64_t count, const void* at) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += static_cast<const Number*>(at)[i] != static_cast<Number>(value_of(name, begin + i));
  }
  return sum;
}

/// Every element that a rank which is here holds, replicas too.
void fill(const engine::Compiled& compiled, const runtime::Store& store) {
  for (const graph::Tensor& tensor : compiled.reference.tensors) {
    if (!persists(tensor)) continue;
    const bool wide = tensor.type.dtype == graph::DType::f64;
    engine::scatter(tensor, compiled.program, store, [&](int64_t begin, int64_t count, void* to) {
      wide ? write<double>(tensor.name, begin, count, to)
           : write<float>(tensor.name, begin, count, to);
    });
  }
}

void expect_filled(const engine::Compiled& compiled, const runtime::Store& store) {
  for (const graph::Tensor& tensor : compiled.reference.tensors) {
    if (!persists(tensor)) continue;
    const bool wide = tensor.type.dtype == graph::DType::f64;
    int64_t bad = 0;
    const engine::Placement stored(compiled.program, program::BufferKind::persistent);
    engine::for_each_held(
        tensor, compiled.program, stored.holders(tensor.name, store.ranks().ids()),
        [&](const engine::Held& held) {
          const void* at = store.at(held.rank).entries().at(held.buffer->name).data +
                           tensor.type.bytes_of(held.local);
          bad += wide ? wrong<double>(tensor.name, held.begin, held.count, at)
                      : wrong<float>(tensor.name, held.begin, held.count, at);
        });
    EXPECT_EQ(bad, 0) << tensor.name;
  }
}

/// A plan for a model, compiled, and its ranks dealt out to processes.
struct Planned {
  engine::Run run;
  engine::Compiled compiled;
  std::vector<std::vector<int32_t>> dealt;  ///< by process
  std::string name;

  /// Calls `body` in every process with the ranks that it has.
  std::vector<std::string> in_processes(
      const std::function<void(comm::Processes&, const runtime::Store&)>& body) const {
    const auto world =
        std::make_shared<comm::LocalWorld>(compiled.program.num_ranks(), std::chrono::seconds(20));
    ThreadProcesses all(static_cast<int32_t>(dealt.size()));
    return all.run([&](comm::Processes& process) {
      runtime::LocalRanks ranks(std::make_shared<PartWorld>(world, process),
                                dealt[static_cast<size_t>(process.index())], kernels::cpu_backend(),
                                engine::rank_options(run));
      body(process, runtime::Store(ranks));
    });
  }
};

/// Returns a random plan for the model of a case; none if the draw is no plan of this model.
std::optional<Planned> random_plan(const Case& c, Rng& rng, int64_t most_processes) {
  const auto pick = [&](std::initializer_list<int64_t> from) {
    return from.begin()[rng.below(from.size())];
  };
  const int64_t dp = pick({1, 2, 3, 4, 5}), ep = pick({1, 1, 2, 4});
  const int64_t cp = pick({1, 1, 2}), tp = pick({1, 1, 2, 3}), pp = pick({1, 1, 2, 3});
  if (dp * cp * tp * pp > 8 || dp % ep != 0) return {};
  std::vector<std::string> settings = {
      fmt::format("plan.dp={}", dp), fmt::format("plan.ep={}", ep), fmt::format("plan.cp={}", cp),
      fmt::format("plan.tp={}", tp), fmt::format("plan.pp={}", pp),
      // The drawn ones are of the case's own plan.
      "plan.pp_layers=[]", "plan.pp_chunks=1", "plan.pp_schedule=1f1b", "plan.ep_inner=1",
      "plan.moe_chunks=1", "plan.cp_order=contiguous", "plan.micro_batch=2", "plan.shard={}",
      "train.seq_len=8", fmt::format("train.global_batch={}", 2 * dp)};
  for (const char* part : {"params", "grads", "optimizer"}) {
    if (dp > 1 && rng.below(3) == 0) {
      settings.push_back(fmt::format("plan.shard.{}=all", part));
    }
  }
  const bool own = rng.below(4) == 0;
  if (own) {
    settings.clear();  // stages of any layers, several of a rank, pinned layouts
  }
  try {
    engine::Run run = engine::parse_run(c.text, c.name, settings);
    engine::Compiled compiled = engine::compile(run);
    Planned plan{std::move(run), std::move(compiled), {}, ""};
    const int32_t world = plan.compiled.program.num_ranks();
    const int64_t count = 1 + rng.between(0, std::min<int64_t>(most_processes, world) - 1);
    plan.dealt.resize(static_cast<size_t>(count));
    for (int32_t rank = 0; rank < world; ++rank) {
      // Each has one at least.
      const auto process =
          rank < count ? static_cast<size_t>(rank) : rng.below(static_cast<uint64_t>(count));
      plan.dealt[process].push_back(rank);
    }
    plan.name = own ? c.name : fmt::format("dp{} ep{} cp{} tp{} pp{}", dp, ep, cp, tp, pp);
    plan.name += fmt::format(" on {} processes", count);
    return plan;
  } catch (const Error&) {
    return {};
  }
}

Planned some_plan(const Case& c, Rng& rng, int64_t most_processes) {
  for (;;) {
    if (auto plan = random_plan(c, rng, most_processes)) return std::move(*plan);
  }
}

checkpoint::CheckpointContent content_of(const engine::Run& run) {
  checkpoint::CheckpointContent content;
  content.config = &run.model;
  content.state.step = 5;
  content.state.config = "{}";
  return content;
}

Case model_case(uint64_t seed) {
  Case c = random_case(seed, 8, seed % 2 ? "f32" : "f64");
  // A vocabulary that any number of ranks divides.
  const size_t at = c.text.find("vocab_size: ") + 12;
  c.text.replace(at, c.text.find_first_not_of("0123456789", at) - at, "24");
  // Whole models: a checkpoint of an adapter has the adapter alone.
  if (const size_t adapter = c.text.find("adapter: {"); adapter != c.text.npos) {
    c.text.erase(adapter, c.text.find('\n', adapter) + 1 - adapter);
  }
  return c;
}

/// Plans that split less than possible may give notes, which are not tested here.
class AnyPlan : public testing::Test {
 protected:
  AnyPlan() {
    set_log_sink([](LogLevel, const std::string&) {});
  }
  ~AnyPlan() override { set_log_sink(nullptr); }
};

TEST_F(AnyPlan, LoadsWhatAnyOtherSaved) {
  const auto first = static_cast<uint64_t>(from_environment("HOCKET_SEED", 1));
  const int64_t pairs = from_environment("HOCKET_PLANS", static_cast<int64_t>(fewer(40)));
  std::cout << "HOCKET_SEED=" << first << " HOCKET_PLANS=" << pairs << "\n";
  int64_t several = 0;
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(pairs); ++seed) {
    const Case c = model_case(seed);
    Rng rng(seed + 500);
    const Planned from = some_plan(c, rng, 4), to = some_plan(c, rng, 4);
    several += from.dealt.size() > 1 && to.dealt.size() > 1;
    SCOPED_TRACE(fmt::format("seed {}: {} -> {}", seed, from.name, to.name));
    const TempFolder folder;
    for (const std::string& thrown :
         from.in_processes([&](comm::Processes&process, const runtime::Store&store) {
           fill(from.compiled, store);
           const checkpoint::RunFolder run(folder.path(), process, store.ranks().ids());
           train::save(run, from.compiled, store, content_of(from.run));
         })) {
      ASSERT_EQ(thrown, "");
    }
    for (const std::string& thrown :
         to.in_processes([&](comm::Processes&process, const runtime::Store&store) {
           const auto found =
               checkpoint::latest_checkpoint(folder.path(), checkpoint::Verify::all, process);
           train::restore(checkpoint::Checkpoint(found.value(), checkpoint::Verify::lengths),
                          to.compiled, store);
           expect_filled(to.compiled, store);
         })) {
      ASSERT_EQ(thrown, "");
    }
  }
  EXPECT_GT(several, pairs / 8);
}

// Each process on a host of its own. The saving plan's part of a host is there. Another plan either
// finds all its parts, or reports the missing ones on all hosts alike.
TEST_F(AnyPlan, LoadsPartsOfItsHostsOrNamesTheMissingOnes) {
  const auto first = static_cast<uint64_t>(from_environment("HOCKET_SEED", 1));
  const int64_t pairs = from_environment("HOCKET_PLANS", 40) / 2;
  int64_t found = 0, lacking = 0;
  for (uint64_t seed = first; found + lacking < pairs; ++seed) {
    const Case c = model_case(seed);
    Rng rng(seed + 900);
    const Planned from = some_plan(c, rng, 3);
    const size_t hosts = from.dealt.size();
    if (hosts == 1) continue;
    Planned to = some_plan(c, rng, 3);
    if (to.dealt.size() != hosts) continue;
    SCOPED_TRACE(fmt::format("seed {}: {} -> {}", seed, from.name, to.name));
    const TempFolder top;
    const auto folder = [&](const comm::Processes& process) {
      return top / std::to_string(process.index());
    };
    for (const std::string& thrown :
         from.in_processes([&](comm::Processes&process, const runtime::Store&store) {
           fill(from.compiled, store);
           const checkpoint::RunFolder run(folder(process), process, store.ranks().ids());
           train::save(run, from.compiled, store, content_of(from.run));
         })) {
      ASSERT_EQ(thrown, "");
    }
    for (const Planned* plan : {&from, static_cast<const Planned*>(&to)}) {
      const std::vector<std::string> thrown =
          plan->in_processes([&](comm::Processes& process, const runtime::Store& store) {
            const auto latest =
                checkpoint::latest_checkpoint(folder(process), checkpoint::Verify::all, process);
            train::restore(checkpoint::Checkpoint(latest.value(), checkpoint::Verify::lengths),
                           plan->compiled, store);
            expect_filled(plan->compiled, store);
          });
      for (const std::string& text : thrown) {
        EXPECT_EQ(text, thrown[0]);
      }
      if (plan == &from) {
        EXPECT_EQ(thrown[0], "");
        continue;
      }
      (thrown[0].empty() ? found : lacking) += 1;
      if (!thrown[0].empty()) {
        EXPECT_NE(thrown[0].find("the ranks on this host need data of others"), std::string::npos)
            << thrown[0];
        EXPECT_NE(thrown[0].find("written by rank "), std::string::npos) << thrown[0];
      }
    }
  }
  EXPECT_GT(found, 0);
  EXPECT_GT(lacking, 0);
}

}  // namespace
}  // namespace hocket::test::checkpoint_test
