// SPDX-License-Identifier: Apache-2.0
// Tokenizers of GGUF files: sentencepiece's BPE by scores, names of pre-tokenizers, and the way
// back from a tokenizer.json. tests/peers/tokenizers compares real ones with llama.cpp.
#include "data/tokenizer/gguf.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "data/tokenizer/tokenizer.h"
#include "gguf/special_tokens.h"
#include "tests/data/data_util.h"
#include "tests/data/tokenizer/gguf_seed.h"

namespace hocket::data {
namespace {

using gguf::Metadata;
using gguf::Value;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

Tokenizer tokenizer_of(const Metadata& metadata) {
  const GgufTokenizer read = read_gguf_tokenizer(metadata);
  return Tokenizer::parse(read.json, "f", read.eos_text);
}

Metadata changed(const Metadata& from, const std::string& key, const Value* value) {
  Metadata out("f");
  bool found = false;
  for (const auto& [name, each] : from.entries()) {
    found |= name == key;
    if (name != key) {
      out.add(name, each);
    } else if (value != nullptr) {
      out.add(name, *value);
    }
  }
  if (!found && value != nullptr) {
    out.add(key, *value);
  }
  return out;
}

Words tokens_of(const Tokenizer& t, std::string_view text) {
  Words out;
  for (const int32_t id : t.encode(text)) {
    out.push_back(t.spec().tokens[id]);
  }
  return out;
}

// The higher score goes first, whatever the ids; a blank is put before each text.
TEST(GgufScores, JoinByScore) {
  const Tokenizer t = tokenizer_of(scored_metadata());
  EXPECT_EQ(tokens_of(t, "abc"), (Words{"\u2581a", "bc"}));
  EXPECT_EQ(tokens_of(t, "ab  ab"), (Words{"\u2581ab", "\u2581", "\u2581ab"}));
  EXPECT_EQ(tokens_of(t, "ab<s>ab"), (Words{"\u2581ab", "<s>", "\u2581ab"}));
  EXPECT_EQ(tokens_of(t, "\u00e9"), (Words{"\u2581", "<0xC3>", "<0xA9>"}));
  EXPECT_EQ(t.spec().tokens[t.eos_id()], "</s>");
  EXPECT_EQ(t.spec().prefix, (std::vector<int32_t>{1}));
  EXPECT_EQ(t.decode(t.encode("ab  \u00e9\n")), "ab  \u00e9\n");
}

TEST(GgufScores, KeysChangeBothEnds) {
  const Value no = Value::of_bool(false);
  const Tokenizer plain =
      tokenizer_of(changed(scored_metadata(), "tokenizer.ggml.add_space_prefix", &no));
  EXPECT_EQ(tokens_of(plain, "ab ab"), (Words{"ab", "\u2581ab"}));
  EXPECT_EQ(plain.decode(plain.encode(" ab")), " ab");
  const Tokenizer unmarked =
      tokenizer_of(changed(scored_metadata(), "tokenizer.ggml.add_bos_token", &no));
  EXPECT_TRUE(unmarked.spec().prefix.empty());
}

TEST(GgufScores, AbsentIdsAreThoseOfLlamaCpp) {
  const char* const begin = "tokenizer.ggml.bos_token_id";
  const char* const end = "tokenizer.ggml.eos_token_id";
  const GgufTokenizer read =
      read_gguf_tokenizer(changed(changed(scored_metadata(), begin, nullptr), end, nullptr));
  EXPECT_EQ(read.bos.value_or(-1), 1);
  EXPECT_EQ(read.eos.value_or(-1), 2);
  EXPECT_TRUE(read.adds_bos);
  EXPECT_EQ(read.eos_text, "</s>");
  EXPECT_FALSE(read_gguf_tokenizer(changed(byte_level_metadata(), begin, nullptr)).bos.has_value());
  // A token that is no control token is none of them.
  std::vector<int64_t> kinds = scored_metadata().integers("tokenizer.ggml.token_type");
  kinds[1] = 1;
  const Value plain = Value::of_i32s(kinds);
  const Metadata without = changed(scored_metadata(), begin, nullptr);
  EXPECT_FALSE(
      gguf::special_token(changed(without, "tokenizer.ggml.token_type", &plain), "bos_token_id")
          .has_value());
}

TEST(GgufStops, AreThoseOfTextsTurnsAndMessages) {
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(gguf::stop_tokens(byte_level_metadata()), Ids{2});
  Words texts = byte_level_metadata().strings("tokenizer.ggml.tokens");
  texts[0] = "<end_of_turn>";
  const Value named = Value::of_strings(texts);
  Metadata metadata = changed(byte_level_metadata(), "tokenizer.ggml.tokens", &named);
  EXPECT_EQ(gguf::stop_tokens(metadata), (Ids{2, 0}));
  // Its kind is no matter, as in llama.cpp.
  std::vector<int64_t> kinds = metadata.integers("tokenizer.ggml.token_type");
  kinds[0] = gguf::kUserDefined;
  const Value of_user = Value::of_i32s(kinds);
  EXPECT_EQ(gguf::stop_tokens(changed(metadata, "tokenizer.ggml.token_type", &of_user)),
            (Ids{2, 0}));
  metadata.add("tokenizer.ggml.eot_token_id", Value::of_u32(2));
  metadata.add("tokenizer.ggml.eom_token_id", Value::of_u32(1));
  EXPECT_EQ(gguf::stop_tokens(metadata), (Ids{2, 1}));
}

TEST(GgufScores, BrokenListsAreRefused) {
  const auto error_with = [](const std::string& key, const Value* value) {
    return error_of([&] { tokenizer_of(changed(scored_metadata(), key, value)); });
  };
  const auto expect = [&](const std::string& key, const Value* value, const std::string& part) {
    const std::string got = error_with(key, value);
    EXPECT_NE(got.find(part), std::string::npos) << got;
  };
  expect("tokenizer.ggml.scores", nullptr, "tokenizer.ggml.scores");
  const Value few = Value::of_f32s({1, 2});
  expect("tokenizer.ggml.scores", &few, "2 entries; expected");
  std::vector<double> scores = scored_metadata().numbers("tokenizer.ggml.scores");
  scores[5] = std::numeric_limits<double>::quiet_NaN();
  const Value nan = Value::of_f32s(scores);
  expect("tokenizer.ggml.scores", &nan, "finite");
  const Value other = Value::of_string("bert");
  expect("tokenizer.ggml.model", &other, "llama, sentencepiece's BPE");
  Words texts = scored_metadata().strings("tokenizer.ggml.tokens");
  texts.back() = std::string(2000, 'x');
  const Value long_token = Value::of_strings(texts);
  expect("tokenizer.ggml.tokens", &long_token, "2000 bytes");
}

Metadata written(const GgufTokenizer& tokenizer, int64_t vocabulary) {
  Metadata out("f");
  add_gguf_tokenizer(tokenizer.json, tokenizer.config, "", vocabulary, "f", &out);
  return out;
}

TEST(GgufScores, WrittenAndReadAgain) {
  const GgufTokenizer first = read_gguf_tokenizer(scored_metadata());
  const Tokenizer before = tokenizer_of(scored_metadata());
  const Metadata again = written(first, before.vocab_size());
  EXPECT_EQ(again.string("tokenizer.ggml.model"), "llama");
  for (const char* key : {"tokens", "token_type"}) {
    const std::string name = std::string("tokenizer.ggml.") + key;
    EXPECT_EQ(*again.find(name), *scored_metadata().find(name)) << key;
  }
  const Tokenizer after = tokenizer_of(again);
  EXPECT_EQ(after.hash(), before.hash());
  Rng rng(5);
  for (int trial = 0; trial < 300; ++trial) {
    std::string text;
    for (uint64_t n = rng.below(30); n > 0; --n) {
      text += "ab c\xC3"[rng.below(5)];
    }
    ASSERT_EQ(after.encode(text), before.encode(text)) << text;
  }
}

// A folder may name the beginning of text in its post-processor alone.
TEST(GgufScores, TheBeginningIsThatOfThePostProcessor) {
  GgufTokenizer tokenizer = read_gguf_tokenizer(scored_metadata());
  tokenizer.config = "{}";
  const Metadata again = written(tokenizer, tokenizer_of(scored_metadata()).vocab_size());
  EXPECT_EQ(again.integer("tokenizer.ggml.bos_token_id", -1), 1);
  EXPECT_TRUE(again.boolean("tokenizer.ggml.add_bos_token", false));
}

// Scores cannot say that two tokens stay apart that would make a third one.
TEST(GgufScores, OtherMergesAreRefused) {
  GgufTokenizer tokenizer = read_gguf_tokenizer(scored_metadata());
  const Json whole = Json::parse(tokenizer.json);
  Json without = whole;
  without["model"]["merges"].erase(without["model"]["merges"].size() - 1);
  tokenizer.json = without.dump();
  EXPECT_ERROR(written(tokenizer, 300), "every cut of it");
  Json apart = whole;
  Json& merges = apart["model"]["merges"];
  ASSERT_EQ(merges[0][0].get<std::string>() + merges[0][1].get<std::string>(), "bc");
  merges.push_back(merges[0]);
  tokenizer.json = apart.dump();
  EXPECT_ERROR(written(tokenizer, 300), "with others between them");
  Json marked = whole;
  marked["normalizer"] = {{"type", "NFKC"}};
  tokenizer.json = marked.dump();
  EXPECT_ERROR(written(tokenizer, 300), "blanks that become");
}

// Names that llama.cpp takes for the same cut give the same ids; an export has the first of them.
TEST(GgufPretokenizers, NamesOfOneSplitGiveTheSameIds) {
  const auto named = [](const char* name) {
    const Value value = Value::of_string(name);
    return changed(byte_level_metadata(), "tokenizer.ggml.pre", &value);
  };
  const auto ids = [&](const char* name) {
    return tokenizer_of(named(name)).encode("It's 12345\n\n  x ab");
  };
  EXPECT_EQ(ids("gpt-2"), ids("olmo"));
  EXPECT_EQ(ids("smollm"), ids("command-r"));
  EXPECT_EQ(ids("llama-bpe"), ids("falcon3"));
  for (const char* name : {"gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "qwen35", "deepseek-v3",
                           "deepseek-coder", "gpt-4o", "tekken"}) {
    const GgufTokenizer read = read_gguf_tokenizer(named(name));
    const int32_t size = Tokenizer::parse(read.json, "f").vocab_size();
    EXPECT_EQ(written(read, size).string("tokenizer.ggml.pre"), name);
  }
  const Value other = Value::of_string("viking");
  EXPECT_ERROR(tokenizer_of(changed(byte_level_metadata(), "tokenizer.ggml.pre", &other)),
               "llama.cpp takes for the same");
}

}  // namespace
}  // namespace hocket::data
