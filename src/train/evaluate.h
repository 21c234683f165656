// SPDX-License-Identifier: Apache-2.0
// Evaluation: held-out loss in bits per byte, and logits and gradients of given token lists for
// comparison with other implementations.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/model_weights.h"
#include "engine/batch.h"
#include "engine/programs.h"
#include "train/reference_logprobs.h"
#include "train/training_data.h"

namespace hocket::train {

class Preferences;

/// Named values of a step or an evaluation, in order, under TRL's names: "rewards/chosen".
using Values = std::vector<std::pair<std::string, double>>;

struct HeldOut {
  std::string name;     ///< of the set; empty: the data's own held-out part
  double nats = 0;      ///< sum over all targets; of preferences the losses of all answers
  int64_t targets = 0;  ///< of preferences pairs or answers
  int64_t bytes = 0;    ///< of the text that the targets stand for; 0: of preferences
  int64_t sequences = 0, of = 0;  ///< those that were run, and those that there are
  Values values;                  ///< of preferences, of fine-tuning
  bool complete() const { return sequences == of; }
  std::string read_text() const;  ///< "all held-out files", "32 of 98 held-out sequences"
  /// Returns "held-out", or the name of the set.
  const std::string& title() const;
  double loss() const { return nats / static_cast<double>(targets); }
  double bits_per_byte() const { return nats / 0.6931471805599453 / static_cast<double>(bytes); }
};

/// A batch of held-out sequences.
struct HeldOutBatch {
  engine::Batch batch;
  std::optional<engine::Batch> mismatched;  ///< kto: other answers behind the prompts
  RowNumbers numbers;
  int64_t bytes = 0;  ///< of text that the targets stand for
};

/// Returns the sequences of a set that an evaluation of `sequences` reads, spread evenly over it;
/// 0: all.
std::vector<int64_t> chosen_of(const HeldOutSet& set, int64_t sequences);

/// Returns the identity of the sequences that an evaluation of `sequences` reads.
std::string fingerprint_of(const HeldOutSet& set, int64_t sequences);

/// Returns the table of a set's rows (RowNumbers).
std::string table_of(const HeldOutSet& set);

/// Calls the function with these sequences of a set, a batch of the program after the other.
/// `answers`: with their answers.
void for_each_batch(const HeldOutSet& set, const std::vector<int64_t>& which,
                    const engine::Compiled& program, bool answers,
                    const std::function<void(HeldOutBatch&)>& take);

/// Runs held-out sequences through the parameters that the ranks have, under the run's plan.
class Evaluator {
 public:
  /// The parameters are those of `programs`, which outlives it, that are held for `trained`; null:
  /// for the evaluation itself. If that holds them otherwise, it has a store of its own, into which
  /// they are copied before every evaluation. `preferences`: of such an objective, and outlives it,
  /// too.
  Evaluator(const engine::Run& run, const TrainingData& data, engine::Programs& programs,
            const engine::Compiled* trained = nullptr, Preferences* preferences = nullptr);
  ~Evaluator();
  /// Returns the losses of all sets, in the order of the data. `sequences` of each, spread evenly
  /// over it; 0: all of it. `progress(done, total)`.
  std::vector<HeldOut> run(int64_t sequences,
                           const std::function<void(int64_t, int64_t)>& progress = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Lists of token ids as `ids.json` has them. Throws Error on anything else.
std::vector<std::vector<int32_t>> read_ids(const std::string& path, int64_t vocab_size);

/// Logits [tokens, vocab] of every list, as fp32, under the run's plan: `take` gets them in the
/// order of the lists, a few lists in memory at a time. Lists whose length changes the rotary
/// frequencies (LongRoPE, dynamic scaling) are run apart from others, and come after them.
void for_each_logits(const engine::Run& run, const std::vector<std::vector<int32_t>>& ids,
                     engine::Programs& programs,
                     const std::function<void(size_t list, std::vector<float> logits)>& take);

/// Log-probability of every next token of every list, [tokens - 1], under the run's plan: `take`
/// gets them in the order of the lists. Logits are formed a chunk at a time.
void for_each_logprobs(
    const engine::Run& run, const std::vector<std::vector<int32_t>>& ids,
    engine::Programs& programs,
    const std::function<void(size_t list, std::span<const double> logprobs)>& take);

/// Returns the spec of gradients_of. Ranks may hold more parameters for it than for others: stages
/// that a schedule replicates.
engine::ProgramSpec gradient_spec(const engine::Run& run,
                                  const std::vector<std::vector<int32_t>>& ids);
/// Gradients of the mean next-token loss over all lists, by parameter name (full tensors in the
/// run's type), and that loss.
struct Gradients {
  double loss = 0;
  std::vector<std::pair<graph::Tensor, std::vector<std::byte>>> grads;
};
Gradients gradients_of(const engine::Run& run, const std::vector<std::vector<int32_t>>& ids,
                       engine::Programs& programs);

}  // namespace hocket::train
