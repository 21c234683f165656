// SPDX-License-Identifier: Apache-2.0
// Parsing of the fields that both endpoints have; parts of protocol.h.
#pragma once

#include "serve/openai/body.h"
#include "serve/openai/protocol.h"

namespace hocket::serve {

/// Refuses fields that change the answer and are not supported, and unknown ones, or lists these in
/// `ignored`.
void check_fields(const nlohmann::ordered_json& body, Endpoint endpoint, const CallLimits& limits,
                  std::vector<std::string>* ignored);

/// Reads everything but prompts, log-probabilities of the endpoint's kind, and max_tokens.
void parse_common(const Body& body, const CallLimits& limits, Call* call);

}  // namespace hocket::serve
