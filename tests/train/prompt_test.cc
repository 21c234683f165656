// SPDX-License-Identifier: Apache-2.0
// The prompt of a sample: by default the beginning of the data.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/utf8.h"
#include "data/tokenizer/gguf.h"
#include "tests/data/prepared_util.h"
#include "tests/data/tokenizer/gguf_seed.h"
#include "train/sample.h"

namespace hocket::train {
namespace {

using data::TempFolder;

/// Returns the prompt for a corpus of `files`, none of them held out.
std::string prompt_of(const std::vector<std::string>& files) {
  const TempFolder folder;
  return prompt_from(data::Dataset(data::prepare_texts(folder, files, 0)));
}

TEST(Prompt, TakesTheFirstLinesOfADocument) {
  const std::string rest(100, 'x');
  EXPECT_EQ(prompt_of({"One line\nand another\nand a third one" + rest}),
            "One line\nand another\n");
  // No line ends in time: the prompt is cut at the limit.
  EXPECT_EQ(prompt_of({std::string(80, 'a')}).size(), 32u);
  // Blank lines alone are no prompt.
  EXPECT_EQ(prompt_of({"\n\n" + std::string(80, 'b')}).size(), 32u);
}

TEST(Prompt, SkipsShortDocumentsOrTakesHalfOfOne) {
  // The first is too short; of a corpus of short ones, half of the first.
  EXPECT_EQ(prompt_of({"short", "the long one " + std::string(80, 'y')}).substr(0, 13),
            "the long one ");
  EXPECT_EQ(prompt_of({"abcdefg"}), "abcd");  // 7 letters and the end of text
}

TEST(Prompt, CutsNoCharacter) {
  std::string text = "x";
  for (int i = 0; i < 40; ++i) {
    text += "\u00e9";
  }
  const std::string prompt = prompt_of({text});
  EXPECT_TRUE(is_utf8(prompt));
  EXPECT_EQ(prompt.size(), 31u);
}

/// Returns the tokens of a prompt of fine-tuning, whose texts begin with <s>.
std::vector<int32_t> ids_of(const std::string& prompt, const std::string& given) {
  const TempFolder folder;
  const data::GgufTokenizer tokenizer = data::read_gguf_tokenizer(data::byte_level_metadata());
  folder.add("tokenizer/tokenizer.json", tokenizer.json);
  folder.add("tokenizer/tokenizer_config.json", tokenizer.config);
  folder.add("tokenizer/run.json", R"({"data": {"beginning": [1]}})");
  const std::string rows =
      folder.add("rows.jsonl", "{\"prompt\": \"ab\", \"completion\": \"b\"}\n");
  const engine::Run run = engine::parse_run(
      fmt::format(
          "objective: sft\n"
          "model: {{config: {{model_type: llama, vocab_size: 300, hidden_size: 8, "
          "num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, "
          "intermediate_size: 8}}}}\n"
          "data: {{tokenizer: {}, sources: [{{path: {}}}], valid_fraction: 0}}\n"
          "train: {{global_batch: 1, seq_len: 16}}\n"
          "output: {{sample_prompt: \"{}\"}}\n",
          folder / "tokenizer", rows, given),
      "test", {});
  const std::unique_ptr<TrainingData> data = TrainingData::open(run);
  return data->prompt_of(prompt.empty() ? data->sample_prompt() : prompt).ids;
}

TEST(Prompt, BeginsWithTheTokenThatTrainingBeginsExamplesWith) {
  constexpr int32_t kBegin = 1, kAb = 259;
  const std::vector<int32_t> wanted = {kBegin, kAb};
  EXPECT_EQ(ids_of("ab", "ab"), wanted);
  EXPECT_EQ(ids_of("<s>ab", "<s>ab"), wanted);
  EXPECT_EQ(ids_of("", ""), wanted);
  // A prompt of the data may be a chat, whose template writes what begins it, or nothing.
  EXPECT_EQ(ids_of("ab", ""), std::vector<int32_t>{kAb});
}

}  // namespace
}  // namespace hocket::train
