// SPDX-License-Identifier: Apache-2.0
// A run does not begin if the check refuses one of its programs, including the evaluation's.
#include "train/preflight.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace hocket::train {
namespace {

engine::Run two_stages() {
  return engine::parse_run(
      "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 8, num_hidden_layers: 2, "
      "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 8}}\n"
      "plan: {pp: 2}\n"
      "train: {global_batch: 2, seq_len: 4}\n",
      "test", {});
}

/// Sends the first message to the stage that does not wait for it.
void lose_a_message(program::Program* program) {
  for (program::RankClass& cls : program->classes) {
    for (size_t task = 0; task < cls.tasks.size(); ++task) {
      if (program->kind(cls.tasks[task]).op != "send") continue;
      cls.tasks[task].peer = 1 - cls.tasks[task].peer;
      return;
    }
  }
  FAIL() << "no message";
}

std::string refusal(const engine::Run& run, const engine::Compiled& training,
                    const engine::Compiled* evaluation) {
  Prediction prediction;
  try {
    prove(run, training, evaluation, prediction);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "";
}

TEST(Prove, RefusesTrainingAndEvaluationByName) {
  const engine::Run run = two_stages();
  const engine::Compiled training = engine::compile(run);
  const engine::Compiled evaluation = engine::compile(engine::evaluation(run));
  EXPECT_EQ(refusal(run, training, nullptr), "");
  EXPECT_EQ(refusal(run, training, &evaluation), "");
  engine::Compiled bad = training;
  lose_a_message(&bad.program);
  EXPECT_NE(refusal(run, bad, &evaluation).find("refuses the program:"), std::string::npos);
  bad = evaluation;
  lose_a_message(&bad.program);
  EXPECT_NE(refusal(run, training, &bad).find("refuses the program of the evaluation:"),
            std::string::npos);
}

TEST(Prove, RefusesOtherProgramsWhenTheyAreCompiled) {
  const engine::Run run = two_stages();
  const engine::Programs::Inspect inspect = prove_others(run);
  engine::Compiled bad = engine::compile(engine::logits(run));
  inspect(bad);
  lose_a_message(&bad.program);
  try {
    inspect(bad);
    FAIL() << "expected a refusal";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("refuses the program that computes logits:"),
              std::string::npos);
  }
  // preflight() proves these, once.
  for (const engine::ProgramSpec& spec : {engine::training(run), engine::evaluation(run)}) {
    bad = engine::compile(spec);
    lose_a_message(&bad.program);
    inspect(bad);
  }
}

}  // namespace
}  // namespace hocket::train
