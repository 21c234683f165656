// SPDX-License-Identifier: Apache-2.0
// Implements: the endpoints for text of Api (api.h).
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/model_text.h"
#include "serve/openai/api.h"
#include "serve/openai/body.h"
#include "serve/openai/chat_job.h"
#include "serve/openai/completion_job.h"
#include "serve/openai/refusal.h"
#include "serve/openai/tool_parser.h"

namespace hocket::serve {
namespace {

constexpr int64_t kMaxTexts = 8192;  // of a request

uint64_t random_seed() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return random();
}

/// Returns what the values of a body take while it is parsed, beside their texts: at most so much
/// for each one, and more for objects and lists.
int64_t parsing_bytes(std::string_view body) {
  constexpr int64_t kValue = 48, kStructure = 128;
  int64_t bytes = 0;
  for (const char c : body) {
    bytes += c == ',' ? kValue : c == '{' || c == '[' ? kStructure : 0;
  }
  return bytes;
}

/// Returns whether a prompt ends within reasoning that it opens.
bool opens_reasoning(std::string_view prompt) {
  const size_t open = prompt.rfind("<think>");
  return open != prompt.npos && prompt.find("</think>", open) == prompt.npos &&
         trim(prompt.substr(open + 7)).empty();
}

}  // namespace

struct Api::Slot {
  explicit Slot(Api& of) : api(of), bytes(of.options_.budget) {}
  ~Slot() { --api.streams_; }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  Api& api;
  ByteBudget::Share bytes;
};

std::shared_ptr<Api::Slot> Api::take_slot() {
  if (draining_) throw Refusal{.status = 503, .message = "the server is stopping"};
  const int64_t taken = ++streams_;
  auto slot = std::make_shared<Slot>(*this);
  if (taken > options_.max_streams) {
    throw Refusal{.status = 429,
                  .message = fmt::format("{} requests are being answered, the limit of this server "
                                         "(--max-streams)",
                                         options_.max_streams),
                  .code = "rate_limit_exceeded",
                  .retry_after_s = 1};
  }
  return slot;
}

void Api::hold(int64_t bytes, Slot* slot) const {
  if (slot->bytes.set(bytes)) return;
  const std::string limit = human_bytes(static_cast<double>(options_.budget->bytes()));
  if (bytes > options_.budget->bytes()) {
    throw Refusal{.status = 413,
                  .message = fmt::format("the request takes {} of memory; expected at most {}, the "
                                         "limit of this server (--max-requests-mb)",
                                         human_bytes(static_cast<double>(bytes)), limit)};
  }
  throw Refusal{.status = 429,
                .message = fmt::format("other requests take the {} of memory that this server has "
                                       "for them (--max-requests-mb)",
                                       limit),
                .code = "rate_limit_exceeded",
                .retry_after_s = 1};
}

void Api::check_model(const Call& call) const {
  if (!call.model.empty()) {
    models(call.model);
  }
}

void Api::warn_ignored(const Call& call) const {
  for (const std::string& field : call.ignored) {
    log_warning("a request has the unknown field {}, which is ignored", quote(field, 60));
  }
}

std::string Api::render(const ChatCall& call) const {
  if (template_ == nullptr) {
    throw Refusal{.status = 400,
                  .message =
                      "the model has no chat template; try /v1/completions, or start the "
                      "server with --chat-template"};
  }
  data::ChatOptions chat_options;
  chat_options.tools = call.tool_choice == ToolChoice::none ? nullptr : call.tools.get();
  chat_options.documents = call.documents.get();
  chat_options.add_generation_prompt = call.add_generation_prompt;
  chat_options.continue_final_message = call.continue_final_message ? "content" : "";
  chat_options.variables = call.variables.get();
  try {
    return template_->render(*call.messages, chat_options).text;
  } catch (const Error& error) {
    throw Refusal{
        .status = 400,
        .message = fmt::format("the chat template refuses the messages: {}", error.text()),
        .param = "messages"};
  }
}

void Api::check_tools_rendered(const ChatCall& call, const std::string& text) const {
  ChatCall without = call;
  without.tool_choice = ToolChoice::none;
  std::string other;
  try {
    other = render(without);
  } catch (const Refusal&) {
    return;  // a template that needs the tools
  }
  if (other == text) {
    refuse("tools",
           "are not in the prompt, as the chat template renders none; try another model, "
           "or start the server with --chat-template");
  }
}

void Api::check_length(const std::string& text) const {
  const int64_t least =
      max_token_bytes_ == 0 ? 0 : std::ssize(text) / std::max<int64_t>(max_token_bytes_, 1);
  if (least > service_.max_model_len()) {
    throw Refusal{.status = 400,
                  .message = fmt::format("this model's window is {} tokens, but the prompt has at "
                                         "least {}; shorten it",
                                         service_.max_model_len(), least),
                  .param = "prompt",
                  .code = "context_length_exceeded"};
  }
}

