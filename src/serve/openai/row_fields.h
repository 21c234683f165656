// SPDX-License-Identifier: Apache-2.0
// Fields of requests beside the prompt or the messages of a row of a data file, and
// log-probabilities of the row's text.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json_writer.h"
#include "serve/request.h"

namespace hocket::serve {

struct RowFields {
  std::optional<int64_t> texts;  ///< the field n
  bool has_seed = false, has_max_tokens = false;
};

/// Reads the fields of requests (fields.h) that a row has beside its prompt, or its messages
/// (`is_chat`), into `request`, whose values are the defaults. Keys that are no such fields are the
/// user's own. Throws Error in the name of `where` for a value out of range, and for a field that
/// has no meaning in a row.
RowFields read_row_fields(const nlohmann::ordered_json& row, bool is_chat, int64_t vocab_size,
                          const std::string& where, Request* request);

/// Writes the members token_logprobs and top_logprobs of an object; nothing if there are none.
void write_row_logprobs(const std::vector<TokenLogprobs>& logprobs, JsonWriter* json);

}  // namespace hocket::serve
