// SPDX-License-Identifier: Apache-2.0
#include "comm/shared_table_client.h"

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
struct SharedTableClient::State {
  struct Query {
    Ask ask;
    bool answered = false;
    std::optional<std::string> answer{};
    std::exception_ptr failed{};
  };

  explicit State(std::shared_ptr<SharedTable> of) : table(std::move(of)) {}

  const std::shared_ptr<SharedTable> table;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Query>> queries;  ///< the first one is in progress
  steady_clock::time_point since;              ///< time at which the first one came to the front
  bool ending = false, ended = false;
};

SharedTableClient::SharedTableClient(std::shared_ptr<SharedTable> table, milliseconds patience)
    : state_(std::make_shared<State>(std::move(table))), patience_(patience) {
  std::thread([state = state_] { answer(state); }).detach();
}

SharedTableClient::~SharedTableClient() {
  std::unique_lock lock(state_->mutex);
  state_->ending = true;
  state_->changed.notify_all();
  const auto begin = state_->queries.empty() ? steady_clock::now() : state_->since;
  state_->changed.wait_until(lock, begin + patience_, [&] { return state_->ended; });
}

/// Executes the queries one after another, in the order in which they came.
void SharedTableClient::answer(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return state->ending || !state->queries.empty(); });
    if (state->ending) break;
    const std::shared_ptr<State::Query> query = state->queries.front();
    lock.unlock();
    try {
      query->answer = query->ask(*state->table);
    } catch (...) {
      query->failed = std::current_exception();
    }
    lock.lock();
    query->answered = true;
    state->queries.pop_front();
    state->since = steady_clock::now();
    state->changed.notify_all();
  }
  state->ended = true;
  state->changed.notify_all();
}

std::optional<std::string> SharedTableClient::ask(Ask query) {
  const auto asked = std::make_shared<State::Query>(State::Query{std::move(query)});
  std::unique_lock lock(state_->mutex);
  if (state_->queries.empty()) {
    state_->since = steady_clock::now();
  }
  state_->queries.push_back(asked);
  state_->changed.notify_all();
  // Every answer restarts the time limit of the next query.
  while (!asked->answered) {
    if (steady_clock::now() >= state_->since + patience_) throw NoAnswer();
    state_->changed.wait_until(lock, state_->since + patience_);
  }
  if (asked->failed) {
    std::rethrow_exception(asked->failed);
  }
  return asked->answer;
}

void SharedTableClient::set(const std::string& key, const std::string& value) {
  ask([=](SharedTable& table) {
    table.set(key, value);
    return std::optional<std::string>();
  });
}

std::string SharedTableClient::set_if_absent(const std::string& key, const std::string& value) {
  return ask([=](SharedTable& table) { return std::optional(table.set_if_absent(key, value)); })
      .value();
}

std::optional<std::string> SharedTableClient::get(const std::string& key) {
  return ask([=](SharedTable& table) { return table.get(key); });
}

milliseconds SharedTableClient::silent_for() const {
  std::lock_guard lock(state_->mutex);
  if (state_->queries.empty()) return milliseconds(0);
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - state_->since);
}

}  // namespace hocket::comm
