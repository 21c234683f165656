// SPDX-License-Identifier: Apache-2.0
// Built-in rules: definitions of docs/rewards.md, and scores of verl and TinyZero.
#include <cstdlib>

#include "base/file.h"
#include "base/ordered_json.h"
#include "rl/reward_parts.h"
#include "tests/rl/reward_util.h"

namespace hocket::rl {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::unique_ptr<Reward> rule(const std::string& type, const std::string& extract = "auto",
                             double format_score = 0.1) {
  engine::RewardSection section;
  section.type = type;
  section.extract = extract;
  section.format_score = format_score;
  return make_reward(section, "rl.rewards[0]");
}

std::unique_ptr<Reward> regex_rule(const std::string& pattern) {
  engine::RewardSection section;
  section.type = "regex";
  section.pattern = pattern;
  return make_reward(section, "rl.rewards[0]");
}

const OrderedJson& peer_scores() {
  static const OrderedJson all = [] {
    const char* root = std::getenv("HOCKET_SOURCE_DIR");
    const std::string path = std::string(root != nullptr ? root : ".") +
                             "/tests/peers/reward_scores/fixtures/scores.json";
    return parse_ordered_json(read_file(path), path);
  }();
  return all;
}

TEST(RewardRules, ExactComparesThePart) {
  const auto all = rule("exact");
  EXPECT_EQ(score_under(all.get(), "42", " 42\n"), 1);
  EXPECT_EQ(score_under(all.get(), " 42 ", "42"), 1);
  EXPECT_EQ(score_under(all.get(), "42", "4 2"), 0);
  EXPECT_EQ(score_under(all.get(), 42, "42"), 1);
  EXPECT_EQ(score_under(all.get(), 0.5, "0.5"), 1);
  EXPECT_EQ(score_under(all.get(), OrderedJson::parse(R"(["yes", "y", 1])"), "y"), 1);
  EXPECT_EQ(score_under(all.get(), OrderedJson::parse(R"(["yes", "y", 1])"), "no"), 0);
  EXPECT_EQ(score_under(rule("exact", "last_line").get(), "b", "a\nb\n\n"), 1);
  EXPECT_EQ(score_under(rule("exact", "last_line").get(), "b", "b"), 1);
  EXPECT_EQ(score_under(rule("exact", "last_line").get(), "b", "b\na"), 0);
  EXPECT_EQ(score_under(rule("exact", "after:A: ").get(), "b", "A: a\nA: b"), 1);
  EXPECT_EQ(score_under(rule("exact", "after:A: ").get(), "b", "b"), 0);
  const auto tagged = rule("exact", "answer");
  EXPECT_EQ(score_under(tagged.get(), "b", "<answer>a</answer><answer> b\n</answer> c"), 1);
  EXPECT_EQ(score_under(tagged.get(), "b", "<answer>b</answer> c </answer>"), 1);
  EXPECT_EQ(score_under(tagged.get(), "b", "<answer>b</answer><answer>c"), 1);
  EXPECT_EQ(score_under(tagged.get(), "b", "write <answer> so: <answer>b</answer>"), 1);
  EXPECT_EQ(score_under(tagged.get(), "b", "</answer>b<answer>"), 0);
  EXPECT_EQ(score_under(tagged.get(), "b", "b"), 0);
}

TEST(RewardRules, GroundTruthsOfOtherTypesFail) {
  for (const char* truth : {"null", "true", "{}", "[]", "[null]", "[[1]]"}) {
    const OrderedJson value = OrderedJson::parse(truth);
    EXPECT_TRUE(holds(error_in([&] { score_under(rule("exact").get(), value, "1"); }),
                      "[exact] the ground truth of prompt 7 is "))
        << truth;
    EXPECT_NE(error_in([&] { score_under(regex_rule("(1)").get(), value, "1"); }), "") << truth;
    EXPECT_NE(error_in([&] { score_under(rule("gsm8k").get(), value, "#### 1"); }), "") << truth;
    EXPECT_NE(error_in([&] { score_under(rule("digits").get(), value, "1"); }), "") << truth;
    EXPECT_NE(error_in([&] { score_under(rule("countdown").get(), value, "1"); }), "") << truth;
  }
  for (const char* truth : {"\"\"", "\"1a\"", "\"1 2\"", "-1", "1.5"}) {
    EXPECT_NE(error_in([&] { score_under(rule("digits").get(), OrderedJson::parse(truth), "1"); }),
              "")
        << truth;
  }
  for (const char* truth : {"\"\"", "\"x\"", "\"3/4\"", "\"$5\"", "\"#### x\"", "1.5"}) {
    EXPECT_NE(error_in([&] { score_under(rule("gsm8k").get(), OrderedJson::parse(truth), "1"); }),
              "")
        << truth;
  }
}

TEST(RewardRules, RegexMatchesOrComparesItsGroup) {
  EXPECT_EQ(score_under(regex_rule(R"(^\d+$)").get(), nullptr, "123"), 1);
  EXPECT_EQ(score_under(regex_rule(R"(^\d+$)").get(), nullptr, "12x"), 0);
  EXPECT_EQ(score_under(regex_rule(R"((?m)^b$)").get(), nullptr, "a\nb\nc"), 1);
  const auto last = regex_rule(R"(= *(\d+))");
  EXPECT_EQ(score_under(last.get(), "7", "x = 3, y = 7"), 1);
  EXPECT_EQ(score_under(last.get(), 3, "x = 3, y = 7"), 0);
  EXPECT_EQ(score_under(last.get(), "3", "none"), 0);
  // The group that took part; an empty one; matches of nothing.
  EXPECT_EQ(score_under(regex_rule("a(x)|b(y)").get(), "y", "ax by"), 1);
  EXPECT_EQ(score_under(regex_rule("a(x)?").get(), "", "a"), 1);
  EXPECT_EQ(score_under(regex_rule("(x*)").get(), "", "éa"), 1);
  EXPECT_EQ(score_under(regex_rule("b\\K").get(), nullptr, "ab"), 1);
  // Characters, and bytes that are none.
  EXPECT_EQ(score_under(regex_rule("^.$").get(), nullptr, "é"), 1);
  EXPECT_EQ(score_under(regex_rule("(.)").get(), "b", "a\xff\xfe b"), 1);
  EXPECT_EQ(score_under(regex_rule("^.$").get(), nullptr, "\xff"), 0);
  EXPECT_TRUE(holds(error_in([] { regex_rule("(a"); }), "[rl.rewards[0]] pattern '(a' is no"));
  EXPECT_TRUE(holds(error_in([] { regex_rule(""); }), "regex needs pattern"));
  const auto slow = regex_rule("^(?:a|aa)+$");
  EXPECT_TRUE(holds(error_in([&] { score_under(slow.get(), nullptr, std::string(60, 'a') + "b"); }),
                    "gave up"));
}

TEST(RewardRules, Gsm8kScoresAsVerl) {
  const OrderedJson& held = peer_scores();
  const auto strict = rule("gsm8k", "auto", held.at("format_score").get<double>());
  for (const OrderedJson& row : held.at("gsm8k")) {
    EXPECT_EQ(score_under(strict.get(), row.at("ground_truth"), row.at("answer")),
              row.at("score").get<double>())
        << row;
  }
  EXPECT_GT(held.at("gsm8k").size(), 300U);
}

TEST(RewardRules, Gsm8kReadsOtherGroundTruths) {
  const auto strict = rule("gsm8k");
  EXPECT_EQ(score_under(strict.get(), 72, "#### 72"), 1);
  EXPECT_EQ(score_under(strict.get(), "1,000", "#### 1000"), 1);
  EXPECT_EQ(score_under(strict.get(), "48 + 24 = 72\n#### 72", "so #### 72."), 0.1);
  EXPECT_EQ(score_under(strict.get(), "48 + 24 = 72\n#### 72", "so #### 72"), 1);
  const auto after = rule("gsm8k", "after:Answer:");
  EXPECT_EQ(score_under(after.get(), "72", "Answer: 72"), 1);
  EXPECT_EQ(score_under(after.get(), "72", "Answer: 7"), 0.1);
  EXPECT_EQ(score_under(after.get(), "72", "Answer: 72 apples"), 0);
  EXPECT_EQ(score_under(after.get(), "72", "72"), 0);
}

TEST(RewardRules, CountdownScoresAsTinyZero) {
  const OrderedJson& held = peer_scores();
  const auto tagged = rule("countdown", "auto", held.at("format_score").get<double>());
  for (const OrderedJson& row : held.at("countdown")) {
    const OrderedJson truth = {{"target", row.at("target")}, {"numbers", row.at("numbers")}};
    EXPECT_EQ(score_under(tagged.get(), truth, row.at("answer")), row.at("score").get<double>())
        << row;
  }
  EXPECT_GT(held.at("countdown").size(), 300U);
}

TEST(RewardRules, CountdownIsExact) {
  const auto whole = rule("countdown", "all");
  const auto score = [&](std::vector<int64_t> numbers, int64_t target, const std::string& text) {
    return score_under(whole.get(), {{"target", target}, {"numbers", numbers}}, text);
  };
  EXPECT_EQ(score({3, 3, 8, 8}, 24, "8 / (3 - 8 / 3)"), 1);  // by fractions alone
  EXPECT_EQ(score({1, 3}, 0, "1/3"), 0.1);
  EXPECT_EQ(score({7, 3, 3}, 7, "7 / 3 * 3"), 1);
  EXPECT_EQ(score({3, 5}, 2, "-3 + 5"), 1);
  EXPECT_EQ(score({3, 5}, 2, "5-+3"), 1);
  EXPECT_EQ(score({3, 3, 5}, 2, "5 - 3"), 0.1);   // not all
  EXPECT_EQ(score({3, 5}, 5, "5 + 3 - 3"), 0.1);  // one twice
  EXPECT_EQ(score({3, 5}, 8, "8"), 0.1);          // another
  EXPECT_EQ(score({3, 5}, 8, "3 + 5 = 8"), 0);    // no expression, and no tags
  EXPECT_EQ(score({3, 5}, 8, "3 + 05"), 0);
  EXPECT_EQ(score({2, 3}, 8, "2 ** 3"), 0);
  EXPECT_EQ(score({3, 5}, 8, "(3 + 5"), 0);
  EXPECT_EQ(score({3, 5}, 8, "3 5"), 0);
  EXPECT_EQ(score({3, 5}, 8, "3(5)"), 0);
  EXPECT_EQ(score({3, 5}, 8, "3.0 + 5"), 0);
  EXPECT_EQ(score({3, 5}, 8, ""), 0);
  EXPECT_EQ(score({3, 3, 5}, 8, "5 / (3 - 3)"), 0.1);
  // Beyond 64 bits nothing is hit, and nothing overflows.
  EXPECT_EQ(score({9223372036854775807, 2}, -2, "9223372036854775807 * 2"), 0.1);
  EXPECT_EQ(score({1}, 1, "99999999999999999999"), 0.1);
  EXPECT_EQ(score({9223372036854775807, 1, 1}, 1, "9223372036854775807 + 1 + 1"), 0.1);
  EXPECT_EQ(score({1}, 1, std::string(99, '(') + "1" + std::string(99, ')')), 1);
  EXPECT_EQ(score({1}, 1, std::string(500'000, '(') + "1" + std::string(500'000, ')')), 0);
  EXPECT_EQ(score({1}, 1, std::string(500'000, '-') + "1"), 0);
}

TEST(RewardRules, CountdownReadsColumns) {
  const auto tagged = rule("countdown");
  const Sample right = answer_of("<answer>3 + 5</answer>");
  const auto score = [&](const char* truth, const char* columns) {
    return part_under(tagged.get(), task_of(OrderedJson::parse(truth), OrderedJson::parse(columns)),
                      right)
        .score;
  };
  EXPECT_EQ(score(R"({"target": 8, "numbers": [3, 5]})", "{}"), 1);
  EXPECT_EQ(score("null", R"({"target": 8, "nums": [5, 3]})"), 1);
  EXPECT_EQ(score("null", R"({"target": 8.0, "numbers": [5, 3]})"), 1);
  for (const auto& [truth, columns] : std::vector<std::pair<const char*, const char*>>{
           {"null", "{}"},
           {"null", R"({"target": 8})"},
           {R"({"target": 8})", R"({"numbers": [3, 5]})"},
           {R"("8")", R"({"target": 8, "numbers": [3, 5]})"},
           {"null", R"({"target": "8", "numbers": [3, 5]})"},
           {"null", R"({"target": 8.5, "numbers": [3, 5]})"},
           {"null", R"({"target": 18446744073709551615, "numbers": [3, 5]})"},
           {"null", R"({"target": 8, "numbers": "3 5"})"},
           {"null", R"({"target": 8, "numbers": []})"},
           {"null", R"({"target": 8, "numbers": [3, null]})"}}) {
    EXPECT_TRUE(holds(error_in([&] { score(truth, columns); }), "[countdown] ")) << columns;
  }
}

TEST(RewardRules, DigitsCountRightPositions) {
  const auto all = rule("digits");
  EXPECT_EQ(score_under(all.get(), "4321", "4321"), 2);
  EXPECT_EQ(score_under(all.get(), "4321", " 4321\n"), 2);
  EXPECT_EQ(score_under(all.get(), "4321", "4320"), 0.75);
  EXPECT_EQ(score_under(all.get(), "4321", "43211"), 0.8);  // all right, but longer
  EXPECT_EQ(score_under(all.get(), "4321", "432"), 0.75);
  EXPECT_EQ(score_under(all.get(), "4321", "x321"), 0.75);
  EXPECT_EQ(score_under(all.get(), "4321", "321"), 0);
  EXPECT_EQ(score_under(all.get(), "4321", ""), 0);
  EXPECT_EQ(score_under(all.get(), 120, "120"), 2);
  EXPECT_EQ(score_under(rule("digits", "after:=").get(), "12", "1+2=12"), 2);
  EXPECT_EQ(score_under(rule("digits", "after:=").get(), "12", "12"), 0);
}

TEST(RewardRules, LengthFallsToBothSides) {
  engine::RewardSection section;
  section.type = "length";
  section.target_length = 4;
  const auto reward = make_reward(section, "rl.rewards[0]");
  const auto score = [&](size_t tokens) {
    return part_under(reward.get(), task_of(nullptr), answer_of("", std::vector<int32_t>(tokens)))
        .score;
  };
  EXPECT_EQ(score(0), 0);
  EXPECT_EQ(score(1), 0.25);
  EXPECT_EQ(score(4), 1);
  EXPECT_EQ(score(6), 0.5);
  EXPECT_EQ(score(8), 0);
  EXPECT_EQ(score(100), 0);
}

TEST(RewardRules, JsonSchemaTakesTheWholeAnswer) {
  const OrderedJson schema = OrderedJson::parse(
      R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
          "required": ["a"]})");
  const auto column = rule("json_schema");
  const auto score = [&](const OrderedJson& given, const std::string& answer) {
    return part_under(column.get(), task_of(nullptr, {{"json_schema", given}}), answer_of(answer))
        .score;
  };
  EXPECT_EQ(score(schema, R"({"a": 1})"), 1);
  EXPECT_EQ(score(schema, "\n{\"a\": 1, \"b\": \"x\"} "), 1);
  EXPECT_EQ(score(schema.dump(), R"({"a": 1})"), 1);
  EXPECT_EQ(score(schema, R"({"a": "1"})"), 0);
  EXPECT_EQ(score(schema, R"({"a": 1)"), 0);
  EXPECT_EQ(score(schema, R"(Sure: {"a": 1})"), 0);
  EXPECT_EQ(score(schema, R"({"a": 1} {"a": 1})"), 0);
  EXPECT_EQ(score(schema, R"({"a": 1, "c": 2})"), 1);
  EXPECT_EQ(score(schema, R"({"b": "x", "a": 1})"), 1);
  EXPECT_EQ(score(schema, R"({"b": 2, "a": 1})"), 0);
  EXPECT_EQ(score(schema, R"({"b": "x"})"), 0);
  EXPECT_EQ(score(schema, "{ \"b\" :\"x\",\n\t\"a\":1.0 }"), 1);
  EXPECT_EQ(score(schema, R"({"a": NaN})"), 0);
  EXPECT_EQ(score(schema, "{\"a\": 1, \"b\": \"\xff\"}"), 0);
  EXPECT_EQ(score(schema, ""), 0);
  for (const OrderedJson& bad : {OrderedJson(nullptr), OrderedJson(3), OrderedJson("{"),
                                 OrderedJson::parse(R"({"type": "colour"})")}) {
    EXPECT_NE(error_in([&] { score(bad, "{}"); }), "") << bad;
  }
  EXPECT_TRUE(holds(error_in([&] { score_under(column.get(), nullptr, "{}"); }),
                    "the column json_schema of prompt 7 is missing"));
  const OrderedJson nested = OrderedJson::parse(R"({"items": {"$ref": "#"}})");
  EXPECT_EQ(score(nested, "[[], [[1]]]"), 1);
  EXPECT_TRUE(
      holds(error_in([&] { score(nested, std::string(5000, '[') + std::string(5000, ']')); }),
            "more than 1000 values inside one another"));
  // More schemas than are kept.
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 66; ++i) {
      EXPECT_EQ(score({{"const", i}}, std::to_string(i)), 1);
      EXPECT_EQ(score({{"const", i}}, std::to_string(i + 1)), 0);
    }
  }
}

TEST(RewardRules, JsonSchemaLimitsFurtherProperties) {
  const auto column = rule("json_schema");
  const auto score = [&](const char* schema, const std::string& answer) {
    return part_under(column.get(), task_of(nullptr, {{"json_schema", OrderedJson::parse(schema)}}),
                      answer_of(answer))
        .score;
  };
  const char* closed = R"({"properties": {"a": {}}, "additionalProperties": false})";
  EXPECT_EQ(score(closed, R"({"a": [null]})"), 1);
  EXPECT_EQ(score(closed, R"({"a": 1, "c": 2})"), 0);
  EXPECT_EQ(score(closed, "3"), 1);  // keywords of objects restrict no number
  const char* typed = R"({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}})";
  EXPECT_EQ(score(typed, R"({"c": 2, "a": "x"})"), 1);
  EXPECT_EQ(score(typed, R"({"c": "x"})"), 0);
  const char* one = R"({"oneOf": [{"type": "integer"}, {"minimum": 2}]})";
  EXPECT_EQ(score(one, "1"), 1);
  EXPECT_EQ(score(one, "3"), 0);
  // A value may take as many steps as any other before it.
  std::string numbers = "[0";
  for (int i = 0; i < 20'000; ++i) {
    numbers += ",1";
  }
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(score(R"({"items": {"type": "integer"}})", numbers + "]"), 1);
  }
  EXPECT_NE(
      error_in([&] { score(R"({"properties": {"a": {"items": {"type": "colour"}}}})", "{}"); }),
      "");
}

TEST(RewardRules, JsonSchemaStrictTakesWrittenTexts) {
  engine::RewardSection section;
  section.type = "json_schema";
  section.form = "strict";
  const auto strict = make_reward(section, "rl.rewards[0]");
  const OrderedJson schema = OrderedJson::parse(
      R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
          "required": ["a"]})");
  const auto score = [&](const std::string& answer) {
    return part_under(strict.get(), task_of(nullptr, {{"json_schema", schema}}), answer_of(answer))
        .score;
  };
  EXPECT_EQ(score(R"({"a": 1, "b": "x"})"), 1);
  EXPECT_EQ(score(R"({"a": 1, "c": 2})"), 0);
  EXPECT_EQ(score(R"({"b": "x", "a": 1})"), 0);  // not in the order of the schema
}

TEST(RewardRules, JsonSchemaOfAFile) {
  const std::string path = ::testing::TempDir() + "reward_schema.json";
  engine::RewardSection section;
  section.type = "json_schema";
  section.schema = path;
  write_file_atomic(path, R"({"enum": ["red", "blue"]})");
  const auto reward = make_reward(section, "rl.rewards[0]");
  EXPECT_EQ(score_under(reward.get(), nullptr, "\"red\""), 1);
  EXPECT_EQ(score_under(reward.get(), nullptr, "red"), 0);
  for (const char* bad : {"{", R"({"type": 3})", R"({"enum": []})", "{\"not\": {}}"}) {
    write_file_atomic(path, bad);
    EXPECT_TRUE(holds(error_in([&] { make_reward(section, "rl.rewards[0]"); }),
                      "[rl.rewards[0]] schema " + path))
        << bad;
  }
  remove_file(path);
  EXPECT_NE(error_in([&] { make_reward(section, "rl.rewards[0]"); }), "");
}

TEST(RewardRules, SectionsThatLackSomethingAreRefused) {
  const auto error = [](const std::function<void(engine::RewardSection*)>& change) {
    engine::RewardSection section;
    section.type = "exact";
    change(&section);
    return error_in([&] { make_reward(section, "rl.rewards[2]"); });
  };
  EXPECT_EQ(error([](auto* s) { s->extract = "first"; }),
            "[rl.rewards[2]] extract is 'first'; expected auto, all, last_line, answer or "
            "after:TEXT");
  EXPECT_NE(error([](auto* s) { s->extract = "after:"; }), "");
  EXPECT_NE(error([](auto* s) { s->type = "length"; }), "");
  EXPECT_NE(error([](auto* s) { s->type = "magic"; }), "");
  EXPECT_TRUE(holds(error([](auto* s) { s->pattern = "a"; }), "pattern is a key of regex"));
  EXPECT_TRUE(holds(error([](auto* s) { s->form = "strict"; }), "form is a key of json_schema"));
  EXPECT_TRUE(holds(error([](auto* s) { s->command = "a"; }), "command is a key of exec"));
  EXPECT_EQ(error([](auto* s) { s->timeout_s = 5; }),
            "[rl.rewards[2]] timeout_s is a key of exec and http; the type is exact");
  EXPECT_TRUE(holds(error([](auto* s) { s->retries = 3; }), "retries is a key of exec and http"));
  EXPECT_TRUE(holds(error([](auto* s) { s->processes = 1; }), "processes is a key of exec"));
  EXPECT_TRUE(holds(error([](auto* s) { s->format_score = 0.2; }),
                    "format_score is a key of gsm8k and countdown"));
  EXPECT_TRUE(holds(error([](auto* s) { s->weight = NAN; }), "must be finite"));
  EXPECT_TRUE(holds(error([](auto* s) {
                      s->type = "length";
                      s->target_length = 3;
                      s->extract = "answer";
                    }),
                    "extract is for rules"));
}

}  // namespace
}  // namespace hocket::rl
