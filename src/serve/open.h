// SPDX-License-Identifier: Apache-2.0
// Opening of an engine for a server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/request.h"

namespace hocket::serve {

struct EngineOptions {
  std::string model, adapter, tokenizer;  ///< as `hocket generate` takes them; "": none
  std::string dtype = "f32";
  std::vector<std::string> set;          ///< key=value of a run
  int64_t max_model_len = 0;             ///< 0: the model's longest text
  int64_t max_num_seqs = 64;             ///< texts in a batch
  int64_t max_num_batched_tokens = 512;  ///< of a step
  int64_t max_waiting = 512;             ///< requests in the queue; submit() then throws Busy
  bool prefix_caching = true;
};

/// Loads the model and starts the engine. With ranks as processes all call it: the first one gets
/// the service; on the others it runs their ranks until the first one's ends, and returns null.
/// Throws Error.
std::unique_ptr<Service> open_engine(const EngineOptions& options);

}  // namespace hocket::serve
