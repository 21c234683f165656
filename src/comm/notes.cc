// SPDX-License-Identifier: Apache-2.0
#include "comm/notes.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace hocket::comm {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// State shared by the querying thread and its callers; it may outlive the callers.
struct Notes::State {
  struct Question {
    Ask ask;
    bool answered = false;
    std::optional<std::string> answer{};
    std::exception_ptr failed{};
  };

  explicit State(std::shared_ptr<Table> of) : table(std::move(of)) {}

  const std::shared_ptr<Table> table;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Question>> questions;  ///< the first one is in progress
  steady_clock::time_point since;  ///< time at which the first one came to the front
  bool ending = false, ended = false;
};

Notes::Notes(std::shared_ptr<Table> table, milliseconds patience)
    : state_(std::make_shared<State>(std::move(table))), patience_(patience) {
  std::thread([state = state_] { answer(state); }).detach();
}

Notes::~Notes() {
  std::unique_lock lock(state_->mutex);
  state_->ending = true;
  state_->changed.notify_all();
  const auto begin = state_->questions.empty() ? steady_clock::now() : state_->since;
  state_->changed.wait_until(lock, begin + patience_, [&] { return state_->ended; });
}

/// Executes the queries one after another, in the order in which they came.
void Notes::answer(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return state->ending || !state->questions.empty(); });
    if (state->ending) break;
    const std::shared_ptr<State::Question> question = state->questions.front();
    lock.unlock();
    try {
      question->answer = question->ask(*state->table);
    } catch (...) {
      question->failed = std::current_exception();
    }
    lock.lock();
    question->answered = true;
    state->questions.pop_front();
    state->since = steady_clock::now();
    state->changed.notify_all();
  }
  state->ended = true;
  state->changed.notify_all();
}

std::optional<std::string> Notes::ask(Ask question) {
  const auto asked = std::make_shared<State::Question>(State::Question{std::move(question)});
  std::unique_lock lock(state_->mutex);
  if (state_->questions.empty()) {
    state_->since = steady_clock::now();
  }
  state_->questions.push_back(asked);
  state_->changed.notify_all();
  // Every answer restarts the time limit of the next query.
  while (!asked->answered) {
    if (steady_clock::now() >= state_->since + patience_) throw Silent();
    state_->changed.wait_until(lock, state_->since + patience_);
  }
  if (asked->failed) {
    std::rethrow_exception(asked->failed);
  }
  return asked->answer;
}

void Notes::note(const std::string& key, const std::string& value) {
  ask([=](Table& table) {
    table.note(key, value);
    return std::optional<std::string>();
  });
}

std::string Notes::note_first(const std::string& key, const std::string& value) {
  return ask([=](Table& table) { return std::optional(table.note_first(key, value)); }).value();
}

std::optional<std::string> Notes::noted(const std::string& key) {
  return ask([=](Table& table) { return table.noted(key); });
}

milliseconds Notes::silent_for() const {
  std::lock_guard lock(state_->mutex);
  if (state_->questions.empty()) return milliseconds(0);
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - state_->since);
}

}  // namespace hocket::comm
