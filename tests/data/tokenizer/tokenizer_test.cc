// SPDX-License-Identifier: Apache-2.0
// The tokenizer by hand-made vocabularies: words, merges, added tokens, files and hostile files.
// tests/parity/tokenizer_parity.py compares with Hugging Face's.
#include "data/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/rng.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/regex.h"
#include "tests/data/data_util.h"

namespace hocket::data {
namespace {

using Ids = std::vector<int32_t>;
using Words = std::vector<std::string>;

Words words_of(const std::string& pattern, std::string_view text) {
  const Regex regex(pattern);
  Regex::Cursor cursor(regex);
  cursor.start(text);
  Words out;
  bool is_match;
  for (std::string_view word; cursor.next(&word, &is_match);) {
    out.emplace_back(word);
  }
  return out;
}

// Ids 0 to 255 are the bytes; then the results of merges, then the end of text.
TokenizerSpec spec_of(const std::vector<std::pair<std::string, std::string>>& merges) {
  TokenizerSpec spec;
  std::map<std::string, int32_t> ids;
  const auto append = [&](const std::string& bytes) {
    if (ids.emplace(bytes, static_cast<int32_t>(spec.tokens.size())).second) {
      spec.tokens.push_back(bytes);
    }
  };
  for (int b = 0; b < 256; ++b) {
    append(std::string(1, static_cast<char>(b)));
  }
  for (const auto& [left, right] : merges) {
    append(left + right);
  }
  for (const auto& [left, right] : merges) {
    spec.merges.push_back({ids.at(left), ids.at(right)});
  }
  append("<|endoftext|>");
  spec.pretokenizers.push_back(split_step(kGpt2Pattern));
  spec.eos = ids.at("<|endoftext|>");
  AddedToken eos;
  eos.id = spec.eos;
  eos.text = "<|endoftext|>";
  eos.special = true;
  eos.in_vocabulary = true;
  spec.added.push_back(eos);
  return spec;
}

Words texts_of_tokens(const Tokenizer& t, std::string_view text) {
  Words out;
  for (const int32_t id : t.encode(text)) {
    out.emplace_back(t.token_bytes(id));
  }
  return out;
}

TEST(ByteAlphabet, MapsBytesBijectively) {
  std::string all;
  for (int b = 0; b < 256; ++b) {
    all.push_back(static_cast<char>(b));
  }
  const std::string text = to_alphabet(all);
  std::string back;
  ASSERT_TRUE(from_alphabet(text, &back));
  EXPECT_EQ(back, all);
  EXPECT_EQ(to_alphabet(" a\n"), "\u0120a\u010A");  // as in GPT-2's vocabulary
  EXPECT_FALSE(from_alphabet("a b", &back));
  EXPECT_FALSE(from_alphabet("\u65E5", &back));
}

TEST(Regex, SplitsTextsAsGpt2Does) {
  EXPECT_EQ(
      words_of(kGpt2Pattern, "It's  a_b\n\n  x42, y!! 'll"),
      (Words{"It", "'s", " ", " a", "_", "b", "\n\n ", " x", "42", ",", " y", "!!", " '", "ll"}));
  EXPECT_EQ(words_of(kGpt2Pattern, "x   "), (Words{"x", "   "}));
  EXPECT_EQ(words_of(kGpt2Pattern, "caf\u00E9 \u65E5\u672C"),
            (Words{"caf\u00E9", " \u65E5\u672C"}));
  EXPECT_EQ(words_of(kGpt2Pattern, ""), Words{});
}

TEST(Regex, SplitsTextsAsLlama3AndQwen2Do) {
  const std::string text = "I'LL go\n\n 12345 f(x);\r\n";
  EXPECT_EQ(words_of(kLlama3Pattern, text),
            (Words{"I", "'LL", " go", "\n\n", " ", "123", "45", " f", "(x", ");\r\n"}));
  EXPECT_EQ(words_of(kQwen2Pattern, text),
            (Words{"I", "'LL", " go", "\n\n", " ", "1", "2", "3", "4", "5", " f", "(x", ");\r\n"}));
}

TEST(Regex, SpacesAreUnicodesWhiteSpace) {
  // U+180E is none (PCRE2's \s says otherwise), U+0085 and U+3000 are.
  EXPECT_EQ(words_of(R"(\s+)", "a\u180E\u0085\u3000b"), (Words{"a\u180E", "\u0085\u3000", "b"}));
  EXPECT_EQ(words_of(R"([^\s]+|\S)", "\u180E\u2003x"), (Words{"\u180E", "\u2003", "x"}));
}

TEST(Regex, MalformedBytesAreWordsOfTheirOwn) {
  EXPECT_EQ(words_of(kGpt2Pattern, "ab\xFF\xFE\x80 cd\xC3"),
            (Words{"ab", "\xFF\xFE\x80", " cd", "\xC3"}));
  // Looking back from the stretch behind them stops at its start.
  EXPECT_EQ(words_of(R"((?<=x)y|y)", "x\x80\x80y"), (Words{"x", "\x80\x80", "y"}));
}

TEST(Regex, EmptyPatternCutsNothing) { EXPECT_EQ(words_of("", "a b \xFF"), (Words{"a b \xFF"})); }

// As Oniguruma reads them; PCRE2 by itself counts U+3BA1 apart, but U+33F9 and U+30FC, which
// several scripts share, as Han, and marks as no part of a word.
TEST(Regex, ClassNamesMeanTheSameAsInOniguruma) {
  EXPECT_EQ(words_of(R"(\p{Han}+)", "a\u6F22\u33F9\u5B57"),
            (Words{"a", "\u6F22", "\u33F9", "\u5B57"}));
  EXPECT_EQ(words_of(R"([\p{Hiragana}]+|\p{^Latin})", "ab\u3042\u3044\u30FC"),
            (Words{"ab", "\u3042\u3044", "\u30FC"}));
  EXPECT_EQ(words_of(R"(\P{Latin}+)", "a\u0301b"), (Words{"a", "\u0301", "b"}));
  EXPECT_EQ(words_of(R"([[:punct:]]+)", "a+\u20AC!b"), (Words{"a", "+\u20AC!", "b"}));
  EXPECT_EQ(words_of(R"(\p{Uppercase_Letter}\p{Letter}*)", "aBc"), (Words{"a", "Bc"}));
  EXPECT_EQ(words_of(R"([\u0061-\u0063]+)", "abcd"), (Words{"abc", "d"}));
  EXPECT_EQ(words_of(R"(\b)", "e\u0301x y"), (Words{"", "e\u0301x", "", " ", "", "y", ""}));
  EXPECT_EQ(words_of(R"([\w-]+)", "a-b c"), (Words{"a-b", " ", "c"}));
  EXPECT_EQ(words_of(R"([\w-.]+)", "a-.b c"), (Words{"a-.b", " ", "c"}));
}

TEST(Regex, ClassesMayContainAndIntersectClasses) {
  EXPECT_EQ(words_of(R"([a-z&&[^aeiou]]+)", "abcde"), (Words{"a", "bcd", "e"}));
  EXPECT_EQ(words_of(R"([^\r\n\p{L}&&[^\p{Han}]]+)", "a1\u6F22-\n"),
            (Words{"a", "1\u6F22-", "\n"}));
  EXPECT_EQ(words_of(R"([^a[bc]]+)", "abdec\n"), (Words{"ab", "de", "c", "\n"}));
  EXPECT_EQ(words_of(R"([^\W_]+)", "ab_c "), (Words{"ab", "_", "c", " "}));
  EXPECT_EQ(words_of(R"([\W&&\S]+)", "a.: b"), (Words{"a", ".:", " b"}));
}

TEST(Regex, RefusesUnsupportedPatterns) {
  EXPECT_ERROR(Regex("(a"), "does not compile");
  EXPECT_ERROR(Regex("[a"), "does not compile");
  EXPECT_ERROR(Regex(R"(\X)"), "grapheme clusters");
  EXPECT_ERROR(Regex(R"([a&&])"), "intersections with nothing");
  EXPECT_ERROR(Regex(std::string(100, '[') + "a" + std::string(100, ']')), "deeply nested");
  EXPECT_ERROR(Regex(R"(a{1,3}+)"), "interval");
  EXPECT_ERROR(Regex(R"((?m:a.b))"), "options");
}

TEST(Tokenizer, MergesByRankThenLeftmost) {
  const Tokenizer t(spec_of({{"b", "c"}, {"a", "b"}, {"bc", "d"}, {"a", "a"}}));
  EXPECT_EQ(texts_of_tokens(t, "abcd"), (Words{"a", "bcd"}));  // bc before ab
  EXPECT_EQ(texts_of_tokens(t, "abd"), (Words{"ab", "d"}));
  EXPECT_EQ(texts_of_tokens(t, "aaa"), (Words{"aa", "a"}));
  EXPECT_EQ(texts_of_tokens(t, "b c"), (Words{"b", " ", "c"}));  // words are not crossed
}

TEST(Tokenizer, IgnoreMergesTakesWholeWords) {
  TokenizerSpec spec = spec_of({{"a", "b"}, {"b", "c"}, {"a", "bc"}});
  EXPECT_EQ(texts_of_tokens(Tokenizer(spec), "abc"), (Words{"ab", "c"}));
  spec.ignore_merges = true;
  EXPECT_EQ(texts_of_tokens(Tokenizer(spec), "abc"), (Words{"abc"}));
}

// Compares both merge algorithms, for short and for long words, with the definition.
TEST(Tokenizer, EqualsTheDefinitionOnRandomWords) {
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"a", "b"},  {"b", "a"},    {"ab", "ab"}, {"a", "a"},   {"c", "ab"},
      {"aa", "b"}, {"abab", "a"}, {"b", "b"},   {"cab", "c"}, {"aa", "aa"}};
  const Tokenizer t(spec_of(merges));
  Rng rng(11);
  for (int trial = 0; trial < 400; ++trial) {
    std::string word;
    for (int64_t n = rng.between(1, trial % 4 == 0 ? 300 : 60); n > 0; --n) {
      word += static_cast<char>('a' + rng.below(3));
    }
    Words symbols;
    for (const char c : word) {
      symbols.emplace_back(1, c);
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
    ASSERT_EQ(texts_of_tokens(t, word), symbols) << word;
  }
}

TEST(Tokenizer, AnyBytesComeBack) {
  const Tokenizer t(spec_of({{"a", "b"}, {" ", "a"}, {"\xC3", "\xA9"}}));
  Encoder encoder(t);
  Rng rng(5);
  for (int trial = 0; trial < 300; ++trial) {
    std::string text;
    for (uint64_t n = rng.below(200); n > 0; --n) {
      text += rng.uniform() < 0.5 ? "ab \xC3\xA9"[rng.below(5)] : static_cast<char>(rng.below(256));
    }
    Ids ids;
    encoder.encode(text, &ids);
    ASSERT_EQ(t.decode(ids), text);
  }
}

// More words than the cache holds: it is emptied and goes on.
TEST(Tokenizer, ACacheOverflowChangesNoIds) {
  const Tokenizer t(spec_of({{"1", "2"}, {"2", "1"}}));
  Encoder warm(t);
  Ids ids;
  std::string text;
  for (int64_t i = 0; i < 300000; ++i) {
    text += " " + std::to_string(i * 7919);
  }
  warm.encode(text, &ids);
  Ids again;
  warm.encode(text, &again);
  EXPECT_EQ(ids, again);
  EXPECT_EQ(t.decode(ids), text);
}

TEST(Tokenizer, AddedTokensFollowTheirOptions) {
  TokenizerSpec spec = spec_of({{"a", "b"}});
  const auto add = [&](const std::string& text, auto change) {
    AddedToken token;
    token.text = text;
    token.id = static_cast<int32_t>(spec.tokens.size());
    change(&token);
    spec.tokens.push_back(text);
    spec.added.push_back(token);
    return token.id;
  };
  const int32_t mask = add("<mask>", [](AddedToken* t) { t->lstrip = true; });
  const int32_t longer = add("<mask>>", [](AddedToken* t) { t->rstrip = true; });
  const int32_t word = add("cd", [](AddedToken* t) { t->single_word = true; });
  const Tokenizer t(spec);
  const int32_t eos = t.eos_id();
  EXPECT_EQ(t.encode("ab<|endoftext|>ab"), (Ids{256, eos, 256}));
  EXPECT_EQ(t.encode("a \n<mask> b"), (Ids{'a', mask, ' ', 'b'}));
  EXPECT_EQ(t.encode("a<mask>> \tb"),
            (Ids{'a', longer, 'b'}));  // the longest, and the blanks behind
  EXPECT_EQ(t.encode("cd acd cd"), (Ids{word, ' ', 'a', 'c', 'd', ' ', word}));
  EXPECT_EQ(t.decode(Ids{'a', eos, 'b'}), "a<|endoftext|>b");
  EXPECT_EQ(t.decode(Ids{'a', eos, 'b'}, true), "ab");
  Ids plain;
  Encoder encoder(t);
  encoder.encode("<|endoftext|>", &plain, {.split_special_tokens = true});
  EXPECT_EQ(encoder.special_tokens_met(), 1);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), eos), 0);
  EXPECT_EQ(t.decode(plain), "<|endoftext|>");
}

