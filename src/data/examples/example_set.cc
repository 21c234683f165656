// SPDX-License-Identifier: Apache-2.0
#include "data/examples/example_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/text.h"

namespace hocket::data {
namespace {

constexpr int64_t kEarly = 100;      // examples after which a source with none in order is given up
constexpr int64_t kProgress = 1000;  // examples between two sentences

SetKind set_kind(Example::Kind kind, bool unpair) {
  switch (kind) {
    case Example::Kind::preference:
      return unpair ? SetKind::unpaired : SetKind::pairs;
    case Example::Kind::unpaired:
      return SetKind::unpaired;
    default:
      return SetKind::tokens;
  }
}

/// Returns the two examples of a preference.
std::pair<Example, Example> unpaired(const Example& pair) {
  Example good = pair;
  good.kind = Example::Kind::unpaired;
  good.chosen = good.rejected = nullptr;
  Example bad = good;
  good.completion = pair.chosen;
  bad.completion = pair.rejected;
  good.label = true;
  bad.label = false;
  return {std::move(good), std::move(bad)};
}

/// An example before its side is known.
struct Waiting {
  RenderedExample rendered;
  std::string place;
  Hash128 content;
  int64_t source = 0;
};

class SetReader {
 public:
  SetReader(const Tokenizer& tokenizer, const ChatTemplate* chat_template,
            const ExampleSetOptions& options)
      : options_(options), renderer_(tokenizer, chat_template, options.render) {}

  void read(int64_t number) {
    const SourceOptions& source = options_.sources[number];
    SourceReport& report = out_.emplace_back();
    report.name = source.name.empty() ? source.path : source.name;
    const int64_t special = renderer_.with_special_tokens();
    std::vector<Waiting> undesirable;  // of preferences; they come last, apart from their prompts
    int64_t seen = 0;
    report.read = read_source(source, [&](Example&& example) {
      require_kind(example);
      try {
        const Hash128 content = content_hash(example);
        std::set<std::string> left_out;
        if (example.kind == Example::Kind::preference && options_.unpair) {
          const auto [good, bad] = unpaired(example);
          Waiting first = render(good, number, content);
          undesirable.push_back(render(bad, number, content));
          left_out = undesirable.back().rendered.left_out;
          waiting_.push_back(std::move(first));
        } else {
          waiting_.push_back(render(example, number, content));
        }
        report.joined += waiting_.back().rendered.joined;
        left_out.merge(waiting_.back().rendered.left_out);
        count_left_out(left_out, example.place(), &report);
      } catch (const Error& error) {
        if (error.kind() != Error::Kind::kInput) throw;
        ++report.refused;
        if (report.first_refused.size() < ReadReport::kNamed) {
          report.first_refused.emplace_back(fmt::format("{}: {}", error.where(), error.text()));
        }
        if (report.refused == kEarly && report.refused == seen + 1) {
          refuse(report, seen + 1);
        }
      }
      ++seen;
      if (options_.progress && seen % kProgress == 0) {
        options_.progress(fmt::format("{}: {} examples", report.name, seen));
      }
      return options_.limit == 0 || seen < options_.limit;
    });
    std::move(undesirable.begin(), undesirable.end(), std::back_inserter(waiting_));
    report.with_special_tokens = renderer_.with_special_tokens() - special;
    const bool too_many =
        static_cast<double>(report.refused) > source.max_unreadable * static_cast<double>(seen);
    if (too_many || (seen > 0 && report.refused == seen)) {
      refuse(report, seen);
    }
  }

  ExampleSet take() {
    ExampleSet out;
    const SetKind kind = kind_.value_or(SetKind::tokens);
    out.train = TokenExamples(kind);
    out.valid = TokenExamples(kind);
    std::vector<Hash128> contents;
    for (const Waiting& example : waiting_) {
      if (options_.sources[example.source].split == "auto") {
        contents.push_back(example.content);
      }
    }
    std::vector<bool> held(contents.size());
    if (options_.valid_fraction > 0 && !contents.empty()) {
      // Unpaired examples are compared with each other, also those held out.
      const int64_t least = kind == SetKind::unpaired ? 2 : 1;
      held = hold_out(contents, options_.valid_fraction, options_.split_seed, least);
    }
    size_t next = 0;
    for (Waiting& example : waiting_) {
      const std::string& split = options_.sources[example.source].split;
      const bool valid = split == "auto" ? held[next++] : split == "valid";
      (valid ? out.valid : out.train).add(example.rendered, example.source, example.place);
      example.rendered = {};
    }
    out.sources = std::move(out_);
    return out;
  }

