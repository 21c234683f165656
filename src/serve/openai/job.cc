// SPDX-License-Identifier: Apache-2.0
#include "serve/openai/job.h"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <random>
#include <utility>

namespace hocket::serve {
namespace {

/// A client that goes, and a server that stops, are seen after so long at most.
constexpr std::chrono::milliseconds kWait(200);

constexpr int kClientGone = 499;  // nginx' status for logs

std::string event(std::string json) { return "data: " + std::move(json) + "\n\n"; }

}  // namespace

std::string random_word(int length) {
  static constexpr char letters[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string out;
  for (int i = 0; i < length; ++i) {
    out += letters[random() % 36];
  }
  return out;
}

std::string make_id(const std::string& prefix, const std::string& given) {
  return prefix + (given.empty() ? random_word(24) : given);
}

Job::~Job() {
  if (texts_ != nullptr) {
    end(kClientGone);  // before the stream began
  }
}

void Job::start(TextRequests requests) {
  counts_.resize(requests.count);
  texts_ =
      std::make_unique<Texts>(context_.service, context_.metrics, std::move(requests), call_.n);
}

void Job::count(size_t index, const Update& update) {
  Counts& counts = counts_[index];
  counts.tokens += std::ssize(update.tokens) + (update.stop_token ? 1 : 0);
  counts.cached = std::max(counts.cached, update.cached_tokens);
}

std::vector<int32_t> Job::tokens_of(const Update& update) const {
  std::vector<int32_t> tokens = update.tokens;
  if (update.stop_token) {
    tokens.push_back(*update.stop_token);
  }
  return tokens;
}

void Job::open(JsonWriter* json, const char* object) const {
  json->object().member("id", id_).member("object", object).member("created", created_);
  json->member("model", context_.model);
}

void Job::write_usage(JsonWriter* json) const {
  int64_t prompt = 0, tokens = 0, cached = 0;
  for (const SharedTokens& ids : prompts_) {
    prompt += std::ssize(ids);
  }
  for (size_t i = 0; i < counts_.size(); ++i) {
    tokens += counts_[i].tokens;
    if (i % static_cast<size_t>(call_.n) == 0) {
      cached += counts_[i].cached;
    }
  }
  json->object().member("prompt_tokens", prompt).member("total_tokens", prompt + tokens);
  json->member("completion_tokens", tokens).key("prompt_tokens_details");
  json->object().member("cached_tokens", cached).end().end();
}

void Job::write_finish(const Update& update, const char* stopped, JsonWriter* json) const {
  json->key("finish_reason");
  if (update.finish == Finish::running) {
    json->null().key("stop_reason").null();
    return;
  }
  json->value(update.finish == Finish::length ? "length" : stopped).key("stop_reason");
  const bool asked =
      update.stop_token &&
      std::ranges::find(call_.stop_tokens, *update.stop_token) != call_.stop_tokens.end();
  if (!update.stop.empty()) {
    json->value(update.stop);
  } else if (asked) {
    json->value(*update.stop_token);
  } else {
    json->null();  // the model's own end
  }
}

Refusal Job::reason_to_end() const {
  if (context_.stopping) return {.status = 503, .message = "the server is stopping"};
  if (context_.timeout_s > 0 && texts_->seconds() > context_.timeout_s) {
    return {.status = 504,
            .message = fmt::format("the answer took over {} s, the limit of this server "
                                   "(--request-timeout)",
                                   context_.timeout_s)};
  }
  return {.status = 0, .message = ""};
}

Refusal Job::failed(const Update& update) const {
  if (!context_.service.failure().empty()) return {.status = 500, .message = update.error};
  if (update.model_failed) {
    return {.status = 500, .message = update.error, .code = kNotFiniteCode};
  }
  if (context_.service.is_shut_down()) return {.status = 503, .message = update.error};
  return {.status = 400, .message = update.error, .code = "text_failed"};
}

void Job::end(int status) {
  int64_t tokens = 0;
  for (const Counts& counts : counts_) {
    tokens += counts.tokens;
  }
  int64_t prompt = 0;
  for (const SharedTokens& ids : prompts_) {
    prompt += std::ssize(ids);
  }
  texts_.reset();
  if (auto report = std::exchange(on_end, nullptr)) {
    report(status, fmt::format("{} prompt tokens, {} tokens", prompt, tokens));
  }
}

HttpResponse Job::whole(HttpPeer& peer) {
  const auto refuse = [&](Refusal refusal) {
    end(refusal.status);
    return error_response(refusal);
  };
  while (!texts_->done()) {
    for (const TextUpdate& received : texts_->wait(kWait)) {
      if (received.update.finish == Finish::failed) return refuse(failed(received.update));
      if (received.update.finish == Finish::cancelled) {
        return refuse({.status = 503, .message = "the text was cancelled by the server"});
      }
      count(received.index, received.update);
      take(received.index, received.update, nullptr);
    }
    if (texts_->done()) break;
    if (peer.gone()) return refuse({.status = kClientGone, .message = "the client is gone"});
    if (Refusal reason = reason_to_end(); reason.status != 0) return refuse(reason);
  }
  JsonWriter json;
  open(&json, object_);
  json.key("choices").array();
  write_choices(&json);
  json.end().key("usage");
  write_usage(&json);
  write_extra(&json);
  json.end();
  end(200);
  return {.body = json.take()};
}

std::string Job::parts(size_t index, const Update& update) {
  std::string events;
  if (!std::exchange(counts_[index].begun, true) && opens_texts()) {
    events = event_of([&](JsonWriter* json) {
      write_opening(index, json);
      return true;
    });
  }
  count(index, update);
  return events + event_of([&](JsonWriter* json) { return take(index, update, json); });
}

std::string Job::event_of(const std::function<bool(JsonWriter*)>& write_choice) {
  JsonWriter json;
  open(&json, part_object());
  json.key("choices").array();
  if (!write_choice(&json)) return "";
  json.end();
  if (std::exchange(first_part_, false)) {
    write_extra(&json);
  }
  if (call_.continuous_usage) {
    json.key("usage");
    write_usage(&json);
  }
  return event(json.end().take());
}

std::string Job::usage_part() const {
  JsonWriter json;
  open(&json, part_object());
  json.key("choices").array().end().key("usage");
  write_usage(&json);
  return event(json.end().take());
}

int Job::stream(HttpStream& out) {
  const auto finish = [&](int status) {
    end(status);
    return status;
  };
  const auto fail_with = [&](const Refusal& refusal) {
    out.write(event(error_json(refusal)) + "data: [DONE]\n\n");
    return finish(refusal.status);
  };
  while (!texts_->done()) {
    for (const TextUpdate& received : texts_->wait(kWait)) {
      if (received.update.finish == Finish::failed) return fail_with(failed(received.update));
      if (received.update.finish == Finish::cancelled) {
        return fail_with({.status = 503, .message = "the text was cancelled by the server"});
      }
      const std::string events = parts(received.index, received.update);
      if (!events.empty() && !out.write(events)) return finish(kClientGone);
    }
    if (texts_->done()) break;
    if (out.gone()) return finish(kClientGone);
    if (Refusal reason = reason_to_end(); reason.status != 0) return fail_with(reason);
  }
  if (call_.include_usage) {
    out.write(usage_part());
  }
  return finish(out.write("data: [DONE]\n\n") ? 200 : kClientGone);
}

}  // namespace hocket::serve
