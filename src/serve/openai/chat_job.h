// SPDX-License-Identifier: Apache-2.0
// Answers of /v1/chat/completions: reasoning and calls of tools are taken out of the text.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/openai/job.h"
#include "serve/openai/tool_parser.h"

namespace hocket::serve {

struct ChatFormat {
  std::string prompt_text;
  std::string tool_parser;  ///< "": the text has no calls
  bool splits_reasoning = false;
  bool reasoning_is_open = false;  ///< the prompt ends with <think>
  bool drops_blank = false;        ///< that the text begins with
};

class ChatJob final : public Job {
 public:
  ChatJob(const JobContext& context, ChatCall call, SharedTokens prompt, ChatFormat format);
  const ChatCall& chat() const { return *own_; }

 private:
  ChatJob(const JobContext& context, std::unique_ptr<const ChatCall> call, ChatFormat format);
  bool take(size_t index, const Update& update, JsonWriter* part) override;
  void write_choices(JsonWriter* json) override;
  void write_extra(JsonWriter* json) override;
  const char* part_object() const override { return "chat.completion.chunk"; }
  bool opens_texts() const override { return true; }
  void write_opening(size_t index, JsonWriter* json) override;

  /// A part of a message, or all of it.
  struct Message {
    std::string reasoning;
    ToolText text;
  };
  struct Choice {
    std::optional<ReasoningSplitter> splitter;
    std::unique_ptr<ToolParser> parser;  ///< null: none
    std::map<int64_t, std::string> ids;  ///< of calls
    bool begun = false, has_calls = false;
    Message all;
    std::vector<int32_t> tokens;
    std::vector<TokenLogprobs> logprobs;
    std::vector<TokenLogprobs> prompt_logprobs;
    Update last;
  };
  Message read(const Update& update, Choice* choice) const;
  void write_part(size_t index, const Message& message, const Update& update, Choice* choice,
                  JsonWriter* json);
  void write_calls(const std::vector<ToolCallPart>& calls, bool parts, Choice* choice,
                   JsonWriter* json) const;
  /// Returns whether an update has anything to report: of hidden tokens it has not.
  bool reports(const Message& message, const Update& update) const;
  const char* stopped(const Choice& choice) const;

  std::unique_ptr<const ChatCall> own_;
  const ChatFormat format_;
  std::vector<Choice> choices_;
};

}  // namespace hocket::serve
