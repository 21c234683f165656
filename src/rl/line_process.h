// SPDX-License-Identifier: Apache-2.0
// A user's command that answers a line with a line, and the errors of one that does not.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace hocket::rl {

/// Time limits of a process. `start_s`: until it is ready, counted from its start, where it says
/// by a line {"ready": false} that it starts. It says {"ready": true} when it has.
struct LineLimits {
  double answer_s = 30, start_s = 300;
};

/// Most bytes of an answer's line, and of standard error for one line.
inline constexpr size_t kMaxAnswerLine = size_t{1} << 20, kMaxErrorBytes = size_t{4} << 20;

/// One process, in a process group of its own, run by the shell. After an Error of ask() it is of
/// no use: destroy it. One thread at a time.
class LineProcess {
 public:
  /// Starts it. Throws Error (kRun), in the name of `where`, if the system has no room.
  LineProcess(const std::string& command, const std::string& where, const LineLimits& limits);
  /// Ends the whole group: at once, or after close_input() a moment later.
  ~LineProcess();
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  /// Waits until it is ready. One that is silent is taken for ready after `silent_s`. Returns what
  /// is wrong otherwise, with the last lines of standard error: an end, or too long a start. Stops
  /// as stop_if_asked(), and then may be asked all the same.
  std::string start_within(double silent_s);
  /// Returns whether it said that it starts, and not yet that it is ready.
  bool is_starting() const { return state_ == State::starting; }
  /// Sends a line (without its end) and returns the answer's. Throws Error (kRun) that names the
  /// fault, with the last line of standard error: no answer in time, an end, bytes that nobody
  /// asked for, a line or standard error without an end. Stops as stop_if_asked().
  std::string ask(std::string_view line);
  /// Returns how it ended, if it did or does within the time; "": it lives.
  std::string end_within(double seconds);
  /// Tells the command that no line follows, so that it may end by itself.
  void close_input();
  /// Returns an Error's text with the last line of standard error behind it.
  std::string with_last_error(const std::string& what);

 private:
  enum class State : uint8_t { silent, starting, ready };
  /// Takes lines of what was read that say how far its start is. True: there was one.
  bool take_news();
  int64_t start_deadline_ns() const;
  void send_some(std::string_view* left);
  /// Reads what there is. False: the end.
  bool read_output();
  bool read_errors();
  void take_errors(std::string_view bytes);
  void wait_for(bool to_write, int64_t deadline_ns);
  std::string take_answer();
  [[noreturn]] void fail_with_error(const std::string& what);
  [[noreturn]] void fail_at_end();
  /// Returns how it ended, now that its output has.
  std::string shown_end();
  std::string with_last_errors(const std::string& what);
  void end();

  const std::string where_;
  const LineLimits limits_;
  const int64_t started_ns_;
  State state_ = State::silent;
  pid_t pid_ = -1, watcher_ = -1;
  int in_ = -1, out_ = -1, err_ = -1, lifeline_ = -1;
  int64_t closed_ns_ = 0;  // when the input was closed
  bool output_ended_ = false;
  std::string output_;                   // not yet returned
  std::string error_line_;               // in the making
  std::deque<std::string> last_errors_;  // lines, the newest last
  size_t error_bytes_ = 0;               // since the line was sent
};

}  // namespace hocket::rl
