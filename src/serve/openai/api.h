// SPDX-License-Identifier: Apache-2.0
// OpenAI's HTTP interface to a service, with what vLLM adds to it (docs/serving.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"
#include "serve/byte_budget.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/openai/job.h"
#include "serve/openai/protocol.h"
#include "serve/request.h"

namespace hocket::serve {

/// Makes the constraint of one text: to a JSON schema, or of null to any JSON object. Throws Error
/// for a schema that is not supported.
using MakeConstraint =
    std::function<std::shared_ptr<TokenConstraint>(const nlohmann::ordered_json* schema)>;

/// Makes the constraint of one text to calls of tools (OpenAI's list) in the form that a tool
/// parser reads. `function`: the one to call; "": any of them. `most`: calls; -1: any number.
/// Throws Error for parameters that are not supported.
using MakeToolConstraint = std::function<std::shared_ptr<TokenConstraint>(
    const nlohmann::ordered_json& tools, const std::string& parser, const std::string& function,
    int64_t most)>;

struct ApiOptions {
  std::vector<std::string> names;            ///< of the model; at least one, the first one is shown
  std::string root;                          ///< the model's path
  std::vector<std::string> api_keys;         ///< empty: none is asked for
  std::vector<std::string> allowed_origins;  ///< of pages of other servers; "*": all
  /// Names of this server, beside localhost, addresses and the hosts of allowed_origins: without a
  /// key a request for another Host is refused, as a page reaches loopback by a name that its owner
  /// resolves so. Empty: all.
  std::vector<std::string> hosts;
  std::vector<int32_t> stop_tokens;  ///< of the model
  std::vector<int32_t> beginning;    ///< tokens before a text (data::beginning_of_text)
  CallLimits limits;
  std::string tool_parser;                      ///< one of tool_parser_names(); "": none
  bool splits_reasoning = false;                ///< <think>...</think> goes to `reasoning`
  int64_t max_streams = 256;                    ///< requests for text at a time; later ones get 429
  ByteBudget* budget = nullptr;                 ///< of all requests, outlives the Api; null: none
  double timeout_s = 0;                         ///< of a request for text; 0: none
  MakeConstraint constraint;                    ///< null: response_format is refused
  MakeToolConstraint tool_constraint;           ///< null: forced tool_choices are refused
  std::string tokenizer_info;                   ///< JSON of /tokenizer_info
  std::function<void(const std::string&)> log;  ///< a line per request; null: none
};

class Api {
 public:
  /// Requires: the service, the tokenizer and the template (null: the model has none) outlive it.
  Api(ApiOptions options, Service& service, const data::Tokenizer& tokenizer,
      const data::ChatTemplate* chat_template);

  /// Answers a request. May be called concurrently; throws nothing.
  HttpResponse handle(const HttpRequest& request, HttpPeer& peer);

  /// Makes the answer to a request that the HTTP layer refuses.
  HttpResponse refused(int status, const std::string& text) const;

  /// Refuses new requests for text from now on (503).
  void drain() { draining_ = true; }
  /// Ends texts that still run soon, with an error.
  void stop() { stopping_ = true; }
  int64_t streams() const { return streams_; }  ///< requests for text that are being answered

 private:
  /// An answer, and whether a job logs it.
  struct Reply {
    Reply(HttpResponse answer, bool is_logged = false)  // NOLINT: answers are replies
        : response(std::move(answer)), logged(is_logged) {}
    HttpResponse response;
    bool logged;
  };
  /// A place among the requests for text, and the memory that its one holds.
  struct Slot;
  /// Throws Refusal: all are taken, or the server stops.
  std::shared_ptr<Slot> take_slot();
  /// Throws Refusal where other requests leave less memory.
  void hold(int64_t bytes, Slot* slot) const;
  Reply route(const HttpRequest& request, HttpPeer& peer);
  void check_access(const HttpRequest& request) const;
  void add_cors(const HttpRequest& request, HttpResponse* response) const;
  Reply completions(const HttpRequest& request, HttpPeer& peer);
  Reply chat(const HttpRequest& request, HttpPeer& peer);
  Reply run(const HttpRequest& request, HttpPeer& peer, std::shared_ptr<Slot> slot,
            std::shared_ptr<Job> job, const Call& call, TextRequests requests);
  /// Refuses fields that are not `known`, and another model.
  void check_body(const nlohmann::ordered_json& body,
                  std::initializer_list<std::string_view> known) const;
  HttpResponse models(std::string_view id) const;
  HttpResponse tokenize(const HttpRequest& request) const;
  HttpResponse detokenize(const HttpRequest& request) const;

  void check_model(const Call& call) const;
  void warn_ignored(const Call& call) const;
  /// Text and tokens of a conversation.
  std::string render(const ChatCall& call) const;
  /// Refuses tools that the chat template leaves out of `text`, what it makes of the call.
  void check_tools_rendered(const ChatCall& call, const std::string& text) const;
  std::vector<int32_t> encode_chat(const std::string& text, bool special) const;
  std::vector<int32_t> prompt_ids(PromptInput& prompt, bool special) const;
  /// Refuses text that is too long for the window however it is cut, before it is.
  void check_length(const std::string& text) const;
  /// Returns the most tokens of an answer. Throws Refusal where prompt and answer are too long.
  int64_t most_tokens(const Call& call, int64_t prompt_tokens) const;
  /// Makes the request of one text; its sample and constraint come later.
  Request request_of(const Call& call, SharedTokens prompt) const;
  void set_constraint(const JsonRule& rule, Request* request) const;
  void set_tool_constraint(const ChatCall& call, const std::string& parser, Request* request) const;
  void log(const HttpRequest& request, int status, double seconds, const std::string& text) const;

  const ApiOptions options_;
  Service& service_;
  const data::Tokenizer& tokenizer_;
  const data::ChatTemplate* const template_;
  const int64_t created_;  ///< seconds since 1970
  mutable Metrics metrics_;
  std::atomic<bool> draining_{false}, stopping_{false};
  std::atomic<int64_t> streams_{0};
  const JobContext context_;
  int64_t max_token_bytes_ = 0;     ///< of the longest token; 0: text may shrink before it is cut
  bool marks_are_special_ = false;  ///< texts without special tokens have no calls
  bool reasoning_is_special_ = false;  ///< nor marks of reasoning
};

/// The page at "/".
std::string_view chat_page();

}  // namespace hocket::serve
