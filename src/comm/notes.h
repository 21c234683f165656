// SPDX-License-Identifier: Apache-2.0
// Questions to the table of notes, with a limit: who has the table may be stopped, swap, or be cut
// off, and then never answers.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "comm/wire.h"

namespace hocket::comm {

class Notes {
 public:
  /// The table has not answered in time. It may answer later: what was asked of it stays asked.
  struct Silent : std::runtime_error {
    Silent() : std::runtime_error("the table of notes does not answer") {}
  };

  /// `patience`: for an answer.
  Notes(std::shared_ptr<Table> table, std::chrono::milliseconds patience);
  /// Leaves a thread behind if the table does not answer.
  ~Notes();
  Notes(const Notes&) = delete;
  Notes& operator=(const Notes&) = delete;

  // As those of the table; and Silent, at once if it has not answered an earlier question in time.
  void note(const std::string& key, const std::string& value);
  std::string note_first(const std::string& key, const std::string& value);
  std::optional<std::string> noted(const std::string& key);

  /// For how long a question has had no answer; 0: none waits for one.
  std::chrono::milliseconds silent_for() const;

 private:
  using Ask = std::function<std::optional<std::string>(Table&)>;
  struct State;
  std::optional<std::string> ask(Ask question);
  static void answer(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
  const std::chrono::milliseconds patience_;
};

}  // namespace hocket::comm
