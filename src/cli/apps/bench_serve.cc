// SPDX-License-Identifier: Apache-2.0
// hocket bench serve
#include <algorithm>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/apps/bench.h"
#include "cli/apps/served_model.h"
#include "cli/interrupt.h"
#include "serve/bench/bench_client.h"
#include "serve/bench/bench_load.h"
#include "serve/bench/bench_metrics.h"

namespace hocket::cli {
namespace {

constexpr const char* kBenchServe = "hocket bench serve";

/// Options of `vllm bench serve` under its names.
struct BenchServeOptions {
  std::string backend = "openai", base_url, host = "127.0.0.1", endpoint, model, tokenizer;
  std::string dataset_name = "random", dataset_path, request_rate = "inf", label;
  std::string percentile_metrics = "ttft,tpot,itl", metric_percentiles = "99";
  std::string result_dir, result_filename;
  std::vector<std::string> goodput, headers, metadata;
  int64_t port = 8000, num_prompts = 1000, seed = 0, output_len = 256;
  serve::RandomPrompts random;
  std::optional<int64_t> max_concurrency;
  std::optional<double> temperature, top_p;
  double burstiness = 1, timeout_s = 600;
  bool ignore_eos = false, save_result = false, save_detailed = false, skips_test = false;
  bool is_chat() const { return backend == "openai-chat"; }
};

/// A list of an option, separated by commas.
std::vector<double> percentiles_of(const std::string& text) {
  std::vector<double> percents;
  for (const std::string& word : split(text, ',')) {
    double percent = 0;
    if (!parse_double(trim(word), &percent) || percent < 0 || percent > 100) {
      fail(kBenchServe, "--metric-percentiles has {}; expected numbers from 0 to 100", quote(word));
    }
    percents.push_back(percent);
  }
  return percents;
}

std::vector<std::string> metrics_of(const std::string& text) {
  const std::vector<std::string>& known = serve::bench_metric_names();
  std::vector<std::string> names;
  for (const std::string& word : split(text, ',')) {
    const std::string name(trim(word));
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      fail(kBenchServe, "--percentile-metrics has {}; expected some of {}", quote(word),
           join(known, ", "));
    }
    names.push_back(name);
  }
  return names;
}

std::map<std::string, double> goodput_of(const std::vector<std::string>& given) {
  std::map<std::string, double> limits;
  for (const std::string& word : given) {
    const size_t colon = word.find(':');
    const std::string name = word.substr(0, colon);
    double limit = 0;
    if (colon == std::string::npos || !parse_double(word.substr(colon + 1), &limit) || limit < 0 ||
        (name != "ttft" && name != "tpot" && name != "e2el")) {
      fail(kBenchServe, "--goodput is {}; expected ttft:MS, tpot:MS or e2el:MS", quote(word));
    }
    limits[name] = limit;
  }
  return limits;
}

std::optional<double> rate_of(const std::string& text) {
  if (text == "inf") return std::nullopt;
  double rate = 0;
  if (!parse_double(text, &rate) || rate <= 0) {
    fail(kBenchServe, "--request-rate is {}; expected requests per second, or inf", quote(text));
  }
  return rate;
}

std::vector<std::pair<std::string, std::string>> pairs_of(const char* option,
                                                          const std::vector<std::string>& given) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& word : given) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0 ||
        word.find_first_of("\r\n") != std::string::npos) {
      fail(kBenchServe, "{} is {}; expected KEY=VALUE", option, quote(word));
    }
    pairs.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return pairs;
}

/// Everything that the options say, checked before the first request.
struct BenchPlan {
  serve::BenchServer server;
  std::string path;
  std::vector<double> percents;
  std::vector<std::string> shown;
  std::map<std::string, double> goodput;
  std::optional<double> rate;
};

