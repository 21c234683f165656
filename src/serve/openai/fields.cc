// SPDX-License-Identifier: Apache-2.0
#include "serve/openai/fields.h"

#include <fmt/core.h>

namespace hocket::serve {

const std::vector<RequestField>& request_fields() {
  static const std::vector<RequestField> fields = {
#define HOCKET_FIELD(name, endpoints, vllm, llama, ours, example, neutral, note) \
  {name, endpoints, vllm, llama, FieldUse::ours, example, neutral, note},
#include "serve/openai/fields.inc"
#undef HOCKET_FIELD
  };
  return fields;
}

const RequestField* find_field(std::string_view name, Endpoint endpoint) {
  for (const RequestField& field : request_fields()) {
    if (field.name == name &&
        field.endpoints.find(static_cast<char>(endpoint)) != field.endpoints.npos)
      return &field;
  }
  return nullptr;
}

namespace {

const char* word_of(FieldUse use) {
  switch (use) {
    case FieldUse::supported:
      return "yes";
    case FieldUse::no_effect:
      return "no effect";
    case FieldUse::refused:
      return "refused";
  }
  return "";
}

}  // namespace

std::string fields_page() {
  std::string page =
      "# Fields of requests\n\n"
      "Written by `tools/docs.py` from src/serve/openai/fields.inc, to which a test holds the "
      "parser.\n"
      "**yes**: it has its effect. **no effect**: accepted, as the answer would be the same. "
      "**refused**: an error that\n"
      "names the field; null, and a value that asks for nothing, are accepted. **unknown**: vLLM "
      "and llama.cpp ignore such\n"
      "fields. A field in no row is refused (`--ignore-unknown-fields`: ignored with a warning). "
      "vLLM is that of 2026-11, and\n"
      "llama.cpp's server that of the same month, as their sources and documentation say.\n\n"
      "| field | completions | chat | vLLM | llama.cpp | hocket serve | |\n"
      "|---|---|---|---|---|---|---|\n";
  const auto word = [](std::string_view text) { return text == "no" ? "unknown" : text; };
  for (const RequestField& field : request_fields()) {
    const auto has = [&](char c) { return field.endpoints.find(c) != field.endpoints.npos; };
    page += fmt::format("| `{}` | {} | {} | {} | {} | {} | {} |\n", field.name, has('c') ? "x" : "",
                        has('h') ? "x" : "", word(field.vllm), word(field.llama_cpp),
                        word_of(field.ours), field.note);
  }
  return page;
}

}  // namespace hocket::serve
