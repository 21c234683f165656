// SPDX-License-Identifier: Apache-2.0
// Routes, access and logs; the endpoints for text are in endpoints.cc.
#include "serve/openai/api.h"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/text.h"
#include "data/model_text.h"
#include "serve/openai/body.h"
#include "serve/openai/refusal.h"
#include "serve/openai/tool_parser.h"

namespace hocket::serve {
namespace {

/// Compares without a hint of where the difference is.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ b[b.empty() ? 0 : i % b.size()]);
  }
  return difference == 0;
}

/// Scheme and slashes of an origin removed: "http://a:80" is "a:80".
std::string_view authority(std::string_view origin) {
  const size_t at = origin.find("://");
  return at == origin.npos ? origin : origin.substr(at + 3);
}

/// Compares words of ASCII, whatever their case.
bool same_word(std::string_view a, std::string_view b) {
  const auto small = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::ranges::equal(a, b, {}, small, small);
}

/// Host of "host:port" or "[::1]:port", as it is in "[::1]".
std::string_view host_of(std::string_view text) {
  const size_t bracket = text.starts_with('[') ? text.find(']') : text.npos;
  return bracket == text.npos ? text.substr(0, text.find(':')) : text.substr(0, bracket + 1);
}

/// Returns whether a Host header names the server: an address cannot be resolved to another one.
bool names_server(const ApiOptions& options, std::string_view header) {
  const std::string_view host = host_of(header);
  const bool is_address = host.find_first_not_of("0123456789.") == host.npos || host.ends_with(']');
  if (is_address || same_word(host, "localhost") || host.ends_with(".localhost")) return true;
  const auto is_host = [&](const std::string& name) { return same_word(name, host); };
  const auto is_origin = [&](const std::string& origin) {
    return origin == "*" || same_word(host_of(authority(origin)), host);
  };
  return std::ranges::any_of(options.hosts, is_host) ||
         std::ranges::any_of(options.allowed_origins, is_origin);
}

/// Returns the token of "Bearer TOKEN"; empty: another scheme, or none.
std::string_view bearer_token(std::string_view header) {
  const size_t end = std::min(header.find(' '), header.size());
  if (!same_word(header.substr(0, end), "bearer")) return "";
  return header.substr(std::min(header.find_first_not_of(' ', end), header.size()));
}

/// Paths of the server, for metrics: others could be any number.
std::string_view known_path(std::string_view path) {
  static constexpr std::string_view paths[] = {
      "/",         "/health",     "/metrics",        "/v1/models", "/v1/completions",     "/ping",
      "/tokenize", "/detokenize", "/tokenizer_info", "/version",   "/v1/chat/completions"};
  return std::ranges::find(paths, path) != std::end(paths) ? path : "other";
}

/// Returns what a log says of a refusal: where the request is at fault only the field, as messages
/// quote what it has, which may be text of the client's.
std::string logged(const Refusal& refusal) {
  if (refusal.status != 400) return refusal.message.substr(0, 300);
  const bool both = !refusal.code.empty() && !refusal.param.empty();
  return refusal.code + (both ? ": " : "") + refusal.param;
}

bool has_mark(const data::Tokenizer& tokenizer, std::initializer_list<const char*> marks) {
  return std::ranges::any_of(tokenizer.spec().added, [&](const data::AddedToken& added) {
    return added.special && std::ranges::find(marks, added.text) != marks.end();
  });
}

}  // namespace

Api::Api(ApiOptions options, Service& service, const data::Tokenizer& tokenizer,
         const data::ChatTemplate* chat_template)
    : options_(std::move(options)),
      service_(service),
      tokenizer_(tokenizer),
      template_(chat_template),
      created_(std::time(nullptr)),
      metrics_(options_.names.at(0), service.max_model_len()),
      context_{.service = service_,
               .metrics = metrics_,
               .tokenizer = tokenizer_,
               .model = options_.names.at(0),
               .timeout_s = options_.timeout_s,
               .stopping = stopping_} {
  if (tokenizer_.spec().normalizers.empty()) {
    for (const int32_t length : tokenizer_.token_lengths()) {
      max_token_bytes_ = std::max<int64_t>(max_token_bytes_, length);
    }
    for (const data::AddedToken& added : tokenizer_.spec().added) {
      max_token_bytes_ = std::max(max_token_bytes_, std::ssize(added.text));
    }
  }
  reasoning_is_special_ = has_mark(tokenizer_, {"<think>", "</think>"});
  marks_are_special_ = has_mark(tokenizer_, {"<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"});
}

void Api::log(const HttpRequest& request, int status, double seconds,
              const std::string& text) const {
  metrics_.answered(request.method, known_path(request.path), status);
  if (options_.log == nullptr) return;
  options_.log(fmt::format("{} {} {} {} {}{}{}", request.address, request.method,
                           printable(request.path.substr(0, 200)), status, human_time(seconds),
                           text.empty() ? "" : ", ", printable(text)));
}