BenchPlan plan_of(const BenchServeOptions& options) {
  require_word(kBenchServe, "--backend", options.backend, {"openai", "vllm", "openai-chat"});
  if (options.dataset_name != "random" && options.dataset_name != "custom") {
    fail(kBenchServe, "--dataset-name is {}; expected random or custom",
         quote(options.dataset_name));
  }
  if (options.dataset_name == "custom" && options.dataset_path.empty()) {
    fail(kBenchServe, "--dataset-name custom needs --dataset-path FILE.jsonl");
  }
  if (options.dataset_name == "random" && options.tokenizer.empty()) {
    fail(kBenchServe, "random prompts need --tokenizer, whose tokens they are made of");
  }
  if (!(options.random.range_ratio >= 0 && options.random.range_ratio < 1)) {
    fail(kBenchServe, "--random-range-ratio is {}; expected 0 or more, below 1",
         options.random.range_ratio);
  }
  if (!(options.burstiness > 0) || !(options.timeout_s > 0)) {
    fail(kBenchServe, "--burstiness is {}, --request-timeout {}; expected numbers above 0",
         options.burstiness, options.timeout_s);
  }
  BenchPlan plan;
  if (options.base_url.empty()) {
    plan.server.host = options.host;
    plan.server.port = static_cast<int>(options.port);
  } else {
    plan.server = serve::parse_base_url(options.base_url);
  }
  plan.server.headers = pairs_of("--header", options.headers);
  if (const char* key = std::getenv("OPENAI_API_KEY"); key && *key) {
    plan.server.headers.emplace_back("Authorization", fmt::format("Bearer {}", key));
  }
  plan.path = !options.endpoint.empty() ? options.endpoint
              : options.is_chat()       ? "/v1/chat/completions"
                                        : "/v1/completions";
  plan.percents = percentiles_of(options.metric_percentiles);
  plan.shown = metrics_of(options.percentile_metrics);
  plan.goodput = goodput_of(options.goodput);
  plan.rate = rate_of(options.request_rate);
  return plan;
}

/// Returns the name of the server's first model.
std::string first_model(const serve::BenchServer& server) {
  const std::string where = fmt::format("{}:{}/v1/models", server.host, server.port);
  const nlohmann::json json = parse_json(serve::http_get(server, "/v1/models", 30), where);
  const JsonView models = JsonView(json, where).at("data");
  if (models.size() == 0) fail_run(where, "lists no model; try --model");
  return models.at(size_t{0}).get_string("id");
}

std::string request_body(const BenchServeOptions& options, const std::string& model,
                         const serve::BenchPrompt& prompt) {
  JsonWriter json;
  json.object().member("model", model);
  if (options.is_chat()) {
    json.key("messages").array().object().member("role", "user");
    json.member("content", prompt.text).end().end();
    json.member("max_completion_tokens", prompt.output_tokens);
  } else {
    json.member("prompt", prompt.text).member("max_tokens", prompt.output_tokens);
  }
  if (options.temperature) {
    json.member("temperature", *options.temperature);
  }
  if (options.top_p) {
    json.member("top_p", *options.top_p);
  }
  if (options.ignore_eos) {
    json.member("ignore_eos", true);
  }
  json.member("stream", true).key("stream_options").object().member("include_usage", true).end();
  json.end();
  return json.take();
}

std::vector<serve::BenchCall> calls_of(const BenchServeOptions& options, const BenchPlan& plan,
                                       const std::string& model, const data::Tokenizer* tokenizer) {
  std::vector<serve::BenchPrompt> prompts;
  if (options.dataset_name == "custom") {
    prompts = serve::file_prompts(options.dataset_path, options.num_prompts, options.output_len,
                                  tokenizer);
  } else {
    serve::RandomPrompts random = options.random;
    random.count = options.num_prompts;
    random.seed = static_cast<uint64_t>(options.seed);
    prompts = serve::random_prompts(random, *tokenizer);
  }
  const std::vector<double> times = serve::arrival_times(
      options.num_prompts, plan.rate, options.burstiness, static_cast<uint64_t>(options.seed));
  std::vector<serve::BenchCall> calls;
  for (size_t i = 0; i < prompts.size(); ++i) {
    calls.push_back({times[i], request_body(options, model, prompts[i]), prompts[i].tokens});
  }
  return calls;
}

std::string stamp_now() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32] = {};
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  return text;
}

