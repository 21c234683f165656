// SPDX-License-Identifier: Apache-2.0
#include "serve/openai/chat_job.h"

#include <utility>

namespace hocket::serve {
namespace {

/// Adds parts of calls to whole ones.
void merge(const std::vector<ToolCallPart>& parts, std::vector<ToolCallPart>* calls) {
  for (const ToolCallPart& part : parts) {
    if (!calls->empty() && calls->back().index == part.index) {
      calls->back().arguments += part.arguments;
    } else {
      calls->push_back(part);
    }
  }
}

}  // namespace

ChatJob::ChatJob(const JobContext& context, std::unique_ptr<const ChatCall> call, ChatFormat format)
    : Job(context, *call, make_id("chatcmpl-", call->request_id), "chat.completion"),
      own_(std::move(call)),
      format_(std::move(format)) {}

ChatJob::ChatJob(const JobContext& context, ChatCall call, SharedTokens prompt, ChatFormat format)
    : ChatJob(context, std::make_unique<const ChatCall>(std::move(call)), std::move(format)) {
  prompts_ = {std::move(prompt)};
  choices_.resize(static_cast<size_t>(own_->n));
  for (Choice& choice : choices_) {
    if (own_->tool_choice != ToolChoice::none && !format_.tool_parser.empty()) {
      choice.parser = make_tool_parser(format_.tool_parser);
    }
    if (format_.splits_reasoning) {
      choice.splitter.emplace(format_.reasoning_is_open);
    }
  }
}

/// Splits new text into reasoning, content and calls; at the end also what was held back.
ChatJob::Message ChatJob::read(const Update& update, Choice* choice) const {
  Message out;
  std::string text, content;
  std::string_view given = update.text;
  if (!choice->begun && format_.drops_blank && given.starts_with(' ')) {
    given.remove_prefix(1);
  }
  const bool over = update.finish != Finish::running;
  if (choice->splitter) {
    choice->splitter->feed(given, &out.reasoning, &content);
    if (over) {
      choice->splitter->finish(&out.reasoning, &content);
    }
  } else {
    content = given;
  }
  if (choice->parser != nullptr) {
    choice->parser->feed(content, &out.text);
    if (over) {
      choice->parser->finish(&out.text);
    }
  } else {
    out.text.content = std::move(content);
  }
  if (!own_->parallel_tool_calls) {
    std::erase_if(out.text.calls, [](const ToolCallPart& call) { return call.index > 0; });
  }
  if (!own_->include_reasoning) {
    out.reasoning.clear();
  }
  choice->has_calls = choice->has_calls || !out.text.calls.empty();
  return out;
}

bool ChatJob::take(size_t index, const Update& update, JsonWriter* part) {
  Choice& choice = choices_[index];
  Message message = read(update, &choice);
  choice.begun = choice.begun || !update.text.empty();
  if (part != nullptr) {
    if (!reports(message, update)) return false;
    write_part(index, message, update, &choice, part);
    return true;
  }
  choice.all.reasoning += message.reasoning;
  choice.all.text.content += message.text.content;
  merge(message.text.calls, &choice.all.text.calls);
  const std::vector<int32_t> tokens = tokens_of(update);
  choice.tokens.insert(choice.tokens.end(), tokens.begin(), tokens.end());
  choice.logprobs.insert(choice.logprobs.end(), update.logprobs.begin(), update.logprobs.end());
  if (!update.prompt_logprobs.empty()) {
    choice.prompt_logprobs = update.prompt_logprobs;
  }
  choice.last = update;
  return true;
}

bool ChatJob::reports(const Message& message, const Update& update) const {
  const bool has_delta =
      !message.reasoning.empty() || !message.text.content.empty() || !message.text.calls.empty();
  const bool has_tokens = !tokens_of(update).empty() && own_->return_token_ids;
  const bool has_logprobs = own_->logprobs >= 0 && !update.logprobs.empty();
  return has_delta || has_tokens || has_logprobs || own_->continuous_usage ||
         update.finish != Finish::running;
}

const char* ChatJob::stopped(const Choice& choice) const {
  return choice.has_calls && own_->tool_choice != ToolChoice::named ? "tool_calls" : "stop";
}

void ChatJob::write_calls(const std::vector<ToolCallPart>& calls, bool parts, Choice* choice,
                          JsonWriter* json) const {
  // Mistral's templates refuse ids of any other form.
  const bool short_ids = format_.tool_parser == "mistral";
  json->array();
  for (const ToolCallPart& call : calls) {
    json->object();
    if (parts) {
      json->member("index", call.index);
    }
    if (!call.name.empty()) {
      std::string& id = choice->ids[call.index];
      if (id.empty()) {
        id = short_ids ? random_word(9) : "call_" + random_word(24);
      }
      json->member("id", id).member("type", "function");
    }
    json->key("function").object();
    if (!call.name.empty()) {
      json->member("name", call.name);
    }
    json->member("arguments", call.arguments).end().end();
  }
  json->end();
}

/// Writes the role, with content that is empty, as OpenAI and vLLM do.
void ChatJob::write_opening(size_t index, JsonWriter* json) {
  json->object().member("index", index).key("delta").object();
  json->member("role", "assistant").member("content", "").end();
  json->key("logprobs").null().key("finish_reason").null().end();
}

void ChatJob::write_part(size_t index, const Message& message, const Update& update, Choice* choice,
                         JsonWriter* json) {
  json->object().member("index", index).key("delta").object();
  if (!message.reasoning.empty()) {
    json->member("reasoning", message.reasoning);
  }
  if (!message.text.content.empty()) {
    json->member("content", message.text.content);
  }
  if (!message.text.calls.empty()) {
    write_calls(message.text.calls, true, choice, &json->key("tool_calls"));
  }
  json->end().key("logprobs");
  if (own_->logprobs >= 0 && !update.logprobs.empty()) {
    write_chat_logprobs(names_, update.logprobs, own_->sampled_logprobs, json);
  } else {
    json->null();
  }
  write_finish(update, stopped(*choice), json);
  if (own_->return_token_ids) {
    json->member("token_ids", tokens_of(update));
  }
  json->end();
}

void ChatJob::write_choices(JsonWriter* json) {
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    const ToolText& text = choice.all.text;
    json->object().member("index", i).key("message").object().member("role", "assistant");
    json->key("content");
    const bool has_other = !text.calls.empty() || !choice.all.reasoning.empty();
    text.content.empty() && has_other ? json->null() : json->value(text.content);
    json->key("refusal").null();
    if (!choice.all.reasoning.empty()) {
      json->member("reasoning", choice.all.reasoning);
    }
    if (!text.calls.empty()) {
      write_calls(text.calls, false, &choice, &json->key("tool_calls"));
    }
    json->end().key("logprobs");
    if (own_->logprobs >= 0) {
      write_chat_logprobs(names_, choice.logprobs, own_->sampled_logprobs, json);
    } else {
      json->null();
    }
    write_finish(choice.last, stopped(choice), json);
    if (own_->return_token_ids) {
      json->member("token_ids", choice.tokens);
    }
    json->end();
  }
}

void ChatJob::write_extra(JsonWriter* json) {
  if (own_->prompt_logprobs >= 0) {
    write_prompt_logprobs(names_, choices_[0].prompt_logprobs, &json->key("prompt_logprobs"));
  }
  if (own_->return_token_ids) {
    json->member("prompt_token_ids", prompts_[0].ids());
  }
  if (own_->return_prompt_text) {
    json->member("prompt_text", format_.prompt_text);
  }
}

}  // namespace hocket::serve
