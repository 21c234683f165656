// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/json_steps.h"

#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "data/tokenizer/regex.h"

namespace hocket::data {
namespace {

using Behavior = PretokenizerStep::Behavior;

// Bytes of a base64 text; false if it is none.
bool from_base64(std::string_view text, std::string* out) {
  uint32_t bits = 0;
  int count = 0;
  while (text.ends_with('=')) {
    text.remove_suffix(1);
  }
  for (const char c : text) {
    int value;
    if (c >= 'A' && c <= 'Z') {
      value = c - 'A';
    } else if (c >= 'a' && c <= 'z') {
      value = c - 'a' + 26;
    } else if (c >= '0' && c <= '9') {
      value = c - '0' + 52;
    } else if (c == '+' || c == '/') {
      value = c == '+' ? 62 : 63;
    } else {
      return false;
    }
    bits = bits << 6 | static_cast<uint32_t>(value);
    if ((count += 6) >= 8) {
      out->push_back(static_cast<char>(bits >> (count -= 8) & 0xFF));
    }
  }
  return true;
}

// A pattern: {"String": ...} or {"Regex": ...}.
struct Pattern {
  std::string text;
  bool regex = false;

  explicit Pattern(const JsonView& view) {
    regex = view.has("Regex");
    text = view.get_string(regex ? "Regex" : "String");
    if (text.empty()) {
      view.fail("is empty");
    }
  }
  std::string as_regex() const { return regex ? text : regex_escape(text); }
};

Behavior behavior_of(const JsonView& view, const char* otherwise = nullptr) {
  const std::string name =
      otherwise == nullptr ? view.get_string("behavior") : view.get_string("behavior", otherwise);
  const std::pair<const char*, Behavior> known[] = {
      {"Removed", Behavior::removed},
      {"Isolated", Behavior::isolated},
      {"MergedWithPrevious", Behavior::merged_with_previous},
      {"MergedWithNext", Behavior::merged_with_next},
      {"Contiguous", Behavior::contiguous}};
  for (const auto& [text, behavior] : known) {
    if (name == text) return behavior;
  }
  view.fail(
      fmt::format("has behavior {}; expected Removed, Isolated, MergedWithPrevious, "
                  "MergedWithNext or Contiguous",
                  quote(name)));
}

Prepend prepend_of(const JsonView& view) {
  const std::string scheme = view.get_string("prepend_scheme", "always");
  if (scheme == "never" || !view.get_bool("add_prefix_space", true)) return Prepend::never;
  if (scheme == "first") return Prepend::first;
  if (scheme != "always") {
    view.fail(fmt::format("has prepend_scheme {}; expected always, first or never", quote(scheme)));
  }
  return Prepend::always;
}

PretokenizerStep metaspace_step(const JsonView& view) {
  PretokenizerStep step;
  step.kind = PretokenizerStep::Kind::metaspace;
  step.replacement = view.get_string("replacement");
  if (step.replacement.empty()) {
    view.fail("has an empty replacement");
  }
  step.prepend = prepend_of(view);
  step.cut = view.get_bool("split", true);
  return step;
}

// The characters that `tokenizers` takes for punctuation: ASCII's, with symbols that Unicode counts
// elsewhere, and those of Unicode 7 (later versions added the first list).
constexpr const char* kPunctuation =
    R"((?![\x{61D}\x{9FD}\x{A76}\x{C77}\x{C84}\x{1B7D}-\x{1B7E}\x{2E43}-\x{2E4F})"
    R"(\x{2E52}-\x{2E5D}\x{10EAD}\x{10F55}-\x{10F59}\x{10F86}-\x{10F89})"
    R"(\x{1144B}-\x{1144F}\x{1145A}-\x{1145B}\x{1145D}\x{11660}-\x{1166C}\x{116B9})"
    R"(\x{1183B}\x{11944}-\x{11946}\x{119E2}\x{11A3F}-\x{11A46}\x{11A9A}-\x{11A9C})"
    R"(\x{11A9E}-\x{11AA2}\x{11C41}-\x{11C45}\x{11C70}-\x{11C71}\x{11EF7}-\x{11EF8})"
    R"(\x{11FFF}\x{12FF1}-\x{12FF2}\x{16E97}-\x{16E9A}\x{16FE2}\x{1E95E}-\x{1E95F}]))"
    R"([!-/:-@\[-`{-~\p{P}\x{166D}\x{111C9}])";

}  // namespace

void refuse_part(const JsonView& view, const std::string& type, const char* built_in) {
  view.fail(fmt::format("is {}, which is not built in; expected {}", quote(type), built_in));
}

NormalizerStep normalizer_step(const JsonView& view) {
  using Kind = NormalizerStep::Kind;
  NormalizerStep step;
  const std::string type = view.get_string("type");
  const std::pair<const char*, Kind> plain[] = {{"NFC", Kind::nfc},
                                                {"NFD", Kind::nfd},
                                                {"NFKC", Kind::nfkc},
                                                {"NFKD", Kind::nfkd},
                                                {"Lowercase", Kind::lowercase},
                                                {"StripAccents", Kind::strip_accents}};
  for (const auto& [name, kind] : plain) {
    if (type == name) {
      step.kind = kind;
      return step;
    }
  }
  if (type == "Strip") {
    step.kind = Kind::strip;
    step.left = view.get_bool("strip_left");
    step.right = view.get_bool("strip_right");
  } else if (type == "Prepend") {
    step.kind = Kind::prepend;
    step.content = view.get_string("prepend");
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    const Pattern pattern(view.at("pattern"));
    step.pattern = pattern.text;
    step.regex = pattern.regex;
    step.content = view.get_string("content");
  } else if (type == "Precompiled") {
    step.kind = Kind::precompiled;
    const JsonView table = view.at("precompiled_charsmap");
    if (!from_base64(table.as_string(), &step.content)) {
      table.fail("is no base64");
    }
  } else {
    refuse_part(
        view, type,
        "NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, Precompiled or "
        "a Sequence of them");
  }
  return step;
}

void add_pretokenizer(const JsonView& view, std::vector<PretokenizerStep>* steps,
                      bool* byte_level) {
  const std::string type = view.get_string("type");
  if (*byte_level) {
    view.fail(fmt::format("is {} behind ByteLevel; expected nothing behind it", quote(type)));
  }
  if (type == "ByteLevel") {
    *byte_level = true;
    if (view.get_bool("add_prefix_space", true)) {
      steps->emplace_back().kind = PretokenizerStep::Kind::prefix_space;
    }
    if (view.get_bool("use_regex", true)) {
      steps->push_back(split_step(kGpt2Pattern));
    }
  } else if (type == "Metaspace") {
    steps->push_back(metaspace_step(view));
  } else if (type == "Split") {
    steps->push_back(split_step(Pattern(view.at("pattern")).as_regex(), behavior_of(view),
                                view.get_bool("invert", false)));
  } else if (type == "Digits") {
    const bool each = view.get_bool("individual_digits", false);
    steps->push_back(split_step(R"(\p{N})", each ? Behavior::isolated : Behavior::contiguous));
  } else if (type == "Whitespace") {
    steps->push_back(split_step(fmt::format(R"([{0}]+|[^\s{0}]+)", kWordChars), Behavior::removed,
                                /*invert=*/true));
  } else if (type == "WhitespaceSplit") {
    steps->push_back(split_step(R"(\s)", Behavior::removed));
  } else if (type == "Punctuation") {
    steps->push_back(split_step(kPunctuation, behavior_of(view, "Isolated")));
  } else if (type == "CharDelimiterSplit") {
    steps->push_back(split_step(regex_escape(view.get_string("delimiter")), Behavior::removed));
  } else if (type == "BertPreTokenizer") {
    steps->push_back(split_step(R"(\s)", Behavior::removed));
    steps->push_back(split_step(kPunctuation));
  } else {
    refuse_part(view, type,
                "ByteLevel, Metaspace, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, "
                "CharDelimiterSplit, BertPreTokenizer or a Sequence of them");
  }
}

DecoderStep decoder_step(const JsonView& view, const std::string& type) {
  using Kind = DecoderStep::Kind;
  DecoderStep step;
  if (type == "Metaspace") {
    step.kind = Kind::metaspace;
    step.pattern = view.get_string("replacement");
    step.prepend = prepend_of(view);
  } else if (type == "ByteFallback") {
    step.kind = Kind::byte_fallback;
  } else if (type == "Fuse") {
    step.kind = Kind::fuse;
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.content = view.get_string("content");
    step.start = view.get_int("start", 0);
    step.stop = view.get_int("stop", 0);
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    const Pattern pattern(view.at("pattern"));
    if (pattern.regex) {
      view.fail("replaces a regular expression; expected a String");
    }
    step.pattern = pattern.text;
    step.content = view.get_string("content");
  } else {
    refuse_part(view, type,
                "ByteLevel, Metaspace, ByteFallback, Fuse, Strip, Replace or a Sequence of them");
  }
  if (step.pattern.empty() && (step.kind == Kind::metaspace || step.kind == Kind::replace)) {
    view.fail("has an empty pattern");
  }
  if (step.content.empty() && step.kind == Kind::strip) {
    view.fail("has an empty content");
  }
  return step;
}

}  // namespace hocket::data