void Api::check_access(const HttpRequest& request) const {
  const std::string_view host = request.header("host");
  if (!options_.hosts.empty() && options_.api_keys.empty() && !names_server(options_, host)) {
    throw Refusal{.status = 403,
                  .message = fmt::format("{} is no name of this server; try localhost, an address, "
                                         "or --allowed-origins with http://{}",
                                         quote(host, 100), printable(host.substr(0, 100)))};
  }
  const std::string_view origin = request.header("origin");
  const bool own_page = origin.empty() || authority(origin) == host;
  const auto& allowed = options_.allowed_origins;
  if (!own_page && std::ranges::find(allowed, "*") == allowed.end() &&
      std::ranges::find(allowed, origin) == allowed.end()) {
    throw Refusal{.status = 403,
                  .message = fmt::format("pages of {} may not use this server (--allowed-origins)",
                                         quote(origin, 100))};
  }
  const bool open = request.path == "/" || request.path == "/health" || request.path == "/ping" ||
                    request.path == "/metrics" || request.method == "OPTIONS";
  if (open || options_.api_keys.empty()) return;
  const std::string_view given = bearer_token(request.header("authorization"));
  bool known = false;
  for (const std::string& key : options_.api_keys) {
    known |= same_secret(given, key);
  }
  if (!known) {
    throw Refusal{.status = 401,
                  .message = "the API key is missing or wrong; expected Authorization: Bearer KEY",
                  .code = "invalid_api_key"};
  }
}

void Api::add_cors(const HttpRequest& request, HttpResponse* response) const {
  const std::string_view origin = request.header("origin");
  if (origin.empty() || options_.allowed_origins.empty()) return;
  response->headers.emplace_back("Access-Control-Allow-Origin", std::string(origin));
  response->headers.emplace_back("Vary", "Origin");
  if (request.method == "OPTIONS") {
    response->headers.emplace_back("Access-Control-Allow-Methods", "GET, POST");
    response->headers.emplace_back("Access-Control-Allow-Headers", "Authorization, Content-Type");
    response->headers.emplace_back("Access-Control-Max-Age", "600");
  }
}

HttpResponse Api::handle(const HttpRequest& request, HttpPeer& peer) {
  const int64_t start_ns = now_ns();
  const auto answer = [&]() -> Reply {
    Refusal refusal;
    try {
      check_access(request);
      return route(request, peer);
    } catch (const Refusal& thrown) {
      refusal = thrown;
    } catch (const Error& error) {
      refusal = {.status = error.kind() == Error::Kind::kInput ? 400 : 500,
                 .message = std::string(error.text())};
    } catch (const std::exception& error) {
      refusal = {.status = 500, .message = error.what()};
    }
    log(request, refusal.status, seconds_since(start_ns), logged(refusal));
    return {error_response(refusal), true};
  };
  Reply reply = answer();
  if (!reply.logged) {
    log(request, reply.response.status, seconds_since(start_ns), "");
  }
  add_cors(request, &reply.response);
  return std::move(reply.response);
}

HttpResponse Api::refused(int status, const std::string& text) const {
  HttpRequest unread;
  unread.address = unread.method = unread.path = "-";
  log(unread, status, 0, text);
  const bool is_busy = status == 429;
  return error_response({.status = status,
                         .message = text,
                         .code = is_busy ? "rate_limit_exceeded" : "",
                         .retry_after_s = is_busy ? 1 : 0});
}

namespace {

HttpResponse chat_page_response() {
  HttpResponse response{.type = "text/html; charset=utf-8", .body = std::string(chat_page())};
  response.headers.emplace_back("Content-Security-Policy",
                                "default-src 'none'; script-src 'unsafe-inline'; style-src "
                                "'unsafe-inline'; connect-src 'self'; img-src data:");
  return response;
}

}  // namespace

Api::Reply Api::route(const HttpRequest& request, HttpPeer& peer) {
  const std::string& path = request.path;
  struct Route {
    std::string_view path, method;
    std::function<Reply()> answer;
  };
  const auto health = [&] {
    if (draining_ || service_.is_shut_down()) {
      throw Refusal{.status = 503, .message = "the server is stopping"};
    }
    if (const std::string why = service_.failure(); !why.empty()) {
      throw Refusal{.status = 503, .message = "the engine failed: " + why};
    }
    return HttpResponse{.body = R"({"status":"ok"})"};
  };
  const auto metrics = [&] {
    return HttpResponse{.type = "text/plain; version=0.0.4; charset=utf-8",
                        .body = metrics_.page(service_.stats(), streams_)};
  };
  const auto absent = [&]() -> Reply {
    throw Refusal{.status = 404,
                  .message = fmt::format("{} is not supported by this server; try "
                                         "/v1/chat/completions or /v1/completions",
                                         path)};
  };
  const Route routes[] = {
      {"/v1/chat/completions", "POST", [&] { return chat(request, peer); }},
      {"/v1/completions", "POST", [&] { return completions(request, peer); }},
      {"/v1/models", "GET", [&] { return models(""); }},
      {"/tokenize", "POST", [&] { return tokenize(request); }},
      {"/detokenize", "POST", [&] { return detokenize(request); }},
      {"/tokenizer_info", "GET", [&] { return HttpResponse{.body = options_.tokenizer_info}; }},
      {"/health", "GET", health},
      {"/ping", "GET", health},
      {"/version", "GET",
       [] { return HttpResponse{.body = R"({"version":")" HOCKET_VERSION "\"}"}; }},
      {"/metrics", "GET", metrics},
      {"/", "GET", chat_page_response},
      {"/v1/responses", "POST", absent},
      {"/v1/embeddings", "POST", absent},
  };
  for (const Route& one : routes) {
    if (one.path != path) continue;
    if (request.method == "OPTIONS") return HttpResponse{.status = 204, .type = "text/plain"};
    const bool head = request.method == "HEAD" && one.method == "GET";
    if (request.method != one.method && !head) {
      throw Refusal{
          .status = 405,
          .message = fmt::format("{} takes {}, not {}", path, one.method, request.method)};
    }
    return one.answer();
  }
  constexpr std::string_view one_model = "/v1/models/";
  if (path.starts_with(one_model) && request.method == "GET") {
    return models(std::string_view(path).substr(one_model.size()));
  }
  throw Refusal{.status = 404, .message = fmt::format("there is no {} here", quote(path, 100))};
}

