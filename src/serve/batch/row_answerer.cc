// SPDX-License-Identifier: Apache-2.0
#include "serve/batch/row_answerer.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "base/json_writer.h"
#include "base/ordered_json.h"
#include "base/stop.h"
#include "base/text.h"
#include "data/model_text.h"
#include "serve/openai/chat_row.h"
#include "serve/openai/row_fields.h"

namespace hocket::serve {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kCancelInterval{50};
constexpr std::chrono::milliseconds kBusyInterval{20};
constexpr const char* kWrongRow = "invalid_row";
constexpr const char* kWrongRequest = "invalid_request";

/// Thrown for a row that is wrong.
struct WrongRow {
  std::string code, message;
};

/// Texts of a row on their way from the engine's thread.
struct RowTexts {
  std::mutex mutex;
  std::condition_variable came;
  std::vector<Update> updates;  ///< per sample: all so far, as one
  int64_t running = 0;
};

CustomId custom_id_of(const OrderedJson& json) {
  const auto id = json.find("custom_id");
  if (id == json.end() || id->is_null()) return {};
  if (id->is_string()) return id->get<std::string>();
  const bool is_too_large = id->is_number_unsigned() && id->get<uint64_t>() > uint64_t{INT64_MAX};
  if (id->is_number_integer() && !is_too_large) return id->get<int64_t>();
  throw WrongRow{kWrongRow, "custom_id is neither a string nor an integer of 64 bits"};
}

std::string text_of(const OrderedJson& json, const char* name) {
  const auto value = json.find(name);
  if (value == json.end() || !value->is_string()) {
    throw WrongRow{kWrongRow, fmt::format("{} is no string", name)};
  }
  return value->get<std::string>();
}

/// Runs `make`, whose Errors are faults of the row.
template <class Make>
auto made_of_row(const Make& make) {
  try {
    return make();
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::kInput) throw;
    throw WrongRow{kWrongRequest, error.what()};
  }
}

bool has_field(const OrderedJson& body, const char* name) {
  const auto field = body.find(name);
  return field != body.end() && !field->is_null();
}

/// Gives a body the defaults of fields that it has not.
void add_defaults(const OrderedJson& defaults, bool is_chat, OrderedJson* body) {
  for (const auto& [key, value] : defaults.items()) {
    if (has_field(*body, key.c_str())) continue;
    if (is_chat && key == "max_tokens" && has_field(*body, "max_completion_tokens")) continue;
    if (is_chat && key == "logprobs") {
      if (has_field(*body, "top_logprobs")) continue;
      (*body)["top_logprobs"] = value;
      (*body)["logprobs"] = true;
      continue;
    }
    (*body)[key] = value;
  }
}

void require_wanted(const std::function<bool()>& cancelled) {
  if (cancelled()) throw Stopped{};
}

}  // namespace

/// One generated text.
struct RowAnswerer::Text {
  std::string text, stop;
  std::optional<int32_t> stop_token;
  Finish finish = Finish::running;
  int64_t tokens = 0;
  std::vector<TokenLogprobs> logprobs = {};
};

struct RowAnswerer::Task {
  Request request;
  int64_t texts = 1, first_sample = 0;
};

RowAnswerer::RowAnswerer(RowModel model, RowSettings settings)
    : model_(std::move(model)),
      settings_(std::move(settings)),
      body_defaults_(std::make_shared<const OrderedJson>(
          parse_ordered_json(settings_.body_defaults, "defaults of bodies"))) {}

RowResult RowAnswerer::answer(const InputRow& row, const std::function<bool()>& cancelled) const {
  if (row.is_too_long) return row_error(row.row, {}, kWrongRow, "the row is too long");
  if (trim(row.text).empty()) return {row.row, RowResult::Kind::blank, 0, 0, ""};
  CustomId custom_id;
  try {
    const OrderedJson json = made_of_row([&] { return parse_ordered_json(row.text, "row"); });
    if (json.is_string()) {
      const Task task = text_task(row, json.get<std::string>(), OrderedJson::object());
      return answer_task(row, {}, task, cancelled);
    }
    if (!json.is_object()) throw WrongRow{kWrongRow, "is neither a string nor an object"};
    custom_id = custom_id_of(json);
    return answer_object(row, custom_id, json, cancelled);
  } catch (const WrongRow& wrong) {
    return row_error(row.row, custom_id, wrong.code, wrong.message);
  }
}

