// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Schemas that are refused, by keyword and place, and schemas made to cost much.
#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "base/ordered_json.h"
#include "serve/grammar/compile.h"
#include "serve/grammar/keywords.h"
#include "tests/fuzz_util.h"
#include "tests/serve/grammar/grammar_util.h"

namespace hocket::test {
namespace {

using serve::GrammarVocabulary;
using serve::JsonGrammar;

std::shared_ptr<const GrammarVocabulary> byte_vocabulary() {
  static const auto vocabulary = std::make_shared<const GrammarVocabulary>(byte_tokens());
  return vocabulary;
}

std::string refusal(const std::string& schema) {
  const OrderedJson json = OrderedJson::parse(schema);
  return error_of([&] { JsonGrammar::of_schema(&json, byte_vocabulary()); });
}

#define EXPECT_REFUSED(schema, place, words)                                               \
  do {                                                                                     \
    const std::string text = refusal(schema);                                              \
    EXPECT_NE(text.find("[json schema " place "]"), std::string::npos) << (schema) << "\n" \
                                                                       << text;            \
    EXPECT_NE(text.find(words), std::string::npos) << (schema) << "\n" << text;            \
  } while (false)

TEST(SchemaRefusals, EveryUnsupportedKeywordIsNamedWithItsPlace) {
  int refused = 0;
  for (const serve::grammar::Keyword& keyword : serve::grammar::schema_keywords()) {
    OrderedJson schema = {{"type", "object"}, {"properties", {{"a/b", OrderedJson::object()}}}};
    schema["properties"]["a/b"][std::string(keyword.name)] = OrderedJson::object();
    const std::string text = refusal(schema.dump());
    if (keyword.use == serve::grammar::KeywordUse::refused) {
      ++refused;
      EXPECT_NE(text.find("[json schema #/properties/a~1b/" + std::string(keyword.name) + "]"),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("is not supported"), std::string::npos) << text;
    } else if (keyword.use == serve::grammar::KeywordUse::ignored) {
      EXPECT_EQ(text, "") << keyword.name;
    }
  }
  EXPECT_GT(refused, 15);
}

TEST(SchemaRefusals, UnknownKeywordsAreRefusedUnlessTheyAreExtensions) {
  EXPECT_REFUSED(R"({"type": "string", "minLenght": 3})", "#/minLenght", "unknown keyword");
  EXPECT_EQ(refusal(R"({"type": "string", "x-order": 3})"), "");
  // Where nothing refers to it, it restricts nothing.
  EXPECT_EQ(refusal(R"({"type": "string", "$defs": {"a": {"not": {}}}})"), "");
  EXPECT_REFUSED(R"({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}}})", "#/$defs/a/not",
                 "not supported");
}

TEST(SchemaRefusals, BadValuesOfKeywordsAreRefused) {
  EXPECT_REFUSED(R"({"type": "text"})", "#/type", "unknown type");
  EXPECT_REFUSED(R"({"type": ["string", 3]})", "#/type", "unknown type");
  EXPECT_REFUSED(R"({"enum": []})", "#/enum", "not empty");
  EXPECT_REFUSED(R"({"minLength": -1})", "#/minLength", "bad count");
  EXPECT_REFUSED(R"({"maxItems": 1.5})", "#/maxItems", "bad count");
  EXPECT_REFUSED(R"({"minimum": "3"})", "#/minimum", "bad bound");
  EXPECT_REFUSED(R"({"minimum": 1, "exclusiveMinimum": true})", "#/exclusiveMinimum", "bad bound");
  EXPECT_REFUSED(R"({"multipleOf": 0.01})", "#/multipleOf", "integer");
  EXPECT_REFUSED(R"({"multipleOf": 0})", "#/multipleOf", "integer");
  EXPECT_REFUSED(R"({"multipleOf": 100000, "type": "integer"})", "#", "multipleOf");
  EXPECT_REFUSED(R"({"uniqueItems": true, "maxItems": 2})", "#/uniqueItems", "uniqueItems");
  EXPECT_EQ(refusal(R"({"uniqueItems": false})"), "");
  EXPECT_REFUSED(R"({"properties": []})", "#/properties", "no object");
  EXPECT_REFUSED(R"({"properties": {"a": 3}})", "#/properties/a", "no schema");
  EXPECT_REFUSED(R"({"required": "a"})", "#/required", "no list");
  EXPECT_REFUSED(R"({"required": [1]})", "#/required", "no name");
  EXPECT_REFUSED(R"({"anyOf": []})", "#/anyOf", "not empty");
  EXPECT_REFUSED(R"({"allOf": {}})", "#/allOf", "no list");
  EXPECT_REFUSED(R"({"additionalItems": false})", "#/additionalItems", "items");
  EXPECT_REFUSED(R"({"format": 3})", "#/format", "no text");
  EXPECT_REFUSED("3", "#", "no schema");
  EXPECT_REFUSED("null", "#", "no schema");
}

TEST(SchemaRefusals, ReferencesThatLeadNowhereOrInCirclesAreRefused) {
  EXPECT_REFUSED(R"({"$ref": "#/$defs/a"})", "#", "leads to nothing");
  EXPECT_REFUSED(R"({"$ref": "other.json"})", "#", "not supported");
  EXPECT_REFUSED(R"({"$ref": "#name"})", "#", "not supported");
  EXPECT_REFUSED(R"({"$ref": "#/%zz"})", "#", "leads to nothing");
  EXPECT_REFUSED(R"({"$ref": 3})", "#", "no text");
  EXPECT_REFUSED(R"({"$ref": "#"})", "#", "without a value between");
  EXPECT_REFUSED(R"({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]},
                    "b": {"allOf": [{"$ref": "#/$defs/a"}]}}})",
                 "#/$defs/a", "without a value between");
}

TEST(SchemaRefusals, SchemasThatNoValueFulfilsAreRefused) {
  for (const char* schema :
       {"false", R"({"type": "string", "enum": [1]})", R"({"minLength": 3, "maxLength": 2})",
        R"({"type": "integer", "minimum": 3, "maximum": 2})",
        R"({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4})",
        R"({"type": "object", "properties": {"a": false}, "required": ["a"]})",
        R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
        R"({"allOf": [{"type": "string"}, {"type": "integer"}]})",
        R"({"type": "string", "pattern": "^a$", "minLength": 2})",
        R"({"type": "array", "items": false, "minItems": 1})"}) {
    EXPECT_REFUSED(schema, "#", "no value");
  }
}

TEST(SchemaRefusals, BranchesOfOneOfThatOverlapAreRefused) {
  EXPECT_REFUSED(R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "#/oneOf/0", "oneOf");
  EXPECT_REFUSED(R"({"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string"}]})",
                 "#/oneOf/0", "oneOf");
  EXPECT_REFUSED(R"({"type": "object", "properties": {"a": {}, "b": {}},
                     "oneOf": [{"required": ["a"]}, {"required": ["b"]}]})",
                 "#/oneOf/0", "oneOf");
  // Only one of the properties is written here.
  EXPECT_EQ(refusal(R"({"oneOf": [
      {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": false},
      {"type": "object", "properties": {"b": {}}, "required": ["b"],
       "additionalProperties": false}]})"),
            "");
  EXPECT_EQ(refusal(R"({"oneOf": [{"type": "string", "pattern": "^a"},
                                  {"type": "string", "pattern": "^b"}]})"),
            "");
}

