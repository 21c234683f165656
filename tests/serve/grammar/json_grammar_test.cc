// SPDX-License-Identifier: Apache-2.0
// Constraints as the engine uses them: control tokens, calls of tools, the cache, the docs.
#include "serve/grammar/json_grammar.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "serve/grammar/keywords.h"
#include "tests/log_util.h"
#include "tests/serve/grammar/grammar_util.h"

namespace hocket::test {
namespace {

using serve::GrammarVocabulary;
using serve::JsonGrammar;
using serve::ToolCallForm;

const OrderedJson& two_tools() {
  static const OrderedJson tools = OrderedJson::parse(R"([
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
      "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
      "required": ["city"]}}},
    {"type": "function", "function": {"name": "now"}}])");
  return tools;
}

/// Bytes, and the control tokens 256 to 258.
std::shared_ptr<const GrammarVocabulary> vocabulary_with_marks() {
  std::vector<std::string> tokens = byte_tokens();
  tokens.resize(259);
  return std::make_shared<const GrammarVocabulary>(
      tokens, std::vector<std::pair<int32_t, std::string>>{
                  {256, "<tool_call>"}, {257, "[TOOL_CALLS]"}, {258, "<|im_end|>"}});
}

/// Returns whether the constraint takes the bytes of the text, and it may end there.
bool takes(serve::TokenConstraint* constraint, const GrammarVocabulary& vocabulary,
           const std::string& text) {
  for (char c : text) {
    const std::vector<int32_t> allowed = allowed_tokens(constraint, vocabulary);
    const auto token = static_cast<int32_t>(static_cast<uint8_t>(c));
    if (std::find(allowed.begin(), allowed.end(), token) == allowed.end()) return false;
    constraint->accept(token);
  }
  return constraint->may_end();
}

TEST(ToolCalls, HaveTheFormThatTheParserReads) {
  const auto vocabulary = vocabulary_with_marks();
  const auto check = [&](ToolCallForm form, int64_t calls, const std::string& name,
                         const std::string& text) {
    const auto constraint =
        serve::tool_call_constraint(two_tools(), {form, name, calls}, vocabulary);
    return takes(constraint.get(), *vocabulary, text);
  };
  const std::string city = R"({"name": "weather", "arguments": {"city": "Rom", "days": 2}})";
  const std::string now = R"({"name": "now", "arguments": {}})";
  const std::string hermes = "<tool_call>\n" + city + "\n</tool_call>";
  EXPECT_TRUE(check(ToolCallForm::hermes, 1, "", hermes));
  EXPECT_TRUE(check(ToolCallForm::hermes, 1, "weather", hermes));
  EXPECT_FALSE(check(ToolCallForm::hermes, 1, "now", hermes));
  EXPECT_FALSE(check(ToolCallForm::hermes, 1, "", hermes + "\n" + hermes));
  EXPECT_TRUE(check(ToolCallForm::hermes, -1, "", hermes + "\n" + hermes));
  EXPECT_FALSE(check(ToolCallForm::hermes, 1, "", city));
  EXPECT_FALSE(check(ToolCallForm::hermes, 1, "",
                     "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1}}\n</tool_call>"));
  EXPECT_TRUE(check(ToolCallForm::mistral, 2, "", "[TOOL_CALLS][" + city + ", " + now + "]"));
  EXPECT_TRUE(check(ToolCallForm::mistral, 2, "", "[TOOL_CALLS] [" + now + "]"));
  EXPECT_FALSE(check(ToolCallForm::mistral, 1, "", "[TOOL_CALLS][" + city + ", " + now + "]"));
  EXPECT_TRUE(check(ToolCallForm::llama3_json, 1, "",
                    R"({"name": "weather", "parameters": {"city": "Rom"}})"));
  EXPECT_FALSE(check(ToolCallForm::llama3_json, 1, "", now));
}

TEST(ToolCalls, ControlTokensStandOnlyForTheirMarks) {
  const auto vocabulary = vocabulary_with_marks();
  const auto hermes = serve::tool_call_constraint(two_tools(), {}, vocabulary);
  EXPECT_EQ(allowed_tokens(hermes.get(), *vocabulary), (std::vector<int32_t>{'<', 256}));
  hermes->accept(256);
  EXPECT_TRUE(
      takes(hermes.get(), *vocabulary, "\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"));
  const auto text = JsonGrammar::of_schema(nullptr, vocabulary)->constraint();
  EXPECT_EQ(allowed_tokens(text.get(), *vocabulary), (std::vector<int32_t>{'{'}));
}

