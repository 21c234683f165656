// SPDX-License-Identifier: Apache-2.0
#include "serve/metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "serve/pages.h"

namespace hocket::serve {
namespace {

// Bounds of vLLM's histograms (vllm/v1/metrics/buckets.py), in seconds.
std::vector<double> first_token_bounds() {
  return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
          1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
}
std::vector<double> inter_token_bounds() {
  return {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
          0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
}
std::vector<double> latency_bounds() {
  return {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
          30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
}

const char* reason_of(Finish finish) {
  switch (finish) {
    case Finish::stop:
      return "stop";
    case Finish::length:
      return "length";
    case Finish::failed:
      return "error";
    default:
      return "abort";
  }
}

/// A number as Python's client library prints it.
std::string number(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("0123456789-") == text.npos) {
    text += ".0";
  }
  return text;
}

void head(std::string_view name, std::string_view type, std::string_view help, std::string* out) {
  *out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

}  // namespace

std::vector<double> one_two_five(int64_t most) {
  std::vector<double> bounds;
  for (int64_t power = 1;; power *= 10) {
    for (const int64_t digit : {1, 2, 5}) {
      if (digit * power > most) return bounds;
      bounds.push_back(static_cast<double>(digit * power));
    }
  }
}

std::string escaped_label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') {
      out += '\\';
    }
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

Histogram::Histogram(std::vector<double> bounds, std::vector<int64_t> counts, double sum)
    : bounds_(std::move(bounds)), counts_(std::move(counts)), sum_(sum) {}

void Histogram::add(double value) {
  ++counts_[std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin()];
  sum_ += value;
}

void Histogram::print(std::string_view name, std::string_view labels, std::string* out) const {
  int64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    const std::string bound = i < bounds_.size() ? number(bounds_[i]) : "+Inf";
    *out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, count);
  }
  *out += fmt::format("{}_count{{{}}} {}\n{}_sum{{{}}} {}\n", name, labels, count, name, labels,
                      number(sum_));
}

Metrics::Metrics(std::string model, int64_t max_model_len)
    : labels_(fmt::format("engine=\"0\",model_name=\"{}\"", escaped_label(model))),
      first_token_(first_token_bounds()),
      inter_token_(inter_token_bounds()),
      per_token_(inter_token_bounds()),
      latency_(latency_bounds()),
      queue_(latency_bounds()),
      prefill_(latency_bounds()),
      inference_(latency_bounds()),
      decode_(latency_bounds()),
      prompt_tokens_(one_two_five(max_model_len)),
      tokens_(one_two_five(max_model_len)),
      max_tokens_(one_two_five(max_model_len)),
      n_({1, 2, 5, 10, 20}) {
  for (const Finish finish : {Finish::stop, Finish::length, Finish::cancelled, Finish::failed}) {
    finished_[reason_of(finish)] = 0;
  }
}

void Metrics::first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.add(seconds);
}

void Metrics::inter_token(double seconds, int64_t tokens) {
  const std::lock_guard lock(mutex_);
  for (int64_t i = 0; i < tokens; ++i) {
    inter_token_.add(seconds / static_cast<double>(tokens));
  }
}

void Metrics::finished(const FinishedText& text) {
  const std::lock_guard lock(mutex_);
  ++finished_[reason_of(text.finish)];
  latency_.add(text.latency_s);
  prompt_tokens_.add(static_cast<double>(text.prompt_tokens));
  tokens_.add(static_cast<double>(text.tokens));
  max_tokens_.add(static_cast<double>(text.max_tokens));
  n_.add(static_cast<double>(text.n));
  if (text.started_s) {
    queue_.add(*text.started_s);
    inference_.add(text.latency_s - *text.started_s);
    if (text.tokens > 0) {
      prefill_.add(text.first_token_s - *text.started_s);
    }
  }
  if (text.tokens > 0) {
    decode_.add(text.last_token_s - text.first_token_s);
  }
  if (text.tokens > 1) {
    per_token_.add((text.last_token_s - text.first_token_s) / static_cast<double>(text.tokens - 1));
  }
}

void Metrics::answered(std::string_view method, std::string_view path, int status) {
  const std::lock_guard lock(mutex_);
  ++answered_[fmt::format("handler=\"{}\",method=\"{}\",status=\"{}xx\"", path, method,
                          status / 100)];
}

