// SPDX-License-Identifier: Apache-2.0
#include "rl/report_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "base/json_writer.h"

namespace hocket::rl {

namespace {

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kPoints = 1000;   // of a curve
constexpr size_t kColumns = 100;   // curves with data in the page
constexpr size_t kMaxNames = 300;  // columns; a reward may answer with any details

/// Meanings of metrics, as docs/rl.md has them.
constexpr std::array<std::pair<std::string_view, std::string_view>, 74> kMeanings = {{
    {"reward", "mean reward of the samples"},
    {"reward_std", "deviation of the rewards of all samples"},
    {"rl/reward_std_in_group", "deviation of rewards in a group, mean over groups"},
    {"frac_reward_zero_std", "share of groups whose samples all have the same reward"},
    {"rewards/failed", "share of samples with a reward that failed"},
    {"completions/mean_length", "tokens of a sample"},
    {"completions/min_length", "tokens of the shortest sample"},
    {"completions/max_length", "tokens of the longest sample"},
    {"completions/clipped_ratio", "share of samples that max_new_tokens cut off"},
    {"completions/mean_terminated_length", "tokens of samples that ended by themselves"},
    {"completions/min_terminated_length", "tokens of the shortest that ended by itself"},
    {"completions/max_terminated_length", "tokens of the longest that ended by itself"},
    {"entropy", "nats per token, of the policy before the update"},
    {"clip_ratio/low_mean", "share of tokens clipped below"},
    {"clip_ratio/low_min", "least share of a sample's tokens clipped below"},
    {"clip_ratio/high_mean", "share of tokens clipped above"},
    {"clip_ratio/high_max", "largest share of a sample's tokens clipped above"},
    {"clip_ratio/region_mean", "share of tokens clipped"},
    {"cispo_clip_ratio", "share of tokens whose weight is clipped"},
    {"ratio", "mean of pi / pi_old"},
    {"approx_kl", "divergence of the policy from the old one, by k3"},
    {"kl", "divergence of the policy from the reference, by k3"},
    {"sampling/sampling_logp_difference/max", "largest difference between sampling and training"},
    {"sampling/sampling_logp_difference/mean", "mean difference between sampling and training"},
    {"rl/compared_share", "share of the step's tokens that were compared"},
    {"training/rollout_probs_diff_max", "largest difference of probabilities"},
    {"training/rollout_probs_diff_mean", "mean difference of probabilities"},
    {"training/rollout_probs_diff_std", "deviation of differences of probabilities"},
    {"correction/ratio_mean", "mean of pi_old / mu"},
    {"correction/ratio_max", "largest pi_old / mu"},
    {"correction/left_out", "share of tokens that mis left out"},
    {"correction/cut_off", "share of tokens above the limit of tis"},
    {"correction/kl", "divergence of mu from pi_old, by k3"},
    {"train/num_gen_batches", "rounds of sampling in the step"},
    {"rl/prompts", "prompts sampled so far"},
    {"timing_s/gen", "seconds of sampling in the step"},
    {"timing_s/reward", "seconds of waiting for rewards after sampling"},
    {"timing_s/ref", "seconds of the reference's log-probabilities"},
    {"timing_s/old_log_prob", "seconds of computing old log-probabilities"},
    {"timing_s/update_actor", "seconds of the update"},
    {"timing_s/step", "seconds of the step up to the update's end"},
    {"train/loss", "loss of the update"},
    {"train/grad_norm", "norm of the gradient before clipping"},
    {"train/lr", "learning rate"},
    {"train/skipped", "updates so far that changed nothing"},
    {"tokens", "tokens trained on so far, prompts among them"},
    {"num_tokens", "tokens sampled so far, prompts among them"},
    {"loss", "loss of the update"},
    {"grad_norm", "norm of the gradient before clipping"},
    {"learning_rate", "learning rate"},
    {"actor/pg_loss", "loss of the policy, without divergence and entropy"},
    {"actor/entropy", "entropy in the mean of the loss"},
    {"actor/ppo_kl", "divergence of the policy from the old one, by k1"},
    {"actor/pg_clipfrac", "share of tokens clipped"},
    {"actor/pg_clipfrac_lower", "share of tokens that dual_clip bounds"},
    {"actor/kl_loss", "divergence from the reference, in the mean of the loss"},
    {"actor/kl_coef", "weight of the divergence"},
    {"actor/grad_norm", "norm of the gradient before clipping"},
    {"actor/lr", "learning rate"},
    {"perf/step_s", "seconds of the update"},
    {"perf/predicted_step_s", "predicted seconds of the update"},
    {"perf/tokens_per_s_per_device", "tokens of the update per second and device"},
    {"perf/tflops_per_device", "model TFLOP/s per device in the update"},
    {"perf/mfu", "share of the device's peak in the update"},
    {"perf/probe_gflops", "speed of a fixed product, the machine's"},
    {"memory/peak_gib", "memory of the fullest rank"},
    {"memory/planned_gib", "planned memory of the fullest rank"},
    {"moe/load_max_over_mean", "load of the busiest expert over the mean"},
    {"critic/vf_loss", "loss of the critic"},
    {"critic/vf_explained_var", "share of the returns' variance that values explain"},
    {"critic/grad_norm", "norm of the critic's gradient before clipping"},
    {"critic/lr", "learning rate of the critic"},
    {"response_length/clip_ratio", "share of samples of max_new_tokens tokens"},
    {"response/aborted_ratio", "share of samples without tokens"},
}};

/// Numbers that verl has the mean, max and min of, by the beginnings of their names.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kSummarised = {{
    {"critic/score/", "reward of a sample, with the penalty of its length"},
    {"critic/rewards/", "the same, less the divergence with kl_in: reward"},
    {"critic/advantages/", "advantage of a token"},
    {"critic/returns/", "return of a token"},
    {"critic/values/", "value of a token"},
    {"response_length/", "tokens of a sample"},
    {"prompt_length/", "tokens of a prompt"},
}};

