// SPDX-License-Identifier: Apache-2.0
// A chat: its history, the commands that change it, and the answers of a Service. Terminal and
// command line are the caller's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"
#include "serve/request.h"

namespace hocket::serve {

struct ChatSettings {
  Sampling sampling = {};
  int64_t max_tokens = 1024;  ///< of an answer
  std::vector<int32_t> stop_tokens = {};
  std::vector<std::string> stops = {};
  std::string system = {};  ///< the system's message; empty: none
};

/// Output of a chat. Both are called by the thread that calls Chat::take().
struct ChatOutput {
  std::function<void(std::string_view)> answer;  ///< the next piece of an answer, as it comes
  std::function<void(std::string_view)> end;     ///< an answer has ended; a remark on it, or ""
  std::function<void(std::string_view)> notice;  ///< a line, or several, to the user
};

/// Splits input into messages. A line is one; `"""` begins a message of several lines that ends
/// with the next `"""`.
class ChatInput {
 public:
  /// Takes a line without its end. Returns true, with the message, if it completes one.
  bool take(std::string_view line, std::string* message);
  /// Returns whether a message of several lines has begun and not ended.
  bool is_open() const { return open_; }
  /// Forgets the lines of an incomplete message.
  void drop();

 private:
  std::string text_;
  bool open_ = false;
};

/// A conversation with a model.
///
/// If the history no longer fits into the window, the model sees fewer of the oldest exchanges, and
/// a notice says so. They are left out until half of the window is free, so that the next prompts
/// begin alike and the prefix cache serves them. /save keeps all of them.
class Chat {
 public:
  /// `service`, `tokenizer` and `chat_template` must outlive this.
  Chat(Service& service, const data::Tokenizer& tokenizer, const data::ChatTemplate& chat_template,
       ChatSettings settings, ChatOutput output);

  /// Answers a message, or runs a /command. Returns false if it was /quit. Throws Error for a
  /// command that is wrong, and for a message that cannot be answered, which leaves the history as
  /// it was.
  bool take(const std::string& message);
  /// Ends the answer under way soon; its text so far stays. Safe in a signal handler.
  void stop() { stop_asked_ = true; }
  /// Returns whether take() waits for an answer. Safe in a signal handler.
  bool is_answering() const { return answering_; }
  /// Returns whether take() waits for an answer after stop(). Safe in a signal handler.
  bool is_stopping() const { return stop_asked_; }

 private:
  /// A message of the user's and its answer.
  struct Exchange {
    std::string user, answer;
    bool is_whole = true;  ///< the answer ended by itself
    int64_t attempt = 0;   ///< number of earlier answers to this message
  };
  struct Timing {
    int64_t prompt_tokens = 0, cached_tokens = 0, tokens = 0;
    double first_token_s = 0, seconds = 0;
  };

  bool command(const std::string& line);
  void set(const std::string& words);
  void set_system(const std::string& text);
  void save(const std::string& path);
  void undo();
  void regenerate();
  void show_settings() const;
  void show_stats() const;
  std::vector<int32_t> prompt_ids(const Exchange& last) const;
  Request request(const Exchange& last);
  void answer(Exchange* exchange);

  Service& service_;
  const data::Tokenizer& tokenizer_;
  const data::ChatTemplate& template_;
  ChatSettings settings_;
  const ChatOutput output_;
  std::vector<Exchange> history_;
  size_t first_seen_ = 0;  ///< exchanges before it no longer fit into the window
  std::string saved_path_;
  Timing last_;
  std::atomic<bool> stop_asked_ = false, answering_ = false;
};

}  // namespace hocket::serve
