// SPDX-License-Identifier: Apache-2.0
// A request for texts while it is answered, whole or as a stream of server-sent events.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serve/http.h"
#include "serve/openai/protocol.h"
#include "serve/openai/refusal.h"
#include "serve/openai/texts.h"
#include "serve/openai/token_text.h"

namespace hocket::serve {

/// Parts of the server that jobs use; it outlives them.
struct JobContext {
  Service& service;
  Metrics& metrics;
  const data::Tokenizer& tokenizer;
  std::string model;            ///< name in answers
  double timeout_s = 0;         ///< of a request; 0: none
  std::atomic<bool>& stopping;  ///< texts are to end now
};

/// Returns a request's id in answers: "chatcmpl-...".
std::string make_id(const std::string& prefix, const std::string& given);
/// Returns `length` random letters and digits.
std::string random_word(int length);

class Job {
 public:
  Job(const JobContext& context, const Call& call, std::string id, const char* object)
      : context_(context),
        call_(call),
        names_(context.tokenizer, call.tokens_as_ids),
        id_(std::move(id)),
        object_(object),
        created_(std::time(nullptr)) {}
  virtual ~Job();  ///< cancels what still runs

  /// Submits; throws Refusal.
  void start(TextRequests requests);
  /// Waits for all texts and returns the answer. Throws Refusal for a text that failed. If the
  /// client goes, texts are cancelled, and the status is 499.
  HttpResponse whole(HttpPeer& peer);
  /// Writes events until all texts have ended or the client is gone. Returns the status for logs.
  int stream(HttpStream& out);

  /// Called once, when the answer has ended or is given up: status, text for logs.
  std::function<void(int, const std::string&)> on_end;

 protected:
  /// Takes an update of a text; `part`, unless null, is the choice that reports it in an event.
  /// Returns whether there is anything to report.
  virtual bool take(size_t index, const Update& update, JsonWriter* part) = 0;
  /// Returns whether a stream has an event before the first update of each text.
  virtual bool opens_texts() const { return false; }
  virtual void write_opening(size_t, JsonWriter*) {}  ///< the choice of that event
  virtual void write_choices(JsonWriter* json) = 0;
  virtual void write_extra(JsonWriter*) {}  ///< more members of a whole answer, or first event
  virtual const char* part_object() const = 0;

  /// Counts of a text.
  struct Counts {
    int64_t tokens = 0, cached = 0;
    bool begun = false;  ///< a stream has reported the text
  };
  void count(size_t index, const Update& update);
  void write_usage(JsonWriter* json) const;
  /// Writes "finish_reason" and "stop_reason"; null while a text runs.
  void write_finish(const Update& update, const char* stopped, JsonWriter* json) const;
  std::vector<int32_t> tokens_of(const Update& update) const;

  const JobContext& context_;
  const Call& call_;
  const TokenNames names_;
  std::vector<SharedTokens> prompts_;  ///< of each prompt; n texts have one

 private:
  void open(JsonWriter* json, const char* object) const;
  /// Returns the events that tell of an update, and counts its tokens.
  std::string parts(size_t index, const Update& update);
  /// Returns an event of one choice; "": `write_choice` returns that it has nothing to report.
  std::string event_of(const std::function<bool(JsonWriter*)>& write_choice);
  std::string usage_part() const;
  /// Returns why the answer must end now: a status and a message; 0: it need not.
  Refusal reason_to_end() const;
  /// Returns the refusal for a text that failed: with its engine, as that was shut down, or by
  /// itself, as one that its format cannot go on, or whose logits are no numbers.
  Refusal failed(const Update& update) const;
  void end(int status);

  const std::string id_;
  const char* const object_;
  const int64_t created_;
  std::unique_ptr<Texts> texts_;
  std::vector<Counts> counts_;
  bool first_part_ = true;
};

}  // namespace hocket::serve
