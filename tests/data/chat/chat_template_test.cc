// SPDX-License-Identifier: Apache-2.0
// ChatTemplate: the files of a model's folder, options, messages named in errors, the assistant's
// parts.
#include "data/chat/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/ordered_json.h"
#include "tests/data/data_util.h"

namespace hocket::data {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kPlain =
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}\n{% "
    "endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

OrderedJson json(const std::string& text) { return parse_ordered_json(text, "test"); }

OrderedJson chat() {
  return json(R"([{"role": "user", "content": "Größe?"}, {"role": "assistant", "content": "Ja."},
                  {"role": "user", "content": "b"}, {"role": "assistant", "content": " c "}])");
}

std::string part(const RenderedChat& chat, const ChatSpan& span) {
  return chat.text.substr(span.begin, span.end - span.begin);
}

TEST(ChatTemplate, ReadsAModelsFolder) {
  const TempFolder folder;
  EXPECT_ERROR(ChatTemplate::load(folder.path()), "no chat template");
  folder.add(
      "tokenizer_config.json",
      R"({"chat_template": "config {{ bos_token }}{{ eos_token }}{{ image_token }}", "bos_token": "<s>",
                 "eos_token": {"content": "</s>", "lstrip": false}, "image_token": "<img>", "pad_token": null})");
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(chat()).text, "config <s></s><img>");
  // The file wins over the configuration, which still has the special tokens.
  const std::string file = folder.add("chat_template.jinja", "file {{ bos_token }}");
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(chat()).text, "file <s>");
  EXPECT_EQ(ChatTemplate::load(file).render(chat()).text, "file ");
  folder.add("chat_template.jinja", "{% if %}");
  EXPECT_ERROR(ChatTemplate::load(folder.path()), "chat_template.jinja] line 1");
}

TEST(ChatTemplate, SpecialTokensOfTheMapWinWithoutATableOfAddedTokens) {
  const TempFolder folder;
  folder.add("special_tokens_map.json", R"({"bos_token": "<map>", "unk_token": {"content": "<unk>"},
                                            "additional_special_tokens": ["<x>"]})");
  folder.add("tokenizer_config.json", R"({"chat_template": "", "bos_token": "<config>"})");
  EXPECT_EQ(ChatTemplate::load(folder.path()).special_tokens(),
            (std::map<std::string, std::string>{{"bos_token", "<map>"}, {"unk_token", "<unk>"}}));
  // With a table nothing is read of the map, as in transformers.
  folder.add("tokenizer_config.json",
             R"({"chat_template": "", "bos_token": "<config>", "added_tokens_decoder": {}})");
  EXPECT_EQ(ChatTemplate::load(folder.path()).special_tokens(),
            (std::map<std::string, std::string>{{"bos_token", "<config>"}}));
  folder.add("special_tokens_map.json", "[]");
  EXPECT_EQ(ChatTemplate::load(folder.path()).special_tokens().size(), 1u);
  folder.add("tokenizer_config.json", R"({"chat_template": ""})");
  EXPECT_ERROR(ChatTemplate::load(folder.path()),
               "special_tokens_map.json] the document is no object");
  folder.add("special_tokens_map.json", R"({"eos_token": 2})");
  EXPECT_ERROR(ChatTemplate::load(folder.path()), "special_tokens_map.json] eos_token");
  folder.add("special_tokens_map.json", R"({"eos_token": "", "bos_token": null})");
  EXPECT_TRUE(ChatTemplate::load(folder.path()).special_tokens().empty());
}

TEST(ChatTemplate, ToolsChooseTheTemplateToolUse) {
  const TempFolder folder;
  folder.add("tokenizer_config.json",
             R"({"chat_template": [{"name": "default", "template": "plain"},
                                   {"name": "tool_use", "template": "{{ tools[0].name }}"}]})");
  const OrderedJson tools = json(R"([{"name": "f"}])");
  ChatOptions options;
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(chat(), options).text, "plain");
  options.tools = &tools;
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(chat(), options).text, "f");
  // Files with names are the same as a list.
  folder.add("chat_template.jinja", "file");
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(chat(), options).text, "file");
  folder.add("additional_chat_templates/tool_use.jinja", "more {{ tools|length }}");
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(chat(), options).text, "more 1");
  const TempFolder other;
  other.add("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  EXPECT_ERROR(ChatTemplate::load(other.path()).render(chat()), "(rag) and no default");
}

