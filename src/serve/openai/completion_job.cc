// SPDX-License-Identifier: Apache-2.0
#include "serve/openai/completion_job.h"

#include <algorithm>
#include <utility>

namespace hocket::serve {
namespace {

/// Returns a row with its first `most` alternatives: the engine was asked for those of two fields.
TokenLogprobs with_top(TokenLogprobs row, int64_t most) {
  if (std::ssize(row.top) > most) {
    row.top.resize(static_cast<size_t>(std::max<int64_t>(most, 0)));
  }
  return row;
}

}  // namespace

CompletionJob::CompletionJob(const JobContext& context, std::unique_ptr<const CompletionCall> call)
    : Job(context, *call, make_id("cmpl-", call->request_id), "text_completion"),
      own_(std::move(call)) {}

CompletionJob::CompletionJob(const JobContext& context, CompletionCall call,
                             std::vector<SharedTokens> prompts)
    : CompletionJob(context, std::make_unique<const CompletionCall>(std::move(call))) {
  prompts_ = std::move(prompts);
  choices_.assign(prompts_.size() * static_cast<size_t>(own_->n), Choice(own_->sampled_logprobs));
}

/// Returns the text of a prompt of ids; one that the tokenizer has not is no text.
std::string CompletionJob::decoded(const std::vector<int32_t>& ids) const {
  std::vector<int32_t> known;
  for (const int32_t id : ids) {
    if (id < context_.tokenizer.vocab_size()) {
      known.push_back(id);
    }
  }
  return context_.tokenizer.decode(known);
}

/// Takes the prompt into the text where it is to be echoed.
void CompletionJob::begin(size_t index, const Update& update, Choice* choice) {
  choice->begun = true;
  for (const TokenLogprobs& row : update.prompt_logprobs) {
    choice->prompt_logprobs.push_back(with_top(row, own_->prompt_logprobs));
  }
  if (!own_->echo) return;
  const std::vector<int32_t>& ids = prompt_of(index);
  const PromptInput& given = own_->prompts[index / static_cast<size_t>(own_->n)];
  choice->text = given.is_ids ? decoded(ids) : given.text;
  if (own_->logprobs < 0) return;
  // Tokens before the text, and a blank that encoding puts there, are not in it: offsets count from
  // the text's beginning.
  int64_t of_tokens = 0;
  for (const int32_t id : ids) {
    of_tokens += characters(names_.bytes(id));
  }
  choice->logprobs.hide(std::max<int64_t>(of_tokens - characters(choice->text), 0));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i == 0 || i > update.prompt_logprobs.size()) {
      choice->logprobs.add(names_, ids[i], nullptr);
      continue;
    }
    const TokenLogprobs row = with_top(update.prompt_logprobs[i - 1], own_->logprobs);
    choice->logprobs.add(names_, ids[i], &row);
  }
}

bool CompletionJob::take(size_t index, const Update& update, JsonWriter* part) {
  Choice& choice = choices_[index];
  const bool first = !choice.begun;
  if (first) {
    begin(index, update, &choice);
  }
  choice.text += update.text;
  const std::vector<int32_t> tokens = tokens_of(update);
  choice.tokens.insert(choice.tokens.end(), tokens.begin(), tokens.end());
  if (own_->logprobs >= 0) {
    for (const TokenLogprobs& row : update.logprobs) {
      choice.logprobs.add(names_, row.token, &row);
    }
  }
  choice.last = update;
  if (part != nullptr) {
    write_choice(index, &choice, first, part);
  }
  return true;
}

void CompletionJob::write_choice(size_t index, Choice* choice, bool first, JsonWriter* json) {
  json->object().member("index", index).member("text", std::exchange(choice->text, ""));
  json->key("logprobs");
  own_->logprobs >= 0 ? choice->logprobs.write(json) : (void)json->null();
  write_finish(choice->last, "stop", json);
  if (own_->prompt_logprobs >= 0) {
    write_prompt_logprobs(names_, choice->prompt_logprobs, &json->key("prompt_logprobs"));
  }
  if (own_->return_token_ids) {
    json->member("token_ids", std::exchange(choice->tokens, {}));
    json->key("prompt_token_ids");
    first ? json->value(prompt_of(index)) : json->null();
  }
  json->end();
}

void CompletionJob::write_choices(JsonWriter* json) {
  for (size_t i = 0; i < choices_.size(); ++i) {
    write_choice(i, &choices_[i], true, json);
  }
}

}  // namespace hocket::serve
