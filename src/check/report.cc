// SPDX-License-Identifier: Apache-2.0
// A verdict as text for people and as JSON for scripts.
#include <fmt/format.h>

#include "base/json_writer.h"
#include "base/text.h"
#include "check/check.h"

namespace hocket::check {
namespace {

std::string ranks_text(const std::vector<int32_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) {
      ++end;
    }
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
    for (const Claim& c : v.proved) {
      s += fmt::format("  - {}\n    by: {}\n", c.what, c.rule);
    }
  } else {
    s += fmt::format("refused: {} problem{} ({} tasks, {} buffers, checked in {})\n",
                     v.num_problems, v.num_problems == 1 ? "" : "s", v.num_tasks, v.num_buffers,
                     human_time(v.seconds));
    for (size_t i = 0; i < v.problems.size(); ++i) {
      const Problem& p = v.problems[i];
      s += fmt::format("{}. [{}: {}] {}\n", i + 1, to_string(p.problem_class), p.rule, p.text);
      if (!p.ranks.empty()) {
        s += fmt::format("   ranks: {}\n", ranks_text(p.ranks));
      }
      s += fmt::format("   change: {}\n", p.fix);
    }
    if (v.num_problems > static_cast<int64_t>(v.problems.size())) {
      s += fmt::format("and {} more\n", v.num_problems - static_cast<int64_t>(v.problems.size()));
    }
  }
  for (const ClassMemory& m : v.memory) {
    s += fmt::format("memory of stage {}: {} per rank ({})\n", m.cls,
                     human_bytes(static_cast<double>(m.planned.total())),
                     program::parts_text(m.planned));
  }
  if (v.ok()) {
    s += "assumed\n";
    for (const std::string& a : v.assumptions) {
      s += "  - " + a + "\n";
    }
    s += "outside\n";
    for (const std::string& a : v.outside) {
      s += "  - " + a + "\n";
    }
  }
  const Certificate& c = v.certificate;
  s += fmt::format("program {}\n", c.program.hex());
  if (c.reference != Hash128{}) {
    s += fmt::format("reference {}\n", c.reference.hex());
  }
  s += fmt::format("mesh {} ({})\n", c.mesh.hex(), c.ranks);
  return s;
}

std::string to_json(const Verdict& v) {
  JsonWriter j({.indent = 2});
  const auto task = [&](std::string_view name, const TaskRef& r) {
    if (!name.empty()) {
      j.key(name);
    }
    j.object().member("class", r.cls).member("task", r.task).end();
  };
  j.object().member("ok", v.ok());
  j.member("program_hash", v.certificate.program.hex());
  j.member("reference_hash", v.certificate.reference.hex());
  j.member("mesh_hash", v.certificate.mesh.hex()).member("mesh", v.certificate.ranks);
  j.key("counts").object().member("tasks", v.num_tasks).member("buffers", v.num_buffers);
  j.member("messages", v.num_messages).member("collectives", v.num_collectives);
  j.member("applications", v.num_applications).member("problems", v.num_problems).end();
  j.member("seconds", v.seconds).key("sends").object();
  j.member("may_wait_for_receivers", v.ok() && v.stuck_when_sends_wait.empty());
  j.member("stuck_if_they_wait", v.stuck_when_sends_wait).end();
  j.key("problems").array();
  for (const Problem& p : v.problems) {
    j.object().member("rule", p.rule).member("class", to_string(p.problem_class));
    task("task", p.task);
    j.key("related").array();
    for (const TaskRef& r : p.related) {
      task("", r);
    }
    j.end().member("ranks", p.ranks).member("text", p.text).member("fix", p.fix).end();
  }
  j.end().key("proved").array();
  for (const Claim& c : v.proved) {
    j.object().member("what", c.what).member("rule", c.rule).end();
  }
  j.end().member("assumptions", v.assumptions).member("outside", v.outside);
  j.member("ragged_factor", v.ragged_factor).key("memory").array();
  for (const ClassMemory& m : v.memory) {
    j.object().member("class", m.cls).member("persistent", m.planned.persistent);
    j.member("inputs_outputs", m.planned.inputs_outputs);
    j.member("step_buffers", m.planned.step_buffers).member("messages", m.planned.messages);
    j.member("evaluation", m.planned.evaluation).member("planned", m.planned.total());
    j.member("reserved", m.planned.reserved).key("largest").array();
    for (const LiveBuffer& b : m.largest) {
      j.object().member("buffer", b.buffer).member("bytes", b.bytes).member("what", b.what).end();
    }
    j.end().end();
  }
  j.end().end();
  return j.take();
}

}  // namespace hocket::check
