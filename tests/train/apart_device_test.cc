// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// A device with memory that the host cannot touch: training, evaluation, saving, resuming and
// generation equal the CPU's to the bit, traced and profiled too.
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/run_folder.h"
#include "engine/params.h"
#include "engine/programs.h"
#include "kernels/backend.h"
#include "tests/data/prepared_util.h"
#include "tests/runtime/apart_device_util.h"
#include "train/evaluate.h"
#include "train/profiler.h"
#include "train/resume.h"
#include "train/sample.h"
#include "train/saver.h"
#include "train/step_times.h"
#include "train/stop.h"

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

/// Results of training, evaluation, resuming and generation.
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
  batch.hyper = engine::hyper_of(run.config.optimizer, 0.01, step);
  session.feed(batch);
  session.step();
  return session.loss();
}

Results all_of_it(const engine::Run& run, runtime::LocalRanks& ranks, const TrainingData& dataset,
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
    results.held_out = evaluator.run(0).front().nats;
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

/// Returns a folder of prepared texts.
std::string prepared_in(const data::TempFolder& folder) {
  std::vector<std::string> texts;
  for (int i = 0; i < 8; ++i) {
    texts.push_back("To be continued by whoever comes next, " + std::to_string(i) + ".\n" +
                    std::string(60, static_cast<char>('a' + i)));
  }
  return data::prepare_texts(folder, texts, 0.3);
}

/// Ranks of a run on a device whose memory the host cannot touch.
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
  const std::string prepared = prepared_in(folder);
  ASSERT_NE(data::Dataset(prepared).valid(), nullptr);
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"llama", {}},
      {"llama", {"plan.dp=2", "plan.shard.params=all"}},  // evaluates and generates otherwise
      {"llama", {"plan.tp=2"}},
      {"qwen3_moe", {"plan.dp=2", "plan.ep=2"}},
      {"llama", {"plan.dp=2", "plan.grad_codec_of=['*down_proj.weight identity host']"}},
      // Kernels of the host lane with a workspace: they add and encode short types.
      {"llama",
       {"plan.dp=2", "model.dtype=bf16", "train.grad_dtype=model",
        "plan.grad_codec_of=['* int8 host']"}}};
  int number = 0;
  for (const auto& [family, plan] : cases) {
    SCOPED_TRACE(std::string(family) + " " + (plan.empty() ? "one rank" : plan.back()));
    const engine::Run run = run_of(family, plan);
    runtime::LocalRanks on_cpu = engine::local_ranks(run);
    const Results expected = all_of_it(run, on_cpu, *training_texts(run, data::Dataset(prepared)),
                                       folder / fmt::format("cpu{}", number));
    Apart apart(run);
    const Results got = all_of_it(run, apart.ranks, *training_texts(run, data::Dataset(prepared)),
                                  folder / fmt::format("apart{}", number));
    EXPECT_EQ(got.losses, expected.losses);
    EXPECT_EQ(got.held_out, expected.held_out);
    EXPECT_EQ(got.text, expected.text);
    EXPECT_TRUE(got == expected);
    EXPECT_GT(apart.device->copied(), 0);
    ++number;
  }
}

/// Returns the bytes of the tensors that a training's saver writes after a step, and its error when
/// one of them is not finite.
std::pair<std::string, std::string> saved_and_refused(const engine::Run& run,
                                                      runtime::LocalRanks& ranks,
                                                      const TrainingData& dataset,
                                                      StopSignals& stop) {
  engine::Programs programs(run, ranks);
  engine::Session& training = programs.session();
  engine::initialise(training.graph(), training.program(), 5, training.store());
  one_step(run, training, 1);
  Saver saver(run, stop);
  saver.open(ranks);
  const auto save = [&](int64_t step) {
    return saver.save(step, training, dataset, Position(), {{step, 1.5}});
  };
  const std::string path = save(1);
  const std::string bytes =
      read_file(path + "/model.safetensors") + read_file(path + "/optimizer.safetensors");
  restore(checkpoint::Checkpoint(path), training.compiled(), training.store());
  EXPECT_EQ(save(2), checkpoint_folder(run) + "/step-000002");
  saver.prune(2, 0);
  const runtime::PersistentStore& store = training.store().at(ranks.ids().back());
  const float poison = std::numeric_limits<float>::quiet_NaN();
  store.device().copy(store.entries().begin()->second.data, &poison, sizeof poison);
  std::string refused;
  try {
    save(3);
  } catch (const Error& error) {
    refused = error.what();
  }
  EXPECT_NE(refused.find(store.entries().begin()->first), std::string::npos) << refused;
  return {bytes, refused.substr(0, refused.find(';'))};
}

