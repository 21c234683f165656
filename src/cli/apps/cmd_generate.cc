// SPDX-License-Identifier: Apache-2.0
// hocket generate
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/apps/served_model.h"
#include "cli/inputs.h"
#include "cli/rank_output.h"
#include "cli/verbs.h"
#include "comm/run_on_all.h"
#include "data/model_text.h"
#include "data/tokenizer/tokenizer.h"
#include "engine/session.h"
#include "serve/open.h"
#include "serve/openai/chat_row.h"
#include "serve/openai/row_fields.h"

namespace hocket::cli {
namespace {

std::string read_stdin() {
  std::string text;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, n);
  }
  return text;
}

constexpr const char* kWhere = "hocket generate";
constexpr int64_t kGenerateTokens = 200;

struct GenerateOptions {
  std::string model, adapter, prompt, prompts, chat, system, tokenizer, dtype = "f32";
  std::vector<std::string> set;
  SamplingOptions sampling;
  int64_t samples = 1;
  std::optional<int64_t> logprobs;
  int64_t batch = 32, max_model_len = 0;
  std::optional<double> kv_cache_memory;
  bool ignore_eos = false, json = false, split_special_tokens = false;
};

/// A prompt as it was given, its request, and the number of texts to make of it.
struct Prompt {
  std::string text;
  serve::Request request;
  int64_t texts = 1;
  bool has_own_length = false;  ///< its row gives most tokens of the text
};

/// Everything of a request but its prompt.
serve::Request request_of(const GenerateOptions& options, const std::string& model) {
  const ModelSampling chosen = choose_sampling(kWhere, options.sampling, model, kGenerateTokens);
  serve::Request request;
  request.max_tokens = chosen.max_tokens;
  request.sampling = chosen.sampling;
  request.stops = options.sampling.stops;
  if (options.logprobs) {
    request.logprobs = *options.logprobs;
  }
  return request;
}

/// Describes the settings of sampling, which must be the same on all ranks.
std::string text_of(const serve::Request& request, const GenerateOptions& options) {
  const serve::Sampling& sampling = request.sampling;
  return fmt::format(
      "{} samples of {} tokens, seed {}, temperature {}, top_k {}, top_p {}, min_p {}, penalties "
      "{} "
      "{} {}",
      options.samples, request.max_tokens, sampling.seed, sampling.temperature, sampling.top_k,
      sampling.top_p, sampling.min_p, sampling.repetition_penalty, sampling.presence_penalty,
      sampling.frequency_penalty);
}

/// Tokenizer, chat template and rules of a model that turn prompts into requests.
class PromptReader {
 public:
  /// `common`: everything of a request but its prompt; a row's own fields win. `texts`: of a
  /// prompt.
  PromptReader(const engine::Run& run, const data::Tokenizer& tokenizer, serve::Request common,
               int64_t texts, bool split_special_tokens)
      : run_(run),
        tokenizer_(tokenizer),
        common_(std::move(common)),
        texts_(texts),
        vocabulary_(run.model.vocab_size),
        beginning_(data::beginning_of_text(run.config.model.path, tokenizer)) {
    encode_options_.split_special_tokens = split_special_tokens;
  }

  /// `row`: the object that the text stands in.
  Prompt text(const std::string& text,
              const nlohmann::ordered_json& row = nlohmann::ordered_json::object(),
              const std::string& where = kWhere) const {
    return prompt_of(
        text,
        data::document_ids(kWhere, beginning_, tokenizer_, text, vocabulary_, encode_options_),
        /*is_chat=*/false, row, where);
  }

  /// A conversation up to where the assistant's next message begins. The template writes the
  /// special tokens, so none is added.
  Prompt chat(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& row,
              const std::string& where) {
    if (encode_options_.split_special_tokens) {
      fail(where, "has messages, which --split-special-tokens does not go with");
    }
    if (!template_) {
      template_ = find_template(run_).chat_template;
      if (!template_) {
        fail(run_.config.model.path,
             "no chat template; expected chat_template.jinja, chat_template in "
             "tokenizer_config.json, or tokenizer.chat_template of a GGUF file");
      }
    }
    const std::string text = serve::render_row(*template_, messages, row, where);
    std::vector<int32_t> ids = tokenizer_.encode(text);
    data::require_ids(kWhere, ids, tokenizer_, vocabulary_);
    return prompt_of(text, std::move(ids), /*is_chat=*/true, row, where);
  }