 private:
  Waiting render(const Example& example, int64_t source, const Hash128& content) {
    return {renderer_.render(example), example.place(), content, source};
  }

  static void count_left_out(const std::set<std::string>& left_out, const std::string& place,
                             SourceReport* report) {
    for (const std::string& name : left_out) {
      SourceReport::LeftOut& of = report->left_out_by_template[name];
      if (of.examples++ == 0) {
        of.first = place;
      }
    }
  }

  void require_kind(const Example& example) {
    const SetKind kind = set_kind(example.kind, options_.unpair);
    if (!kind_) {
      kind_ = kind;
      first_ = example.place();
    }
    if (kind != *kind_) {
      fail(example.place(), "{} in a set of {} ({}); expected one of them", to_string(kind),
           to_string(*kind_), first_);
    }
  }

  [[noreturn]] void refuse(const SourceReport& report, int64_t seen) const {
    fail(report.name, "{} of {} cannot be used; the first: {}", report.refused,
         counted(seen, "example"), report.first_refused.front());
  }

  const ExampleSetOptions& options_;
  Renderer renderer_;
  std::vector<Waiting> waiting_;
  std::vector<SourceReport> out_;
  std::optional<SetKind> kind_;
  std::string first_;  ///< place of the example that said so
};

}  // namespace

const char* to_string(SetKind kind) {
  switch (kind) {
    case SetKind::tokens:
      return "texts, chats or completions";
    case SetKind::pairs:
      return "preferences";
    case SetKind::unpaired:
      return "unpaired completions";
  }
  return "?";
}

std::vector<std::string> SourceReport::left_out_texts() const {
  std::vector<std::string> out;
  for (const auto& [what, of] : left_out_by_template) {
    out.push_back(fmt::format("{} with {} that the template leaves out (the first: {})",
                              counted(of.examples, "example"), what, of.first));
  }
  return out;
}

TokenExamples::Sequence TokenExamples::sequence(int64_t example, int which) const {
  const Of& of = examples_[example];
  const size_t begin = of.begin[which], size = of.end[which] - of.begin[which];
  return {std::span(ids_).subspan(begin, size), std::span(trained_).subspan(begin, size)};
}

std::string TokenExamples::place(int64_t example) const { return examples_[example].place; }

void TokenExamples::add(const RenderedExample& rendered, int64_t source, const std::string& place) {
  HOCKET_CHECK(std::ssize(rendered.sequences) == sequences(), "{} sequences in a set of {}",
               rendered.sequences.size(), to_string(kind_));
  Of of;
  of.prompt = static_cast<int64_t>(rendered.prompt);
  of.source = static_cast<int32_t>(source);
  of.label = rendered.label;
  of.is_text = rendered.kind == Example::Kind::text || rendered.kind == Example::Kind::tokens;
  of.place = place;
  for (size_t i = 0; i < rendered.sequences.size(); ++i) {
    const TokenSequence& sequence = rendered.sequences[i];
    of.begin[i] = std::ssize(ids_);
    ids_.insert(ids_.end(), sequence.ids.begin(), sequence.ids.end());
    trained_.insert(trained_.end(), sequence.trained.begin(), sequence.trained.end());
    of.end[i] = std::ssize(ids_);
  }
  examples_.push_back(std::move(of));
}

Hash128 TokenExamples::hash() const {
  Hasher hasher;
  hasher.add(static_cast<uint64_t>(kind_)).add(static_cast<uint64_t>(examples_.size()));
  for (const Of& of : examples_) {
    hasher.add(of.end[0]).add(of.end[1]).add(of.prompt).add(of.source).add(of.label ? 1 : 0);
  }
  hasher.add({reinterpret_cast<const char*>(ids_.data()), ids_.size() * sizeof(int32_t)});
  hasher.add({reinterpret_cast<const char*>(trained_.data()), trained_.size()});
  return hasher.finish();
}

ExampleSet read_examples(const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                         const ExampleSetOptions& options) {
  if (options.sources.empty()) fail("data", "no source; expected data.sources");
  SetReader reader(tokenizer, chat_template, options);
  for (size_t i = 0; i < options.sources.size(); ++i) {
    reader.read(static_cast<int64_t>(i));
  }
  return reader.take();
}

}  // namespace hocket::data
