// SPDX-License-Identifier: Apache-2.0
#include "data/examples/shown.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace hocket::data {
namespace {

/// A row with room for its columns.
struct Row {
  explicit Row(const TrainingRows& rows)
      : tokens(rows.seq_len()), targets(tokens), positions(tokens) {}
  void fill(const TrainingRows& rows, int64_t index) {
    rows.fill(index, {tokens, targets, positions});
  }
  /// Moves the sequence that begins at `at` into `shown`; returns where the next one begins.
  size_t take(size_t at, ShownSequence* shown) const {
    do {
      shown->ids.push_back(tokens[at]);
      shown->positions.push_back(positions[at]);
      shown->trained.push_back(positions[at] > 0 && targets[at - 1] != kIgnoredTarget);
      ++at;
    } while (at < tokens.size() && positions[at] > 0);
    return at;
  }
  std::vector<int32_t> tokens, targets, positions;
};

std::string part_of(const TokenExamples& examples, int64_t example, int which) {
  switch (examples.kind()) {
    case SetKind::pairs:
      return which == 0 ? "chosen" : "rejected";
    case SetKind::unpaired:
      return examples.label(example) ? "desirable" : "undesirable";
    default:
      return "";
  }
}

}  // namespace

std::vector<ShownSequence> shown_sequences(const ExampleRows& rows, int64_t count) {
  std::vector<ShownSequence> out;
  Row row(rows);
  const TokenExamples& examples = rows.examples();
  for (int64_t index = 0; std::ssize(out) < count && index < rows.sequences_per_epoch(); ++index) {
    row.fill(rows, index);
    size_t at = 0;
    for (const int64_t number : rows.row(index)) {
      const auto [example, begin] = rows.piece(number);
      for (int which = 0; which < examples.sequences(); ++which) {
        ShownSequence& shown = out.emplace_back();
        shown.place = examples.place(example);
        if (begin > 0) {
          shown.place += fmt::format(" from token {}", begin);
        }
        shown.part = part_of(examples, example, which);
        shown.row = index;
        at = row.take(at, &shown);
      }
    }
  }
  return out;
}

std::vector<ShownSequence> shown_documents(const TrainingRows& rows, int64_t count) {
  std::vector<ShownSequence> out;
  Row row(rows);
  for (int64_t index = 0; std::ssize(out) < count && index < rows.sequences_per_epoch(); ++index) {
    row.fill(rows, index);
    int64_t document = 0;
    for (size_t at = 0; at < row.tokens.size() && std::ssize(out) < count;) {
      ShownSequence& shown = out.emplace_back();
      shown.place = fmt::format("sequence {}, part {}", index + 1, ++document);
      shown.row = index;
      at = row.take(at, &shown);
    }
  }
  return out;
}

void for_each_part(const ShownSequence& sequence, const Tokenizer& tokenizer,
                   const std::function<void(bool, const std::string&)>& take) {
  std::string text;
  for (size_t i = 0; i < sequence.ids.size(); ++i) {
    if (i > 0 && sequence.trained[i] != sequence.trained[i - 1] && !text.empty()) {
      take(sequence.trained[i - 1], std::exchange(text, {}));
    }
    text += tokenizer.token_bytes(sequence.ids[i]);
  }
  if (!text.empty()) {
    take(sequence.trained.back(), text);
  }
}

Lengths::Lengths(std::vector<int64_t> lengths) : sorted(std::move(lengths)) {
  std::sort(sorted.begin(), sorted.end());
}

Lengths::Lengths(const TokenExamples& examples) {
  for (int64_t i = 0; i < examples.size(); ++i) {
    int64_t length = 0;
    for (int which = 0; which < examples.sequences(); ++which) {
      length += std::ssize(examples.sequence(i, which).ids);
    }
    sorted.push_back(length);
  }
  std::sort(sorted.begin(), sorted.end());
}

int64_t Lengths::quantile(double share) const {
  const auto last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<size_t>(std::llround(share * last))];
}

std::vector<Lengths::Bucket> Lengths::histogram() const {
  constexpr int64_t kFirst = 16;
  std::vector<Bucket> out;
  auto at = sorted.begin();
  for (int64_t most = kFirst; at != sorted.end(); most *= 2) {
    const auto end = std::upper_bound(at, sorted.end(), most);
    if (end != at || !out.empty()) {
      out.push_back({most, end - at});
    }
    at = end;
  }
  return out;
}

}  // namespace hocket::data