std::vector<int32_t> Api::encode_chat(const std::string& text, bool special) const {
  check_length(text);
  std::vector<int32_t> ids = tokenizer_.encode(text, {.add_special_tokens = special});
  data::require_ids("prompt", ids, tokenizer_, options_.limits.vocab_size);
  return ids;
}

/// Takes the ids out of a prompt that has such.
std::vector<int32_t> Api::prompt_ids(PromptInput& prompt, bool special) const {
  if (prompt.is_ids) {
    if (prompt.ids.empty()) refuse("prompt", "is empty; expected a token");
    return std::move(prompt.ids);
  }
  check_length(prompt.text);
  return data::document_ids("prompt", special ? options_.beginning : std::vector<int32_t>{},
                            tokenizer_, prompt.text, options_.limits.vocab_size);
}

int64_t Api::most_tokens(const Call& call, int64_t length) const {
  const int64_t window = service_.max_model_len();
  if (length == 0) refuse("prompt", "has no token");
  const int64_t rest = window - length;
  const int64_t most =
      call.max_tokens.value_or(std::min(options_.limits.max_tokens.value_or(rest), rest));
  if (length + most > window || (most < 1 && !call.max_tokens)) {
    throw Refusal{
        .status = 400,
        .message = fmt::format("this model's window is {} tokens, but {} were asked for: {} in the "
                               "prompt and {} of {}; shorten the prompt or the answer",
                               window, length + std::max<int64_t>(most, 1), length,
                               std::max<int64_t>(most, 1), call.max_tokens_field),
        .param = call.max_tokens_field,
        .code = "context_length_exceeded"};
  }
  if (call.min_tokens > most) {
    refuse("min_tokens", fmt::format("is {}; expected at most {}", call.min_tokens, most));
  }
  return most;
}

Request Api::request_of(const Call& call, SharedTokens prompt) const {
  Request request;
  request.max_tokens = most_tokens(call, std::ssize(prompt));
  request.prompt = std::move(prompt);
  request.sampling = call.sampling;
  request.stops = call.stops;
  request.stop_tokens = call.stop_tokens;
  if (!call.ignore_eos) {
    request.stop_tokens.insert(request.stop_tokens.end(), options_.stop_tokens.begin(),
                               options_.stop_tokens.end());
  }
  std::ranges::sort(request.stop_tokens);
  const auto [same, end] = std::ranges::unique(request.stop_tokens);
  request.stop_tokens.erase(same, end);
  request.include_stop = call.include_stop;
  request.min_tokens = call.min_tokens;
  request.logprobs = call.logprobs;
  request.prompt_logprobs = call.prompt_logprobs;
  request.cache_salt = call.cache_salt;
  request.priority = call.priority;
  return request;
}

void Api::set_constraint(const JsonRule& rule, Request* request) const {
  if (rule.kind == JsonRule::Kind::none) return;
  if (options_.constraint == nullptr) {
    refuse("response_format", "is not supported by this server");
  }
  try {
    request->constraint =
        options_.constraint(rule.kind == JsonRule::Kind::schema ? rule.schema.get() : nullptr);
  } catch (const Error& error) {
    throw Refusal{.status = 400,
                  .message = fmt::format("the JSON schema is not supported: {}", error.text()),
                  .param = "response_format"};
  }
}

void Api::set_tool_constraint(const ChatCall& call, const std::string& parser,
                              Request* request) const {
  if (options_.tool_constraint == nullptr) {
    refuse("tool_choice", "is required or a function, which this server does not support");
  }
  const bool any = call.tool_choice == ToolChoice::required && call.parallel_tool_calls;
  try {
    request->constraint =
        options_.tool_constraint(*call.tools, parser, call.function, any ? -1 : 1);
  } catch (const Error& error) {
    throw Refusal{.status = 400,
                  .message = fmt::format("a tool is not supported: {}", error.text()),
                  .param = "tools"};
  }
}

Api::Reply Api::run(const HttpRequest& request, HttpPeer& peer, std::shared_ptr<Slot> slot,
                    std::shared_ptr<Job> job, const Call& call, TextRequests requests) {
  warn_ignored(call);
  HttpRequest about;  // without the body, which may be long
  about.method = request.method;
  about.path = request.path;
  about.address = request.address;
  const auto log_end = [this, about, start_ns = now_ns()](int status, const std::string& text) {
    log(about, status, seconds_since(start_ns), text);
  };
  job->start(std::move(requests));
  job->on_end = log_end;
  HttpResponse response;
  if (call.stream) {
    response.type = "text/event-stream";
    response.headers.emplace_back("Cache-Control", "no-cache");
    response.headers.emplace_back("X-Accel-Buffering", "no");  // of nginx
    response.stream = [job, slot](HttpStream& out) { job->stream(out); };
  } else {
    response = job->whole(peer);
  }
  return {std::move(response), true};
}

