// SPDX-License-Identifier: Apache-2.0
#include "diagnose/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/stats.h"

namespace hocket::diagnose {
namespace {

using nlohmann::json;

double number(const json& line, const char* key) {
  const auto at = line.find(key);
  return at != line.end() && at->is_number() ? at->get<double>() : kMissing;
}

// Returns the numbers of the `count` layers with experts.
std::vector<int64_t> layers_of(const json& line, size_t count) {
  std::vector<int64_t> layers(count);
  std::iota(layers.begin(), layers.end(), 0);
  const auto given = line.find("moe/layers");
  if (given == line.end() || !given->is_array() || given->size() != count) return layers;
  for (size_t i = 0; i < count; ++i) {
    if ((*given)[i].is_number_integer()) {
      layers[i] = (*given)[i].get<int64_t>();
    }
  }
  return layers;
}

/// Returns the sets with names that a line of an evaluation has, by `eval/<name>/loss`.
std::map<std::string, EvalPoint::Set> sets_of(const json& line) {
  constexpr std::string_view kGroup = "eval/", kLoss = "/loss";
  std::map<std::string, EvalPoint::Set> sets;
  for (const auto& [key, value] : line.items()) {
    if (!key.starts_with(kGroup) || !key.ends_with(kLoss)) continue;
    if (key.size() <= kGroup.size() + kLoss.size()) continue;
    const std::string name = key.substr(kGroup.size(), key.size() - kGroup.size() - kLoss.size());
    const std::string bits = fmt::format("{}{}/bits_per_byte", kGroup, name);
    sets[name] = {number(line, key.c_str()), number(line, bits.c_str())};
  }
  return sets;
}

template <typename Point>
void drop_from(std::vector<Point>* points, int64_t step) {
  while (!points->empty() && points->back().step >= step) {
    points->pop_back();
  }
}

class Reader {
 public:
  // Adds a line; returns false if it holds no metrics.
  bool add(const json& line) {
    if (!line.is_object() || !line.contains("step")) return false;
    const int64_t step =
        JsonView(line, "").get_int("step");  // the line is skipped if it is not an integer
    double time = number(line, "time_s");
    bool known = false;
    if (line.contains("train/loss")) {
      if (!out_.train.empty() && step <= out_.train.back().step) {
        rewind(step, time);
      }
      TrainPoint point;
      point.step = step;
      point.time_s = time + shift_;
      point.tokens = number(line, "tokens");
      point.loss = number(line, "train/loss");
      point.grad_norm = number(line, "train/grad_norm");
      point.lr = number(line, "train/lr");
      point.tokens_per_s = number(line, "perf/tokens_per_s_per_device");
      point.tflops = number(line, "perf/tflops_per_device");
      point.mfu = number(line, "perf/mfu");
      point.step_s = number(line, "perf/step_s");
      point.predicted_step_s = number(line, "perf/predicted_step_s");
      point.probe_gflops = number(line, "perf/probe_gflops");
      point.peak_gib = number(line, "memory/peak_gib");
      point.load_max_over_mean = number(line, "moe/load_max_over_mean");
      out_.train.push_back(point);
      known = true;
    }
    std::map<std::string, EvalPoint::Set> sets = sets_of(line);
    if (line.contains("eval/loss") || line.contains("eval/bits_per_byte") || !sets.empty()) {
      drop_from(&out_.eval, step);
      out_.eval.push_back({step, time + shift_, number(line, "eval/loss"),
                           number(line, "eval/bits_per_byte"), std::move(sets)});
      known = true;
    }
    if (line.contains("moe/load")) {
      LoadPoint point{step, {}, {}};
      for (const json& layer : line["moe/load"]) {
        std::vector<double> row;
        if (!layer.is_array()) return known;
        for (const json& object : layer) {
          row.push_back(object.is_number() ? object.get<double>() : kMissing);
        }
        if (!point.load.empty() && row.size() != point.load[0].size()) return known;
        point.load.push_back(std::move(row));
      }
      if (point.load.empty() || point.load[0].empty()) return known;
      point.layers = layers_of(line, point.load.size());
      drop_from(&out_.load, step);
      out_.load.push_back(std::move(point));
      known = true;
    }
    return known;
  }
  Metrics take() { return std::move(out_); }
  Metrics& out() { return out_; }

 private:
  // Drops the steps from `step` on, which a resumed run repeats. If its clock restarted, its times
  // continue from the old clock.
  void rewind(int64_t step, double time) {
    drop_from(&out_.train, step);
    drop_from(&out_.eval, step + 1);
    drop_from(&out_.load, step + 1);
    const double last = out_.train.empty() ? 0 : out_.train.back().time_s;
    if (std::isfinite(last) && time + shift_ < last) {
      shift_ = last - time;
    }
  }

  Metrics out_;
  double shift_ = 0;
};

}  // namespace

StepsThatCount steps_that_count(const Metrics& metrics, int64_t first_step, int64_t settled_step) {
  StepsThatCount steps{{}, settled_step, true};
  const auto take = [&] {
    for (const TrainPoint& point : metrics.train) {
      if (point.step >= steps.from_step && std::isfinite(point.step_s)) {
        steps.seconds.push_back(point.step_s);
      }
    }
  };
  take();
  if (steps.seconds.empty()) {
    steps.from_step = first_step;
    steps.settled = false;
    take();
  }
  return steps;
}

MachineSpeed speed_of(const Metrics& metrics, int64_t from_step) {
  std::vector<double> rates;
  for (const TrainPoint& point : metrics.train) {
    if (point.step >= from_step) {
      rates.push_back(point.probe_gflops);  // NaN does not count
    }
  }
  return {median(rates), quantile(rates, 0.9) / quantile(rates, 0.1) - 1};
}

Metrics load_metrics(const std::string& path) {
  // Lines are read one by one, since a killed run may leave half a line at the end. An unreadable
  // line is counted and skipped; a file without a valid line is not a metrics file.
  const std::string text = read_file(path);
  Reader reader;
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    try {
      if (reader.add(parse_json(line, path))) {
        any = true;
        continue;
      }
    } catch (const Error&) {
    }
    ++reader.out().skipped_lines;
  }
  if (!any) {
    fail(path,
         "no metrics in it; expected one JSON object per line with \"step\" and "
         "\"train/loss\", as hocket train writes");
  }
  return reader.take();
}

}  // namespace hocket::diagnose