/// Takes the numbers of a line's object, and the names of its members; what lies deeper is passed.
class LineReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<std::pair<std::string, double>> numbers;
  double step = kNoValue, time = kNoValue;
  bool evaluates = false;

  bool null() override { return depth_ > 0; }
  bool boolean(bool) override { return depth_ > 0; }
  bool number_integer(number_integer_t x) override { return take(static_cast<double>(x)); }
  bool number_unsigned(number_unsigned_t x) override { return take(static_cast<double>(x)); }
  bool number_float(number_float_t x, const string_t&) override { return take(x); }
  bool string(string_t&) override { return depth_ > 0; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return ++depth_ > 0; }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(std::size_t) override { return ++depth_ > 1; }  // false: the line is a list
  bool end_array() override { return --depth_ >= 0; }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      key_ = name;
      evaluates = evaluates || name == "eval/final";
    }
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool take(double x) {
    if (depth_ != 1) return depth_ > 1;  // false: the line is a number
    if (key_ == "step") {
      step = x;
    } else if (key_ == "time_s") {
      time = x;
    } else {
      numbers.emplace_back(key_, x);
    }
    return true;
  }
  int depth_ = 0;
  std::string key_;
};

/// Adds a line's numbers. Columns that it lacks, or that are new, have no value in other rows.
void add_row(const LineReader& line, MetricColumns* to) {
  to->remove_from(line.step);
  const size_t row = to->rows();
  to->steps.push_back(line.step);
  to->times.push_back(line.time);
  for (const auto& [name, value] : line.numbers) {
    auto found = to->columns.find(name);
    if (found == to->columns.end()) {
      if (to->names.size() == kMaxNames) continue;
      to->names.push_back(name);
      found = to->columns.emplace(name, std::vector<double>()).first;
    }
    found->second.resize(row, kNoValue);
    found->second.push_back(value);
  }
}

/// Returns whether a column says what another one does under a peer's name.
bool repeats(const std::string& column) {
  static constexpr std::string_view kNames[] = {
      "tokens", "num_tokens", "loss", "grad_norm", "learning_rate", "actor/lr", "actor/grad_norm"};
  return std::find(std::begin(kNames), std::end(kNames), column) != std::end(kNames);
}

