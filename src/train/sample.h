// SPDX-License-Identifier: Apache-2.0
// Generation of text: prefill and decode programs with a KV cache, sampling on the host.
#pragma once

#include <functional>
#include <string>

#include "data/prepare.h"
#include "diagnose/report.h"
#include "engine/session.h"

namespace hocket::train {

struct GenerateOptions {
  std::string prompt;
  int64_t max_new_tokens = 200;
  double temperature = 0.8;  ///< 0: the most likely token
  int64_t top_k = 0;         ///< 0: all
  double top_p = 0.95;
  uint64_t seed = 1;
  /// Called with the bytes of every new token (streaming).
  std::function<void(const std::string&)> on_text;
};

/// `weights(tensor, begin, count, dst)` delivers parameter values. Returns the text after the
/// prompt. One rank, whatever the plan.
std::string generate(const engine::Run& run, const data::Tokenizer& tokenizer,
                     std::shared_ptr<kernels::Backend> backend,
                     const std::function<void(const graph::Tensor&, int64_t begin, int64_t count,
                                              void* dst)>& weights,
                     const GenerateOptions& options);

/// A sample from the parameters that a session has in memory.
diagnose::Sample sample_text(const engine::Run& run, engine::Session& session, const data::Dataset& dataset);

}  // namespace hocket::train