TEST(ChatTemplate, VariablesWinOverSpecialTokens) {
  const ChatTemplate given = ChatTemplate::parse("{{ bos_token }}{{ x.y }}{{ documents[0].t }}",
                                                 "t", {{"bos_token", "<s>"}});
  const OrderedJson variables = json(R"({"bos_token": "<b>", "x": {"y": [1.0, null]}})");
  const OrderedJson documents = json(R"([{"t": "d"}])");
  ChatOptions options;
  options.variables = &variables;
  options.documents = &documents;
  EXPECT_EQ(given.render(chat(), options).text, "<b>[1.0, None]d");
  const OrderedJson own = json(R"({"tools": []})");
  options.variables = &own;
  EXPECT_ERROR(given.render(chat(), options), "'tools' is the template's own");
}

TEST(ChatTemplate, MessagesAreNormalisedAsInTransformers) {
  const ChatTemplate given = ChatTemplate::parse(
      "{% for m in messages %}{{ m.keys()|list }}{{ m.reasoning_content }}{{ m.thinking }}{% "
      "endfor %}",
      "t");
  EXPECT_EQ(
      given.render(json(R"([{"role": "a", "content": null, "reasoning": "r", "tool_calls": []}])"))
          .text,
      "['thinking', 'role', 'reasoning', 'tool_calls', 'reasoning_content']rr");
  EXPECT_ERROR(given.render(json("[]")), "no messages");
  EXPECT_ERROR(given.render(json("{}")), "no list");
  EXPECT_ERROR(given.render(json(R"([{"role": "a"}, 5])")), "message 1 is no object");
  EXPECT_ERROR(given.render(json(R"([{"role": 18446744073709551615}])")), "beyond 64 bits");
}

/// Returns the text of a chat whose messages of `role` have two text parts.
std::string with_parts(const std::string& text, const std::string& role, bool with_tools = false) {
  const OrderedJson tools = OrderedJson::array();
  ChatOptions options;
  options.tools = with_tools ? &tools : nullptr;
  const ChatTemplate given = ChatTemplate::parse(text, "t", {}, {{"tool_use", "tools " + text}});
  return given
      .render(
          json(R"([{"role": "user", "content": "u"}, {"role": ")" + role +
               R"(", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])"),
          options)
      .text;
}

TEST(ChatTemplate, TextPartsAreOneStringWhereTheTemplateReadsNone) {
  const auto of = [](const char* shown) {
    return std::string("{% for m in messages %}{{ ") + shown + " }};{% endfor %}";
  };
  // Strings are read: a list would be printed as such, lost in whole or in part, or refused.
  for (const char* shown : {"m.content", "m.content if m.content is string", "'' + m.content",
                            "m.content[0].text if m.content is not string else m.content"}) {
    EXPECT_EQ(with_parts(of(shown), "user"), "u;a\nb;") << shown;
  }
  // Parts are read as such, by role.
  const std::string parts =
      "{% for m in messages %}{% if m.content is string or m.role == 'tool' %}{{ m.content }}"
      "{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %};{% endfor %}";
  EXPECT_EQ(with_parts(parts, "user"), "u;[a][b];");
  EXPECT_EQ(with_parts(parts, "tool"), "u;a\nb;");
  EXPECT_EQ(with_parts(parts, "user", true), "tools u;[a][b];");
  EXPECT_EQ(with_parts(of("m.content"), "user", true), "tools u;a\nb;");
  // Nothing else is read.
  const std::string alone =
      "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %};{% endfor %}";
  EXPECT_EQ(with_parts(alone, "user"), "[];[a][b];");
  // A role is taken behind another one alone.
  const std::string turns =
      "{% for m in messages %}{% if (m.role == 'user') != (loop.index % 2 == 1) %}"
      "{{ raise_exception('turns') }}{% endif %}{% if m.content is string %}{{ m.content }}"
      "{% else %}{{ m.content|map(attribute='text')|join('+') }}{% endif %};{% endfor %}";
  EXPECT_EQ(with_parts(turns, "assistant"), "u;a+b;");
}

TEST(ChatTemplate, PartsMayBeReadWithoutToolsAlone) {
  const auto messages = json(R"([{"role": "user", "content": [{"type": "text", "text": "a"},
                                                              {"type": "text", "text": "b"}]}])");
  const OrderedJson tools = OrderedJson::array();
  ChatOptions with_tools;
  with_tools.tools = &tools;
  for (const bool tools_first : {false, true}) {
    const ChatTemplate given = ChatTemplate::parse(
        "{% if tools is not none %}{{ messages[0].content|trim }}{% else %}"
        "{% for p in messages[0].content %}[{{ p.text }}]{% endfor %}{% endif %}",
        "t");
    for (const bool has_tools : {tools_first, !tools_first}) {
      EXPECT_EQ(given.render(messages, has_tools ? with_tools : ChatOptions()).text,
                has_tools ? "a\nb" : "[a][b]")
          << tools_first;
    }
  }
}