RowResult RowAnswerer::answer_object(const InputRow& row, const CustomId& custom_id,
                                     const OrderedJson& json,
                                     const std::function<bool()>& cancelled) const {
  const auto body = json.find("body");
  const auto messages = json.find("messages"), prompt = json.find("prompt");
  if ((body != json.end()) + (messages != json.end()) + (prompt != json.end()) != 1) {
    throw WrongRow{kWrongRow, "has not one of prompt, messages and body"};
  }
  if (body != json.end()) {
    if (!body->is_object()) throw WrongRow{kWrongRow, "body is no object"};
    const std::string method = json.contains("method") ? text_of(json, "method") : "POST";
    if (method != "POST") throw WrongRow{kWrongRow, "method is " + quote(method) + ", not POST"};
    return answer_body(row, custom_id, *body, text_of(json, "url"), cancelled);
  }
  const OrderedJson& given = messages != json.end() ? *messages : *prompt;
  if (messages != json.end() && !given.is_array()) {
    throw WrongRow{kWrongRow, "messages is no list"};
  }
  const Task task = given.is_array() ? chat_task(row, given, json)
                                     : text_task(row, text_of(json, "prompt"), json);
  return answer_task(row, custom_id, task, cancelled);
}

// ---- prompts -----------------------------------------------------------------------------------

RowAnswerer::Task RowAnswerer::text_task(const InputRow& row, const std::string& text,
                                         const OrderedJson& fields) const {
  return made_of_row([&] {
    data::EncodeOptions options;
    options.split_special_tokens = settings_.split_special_tokens;
    return task_of(row,
                   data::document_ids("prompt", model_.beginning, *model_.tokenizer, text,
                                      model_.service->vocab_size(), options),
                   /*is_chat=*/false, fields);
  });
}

RowAnswerer::Task RowAnswerer::chat_task(const InputRow& row, const OrderedJson& messages,
                                         const OrderedJson& fields) const {
  require_joined_special_tokens("messages");
  if (!model_.chat_template) {
    throw WrongRow{kWrongRequest, "the model has no chat template, which messages need"};
  }
  return made_of_row([&] {
    std::vector<int32_t> prompt =
        model_.tokenizer->encode(render_row(*model_.chat_template, messages, fields, "row"));
    data::require_ids("messages", prompt, *model_.tokenizer, model_.service->vocab_size());
    return task_of(row, std::move(prompt), /*is_chat=*/true, fields);
  });
}

RowAnswerer::Task RowAnswerer::task_of(const InputRow& row, std::vector<int32_t> prompt,
                                       bool is_chat, const OrderedJson& fields) const {
  Task task;
  task.texts = settings_.samples;
  task.first_sample = row.row * settings_.samples;
  Request& request = task.request;
  request.prompt = std::move(prompt);
  request.answer = is_chat;
  request.sampling = settings_.sampling;
  request.max_tokens = settings_.max_tokens;
  request.stops = settings_.stops;
  request.stop_tokens = settings_.stop_tokens;
  request.logprobs = settings_.logprobs;
  const RowFields own =
      read_row_fields(fields, is_chat, model_.service->vocab_size(), "row", &request);
  if (own.has_seed || own.texts) {
    task.first_sample = 0;
  }
  if (own.texts) {
    task.texts = *own.texts;
    if (!own.has_seed) {
      request.sampling.seed = hash_combine(request.sampling.seed, static_cast<uint64_t>(row.row));
    }
  }
  return task;
}

void RowAnswerer::require_joined_special_tokens(const char* what) const {
  if (!settings_.split_special_tokens) return;
  throw WrongRow{kWrongRequest,
                 fmt::format("has {}, which --split-special-tokens does not go with", what)};
}

