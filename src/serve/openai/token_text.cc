// SPDX-License-Identifier: Apache-2.0
#include "serve/openai/token_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace hocket::serve {
namespace {

void write_bytes(std::string_view bytes, JsonWriter* json) {
  json->array();
  for (const char c : bytes) {
    json->value(static_cast<int>(static_cast<unsigned char>(c)));
  }
  json->end();
}

}  // namespace

std::string_view TokenNames::bytes(int32_t id) const {
  return id >= 0 && id < tokenizer_.vocab_size() ? tokenizer_.token_bytes(id) : "";
}

std::string TokenNames::name(int32_t id) const {
  if (as_ids_) return fmt::format("token_id:{}", id);
  const std::string_view text = bytes(id);
  if (is_utf8(text)) return std::string(text);
  std::string out = "bytes:";
  for (const char c : text) {
    out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out;
}

int64_t characters(std::string_view bytes) {
  return std::ranges::count_if(bytes, [](char c) { return (c & 0xc0) != 0x80; });
}

double shown_logprob(double logprob) { return std::max(logprob, -9999.0); }

void write_chat_logprobs(const TokenNames& names, const std::vector<TokenLogprobs>& tokens,
                         bool sampled, JsonWriter* json) {
  const auto token = [&](int32_t id, double logprob) {
    json->object().member("token", names.name(id)).member("logprob", shown_logprob(logprob));
    json->key("bytes");
    write_bytes(names.bytes(id), json);
  };
  json->object().key("content").array();
  for (const TokenLogprobs& row : tokens) {
    token(row.token, row.logprob);
    if (sampled) {
      json->member("sampled_logprob", shown_logprob(row.sampled_logprob));
    }
    json->key("top_logprobs").array();
    for (const auto& [id, logprob] : row.top) {
      token(id, logprob);
      json->end();
    }
    json->end().end();
  }
  json->end().end();
}

void CompletionLogprobs::add(const TokenNames& names, int32_t id, const TokenLogprobs* logprobs) {
  Row row{.name = names.name(id), .offset = offset_};
  const int64_t length = characters(names.bytes(id)), hidden = std::min(hidden_, length);
  hidden_ -= hidden;
  offset_ += length - hidden;
  if (logprobs != nullptr) {
    row.known = true;
    row.logprob = shown_logprob(logprobs->logprob);
    row.sampled = shown_logprob(logprobs->sampled_logprob);
    // Tokens of one name are one key: the likelier one's.
    const auto put = [&](int32_t token, double value) {
      std::string name = names.name(token);
      const bool there =
          std::ranges::any_of(row.top, [&](const auto& other) { return other.first == name; });
      if (!there) {
        row.top.emplace_back(std::move(name), shown_logprob(value));
      }
    };
    for (const auto& [token, value] : logprobs->top) {
      put(token, value);
    }
    put(id, logprobs->logprob);
  }
  rows_.push_back(std::move(row));
}

void CompletionLogprobs::write(JsonWriter* json) {
  const auto list = [&](const char* key, const auto& write_row) {
    json->key(key).array();
    for (const Row& row : rows_) {
      write_row(row);
    }
    json->end();
  };
  const auto number = [&](const Row& row, double value) {
    row.known ? json->value(value) : json->null();
  };
  json->object();
  list("tokens", [&](const Row& row) { json->value(row.name); });
  list("token_logprobs", [&](const Row& row) { number(row, row.logprob); });
  if (sampled_) {
    list("sampled_token_logprobs", [&](const Row& row) { number(row, row.sampled); });
  }
  list("top_logprobs", [&](const Row& row) {
    if (!row.known) {
      json->null();
      return;
    }
    json->object();
    for (const auto& [name, value] : row.top) {
      json->member(name, value);
    }
    json->end();
  });
  list("text_offset", [&](const Row& row) { json->value(row.offset); });
  json->end();
  rows_.clear();
}

void write_prompt_logprobs(const TokenNames& names, const std::vector<TokenLogprobs>& tokens,
                           JsonWriter* json) {
  json->array().null();
  for (const TokenLogprobs& row : tokens) {
    json->object();
    const auto entry = [&](int32_t id, double logprob, int64_t rank) {
      json->key(std::to_string(id)).object().member("logprob", shown_logprob(logprob));
      json->member("rank", rank).member("decoded_token", names.name(id)).end();
    };
    bool own = false;
    for (size_t i = 0; i < row.top.size(); ++i) {
      own = own || row.top[i].first == row.token;
      entry(row.top[i].first, row.top[i].second, static_cast<int64_t>(i) + 1);
    }
    if (!own) {
      entry(row.token, row.logprob, row.rank);
    }
    json->end();
  }
  json->end();
}

}  // namespace hocket::serve
