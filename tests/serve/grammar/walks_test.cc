// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Texts of schemas: all that jsonschema calls valid can be written, nothing that it calls invalid,
// and random tokens lead to valid texts. HOCKET_SAMPLES=FILE writes the random ones for another
// validator: a line each, [name, text].
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tests/serve/grammar/grammar_util.h"

namespace hocket::test {
namespace {

using serve::GrammarVocabulary;
using serve::JsonGrammar;

TEST(SchemaTexts, ValidTextsMayBeWrittenAndInvalidOnesMayNot) {
  size_t valid = 0, invalid = 0;
  for (const OrderedJson& each : peer_instances()) {
    ByteReader reader(each.at("schema"));
    for (const std::string text : each.at("valid")) {
      ++valid;
      EXPECT_EQ(reader.allowed(text), text.size()) << each.at("name") << "\n" << text;
      EXPECT_TRUE(reader.accepts(text)) << each.at("name") << "\n" << text;
    }
    for (const std::string text : each.at("invalid")) {
      ++invalid;
      EXPECT_FALSE(reader.accepts(text)) << each.at("name") << "\n" << text;
    }
  }
  EXPECT_GT(valid, 500U);
  EXPECT_GT(invalid, 1000U);
}

/// Checks random texts of every schema; a text that is cut is the beginning of a valid one, as it
/// is one that goes on to its end.
void expect_valid_texts(const std::vector<std::string>& tokens, uint64_t seed) {
  const auto vocabulary = std::make_shared<const GrammarVocabulary>(tokens);
  const char* path = std::getenv("HOCKET_SAMPLES");
  std::ofstream samples;
  if (path != nullptr) {
    samples.open(path, std::ios::app);
  }
  Rng rng(seed);
  for (const OrderedJson& each : peer_instances()) {
    const std::string schema_text = each.at("schema").dump();
    const nlohmann::json schema = nlohmann::json::parse(schema_text);
    const auto grammar = JsonGrammar::of_schema(&each.at("schema"), vocabulary);
    for (size_t free : {0, 3, 10, 40, 150}) {
      const auto constraint = grammar->constraint();
      const RandomText random = random_text(constraint.get(), *vocabulary, free, &rng);
      ASSERT_TRUE(random.ended) << each.at("name") << "\n" << random.text.substr(0, 2000);
      const nlohmann::json value = nlohmann::json::parse(random.text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << each.at("name") << "\n" << random.text;
      EXPECT_TRUE(is_valid(schema, value)) << each.at("name") << "\n" << random.text;
      if (path != nullptr) {
        samples << OrderedJson::array({each.at("name"), random.text}).dump() << "\n";
      }
    }
  }
}

TEST(SchemaTexts, RandomBytesAreValid) { expect_valid_texts(byte_tokens(), 1); }
TEST(SchemaTexts, RandomTokensAreValid) { expect_valid_texts(mixed_tokens(), 2); }

TEST(SchemaTexts, TheValidatorOfTheTestsRefusesInvalidTexts) {
  for (const OrderedJson& each : peer_instances()) {
    const nlohmann::json schema = nlohmann::json::parse(each.at("schema").dump());
    for (const std::string text : each.at("invalid")) {
      EXPECT_FALSE(is_valid(schema, nlohmann::json::parse(text))) << each.at("name") << text;
    }
  }
}

TEST(SchemaTexts, AreAnyJsonObjectWithoutASchema) {
  const auto vocabulary = std::make_shared<const GrammarVocabulary>(mixed_tokens());
  const auto grammar = JsonGrammar::of_schema(nullptr, vocabulary);
  Rng rng(3);
  for (int i = 0; i < 40; ++i) {
    const auto constraint = grammar->constraint();
    const RandomText random = random_text(constraint.get(), *vocabulary, 120, &rng);
    ASSERT_TRUE(random.ended);
    const nlohmann::json value = nlohmann::json::parse(random.text, nullptr, false);
    EXPECT_TRUE(value.is_object()) << random.text;
  }
}

/// Masks are those of the tokens' bytes, read one after the other.
TEST(SchemaTexts, MasksAreThoseOfTheBytes) {
  const std::vector<std::string> tokens = mixed_tokens();
  const auto vocabulary = std::make_shared<const GrammarVocabulary>(tokens);
  Rng rng(4);
  for (const OrderedJson& each : peer_instances()) {
    ByteReader reader(each.at("schema"));
    const auto constraint = serve::json_constraint(&each.at("schema"), vocabulary);
    std::string text;
    for (int step = 0; step < 12; ++step) {
      const std::vector<int32_t> allowed = allowed_tokens(constraint.get(), *vocabulary);
      std::vector<int32_t> expected;
      for (size_t id = 0; id < tokens.size(); ++id) {
        const std::string longer = text + tokens[id];
        if (!tokens[id].empty() && reader.allowed(longer) == longer.size()) {
          expected.push_back(static_cast<int32_t>(id));
        }
      }
      ASSERT_EQ(allowed, expected) << each.at("name") << "\n" << text;
      EXPECT_EQ(constraint->may_end(), reader.accepts(text)) << text;
      if (allowed.empty()) break;
      const int32_t token = allowed[rng.below(allowed.size())];
      constraint->accept(token);
      text += tokens[static_cast<size_t>(token)];
    }
  }
}

}  // namespace
}  // namespace hocket::test
