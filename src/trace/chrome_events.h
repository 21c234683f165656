// SPDX-License-Identifier: Apache-2.0
// Reader of events in Chrome JSON (the Trace Event Format) of any origin, one at a time from a
// plain or gzip file of any length. Shared by all importers, with a callback for the arguments that
// only one schema has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "trace/json_stream.h"

namespace hocket::trace {

/// An event apart from its arguments. Strings are reused from event to event.
struct ChromeEvent {
  char phase = 0;  ///< X: has a duration; M: names a process or thread; others as in the format
  std::string name, category;
  int64_t pid = 0, tid = 0;  ///< first number in a text; 0 if it has none
  double start_us = 0, duration_us = 0;
  bool has_start = false, has_duration = false;  ///< false also for impossible times
  std::string label;                             ///< args.name, for phase M
  double share_read = 0;                         ///< fraction of the file read, roughly
};

/// Returns whether a time or duration in microseconds is plausible: less than 30,000 years.
inline bool is_possible_time(double us) { return us > -1e18 && us < 1e18; }

/// Damage that the reader found.
struct ChromeDamage {
  bool partial = false;  ///< cut off or malformed; earlier events are used
  std::string cause;     ///< reason for `partial`
};

/// Reader of events, one at a time into the same ChromeEvent. `argument(i, json)` is called for
/// every member of "args" with key arguments[i], and returns true if it consumed the value.
template <typename Argument>
class ChromeEventReader {
 public:
  ChromeEventReader(JsonStream& json, std::span<const std::string_view> arguments,
                    Argument& argument)
      : json_(json), arguments_(arguments), argument_(argument) {}

  /// Reads the object that begins here.
  const ChromeEvent& read() {
    clear();
    json_.object(&members_, key_of, [&](int key) { member(static_cast<Key>(key)); });
    event_.share_read = json_.share_read();
    return event_;
  }

 private:
  enum class Key : int { name, category, phase, process, thread, start, duration, args, other };
  // Results of the look-up of an argument beside its index in `arguments`.
  static constexpr int kLabel = -1, kUnknown = -2;

  static int key_of(std::string_view key) { return static_cast<int>(key_named(key)); }
  static Key key_named(std::string_view key) {
    if (is_key(key, "name")) return Key::name;
    if (is_key(key, "cat")) return Key::category;
    if (is_key(key, "ph")) return Key::phase;
    if (is_key(key, "pid")) return Key::process;
    if (is_key(key, "tid")) return Key::thread;
    if (is_key(key, "ts")) return Key::start;
    if (is_key(key, "dur")) return Key::duration;
    return is_key(key, "args") ? Key::args : Key::other;
  }

  void clear() {
    event_.phase = 0;
    event_.name.clear();
    event_.category.clear();
    event_.label.clear();
    event_.pid = event_.tid = 0;
    event_.has_start = event_.has_duration = false;
  }

  void member(Key key) {
    switch (key) {
      case Key::name:
        return text(&event_.name);
      case Key::category:
        return text(&event_.category);
      case Key::phase:
        event_.phase = json_.next() == '"' ? json_.character() : (json_.skip_value(), '\0');
        return;
      case Key::process:
        event_.pid = id();
        return;
      case Key::thread:
        event_.tid = id();
        return;
      case Key::start:
        event_.has_start = time(&event_.start_us);
        return;
      case Key::duration:
        event_.has_duration = time(&event_.duration_us);
        return;
      case Key::args:
        return arguments();
      case Key::other:
        return json_.skip_value();
    }
  }

  void arguments() {
    if (json_.next() != '{') return json_.skip_value();
    const auto place_of = [&](std::string_view key) -> int {
      const auto at = std::find(arguments_.begin(), arguments_.end(), key);
      if (at != arguments_.end()) return static_cast<int>(at - arguments_.begin());
      return is_key(key, "name") ? kLabel : kUnknown;
    };
    json_.object(&members_of_args_, place_of, [&](int place) {
      if (place == kLabel && json_.next() == '"') return json_.string(&event_.label);
      if (place < 0 || !argument_(place, json_)) {
        json_.skip_value();
      }
    });
  }

  /// Reads a number, or the first one in a text such as "thread 7 (python)".
  int64_t id() {
    if (json_.next() != '"') return json_.integer();
    int64_t value = 0;
    const std::string& text = json_.string();
    size_t at = std::min(text.find_first_of("0123456789"), text.size());
    at -= at == 1 && text[0] == '-' ? 1 : 0;
    std::from_chars(text.data() + at, text.data() + text.size(), value);
    return value;
  }
  void text(std::string* out) {
    if (json_.next() == '"') {
      json_.string(out);
    } else {
      json_.skip_value();
    }
  }
  bool time(double* us) { return json_.number(us) && is_possible_time(*us); }

  JsonStream& json_;
  const std::span<const std::string_view> arguments_;
  Argument& argument_;
  MemberCache members_, members_of_args_;
  ChromeEvent event_;
};

/// Calls `before()` as an event begins and `event(e)` after it. Calls `argument(i, json)` for every
/// member of "args" with key arguments[i], and `outside(key, json)` for every other key of the
/// document; both return true if they consumed the value. A file that is cut off or malformed ends
/// the events before that place, and `damage` reports it. Throws Error if the file is absent or
/// unreadable, or if no event precedes the damage.
template <typename Before, typename Argument, typename Event, typename Outside>
void for_each_event(const std::string& path, std::span<const std::string_view> arguments,
                    Before&& before, Argument&& argument, Event&& event, Outside&& outside,
                    ChromeDamage* damage) {
  // A document is an array of events, which may lack its end, or an object that contains one.
  JsonStream json(path);
  ChromeEventReader reader(json, arguments, argument);
  int64_t events = 0;
  const auto one = [&] {
    if (json.next() != '{') return json.skip_value();
    before();
    const ChromeEvent& read = reader.read();
    ++events;
    event(read);
  };
  try {
    if (json.next() == '[') {
      json.array(one, /*may_lack_end=*/true);
      json.check_end();
      return;
    }
    json.object([&](std::string_view key) {
      if (is_key(key, "traceEvents") && json.next() == '[') {
        json.array(one);
      } else if (!outside(key, json)) {
        json.skip_value();
      }
    });
    json.check_end();
  } catch (const Error& error) {
    if (events == 0) throw;
    damage->partial = true;
    damage->cause = error.text();
  }
}

}  // namespace hocket::trace