// One that takes blanks along on both sides is no token where the one before took all of it.
TEST(Tokenizer, AnAddedTokenWhoseBlanksAreTakenIsNoToken) {
  TokenizerSpec spec = spec_of({{"a", "b"}});
  for (const char* text : {"  ", " x"}) {
    AddedToken token;
    token.text = text;
    token.id = static_cast<int32_t>(spec.tokens.size());
    token.lstrip = token.rstrip = true;
    spec.tokens.emplace_back(text);
    spec.added.push_back(token);
  }
  const Tokenizer t(spec);
  const int32_t blanks = t.find_token("  "), x = t.find_token(" x");
  EXPECT_EQ(t.encode("a    b"), (Ids{'a', blanks, 'b'}));
  EXPECT_EQ(t.encode(" x x xa"), (Ids{x, x, x, 'a'}));
}

// As `tokenizers` decodes it: ByteLevel reads added tokens in its alphabet, too.
TEST(Tokenizer, AddedTokensInTheAlphabetOfBytesAreBytes) {
  TokenizerSpec spec = spec_of({{"a", "b"}});
  for (const char* text : {"\u00E9x", "\u65E5"}) {
    AddedToken token;
    token.text = text;
    token.id = static_cast<int32_t>(spec.tokens.size());
    spec.tokens.emplace_back(text);
    spec.added.push_back(token);
  }
  const Tokenizer t(spec);
  EXPECT_EQ(t.decode(t.encode("a\u00E9x")), "a\xE9x");
  EXPECT_EQ(t.decode(t.encode("a\u65E5")), "a\u65E5");
}

