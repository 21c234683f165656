// SPDX-License-Identifier: Apache-2.0
#include "serve/chat/chat.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "base/utf8.h"

namespace hocket::serve {

namespace {

constexpr const char* kChat = "chat";
constexpr std::string_view kFence = "\"\"\"";
/// Time between two looks at stop().
constexpr std::chrono::milliseconds kStopInterval{20};
/// An answer has at least this share of the window.
constexpr int64_t kAnswerShare = 4;

constexpr const char* kChatHelp =
    R"(/system TEXT      the system's message from now on; without TEXT: show it; /system - removes it
/reset            forget all messages but the system's
/undo             take back the last message and its answer
/regenerate       answer the last message anew
/set NAME VALUE   temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty,
                  frequency_penalty, max_tokens, seed; /set alone shows them
/save FILE        the whole chat as a line of JSON that `hocket train` reads
/stats            tokens and times of the last answer
/help             this text
/quit             end (also Ctrl-D)
""" on a line of its own begins and ends a message of several lines; // at its beginning is a /.)";

/// Updates on their way from the engine's thread.
struct AnswerQueue {
  std::mutex mutex;
  std::condition_variable came;
  std::deque<Update> updates;
};

nlohmann::ordered_json chat_message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

/// Marks an answer under way. Destroyed by an exception, it cancels the request.
class AnswerUnderWay {
 public:
  AnswerUnderWay(Service& service, std::atomic<bool>* flag) : service_(service), flag_(flag) {
    *flag_ = true;
  }
  ~AnswerUnderWay() {
    *flag_ = false;
    if (is_begun_) {
      service_.cancel(id_);
    }
  }
  AnswerUnderWay(const AnswerUnderWay&) = delete;
  AnswerUnderWay& operator=(const AnswerUnderWay&) = delete;
  void begin(RequestId id) {
    id_ = id;
    is_begun_ = true;
  }
  void end() { is_begun_ = false; }

 private:
  Service& service_;
  std::atomic<bool>* const flag_;
  RequestId id_ = 0;
  bool is_begun_ = false;
};

/// A number of /set.
struct ChatNumber {
  const char* name;
  double least, most;
  bool is_integer;
  double (*get)(const ChatSettings&);
  void (*set)(ChatSettings&, double);
};

#define HOCKET_CHAT_NUMBER(name, member, least, most, is_integer)              \
  {                                                                            \
#name, least, most, is_integer,                                              \
        [](const ChatSettings& s) { return static_cast<double>(s.member); },     \
        [](ChatSettings& s, double x) {                                          \
          s.member = static_cast<std::remove_reference_t<decltype(s.member)>>(x); \
        } \
  }
constexpr double kMaxInteger = 9007199254740992.0;  // 2^53: every integer up to it is a double
const ChatNumber kChatNumbers[] = {
    HOCKET_CHAT_NUMBER(temperature, sampling.temperature, 0, 100, false),
    HOCKET_CHAT_NUMBER(top_k, sampling.top_k, 0, 1e9, true),
    HOCKET_CHAT_NUMBER(top_p, sampling.top_p, 0, 1, false),
    HOCKET_CHAT_NUMBER(min_p, sampling.min_p, 0, 1, false),
    HOCKET_CHAT_NUMBER(repetition_penalty, sampling.repetition_penalty, 0.01, 100, false),
    HOCKET_CHAT_NUMBER(presence_penalty, sampling.presence_penalty, -2, 2, false),
    HOCKET_CHAT_NUMBER(frequency_penalty, sampling.frequency_penalty, -2, 2, false),
    HOCKET_CHAT_NUMBER(max_tokens, max_tokens, 1, 1e9, true),
    HOCKET_CHAT_NUMBER(seed, sampling.seed, 0, kMaxInteger, true),
};
#undef HOCKET_CHAT_NUMBER

const ChatNumber& chat_number(const std::string& name) {
  std::vector<std::string> names;
  for (const ChatNumber& number : kChatNumbers) {
    if (name == number.name) return number;
    names.push_back(number.name);
  }
  const std::string near = nearest(name, names);
  fail(kChat, "/set knows no {}; {}", quote(name),
       near.empty() ? "expected one of " + join(names, ", ") : "did you mean " + near + "?");
}

/// Splits a line at its first blanks.
std::pair<std::string, std::string> first_word(std::string_view line) {
  line = trim(line);
  const size_t end = line.find_first_of(" \t\n");
  if (end == std::string_view::npos) return {std::string(line), ""};
  return {std::string(line.substr(0, end)), std::string(trim(line.substr(end)))};
}

}  // namespace

// ---- input -------------------------------------------------------------------------------------

bool ChatInput::take(std::string_view line, std::string* message) {
  if (!line.empty() && line.back() == '\r') {
    line.remove_suffix(1);
  }
  if (!open_) {
    const std::string_view begins = trim(line);
    if (!begins.starts_with(kFence)) {
      *message = line;
      return true;
    }
    line = begins.substr(kFence.size());
    open_ = true;
    text_.clear();
  } else {
    text_ += '\n';
  }
  const size_t end = line.find(kFence);
  if (end == std::string_view::npos) {
    text_ += line;
    return false;
  }
  text_ += line.substr(0, end);
  // The lines of the fences are no part of the message.
  std::string_view whole = text_;
  if (whole.starts_with('\n')) {
    whole.remove_prefix(1);
  }
  if (whole.ends_with('\n')) {
    whole.remove_suffix(1);
  }
  *message = whole;
  drop();
  return true;
}

void ChatInput::drop() {
  open_ = false;
  text_.clear();
}

// ---- messages ----------------------------------------------------------------------------------

Chat::Chat(Service& service, const data::Tokenizer& tokenizer,
           const data::ChatTemplate& chat_template, ChatSettings settings, ChatOutput output)
    : service_(service),
      tokenizer_(tokenizer),
      template_(chat_template),
      settings_(std::move(settings)),
      output_(std::move(output)) {}

bool Chat::take(const std::string& message) {
  if (trim(message).empty()) return true;
  if (message.starts_with('/') && !message.starts_with("//")) return command(message);
  if (!is_utf8(message)) fail(kChat, "the message is not UTF-8; got {}", quote(message));
  Exchange exchange{message.substr(message.starts_with('/') ? 1 : 0), "", true, 0};
  answer(&exchange);
  history_.push_back(std::move(exchange));
  return true;
}

/// Returns the tokens of the history that the model sees, up to where the answer begins.
std::vector<int32_t> Chat::prompt_ids(const Exchange& last) const {
  auto messages = nlohmann::ordered_json::array();
  if (!settings_.system.empty()) {
    messages.push_back(chat_message("system", settings_.system));
  }
  for (size_t i = first_seen_; i < history_.size(); ++i) {
    messages.push_back(chat_message("user", history_[i].user));
    messages.push_back(chat_message("assistant", history_[i].answer));
  }
  messages.push_back(chat_message("user", last.user));
  data::ChatOptions options;
  options.add_generation_prompt = true;
  return tokenizer_.encode(template_.render(messages, options).text);
}

Request Chat::request(const Exchange& last) {
  const int64_t window = service_.max_model_len();
  const int64_t room = std::min(settings_.max_tokens, std::max<int64_t>(1, window / kAnswerShare));
  std::vector<int32_t> ids = prompt_ids(last);
  if (std::ssize(ids) + room > window) {
    const size_t before = first_seen_;
    while (first_seen_ < history_.size() && std::ssize(ids) > window / 2) {
      ++first_seen_;
      ids = prompt_ids(last);
    }
    if (std::ssize(ids) + room > window) {
      const int64_t tokens = std::ssize(ids);
      first_seen_ = before;
      fail(kChat,
           "the message has {} tokens, with the system's message and the template; got a window of "
           "{} tokens, {} of them for the answer; try a shorter one",
           tokens, window, room);
    }
    output_.notice(fmt::format(
        "[the chat no longer fits into the window of {} tokens: from here on the model does not "
        "see the first {}]",
        window, counted(static_cast<int64_t>(first_seen_), "exchange")));
  }
  Request request;
  request.max_tokens = std::min(settings_.max_tokens, window - std::ssize(ids));
  request.prompt = std::move(ids);
  request.sampling = settings_.sampling;
  request.sampling.sample = last.attempt;
  request.stops = settings_.stops;
  request.stop_tokens = settings_.stop_tokens;
  request.answer = true;
  return request;
}

/// Has the model answer the exchange's message, as the one after history_.
void Chat::answer(Exchange* exchange) {
  Request asked = request(*exchange);
  last_ = {.prompt_tokens = std::ssize(asked.prompt)};
  const int64_t most = asked.max_tokens;
  const auto queue = std::make_shared<AnswerQueue>();
  const int64_t start = now_ns();
  stop_asked_ = false;
  AnswerUnderWay under_way(service_, &answering_);
  const RequestId id = service_.submit(std::move(asked), [queue](const Update& update) {
    const std::lock_guard lock(queue->mutex);
    queue->updates.push_back(update);
    queue->came.notify_one();
  });
  under_way.begin(id);
  bool is_cancelled = false;
  Update last;
  while (last.finish == Finish::running) {
    if (stop_asked_ && !is_cancelled) {
      is_cancelled = true;
      service_.cancel(id);
    }
    {
      std::unique_lock lock(queue->mutex);
      if (!queue->came.wait_for(lock, kStopInterval, [&] { return !queue->updates.empty(); })) {
        continue;
      }
      last = std::move(queue->updates.front());
      queue->updates.pop_front();
    }
    last_.cached_tokens = std::max(last_.cached_tokens, last.cached_tokens);
    if (last_.tokens == 0 && !last.tokens.empty()) {
      last_.first_token_s = seconds_since(start);
    }
    last_.tokens += std::ssize(last.tokens);
    exchange->answer += last.text;
    output_.answer(last.text);
  }
  under_way.end();
  last_.seconds = seconds_since(start);
  if (last.finish == Finish::failed) {
    output_.end("");
    fail_run(kChat, "{}; the message is taken back", last.error);
  }
  exchange->is_whole = last.finish == Finish::stop;
  output_.end(last.finish == Finish::cancelled ? "[stopped; the model sees the answer so far]"
              : last.finish == Finish::length
                  ? fmt::format("[cut off after {} tokens; /set max_tokens N allows more]", most)
                  : "");
}

// ---- commands ----------------------------------------------------------------------------------

bool Chat::command(const std::string& line) {
  const auto [name, rest] = first_word(line);
  const auto alone = [&, &name = name, &rest = rest] {
    if (!rest.empty()) fail(kChat, "{} takes nothing; got {}", name, quote(rest));
  };
  if (name == "/quit" || name == "/exit") {
    alone();
    return false;
  }
  if (name == "/help" || name == "/?") {
    output_.notice(kChatHelp);
  } else if (name == "/system") {
    set_system(rest);
  } else if (name == "/reset") {
    alone();
    history_.clear();
    first_seen_ = 0;
    output_.notice("[all messages are forgotten]");
  } else if (name == "/undo") {
    alone();
    undo();
  } else if (name == "/regenerate") {
    alone();
    regenerate();
  } else if (name == "/save") {
    save(rest);
  } else if (name == "/set") {
    set(rest);
  } else if (name == "/stats") {
    alone();
    show_stats();
  } else {
    const std::string near = nearest(name, {"/system", "/reset", "/undo", "/regenerate", "/set",
                                            "/save", "/stats", "/help", "/quit"});
    fail(kChat, "{} is no command; {}", quote(name),
         near.empty() ? "/help shows them" : "did you mean " + near + "?");
  }
  return true;
}

void Chat::set_system(const std::string& text) {
  if (!is_utf8(text)) fail(kChat, "the system's message is not UTF-8; got {}", quote(text));
  if (!text.empty()) {
    settings_.system = text == "-" ? "" : text;
  }
  output_.notice(settings_.system.empty()
                     ? "[no system message; the template may write one of its own]"
                     : fmt::format("[system: {}]", settings_.system));
}

void Chat::set(const std::string& words) {
  if (words.empty()) return show_settings();
  const auto [name, value] = first_word(words);
  const ChatNumber& number = chat_number(name);
  double parsed = 0;
  int64_t integer = 0;
  const bool is_number =
      number.is_integer ? parse_int(value, &integer) : parse_double(value, &parsed);
  if (number.is_integer) {
    parsed = static_cast<double>(integer);
  }
  if (!is_number || parsed < number.least || parsed > number.most) {
    fail(kChat, "/set {} got {}; expected {} from {} to {}", name, quote(value),
         number.is_integer ? "an integer" : "a number", number.least, number.most);
  }
  number.set(settings_, parsed);
  output_.notice(fmt::format("[{} = {}]", name, parsed));
}

void Chat::show_settings() const {
  std::string text;
  for (const ChatNumber& number : kChatNumbers) {
    text += fmt::format("{}{} = {}", text.empty() ? "" : "\n", number.name, number.get(settings_));
  }
  output_.notice(text);
}

void Chat::show_stats() const {
  if (last_.seconds == 0) return output_.notice("[no answer so far]");
  const double rest = last_.seconds - last_.first_token_s;
  std::string text = fmt::format(
      "[prompt {} tokens, {} of them cached; answer {} tokens; first after {}", last_.prompt_tokens,
      last_.cached_tokens, last_.tokens, human_time(last_.first_token_s));
  if (last_.tokens > 1 && rest > 0) {
    text += fmt::format(", then {:.1f} tokens/s", static_cast<double>(last_.tokens - 1) / rest);
  }
  output_.notice(text + "]");
}

void Chat::undo() {
  if (history_.empty()) fail(kChat, "/undo: there is no message to take back");
  history_.pop_back();
  first_seen_ = 0;  // more may fit again
  output_.notice(fmt::format("[taken back; {} left]",
                             counted(static_cast<int64_t>(history_.size()), "exchange")));
}

void Chat::regenerate() {
  if (history_.empty()) fail(kChat, "/regenerate: there is no message to answer");
  const Exchange before = std::move(history_.back());
  history_.pop_back();
  first_seen_ = std::min(first_seen_, history_.size());
  Exchange again{before.user, "", true, before.attempt + 1};
  try {
    answer(&again);
  } catch (...) {
    history_.push_back(before);
    throw;
  }
  history_.push_back(std::move(again));
}

/// Writes the chat as one line. An answer that was cut off is marked as no example to learn from
/// (`training`, Axolotl's key).
void Chat::save(const std::string& path) {
  if (path.empty()) fail(kChat, "/save got no file; try /save chat.jsonl");
  if (history_.empty()) fail(kChat, "/save: there is no message so far");
  if (path != saved_path_ && file_exists(path)) {
    fail(kChat, "{} exists; try another name", path);
  }
  auto messages = nlohmann::ordered_json::array();
  if (!settings_.system.empty()) {
    messages.push_back(chat_message("system", settings_.system));
  }
  for (const Exchange& exchange : history_) {
    messages.push_back(chat_message("user", exchange.user));
    messages.push_back(chat_message("assistant", exchange.answer));
    if (!exchange.is_whole) {
      messages.back()["training"] = false;
    }
  }
  const nlohmann::ordered_json chat = {{"messages", std::move(messages)}};
  // A model may write bytes that are no UTF-8: they become U+FFFD.
  write_file_atomic(
      path, chat.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  saved_path_ = path;
  output_.notice(fmt::format("[saved {} to {}]",
                             counted(static_cast<int64_t>(history_.size()), "exchange"), path));
}

}  // namespace hocket::serve
