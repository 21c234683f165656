// SPDX-License-Identifier: Apache-2.0
#include "data/examples/example_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"

namespace hocket::data {
namespace {

constexpr uint64_t kRowOrder = 0x726f77732e2e2e2e;  // "rows...."
constexpr double kMaxCutAwayShare = 0.5;            // share of examples above which it is an error

int64_t count_targets(std::span<const uint8_t> trained, int64_t length) {
  return length < 2 ? 0 : std::count(trained.begin() + 1, trained.begin() + length, uint8_t{1});
}

}  // namespace

ExampleRows::ExampleRows(std::shared_ptr<const TokenExamples> examples, RowOptions options)
    : examples_(std::move(examples)), options_(std::move(options)) {
  if (options_.seq_len < 2) {
    fail("data", "rows of {}; expected 2 tokens or more (train.seq_len)", options_.seq_len);
  }
  choose();
  change_completions();
  pack();
}

ExampleRows::Piece ExampleRows::piece(int64_t number) const {
  const int64_t later = number - examples_->size();
  return later < 0 ? Piece{number, 0} : later_parts_[static_cast<size_t>(later)];
}

int64_t ExampleRows::length(int64_t number, int which) const {
  const auto [example, begin] = piece(number);
  const int64_t own = std::ssize(examples_->sequence(example, which).ids);
  if (examples_->sequences() == 1) return std::min(own - begin, options_.seq_len);
  const int64_t other = std::ssize(examples_->sequence(example, 1 - which).ids);
  if (own + other <= options_.seq_len) return own;
  // The shorter one is whole if it takes at most half of the row.
  return std::min(own, std::max(options_.seq_len / 2, options_.seq_len - other));
}

int64_t ExampleRows::mismatched_length(int64_t example) const {
  const int64_t from = partner_[example];
  const int64_t answer = std::ssize(examples_->sequence(from).ids) - examples_->prompt(from);
  return std::min(examples_->prompt(example) + answer, options_.seq_len);
}

bool ExampleRows::is_split(int64_t example) const {
  return options_.split_texts && options_.truncate == Truncate::keep_start &&
         examples_->is_text(example) &&
         std::ssize(examples_->sequence(example).ids) > options_.seq_len;
}

// Makes parts of a text, each a row long but for the last one: ids 0 to S - 1, S to 2 S - 1 and so
// on. The last place of a part has the first id of the next one as its target. So every id but the
// first is predicted once.
void ExampleRows::split(int64_t example, std::vector<int64_t>* used) {
  const TokenExamples::Sequence text = examples_->sequence(example);
  const int64_t targets = count_targets(text.trained, std::ssize(text.trained));
  for (int64_t begin = 0; begin + 1 < std::ssize(text.ids); begin += options_.seq_len) {
    int64_t number = example;
    if (begin > 0) {
      number = examples_->size() + std::ssize(later_parts_);
      later_parts_.push_back({example, begin});
    }
    used->push_back(number);
    report_.ids += length(number, 0);
    ++report_.parts;
  }
  ++report_.split;
  ++report_.examples;
  report_.targets += targets;
}

// Finds the examples that have a trained token within the length of a row, and counts the rest.
void ExampleRows::choose() {
  const std::vector<std::optional<double>>& weights = options_.weights;
  const auto given = std::count_if(weights.begin(), weights.end(),
                                   [](const auto& weight) { return weight.has_value(); });
  if (given != 0 && given != std::ssize(weights)) {
    fail("data", "{} of {} have a weight; expected one for each, or none", given,
         counted(std::ssize(weights), "source"));
  }
  weighted_ = given > 0;
  used_.resize(weighted_ ? weights.size() : 1);
  for (int64_t i = 0; i < examples_->size(); ++i) {
    const size_t source = weighted_ ? examples_->source(i) : 0;
    HOCKET_CHECK(source < used_.size(), "source {} of {}", source, used_.size());
    if (weighted_ && *weights[source] == 0) {
      ++report_.unused;
      continue;
    }
    if (is_split(i)) {
      split(i, &used_[source]);
      continue;
    }
    int64_t before = 0, after = 0, targets = 0;
    bool untrained = false, cut_away = false;
    for (int which = 0; which < examples_->sequences(); ++which) {
      const TokenExamples::Sequence sequence = examples_->sequence(i, which);
      const int64_t cut = length(i, which);
      before += std::ssize(sequence.ids);
      after += cut;
      const int64_t kept = count_targets(sequence.trained, cut);
      targets += kept;
      untrained |= count_targets(sequence.trained, std::ssize(sequence.trained)) == 0;
      cut_away |= kept == 0;
    }
    const auto name_in = [&](std::vector<std::string>& first) {
      if (first.size() >= ReadReport::kNamed) return;
      first.push_back(fmt::format("{}: {}", examples_->place(i), counted(before, "token")));
    };
    if (untrained) {
      ++report_.untrained;
      name_in(report_.first_untrained);
    } else if (before > after && options_.truncate == Truncate::refuse) {
      fail(examples_->place(i),
           "{} tokens, in rows of {}; try a larger train.seq_len, or data.truncate: keep_start or "
           "drop",
           before, options_.seq_len);
    } else if (before > after && options_.truncate == Truncate::drop) {
      ++report_.too_long;
      name_in(report_.first_too_long);
    } else if (cut_away) {
      ++report_.cut_away;
      name_in(report_.first_cut_away);
    } else {
      used_[source].push_back(i);
      ++report_.examples;
      report_.desirable += examples_->label(i) ? 1 : 0;
      report_.ids += after;
      report_.targets += targets;
      report_.lost_ids += before - after;
      if (before > after) {
        ++report_.truncated;
        name_in(report_.first_truncated);
      }
    }
  }
  const int64_t all = examples_->size() - report_.unused;
  if (report_.examples == 0) {
    fail("data",
         "no trained token in {}: {} without any, {} that lose them to rows of {}, {} longer than "
         "these; try `hocket data show`",
         counted(all, "example"), report_.untrained, report_.cut_away, options_.seq_len,
         report_.too_long);
  }
  if (static_cast<double>(report_.cut_away) > kMaxCutAwayShare * static_cast<double>(all)) {
    fail("data",
         "{} of {} lose all their trained tokens to rows of {}; expected at most half of them; try "
         "a larger train.seq_len, or data.truncate: drop",
         report_.cut_away, counted(all, "example"), options_.seq_len);
  }
}

// Finds for every unpaired example the one before it in its group.
void ExampleRows::change_completions() {
  if (examples_->kind() != SetKind::unpaired) return;
  partner_.resize(examples_->size());
  std::vector<int64_t> order;
  for (const std::vector<int64_t>& of_source : used_) {
    order.insert(order.end(), of_source.begin(), of_source.end());
  }
  const int64_t size = std::ssize(order);
  const int64_t group = options_.mismatch_group > 0 ? options_.mismatch_group : size;
  for (int64_t begin = 0; begin < size; begin += group) {
    const int64_t end = std::min(begin + group, size);
    for (int64_t i = begin; i < end; ++i) {
      partner_[order[i]] = order[i == begin ? end - 1 : i - 1];
    }
  }
}

void ExampleRows::pack() {
  std::vector<double> weights;
  for (size_t source = 0; source < used_.size(); ++source) {
    const std::vector<int64_t>& used = used_[source];
    const double weight = weighted_ ? *options_.weights[source] : 0;
    if (used.empty()) {
      if (weight == 0) continue;
      fail("data", "source {} has a weight of {} and no example with a trained token", source,
           weight);
    }
    std::vector<int64_t> lengths;
    lengths.reserve(used.size());
    for (const int64_t number : used) {
      int64_t total = 0;
      for (int which = 0; which < examples_->sequences(); ++which) {
        total += length(number, which);
      }
      if (!partner_.empty()) {
        total = std::max(total, mismatched_length(number));
      }
      lengths.push_back(total);
    }
    Part part;
    part.source = static_cast<int64_t>(source);
    part.packing = options_.packing
                       ? pack_best_fit(lengths, options_.seq_len, options_.most_examples)
                       : pack_single(std::ssize(used));
    for (int64_t& item : part.packing.items) {
      item = used[item];
    }
    report_.rows += part.packing.rows();
    for (int64_t row = 0; row < part.packing.rows(); ++row) {
      most_ = std::max(most_, part.packing.begin[row + 1] - part.packing.begin[row]);
    }
    parts_.push_back(std::move(part));
    weights.push_back(weight);
  }
  if (parts_.size() > 1) {
    blend_.emplace(weights);
  }
}

ExampleRows::SourceRow ExampleRows::source_row(int64_t index) const {
  HOCKET_CHECK(index >= 0, "row {}", index);
  const Blend::Draw draw = blend_ ? (*blend_)(index) : Blend::Draw{0, index};
  const int64_t rows = parts_[draw.source].packing.rows();
  const int64_t epoch = draw.index / rows, within = draw.index % rows;
  if (!options_.shuffle) return {draw.source, within};
  const uint64_t key = hash_combine(hash_combine(hash_combine(options_.seed, kRowOrder),
                                                 static_cast<uint64_t>(parts_[draw.source].source)),
                                    static_cast<uint64_t>(epoch));
  return {draw.source, static_cast<int64_t>(Permutation(rows, key)(within))};
}

int64_t ExampleRows::identity(int64_t index) const {
  const SourceRow found = source_row(index);
  int64_t before = 0;
  for (int64_t part = 0; part < found.part; ++part) {
    before += parts_[part].packing.rows();
  }
  return before + found.row;
}

std::span<const int64_t> ExampleRows::row(int64_t index) const {
  const SourceRow found = source_row(index);
  const Packing& packing = parts_[found.part].packing;
  const int64_t begin = packing.begin[found.row];
  return std::span(packing.items).subspan(begin, packing.begin[found.row + 1] - begin);
}

int64_t ExampleRows::put(int64_t number, int which, int64_t answer, int64_t at,
                         const SequenceOut& out) const {
  const auto [example, begin] = piece(number);
  const TokenExamples::Sequence own = examples_->sequence(example, which);
  const int64_t n = length(number, which);
  const int64_t end = is_split(example) ? std::ssize(own.ids) : begin + n;  // of its targets
  for (int64_t i = 0; i < n; ++i) {
    const int64_t next = begin + i + 1;
    const bool is_target = next < end && own.trained[next] != 0;
    out.tokens[at + i] = own.ids[next - 1];
    out.targets[at + i] = is_target ? own.ids[next] : kIgnoredTarget;
    out.positions[at + i] = static_cast<int32_t>(i);
    if (!out.answers.empty()) {
      out.answers[at + i] = is_target ? static_cast<int32_t>(answer) : -1;
    }
  }
  return at + n;
}

int64_t ExampleRows::put_mismatched(int64_t example, int64_t answer, int64_t at,
                                    const SequenceOut& out) const {
  const TokenExamples::Sequence own = examples_->sequence(example);
  // The ids up to `prompt` are this example's, those behind it another's.
  const int64_t prompt = examples_->prompt(example);
  const TokenExamples::Sequence other = examples_->sequence(partner_[example]);
  const int64_t moved = examples_->prompt(partner_[example]) - prompt;
  const auto id = [&](int64_t i) { return i < prompt ? own.ids[i] : other.ids[i + moved]; };
  const int64_t n = mismatched_length(example);
  for (int64_t i = 0; i < n; ++i) {
    const bool is_target = i + 1 < n && i + 1 >= prompt && other.trained[i + 1 + moved] != 0;
    out.tokens[at + i] = id(i);
    out.targets[at + i] = is_target ? id(i + 1) : kIgnoredTarget;
    out.positions[at + i] = static_cast<int32_t>(i);
    if (!out.answers.empty()) {
      out.answers[at + i] = is_target ? static_cast<int32_t>(answer) : -1;
    }
  }
  return at + n;
}

void ExampleRows::fill(int64_t index, const SequenceOut& out) const {
  const size_t n = options_.seq_len;
  HOCKET_CHECK(out.tokens.size() == n && out.targets.size() == n && out.positions.size() == n &&
                   (out.answers.empty() || out.answers.size() == n),
               "rows of {} into {}", n, out.tokens.size());
  const SetKind kind = examples_->kind();
  HOCKET_CHECK(out.answers.empty() || kind != SetKind::tokens, "answers of {}", to_string(kind));
  int64_t at = 0, number = 0;
  for (const int64_t piece_number : row(index)) {
    const int64_t example = piece(piece_number).example;
    for (int which = 0; which < examples_->sequences(); ++which) {
      const bool second = kind == SetKind::pairs ? which == 1 : !examples_->label(example);
      const int64_t answer = 2 * number + (second ? 1 : 0);
      at = mismatched_ ? put_mismatched(example, answer, at, out)
                       : put(piece_number, which, answer, at, out);
    }
    ++number;
  }
  for (int32_t position = 0; at < options_.seq_len; ++at, ++position) {
    out.tokens[at] = options_.pad;
    out.targets[at] = kIgnoredTarget;
    out.positions[at] = padding_position(position);
    if (!out.answers.empty()) {
      out.answers[at] = -1;
    }
  }
}

Hash128 ExampleRows::hash() const {
  const Hash128 examples = examples_->hash();
  Hasher hasher;
  hasher.add(examples.high).add(examples.low).add(options_.seed).add(options_.seq_len);
  hasher.add(options_.packing).add(static_cast<uint64_t>(options_.truncate));
  hasher.add(options_.most_examples);
  hasher.add(options_.shuffle).add(options_.pad).add(options_.mismatch_group).add(mismatched_);
  if (report_.split > 0) {
    hasher.add("split").add(static_cast<uint64_t>(report_.parts));
  }
  for (const std::optional<double>& weight : options_.weights) {
    hasher.add(std::bit_cast<uint64_t>(weight.value_or(-1)));
  }
  return hasher.finish();
}

int64_t ExampleRows::answers() const {
  return examples_->kind() == SetKind::tokens ? 0 : 2 * most_;
}

std::vector<double> ExampleRows::epochs(int64_t rows) const {
  std::vector<double> out(std::max<size_t>(options_.weights.size(), 1));
  const auto times = [&](int64_t draws, const Part& part) {
    return static_cast<double>(draws) / static_cast<double>(part.packing.rows());
  };
  if (!weighted_) {
    std::fill(out.begin(), out.end(), times(rows, parts_[0]));
    return out;
  }
  const std::vector<int64_t> counts = blend_ ? blend_->counts(rows) : std::vector<int64_t>{rows};
  for (size_t part = 0; part < parts_.size(); ++part) {
    out[parts_[part].source] = times(counts[part], parts_[part]);
  }
  return out;
}

std::unique_ptr<ExampleRows> ExampleRows::mismatched() const {
  HOCKET_CHECK(examples_->kind() == SetKind::unpaired, "mismatched completions of {}",
               to_string(examples_->kind()));
  bool changes = false;
  for (const std::vector<int64_t>& used : used_) {
    for (const int64_t example : used) {
      changes |= partner_[example] != example;
    }
  }
  if (!changes) {
    fail("data",
         "kto puts every completion behind the prompt of another example; got {}{}; expected two "
         "examples or more",
         counted(report_.examples, "example"), report_.examples > 1 ? " in groups of one" : "");
  }
  auto out = std::make_unique<ExampleRows>(*this);
  out->mismatched_ = true;
  return out;
}

}  // namespace hocket::data
