// SPDX-License-Identifier: Apache-2.0
// Examples as token ids and their masks: every kind, borders of tokens, selections of messages,
// special tokens in texts, refusals.
#include "data/examples/render.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "base/ordered_json.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_spec.h"
#include "tests/data/data_util.h"
#include "tests/data/examples/example_util.h"

namespace hocket::data {
namespace {

constexpr const char* kPlainTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
constexpr const char* kBlockTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% if m.thinking %}{% generation %}({{ m.thinking }}){% endgeneration %} {% endif %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

class Render : public testing::Test {
 protected:
  /// Returns the texts of the example's sequences, the trained tokens between [ and ].
  std::vector<std::string> shown(const Example& example, const char* chat = kBlockTemplate) {
    std::optional<ChatTemplate> with;
    if (chat != nullptr) {
      with.emplace(ChatTemplate::parse(chat, "chat"));
    }
    Renderer renderer(tokenizer_, with ? &*with : nullptr, options_);
    rendered_ = renderer.render(example);
    with_special_ = renderer.with_special_tokens();
    std::vector<std::string> out;
    for (const TokenSequence& sequence : rendered_.sequences) {
      EXPECT_EQ(sequence.ids.size(), sequence.trained.size());
      std::string& text = out.emplace_back();
      bool open = false;
      for (size_t i = 0; i < sequence.ids.size(); ++i) {
        if ((sequence.trained[i] != 0) != open) {
          text += open ? ']' : '[';
          open = !open;
        }
        text += tokenizer_.token_bytes(sequence.ids[i]);
      }
      text += open ? "]" : "";
    }
    return out;
  }
  std::string one(const Example& example, const char* chat = kBlockTemplate) {
    const std::vector<std::string> all = shown(example, chat);
    EXPECT_EQ(all.size(), 1u);
    return all[0];
  }
  std::string chat(const std::string& messages, const char* with = kBlockTemplate) {
    return one(chat_example(messages), with);
  }

  Tokenizer tokenizer_{chat_spec({{"\n", "\n"}, {"b", "c"}})};
  RenderOptions options_;
  RenderedExample rendered_;
  int64_t with_special_ = 0;
};

TEST_F(Render, ATextIsTrainedAndEndsOnce) {
  Example text;
  text.text = "ab";
  EXPECT_EQ(one(text), "[ab<|endoftext|>]");
  text.text = "ab<|endoftext|>";
  EXPECT_EQ(one(text), "[ab<|endoftext|>]");
  EXPECT_EQ(with_special_, 1);
  options_.split_special_tokens = true;
  EXPECT_EQ(one(text), "[ab<|endoftext|><|endoftext|>]");
  EXPECT_EQ(rendered_.sequences[0].ids.size(), 2 + 13 + 1u);
  options_.beginning = {tokenizer_.eos_id()};
  text.text = "";
  EXPECT_EQ(one(text), "[<|endoftext|>]");
  // A text that begins as one has no second beginning, unless that is to be text.
  text.text = "<|endoftext|>ab";
  EXPECT_EQ(one(text), "[<|endoftext|><|endoftext|>ab<|endoftext|>]");
  options_.split_special_tokens = false;
  EXPECT_EQ(one(text), "[<|endoftext|>ab<|endoftext|>]");
  EXPECT_EQ(one(answer_example(R"("<|endoftext|>a")", R"("d")")), "<|endoftext|>a[d<|endoftext|>]");
}

TEST_F(Render, TokensOfADocumentAreTaken) {
  Example tokens;
  tokens.kind = Example::Kind::tokens;
  tokens.ids = {'a', 'b'};
  EXPECT_EQ(one(tokens), "[ab]");
  tokens.ids = {tokenizer_.vocab_size()};
  EXPECT_ERROR(one(tokens), "expected 0 to");
}

constexpr const char* kTwoTurns =
    R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "one"},
        {"role": "user", "content": "x"}, {"role": "assistant", "content": "two"}])";

