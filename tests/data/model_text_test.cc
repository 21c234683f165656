// SPDX-License-Identifier: Apache-2.0
// Files beside a model's weights: defaults of sampling, and the templates of a GGUF file.
#include "data/model_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/tokenizer/gguf.h"
#include "gguf/writer.h"
#include "tests/data/data_util.h"
#include "tests/data/tokenizer/gguf_seed.h"

namespace hocket::data {
namespace {

using gguf::Value;
using Words = std::vector<std::string>;

TEST(SamplingDefaults, ComeFromGenerationConfig) {
  const TempFolder folder;
  const SamplingDefaults none = read_sampling_defaults(folder.path());
  EXPECT_FALSE(none.temperature.has_value() || none.repetition_penalty.has_value());
  folder.add("generation_config.json",
             R"({"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05,
                 "repetition_penalty": 1.05, "max_new_tokens": 9, "typical_p": 0.9})");
  const SamplingDefaults read = read_sampling_defaults(folder.path());
  EXPECT_EQ(read.temperature, 0.7);
  EXPECT_EQ(read.top_p, 0.8);
  EXPECT_EQ(read.top_k, 20);
  EXPECT_EQ(read.min_p, 0.05);
  EXPECT_EQ(read.repetition_penalty, 1.05);
  EXPECT_EQ(read.max_new_tokens, 9);
  EXPECT_EQ(read.ignored, Words{"typical_p"});
  EXPECT_EQ(read.source, folder / "generation_config.json");
  folder.add("generation_config.json", R"({"stop_strings": ["END"], "guidance_scale": 1.5})");
  EXPECT_EQ(read_sampling_defaults(folder.path()).ignored,
            (Words{"guidance_scale", "stop_strings"}));
  folder.add("generation_config.json", R"({"top_k": -1})");
  EXPECT_EQ(read_sampling_defaults(folder.path()).top_k, 0);
  for (const char* wrong :
       {R"({"min_p": 1.5})", R"({"repetition_penalty": 0})", R"({"top_k": -2})"}) {
    folder.add("generation_config.json", wrong);
    EXPECT_ERROR(read_sampling_defaults(folder.path()), "expected");
  }
}

TEST(SamplingDefaults, ComeFromAGgufFile) {
  const TempFolder folder;
  gguf::Metadata metadata("m");
  metadata.add("general.sampling.temp", Value::of_f32(0.8));
  metadata.add("general.sampling.top_k", Value::of_u32(40));
  metadata.add("general.sampling.min_p", Value::of_f32(0.05));
  metadata.add("general.sampling.penalty_repeat", Value::of_f32(1.1));
  metadata.add("general.sampling.xtc_probability", Value::of_f32(0.5));
  const std::string path = folder / "m.gguf";
  gguf::save_gguf(path, metadata, {});
  const SamplingDefaults read = read_sampling_defaults(path);
  EXPECT_EQ(read.temperature, 0.8);  // not the float's 0.800000012
  EXPECT_EQ(read.top_k, 40);
  EXPECT_EQ(read.min_p, 0.05);
  EXPECT_EQ(read.repetition_penalty, 1.1);
  EXPECT_FALSE(read.top_p.has_value());
  EXPECT_EQ(read.ignored, Words{"general.sampling.xtc_probability"});
  EXPECT_EQ(read.source, path);
}

TEST(SamplingDefaults, ReadTemperatureAndPenaltyOfAGgufFileAsLlamaCppDoes) {
  const TempFolder folder;
  const std::string path = folder / "m.gguf";
  const auto read = [&](int64_t window, double penalty) {
    gguf::Metadata metadata("m");
    metadata.add("general.sampling.temp", Value::of_f32(-1));
    metadata.add("general.sampling.penalty_repeat", Value::of_f32(penalty));
    metadata.add("general.sampling.penalty_last_n",
                 Value{gguf::ValueType::i32, gguf::ValueType::u32, window});
    gguf::save_gguf(path, metadata, {});
    return read_sampling_defaults(path);
  };
  const SamplingDefaults last = read(64, 1.5);
  EXPECT_EQ(last.temperature, 0);
  EXPECT_EQ(last.repetition_penalty, 1.5);
  EXPECT_EQ(last.ignored, Words{"general.sampling.penalty_last_n"});
  EXPECT_EQ(read(64, 1).ignored, Words{});
  EXPECT_EQ(read(-1, 1.5).ignored, Words{});
  EXPECT_EQ(read(-1, 1.5).repetition_penalty, 1.5);
  EXPECT_EQ(read(0, 1.5).ignored, Words{});
  EXPECT_FALSE(read(0, 1.5).repetition_penalty.has_value());
}

/// A byte-level BPE with a control token behind <unk>, <s> and </s>.
gguf::Metadata metadata_with(const std::string& control) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", control};
  std::vector<int64_t> kinds(tokens.size(), 3);
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(to_alphabet(std::string(1, static_cast<char>(byte))));
  }
  tokens.emplace_back("ab");
  kinds.resize(tokens.size(), 1);
  gguf::Metadata out = tokens_metadata("gpt2", std::move(tokens), std::move(kinds));
  out.add("tokenizer.ggml.pre", Value::of_string("gpt-2"));
  out.add("tokenizer.ggml.merges", Value::of_strings({"a b"}));
  return out;
}