/// Has the service write the row's texts, and waits for all.
std::vector<RowAnswerer::Text> RowAnswerer::generate(const Task& task,
                                                     const std::function<bool()>& cancelled) const {
  const auto texts = std::make_shared<RowTexts>();
  texts->updates.resize(static_cast<size_t>(task.texts));
  std::vector<RequestId> ids;
  const auto cancel_all = [&] {
    for (const RequestId id : ids) {
      model_.service->cancel(id);
    }
  };
  try {
    for (int64_t sample = 0; sample < task.texts; ++sample) {
      Request one = task.request;
      one.sampling.sample = task.first_sample + sample;
      {
        const std::lock_guard lock(texts->mutex);
        ++texts->running;
      }
      const auto on_update = [texts, sample](const Update& update) {
        const std::lock_guard lock(texts->mutex);
        Update& all = texts->updates[static_cast<size_t>(sample)];
        all.text += update.text;
        all.tokens.insert(all.tokens.end(), update.tokens.begin(), update.tokens.end());
        all.logprobs.insert(all.logprobs.end(), update.logprobs.begin(), update.logprobs.end());
        if (update.finish == Finish::running) return;
        all.finish = update.finish;
        all.stop_token = update.stop_token;
        all.stop = update.stop;
        all.error = update.error;
        all.model_failed = update.model_failed;
        --texts->running;
        texts->came.notify_all();
      };
      for (bool is_in = false; !is_in;) {
        require_wanted(cancelled);
        try {
          ids.push_back(model_.service->submit(one, on_update));
          is_in = true;
        } catch (const Busy&) {
          std::this_thread::sleep_for(kBusyInterval);
        }
      }
    }
    std::unique_lock lock(texts->mutex);
    while (!texts->came.wait_for(lock, kCancelInterval, [&] { return texts->running == 0; })) {
      require_wanted(cancelled);
    }
  } catch (...) {
    cancel_all();
    throw;
  }
  std::vector<Text> out;
  for (const Update& update : texts->updates) {
    if (update.model_failed) throw WrongRow{kNotFiniteCode, update.error};
    if (update.finish == Finish::failed) fail_run("batch", "{}", update.error);
    if (update.finish == Finish::cancelled) throw Stopped{};
    out.push_back({update.text, update.stop, update.stop_token, update.finish,
                   std::ssize(update.tokens), update.logprobs});
  }
  return out;
}

RowResult RowAnswerer::answer_task(const InputRow& row, const CustomId& custom_id, const Task& task,
                                   const std::function<bool()>& cancelled) const {
  const std::vector<Text> texts = made_of_row([&] { return generate(task, cancelled); });
  RowResult result{row.row, RowResult::Kind::output, std::ssize(task.request.prompt), 0, ""};
  JsonWriter json;
  json.object().member("line", row.row + 1);
  write_custom_id(custom_id, &json);
  json.member("prompt_tokens", result.prompt_tokens);
  if (texts.size() > 1) {
    json.key("samples").array();
  }
  for (const Text& text : texts) {
    result.tokens += text.tokens;
    if (texts.size() > 1) {
      json.object();
    }
    json.member("text", text.text);
    json.member("finish_reason", text.finish == Finish::stop ? "stop" : "length");
    if (text.stop_token) {
      json.member("stop_reason", *text.stop_token);
    } else if (!text.stop.empty()) {
      json.member("stop_reason", text.stop);
    }
    json.member("tokens", text.tokens);
    write_row_logprobs(text.logprobs, &json);
    if (texts.size() > 1) {
      json.end();
    }
  }
  if (texts.size() > 1) {
    json.end();
  }
  json.end();
  result.json = json.take();
  return result;
}

// ---- OpenAI's batches --------------------------------------------------------------------------