void put_columns(JsonWriter& out, const char* name, const MetricColumns& all) {
  const MetricColumns some = thinned(all, kPoints);
  out.key(name).object();
  const auto put = [&](std::string_view key, const std::vector<double>& values, int digits) {
    out.key(key).array();
    for (const double value : values) {
      out.value(value, digits);
    }
    out.end();
  };
  put("step", some.steps, 9);
  put("time", some.times, 7);
  out.key("columns").object();
  size_t count = 0;
  for (const std::string& column : some.names) {
    const bool drawn =
        column == "perf/step_s" || !(column.starts_with("perf/") || column.starts_with("memory/") ||
                                     column.starts_with("moe/") || repeats(column));
    if (drawn && count++ < kColumns) {
      put(column, *some.find(column), 5);
    }
  }
  out.end().end();
}

}  // namespace

const std::vector<double>* MetricColumns::find(const std::string& name) const {
  const auto found = columns.find(name);
  return found == columns.end() ? nullptr : &found->second;
}

void MetricColumns::remove_from(double step) {
  size_t rows = steps.size();
  while (rows > 0 && steps[rows - 1] >= step) {
    --rows;
  }
  if (rows == steps.size()) return;
  steps.resize(rows);
  times.resize(rows);
  for (auto& [name, column] : columns) {
    column.resize(std::min(column.size(), rows));
  }
}

MetricTable read_metric_table(const std::string& path) {
  MetricTable table;
  if (!file_exists(path)) return table;
  const std::string text = read_file(path);
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find('\n', begin);
    end = end == text.npos ? text.size() : end;
    LineReader line;
    const bool whole =
        nlohmann::json::sax_parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                  text.begin() + static_cast<std::ptrdiff_t>(end), &line);
    begin = end + 1;
    if (!whole || std::isnan(line.step)) continue;
    if (line.evaluates) {
      add_row(line, &table.evaluations);
    } else {
      // A resumed training repeats what followed its checkpoint.
      table.evaluations.remove_from(line.step);
      add_row(line, &table.updates);
    }
  }
  for (MetricColumns* all : {&table.updates, &table.evaluations}) {
    for (auto& [name, column] : all->columns) {
      column.resize(all->rows(), kNoValue);
    }
  }
  return table;
}

MetricColumns thinned(const MetricColumns& all, size_t most) {
  if (all.rows() <= most) return all;
  const size_t stride = (all.rows() + most - 1) / most;
  MetricColumns out;
  out.names = all.names;
  for (size_t begin = 0; begin < all.rows(); begin += stride) {
    const size_t end = std::min(begin + stride, all.rows());
    out.steps.push_back(all.steps[end - 1]);
    out.times.push_back(all.times[end - 1]);
    for (const auto& [name, column] : all.columns) {
      double sum = 0, count = 0;
      for (size_t i = begin; i < end; ++i) {
        sum += std::isfinite(column[i]) ? column[i] : 0;
        count += std::isfinite(column[i]) ? 1 : 0;
      }
      out.columns[name].push_back(count > 0 ? sum / count : kNoValue);
    }
  }
  return out;
}

std::string curves_json(const MetricTable& table) {
  JsonWriter out;
  out.object();
  put_columns(out, "updates", table.updates);
  put_columns(out, "evaluations", table.evaluations);
  out.member("rows", table.updates.rows());
  return out.end().take();
}

std::string meaning_of(std::string_view name) {
  for (const auto& [known, meaning] : kMeanings) {
    if (known == name) return std::string(meaning);
  }
  if (name.starts_with("eval/")) {
    const std::string_view value = name.substr(name.find_last_of('/') + 1);
    if (value.starts_with("pass@")) {
      return "held-out prompts with a right one among " + std::string(value.substr(5));
    }
    if (value == "reward") return "mean reward of held-out samples";
    const size_t at = value == "failed" ? name.find("rewards/") : name.find("completions/");
    return at == name.npos ? "" : "held out: " + meaning_of(name.substr(at));
  }
  for (const auto& [begin, meaning] : kSummarised) {
    if (name.starts_with(begin)) {
      return fmt::format("{}: {}", meaning, name.substr(begin.size()));
    }
  }
  if (name.starts_with("rewards/") && name.ends_with("/mean")) return "mean of this reward";
  if (name.starts_with("rewards/") && name.ends_with("/std")) return "deviation of this reward";
  return "";
}

}  // namespace hocket::rl