void save_result(const BenchServeOptions& options, const serve::BenchLabels& labels,
                 const std::string& json) {
  std::string name = options.result_filename;
  if (name.empty()) {
    const std::string concurrency =
        labels.max_concurrency ? fmt::format("-concurrency{}", *labels.max_concurrency) : "";
    name =
        fmt::format("{}-{}qps{}-{}-{}.json", labels.label.empty() ? labels.backend : labels.label,
                    options.request_rate, concurrency, file_name(labels.model), labels.date);
  }
  const std::string path = options.result_dir.empty() ? name : join_path(options.result_dir, name);
  if (!options.result_dir.empty()) {
    make_dirs(options.result_dir);
  }
  write_file_atomic(path, json + "\n");
  print_line(fmt::format("result: {}", path));
}

int bench_serve(const BenchServeOptions& options) {
  const BenchPlan plan = plan_of(options);
  serve::BenchLabels labels;
  labels.metadata = pairs_of("--metadata", options.metadata);
  std::optional<data::Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    tokenizer.emplace(data::Tokenizer::load(options.tokenizer));
  }
  const std::string model = options.model.empty() ? first_model(plan.server) : options.model;
  const std::vector<serve::BenchCall> calls =
      calls_of(options, plan, model, tokenizer ? &*tokenizer : nullptr);
  const Interrupt interrupt;
  serve::LoadOptions load;
  load.path = plan.path;
  load.is_chat = options.is_chat();
  load.timeout_s = options.timeout_s;
  load.stop = [] { return Interrupt::came(); };
  if (tokenizer) {
    load.count_tokens = [&](const std::string& text) {
      return std::ssize(tokenizer->encode(text));
    };
  }
  if (!options.skips_test) {
    serve::BenchCall first = calls.front();
    first.at = 0;
    const serve::MeasuredRequest test = serve::run_load(plan.server, {first}, load).requests[0];
    if (!test.success) fail_run(kBenchServe, "the first request, a test, failed: {}", test.error);
  }
  load.max_concurrency = options.max_concurrency;
  Progress progress;
  load.progress = [&](int64_t finished) {
    progress.update(fmt::format("{} of {} requests", finished, calls.size()));
  };
  const serve::LoadResult result = serve::run_load(plan.server, calls, load);
  progress.finish();
  const serve::BenchMetrics metrics =
      serve::bench_metrics(result.requests, result.duration, plan.percents, plan.goodput);
  fmt::print("{}", serve::bench_table(metrics, plan.shown));
  const auto failed = std::find_if(result.requests.begin(), result.requests.end(),
                                   [](const auto& request) { return !request.success; });
  if (failed != result.requests.end()) {
    log_warning("{}; the first: {}", counted(metrics.failed, "request") + " failed",
                printable(failed->error));
  }
  labels.date = stamp_now();
  labels.backend = options.backend;
  labels.label = options.label;
  labels.model = model;
  labels.tokenizer = options.tokenizer.empty() ? model : options.tokenizer;
  labels.num_prompts = options.num_prompts;
  labels.request_rate = plan.rate;
  labels.burstiness = options.burstiness;
  labels.max_concurrency = options.max_concurrency;
  if (options.save_result || options.save_detailed) {
    save_result(
        options, labels,
        serve::bench_json(labels, metrics, result.requests, plan.shown, options.save_detailed));
  }
  if (Interrupt::came()) return 130;
  return metrics.completed == 0 ? 1 : 0;
}

