// SPDX-License-Identifier: Apache-2.0
// Text and JSON forms of a simulation report.
#include "sim/report_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/json_writer.h"
#include "base/text.h"
#include "program/traffic.h"

namespace hocket::sim {
namespace {

std::string ms(int64_t ns) { return human_time(1e-9 * ns); }

std::string percent(int64_t part, int64_t whole) {
  if (whole <= 0) return "0.0 %";
  return fmt::format("{:.1f} %", 100.0 * part / whole);
}

/// Formats a rate as "233 GFLOP/s".
std::string flops_rate(double rate) {
  const char* prefix[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t i = 0;
  for (; rate >= 1000 && i + 1 < std::size(prefix); ++i) {
    rate /= 1000;
  }
  return fmt::format("{:.3g} {}FLOP/s", rate, prefix[i]);
}

/// Writes the pipeline stages of a class: one as a number, several as a list.
void put_stages(JsonWriter& json, const program::RankClass& cls) {
  const std::vector<int32_t> stages = program::stages_of(cls);
  if (stages.size() == 1) {
    json.member("stage", stages[0]);
    return;
  }
  json.key("stages").array();
  for (int32_t stage : stages) {
    json.value(stage);
  }
  json.end();
}

/// Returns the rows of the breakdown: all of them up to `limit`, otherwise the `limit` ranks that
/// compute longest.
std::vector<const RankReport*> rows(const SimReport& report, size_t limit) {
  std::vector<const RankReport*> all;
  for (const RankReport& row : report.time) {
    all.push_back(&row);
  }
  if (all.size() <= limit) return all;
  std::stable_sort(all.begin(), all.end(), [](const RankReport* left, const RankReport* right) {
    return left->time.compute_ns > right->time.compute_ns;
  });
  all.resize(limit);
  return all;
}

}  // namespace

const std::vector<std::string>& not_modelled() {
  static const std::vector<std::string> list = {
      "packets and adaptive routing: transfers share links as in a fluid model",
      "kernels slowed by communication beyond device.overlap, or by memory traffic of other ranks",
      "expert load that changes between steps: experts get the rows of the profile's batch, or "
      "equal "
      "numbers of rows",
      "host work between steps (loading data, logging, checkpoints) beyond framework.step",
      "run-to-run variation, clock changes, failures",
  };
  return list;
}

std::string interval_text(const SimReport& report) {
  const Interval& interval = report.interval;
  if (!interval.given()) return interval.why;
  return fmt::format("{} to {} ({})", ms(interval.low_ns), ms(interval.high_ns), interval.why);
}

std::string provenance_text(const SimReport& report) {
  const ProvenanceShares& shares = report.provenance;
  const std::string learned =
      shares.learned > 0 ? fmt::format(", {:.1f} % learned from other ops", 100 * shares.learned)
                         : "";
  return fmt::format(
      "{:.1f} % of the time from timed tasks, {:.1f} % interpolated{}, {:.1f} % analytic",
      100 * shares.timed, 100 * shares.interpolated, learned, 100 * shares.analytic);
}

std::string longest_text(const PathEntry& entry) {
  if (entry.bytes == 0) return entry.name;
  const std::string what =
      entry.moves.empty()
          ? ""
          : fmt::format("{}{}, ", entry.gradients ? "gradient of " : "", entry.moves);
  return fmt::format("{}: {}{} over {} ranks {}", entry.name, what, human_bytes(entry.bytes),
                     entry.group_ranks, entry.between_nodes ? "between nodes" : "in a node");
}

std::string path_text(const SimReport& report) {
  std::string out =
      fmt::format("Critical path: top {} of {}\n", report.path.size(), ms(report.path_ns));
  for (const PathEntry& entry : report.path) {
    out +=
        fmt::format("  {:>10} {:>7}  {} x {}, longest: {}\n", ms(entry.ns),
                    percent(entry.ns, report.path_ns), entry.count, entry.op, longest_text(entry));
  }
  return out;
}

/// Returns the interval of an answer: that of the step, in proportion.
static Interval interval_of(const WhatIf& answer, const SimReport& report) {
  const auto step_ns = static_cast<double>(std::max<int64_t>(1, report.step_ns));
  const double times = static_cast<double>(answer.step_ns) / step_ns;
  const auto scaled = [&](int64_t ns) {
    return static_cast<int64_t>(std::llround(times * static_cast<double>(ns)));
  };
  return {scaled(report.interval.low_ns), scaled(report.interval.high_ns), "", false};
}

static std::string what_if_text(const SimReport& report) {
  std::string out = "What if\n";
  for (const WhatIf& answer : report.what_if) {
    const double change =
        1.0 * (answer.step_ns - report.step_ns) / std::max<int64_t>(1, report.step_ns);
    const Interval interval = interval_of(answer, report);
    out += fmt::format(
        "  {} {:.6g} times {}: step time {} ({:+.1f} %{}); {} of {} tasks replayed\n", answer.what,
        answer.times < 1 ? 1 / answer.times : answer.times, answer.times < 1 ? "slower" : "faster",
        ms(answer.step_ns), 100 * change,
        interval.given()
            ? fmt::format(", interval {} to {}", ms(interval.low_ns), ms(interval.high_ns))
            : "",
        answer.replayed_tasks, report.replayed_tasks);
  }
  return out;
}

std::string to_text(const Program& program, const SimReport& report) {
  // The answer comes before its grounds: step time and throughput, the breakdown per rank, memory
  // against the device's, the critical path. The sources of the numbers and the omissions of the
  // model come last.
  std::string out;
  const auto to = std::back_inserter(out);
  std::string mesh;
  for (const program::Role& role : program.roles) {
    mesh += program.roles.size() > 1 ? (mesh.empty() ? "" : ", ") + role.name + ":" : "";
    for (const graph::Axis& axis : role.mesh.axes) {
      mesh += fmt::format("{}{}={}", mesh.empty() ? "" : " ", axis.name, axis.size);
    }
  }
  fmt::format_to(to, "Predicted step{}\n", report.calibrated ? "" : " (uncalibrated)");
  fmt::format_to(to, "  cluster        {}: {} x {}\n", report.cluster, report.ranks, report.device);
  fmt::format_to(to, "  mesh           {}, {} micro-batch{}, {} tasks\n", mesh,
                 program.num_micro_batches, program.num_micro_batches == 1 ? "" : "es",
                 report.tasks);
  fmt::format_to(to, "  step time      {}{}\n", ms(report.step_ns),
                 report.fits() ? "" : ", but it DOES NOT FIT in memory (below)");
  if (const std::string interval = interval_text(report); !interval.empty()) {
    fmt::format_to(to, "  interval       {}\n", interval);
  }
  if (report.framework_ns > 0) {
    fmt::format_to(to, "  of which       {} the trainer's, beside all tasks (framework)\n",
                   ms(report.framework_ns));
  }
  if (report.tokens > 0) {
    const auto rate = [&](double per_s) { return human_count(per_s / report.ranks); };
    fmt::format_to(
        to, "  throughput     {} tokens/s, {} tokens/s per device{}\n",
        human_count(report.tokens_per_s), rate(report.tokens_per_s),
        report.interval.given()
            ? fmt::format(" ({} to {})", rate(report.tokens / (1e-9 * report.interval.high_ns)),
                          rate(report.tokens / (1e-9 * report.interval.low_ns)))
            : "");
  }
  if (report.model_flops > 0) {
    fmt::format_to(to, "  model FLOPs    {} per device, MFU {:.1f} % of {} ({})\n",
                   flops_rate(report.flops_per_s_per_rank), 100 * report.mfu,
                   flops_rate(report.peak_flops), graph::to_string(report.dtype));
  }
  if (report.dollars_per_m_tokens > 0) {
    fmt::format_to(to,
                   "  cost           ${:.4g} per million tokens, at ${:g} per device and hour\n",
                   report.dollars_per_m_tokens, report.price);
  }

  fmt::format_to(to, "\nWhere the time goes\n  {:<22} {:>19} {:>19} {:>19} {:>19}\n", "rank",
                 "compute", "exposed comm", "bubble", "idle");
  for (const RankReport* row : rows(report, 16)) {
    std::string who = fmt::format("{} ({})", row->rank, program.classes[row->cls].name);
    if (row->multiplicity > 1) {
      who += fmt::format(" x{}", row->multiplicity);
    }
    const auto cell = [&](int64_t ns) {
      return fmt::format("{} {:>7}", ms(ns), percent(ns, report.step_ns));
    };
    fmt::format_to(to, "  {:<22} {:>19} {:>19} {:>19} {:>19}\n", who, cell(row->time.compute_ns),
                   cell(row->time.exposed_ns), cell(row->time.bubble_ns), cell(row->time.idle_ns));
  }
  if (report.time.size() > 16) {
    fmt::format_to(to, "  and {} more ranks\n", report.time.size() - 16);
  }

  fmt::format_to(to, "\nMemory per rank, planned\n");
  for (size_t c = 0; c < report.memory.size(); ++c) {
    fmt::format_to(to, "  {:<22} {:>10}  ({})\n", program.classes[c].name,
                   human_bytes(report.memory[c].total()), program::parts_text(report.memory[c]));
  }
  if (const std::string memory = report.memory_limit_text(); !memory.empty()) {
    fmt::format_to(to, "  {} {}\n", report.fits() ? "fits in" : "DOES NOT FIT in", memory);
  }
  if (report.memory_reserve > 0) {
    const auto most = std::ranges::max(report.memory_with_reserve);
    fmt::format_to(to, "  with the reserve of its stage, a rank takes up to {}\n",
                   human_bytes(static_cast<double>(most)));
  }

  if (!report.path.empty()) {
    fmt::format_to(to, "\n{}", path_text(report));
  }
  if (!report.what_if.empty()) {
    fmt::format_to(to, "\n{}", what_if_text(report));
  }
  fmt::format_to(to, "\nWhere the numbers come from: {}\n", provenance_text(report));
  for (const std::string& note : report.notes) {
    fmt::format_to(to, "Note: {}\n", note);
  }
  fmt::format_to(to, "Not modelled: {}\n", join(not_modelled(), "; "));
  return out;
}

std::string to_json(const Program& program, const SimReport& report) {
  // The same facts as to_text, for scripts: seconds as numbers, every replayed rank instead of the
  // first 16, and no key where nothing is known (tokens, FLOPs).
  const auto s = [](int64_t ns) { return ns / 1e9; };
  JsonWriter json({.indent = 2});
  json.object().member("step_s", s(report.step_ns)).member("step_ns", report.step_ns);
  json.key("interval").object();
  if (report.interval.given()) {
    json.member("low_s", s(report.interval.low_ns)).member("high_s", s(report.interval.high_ns));
  }
  json.member("timed", report.interval.timed).member("why", report.interval.why).end();
  if (report.framework_ns > 0) {
    json.member("framework_s", s(report.framework_ns));
  }
  json.member("calibrated", report.calibrated)
      .member("cluster", report.cluster)
      .member("device", report.device);
  json.member("ranks", report.ranks).member("stages", report.stages);
  json.member("micro_batches", program.num_micro_batches).member("tasks", report.tasks);
  json.key("replayed").object().member("ranks", report.replayed_ranks);
  json.member("tasks", report.replayed_tasks).end();
  if (report.tokens > 0) {
    json.member("tokens", report.tokens).member("tokens_per_s", report.tokens_per_s);
    json.member("tokens_per_s_per_device", report.tokens_per_s / report.ranks);
  }
  if (report.model_flops > 0) {
    json.member("model_flops", report.model_flops);
    json.member("tflops_per_device", report.flops_per_s_per_rank * 1e-12);
    json.member("peak_flops_per_device", report.peak_flops).member("mfu", report.mfu);
  }
  if (report.dollars_per_m_tokens > 0) {
    json.member("usd_per_million_tokens", report.dollars_per_m_tokens);
    json.member("usd_per_device_hour", report.price);
  }

  json.key("breakdown").array();
  for (const RankReport& row : report.time) {
    json.object().member("rank", row.rank).member("stands_for", row.multiplicity);
    put_stages(json, program.classes[row.cls]);
    json.member("compute_s", s(row.time.compute_ns));
    json.member("exposed_communication_s", s(row.time.exposed_ns))
        .member("bubble_s", s(row.time.bubble_ns))
        .member("idle_s", s(row.time.idle_ns));
    json.key("lanes_s").object();
    for (size_t l = 0; l < row.time.busy_ns.size(); ++l) {
      if (row.time.busy_ns[l] == 0) continue;
      json.member(program::to_string(static_cast<program::Lane>(l)), s(row.time.busy_ns[l]));
    }
    json.end().key("bytes_sent").object();
    const auto bytes = program::bytes_sent(program, row.cls);
    for (size_t l = 0; l < bytes.size(); ++l) {
      if (bytes[l] == 0) continue;
      json.member(program::to_string(static_cast<program::Lane>(l)), bytes[l]);
    }
    json.end().end();
  }
  json.end().key("memory").array();
  for (size_t c = 0; c < report.memory.size(); ++c) {
    const program::Memory& memory = report.memory[c];
    json.object();
    put_stages(json, program.classes[c]);
    json.member("persistent", memory.persistent);
    json.member("inputs_outputs", memory.inputs_outputs)
        .member("step_buffers", memory.step_buffers);
    json.member("messages", memory.messages).member("evaluation", memory.evaluation);
    json.member("planned", memory.total()).member("host", memory.host);
    json.member("reserved", memory.reserved);
    if (report.memory_reserve > 0) {
      json.member("with_reserve", report.memory_with_reserve[c]);
    }
    json.end();
  }
  json.end().member("device_memory_bytes", report.whole_memory);
  if (report.memory_reserve > 0) {
    json.member("memory_reserve_bytes", report.memory_reserve);
  }
  if (report.memory_budget > 0) {
    json.member("memory_budget_bytes", report.memory_budget);
  }
  json.member("fits", report.fits());

  json.key("provenance").object().member("timed", report.provenance.timed);
  json.member("interpolated", report.provenance.interpolated);
  json.member("learned", report.provenance.learned);
  json.member("analytic", report.provenance.analytic).end();
  if (report.provenance.judged > 0) {
    json.key("expected_error").object().member("relative", report.provenance.error);
    json.member("of_the_time", report.provenance.judged).end();
  }
  json.member("critical_path_s", s(report.path_ns)).key("critical_path").array();
  for (const PathEntry& entry : report.path) {
    json.object().member("op", entry.op).member("count", entry.count).member("s", s(entry.ns));
    json.member("longest", entry.name);
    if (entry.bytes > 0) {
      json.member("bytes", entry.bytes).member("group_ranks", entry.group_ranks);
      json.member("between_nodes", entry.between_nodes);
    }
    if (!entry.moves.empty()) {
      json.member(entry.gradients ? "gradient_of" : "parameter", entry.moves);
    }
    json.end();
  }
  json.end();
  if (!report.what_if.empty()) {
    json.key("what_if").array();
    for (const WhatIf& answer : report.what_if) {
      json.object().member("what", answer.what).member("times", answer.times);
      json.member("step_s", s(answer.step_ns)).member("step_ns", answer.step_ns);
      if (const Interval interval = interval_of(answer, report); interval.given()) {
        json.key("interval").object().member("low_s", s(interval.low_ns));
        json.member("high_s", s(interval.high_ns)).end();
      }
      json.member("replayed_tasks", answer.replayed_tasks).end();
    }
    json.end();
  }
  json.member("notes", report.notes).member("not_modelled", not_modelled()).end();
  return json.take() + "\n";
}

}  // namespace hocket::sim
