// SPDX-License-Identifier: Apache-2.0
#include "serve/openai/refusal.h"

#include "base/json_writer.h"

namespace hocket::serve {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

std::string error_json(const Refusal& refusal) {
  JsonWriter json;
  json.object().key("error").object().member("message", refusal.message);
  json.member("type", type_of(refusal.status));
  const auto text_or_null = [&](const char* name, const std::string& text) {
    json.key(name);
    text.empty() ? json.null() : json.value(text);
  };
  text_or_null("param", refusal.param);
  text_or_null("code", refusal.code);
  json.end().end();
  return json.take();
}

HttpResponse error_response(const Refusal& refusal) {
  HttpResponse response{.status = refusal.status, .body = error_json(refusal)};
  if (refusal.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(refusal.retry_after_s));
  }
  if (refusal.status == 401) {
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  return response;
}

}  // namespace hocket::serve