void add_load_options(Args& args, BenchServeOptions* options) {
  args.option("--dataset-name", "NAME", &options->dataset_name,
              "prompts to send: random, of random tokens; custom, of a JSONL file of {\"prompt\": "
              "text, \"output_tokens\": n}");
  args.option("--dataset-path", "FILE", &options->dataset_path, "file of --dataset-name custom");
  args.option("--num-prompts", "N", &options->num_prompts, "requests to send", 1, 1 << 24);
  args.option("--random-input-len", "N", &options->random.input_len, "tokens of a random prompt", 1,
              1 << 24);
  args.option("--random-output-len", "N", &options->random.output_len,
              "tokens of the answer to a random prompt", 1, 1 << 24);
  args.option("--random-range-ratio", "R", &options->random.range_ratio,
              "spread of the random lengths: uniform from length x (1 - R) to length x (1 + R)");
  args.option("--random-prefix-len", "N", &options->random.prefix_len,
              "tokens of a prefix that all random prompts share, on top of their length", 0,
              1 << 24);
  args.option("--custom-output-len", "N", &options->output_len,
              "tokens of an answer where the custom file does not say", 1, 1 << 24);
  args.option("--request-rate", "R", &options->request_rate,
              "requests per second, at random times; inf: all at once");
  args.option("--burstiness", "B", &options->burstiness,
              "shape of the arrivals: 1 is a Poisson process; below they come in bursts, above "
              "more evenly");
  args.option("--max-concurrency", "N", &options->max_concurrency,
              "most requests at a time; default: any number", 1, 1 << 20);
  args.option("--seed", "S", &options->seed, "seed of prompts, lengths and times", 0, INT64_MAX);
  args.flag("--ignore-eos", &options->ignore_eos,
            "go on beyond the model's stop tokens, to the full length of each answer");
  args.option("--temperature", "T", &options->temperature,
              "sampling temperature; default: the server's");
  args.option("--top-p", "P", &options->top_p,
              "share of the probability to sample from; default: the server's");
  args.option("--request-timeout", "S", &options->timeout_s, "most seconds of a request");
  args.flag("--skip-initial-test", &options->skips_test, "send no single request before the test");
}

void add_result_options(Args& args, BenchServeOptions* options) {
  args.option("--percentile-metrics", "LIST", &options->percentile_metrics,
              "metrics with percentiles: some of ttft, tpot, itl, e2el");
  args.option("--metric-percentiles", "LIST", &options->metric_percentiles,
              "percentiles of these metrics, such as 50,95,99.9");
  args.option(
      "--goodput", "NAME:MS", &options->goodput,
      "limit of ttft, tpot or e2el, in ms; repeatable: prints the requests/s that keep all limits");
  args.flag("--save-result", &options->save_result, "write the result as JSON, under vLLM's names");
  args.flag("--save-detailed", &options->save_detailed,
            "write the result with the values of each request");
  args.option("--result-dir", "FOLDER", &options->result_dir,
              "folder of the result; default: the current one");
  args.option("--result-filename", "NAME", &options->result_filename,
              "name of the result's file; default: backend, rate, model and time");
  args.option("--label", "TEXT", &options->label,
              "label of the result, in place of the backend in its file's name");
  args.option("--metadata", "KEY=VALUE", &options->metadata,
              "members to add to the result; repeatable");
}

}  // namespace

void declare_bench_serve(Args& args) {
  auto options = std::make_shared<BenchServeOptions>();
  args.about("load an OpenAI server, and measure times and throughput",
             "Options, arithmetic and result are those of `vllm bench serve`, for any server over "
             "plain HTTP. A key in OPENAI_API_KEY is sent along.");
  args.option("--backend", "NAME", &options->backend,
              "API to call: openai (or vllm), /v1/completions; openai-chat, /v1/chat/completions");
  args.option("--base-url", "URL", &options->base_url,
              "address of the server, http://HOST:PORT, in place of --host and --port");
  args.option("--host", "HOST", &options->host, "host of the server");
  args.option("--port", "N", &options->port, "port of the server", 1, 65535);
  args.option("--endpoint", "PATH", &options->endpoint,
              "path of the requests; default: the backend's");
  args.option("--header", "KEY=VALUE", &options->headers, "header of every request; repeatable");
  args.option("--model", "NAME", &options->model,
              "name of the model in requests; default: the server's first");
  args.option("--tokenizer", "MODEL", &options->tokenizer,
              "tokenizer.json, its folder or a GGUF file: makes random prompts and counts tokens");
  add_load_options(args, options.get());
  add_result_options(args, options.get());
  args.example(
      "hocket bench serve --tokenizer MODEL --num-prompts 100 --request-rate 5 "
      "--random-input-len 256 --random-output-len 64 --ignore-eos --save-result",
      "100 requests at 5 a second to 127.0.0.1:8000");
  args.run([options] { return bench_serve(*options); });
}

}  // namespace hocket::cli
