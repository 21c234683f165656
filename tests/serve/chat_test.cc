// SPDX-License-Identifier: Apache-2.0
#include "serve/chat/chat.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "tests/data/examples/example_util.h"

namespace hocket::serve {
namespace {

/// Answers each request on a thread with a script's pieces.
class ChatScriptService : public Service {
 public:
  explicit ChatScriptService(int64_t window) : window_(window) {}
  ~ChatScriptService() override { join(); }

  RequestId submit(Request request, OnUpdate on_update) override {
    join();
    prompts.push_back(text_of(request.prompt));
    requests.push_back(request);
    if (submit_error) fail("engine", "{}", "no room");
    is_cancelled_ = false;
    thread_ = std::thread([this, on_update = std::move(on_update)] { answer(on_update); });
    return std::ssize(prompts);
  }
  void cancel(RequestId) override {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
    changed_.notify_all();
  }
  Stats stats() const override { return {}; }
  int64_t max_model_len() const override { return window_; }
  int64_t vocab_size() const override { return 257; }

  std::vector<std::string> pieces = {"Hi", "!"};
  Finish finish = Finish::stop;
  bool hangs = false;  ///< after the pieces, until it is cancelled
  bool submit_error = false;
  std::vector<std::string> prompts;
  std::vector<Request> requests;

 private:
  static std::string text_of(const std::vector<int32_t>& ids) {
    std::string text;
    for (const int32_t id : ids) {
      text += static_cast<char>(id);
    }
    return text;
  }
  void answer(const OnUpdate& on_update) {
    for (const std::string& piece : pieces) {
      Update update;
      update.text = piece;
      update.tokens.assign(piece.begin(), piece.end());
      on_update(update);
    }
    Update last;
    last.finish = finish;
    last.error = finish == Finish::failed ? "the device is gone" : "";
    if (hangs) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_cancelled_; });
      last.finish = Finish::cancelled;
    }
    on_update(last);
  }
  void join() {
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  const int64_t window_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_cancelled_ = false;
};

constexpr const char* kChatTestTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

