// SPDX-License-Identifier: Apache-2.0
// The sample at the end of a training: drawn from its parameters, in the memory of all else.
#include "train/sample.h"

#include <gtest/gtest.h>

#include "engine/batch.h"
#include "engine/params.h"
#include "kernels/backend.h"
#include "tests/data/prepared_util.h"

namespace hocket::train {
namespace {

TEST(Sample, DependsOnParametersAndLeavesNoState) {
  const data::TempFolder folder;
  const std::string text = "To be continued by whoever comes next.\n" + std::string(80, 'x');
  const std::string prepared = data::prepare_texts(folder, {text, text}, 0);
  const engine::Run run = engine::parse_run(
      "model: {config: {model_type: llama, vocab_size: 257, hidden_size: 8, num_hidden_layers: 2, "
      "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 8}}\n"
      "plan: {dp: 2}\n"
      "train: {global_batch: 2, seq_len: 8}\n",
      "test", {});
  const std::unique_ptr<TrainingData> data = training_texts(run, data::Dataset(prepared));
  runtime::LocalRanks ranks = engine::local_ranks(run);
  engine::Programs programs(run, ranks);
  const engine::Compiled& compiled = programs.compiled();
  engine::initialise(compiled.reference, compiled.program, 1, programs.store());
  engine::Batch batch = engine::empty_batch(compiled, run.config.train.seq_len);
  engine::Session& session = programs.session();
  batch.loss_scale = 1;
  batch.hyper = engine::hyper_of(run.config.optimizer, 0.001, 1);
  session.feed(batch);
  session.step();

  const graph::Graph& graph = compiled.reference;
  const auto is_parameter = [&](const std::string& name) {
    const graph::TensorId id = graph.find(name);
    return id != graph::kNone && graph.tensor(id).kind == graph::TensorKind::param;
  };
  size_t parameters = 0, others = 0;
  for (const auto& [name, entry] : programs.store().at(0).entries()) {
    ++(is_parameter(name) ? parameters : others);
  }
  ASSERT_GT(parameters, 0u);
  ASSERT_GT(others, 0u) << "no state of an optimizer";

  const diagnose::Sample sample = sample_text(run, programs, *data);
  EXPECT_EQ(sample.prompt, prompt_from(*data->texts()));
  EXPECT_FALSE(sample.text.empty());
  for (int32_t rank : ranks.ids()) {
    EXPECT_EQ(programs.store().at(rank).entries().size(), parameters);
    for (const auto& [name, entry] : programs.store().at(rank).entries()) {
      EXPECT_TRUE(is_parameter(name)) << name;
    }
  }
  // The parameters are those of the training still: the same text again.
  EXPECT_EQ(sample_text(run, programs, *data).text, sample.text);
}

}  // namespace
}  // namespace hocket::train