TEST(ToolCalls, InvalidToolsAreRefused) {
  const auto error = [](const char* tools, const std::string& name) {
    const OrderedJson json = OrderedJson::parse(tools);
    return error_of([&] {
      serve::tool_call_constraint(json, {ToolCallForm::hermes, name, 1}, vocabulary_with_marks());
    });
  };
  EXPECT_NE(error("[]", "").find("[tools]"), std::string::npos);
  EXPECT_NE(error("[3]", "").find("[tools[0]] no function"), std::string::npos);
  EXPECT_NE(error(R"([{"function": {}}])", "").find("no name"), std::string::npos);
  EXPECT_NE(error(R"([{"function": {"name": "f"}}])", "g").find("no function is named"),
            std::string::npos);
  const std::string bad = error(R"([{"function": {"name": "f", "parameters": {"not": {}}}}])", "");
  EXPECT_NE(bad.find("[json schema #/not]"), std::string::npos) << bad;
  EXPECT_NE(bad.find("parameters of 'f'"), std::string::npos) << bad;
}

TEST(JsonGrammar, TheCacheSharesGrammarsAndForgetsTheOldest) {
  serve::JsonGrammarCache cache(vocabulary_with_marks(), 2);
  const OrderedJson a = {{"type", "string"}}, b = {{"type", "integer"}};
  const auto first = cache.of_schema(&a);
  EXPECT_EQ(cache.of_schema(&a), first);
  const auto any = cache.of_schema(nullptr);
  EXPECT_NE(any, first);
  EXPECT_EQ(cache.of_schema(&a), first);
  cache.of_schema(&b);  // `any` goes
  EXPECT_EQ(cache.of_schema(&a), first);
  EXPECT_NE(cache.of_schema(nullptr), any);
  EXPECT_EQ(cache.of_tools(two_tools(), {}), cache.of_tools(two_tools(), {}));
}

TEST(JsonGrammar, TheCacheHasABoundOfBytes) {
  const auto vocabulary = vocabulary_with_marks();
  const auto words = [](const std::string& word) {
    OrderedJson schema = {{"enum", OrderedJson::array()}};
    for (int i = 0; i < 500; ++i) {
      schema["enum"].push_back(word + std::to_string(i));
    }
    return schema;
  };
  const OrderedJson a = words("a"), b = words("b");
  const int64_t bytes = JsonGrammar::of_schema(&a, vocabulary)->compiled_bytes();
  EXPECT_GT(bytes, 0);
  serve::JsonGrammarCache both(vocabulary, 32, 3 * (bytes + 2 * std::ssize(a.dump())));
  const auto kept = both.of_schema(&a);
  both.of_schema(&b);
  EXPECT_EQ(both.of_schema(&a), kept);
  serve::JsonGrammarCache one(vocabulary, 32, bytes);
  const auto first = one.of_schema(&a);  // alone it may be too large
  EXPECT_EQ(one.of_schema(&a), first);
  one.of_schema(&b);
  EXPECT_NE(one.of_schema(&a), first);
}

TEST(JsonGrammar, TheCacheReportsWhatIsNotEnforcedOnce) {
  serve::JsonGrammarCache cache(vocabulary_with_marks());
  const OrderedJson schema = {{"type", "string"}, {"format", "phone"}};
  const LogLines logged;
  cache.of_schema(&schema);
  cache.of_schema(&schema);
  ASSERT_EQ(logged.lines().size(), 1u);
  EXPECT_NE(logged.text().find("is not enforced"), std::string::npos) << logged.text();
}

TEST(JsonGrammar, ValuesThatAreNoTextsOfTheirFormatAreLeftOut) {
  ByteReader reader =
      ByteReader::of(R"({"type": "string", "format": "date", "enum": ["abc", "2024-02-29"]})");
  EXPECT_TRUE(reader.accepts("\"2024-02-29\""));
  EXPECT_EQ(reader.allowed("\"abc\""), 1u);
  const OrderedJson none = {{"type", "string"}, {"format", "date"}, {"enum", {"abc"}}};
  const std::string error =
      error_of([&] { JsonGrammar::of_schema(&none, vocabulary_with_marks()); });
  EXPECT_NE(error.find("no value satisfies"), std::string::npos) << error;
}