class ChatTest : public ::testing::Test {
 protected:
  ChatOutput output() {
    ChatOutput out;
    out.answer = [this](std::string_view text) {
      shown += text;
      if (on_text) {
        on_text();
      }
    };
    out.end = [this](std::string_view remark) { shown += "|" + std::string(remark) + "\n"; };
    out.notice = [this](std::string_view text) { notices += std::string(text) + "\n"; };
    return out;
  }
  std::string error_of(Chat& chat, const std::string& message) {
    try {
      chat.take(message);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  const data::Tokenizer tokenizer = data::Tokenizer(data::chat_spec({}));
  const data::ChatTemplate chat_template = data::ChatTemplate::parse(kChatTestTemplate, "test");
  ChatScriptService service{1000};
  std::string shown, notices;
  std::function<void()> on_text;
};

TEST_F(ChatTest, AnswersWithTheWholeHistory) {
  Chat chat(service, tokenizer, chat_template, {.stop_tokens = {256}, .stops = {"END"}}, output());
  EXPECT_TRUE(chat.take("Hello"));
  EXPECT_TRUE(chat.take("  "));  // nothing to say
  EXPECT_TRUE(chat.take("//path"));
  EXPECT_EQ(service.prompts, (std::vector<std::string>{
                                 "<user>Hello\n<assistant>",
                                 "<user>Hello\n<assistant>Hi!\n<user>/path\n<assistant>",
                             }));
  EXPECT_EQ(shown, "Hi!|\nHi!|\n");
  EXPECT_TRUE(service.requests[0].answer);
  EXPECT_EQ(service.requests[0].stop_tokens, std::vector<int32_t>{256});
  EXPECT_EQ(service.requests[0].stops, std::vector<std::string>{"END"});
  // The rest of the window, as the default of max_tokens is beyond it.
  EXPECT_EQ(service.requests[0].max_tokens, 1000 - std::ssize(service.requests[0].prompt));
  EXPECT_FALSE(chat.take("/quit"));
}

TEST_F(ChatTest, CommandsSetTheSystemMessageResetUndoAndRegenerate) {
  Chat chat(service, tokenizer, chat_template, {.system = "Be brief."}, output());
  chat.take("One");
  chat.take("Two");
  chat.take("/undo");
  chat.take("/system Be long.");
  chat.take("Three");
  EXPECT_EQ(service.prompts.back(),
            "<system>Be long.\n<user>One\n<assistant>Hi!\n<user>Three\n<assistant>");
  service.pieces = {"Again"};
  chat.take("/regenerate");
  EXPECT_EQ(service.prompts.back(),
            "<system>Be long.\n<user>One\n<assistant>Hi!\n<user>Three\n<assistant>");
  EXPECT_EQ(service.requests.back().sampling.sample, 1);
  chat.take("/regenerate");
  EXPECT_EQ(service.requests.back().sampling.sample, 2);
  chat.take("Four");
  EXPECT_NE(service.prompts.back().find("<user>Three\n<assistant>Again\n<user>Four"),
            std::string::npos);
  EXPECT_EQ(service.requests.back().sampling.sample, 0);
  chat.take("/reset");
  chat.take("/system -");
  chat.take("Five");
  EXPECT_EQ(service.prompts.back(), "<user>Five\n<assistant>");
  chat.take("/undo");
  EXPECT_NE(error_of(chat, "/undo").find("no message"), std::string::npos);
  EXPECT_NE(error_of(chat, "/regenerate").find("no message"), std::string::npos);
}

TEST_F(ChatTest, StopEndsTheAnswerAndKeepsItsText) {
  Chat chat(service, tokenizer, chat_template, {}, output());
  service.hangs = true;
  on_text = [&] {
    EXPECT_TRUE(chat.is_answering());
    chat.stop();
  };
  chat.take("Hello");
  EXPECT_FALSE(chat.is_answering());
  EXPECT_NE(shown.find("Hi!|[stopped"), std::string::npos);
  service.hangs = false;
  on_text = nullptr;
  chat.stop();  // nothing is under way: the next answer is not stopped
  chat.take("More");
  EXPECT_EQ(service.prompts.back(), "<user>Hello\n<assistant>Hi!\n<user>More\n<assistant>");
  EXPECT_TRUE(shown.ends_with("Hi!|\n"));
}

TEST_F(ChatTest, AFailureLeavesTheHistoryAsItWas) {
  Chat chat(service, tokenizer, chat_template, {}, output());
  chat.take("One");
  service.finish = Finish::failed;
  EXPECT_NE(error_of(chat, "Two").find("the device is gone"), std::string::npos);
  EXPECT_NE(error_of(chat, "/regenerate").find("the device is gone"), std::string::npos);
  service.submit_error = true;
  EXPECT_NE(error_of(chat, "Two").find("no room"), std::string::npos);
  EXPECT_FALSE(chat.is_answering());
  EXPECT_NE(error_of(chat, "\xff").find("UTF-8"), std::string::npos);
  service.submit_error = false;
  service.finish = Finish::length;
  chat.take("Three");
  EXPECT_EQ(service.prompts.back(), "<user>One\n<assistant>Hi!\n<user>Three\n<assistant>");
  EXPECT_TRUE(
      shown.ends_with(fmt::format("Hi!|[cut off after {} tokens; /set max_tokens N allows more]\n",
                                  1000 - service.prompts.back().size())))
      << shown;
}

/// A window of 200 tokens, an eighth of it for answers.
TEST_F(ChatTest, OldestExchangesLeaveAFullWindow) {
  ChatScriptService small(200);
  Chat chat(small, tokenizer, chat_template, {.max_tokens = 25, .system = "S"}, output());
  int64_t notices_before = 0, drops = 0;
  for (int i = 0; i < 20; ++i) {
    chat.take(fmt::format("message {:02}", i));
    const std::string& prompt = small.prompts.back();
    EXPECT_LE(prompt.size() + 25, 200u);
    EXPECT_TRUE(prompt.starts_with("<system>S\n<user>message "));
    EXPECT_TRUE(prompt.ends_with(fmt::format("<user>message {:02}\n<assistant>", i)));
    if (std::ssize(notices) > notices_before) {
      ++drops;
      EXPECT_LE(prompt.size(), 100u);  // half of it is free again
    }
    notices_before = std::ssize(notices);
  }
  EXPECT_GE(drops, 3);
  EXPECT_LE(drops, 8);  // not with every message
  EXPECT_NE(notices.find("does not see the first"), std::string::npos);
  const std::string before = small.prompts.back();
  const std::string error = error_of(chat, std::string(300, 'x'));
  EXPECT_NE(error.find("window of 200 tokens, 25 of them"), std::string::npos) << error;
  chat.take("/regenerate");
  EXPECT_EQ(small.prompts.back(), before);
}

TEST_F(ChatTest, SavesWhatTrainReads) {
  const std::string folder = ::testing::TempDir() + fmt::format("/chat-{}", ::getpid());
  make_dirs(folder);
  const std::string path = join_path(folder, "chat.jsonl");
  Chat chat(service, tokenizer, chat_template, {.system = "Be \"brief\"."}, output());
  EXPECT_NE(error_of(chat, "/save " + path).find("no message"), std::string::npos);
  service.pieces = {"caf\xc3\xa9", "\n", "\xff"};
  chat.take("Hello");
  service.finish = Finish::length;
  chat.take("More");
  chat.take("/save " + path);
  chat.take("/save " + path);  // its own file
  const std::string text = read_file(path);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  const auto json = nlohmann::json::parse(text);
  const auto& messages = json["messages"];
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0]["content"], "Be \"brief\".");
  EXPECT_EQ(messages[2]["content"], "caf\xc3\xa9\n\xef\xbf\xbd");
  EXPECT_FALSE(messages[2].contains("training"));
  EXPECT_EQ(messages[4]["training"], false);
  Chat other(service, tokenizer, chat_template, {}, output());
  other.take("Hello");
  EXPECT_NE(error_of(other, "/save " + path).find("exists"), std::string::npos);
  remove_tree(folder);
}

