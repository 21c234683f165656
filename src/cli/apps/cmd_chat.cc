// SPDX-License-Identifier: Apache-2.0
// hocket chat
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/apps/served_model.h"
#include "cli/inputs.h"
#include "cli/rank_output.h"
#include "cli/verbs.h"
#include "serve/chat/chat.h"

namespace hocket::cli {
namespace {

constexpr const char* kChatVerb = "hocket chat";
constexpr int64_t kChatTokens = 1024;
/// Bytes of the longest line that Linux reads from a terminal, with its end; it drops the rest.
constexpr ssize_t kTerminalLine = 4096;

struct ChatVerbOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string system, chat_template;
};

/// The chat that Ctrl-C interrupts.
serve::Chat* chat_of_signal = nullptr;

/// Stops the answer under way; while it is stopping, ends the program. Calls only
/// async-signal-safe functions.
void take_interrupt(int signal) {
  if (chat_of_signal == nullptr || !chat_of_signal->is_answering()) return;
  if (!chat_of_signal->is_stopping()) {
    chat_of_signal->stop();
    return;
  }
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

/// While it lives, Ctrl-C stops answers, and does not end the program.
class ChatInterrupt {
 public:
  explicit ChatInterrupt(serve::Chat* chat) {
    chat_of_signal = chat;
    struct sigaction action {};
    action.sa_handler = take_interrupt;  // without SA_RESTART: it ends the reading of a line
    sigaction(SIGINT, &action, &before_);
  }
  ~ChatInterrupt() {
    sigaction(SIGINT, &before_, nullptr);
    chat_of_signal = nullptr;
  }
  ChatInterrupt(const ChatInterrupt&) = delete;
  ChatInterrupt& operator=(const ChatInterrupt&) = delete;

 private:
  struct sigaction before_;
};

/// Standard input and output of a chat. Into a pipe go answers alone; all else is for people.
class ChatTerminal {
 public:
  enum class Read { line, cut, interrupted, end };

  bool is_terminal() const { return reads_terminal_; }
  serve::ChatOutput output() const {
    serve::ChatOutput out;
    out.answer = [this](std::string_view text) { put(text); };
    out.end = [this](std::string_view remark) {
      put("\n");
      if (!remark.empty()) {
        notice(remark);
      }
    };
    out.notice = [this](std::string_view text) { notice(text); };
    return out;
  }
  void notice(std::string_view text) const {
    std::FILE* const stream = writes_terminal_ ? stdout : stderr;
    fmt::print(stream, "{}\n", printable(text));
    std::fflush(stream);
  }
  Read read(const char* prompt, std::string* line) const {
    if (reads_terminal_) {
      fmt::print("{}", prompt);
      std::fflush(stdout);
    }
    char* text = nullptr;
    size_t size = 0;
    errno = 0;
    const ssize_t bytes = ::getline(&text, &size, stdin);
    const bool is_interrupted = bytes < 0 && errno == EINTR;
    if (bytes > 0) {
      line->assign(text, static_cast<size_t>(bytes) - (text[bytes - 1] == '\n' ? 1 : 0));
    }
    std::free(text);
    if (bytes >= 0) return reads_terminal_ && bytes >= kTerminalLine ? Read::cut : Read::line;
    std::clearerr(stdin);
    return is_interrupted ? Read::interrupted : Read::end;
  }

 private:
  /// Prints a text: every byte to a pipe or file, none that acts there to a terminal.
  void put(std::string_view text) const {
    const std::string shown = writes_terminal_ ? printable(text) : std::string(text);
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    if (std::fflush(stdout) != 0) fail_run(kChatVerb, "can't write to standard output");
  }

  const bool reads_terminal_ = ::isatty(STDIN_FILENO) == 1;
  const bool writes_terminal_ = ::isatty(STDOUT_FILENO) == 1;
};

/// Reads and answers until the end of the input. At a terminal an error is shown and the chat goes
/// on; in a pipe it ends the program.
int run_chat(const ChatTerminal& terminal, serve::Chat* chat) {
  std::optional<ChatInterrupt> interrupt;
  if (terminal.is_terminal()) {
    interrupt.emplace(chat);
  }
  serve::ChatInput input;
  for (std::string line, message;;) {
    switch (terminal.read(input.is_open() ? "... " : "> ", &line)) {
      case ChatTerminal::Read::end:
        if (input.is_open()) fail(kChatVerb, "the last message has no closing \"\"\"");
        return 0;
      case ChatTerminal::Read::interrupted:
        input.drop();
        terminal.notice("\n[/quit or Ctrl-D ends the chat]");
        continue;
      case ChatTerminal::Read::cut:
        input.drop();
        terminal.notice(
            fmt::format("[the terminal cut this line off at {} bytes, so it is not sent; \"\"\" "
                        "begins a message "
                        "of several lines]",
                        kTerminalLine - 1));
        continue;
      case ChatTerminal::Read::line:
        break;
    }
    if (!input.take(line, &message)) continue;
    try {
      if (!chat->take(message)) return 0;
    } catch (const Error& error) {
      if (!terminal.is_terminal()) throw;
      terminal.notice(fmt::format("[{}]", error.text()));
    }
  }
}

int chat_with_model(const ChatVerbOptions& options) {
  require_dtype(kChatVerb, options.model.dtype);
  const ModelFiles files(kChatVerb, options.model, options.chat_template);
  if (!files.chat_template) {
    fail(kChatVerb, "{} has no chat template; try hocket generate, or --chat-template FILE",
         options.model.model);
  }
  const ModelSampling chosen =
      choose_sampling(kChatVerb, options.sampling, files.run.config.model.path, kChatTokens);
  serve::ModelEngine engine(files.run, files.tokenizer, options.model.engine);
  if (!engine.leads()) {
    engine.follow();
    return 0;
  }
  serve::ChatSettings settings;
  settings.sampling = chosen.sampling;
  settings.max_tokens = chosen.max_tokens;
  settings.stop_tokens = files.stop_tokens;
  settings.stops = options.sampling.stops;
  settings.system = options.system;
  const ChatTerminal terminal;
  serve::Chat chat(engine, files.tokenizer, *files.chat_template, std::move(settings),
                   terminal.output());
  if (terminal.is_terminal()) {
    terminal.notice(
        fmt::format("{}, a window of {} tokens. /help shows the commands, Ctrl-C stops "
                    "an answer, Ctrl-D ends the chat.",
                    options.model.model, engine.max_model_len()));
  }
  return run_chat(terminal, &chat);
}

}  // namespace

void verb_chat(Args& args) {
  // Declares options and help; chat_with_model() does the work.
  auto options = std::make_shared<ChatVerbOptions>();
  options->model.engine.max_num_seqs = 1;
  args.about("talk with a chat model in the terminal",
             "Each line is a message; \"\"\" on a line of its own begins and ends one of several "
             "lines. The answer is shown while it is sampled, and Ctrl-C stops it. /help shows the "
             "commands: /system, /reset, /undo, /regenerate, /set, /save and others. In a pipe "
             "each line is a message, too, answers alone go to standard output, and an error ends "
             "the program.");
  args.positional(
      "MODEL", &options->model.model,
      "a Hugging Face folder with a tokenizer.json, a GGUF file, a checkpoint or run folder of "
      "ours, or a hub id in the local cache");
  args.option("--system", "TEXT", &options->system, "system message");
  args.option("--chat-template", "FILE", &options->chat_template,
              "file with a Jinja template, in place of the model's");
  add_sampling_options(args, &options->sampling, kChatTokens);
  add_model_options(args, &options->model);
  args.example("hocket chat MODEL --system 'Answer in one sentence.'", "a chat in the terminal");
  args.example("printf 'What is 2 + 3?\\nAnd times 4?\\n' | hocket chat MODEL --temperature 0",
               "two messages from a pipe");
  args.run([options] {
    redirect_output("");
    return chat_with_model(*options);
  });
}

}  // namespace hocket::cli