 private:
  Prompt prompt_of(const std::string& text, std::vector<int32_t> ids, bool is_chat,
                   const nlohmann::ordered_json& row, const std::string& where) const {
    Prompt prompt{.text = text, .request = common_, .texts = texts_};
    prompt.request.prompt = std::move(ids);
    prompt.request.answer = is_chat;
    const serve::RowFields own =
        serve::read_row_fields(row, is_chat, vocabulary_, where, &prompt.request);
    prompt.texts = own.texts.value_or(texts_);
    prompt.has_own_length = own.has_max_tokens;
    return prompt;
  }

  const engine::Run& run_;
  const data::Tokenizer& tokenizer_;
  const serve::Request common_;
  const int64_t texts_;
  const int64_t vocabulary_;
  const std::vector<int32_t> beginning_;
  data::EncodeOptions encode_options_;
  std::optional<data::ChatTemplate> template_;
};

nlohmann::ordered_json message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

/// Prompt of a line of a .jsonl file: a string, {"prompt": text or messages} or {"messages": [...]}
/// (serve/openai/chat_row.h), with fields of requests (serve/openai/row_fields.h).
Prompt prompt_of_json(const std::string& line, const std::string& where, PromptReader* reader) {
  const nlohmann::json checked = parse_json(line, where);  // with its errors
  const auto json = nlohmann::ordered_json::parse(line);
  if (json.is_string()) return reader->text(json.get<std::string>());
  const JsonView view(checked, where);
  if (view.is_object() && view.has("messages")) return reader->chat(json["messages"], json, where);
  if (view.is_object() && view.has("prompt")) {
    const JsonView prompt = view.at("prompt");
    return prompt.is_array() ? reader->chat(json["prompt"], json, where)
                             : reader->text(prompt.as_string(), json, where);
  }
  fail(where, "is neither a string nor an object with prompt or messages");
}

/// Prompts of --prompts: a line each, of a .jsonl file a JSON value each.
std::vector<Prompt> prompts_of_file(const std::string& path, PromptReader* reader) {
  const bool is_json = path.ends_with(".jsonl");
  std::vector<Prompt> prompts;
  int64_t number = 0;
  for (const std::string& line : split(read_file(path), '\n')) {
    ++number;
    if (trim(line).empty()) continue;
    prompts.push_back(is_json ? prompt_of_json(line, fmt::format("{}:{}", path, number), reader)
                              : reader->text(line));
  }
  if (prompts.empty()) fail(path, "has no prompt");
  return prompts;
}

std::vector<Prompt> prompts_of(const GenerateOptions& options, PromptReader* reader,
                               comm::Processes& processes) {
  if (!options.prompts.empty()) return prompts_of_file(options.prompts, reader);
  const bool is_chat = !options.chat.empty();
  std::string text = is_chat ? options.chat : options.prompt;
  if (text == "-") {
    // With ranks as processes the first one has the input.
    text = processes.broadcast(processes.index() == 0 ? read_stdin() : "");
  }
  if (!is_chat) return {reader->text(text)};
  auto messages = nlohmann::ordered_json::array();
  if (!options.system.empty()) {
    messages.push_back(message("system", options.system));
  }
  messages.push_back(message("user", text));
  return {reader->chat(messages, nlohmann::ordered_json::object(), kWhere)};
}

/// A text that comes from the engine's thread.
class Text {
 public:
  void take(const serve::Update& update) {
    {
      const std::lock_guard lock(mutex_);
      text_ += update.text;
      ids_.insert(ids_.end(), update.tokens.begin(), update.tokens.end());
      logprobs_.insert(logprobs_.end(), update.logprobs.begin(), update.logprobs.end());
      if (update.finish != serve::Finish::running) {
        end_ = update;
      }
    }
    came_.notify_one();
  }
  /// Calls fn with new text until there is no more, and `waits` every second in between. Throws
  /// Error (exit code 1) if it failed.
  void follow(const std::function<void(std::string_view)>& fn, const std::function<void()>& waits) {
    size_t passed = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto more = [&] { return text_.size() > passed || end_; };
      while (!came_.wait_for(lock, std::chrono::seconds(1), more)) {
        lock.unlock();
        waits();
        lock.lock();
      }
      const std::string part = text_.substr(passed);
      passed = text_.size();
      const bool over = end_.has_value();
      lock.unlock();
      if (!part.empty()) {
        fn(part);
      }
      if (over) break;
      lock.lock();
    }
    if (end_->finish == serve::Finish::failed) fail_run(kWhere, "{}", end_->error);
  }
  // Text of the answer, once follow() has returned.
  const std::string& text() const { return text_; }
  const std::vector<int32_t>& ids() const { return ids_; }
  const std::vector<serve::TokenLogprobs>& logprobs() const { return logprobs_; }
  const serve::Update& end() const { return *end_; }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::string text_;
  std::vector<int32_t> ids_;
  std::vector<serve::TokenLogprobs> logprobs_;
  std::optional<serve::Update> end_;
};