TEST(StopTokens, AGgufFileEndsTurnsAsLlamaCppFindsThem) {
  const TempFolder folder;
  const std::string path = folder / "m.gguf";
  models::ModelConfig config;
  config.vocab_size = 261;
  const auto stops = [&](const gguf::Metadata& metadata) {
    gguf::save_gguf(path, metadata, {});
    return stop_tokens(path, config, Tokenizer::load(path));
  };
  EXPECT_EQ(stops(metadata_with("<end_of_turn>")), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(stops(metadata_with("<start_of_turn>")), std::vector<int32_t>{2});
  gguf::Metadata named = metadata_with("<end_of_turn>");
  named.add("tokenizer.ggml.eot_token_id", Value::of_u32(1));
  EXPECT_EQ(stops(named), (std::vector<int32_t>{1, 2}));
  config.eos_token_ids = {-1, 1, 400};  // of a larger model
  EXPECT_EQ(stops(metadata_with("<start_of_turn>")), (std::vector<int32_t>{1, 2}));
}

TEST(BeginningOfText, IsTheOneThatACheckpointWasTrainedWith) {
  using Ids = std::vector<int32_t>;
  const TempFolder folder;
  const Tokenizer tokenizer =
      Tokenizer::parse(read_gguf_tokenizer(byte_level_metadata()).json, "f", "</s>");
  EXPECT_EQ(beginning_of_text(folder.path(), tokenizer), Ids{});
  folder.add("run.json", R"({"data": {"fingerprint": "x"}})");
  EXPECT_EQ(beginning_of_text(folder.path(), tokenizer), Ids{2});
  folder.add("run.json", R"({"data": {"beginning": []}})");
  EXPECT_EQ(beginning_of_text(folder.path(), tokenizer), Ids{});
  folder.add("run.json", R"({"data": {"beginning": [1]}})");
  EXPECT_EQ(beginning_of_text(folder.path(), tokenizer), Ids{1});
  folder.add("run.json", R"({"data": {"beginning": [999]}})");
  EXPECT_ERROR(beginning_of_text(folder.path(), tokenizer), "has token 999");
}

TEST(ChatTemplateOfAModel, AGgufFileMayHaveATemplateForTools) {
  const TempFolder folder;
  gguf::Metadata metadata = byte_level_metadata();
  metadata.add("tokenizer.chat_template", Value::of_string("plain"));
  metadata.add("tokenizer.chat_template.tool_use", Value::of_string("tools: {{ tools|length }}"));
  const std::string path = folder / "m.gguf";
  gguf::save_gguf(path, metadata, {});
  const ChatTemplate read = load_chat_template(path);
  const auto messages = nlohmann::ordered_json::parse(R"([{"role": "user", "content": "Hi"}])");
  const auto tools = nlohmann::ordered_json::parse(R"([{"type": "function"}])");
  EXPECT_EQ(read.render(messages).text, "plain");
  ChatOptions with_tools;
  with_tools.tools = &tools;
  EXPECT_EQ(read.render(messages, with_tools).text, "tools: 1");
}

}  // namespace
}  // namespace hocket::data
