// SPDX-License-Identifier: Apache-2.0
// Text and JSON forms of a simulation report.
#include "sim/report_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/json_writer.h"
#include "base/text.h"

namespace hocket::sim {
namespace {

std::string ms(int64_t ns) { return human_time(static_cast<double>(ns) * 1e-9); }

std::string percent(int64_t part, int64_t whole) {
  if (whole <= 0) return "0.0 %";
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

/// "233 GFLOP/s".
std::string flops_rate(double x) {
  const char* prefix[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t i = 0;
  for (; x >= 1000 && i + 1 < std::size(prefix); ++i) {
    x /= 1000;
  }
  return fmt::format("{:.3g} {}FLOP/s", x, prefix[i]);
}

/// Rows of the breakdown: one per stage if its ranks agree, at most `limit` otherwise: the slowest
/// computing ranks of each stage come first.
std::vector<const RankReport*> rows(const SimReport& r, size_t limit) {
  std::vector<const RankReport*> all;
  for (const RankReport& t : r.time) {
    all.push_back(&t);
  }
  if (all.size() <= limit) return all;
  std::stable_sort(all.begin(), all.end(), [](const RankReport* a, const RankReport* b) {
    return a->time.compute_ns > b->time.compute_ns;
  });
  all.resize(limit);
  return all;
}

}  // namespace

const std::vector<std::string>& not_modelled() {
  static const std::vector<std::string> list = {
      "congestion: transfers that share a link do not slow each other",
      "kernels slowed by communication or by memory traffic of other ranks",
      "uneven routing: experts get the mean number of tokens",
      "host work between steps (loading data, logging, checkpoints)",
      "run-to-run variation, clock changes, failures",
  };
  return list;
}

std::string interval_text(const SimReport& r) {
  if (r.provenance.judged <= 0.005) return "";
  if (r.provenance.error > 0.5) {
    return fmt::format("the timings spread too much for one (+-{:.0f} %): is the machine busy?",
                       100 * r.provenance.error);
  }
  const double s = static_cast<double>(r.step_ns) * 1e-9;
  return fmt::format(
      "{} to {} (+-{:.1f} %: spread of timings and held-out error of interpolation, over "
      "{:.0f} % of the time)",
      human_time(s * (1 - r.provenance.error)), human_time(s * (1 + r.provenance.error)),
      100 * r.provenance.error, 100 * r.provenance.judged);
}

std::string provenance_text(const SimReport& r) {
  return fmt::format(
      "{:.1f} % of the time from tasks timed, {:.1f} % interpolated, {:.1f} % analytic",
      100 * r.provenance.timed, 100 * r.provenance.interpolated, 100 * r.provenance.analytic);
}

std::string path_text(const SimReport& r) {
  std::string out = fmt::format("Critical path: top {} of {}\n", r.path.size(), ms(r.path_ns));
  for (const PathEntry& e : r.path) {
    out += fmt::format("  {:>10} {:>7}  {} x {}, longest: {}\n", ms(e.ns), percent(e.ns, r.path_ns),
                       e.count, e.op, e.name);
  }
  return out;
}

std::string to_text(const Program& p, const SimReport& r) {
  // From the answer to its grounds: step time and throughput; where each rank's time goes; memory
  // against the device's; the critical path; where the numbers come from, and what they leave
  // out.
  std::string out;
  const auto to = std::back_inserter(out);
  std::string mesh;
  for (const graph::Axis& axis : p.mesh.axes) {
    mesh += fmt::format("{}{}={}", mesh.empty() ? "" : " ", axis.name, axis.size);
  }
  fmt::format_to(to, "Predicted step{}\n", r.calibrated ? "" : " (uncalibrated)");
  fmt::format_to(to, "  cluster        {}: {} x {}\n", r.cluster, r.ranks, r.device);
  fmt::format_to(to, "  mesh           {}, {} micro-batch{}, {} tasks\n", mesh, p.num_micro_batches,
                 p.num_micro_batches == 1 ? "" : "es", r.tasks);
  fmt::format_to(to, "  step time      {}\n", ms(r.step_ns));
  if (const std::string interval = interval_text(r); !interval.empty()) {
    fmt::format_to(to, "  interval       {}\n", interval);
  }
  if (r.tokens > 0) {
    fmt::format_to(to, "  throughput     {} tokens/s, {} tokens/s per device\n",
                   human_count(r.tokens_per_s), human_count(r.tokens_per_s / r.ranks));
  }
  if (r.model_flops > 0) {
    fmt::format_to(to, "  model FLOPs    {} per device, MFU {:.1f} % of {} ({})\n",
                   flops_rate(r.flops_per_s_per_rank), 100 * r.mfu, flops_rate(r.peak_flops),
                   graph::to_string(r.dtype));
  }

  fmt::format_to(to, "\nWhere the time goes\n  {:<22} {:>19} {:>19} {:>19}\n", "rank", "compute",
                 "exposed comm", "idle");
  for (const RankReport* t : rows(r, 16)) {
    std::string who = fmt::format("{} ({})", t->rank, p.classes[at(t->cls)].name);
    if (t->stands > 1) {
      who += fmt::format(" x{}", t->stands);
    }
    const auto cell = [&](int64_t ns) {
      return fmt::format("{} {:>7}", ms(ns), percent(ns, r.step_ns));
    };
    fmt::format_to(to, "  {:<22} {:>19} {:>19} {:>19}\n", who, cell(t->time.compute_ns),
                   cell(t->time.exposed_ns), cell(t->time.idle_ns));
  }
  if (r.time.size() > 16) {
    fmt::format_to(to, "  and {} more ranks\n", r.time.size() - 16);
  }

  fmt::format_to(to, "\nMemory per rank, planned\n");
  for (size_t c = 0; c < r.memory.size(); ++c) {
    fmt::format_to(to, "  {:<22} {:>10}  ({})\n", p.classes[c].name,
                   human_bytes(static_cast<double>(r.memory[c].total())),
                   program::parts_text(r.memory[c]));
  }
  if (r.device_memory > 0) {
    fmt::format_to(to, "  {} {} per device\n", r.fits() ? "fits in" : "DOES NOT FIT in",
                   human_bytes(static_cast<double>(r.device_memory)));
  }

  if (!r.path.empty()) {
    fmt::format_to(to, "\n{}", path_text(r));
  }
  fmt::format_to(to, "\nWhere the numbers come from: {}\n", provenance_text(r));
  for (const std::string& note : r.notes) {
    fmt::format_to(to, "Note: {}\n", note);
  }
  fmt::format_to(to, "Not modelled: {}\n", join(not_modelled(), "; "));
  return out;
}

std::string to_json(const Program& p, const SimReport& r) {
  // The same facts as to_text, for scripts: seconds as numbers, every rank that was replayed
  // instead of the first 16, and absent keys where nothing is known (tokens, FLOPs).
  const auto s = [](int64_t ns) { return static_cast<double>(ns) / 1e9; };
  JsonWriter j({.indent = 2});
  j.object().member("step_s", s(r.step_ns)).member("step_ns", r.step_ns);
  j.member("calibrated", r.calibrated).member("cluster", r.cluster).member("device", r.device);
  j.member("ranks", r.ranks).member("stages", r.stages);
  j.member("micro_batches", p.num_micro_batches).member("tasks", r.tasks);
  j.key("replayed").object().member("ranks", r.replayed_ranks);
  j.member("tasks", r.replayed_tasks).end();
  if (r.tokens > 0) {
    j.member("tokens", r.tokens).member("tokens_per_s", r.tokens_per_s);
    j.member("tokens_per_s_per_device", r.tokens_per_s / r.ranks);
  }
  if (r.model_flops > 0) {
    j.member("model_flops", r.model_flops);
    j.member("tflops_per_device", r.flops_per_s_per_rank * 1e-12);
    j.member("peak_flops_per_device", r.peak_flops).member("mfu", r.mfu);
  }

  j.key("breakdown").array();
  for (const RankReport& t : r.time) {
    j.object().member("rank", t.rank).member("stands_for", t.stands);
    j.member("stage", p.classes[at(t.cls)].stage).member("compute_s", s(t.time.compute_ns));
    j.member("exposed_communication_s", s(t.time.exposed_ns)).member("idle_s", s(t.time.idle_ns));
    j.key("lanes_s").object();
    for (size_t l = 0; l < t.time.busy_ns.size(); ++l) {
      if (t.time.busy_ns[l] == 0) continue;
      j.member(program::to_string(static_cast<program::Lane>(l)), s(t.time.busy_ns[l]));
    }
    j.end().end();
  }
  j.end().key("memory").array();
  for (size_t c = 0; c < r.memory.size(); ++c) {
    const program::Memory& m = r.memory[c];
    j.object().member("stage", p.classes[c].stage).member("persistent", m.persistent);
    j.member("inputs_outputs", m.inputs_outputs).member("step_buffers", m.step_buffers);
    j.member("messages", m.messages).member("evaluation", m.evaluation);
    j.member("planned", m.total()).member("reserved", m.reserved).end();
  }
  j.end().member("device_memory_bytes", r.device_memory).member("fits", r.fits());

  j.key("provenance").object().member("timed", r.provenance.timed);
  j.member("interpolated", r.provenance.interpolated);
  j.member("analytic", r.provenance.analytic).end();
  if (r.provenance.judged > 0) {
    j.key("expected_error").object().member("relative", r.provenance.error);
    j.member("of_the_time", r.provenance.judged).end();
  }
  j.member("critical_path_s", s(r.path_ns)).key("critical_path").array();
  for (const PathEntry& e : r.path) {
    j.object().member("op", e.op).member("count", e.count).member("s", s(e.ns));
    j.member("longest", e.name).end();
  }
  j.end().member("notes", r.notes).member("not_modelled", not_modelled()).end();
  return j.take() + "\n";
}

}  // namespace hocket::sim
