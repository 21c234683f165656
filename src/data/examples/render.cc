// SPDX-License-Identifier: Apache-2.0
#include "data/examples/render.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "data/examples/left_out.h"

namespace hocket::data {
namespace {

using Turns = Example::Turns;

/// Stands in front of special tokens that a text has; no character, so no text has it (Unicode,
/// noncharacters).
constexpr std::string_view kTokenMark = "\xEF\xB7\x90";

/// Names of a message's field that says whether it is trained on: Axolotl's and OpenAI's.
constexpr const char* kTrainingField = "training";
constexpr const char* kWeightField = "weight";

std::string turn_role(const Turns& message) {
  return message.is_object() && message.contains("role") && message.at("role").is_string()
             ? message.at("role").get<std::string>()
             : "";
}

/// Returns a message's own word on whether it is trained on.
std::optional<bool> training_of(const Turns& message, size_t index) {
  std::optional<bool> out;
  if (!message.is_object()) return out;
  if (message.contains(kTrainingField) && !message[kTrainingField].is_null()) {
    const Turns& value = message[kTrainingField];
    if (!value.is_boolean()) {
      fail("messages", "message {}: training is {}; expected true or false", index, value.dump());
    }
    out = value.get<bool>();
  }
  if (message.contains(kWeightField) && !message[kWeightField].is_null()) {
    const Turns& value = message[kWeightField];
    if (!value.is_number() || (value != 0 && value != 1)) {
      fail("messages", "message {}: weight is {}; expected 0 or 1", index, value.dump());
    }
    const bool trained = value == 1;
    if (out && *out != trained) {
      fail("messages", "message {}: training is {} and weight {}; expected one of them", index,
           *out, value.dump());
    }
    out = trained;
  }
  return out;
}

void require_messages(const Turns& turns, const char* what) {
  if (!turns.is_array()) {
    fail("messages", "{} is {}; expected a list of messages", what, turns.type_name());
  }
}

size_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace

int64_t TokenSequence::targets() const {
  return trained.empty() ? 0 : std::accumulate(trained.begin() + 1, trained.end(), int64_t{0});
}

struct Renderer::Impl {
  Impl(const Tokenizer& of, const ChatTemplate* with, RenderOptions render_options)
      : tokenizer(of), chat(with), options(std::move(render_options)), encoder(of) {
    for (const AddedToken& token : tokenizer.spec().added) {
      if (token.special) {
        special.push_back(token.text);
      }
    }
  }

  const Tokenizer& tokenizer;
  const ChatTemplate* const chat;
  const RenderOptions options;
  Encoder encoder;
  std::vector<std::string> special;  ///< texts of special tokens
  int64_t met = 0;                   ///< special tokens in texts
  int64_t with_special = 0;          ///< examples that had some
  std::vector<ByteRange> ranges;

  /// A rendered chat as text without marks.
  struct Chat {
    std::string text;
    std::vector<size_t> literal;  ///< bytes at which a special token is text
    std::vector<ChatSpan> spans;  ///< those that are trained
  };

  /// Puts a mark in front of every special token in the strings of `json`, if they are to be text,
  /// and counts them.
  void mark(Turns* json) {
    if (json->is_string()) {
      auto& text = json->get_ref<std::string&>();
      if (text.find(kTokenMark) != std::string::npos) {
        fail("messages", "a text has U+FDD0, which is no character");
      }
      std::vector<size_t> begins;
      for (const std::string& token : special) {
        for (size_t at = text.find(token); at != std::string::npos; at = text.find(token, at + 1)) {
          begins.push_back(at);
        }
      }
      std::sort(begins.begin(), begins.end());
      begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
      met += std::ssize(begins);
      if (!options.split_special_tokens) return;
      for (auto at = begins.rbegin(); at != begins.rend(); ++at) {
        text.insert(*at, kTokenMark);
      }
    } else if (json->is_structured()) {
      for (Turns& item : *json) {
        mark(&item);
      }
    }
  }

