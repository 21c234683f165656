// SPDX-License-Identifier: Apache-2.0
// Results of a load test, under the names and by the arithmetic of `vllm bench serve`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hocket::serve {

/// A request as it was measured. Times in seconds.
struct MeasuredRequest {
  bool success = false;
  std::string error;
  int64_t prompt_tokens = 0, output_tokens = 0;
  double start = 0;         ///< since the beginning of the test
  double ttft = 0;          ///< to the first token
  std::vector<double> itl;  ///< between two pieces of the answer
  double latency = 0;       ///< to the last piece
  std::string text;
};

/// A metric of each request, or of each gap between two tokens.
struct BenchSeries {
  double mean = 0, median = 0, std = 0;                ///< ms; 0 without a value
  std::vector<std::pair<double, double>> percentiles;  ///< rank, ms
};

/// Names of metrics: ttft, tpot, itl, e2el.
const std::vector<std::string>& bench_metric_names();

struct BenchMetrics {
  double duration = 0;
  int64_t completed = 0, failed = 0, total_input_tokens = 0, total_output_tokens = 0;
  double request_throughput = 0, output_throughput = 0, total_token_throughput = 0;
  std::optional<double> request_goodput;  ///< requests/s that meet every limit of --goodput
  double max_output_tokens_per_s = 0;     ///< in the best second
  int64_t max_concurrent_requests = 0;    ///< in the fullest second
  std::map<std::string, BenchSeries> series;
};

/// `goodput`: limits in ms, of ttft, tpot or e2el; empty: none. Standard deviations are of the
/// population, percentiles linear between two neighbours, as NumPy's defaults.
BenchMetrics bench_metrics(const std::vector<MeasuredRequest>& requests, double duration,
                           const std::vector<double>& percentiles,
                           const std::map<std::string, double>& goodput);

/// Value below which `percent` of the values lie, linear between two neighbours in order. Requires:
/// there are values.
double percentile(std::vector<double> values, double percent);

/// "99" or "99.9": as part of a field's name.
std::string percentile_word(double percent);

/// Settings of a test that its result names.
struct BenchLabels {
  std::string date, backend, label, model, tokenizer;
  int64_t num_prompts = 0;
  std::optional<double> request_rate;  ///< nothing: inf
  double burstiness = 1;
  std::optional<int64_t> max_concurrency;
  std::vector<std::pair<std::string, std::string>> metadata;
};

/// The result as `vllm bench serve --save-result` writes it. `shown`: metrics with statistics.
/// `detailed`: with the values of each request.
std::string bench_json(const BenchLabels& labels, const BenchMetrics& metrics,
                       const std::vector<MeasuredRequest>& requests,
                       const std::vector<std::string>& shown, bool detailed);

/// The same as a table for people.
std::string bench_table(const BenchMetrics& metrics, const std::vector<std::string>& shown);

}  // namespace hocket::serve
