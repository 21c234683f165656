// SPDX-License-Identifier: Apache-2.0
// Reads logs, fits the links of a cluster to them, and tests the fit on held-out times.
#include "cli/analysis/profile_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/inputs.h"
#include "cost/datasheets.h"
#include "cost/known_clusters.h"
#include "cost/link_errors.h"
#include "cost/link_fit.h"
#include "cost/merge_measured.h"
#include "cost/rooted.h"
#include "interop/comm_log_reader.h"

namespace hocket::cli {
namespace {

constexpr const char* kImport = "hocket profile --import";

/// Samples to fit, and samples only to predict.
struct Logs {
  std::vector<cost::CommSample> fitted, kept_back;
  std::vector<std::string> dropped, assumed;
  std::string device, names;
  int64_t devices_per_node = 0;
};

std::set<int64_t> ranks_of(const std::string& list) {
  std::set<int64_t> ranks;
  if (list.empty()) return ranks;
  for (const std::string& word : split(list, ',')) {
    int64_t n = 0;
    if (!parse_int(trim(word), &n) || n < 2) {
      fail(kImport, "--hold-out is {}; expected numbers of ranks, such as 16 or 16,32",
           quote(list));
    }
    ranks.insert(n);
  }
  return ranks;
}

Logs read_logs(const ImportOptions& options) {
  // An unusable file is reported and left out, if another is usable.
  Logs logs;
  const std::set<int64_t> kept_back = ranks_of(options.hold_out);
  std::vector<std::string> names;
  std::string first_error;
  for (const std::string& file : options.files) {
    cost::CommLog log;
    try {
      log = interop::read_comm_log(file, options.op);
    } catch (const Error& error) {
      if (first_error.empty()) {
        first_error = error.what();
      }
      logs.dropped.push_back(error.what());
      continue;
    }
    names.push_back(file_name(file));
    for (const std::string& what : log.dropped) {
      logs.dropped.push_back(file + ": " + what);
    }
    for (const std::string& what : log.assumed) {
      logs.assumed.push_back(file + ": " + what);
    }
    for (const std::string& what : log.doubtful) {
      log_warning("{}: the numbers do not add up: {}", file, what);
    }
    if (logs.device.empty()) {
      logs.device = log.device;
    } else if (!log.device.empty() && log.device != logs.device) {
      log_warning("{} is of {}, others are of {}: one cluster cannot stand for both", file,
                  log.device, logs.device);
    }
    logs.devices_per_node = std::max(logs.devices_per_node, log.devices_per_node);
    for (const cost::CommSample& sample : log.samples) {
      (kept_back.count(sample.ranks) > 0 ? logs.kept_back : logs.fitted).push_back(sample);
    }
  }
  if (names.empty()) {
    fail(kImport, "none of the {} can be read: {}",
         counted(static_cast<int64_t>(options.files.size()), "file"), first_error);
  }
  if (logs.fitted.empty()) {
    fail(kImport, "--hold-out {} keeps back all there is; expected some times to fit",
         options.hold_out);
  }
  logs.names = join(names, ", ");
  return logs;
}

/// Returns whether the logs name a device of another model than the cluster's.
bool is_other_device(const Logs& logs, const cost::Cluster& base) {
  const std::string of_logs = cost::device_model(logs.device);
  return !of_logs.empty() && of_logs != cost::device_model(base.device.name);
}

/// Warns of logs of a device of another model than the cluster's.
void warn_of_devices(const Logs& logs, const cost::Cluster& base) {
  if (is_other_device(logs, base)) {
    log_warning(
        "the logs are of {}, --cluster is of {}: values without a measurement stay the "
        "latter's",
        logs.device, base.device.name);
  }
}

/// Returns the cluster to start from; values that logs do not cover stay.
cost::Cluster base_of(const ImportOptions& options, const Logs& logs) {
  if (!options.cluster.empty()) {
    const cost::Cluster base = cost::read_cluster(options.cluster);
    warn_of_devices(logs, base);
    return base;
  }
  std::string name = cost::known_cluster_of(logs.device);
  if (name.empty()) {
    name = cost::known_cluster_of(join(options.files, " "));
  }
  if (name.empty()) {
    name = "azure-nd-a100-v4";
    log_warning(
        "the logs name no device of a shipped cluster{}: values without a measurement "
        "are those of {}; try --cluster FILE",
        logs.device.empty() ? std::string() : " (" + logs.device + ")", name);
  }
  return cost::known_cluster(name);
}

/// Names the cluster after its file. Errors on published steps stay only where the logs are of the
/// device that the base describes.
void adapt(const Logs& logs, const std::string& out, cost::Cluster* cluster) {
  if (logs.devices_per_node > cluster->devices_per_node) {
    fail(kImport, "the logs have {} ranks on a node, {} has {}; try another --cluster",
         logs.devices_per_node, cluster->name, cluster->devices_per_node);
  }
  cluster->about = fmt::format("{}; links fitted to {}", cluster->name, logs.names);
  std::string name = file_name(out);
  if (name.ends_with(".yaml")) {
    name.resize(name.size() - 5);
  }
  cluster->name = out == "-" || name.empty() ? "imported" : name;
  if (is_other_device(logs, *cluster)) {
    cluster->accuracy = {};
  }
}

/// Writes the held-out errors of the links that were fitted into the cluster.
void keep_errors(const std::vector<cost::GroupError>& errors, const std::string& source,
                 const std::vector<std::string>& fitted, cost::Cluster* cluster) {
  for (const bool inter : {false, true}) {
    const char* const name = inter ? "links.inter" : "links.intra";
    if (std::find(fitted.begin(), fitted.end(), name) == fitted.end()) continue;
    cost::LinkErrors found;
    double sum = 0, groups = 0;
    for (const cost::GroupError& error : errors) {
      if (error.links_given || (error.nodes > 1) != inter) continue;
      sum += error.mean;
      ++groups;
      found.worst = std::max(found.worst, error.worst);
      found.ranks = std::max<int64_t>(found.ranks, error.ranks);
    }
    if (groups > 0) {
      found.mean = sum / groups;
      found.source = source;
    }
    (inter ? cluster->links.inter : cluster->links.intra).held_out = found;
  }
}

std::vector<std::string> all_dropped(const Logs& logs, const cost::LinkFit& fit) {
  std::vector<std::string> all = logs.dropped;
  all.insert(all.end(), fit.left_out.begin(), fit.left_out.end());
  return all;
}

/// Warns of groups that the fit, made without them, is far off at: then one of the two is wrong.
void warn_of(const std::vector<cost::GroupError>& errors) {
  constexpr double kAbsurd = 1;
  for (const cost::GroupError& e : errors) {
    if (e.mean <= kAbsurd) continue;
    if (e.links_given) {
      log_warning(
          "nothing judges the fit of {} of {} ranks on {}: of the {}, fewer than four times show "
          "its "
          "links, too few to fit; scaled or by the links given they are {:.0f} % off",
          e.op, e.ranks, counted(e.nodes, "node"),
          e.predicted_from.substr(0, e.predicted_from.find(',')), 100 * e.mean);
      continue;
    }
    log_warning(
        "{} of {} ranks on {} is predicted {:.0f} % off from {}: its times, or the others, are not "
        "those of one cluster, or not times",
        e.op, e.ranks, counted(e.nodes, "node"), 100 * e.mean, e.predicted_from);
  }
}

void print_errors(std::FILE* messages, const std::vector<cost::GroupError>& errors) {
  if (errors.empty()) {
    fmt::print(messages, "one group alone: nothing to judge the fit by\n");
    return;
  }
  fmt::print(messages, "{:<16} {:>6} {:>6}  {:<26} {:>6} {:>8} {:>8}\n", "held out", "ranks",
             "nodes", "predicted from", "sizes", "mean", "worst");
  for (const cost::GroupError& e : errors) {
    fmt::print(messages, "{:<16} {:>6} {:>6}  {:<26} {:>6} {:>6.1f} % {:>6.1f} %  at {}\n", e.op,
               e.ranks, e.nodes, e.predicted_from, e.sizes, 100 * e.mean, 100 * e.worst,
               human_bytes(e.worst_bytes));
  }
}

void print_json(const ImportOptions& options, const std::string& base, const Logs& logs,
                const cost::LinkFit& fit, const std::vector<cost::GroupError>& errors,
                size_t kept) {
  JsonWriter json({.indent = 1});
  json.object().member("cluster", options.out).member("base", base);
  json.member("fitted", fit.fitted).member("times", fit.times);
  json.member("groups_kept", kept).member("assumed", logs.assumed);
  json.member("dropped", all_dropped(logs, fit)).key("held_out").array();
  for (const cost::GroupError& e : errors) {
    json.object().member("op", e.op).member("ranks", e.ranks).member("nodes", e.nodes);
    json.member("predicted_from", e.predicted_from).member("sizes", e.sizes).member("mean", e.mean);
    json.member("worst", e.worst).member("worst_bytes", e.worst_bytes).end();
  }
  fmt::print("{}\n", json.end().end().take());
}

}  // namespace

int import_logs(const ImportOptions& options) {
  // Refuses unwritable outputs, reads logs, fits links, prints the error on held-out times, and
  // writes the cluster.
  if (options.json && options.out == "-") {
    fail(kImport, "--json and --out - both go to standard output; expected one there");
  }
  if (!options.op.empty() && !cost::find_costed(options.op)) {
    fail(kImport, "--op is {}; expected an op such as all_reduce", quote(options.op));
  }
  std::vector<std::string> inputs = options.files;
  inputs.push_back(options.cluster);
  require_output("hocket profile --out", options.out, inputs);
  require_writable("hocket profile --out", options.out);
  const Logs logs = read_logs(options);
  const cost::Cluster base = base_of(options, logs);
  const std::string base_name = base.name;
  cost::LinkFit fit = cost::fit_links(base, logs.fitted, logs.names);
  if (fit.fitted.empty()) {
    fail(kImport,
         "nothing can be fitted to {}: {}; expected four sizes at least of one group that show its "
         "links",
         counted(fit.times, "time"), join(all_dropped(logs, fit), "; "));
  }
  adapt(logs, options.out, &fit.cluster);
  const std::vector<cost::GroupError> errors =
      logs.kept_back.empty() ? cost::held_out(base, logs.fitted)
                             : cost::errors_of(fit.cluster, logs.kept_back, "the rest");
  warn_of(errors);
  keep_errors(errors, "held-out times of " + logs.names, fit.fitted, &fit.cluster);
  for (const std::string& doubt : fit.doubts) {
    log_warning("{}", doubt);
  }
  // Errors are of the fit: times of earlier logs join only afterwards.
  const size_t measured_now = fit.cluster.measured.size();
  fit.cluster.measured = cost::merge_measured(base.measured, fit.cluster.measured);
  const size_t kept = fit.cluster.measured.size() - measured_now;
  fit.cluster.validate(options.out);
  write_output(options.out, cost::to_yaml(fit.cluster));
  if (options.json) {
    print_json(options, base_name, logs, fit, errors, kept);
    return 0;
  }
  std::FILE* messages = message_stream(options.out);
  for (const std::string& what : logs.assumed) {
    fmt::print(messages, "assumed:  {}\n", what);
  }
  for (const std::string& what : all_dropped(logs, fit)) {
    fmt::print(messages, "left out: {}\n", what);
  }
  print_errors(messages, errors);
  if (kept > 0) {
    fmt::print(messages, "kept:     measured times of {} of {}, which these logs do not have\n",
               counted(static_cast<int64_t>(kept), "group"), base_name);
  }
  fmt::print(messages, "fitted {} to {}; all else is of {}; wrote {}\n", join(fit.fitted, " and "),
             counted(fit.times, "time"), base_name, options.out);
  return 0;
}

}  // namespace hocket::cli
