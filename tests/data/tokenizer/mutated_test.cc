// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Readers of tokenizers on mutated files: tokenizer.json of every kind, and the metadata of GGUF
// files. HOCKET_FUZZ_SECONDS and HOCKET_SEED: see tests/fuzz_util.h.
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer/gguf.h"
#include "data/tokenizer/tokenizer.h"
#include "gguf/writer.h"
#include "tests/data/data_util.h"
#include "tests/data/tokenizer/gguf_seed.h"
#include "tests/fuzz_util.h"

namespace hocket::data {
namespace {

using Json = nlohmann::json;

constexpr const char* kTexts[] = {"",
                                  " ",
                                  "ab",
                                  "The cat's  12345 \n\n\tnaïve \u2581 日本語 <s>x</s> e\u0301",
                                  "a\xFF\xC3 b",
                                  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"};

std::string fixture(const std::string& name) {
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  return std::string(root == nullptr ? "." : root) + "/tests/peers/tokenizers/fixtures/" + name;
}

/// Small tokenizers of every kind, trained by `tokenizers`.
std::vector<Json> seeds() {
  std::vector<Json> out;
  const Json all = read_json(fixture("tokenizers.json"));
  for (const auto& [name, each] : all.at("tokenizers").items()) {
    out.push_back(each.at("tokenizer"));
  }
  return out;
}

void use(const Tokenizer& tokenizer) {
  Encoder encoder(tokenizer);
  std::vector<int32_t> ids;
  std::vector<ByteRange> ranges;
  for (const char* text : kTexts) {
    for (const bool split : {false, true}) {
      ids.clear();
      encoder.encode(text, &ids, {.add_special_tokens = true, .split_special_tokens = split});
      for (const int32_t id : ids) {
        ASSERT_LT(id, tokenizer.vocab_size());
        ASSERT_GE(id, 0);
      }
      tokenizer.decode(ids);
    }
    ids.clear();
    ranges.clear();
    encoder.encode(text, &ids, {}, &ranges);
    ASSERT_EQ(ids.size(), ranges.size());
    for (const ByteRange& range : ranges) {
      ASSERT_LE(range.begin, range.end);
      ASSERT_LE(range.end, std::string_view(text).size());
    }
  }
}

TEST(TokenizerJson, MutatedFilesNeitherCrashNorHang) {
  const std::vector<Json> from = seeds();
  ASSERT_GT(from.size(), 5u);
  const auto draw = [&](Rng* rng) {
    if (rng->below(8) > 0) return test::mutated_json(from, rng);
    const std::string text = from[rng->below(from.size())].dump();
    return test::mutated_bytes(text, text.size(), rng);
  };
  test::fuzz(3, draw, [](const std::string& text) { use(Tokenizer::parse(text, "f")); });
}

TEST(GgufTokenizer, MutatedFilesNeitherCrashNorHang) {
  const TempFolder folder;
  std::vector<std::string> files;
  const auto add = [&](const gguf::Metadata& metadata) {
    const std::string path = folder / "seed.gguf";
    remove_file(path);
    gguf::save_gguf(path, metadata, {});
    files.push_back(read_file(path));
  };
  add(scored_metadata());
  const gguf::Metadata byte_level = byte_level_metadata();
  add(byte_level);
  for (const char* pre : {"llama-bpe", "deepseek-coder", "tekken"}) {
    gguf::Metadata metadata("f");
    for (const auto& [key, value] : byte_level.entries()) {
      metadata.add(key, key == "tokenizer.ggml.pre" ? gguf::Value::of_string(pre) : value);
    }
    add(metadata);
  }
  const auto draw = [&](Rng* rng) {
    const std::string& file = files[rng->below(files.size())];
    // Keys and lengths lie all over the file; half of the changes go to where the first ones are.
    return test::mutated_bytes(file, rng->below(2) == 0 ? 300 : file.size(), rng);
  };
  test::fuzz(3, draw, [&](const std::string& bytes) {
    remove_file(folder / "mutated.gguf");
    const std::string path = folder.add("mutated.gguf", bytes);
    use(Tokenizer::load(path));
  });
}

}  // namespace
}  // namespace hocket::data
