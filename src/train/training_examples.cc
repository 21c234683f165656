// SPDX-License-Identifier: Apache-2.0
// Implements: training_examples, text_files_of (training_data.h): training on examples.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/resolve.h"
#include "data/model_text.h"
#include "engine/example_data.h"
#include "train/training_data.h"

namespace hocket::train {

namespace {

using engine::Objective;

data::SetKind kind_for(Objective objective) {
  switch (objective) {
    case Objective::dpo:
      return data::SetKind::pairs;
    case Objective::kto:
      return data::SetKind::unpaired;
    default:
      return data::SetKind::tokens;
  }
}

/// Rows in the order of the set.
class InOrder : public data::HeldOutRows {
 public:
  InOrder(std::shared_ptr<const data::ExampleRows> rows, std::vector<int32_t> token_lengths)
      : rows_(std::move(rows)), token_lengths_(std::move(token_lengths)) {}

  int64_t seq_len() const override { return rows_->seq_len(); }
  int64_t size() const override { return rows_->sequences_per_epoch(); }
  int64_t fill(int64_t index, const data::SequenceOut& out) const override {
    rows_->fill(index, out);
    int64_t bytes = 0;
    for (const int32_t target : out.targets) {
      bytes += target >= 0 ? token_lengths_[static_cast<size_t>(target)] : 0;
    }
    return bytes;
  }

 private:
  const std::shared_ptr<const data::ExampleRows> rows_;
  const std::vector<int32_t> token_lengths_;
};

/// Training rows of a set that others read, too: held-out prompts, samples, reports.
class RowsOfSet : public data::TrainingRows {
 public:
  explicit RowsOfSet(std::shared_ptr<const data::ExampleRows> rows) : rows_(std::move(rows)) {}
  int64_t seq_len() const override { return rows_->seq_len(); }
  int64_t sequences_per_epoch() const override { return rows_->sequences_per_epoch(); }
  void fill(int64_t index, const data::SequenceOut& out) const override { rows_->fill(index, out); }
  int64_t identity(int64_t index) const override { return rows_->identity(index); }

 private:
  const std::shared_ptr<const data::ExampleRows> rows_;
};

class Examples : public TrainingData {
 public:
  explicit Examples(const engine::Run& run);

