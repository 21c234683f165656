// SPDX-License-Identifier: Apache-2.0
// Rows of a batch job are answered by a Service.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"
#include "serve/batch/worker.h"
#include "serve/request.h"

namespace hocket::serve {

/// Answers a request of OpenAI's interface: endpoint ("/v1/chat/completions"), body. `gone` becomes
/// true if the answer is no longer wanted. May be called concurrently.
struct BodyAnswer {
  int status = 200;
  std::string body;
};
using BodyAnswerer = std::function<BodyAnswer(const std::string& url, const std::string& body,
                                              const std::function<bool()>& gone)>;

/// Parts of a model that rows need. All must outlive the answerer.
struct RowModel {
  Service* service = nullptr;
  const data::Tokenizer* tokenizer = nullptr;
  const data::ChatTemplate* chat_template = nullptr;  ///< null: rows with messages are errors
  std::vector<int32_t> beginning;                     ///< tokens before a prompt
  BodyAnswerer openai = nullptr;                      ///< empty: rows with a url are errors
};

/// Settings of all rows; a row's own fields win.
struct RowSettings {
  Sampling sampling = {};
  int64_t max_tokens = 200, samples = 1;
  std::vector<std::string> stops = {};
  std::vector<int32_t> stop_tokens = {};
  int64_t logprobs = -1;              ///< as in Request, of rows without a body
  bool split_special_tokens = false;  ///< in prompts; other rows are then errors
  /// JSON object of fields that a body without them gets: those of /v1/completions, of which
  /// max_tokens and logprobs are written as the row's endpoint has them.
  std::string body_defaults = "{}";
};

/// Answers rows: a text, {"prompt": text or messages}, {"messages": [...]} (openai/chat_row.h),
/// each with a "custom_id" if one likes and fields of requests (openai/row_fields.h), or lines of
/// OpenAI's batches, {"custom_id", "method", "url", "body"}.
class RowAnswerer {
 public:
  RowAnswerer(RowModel model, RowSettings settings);
  /// Returns the result of a row; of a wrong row it is an error. Draws depend on the seed and the
  /// number of the row. Throws Error if the service fails, and Stopped once `cancelled` is true.
  /// May be called concurrently.
  RowResult answer(const InputRow& row, const std::function<bool()>& cancelled) const;

 private:
  struct Text;
  /// A row's request, and the texts to write of it.
  struct Task;
  RowResult answer_object(const InputRow& row, const CustomId& custom_id,
                          const nlohmann::ordered_json& json,
                          const std::function<bool()>& cancelled) const;
  RowResult answer_task(const InputRow& row, const CustomId& custom_id, const Task& task,
                        const std::function<bool()>& cancelled) const;
  RowResult answer_body(const InputRow& row, const CustomId& custom_id, nlohmann::ordered_json body,
                        const std::string& url, const std::function<bool()>& cancelled) const;
  /// Makes the task of a prompt; `fields`: the object that it stands in.
  Task text_task(const InputRow& row, const std::string& text,
                 const nlohmann::ordered_json& fields) const;
  Task chat_task(const InputRow& row, const nlohmann::ordered_json& messages,
                 const nlohmann::ordered_json& fields) const;
  Task task_of(const InputRow& row, std::vector<int32_t> prompt, bool is_chat,
               const nlohmann::ordered_json& fields) const;
  /// Throws WrongRow for a row with `what` if special tokens in prompts are to be split.
  void require_joined_special_tokens(const char* what) const;
  std::vector<Text> generate(const Task& task, const std::function<bool()>& cancelled) const;

  const RowModel model_;
  const RowSettings settings_;
  const std::shared_ptr<const nlohmann::ordered_json> body_defaults_;
};

/// Generates with a function that answers a row and takes its time, on `slots` threads. The
/// function throws Stopped once its second argument returns true.
std::unique_ptr<RowGenerator> pooled_generator(
    int64_t slots,
    std::function<RowResult(const InputRow&, const std::function<bool()>& cancelled)> answer);

}  // namespace hocket::serve
