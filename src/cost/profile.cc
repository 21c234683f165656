// SPDX-License-Identifier: Apache-2.0
// Profile files: JSON, format "hocket-profile-1".
#include "cost/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/text.h"

namespace hocket::cost {
namespace {

constexpr const char* kFormat = "hocket-profile-1";

/// Element types in which arithmetic is timed.
const std::vector<std::string> kComputed = {"f32", "f64", "bf16", "f16", "f8_e4m3", "f8_e5m2"};
bool computes(const std::string& dtype) {
  return std::find(kComputed.begin(), kComputed.end(), dtype) != kComputed.end();
}

std::string types(const std::vector<graph::TensorType>& list) {
  std::string out = "(";
  for (size_t i = 0; i < list.size(); ++i) {
    out += (i > 0 ? ", " : "") + graph::to_string(list[i]);
  }
  return out + ")";
}

double positive(const JsonView& at, std::string_view key) {
  const double value = at.get_double(key);
  if (!(value >= 0) || !std::isfinite(value)) {
    at.at(key).fail(fmt::format("is {}; expected >= 0", value));
  }
  return value;
}

int64_t natural(const JsonView& at, std::string_view key, int64_t otherwise,
                int64_t most = std::numeric_limits<int64_t>::max()) {
  const int64_t value = at.get_int(key, otherwise);
  if (value < 0 || value > most) {
    at.at(key).fail(fmt::format("is {}; expected 0 to {}", value, most));
  }
  return value;
}

Profile from_json(const nlohmann::json& json, const std::string& where) {
  // Reads in the order in which to_json writes. Only format and tasks are required; absent keys
  // stay "not measured". Present ones must be sane, since durations are computed from them.
  const JsonView root(json, where);
  if (root.get_string("format") != kFormat) {
    root.at("format").fail(fmt::format("is \"{}\"; expected \"{}\"; try `hocket profile` again",
                                       root.get_string("format"), kFormat));
  }
  Profile profile;
  if (root.has("device")) {
    profile.device = root.get_string("device");
  }
  if (root.has("machine")) {
    const JsonView machine = root.at("machine");
    for (const std::string& key : machine.keys()) {
      profile.machine[key] = machine.get_string(key);
    }
  }
  profile.cores = natural(root, "cores", 0);
  profile.threads = std::max<int64_t>(1, natural(root, "threads", 1));
  profile.task_overhead_ns = natural(root, "task_overhead_ns", 0, kMaxTaskNs);
  if (root.has("memory_bytes_per_s")) {
    profile.memory_bytes_per_s = positive(root, "memory_bytes_per_s");
  }
  if (root.has("probe_flops")) {
    profile.probe_flops = positive(root, "probe_flops");
  }
  if (root.has("peak_flops")) {
    const JsonView peak = root.at("peak_flops");
    for (const std::string& dtype : peak.keys()) {
      if (!computes(dtype)) {
        peak.fail(fmt::format("has \"{}\"; expected {}", dtype, join(kComputed, ", ")));
      }
      profile.peak_flops[dtype] = positive(peak, dtype);
    }
  }
  if (root.has("links")) {
    const JsonView links = root.at("links");
    for (const std::string& name : links.keys()) {
      if (name != "intra" && name != "inter") {
        links.fail(fmt::format("has \"{}\"; expected intra or inter", name));
      }
      const JsonView link = links.at(name);
      TimedLink& timed_link = profile.links[name];
      timed_link.latency_ns = positive(link, "latency_ns");
      timed_link.bytes_per_s = positive(link, "bytes_per_s");
      for (const auto& [key, value] :
           {std::pair{"collective_latency_ns", &timed_link.collective_latency_ns},
            {"collective_bytes_per_s", &timed_link.collective_bytes_per_s}}) {
        *value = link.has(key) ? positive(link, key) : *value;
      }
      // Profiles of earlier versions have the former names.
      for (const auto& [key, former, value] :
           {std::tuple{"compute_slowdown", "work_beside", &timed_link.compute_slowdown},
            {"collective_slowdown", "collective_beside", &timed_link.collective_slowdown}}) {
        const char* const given = link.has(key) ? key : former;
        if (!link.has(given)) continue;
        *value = positive(link, given);
        if (*value < 1) {
          link.at(given).fail(fmt::format("is {}; expected 1 or more", *value));
        }
      }
      if (timed_link.bytes_per_s == 0) {
        link.at("bytes_per_s").fail("is 0; expected a bandwidth");
      }
    }
  }
  if (root.has("routing")) {
    const JsonView layers = root.at("routing");
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      profile.routing.push_back(layers.at(layer).as_ints());
      for (const int64_t rows : profile.routing.back()) {
        if (rows < 0 || rows > int64_t{1} << 40) {
          layers.at(layer).fail(fmt::format("has {} rows; expected 0 to 2^40", rows));
        }
      }
    }
  }
  const JsonView tasks = root.at("tasks");
  profile.tasks.reserve(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    const JsonView row = tasks.at(i);
    TimedTask task;
    task.key = row.get_string("kind");
    task.op = row.get_string("op");
    task.dtype = row.get_string("dtype");
    if (!computes(task.dtype)) {
      row.at("dtype").fail(
          fmt::format("is \"{}\"; expected {}", task.dtype, join(kComputed, ", ")));
    }
    task.flops = positive(row, "flops");
    task.bytes = natural(row, "bytes", 0);
    task.ns = natural(row, "ns", 0, kMaxTaskNs);
    task.spread = row.has("spread") ? positive(row, "spread") : 0;
    profile.tasks.push_back(std::move(task));
  }
  return profile;
}

}  // namespace

