// SPDX-License-Identifier: Apache-2.0
// Lines of OpenAI's batches, answered as the server answers requests.
#pragma once

#include "serve/batch/row_answerer.h"
#include "serve/openai/api.h"

namespace hocket::serve {

/// Returns an answerer that hands bodies to an Api of these options. The others outlive it.
BodyAnswerer api_answerer(ApiOptions options, Service& service, const data::Tokenizer& tokenizer,
                          const data::ChatTemplate* chat_template);

}  // namespace hocket::serve
