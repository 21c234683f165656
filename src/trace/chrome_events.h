// SPDX-License-Identifier: Apache-2.0
// Events of Chrome JSON (the Trace Event Format) whoever wrote them, one at a time from a plain or
// gzip file of any length: what every reader of it needs, with a seam for the arguments that only
// one schema has.
#pragma once

#include <cstdint>
#include <string>

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
};

/// True of a number of microseconds that a clock can show or an event take: less than 30,000 years.
inline bool is_possible_time(double us) { return us > -1e18 && us < 1e18; }

/// What a reader could not use.
struct ChromeDamage {
  bool partial = false;  ///< cut off or malformed; what came before is used
  std::string cause;     ///< of `partial`
};

/// Calls `argument(key, json)` for every member of "args" but "name" of texts, which returns true
/// if it consumed the value, and `event(e)` behind every event. `before(e)` is called as an event
/// begins; `outside(key, json)` for every other key of the document, as `argument`. A file that is
/// cut off or malformed ends the events before that place, and `damage` says so. Error: absent,
/// unreadable, or no event was read before the damage.
template <typename Before, typename Argument, typename Event, typename Outside>
void for_each_event(const std::string& path, Before&& before, Argument&& argument, Event&& event,
                    Outside&& outside, ChromeDamage* damage) {
  JsonStream json(path);
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
  const auto one = [&] {
    if (json.next() != '{') return json.skip_value();
    e.phase = 0;
    e.name.clear();
    e.category.clear();
    e.label.clear();
    e.pid = e.tid = 0;
    e.has_start = e.has_duration = false;
    before();
    json.object([&](std::string_view key) {
      if (is_key(key, "name")) {
        text(&e.name);
      } else if (is_key(key, "cat")) {
        text(&e.category);
      } else if (is_key(key, "ph")) {
        e.phase = json.next() == '"' ? json.string().c_str()[0] : (json.skip_value(), '\0');
      } else if (is_key(key, "pid")) {
        e.pid = id();
      } else if (is_key(key, "tid")) {
        e.tid = id();
      } else if (is_key(key, "ts")) {
        e.has_start = json.number(&e.start_us) && is_possible_time(e.start_us);
      } else if (is_key(key, "dur")) {
        e.has_duration = json.number(&e.duration_us) && is_possible_time(e.duration_us);
      } else if (is_key(key, "args") && json.next() == '{') {
        json.object([&](std::string_view name) {
          if (is_key(name, "name") && json.next() == '"') {
            json.string(&e.label);
          } else if (!argument(name, json)) {
            json.skip_value();
          }
        });
      } else {
        json.skip_value();
      }
    });
    ++events;
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
