// SPDX-License-Identifier: Apache-2.0
// Kinds of tokenizer.json by small files made by hand; tests/parity/tokenizer_kinds.py compares
// trained ones with Hugging Face's.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/data/data_util.h"

namespace hocket::data {
namespace {

using Ids = std::vector<int32_t>;
using Words = std::vector<std::string>;
using Json = nlohmann::json;

// Returns a BPE of characters a, b, c, "▁" and `more`, with the merges a b and ▁ ab.
Json bpe_file(const Words& more = {}) {
  Json vocab = Json::object();
  Words tokens = {"<unk>", "a", "b", "c", "▁", "ab", "▁ab"};
  tokens.insert(tokens.end(), more.begin(), more.end());
  for (size_t i = 0; i < tokens.size(); ++i) {
    vocab[tokens[i]] = i;
  }
  return {{"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"vocab", vocab},
            {"merges", Json::array({Json::array({"a", "b"}), Json::array({"▁", "ab"})})}}},
          {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "▁"}}},
          {"decoder", {{"type", "Metaspace"}, {"replacement", "▁"}}}};
}

Json unigram_file() {
  return {{"model",
           {{"type", "Unigram"},
            {"unk_id", 0},
            {"vocab", Json::array({Json::array({"<unk>", 0.0}), Json::array({"▁", -2.0}),
                                   Json::array({"a", -3.0}), Json::array({"b", -3.0}),
                                   Json::array({"ab", -4.0}), Json::array({"▁a", -4.5}),
                                   Json::array({"bc", -3.5})})}}},
          {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "▁"}}},
          {"decoder", {{"type", "Metaspace"}, {"replacement", "▁"}}}};
}

Tokenizer parsed(const Json& file) { return Tokenizer::parse(file.dump(), "f"); }

Words token_texts(const Tokenizer& t, std::string_view text) {
  Words out;
  for (const int32_t id : t.encode(text)) {
    out.push_back(t.spec().tokens[id]);
  }
  return out;
}

Json added(const std::string& text, int id, Json more = Json::object()) {
  Json token = {{"id", id}, {"content", text}, {"special", true}};
  token.update(more);
  return token;
}

TEST(Metaspace, MarksBlanksAndTheBeginning) {
  Json file = bpe_file();
  const Tokenizer always = parsed(file);
  EXPECT_EQ(token_texts(always, "ab c"), (Words{"▁ab", "▁", "c"}));
  EXPECT_EQ(token_texts(always, " ab  ab"), (Words{"▁ab", "▁", "▁ab"}));
  EXPECT_EQ(always.decode(always.encode("ab c")), "ab c");
  EXPECT_EQ(always.token_bytes(6), " ab");
  file["pre_tokenizer"]["prepend_scheme"] = "never";
  file["decoder"]["prepend_scheme"] = "never";
  const Tokenizer never = parsed(file);
  EXPECT_EQ(token_texts(never, "ab ab"), (Words{"ab", "▁ab"}));
  EXPECT_EQ(never.decode(never.encode(" ab")), " ab");
}

// "first" marks the beginning of the input, not that of a piece behind an added token.
TEST(Metaspace, FirstMarksTheInputAlone) {
  Json file = bpe_file();
  file["added_tokens"] = Json::array({added("<x>", 7)});
  EXPECT_EQ(token_texts(parsed(file), "ab<x>ab"), (Words{"▁ab", "<x>", "▁ab"}));
  file["pre_tokenizer"]["prepend_scheme"] = "first";
  EXPECT_EQ(token_texts(parsed(file), "ab<x>ab"), (Words{"▁ab", "<x>", "ab"}));
  EXPECT_EQ(token_texts(parsed(file), "<x>ab"), (Words{"<x>", "ab"}));
}

TEST(Bpe, UnknownCharactersBecomeTheUnknownToken) {
  Json file = bpe_file();
  file["pre_tokenizer"] = nullptr;
  file["decoder"] = {{"type", "Fuse"}};
  EXPECT_EQ(parsed(file).encode("axyb"), (Ids{1, 0, 0, 2}));
  EXPECT_EQ(parsed(file).encode("a\xFFz"), (Ids{1, 0, 0}));
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(parsed(file).encode("axyb\xFF"), (Ids{1, 0, 2, 0}));
  file["model"]["unk_token"] = nullptr;
  EXPECT_EQ(token_texts(parsed(file), "axb"), (Words{"ab"}));
}

Json fallback_file() {
  Words bytes;
  for (int b = 0; b < 256; ++b) {
    bytes.push_back(fmt::format("<0x{:02X}>", b));
  }
  Json file = bpe_file(bytes);
  file["model"]["byte_fallback"] = true;
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  return file;
}

