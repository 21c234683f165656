// SPDX-License-Identifier: Apache-2.0
// Implements: decode_token, decode_whole (tokenizer_impl.h), the decoders of a tokenizer.json.
// Steps before `fuse` change each token by itself, steps behind it the whole text.
#include <algorithm>

#include "base/utf8.h"
#include "data/tokenizer/tokenizer_impl.h"

namespace hocket::data {
namespace {

using DecoderKind = DecoderStep::Kind;

void replace_all(std::string* text, std::string_view pattern, std::string_view content) {
  for (size_t at = 0; (at = text->find(pattern, at)) != std::string::npos; at += content.size()) {
    text->replace(at, pattern.size(), content);
  }
}

// "<0x0A>": the byte; -1 for any other token.
int byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    const char lower = static_cast<char>(c | 0x20);
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (lower < 'a' || lower > 'f')) return -1;
    byte = byte * 16 + (digit ? c - '0' : lower - 'a' + 10);
  }
  return byte;
}

void strip(const DecoderStep& step, std::string* text) {
  size_t begin = 0, end = text->size();
  const std::string_view all = *text, content = step.content;
  for (int64_t i = 0; i < step.start && all.substr(begin, end - begin).starts_with(content); ++i) {
    begin += content.size();
  }
  for (int64_t i = 0; i < step.stop && all.substr(begin, end - begin).ends_with(content); ++i) {
    end -= content.size();
  }
  *text = text->substr(begin, end - begin);
}

void apply(const DecoderStep& step, bool first, std::string* text) {
  switch (step.kind) {
    case DecoderKind::metaspace:
      replace_all(text, step.pattern, first && step.prepend != Prepend::never ? "" : " ");
      break;
    case DecoderKind::byte_fallback:
      if (const int byte = byte_of(*text); byte >= 0) {
        text->assign(1, static_cast<char>(byte));
      }
      break;
    case DecoderKind::replace:
      replace_all(text, step.pattern, step.content);
      break;
    case DecoderKind::strip:
      strip(step, text);
      break;
    case DecoderKind::fuse:
      break;
    case DecoderKind::join:
      if (!first) {
        text->insert(0, 1, ' ');
      }
      break;
  }
}

auto fuse_of(const TokenizerSpec& spec) {
  return std::find_if(spec.decoders.begin(), spec.decoders.end(),
                      [](const DecoderStep& step) { return step.kind == DecoderKind::fuse; });
}

}  // namespace

std::string decode_token(const TokenizerSpec& spec, std::string_view token, bool first) {
  std::string text(token);
  for (auto step = spec.decoders.begin(); step != fuse_of(spec); ++step) {
    apply(*step, first, &text);
  }
  return text;
}

std::string decode_whole(const TokenizerSpec& spec, std::string text) {
  for (auto step = fuse_of(spec); step != spec.decoders.end(); ++step) {
    apply(*step, true, &text);
  }
  return text;
}

}  // namespace hocket::data