TEST(Tokenizer, AddsAPrefixSpaceOnce) {
  TokenizerSpec spec = spec_of({{" ", "a"}});
  spec.pretokenizers.insert(spec.pretokenizers.begin(), PretokenizerStep());
  spec.pretokenizers[0].kind = PretokenizerStep::Kind::prefix_space;
  const Tokenizer t(spec);
  EXPECT_EQ(texts_of_tokens(t, "a"), (Words{" a"}));
  EXPECT_EQ(texts_of_tokens(t, " a"), (Words{" a"}));
}

TEST(Tokenizer, TokenLengthsCountBytes) {
  const Tokenizer t(spec_of({{"a", "b"}}));
  const std::vector<int32_t> lengths = t.token_lengths();
  EXPECT_EQ(lengths['a'], 1);
  EXPECT_EQ(lengths[256], 2);
  EXPECT_EQ(lengths[t.eos_id()], 0);
  EXPECT_ERROR(t.token_bytes(-1), "-1");
  EXPECT_ERROR(t.decode(Ids{1000}), "1000");
}

TEST(Tokenizer, SavesAndLoads) {
  const TempFolder folder;
  TokenizerSpec spec = spec_of({{"a", "b"}, {" ", "ab"}, {"\n", "\n"}});
  spec.normalizers.emplace_back();
  spec.pretokenizers = {split_step(kLlama3Pattern)};
  spec.ignore_merges = true;
  const Tokenizer t(spec);
  t.save_folder(folder / "t");
  for (const std::string& path : {folder / "t", folder / "t/tokenizer.json"}) {
    const Tokenizer back = Tokenizer::load(path);
    EXPECT_EQ(back.hash(), t.hash());
    EXPECT_EQ(back.spec().merges, t.spec().merges);
    EXPECT_EQ(back.spec().tokens, t.spec().tokens);
    EXPECT_EQ(back.eos_id(), t.eos_id());
    EXPECT_EQ(back.encode("ab ab\n\nx"), t.encode("ab ab\n\nx"));
    EXPECT_EQ(back.to_json(), t.to_json());
  }
}

