// SPDX-License-Identifier: Apache-2.0
// Training rows of a fine-tuning set: whole examples packed into rows, rows shuffled per epoch,
// sources mixed by weight (docs/fine-tuning-data.md). An example of n ids takes n places of a row:
// place i has id i, position i, and as its target id i + 1 where that is trained.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/examples/blend.h"
#include "data/examples/example_set.h"
#include "data/examples/packing.h"
#include "data/loader.h"

namespace hocket::data {

struct RowOptions {
  int64_t seq_len = 0;
  bool packing = true;        ///< false: an example a row, and padding
  int64_t most_examples = 0;  ///< in a row; 0: any number
  Truncate truncate = Truncate::keep_start;
  bool split_texts = false;  ///< with keep_start: a longer text becomes parts, and loses nothing
  bool shuffle = true;
  uint64_t seed = 0;
  int32_t pad = 0;  ///< id behind the last example of a row; its loss does not count
  /// Weights of the sources; all null: every example once an epoch.
  std::vector<std::optional<double>> weights;
  /// Unpaired examples change completions within groups of this many, in the order of the set; 0:
  /// one group (ExampleRows::mismatched).
  int64_t mismatch_group = 0;
};

struct RowReport {
  int64_t examples = 0;   ///< in rows
  int64_t desirable = 0;  ///< unpaired: those of them with a desirable completion
  int64_t rows = 0;       ///< of all sources, once each
  int64_t ids = 0;        ///< in rows
  int64_t targets = 0;    ///< those that are trained
  int64_t split = 0;      ///< texts that are longer than a row
  int64_t parts = 0;      ///< that they became
  int64_t truncated = 0;  ///< examples that lost ids
  int64_t lost_ids = 0;   ///< the ids that they lost
  int64_t too_long = 0;   ///< dropped as Truncate says
  int64_t cut_away =
      0;  ///< dropped since no trained id is left of them, or of one of their answers
  int64_t untrained = 0;  ///< dropped since they had none from the start
  int64_t unused = 0;     ///< of sources with weight 0
  /// Places of the first ReadReport::kNamed examples of each kind, with their numbers of tokens:
  /// "chat.jsonl:17: 4000 tokens".
  std::vector<std::string> first_truncated, first_too_long, first_cut_away, first_untrained;
};

class ExampleRows : public TrainingRows {
 public:
  /// Throws Error for a set, or a source with a weight, without a trained token; where more than
  /// half of the examples lose all their trained tokens to truncation; for a weight of one source
  /// and none of another; and as Blend.
  ExampleRows(std::shared_ptr<const TokenExamples> examples, RowOptions options);

  int64_t seq_len() const override { return options_.seq_len; }
  int64_t sequences_per_epoch() const override { return report_.rows; }
  void fill(int64_t index, const SequenceOut& out) const override;
  int64_t identity(int64_t index) const override;

  /// Returns the most answers in a row, counted as SequenceOut::answers counts; 0: none.
  int64_t answers() const;
  const RowReport& report() const { return report_; }
  const TokenExamples& examples() const { return *examples_; }
  /// Returns the identity of every row: of the examples, and of the options that rows depend on.
  Hash128 hash() const;
  /// Returns how often the examples of each source are seen in the first `rows` rows.
  std::vector<double> epochs(int64_t rows) const;
  /// An example, or a part of a text that is longer than a row.
  struct Piece {
    int64_t example = 0;
    int64_t begin = 0;  ///< its first id in the text; the row's targets may reach one id further
  };
  /// Returns the numbers of the pieces in row `index`, in their order: of an example its own, and
  /// higher ones for the later parts of texts.
  std::span<const int64_t> row(int64_t index) const;
  Piece piece(int64_t number) const;

  /// Returns rows of unpaired examples with the same prompts in the same order, but other
  /// completions. A prompt gets the completion of the example before it in its group, the first
  /// prompt that of the last example. The KL term of the loss is estimated on them. Throws Error
  /// where every prompt would keep its own.
  std::unique_ptr<ExampleRows> mismatched() const;

 private:
  /// Examples of one source, or of all, and their rows.
  struct Part {
    int64_t source = 0;  ///< also decides the order; of all together 0
    Packing packing;     ///< of examples' numbers
  };
  struct SourceRow {
    int64_t part = 0, row = 0;
  };
  SourceRow source_row(int64_t index) const;
  void choose();
  bool is_split(int64_t example) const;
  void split(int64_t example, std::vector<int64_t>* used);
  void change_completions();
  void pack();
  /// Returns the length that a sequence of a piece has in a row.
  int64_t length(int64_t number, int which) const;
  /// The same of an example's prompt before another's completion.
  int64_t mismatched_length(int64_t example) const;
  /// Fills the places from `at` on with a sequence of a piece, number `answer` of the row's;
  /// returns its end.
  int64_t put(int64_t number, int which, int64_t answer, int64_t at, const SequenceOut& out) const;
  int64_t put_mismatched(int64_t example, int64_t answer, int64_t at, const SequenceOut& out) const;

  std::shared_ptr<const TokenExamples> examples_;
  RowOptions options_;
  RowReport report_;
  bool weighted_ = false;                   ///< sources have weights
  std::vector<std::vector<int64_t>> used_;  ///< pieces in rows: of each source with weights
  std::vector<Piece> later_parts_;          ///< of texts; numbered from the number of examples on
  std::vector<int64_t> partner_;            ///< of each unpaired example: whose completion it gets
  bool mismatched_ = false;                 ///< these rows are with it
  std::vector<Part> parts_;
  std::optional<Blend> blend_;
  int64_t most_ = 0;  ///< examples in a row
};

}  // namespace hocket::data
