// SPDX-License-Identifier: Apache-2.0
// Training a BPE against merges found by hand and against the definition that recounts everything.
#include "data/tokenizer/bpe_train.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "tests/data/data_util.h"

namespace hocket::data {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

Pairs merges_of(const Tokenizer& t) {
  Pairs out;
  for (const auto& [left, right] : t.spec().merges) {
    out.emplace_back(t.token_bytes(left), t.token_bytes(right));
  }
  return out;
}

Tokenizer train(const std::vector<std::string>& texts, BpeTrainOptions options) {
  BpeTrainer trainer(std::move(options));
  for (const std::string& text : texts) {
    trainer.add(text);
  }
  return trainer.train();
}

TEST(BpeTrain, MatchesAHandComputedExample) {
  BpeTrainOptions options;
  options.vocab_size = 257 + 4;
  // Words: "low" 3 times, "lower" twice (with blanks before all but the first).
  // lo 5, ow 5, " l" 4, we 2, er 2. "lo" has lower ids than "ow".
  const Tokenizer t = train({"low low low lower lower"}, options);
  EXPECT_EQ(merges_of(t), (Pairs{{"l", "o"}, {"lo", "w"}, {" ", "low"}, {"e", "r"}}));
  EXPECT_EQ(t.eos_id(), 0);
  EXPECT_EQ(t.token_bytes(0), "<|endoftext|>");
  EXPECT_EQ(t.token_bytes(1), "!");  // bytes in the order of the alphabet
  EXPECT_EQ(t.vocab_size(), 261);
  EXPECT_EQ(t.encode(" lower").size(), 2U);
}

TEST(BpeTrain, StopsWherePairsAreTooRare) {
  BpeTrainOptions options;
  options.vocab_size = 1000;
  EXPECT_EQ(merges_of(train({"ab ab cd"}, options)), (Pairs{{"a", "b"}}));
  options.min_count = 1;
  EXPECT_EQ(merges_of(train({"ab ab cd"}, options)),
            (Pairs{{"a", "b"}, {"c", "d"}, {" ", "ab"}, {" ", "cd"}}));
}

TEST(BpeTrain, NeverLearnsASpecialToken) {
  BpeTrainOptions options;
  options.vocab_size = 300;
  options.special_tokens = {"end"};
  const Tokenizer t = train({"end end end ending"}, options);
  std::vector<int32_t> ids;
  Encoder(t).encode("end ending", &ids, {.split_special_tokens = true});
  for (const int32_t id : ids) {
    EXPECT_NE(id, t.eos_id());
  }
  EXPECT_EQ(t.decode(ids), "end ending");
}

// The definition: recount all pairs after every merge.
Pairs slowly(const std::vector<std::string>& words, size_t merges, const Tokenizer& order) {
  std::vector<std::vector<int32_t>> symbols;
  for (const std::string& w : words) {
    symbols.emplace_back();
    for (const char c : w) {
      symbols.back().push_back(order.find_token(std::string(1, c)));
    }
  }
  std::vector<std::string> tokens;
  for (int32_t id = 0; id < 257; ++id) {
    tokens.emplace_back(order.token_bytes(id));
  }
  Pairs out;
  while (out.size() < merges) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (const auto& s : symbols) {
      for (size_t i = 0; i + 1 < s.size(); ++i) {
        ++counts[{s[i], s[i + 1]}];
      }
    }
    std::pair<int32_t, int32_t> best;
    int64_t most = 1;
    for (const auto& [pair, count] : counts) {
      if (count > most) {
        most = count;
        best = pair;
      }
    }
    if (most < 2) break;
    out.emplace_back(tokens[best.first], tokens[best.second]);
    const std::string both = out.back().first + out.back().second;
    const auto known = std::find(tokens.begin(), tokens.end(), both);
    const auto id = static_cast<int32_t>(known - tokens.begin());
    if (known == tokens.end()) {
      tokens.push_back(both);
    }
    for (auto& s : symbols) {
      std::vector<int32_t> merged;
      for (size_t i = 0; i < s.size(); ++i) {
        if (i + 1 < s.size() && s[i] == best.first && s[i + 1] == best.second) {
          merged.push_back(id);
          ++i;
        } else {
          merged.push_back(s[i]);
        }
      }
      s = merged;
    }
  }
  return out;
}

TEST(BpeTrain, EqualsTheDefinition) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    std::vector<std::string> words;
    std::string text;
    for (int i = 0; i < 120; ++i) {
      // Letters alternate with digits so that each is a word; no letter twice in a row, where
      // counting overlapping pairs once or twice would matter.
      std::string word;
      for (int64_t n = rng.between(1, 9); n > 0; --n) {
        char c;
        do {
          c = static_cast<char>('a' + rng.below(5));
        } while (!word.empty() && word.back() == c);
        word += c;
      }
      words.push_back(word);
      words.push_back("7");
      text += word + "7";
    }
    BpeTrainOptions options;
    options.vocab_size = 257 + 12;
    const Tokenizer t = train({text}, options);
    const Pairs got = merges_of(t);
    EXPECT_EQ(got, slowly(words, got.size(), t));
    EXPECT_GE(got.size(), 8U);
  }
}

TEST(BpeTrain, OrderOfTextsDoesNotMatter) {
  const std::vector<std::string> texts = {"the cat sat", "on the mat the", "cat that sat there"};
  BpeTrainOptions options;
  options.vocab_size = 280;
  EXPECT_EQ(train(texts, options).hash(), train({texts[2], texts[0], texts[1]}, options).hash());
}

TEST(BpeTrain, RefusesBadOptionsAndEmptyTexts) {
  BpeTrainOptions options;
  options.vocab_size = 256;
  EXPECT_ERROR(BpeTrainer{options}, "256");
  options.vocab_size = 300;
  EXPECT_ERROR(train({""}, options), "no text");
  options.special_tokens = {"<a>", "<a>"};
  EXPECT_ERROR(train({"x"}, options), "<a>");
  EXPECT_ERROR(train_bpe({"/nonexistent"}, BpeTrainOptions()), "/nonexistent");
}

}  // namespace
}  // namespace hocket::data