/// Prints texts while they are sampled, or a JSON object each.
class Printer {
 public:
  Printer(const GenerateOptions& options, int64_t texts)
      : json_(options.json),
        several_(texts > 1),
        // A pipe or file gets every byte, a terminal none that acts there.
        terminal_(::isatty(STDOUT_FILENO) == 1) {}

  void begin(const Prompt& prompt, int64_t number, int64_t sample) {
    if (json_) return;
    if (several_) {
      put(fmt::format("== prompt {}, text {}\n", number + 1, sample + 1));
    }
    if (!prompt.request.answer) {
      put(prompt.text);
    }
  }
  void put(std::string_view text) const {
    if (json_) return;
    const std::string shown = terminal_ ? printable(text) : std::string(text);
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    if (std::fflush(stdout) != 0) fail_run("hocket generate", "can't write to standard output");
  }
  void end(const Prompt& prompt, int64_t sample, const Text& text) {
    if (!json_) return put("\n");
    JsonWriter json;
    json.object().member("prompt", prompt.text).member("text", text.text());
    json.member("sample", sample);
    const bool stopped = text.end().finish == serve::Finish::stop;
    json.member("finish_reason", stopped ? "stop" : "length");
    if (text.end().stop_token) {
      json.member("stop_reason", *text.end().stop_token);
    } else if (!text.end().stop.empty()) {
      json.member("stop_reason", text.end().stop);
    }
    json.member("prompt_tokens", prompt.request.prompt.size()).key("token_ids").array();
    for (const int32_t id : text.ids()) {
      json.value(id);
    }
    json.end();
    serve::write_row_logprobs(text.logprobs(), &json);
    json.end();
    fmt::print("{}\n", json.take());
    std::fflush(stdout);
  }

 private:
  const bool json_, several_, terminal_;
};

void check_generate_options(const GenerateOptions& options) {
  require_dtype("hocket generate", options.dtype);
  if (!options.prompts.empty() + !options.chat.empty() + !options.prompt.empty() > 1) {
    fail("hocket generate", "got more than one of --prompt, --chat and --prompts; expected one");
  }
  if (options.split_special_tokens && !options.chat.empty()) {
    fail("hocket generate", "--split-special-tokens does not go with --chat");
  }
  if (options.logprobs && !options.json) {
    fail("hocket generate", "--logprobs needs --json");
  }
  if (!options.system.empty() && options.chat.empty()) {
    fail("hocket generate",
         "--system needs --chat; in a .jsonl of --prompts it is a message of its own");
  }
}

/// Sizes of an engine for these texts.
serve::EngineOptions engine_options(const GenerateOptions& options, int64_t texts,
                                    int64_t longest) {
  serve::EngineOptions chosen;
  chosen.max_model_len = longest;
  chosen.max_num_seqs = std::min(texts, options.batch);
  chosen.max_waiting = 0;
  chosen.max_logprobs = std::max<int64_t>(options.logprobs.value_or(0), 1);
  chosen.kv_cache_memory = options.kv_cache_memory;
  return chosen;
}

void submit_all(serve::ModelEngine& engine, const std::vector<Prompt>& prompts,
                std::deque<Text>* texts) {
  for (const Prompt& prompt : prompts) {
    for (int64_t sample = 0; sample < prompt.texts; ++sample) {
      serve::Request request = prompt.request;
      request.sampling.sample = sample;
      Text& text = texts->emplace_back();
      engine.submit(std::move(request),
                    [&text](const serve::Update& update) { text.take(update); });
    }
  }
}

