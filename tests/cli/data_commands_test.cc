// SPDX-License-Identifier: Apache-2.0
// Subcommands of `hocket data` other than prepare: training once, statistics, and texts to ids and
// back.
#include "cli/apps/data_commands.h"

#include <gtest/gtest.h>

#include "tests/data/data_util.h"

namespace hocket::cli {
namespace {

using data::scan_corpus;
using data::TempFolder;
using data::Tokenizer;
using data::train_bpe;

class Commands : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 60; ++i) {
      folder_.add(fmt::format("in/d{}/f{}.txt", i % 3, i),
                  fmt::format("file {} says <|endoftext|> {} times\n", i, i * i));
    }
    data::BpeTrainOptions bpe;
    bpe.vocab_size = 300;
    train_bpe(list_glob(folder_ / "in/**/*"), bpe).save_folder(folder_ / "tok");
    options_.corpus.inputs = {folder_ / "in"};
    options_.corpus.valid_fraction = 0.2;
    options_.tokenizer = folder_ / "tok";
    options_.output = folder_ / "out";
  }

  TempFolder folder_;
  data::PrepareOptions options_;
};

TEST_F(Commands, StatsVerifyDataAndComputeBaselines) {
  data::prepare(options_);
  DataStatsOptions ask;
  ask.folder = options_.output;
  ask.verify = ask.baselines = true;
  const DataStats s = data_stats(ask);
  EXPECT_TRUE(s.verified);
  EXPECT_GT(*s.baselines.xz_each, 8);  // 60 bytes of container around 35 bytes of text
  EXPECT_LT(*s.baselines.xz_one_piece, *s.baselines.xz_each);
  EXPECT_GT(*s.baselines.trigram, 0.1);
  EXPECT_LT(*s.baselines.trigram, 8);
  EXPECT_NE(s.to_json().find("xz_bits_per_byte"), std::string::npos);
  EXPECT_NE(s.to_json().find("xz_one_piece_bits_per_byte"), std::string::npos);
  EXPECT_NE(s.to_text().find("trigram"), std::string::npos);
  const std::string held_out = scan_corpus(options_.corpus).paths(true)[0];
  write_file_atomic(held_out, "changed");
  EXPECT_ERROR(data_stats(ask), held_out);
}

TEST_F(Commands, EncodedFilesDecodeToTheSameText) {
  folder_.add("text.jsonl", "\"file 1\"\n\"\\u00e9 \\\"q\\\"\"\n");
  EncodeVerbOptions e;
  e.tokenizer = options_.tokenizer;
  e.lines = true;
  e.input = folder_ / "text.jsonl";
  e.output = folder_ / "ids.jsonl";
  encode_text(e);
  e.input = e.output;
  e.output = folder_ / "back.jsonl";
  decode_ids(e);
  EXPECT_EQ(read_file(e.output), "\"file 1\"\n\"\u00e9 \\\"q\\\"\"\n");

  e.lines = false;
  e.input = folder_.add("raw", "any \xFF bytes\n");
  e.output = folder_ / "ids";
  encode_text(e);
  e.input = e.output;
  e.output = folder_ / "back";
  decode_ids(e);
  EXPECT_EQ(read_file(e.output), "any \xFF bytes\n");

  e.lines = true;
  e.input = folder_.add("bad.jsonl", "\"x\"\n{\"a\": 1}\n");
  EXPECT_ERROR(encode_text(e), "bad.jsonl:2");
  e.input = folder_.add("bad.jsonl", "[1]\n[2, 99999]\n");
  EXPECT_ERROR(decode_ids(e), "99999");
  EXPECT_ERROR(decode_ids(e), "bad.jsonl:2");
}

TEST(TrainTokenizer, TrainsOnTheTrainingSplitAndOnlyOnce) {
  const TempFolder folder;
  for (int i = 0; i < 40; ++i) {
    folder.add(fmt::format("in/{}.txt", i), fmt::format("word{} word", i));
  }
  TrainTokenizerOptions options;
  options.corpus.inputs = {folder / "in"};
  options.corpus.valid_fraction = 0.3;
  options.bpe.vocab_size = 260;
  options.output = folder / "tok";
  int calls = 0;
  options.bpe.progress = [&](const data::BpeTrainProgress&) { ++calls; };
  const TrainTokenizerResult first = train_tokenizer(options);
  EXPECT_FALSE(first.up_to_date);
  EXPECT_GT(calls, 0);
  const data::Corpus corpus = scan_corpus(options.corpus);
  EXPECT_EQ(first.files, static_cast<int64_t>(corpus.paths(false).size()));
  EXPECT_LT(first.files, 40);
  const Hash128 hash = Tokenizer::load(options.output).hash();
  EXPECT_EQ(hash, train_bpe(corpus.texts(false), options.bpe).hash());

  calls = 0;
  const TrainTokenizerResult second = train_tokenizer(options);
  EXPECT_TRUE(second.up_to_date);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(second.vocab_size, first.vocab_size);
  folder.add("in/more.txt", "something else altogether");
  options.corpus.seed = 0;
  folder.add("in/3.txt", "changed");
  options.bpe.vocab_size = 261;
  EXPECT_FALSE(train_tokenizer(options).up_to_date);
  folder.add("tok/tokenizer.json", "{}");  // damaged: made anew
  EXPECT_FALSE(train_tokenizer(options).up_to_date);
  // Inputs that cover the outputs of train-tokenizer and prepare leave those out.
  options.corpus.inputs = {folder.path()};
  train_tokenizer(options);
  EXPECT_TRUE(train_tokenizer(options).up_to_date);
  data::PrepareOptions prepared;
  prepared.corpus = options.corpus;
  prepared.tokenizer = options.output;
  prepared.output = folder / "data";
  data::prepare(prepared);
  EXPECT_TRUE(train_tokenizer(options).up_to_date);
}

}  // namespace
}  // namespace hocket::cli
