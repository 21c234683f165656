// SPDX-License-Identifier: Apache-2.0
// Calls and reasoning in texts, the same wherever the text is split.
#include "serve/openai/tool_parser.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace hocket::serve {
namespace {

struct Parsed {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  ///< name, arguments
  bool operator==(const Parsed&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Parsed& parsed) {
  out << '"' << parsed.content << '"';
  for (const auto& [name, arguments] : parsed.calls) {
    out << " " << name << "(" << arguments << ")";
  }
  return out;
}

void add(const ToolText& text, Parsed* out) {
  out->content += text.content;
  for (const ToolCallPart& part : text.calls) {
    if (!part.name.empty()) {
      ASSERT_EQ(part.index, std::ssize(out->calls));
      out->calls.emplace_back(part.name, "");
    }
    ASSERT_EQ(part.index, std::ssize(out->calls) - 1);
    out->calls.back().second += part.arguments;
  }
}

Parsed parse(std::unique_ptr<ToolParser> parser, const std::vector<std::string>& pieces) {
  Parsed out;
  for (const std::string& piece : pieces) {
    ToolText text;
    parser->feed(piece, &text);
    add(text, &out);
  }
  ToolText rest;
  parser->finish(&rest);
  add(rest, &out);
  return out;
}

struct ParserCase {
  const char* parser;
  std::string text;
  Parsed expected;
};

std::vector<ParserCase> parser_cases() {
  const std::string weather = R"({"city": "São \"Paulo\" }", "days": [1, {"x": "]"}]})";
  return {
      {"hermes", "no call at all < tool", {"no call at all < tool", {}}},
      {"hermes",
       "<tool_call>\n{\"name\": \"f\", \"arguments\": " + weather + "}\n</tool_call>",
       {"", {{"f", weather}}}},
      {"hermes",
       "Let me see.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n"
       "<tool_call>{\"arguments\":" +
           weather + ",\"name\":\"g\"}</tool_call>\n",
       {"Let me see.", {{"f", "{}"}, {"g", weather}}}},
      {"hermes", "<tool_call>{\"name\": \"f\"}</tool_call> done", {"done", {{"f", "{}"}}}},
      {"hermes",
       R"(<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>)",
       {"", {{"f", R"({"a": 1})"}}}},
      {"hermes", R"(<tool_call>{"name": "f", "arguments": null}</tool_call>)", {"", {{"f", "{}"}}}},
      {"hermes",
       R"(<tool_call>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"a": 1}}]</tool_call>)",
       {"", {{"f", "{}"}, {"g", R"({"a": 1})"}}}},
      {"hermes", "<tool_call>[]</tool_call>x", {"x", {}}},
      {"hermes", "a <tool_call>not json</tool_call>", {"a <tool_call>not json</tool_call>", {}}},
      {"hermes", "<tool_call>{\"x\": 1}</tool_call>", {"<tool_call>{\"x\": 1}</tool_call>", {}}},
      {"hermes", "<<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", {"<", {{"f", "{}"}}}},
      {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1", {"", {{"f", "{\"a\": 1"}}}},
      {"hermes", "  ", {"  ", {}}},
      {"llama3_json", R"({"name": "f", "parameters": {"a": "b"}})", {"", {{"f", R"({"a": "b"})"}}}},
      {"llama3_json",
       R"(<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"x": 1}})",
       {"", {{"f", "{}"}, {"g", R"({"x": 1})"}}}},
      {"llama3_json", R"({"name": "Bob", "age": 3})", {R"({"name": "Bob", "age": 3})", {}}},
      {"llama3_json", "Hello {\"name\": 1}", {"Hello {\"name\": 1}", {}}},
      {"llama3_json", "<b>bold</b>", {"<b>bold</b>", {}}},
      {"llama3_json",
       R"({"type": "function", "name": "f", "parameters": {"a": null}})",
       {"", {{"f", R"({"a": null})"}}}},
      {"mistral",
       R"([TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}])",
       {"", {{"f", R"({"a": 1})"}, {"g", "{}"}}}},
      {"mistral",
       R"(Hi [TOOL_CALLS]f{"a": [1]}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{"b": "}"})",
       {"Hi", {{"f", R"({"a": [1]})"}, {"g", R"({"b": "}"})"}}}},
      {"mistral", "[TOOL_CALL] is no mark", {"[TOOL_CALL] is no mark", {}}},
      {"mistral", "[TOOL_CALLS]", {"[TOOL_CALLS]", {}}},
  };
}

