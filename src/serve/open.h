// SPDX-License-Identifier: Apache-2.0
// An engine for a model's files: weights loaded, program proven, memory planned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "data/tokenizer/tokenizer.h"
#include "run/config.h"
#include "serve/request.h"
#include "serve/session_stepper.h"

namespace hocket::serve {

struct EngineOptions {
  int64_t max_model_len = 0;  ///< 0: the model's longest text, or what the cache can hold
  /// Texts of a step on a data-parallel rank; none: 32, or as many as a step has tokens.
  std::optional<int64_t> max_num_seqs;
  /// New tokens of a step there, at least one of every text; none: 512, or more for more texts.
  std::optional<int64_t> max_num_batched_tokens;
  int64_t decode_steps = 0;   ///< SchedulerOptions::decode_steps
  int64_t prompt_tokens = 0;  ///< SchedulerOptions::prompt_tokens
  int64_t max_waiting = 512;  ///< requests in the queue; submit() then throws Busy
  int64_t max_logprobs = 20;  ///< alternatives per token
  std::optional<double>
      kv_cache_memory;  ///< bytes per rank; none: a quarter of what is free, at most 4 GB
  bool prefix_caching = true;
};

/// The engine of a run's model on the ranks of its plan. With ranks as processes all of them make
/// one; that with index 0 answers requests, and the others follow.
class ModelEngine : public Service {
 public:
  /// Requires: run and tokenizer outlive it. Throws Error if the weights cannot be read, the check
  /// refuses the program, or memory does not suffice.
  ModelEngine(const engine::Run& run, const data::Tokenizer& tokenizer,
              const EngineOptions& options);
  ~ModelEngine() override;

  bool leads() const;  ///< this process answers requests
  /// Takes part in the steps of the process that leads until that ends. Requires: !leads().
  void follow();
  const StepLimits& limits() const;
  /// "texts of up to 1024 tokens, ...; memory of a rank: at most 2.1 GiB (...)": for the log.
  std::string sizes_text() const;

  RequestId submit(Request request, OnUpdate on_update) override;
  void cancel(RequestId id) override;
  Stats stats() const override;
  std::string failure() const override;
  bool is_shut_down() const override;
  int64_t max_model_len() const override;
  int64_t vocab_size() const override;
  void wait_idle();
  /// Ends all requests as failed; none is answered any more.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns the name of a run's weights, adapter included, for SchedulerOptions: their prefixes are
/// those of no others.
std::string cache_namespace(const engine::Run& run);
/// Bytes of keys and values of a page on a rank with all heads and layers.
int64_t page_bytes(const engine::Run& run);
/// Chooses the sizes of steps. `longest`: tokens of a text, 0: as long as possible. Throws Error if
/// the cache cannot hold one such text.
StepLimits choose_limits(const engine::Run& run, const data::Tokenizer& tokenizer,
                         const EngineOptions& options);
/// Generating program, proven. Throws Error if the plan cannot generate (experts on ranks of their
/// own), or the check refuses it.
engine::Compiled compile_generation(const engine::Run& run, const StepLimits& limits);

}  // namespace hocket::serve
