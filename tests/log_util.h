// SPDX-License-Identifier: Apache-2.0
// Lines of the log that a test looks at.
#pragma once

#include <string>
#include <vector>

#include "base/log.h"
#include "base/text.h"

namespace hocket::test {

/// Takes the log's lines while it lives. Requires: no other thread logs while they are read.
class LogLines {
 public:
  LogLines() {
    set_log_sink([this](LogLevel, const std::string& line) { lines_.push_back(line); });
  }
  ~LogLines() { set_log_sink(nullptr); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  const std::vector<std::string>& lines() const { return lines_; }
  std::string text() const { return join(lines_, "\n"); }
  void clear() { lines_.clear(); }

 private:
  std::vector<std::string> lines_;
};

}  // namespace hocket::test