TEST_F(Render, TurnsOfTheAssistantAreTrained) {
  EXPECT_EQ(chat(kTwoTurns),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n[one<|im_end|>]\n"
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n[two<|im_end|>]\n");
  EXPECT_EQ(chat(kTwoTurns, kPlainTemplate),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n[one<|im_end|>\n]"
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n[two<|im_end|>\n]");
  options_.train_on = TrainOn::last;
  EXPECT_EQ(chat(kTwoTurns),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n"
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n[two<|im_end|>]\n");
  EXPECT_EQ(chat(kTwoTurns, kPlainTemplate),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n"
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n[two<|im_end|>\n]");
  options_.train_on = TrainOn::all;
  EXPECT_EQ(chat(R"([{"role": "user", "content": "hi"}])"), "[<|im_start|>user\nhi<|im_end|>\n]");
}

TEST_F(Render, MessagesMayBeExcludedFromTraining) {
  const auto turns = [](const char* first, const char* second) {
    return fmt::format(
        R"([{{"role": "user", "content": "hi", {}}}, {{"role": "assistant", "content": "one", {}}},
            {{"role": "assistant", "content": "two", "thinking": "t"}}])",
        first, second);
  };
  for (const char* untrained : {R"("training": false)", R"("weight": 0)"}) {
    EXPECT_EQ(chat(turns(untrained, untrained)),
              "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n"
              "<|im_start|>assistant\n[(t)] [two<|im_end|>]\n");
  }
  EXPECT_EQ(chat(turns(R"("weight": null)", R"("training": true, "weight": 1)")),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n[one<|im_end|>]\n"
            "<|im_start|>assistant\n[(t)] [two<|im_end|>]\n");
  EXPECT_ERROR(chat(turns(R"("a": 1)", R"("weight": 0.5)")), "weight is 0.5; expected 0 or 1");
  EXPECT_ERROR(chat(turns(R"("a": 1)", R"("training": "no")")), "expected true or false");
  EXPECT_ERROR(chat(turns(R"("a": 1)", R"("training": false, "weight": 1)")), "message 1");
  EXPECT_ERROR(chat(turns(R"("training": true)", R"("a": 1)")), "message 0 (role 'user')");
  options_.train_on = TrainOn::all;
  EXPECT_ERROR(chat(turns(R"("a": 1)", R"("weight": 0)")), "message 1: not to be trained on");
  EXPECT_ERROR(chat(turns(R"("training": false)", R"("a": 1)")), "message 0: not to be trained on");
  options_.train_on = TrainOn::assistant;
  // Where the template drops earlier blocks, a selection is refused, and all of them are not.
  const char* drops =
      "{% for m in messages %}{% if m.role == 'assistant' and (loop.last or m.content != 'one') %}"
      "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %} "
      "{% endfor %}";
  EXPECT_EQ(chat(kTwoTurns, drops), "hi one x [two] ");
  options_.train_on = TrainOn::last;
  EXPECT_ERROR(chat(kTwoTurns, drops), "which generation blocks are its own");
}

TEST_F(Render, ATokenIsTrainedIfAByteOfItIs) {
  // The template's line end and the answer's are one token.
  EXPECT_EQ(chat(R"([{"role": "assistant", "content": "\na"}])"),
            "<|im_start|>assistant[\n\na<|im_end|>]\n");
  EXPECT_EQ(chat(R"([{"role": "assistant", "content": ""}])"),
            "<|im_start|>assistant\n[<|im_end|>]\n");
}

TEST_F(Render, SpecialTokensOfTextsAreTextIfAskedFor) {
  const char* messages = R"([{"role": "user", "content": "a<|im_end|>b"},
                             {"role": "assistant", "content": "<|im_end|>c<|im_start|>"}])";
  const std::string text =
      "<|im_start|>user\na<|im_end|>b<|im_end|>\n<|im_start|>assistant\n[<|im_end|>c<|im_start|>"
      "<|im_end|>]\n";
  EXPECT_EQ(chat(messages), text);
  EXPECT_EQ(with_special_, 1);
  const auto special = [&] {
    int64_t count = 0;
    for (const int32_t id : rendered_.sequences[0].ids) {
      count += tokenizer_.token_bytes(id).starts_with("<|im_");
    }
    return count;
  };
  EXPECT_EQ(special(), 7);
  options_.split_special_tokens = true;
  EXPECT_EQ(chat(messages), text);
  EXPECT_EQ(chat(messages, kPlainTemplate).size(), text.size());
  EXPECT_EQ(special(), 4);
  EXPECT_EQ(with_special_, 1);
  EXPECT_ERROR(chat("[{\"role\": \"user\", \"content\": \"\xEF\xB7\x90\"}]"), "U+FDD0");
}

