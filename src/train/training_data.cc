// SPDX-License-Identifier: Apache-2.0
#include "train/training_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/model_text.h"

namespace hocket::train {

namespace {

constexpr int64_t kPromptTokens = 32;

std::string text_of(const data::SplitStats& split) {
  return fmt::format("{} tokens in {}", human_count(static_cast<double>(split.tokens)),
                     counted(split.files, "file"));
}

/// Compares checksums, with a word of progress if it takes long.
void verify(const data::TokenStream& stream) {
  constexpr int64_t kWorthAWord = int64_t{1} << 30;  // less takes a second at most
  Progress progress;
  stream.verify([&](int64_t done, int64_t total) {
    if (total < kWorthAWord) return;
    progress.update(fmt::format("comparing checksums: {} of {}",
                                human_bytes(static_cast<double>(done)),
                                human_bytes(static_cast<double>(total))));
  });
}

/// A set of data.evaluation: another prepared folder, of the same tokenizer.
struct TextSet {
  std::string name;
  data::Dataset dataset;

  /// Returns the held-out part, or all without one.
  std::shared_ptr<const data::TokenStream> stream() const {
    return dataset.valid() ? dataset.valid() : dataset.train();
  }
  const data::SplitStats& stats() const {
    return dataset.valid() ? dataset.valid_stats() : dataset.train_stats();
  }
};

/// Opens the evaluation sets of a run on prepared texts.
std::vector<TextSet> open_text_sets(const engine::Run& run, const data::Dataset& beside) {
  std::vector<TextSet> sets;
  for (const engine::EvaluationSection& set : run.config.data.evaluation) {
    data::Dataset dataset(set.path);
    if (dataset.tokenizer().hash() != beside.tokenizer().hash()) {
      fail(run.name,
           "data.evaluation: {} was prepared with another tokenizer than {}; try `hocket data "
           "prepare --tokenizer {}`",
           set.path, beside.folder(), beside.folder());
    }
    sets.push_back({set.name, std::move(dataset)});
  }
  return sets;
}

/// A folder that `hocket data prepare` wrote.
class Texts : public TrainingData {
 public:
  Texts(const engine::Run& run, data::Dataset dataset, std::vector<TextSet> sets)
      : run_(run), dataset_(std::move(dataset)), sets_(std::move(sets)) {}

  const std::string& name() const override { return dataset_.folder(); }
  const data::Tokenizer& tokenizer() const override { return dataset_.tokenizer(); }
  const std::string& tokenizer_path() const override { return dataset_.folder(); }
  const std::string& fingerprint() const override { return dataset_.fingerprint(); }
  std::string training_text() const override { return text_of(dataset_.train_stats()); }
  std::string held_out_text() const override;
  std::vector<std::string> notes() const override;
  void check(const std::string& weights) const override;
  std::unique_ptr<data::TrainingRows> training() const override {
    const engine::TrainSection& train = run_.config.train;
    return std::make_unique<data::PackedLoader>(
        dataset_.train(), train.seq_len, tokenizer().eos_id(), static_cast<uint64_t>(train.seed));
  }
  bool holds_out() const override { return dataset_.valid() != nullptr || !sets_.empty(); }
  std::vector<HeldOutSet> held_out() const override;
  std::string sample_prompt() const override { return prompt_from(dataset_); }
  Prompt prompt_of(const std::string& text) const override;
  DataView view(int64_t count) const override;
  const data::Dataset* texts() const override { return &dataset_; }