TEST(Tokenizer, HashDistinguishesTokenizers) {
  const TokenizerSpec spec = spec_of({{"a", "b"}, {"b", "c"}});
  const Hash128 hash = Tokenizer(spec).hash();
  EXPECT_EQ(Tokenizer(spec).hash(), hash);
  TokenizerSpec other = spec;
  std::swap(other.merges[0], other.merges[1]);
  EXPECT_NE(Tokenizer(other).hash(), hash);
  other = spec;
  other.pretokenizers = {split_step(kQwen2Pattern)};
  EXPECT_NE(Tokenizer(other).hash(), hash);
  other = spec;
  other.eos = 0;
  EXPECT_NE(Tokenizer(other).hash(), hash);
}

TEST(Tokenizer, TakesItsEndOfTextFromTheConfigBesideIt) {
  const TempFolder folder;
  TokenizerSpec spec = spec_of({{"a", "b"}});
  AddedToken chat = spec.added[0];
  chat.text = "<|im_end|>";
  chat.id = static_cast<int32_t>(spec.tokens.size());
  spec.tokens.push_back(chat.text);
  spec.added.push_back(chat);
  const Tokenizer t(spec);
  t.save(folder / "tokenizer.json");
  EXPECT_EQ(Tokenizer::load(folder.path()).eos_id(), spec.added[0].id);
  folder.add("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  EXPECT_EQ(Tokenizer::load(folder.path()).eos_id(), chat.id);
  folder.add("tokenizer_config.json", R"({"eos_token": {"content": "<|im_end|>"}})");
  EXPECT_EQ(Tokenizer::load(folder.path()).eos_id(), chat.id);
  folder.add("tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_ERROR(Tokenizer::load(folder.path()), "</s>");
  folder.add("tokenizer_config.json", R"({"eos_token": 3})");
  EXPECT_ERROR(Tokenizer::load(folder.path()), "eos_token");
  // The map of an older folder wins; a table of added tokens says that it is none.
  folder.add("tokenizer_config.json", R"({"eos_token": "</s>"})");
  folder.add("special_tokens_map.json", R"({"eos_token": {"content": "<|im_end|>"}})");
  EXPECT_EQ(Tokenizer::load(folder.path()).eos_id(), chat.id);
  folder.add("tokenizer_config.json", R"({"added_tokens_decoder": {}})");
  EXPECT_EQ(Tokenizer::load(folder.path()).eos_id(), spec.added[0].id);
}

TEST(Tokenizer, RefusesBadSpecs) {
  TokenizerSpec spec = spec_of({{"a", "b"}});
  spec.merges.push_back({'x', 'y'});
  EXPECT_ERROR(Tokenizer(spec), "not in the vocabulary");
  spec = spec_of({});
  spec.merges.push_back({'x', 9999});
  EXPECT_ERROR(Tokenizer(spec), "9999");
  spec = spec_of({});
  spec.tokens.push_back("a");
  EXPECT_ERROR(Tokenizer(spec), "two ids");
  EXPECT_ERROR(Tokenizer(TokenizerSpec()), "empty vocabulary");
  spec = spec_of({});
  spec.tokens['q'] = "";
}

// Bytes without a token are left out before anything is merged.
TEST(Tokenizer, LeavesOutBytesWithoutAToken) {
  TokenizerSpec spec = spec_of({{"a", "b"}});
  spec.tokens['q'] = "";
  const Tokenizer t(spec);
  const auto ab = t.encode("ab");
  ASSERT_EQ(ab.size(), 1u);
  EXPECT_EQ(t.encode("qaqbq"), ab);
  std::vector<int32_t> ids;
  std::vector<ByteRange> ranges;
  Encoder(t).encode("qaqbqc", &ids, {}, &ranges);
  EXPECT_EQ(t.decode(ids), "abc");
  EXPECT_EQ(ranges, (std::vector<ByteRange>{{1, 4}, {5, 6}}));
}

// One change to a sound file at a time; each is refused with its place or cause named.
TEST(TokenizerJson, RefusesHostileFiles) {
  const std::string good = R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2},
    "merges": ["a b"]}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "decoder": {"type": "ByteLevel"}, "added_tokens": [{"id": 3, "content": "<|endoftext|>"}]})";
  EXPECT_EQ(Tokenizer::parse(good, "f").vocab_size(), 4);
  const struct {
    const char *from, *to, *says;
  } cases[] = {
      {R"("a b")", R"("a c")", "names 'c'"},
      {R"("a b")", R"("b a")", "makes 'ba'"},
      {R"("a b")", R"("ab")", "two tokens"},
      {R"("a b")", R"("a b c")", "two tokens"},
      {R"("a b")", R"(["a"])", "pair"},
      {R"("a b")", R"(["a", 1])", "merges[0][1]"},
      {R"("a b")", "7", "pair"},
      {R"(["a b"])", R"({"a": "b"})", "merges"},
      {R"("ab": 2)", R"("ab": "x")", "ab"},
      {R"("ab": 2)", R"("ab": -1)", "-1"},
      {R"("ab": 2)", R"("ab": 2.5)", "2.5"},
      {R"("ab": 2)", R"("ab": 4000000000)", "4000000000"},
      {R"("ab": 2)", R"("ab": 1)", "id 1"},
      {R"("ab": 2)", R"("ab": 2, "": 5)", "empty token"},
      {R"({"a": 0, "b": 1, "ab": 2})", "{}", "empty"},
      {R"({"a": 0, "b": 1, "ab": 2})", "[]", "vocab"},
      {R"("type": "BPE")", R"("type": "WordPiece")", "WordPiece"},
      {R"("type": "BPE")", R"("type": "WordLevel")", "WordLevel"},
      {R"("type": "BPE")", R"("type": "Unigram")", "list of tokens"},
      {R"("type": "BPE")", R"("type": 4)", "type"},
      {R"("type": "BPE")", R"("type": "BPE", "dropout": 0.1)", "dropout"},
      {R"("type": "BPE")", R"("type": "BPE", "end_of_word_suffix": "</w>")", "</w>"},
      {R"("type": "ByteLevel", "add_prefix_space")", R"("type": "UnicodeScripts", "x")",
       "UnicodeS"},
      {R"("type": "ByteLevel", "add_prefix_space")", R"("type": "Whitespace", "x")", "ByteLevel"},
      {R"("pre_tokenizer")", R"("pre")", "ByteLevel"},
      {R"("decoder": {"type": "ByteLevel"})", R"("decoder": {"type": "WordPiece"})", "WordPiece"},
      {R"("decoder")", R"("normalizer": {"type": "Nmt"}, "decoder")", "Nmt"},
      {R"("id": 3)", R"("id": 99999999)", "99999999"},
      {R"("id": 3, )", "", "id"},
      {R"("<|endoftext|>")", R"("")", "empty"},
      {R"(["a b"]})", R"(["a b"])", "f"},  // the JSON itself is broken
  };
  for (const auto& c : cases) {
    std::string text = good;
    const size_t at = text.find(c.from);
    ASSERT_NE(at, std::string::npos) << c.from;
    text.replace(at, std::string_view(c.from).size(), c.to);
    EXPECT_ERROR(Tokenizer::parse(text, "f"), c.says);
  }
  for (size_t n = 0; n < good.size() - 1; ++n) {
    error_of([&] { Tokenizer::parse(good.substr(0, n), "f"); });
  }
  EXPECT_ERROR(Tokenizer::load("/nonexistent/tokenizer.json"), "/nonexistent");
}

TEST(TokenizerJson, RandomDamageNeverGetsThrough) {
  const std::string good = Tokenizer(spec_of({{"a", "b"}, {"ab", "ab"}})).to_json();
  Rng rng(3);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text = good;
    for (uint64_t n = 1 + rng.below(4); n > 0; --n) {
      text[rng.below(text.size())] = static_cast<char>(rng.below(256));
    }
    try {
      const Tokenizer t = Tokenizer::parse(text, "f");
      t.decode(t.encode("abab <|endoftext|> x"));
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace hocket::data
