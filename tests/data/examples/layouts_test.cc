// SPDX-License-Identifier: Apache-2.0
// Columns of fine-tuning files to examples: every format, recognised and given, and
// refusals.
#include <gtest/gtest.h>

#include "tests/data/examples/source_util.h"
#include "tests/log_util.h"

namespace hocket::data {
namespace {

using Kind = Example::Kind;

OrderedJson json(std::string_view text) { return OrderedJson::parse(text); }

SourceOptions with(const std::string& format, std::map<std::string, std::string> columns = {},
                   std::map<std::string, std::string> tags = {}) {
  SourceOptions options;
  options.format = format;
  options.columns = std::move(columns);
  options.tags = std::move(tags);
  return options;
}

/// Expects that the object alone is refused, with this part of the reason.
void expect_refused(std::string_view object, const std::string& part,
                    const SourceOptions& options = {}) {
  EXPECT_ERROR(read_lines(object, options), part);
  EXPECT_ERROR(read_lines(object, options), "data.jsonl:1: ");
}

constexpr const char* kAsk = R"({"role":"user","content":"q"})";
constexpr const char* kAnswer = R"({"role":"assistant","content":"a"})";
constexpr const char* kOther = R"({"role":"assistant","content":"b"})";

std::string list(std::vector<std::string> items) {
  std::string text;
  for (const std::string& item : items) {
    text += (text.empty() ? "" : ",") + item;
  }
  return "[" + text + "]";
}

TEST(SourceLayout, TextIsItsColumn) {
  const Example example = example_of(R"({"text":"one\ntwo","id":7})");
  EXPECT_EQ(example.kind, Kind::text);
  EXPECT_EQ(example.text, "one\ntwo");
  EXPECT_EQ(example_of(R"({"body":"x"})", with("text", {{"text", "body"}})).text, "x");
  EXPECT_EQ(example_of(R"({"body":"x"})", with("auto", {{"text", "body"}})).text, "x");
  expect_refused(R"({"text":" \n"})", "text is empty");
  expect_refused(R"({"text":3})", "text is a number; expected a string");
  expect_refused(R"({"text":null})", "column text is missing or null");
  expect_refused(R"({"body":3})", "body (text) is a number", with("auto", {{"text", "body"}}));
  expect_refused(R"({"text":"a\u0000b"})", "NUL character");
  expect_refused("{\"text\":\"a\xFF\"}", "UTF-8");
  expect_refused("{\"text\":\"\\ud800\"}", "surrogate");
}

TEST(SourceLayout, ChatKeepsMessagesAndAllTheirFields) {
  const Example example = example_of(
      R"({"messages":[{"content":"s","role":"system"},{"role":"user","content":[{"type":"text","text":"q"}]},)"
      R"({"role":"assistant","reasoning_content":"r","content":"a","weight":0,"training":false}],)"
      R"("chat_template_kwargs":{"enable_thinking":true}})");
  EXPECT_EQ(example.kind, Kind::chat);
  EXPECT_EQ(
      example.messages.dump(),
      R"([{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"q"}]},)"
      R"({"role":"assistant","content":"a","reasoning_content":"r","weight":0,"training":false}])");
  EXPECT_TRUE(example.tools.is_null());
  EXPECT_EQ(example.template_variables, json(R"({"enable_thinking":true})"));
  // Other names of the list, the role and the content.
  const Example renamed =
      example_of(R"({"dialog":[{"who":"U","says":"q"},{"who":"bot","says":"a"}]})",
                 with("auto", {{"messages", "dialog"}},
                      {{"role_tag", "who"},
                       {"content_tag", "says"},
                       {"user_tag", "U"},
                       {"assistant_tag", "bot"}}));
  EXPECT_EQ(renamed.messages, json(list({kAsk, kAnswer})));
  EXPECT_EQ(example_of(R"({"conversations":)" + list({kAsk, kAnswer}) + "}").messages,
            json(list({kAsk, kAnswer})));
}

TEST(SourceLayout, ToolCallsHaveArgumentsAsObjects) {
  const Example example = example_of(
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":)"
      R"([{"id":"1","type":"function","function":{"name":"f","arguments":"{\"z\": 1, \"a\": [2]}"}},)"
      R"({"function":{"name":"g","arguments":{}}}]},{"role":"tool","tool_call_id":"1","content":""},)"
      R"({"role":"assistant","content":"a"}],"tools":"[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"})");
  EXPECT_EQ(example.messages[1]["tool_calls"].dump(),
            R"([{"id":"1","type":"function","function":{"name":"f","arguments":{"z":1,"a":[2]}}},)"
            R"({"function":{"name":"g","arguments":{}}}])");
  EXPECT_TRUE(example.messages[1]["content"].is_null());
  EXPECT_EQ(example.tools.dump(), R"([{"type":"function","function":{"name":"f"}}])");
  const auto call = [](const std::string& function) {
    return R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[)" +
           function + "]}]}";
  };
  expect_refused(call(R"({"function":{"name":"f","arguments":"{1}"}})"),
                 "is text that is not valid");
  expect_refused(call(R"({"function":{"name":"f","arguments":"3"}})"), "are a number");
  expect_refused(call(R"({"function":{"name":"f"}})"), "has no arguments");
  expect_refused(call(R"({"function":{"arguments":{}}})"), "has no name");
  expect_refused(call("3"), "expected an object");
  const std::string chat = R"({"messages":)" + list({kAsk, kAnswer});
  for (const char* empty : {"[]", "null", R"("")", R"("[]")"}) {
    EXPECT_TRUE(example_of(chat + R"(,"tools":)" + empty + "}").tools.is_null()) << empty;
  }
  expect_refused(chat + R"(,"tools":{"name":"f"}})", "tools is an object; expected a list");
  expect_refused(chat + R"(,"tools":"[f]"})", "tools is text that is not valid JSON");
}

TEST(SourceLayout, WrongMessagesAreNamed) {
  const auto chat = [](const std::string& messages) { return R"({"messages":)" + messages + "}"; };
  expect_refused(chat("[]"), "messages has no messages");
  expect_refused(chat(R"("hi")"), "messages is a string; expected a list of messages");
  expect_refused(chat("[3]"), "message 0 of messages is a number; expected an object");
  expect_refused(chat(list({kAsk, R"({"role":"bot","content":"a"})"})),
                 "message 1 of messages has the role 'bot'; expected one of assistant, developer");
  expect_refused(chat(R"([{"content":"a"}])"), "message 0 of messages has no 'role'");
  expect_refused(chat(R"([{"role":"user","content":"  "}])"), "an empty turn of the user");
  expect_refused(chat(list({kAsk, R"({"role":"assistant","content":""})"})),
                 "message 1 of messages is an empty turn of the assistant");
  expect_refused(chat(list({kAsk, R"({"role":"assistant"})"})), "an empty turn of the assistant");
  expect_refused(chat(R"([{"role":"user","content":[{"type":"image","url":"x"}]}])"),
                 "a part of 'image' type");
  expect_refused(chat(R"([{"role":"user","content":5}])"),
                 "content of message 0 of messages is a number");
  expect_refused(chat(R"([{"role":"system"}])"), "content of message 0 of messages is missing");
}

TEST(SourceLayout, ReadsPromptsWithCompletions) {
  const Example text = example_of(R"({"prompt":"1+1=","completion":" 2"})");
  EXPECT_EQ(text.kind, Kind::completion);
  EXPECT_EQ(text.prompt, "1+1=");
  EXPECT_EQ(text.completion, " 2");
  EXPECT_EQ(example_of(R"({"prompt":"","completion":"free"})").prompt, "");
  const Example messages =
      example_of(R"({"prompt":)" + list({kAsk}) + R"(,"completion":)" + list({kAnswer}) + "}");
  EXPECT_EQ(messages.prompt, json(list({kAsk})));
  EXPECT_EQ(messages.completion, json(list({kAnswer})));
  const Example renamed =
      example_of(R"({"question":"q","answer":"a","prompt":1})",
                 with("auto", {{"prompt", "question"}, {"completion", "answer"}}));
  EXPECT_EQ(renamed.completion, "a");
  expect_refused(R"({"prompt":"a","completion":" "})", "completion is empty");
  expect_refused(R"({"prompt":"a","completion":)" + list({kAnswer}) + "}",
                 "prompt is a string and completion is a list");
  expect_refused(
      R"({"prompt":)" + list({kAsk, kAnswer}) + R"(,"completion":)" + list({kAnswer}) + "}",
      "prompt ends with a message of the assistant");
  expect_refused(R"({"prompt":)" + list({kAsk}) + R"(,"completion":)" + list({kAsk}) + "}",
                 "completion begins or ends with a message of role user");
}

TEST(SourceLayout, LabelsAreTakenOrRefusedNeverIgnored) {
  const Example good = example_of(R"({"prompt":"q","completion":"a","label":true})");
  EXPECT_EQ(good.kind, Kind::unpaired);
  EXPECT_TRUE(good.label);
  EXPECT_FALSE(example_of(R"({"prompt":"q","completion":"a","label":false})").label);
  expect_refused(R"({"prompt":"q","completion":"a","label":1})",
                 "label is a number; expected true");
  EXPECT_EQ(
      example_of(R"({"prompt":"q","completion":"a","label":1})", with("auto", {{"label", ""}}))
          .kind,
      Kind::completion);
  EXPECT_EQ(example_of(R"({"prompt":"q","completion":"a","label":"news"})").kind, Kind::completion);
  // The same with messages.
  const std::string chat = R"({"messages":)" + list({kAsk, kAnswer}) + R"(,"label":false})";
  expect_refused(chat, "fit format chat with a label of true or false");
  EXPECT_EQ(example_of(chat, with("chat", {{"label", ""}})).kind, Kind::chat);
  for (const SourceOptions& options : {with("unpaired"), with("auto", {{"label", "label"}})}) {
    const Example judged = example_of(chat, options);
    EXPECT_EQ(judged.kind, Kind::unpaired);
    EXPECT_EQ(judged.prompt, json(list({kAsk})));
    EXPECT_EQ(judged.completion, json(list({kAnswer})));
  }
  // A set without labels does not get one later, and the other way round.
  EXPECT_ERROR(read_lines("{\"prompt\":\"q\",\"completion\":\"a\"}\n"
                          "{\"prompt\":\"q\",\"completion\":\"a\",\"label\":false}\n"),
               "data.jsonl:2: its columns fit format unpaired; expected completion");
}

TEST(SourceLayout, ReadsPreferencesWithAPromptOrACommonBeginning) {
  const Example text = example_of(R"({"prompt":"q","chosen":" a","rejected":" b"})");
  EXPECT_EQ(text.kind, Kind::preference);
  EXPECT_EQ(text.prompt, "q");
  EXPECT_EQ(text.chosen, " a");
  EXPECT_EQ(text.rejected, " b");
  const std::string pair =
      R"("chosen":)" + list({kAsk, kAnswer}) + R"(,"rejected":)" + list({kAsk, kOther}) + "}";
  for (const std::string& prompt : {std::string("{"), std::string(R"({"prompt":"q",)")}) {
    const Example example = example_of(prompt + pair);
    EXPECT_EQ(example.prompt, json(list({kAsk})));
    EXPECT_EQ(example.chosen, json(list({kAnswer})));
    EXPECT_EQ(example.rejected, json(list({kOther})));
  }
  // A longer answer that begins with the other one.
  const Example longer = example_of(R"({"chosen":)" + list({kAsk, kAnswer}) + R"(,"rejected":)" +
                                    list({kAsk, kAnswer, kAsk, kOther}) + "}");
  EXPECT_EQ(longer.prompt, json(list({kAsk})));
  EXPECT_EQ(longer.rejected.size(), 3u);
  // Text: whole characters, and the blank before the difference is the answers'.
  const Example common = example_of(R"({"chosen":"It is né a","rejected":"It is nè b"})");
  EXPECT_EQ(common.prompt, "It is n");
  EXPECT_EQ(common.chosen, "é a");
  const Example blank = example_of(R"({"chosen":"Q: x A: yes","rejected":"Q: x A: no"})");
  EXPECT_EQ(blank.prompt, "Q: x A:");
  EXPECT_EQ(blank.chosen, " yes");
  expect_refused(R"({"chosen":"a","rejected":"b"})", "do not begin alike");
  expect_refused(R"({"prompt":"q","chosen":"a","rejected":"a"})",
                 "chosen and rejected are the same");
  expect_refused(R"({"prompt":"q","chosen":"a","rejected":""})", "rejected is empty");
  expect_refused(R"({"prompt":"q","chosen":"q a","rejected":"q b"})",
                 "prompt stands at the beginning");
  expect_refused(R"({"prompt":)" + list({kAsk}) + "," + pair, "prompt stands at the beginning");
  EXPECT_EQ(example_of(R"({"prompt":)" + list({kAsk}) + "," + pair, with("auto", {{"prompt", ""}}))
                .prompt,
            json(list({kAsk})));
  expect_refused(R"({"prompt":)" + list({kAsk}) + R"(,"chosen":"a","rejected":"b"})",
                 "prompt is a list and chosen is a string");
  expect_refused(R"({"chosen":)" +
                     list({kAsk, kAnswer, R"({"role":"user","content":"x"})", kAnswer}) +
                     R"(,"rejected":)" + list({kAsk, kAnswer, kAsk, kOther}) + "}",
                 "ends with a message of the assistant");
}

TEST(SourceLayout, AlpacaJoinsInstructionAndInput) {
  const Example plain =
      example_of(R"({"instruction":"Add.","input":"1 2","output":"3","text":"x"})");
  EXPECT_EQ(plain.kind, Kind::chat);
  EXPECT_EQ(plain.messages.dump(),
            R"([{"role":"user","content":"Add.\n1 2"},{"role":"assistant","content":"3"}])");
  EXPECT_EQ(example_of(R"({"instruction":"","input":"only","output":"3"})").messages[0]["content"],
            "only");
  const Example full = example_of(
      R"({"instruction":"q","output":"a","system":"s","history":[["q1","a1"],["q2","a2"]]})");
  EXPECT_EQ(full.messages.dump(),
            R"([{"role":"system","content":"s"},{"role":"user","content":"q1"},)"
            R"({"role":"assistant","content":"a1"},{"role":"user","content":"q2"},)"
            R"({"role":"assistant","content":"a2"},{"role":"user","content":"q"},)"
            R"({"role":"assistant","content":"a"}])");
  const Example pair = example_of(R"({"instruction":"q","input":"","chosen":"a","rejected":"b"})");
  EXPECT_EQ(pair.kind, Kind::preference);
  EXPECT_EQ(pair.prompt, json(list({kAsk})));
  EXPECT_EQ(pair.chosen, json(list({kAnswer})));
  EXPECT_EQ(pair.rejected, json(list({kOther})));
  const Example judged = example_of(R"({"instruction":"q","output":"a","kto_tag":true})");
  EXPECT_EQ(judged.kind, Kind::unpaired);
  EXPECT_TRUE(judged.label);
  EXPECT_EQ(judged.completion, json(list({kAnswer})));
  expect_refused(R"({"instruction":"","input":" ","output":"3"})", "instruction is empty");
  expect_refused(R"({"instruction":"q","output":""})", "output is empty");
  expect_refused(R"({"instruction":"q","output":["a","b"]})",
                 "output is a list; expected a string");
  expect_refused(R"({"instruction":"q","output":"a","history":[["q1"]]})", "no pair of strings");
  expect_refused(R"({"instruction":"q","output":"a","kto_tag":"true"})",
                 "kto_tag (label) is a string");
}

TEST(SourceLayout, ShareGptTakesTurnsInOrder) {
  const Example example = example_of(
      R"({"conversations":[{"from":"human","value":"q"},)"
      R"({"from":"function_call","value":"{\"name\": \"f\", \"arguments\": {\"x\": 1}}"},)"
      R"({"from":"observation","value":"o"},{"from":"gpt","value":"a"}],)"
      R"("system":"s","tools":"[{\"name\": \"f\", \"parameters\": {}}]"})");
  EXPECT_EQ(example.messages.dump(),
            R"([{"role":"system","content":"s"},{"role":"user","content":"q"},)"
            R"({"role":"assistant","content":"","tool_calls":[{"type":"function","function":)"
            R"({"name":"f","arguments":{"x":1}}}]},{"role":"tool","content":"o"},)"
            R"({"role":"assistant","content":"a"}])");
  EXPECT_EQ(example.tools.dump(),
            R"([{"type":"function","function":{"name":"f","parameters":{}}}])");
  const auto turns = [](const std::string& list) { return R"({"conversations":[)" + list + "]}"; };
  const std::string human = R"({"from":"human","value":"q"})",
                    gpt = R"({"from":"gpt","value":"a"})";
  EXPECT_EQ(
      example_of(turns(R"({"from":"system","value":"s"},)" + human + "," + gpt)).messages.size(),
      3u);
  expect_refused(turns(human), "the last message is of role user; expected assistant");
  expect_refused(turns(gpt + "," + human),
                 "message 0 is of role assistant; expected turns of user");
  expect_refused(turns(human + "," + human + "," + gpt), "message 1 is of role user");
  expect_refused(turns(human + R"(,{"from":"function_call","value":"f"})"),
                 "is text that is not valid");
  expect_refused(turns(human + R"(,{"from":"Bot","value":"x"})"), "has the from 'Bot'");
  expect_refused(
      R"({"system":"t","conversations":[{"from":"system","value":"s"},)" + human + "," + gpt + "]}",
      "two different system messages");
  // Any order of turns, as a chat, which knows both roles by these names.
  const SourceOptions chat = with("chat", {{"messages", "conversations"}},
                                  {{"role_tag", "from"}, {"content_tag", "value"}});
  EXPECT_EQ(example_of(turns(gpt + "," + human), chat).messages, json(list({kAnswer, kAsk})));
  const Example pair = example_of(R"({"conversations":[)" + human + R"(],"chosen":)" + gpt +
                                  R"(,"rejected":{"from":"gpt","value":"b"}})");
  EXPECT_EQ(pair.kind, Kind::preference);
  EXPECT_EQ(pair.prompt, json(list({kAsk})));
  EXPECT_EQ(pair.rejected, json(list({kOther})));
  EXPECT_EQ(example_of(R"({"conversations":[)" + human + "," + gpt + R"(],"kto_tag":false})").kind,
            Kind::unpaired);
}

TEST(SourceLayout, ColumnsThatFitNothingOrTwoFormatsAreRefused) {
  expect_refused(R"({"question":"q","solution":"a"})",
                 "columns 'question', 'solution' fit no format");
  expect_refused("{}", "the object is empty");
  expect_refused("3", "it is a number; expected an object");
  expect_refused("{\"text\":\"a\",\"text\":\"b\"}", "appears twice");
  expect_refused("{\"text\":\"a\"} x", "not valid JSON");
  expect_refused("{", "goes on in the next line");
  expect_refused(R"({"prompt":"q","data_source":"gsm8k","reward_model":{}})",
                 "reinforcement learning");
  expect_refused(R"({"prompt":"q","completions":["a"],"labels":[true]})", "stepwise supervision");
  const std::string both = R"({"messages":)" + list({kAsk, kAnswer}) +
                           R"(,"prompt":"q","chosen":)" + list({kAsk, kAnswer}) +
                           R"(,"rejected":)" + list({kAsk, kOther}) + "}";
  expect_refused(both, "try format: chat or format: preference");
  EXPECT_EQ(example_of(both, with("preference")).kind, Kind::preference);
  expect_refused(R"({"messages":[],"conversations":[]})",
                 "messages and conversations; expected one");
  EXPECT_ERROR(read_lines("{}", with("parquet")), "unknown format 'parquet'; expected one of auto");
  EXPECT_ERROR(read_lines("{}", with("auto", {{"answer", "x"}})),
               "unknown name 'answer' in columns");
  EXPECT_ERROR(read_lines("{}", with("auto", {}, {{"human", "x"}})), "unknown key 'human' of tags");
  EXPECT_ERROR(read_lines("{}", with("auto", {}, {{"user_tag", "x"}, {"system_tag", "x"}})),
               "give the role 'x' twice");
}

/// A name that is given is one that the format reads, and that some example has.
TEST(SourceLayout, NamesWithoutEffectAreRefused) {
  const std::string answer = R"({"q":"1","completion":"2","sys":"s"})";
  expect_refused(answer, "format completion has no column system (columns: {system: sys})",
                 with("auto", {{"prompt", "q"}, {"system", "sys"}}));
  expect_refused(R"({"instruction":"q","output":"a"})",
                 "format alpaca has no messages, which tags are of",
                 with("auto", {}, {{"user_tag", "U"}}));
  const std::string chat = R"({"messages":)" + list({kAsk, kAnswer}) + "}\n";
  EXPECT_ERROR(read_lines(chat, with("auto", {{"tools", "functoins"}})),
               "no example has a column functoins (columns: {tools: functoins})");
  const std::string more =
      R"({"messages":)" + list({kAsk, kAnswer}) + R"(,"functions":[{"name":"f"}]})";
  EXPECT_EQ(read_lines(chat + more, with("auto", {{"tools", "functions"}})).report.examples, 2);
  // Inputs and system prompts are optional.
  const test::LogLines log;
  EXPECT_EQ(read_lines(R"({"instruction":"q","output":"a"})",
                       with("alpaca", {{"input", "context"}, {"system", "sys"}}))
                .report.examples,
            1);
  EXPECT_NE(log.text().find("no example has a column context"), std::string::npos) << log.text();
  // A reader that has enough has not seen all.
  const TempFolder folder;
  SourceOptions options = with("auto", {{"tools", "functions"}});
  options.path = folder.add("a.jsonl", chat + more);
  EXPECT_EQ(read_source(options, [](Example&&) { return false; }).examples, 1);
}

/// Rows of several tables have each other's columns, with null.
TEST(SourceLayout, ColumnsWithNullDecideNothing) {
  EXPECT_EQ(example_of(R"({"prompt":"q","completion":"a","chosen":null,"rejected":null})").kind,
            Kind::completion);
  EXPECT_EQ(example_of(R"({"prompt":"q","completion":null,"chosen":"a","rejected":"b"})").kind,
            Kind::preference);
  EXPECT_EQ(example_of(R"({"instruction":null,"output":null,"messages":null,"conversations":)" +
                       list({kAsk, kAnswer}) + "}")
                .kind,
            Kind::chat);
  expect_refused(R"({"prompt":"q","completion":null})", "column completion is missing or null");
}

TEST(SourceLayout, KindsOfOneSourceAreTheSame) {
  EXPECT_ERROR(read_lines("{\"instruction\":\"q\",\"output\":\"a\",\"kto_tag\":true}\n"
                          "{\"instruction\":\"q\",\"output\":\"a\",\"kto_tag\":null}\n"),
               "data.jsonl:2: it is chat data; expected unpaired");
}

}  // namespace
}  // namespace hocket::data