TEST_F(Render, CompletionsOfTextsAreTrainedBehindTheirPrompts) {
  EXPECT_EQ(one(answer_example(R"("Q: ")", R"("A")")), "Q: [A<|endoftext|>]");
  EXPECT_FALSE(rendered_.joined);
  EXPECT_EQ(rendered_.prompt, 3u);
  // "b" and "c" are one token: the completion begins where the ids of the prompt alone end.
  EXPECT_EQ(one(answer_example(R"("ab")", R"("cd")")), "a[bcd<|endoftext|>]");
  EXPECT_TRUE(rendered_.joined);
  EXPECT_EQ(one(answer_example(R"("ab")", R"("")")), "ab[<|endoftext|>]");
  options_.beginning = {'^'};
  EXPECT_EQ(one(answer_example(R"("Q")", R"("A")")), "^Q[A<|endoftext|>]");
  options_.train_on = TrainOn::all;
  EXPECT_EQ(one(answer_example(R"("Q")", R"("A")")), "[^QA<|endoftext|>]");
}

TEST_F(Render, CompletionsOfMessagesTrainTheAssistantOnly) {
  const char* prompt = R"([{"role": "user", "content": "hi"}])";
  const char* answer = R"([{"role": "assistant", "content": "one"}])";
  const std::string before = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(one(answer_example(prompt, answer)), before + "[one<|im_end|>\n]");
  EXPECT_EQ(one(answer_example(prompt, answer), kPlainTemplate), before + "[one<|im_end|>\n]");
  // Several messages: only the assistant's are trained.
  const char* several =
      R"([{"role": "assistant", "content": "one"}, {"role": "tool", "content": "r"},
                            {"role": "assistant", "content": "two"}])";
  EXPECT_EQ(one(answer_example(prompt, several)),
            before +
                "[one<|im_end|>]\n<|im_start|>tool\nr<|im_end|>\n<|im_start|>assistant\n"
                "[two<|im_end|>]\n");
  options_.train_on = TrainOn::last;
  EXPECT_EQ(one(answer_example(prompt, several), kPlainTemplate),
            before +
                "one<|im_end|>\n<|im_start|>tool\nr<|im_end|>\n<|im_start|>assistant\n"
                "[two<|im_end|>\n]");
  options_.train_on = TrainOn::all;
  EXPECT_EQ(one(answer_example(prompt, answer)), "[" + before + "one<|im_end|>\n]");
  const char* unwanted = R"([{"role": "user", "content": "hi", "weight": 0}])";
  EXPECT_ERROR(one(answer_example(unwanted, answer)), "message 0: not to be trained on");
  Example judged = answer_example(unwanted, answer);
  judged.kind = Example::Kind::unpaired;  // the prompt of which is never trained
  EXPECT_EQ(one(judged), before + "[one<|im_end|>\n]");
  options_.train_on = TrainOn::assistant;
  EXPECT_ERROR(one(answer_example(prompt, R"("text")")), "expected both as strings or as lists");
  EXPECT_ERROR(one(answer_example(prompt, answer), nullptr), "data.chat_template");
  const char* thinks =
      "{% for m in messages %}{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<think>{% endif %}";
  EXPECT_ERROR(one(answer_example(prompt, answer), thinks), "message 1: the prompt's text");
}

TEST_F(Render, TextPartsAreTrainedAsTheTemplateReadsThem) {
  const char* messages =
      R"([{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
          {"role": "assistant", "content": [{"type": "text", "text": "one"}]}])";
  const std::string want =
      "<|im_start|>user\nh\ni<|im_end|>\n<|im_start|>assistant\n[one<|im_end|>";
  EXPECT_EQ(chat(messages), want + "]\n");
  EXPECT_EQ(chat(messages, kPlainTemplate), want + "\n]");
}