TEST(SchemaRefusals, ImpossibleCountsOfPropertiesAreRefused) {
  EXPECT_REFUSED(R"({"type": "object", "minProperties": 2})", "#", "minProperties");
  EXPECT_REFUSED(R"({"type": "object", "properties": {"a": {}}, "minProperties": 2})", "#",
                 "minProperties");
}

TEST(SchemaRefusals, UnenforcedFormatsAreReported) {
  const OrderedJson schema =
      OrderedJson::parse(R"({"type": "array", "items": {"type": "string", "format": "binary"}})");
  const auto grammar = JsonGrammar::of_schema(&schema, byte_vocabulary());
  ASSERT_EQ(grammar->warnings().size(), 1U);
  EXPECT_NE(grammar->warnings()[0].find("[json schema #/items/format] format 'binary'"),
            std::string::npos)
      << grammar->warnings()[0];
}

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Each compiles, or is refused with words, in bounded time.
TEST(SchemaRefusals, HostileSchemasAreBounded) {
  std::vector<OrderedJson> schemas;
  OrderedJson all = OrderedJson::array();  // 2^24 alternatives
  for (int i = 0; i < 24; ++i) {
    const std::string a = "a" + std::to_string(i), b = "b" + std::to_string(i);
    all.push_back({{"anyOf", {{{"required", {a}}}, {{"required", {b}}}}}});
  }
  schemas.push_back({{"type", "object"}, {"allOf", all}});
  OrderedJson defs = OrderedJson::object();  // 3^30 ways down
  for (int i = 0; i < 30; ++i) {
    const OrderedJson next = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    defs["d" + std::to_string(i)] = {{"anyOf", {next, {{"allOf", {next}}}, {{"oneOf", {next}}}}}};
  }
  defs["d30"] = {{"type", "null"}};
  schemas.push_back({{"$ref", "#/$defs/d0"}, {"$defs", defs}});
  OrderedJson chain = OrderedJson::object();
  for (int i = 0; i < 5000; ++i) {
    chain["d" + std::to_string(i)] = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
  }
  chain["d5000"] = true;
  schemas.push_back({{"$ref", "#/$defs/d0"}, {"$defs", chain}});
  OrderedJson names = OrderedJson::object();
  for (int i = 0; i < 6000; ++i) {
    names["name" + std::to_string(i)] = {{"type", "integer"}};
  }
  schemas.push_back({{"type", "object"}, {"properties", names}});
  for (const char* pattern : {"(a|b|ab)*c{1,5000}", "(.*a){30}", "((a{1,100}){1,100}){1,100}",
                              "(a|aa)*[ab]{12}x", "(((((((((()*)*)*)*)*)*)*)*)*)*",
                              "(){10000}(){10000}", "((x{0,9999}){0,9999})", "[^a]*a.{14}$"}) {
    schemas.push_back({{"type", "string"}, {"pattern", pattern}});
  }
  schemas.push_back({{"type", "string"}, {"minLength", 1'000'000'000}});
  schemas.push_back({{"type", "string"}, {"pattern", "^a"}, {"maxLength", 1'000'000'000}});
  schemas.push_back({{"type", "array"}, {"minItems", 1'000'000'000}});
  schemas.push_back({{"type", "number"}, {"minimum", 1e-300}});
  schemas.push_back({{"type", "integer"}, {"maximum", 1e300}});
  for (const OrderedJson& schema : schemas) {
    std::string text;
    const double seconds = seconds_of([&] {
      text = error_of([&] {
        const auto constraint = serve::json_constraint(&schema, byte_vocabulary());
        allowed_tokens(constraint.get(), *byte_vocabulary());
      });
    });
    EXPECT_LT(seconds, 5) << schema.dump().substr(0, 200) << "\n" << text;
  }
}

/// 49,152 tokens: bytes, and words with blanks, quotes and brackets.
const GrammarVocabulary& large_vocabulary() {
  static const GrammarVocabulary vocabulary = [] {
    std::vector<std::string> tokens = byte_tokens();
    Rng rng(5);
    const std::string_view letters = "etaoinshrdlucmfwypvbgkjqxzETAOI0123456789 \"{}[],:_-";
    while (tokens.size() < 49'152) {
      std::string word = rng.below(2) == 0 ? " " : "";
      for (uint64_t i = 0, n = 2 + rng.below(10); i < n; ++i) {
        word += letters[std::min(rng.below(letters.size()), rng.below(letters.size()))];
      }
      tokens.push_back(word);
    }
    return GrammarVocabulary(tokens);
  }();
  return vocabulary;
}

/// The most work of a mask of 50 tokens' text; `ended` gets the error that ends the text.
int64_t most_work_of_masks(const OrderedJson& schema, std::string* ended) {
  using serve::grammar::Matcher;
  const GrammarVocabulary& vocabulary = large_vocabulary();
  serve::grammar::Grammar grammar;
  serve::grammar::JsonParts parts(&grammar);
  serve::grammar::SchemaReader reader(schema);
  grammar.finish(serve::grammar::SchemaCompiler(&grammar, &parts, &reader).compile(reader.root()));
  Matcher matcher(grammar, vocabulary);
  Matcher::StateId state = matcher.start();
  Rng rng(3);
  int64_t most = 0;
  for (int i = 0; i < 50; ++i) {
    const int64_t before = matcher.work();
    *ended = error_of([&] { matcher.mask(state); });
    most = std::max(most, matcher.work() - before);
    if (!ended->empty()) break;
    const std::span<const uint32_t> mask = matcher.mask(state);
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < vocabulary.size(); ++token) {
      const bool has = (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
      const bool closes = i > 0 && vocabulary.bytes(token).find('"') != std::string_view::npos;
      if (has && !closes) {
        allowed.push_back(token);
      }
    }
    if (allowed.empty()) break;
    state = matcher.step(state, vocabulary.bytes(allowed[rng.below(allowed.size())]));
  }
  return most;
}

/// anyOf of so many branches, made of a string of its own lengths each.
OrderedJson branches(int count, int most, const std::function<OrderedJson(OrderedJson)>& made) {
  OrderedJson list = OrderedJson::array();
  for (int i = 0; i < count; ++i) {
    list.push_back(made({{"type", "string"}, {"minLength", i}, {"maxLength", most + i}}));
  }
  return {{"anyOf", list}};
}

TEST(SchemaRefusals, MasksOfHostileSchemasAreBounded) {
  const auto same = [](OrderedJson text) { return text; };
  const auto in_object = [](const OrderedJson& text) {
    return OrderedJson{{"type", "object"}, {"properties", {{"a", text}}}, {"required", {"a"}}};
  };
  const auto with_gaps = [](OrderedJson text) {
    text["minLength"] = 3 * text["minLength"].get<int>();
    text["maxLength"] = text["minLength"].get<int>() + 1;
    return text;
  };
  // A state's row is made whole.
  using serve::grammar::Matcher;
  constexpr int64_t kMost = Matcher::kMaxMaskWork + Matcher::kMaxRowWork + 400'000;
  std::string ended;
  // Strings of all lengths are one expression, and cost nothing.
  EXPECT_LT(most_work_of_masks(branches(1900, 5000, same), &ended), 100'000);
  EXPECT_EQ(ended, "");
  EXPECT_LT(most_work_of_masks(branches(500, 1000, same), &ended), 100'000);
  EXPECT_LT(most_work_of_masks(branches(300, 0, with_gaps), &ended), kMost);
  EXPECT_LT(most_work_of_masks(branches(1900, 5000, in_object), &ended), kMost);
  EXPECT_NE(ended, "");
  // Objects of many members, and lists of values, are no hostile ones.
  OrderedJson members = OrderedJson::object(), values = OrderedJson::array();
  for (int i = 0; i < 3000; ++i) {
    members["name" + std::to_string(i * 7919 % 100'003)] = {{"type", "integer"}};
    values.push_back(i * 7919);
  }
  EXPECT_LT(most_work_of_masks({{"type", "object"}, {"properties", members}}, &ended), kMost);
  EXPECT_EQ(ended, "");
  EXPECT_LT(most_work_of_masks({{"enum", values}}, &ended), 100'000);
  EXPECT_EQ(ended, "");
}

/// A mask that is made in parts is the whole one, whatever other masks are made between them.
TEST(SchemaRefusals, MasksAreMadeInParts) {
  const OrderedJson schema = {{"type", "object"}};
  serve::grammar::Grammar grammar;
  serve::grammar::JsonParts parts(&grammar);
  serve::grammar::SchemaReader reader(schema);
  grammar.finish(serve::grammar::SchemaCompiler(&grammar, &parts, &reader).compile(reader.root()));
  serve::grammar::Matcher whole(grammar, large_vocabulary()), cut(grammar, large_vocabulary());
  const std::string text = "{\"a";
  const auto of_whole = whole.step(whole.start(), text), of_cut = cut.step(cut.start(), text);
  int64_t rounds = 0;
  for (int64_t work = 200, less = 100; !cut.prepare_mask(of_cut, &work); work = 200, less = 100) {
    cut.prepare_mask(cut.start(), &less);
    ASSERT_LT(++rounds, 100'000);
  }
  EXPECT_GT(rounds, 3);
  EXPECT_TRUE(std::ranges::equal(cut.mask(of_cut), whole.mask(of_whole)));
  EXPECT_TRUE(std::ranges::equal(cut.mask(cut.start()), whole.mask(whole.start())));
}

TEST(SchemaRefusals, LargeEnumsCompile) {
  OrderedJson values = OrderedJson::array();
  for (int i = 0; i < 20'000; ++i) {
    values.push_back("value number " + std::to_string(i * 7919));
  }
  const OrderedJson schema = {{"enum", values}};
  ByteReader reader(schema);
  EXPECT_TRUE(reader.accepts("\"value number 7919\""));
  EXPECT_FALSE(reader.accepts("\"value number 7918\""));
}

/// 2^40 stacks are one state where the branches are one rule; where they are not, an error ends it.
TEST(SchemaRefusals, AmbiguousTextsEndWithAnError) {
  OrderedJson defs = OrderedJson::object();
  for (int i = 0; i < 40; ++i) {
    const OrderedJson next = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    defs["d" + std::to_string(i)] = {
        {"anyOf",
         {{{"type", "object"}, {"properties", {{"x", next}, {"y", true}}}},
          {{"type", "object"}, {"properties", {{"x", next}, {"z", true}}}}}}};
  }
  defs["d40"] = {{"type", "null"}};
  ByteReader reader(OrderedJson{{"$ref", "#/$defs/d0"}, {"$defs", defs}});
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += "{\"x\":";
  }
  const std::string error = error_of([&] { reader.allowed(text); });
  EXPECT_NE(error.find("ways at once"), std::string::npos) << error;
}

TEST(SchemaRefusals, DeepTextsAreLimitedOnlyWithoutASchema) {
  ByteReader list = ByteReader::of(R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "array",
                      "items": {"$ref": "#/$defs/n"}}}})");
  const std::string deep = std::string(20'000, '[') + std::string(20'000, ']');
  EXPECT_TRUE(list.accepts(deep));
  EXPECT_EQ(list.allowed(deep + "]"), deep.size());
  ByteReader any = ByteReader::of("{}");
  EXPECT_TRUE(any.accepts(std::string(64, '[') + std::string(64, ']')));
  EXPECT_EQ(any.allowed(std::string(200, '[')), 64U);
}

TEST(SchemaRefusals, MutatedSchemasNeitherCrashNorHang) {
  std::vector<nlohmann::json> seeds;
  for (const OrderedJson& each : peer_instances()) {
    seeds.push_back(nlohmann::json::parse(each.at("schema").dump()));
  }
  Rng texts(7);
  fuzz(
      1.5,
      [&](Rng* rng) {
        if (rng->below(4) != 0) return mutated_json(seeds, rng);
        return mutated_bytes(seeds[rng->below(seeds.size())].dump(), 400, rng);
      },
      [&](const std::string& input) {
        const OrderedJson schema = parse_ordered_json(input, "schema");
        const auto constraint = serve::json_constraint(&schema, byte_vocabulary());
        const RandomText random = random_text(constraint.get(), *byte_vocabulary(), 20, &texts);
        if (!random.ended) return;  // a long minLength
        const nlohmann::json value = nlohmann::json::parse(random.text, nullptr, false);
        ASSERT_FALSE(value.is_discarded()) << input << "\n" << random.text;
      });
}

}  // namespace
}  // namespace hocket::test