TEST(ChatTemplate, ContentWithOtherPartsStays) {
  const ChatTemplate given = ChatTemplate::parse("{{ messages[0].content|length }}", "t");
  EXPECT_EQ(given
                .render(json(R"([{"role": "user", "content": [{"type": "image"},
                             {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])"))
                .text,
            "3");
}

TEST(ChatTemplate, ErrorsNameTheFirstMessageThatCausesThem) {
  const ChatTemplate given = ChatTemplate::parse(
      "{% for m in messages %}\n{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% "
      "endif %}\n"
      "{{ m.content + '' }}{% endfor %}{{ nothing.x if messages|length > 3 }}",
      "t");
  EXPECT_ERROR(
      given.render(json(R"([{"role": "user", "content": "a"}, {"role": "tool", "content": "b"},
                                     {"role": "tool", "content": "c"}])")),
      "[t] line 2 refuses the messages: no tools here; message 1 (role 'tool')");
  EXPECT_ERROR(given.render(json(
                   R"([{"role": "user", "content": "a"}, {"role": "user", "content": ["b"]}])")),
               "line 3: can only concatenate list (not \"str\") to list; message 1 (role 'user')");
  // A fault that needs no message is of none.
  const std::string error =
      error_of([] { ChatTemplate::parse("{{ tools.x.y }}", "t").render(chat()); });
  EXPECT_EQ(error.find("message"), std::string::npos) << error;
}

TEST(ChatTemplate, ContinuesTheLastMessage) {
  const ChatTemplate given =
      ChatTemplate::parse(kPlain, "t", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  ChatOptions options;
  options.continue_final_message = "content";
  EXPECT_EQ(
      given
          .render(
              json(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b "}])"),
              options)
          .text,
      "<s><|user|>a</s>\n<|assistant|>b ");
  const ChatTemplate trims = ChatTemplate::parse("{{ messages[-1].content|trim }}</s>", "t");
  EXPECT_EQ(trims.render(json(R"([{"role": "assistant", "content": "b "}])"), options).text, "b");
  EXPECT_ERROR(ChatTemplate::parse("{{ messages[-1].content|upper }}", "t").render(chat(), options),
               "does not print the last message as it is");
  EXPECT_ERROR(ChatTemplate::parse("x", "t").render(chat(), options), "does not read 'content'");
  options.continue_final_message = "reasoning";
  EXPECT_ERROR(given.render(chat(), options), "no 'reasoning' to continue");
  options.add_generation_prompt = true;
  EXPECT_ERROR(given.render(chat(), options), "expected one of them");
}

TEST(ChatTemplate, TheAssistantsPartsAreItsGenerationBlocks) {
  const ChatTemplate given = ChatTemplate::parse(
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ "
      "m.content }}</s>"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
      "t");
  EXPECT_TRUE(given.has_generation_blocks());
  const RenderedChat text = given.render(chat());
  const std::vector<ChatSpan> spans = given.assistant_spans(chat());
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans, text.generation);
  EXPECT_EQ(part(text, spans[0]), "Ja.</s>");
  EXPECT_EQ(part(text, spans[1]), " c </s>");
  const ChatTemplate hidden = ChatTemplate::parse(
      "{% macro m(x) %}{% generation %}{{ x }}{% endgeneration %}{% endmacro %}\n{{ m('a')|trim }}",
      "t");
  EXPECT_EQ(hidden.render(chat()).text, "a");
  EXPECT_ERROR(hidden.assistant_spans(chat()), "line 1: a generation block inside of a macro");
}

TEST(ChatTemplate, WithoutBlocksTheAssistantsPartsAreThoseThatItsMessagesAdd) {
  const ChatTemplate given =
      ChatTemplate::parse(kPlain, "t", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  EXPECT_FALSE(given.has_generation_blocks());
  const RenderedChat text = given.render(chat());
  const std::vector<ChatSpan> spans = given.assistant_spans(chat());
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(part(text, spans[0]), "Ja.</s>\n");
  EXPECT_EQ(part(text, spans[1]), " c </s>\n");
  // Older answers lose their end: the text of message 1 depends on later messages.
  const ChatTemplate last = ChatTemplate::parse(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '</s>' if loop.last }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}",
      "t");
  EXPECT_ERROR(last.assistant_spans(chat()), "message 1: the text");
  ChatOptions options;
  options.add_generation_prompt = true;
  EXPECT_ERROR(given.assistant_spans(chat(), options), "unfinished chat");
}

}  // namespace
}  // namespace hocket::data