 private:
  const engine::Run& run_;
  const data::Dataset dataset_;
  const std::vector<TextSet> sets_;
};

std::string Texts::held_out_text() const {
  std::string text = dataset_.valid() ? text_of(dataset_.valid_stats()) : "nothing";
  for (const TextSet& set : sets_) {
    text += fmt::format("; {}: {}", set.name, text_of(set.stats()));
  }
  return text;
}

std::vector<HeldOutSet> Texts::held_out() const {
  std::vector<HeldOutSet> list;
  const auto add = [&](const std::string& name, std::shared_ptr<const data::TokenStream> stream,
                       const std::string& fingerprint) {
    list.push_back(
        {name,
         std::make_unique<data::ValidLoader>(std::move(stream), run_.config.train.seq_len,
                                             tokenizer().eos_id(), tokenizer().token_lengths()),
         nullptr, fingerprint});
  };
  if (dataset_.valid()) {
    add("", dataset_.valid(), dataset_.fingerprint());
  }
  for (const TextSet& set : sets_) {
    add(set.name, set.stream(), set.dataset.fingerprint());
  }
  return list;
}

std::vector<std::string> Texts::notes() const {
  const int64_t met = dataset_.special_tokens_met();
  return met > 0 ? std::vector{fmt::format(
                       "{} in the texts, taken {}", counted(met, "special token"),
                       dataset_.split_special_tokens() ? "for plain text" : "as such")}
                 : std::vector<std::string>();
}

void Texts::check(const std::string& weights) const {
  if (run_.config.data.split_special_tokens && !dataset_.split_special_tokens() &&
      dataset_.special_tokens_met() > 0) {
    fail(run_.name,
         "data.split_special_tokens is true, and {} was prepared with false; expected the same; "
         "try `hocket data prepare {}`",
         name(), run_.name);
  }
  if (tokenizer().vocab_size() > run_.model.vocab_size) {
    fail(run_.name, "the tokenizer of {} has {} tokens; expected at most the model's vocab_size {}",
         name(), tokenizer().vocab_size(), run_.model.vocab_size);
  }
  if (!weights.empty()) {
    data::require_tokenizer_of(weights, tokenizer(), name(),
                               "prepare the data again with data.tokenizer: " + weights +
                                   ", or start from a copy of that folder without tokenizer.json "
                                   "to train another vocabulary");
  }
  for (const auto& stream : {dataset_.train(), dataset_.valid()}) {
    if (stream) {
      verify(*stream);
    }
  }
  for (const TextSet& set : sets_) {
    verify(*set.stream());
  }
}

DataView Texts::view(int64_t count) const {
  const data::TokenStream& stream = *dataset_.train();
  std::vector<int64_t> lengths;
  for (int64_t d = 0; d < stream.documents(); ++d) {
    lengths.push_back(stream.document_begin(d + 1) - stream.document_begin(d));
  }
  return {data::shown_documents(*training(), count), data::Lengths(std::move(lengths)), "document"};
}

/// Returns the prompt of a text, behind an end of text if the tokenizer has one, like the documents
/// of training.
Prompt Texts::prompt_of(const std::string& text) const {
  std::vector<int32_t> beginning;
  if (tokenizer().eos_id() >= 0) {
    beginning.push_back(tokenizer().eos_id());
  }
  return {text, data::document_ids("sample", beginning, tokenizer(), text, run_.model.vocab_size)};
}

}  // namespace

std::unique_ptr<TrainingData> TrainingData::open(const engine::Run& run) {
  if (run.config.objective != engine::Objective::pretrain) {
    if (!run.config.data.dir.empty()) {
      fail(run.name,
           "data.dir is {}, and objective is {}, which reads data.sources; expected one of them; "
           "try without data.dir, or objective: pretrain",
           run.config.data.dir,
           engine::names_of(engine::Objective())[static_cast<size_t>(run.config.objective)]);
    }
    return training_examples(run);
  }
  if (!run.config.data.sources.empty()) {
    fail(run.name,
         "data.sources are examples, and objective is pretrain, on the texts of data.dir; try "
         "objective: sft, which trains on every token of a text, too");
  }
  data::Dataset dataset(data_dir(run));
  std::vector<TextSet> sets = open_text_sets(run, dataset);
  return std::make_unique<Texts>(run, std::move(dataset), std::move(sets));
}

std::unique_ptr<TrainingData> training_texts(const engine::Run& run, data::Dataset dataset) {
  return std::make_unique<Texts>(run, std::move(dataset), std::vector<TextSet>());
}

const std::string& data_dir(const engine::Run& run) {
  const std::string& dir = run.config.data.dir;
  if (dir.empty()) {
    fail(run.name, "data.dir is missing; expected the folder that `hocket data prepare` wrote");
  }
  if (!is_directory(dir)) {
    fail(dir,
         "no such folder in {}, where the command is called; expected the output of "
         "`hocket data prepare`",
         std::filesystem::current_path().string());
  }
  return dir;
}

std::string prompt_from(const data::Dataset& dataset) {
  const data::TokenStream& stream = dataset.valid() ? *dataset.valid() : *dataset.train();
  const auto length = [&](int64_t d) {
    return stream.document_begin(d + 1) - stream.document_begin(d);
  };
  // Half of a short document, so that something remains to be generated.
  int64_t document = 0;
  for (int64_t d = stream.documents(); d-- > 0;) {
    if (length(d) >= 2 * kPromptTokens) {
      document = d;
    }
  }
  std::vector<int32_t> ids(static_cast<size_t>(std::min(kPromptTokens, length(document) / 2)));
  stream.read(stream.document_begin(document), ids);
  std::string text = dataset.tokenizer().decode(ids);
  while (!text.empty() && !is_utf8(text)) {
    text.pop_back();  // a character that was cut
  }
  const size_t end = text.find_last_of('\n');
  if (end != text.npos && !trim(text.substr(0, end)).empty()) {
    text.resize(end + 1);
  }
  return text;
}

}  // namespace hocket::train