TEST(JsonGrammar, StringsOfSeveralBranchesAreThoseOfAnyBranch) {
  ByteReader reader = ByteReader::of(R"({"anyOf": [
      {"type": "string", "maxLength": 1}, {"type": "string", "minLength": 2, "maxLength": 3},
      {"type": "string", "minLength": 6, "maxLength": 7}, {"type": "string", "pattern": "^a{9}$"},
      {"type": "string", "pattern": "^b+$", "minLength": 10}, {"type": "integer"},
      {"enum": ["long enough", 12, 1.5]}]})");
  for (const char* text : {"\"\"", "\"xy\"", "\"xyz\"", "\"xxxxxx\"", "\"xxxxxxx\"",
                           "\"aaaaaaaaa\"", "\"bbbbbbbbbbb\"", "7", "\"long enough\"", "1.5"}) {
    EXPECT_TRUE(reader.accepts(text)) << text;
  }
  for (const char* text :
       {"\"xxxx\"", "\"xxxxxxxx\"", "\"aaaaaaaa\"", "\"bbbbbbbbb\"", "\"ccccccccccc\"", "2.5"}) {
    EXPECT_FALSE(reader.accepts(text)) << text;
  }
}

/// Bytes, and as control tokens or as others <think> and </think>, 256 and 257.
std::shared_ptr<const GrammarVocabulary> reasoning_vocabulary(bool special) {
  std::vector<std::string> tokens = byte_tokens();
  tokens.resize(258);
  if (special) {
    return std::make_shared<const GrammarVocabulary>(
        tokens, std::vector<std::pair<int32_t, std::string>>{{256, "<think>"}, {257, "</think>"}});
  }
  tokens[256] = "<think>";
  tokens[257] = "</think>";
  return std::make_shared<const GrammarVocabulary>(tokens);
}

TEST(JsonGrammar, ReasoningComesBeforeTheText) {
  const OrderedJson schema = {{"const", "abc"}};
  for (const bool special : {false, true}) {
    const auto vocabulary = reasoning_vocabulary(special);
    const auto allows = [&](serve::TokenConstraint* constraint, int32_t token) {
      const std::vector<int32_t> allowed = allowed_tokens(constraint, *vocabulary);
      return std::find(allowed.begin(), allowed.end(), token) != allowed.end();
    };
    // The prompt has opened it.
    auto constraint = serve::json_constraint(&schema, vocabulary);
    constraint->begin_with_reasoning(true, {'#'});
    EXPECT_TRUE(allows(constraint.get(), 'x'));
    EXPECT_FALSE(allows(constraint.get(), '#'));  // it would end the text
    EXPECT_FALSE(takes(constraint.get(), *vocabulary, "</thin \"abc\""));
    EXPECT_TRUE(allows(constraint.get(), 'x'));
    constraint->accept(257);
    EXPECT_FALSE(allows(constraint.get(), 'x'));
    EXPECT_TRUE(takes(constraint.get(), *vocabulary, "\"abc\""));
    // The mark byte by byte.
    constraint = serve::json_constraint(&schema, vocabulary);
    constraint->begin_with_reasoning(true, {});
    EXPECT_TRUE(takes(constraint.get(), *vocabulary, "<</think>\"abc\""));
    // The model opens it, or not.
    constraint = serve::json_constraint(&schema, vocabulary);
    constraint->begin_with_reasoning(false, {});
    EXPECT_TRUE(allows(constraint.get(), 256));
    EXPECT_FALSE(allows(constraint.get(), 'x'));
    constraint->accept(256);
    EXPECT_TRUE(allows(constraint.get(), 'x'));
    EXPECT_FALSE(constraint->may_end());
    constraint->accept(257);
    EXPECT_TRUE(takes(constraint.get(), *vocabulary, "\"abc\""));
    constraint = serve::json_constraint(&schema, vocabulary);
    constraint->begin_with_reasoning(false, {});
    EXPECT_TRUE(takes(constraint.get(), *vocabulary, "\"abc\""));
    EXPECT_FALSE(allows(constraint.get(), 256));
  }
}

