// SPDX-License-Identifier: Apache-2.0
// The data of a training: prepared texts (objective pretrain), or examples (sft, dpo, kto).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/examples/shown.h"
#include "data/loader.h"
#include "data/prepare.h"
#include "run/config.h"

namespace hocket::train {

/// Beginning of a text that a trained model continues.
struct Prompt {
  std::string text;
  std::vector<int32_t> ids;
};

/// Held-out sequences that a training is evaluated on.
struct HeldOutSet {
  std::string name;  ///< in data.evaluation; empty: the data's own held-out part
  std::unique_ptr<data::HeldOutRows> rows;
  std::unique_ptr<data::HeldOutRows> mismatched;  ///< kto: other answers behind the prompts
  std::string fingerprint;                        ///< of its rows
};

/// Training data as the model sees them.
struct DataView {
  std::vector<data::ShownSequence> shown;  ///< the first ones
  data::Lengths lengths;                   ///< of all, before any is cut
  const char* noun = "example";            ///< unit of the lengths: an example, a document
};

/// Data of a run as its start and its checkpoints know them.
class RunData {
 public:
  virtual ~RunData() = default;
  /// Returns the place of the data, for people: a folder, or the sources.
  virtual const std::string& name() const = 0;
  virtual const data::Tokenizer& tokenizer() const = 0;
  /// Folder or file that the tokenizer is from.
  virtual const std::string& tokenizer_path() const = 0;
  /// Returns the identity of the data, compared on resume.
  virtual const std::string& fingerprint() const = 0;
  /// Returns the prepared texts; null: the data are examples or prompts.
  virtual const data::Dataset* texts() const { return nullptr; }
};

class TrainingData : public RunData {
 public:
  /// Opens the data that a run names. Throws Error if they are absent, damaged, or of another
  /// objective.
  static std::unique_ptr<TrainingData> open(const engine::Run& run);

  /// Returns sizes of the training data and of all that it is evaluated on, for people.
  virtual std::string training_text() const = 0;
  virtual std::string held_out_text() const = 0;
  /// Returns notes for the beginning of a run, a line each.
  virtual std::vector<std::string> notes() const { return {}; }
  /// Throws Error where the model cannot take the data. `weights`: the folder that the run starts
  /// from; empty: none.
  virtual void check(const std::string& weights) const = 0;

  /// Returns the sequences of a training. Throws Error if there are fewer tokens than one has.
  virtual std::unique_ptr<data::TrainingRows> training() const = 0;
  /// Returns the rows with other answers behind the prompts, for the divergence of kto; null: none.
  virtual std::unique_ptr<data::TrainingRows> mismatched_training() const { return nullptr; }
  virtual bool holds_out() const = 0;
  /// Returns the data's own held-out part, if there is one, then the sets of data.evaluation.
  virtual std::vector<HeldOutSet> held_out() const = 0;
  /// Returns the prompt of a sample where output.sample_prompt names none.
  virtual std::string sample_prompt() const = 0;
  /// Returns its tokens, and those of a given one, as training begins a text.
  virtual Prompt prompt_of(const std::string& text) const = 0;
  /// Returns the first `count` sequences, and the lengths of all examples.
  virtual DataView view(int64_t count) const = 0;
};

/// Data of texts that are open already, without the sets of data.evaluation.
std::unique_ptr<TrainingData> training_texts(const engine::Run& run, data::Dataset dataset);

/// Data of the examples that a run names (objectives sft, dpo and kto).
std::unique_ptr<TrainingData> training_examples(const engine::Run& run);

/// Returns the folder or file with tokenizer and template of a run that reads examples or prompts:
/// the model's, or data.tokenizer for a model without files. Throws Error where there is neither.
std::string text_files_of(const engine::Run& run);

/// Returns the folder of prepared texts. Throws Error if the run names none.
const std::string& data_dir(const engine::Run& run);

/// Returns the beginning of a text to continue: whole lines, up to 32 tokens, of the first held-out
/// document that is long enough (of the training data if nothing is held out).
std::string prompt_from(const data::Dataset& dataset);

}  // namespace hocket::train