std::string kind_key(const Kind& kind, uint32_t accumulate) {
  std::string key = kind.op + graph::to_string(kind.attrs);
  if (accumulate != 0) {
    key += fmt::format(" acc={}", accumulate);
  }
  return key + " " + types(kind.in) + " -> " + types(kind.out);
}

std::string kind_key(const Kind& kind, uint32_t accumulate, const GroupShape& shape) {
  return kind_key(kind, accumulate) + fmt::format(" n={} nodes={}", shape.members, shape.nodes);
}

Profile read_profile(const std::string& path) { return from_json(read_json(path), path); }

Profile parse_profile(std::string_view text, const std::string& where) {
  return from_json(parse_json(text, where), where);
}

std::string to_json(const Profile& profile) {
  // Quantities that were not measured are omitted, which from_json accepts.
  JsonWriter json({.indent = 1});
  json.object().member("format", kFormat).member("device", profile.device);
  json.key("machine").object();
  for (const auto& [fact, value] : profile.machine) {
    json.member(fact, value);
  }
  json.end().member("cores", profile.cores).member("threads", profile.threads);
  json.member("task_overhead_ns", profile.task_overhead_ns);
  if (profile.memory_bytes_per_s > 0) {
    json.member("memory_bytes_per_s", profile.memory_bytes_per_s);
  }
  if (profile.probe_flops > 0) {
    json.member("probe_flops", profile.probe_flops);
  }
  if (!profile.peak_flops.empty()) {
    json.key("peak_flops").object();
    for (const auto& [dtype, rate] : profile.peak_flops) {
      json.member(dtype, rate);
    }
    json.end();
  }
  json.key("links").object();
  for (const auto& [name, link] : profile.links) {
    json.key(name).object().member("latency_ns", link.latency_ns);
    json.member("bytes_per_s", link.bytes_per_s);
    if (link.collective_bytes_per_s > 0) {
      json.member("collective_latency_ns", link.collective_latency_ns);
      json.member("collective_bytes_per_s", link.collective_bytes_per_s);
    }
    if (link.compute_slowdown > 1 || link.collective_slowdown > 1) {
      json.member("compute_slowdown", link.compute_slowdown);
      json.member("collective_slowdown", link.collective_slowdown);
    }
    json.end();
  }
  json.end();
  if (!profile.routing.empty()) {
    json.key("routing").array();
    for (const std::vector<int64_t>& rows : profile.routing) {
      json.array();
      for (const int64_t count : rows) {
        json.value(count);
      }
      json.end();
    }
    json.end();
  }
  json.key("tasks").array();
  for (const TimedTask& task : profile.tasks) {
    json.object().member("kind", task.key).member("op", task.op).member("dtype", task.dtype);
    json.member("flops", task.flops).member("bytes", task.bytes);
    json.member("ns", task.ns).member("spread", task.spread).end();
  }
  return json.end().end().take() + "\n";
}