  /// Takes the marks out of a rendered chat.
  void unmark(Chat* out) const {
    if (out->text.find(kTokenMark) == std::string::npos) return;
    std::string text;
    std::vector<size_t> marks;  // where they stood
    for (size_t begin = 0;;) {
      const size_t at = std::min(out->text.find(kTokenMark, begin), out->text.size());
      text.append(out->text, begin, at - begin);
      if (at == out->text.size()) break;
      marks.push_back(at);
      out->literal.push_back(text.size());
      begin = at + kTokenMark.size();
    }
    const auto moved = [&](size_t at) {
      const auto before = std::lower_bound(marks.begin(), marks.end(), at) - marks.begin();
      return at - kTokenMark.size() * before;
    };
    for (ChatSpan& span : out->spans) {
      span = {moved(span.begin), moved(span.end)};
    }
    out->text = std::move(text);
  }

  /// Returns messages as the template reads them: without the fields about training, and marked.
  Turns cleaned(const Turns& messages) {
    Turns out = messages;
    for (Turns& message : out) {
      if (message.is_object()) {
        message.erase(kTrainingField);
        message.erase(kWeightField);
      }
    }
    mark(&out);
    return out;
  }

  /// The variables of an example, which must outlive the options made of them.
  struct Variables {
    Turns tools, more;
    ChatOptions options() const {
      ChatOptions out;
      out.tools = tools.is_null() ? nullptr : &tools;
      out.variables = more.is_null() ? nullptr : &more;
      return out;
    }
  };
  Variables variables_of(const Example& example) {
    Variables out{example.tools, example.template_variables};
    mark(&out.tools);
    mark(&out.more);
    return out;
  }

  const ChatTemplate& require_chat() const {
    if (chat == nullptr) {
      fail("chat template",
           "messages, and no template that makes text of them; try data.chat_template "
           "(--chat-template FILE)");
    }
    return *chat;
  }

  /// Returns the texts of the assistant's messages from `first` on that are trained; `messages` as
  /// they were given, `clean` as they are rendered.
  std::vector<ChatSpan> trained_spans(const Turns& messages, const Turns& clean, size_t first,
                                      const ChatOptions& chat_options) const {
    std::vector<size_t> own;  // messages of the assistant
    std::vector<bool> chosen;
    for (size_t i = 0; i < messages.size(); ++i) {
      const std::optional<bool> said = training_of(messages[i], i);
      if (turn_role(messages[i]) == "assistant") {
        own.push_back(i);
        chosen.push_back(i >= first && said.value_or(true));
      } else if (said == true) {
        fail("messages",
             "message {} (role {}): to be trained on; expected this of the assistant's messages "
             "alone, or train_on: all",
             i, quote(turn_role(messages[i])));
      }
    }
    if (options.train_on == TrainOn::last && !chosen.empty()) {
      std::fill(chosen.begin(), chosen.end() - 1, false);
    }
    const std::vector<ChatSpan> spans = chat->assistant_spans(clean, chat_options);
    const bool blocks = chat->has_generation_blocks(chat_options.tools != nullptr);
    if (std::find(chosen.begin(), chosen.end(), false) == chosen.end()) return spans;
    // Numbers the spans by their messages.
    std::vector<ChatSpan> out;
    size_t begin = 0;
    for (size_t k = 0; k < own.size(); ++k) {
      const size_t end = blocks ? blocks_until(clean, own[k], chat_options) : k + 1;
      if (end <= begin || end > spans.size() || (k + 1 == own.size() && end != spans.size())) {
        fail("messages",
             "message {}: which generation blocks are its own is unknown, as their number depends "
             "on later messages; expected no selection of messages",
             own[k]);
      }
      if (chosen[k]) {
        out.insert(out.end(), spans.begin() + begin, spans.begin() + end);
      }
      begin = end;
    }
    return out;
  }

  /// Returns the number of generation blocks of the messages up to and with number `last`.
  size_t blocks_until(const Turns& clean, size_t last, const ChatOptions& chat_options) const {
    Turns prefix = Turns::array();
    for (size_t i = 0; i <= last; ++i) {
      prefix.push_back(clean[i]);
    }
    return chat->render(prefix, chat_options).generation.size();
  }

  TokenSequence encode(std::string_view text, bool split) {
    TokenSequence out;
    encoder.encode(text, &out.ids, {.split_special_tokens = split});
    return out;
  }