TEST(Bpe, FallsBackToBytes) {
  const Json file = fallback_file();
  const Tokenizer t = parsed(file);
  EXPECT_EQ(token_texts(t, "ab\u00E9c"), (Words{"▁ab", "<0xC3>", "<0xA9>", "c"}));
  // Any bytes come back, without the blank that is put before.
  Rng rng(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::string text = "a";
    for (uint64_t n = rng.below(60); n > 0; --n) {
      text += rng.uniform() < 0.6 ? "ab c"[rng.below(4)] : static_cast<char>(rng.below(256));
    }
    ASSERT_EQ(t.decode(t.encode(text)), text);
  }
  Json half = file;
  half["model"]["vocab"].erase("<0x41>");
  EXPECT_ERROR(parsed(half), "255 of the tokens");
}

// Words are cut between two characters that are adjacent in no token, since no merge can join them.
// The ids equal those of the definition on the whole text.
TEST(Bpe, CutWordsGiveTheSameMerges) {
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"b", "a"}, {"a", "b"}, {"ab", "ab"}, {"▁", "a"}, {"c", "c"}, {"▁a", "ba"}, {"cc", "▁"}};
  Json file = bpe_file({"ba", "abab", "▁a", "cc", "▁aba", "cc▁"});
  file["model"]["merges"] = Json::array();
  for (const auto& [left, right] : merges) {
    file["model"]["merges"].push_back(Json::array({left, right}));
  }
  file["pre_tokenizer"]["split"] = false;
  file["pre_tokenizer"]["prepend_scheme"] = "never";
  const Tokenizer t = parsed(file);
  Rng rng(7);
  for (int trial = 0; trial < 300; ++trial) {
    std::string text;
    Words symbols;
    for (uint64_t n = 1 + rng.below(80); n > 0; --n) {
      const char c = "aabbc  "[rng.below(7)];
      text += c;
      symbols.push_back(c == ' ' ? "▁" : std::string(1, c));
    }
    for (bool merged = true; merged;) {
      merged = false;
      for (const auto& [left, right] : merges) {
        for (size_t i = 0; i + 1 < symbols.size() && !merged; ++i) {
          if (symbols[i] == left && symbols[i + 1] == right) {
            symbols[i] += right;
            symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(i) + 1);
            merged = true;
          }
        }
        if (merged) break;
      }
    }
    ASSERT_EQ(token_texts(t, text), symbols) << text;
  }
}

TEST(Unigram, TakesTheMostProbableCut) {
  const Tokenizer t = parsed(unigram_file());
  EXPECT_EQ(token_texts(t, "ab"), (Words{"▁", "ab"}));    // -6 against -7.5 and -8
  EXPECT_EQ(token_texts(t, "abc"), (Words{"▁a", "bc"}));  // -8; c alone is unknown
  EXPECT_EQ(t.encode("axyb"), (Ids{5, 0, 3}));            // unknown neighbours are one
  EXPECT_EQ(t.encode("a\xFF\xFE"), (Ids{5, 0}));
  EXPECT_EQ(t.token_lengths()[0], 0);
  Json file = unigram_file();
  file["model"]["unk_id"] = nullptr;
  EXPECT_ERROR(parsed(file).encode("x"), "no token for 'x'");
  file["model"]["unk_id"] = 9;
  EXPECT_ERROR(parsed(file), "unk_id 9");
}

// Against all cuts of a short text.
TEST(Unigram, EqualsTheDefinition) {
  const Tokenizer t = parsed(unigram_file());
  const TokenizerSpec& spec = t.spec();
  Rng rng(5);
  for (int trial = 0; trial < 300; ++trial) {
    std::string text = "▁";
    for (uint64_t n = 1 + rng.below(8); n > 0; --n) {
      text += "ab"[rng.below(2)];
    }
    std::function<double(std::string_view)> best = [&](std::string_view rest) {
      if (rest.empty()) return 0.0;
      double most = -1e9;
      for (size_t id = 1; id < spec.tokens.size(); ++id) {
        if (rest.starts_with(spec.tokens[id])) {
          most = std::max(most, spec.scores[id] + best(rest.substr(spec.tokens[id].size())));
        }
      }
      return most;
    };
    double got = 0;
    for (const int32_t id : t.encode(text)) {
      got += spec.scores[id];
    }
    ASSERT_NEAR(got, best(text), 1e-9) << text;
  }
}

