// SPDX-License-Identifier: Apache-2.0
// Fields of requests, and their support by vLLM, llama.cpp and this server.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hocket::serve {

enum class FieldUse {
  supported,
  no_effect,  ///< accepted: the answer would be the same
  refused,    ///< but for a value that asks for nothing
};

struct RequestField {
  std::string_view name, endpoints, vllm, llama_cpp;
  FieldUse ours;
  std::string_view example, neutral, note;
};

enum class Endpoint : char { completions = 'c', chat = 'h' };

const std::vector<RequestField>& request_fields();
/// Returns the field of that name at an endpoint, or null.
const RequestField* find_field(std::string_view name, Endpoint endpoint);
/// Returns the fields as a page of Markdown (docs/serving-fields.md).
std::string fields_page();

}  // namespace hocket::serve