TEST_F(Render, TextsThatTheTemplateLeavesOutAreNamed) {
  using Names = std::set<std::string>;
  const char* template_of_two =
      "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}<|im_start|>{{ m.role }}\n"
      "{{ m.content.split('</think>')[-1]|trim|upper }}<|im_end|>\n{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  const auto left_out = [&](const std::string& first, const std::string& last,
                            const char* with) -> Names {
    chat("[" + first + R"({"role": "user", "content": " hi "},
                          {"role": "assistant", "content": "<think>hm</think>yes")" +
             last + "}]",
         with);
    return rendered_.left_out;
  };
  const std::string developer = R"({"role": "developer", "content": "Be brief."},)";
  EXPECT_EQ(left_out(developer, "", template_of_two), Names{"messages of role 'developer'"});
  EXPECT_EQ(left_out(developer, "", kBlockTemplate), Names{});
  // Changed texts and cut thoughts are there.
  EXPECT_EQ(left_out("", "", template_of_two), Names{});
  EXPECT_EQ(left_out("", R"(, "reasoning_content": "hm")", kPlainTemplate), Names{});
  // Nothing is lost with an empty message.
  EXPECT_EQ(left_out(R"({"role": "developer", "content": " "},)", "", template_of_two), Names{});
  const char* calls = R"(, "function_call": {"name": "find", "arguments": "{}"},
                         "tool_calls": [{"function": {"name": "look", "arguments": {}}}])";
  EXPECT_EQ(left_out("", calls, template_of_two),
            (Names{"function_call of role 'assistant'", "tool_calls of role 'assistant'"}));
  const char* with_calls =
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function|tojson "
      "}}{% endfor %}{% endfor %}";
  options_.train_on = TrainOn::all;
  EXPECT_EQ(left_out("", calls, with_calls), Names{"function_call of role 'assistant'"});
  // A schema shows a function's name, and no call of it.
  Example with_tools = chat_example(
      R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes",
           "tool_calls": [{"function": {"name": "look", "arguments": {}}}]}])");
  with_tools.tools =
      parse_ordered_json(R"([{"type": "function", "function": {"name": "look"}}])", "test");
  for (const auto& [text, names] : {std::pair(with_calls, Names()),
                                    std::pair("{% for m in messages %}{{ m.content }}{% endfor %}",
                                              Names{"tool_calls of role 'assistant'"})}) {
    one(with_tools, (std::string("{{ tools|tojson }}") + text).c_str());
    EXPECT_EQ(rendered_.left_out, names) << text;
  }
  // Either answer of a pair counts.
  Example pair = answer_example(R"([{"role": "developer", "content": "Be brief."},
                                    {"role": "user", "content": "hi"}])",
                                R"([{"role": "assistant", "content": "one"}])");
  one(pair, template_of_two);
  EXPECT_EQ(rendered_.left_out, Names{"messages of role 'developer'"});
}

TEST_F(Render, PreferencesHaveTwoAnswersBehindOnePrompt) {
  Example pair;
  pair.kind = Example::Kind::preference;
  pair.prompt = "ab";
  pair.chosen = "d";
  pair.rejected = "cd";
  // Both lose the id that one of them joins.
  EXPECT_EQ(shown(pair), (std::vector<std::string>{"a[bd<|endoftext|>]", "a[bcd<|endoftext|>]"}));
  EXPECT_EQ(rendered_.prompt, 1u);
  EXPECT_TRUE(rendered_.joined);
  options_.train_on = TrainOn::all;
  EXPECT_EQ(shown(pair), (std::vector<std::string>{"a[bd<|endoftext|>]", "a[bcd<|endoftext|>]"}));
  pair.prompt = parse_ordered_json(R"([{"role": "user", "content": "q"}])", "test");
  pair.chosen = parse_ordered_json(R"([{"role": "assistant", "content": "yes"}])", "test");
  pair.rejected = parse_ordered_json(R"([{"role": "assistant", "content": "no"}])", "test");
  const std::string before = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(shown(pair),
            (std::vector<std::string>{before + "[yes<|im_end|>\n]", before + "[no<|im_end|>\n]"}));
  Example single = answer_example(R"("q")", R"("a")");
  single.kind = Example::Kind::unpaired;
  single.label = true;
  EXPECT_EQ(one(single), "q[a<|endoftext|>]");
  EXPECT_TRUE(rendered_.label);
}

TEST_F(Render, RefusalsNameTheExample) {
  Example text = chat_example(R"([{"role": "user"}])");
  text.file = "chat.jsonl";
  text.line = 17;
  EXPECT_ERROR(one(text, "{{ raise_exception('no') }}"), "[chat.jsonl:17]");
  EXPECT_ERROR(chat("[]"), "no messages");
  TokenizerSpec endless = chat_spec({});
  endless.eos = -1;
  const Tokenizer tokenizer(endless);
  Renderer renderer(tokenizer, nullptr, {});
  EXPECT_ERROR(renderer.render(Example{}), "no end of text");
}

}  // namespace
}  // namespace hocket::data