TEST(ApartDevice, ATrainingIsSavedByItsSaver) {
  const data::TempFolder folder;
  const std::string prepared = prepared_in(folder);
  for (const std::string plan : {"plan.dp=1", "plan.dp=2"}) {
    SCOPED_TRACE(plan);
    StopSignals stop;
    const auto in = [&](const char* name) {
      return run_of("llama",
                    {plan, "plan.shard.params=all", "output.dir=" + (folder / name) + plan});
    };
    const engine::Run run = in("cpu"), run_apart = in("apart");
    runtime::LocalRanks on_cpu = engine::local_ranks(run);
    Apart apart(run_apart);
    const auto expected =
        saved_and_refused(run, on_cpu, *training_texts(run, data::Dataset(prepared)), stop);
    const auto got = saved_and_refused(run_apart, apart.ranks,
                                       *training_texts(run, data::Dataset(prepared)), stop);
    EXPECT_TRUE(got.first == expected.first);
    EXPECT_EQ(got.second, expected.second);
    EXPECT_NE(got.second, "");
  }
}

TEST(ApartDevice, TasksAreTracedAndTimed) {
  for (const auto& [family, plan] :
       {std::pair{"llama", "plan.tp=2"},
        {"llama", "plan.grad_codec_of=['*down_proj.weight int8 host']"},
        {"qwen3_moe", "plan.ep=2"}}) {
    SCOPED_TRACE(std::string(family) + " " + plan);
    const engine::Run run = run_of(family, {plan, "plan.dp=2"});
    Apart apart(run);
    engine::Session training(engine::compile(run), runtime::Store(apart.ranks));
    engine::initialise(training.graph(), training.program(), 5, training.store());
    one_step(run, training, 1);
    const StepTimes times = times_of(training, 1);
    EXPECT_GT(times.duration_ns(), 0);
    size_t tasks = 0;
    for (const int32_t rank : apart.ranks.ids()) {
      tasks += training.program().classes[training.program().class_of(rank)].tasks.size();
    }
    EXPECT_EQ(to_trace(training.program(), "apart", std::span(&times, 1)).events.size(), tasks);

    ProfileOptions options;
    options.seconds = 0;
    options.links = {{"intra", {}}, {"inter", {}}};  // given, so not timed
    const cost::Profile expected =
        profile(run, training.compiled(), kernels::cpu_backend(), options);
    options.device = apart.device;
    const int64_t before = apart.device->copied();
    const cost::Profile got = profile(run, training.compiled(), kernels::cpu_backend(), options);
    EXPECT_GT(apart.device->copied(), before);
    EXPECT_EQ(got.routing, expected.routing);  // the same kernels on the same inputs
    EXPECT_EQ(got.routing.empty(), family == std::string("llama"));
    ASSERT_EQ(got.tasks.size(), expected.tasks.size());
    for (size_t i = 0; i < got.tasks.size(); ++i) {
      EXPECT_EQ(got.tasks[i].key, expected.tasks[i].key);
      EXPECT_GT(got.tasks[i].ns, 0) << got.tasks[i].key;
    }
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
        const volatile std::byte first = *entry.data;
        static_cast<void>(first);
      },
      "");
}

}  // namespace
}  // namespace hocket::train