  /// Encodes a chat; a token is trained if it has a byte of a span (transformers' rule).
  TokenSequence encode(const Chat& from) {
    TokenSequence out;
    ranges.clear();
    encoder.encode(from.text, &out.ids, {.literal = from.literal}, &ranges);
    out.trained.resize(out.ids.size());
    size_t span = 0;
    for (size_t i = 0; i < ranges.size(); ++i) {
      while (span < from.spans.size() && ranges[i].begin >= from.spans[span].end) {
        ++span;
      }
      if (span == from.spans.size()) break;
      out.trained[i] = ranges[i].end > from.spans[span].begin;
    }
    return out;
  }

  /// Returns the ids of a text that is not a chat: those that begin a text, once, and its own.
  TokenSequence text_ids(const std::string& text) {
    TokenSequence out;
    const int64_t before = encoder.special_tokens_met();
    encoder.encode(text, &out.ids, {.split_special_tokens = options.split_special_tokens});
    met += encoder.special_tokens_met() - before;
    const std::vector<int32_t>& beginning = options.beginning;
    if (common_prefix(beginning, out.ids) < beginning.size()) {
      out.ids.insert(out.ids.begin(), beginning.begin(), beginning.end());
    }
    return out;
  }

  void end_text(TokenSequence* sequence) const {
    if (tokenizer.eos_id() < 0) {
      fail("tokenizer",
           "no end of text, which ends a text and a completion; expected eos_token in "
           "tokenizer_config.json");
    }
    if (sequence->ids.empty() || sequence->ids.back() != tokenizer.eos_id()) {
      sequence->ids.push_back(tokenizer.eos_id());
    }
  }

  /// Throws Error for a message from `first` on that is not to be trained on, where all of it is.
  static void refuse_selection(const Turns& messages, size_t first) {
    for (size_t i = first; i < messages.size(); ++i) {
      if (training_of(messages[i], i) == false) {
        fail("messages",
             "message {}: not to be trained on, and train_on is all; expected train_on: assistant "
             "or last",
             i);
      }
    }
  }

  void render_chat(const Example& example, RenderedExample* out) {
    const ChatTemplate& with = require_chat();
    require_messages(example.messages, "messages");
    const Variables variables = variables_of(example);
    const Turns clean = cleaned(example.messages);
    Chat text;
    text.text = with.render(clean, variables.options()).text;
    out->left_out = left_out_of(with, clean, variables.options(), text.text);
    if (options.train_on == TrainOn::all) {
      refuse_selection(example.messages, 0);
      text.spans = {{0, text.text.size()}};
    } else {
      text.spans = trained_spans(example.messages, clean, 0, variables.options());
    }
    unmark(&text);
    out->sequences.push_back(encode(text));
  }

  /// Marks the ids of `sequence` behind those of the prompt; they differ where tokens join both.
  void train_answer(const std::vector<int32_t>& prompt, TokenSequence* sequence,
                    RenderedExample* out) const {
    const size_t same = common_prefix(prompt, sequence->ids);
    out->joined |= same < prompt.size();
    out->prompt = out->sequences.empty() ? same : std::min(out->prompt, same);
    out->sequences.push_back(std::move(*sequence));
  }

  /// Trains on the answers alone, or on all that is not of the assistant as well.
  void finish_answers(RenderedExample* out, bool keeps_trained) const {
    const bool everything =
        options.train_on == TrainOn::all && out->kind == Example::Kind::completion;
    for (TokenSequence& sequence : out->sequences) {
      if (!keeps_trained) {
        sequence.trained.assign(sequence.ids.size(), 1);
      }
      if (!everything) {
        std::fill_n(sequence.trained.begin(), out->prompt, 0);
      }
      if (out->prompt >= sequence.ids.size()) {
        fail("messages", "an answer has no token; expected text behind the prompt");
      }
    }
  }

  void answers_of_text(const std::string& prompt, const std::vector<const Turns*>& answers,
                       RenderedExample* out) {
    const TokenSequence alone = text_ids(prompt);
    for (const Turns* answer : answers) {
      TokenSequence whole = text_ids(prompt + answer->get_ref<const std::string&>());
      end_text(&whole);
      train_answer(alone.ids, &whole, out);
    }
    finish_answers(out, false);
  }

