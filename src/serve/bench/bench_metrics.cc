// SPDX-License-Identifier: Apache-2.0
#include "serve/bench/bench_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/json_writer.h"

namespace hocket::serve {

namespace {

constexpr double kMs = 1e3;
constexpr size_t kTableWidth = 50;

BenchSeries series_of(const std::vector<double>& seconds, const std::vector<double>& percentiles) {
  BenchSeries series;
  for (const double percent : percentiles) {
    series.percentiles.emplace_back(percent, 0.0);
  }
  if (seconds.empty()) return series;
  const auto count = static_cast<double>(seconds.size());
  const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count;
  double squares = 0;
  for (const double x : seconds) {
    squares += (x - mean) * (x - mean);
  }
  series.mean = mean * kMs;
  series.std = std::sqrt(squares / count) * kMs;
  series.median = percentile(seconds, 50) * kMs;
  for (auto& [percent, value] : series.percentiles) {
    value = percentile(seconds, percent) * kMs;
  }
  return series;
}

/// Mean time of a token behind the first; nothing for a single one.
std::optional<double> tpot_of(const MeasuredRequest& request) {
  if (request.output_tokens <= 1) return std::nullopt;
  return (request.latency - request.ttft) / static_cast<double>(request.output_tokens - 1);
}

bool meets(const MeasuredRequest& request, const std::map<std::string, double>& goodput) {
  for (const auto& [name, limit_ms] : goodput) {
    const double seconds = name == "ttft"   ? request.ttft
                           : name == "tpot" ? tpot_of(request).value_or(0)
                                            : request.latency;
    if (seconds * kMs > limit_ms) return false;
  }
  return true;
}

/// Fills in the best second's tokens, and the fullest second's requests.
void count_seconds(const std::vector<MeasuredRequest>& requests, BenchMetrics* metrics) {
  double begin = INFINITY, end = 0;
  for (const MeasuredRequest& request : requests) {
    if (!request.success) continue;
    begin = std::min(begin, request.start);
    end = std::max(end, request.start + request.latency);
  }
  if (metrics->completed == 0) return;
  const auto seconds = static_cast<size_t>(std::ceil(end - begin)) + 1;
  std::vector<int64_t> tokens(seconds), running(seconds);
  const auto second = [&](double time) {
    return std::min(static_cast<size_t>(std::max(0.0, time - begin)), seconds - 1);
  };
  for (const MeasuredRequest& request : requests) {
    if (!request.success) continue;
    double time = request.start + request.ttft;
    ++tokens[second(time)];
    for (const double gap : request.itl) {
      time += gap;
      ++tokens[second(time)];
    }
    for (size_t s = second(request.start); s <= second(request.start + request.latency); ++s) {
      ++running[s];
    }
  }
  metrics->max_output_tokens_per_s =
      static_cast<double>(*std::max_element(tokens.begin(), tokens.end()));
  metrics->max_concurrent_requests = *std::max_element(running.begin(), running.end());
}

}  // namespace

const std::vector<std::string>& bench_metric_names() {
  static const std::vector<std::string> names = {"ttft", "tpot", "itl", "e2el"};
  return names;
}

double percentile(std::vector<double> values, double percent) {
  HOCKET_CHECK(!values.empty() && percent >= 0 && percent <= 100, "percentile {} of {} values",
               percent, values.size());
  std::sort(values.begin(), values.end());
  const double place = percent / 100 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

std::string percentile_word(double percent) { return fmt::format("{}", percent); }

BenchMetrics bench_metrics(const std::vector<MeasuredRequest>& requests, double duration,
                           const std::vector<double>& percentiles,
                           const std::map<std::string, double>& goodput) {
  BenchMetrics out;
  out.duration = duration;
  std::map<std::string, std::vector<double>> values;
  int64_t good = 0;
  for (const MeasuredRequest& request : requests) {
    if (!request.success) {
      ++out.failed;
      continue;
    }
    ++out.completed;
    out.total_input_tokens += request.prompt_tokens;
    out.total_output_tokens += request.output_tokens;
    values["ttft"].push_back(request.ttft);
    values["e2el"].push_back(request.latency);
    values["itl"].insert(values["itl"].end(), request.itl.begin(), request.itl.end());
    if (const std::optional<double> tpot = tpot_of(request)) {
      values["tpot"].push_back(*tpot);
    }
    good += meets(request, goodput) ? 1 : 0;
  }
  const auto rate = [&](int64_t count) { return static_cast<double>(count) / duration; };
  out.request_throughput = rate(out.completed);
  out.output_throughput = rate(out.total_output_tokens);
  out.total_token_throughput = rate(out.total_input_tokens + out.total_output_tokens);
  if (!goodput.empty()) {
    out.request_goodput = rate(good);
  }
  for (const std::string& name : bench_metric_names()) {
    out.series[name] = series_of(values[name], percentiles);
  }
  count_seconds(requests, &out);
  return out;
}

// ---- output ------------------------------------------------------------------------------------

namespace {

void write_labels(const BenchLabels& labels, JsonWriter* json) {
  json->member("date", labels.date).member("endpoint_type", labels.backend);
  json->member("backend", labels.backend);
  json->key("label");
  if (labels.label.empty()) {
    json->null();
  } else {
    json->value(labels.label);
  }
  json->member("model_id", labels.model).member("tokenizer_id", labels.tokenizer);
  json->member("num_prompts", labels.num_prompts);
  for (const auto& [name, value] : labels.metadata) {
    json->member(name, value);
  }
  json->key("request_rate");
  if (labels.request_rate) {
    json->value(*labels.request_rate);
  } else {
    json->value("inf");
  }
  json->member("burstiness", labels.burstiness).key("max_concurrency");
  if (labels.max_concurrency) {
    json->value(*labels.max_concurrency);
  } else {
    json->null();
  }
}

template <class Get>
void write_list(JsonWriter* json, const char* name, const std::vector<MeasuredRequest>& requests,
                const Get& get) {
  json->key(name).array();
  for (const MeasuredRequest& request : requests) {
    json->value(get(request));
  }
  json->end();
}

void write_details(const std::vector<MeasuredRequest>& requests, JsonWriter* json) {
  using Request = const MeasuredRequest&;
  write_list(json, "input_lens", requests, [](Request r) { return r.prompt_tokens; });
  write_list(json, "output_lens", requests, [](Request r) { return r.output_tokens; });
  write_list(json, "start_times", requests, [](Request r) { return r.start; });
  write_list(json, "ttfts", requests, [](Request r) { return r.ttft; });
  write_list(json, "itls", requests, [](Request r) { return r.itl; });
  write_list(json, "generated_texts", requests, [](Request r) { return r.text; });
  write_list(json, "errors", requests, [](Request r) { return r.error; });
}

}  // namespace

std::string bench_json(const BenchLabels& labels, const BenchMetrics& metrics,
                       const std::vector<MeasuredRequest>& requests,
                       const std::vector<std::string>& shown, bool detailed) {
  JsonWriter json;
  json.object();
  write_labels(labels, &json);
  json.member("duration", metrics.duration).member("completed", metrics.completed);
  json.member("failed", metrics.failed).member("total_input_tokens", metrics.total_input_tokens);
  json.member("total_output_tokens", metrics.total_output_tokens);
  json.member("request_throughput", metrics.request_throughput).key("request_goodput");
  if (metrics.request_goodput) {
    json.value(*metrics.request_goodput);
  } else {
    json.null();
  }
  json.member("output_throughput", metrics.output_throughput);
  json.member("total_token_throughput", metrics.total_token_throughput);
  json.member("max_output_tokens_per_s", metrics.max_output_tokens_per_s);
  json.member("max_concurrent_requests", metrics.max_concurrent_requests);
  if (detailed) {
    write_details(requests, &json);
  }
  for (const std::string& name : shown) {
    const BenchSeries& series = metrics.series.at(name);
    json.member(fmt::format("mean_{}_ms", name), series.mean);
    json.member(fmt::format("median_{}_ms", name), series.median);
    json.member(fmt::format("std_{}_ms", name), series.std);
    for (const auto& [percent, value] : series.percentiles) {
      json.member(fmt::format("p{}_{}_ms", percentile_word(percent), name), value);
    }
  }
  json.end();
  return json.take();
}

std::string bench_table(const BenchMetrics& metrics, const std::vector<std::string>& shown) {
  static const std::map<std::string, std::string> titles = {
      {"ttft", "Time to First Token"},
      {"tpot", "Time per Output Token (excl. 1st token)"},
      {"itl", "Inter-token Latency"},
      {"e2el", "End-to-end Latency"}};
  std::string text;
  const auto title = [&](const std::string& words, char fill) {
    const std::string middle = words.empty() ? "" : " " + words + " ";
    const size_t left = (kTableWidth - middle.size()) / 2;
    text += std::string(left, fill) + middle +
            std::string(kTableWidth - left - middle.size(), fill) + "\n";
  };
  const auto number = [&](const std::string& name, double value) {
    text += fmt::format("{:<40}{:>10.2f}\n", name + ":", value);
  };
  const auto count = [&](const char* name, int64_t value) {
    text += fmt::format("{:<40}{:>10}\n", name, value);
  };
  title("Serving Benchmark Result", '=');
  count("Successful requests:", metrics.completed);
  count("Failed requests:", metrics.failed);
  number("Benchmark duration (s)", metrics.duration);
  count("Total input tokens:", metrics.total_input_tokens);
  count("Total generated tokens:", metrics.total_output_tokens);
  number("Request throughput (req/s)", metrics.request_throughput);
  if (metrics.request_goodput) {
    number("Request goodput (req/s)", *metrics.request_goodput);
  }
  number("Output token throughput (tok/s)", metrics.output_throughput);
  number("Peak output token throughput (tok/s)", metrics.max_output_tokens_per_s);
  count("Peak concurrent requests:", metrics.max_concurrent_requests);
  number("Total token throughput (tok/s)", metrics.total_token_throughput);
  for (const std::string& name : shown) {
    const BenchSeries& series = metrics.series.at(name);
    std::string upper = name;
    std::transform(upper.begin(), upper.end(), upper.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    title(titles.at(name), '-');
    number(fmt::format("Mean {} (ms)", upper), series.mean);
    number(fmt::format("Median {} (ms)", upper), series.median);
    for (const auto& [percent, value] : series.percentiles) {
      number(fmt::format("P{} {} (ms)", percentile_word(percent), upper), value);
    }
  }
  title("", '=');
  return text;
}

}  // namespace hocket::serve
