// SPDX-License-Identifier: Apache-2.0
// Implements: to_text, equality_text and to_json of a Verdict (check.h).
#include <fmt/format.h>

#include <algorithm>

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

std::string loss_text(const CodecLoss& loss) {
  return fmt::format("{}: ~{} of {}", loss.buffer, loss.codec, loss.term);
}

/// "~int8 of 18 values in 54 named buffers", by codec.
std::string loss_summary(const Verdict& verdict) {
  std::string text;
  for (const CodecUse& lost : verdict.codec_uses) {
    text += fmt::format("{}~{} of {} in {}", text.empty() ? "" : ", ", lost.codec,
                        counted(lost.values, "value"), counted(lost.buffers, "named buffer"));
  }
  return text;
}

}  // namespace

std::string equality_text(const Verdict& verdict) {
  constexpr size_t kNamed = 3;
  std::string text = "equal to the single-device graph";
  if (verdict.losses.size() > kNamed) return text + " up to " + loss_summary(verdict);
  for (size_t i = 0; i < verdict.losses.size(); ++i) {
    text += (i ? "; " : " up to ") + loss_text(verdict.losses[i]);
  }
  return text;
}

std::string to_text(const Verdict& verdict) {
  // Problems or proof come first, then memory, which is printed of refused programs too.
  // Assumptions and scope belong to a proof only.
  std::string text;
  if (verdict.ok()) {
    text += fmt::format("good: {} tasks, {} buffers, {} messages, {} collectives, checked in {}\n",
                        verdict.num_tasks, verdict.num_buffers, verdict.num_messages,
                        verdict.num_collectives, human_time(verdict.seconds));
    text += "proved\n";
    for (const Claim& claim : verdict.proved) {
      text += fmt::format("  - {}\n    by: {}\n", claim.property, claim.rule);
    }
  } else {
    text += fmt::format("refused: {} problem{} ({} tasks, {} buffers, checked in {})\n",
                        verdict.num_problems, verdict.num_problems == 1 ? "" : "s",
                        verdict.num_tasks, verdict.num_buffers, human_time(verdict.seconds));
    for (size_t i = 0; i < verdict.problems.size(); ++i) {
      const Problem& problem = verdict.problems[i];
      text += fmt::format("{}. [{}: {}] {}\n", i + 1, to_string(problem.problem_class),
                          problem.rule, problem.text);
      if (!problem.where.empty()) {
        text += fmt::format("   where: {}\n", problem.where);
      }
      if (!problem.ranks.empty()) {
        text += fmt::format("   ranks: {}\n", ranks_text(problem.ranks));
      }
      text += fmt::format("   change: {}\n", problem.fix);
    }
    if (verdict.num_problems > static_cast<int64_t>(verdict.problems.size())) {
      text += fmt::format("and {} more\n",
                          verdict.num_problems - static_cast<int64_t>(verdict.problems.size()));
    }
  }
  for (const ClassMemory& memory : verdict.memory) {
    text += fmt::format("memory of {}: {} per rank ({})\n", memory.name,
                        human_bytes(static_cast<double>(memory.planned.total())),
                        program::parts_text(memory.planned));
  }
  if (verdict.ok() && !verdict.losses.empty()) {
    constexpr size_t kListed = 12;
    text += "up to\n";
    for (size_t i = 0; i < std::min(kListed, verdict.losses.size()); ++i) {
      text += "  - " + loss_text(verdict.losses[i]) + "\n";
    }
    if (verdict.losses.size() > kListed) {
      text += fmt::format("  - in all {}\n", loss_summary(verdict));
    }
  }
  if (verdict.ok()) {
    text += "assumed\n";
    for (const std::string& assumption : verdict.assumptions) {
      text += "  - " + assumption + "\n";
    }
    text += "outside\n";
    for (const std::string& limit : verdict.outside) {
      text += "  - " + limit + "\n";
    }
  }
  const Certificate& certificate = verdict.certificate;
  text += fmt::format("program {}\n", certificate.program.hex());
  if (certificate.reference != Hash128{}) {
    text += fmt::format("reference {}\n", certificate.reference.hex());
  }
  text += fmt::format("mesh {} ({})\n", certificate.mesh.hex(), certificate.ranks);
  return text;
}

namespace {

/// Writes the members of a verdict. Requires: the caller begins and ends the object.
void put_members(JsonWriter& json, const Verdict& verdict) {
  const auto task = [&](std::string_view name, const TaskRef& ref) {
    if (!name.empty()) {
      json.key(name);
    }
    json.object().member("class", ref.cls).member("task", ref.task).end();
  };
  json.member("ok", verdict.ok());
  json.member("program_hash", verdict.certificate.program.hex());
  json.member("reference_hash", verdict.certificate.reference.hex());
  json.member("mesh_hash", verdict.certificate.mesh.hex())
      .member("mesh", verdict.certificate.ranks);
  json.key("counts")
      .object()
      .member("tasks", verdict.num_tasks)
      .member("buffers", verdict.num_buffers);
  json.member("messages", verdict.num_messages).member("collectives", verdict.num_collectives);
  json.member("applications", verdict.num_applications)
      .member("problems", verdict.num_problems)
      .end();
  json.member("seconds", verdict.seconds).key("sends").object();
  json.member("may_wait_for_receivers", verdict.ok() && verdict.stuck_when_sends_wait.empty());
  json.member("stuck_if_they_wait", verdict.stuck_when_sends_wait).end();
  json.key("problems").array();
  for (const Problem& problem : verdict.problems) {
    json.object().member("rule", problem.rule).member("class", to_string(problem.problem_class));
    task("task", problem.task);
    json.key("related").array();
    for (const TaskRef& ref : problem.related) {
      task("", ref);
    }
    json.end()
        .member("ranks", problem.ranks)
        .member("text", problem.text)
        .member("where", problem.where)
        .member("fix", problem.fix)
        .end();
  }
  json.end().key("proved").array();
  for (const Claim& claim : verdict.proved) {
    json.object().member("property", claim.property).member("rule", claim.rule).end();
  }
  json.end().key("lossy").array();
  for (const CodecLoss& loss : verdict.losses) {
    json.object().member("result", loss.buffer).member("codec", loss.codec);
    json.member("of", loss.term).end();
  }
  json.end().member("assumptions", verdict.assumptions).member("outside", verdict.outside);
  json.member("ragged_factor", verdict.ragged_factor).key("memory").array();
  for (const ClassMemory& memory : verdict.memory) {
    json.object().member("class", memory.cls).member("persistent", memory.planned.persistent);
    json.member("inputs_outputs", memory.planned.inputs_outputs);
    json.member("step_buffers", memory.planned.step_buffers)
        .member("messages", memory.planned.messages);
    json.member("evaluation", memory.planned.evaluation).member("planned", memory.planned.total());
    json.member("host", memory.planned.host)
        .member("reserved", memory.planned.reserved)
        .key("largest")
        .array();
    for (const LiveBuffer& live : memory.largest) {
      json.object()
          .member("buffer", live.buffer)
          .member("bytes", live.bytes)
          .member("what", live.what)
          .end();
    }
    json.end().end();
  }
  json.end();
}

}  // namespace

std::string to_json(const Verdict& verdict, const Verdict* evaluation) {
  // parse_certificate reads the hashes and `mesh`; the rest is for people and scripts. The order of
  // members is part of the format.
  JsonWriter json({.indent = 2});
  json.object();
  put_members(json, verdict);
  if (evaluation != nullptr) {
    json.key("evaluation").object();
    put_members(json, *evaluation);
    json.end();
  }
  json.end();
  return json.take();
}

}  // namespace hocket::check
