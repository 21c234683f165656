// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <mutex>

#include "base/clock.h"

namespace hocket {
namespace {

void put(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = ::write(fd, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      return;  // nowhere left to report it
    }
    text.remove_prefix(static_cast<size_t>(done));
  }
}

LogLevel level_from_environment() {
  const char* text = std::getenv("HOCKET_LOG");
  const std::string_view name = text == nullptr ? "" : text;
  if (name == "debug") return LogLevel::debug;
  if (!name.empty() && name != "warning") {
    const std::string line =
        fmt::format("warning: HOCKET_LOG is '{}'; expected debug or warning\n", name);
    put(2, line);
  }
  return LogLevel::warning;
}

std::atomic<LogLevel>& level_now() {
  static std::atomic<LogLevel> level{level_from_environment()};
  return level;
}

thread_local int thread_rank = -1;

// Guards the output, the sink and the live progress line.
std::mutex& output_mutex() {
  static std::mutex mutex;
  return mutex;
}
std::function<void(LogLevel, const std::string&)>& sink() {
  static std::function<void(LogLevel, const std::string&)> function;
  return function;
}
Progress* live_progress = nullptr;

// Cuts to `width` columns without splitting a UTF-8 character (one column each).
std::string_view cut(std::string_view text, size_t width) {
  size_t columns = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80 && columns++ == width) {
      return text.substr(0, i);
    }
  }
  return text;
}

int terminal_width(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

void set_log_level(LogLevel level) { level_now() = level; }
LogLevel log_level() { return level_now(); }
void set_log_rank(int rank) { thread_rank = rank; }

void set_log_sink(std::function<void(LogLevel, const std::string&)> function) {
  const std::lock_guard lock(output_mutex());
  sink() = std::move(function);
}

void log_line(LogLevel level, std::string_view text) {
  std::string line;
  if (thread_rank >= 0) {
    line = fmt::format("[rank {}] ", thread_rank);
  }
  line += level == LogLevel::debug ? "debug: " : "warning: ";
  line += text;
  const std::lock_guard lock(output_mutex());
  if (sink()) {
    sink()(level, line);
    return;
  }
  Progress::step_around_locked(line);
}

void print_line(std::string_view text) {
  const std::lock_guard lock(output_mutex());
  Progress::step_around_locked(text);
}

void Progress::step_around_locked(std::string_view line) {
  if (live_progress != nullptr) {
    live_progress->clear_locked();
  }
  put(2, std::string(line) + "\n");
  if (live_progress != nullptr && live_progress->terminal_ && !live_progress->last_.empty()) {
    live_progress->show_locked(true);
  }
}

Progress::Progress(ProgressOptions options) : options_(std::move(options)) {
  if (!options_.clock) {
    options_.clock = [] { return static_cast<double>(now_ns()) * 1e-9; };
  }
  terminal_ = options_.terminal < 0 ? ::isatty(options_.fd) == 1 : options_.terminal == 1;
  const std::lock_guard lock(output_mutex());
  if (live_progress == nullptr) {
    live_progress = this;
  }
}

Progress::~Progress() {
  finish();
  const std::lock_guard lock(output_mutex());
  if (live_progress == this) {
    live_progress = nullptr;
  }
}

void Progress::clear_locked() {
  if (on_screen_) {
    put(options_.fd, "\r\x1b[K");
  }
  on_screen_ = false;
}

void Progress::show_locked(bool force) {
  const double now = options_.clock();
  const double interval = terminal_ ? 0.1 : options_.plain_interval_s;
  const bool wait = shown_any_ && (on_screen_ || !terminal_);
  if (!force && wait && now - shown_at_ < interval) return;
  if (terminal_) {
    const int width = options_.width > 0 ? options_.width : terminal_width(options_.fd);
    std::string line = "\r\x1b[K";
    line += cut(last_, static_cast<size_t>(std::max(width - 1, 1)));
    put(options_.fd, line);
    on_screen_ = true;
  } else {
    put(options_.fd, last_ + "\n");
  }
  shown_at_ = now;
  shown_any_ = true;
  pending_ = false;
}

void Progress::update(const std::string& text) {
  const std::lock_guard lock(output_mutex());
  last_ = text;
  pending_ = true;
  show_locked(false);
}

void Progress::print(const std::string& line) {
  const std::lock_guard lock(output_mutex());
  clear_locked();
  put(options_.fd, line + "\n");
  last_.clear();
  pending_ = false;
}

void Progress::finish() {
  const std::lock_guard lock(output_mutex());
  if (pending_) {
    show_locked(true);
  }
  if (on_screen_) {
    put(options_.fd, "\n");
  }
  on_screen_ = false;
  last_.clear();
}

}  // namespace hocket
