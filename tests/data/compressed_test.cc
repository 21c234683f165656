// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// `hocket data prepare` of files that gzip or zstd packed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "data/baselines.h"
#include "tests/data/examples/source_util.h"
#include "tests/data/prepared_util.h"

namespace hocket::data {
namespace {

/// Words, so that packed files have many pieces.
std::string words(uint64_t seed, size_t bytes) {
  Rng rng(seed);
  std::string text;
  while (text.size() < bytes) {
    text += fmt::format("{:x}{}", rng.below(1 << 30), rng.below(9) == 0 ? '\n' : ' ');
  }
  return text;
}

class Compressed : public testing::Test {
 protected:
  Compressed() {
    BpeTrainOptions bytes;
    bytes.vocab_size = kByteVocabulary;
    train_bpe(std::vector{folder_.add("bytes.txt", "text")}, bytes).save_folder(folder_ / "tok");
  }
  PrepareOptions options(const std::vector<std::string>& inputs, double valid_fraction) const {
    PrepareOptions options;
    options.corpus = {.inputs = inputs, .valid_fraction = valid_fraction};
    options.tokenizer = folder_ / "tok";
    options.output = folder_ / "out";
    return options;
  }
  std::vector<std::string> texts_of(const PrepareOptions& from) const {
    std::vector<std::string> texts;
    for (const Corpus::File& file : scan_corpus(from.corpus).files) {
      texts.push_back(file.text().read());
      EXPECT_EQ(hash128(texts.back()), file.hash);
    }
    return texts;
  }

  TempFolder folder_;
};

TEST_F(Compressed, FilesAreTheTextsThatTheyUnpackTo) {
  const std::string a = words(1, 600'000), b = words(2, 10'000);
  folder_.add("plain/a.txt", a);
  folder_.add("plain/b.txt", b);
  folder_.add("packed/a.txt.gz", gzip(a.substr(0, 99)) + gzip(a.substr(99)));
  folder_.add("packed/b.txt.zst", zstd("\xEF\xBB\xBF" + b));
  const PrepareOptions plain = options({folder_ / "plain"}, 0.5);
  PrepareOptions packed = options({folder_ / "packed"}, 0.5);
  packed.output = folder_ / "other";
  EXPECT_EQ(texts_of(packed), texts_of(plain));
  const PrepareResult first = prepare(plain), second = prepare(packed);
  EXPECT_EQ(first.train.tokens, second.train.tokens);
  EXPECT_EQ(first.valid.bytes, second.valid.bytes);
  EXPECT_EQ(Dataset(plain.output).fingerprint(), Dataset(packed.output).fingerprint());
  EXPECT_EQ(read_file(plain.output + "/train-00000.bin"),
            read_file(packed.output + "/train-00000.bin"));
  EXPECT_TRUE(prepare(packed).up_to_date);
  EXPECT_EQ(*run_baselines(Dataset(plain.output), {.trigram = false}).xz_each,
            *run_baselines(Dataset(packed.output), {.trigram = false}).xz_each);
}

TEST_F(Compressed, LinesOfJsonAreDocuments) {
  std::string lines;
  std::vector<std::string> wanted;
  for (int i = 0; i < 20'000; ++i) {
    wanted.push_back(fmt::format("{} {}", i, words(static_cast<uint64_t>(i), 60)));
    std::string line = wanted.back();
    for (size_t at = 0; (at = line.find('\n', at)) != line.npos;) {
      line.replace(at, 1, "\\n");
    }
    lines += fmt::format("{{\"text\":\"{}\"}}\n", line);
  }
  const PrepareOptions packed = options({folder_.add("lines.jsonl.zst", zstd(lines))}, 0);
  const PrepareResult result = prepare(packed);
  EXPECT_EQ(result.json_lines, 20'000);
  const Dataset data(packed.output);
  TextReader reader;
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(reader.read(data.files()[i].text()), wanted[i]);
  }
  // A place before the last one is read again from the beginning.
  EXPECT_EQ(reader.read(data.files()[7].text()), wanted[7]);
}

TEST_F(Compressed, OneFileIsCutInTwo) {
  const std::string text = "line 1\nline 2\nline 3\nline 4\n";
  const PrepareOptions packed = options({folder_.add("one.txt.gz", gzip(text))}, 0.5);
  EXPECT_EQ(texts_of(packed), (std::vector<std::string>{"line 1\nline 2\n", "line 3\nline 4\n"}));
  EXPECT_EQ(prepare(packed).valid.bytes, 14);
}

/// Nine parts of 32 MiB of one letter, each a few kB: a line, and a document, that fills memory.
TEST_F(Compressed, FilesThatFillMemoryAreRefused) {
  const std::string part(size_t{32} << 20, 'a');
  for (const auto& [ending, packed] : {std::pair{".gz", gzip(part)}, {".zst", zstd(part)}}) {
    std::string nine;
    for (int i = 0; i < 9; ++i) nine += packed;
    for (const std::string name : {"a.txt", "a.jsonl"}) {
      EXPECT_ERROR(prepare(options({folder_.add(name + ending, nine)}, 0)),
                   "unpacks to more than 256 MiB, and to more than 200 times its size");
    }
  }
}

TEST_F(Compressed, DamageIsAnError) {
  const std::string packed = gzip(words(3, 100'000));
  const auto prepare_of = [&](const std::string& name, const std::string& bytes) {
    return prepare(options({folder_.add(name, bytes)}, 0));
  };
  EXPECT_ERROR(prepare_of("cut.txt.gz", packed.substr(0, packed.size() / 2)),
               "cut.txt.gz is cut off");
  std::string damaged = packed;
  damaged[packed.size() / 2] ^= 0x55;
  EXPECT_ERROR(prepare_of("damaged.txt.gz", damaged), "damaged.txt.gz cannot be unpacked");
  // An archive unpacks to what is no text; a file with the name alone is what it is.
  EXPECT_ERROR(prepare_of("archive.tar.gz", gzip(std::string(2000, '\0'))), "1 binary");
  EXPECT_EQ(prepare_of("named.gz", "plain text\n").train.bytes, 11);
}

}  // namespace
}  // namespace hocket::data