double busiest(const Profile& profile, int64_t experts) {
  double sum = 0;
  int layers = 0;
  for (const std::vector<int64_t>& rows : profile.routing) {
    const int64_t all = std::ssize(rows);
    const auto total = static_cast<double>(std::accumulate(rows.begin(), rows.end(), int64_t{0}));
    if (experts <= 0 || experts >= all || total == 0) continue;
    double most = 0;
    for (int64_t first = 0; first < all; first += experts) {
      const auto last = rows.begin() + std::min(first + experts, all);
      most = std::max(most,
                      static_cast<double>(std::accumulate(rows.begin() + first, last, int64_t{0})));
    }
    sum += most / (total * static_cast<double>(experts) / static_cast<double>(all));
    ++layers;
  }
  return layers == 0 ? 1 : sum / layers;
}

double busiest(const Profile& profile, const Kind& kind) {
  if (profile.routing.empty()) return 1;
  int64_t experts = 0;
  for (const auto* types : {&kind.in, &kind.out}) {
    for (const graph::TensorType& type : *types) {
      if (!type.routed() || type.dims[0].symbolic()) continue;
      const int64_t here = type.dims[0];
      experts = experts == 0 ? here : std::min(experts, here);
    }
  }
  return busiest(profile, experts);
}

Profile scaled(Profile profile, double speed, double bandwidth) {
  profile.memory_bytes_per_s *= speed;
  for (auto& [dtype, rate] : profile.peak_flops) {
    rate *= speed;
  }
  for (TimedTask& task : profile.tasks) {
    task.ns = std::llround(static_cast<double>(task.ns) / speed);
  }
  for (auto& [name, link] : profile.links) {
    link.bytes_per_s *= bandwidth;
    link.collective_bytes_per_s *= bandwidth;
  }
  return profile;
}

std::string mismatch(const Profile& profile, const Cluster& cluster) {
  const std::string wanted = cluster.cores_per_node > 0 ? "cpu" : cluster.device.name;
  if (profile.device == wanted) return "";
  const auto cpu = profile.machine.find("cpu");
  std::string timed = profile.device;
  if (timed == "cpu" && cpu != profile.machine.end()) {
    timed += " (" + cpu->second + ")";
  }
  return fmt::format("was timed on a {}, but {} computes on {}", timed, cluster.name, wanted);
}

std::vector<ProfileTarget> distinct_tasks(const program::Program& program) {
  std::vector<ProfileTarget> targets;
  std::map<std::pair<program::KindId, uint32_t>, size_t> index;
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    std::map<size_t, int64_t> count;
    const auto& tasks = program.classes[cls].tasks;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const program::Task& task = tasks[i];
      if (program::is_communication(program.kind(task))) continue;
      const auto [it, fresh] =
          index.emplace(std::pair(task.kind, task.accumulate.bits()), targets.size());
      if (fresh) {
        targets.push_back({kind_key(program.kind(task), task.accumulate.bits()), task.kind,
                           task.accumulate.bits(), 0, static_cast<int32_t>(cls), i});
      }
      ++count[it->second];
    }
    for (const auto& [target, n] : count) {
      targets[target].count = std::max(targets[target].count, n);
    }
  }
  return targets;
}

}  // namespace hocket::cost
