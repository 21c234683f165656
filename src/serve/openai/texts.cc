// SPDX-License-Identifier: Apache-2.0
#include "serve/openai/texts.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "serve/openai/refusal.h"

namespace hocket::serve {

struct Texts::Inbox {
  std::mutex mutex;
  std::condition_variable came;
  std::vector<TextUpdate> updates;
};

Texts::Texts(Service& service, Metrics& metrics, TextRequests requests, int64_t n)
    : service_(service),
      metrics_(metrics),
      n_(n),
      start_ns_(now_ns()),
      requests_(std::move(requests)),
      texts_(requests_.count),
      running_(requests_.count),
      inbox_(std::make_shared<Inbox>()) {
  const auto cancel_all = [this] {
    for (size_t i = 0; i < next_; ++i) {
      service_.cancel(texts_[i].id);
    }
  };
  try {
    submit_waiting();
  } catch (const Refusal&) {
    cancel_all();
    throw;
  } catch (const Error& error) {
    cancel_all();
    const bool is_fault = error.kind() == Error::Kind::kInput;
    throw Refusal{.status = is_fault                  ? 400
                            : service_.is_shut_down() ? 503
                                                      : 500,
                  .message = std::string(error.text())};
  }
  if (next_ == 0 && requests_.count > 0) {
    throw Refusal{
        .status = 429, .message = Busy().what(), .code = "rate_limit_exceeded", .retry_after_s = 1};
  }
}

void Texts::submit_waiting() {
  try {
    for (; next_ < requests_.count; ++next_) {
      const size_t i = next_;
      if (!made_) {
        made_ = requests_.make(i);
        texts_[i].prompt_tokens = std::ssize(made_->prompt);
        texts_[i].max_tokens = made_->max_tokens;
      }
      // A copy: a request that finds the queue full comes again.
      texts_[i].id = service_.submit(*made_, [inbox = inbox_, i](const Update& update) {
        {
          const std::lock_guard lock(inbox->mutex);
          inbox->updates.push_back({.index = i, .update = update, .at_ns = now_ns()});
        }
        inbox->came.notify_one();
      });
      made_.reset();
    }
  } catch (const Busy&) {
  }
}

Texts::~Texts() {
  for (size_t i = 0; i < next_; ++i) {
    if (texts_[i].over) continue;
    service_.cancel(texts_[i].id);
    end(&texts_[i], Finish::cancelled, now_ns());
  }
}

double Texts::seconds() const { return seconds_since(start_ns_); }

void Texts::end(Progress* text, Finish finish, int64_t at_ns) {
  const auto since = [&](int64_t ns) { return static_cast<double>(ns - start_ns_) * 1e-9; };
  text->over = true;
  --running_;
  metrics_.finished(
      {.finish = finish,
       .prompt_tokens = text->prompt_tokens,
       .tokens = text->tokens,
       .max_tokens = text->max_tokens,
       .n = n_,
       .latency_s = since(at_ns),
       .started_s = text->started_ns > 0 ? std::optional(since(text->started_ns)) : std::nullopt,
       .first_token_s = since(text->first_ns),
       .last_token_s = since(text->last_ns)});
}

void Texts::observe(const TextUpdate& received) {
  Progress& text = texts_[received.index];
  text.started_ns = std::max(text.started_ns, received.update.started_ns);
  if (const int64_t count = std::ssize(received.update.tokens); count > 0) {
    if (text.tokens == 0) {
      metrics_.first_token(static_cast<double>(received.at_ns - start_ns_) * 1e-9);
      text.first_ns = received.at_ns;
    } else {
      metrics_.inter_token(static_cast<double>(received.at_ns - text.last_ns) * 1e-9, count);
    }
    text.tokens += count;
    text.last_ns = received.at_ns;
  }
  if (received.update.finish != Finish::running && !text.over) {
    end(&text, received.update.finish, received.at_ns);
  }
}

std::vector<TextUpdate> Texts::wait(std::chrono::milliseconds most) {
  std::vector<TextUpdate> updates;
  {
    std::unique_lock lock(inbox_->mutex);
    inbox_->came.wait_for(lock, most, [&] { return !inbox_->updates.empty(); });
    updates.swap(inbox_->updates);
  }
  for (const TextUpdate& one : updates) {
    observe(one);
  }
  const auto fail_next = [&](std::string error) {
    TextUpdate failed{.index = next_, .at_ns = now_ns()};
    failed.update.finish = Finish::failed;
    failed.update.error = std::move(error);
    updates.push_back(std::move(failed));
  };
  try {
    submit_waiting();
  } catch (const Refusal& refusal) {
    fail_next(refusal.message);
  } catch (const Error& error) {
    fail_next(std::string(error.text()));
  }
  return updates;
}

}  // namespace hocket::serve
