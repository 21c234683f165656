// SPDX-License-Identifier: Apache-2.0
#include "whatif/bottleneck.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "base/units.h"

namespace hocket::whatif {
namespace {

constexpr const char* kWhere = "hocket whatif --bottleneck";

/// Batches of every set of ranks of every step: they do not depend on the network.
struct FusedStep {
  std::vector<std::vector<Batch>> logs;
  double backward = 0;
};
std::vector<FusedStep> fuse_all(const Gradients& gradients, const Fusion& fusion) {
  std::vector<FusedStep> steps;
  for (const BackwardStep& step : gradients.steps) {
    steps.push_back({{}, step.backward});
    for (const GradientLog& log : step.logs) {
      steps.back().logs.push_back(fuse(log, fusion));
    }
  }
  return steps;
}

double factor_of(const std::vector<FusedStep>& steps, double step_seconds,
                 const NetworkCase& network, const AddTimes& add) {
  double overhead = 0;
  for (const FusedStep& step : steps) {
    double end = step.backward;
    for (const std::vector<Batch>& batches : step.logs) {
      end = std::max(end, end_of_all_reduces(batches, network, add));
    }
    overhead += end - step.backward;
  }
  const double seconds = step_seconds + overhead / steps.size();
  return seconds > 0 ? step_seconds / seconds : 1;
}

/// Returns the least ratio from 1 on by which f is kNearLinear; f grows with it.
double ratio_needed(const std::vector<FusedStep>& steps, double step_seconds, NetworkCase network,
                    const AddTimes& add) {
  constexpr double kMaxRatio = 1 << 20;
  const auto enough = [&](double ratio) {
    network.ratio = ratio;
    return factor_of(steps, step_seconds, network, add) >= kNearLinear;
  };
  if (enough(1)) return 1;
  if (!enough(kMaxRatio)) return std::numeric_limits<double>::infinity();
  double low = 1, high = kMaxRatio;
  while (high / low > 1 + 1e-9) {
    const double middle = std::sqrt(low * high);
    (enough(middle) ? high : low) = middle;
  }
  return high;
}

void check(const BottleneckOptions& options) {
  const auto bad = [](const auto& list, double least) {
    return list.empty() || std::any_of(list.begin(), list.end(),
                                       [&](auto value) { return !(value >= least) || value == 0; });
  };
  if (bad(options.ranks, 2)) fail(kWhere, "got ranks below 2, or none; expected 2 or more");
  if (bad(options.bandwidths, 0)) fail(kWhere, "got a bandwidth of 0, or none; expected above 0");
  if (bad(options.ratios, 1)) fail(kWhere, "got a ratio below 1, or none; expected 1 or more");
  if (!(options.used > 0) || options.used > 1) {
    fail(kWhere, "got a used share of {}; expected above 0, at most 1", options.used);
  }
  if (!(options.fusion.bytes >= 0) || !(options.fusion.timeout >= 0)) {
    fail(kWhere, "got a fusion of a negative size or time; expected 0 or more");
  }
}

std::string bits(double bytes_per_s) {
  constexpr double kGiga = 1e9, kMega = 1e6;
  const double rate = bytes_per_s * 8;
  return rate >= kGiga ? fmt::format("{:.4g} Gbit/s", rate / kGiga)
                       : fmt::format("{:.4g} Mbit/s", rate / kMega);
}

}  // namespace

double AddTimes::seconds(double bytes) const {
  if (rows_.empty()) return 0;
  std::pair<double, double> low{0, 0}, high = rows_[0];
  for (size_t i = 1; i < rows_.size() && high.first < bytes; ++i) {
    low = high;
    high = rows_[i];
  }
  return low.second + (bytes - low.first) / (high.first - low.first) * (high.second - low.second);
}

AddTimes read_add_times(const std::string& path) {
  std::vector<std::pair<double, double>> rows;
  int64_t number = 0;
  for (const std::string& line : split(read_file(path), '\n')) {
    ++number;
    const std::string text(trim(line.substr(0, line.find('#'))));
    if (text.empty()) continue;
    const size_t blank = text.find_first_of(" \t,");
    const std::string where = fmt::format("{}:{}", path, number);
    if (blank == text.npos) {
      fail(where, "got {}; expected bytes and seconds, as in 1MiB 12us", quote(text));
    }
    const double bytes = parse_quantity(text.substr(0, blank), Unit::bytes, where);
    const double seconds = parse_quantity(trim(text.substr(blank + 1)), Unit::seconds, where);
    if (bytes <= (rows.empty() ? 0 : rows.back().first) ||
        seconds < (rows.empty() ? 0 : rows.back().second)) {
      fail(where, "got {} in {}; expected more bytes, in no less time, than in the row before",
           human_bytes(bytes), human_time(seconds));
    }
    rows.push_back({bytes, seconds});
  }
  if (rows.empty()) fail(path, "has no rows; expected bytes and seconds, as in 1MiB 12us");
  return AddTimes(std::move(rows));
}

std::vector<Batch> fuse(const GradientLog& log, const Fusion& fusion) {
  std::vector<Batch> batches;
  double held = 0, first = 0;
  bool any = false;
  const auto send = [&](double at) {
    batches.push_back({held, at});
    held = 0;
    any = false;
  };
  for (const Gradient& gradient : log.gradients) {
    if (any && first + fusion.timeout <= gradient.ready) {
      send(first + fusion.timeout);
    }
    if (any && held + gradient.bytes > fusion.bytes) {
      send(gradient.ready);
    }
    if (!any) {
      first = gradient.ready;
    }
    any = true;
    held += gradient.bytes;
    if (held >= fusion.bytes) {
      send(gradient.ready);
    }
  }
  if (any) {
    send(log.gradients.back().ready);
  }
  return batches;
}

double ring_seconds(double bytes, const NetworkCase& network, const AddTimes& add) {
  const double size = bytes / network.ratio;
  const double n = network.ranks;
  return 2 * size * (n - 1) / (n * network.bandwidth) + (n - 1) * add.seconds(size / n);
}

double end_of_all_reduces(const std::vector<Batch>& batches, const NetworkCase& network,
                          const AddTimes& add) {
  double end = 0;
  for (const Batch& batch : batches) {
    end = std::max(end, batch.ready) + ring_seconds(batch.bytes, network, add);
  }
  return end;
}

double scaling_factor(const Gradients& gradients, const Fusion& fusion, const NetworkCase& network,
                      const AddTimes& add) {
  return factor_of(fuse_all(gradients, fusion), gradients.step, network, add);
}

Bottleneck find_bottleneck(Gradients gradients, BottleneckOptions options) {
  // Gradients are fused once. Then factors: as measured, of the network that was measured, and the
  // table, by ranks, bandwidth and compression: of a full link, and of the share that is used.
  check(options);
  Bottleneck found;
  const std::vector<FusedStep> steps = fuse_all(gradients, options.fusion);
  for (const GradientLog& log : gradients.steps[0].logs) {
    double bytes = 0;
    for (const Gradient& gradient : log.gradients) {
      bytes += gradient.bytes;
    }
    found.bytes = std::max(found.bytes, bytes);
  }
  for (const std::vector<Batch>& batches : steps[0].logs) {
    found.batches = std::max(found.batches, std::ssize(batches));
  }
  if (gradients.measured_step > 0) {
    found.measured_factor = gradients.step / gradients.measured_step;
  }
  if (gradients.bus_bandwidth > 0) {
    found.model_factor = factor_of(steps, gradients.step,
                                   {gradients.ranks, gradients.bus_bandwidth, 1}, options.add);
  }
  for (const int64_t ranks : options.ranks) {
    std::vector<std::vector<double>> full, used;
    std::vector<double> needed;
    for (const double bandwidth : options.bandwidths) {
      full.emplace_back();
      used.emplace_back();
      for (const double ratio : options.ratios) {
        full.back().push_back(
            factor_of(steps, gradients.step, {ranks, bandwidth, ratio}, options.add));
        used.back().push_back(factor_of(steps, gradients.step,
                                        {ranks, bandwidth * options.used, ratio}, options.add));
      }
      needed.push_back(
          ratio_needed(steps, gradients.step, {ranks, bandwidth * options.used, 1}, options.add));
    }
    found.factor.push_back(std::move(full));
    found.used_factor.push_back(std::move(used));
    found.ratio_needed.push_back(std::move(needed));
  }
  found.gradients = std::move(gradients);
  found.options = std::move(options);
  return found;
}

std::string to_text(const Bottleneck& found) {
  const Gradients& gradients = found.gradients;
  const BottleneckOptions& options = found.options;
  std::string out = fmt::format(
      "bottleneck  f = T / (T + overhead), T {} a step without gradient all-reduces, "
      "overhead from the end of the backward pass ({}) to the end of the last "
      "all-reduce\n  {} of gradients a rank, fused to batches of {} or {} ({} in the "
      "first step){}\n",
      human_time(gradients.step), human_time(gradients.steps[0].backward), human_bytes(found.bytes),
      human_bytes(options.fusion.bytes), human_time(options.fusion.timeout), found.batches,
      options.add.empty() ? "; additions take no time (--adds)" : "");
  for (const std::string& note : gradients.notes) {
    out += fmt::format("  {}\n", note);
  }
  if (found.measured_factor > 0) {
    out += fmt::format("  as measured{}: f {:.3f}",
                       gradients.ranks > 1 ? fmt::format(", {} ranks", gradients.ranks) : "",
                       found.measured_factor);
    if (found.model_factor > 0) {
      out += fmt::format(", sums at {} of a ring; with these the model's f is {:.3f}",
                         bits(gradients.bus_bandwidth), found.model_factor);
    }
    out += "\n";
  }
  const bool part = options.used < 1;
  for (size_t n = 0; n < options.ranks.size(); ++n) {
    out += fmt::format("  {:>4} ranks, gradients", options.ranks[n]);
    for (const double ratio : options.ratios) {
      out += fmt::format("{:>7}", fmt::format("1/{:g}", ratio));
    }
    out += fmt::format("   least ratio for f {:g}\n", kNearLinear);
    for (size_t row = 0; row < options.bandwidths.size(); ++row) {
      const auto line = [&](const std::string& name, const std::vector<double>& factors) {
        out += fmt::format("{:>23}", name);
        for (const double f : factors) {
          out += fmt::format("{:>7.3f}", f);
        }
      };
      const std::string name = bits(options.bandwidths[row]);
      line(name, found.factor[n][row]);
      if (part) {
        out += "\n";
        line(fmt::format("{:.0f} % of it", 100 * options.used), found.used_factor[n][row]);
      }
      const double needed = found.ratio_needed[n][row];
      out += std::isfinite(needed) ? fmt::format("   {:.3g}\n", needed) : "   none\n";
    }
  }
  return out;
}

void put(const Bottleneck& found, JsonWriter* json) {
  const Gradients& gradients = found.gradients;
  const BottleneckOptions& options = found.options;
  json->object()
      .member("T_without_all_reduces", gradients.step)
      .member("T_without_sums", gradients.step)  // the former name of the key
      .member("backward_end", gradients.steps[0].backward)
      .member("gradient_bytes", found.bytes)
      .member("batches", found.batches)
      .member("fusion_bytes", options.fusion.bytes)
      .member("fusion_timeout", options.fusion.timeout);
  if (found.measured_factor > 0) {
    json->key("measured").object();
    json->member("ranks", gradients.ranks)
        .member("T", gradients.measured_step)
        .member("f", found.measured_factor)
        .member("bandwidth_achieved", gradients.bus_bandwidth)
        .member("f_model", found.model_factor)
        .end();
  }
  json->member("ranks", options.ranks)
      .member("bandwidth", options.bandwidths)
      .member("compression", options.ratios)
      .member("used", options.used)
      .member("f", found.factor)
      .member("f_used", found.used_factor)
      .member("f_near_linear", kNearLinear)
      .member("compression_needed", found.ratio_needed)
      .member("notes", gradients.notes)
      .end();
}

}  // namespace hocket::whatif