std::string Metrics::page(const Stats& stats, int64_t streams) const {
  std::string out;
  const auto single = [&](const char* name, const char* type, const char* help, double value) {
    head(name, type, help, &out);
    out += fmt::format("{}{{{}}} {}\n", name, labels_, number(value));
  };
  const auto counter = [&](const char* name, const char* help, int64_t value) {
    single(name, "counter", help, static_cast<double>(value));
  };
  single("vllm:num_requests_running", "gauge", "Requests in the running batch.",
         static_cast<double>(stats.running));
  single("vllm:num_requests_waiting", "gauge", "Requests that wait to run.",
         static_cast<double>(stats.waiting));
  single("vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache's pages in use, 0 to 1.",
         stats.pages > 0
             ? static_cast<double>(stats.pages_in_use) / static_cast<double>(stats.pages)
             : 0);
  counter("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.",
          stats.prefix_queries);
  counter("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.", stats.prefix_hits);
  counter("vllm:num_preemptions_total", "Requests whose pages were taken away.", stats.preemptions);
  counter("vllm:prompt_tokens_total",
          "Tokens of prompts that have begun, those found in the cache included.",
          stats.prompt_tokens);
  counter("vllm:generation_tokens_total", "Generated tokens.", stats.generated_tokens);
  counter("hocket:steps_total", "Steps of the engine.", stats.steps);
  head("vllm:cache_config_info", "gauge", "Sizes of the KV cache, as labels.", &out);
  out += fmt::format(
      "vllm:cache_config_info{{{},block_size=\"{}\",num_gpu_blocks=\"{}\","
      "enable_prefix_caching=\"{}\"}} 1.0\n",
      labels_, PagePool::kTokens, stats.pages, stats.prefix_caching ? "True" : "False");
  head("vllm:iteration_tokens_total", "histogram", "Tokens of a step, of prompts and texts.", &out);
  const auto& counts = stats.steps_by_tokens;
  Histogram({kStepBounds.begin(), kStepBounds.end()}, {counts.begin(), counts.end()},
            static_cast<double>(stats.step_tokens))
      .print("vllm:iteration_tokens_total", labels_, &out);
  single("hocket:memory_planned_bytes", "gauge",
         "Most memory of weights, KV cache and steps, by the program's plan.",
         static_cast<double>(stats.planned_bytes));
  single("hocket:memory_resident_bytes", "gauge",
         "Memory of weights, KV cache and steps that is allocated.",
         static_cast<double>(stats.resident_bytes));
  single("hocket:http_streams", "gauge", "Requests for text that are being answered.",
         static_cast<double>(streams));

  const std::lock_guard lock(mutex_);
  head("vllm:request_success_total", "counter", "Texts that ended, by the reason.", &out);
  for (const auto& [reason, count] : finished_) {
    out += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels_,
                       reason, number(static_cast<double>(count)));
  }
  head("http_requests_total", "counter", "HTTP requests by path, method and status.", &out);
  for (const auto& [labels, count] : answered_) {
    out +=
        fmt::format("http_requests_total{{{}}} {}\n", labels, number(static_cast<double>(count)));
  }
  const auto histogram = [&](const char* name, const char* help, const Histogram& values) {
    head(name, "histogram", help, &out);
    values.print(name, labels_, &out);
  };
  histogram("vllm:time_to_first_token_seconds", "From the request to its first token.",
            first_token_);
  histogram("vllm:inter_token_latency_seconds", "From one token to the next.", inter_token_);
  histogram("vllm:request_time_per_output_token_seconds",
            "Mean time of a text's tokens but the first.", per_token_);
  histogram("vllm:e2e_request_latency_seconds", "From the request to the end of its text.",
            latency_);
  histogram("vllm:request_queue_time_seconds", "From the request to its first step.", queue_);
  histogram("vllm:request_prefill_time_seconds", "From a request's first step to its first token.",
            prefill_);
  histogram("vllm:request_inference_time_seconds", "From a request's first step to its end.",
            inference_);
  histogram("vllm:request_decode_time_seconds", "From a text's first token to its last.", decode_);
  histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", prompt_tokens_);
  histogram("vllm:request_generation_tokens", "Tokens of a text.", tokens_);
  histogram("vllm:request_params_max_tokens", "max_tokens of requests.", max_tokens_);
  histogram("vllm:request_params_n", "n of requests.", n_);
  return out;
}

}  // namespace hocket::serve