/// Forgetting states in the middle of texts changes nothing.
TEST(JsonGrammar, ForgettingStatesWithinATextChangesNothing) {
  const auto vocabulary = vocabulary_with_marks();
  const OrderedJson schema = {{"type", "string"}, {"maxLength", 60'000}};
  const auto grammar = JsonGrammar::of_schema(&schema, vocabulary);
  const auto one = grammar->constraint(), other = grammar->constraint();
  one->accept('"');
  other->accept('"');
  size_t most = 0;
  for (int i = 0; i < 30'000; ++i) {
    one->accept('a');
    most = std::max(most, grammar->states());
  }
  EXPECT_LT(grammar->states(), most);  // they were forgotten
  EXPECT_TRUE(takes(other.get(), *vocabulary, "b\""));
  one->accept('"');
  EXPECT_TRUE(one->may_end());
}

TEST(JsonGrammar, StatesOfAllGrammarsHaveOneBound) {
  constexpr int64_t kMaxBytes = int64_t{4} << 20;
  JsonGrammar::bound_all(kMaxBytes);
  const auto vocabulary = vocabulary_with_marks();
  serve::JsonGrammarCache cache(vocabulary);
  std::vector<std::shared_ptr<serve::TokenConstraint>> texts;
  for (const int length : {50'000, 50'001, 50'002, 50'003}) {
    const OrderedJson schema = {{"type", "string"}, {"maxLength", length}};
    texts.push_back(cache.of_schema(&schema)->constraint());
    texts.back()->accept('"');
  }
  int64_t most = 0;
  for (int i = 0; i < 2'500; ++i) {
    for (const auto& text : texts) {
      text->accept('a');
      most = std::max(most, JsonGrammar::bytes_of_all());
    }
  }
  EXPECT_GT(most, kMaxBytes / 2);
  EXPECT_LT(most, kMaxBytes + kMaxBytes / 4);
  for (const auto& text : texts) {
    EXPECT_TRUE(takes(text.get(), *vocabulary, "b\""));
  }
  // Grammars that nobody uses give theirs back, too.
  texts.clear();
  JsonGrammar::bound_all(kMaxBytes / 8);
  cache.of_schema(nullptr);
  EXPECT_LT(JsonGrammar::bytes_of_all(), kMaxBytes / 8);
  JsonGrammar::bound_all();
}

TEST(JsonGrammar, AVocabularyWithoutTheBytesIsAnError) {
  const auto vocabulary =
      std::make_shared<const GrammarVocabulary>(std::vector<std::string>{"{", "}", "a"});
  const OrderedJson schema = {{"type", "string"}};
  const std::string error = error_of([&] {
    const auto constraint = serve::json_constraint(&schema, vocabulary);
    allowed_tokens(constraint.get(), *vocabulary);
  });
  EXPECT_NE(error.find("no token of the vocabulary"), std::string::npos) << error;
}

/// HOCKET_UPDATE=1 rewrites the page instead.
TEST(JsonGrammar, TheDocumentationListsKeywordsAndFormats) {
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  const std::string path = std::string(root ? root : ".") + "/docs/structured-output.md";
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::string page = text.str();
  for (const auto& [name, table] : {std::pair{"keywords", serve::grammar::keyword_table()},
                                    std::pair{"formats", serve::grammar::format_table()}}) {
    const std::string begin = std::string("<!-- ") + name + " -->\n", end = "<!-- end -->\n";
    const size_t from = page.find(begin);
    ASSERT_NE(from, std::string::npos) << path;
    const size_t to = page.find(end, from);
    ASSERT_NE(to, std::string::npos) << path;
    const std::string now = page.substr(from + begin.size(), to - from - begin.size());
    if (std::getenv("HOCKET_UPDATE")) {
      page.replace(from + begin.size(), now.size(), table);
    } else {
      EXPECT_EQ(now, table) << "run this test with HOCKET_UPDATE=1 and read the diff";
    }
  }
  if (std::getenv("HOCKET_UPDATE")) {
    std::ofstream(path) << page;
  }
}

}  // namespace
}  // namespace hocket::test
