// SPDX-License-Identifier: Apache-2.0
// On a device whose memory the host cannot touch: trained, evaluated, saved, resumed and continued
// as text, every bit as on the CPU.
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "checkpoint/run_folder.h"
#include "engine/params.h"
#include "engine/programs.h"
#include "kernels/backend.h"
#include "tests/data/prepared_util.h"
#include "tests/runtime/apart_device_util.h"
#include "train/evaluate.h"
#include "train/resume.h"
#include "train/sample.h"

namespace hocket::train {
namespace {

engine::Run run_of(const std::string& family, const std::vector<std::string>& plan) {
  const std::string experts =
      "num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 8, norm_topk_prob: true, "
      "mlp_only_layers: [], decoder_sparse_step: 1, ";
  return engine::parse_run(
      "model: {dtype: f32, config: {model_type: " + family +
          ", vocab_size: 257, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 4, "
          "num_key_value_heads: 2, head_dim: 4, intermediate_size: 24, " +
          (family == "qwen3_moe" ? experts : "") +
          "max_position_embeddings: 256}}\n"
          "plan: {threads_per_rank: 1, timeout_s: 60}\n"
          "train: {global_batch: 4, seq_len: 8}\noutput: {sample_tokens: 12}\n",
      "apart", plan);
}

/// What all this came to.
struct Results {
  std::vector<double> losses;
  double held_out = 0, resumed = 0;
  std::string text;
  bool operator==(const Results&) const = default;
};

double one_step(const engine::Run& run, engine::Session& session, int64_t step) {
  engine::Batch batch = engine::empty_batch(session.compiled(), run.config.train.seq_len);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    batch.tokens[i] = static_cast<int32_t>((i * 31 + static_cast<size_t>(step)) % 257);
    batch.targets[i] = static_cast<int32_t>(i * 17 % 257);
    batch.positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % batch.seq_len);
  }
  batch.loss_scale = 1.0 / static_cast<double>(batch.num_targets());
  batch.hyper = engine::Hyper::of(run.config.train, 0.01, step);
  session.feed(batch);
  session.step();
  return session.loss();
}

Results all_of_it(const engine::Run& run, runtime::LocalRanks& ranks, const data::Dataset& dataset,
                  const std::string& folder) {
  constexpr int64_t kSteps = 3;
  Results results;
  engine::Programs programs(run, ranks);
  engine::Session& training = programs.session();
  engine::initialise(training.graph(), training.program(), 5, training.store());
  for (int64_t step = 1; step <= kSteps; ++step) {
    results.losses.push_back(one_step(run, training, step));
  }
  {
    Evaluator evaluator(run, dataset, programs, &programs.compiled());
    results.held_out = evaluator.run(0).nats;
  }
  checkpoint::CheckpointContent content;
  content.config = &run.model;
  content.state.step = kSteps;
  content.state.config = "{}";
  const checkpoint::RunFolder to(folder, ranks.processes(), ranks.ids());
  const std::string saved = save(to, training.compiled(), training.store(), std::move(content));
  results.losses.push_back(one_step(run, training, kSteps + 1));
  {
    engine::Programs again(run, ranks);
    restore(checkpoint::Checkpoint(saved), again.compiled(), again.store());
    results.resumed = one_step(run, again.session(), kSteps + 1);
  }
  EXPECT_EQ(results.resumed, results.losses.back());
  results.text = sample_text(run, programs, dataset).text;
  return results;
}

std::shared_ptr<const data::Dataset> dataset_in(const data::TempFolder& folder) {
  std::vector<std::string> texts;
  for (int i = 0; i < 8; ++i) {
    texts.push_back("To be continued by whoever comes next, " + std::to_string(i) + ".\n" +
                    std::string(60, static_cast<char>('a' + i)));
  }
  return std::make_shared<const data::Dataset>(data::prepare_texts(folder, texts, 0.3));
}

/// The ranks of a run on such a device.
struct Apart {
  explicit Apart(const engine::Run& run)
      : ranks(std::make_shared<fake::ApartWorld>(static_cast<int32_t>(run.plan.world()),
                                                 std::chrono::seconds(60), device),
              all_of(run), kernels::cpu_backend(), options(run)) {}
  static std::vector<int32_t> all_of(const engine::Run& run) {
    std::vector<int32_t> all;
    for (int32_t rank = 0; rank < run.plan.world(); ++rank) {
      all.push_back(rank);
    }
    return all;
  }
  runtime::RankOptions options(const engine::Run& run) const {
    runtime::RankOptions options = engine::rank_options(run);
    options.device = device;
    options.poison = true;
    return options;
  }
  const std::shared_ptr<fake::ApartDevice> device = std::make_shared<fake::ApartDevice>();
  runtime::LocalRanks ranks;
};

TEST(ApartDevice, EverythingRunsOnIt) {
  const data::TempFolder folder;
  const std::shared_ptr<const data::Dataset> dataset = dataset_in(folder);
  ASSERT_NE(dataset->valid(), nullptr);
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"llama", {}},
      {"llama", {"plan.dp=2", "plan.shard.params=all"}},  // evaluates and generates otherwise
      {"llama", {"plan.tp=2"}},
      {"qwen3_moe", {"plan.dp=2", "plan.ep=2"}},
      // Kernels of the host lane with a workspace: what they add up and encode is short.
      {"llama",
       {"plan.dp=2", "model.dtype=bf16", "train.grad_dtype=model",
        "plan.grad_codec_of=['* int8 host']"}}};
  int number = 0;
  for (const auto& [family, plan] : cases) {
    SCOPED_TRACE(std::string(family) + " " + (plan.empty() ? "one rank" : plan.back()));
    const engine::Run run = run_of(family, plan);
    runtime::LocalRanks on_cpu = engine::local_ranks(run);
    const Results expected =
        all_of_it(run, on_cpu, *dataset, folder / fmt::format("cpu{}", number));
    Apart apart(run);
    const Results got =
        all_of_it(run, apart.ranks, *dataset, folder / fmt::format("apart{}", number));
    EXPECT_EQ(got.losses, expected.losses);
    EXPECT_EQ(got.held_out, expected.held_out);
    EXPECT_EQ(got.text, expected.text);
    EXPECT_TRUE(got == expected);
    EXPECT_GT(apart.device->copied(), 0);
    ++number;
  }
}

TEST(ApartDeviceDeathTest, AHostThatTouchesItDies) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";  // ranks are threads
  const engine::Run run = run_of("llama", {});
  Apart apart(run);
  engine::Session session(engine::compile(run), runtime::Store(apart.ranks));
  engine::initialise(session.graph(), session.program(), 5, session.store());
  const auto& entry = session.store().at(0).entries().begin()->second;
  EXPECT_DEATH(
      {
        const volatile std::byte first = *entry.memory->data();
        static_cast<void>(first);
      },
      "");
}

}  // namespace
}  // namespace hocket::train
