// SPDX-License-Identifier: Apache-2.0
// Messages to standard error, with a level and the rank of the calling thread, and the one-line
// progress display that long work rewrites on a terminal and prints now and then elsewhere.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace hocket {

/// `debug` follows the work from the inside: passes, reshardings, the lanes of every rank.
enum class LogLevel : uint8_t { debug, warning };

/// Drops messages below this level. It starts as HOCKET_LOG (debug or warning), else warning.
void set_log_level(LogLevel level);
LogLevel log_level();

/// Sets the rank shown by messages of this thread: "[rank 3] ..."; -1 (the start) shows none.
void set_log_rank(int rank);

/// Redirects whole lines (without the line end) from standard error, for tests; empty restores it.
void set_log_sink(std::function<void(LogLevel, const std::string&)> sink);

/// Writes one line; safe from any thread, never interleaved, steps around a live progress line.
void log_line(LogLevel level, std::string_view text);
/// Writes one line, as log_line() does, as an answer to the user: no level, no rank, always shown.
void print_line(std::string_view text);

template <typename... Args>
void log_message(LogLevel level, fmt::format_string<Args...> text, Args&&... args) {
  if (level >= log_level()) {
    log_line(level, fmt::format(text, std::forward<Args>(args)...));
  }
}
template <typename... Args>
void log_debug(fmt::format_string<Args...> text, Args&&... args) {
  log_message(LogLevel::debug, text, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> text, Args&&... args) {
  log_message(LogLevel::warning, text, std::forward<Args>(args)...);
}

struct ProgressOptions {
  int fd = 2;
  double plain_interval_s = 10;
  int terminal = -1;                        ///< 1 or 0 forces; -1 asks the system about `fd`
  int width = 0;                            ///< columns; 0 asks the system
  std::function<double()> clock = nullptr;  ///< seconds; null: the steady clock
};

/// One line that says how far the work is. On a terminal it is rewritten in place (at most ten
/// times a second, cut to the terminal's width); elsewhere it is printed as a plain line: the first
/// one, then one per `plain_interval_s`, and the last. One at a time may be live.
class Progress {
 public:
  explicit Progress(ProgressOptions options);
  Progress() : Progress(ProgressOptions()) {}
  ~Progress();  ///< finish()
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Sets the state, and shows it if it is time to.
  void update(const std::string& text);
  /// Prints a line that stays, in place of the state shown so far; the next update() is shown below
  /// it.
  void print(const std::string& line);
  /// Shows the last state, if it was not shown, and ends the line.
  void finish();

 private:
  friend void log_line(LogLevel, std::string_view);
  friend void print_line(std::string_view);
  static void step_around_locked(std::string_view line);
  void show_locked(bool force);
  void clear_locked();

  ProgressOptions options_;
  bool terminal_ = false;
  bool on_screen_ = false;  // the cursor stands behind a rewritable line
  bool pending_ = false;    // last_ was not shown yet
  bool shown_any_ = false;
  double shown_at_ = 0;
  std::string last_;
};

}  // namespace hocket