/// Prints texts in order while they are made; returns their tokens.
int64_t print_all(const serve::ModelEngine& engine, const GenerateOptions& options,
                  const std::vector<Prompt>& prompts, std::deque<Text>* texts) {
  Printer printer(options, std::ssize(*texts));
  // A terminal shows the texts themselves.
  std::optional<Progress> progress;
  if (texts->size() > 1 && ::isatty(STDOUT_FILENO) == 0) {
    progress.emplace();
  }
  int64_t printed = 0, tokens = 0;
  const int64_t start = now_ns();
  const auto show = [&] {
    if (!progress) return;
    const double rate =
        static_cast<double>(engine.stats().generated_tokens) / std::max(seconds_since(start), 1e-9);
    progress->update(fmt::format("{} of {} texts, {:.3g} tokens/s", printed, texts->size(), rate));
  };
  auto text = texts->begin();
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (int64_t sample = 0; sample < prompts[i].texts; ++sample, ++text) {
      printer.begin(prompts[i], static_cast<int64_t>(i), sample);
      text->follow([&](std::string_view part) { printer.put(part); }, show);
      printer.end(prompts[i], sample, *text);
      tokens += std::ssize(text->ids());
      ++printed;
      show();
    }
  }
  return tokens;
}

/// Generates the texts of all prompts at once, and prints them in order.
void generate_all(serve::ModelEngine& engine, const GenerateOptions& options,
                  const std::vector<Prompt>& prompts) {
  std::deque<Text> texts;
  const int64_t start = now_ns();
  int64_t tokens = 0;
  try {
    submit_all(engine, prompts, &texts);
    tokens = print_all(engine, options, prompts, &texts);
  } catch (...) {
    engine.stop();  // texts are given to no more
    throw;
  }
  if (texts.size() > 1) {
    const double seconds = seconds_since(start);
    print_line(fmt::format("{}, {} in {}: {:.3g} tokens/s", counted(std::ssize(texts), "text"),
                           counted(tokens, "token"), human_time(seconds),
                           static_cast<double>(tokens) / std::max(seconds, 1e-9)));
  }
}

/// Fits the texts of all prompts into the window. A length that was not asked for becomes smaller;
/// one that was is refused.
void fit_window(const GenerateOptions& options, int64_t window, std::vector<Prompt>* prompts) {
  int64_t cut = 0;
  for (size_t i = 0; i < prompts->size(); ++i) {
    Prompt& prompt = (*prompts)[i];
    const int64_t ids = std::ssize(prompt.request.prompt);
    if (ids + prompt.request.max_tokens <= window) continue;
    const bool asked = prompt.has_own_length || options.sampling.max_new_tokens;
    if (asked || ids >= window) {
      fail(kWhere,
           "prompt {} has {} tokens, and {} more are to come; expected at most {} together, the "
           "model's window; try {}, or a larger --max-model-len",
           i + 1, ids, prompt.request.max_tokens, window,
           ids < window ? fmt::format("--max-new-tokens {}", window - ids) : "a shorter prompt");
    }
    prompt.request.max_tokens = window - ids;
    ++cut;
  }
  if (cut > 0) {
    log_warning("{} at most as long as the model's window of {} tokens lets it",
                cut == 1 ? "a text is" : fmt::format("{} texts are", cut), window);
  }
}