TEST(ToolParser, SplitsAtEveryByteChangeNothing) {
  for (const ParserCase& one : parser_cases()) {
    SCOPED_TRACE(std::string(one.parser) + ": " + one.text);
    EXPECT_EQ(parse(make_tool_parser(one.parser), {one.text}), one.expected);
    std::vector<std::string> bytes;
    for (size_t i = 0; i < one.text.size(); ++i) {
      bytes.push_back(one.text.substr(i, 1));
      EXPECT_EQ(parse(make_tool_parser(one.parser), {one.text.substr(0, i), one.text.substr(i)}),
                one.expected)
          << "split at " << i;
    }
    EXPECT_EQ(parse(make_tool_parser(one.parser), bytes), one.expected);
  }
}

TEST(ToolParser, RandomTextsAndSplitsChangeNothing) {
  const std::vector<std::string> pieces = {"<tool_call>",
                                           "</tool_call>",
                                           "<tool",
                                           "[TOOL_CALLS]",
                                           "[ARGS]",
                                           "<|python_tag|>",
                                           "{",
                                           "}",
                                           "[",
                                           "]",
                                           "\"name\"",
                                           "\"arguments\"",
                                           "\"parameters\"",
                                           ": ",
                                           ", ",
                                           "\"f\"",
                                           "\"",
                                           "\\",
                                           " ",
                                           "\n",
                                           ";",
                                           "1",
                                           "null",
                                           "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
                                           "f{",
                                           "text",
                                           "é"};
  Rng rng(11);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (uint64_t k = 0, n = rng.below(14); k < n; ++k) {
      text += pieces[rng.below(pieces.size())];
    }
    for (const std::string& name : tool_parser_names()) {
      std::vector<std::string> parts;
      for (size_t at = 0; at < text.size();) {
        const size_t size = 1 + rng.below(5);
        parts.push_back(text.substr(at, size));
        at += size;
      }
      EXPECT_EQ(parse(make_tool_parser(name), parts), parse(make_tool_parser(name), {text}))
          << name << ": " << text;
    }
  }
}

TEST(ToolParser, PassesOnArgumentsWhileTheyCome) {
  const auto parser = make_tool_parser("hermes");
  ToolText text;
  parser->feed("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"lo", &text);
  ASSERT_EQ(text.calls.size(), 1u);
  EXPECT_EQ(text.calls[0].name, "f");
  EXPECT_EQ(text.calls[0].arguments, "{\"a\": \"lo");
}

TEST(ToolParser, TextThatIsCutIsAPrefixOfTheWhole) {
  for (const ParserCase& one : parser_cases()) {
    if (one.expected.calls.empty()) continue;
    for (size_t i = 0; i < one.text.size(); ++i) {
      const Parsed cut = parse(make_tool_parser(one.parser), {one.text.substr(0, i)});
      ASSERT_LE(cut.calls.size(), one.expected.calls.size());
      for (size_t c = 0; c < cut.calls.size(); ++c) {
        EXPECT_EQ(cut.calls[c].first, one.expected.calls[c].first);
        EXPECT_TRUE(one.expected.calls[c].second.starts_with(cut.calls[c].second))
            << one.text.substr(0, i);
      }
    }
  }
}

TEST(ReasoningSplitter, SplitsAtEveryByteChangeNothing) {
  struct Case {
    bool open;
    std::string text, reasoning, content;
  };
  for (const Case& one :
       std::vector<Case>{{false, "<think>a < b</think>\n\nHi </think>", "a < b", "Hi </think>"},
                         {false, "\n<think>\nx</thin</think>y", "\nx</thin", "y"},
                         {false, "no <think>x</think>", "", "no <think>x</think>"},
                         {false, "<thin", "", "<thin"},
                         {false, " ", "", " "},
                         {false, "<think>cut </thi", "cut </thi", ""},
                         {true, "on</think> Hi", "on", "Hi"},
                         {true, "<think>on</think>Hi", "<think>on", "Hi"}}) {
    for (size_t i = 0; i <= one.text.size(); ++i) {
      ReasoningSplitter splitter(one.open);
      std::string reasoning, content;
      splitter.feed(one.text.substr(0, i), &reasoning, &content);
      splitter.feed(one.text.substr(i), &reasoning, &content);
      splitter.finish(&reasoning, &content);
      EXPECT_EQ(reasoning, one.reasoning) << one.text;
      EXPECT_EQ(content, one.content) << one.text;
    }
  }
}

}  // namespace
}  // namespace hocket::serve
