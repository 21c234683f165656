// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/normalizer.h"

#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/charsmap.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/unicode.h"

namespace hocket::data {
namespace {

using NormalizerKind = NormalizerStep::Kind;

}  // namespace

void Rewritten::start(const Piece& source) {
  source_ = source;
  text_.clear();
  from_.clear();
  cut_ = false;
}

ByteRange Rewritten::place(size_t begin, size_t end) const {
  // Nothing is at the place between its neighbours.
  if (source_.text.empty()) return {};
  if (begin < end) return {source_.from[begin].begin, source_.from[end - 1].end};
  const size_t at =
      begin < source_.text.size() ? source_.from[begin].begin : source_.from[begin - 1].end;
  return {at, at};
}

void Rewritten::keep(size_t begin, size_t end) {
  text_ += source_.text.substr(begin, end - begin);
  if (source_.from != nullptr) {
    from_.insert(from_.end(), source_.from + begin, source_.from + end);
  }
}

void Rewritten::put(std::string_view bytes, size_t begin, size_t end) {
  if (begin == 0 && end > 0 && bytes.empty() && text_.empty()) {
    cut_ = true;
  }
  text_ += bytes;
  if (source_.from != nullptr) {
    from_.insert(from_.end(), bytes.size(), place(begin, end));
  }
}

struct Normalizer::Step {
  explicit Step(NormalizerStep normalizer_step) : step(std::move(normalizer_step)) {
    const bool compatibility =
        step.kind == NormalizerKind::nfkc || step.kind == NormalizerKind::nfkd;
    const bool composed = step.kind == NormalizerKind::nfc || step.kind == NormalizerKind::nfkc;
    if (step.kind <= NormalizerKind::nfkd) {
      form.emplace(compatibility, composed);
    } else if (step.kind == NormalizerKind::replace) {
      if (step.pattern.empty()) fail("tokenizer", "a replacement of an empty pattern");
      if (step.regex) {
        regex.emplace(step.pattern);
      }
    } else if (step.kind == NormalizerKind::precompiled) {
      charsmap.emplace(step.content);
    }
  }

  NormalizerStep step;
  std::optional<NormalForm> form;
  std::optional<Regex> regex;
  std::optional<Charsmap> charsmap;

  // Rewrites a text into *out. Returns false if it stays as it is.
  bool apply(const Piece& in, Rewritten* out) const;

 private:
  bool normal_form(const Piece& in, Rewritten* out) const;
  bool each_char(const Piece& in, Rewritten* out) const;
  bool strip(const Piece& in, Rewritten* out) const;
  bool replace(const Piece& in, Rewritten* out) const;
};

bool Normalizer::Step::normal_form(const Piece& in, Rewritten* out) const {
  size_t done = 0, begin, end;
  if (!form->next(in.text, 0, &begin, &end)) return false;
  out->start(in);
  out->reserve(in.text.size());
  std::string formed;
  do {
    out->keep(done, begin);
    formed.clear();
    form->append(in.text.substr(begin, end - begin), &formed);
    out->put(formed, begin, end);
    done = end;
  } while (form->next(in.text, done, &begin, &end));
  out->keep(done, in.text.size());
  return true;
}

// Lowercase and strip_accents: each well-formed character by itself.
bool Normalizer::Step::each_char(const Piece& in, Rewritten* out) const {
  out->start(in);
  out->reserve(in.text.size());
  std::string lower;
  for (size_t at = 0; at < in.text.size();) {
    const int length = utf8_length(in.text, at);
    if (length == 0) {
      out->keep(at, at + 1);
      ++at;
      continue;
    }
    const uint32_t c = utf8_code_point(in.text, at, length);
    lower.clear();
    if (step.kind == NormalizerKind::lowercase) {
      append_lower(c, &lower);
      out->put(lower, at, at + length);
    } else if (is_mark(c)) {
      out->put("", at, at + length);
    } else {
      out->keep(at, at + length);
    }
    at += length;
  }
  return true;
}

bool Normalizer::Step::strip(const Piece& in, Rewritten* out) const {
  size_t begin = 0, end = in.text.size();
  while (step.left && begin < end) {
    const int length = utf8_length(in.text, begin);
    if (length == 0 || !is_white_space(utf8_code_point(in.text, begin, length))) break;
    begin += length;
  }
  while (step.right && end > begin) {
    const size_t at = utf8_before(in.text, end);
    if (at == end || !is_white_space(utf8_code_point(in.text, at, static_cast<int>(end - at))))
      break;
    end = at;
  }
  if (begin == 0 && end == in.text.size()) return false;
  out->start(in);
  out->put("", 0, begin);
  out->keep(begin, end);
  return true;
}

bool Normalizer::Step::replace(const Piece& in, Rewritten* out) const {
  bool changed = false;
  const auto change = [&](size_t kept, size_t begin, size_t end) {
    if (!changed) {
      out->start(in);
      out->reserve(in.text.size());
      changed = true;
    }
    out->keep(kept, begin);
    out->put(step.content, begin, end);
  };
  size_t done = 0;
  if (regex) {
    Regex::Cursor cursor(*regex);
    cursor.start(in.text);
    bool is_match;
    for (std::string_view found; cursor.next(&found, &is_match);) {
      if (!is_match) continue;
      const size_t begin = found.data() - in.text.data();
      change(done, begin, begin + found.size());
      done = begin + found.size();
    }
  } else {
    for (size_t at; (at = in.text.find(step.pattern, done)) != std::string_view::npos;) {
      change(done, at, at + step.pattern.size());
      done = at + step.pattern.size();
    }
  }
  if (changed) {
    out->keep(done, in.text.size());
  }
  return changed;
}

bool Normalizer::Step::apply(const Piece& in, Rewritten* out) const {
  switch (step.kind) {
    case NormalizerKind::nfc:
    case NormalizerKind::nfd:
    case NormalizerKind::nfkc:
    case NormalizerKind::nfkd:
      return normal_form(in, out);
    case NormalizerKind::lowercase:
    case NormalizerKind::strip_accents:
      return each_char(in, out);
    case NormalizerKind::strip:
      return strip(in, out);
    case NormalizerKind::replace:
      return replace(in, out);
    case NormalizerKind::prepend:
      if (in.text.empty()) return false;
      out->start(in);
      out->reserve(in.text.size() + step.content.size());
      out->put(step.content, 0, 0);
      out->keep(0, in.text.size());
      return true;
    case NormalizerKind::precompiled:
      return charsmap->apply(in, out);
  }
  return false;
}

Normalizer::Normalizer(std::vector<NormalizerStep> steps) {
  for (NormalizerStep& step : steps) {
    steps_.push_back(std::make_unique<Step>(std::move(step)));
  }
}
Normalizer::~Normalizer() = default;
Normalizer::Normalizer(Normalizer&&) noexcept = default;

bool Normalizer::empty() const { return steps_.empty(); }

Piece Normalizer::apply(const Piece& source, std::array<Rewritten, 2>* buffers) const {
  Piece piece = source;
  size_t free = 0;
  for (const auto& step : steps_) {
    if (step->apply(piece, &(*buffers)[free])) {
      piece = (*buffers)[free].piece();
      free = 1 - free;
    }
  }
  return piece;
}

std::string Normalizer::apply(std::string_view text) const {
  std::array<Rewritten, 2> buffers;
  Piece source;
  source.text = text;
  return std::string(apply(source, &buffers).text);
}

}  // namespace hocket::data
