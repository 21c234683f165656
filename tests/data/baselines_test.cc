// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Baselines by hand-computed numbers, and against the xz program.
#include "data/baselines.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "base/rng.h"
#include "tests/data/prepared_util.h"

namespace hocket::data {
namespace {

std::string write(const TempFolder& folder, const std::string& name, int32_t vocab,
                  const std::vector<std::vector<int32_t>>& documents) {
  ShardWriter writer(vocab, {1, 1});
  for (const auto& ids : documents) {
    writer.add(ids, static_cast<int64_t>(ids.size()) - 1);
  }
  writer.write(folder / name);
  return folder / name;
}

// Tokens: 0 ends, 1 is a, 2 is b, 3 is never seen. One document: a b a.
TEST(Trigram, MatchesAHandComputedExample) {
  const TempFolder folder;
  const TokenStream train({write(folder, "t", 4, {{1, 2, 1, 0}})});
  const Trigram t(train, 0);
  // Unigrams: a 2, b 1, end 1; N = 4, T = 3, V = 4.
  const double a = (2 + 3 / 4.0) / 7, b = (1 + 3 / 4.0) / 7, end = b, never = (3 / 4.0) / 7;
  EXPECT_DOUBLE_EQ(a + b + end + never, 1);
  // After "end": a once (T = 1). After a: b, end (c = 2, T = 2). After b: a.
  const double a_end = (1 + a) / 2, b_a = (1 + 2 * b) / 4, end_a = (1 + 2 * end) / 4;
  const double a_b = (1 + a) / 2;
  EXPECT_DOUBLE_EQ(t.probability(0, 0, 1), (1 + a_end) / 2);
  EXPECT_DOUBLE_EQ(t.probability(0, 1, 2), (1 + b_a) / 2);
  EXPECT_DOUBLE_EQ(t.probability(1, 2, 1), (1 + a_b) / 2);
  EXPECT_DOUBLE_EQ(t.probability(2, 1, 0), (1 + end_a) / 2);
  EXPECT_DOUBLE_EQ(t.probability(2, 1, 2), b_a / 2);  // known history, unknown follower
  EXPECT_DOUBLE_EQ(t.probability(1, 1, 2), b_a);      // unknown history: the shorter one
  EXPECT_DOUBLE_EQ(t.probability(2, 3, 1), a);        // and shorter still
  EXPECT_DOUBLE_EQ(t.probability(3, 3, 3), never);
  // Held out: "a", "a b". Histories start anew with each document.
  const TokenStream held_out({write(folder, "h", 4, {{1, 0}, {1, 2, 0}})});
  const double end_0a = (1 * 0 + 1 * end_a) / (1 + 1);  // after (end, a): only b was seen
  const double end_ab = (1 * 0 + 1 * (0 + 1 * end) / 2) / 2;
  const double bits = -(2 * std::log2((1 + a_end) / 2) + std::log2(end_0a) +
                        std::log2((1 + b_a) / 2) + std::log2(end_ab));
  const BaselineResult r = t.evaluate(held_out);
  EXPECT_NEAR(r.bits, bits, 1e-12);
  EXPECT_EQ(r.bytes, 3);
  EXPECT_DOUBLE_EQ(r.bits_per_byte(), r.bits / 3);
}

TEST(Trigram, ProbabilitiesSumToOne) {
  const TempFolder folder;
  Rng rng(4);
  const int32_t vocab = 300000;  // wide ids
  std::vector<std::vector<int32_t>> documents;
  for (int d = 0; d < 20; ++d) {
    documents.emplace_back();
    for (int64_t n = rng.between(0, 50); n > 0; --n) {
      documents.back().push_back(vocab - 1 - static_cast<int32_t>(rng.below(6)));
    }
    documents.back().push_back(0);
  }
  const Trigram t(TokenStream({write(folder, "t", vocab, documents)}), 0);
  for (int trial = 0; trial < 8; ++trial) {
    const auto pick = [&] {
      return rng.uniform() < 0.3 ? 0 : vocab - 1 - static_cast<int32_t>(rng.below(8));
    };
    const int32_t u = pick(), v = pick();
    double sum = 0;
    for (int32_t w = 0; w < vocab; ++w) {
      sum += t.probability(u, v, w);
    }
    EXPECT_NEAR(sum, 1, 1e-9) << u << " " << v;
  }
}

TEST(Trigram, RefusesAnotherVocabulary) {
  const TempFolder folder;
  const Trigram t(TokenStream({write(folder, "t", 4, {{1, 0}})}), 0);
  EXPECT_ERROR(t.evaluate(TokenStream({write(folder, "h", 5, {{1, 0}})})), "vocabulary of 5");
  EXPECT_ERROR(Trigram(TokenStream({write(folder, "w", (1 << 21) + 1, {{1, 0}})}), 0), "2097153");
}

TEST(Xz, EqualsTheProgram) {
  if (std::system("command -v xz >/dev/null") != 0) {
    GTEST_SKIP() << "no xz program here";
  }
  const TempFolder folder;
  Rng rng(6);
  std::vector<std::string> texts = {"x", "hello hello hello hello\n", ""};
  std::string words, noise;
  for (int i = 0; i < 60000; ++i) {
    words += " w" + std::to_string(rng.below(500));
  }
  for (int i = 0; i < 5000; ++i) {
    noise += static_cast<char>(rng.below(256));
  }
  texts.push_back(words);
  texts.push_back(noise);
  int64_t bits = 0, bytes = 0;
  std::vector<TextPart> paths;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string path = folder.add("f" + std::to_string(i), texts[i]);
    ASSERT_EQ(std::system(("xz -9e -T1 -k '" + path + "'").c_str()), 0);
    EXPECT_EQ(xz_size(texts[i]), file_size(path + ".xz")) << i;
    paths.push_back(path);
    bits += 8 * file_size(path + ".xz");
    bytes += static_cast<int64_t>(texts[i].size());
  }
  const BaselineResult all = xz_each(paths);
  EXPECT_EQ(all.bits, static_cast<double>(bits));
  EXPECT_EQ(all.bytes, bytes);
  // In one piece: the file that xz makes of them one after the other.
  std::string joined;
  for (const std::string& text : texts) {
    joined += text;
  }
  const std::string path = folder.add("joined", joined);
  ASSERT_EQ(std::system(("xz -9e -T1 -k '" + path + "'").c_str()), 0);
  const BaselineResult one = xz_one_piece(paths);
  EXPECT_EQ(one.bits, 8.0 * static_cast<double>(file_size(path + ".xz")));
  EXPECT_EQ(one.bytes, bytes);
}

TEST(Baselines, AFileThatIsCutMeanwhileIsAnError) {
  const TempFolder folder;
  std::vector<std::string> texts;
  for (int i = 0; i < 20; ++i) {
    texts.push_back(fmt::format("text {}", i) + std::string(500, 'a'));
  }
  const Dataset dataset(prepare_texts(folder, texts, 0.5));
  const BaselineChoice xz_alone = {.xz = true, .trigram = false};
  const Baselines whole = run_baselines(dataset, xz_alone, nullptr);
  ASSERT_TRUE(whole.xz_each && whole.xz_one_piece);
  std::string last;
  for (const Corpus::File& file : dataset.files()) {
    if (file.valid) {
      last = file.path;
    }
  }
  const auto cut = [&](const std::string& said) {
    if (said.starts_with("xz -9e: 1 of ")) {
      folder.add(last.substr(folder.path().size() + 1), "only this");
    }
  };
  EXPECT_ERROR(run_baselines(dataset, xz_alone, cut), "changed while they were compressed");
}

TEST(Xz, RefusesFilesWithoutAByte) {
  const TempFolder folder;
  for (const auto& baseline : {xz_each, xz_one_piece}) {
    EXPECT_ERROR(baseline({}, nullptr), "0 files");
    EXPECT_ERROR(baseline({folder.add("e", "")}, nullptr), "without a byte");
    EXPECT_ERROR(baseline({std::string("/nonexistent")}, nullptr), "/nonexistent");
  }
}

}  // namespace
}  // namespace hocket::data