/// Opens and checks model, tokenizer, prompts and weights one after the other, so that faults are
/// reported before the first token.
int generate(const GenerateOptions& options) {
  check_generate_options(options);
  const engine::Run run = model_run(options.model, options.dtype, options.set, options.adapter);
  const std::string& model = run.config.model.path;
  serve::Request request = request_of(options, model);
  const data::Tokenizer tokenizer =
      data::load_model_tokenizer(kWhere, model, options.tokenizer, run.model.vocab_size);
  if (!options.ignore_eos) {
    request.stop_tokens = data::stop_tokens(model, run.model, tokenizer);
  }
  PromptReader reader(run, tokenizer, request, options.samples, options.split_special_tokens);
  const int64_t given = options.max_model_len;
  const int64_t positions = run.model.max_position > 0 ? run.model.max_position : INT64_MAX;
  const int64_t window = given > 0 ? given : positions;
  warn_if_long(run.model, given, "--max-model-len");
  std::vector<Prompt> prompts;
  int64_t longest = 0, texts = 0;
  {
    runtime::LocalRanks ranks = engine::local_ranks(run);
    prompts = prompts_of(options, &reader, ranks.processes());
    fit_window(options, window, &prompts);
    uint64_t hash = 0;
    for (const Prompt& prompt : prompts) {
      const std::vector<int32_t>& ids = prompt.request.prompt;
      hash = hash64({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)},
                    hash_combine(hash, static_cast<uint64_t>(prompt.texts)));
      longest = std::max(longest, std::ssize(ids) + prompt.request.max_tokens);
      texts += prompt.texts;
    }
    comm::expect_same(ranks.processes(), kWhere, "the prompts",
                      fmt::format("hash {:x}, longest text {}", hash, longest));
    comm::expect_same(ranks.processes(), kWhere, "sampling of", text_of(request, options));
  }
  serve::ModelEngine engine(run, tokenizer, engine_options(options, texts, longest));
  if (!engine.leads()) {
    engine.follow();
    return 0;
  }
  generate_all(engine, options, prompts);
  return 0;
}

}  // namespace

void verb_generate(Args& args) {
  // Declares options and help; generate() does the work.
  auto options = std::make_shared<GenerateOptions>();
  args.about("continue a prompt, token by token",
             "Prints the prompt and the generated text while it is sampled. The prompt stands "
             "at the beginning of a document: behind the tokens that the tokenizer puts before a "
             "text, or with a checkpoint of ours those that began its training's texts. Keys and "
             "values are kept in a cache. The same seed draws the same "
             "text under every plan, as far as rounding lets it. Several texts are made at a time, "
             "and at the end their tokens/s are reported on standard error.");
  args.positional(
      "MODEL", &options->model,
      "a Hugging Face folder with a tokenizer.json, a GGUF file, a checkpoint or run folder of "
      "ours, or a hub id in the local cache");
  add_adapter(args, &options->adapter);
  args.option("--prompt", "TEXT", &options->prompt, "text to continue; -: read standard input");
  args.option("--chat", "TEXT", &options->chat,
              "a message to answer, by the model's chat template; -: read standard input");
  args.option("--system", "TEXT", &options->system, "for --chat: system message");
  args.option("--prompts", "FILE", &options->prompts,
              "file of a prompt a line; in a .jsonl each is a string, {\"prompt\": ...} or "
              "{\"messages\": [...]}");
  args.option("--samples", "N", &options->samples, "texts per prompt", 1, 1 << 20);
  add_sampling_options(args, &options->sampling, kGenerateTokens);
  args.flag("--ignore-eos", &options->ignore_eos, "go on beyond the model's stop tokens");
  args.flag("--split-special-tokens", &options->split_special_tokens,
            "read special tokens that stand in a prompt, such as <|im_start|>, as text like any "
            "other (not with messages, of --chat or of a row); default: they are the tokens, as in "
            "transformers");
  add_tokenizer(args, &options->tokenizer);
  args.option("--batch", "N", &options->batch, "most texts generated at a time", 1, 1 << 16);
  args.option("--max-model-len", "N", &options->max_model_len,
              "most tokens of prompt and text together; 0, default: the model's most", 0, 1 << 30);
  args.option("--logprobs", "K", &options->logprobs,
              "for --json: print the log-probability of every token of the text, and the K most "
              "likely tokens in its place",
              0, 1000);
  add_set(args, &options->set);
  add_dtype(args, &options->dtype);
  args.flag("--json", &options->json,
            "print {\"prompt\": ..., \"text\": ..., \"finish_reason\": ...}, a line for each text, "
            "in place of a stream");
  args.example("hocket generate runs/quickstart --prompt 'template <typename T> class '",
               "more C++ from the quickstart's model");
  args.example(
      "hocket generate runs/quickstart --prompt '#include <vec' --temperature 0 "
      "--max-new-tokens 20",
      "the most likely continuation");
  args.example("hocket generate MODEL --chat 'Why is the sky blue?' --temperature 0",
               "an answer of a chat model");
  args.example("hocket launch -n 2 generate runs/quickstart --prompt 'struct ' --set plan.tp=2",
               "on two processes, each with half of every matrix");
  args.run([options] {
    redirect_output("");
    return generate(*options);
  });
}

}  // namespace hocket::cli