  const std::string& name() const override { return name_; }
  const data::Tokenizer& tokenizer() const override { return *data_.tokenizer; }
  const std::string& tokenizer_path() const override { return model_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  std::string training_text() const override { return text_of(train_); }
  std::string held_out_text() const override;
  std::vector<std::string> notes() const override;
  void check(const std::string&) const override {}
  std::unique_ptr<data::TrainingRows> training() const override {
    return std::make_unique<RowsOfSet>(train_);
  }
  std::unique_ptr<data::TrainingRows> mismatched_training() const override {
    return unpaired() ? train_->mismatched() : nullptr;
  }
  bool holds_out() const override { return !held_out_.empty(); }
  std::vector<HeldOutSet> held_out() const override;
  std::string sample_prompt() const override;
  Prompt prompt_of(const std::string& text) const override;
  DataView view(int64_t count) const override;

 private:
  /// Held-out examples: the data's own without a name, or a set of data.evaluation.
  struct Held {
    std::string name;
    std::shared_ptr<const data::ExampleRows> rows;
    std::vector<data::SourceReport> sources;  ///< of a set; the data's own are the training's
  };

  bool unpaired() const { return run_.config.objective == Objective::kto; }
  std::string objective() const {
    return engine::names_of(Objective())[static_cast<size_t>(run_.config.objective)];
  }
  engine::ExampleDataOptions options() const;
  engine::ExampleData read(const engine::DataSection& section) const;
  void expect_kind(const data::TokenExamples& examples, const std::string& of) const;
  void open_evaluation();
  /// Returns the rows with other answers behind the prompts.
  static std::shared_ptr<const data::ExampleRows> mismatched_of(const Held& held);
  std::string text_of(const std::shared_ptr<const data::ExampleRows>& rows) const;
  std::unique_ptr<data::HeldOutRows> in_order(std::shared_ptr<const data::ExampleRows> rows) const {
    return std::make_unique<InOrder>(std::move(rows), tokenizer().token_lengths());
  }

  const engine::Run& run_;
  std::string name_, model_, fingerprint_;
  engine::ExampleData data_;
  std::shared_ptr<const data::ExampleRows> train_;
  std::vector<Held> held_out_;
};

Examples::Examples(const engine::Run& run) : run_(run), model_(text_files_of(run)) {
  const engine::DataSection& section = run.config.data;
  if (section.sources.empty()) {
    fail(run.name,
         "objective is {}, and data.sources is empty; expected files of examples, such as "
         "data.sources: [{{path: chats.jsonl}}]",
         objective());
  }
  for (const data::SourceOptions& source : section.sources) {
    name_ += (name_.empty() ? "" : ", ") + source.path;
  }
  data_ = read(section);
  if (!data_.train_rows) {
    fail(run.name, "{} has no example to train on; expected a source that is not split: valid",
         name_);
  }
  expect_kind(*data_.train, name_);
  fingerprint_ = data_.fingerprint();
  train_ = std::move(data_.train_rows);
  if (data_.valid_rows) {
    held_out_.push_back({"", std::move(data_.valid_rows), {}});
  }
  open_evaluation();
}

engine::ExampleDataOptions Examples::options() const {
  engine::ExampleDataOptions options;
  options.where = run_.name;
  options.model = model_;
  options.vocabulary = run_.model.vocab_size;
  options.seq_len = run_.config.train.seq_len;
  options.seed = static_cast<uint64_t>(run_.config.train.seed);
  options.unpair = unpaired();
  options.most_examples = run_.config.prefers() ? run_.config.preference.answers_per_sequence : 0;
  return options;
}

engine::ExampleData Examples::read(const engine::DataSection& section) const {
  Progress progress;
  engine::ExampleDataOptions example_options = options();
  example_options.progress = [&](const std::string& what) { progress.update(what); };
  engine::ExampleData data = engine::read_example_data(section, example_options);
  progress.finish();
  return data;
}

/// Throws Error for examples of another objective.
void Examples::expect_kind(const data::TokenExamples& examples, const std::string& of) const {
  if (examples.kind() != kind_for(run_.config.objective)) {
    fail(run_.name, "objective is {}, and {} has {}; expected {}", objective(), of,
         data::to_string(examples.kind()), data::to_string(kind_for(run_.config.objective)));
  }
}

/// Reads the sets of data.evaluation. They are no part of the fingerprint: a resumed training may
/// have others.
void Examples::open_evaluation() {
  const engine::DataSection& section = run_.config.data;
  for (const engine::EvaluationSection& set : section.evaluation) {
    const std::string name = "data.evaluation: " + set.name;
    engine::ExampleData data;
    try {
      data = read(section.of(set));
    } catch (const Error& error) {
      throw error.with_place(name, "it is for " + name);
    }
    if (!data.valid_rows) fail(run_.name, "{} has no example; expected some", name);
    expect_kind(*data.valid, name);
    held_out_.push_back({set.name, std::move(data.valid_rows), std::move(data.sources)});
  }
}

std::string Examples::held_out_text() const {
  std::string text;
  for (const Held& held : held_out_) {
    const std::string name = held.name.empty() ? "" : held.name + ": ";
    text += (text.empty() ? "" : "; ") + name + text_of(held.rows);
  }
  return text.empty() ? "nothing" : text;
}

std::vector<HeldOutSet> Examples::held_out() const {
  std::vector<HeldOutSet> list;
  for (const Held& held : held_out_) {
    list.push_back({held.name, in_order(held.rows),
                    unpaired() ? in_order(mismatched_of(held)) : nullptr, held.rows->hash().hex()});
  }
  return list;
}

std::shared_ptr<const data::ExampleRows> Examples::mismatched_of(const Held& held) {
  try {
    return held.rows->mismatched();
  } catch (const Error& error) {
    throw error.with(held.name.empty()
                         ? "these are the examples held out; try another data.valid_fraction, or 0"
                         : "these are the examples of data.evaluation: " + held.name);
  }
}

std::string Examples::text_of(const std::shared_ptr<const data::ExampleRows>& rows) const {
  const data::RowReport& report = rows->report();
  const std::string labels = engine::labels_text(*rows);
  return fmt::format("{}{}, {} tokens in {}, {} of them trained",
                     counted(report.examples, "example"),
                     labels.empty() ? "" : fmt::format(" ({})", labels),
                     human_count(static_cast<double>(report.ids)), counted(report.rows, "sequence"),
                     human_count(static_cast<double>(report.targets)));
}

namespace {

/// Adds a note for each kind of examples that are not read or not whole, and warnings of their
/// chat template. `of` ends each note: ", of data.evaluation: NAME".
void add_notes(const std::vector<data::SourceReport>& sources, const data::RowReport& report,
               const std::string& of, std::vector<std::string>* notes) {
  const auto note = [&](int64_t count, const char* one, const char* what) {
    if (count > 0) {
      notes->push_back(counted(count, one) + what + of);
    }
  };
  for (const data::SourceReport& source : sources) {
    note(source.read.unreadable, "example", " could not be read (hocket data show names them)");
    note(source.refused, "example", " could not be rendered (hocket data show names them)");
    for (const std::string& text : source.left_out_texts()) {
      notes->push_back("warning: " + text + of);
    }
  }
  note(report.split, "text", " longer than train.seq_len, in parts");
  note(report.truncated, "example", " cut off at train.seq_len");
  note(report.too_long, "example", " left out, longer than train.seq_len");
  note(report.cut_away, "example", " left out, whose trained tokens lie behind train.seq_len");
  note(report.untrained, "example", " left out, without a trained token");
}

}  // namespace

std::vector<std::string> Examples::notes() const {
  std::vector<std::string> notes;
  add_notes(data_.sources, train_->report(), "", &notes);
  for (const Held& held : held_out_) {
    add_notes(held.sources, held.rows->report(),
              held.name.empty() ? ", of those held out" : ", of data.evaluation: " + held.name,
              &notes);
  }
  const std::string warning = engine::labels_warning(*train_, run_.config.preference);
  if (!warning.empty()) {
    notes.push_back("warning: " + warning);
  }
  return notes;
}

/// The prompt of the first example that is held out, or of the first.
std::string Examples::sample_prompt() const {
  const data::TokenExamples& examples = data_.valid->size() > 0 ? *data_.valid : *data_.train;
  const data::TokenExamples::Sequence first = examples.sequence(0);
  const auto prompt = static_cast<size_t>(examples.prompt(0));
  const auto trained = std::find(first.trained.begin(), first.trained.end(), 1);
  const size_t length = prompt > 0 ? prompt : static_cast<size_t>(trained - first.trained.begin());
  return tokenizer().decode(first.ids.first(length));
}

DataView Examples::view(int64_t count) const {
  DataView view{data::shown_sequences(*train_, count), data::Lengths(train_->examples())};
  if (std::ssize(view.shown) > count) {
    view.shown.resize(static_cast<size_t>(count));
  }
  return view;
}

Prompt Examples::prompt_of(const std::string& text) const {
  std::vector<int32_t> ids = tokenizer().encode(text);
  if (!run_.config.output.sample_prompt.empty()) {
    // As training begins a text, once. A prompt of the data has what comes before it already.
    const std::vector<int32_t> beginning = data::beginning_of_text(model_, tokenizer());
    const bool has_it = ids.size() >= beginning.size() &&
                        std::equal(beginning.begin(), beginning.end(), ids.begin());
    if (!has_it) {
      ids.insert(ids.begin(), beginning.begin(), beginning.end());
    }
  }
  if (ids.empty()) {
    ids.push_back(std::max(tokenizer().eos_id(), 0));
  }
  return {text, std::move(ids)};
}

}  // namespace

std::string text_files_of(const engine::Run& run) {
  if (!run.weights.empty()) return run.weights;
  const engine::ModelSection& model = run.config.model;
  if (!model.path.empty()) {
    return checkpoint::resolve_model(model.path, checkpoint::Need::config).folder;
  }
  if (run.config.data.tokenizer.empty()) {
    fail(run.name,
         "model.config names no folder with a tokenizer; expected data.tokenizer: a folder with a "
         "tokenizer.json");
  }
  return run.config.data.tokenizer;
}

std::unique_ptr<TrainingData> training_examples(const engine::Run& run) {
  return std::make_unique<Examples>(run);
}

}  // namespace hocket::train
