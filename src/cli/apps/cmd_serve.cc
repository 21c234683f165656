// SPDX-License-Identifier: Apache-2.0
// hocket serve
#include <fmt/core.h>
#include <malloc.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/apps/served_model.h"
#include "cli/apps/vllm_flags.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/rank_output.h"
#include "cli/verbs.h"
#include "data/model_text.h"
#include "gguf/file.h"
#include "serve/http.h"
#include "serve/open.h"
#include "serve/openai/api.h"
#include "serve/openai/fields.h"

namespace hocket::cli {
namespace {

constexpr const char* kServe = "hocket serve";
constexpr const char* kTemplateKey = "chat_template";
constexpr const char* kGgufTemplateKey = "tokenizer.chat_template";
constexpr double kCancelTimeS = 5;  // that cancelled texts take to end, at most

struct ServeOptions {
  std::string model, adapter, tokenizer, dtype = "f32";
  std::vector<std::string> set;
  serve::EngineOptions engine;
  std::string kv_cache_memory;
  serve::HttpOptions http;
  std::string chat_template, tool_parser = "auto", reasoning_parser = "auto";
  std::string generation_config = "auto";
  std::vector<std::string> names, api_keys, origins;
  int64_t port = 8000, max_body_mb = 32, max_requests_mb = 512, max_streams = 256;
  int64_t max_logprobs = 20;
  double request_timeout_s = 0, shutdown_timeout_s = 30;
  bool no_prefix_caching = false, no_access_log = false, ignore_unknown = false;
  bool print_fields = false;
};

void check_serve_options(const ServeOptions& options) {
  require_dtype(kServe, options.dtype);
  require_tool_parser(kServe, options.tool_parser);
  require_reasoning_parser(kServe, options.reasoning_parser);
  require_word(kServe, "--generation-config", options.generation_config, {"auto", "vllm"});
  if (!(options.request_timeout_s >= 0 && options.shutdown_timeout_s >= 0)) {
    fail(kServe, "a timeout is below 0; expected seconds");
  }
  if (options.max_requests_mb < options.max_body_mb) {
    fail(kServe, "--max-requests-mb is {}; expected at least --max-body-mb, {}",
         options.max_requests_mb, options.max_body_mb);
  }
  for (const std::string& key : options.api_keys) {
    if (key.empty()) fail(kServe, "--api-key is empty; expected some text");
  }
}

/// Returns the tokenizer_config.json of a folder with the chat template beside it; of a GGUF file
/// its chat template alone.
nlohmann::json config_with_template(const std::string& model) {
  nlohmann::json config = nlohmann::json::object();
  if (gguf::is_gguf(model)) {
    const gguf::File file(model);
    if (file.metadata().has(kGgufTemplateKey)) {
      config[kTemplateKey] = file.metadata().string(kGgufTemplateKey);
    }
    return config;
  }
  if (const std::string path = join_path(model, "tokenizer_config.json"); file_exists(path)) {
    config = read_json(path);
  }
  if (const std::string path = join_path(model, "chat_template.jinja"); file_exists(path)) {
    config[kTemplateKey] = read_file(path);
  }
  return config;
}

/// JSON of /tokenizer_info: the model's tokenizer_config.json, with its chat template. Keys of an
/// adapter, of which `template_source` has the template, win over the model's.
std::string tokenizer_info(const engine::Run& run, const std::string& template_source,
                           const data::Tokenizer& tokenizer, const std::string& template_file) {
  const std::string& model = run.config.model.path;
  nlohmann::json info = config_with_template(model);
  if (template_source != model) {
    const nlohmann::json from = config_with_template(template_source);
    const bool is_of_adapter = template_source == run.adapter;
    for (const auto& [key, value] : from.items()) {
      if (!value.is_null() && (is_of_adapter || key == kTemplateKey)) {
        info[key] = value;
      }
    }
  }
  if (!template_file.empty()) {
    info[kTemplateKey] = read_file(template_file);
  }
  if (!info.contains("eos_token") && tokenizer.eos_id() >= 0) {
    info["eos_token"] = tokenizer.token_bytes(tokenizer.eos_id());
  }
  return info.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string shown_defaults(const serve::CallLimits& limits, const std::string& source) {
  const auto part = [](const char* name, const auto& value) {
    return value ? fmt::format(", {} {}", name, *value) : "";
  };
  const std::string text = part("temperature", limits.temperature) + part("top_k", limits.top_k) +
                           part("top_p", limits.top_p) + part("min_p", limits.min_p) +
                           part("repetition_penalty", limits.repetition_penalty) +
                           part("max_tokens", limits.max_tokens);
  return text.empty() ? "temperature 1, all tokens (no defaults of the model)"
                      : fmt::format("{} ({})", text.substr(2), file_name(source));
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

serve::ApiOptions api_options(const ServeOptions& options, const engine::Run& run,
                              const data::Tokenizer& tokenizer,
                              const std::optional<data::ChatTemplate>& chat_template,
                              const data::SamplingDefaults& files) {
  const std::string& model = run.config.model.path;
  serve::ApiOptions api;
  api.names = options.names.empty() ? std::vector<std::string>{options.model} : options.names;
  api.root = options.model;
  api.api_keys = options.api_keys;
  if (const char* key = std::getenv("HOCKET_API_KEY"); key != nullptr && *key != '\0') {
    api.api_keys.emplace_back(key);
  }
  api.allowed_origins = options.origins;
  if (is_loopback(options.http.host)) {
    api.hosts = {options.http.host};
  }
  api.stop_tokens = data::stop_tokens(model, run.model, tokenizer);
  api.beginning = data::beginning_of_text(model, tokenizer);
  set_model_options(run, tokenizer, files, &api);
  api.limits.max_logprobs = options.max_logprobs;
  api.limits.ignore_unknown = options.ignore_unknown;
  api.tool_parser = choose_tool_parser(options.tool_parser, tokenizer, chat_template);
  api.splits_reasoning = splits_reasoning(options.reasoning_parser, tokenizer);
  api.max_streams = options.max_streams;
  api.timeout_s = options.request_timeout_s;
  if (!options.no_access_log) {
    api.log = [](const std::string& line) {
      const std::time_t now = std::time(nullptr);
      char stamp[32];
      std::tm utc{};
      std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
      print_line(fmt::format("{} {}", stamp, line));
    };
  }
  return api;
}

/// Lets running requests end, and cancels those that take too long.
void stop_gracefully(serve::Api* api, serve::HttpServer* http, double timeout_s) {
  api->drain();
  const auto wait_for_end = [&](double seconds) {
    for (const int64_t start = now_ns(); api->streams() > 0 && seconds_since(start) < seconds;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  };
  wait_for_end(timeout_s);
  api->stop();
  wait_for_end(kCancelTimeS);
  http->stop();
}

/// Opens model, tokenizer and template, then the engine, then the port, so that a fault of any is
/// reported before a client comes; serves until a signal.
int serve_model(ServeOptions options) {
  check_serve_options(options);
  const engine::Run run = model_run(options.model, options.dtype, options.set, options.adapter);
  const std::string& model = run.config.model.path;
  const data::Tokenizer tokenizer =
      data::load_model_tokenizer(kServe, model, options.tokenizer, run.model.vocab_size);
  const checkpoint::ModelTemplate found = find_template(run, options.chat_template);
  const std::optional<data::ChatTemplate>& chat_template = found.chat_template;
  const data::SamplingDefaults files =
      options.generation_config == "vllm" ? data::SamplingDefaults() : sampling_defaults(model);
  serve::ApiOptions chosen = api_options(options, run, tokenizer, chat_template, files);
  chosen.tokenizer_info = tokenizer_info(run, found.source, tokenizer, options.chat_template);
  options.engine.prefix_caching = !options.no_prefix_caching;
  options.engine.max_logprobs = options.max_logprobs;
  if (!options.kv_cache_memory.empty()) {
    options.engine.kv_cache_memory =
        parse_quantity(options.kv_cache_memory, Unit::bytes, "hocket serve --kv-cache-memory");
  }
  warn_if_long(run.model, options.engine.max_model_len, "--max-model-len");
  serve::ModelEngine engine(run, tokenizer, options.engine);
  if (!engine.leads()) {
    // A launcher passes a signal on to all: this process goes on until the one that leads ends.
    const Interrupt interrupt;
    engine.follow();
    return 0;
  }
  const std::string defaults = shown_defaults(chosen.limits, files.source);
  const std::string parser = chosen.tool_parser;
  const bool has_key = !chosen.api_keys.empty(), splits = chosen.splits_reasoning;
  const std::string name = chosen.names.at(0);
#ifdef __GLIBC__
  // Large bodies go back to the system when they are freed, rather than wait in their thread's
  // heap.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
  serve::ByteBudget budget(options.max_requests_mb << 20);
  chosen.budget = options.http.budget = &budget;
  serve::Api api(std::move(chosen), engine, tokenizer, chat_template ? &*chat_template : nullptr);

  const Interrupt interrupt;
  options.http.port = static_cast<int>(options.port);
  options.http.max_body = options.max_body_mb << 20;
  // Answers to health checks, and refusals, find a thread beside the streams.
  options.http.max_connections = static_cast<int>(options.max_streams) + 64;
  options.http.error = [&](int status, const std::string& text) {
    return api.refused(status, text);
  };
  const std::unique_ptr<serve::HttpServer> http =
      serve::open_http(options.http, [&](const serve::HttpRequest& request, serve::HttpPeer& peer) {
        return api.handle(request, peer);
      });
  if (!is_loopback(options.http.host) && !has_key) {
    log_warning("{} is open to other machines without a key; try --api-key", options.http.host);
  }
  print_line(engine.sizes_text());
  print_line(fmt::format("sampling defaults: {}", defaults));
  print_line(fmt::format("chat template: {}; calls of tools: {}; reasoning: {}",
                         chat_template ? "yes" : "none", parser.empty() ? "none" : parser,
                         splits ? "<think>" : "none"));
  const std::string& host = options.http.host;
  const bool is_ipv6 = host.find(':') != host.npos;
  print_line(fmt::format("serving {} at http://{}:{} (window {} tokens)", name,
                         is_ipv6 ? "[" + host + "]" : host, http->port(), engine.max_model_len()));
  while (!Interrupt::came() && engine.failure().empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (engine.failure().empty()) {
    print_line(fmt::format("stopping: {} to end within {} s; another signal ends at once",
                           counted(api.streams(), "request"), options.shutdown_timeout_s));
  }
  stop_gracefully(&api, http.get(), options.shutdown_timeout_s);
  // Clients have got an error; the exit code lets a supervisor start the server again.
  if (const std::string why = engine.failure(); !why.empty()) fail_run("engine", "{}", why);
  return 0;
}

void add_engine_options(Args& args, ServeOptions* options) {
  serve::EngineOptions& engine = options->engine;
  add_adapter(args, &options->adapter);
  add_tokenizer(args, &options->tokenizer);
  add_dtype(args, &options->dtype);
  args.option(
      "--max-model-len", "N", &engine.max_model_len,
      "most tokens of prompt and answer together; 0, default: the model's most, as far as the KV "
      "cache holds it",
      0, 1 << 30);
  args.option("--max-num-seqs", "N", &engine.max_num_seqs,
              "most texts in a batch; default: 32, or as many as --max-num-batched-tokens", 1,
              1 << 20);
  args.option(
      "--max-num-batched-tokens", "N", &engine.max_num_batched_tokens,
      "most tokens of a step, at least --max-num-seqs: fewer keep other streams even while a "
      "long prompt is read; default: 512",
      1, 1 << 24);
  args.option(
      "--decode-steps-between-chunks", "N", &engine.decode_steps,
      "steps that go on with running texts alone behind each step with tokens of prompts: a "
      "long prompt in few large chunks, with steps between them, costs other streams less "
      "than as many tokens in every step",
      0, 1 << 20);
  args.option("--long-prefill-token-threshold", "N", &engine.prompt_tokens,
              "most tokens of one prompt in a step, so that shorter prompts behind a long one need "
              "not wait for its end; 0, default: any",
              0, 1 << 24);
  args.option("--max-waiting", "N", &engine.max_waiting,
              "most texts that wait for a place; more are refused with status 429", 1, 1 << 24);
  args.option("--kv-cache-memory", "BYTES", &options->kv_cache_memory,
              "memory of the KV cache of each rank, such as 2GiB; default: a quarter of the free "
              "memory, at "
              "most 4 GB");
  add_set(args, &options->set);
}

}  // namespace

void verb_serve(Args& args) {
  // Declares options and help; serve_model() does the work.
  auto options = std::make_shared<ServeOptions>();
  args.about(
      "serve a model to clients of OpenAI's API",
      "Answers /v1/chat/completions, /v1/completions, /v1/models, /tokenize and others, with "
      "vLLM's extensions, and has a chat page at /. Flags have vLLM's names. SIGTERM or "
      "Ctrl-C lets running requests end first.");
  args.positional(
      "MODEL", &options->model,
      "a Hugging Face folder with a tokenizer.json, a GGUF file, a checkpoint or run folder of "
      "ours, or a hub id in the local cache",
      /*required=*/false);
  args.option("--host", "ADDRESS", &options->http.host,
              "address to listen at; 0.0.0.0 or :: for other machines");
  args.option("--port", "N", &options->port, "port to listen at; 0: any free one", 0, 65535);
  args.positional_option("--model");
  args.list("--served-model-name", "NAME", &options->names,
            "name of the model in requests; one or more; default: MODEL as it is given");
  args.list("--api-key", "KEY", &options->api_keys,
            "key that clients must send; one or more; also the variable HOCKET_API_KEY");
  add_engine_options(args, options.get());
  args.flag("--no-enable-prefix-caching", &options->no_prefix_caching,
            "compute every prompt from its first token");
  args.option("--chat-template", "FILE", &options->chat_template,
              "file with a Jinja template, in place of the model's");
  args.option("--tool-call-parser", "NAME", &options->tool_parser,
              "form of tool calls in texts: hermes, llama3_json, mistral, none, or auto: as the "
              "model's template and vocabulary have marks");
  args.option("--reasoning-parser", "NAME", &options->reasoning_parser,
              "form of reasoning in texts: think (or qwen3, deepseek_r1), between <think> and "
              "</think>; none; auto: think if the vocabulary has <think>");
  args.option("--generation-config", "NAME", &options->generation_config,
              "defaults of sampling: auto, those of the model's files; vllm, temperature 1 and all "
              "tokens");
  args.option("--max-logprobs", "N", &options->max_logprobs,
              "most alternatives of a token that a request may ask for", 0, 1000);
  args.option("--max-streams", "N", &options->max_streams,
              "most requests that are answered at a time; more are refused with status 429", 1,
              4096);
  args.option("--max-body-mb", "N", &options->max_body_mb, "most MiB of a request", 1, 4096);
  args.option("--max-requests-mb", "N", &options->max_requests_mb,
              "most MiB that all requests take together, from their bodies to the tokens of their "
              "prompts; more are refused with status 429",
              1, 1 << 20);
  args.option("--request-timeout", "S", &options->request_timeout_s,
              "most seconds of an answer; 0: any");
  args.option("--shutdown-timeout", "S", &options->shutdown_timeout_s,
              "seconds that running requests have after a signal");
  args.option(
      "--allowed-origins", "ORIGIN", &options->origins,
      "pages of other servers that may use this one (CORS), and names by which a proxy calls "
      "it; repeatable; *: all");
  args.flag("--ignore-unknown-fields", &options->ignore_unknown,
            "warn of unknown fields of requests, in place of refusing them");
  args.flag("--disable-access-log", &options->no_access_log, "print no line per request");
  args.flag("--print-fields", &options->print_fields,
            "print the fields of requests and vLLM's flags, with their support, and end");
  add_vllm_flags(args);
  args.example("hocket serve MODEL --port 8000", "clients use http://127.0.0.1:8000/v1");
  args.example("hocket serve MODEL --host 0.0.0.0 --api-key SECRET --max-num-seqs 16",
               "other machines, with a key, and at most 16 texts in a batch");
  args.run([options] {
    if (options->print_fields) {
      fmt::print("{}{}", serve::fields_page(), vllm_flags_page());
      return 0;
    }
    if (options->model.empty()) fail(kServe, "MODEL is missing; try hocket serve --help");
    redirect_output("");
    return serve_model(*options);
  });
}

}  // namespace hocket::cli
