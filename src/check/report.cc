// SPDX-License-Identifier: Apache-2.0
// A verdict as text for people and as JSON for scripts.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "check/check.h"

namespace hocket::check {
namespace {

std::string ranks_text(const std::vector<int32_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    text += text.empty() ? "" : ",";
    text += end == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end]);
    i = end + 1;
  }
  return text;
}

}  // namespace

std::string to_text(const Verdict& v) {
  std::string s;
  if (v.ok()) {
    s += fmt::format("good: {} tasks, {} buffers, {} messages, {} collectives, checked in {}\n",
                     v.num_tasks, v.num_buffers, v.num_messages, v.num_collectives,
                     human_time(v.seconds));
    s += "proved\n";
    for (const Claim& c : v.proved) s += fmt::format("  - {}\n    by: {}\n", c.what, c.rule);
  } else {
    s += fmt::format("refused: {} problem{} ({} tasks, {} buffers, checked in {})\n",
                     v.num_problems, v.num_problems == 1 ? "" : "s", v.num_tasks, v.num_buffers,
                     human_time(v.seconds));
    for (size_t i = 0; i < v.problems.size(); ++i) {
      const Problem& p = v.problems[i];
      s += fmt::format("{}. [{}: {}] {}\n", i + 1, to_string(p.problem_class), p.rule, p.text);
      if (!p.ranks.empty()) s += fmt::format("   ranks: {}\n", ranks_text(p.ranks));
      s += fmt::format("   change: {}\n", p.fix);
    }
    if (v.num_problems > static_cast<int64_t>(v.problems.size()))
      s += fmt::format("and {} more\n", v.num_problems - static_cast<int64_t>(v.problems.size()));
  }
  for (const ClassMemory& m : v.memory)
    s += fmt::format(
        "memory of stage {}: {} per rank ({} persistent, {} inputs and outputs, {} of {} "
        "arena)\n",
        m.cls, human_bytes(static_cast<double>(m.peak)),
        human_bytes(static_cast<double>(m.persistent)), human_bytes(static_cast<double>(m.host_io)),
        human_bytes(static_cast<double>(m.arena_used)),
        human_bytes(static_cast<double>(m.arena_planned)));
  if (v.ok()) {
    s += "assumed\n";
    for (const std::string& a : v.assumptions) s += "  - " + a + "\n";
    s += "outside\n";
    for (const std::string& a : v.outside) s += "  - " + a + "\n";
  }
  s += "program " + v.program_hash.hex() + "\n";
  return s;
}

std::string to_json(const Verdict& v) {
  using nlohmann::json;
  json j;
  j["ok"] = v.ok();
  j["program_hash"] = v.program_hash.hex();
  j["counts"] = {{"tasks", v.num_tasks},
                 {"buffers", v.num_buffers},
                 {"messages", v.num_messages},
                 {"collectives", v.num_collectives},
                 {"applications", v.num_applications},
                 {"problems", v.num_problems}};
  j["seconds"] = v.seconds;
  j["sends"] = {{"may_wait_for_receivers", v.ok() && v.stuck_when_sends_wait.empty()},
                {"stuck_if_they_wait", v.stuck_when_sends_wait}};
  j["problems"] = json::array();
  for (const Problem& p : v.problems) {
    json related = json::array();
    for (const TaskRef& r : p.related) related.push_back({{"class", r.cls}, {"task", r.task}});
    j["problems"].push_back({{"rule", p.rule},
                             {"class", to_string(p.problem_class)},
                             {"task", {{"class", p.task.cls}, {"task", p.task.task}}},
                             {"related", related},
                             {"ranks", p.ranks},
                             {"text", p.text},
                             {"fix", p.fix}});
  }
  j["proved"] = json::array();
  for (const Claim& c : v.proved) j["proved"].push_back({{"what", c.what}, {"rule", c.rule}});
  j["assumptions"] = v.assumptions;
  j["outside"] = v.outside;
  j["memory"] = json::array();
  for (const ClassMemory& m : v.memory) {
    json largest = json::array();
    for (const LiveBuffer& b : m.largest)
      largest.push_back({{"buffer", b.buffer}, {"bytes", b.bytes}, {"what", b.what}});
    j["memory"].push_back({{"class", m.cls},
                           {"arena_planned", m.arena_planned},
                           {"arena_used", m.arena_used},
                           {"persistent", m.persistent},
                           {"host_io", m.host_io},
                           {"peak", m.peak},
                           {"largest", largest}});
  }
  return j.dump(2);
}

}  // namespace hocket::check
