// SPDX-License-Identifier: Apache-2.0
// Events of Chrome JSON (the Trace Event Format) whoever wrote them, one at a time from a plain or
// gzip file of any length: what every reader of it needs, with a seam for the arguments that only
// one schema has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "trace/json_stream.h"

namespace hocket::trace {

/// What an event says outside of its arguments. Strings are reused from event to event.
struct ChromeEvent {
  char phase = 0;  ///< X: has a duration; M: names a process or thread; others as the format says
  std::string name, category;
  int64_t pid = 0, tid = 0;  ///< texts count as 0 unless they begin with a number
  double start_us = 0, duration_us = 0;
  bool has_start = false, has_duration = false;  ///< false also of what is no possible time
  std::string label;                             ///< args.name, of phase M
  double share_read = 0;                         ///< of the file, about: from 0 to 1
};

/// True of a number of microseconds that a clock can show or an event take: less than 30,000 years.
inline bool is_possible_time(double us) { return us > -1e18 && us < 1e18; }

/// What a reader could not use.
struct ChromeDamage {
  bool partial = false;  ///< cut off or malformed; what came before is used
  std::string cause;     ///< of `partial`
};

/// Calls `argument(i, json)` for every member of "args" whose key is arguments[i], which returns
/// true if it consumed the value, and `event(e)` behind every event. `before()` is called as an
/// event begins; `outside(key, json)` for every other key of the document, as `argument`. A file
/// that is cut off or malformed ends the events before that place, and `damage` says so. Error:
/// absent, unreadable, or no event was read before the damage.
template <typename Before, typename Argument, typename Event, typename Outside>
void for_each_event(const std::string& path, std::span<const std::string_view> arguments,
                    Before&& before, Argument&& argument, Event&& event, Outside&& outside,
                    ChromeDamage* damage) {
  enum Key : int { name, category, phase, process, thread, start, duration, args, other };
  JsonStream json(path);
  MemberOrder member_order, argument_order;
  ChromeEvent e;
  int64_t events = 0;
  const auto id = [&] {
    int64_t value = 0;
    if (json.next() != '"') return json.integer();
    const std::string& text = json.string();
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  };
  const auto text = [&](std::string* out) {
    if (json.next() == '"') {
      json.string(out);
    } else {
      json.skip_value();
    }
  };
  const auto key_of = [](std::string_view key) -> int {
    if (is_key(key, "name")) return name;
    if (is_key(key, "cat")) return category;
    if (is_key(key, "ph")) return phase;
    if (is_key(key, "pid")) return process;
    if (is_key(key, "tid")) return thread;
    if (is_key(key, "ts")) return start;
    if (is_key(key, "dur")) return duration;
    return is_key(key, "args") ? args : other;
  };
  // Of an argument: its place in `arguments`, or one of these.
  constexpr int kLabel = -1, kUnknown = -2;
  const auto argument_of = [&](std::string_view key) -> int {
    const auto at = std::find(arguments.begin(), arguments.end(), key);
    if (at != arguments.end()) return static_cast<int>(at - arguments.begin());
    return is_key(key, "name") ? kLabel : kUnknown;
  };
  const auto one_argument = [&](int key) {
    if (key == kLabel && json.next() == '"') return json.string(&e.label);
    if (key < 0 || !argument(key, json)) {
      json.skip_value();
    }
  };
  const auto one = [&] {
    if (json.next() != '{') return json.skip_value();
    e.phase = 0;
    e.name.clear();
    e.category.clear();
    e.label.clear();
    e.pid = e.tid = 0;
    e.has_start = e.has_duration = false;
    before();
    json.object(&member_order, key_of, [&](int key) {
      switch (key) {
        case name:
          return text(&e.name);
        case category:
          return text(&e.category);
        case phase:
          e.phase = json.next() == '"' ? json.character() : (json.skip_value(), '\0');
          return;
        case process:
          e.pid = id();
          return;
        case thread:
          e.tid = id();
          return;
        case start:
          e.has_start = json.number(&e.start_us) && is_possible_time(e.start_us);
          return;
        case duration:
          e.has_duration = json.number(&e.duration_us) && is_possible_time(e.duration_us);
          return;
        case args:
          if (json.next() == '{') return json.object(&argument_order, argument_of, one_argument);
          break;
        default:
          break;
      }
      json.skip_value();
    });
    ++events;
    e.share_read = json.share_read();
    event(e);
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