  void answers_of_chat(const Example& example, const Turns& prompt,
                       const std::vector<const Turns*>& answers, RenderedExample* out) {
    const ChatTemplate& with = require_chat();
    const Variables variables = variables_of(example);
    const ChatOptions chat_options = variables.options();
    ChatOptions prompting = chat_options;
    prompting.add_generation_prompt = true;
    const std::string marked = with.render(cleaned(prompt), prompting).text;
    Chat before{marked, {}, {}};
    unmark(&before);
    const TokenSequence alone = encode(before);
    // Several messages, such as a tool's results, are trained on as those of a chat are.
    const bool selects = options.train_on != TrainOn::all &&
                         std::any_of(answers.begin(), answers.end(), [](const Turns* answer) {
                           return answer->size() != 1 || turn_role(answer->at(0)) != "assistant" ||
                                  answer->at(0).contains(kTrainingField) ||
                                  answer->at(0).contains(kWeightField);
                         });
    for (const Turns* answer : answers) {
      Turns messages = prompt;
      messages.insert(messages.end(), answer->begin(), answer->end());
      const Turns clean = cleaned(messages);
      Chat text;
      text.text = with.render(clean, chat_options).text;
      if (!text.text.starts_with(marked)) {
        fail("messages",
             "message {}: the prompt's text is another with it than without, so where the answer "
             "begins is unknown; try a template with {{% generation %}} blocks, and the whole chat "
             "as messages",
             prompt.size());
      }
      out->left_out.merge(left_out_of(with, clean, chat_options, text.text));
      if (selects) {
        text.spans = trained_spans(messages, clean, prompt.size(), chat_options);
      } else if (options.train_on == TrainOn::all) {
        refuse_selection(messages, out->kind == Example::Kind::completion ? 0 : prompt.size());
      }
      unmark(&text);
      TokenSequence whole = encode(text);
      train_answer(alone.ids, &whole, out);
    }
    finish_answers(out, selects);
  }

  void render_answers(const Example& example, std::vector<const Turns*> answers,
                      RenderedExample* out) {
    Turns prompt = example.prompt;
    const bool is_chat = answers[0]->is_array();
    for (const Turns* answer : answers) {
      const bool fits = is_chat ? answer->is_array() && prompt.is_array()
                                : answer->is_string() && prompt.is_string();
      if (!fits) {
        fail("messages",
             "prompt is {} and the answer {}; expected both as strings or as lists of "
             "messages",
             prompt.type_name(), answer->type_name());
      }
    }
    if (is_chat) {
      answers_of_chat(example, prompt, answers, out);
    } else {
      answers_of_text(prompt.get<std::string>(), answers, out);
    }
  }

  RenderedExample render(const Example& example) {
    RenderedExample out;
    out.kind = example.kind;
    out.label = example.label;
    const int64_t before = met;
    switch (example.kind) {
      case Example::Kind::text: {
        TokenSequence sequence = text_ids(example.text);
        end_text(&sequence);
        sequence.trained.assign(sequence.ids.size(), 1);
        out.sequences.push_back(std::move(sequence));
        break;
      }
      case Example::Kind::tokens:
        for (const int32_t id : example.ids) {
          if (id < 0 || id >= tokenizer.vocab_size()) {
            fail("tokenizer", "token {}; expected 0 to {}", id, tokenizer.vocab_size() - 1);
          }
        }
        out.sequences.push_back({example.ids, std::vector<uint8_t>(example.ids.size(), 1)});
        break;
      case Example::Kind::chat:
        render_chat(example, &out);
        break;
      case Example::Kind::completion:
      case Example::Kind::unpaired:
        render_answers(example, {&example.completion}, &out);
        break;
      case Example::Kind::preference:
        render_answers(example, {&example.chosen, &example.rejected}, &out);
        break;
    }
    with_special += met > before;
    return out;
  }
};

Renderer::Renderer(const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                   RenderOptions options)
    : impl_(std::make_unique<Impl>(tokenizer, chat_template, std::move(options))) {}
Renderer::~Renderer() = default;

RenderedExample Renderer::render(const Example& example) {
  try {
    return impl_->render(example);
  } catch (const Error& error) {
    throw Error(error.kind(), example.place(), fmt::format("{} ({})", error.text(), error.where()));
  }
}

int64_t Renderer::with_special_tokens() const { return impl_->with_special; }

}  // namespace hocket::data