HttpResponse Api::models(std::string_view id) const {
  JsonWriter json;
  const auto write = [&](const std::string& name) {
    json.object().member("id", name).member("object", "model").member("created", created_);
    json.member("owned_by", "hocket").member("root", options_.root).key("parent").null();
    json.member("max_model_len", service_.max_model_len()).end();
  };
  if (!id.empty()) {
    if (std::ranges::find(options_.names, id) == options_.names.end()) {
      throw Refusal{.status = 404,
                    .message = fmt::format("the model {} is not served; expected {}",
                                           quote(id, 100), join(options_.names, " or ")),
                    .param = "model",
                    .code = "model_not_found"};
    }
    write(std::string(id));
    return {.body = json.take()};
  }
  json.object().member("object", "list").key("data").array();
  for (const std::string& name : options_.names) {
    write(name);
  }
  json.end().end();
  return {.body = json.take()};
}

void Api::check_body(const nlohmann::ordered_json& body,
                     std::initializer_list<std::string_view> known) const {
  for (const auto& [key, value] : body.items()) {
    if (value.is_null() || std::ranges::find(known, key) != known.end()) continue;
    if (!options_.limits.ignore_unknown) {
      refuse_unknown(key, std::vector<std::string>(known.begin(), known.end()));
    }
    log_warning("a request has the unknown field {}, which is ignored", quote(key, 60));
  }
  if (const auto model = Body(body).text("model"); model && !model->empty()) {
    models(*model);
  }
}

HttpResponse Api::tokenize(const HttpRequest& request) const {
  const nlohmann::ordered_json json = parse_body(request.body);
  const Body body(json);
  std::vector<int32_t> ids;
  if (body.find("messages") != nullptr) {
    if (body.find("prompt") != nullptr) refuse("prompt", "and messages exclude each other");
    check_body(json, {"model", "messages", "tools", "documents", "chat_template_kwargs",
                      "reasoning_effort", "add_generation_prompt", "continue_final_message",
                      "add_special_tokens", "return_token_strs"});
    ChatCall call;
    parse_conversation(json, &call);
    call.tool_choice = call.tools == nullptr ? ToolChoice::none : ToolChoice::automatic;
    ids = encode_chat(render(call), body.boolean("add_special_tokens").value_or(false));
  } else {
    check_body(json, {"model", "prompt", "add_special_tokens", "return_token_strs"});
    const auto text = body.text("prompt");
    if (!text) refuse("prompt", "is missing; expected text, or messages");
    const bool special = body.boolean("add_special_tokens").value_or(true);
    check_length(*text);
    PromptInput prompt{.text = *text};
    // Also of no text, which prompt_ids refuses.
    ids = !special        ? tokenizer_.encode(*text)
          : text->empty() ? options_.beginning
                          : prompt_ids(prompt, true);
  }
  const TokenNames names(tokenizer_, false);
  JsonWriter out;
  out.object().member("count", ids.size()).member("max_model_len", service_.max_model_len());
  out.member("tokens", ids).key("token_strs");
  if (body.boolean("return_token_strs").value_or(false)) {
    out.array();
    for (const int32_t id : ids) {
      out.value(names.name(id));
    }
    out.end();
  } else {
    out.null();
  }
  return {.body = out.end().take()};
}

HttpResponse Api::detokenize(const HttpRequest& request) const {
  const nlohmann::ordered_json json = parse_body(request.body);
  const Body body(json);
  check_body(json, {"model", "tokens"});
  if (body.find("tokens") == nullptr) refuse("tokens", "is missing; expected token ids");
  const std::vector<int32_t> ids = body.tokens("tokens", tokenizer_.vocab_size());
  JsonWriter out;
  return {.body = out.object().member("prompt", tokenizer_.decode(ids)).end().take()};
}

}  // namespace hocket::serve
