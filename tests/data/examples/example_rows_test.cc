// SPDX-License-Identifier: Apache-2.0
// Rows of fine-tuning sets. Every trained token occurs once an epoch, examples are kept whole and
// apart, and a row is a pure function of its index. Also mixtures by weight, truncation, pairs and
// mismatched completions.
#include "data/examples/example_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "tests/data/data_util.h"

namespace hocket::data {
namespace {

constexpr int32_t kRowPad = 7;

struct FilledRow {
  explicit FilledRow(int64_t n, bool with_answers = false)
      : tokens(static_cast<size_t>(n), -7), targets(tokens), positions(tokens) {
    if (with_answers) {
      answers = tokens;
    }
  }
  FilledRow(const ExampleRows& rows, int64_t index, bool with_answers = false)
      : FilledRow(rows.seq_len(), with_answers) {
    rows.fill(index, {tokens, targets, positions, answers});
  }
  bool operator==(const FilledRow&) const = default;
  std::vector<int32_t> tokens, targets, positions, answers;
};

/// A set of examples whose ids are all different, so that an id identifies its example.
class Rows : public testing::Test {
 protected:
  struct Of {
    std::vector<TokenSequence> sequences;
    size_t prompt = 0;
    int64_t source = 0;
    bool label = false;
  };

  void add(int64_t source, std::vector<std::pair<int64_t, int64_t>> lengths, bool label = false) {
    Of of;
    of.source = source;
    of.label = label;
    of.prompt = static_cast<size_t>(lengths[0].first);
    for (const auto& [prompt, answer] : lengths) {
      TokenSequence sequence;
      for (int64_t i = 0; i < prompt + answer; ++i) {
        sequence.ids.push_back(next_++);
        sequence.trained.push_back(i >= prompt ? 1 : 0);
      }
      of.sequences.push_back(std::move(sequence));
    }
    all_.push_back(of);
    RenderedExample rendered;
    rendered.sequences = of.sequences;
    rendered.prompt = of.prompt;
    rendered.label = label;
    examples_->add(rendered, source, fmt::format("file:{}", all_.size()));
  }
  void start(SetKind kind) {
    examples_ = std::make_shared<TokenExamples>(kind);
    all_.clear();
    next_ = 100;
  }
  /// Random examples with holes in their masks.
  void random(Rng* rng, int64_t count, int64_t longest, int64_t sources = 1) {
    start(SetKind::tokens);
    for (int64_t i = 0; i < count; ++i) {
      Of of;
      of.source = static_cast<int64_t>(rng->below(sources));
      TokenSequence& sequence = of.sequences.emplace_back();
      for (int64_t n = rng->between(1, longest); n > 0; --n) {
        sequence.ids.push_back(next_++);
        sequence.trained.push_back(rng->below(2) == 0 ? 1 : 0);
      }
      all_.push_back(of);
      RenderedExample rendered;
      rendered.sequences = of.sequences;
      examples_->add(rendered, of.source, fmt::format("file:{}", i + 1));
    }
  }
  static RowOptions options(int64_t seq_len) {
    RowOptions out;
    out.seq_len = seq_len;
    out.pad = kRowPad;
    out.seed = 5;
    return out;
  }
  /// Checks a row against the definition, and counts how often each id is a target.
  void check(const ExampleRows& rows, int64_t index, std::map<int32_t, int64_t>* targets) const {
    const FilledRow row(rows, index);
    size_t at = 0;
    const auto n = static_cast<size_t>(rows.seq_len());
    for (const int64_t example : rows.row(index)) {
      const TokenSequence& sequence = all_[example].sequences[0];
      const size_t length = std::min(sequence.ids.size(), n);
      ASSERT_LE(at + length, n);
      for (size_t i = 0; i < length; ++i) {
        ASSERT_EQ(row.tokens[at + i], sequence.ids[i]);
        ASSERT_EQ(row.positions[at + i], static_cast<int32_t>(i));
        const bool is_target = i + 1 < length && sequence.trained[i + 1] != 0;
        ASSERT_EQ(row.targets[at + i], is_target ? sequence.ids[i + 1] : kIgnoredTarget);
        if (is_target) {
          ++(*targets)[sequence.ids[i + 1]];
        }
      }
      at += length;
    }
    for (int32_t position = 0; at < n; ++at, ++position) {
      ASSERT_EQ(row.tokens[at], kRowPad);
      ASSERT_EQ(row.targets[at], kIgnoredTarget);
      ASSERT_EQ(row.positions[at], padding_position(position));
    }
  }