RowResult RowAnswerer::answer_body(const InputRow& row, const CustomId& custom_id, OrderedJson body,
                                   const std::string& url,
                                   const std::function<bool()>& cancelled) const {
  if (!model_.openai) throw WrongRow{kWrongRow, "rows with a url are not answered here"};
  require_joined_special_tokens("a body");
  if (const auto stream = body.find("stream"); stream != body.end() && *stream == true) {
    throw WrongRow{kWrongRequest, "body.stream has no place in a file of requests"};
  }
  add_defaults(*body_defaults_, url == "/v1/chat/completions", &body);
  if (!has_field(body, "seed")) {
    // A row that is answered again has the same text. Seeds of JSON are exact up to 2^53.
    body["seed"] = static_cast<int64_t>(
        hash_combine(settings_.sampling.seed, static_cast<uint64_t>(row.row)) >> 11);
  }
  const std::string text = body.dump();
  BodyAnswer answer;
  for (;;) {
    require_wanted(cancelled);
    answer = model_.openai(url, text, cancelled);
    require_wanted(cancelled);
    if (answer.status != 429) break;  // the queue is full
    std::this_thread::sleep_for(kBusyInterval);
  }
  const OrderedJson json = OrderedJson::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  const auto in_error = [&json](const char* key) -> std::string {
    if (!json.is_object() || !json.contains("error") || !json["error"].is_object()) return "";
    const OrderedJson value = json["error"].value(key, OrderedJson());
    return value.is_string() ? value.get<std::string>() : "";
  };
  const bool is_of_row = in_error("code") == kNotFiniteCode;
  if ((answer.status >= 500 && !is_of_row) || json.is_discarded()) {
    fail_run("batch", "{} answers with status {}: {}", url, answer.status, quote(answer.body, 400));
  }
  if (answer.status != 200) {
    const std::string message = in_error("message");
    return row_error(row.row, custom_id,
                     is_of_row ? kNotFiniteCode : fmt::format("status_{}", answer.status),
                     message.empty() ? answer.body : message);
  }
  RowResult result{row.row, RowResult::Kind::output, 0, 0, ""};
  if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
    result.prompt_tokens = usage->value("prompt_tokens", int64_t{0});
    result.tokens = usage->value("completion_tokens", int64_t{0});
  }
  OrderedJson line = {{"id", fmt::format("batch_req_{}", row.row + 1)}};
  line["custom_id"] = nullptr;
  if (const auto* name = std::get_if<std::string>(&custom_id)) {
    line["custom_id"] = *name;
  } else if (const auto* number = std::get_if<int64_t>(&custom_id)) {
    line["custom_id"] = *number;
  }
  line["response"] = {{"status_code", 200}, {"request_id", json.value("id", "")}, {"body", json}};
  line["error"] = nullptr;
  result.json = line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  return result;
}

// ---- generator ---------------------------------------------------------------------------------

namespace {

class PooledGenerator : public RowGenerator {
 public:
  using Answer = std::function<RowResult(const InputRow&, const std::function<bool()>&)>;
  PooledGenerator(int64_t slots, Answer answer) : answer_(std::move(answer)) {
    for (int64_t i = 0; i < slots; ++i) {
      threads_.emplace_back([this] { work(); });
    }
  }
  ~PooledGenerator() override {
    cancel();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  int64_t slots() const override { return std::ssize(threads_); }
  void begin(InputRow row, Done done) override {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({std::move(row), std::move(done)});
    changed_.notify_one();
  }
  void cancel() override {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }

 private:
  bool is_cancelled() {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return cancelled_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      auto [row, done] = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      RowResult result;
      std::exception_ptr error;
      try {
        result = answer_(row, [this] { return is_cancelled(); });
      } catch (...) {
        error = std::current_exception();
      }
      done(std::move(result), error);
    }
  }

  const Answer answer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<InputRow, Done>> waiting_;
  bool cancelled_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<RowGenerator> pooled_generator(
    int64_t slots,
    std::function<RowResult(const InputRow&, const std::function<bool()>& cancelled)> answer) {
  return std::make_unique<PooledGenerator>(slots, std::move(answer));
}

}  // namespace hocket::serve