TEST_F(ChatTest, SettingsApplyToTheNextAnswerAndWrongOnesAreNamed) {
  Chat chat(service, tokenizer, chat_template, {}, output());
  chat.take("/set temperature 0.25");
  chat.take("/set max_tokens 7");
  chat.take("/set seed 42");
  chat.take("/set");
  EXPECT_NE(notices.find("temperature = 0.25\ntop_k = 0\n"), std::string::npos) << notices;
  chat.take("Hello");
  EXPECT_EQ(service.requests.back().sampling.temperature, 0.25);
  EXPECT_EQ(service.requests.back().sampling.seed, 42u);
  EXPECT_EQ(service.requests.back().max_tokens, 7);
  EXPECT_NE(error_of(chat, "/set temprature 1").find("did you mean temperature"),
            std::string::npos);
  EXPECT_NE(error_of(chat, "/set top_k 1.5").find("expected an integer"), std::string::npos);
  EXPECT_NE(error_of(chat, "/set top_p 2").find("from 0 to 1"), std::string::npos);
  EXPECT_NE(error_of(chat, "/set top_p").find("expected a number"), std::string::npos);
  EXPECT_NE(error_of(chat, "/rest").find("did you mean /reset"), std::string::npos);
  EXPECT_NE(error_of(chat, "/quit now").find("takes nothing"), std::string::npos);
  chat.take("/stats");
  EXPECT_NE(notices.find("answer 3 tokens"), std::string::npos) << notices;
}

TEST(ChatInput, ReadsMessagesOfSeveralLines) {
  ChatInput input;
  std::string message;
  EXPECT_TRUE(input.take("one line\r", &message));
  EXPECT_EQ(message, "one line");
  EXPECT_FALSE(input.take("\"\"\"", &message));
  EXPECT_TRUE(input.is_open());
  EXPECT_FALSE(input.take("first", &message));
  EXPECT_FALSE(input.take("", &message));
  EXPECT_TRUE(input.take("\"\"\"", &message));
  EXPECT_EQ(message, "first\n");
  EXPECT_FALSE(input.is_open());
  EXPECT_TRUE(input.take("\"\"\"in one\"\"\"", &message));
  EXPECT_EQ(message, "in one");
  EXPECT_FALSE(input.take("\"\"\"begins here", &message));
  EXPECT_TRUE(input.take("ends here\"\"\" rest", &message));
  EXPECT_EQ(message, "begins here\nends here");
  EXPECT_FALSE(input.take("\"\"\"", &message));
  input.drop();
  EXPECT_TRUE(input.take("free again", &message));
  EXPECT_EQ(message, "free again");
}

}  // namespace
}  // namespace hocket::serve