  std::shared_ptr<TokenExamples> examples_;
  std::vector<Of> all_;
  int32_t next_ = 100;
};

TEST_F(Rows, EveryTrainedTokenOnceAnEpoch) {
  Rng rng(1);
  for (int round = 0; round < 40; ++round) {
    const int64_t seq_len = rng.between(8, 64);
    random(&rng, rng.between(5, 200), rng.between(2, 2 * seq_len));
    RowOptions row_options = options(seq_len);
    row_options.packing = round % 4 != 0;
    row_options.shuffle = round % 3 != 0;
    const ExampleRows rows(examples_, row_options);
    const RowReport& report = rows.report();
    std::map<int32_t, int64_t> expected;
    int64_t truncated = 0, lost = 0, cut_away = 0, untrained = 0;
    for (const Of& of : all_) {
      const TokenSequence& sequence = of.sequences[0];
      const auto n = std::ssize(sequence.ids), kept = std::min(n, seq_len);
      const int64_t targets = std::accumulate(sequence.trained.begin() + 1,
                                              sequence.trained.begin() + kept, int64_t{0});
      if (sequence.targets() == 0) {
        ++untrained;
      } else if (targets == 0) {
        ++cut_away;
      } else {
        truncated += n > kept;
        lost += n - kept;
      }
      for (int64_t i = 1; i < kept; ++i) {
        if (sequence.trained[i] != 0) {
          expected[sequence.ids[i]] = 2;
        }
      }
    }
    std::map<int32_t, int64_t> seen;
    for (int64_t index = 0; index < 2 * rows.sequences_per_epoch(); ++index) {
      check(rows, index, &seen);
    }
    EXPECT_EQ(seen, expected);
    EXPECT_EQ(report.targets, std::ssize(expected));
    EXPECT_EQ(report.truncated, truncated);
    EXPECT_EQ(report.lost_ids, lost);
    EXPECT_EQ(report.cut_away, cut_away);
    EXPECT_EQ(report.untrained, untrained);
    EXPECT_EQ(report.examples + cut_away + untrained, std::ssize(all_));
    EXPECT_EQ(rows.answers(), 0);
  }
}

TEST_F(Rows, AreAPureFunctionOfTheIndex) {
  Rng rng(2);
  random(&rng, 120, 30, 3);
  RowOptions row_options = options(40);
  row_options.weights = {0.5, 2, 1};
  const ExampleRows rows(examples_, row_options), same(examples_, row_options);
  std::vector<FilledRow> first;
  for (int64_t index = 0; index < 300; ++index) {
    first.emplace_back(rows, index);
  }
  for (int i = 0; i < 300; ++i) {
    const int64_t index = static_cast<int64_t>(rng.below(300));
    EXPECT_EQ(FilledRow(same, index), first[index]);
  }
  EXPECT_EQ(rows.hash(), same.hash());
  ++row_options.seed;
  const ExampleRows other(examples_, row_options);
  EXPECT_NE(rows.hash(), other.hash());
  int64_t equal = 0;
  for (int64_t index = 0; index < 300; ++index) {
    equal += FilledRow(other, index) == first[index];
  }
  EXPECT_LT(equal, 100);
}

TEST_F(Rows, EpochsDifferInOrder) {
  Rng rng(3);
  random(&rng, 200, 30);
  const ExampleRows rows(examples_, options(40));
  const int64_t n = rows.sequences_per_epoch();
  std::vector<std::vector<int32_t>> epochs[2];
  for (int64_t index = 0; index < 2 * n; ++index) {
    epochs[index / n].push_back(FilledRow(rows, index).tokens);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  std::sort(epochs[0].begin(), epochs[0].end());
  std::sort(epochs[1].begin(), epochs[1].end());
  EXPECT_EQ(epochs[0], epochs[1]);
}

TEST(Packing, FitsWhereItLeavesTheLeastRoom) {
  const Packing packing = pack_best_fit({3, 5, 2, 7, 4}, 8);
  // 7 | 5 3 | 4 2: the 3 goes behind the 5, which leaves no room.
  EXPECT_EQ(packing.items, (std::vector<int64_t>{3, 1, 0, 4, 2}));
  EXPECT_EQ(packing.begin, (std::vector<int64_t>{0, 1, 3, 5}));
  EXPECT_EQ(pack_best_fit({}, 8).rows(), 0);
  EXPECT_EQ(pack_single(3).rows(), 3);
  Rng rng(4);
  for (int round = 0; round < 30; ++round) {
    const int64_t capacity = rng.between(1, 100);
    std::vector<int64_t> lengths;
    for (int64_t n = rng.between(1, 300); n > 0; --n) {
      lengths.push_back(rng.between(1, capacity));
    }
    const Packing packed = pack_best_fit(lengths, capacity);
    std::vector<int64_t> items = packed.items, rooms;
    std::sort(items.begin(), items.end());
    for (size_t i = 0; i < lengths.size(); ++i) {
      ASSERT_EQ(items[i], static_cast<int64_t>(i));
    }
    ASSERT_EQ(items.size(), lengths.size());
    for (int64_t row = 0; row < packed.rows(); ++row) {
      int64_t room = capacity;
      for (int64_t i = packed.begin[row]; i < packed.begin[row + 1]; ++i) {
        room -= lengths[packed.items[i]];
      }
      ASSERT_GE(room, 0);
      rooms.push_back(room);
    }
    // No two rows fit into one.
    std::sort(rooms.rbegin(), rooms.rend());
    if (rooms.size() > 1) {
      EXPECT_LT(rooms[0] + rooms[1], capacity);
    }
  }
}

TEST(Blend, EverySourceHasItsShare) {
  Rng rng(6);
  for (int round = 0; round < 30; ++round) {
    std::vector<double> weights;
    for (int64_t n = rng.between(1, 8); n > 0; --n) {
      weights.push_back(rng.below(4) == 0 ? 0 : std::exp(static_cast<double>(rng.below(8))));
    }
    weights.push_back(1);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const Blend blend(weights);
    std::vector<int64_t> counts(weights.size());
    for (int64_t i = 0; i < 2000; ++i) {
      const Blend::Draw draw = blend(i);
      ASSERT_EQ(draw.index, counts[draw.source]);
      ++counts[draw.source];
      for (size_t s = 0; s < weights.size(); ++s) {
        ASSERT_LE(std::abs(static_cast<double>(counts[s]) -
                           weights[s] / sum * static_cast<double>(i + 1)),
                  1.5);
      }
      if (i % 100 == 0) {
        ASSERT_EQ(blend.counts(i + 1), counts);
      }
    }
  }
  const Blend far({1, 3});
  const Blend::Draw draw = far(int64_t{1} << 50);
  EXPECT_NEAR(static_cast<double>(draw.index),
              static_cast<double>(int64_t{1} << 50) * (draw.source == 0 ? 0.25 : 0.75), 1);
  EXPECT_ERROR(Blend({0, 0}), "expected more than 0");
  EXPECT_ERROR(Blend({1, -1}), "expected 0 or more");
  EXPECT_ERROR(Blend({1, std::nan("")}), "expected 0 or more");
}

TEST_F(Rows, SourcesAreMixedByWeight) {
  start(SetKind::tokens);
  for (int i = 0; i < 40; ++i) {
    add(0, {{1, 9}});
  }
  for (int i = 0; i < 10; ++i) {
    add(1, {{1, 9}});
  }
  for (int i = 0; i < 10; ++i) {
    add(2, {{1, 9}});
  }
  RowOptions row_options = options(10);
  row_options.weights = {1, 3, 0};
  const ExampleRows rows(examples_, row_options);
  EXPECT_EQ(rows.sequences_per_epoch(), 50);
  EXPECT_EQ(rows.report().unused, 10);
  std::map<int64_t, int64_t> seen;
  for (int64_t index = 0; index < 160; ++index) {
    for (const int64_t example : rows.row(index)) {
      ++seen[example];
    }
  }
  for (int64_t i = 0; i < 60; ++i) {
    EXPECT_EQ(seen[i], i < 40 ? 1 : i < 50 ? 12 : 0) << i;
  }
  EXPECT_EQ(rows.epochs(160), (std::vector<double>{1, 12, 0}));
  row_options.weights = {std::nullopt, std::nullopt, std::nullopt};
  const ExampleRows together(examples_, row_options);
  EXPECT_EQ(together.sequences_per_epoch(), 60);
  EXPECT_EQ(together.epochs(60), (std::vector<double>{1, 1, 1}));
  row_options.weights = {1, std::nullopt, 1};
  EXPECT_ERROR(ExampleRows(examples_, row_options), "2 of 3 sources have a weight");
  row_options.weights = {0, 0, 0};
  EXPECT_ERROR(ExampleRows(examples_, row_options), "no trained token");
  row_options.weights = {1, 1, 1, 2};
  EXPECT_ERROR(ExampleRows(examples_, row_options), "source 3 has a weight of 2 and no example");
}

/// Returns the number of times that each id is a target in an epoch.
std::map<int32_t, int64_t> targets_of(const ExampleRows& rows) {
  std::map<int32_t, int64_t> seen;
  for (int64_t index = 0; index < rows.sequences_per_epoch(); ++index) {
    const FilledRow row(rows, index);
    for (size_t i = 0; i < row.targets.size(); ++i) {
      if (row.targets[i] == kIgnoredTarget) continue;
      ++seen[row.targets[i]];
      EXPECT_EQ(row.targets[i], row.tokens[i] + 1);  // ids of a text are consecutive
    }
  }
  return seen;
}

TEST_F(Rows, LongTextsBecomePartsAndLoseNothing) {
  for (const int64_t longest : {10, 11, 12, 20, 21, 22, 35}) {
    start(SetKind::tokens);
    add(0, {{0, longest}});
    add(0, {{0, 4}});
    RowOptions row_options = options(10);
    row_options.split_texts = true;
    const ExampleRows rows(examples_, row_options);
    const int64_t parts = longest > 10 ? (longest - 2) / 10 + 1 : 0;
    EXPECT_EQ(rows.report().split, longest > 10 ? 1 : 0) << longest;
    EXPECT_EQ(rows.report().parts, parts) << longest;
    EXPECT_EQ(rows.report().examples, 2);
    EXPECT_EQ(rows.report().truncated, 0);
    EXPECT_EQ(rows.report().targets, longest - 1 + 3);
    const std::map<int32_t, int64_t> seen = targets_of(rows);
    EXPECT_EQ(std::ssize(seen), longest - 1 + 3) << longest;
    for (const auto& [id, times] : seen) {
      EXPECT_EQ(times, 1) << id;
    }
    // Every part is a document of its own.
    int64_t pieces = 0, ids = 0;
    for (int64_t index = 0; index < rows.sequences_per_epoch(); ++index) {
      int64_t at = 0;
      const FilledRow row(rows, index);
      for (const int64_t number : rows.row(index)) {
        const auto [example, begin] = rows.piece(number);
        EXPECT_EQ(row.positions[static_cast<size_t>(at)], 0);
        EXPECT_EQ(row.tokens[static_cast<size_t>(at)],
                  all_[static_cast<size_t>(example)].sequences[0].ids[static_cast<size_t>(begin)]);
        do {
          ++at;
          ++ids;
        } while (at < 10 && row.positions[static_cast<size_t>(at)] > 0);
        ++pieces;
      }
    }
    EXPECT_EQ(pieces, std::max<int64_t>(parts, 1) + 1);
    EXPECT_EQ(ids, rows.report().ids);
  }
}

TEST_F(Rows, OnlyTextsAreSplitAndOnlyWithKeepStart) {
  start(SetKind::tokens);
  add(0, {{0, 25}});
  add(0, {{0, 4}});
  RowOptions row_options = options(10);
  const ExampleRows cut(examples_, row_options);
  EXPECT_EQ(cut.report().truncated, 1);
  row_options.split_texts = true;
  const ExampleRows in_parts(examples_, row_options);
  EXPECT_NE(in_parts.hash(), cut.hash());
  row_options.truncate = Truncate::drop;
  EXPECT_EQ(ExampleRows(examples_, row_options).report().too_long, 1);
  row_options.truncate = Truncate::refuse;
  EXPECT_ERROR(ExampleRows(examples_, row_options), "25 tokens, in rows of 10");
  // The identity of data without long texts stays the same.
  row_options = options(32);
  const ExampleRows whole(examples_, row_options);
  row_options.split_texts = true;
  EXPECT_EQ(ExampleRows(examples_, row_options).hash(), whole.hash());

  examples_ = std::make_shared<TokenExamples>(SetKind::tokens);
  RenderedExample chat;
  chat.kind = Example::Kind::chat;
  chat.sequences = {{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, std::vector<uint8_t>(12, 1)}};
  examples_->add(chat, 0, "chat:1");
  row_options = options(10);
  row_options.split_texts = true;
  EXPECT_EQ(ExampleRows(examples_, row_options).report().truncated, 1);
}

TEST_F(Rows, RowsKeepTheirNumbersInEveryEpoch) {
  Rng rng(8);
  random(&rng, 60, 30, 2);
  RowOptions row_options = options(40);
  row_options.weights = {1, 2};
  const ExampleRows rows(examples_, row_options);
  std::map<int64_t, FilledRow> of;
  for (int64_t index = 0; index < 3 * rows.sequences_per_epoch(); ++index) {
    const int64_t number = rows.identity(index);
    EXPECT_LT(number, rows.sequences_per_epoch());
    const FilledRow row(rows, index);
    EXPECT_EQ(of.emplace(number, row).first->second, row);
  }
  EXPECT_EQ(std::ssize(of), rows.sequences_per_epoch());
}

TEST_F(Rows, LongExamplesAreDroppedTruncatedOrRefused) {
  start(SetKind::tokens);
  add(0, {{2, 30}});
  add(0, {{2, 3}});
  add(0, {{2, 8}});
  add(0, {{12, 3}});
  RowOptions row_options = options(10);
  {
    const RowReport report = ExampleRows(examples_, row_options).report();
    EXPECT_EQ(report.examples, 3);
    EXPECT_EQ(report.truncated, 1);
    EXPECT_EQ(report.lost_ids, 22);
    EXPECT_EQ(report.cut_away, 1);
    EXPECT_EQ(report.targets, 8 + 3 + 8);
  }
  row_options.truncate = Truncate::drop;
  {
    const RowReport report = ExampleRows(examples_, row_options).report();
    EXPECT_EQ(report.examples, 2);
    EXPECT_EQ(report.too_long, 2);
    EXPECT_EQ(report.truncated, 0);
  }
  row_options.truncate = Truncate::refuse;
  EXPECT_ERROR(ExampleRows(examples_, row_options), "[file:1] 32 tokens, in rows of 10");
  row_options.truncate = Truncate::keep_start;
  row_options.seq_len = 2;
  EXPECT_ERROR(ExampleRows(examples_, row_options), "no trained token in 4 examples");
  row_options.seq_len = 1;
  EXPECT_ERROR(ExampleRows(examples_, row_options), "expected 2 tokens or more");
  start(SetKind::tokens);
  add(0, {{2, 3}});
  add(0, {{12, 3}});
  add(0, {{12, 3}});
  row_options.seq_len = 10;
  EXPECT_ERROR(ExampleRows(examples_, row_options),
               "2 of 3 examples lose all their trained tokens");
  row_options.truncate = Truncate::drop;
  EXPECT_EQ(ExampleRows(examples_, row_options).report().examples, 1);
  start(SetKind::tokens);
  add(0, {{5, 0}});
  EXPECT_ERROR(ExampleRows(examples_, row_options), "1 without any");
  EXPECT_ERROR(ExampleRows(std::make_shared<TokenExamples>(SetKind::tokens), row_options),
               "no trained token in 0 examples");
}

TEST_F(Rows, PairsStayTogether) {
  Rng rng(8);
  start(SetKind::pairs);
  for (int i = 0; i < 60; ++i) {
    const int64_t prompt = rng.between(1, 8);
    add(0, {{prompt, rng.between(1, 30)}, {prompt, rng.between(1, 30)}});
  }
  const int64_t seq_len = 40;
  const ExampleRows rows(examples_, options(seq_len));
  std::set<int64_t> seen;
  int64_t most = 0;
  for (int64_t index = 0; index < rows.sequences_per_epoch(); ++index) {
    const FilledRow row(rows, index, true);
    size_t at = 0;
    int64_t pair = 0;
    for (const int64_t example : rows.row(index)) {
      EXPECT_TRUE(seen.insert(example).second);
      const auto& of = all_[example];
      const int64_t a = std::ssize(of.sequences[0].ids), b = std::ssize(of.sequences[1].ids);
      for (int which = 0; which < 2; ++which) {
        const TokenSequence& sequence = of.sequences[which];
        const int64_t n = std::ssize(sequence.ids), other = which == 0 ? b : a;
        // An answer is kept whole unless both together are too long and it takes more than half.
        const int64_t kept =
            a + b <= seq_len ? n : std::min(n, std::max(seq_len / 2, seq_len - other));
        for (int64_t i = 0; i < kept; ++i, ++at) {
          ASSERT_EQ(row.tokens[at], sequence.ids[i]);
          ASSERT_EQ(row.positions[at], static_cast<int32_t>(i));
          const bool is_target = i + 1 < kept && sequence.trained[i + 1] != 0;
          ASSERT_EQ(row.targets[at], is_target ? sequence.ids[i + 1] : kIgnoredTarget);
          ASSERT_EQ(row.answers[at], is_target ? 2 * pair + which : -1);
        }
      }
      ++pair;
    }
    most = std::max(most, 2 * pair);
    for (; at < row.tokens.size(); ++at) {
      ASSERT_EQ(row.answers[at], -1);
      ASSERT_EQ(row.targets[at], kIgnoredTarget);
    }
  }
  EXPECT_EQ(seen.size(), 60u);
  EXPECT_EQ(rows.answers(), most);
  // A pair that loses one of its answers is no pair.
  start(SetKind::pairs);
  add(0, {{30, 3}, {30, 9}});
  add(0, {{2, 3}, {2, 3}});
  const ExampleRows cut(examples_, options(20));
  EXPECT_EQ(cut.report().cut_away, 1);
  EXPECT_EQ(cut.report().examples, 1);
}

TEST_F(Rows, CompletionsBehindOtherPrompts) {
  start(SetKind::unpaired);
  Rng rng(9);
  for (int i = 0; i < 21; ++i) {
    add(0, {{rng.between(1, 8), rng.between(1, 20)}}, i % 3 == 0);
  }
  for (const int64_t group : {0, 4}) {
    RowOptions row_options = options(30);
    row_options.mismatch_group = group;
    const ExampleRows rows(examples_, row_options);
    const std::unique_ptr<ExampleRows> changed = rows.mismatched();
    EXPECT_NE(rows.hash(), changed->hash());
    ASSERT_EQ(rows.sequences_per_epoch(), changed->sequences_per_epoch());
    std::set<int64_t> seen;
    for (int64_t index = 0; index < rows.sequences_per_epoch(); ++index) {
      const FilledRow own(rows, index, true), other(*changed, index, true);
      size_t at = 0, there = 0;
      int64_t number = 0;
      for (const int64_t example : rows.row(index)) {
        seen.insert(example);
        const Of& of = all_[example];
        const int64_t size =
            group == 0 ? 21 : std::min<int64_t>(group, 21 - example / group * group);
        const int64_t begin = group == 0 ? 0 : example / group * group;
        const Of& partner = all_[begin + (example - begin + size - 1) % size];
        const int32_t answer = static_cast<int32_t>(2 * number + (of.label ? 0 : 1));
        const std::vector<int32_t>& ids = of.sequences[0].ids;
        std::vector<int32_t> mixed(ids.begin(), ids.begin() + of.prompt);
        const std::vector<int32_t>& theirs = partner.sequences[0].ids;
        mixed.insert(mixed.end(), theirs.begin() + partner.prompt, theirs.end());
        mixed.resize(std::min<size_t>(mixed.size(), 30));
        for (size_t i = 0; i < ids.size(); ++i, ++at) {
          ASSERT_EQ(own.tokens[at], ids[i]);
          const bool is_target = i + 1 < ids.size() && i + 1 >= of.prompt;
          ASSERT_EQ(own.targets[at], is_target ? ids[i + 1] : kIgnoredTarget);
          ASSERT_EQ(own.answers[at], is_target ? answer : -1);
        }
        for (size_t i = 0; i < mixed.size(); ++i, ++there) {
          ASSERT_EQ(other.tokens[there], mixed[i]);
          ASSERT_EQ(other.positions[there], static_cast<int32_t>(i));
          const bool is_target = i + 1 < mixed.size() && i + 1 >= of.prompt;
          ASSERT_EQ(other.targets[there], is_target ? mixed[i + 1] : kIgnoredTarget);
          ASSERT_EQ(other.answers[there], is_target ? answer : -1);
        }
        ++number;
      }
    }
    EXPECT_EQ(seen.size(), 21u);
  }
  start(SetKind::unpaired);
  add(0, {{2, 3}});
  EXPECT_ERROR(ExampleRows(examples_, options(10)).mismatched(), "expected two examples or more");
}

}  // namespace
}  // namespace hocket::data
