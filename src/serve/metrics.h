// SPDX-License-Identifier: Apache-2.0
// Metrics of a server as Prometheus reads them, under vLLM's names, labels and buckets, so that its
// dashboards work.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/request.h"

namespace hocket::serve {

/// Counts of values by upper bound.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);
  /// Takes over values that were counted elsewhere: counts by bound, and above all, and their sum.
  Histogram(std::vector<double> bounds, std::vector<int64_t> counts, double sum);
  void add(double value);
  /// Appends the series of the histogram; `labels` without brackets.
  void print(std::string_view name, std::string_view labels, std::string* out) const;

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;  ///< by the first bound that is not below; the last: above all
  double sum_ = 0;
};

/// A generated text that has ended.
struct FinishedText {
  Finish finish = Finish::stop;
  int64_t prompt_tokens = 0, tokens = 0, max_tokens = 0, n = 1;
  double latency_s = 0;                        ///< since its request came
  std::optional<double> started_s = {};        ///< likewise; none: it never ran
  double first_token_s = 0, last_token_s = 0;  ///< likewise; of a text with tokens
};

/// Functions may be called concurrently.
class Metrics {
 public:
  Metrics(std::string model, int64_t max_model_len);

  void first_token(double seconds);                  ///< since the request came
  void inter_token(double seconds, int64_t tokens);  ///< `tokens` came together
  void finished(const FinishedText& text);
  void answered(std::string_view method, std::string_view path, int status);

  /// The whole page, with the engine's counts.
  std::string page(const Stats& stats, int64_t streams) const;

 private:
  const std::string labels_;  ///< model_name="...",engine="0"
  mutable std::mutex mutex_;  ///< guards the members below
  Histogram first_token_, inter_token_, per_token_, latency_, queue_, prefill_, inference_, decode_;
  Histogram prompt_tokens_, tokens_, max_tokens_, n_;
  std::map<std::string, int64_t> finished_;  ///< by finished_reason
  std::map<std::string, int64_t> answered_;  ///< by labels
};

/// Numbers 1, 2, 5, 10, ... up to `most`.
std::vector<double> one_two_five(int64_t most);

/// `text` between the quotes of a label.
std::string escaped_label(std::string_view text);

}  // namespace hocket::serve