// With special tokens split, a text that spells one gives ordinary tokens, even if the vocabulary
// has this spelling.
TEST(Unigram, SplitSpecialTokensAreText) {
  Json file = unigram_file();
  file["model"]["vocab"].push_back(Json::array({"</s>", 0.0}));
  file["added_tokens"] = Json::array({added("</s>", 7)});
  const Tokenizer t = parsed(file);
  EXPECT_EQ(t.encode("a</s>"), (Ids{5, 7}));
  Encoder encoder(t);
  for (int repeat = 0; repeat < 2; ++repeat) {
    Ids ids;
    encoder.encode("a</s>", &ids, {.split_special_tokens = true});
    EXPECT_EQ(ids, (Ids{5, 0}));
    ids.clear();
    encoder.encode("a</s>", &ids);
    EXPECT_EQ(ids, (Ids{5, 7}));
  }
  EXPECT_EQ(encoder.special_tokens_met(), 4);
}

// Returns the pieces of one pre-tokenizer. A byte-level BPE without merges puts a blank before each
// piece, which shows where they begin.
Words pieces_of(Json step, const std::string& text) {
  Json vocab = Json::object();
  for (int b = 0; b < 94; ++b) {
    vocab[std::string(1, static_cast<char>('!' + b))] = b;
  }
  vocab["\u0120"] = 94;
  const Tokenizer t = parsed(
      {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}},
       {"pre_tokenizer",
        {{"type", "Sequence"},
         {"pretokenizers",
          {step, {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}}}}}}});
  Words out;
  for (const int32_t id : t.encode(text)) {
    if (t.token_bytes(id) == " ") {
      out.emplace_back();
    } else {
      out.back() += t.token_bytes(id);
    }
  }
  return out;
}