Api::Reply Api::completions(const HttpRequest& request, HttpPeer& peer) {
  const std::shared_ptr<Slot> slot = take_slot();
  hold(parsing_bytes(request.body), slot.get());
  CompletionCall call = parse_completion(parse_body(request.body), options_.limits);
  check_model(call);
  if (std::ssize(call.prompts) * call.n > kMaxTexts) {
    refuse("n", fmt::format("asks for {} texts of {} prompts; expected at most {} in all", call.n,
                            call.prompts.size(), kMaxTexts));
  }
  std::vector<SharedTokens> prompts;
  int64_t held = std::ssize(request.body);  // texts of prompts are a part of it
  for (PromptInput& prompt : call.prompts) {
    prompts.emplace_back(prompt_ids(prompt, call.add_special_tokens.value_or(true)));
    most_tokens(call, std::ssize(prompts.back()));
    held += std::ssize(prompts.back()) * static_cast<int64_t>(sizeof(int32_t));
    hold(held, slot.get());
  }
  const uint64_t seed = call.has_seed ? call.sampling.seed : random_seed();
  const auto job = std::make_shared<CompletionJob>(context_, std::move(call), prompts);
  const CompletionCall& kept = job->completion();
  const auto make = [this, &kept, prompts, seed](size_t i) {
    const auto n = static_cast<size_t>(kept.n);
    Request one = request_of(kept, prompts[i / n]);
    one.sampling.seed = seed;
    one.sampling.sample = static_cast<int64_t>(i % n);
    if (kept.echo) {
      one.prompt_logprobs = std::max(one.prompt_logprobs, kept.logprobs);
    }
    // Special tokens are left out where that does not take the first blank, too.
    one.answer = kept.skip_special_tokens.value_or(true) && tokenizer_.spec().byte_level;
    set_constraint(kept.rule, &one);
    return one;
  };
  return run(request, peer, slot, job, kept,
             {.count = prompts.size() * static_cast<size_t>(kept.n), .make = make});
}

Api::Reply Api::chat(const HttpRequest& request, HttpPeer& peer) {
  const std::shared_ptr<Slot> slot = take_slot();
  const int64_t parsed = std::ssize(request.body) + parsing_bytes(request.body);
  hold(parsed, slot.get());
  ChatCall call = parse_chat(parse_body(request.body), options_.limits);
  check_model(call);
  const bool has_calls = call.tool_choice != ToolChoice::none;
  const bool forced = has_calls && call.tool_choice != ToolChoice::automatic;
  // Calls that a constraint makes have any form that we like.
  const std::string parser =
      options_.tool_parser.empty() && forced ? tool_parser_names().front() : options_.tool_parser;
  if (has_calls && parser.empty()) {
    refuse("tool_choice", "is auto, which needs a server with --tool-call-parser");
  }
  const std::string text = render(call);
  if (has_calls) {
    check_tools_rendered(call, text);
  }
  const SharedTokens prompt = encode_chat(text, call.add_special_tokens.value_or(false));
  most_tokens(call, std::ssize(prompt));
  hold(parsed + std::ssize(prompt) * static_cast<int64_t>(sizeof(int32_t)), slot.get());
  const bool free = call.rule.kind == JsonRule::Kind::none && !forced;
  const bool opens = opens_reasoning(text);
  // JSON that a constraint asks for comes behind the reasoning, unless the prompt has ended that.
  const bool reasons = options_.splits_reasoning && (free || opens || call.add_generation_prompt) &&
                       (free || !trim(text).ends_with("</think>"));
  const bool answer = call.skip_special_tokens.value_or(!(has_calls && marks_are_special_) &&
                                                        !(reasons && reasoning_is_special_));
  const uint64_t seed = call.has_seed ? call.sampling.seed : random_seed();
  const ChatFormat format{
      .prompt_text = text,
      .tool_parser = parser,
      .splits_reasoning = reasons,
      .reasoning_is_open = opens,
      .drops_blank = !answer && !tokenizer_.spec().byte_level && !call.continue_final_message};
  const auto job = std::make_shared<ChatJob>(context_, std::move(call), prompt, format);
  const ChatCall& kept = job->chat();
  const auto make = [this, &kept, prompt, seed, answer, forced, parser, reasons, opens](size_t i) {
    Request one = request_of(kept, prompt);
    one.answer = answer;
    one.sampling.seed = seed;
    one.sampling.sample = static_cast<int64_t>(i);
    if (forced) {
      set_tool_constraint(kept, parser, &one);
    } else {
      set_constraint(kept.rule, &one);
    }
    if (reasons && one.constraint != nullptr) {
      one.constraint->begin_with_reasoning(opens, options_.stop_tokens);
    }
    return one;
  };
  return run(request, peer, slot, job, kept, {.count = static_cast<size_t>(kept.n), .make = make});
}

}  // namespace hocket::serve
