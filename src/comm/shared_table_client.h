// SPDX-License-Identifier: Apache-2.0
// Queries to the shared table with a time limit: the process that hosts the table may be stopped,
// swapping or cut off, and then never answers.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "comm/transport.h"

namespace hocket::comm {

/// Client of the shared table that never blocks longer than its time limit.
class SharedTableClient {
 public:
  /// Thrown when the table has not answered in time. It may answer later, so the query still takes
  /// effect.
  struct NoAnswer : std::runtime_error {
    NoAnswer() : std::runtime_error("the shared table does not answer") {}
  };

  /// `patience`: time limit of a query.
  SharedTableClient(std::shared_ptr<SharedTable> table, std::chrono::milliseconds patience);
  /// Abandons its thread if the table does not answer.
  ~SharedTableClient();
  SharedTableClient(const SharedTableClient&) = delete;
  SharedTableClient& operator=(const SharedTableClient&) = delete;

  // Sets a key as SharedTable does. This and the next two throw NoAnswer, at once if an earlier
  // query was not answered in time.
  void set(const std::string& key, const std::string& value);
  std::string set_if_absent(const std::string& key, const std::string& value);
  std::optional<std::string> get(const std::string& key);

  /// Returns for how long a query has been unanswered; 0: none is pending.
  std::chrono::milliseconds silent_for() const;

 private:
  using Ask = std::function<std::optional<std::string>(SharedTable&)>;
  struct State;
  std::optional<std::string> ask(Ask query);
  static void answer(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
  const std::chrono::milliseconds patience_;
};

}  // namespace hocket::comm