TEST(Split, MatchesAreRemovedIsolatedOrMergedByBehavior) {
  const auto pieces = [](const char* behavior, bool invert) {
    return pieces_of({{"type", "Split"},
                      {"pattern", {{"String", "-"}}},
                      {"behavior", behavior},
                      {"invert", invert}},
                     "the-final--countdown");
  };
  EXPECT_EQ(pieces("Removed", false), (Words{"the", "final", "countdown"}));
  EXPECT_EQ(pieces("Isolated", false), (Words{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(pieces("MergedWithPrevious", false), (Words{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(pieces("MergedWithNext", false), (Words{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(pieces("Contiguous", false), (Words{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(pieces("Removed", true), (Words{"-", "-", "-"}));
  EXPECT_EQ(pieces("Isolated", true), (Words{"the", "-", "final", "-", "-", "countdown"}));
}

TEST(Split, EveryOtherPretokenizerSplitsByItsKind) {
  EXPECT_EQ(pieces_of({{"type", "Digits"}}, "a12b3"), (Words{"a", "12", "b", "3"}));
  EXPECT_EQ(pieces_of({{"type", "Digits"}, {"individual_digits", true}}, "a12b"),
            (Words{"a", "1", "2", "b"}));
  EXPECT_EQ(pieces_of({{"type", "Whitespace"}}, "a_b, c!!d"), (Words{"a_b", ",", "c", "!!", "d"}));
  EXPECT_EQ(pieces_of({{"type", "WhitespaceSplit"}}, "a_b,  c"), (Words{"a_b,", "c"}));
  EXPECT_EQ(pieces_of({{"type", "Punctuation"}}, "a$$b."), (Words{"a", "$", "$", "b", "."}));
  EXPECT_EQ(pieces_of({{"type", "CharDelimiterSplit"}, {"delimiter", "."}}, "a.b"),
            (Words{"a", "b"}));
  EXPECT_EQ(pieces_of({{"type", "BertPreTokenizer"}}, "a b.c"), (Words{"a", "b", ".", "c"}));
  // An empty match cuts as well: here before each group of three digits.
  EXPECT_EQ(pieces_of({{"type", "Split"},
                       {"pattern", {{"Regex", R"((?<=\d)(?=(?:\d{3})+$))"}}},
                       {"behavior", "Isolated"}},
                      "1234567"),
            (Words{"1", "234", "567"}));
}

TEST(PostProcessor, AddsTheTokensOfTheFile) {
  Json file = bpe_file();
  file["added_tokens"] = Json::array({added("<s>", 7), added("</s>", 8)});
  const Json single = Json::array({{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                                   {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                                   {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}});
  const Json special = {{"<s>", {{"id", "<s>"}, {"ids", {7}}, {"tokens", {"<s>"}}}},
                        {"</s>", {{"id", "</s>"}, {"ids", {8}}, {"tokens", {"</s>"}}}}};
  const Json processor = {
      {"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", special}};
  for (const Json& each :
       {processor, Json{{"type", "RobertaProcessing"}, {"sep", {"</s>", 8}}, {"cls", {"<s>", 7}}},
        Json{{"type", "Sequence"}, {"processors", {{{"type", "ByteLevel"}}, processor}}}}) {
    file["post_processor"] = each;
    const Tokenizer t = parsed(file);
    EXPECT_EQ(t.encode("ab", {.add_special_tokens = true}), (Ids{7, 6, 8}));
    EXPECT_EQ(t.encode("ab"), (Ids{6}));
    EXPECT_EQ(t.encode("", {.add_special_tokens = true}), (Ids{7, 8}));
    Json other = file;
    other.erase("post_processor");
    EXPECT_EQ(parsed(other).content_hash(), t.content_hash());
    EXPECT_NE(parsed(other).hash(), t.hash());
  }
  file["post_processor"] = processor;
  file["post_processor"]["special_tokens"]["<s>"]["ids"] = {70};
  EXPECT_ERROR(parsed(file), "70");
  file["post_processor"] = processor;
  file["post_processor"]["single"].push_back(single[1]);
  EXPECT_ERROR(parsed(file), "text twice");
  file["post_processor"] = {{"type", "Other"}};
  EXPECT_ERROR(parsed(file), "Other");
}

// `tokenizers` ignores the ids in the file and numbers added tokens itself.
TEST(AddedTokens, AreNumberedBehindTheVocabulary) {
  Json file = bpe_file();
  file["added_tokens"] =
      Json::array({added("<x>", 20), added("ab", 5), added("<y>", 12), added("<x>", 20)});
  const Tokenizer t = parsed(file);
  EXPECT_EQ(t.find_token("<x>"), 7);
  EXPECT_EQ(t.find_token("ab"), 5);
  EXPECT_EQ(t.find_token("<y>"), 8);
  EXPECT_EQ(t.vocab_size(), 9);
  file["model"]["vocab"]["c"] = 8;  // a gap, and the vocabulary counts 7
  EXPECT_ERROR(parsed(file), "without gaps");
}

// Runs of blanks are added tokens of GPT-NeoX, and its vocabulary has the same bytes under other
// ids.
TEST(AddedTokens, MayRepeatBytesOfTheVocabulary) {
  Json file = {
      {"model",
       {{"type", "BPE"},
        {"vocab", {{"\u0120", 0}, {"\u0120\u0120", 1}, {"a", 2}}},
        {"merges", {"\u0120 \u0120"}}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"added_tokens", Json::array({added("  ", 3, {{"special", false}, {"normalized", true}})})}};
  const Tokenizer t = parsed(file);
  EXPECT_EQ(t.encode("  a   a"), (Ids{3, 2, 3, 0, 2}));
  EXPECT_EQ(t.decode(Ids{3, 1, 2}), "    a");
  const Tokenizer again(t.spec());
  EXPECT_EQ(Tokenizer::parse(again.to_json(), "f").encode("  a   a"), (Ids{3, 2, 3, 0, 2}));
}

TEST(AddedTokens, AreFoundInNormalisedText) {
  Json file = bpe_file();
  file["normalizer"] = {{"type", "Lowercase"}};
  file["added_tokens"] = Json::array({added("<X>", 7, {{"normalized", true}}), added("<Y>", 8)});
  const Tokenizer t = parsed(file);
  EXPECT_EQ(t.encode("<x><X>"), (Ids{7, 7}));
  EXPECT_EQ(t.decode(Ids{7}), "<x>");
  EXPECT_EQ(t.encode("<Y>"), (Ids{8}));
  const Ids lower = t.encode("<y>");
  EXPECT_EQ(std::count(lower.begin(), lower.end(), 8), 0);
}

// The byte ranges of the ids are adjacent and cover the text, except for characters that the
// tokenizer adds or drops.
TEST(Ranges, CoverTheText) {
  Json digits = bpe_file();
  digits["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers", {digits["pre_tokenizer"], {{"type", "Digits"}}}}};
  Json fused = bpe_file();
  fused["model"]["fuse_unk"] = true;
  for (const Json& file : {bpe_file(), digits, fused, fallback_file(), unigram_file()}) {
    const Tokenizer t = parsed(file);
    Encoder encoder(t), cached(t);
    Rng rng(9);
    for (int trial = 0; trial < 200; ++trial) {
      std::string text;
      for (uint64_t n = rng.below(50); n > 0; --n) {
        text += rng.uniform() < 0.8 ? "abc  12"[rng.below(7)] : static_cast<char>(rng.below(256));
      }
      Ids ids, plain;
      std::vector<ByteRange> ranges;
      encoder.encode(text, &ids, {}, &ranges);
      cached.encode(text, &plain);
      ASSERT_EQ(ids, plain);
      ASSERT_EQ(ranges.size(), ids.size());
      size_t at = 0;
      for (const ByteRange& range : ranges) {
        ASSERT_EQ(range.begin, at) << text;
        at = range.end;
      }
      ASSERT_EQ(at, text.size());
    }
  }
}

TEST(Ranges, TokensAddedAroundTheTextAreEmpty) {
  Json file = bpe_file();
  file["added_tokens"] = Json::array({added("<s>", 7), added("<m>", 8, {{"lstrip", true}})});
  file["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"<s>", 7}}, {"cls", {"<s>", 7}}};
  const Tokenizer t = parsed(file);
  Ids ids;
  std::vector<ByteRange> ranges;
  Encoder(t).encode("ab <m>c", &ids, {.add_special_tokens = true}, &ranges);
  EXPECT_EQ(ids, (Ids{7, 6, 8, 4, 3, 7}));
  EXPECT_EQ(ranges, (std::vector<ByteRange>{{0, 0}, {0, 2}, {2, 6}, {6, 6}, {6, 7}, {7, 7}}));
}

TEST(Kinds, FilesOfASpecOpenAgain) {
  Json regex = bpe_file();
  regex["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "NFKC"}},
        {{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}},
        {{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", " "}}}}};
  regex["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"a", 1}}, {"cls", {"b", 2}}};
  for (const Json& file : {bpe_file(), regex, fallback_file(), unigram_file()}) {
    const Tokenizer first = parsed(file);
    const Tokenizer written = Tokenizer::parse(Tokenizer(first.spec()).to_json(), "written");
    EXPECT_EQ(written.hash(), first.hash());
    EXPECT_EQ(written.encode("ab  c \uFB01"), first.encode("ab  c \uFB01"));
    EXPECT_EQ(first.to_json(), file.dump());  // a loaded tokenizer keeps the text of its file
  }
}

TEST(Kinds, HashesDistinguishSteps) {
  const Hash128 hash = parsed(bpe_file()).hash();
  const std::vector<std::function<void(Json*)>> changes = {
      [](Json* f) { (*f)["pre_tokenizer"]["prepend_scheme"] = "first"; },
      [](Json* f) { (*f)["pre_tokenizer"]["split"] = false; },
      [](Json* f) {
        (*f)["normalizer"] = {{"type", "NFD"}};
      },
      [](Json* f) {
        (*f)["decoder"] = {{"type", "Fuse"}};
      },
      [](Json* f) { (*f)["model"]["fuse_unk"] = true; },
      [](Json* f) { (*f)["model"]["unk_token"] = nullptr; },
      [](Json* f) { (*f)["added_tokens"] = Json::array({added("ab", 5)}); }};
  for (const auto& change : changes) {
    Json file = bpe_file();
    change(&file);
    EXPECT_NE(parsed(file).hash(), hash) << file.dump();
  }
}

// Damaged files are refused or give a tokenizer that encodes.
TEST(Kinds, RandomDamageNeverGetsThrough) {
  Json busy = fallback_file();
  busy["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", {{{"type", "NFKC"}}, {{"type", "Lowercase"}}}}};
  busy["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "[a-c]+|\\s"}}}, {"behavior", "Contiguous"}},
        busy["pre_tokenizer"]}}};
  busy["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"a", 1}}, {"cls", {"b", 2}}};
  busy["added_tokens"] = Json::array({added("<s>", 263), added("ab", 5)});
  Rng rng(3);
  int opened = 0;
  for (const Json& file : {busy, unigram_file()}) {
    const std::string good = file.dump();
    for (int trial = 0; trial < 1500; ++trial) {
      std::string text = good;
      for (uint64_t n = 1 + rng.below(3); n > 0; --n) {
        const size_t at = rng.below(text.size());
        switch (rng.below(3)) {
          case 0:
            text[at] = static_cast<char>(rng.below(128));
            break;
          case 1:
            text.erase(at, rng.below(8));
            break;
          default:
            text.insert(at, text.substr(rng.below(text.size()), rng.below(20)));
        }
      }
      try {
        const Tokenizer t = Tokenizer::parse(text, "f");
        t.decode(t.encode("abab <s> x\xFF", {.add_special_tokens = true}));
        ++opened;
      } catch (const Error&) {
      }
    }
  }
  EXPECT_GT(opened, 0);
}

}  // namespace
}  // namespace hocket::data
